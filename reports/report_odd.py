"""Exchanges that stand out, each with a way to its evidence."""

from django.conf import settings
from django.db.models import Q

from reports.figures import moment
from reports.filters import Filters
from reports.queries import Scope
from reports.queries_exchanges import COLUMNS, Wanted, oddest, search_limit
from reports.report_usage import NOTHING_HERE
from reports.tables import Card, Report, Section, Table

MOST = 20
"""Of each kind."""
MEASURES = (
    "requests",
    "cost_unknown",
    "usage_estimated",
    "usage_inconsistent",
    "aborted",
    "internal_error",
    "fallbacks",
)
KINDS = (
    ("most-expensive", "Most expensive", "-cost_microdollars", Q(cost_microdollars__gt=0)),
    ("slowest", "Slowest", "-duration_ms", Q(duration_ms__gt=0)),
    ("most-attempts", "Most attempts", "-attempt_count", Q(attempt_count__gt=1)),
    ("cost-unknown", "Cost not known", "-started_at", Q(cost_microdollars=None)),
    (
        "usage-estimated",
        "Usage estimated or inconsistent",
        "-started_at",
        Q(usage_quality__in=("estimated", "inconsistent")),
    ),
    ("aborted", "Process died, or the gateway failed", "-started_at", Q(outcome__in=("aborted", "internal_error"))),
)


def odd(filters: Filters, scope: Scope) -> Report:
    total, before = scope.now.total(MEASURES), scope.before.total(MEASURES)
    wanted = Wanted(filters=filters)
    since = search_limit(wanted)
    notes = list(scope.missing)
    if since is not None:
        notes.append(
            f"The lists look at the last {settings.PILOTAGE.report_search_rows:,} exchanges, back to "
            f"{moment(since, filters.zone)}: choose a shorter period or a caller, project or group to see others "
            "(PILOTAGE_REPORT_SEARCH_ROWS). The figures above them are of the whole period."
        )
    return Report(
        slug="odd",
        title="Expensive and odd",
        lead="Exchanges that stand out; each leads to what is known of it.",
        period=filters.words,
        nothing="" if total["requests"] else NOTHING_HERE,
        notes=notes,
        cards=[
            Card(
                title="Cost not known",
                value=total["cost_unknown"],
                kind="count",
                before=before["cost_unknown"],
                good="less",
            ),
            Card(
                title="Usage estimated",
                value=total["usage_estimated"] + total["usage_inconsistent"],
                kind="count",
                before=before["usage_estimated"] + before["usage_inconsistent"],
                good="less",
                note="or inconsistent",
            ),
            Card(
                title="With a fallback", value=total["fallbacks"], kind="count", before=before["fallbacks"], good="less"
            ),
            Card(
                title="Process died",
                value=total["aborted"],
                kind="count",
                before=before["aborted"],
                good="less",
            ),
            Card(
                title="Gateway failed",
                value=total["internal_error"],
                kind="count",
                before=before["internal_error"],
                good="less",
            ),
        ],
        sections=[
            Section(
                title=title,
                tables=[
                    Table(
                        slug=slug,
                        title=title,
                        columns=COLUMNS,
                        rows=oddest(wanted, order, condition, since=since, most=MOST),
                        empty="None.",
                    )
                ],
            )
            for slug, title, order, condition in KINDS
        ],
    )
