"""What failed, on which target, and what another target saved."""

from collections.abc import Mapping, Sequence

from reports.core.rollup import OUTCOMES
from reports.filters import Filters
from reports.queries import Key, Scope, Sums, decision_counts
from reports.report_usage import MOST_ROWS, NO_NAME, NOTHING_HERE, TARGET, name_of, ratio
from reports.rollups import report_zone
from reports.tables import Card, Chart, Column, Report, Row, Section, Series, Table

MEASURES = ("requests", *OUTCOMES, "attempts", "fallbacks")
BAD = tuple(name for name in OUTCOMES if name != "success")
FAILED = ("upstream_failed", "upstream_truncated", "internal_error", "aborted")
"""What is nobody's wish: not refused by a rule, and not left by the client."""
TITLES = {
    "success": "Success",
    "refused": "Refused",
    "upstream_failed": "Provider failed",
    "upstream_truncated": "Cut off by the provider",
    "client_cancelled": "Left by the client",
    "internal_error": "Gateway failed",
    "aborted": "Process died",
}


def reliability(filters: Filters, scope: Scope) -> Report:
    total, before = scope.now.total(MEASURES), scope.before.total(MEASURES)
    over_time = scope.now.sums(OUTCOMES, over_time=True)
    counts = decision_counts(
        filters,
        dimensions=("refusal", "refusal_detail", "error", "attempt", "attempt_error", "fallback", "fallback_to"),
    )
    note = (
        f"By days of {report_zone().key} and for all callers and projects; of the filters only the model group counts. "
        f"A running day follows within a quarter of an hour."
    )
    return Report(
        slug="reliability",
        title="Reliability",
        lead="What failed and why, and how often another target answered instead.",
        period=filters.words,
        nothing="" if total["requests"] else NOTHING_HERE,
        notes=scope.missing,
        cards=[
            Card(
                title="Succeeded",
                value=_succeeded(total),
                kind="share",
                before=_succeeded(before),
                good="more",
                note="of requests that were neither refused nor left by the client",
            ),
            Card(title="Failed", value=_failed(total), kind="count", before=_failed(before), good="less"),
            Card(
                title="Refused", value=total["refused"], kind="count", before=before["refused"], note="by the gateway"
            ),
            Card(
                title="Left by the client",
                value=total["client_cancelled"],
                kind="count",
                before=before["client_cancelled"],
            ),
            Card(
                title="With a fallback",
                value=ratio(total["fallbacks"], total["requests"]),
                kind="share",
                before=ratio(before["fallbacks"], before["requests"]),
                good="less",
                note="more than one target was tried",
            ),
            Card(
                title="Attempts for a request",
                value=_attempts(total),
                kind="number",
                before=_attempts(before),
                good="less",
                note="of those that reached a provider",
            ),
        ],
        sections=[
            Section(
                title="What did not succeed, over time",
                chart=_chart(filters, over_time),
                tables=[_over_time(filters, over_time)],
            ),
            Section(title="By target", tables=[_by(filters, scope, "target", "Target", TARGET)]),
            Section(title="By model group", tables=[_by(filters, scope, "group", "Model group", ("group",))]),
            Section(
                title="Fallbacks",
                note="A target was left after a failed attempt, and the next one was tried. " + note,
                tables=[
                    _counted(counts, "fallback", "Targets that were left", "After"),
                    _counted(counts, "fallback_to", "Targets that were tried next", "After"),
                ],
            ),
            Section(
                title="Attempts",
                note="Every upstream call, also those that another target made good. " + note,
                tables=[
                    _attempts_by_target(counts),
                    _counted(counts, "attempt_error", "Error codes of upstream calls", "Error code"),
                ],
            ),
            Section(
                title="Error codes that clients got",
                note=note,
                tables=[
                    _codes(counts, "refusal", "Refused"),
                    _codes(counts, "refusal_detail", "Tokens that were refused"),
                    _codes(counts, "error", "Failed"),
                ],
            ),
        ],
    )


def _succeeded(sums: Sums) -> float | None:
    return ratio(sums["success"], sums["requests"] - sums["refused"] - sums["client_cancelled"])


def _failed(sums: Sums) -> int:
    return sum(sums[name] for name in FAILED)


def _attempts(sums: Sums) -> float | None:
    return ratio(sums["attempts"], sums["requests"] - sums["refused"])


def _values(filters: Filters, over_time: Mapping[Key, Sums], name: str) -> list[int]:
    return [over_time.get((place,), {}).get(name, 0) for place in range(len(filters.buckets))]


