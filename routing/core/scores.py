"""What candidates are scored by: the estimates behind each score, and the scores relative to the best candidate.

Everything is worked out a score at a time over all candidates, because that is how the best one is found.
Formulas: "Scores" in docs/routing.md.
"""

from collections.abc import Callable, Container, Sequence
from math import isfinite, sqrt
from typing import Final, Literal

from routing.core.catalog import ScorePolicy, ScoreTerm, Target
from routing.core.decision import Column
from routing.core.eligibility import LEAST_BYTES_PER_TOKEN
from routing.core.expressions import NAMES, compile_weights
from routing.core.shape import RequestShape
from routing.core.stats import GroupStats, Sums, TargetStats

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


class Scoring:
    """What the scores of one decision are computed from."""

    __slots__ = ("_factors", "fasts", "group", "k", "own", "policy", "shape", "targets", "today", "windows")

    def __init__(
        self,
        *,
        targets: Sequence[Target],
        own: Sequence[TargetStats],
        group: GroupStats,
        shape: RequestShape,
        policy: ScorePolicy,
        today: float,
    ) -> None:
        """`targets`: the surviving candidates; `own`: their statistics, in the same order. `today`: days since 1970-01-01."""
        self.targets = targets
        self.own = own
        self.group = group
        self.shape = shape
        self.policy = policy
        self.today = today
        self.windows = [stats.window for stats in own]
        self.fasts = [stats.fast for stats in own]
        self.k = policy.prior_strength or LEAST_PRIOR
        self._factors: list[float] | None = None

    @property
    def factors(self) -> list[float]:
        """By how much each candidate's observed times are stretched."""
        if self._factors is None:
            k = self.k
            self._factors = [load_factor(stats, k) if stats.in_flight else 1.0 for stats in self.own]
        return self._factors

    def group_windows(self) -> list[Sums]:
        """Of all the group's targets, candidates or not."""
        everyone = self.group.targets
        return self.windows if len(everyone) == len(self.own) else [stats.window for stats in everyone.values()]


def measure(names: Container[str], scoring: Scoring) -> dict[str, Column]:
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
    text, media = shape.text_bytes, shape.media_tokens
    output = scoring.group.mean_output_tokens
    if cap is not None and cap < output:
        output = cap
    raws = [
        None
        if (of_input := target.input_price) is None or (of_output := target.output_price) is None
        else (
            text
            / (per_token if (per_token := stats.bytes_per_token) > LEAST_BYTES_PER_TOKEN else LEAST_BYTES_PER_TOKEN)
            + media
        )
        * of_input
        + output * of_output
        for target, stats in zip(scoring.targets, scoring.own, strict=True)
    ]
    return _column(raws, relative_cost(raws, scoring.policy.normalization), "unknown_price")


def _latency(scoring: Scoring) -> Column:
    """Seconds: the p95 of the total time, corrected for what is in flight now."""
    k = scoring.k
    seen = [(stats.p95_n, stats.p95_s) for stats in scoring.group.targets.values() if stats.p95_s is not None]
    samples = sum([n for n, _ in seen])
    if samples <= 0:
        return _no_data(scoring)
    group = sum([n * p95 for n, p95 in seen]) / samples
    prior = k * group
    raws = [
        (group if stats.p95_s is None else (stats.p95_n * stats.p95_s + prior) / (stats.p95_n + k)) * factor
        for stats, factor in zip(scoring.own, scoring.factors, strict=True)
    ]
    return _relative(raws, scoring)


def _ttfb(scoring: Scoring) -> Column:
    """Seconds: the mean time to first content."""
    k = scoring.k
    everyone = scoring.group_windows()
    samples = sum([window.first_content_n for window in everyone])
    if samples <= 0.0:
        return _no_data(scoring)
    prior = k * (sum([window.first_content_s for window in everyone]) / samples)
    raws = [
        (fast.first_content_s + k * ((window.first_content_s + prior) / (window.first_content_n + k)))
        / (fast.first_content_n + k)
        for window, fast in zip(scoring.windows, scoring.fasts, strict=True)
    ]
    return _relative(raws, scoring)


