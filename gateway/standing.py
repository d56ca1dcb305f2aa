"""How the gateway stands, from rows and the spool: is it healthy, what does it cost, where does traffic go.

Other processes cannot be asked from here; what is not in rows is left to the metrics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from django.conf import settings
from django.urls import reverse

from gateway import publish
from reports.figures import milliseconds, percent, shown, size
from reports.filters import Filters
from reports.progress import Progress, read_progress
from reports.queries import Key, Scope, Sums, decision_counts, scope
from reports.report_decisions import KEPT_OUT
from reports.report_reliability import FAILED
from reports.report_usage import MEASURES as USED
from reports.report_usage import TARGET, name_of, ratio, stacked
from reports.rollups import report_zone
from reports.tables import Card, Chart, Column, Row, Table

State = Literal["good", "warning", "bad", "unknown"]
LAG_SECONDS: Final = 60.0
"""Ingest takes a second as a rule."""
ROLLUP_TURNS: Final = 5
"""So many turns of the workers may pass without a sum, while there is something to sum up."""
SPOOL_WARNING: Final = 0.5
SPOOL_BAD: Final = 0.9
"""Of PILOTAGE_SPOOL_MAX_BYTES."""
FAILED_SHARE: Final = 0.05
ENOUGH_REQUESTS: Final = 20
"""Below, a share says nothing."""
SHOWN_TARGETS: Final = 8
MEASURES: Final = (*dict.fromkeys((*USED, *FAILED)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    title: str
    state: State
    text: str
    action: str = ""
    """What to do about it; empty when nothing is to be done."""
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    cards: Sequence[Card]
    chart: Chart
    targets: Table
    period: str
    any: bool
    """A request in the last seven days."""


def health(*, now: datetime) -> list[Check]:
    """Nine statements and a look at the spool's files."""
    progress = read_progress(settings.PILOTAGE.data_dir / "spool", now=now.timestamp())
    return [
        _configuration(),
        _ingest(progress),
        _worker(progress, now),
        _spool(progress),
        _lines(progress),
        _targets(now),
    ]