def _chart(filters: Filters, over_time: Mapping[Key, Sums]) -> Chart:
    return Chart(
        shape="stacked",
        title="Requests that did not succeed",
        labels=filters.buckets,
        kind="count",
        series=[Series(name=TITLES[name], values=_values(filters, over_time, name)) for name in BAD],
    )


def _over_time(filters: Filters, over_time: Mapping[Key, Sums]) -> Table:
    columns = {name: _values(filters, over_time, name) for name in OUTCOMES}
    return Table(
        slug="outcomes-over-time",
        title="Outcomes over time",
        under_chart=True,
        columns=[
            Column(name="time", title="Hour" if filters.by_hours else "Day"),
            *(Column(name=name, title=TITLES[name], kind="count") for name in OUTCOMES),
        ],
        rows=[
            Row(values=[label, *(columns[name][place] for name in OUTCOMES)])
            for place, label in enumerate(filters.buckets)
        ],
    )


def _by(filters: Filters, scope: Scope, slug: str, title: str, columns: Sequence[str]) -> Table:
    found = scope.now.sums(MEASURES, by=columns)
    rows = sorted(found.items(), key=lambda each: (-each[1]["requests"], each[0]))
    return Table(
        slug=f"by-{slug}",
        title=f"By {title.lower()}",
        columns=[
            Column(name=slug, title=title),
            Column(name="requests", title="Requests", kind="count"),
            Column(name="success_share", title="Succeeded", kind="share"),
            *(Column(name=name, title=TITLES[name], kind="count") for name in BAD),
            Column(name="fallbacks", title="With a fallback", kind="count"),
            Column(name="attempts_per_request", title="Attempts for a request", kind="number"),
        ],
        rows=[
            Row(
                values=[
                    name_of(key),
                    sums["requests"],
                    _succeeded(sums),
                    *(sums[name] for name in BAD),
                    sums["fallbacks"],
                    _attempts(sums),
                ],
                narrow=filters.query(**dict(zip(columns, key, strict=True))) if all(key) else "",
            )
            for key, sums in rows[:MOST_ROWS]
        ],
    )


def _counted(counts: Mapping[tuple[str, str, str, str], int], dimension: str, title: str, what: str) -> Table:
    rows = sorted(
        (
            (target, bucket, group, count)
            for (each, group, bucket, target), count in counts.items()
            if each == dimension
        ),
        key=lambda row: (-row[3], row[:3]),
    )
    return Table(
        slug=dimension.replace("_", "-"),
        title=title,
        columns=[
            Column(name="target", title="Target"),
            Column(name="what", title=what),
            Column(name="group", title="Model group"),
            Column(name="count", title="Times", kind="count"),
        ],
        rows=[
            Row(values=[target or NO_NAME, bucket, group or NO_NAME, count])
            for target, bucket, group, count in rows[:MOST_ROWS]
        ],
        empty="None in these days.",
    )


def _attempts_by_target(counts: Mapping[tuple[str, str, str, str], int]) -> Table:
    targets: dict[str, dict[str, int]] = {}
    for (dimension, _, bucket, target), count in counts.items():
        if dimension == "attempt":
            of_target = targets.setdefault(target, {})
            of_target[bucket] = of_target.get(bucket, 0) + count
    words = sorted({word for each in targets.values() for word in each}, key=lambda word: (word != "ok", word))
    return Table(
        slug="attempts",
        title="Outcomes of upstream calls",
        columns=[
            Column(name="target", title="Target"),
            Column(name="calls", title="Calls", kind="count"),
            *(Column(name=word, title=word.replace("_", " "), kind="count") for word in words),
        ],
        rows=[
            Row(values=[target or NO_NAME, sum(each.values()), *(each.get(word, 0) for word in words)])
            for target, each in sorted(targets.items(), key=lambda each: (-sum(each[1].values()), each[0]))[:MOST_ROWS]
        ],
        empty="None in these days.",
    )


def _codes(counts: Mapping[tuple[str, str, str, str], int], dimension: str, title: str) -> Table:
    found: dict[tuple[str, str], int] = {}
    for (each, group, bucket, _), count in counts.items():
        if each == dimension:
            found[bucket, group] = found.get((bucket, group), 0) + count
    rows = sorted(found.items(), key=lambda each: (-each[1], each[0]))
    return Table(
        slug=dimension.replace("_", "-"),
        title=title,
        columns=[
            Column(name="code", title="Code"),
            Column(name="group", title="Model group"),
            Column(name="count", title="Times", kind="count"),
        ],
        rows=[Row(values=[code, group or NO_NAME, count]) for (code, group), count in rows[:MOST_ROWS]],
        empty="None in these days.",
    )
