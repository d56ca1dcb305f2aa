"""What candidates are scored by: the estimates behind each score, and the scores relative to the best candidate.

Everything is worked out a score at a time over all candidates, because that is how the best one is found.
Formulas: "Scores" in docs/routing.md.
"""

from collections.abc import Callable, Iterable, Sequence
from math import isfinite, sqrt
from typing import Final, Literal, NamedTuple

from routing.core.catalog import ScorePolicy, ScoreTerm, Target
from routing.core.eligibility import needed_tokens
from routing.core.expressions import NAMES, compile_weights
from routing.core.shape import RequestShape
from routing.core.stats import GroupStats, TargetStats

Normalization = Literal["ratio", "minmax"]

SIGNALS: Final = {
    "cost_score": "cost",
    "latency_score": "observed_performance",
    "ttfb_score": "observed_performance",
    "throughput_score": "observed_performance",
    "reliability_score": "observed_performance",
    "complexity_score": "complexity",
    "eval_quality_score": "evaluation_metadata",
    "load_score": "observed_performance",
    "stream_integrity_score": "observed_performance",
    "budget_score": "cost",
}
"""The signal that each score comes from: a disabled signal makes its scores neutral."""

NEUTRAL: Final = 0.5
"""The score of a candidate about which nothing is known."""

FLOOR: Final = 0.001
"""Share of the largest value below which no value counts: a price of zero is the best one and divides nothing."""

PRIOR_ERROR_RATE: Final = 0.01
"""Of a group without an attempt in its window; its timeout and fallback rates are 0, its stream integrity 1."""

LEAST_PRIOR: Final = 1e-12
"""Stands for a `prior_strength` of 0: without any sample the group's average is still what is left."""

_default = compile_weights(
    {"cost_score": 0.25, "latency_score": 0.25, "throughput_score": 0.20, "reliability_score": 0.30}
)
DEFAULT_TERM: Final = ScoreTerm(
    name="default",
    expression=_default.evaluate,
    source=_default.source,
    names=_default.names,
    weights=_default.weights,
)
"""Scores when no term of the policy matches."""


class Column(NamedTuple):
    """One score of all candidates, in their order."""

    raws: Sequence[float | None]
    """In the score's own unit; `None`: no data."""
    values: Sequence[float]
    flags: Sequence[str | None]


class Scoring(NamedTuple):
    """What the scores of one decision are computed from."""

    targets: Sequence[Target]
    """The surviving candidates."""
    own: Sequence[TargetStats]
    """Their statistics, in the same order."""
    group: GroupStats
    shape: RequestShape
    policy: ScorePolicy
    today: float
    """Days since 1970-01-01."""


def measure(names: Iterable[str], scoring: Scoring) -> dict[str, Column]:
    """The columns of these scores."""
    enabled = scoring.policy.enabled_signals
    count = len(scoring.targets)
    columns: dict[str, Column] = {}
    for name in NAMES:
        if name not in names:
            continue
        if SIGNALS[name] not in enabled:
            columns[name] = Column([None] * count, [NEUTRAL] * count, ["disabled"] * count)
        elif name == "budget_score":
            cost = columns.get("cost_score") or _cost(scoring)
            columns[name] = Column(cost.raws, [1.0 - value for value in cost.values], cost.flags)
        else:
            columns[name] = _COLUMNS[name](scoring)
    return columns


def _cost(scoring: Scoring) -> Column:
    """Dollars that this request is expected to cost."""
    shape, cap = scoring.shape, scoring.shape.output_cap
    output = scoring.group.mean_output_tokens
    if cap is not None and cap < output:
        output = cap
    raws: list[float | None] = [
        None
        if target.input_price is None or target.output_price is None
        else needed_tokens(shape, stats.bytes_per_token) * target.input_price + output * target.output_price
        for target, stats in zip(scoring.targets, scoring.own, strict=True)
    ]
    return _column(raws, relative_cost(raws, scoring.policy.normalization), "unknown_price")


def _latency(scoring: Scoring) -> Column:
    """Seconds: the p95 of the total time, corrected for what is in flight now."""
    k = scoring.policy.prior_strength or LEAST_PRIOR
    total = samples = 0.0
    for stats in scoring.group.targets.values():
        if stats.p95_s is not None:
            total += stats.p95_n * stats.p95_s
            samples += stats.p95_n
    if samples <= 0.0:
        return _no_data(scoring)
    group = total / samples
    raws = [
        ((0.0 if stats.p95_s is None else stats.p95_n * stats.p95_s) + k * group)
        / ((0 if stats.p95_s is None else stats.p95_n) + k)
        * load_factor(stats, k)
        for stats in scoring.own
    ]
    return _relative(raws, scoring)


