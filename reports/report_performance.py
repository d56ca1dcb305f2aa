"""How fast answers come."""

from collections.abc import Mapping, Sequence

from reports.core.latency import RELATIVE_ERROR, Histogram
from reports.filters import Filters
from reports.queries import Key, Scope, Sums, merged
from reports.report_usage import MOST_ROWS, NOTHING_HERE, TARGET, name_of
from reports.tables import Card, Chart, Column, Report, Row, Section, Series, Table

TIMES = ("duration", "first_content", "queued")
SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
MEASURES = ("requests", "output_tokens", "duration_us", "streamed")
Times = tuple[Histogram, ...]
"""In the order of `TIMES`."""


def performance(filters: Filters, scope: Scope) -> Report:
    found = scope.now.histograms(TIMES, by=TARGET, over_time=True)
    whole, before = _all(found), _all(scope.before.histograms(TIMES))
    over_time = {
        place: _all({key: times for key, times in found.items() if key[0] == place})
        for place in sorted({key[0] for key in found})
    }
    return Report(
        slug="performance",
        title="Performance",
        lead="How long requests take that are sent to a provider, from their arrival to the last byte.",
        period=filters.words,
        nothing="" if found else NOTHING_HERE,
        notes=scope.missing,
        cards=[
            *(
                Card(
                    title=f"Duration {name}",
                    value=whole[0].percentile(share),
                    kind="ms",
                    before=before[0].percentile(share),
                    good="less",
                )
                for name, share in SHARES
            ),
            Card(
                title="First content p50",
                value=whole[1].percentile(0.5),
                kind="ms",
                before=before[1].percentile(0.5),
                good="less",
            ),
            Card(
                title="First content p95",
                value=whole[1].percentile(0.95),
                kind="ms",
                before=before[1].percentile(0.95),
                good="less",
            ),
            Card(
                title="Waited for a place p95",
                value=whole[2].percentile(0.95),
                kind="ms",
                before=before[2].percentile(0.95),
                good="less",
                note="in a full gateway process",
            ),
        ],
        sections=[
            _section("Duration", "duration", filters, over_time, 0),
            _section("Time to the first content", "first-content", filters, over_time, 1),
            Section(
                title="By target",
                note="Output tokens per second: of all output tokens, by the whole time of their requests, waiting for the "
                "first content included.",
                tables=[_by_target(filters, found, scope.now.sums(MEASURES, by=TARGET))],
            ),
            Section(
                title="What is measured",
                note=f"Percentiles come from sums and are exact to {RELATIVE_ERROR:.1%}".replace("%", " %")
                + ". A request belongs to the moment of its start, and to the target that served it or was tried last; "
                "what failed attempts took is part of its duration. Refused requests, which reach no provider, count "
                "nowhere here.",
                tables=(),
            ),
        ],
    )


def _all(found: Mapping[Key, Times]) -> Times:
    return tuple(merged(times[place] for times in found.values()) for place in range(len(TIMES)))


def _section(title: str, slug: str, filters: Filters, over_time: Mapping[int, Times], which: int) -> Section:
    series = [Series(name=name, values=_percentiles(filters, over_time, which, share)) for name, share in SHARES]
    return Section(
        title=title,
        chart=Chart(shape="lines", title=title, labels=filters.buckets, series=series, kind="ms"),
        tables=[
            Table(
                slug=f"{slug}-over-time",
                title=title,
                under_chart=True,
                columns=[
                    Column(name="time", title="Hour" if filters.by_hours else "Day"),
                    Column(name="requests", title="Requests", kind="count"),
                    *(Column(name=f"{name}_ms", title=name, kind="ms") for name, _ in SHARES),
                ],
                rows=[
                    Row(
                        values=[
                            label,
                            over_time[place][which].count if place in over_time else 0,
                            *(each.values[place] for each in series),
                        ]
                    )
                    for place, label in enumerate(filters.buckets)
                ],
            )
        ],
    )


def _percentiles(filters: Filters, over_time: Mapping[int, Times], which: int, share: float) -> list[float | None]:
    return [
        over_time[place][which].percentile(share) if place in over_time else None
        for place in range(len(filters.buckets))
    ]


def _by_target(filters: Filters, found: Mapping[Key, Times], sums: Mapping[Key, Sums]) -> Table:
    targets: dict[Key, list[Times]] = {}
    for (_, *names), times in found.items():
        targets.setdefault(tuple(names), []).append(times)
    rows = []
    for target, parts in targets.items():
        duration, first, _ = (merged(times[place] for times in parts) for place in range(len(TIMES)))
        of_target = sums.get(target, {})
        seconds = of_target.get("duration_us", 0) / 1e6
        rows.append(
            Row(
                values=[
                    name_of(target),
                    of_target.get("requests", 0),
                    *(duration.percentile(share) for _, share in SHARES),
                    first.percentile(0.5),
                    first.percentile(0.95),
                    of_target.get("output_tokens", 0) / seconds if seconds else None,
                ],
                narrow=filters.query(**dict(zip(TARGET, target, strict=True))),
            )
        )
    return Table(
        slug="by-target",
        title="By target",
        columns=[
            Column(name="target", title="Target"),
            Column(name="requests", title="Requests", kind="count"),
            *(Column(name=f"duration_{name}_ms", title=f"Duration {name}", kind="ms") for name, _ in SHARES),
            Column(name="first_content_p50_ms", title="First content p50", kind="ms"),
            Column(name="first_content_p95_ms", title="First content p95", kind="ms"),
            Column(name="output_tokens_per_second", title="Output tokens per second", kind="number"),
        ],
        rows=_busiest(rows)[:MOST_ROWS],
    )


def _busiest(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (-float(str(row.values[1] or 0)), str(row.values[0])))
