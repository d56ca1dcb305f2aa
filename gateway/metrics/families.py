"""The figures as Prometheus reads them: every metric with its name, type, labels and meaning, held against docs/metrics.md."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.metrics.counts import SECONDS, Counts, Histogram
from reports.core.cost import CLASSES
from reports.progress import Progress

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]
Sample = tuple[Labels, float | Histogram]


class Gauges(msgspec.Struct, kw_only=True):
    """How one process stands at a moment."""

    in_flight: int = 0
    queued: int = 0
    open_streams: int = 0
    loop_lag_s: float = 0.0
    """The longest in the last seconds."""
    out: dict[tuple[str, str, str], int] = {}
    """1 for every group, target and reason that keeps it out now; 0 for one that did."""
    revision: int = 0
    """0: none is loaded."""
    revision_created: float = 0.0
    """Unix seconds."""
    directory_version: int = 0
    checked_at: float = 0.0
    """Unix seconds at which the database was last found to have nothing newer; 0: never."""
    spool_written: int = 0
    spool_dropped: int = 0
    lines_dropped: int = 0


class Figures(msgspec.Struct, kw_only=True):
    """All that an exposition is made of."""

    counts: Counts
    gauges: list[Gauges]
    """One of each living process."""
    spool_bytes: int
    spool_written: int
    """Of all processes, dead ones included; so are the next two."""
    spool_dropped: int
    lines_dropped: int
    progress: Progress
    now: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One metric. `read` gives its samples: label values to a number, or to a histogram."""

    name: str
    """Without `_total`, which counters end in."""
    kind: Kind
    labels: Labels = ()
    meaning: str
    read: Callable[[Figures], Iterable[Sample]]

    @property
    def shown(self) -> str:
        return f"{self.name}_total" if self.kind == "counter" else self.name


def families(figures: Figures) -> Iterator[Metric]:
    for metric in METRICS:
        yield _family(metric, metric.read(figures))


def _family(metric: Described, samples: Iterable[Sample]) -> Metric:
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        for labels, cell in samples:
            assert isinstance(cell, list)
            histogram.add_metric(labels, buckets=_cumulated(cell), sum_value=cell[-1] / 1000)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in samples:
        assert not isinstance(value, list)
        family.add_metric(labels, value)
    return family