def _ttfb(scoring: Scoring) -> Column:
    """Seconds: the mean time to first content."""
    k = scoring.policy.prior_strength or LEAST_PRIOR
    total = samples = 0.0
    for stats in scoring.group.targets.values():
        total += stats.window.first_content_s
        samples += stats.window.first_content_n
    if samples <= 0.0:
        return _no_data(scoring)
    prior = k * (total / samples)
    raws: list[float] = []
    for stats in scoring.own:
        window, fast = stats.window, stats.fast
        settled = (window.first_content_s + prior) / (window.first_content_n + k)
        raws.append((fast.first_content_s + k * settled) / (fast.first_content_n + k))
    return _relative(raws, scoring)


def _throughput(scoring: Scoring) -> Column:
    """Output tokens per second of generation, corrected for what is in flight now. Estimated as seconds per token."""
    k = scoring.policy.prior_strength or LEAST_PRIOR
    total = tokens = 0.0
    for stats in scoring.group.targets.values():
        total += stats.window.generation_s
        tokens += stats.window.generation_tokens
    if tokens <= 0.0 or total <= 0.0:
        return _no_data(scoring)
    k_tokens = k * scoring.group.mean_output_tokens or LEAST_PRIOR
    prior = k_tokens * (total / tokens)
    seconds: list[float] = []
    for stats in scoring.own:
        window, fast = stats.window, stats.fast
        settled = (window.generation_s + prior) / (window.generation_tokens + k_tokens)
        estimate = (fast.generation_s + k_tokens * settled) / (fast.generation_tokens + k_tokens)
        seconds.append(estimate * load_factor(stats, k))
    if not isfinite(sum(seconds)):
        return _no_data(scoring)
    lowest = max(max(seconds) * FLOOR, 1e-9)
    raws = [1.0 / max(value, lowest) for value in seconds]
    return Column(raws, higher_is_better(raws, scoring.policy.normalization), [None] * len(raws))


def _reliability(scoring: Scoring) -> Column:
    """1 - error rate - timeout rate - half the fallback rate: as it is, not relative to the best."""
    k = scoring.policy.prior_strength or LEAST_PRIOR
    attempts = errors = timeouts = fallbacks = 0.0
    for stats in scoring.group.targets.values():
        window = stats.window
        attempts += window.attempts
        errors += window.errors
        timeouts += window.timeouts
        fallbacks += window.fallbacks
    # The three rates have one denominator, so they are shrunk as one sum.
    bad = (errors + timeouts + 0.5 * fallbacks) / attempts if attempts > 0.0 else PRIOR_ERROR_RATE
    prior = k * bad
    raws: list[float] = []
    for stats in scoring.own:
        window, fast = stats.window, stats.fast
        settled = (window.errors + window.timeouts + 0.5 * window.fallbacks + prior) / (window.attempts + k)
        estimate = (fast.errors + fast.timeouts + 0.5 * fast.fallbacks + k * settled) / (fast.attempts + k)
        raws.append(1.0 - estimate)
    return Column(_finite(raws), [_unit(raw) for raw in raws], [None] * len(raws))


def _complexity(scoring: Scoring) -> Column:
    count, score = len(scoring.targets), scoring.shape.complexity_score
    return Column([score] * count, [_unit(score)] * count, [None] * count)


def _eval_quality(scoring: Scoring) -> Column:
    """Declared quality, as long as it is not too old."""
    raws: list[float | None] = []
    flags: list[str | None] = []
    for target in scoring.targets:
        quality, until = target.quality, target.quality_until
        if quality is None:
            raws.append(None)
            flags.append("no_data")
        elif until is not None and scoring.today >= until + 1.0:
            raws.append(None)
            flags.append("stale")
        else:
            raws.append(quality)
            flags.append(None)
    return Column(raws, [NEUTRAL if raw is None else _unit(raw) for raw in raws], flags)


def _load(scoring: Scoring) -> Column:
    """1 - the target's share of the group's attempts in flight."""
    running = max(1, sum(stats.in_flight for stats in scoring.group.targets.values()))
    values = [_unit(1.0 - stats.in_flight / running) for stats in scoring.own]
    return Column([float(stats.in_flight) for stats in scoring.own], values, [None] * len(values))


