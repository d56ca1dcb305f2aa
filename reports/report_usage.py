"""Who asks for how much, and what it costs."""

from collections.abc import Callable, Mapping, Sequence

from reports.filters import Filters
from reports.queries import Key, Scope, Source, Sums, decision_counts
from reports.tables import (
    OTHERS,
    Card,
    Chart,
    Column,
    Kind,
    Report,
    Row,
    Section,
    Series,
    Table,
    Value,
    largest,
)

TOKENS = ("input_tokens", "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens", "output_tokens")
INPUT = TOKENS[:-1]
TARGET = ("provider", "model")
MEASURES = (
    "requests",
    "success",
    "refused",
    "streamed",
    *TOKENS,
    "reasoning_tokens",
    "images",
    "request_bytes",
    "response_bytes",
    "cost_microdollars",
    "cost_unknown",
    "usage_reported",
    "usage_estimated",
    "usage_inconsistent",
    "usage_none",
    "prompt_cache_read",
    "prompt_cache_written",
)
NO_NAME = "(none)"
"""A refused request may have no group, no caller and no provider."""
NOTHING_HERE = (
    "No request in this period and with these filters. Choose a longer period or fewer filters. If requests were made "
    "just now, their sums follow within a minute, as long as ingest and a worker run."
)

Measure = tuple[Column, Callable[[Sums], Value]]


def usage(filters: Filters, scope: Scope) -> Report:
    total, before = scope.now.total(MEASURES), scope.before.total(MEASURES)
    over_time = scope.now.sums(("requests",), by=("group",), over_time=True)
    return Report(
        slug="usage",
        title="Usage",
        lead="Requests and tokens: who sends them, and to which models they go.",
        period=filters.words,
        nothing="" if total["requests"] else NOTHING_HERE,
        notes=scope.missing,
        cards=[
            Card(title="Requests", value=total["requests"], kind="count", before=before["requests"]),
            Card(
                title="Succeeded",
                value=ratio(total["success"], total["requests"]),
                kind="share",
                before=ratio(before["success"], before["requests"]),
                good="more",
            ),
            Card(title="Input tokens", value=all_input(total), kind="count", before=all_input(before)),
            Card(title="Output tokens", value=total["output_tokens"], kind="count", before=before["output_tokens"]),
            Card(
                title="Input read from a cache",
                value=ratio(total["cache_read_tokens"], all_input(total)),
                kind="share",
                before=ratio(before["cache_read_tokens"], all_input(before)),
                good="more",
                note="of all input tokens, as the providers report it",
            ),
            Card(
                title="Streamed",
                value=ratio(total["streamed"], total["requests"]),
                kind="share",
                before=ratio(before["streamed"], before["requests"]),
            ),
        ],
        sections=[
            Section(
                title="Requests over time",
                chart=stacked("Requests by model group", filters, over_time, "requests", "count"),
                tables=[
                    over_time_table(
                        "requests-over-time", "Requests by model group", filters, over_time, "requests", "count"
                    )
                ],
            ),
            *_by_each(filters, scope.now, _USAGE),
            Section(
                title="How well usage is known",
                note="Estimated: the provider did not say. Inconsistent: its numbers contradict each other, and what was "
                "unusable is estimated. None: no provider accepted the request, so there is nothing to count.",
                tables=[
                    Table(
                        slug="usage-quality",
                        title="Requests by quality of their usage",
                        columns=[
                            Column(name="quality", title="Usage"),
                            Column(name="requests", title="Requests", kind="count"),
                            Column(name="share", title="Share", kind="share", bar=True),
                        ],
                        rows=[
                            Row(values=[name, total[f"usage_{name}"], ratio(total[f"usage_{name}"], total["requests"])])
                            for name in ("reported", "estimated", "inconsistent", "none")
                        ],
                    )
                ],
            ),
        ],
    )