def _cumulated(cell: Histogram) -> Sequence[tuple[str, float]]:
    total = 0.0
    buckets = []
    for bound, count in zip((*map(str, SECONDS), "+Inf"), cell[:-1], strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


# -- how they are read


def _exchanges(figures: Figures) -> dict[Labels, float]:
    found: dict[Labels, float] = {}
    for (group, endpoint, outcome, status), cell in figures.counts.exchanges.items():
        found[group, endpoint, outcome, f"{status}xx" if status else "none"] = sum(cell[:-1])
    return found


def _durations(figures: Figures) -> dict[Labels, Histogram]:
    return _summed(((group, outcome), cell) for (group, _, outcome, _), cell in figures.counts.exchanges.items())


def _attempt_durations(figures: Figures) -> dict[Labels, Histogram]:
    return _summed(((group, target), cell) for (group, target, _), cell in figures.counts.attempts.items())


def _summed(cells: Iterable[tuple[Labels, Histogram]]) -> dict[Labels, Histogram]:
    found: dict[Labels, Histogram] = {}
    for labels, cell in cells:
        have = found.get(labels)
        found[labels] = cell.copy() if have is None else [a + b for a, b in zip(have, cell, strict=True)]
    return found


def _by_group(table: Mapping[str, Histogram]) -> dict[Labels, Histogram]:
    return {(group,): cell for group, cell in table.items()}


def _tokens(figures: Figures) -> dict[Labels, float]:
    found: dict[Labels, float] = {}
    classes = (*CLASSES, "reasoning")
    plain = [((group, target), cell) for (group, target, _), cell in figures.counts.usage.items()]
    for names, cell in [*plain, *figures.counts.billed.items()]:
        for name, count in zip(classes, cell, strict=False):
            if count:
                found[(*names, name)] = found.get((*names, name), 0) + count
    return found


def _cost(figures: Figures) -> dict[Labels, float]:
    """Dollars. Added up in whole pico-dollars, so that the order of adding does not matter."""
    pico: dict[Labels, int] = {}
    for (group, target, prices), cell in figures.counts.usage.items():
        cost = sum(count * price for count, price in zip(cell, prices, strict=False) if price >= 0)
        pico[group, target] = pico.get((group, target), 0) + cost
    for names, cell in figures.counts.billed.items():
        pico[names] = pico.get(names, 0) + cell[6] * 1_000_000
    return {names: cost / 1e12 for names, cost in pico.items()}


def _total(name: str) -> Callable[[Figures], Iterable[Sample]]:
    return lambda figures: [((), sum(getattr(gauges, name) for gauges in figures.gauges))]


def _out(figures: Figures) -> dict[Labels, float]:
    found: dict[Labels, float] = {}
    for gauges in figures.gauges:
        for labels, is_out in gauges.out.items():
            found[labels] = found.get(labels, 0) + is_out
    return found


def _seconds_since(at: Callable[[Figures], Iterable[float]]) -> Callable[[Figures], Iterable[Sample]]:
    """Of the oldest; nothing where one has not come yet."""

    def read(figures: Figures) -> Iterable[Sample]:
        times = list(at(figures))
        return [((), max(0.0, figures.now - min(times)))] if times and min(times) > 0 else []

    return read


def _known(figures: Figures, value: float) -> Iterable[Sample]:
    """Nothing until the database has answered."""
    return [((), value)] if figures.progress.read_at else []


METRICS: tuple[Described, ...] = (
    Described(
        name="pilotage_exchanges",
        kind="counter",
        labels=("group", "endpoint", "outcome", "status"),
        meaning="Requests that were answered, by outcome and class of the status.",
        read=lambda figures: _exchanges(figures).items(),
    ),
    Described(
        name="pilotage_exchange_duration_seconds",
        kind="histogram",
        labels=("group", "outcome"),
        meaning="From a request's head to the end of its answer.",
        read=lambda figures: _durations(figures).items(),
    ),
    Described(
        name="pilotage_first_content_seconds",
        kind="histogram",
        labels=("group",),
        meaning="From a request's head to the first content of its stream.",
        read=lambda figures: _by_group(figures.counts.first_content).items(),
    ),
    Described(
        name="pilotage_queued_seconds",
        kind="histogram",
        labels=("group",),
        meaning="How long requests waited for a place in a full process, of those that had to.",
        read=lambda figures: _by_group(figures.counts.queued).items(),
    ),
    Described(
        name="pilotage_refusals",
        kind="counter",
        labels=("code",),
        meaning="Requests that the gateway or the request's own fault ended, by the code that the client saw.",
        read=lambda figures: {(code,): count for code, count in figures.counts.refusals.items()}.items(),
    ),
    Described(
        name="pilotage_attempts",
        kind="counter",
        labels=("group", "target", "outcome"),
        meaning="Upstream calls, by how they ended.",
        read=lambda figures: {labels: sum(cell[:-1]) for labels, cell in figures.counts.attempts.items()}.items(),
    ),
    Described(
        name="pilotage_attempt_duration_seconds",
        kind="histogram",
        labels=("group", "target"),
        meaning="How long upstream calls took.",
        read=lambda figures: _attempt_durations(figures).items(),
    ),
    Described(
        name="pilotage_fallbacks",
        kind="counter",
        labels=("group", "reason"),
        meaning="How often another target was tried, by how the attempt before had ended.",
        read=lambda figures: figures.counts.fallbacks.items(),
    ),
    Described(
        name="pilotage_exclusions",
        kind="counter",
        labels=("group", "stage"),
        meaning="Targets that could not serve a request, by the stage that excluded them.",
        read=lambda figures: figures.counts.exclusions.items(),
    ),
    Described(
        name="pilotage_tokens",
        kind="counter",
        labels=("group", "target", "class"),
        meaning="Tokens by class; reasoning is part of output, the other classes are disjoint.",
        read=lambda figures: _tokens(figures).items(),
    ),
    Described(
        name="pilotage_cost_usd",
        kind="counter",
        labels=("group", "target"),
        meaning="What it cost, in dollars, at the prices of each request's admission.",
        read=lambda figures: _cost(figures).items(),
    ),
    Described(
        name="pilotage_unpriced_exchanges",
        kind="counter",
        labels=("group", "target"),
        meaning="Requests whose cost is unknown for want of a price.",
        read=lambda figures: {names: cell[7] for names, cell in figures.counts.billed.items()}.items(),
    ),
    Described(
        name="pilotage_in_flight",
        kind="gauge",
        meaning="Requests that are being worked on.",
        read=_total("in_flight"),
    ),
    Described(
        name="pilotage_queued",
        kind="gauge",
        meaning="Requests that wait for a place in a full process.",
        read=_total("queued"),
    ),
    Described(
        name="pilotage_open_streams",
        kind="gauge",
        meaning="Streaming requests whose target was chosen and whose answer is not over.",
        read=_total("open_streams"),
    ),
    Described(
        name="pilotage_event_loop_lag_seconds",
        kind="gauge",
        meaning="How late the busiest process was at what it was asked to do now, at worst, in the last seconds.",
        read=lambda figures: [((), max((gauges.loop_lag_s for gauges in figures.gauges), default=0.0))],
    ),
    Described(
        name="pilotage_target_out",
        kind="gauge",
        labels=("group", "target", "reason"),
        meaning="In how many processes the target is kept out of the group for this reason.",
        read=lambda figures: _out(figures).items(),
    ),
    Described(
        name="pilotage_processes",
        kind="gauge",
        meaning="Gateway processes that these figures are of.",
        read=lambda figures: [((), len(figures.gauges))],
    ),
    Described(
        name="pilotage_revision",
        kind="gauge",
        meaning="The Revision that is served; of several processes the oldest.",
        read=lambda figures: [((), min((gauges.revision for gauges in figures.gauges), default=0))],
    ),
    Described(
        name="pilotage_revision_age_seconds",
        kind="gauge",
        meaning="Since the served Revision was published.",
        read=_seconds_since(lambda figures: [gauges.revision_created for gauges in figures.gauges]),
    ),
    Described(
        name="pilotage_configuration_age_seconds",
        kind="gauge",
        meaning="Since the database was last asked for a newer Revision and changed callers, and answered.",
        read=_seconds_since(lambda figures: [gauges.checked_at for gauges in figures.gauges]),
    ),
    Described(
        name="pilotage_spool_bytes",
        kind="gauge",
        meaning="Size of the records on disk that are not read into the database and cleared away yet.",
        read=lambda figures: [((), figures.spool_bytes)],
    ),
    Described(
        name="pilotage_spool_records_written",
        kind="counter",
        meaning="Records written to the spool.",
        read=lambda figures: [((), figures.spool_written)],
    ),
    Described(
        name="pilotage_spool_records_dropped",
        kind="counter",
        meaning="Records that could not be written: the bound is reached or the disk cannot be written.",
        read=lambda figures: [((), figures.spool_dropped)],
    ),
    Described(
        name="pilotage_log_lines_dropped",
        kind="counter",
        meaning="Exchange lines that the reader of standard output did not take in time.",
        read=lambda figures: [((), figures.lines_dropped)],
    ),
    Described(
        name="pilotage_ingest_lines",
        kind="counter",
        labels=("result",),
        meaning="What the ingest met in the spool since ever, as it stands in the database.",
        read=lambda figures: {(name,): count for name, count in figures.progress.ingested.items()}.items(),
    ),
    Described(
        name="pilotage_ingest_unread_bytes",
        kind="gauge",
        meaning="Size of the records of this spool that are not in the database yet.",
        read=lambda figures: _known(figures, figures.progress.unread_bytes),
    ),
    Described(
        name="pilotage_ingest_lag_seconds",
        kind="gauge",
        meaning="Age of the oldest record that is not in the database yet; 0 when there is none.",
        read=lambda figures: _known(figures, figures.progress.lag_s),
    ),
    Described(
        name="pilotage_rollup_pending_hours",
        kind="gauge",
        meaning="Hours with records that were not summed up yet.",
        read=lambda figures: _known(figures, figures.progress.pending_hours),
    ),
    Described(
        name="pilotage_rollup_age_seconds",
        kind="gauge",
        meaning="Since an hour was last summed up.",
        read=_seconds_since(lambda figures: [figures.progress.rolled_at]),
    ),
    Described(
        name="pilotage_reports_age_seconds",
        kind="gauge",
        meaning="Since the database last answered what the ingest and rollup figures are.",
        read=_seconds_since(lambda figures: [figures.progress.read_at]),
    ),
)