def _stream_integrity(scoring: Scoring) -> Column:
    """Share of streams that ended with their terminal event: as it is, not relative to the best."""
    k = scoring.policy.prior_strength or LEAST_PRIOR
    streams = ended = 0.0
    for stats in scoring.group.targets.values():
        streams += stats.window.streams
        ended += stats.window.streams_ended
    prior = k * (ended / streams if streams > 0.0 else 1.0)
    raws: list[float] = []
    for stats in scoring.own:
        window, fast = stats.window, stats.fast
        settled = (window.streams_ended + prior) / (window.streams + k)
        raws.append((fast.streams_ended + k * settled) / (fast.streams + k))
    return Column(_finite(raws), [_unit(raw) for raw in raws], [None] * len(raws))


_COLUMNS: Final[dict[str, Callable[[Scoring], Column]]] = {
    "cost_score": _cost,
    "latency_score": _latency,
    "ttfb_score": _ttfb,
    "throughput_score": _throughput,
    "reliability_score": _reliability,
    "complexity_score": _complexity,
    "eval_quality_score": _eval_quality,
    "load_score": _load,
    "stream_integrity_score": _stream_integrity,
}


def load_factor(stats: TargetStats, k: float) -> float:
    """By how much observed times are stretched when more is in flight now than when they were observed; >= 1."""
    window, fast = stats.window, stats.fast
    usual = window.in_flight_at_start / window.completed if window.completed > 0.0 else 0.0
    mean = (fast.in_flight_at_start + k * usual) / (fast.completed + k)
    q = stats.in_flight
    return sqrt((2.0 + q) / (2.0 + mean)) if q > mean else 1.0


# From values to scores.


def relative_cost(dollars: Sequence[float | None], normalization: Normalization) -> list[float]:
    """Cost scores: as `lower_is_better`, but where everything is free, everything is 1."""
    known = [value for value in dollars if value is not None]
    if known and max(known) <= 0.0:
        return [NEUTRAL if value is None else 1.0 for value in dollars]
    return lower_is_better(dollars, normalization)


def lower_is_better(values: Sequence[float | None], normalization: Normalization) -> list[float]:
    """Scores in [0, 1]: the best is 1, an unknown one neutral.

    `ratio`: best / value. `minmax`: (max - value) / (max - min), neutral where all are equal.
    """
    known = [value for value in values if value is not None]
    if not known:
        return [NEUTRAL] * len(values)
    most = max(known)
    floor = most * FLOOR
    best = max(min(known), floor)
    if normalization == "ratio":
        if best <= 0.0:
            return [NEUTRAL if value is None else 1.0 for value in values]
        return [NEUTRAL if value is None else best / (value if value > floor else floor) for value in values]
    span = most - best
    if span <= 0.0:
        return [NEUTRAL] * len(values)
    return [NEUTRAL if value is None else (most - (value if value > floor else floor)) / span for value in values]


def higher_is_better(values: Sequence[float], normalization: Normalization) -> list[float]:
    """Scores in [0, 1] of positive values: the best is 1. `ratio`: value / best. `minmax`: (value - min) / (max - min)."""
    best = max(values)
    if normalization == "ratio":
        return [value / best for value in values]
    least = min(values)
    span = best - least
    if span <= 0.0:
        return [NEUTRAL] * len(values)
    return [(value - least) / span for value in values]


def _relative(raws: Sequence[float], scoring: Scoring) -> Column:
    finite = _finite(raws)
    return _column(finite, lower_is_better(finite, scoring.policy.normalization), "no_data")


def _column(raws: Sequence[float | None], values: list[float], unknown: str) -> Column:
    if None not in raws:
        return Column(raws, values, [None] * len(raws))
    return Column(raws, values, [unknown if raw is None else None for raw in raws])


def _finite(raws: Sequence[float]) -> Sequence[float | None]:
    """Sums so large that they overflow say nothing."""
    return raws if isfinite(sum(raws)) else [raw if isfinite(raw) else None for raw in raws]


def _no_data(scoring: Scoring) -> Column:
    count = len(scoring.targets)
    return Column([None] * count, [NEUTRAL] * count, ["no_data"] * count)


def _unit(value: float) -> float:
    return value if 0.0 <= value <= 1.0 else float(value > 1.0)