def cost(filters: Filters, scope: Scope) -> Report:
    total, before = scope.now.total(MEASURES), scope.before.total(MEASURES)
    over_time = scope.now.sums(("cost_microdollars",), by=TARGET, over_time=True)
    flags = decision_counts(filters, dimensions=("cost_flag",))
    return Report(
        slug="cost",
        title="Cost",
        lead="What requests cost at the prices that held when they were admitted.",
        period=filters.words,
        nothing="" if total["requests"] else NOTHING_HERE,
        notes=[*scope.missing, *unknown_note(total)],
        cards=[
            Card(
                title="Cost",
                value=total["cost_microdollars"],
                kind="usd",
                before=before["cost_microdollars"],
                good="less",
                note="known part" if total["cost_unknown"] else "",
            ),
            Card(
                title="For 1,000 requests",
                value=per_thousand(total),
                kind="usd",
                before=per_thousand(before),
                good="less",
                note="of known cost",
            ),
            Card(title="Requests", value=total["requests"], kind="count", before=before["requests"]),
            Card(
                title="Cost not known",
                value=total["cost_unknown"],
                kind="count",
                before=before["cost_unknown"],
                good="less",
                note="requests, not in any sum",
            ),
        ],
        sections=[
            Section(
                title="Cost over time",
                chart=stacked("Cost by target", filters, over_time, "cost_microdollars", "usd"),
                tables=[
                    over_time_table("cost-over-time", "Cost by target", filters, over_time, "cost_microdollars", "usd")
                ],
            ),
            *_by_each(filters, scope.now, _COST, whole=total),
            Section(
                title="What is to be known of costs",
                note="By days of the installation's zone and for all callers and projects; of the filters only the model "
                "group counts.",
                tables=[
                    Table(
                        slug="cost-flags",
                        title="Flags of costs",
                        columns=[
                            Column(name="flag", title="Flag"),
                            Column(name="group", title="Model group"),
                            Column(name="requests", title="Requests", kind="count"),
                        ],
                        rows=[
                            Row(values=[flag, group or NO_NAME, count])
                            for (flag, group), count in sorted(
                                _flagged(flags).items(), key=lambda each: (-each[1], each[0])
                            )
                        ],
                        empty="None: every price that was needed is known.",
                    )
                ],
            ),
        ],
    )


def _flagged(counts: Mapping[tuple[str, str, str, str], int]) -> dict[tuple[str, str], int]:
    flagged: dict[tuple[str, str], int] = {}
    for (_, group, bucket, _), count in counts.items():
        flagged[bucket, group] = flagged.get((bucket, group), 0) + count
    return flagged


# -- what other reports use, too


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def all_input(sums: Sums) -> int:
    return sum(sums[name] for name in INPUT)


def per_thousand(sums: Sums) -> float | None:
    known = sums["requests"] - sums["cost_unknown"]
    return 1000 * sums["cost_microdollars"] / known if known else None


def unknown_note(total: Sums) -> list[str]:
    if not total["cost_unknown"]:
        return []
    return [
        f"{total['cost_unknown']:,} of {total['requests']:,} requests have no known cost, as a price is missing. They are "
        "in no sum of money: what is shown is less than what was spent. Enter the prices with the provider's models."
    ]


def name_of(key: Sequence[str]) -> str:
    """Of a target or another combination of names."""
    return "/".join(key) if any(key) else NO_NAME


def stacked(title: str, filters: Filters, sums: Mapping[Key, Sums], measure: str, kind: Kind) -> Chart:
    names, values = _by_name(filters, sums, measure)
    series = [Series(name=name, values=values[name]) for name in names]
    return Chart(shape="stacked", title=title, labels=filters.buckets, series=series, kind=kind)


def shares(title: str, filters: Filters, sums: Mapping[Key, Sums], measure: str, kind: Kind) -> Chart:
    names, values = _by_name(filters, sums, measure)
    series = [Series(name=name, values=values[name]) for name in names]
    return Chart(shape="shares", title=title, labels=filters.buckets, series=series, kind=kind)


def over_time_table(
    slug: str, title: str, filters: Filters, sums: Mapping[Key, Sums], measure: str, kind: Kind
) -> Table:
    names, values = _by_name(filters, sums, measure)
    return Table(
        slug=slug,
        title=title,
        under_chart=True,
        columns=[
            Column(name="time", title="Hour" if filters.by_hours else "Day"),
            *(Column(name=name, title=name, kind=kind) for name in names),
        ],
        rows=[
            Row(values=[label, *(values[name][place] for name in names)]) for place, label in enumerate(filters.buckets)
        ],
    )