def traffic(*, now: datetime) -> Traffic:
    """Of today and the last seven days, in the installation's zone."""
    zone = report_zone()
    today = now.astimezone(zone).date()
    of_today = scope(Filters(period="today", first=today, last=today, zone=zone, now=now))
    week = Filters(period="7d", first=today - timedelta(days=6), last=today, zone=zone, now=now)
    of_week = scope(week)
    served = {
        key: sums for key, sums in of_week.now.sums(("requests", "cost_microdollars"), by=TARGET).items() if any(key)
    }
    over_time = of_week.now.sums(("cost_microdollars",), by=TARGET, over_time=True)
    cards = [*_cards(of_today, "today"), *_cards(of_week, "7 days")]
    return Traffic(
        cards=cards,
        chart=stacked("Cost by target, 7 days", week, over_time, "cost_microdollars", "usd"),
        targets=_by_target(week, served),
        period=week.words,
        any=bool(cards[len(cards) // 2].value),
    )


def needs(checks: Sequence[Check], found: Traffic | None) -> list[tuple[str, str | None]]:
    """What somebody should do, with a page to do it on where there is one."""
    said = [
        (f"{each.title}: {each.text} {each.action}", each.url) for each in checks if each.state in ("warning", "bad")
    ]
    if found is None:
        return said
    by_title = {card.title: card for card in found.cards}
    failed = by_title["Failed today"]
    requests = by_title["Requests today"].value
    enough = isinstance(requests, int) and requests >= ENOUGH_REQUESTS
    if enough and isinstance(failed.value, float) and failed.value > FAILED_SHARE:
        url = f"{reverse('reports:report', args=['reliability'])}?period=today"
        said.append((f"{percent(failed.value)} of today's requests failed. See where and why.", url))
    unknown = by_title["Cost not known, 7 days"].value
    if unknown:
        who = "One request" if unknown == 1 else f"{shown(unknown, 'count')} requests"
        text = f"{who} of the last 7 days without a known cost: enter the missing prices."
        said.append((text, reverse("admin:routing_providermodel_changelist")))
    return said


def _configuration() -> Check:
    number, problems = publish.latest(), publish.pending()
    if problems:
        url = reverse("admin:gateway_revision_changelist")
        text = f"What is stored has {len(problems)} problem{'s' if len(problems) > 1 else ''} and is not published."
        return Check(title="Configuration", state="warning", text=text, action="Correct what is listed above.", url=url)
    if number is None:
        return Check(title="Configuration", state="unknown", text="Nothing is published yet.")
    return Check(
        title="Configuration", state="good", text=f"Revision {number} is served, and nothing waits to be published."
    )


def _ingest(progress: Progress) -> Check:
    if progress.lag_s >= LAG_SECONDS:
        return Check(
            title="Ingest",
            state="bad",
            text=f"The oldest record that was not read is {milliseconds(progress.lag_s * 1000)} old, "
            f"{size(progress.unread_bytes)} wait.",
            action="Is `manage.py ingest` running?",
        )
    if not progress.ingested and not progress.unread_bytes:
        return Check(title="Ingest", state="unknown", text="No record was written yet.")
    text = "All records are read." if not progress.unread_bytes else f"{milliseconds(progress.lag_s * 1000)} behind."
    return Check(title="Ingest", state="good", text=text)


def _worker(progress: Progress, now: datetime) -> Check:
    age = now.timestamp() - progress.rolled_at
    patience = max(ROLLUP_TURNS * settings.PILOTAGE.rollup_seconds, LAG_SECONDS)
    if not progress.pending_hours:
        state: State = "good" if progress.rolled_at else "unknown"
        text = "Everything is summed up." if progress.rolled_at else "There is nothing to sum up yet."
        return Check(title="Worker", state=state, text=text)
    hours = f"{progress.pending_hours:,} hour{'s' if progress.pending_hours > 1 else ''} with new records"
    if progress.rolled_at and age < patience:
        text = f"Last summed up {milliseconds(age * 1000)} ago; {hours} to come."
        return Check(title="Worker", state="good", text=text)
    last = f"for {milliseconds(age * 1000)}" if progress.rolled_at else "yet"
    return Check(
        title="Worker",
        state="bad" if progress.rolled_at else "warning",
        text=f"Nothing was summed up {last}; {hours} wait.",
        action="Is `manage.py worker` running?",
    )


def _spool(progress: Progress) -> Check:
    bound = settings.PILOTAGE.spool_max_bytes
    share = progress.unread_bytes / bound
    text = f"{size(progress.unread_bytes)} wait, of {size(bound)} that may."
    if share < SPOOL_WARNING:
        return Check(title="Spool", state="good", text=text)
    return Check(
        title="Spool",
        state="bad" if share >= SPOOL_BAD else "warning",
        text=text,
        action="When it is full, records are dropped. Let ingest catch up, or raise PILOTAGE_SPOOL_MAX_BYTES.",
    )


def _lines(progress: Progress) -> Check:
    words = {"damaged": "damaged", "newer": "of a newer release", "lost": "lost", "dropped": "never written"}
    odd = [f"{progress.ingested[name]:,} {word}" for name, word in words.items() if progress.ingested.get(name)]
    if not odd:
        return Check(title="Records", state="good", text="None was damaged or lost.")
    return Check(
        title="Records",
        state="warning",
        text=f"Since ever: {', '.join(odd)}.",
        action="What could not be read is set aside beside the spool.",
    )


def _targets(now: datetime) -> Check:
    today = now.astimezone(report_zone()).date()
    filters = Filters(period="today", first=today, last=today, zone=report_zone(), now=now)
    out: dict[str, int] = {}
    for (_, _, bucket, target), count in decision_counts(filters, dimensions=("exclusion",)).items():
        if bucket.split("/")[0] in KEPT_OUT:
            out[target] = out.get(target, 0) + count
    if not out:
        return Check(title="Targets", state="good", text="None was kept out today.")
    names = sorted(out, key=lambda name: (-out[name], name))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    listed = ", ".join(f"{name} ({_times(out[name])})" for name in names[:3])
    return Check(
        title="Targets",
        state="warning",
        text=f"Kept out today by health, limits or cool-down: {listed}{more}.",
        action="See why.",
        url=f"{reverse('reports:report', args=['decisions'])}?period=today",
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _cards(asked: Scope, when: str) -> list[Card]:
    total, before = asked.now.total(MEASURES), asked.before.total(MEASURES)
    said = f" {when}" if when == "today" else f", {when}"

    def failed(sums: Sums) -> float | None:
        return ratio(sum(sums[name] for name in FAILED), sums["requests"])

    return [
        Card(title=f"Requests{said}", value=total["requests"], kind="count", before=before["requests"]),
        Card(
            title=f"Cost{said}",
            value=total["cost_microdollars"],
            kind="usd",
            before=before["cost_microdollars"],
            good="less",
        ),
        Card(title=f"Failed{said}", value=failed(total), kind="share", before=failed(before), good="less"),
        Card(
            title=f"Cost not known{said}",
            value=total["cost_unknown"],
            kind="count",
            before=before["cost_unknown"],
            good="less",
        ),
    ]


def _by_target(week: Filters, served: Mapping[Key, Sums]) -> Table:
    whole = sum(sums["requests"] for sums in served.values())
    rows = sorted(served.items(), key=lambda each: (-each[1]["requests"], each[0]))
    return Table(
        slug="targets",
        title="Share of each target",
        columns=[
            Column(name="target", title="Target"),
            Column(name="requests", title="Requests", kind="count"),
            Column(name="share", title="Share", kind="share", bar=True),
            Column(name="cost_usd", title="Cost", kind="usd"),
        ],
        rows=[
            Row(values=[name_of(key), sums["requests"], ratio(sums["requests"], whole), sums["cost_microdollars"]])
            for key, sums in rows[:SHOWN_TARGETS]
        ],
        empty="No request was sent to a provider.",
    )