def _throughput(scoring: Scoring) -> Column:
    """Output tokens per second of generation, corrected for what is in flight now. Estimated as seconds per token."""
    everyone = scoring.group_windows()
    tokens = sum([window.generation_tokens for window in everyone])
    total = sum([window.generation_s for window in everyone])
    if tokens <= 0.0 or total <= 0.0:
        return _no_data(scoring)
    k = scoring.k * scoring.group.mean_output_tokens or LEAST_PRIOR
    prior = k * (total / tokens)
    seconds = [
        (fast.generation_s + k * ((window.generation_s + prior) / (window.generation_tokens + k)))
        / (fast.generation_tokens + k)
        * factor
        for window, fast, factor in zip(scoring.windows, scoring.fasts, scoring.factors, strict=True)
    ]
    if not isfinite(sum(seconds)):
        return _no_data(scoring)
    lowest = max(max(seconds) * FLOOR, 1e-9)
    raws = [1.0 / (value if value > lowest else lowest) for value in seconds]
    return Column(raws, higher_is_better(raws, scoring.policy.normalization), [None] * len(raws))


def _reliability(scoring: Scoring) -> Column:
    """1 - error rate - timeout rate - half the fallback rate: as it is, not relative to the best."""
    k = scoring.k
    everyone = scoring.group_windows()
    attempts = sum([window.attempts for window in everyone])
    # The three rates have one denominator, so they are shrunk as one sum.
    bad = sum([window.errors + window.timeouts + 0.5 * window.fallbacks for window in everyone])
    prior = k * (bad / attempts if attempts > 0.0 else PRIOR_ERROR_RATE)
    raws = [
        1.0
        - (
            fast.errors
            + fast.timeouts
            + 0.5 * fast.fallbacks
            + k * ((window.errors + window.timeouts + 0.5 * window.fallbacks + prior) / (window.attempts + k))
        )
        / (fast.attempts + k)
        for window, fast in zip(scoring.windows, scoring.fasts, strict=True)
    ]
    return _absolute(raws)


def _complexity(scoring: Scoring) -> Column:
    return _absolute([scoring.shape.complexity_score] * len(scoring.targets))


def _eval_quality(scoring: Scoring) -> Column:
    """Declared quality, as long as it is not too old."""
    yesterday = scoring.today - 1.0
    raws: list[float | None] = []
    values: list[float] = []
    flags: list[str | None] = []
    for target in scoring.targets:
        quality, until = target.quality, target.quality_until
        flag = "no_data" if quality is None else "stale" if until is not None and until <= yesterday else None
        if quality is None or flag is not None:
            raws.append(None)
            values.append(NEUTRAL)
        else:
            raws.append(quality)
            values.append(_unit(quality))
        flags.append(flag)
    return Column(raws, values, flags)


def _load(scoring: Scoring) -> Column:
    """1 - the target's share of the group's attempts in flight."""
    running = max(1, sum([stats.in_flight for stats in scoring.group.targets.values()]))
    return _absolute([1.0 - stats.in_flight / running for stats in scoring.own])


def _stream_integrity(scoring: Scoring) -> Column:
    """Share of streams that ended with their terminal event: as it is, not relative to the best."""
    k = scoring.k
    everyone = scoring.group_windows()
    streams = sum([window.streams for window in everyone])
    prior = k * (sum([window.streams_ended for window in everyone]) / streams if streams > 0.0 else 1.0)
    raws = [
        (fast.streams_ended + k * ((window.streams_ended + prior) / (window.streams + k))) / (fast.streams + k)
        for window, fast in zip(scoring.windows, scoring.fasts, strict=True)
    ]
    return _absolute(raws)


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


def _absolute(raws: Sequence[float]) -> Column:
    return Column(_finite(raws), [_unit(raw) for raw in raws], [None] * len(raws))


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