def _by_name(filters: Filters, sums: Mapping[Key, Sums], measure: str) -> tuple[list[str], dict[str, list[float]]]:
    """Names by size with their values in each bucket; the small ones are one."""
    totals: dict[str, float] = {}
    for (_, *names), each in sums.items():
        totals[name_of(names)] = totals.get(name_of(names), 0) + each[measure]
    chosen = largest({name: total for name, total in totals.items() if total})
    values: dict[str, list[float]] = {name: [0] * len(filters.buckets) for name in chosen}
    for (place, *names), each in sums.items():
        name = name_of(names)
        if not each[measure] or not 0 <= place < len(filters.buckets):
            continue
        if name not in chosen:
            name = OTHERS
            values.setdefault(OTHERS, [0] * len(filters.buckets))
        values[name][place] += each[measure]
    return [*chosen, *([OTHERS] if OTHERS in values else [])], values


DIMENSIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "group": ("Model group", ("group",)),
    "caller": ("Caller", ("caller",)),
    "project": ("Project", ("project",)),
    "target": ("Target", TARGET),
}
"""What tables are made by, with the columns of the sums."""
MOST_ROWS = 200
"""Of a table by name."""


def table_by(
    dimension: str, filters: Filters, sums: Mapping[Key, Sums], measures: Sequence[Measure], *, slug: str, order: str
) -> Table:
    """A row for each name, the largest `order` first."""
    title, columns = DIMENSIONS[dimension]
    rows = sorted(sums.items(), key=lambda each: (-each[1][order], each[0]))
    left_out = len(rows) - MOST_ROWS
    return Table(
        slug=slug,
        title=f"By {title.lower()}",
        columns=[Column(name=dimension, title=title), *(column for column, _ in measures)],
        rows=[
            Row(
                values=[name_of(key), *(value(each) for _, value in measures)],
                narrow=filters.query(**dict(zip(columns, key, strict=True))) if all(key) else "",
            )
            for key, each in rows[:MOST_ROWS]
        ],
        note=f"{left_out:,} smaller ones are left out: filter to see them." if left_out > 0 else "",
    )


def _by_each(
    filters: Filters,
    source: Source,
    measures: Sequence[Measure],
    *,
    whole: Sums | None = None,
) -> list[Section]:
    sections = []
    for dimension, (title, columns) in DIMENSIONS.items():
        sums = source.sums(MEASURES, by=columns)
        shown = [*measures, _share_of(whole)] if whole is not None else measures
        table = table_by(
            dimension,
            filters,
            sums,
            shown,
            slug=f"by-{dimension}",
            order="requests" if whole is None else "cost_microdollars",
        )
        sections.append(Section(title=f"By {title.lower()}", tables=[table]))
    return sections


def _share_of(whole: Sums) -> Measure:
    column = Column(name="share", title="Share of cost", kind="share", bar=True)
    return column, lambda sums: ratio(sums["cost_microdollars"], whole["cost_microdollars"])


def _plain(name: str, title: str, kind: Kind = "count") -> Measure:
    return Column(name=name, title=title, kind=kind), lambda sums: sums[name]


_SUCCEEDED: Measure = (
    Column(name="success_share", title="Succeeded", kind="share"),
    lambda sums: ratio(sums["success"], sums["requests"]),
)
_ALL_INPUT: Measure = (Column(name="all_input_tokens", title="Input tokens", kind="count"), all_input)
_CACHED: Measure = (
    Column(name="cache_read_share", title="From cache", kind="share"),
    lambda sums: ratio(sums["cache_read_tokens"], all_input(sums)),
)


def _known_cost(sums: Sums) -> Value:
    return sums["cost_microdollars"] if sums["requests"] > sums["cost_unknown"] else None


_KNOWN_COST: Measure = (Column(name="cost_usd", title="Cost", kind="usd"), _known_cost)
_USAGE: Sequence[Measure] = (
    _plain("requests", "Requests"),
    _SUCCEEDED,
    _ALL_INPUT,
    _CACHED,
    _plain("output_tokens", "Output tokens"),
    _plain("reasoning_tokens", "of that reasoning"),
    _plain("images", "Images"),
    _KNOWN_COST,
)
_COST: Sequence[Measure] = (
    _plain("requests", "Requests"),
    _ALL_INPUT,
    _plain("output_tokens", "Output tokens"),
    (Column(name="usd_per_1000", title="For 1,000 requests", kind="usd"), per_thousand),
    _plain("cost_unknown", "Cost not known"),
    _KNOWN_COST,
)
