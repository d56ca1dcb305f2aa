"""What candidates are scored by: raw values, and the scores that they give relative to the best candidate.

Everything is worked out a score at a time over all candidates, because that is how the best one is found.
Formulas: "Scores" in docs/routing.md.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf, isfinite
from typing import Final, Literal, TypeVar

from routing.core.catalog import ScorePolicy, ScoreTerm, Target
from routing.core.decision import Column
from routing.core.estimates import estimate
from routing.core.expressions import compile_weights
from routing.core.shape import RequestShape
from routing.core.stats import GroupStats

T = TypeVar("T")
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

_default = compile_weights(
    {"cost_score": 0.25, "latency_score": 0.25, "throughput_score": 0.20, "reliability_score": 0.30}
)
DEFAULT_TERM: Final = ScoreTerm(
    name="default",
    expression=_default.evaluate,
    over_columns=_default.over_columns,
    source=_default.source,
    names=_default.names,
    weights=_default.weights,
)
"""Scores when no term of the policy matches."""


Columns = dict[str, tuple[Sequence[float], Column]]
"""The last column of all targets of a group by its score, with the values of the estimate that it was made of."""


class Declared:
    """What the targets of a group declare, a list each in its order: worked out once."""

    __slots__ = (
        "_quality",
        "_quality_from",
        "_quality_until",
        "input_prices",
        "output_prices",
        "priced",
        "targets",
    )

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = targets
        self.input_prices = [target.input_price for target in targets]
        self.output_prices = [target.output_price for target in targets]
        self.priced = None not in self.input_prices and None not in self.output_prices
        self._quality: Column | None = None
        self._quality_from = self._quality_until = 0.0

    def quality(self, today: float) -> Column:
        """Declared quality, as long as it is not too old."""
        known = self._quality
        if known is None or not self._quality_from <= today < self._quality_until:
            known = self._quality = _quality(self.targets, today)
            self._quality_from = today
            ends = [target.quality_until + 1.0 for target in self.targets if target.quality_until is not None]
            self._quality_until = min([end for end in ends if end > today], default=inf)
        return known


class Scoring:
    """What the scores of one decision are computed from."""

    __slots__ = (
        "columns",
        "count",
        "declared",
        "everyone",
        "group",
        "no_flags",
        "policy",
        "positions",
        "shape",
        "today",
    )

    def __init__(
        self,
        *,
        declared: Declared,
        columns: Columns,
        positions: Sequence[int],
        group: GroupStats,
        shape: RequestShape,
        policy: ScorePolicy,
        today: float,
    ) -> None:
        """`columns`: those of the last decisions, which this one may use and add to.

        `positions`: of the surviving candidates in the group's list, ascending. `today`: days since 1970-01-01.
        """
        self.declared = declared
        self.columns = columns
        self.positions = positions
        self.count = len(positions)
        self.everyone = self.count == len(declared.targets)
        self.no_flags: Sequence[str | None] = (None,) * self.count
        self.group = group
        self.shape = shape
        self.policy = policy
        self.today = today

    def own(self, of_all: Sequence[T]) -> Sequence[T]:
        """The candidates' entries of a list that has one for every target."""
        return of_all if self.everyone else [of_all[position] for position in self.positions]

    def estimated(self, name: str) -> Sequence[float] | None:
        """`None`: no data."""
        found = estimate(name, self.group, self.policy)
        return None if found is None else self.own(found.values)

    def kept(self, name: str, made_of: str, make: "Callable[[Sequence[float], Scoring], Column]") -> Column:
        """The column of a score that follows from one estimate alone: made anew when a value of that has changed."""
        found = estimate(made_of, self.group, self.policy)
        if found is None:
            return _no_data(self)
        values = found.values
        if not self.everyone:
            return make(self.own(values), self)
        known = self.columns.get(name)
        if known is None or known[0] is not values:
            known = self.columns[name] = values, make(values, self)
        return known[1]


def measure(names: Iterable[str], scoring: Scoring) -> dict[str, Column]:
    """The columns of these scores, in the order of `expressions.NAMES`."""
    enabled = scoring.policy.enabled_signals
    columns: dict[str, Column] = {}
    for name in names:
        if SIGNALS[name] not in enabled:
            count = scoring.count
            columns[name] = Column([None] * count, [NEUTRAL] * count, ["disabled"] * count)
        elif name == "budget_score":
            cost = columns.get("cost_score") or _cost(scoring)
            columns[name] = Column(cost.raws, [1.0 - value for value in cost.values], cost.flags)
        else:
            columns[name] = _COLUMNS[name](scoring)
    return columns


def _cost(scoring: Scoring) -> Column:
    """Dollars that this request is expected to cost."""
    shape, cap, declared = scoring.shape, scoring.shape.output_cap, scoring.declared
    text, media = shape.text_bytes, shape.media_tokens
    output = scoring.group.mean_output_tokens
    if cap is not None and cap < output:
        output = cap
    per_token = scoring.estimated("bytes_per_token") or ()
    prices = zip(per_token, scoring.own(declared.input_prices), scoring.own(declared.output_prices), strict=True)
    if declared.priced:
        dollars = [(text / size + media) * of_input + output * of_output for size, of_input, of_output in prices]  # type: ignore[operator]  # none is None
        values = _lower_is_better(dollars, scoring.policy.normalization) if any(dollars) else [1.0] * scoring.count
        return Column(dollars, values, scoring.no_flags)
    raws = [
        None if of_input is None or of_output is None else (text / size + media) * of_input + output * of_output
        for size, of_input, of_output in prices
    ]
    return _column(raws, relative_cost(raws, scoring.policy.normalization), "unknown_price")


def _latency(scoring: Scoring) -> Column:
    return scoring.kept("latency_score", "latency", _relative)


def _ttfb(scoring: Scoring) -> Column:
    return scoring.kept("ttfb_score", "ttfb", _relative)


def _throughput(scoring: Scoring) -> Column:
    return scoring.kept("throughput_score", "seconds_per_token", _speeds)


def _speeds(seconds: Sequence[float], scoring: Scoring) -> Column:
    """Output tokens per second of generation."""
    if not isfinite(sum(seconds)):
        return _no_data(scoring)
    lowest = max(max(seconds) * FLOOR, 1e-9)
    raws = [1.0 / (value if value > lowest else lowest) for value in seconds]
    return Column(raws, higher_is_better(raws, scoring.policy.normalization), scoring.no_flags)


def _reliability(scoring: Scoring) -> Column:
    """As it is, not relative to the best."""
    return scoring.kept("reliability_score", "reliability", _absolute)


def _complexity(scoring: Scoring) -> Column:
    return _absolute([scoring.shape.complexity_score] * scoring.count, scoring)


def _eval_quality(scoring: Scoring) -> Column:
    column = scoring.declared.quality(scoring.today)
    return (
        column
        if scoring.everyone
        else Column(scoring.own(column.raws), scoring.own(column.values), scoring.own(column.flags))
    )


def _quality(targets: Sequence[Target], today: float) -> Column:
    yesterday = today - 1.0
    raws: list[float | None] = []
    values: list[float] = []
    flags: list[str | None] = []
    for target in targets:
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
    found = estimate("in_flight", scoring.group, scoring.policy)
    in_flight = () if found is None else found.values
    running = max(1, sum(in_flight))
    return _absolute([1.0 - own / running for own in scoring.own(in_flight)], scoring)


def _stream_integrity(scoring: Scoring) -> Column:
    """As it is, not relative to the best."""
    return scoring.kept("stream_integrity_score", "stream_integrity", _absolute)


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


# From values to scores.


def relative_cost(dollars: Sequence[float | None], normalization: Normalization) -> list[float]:
    """Cost scores: as `lower_is_better`, but where everything is free, everything is 1."""
    if not any(dollars) and any(value is not None for value in dollars):
        return [NEUTRAL if value is None else 1.0 for value in dollars]
    return lower_is_better(dollars, normalization)


def lower_is_better(values: Sequence[float | None], normalization: Normalization) -> list[float]:
    """Scores in [0, 1]: the best is 1, an unknown one neutral.

    `ratio`: best / value. `minmax`: (max - value) / (max - min), neutral where all are equal.
    """
    if None not in values:
        return _lower_is_better(values, normalization)  # type: ignore[arg-type]  # none is None
    known = [value for value in values if value is not None]
    if not known:
        return [NEUTRAL] * len(values)
    scored = iter(_lower_is_better(known, normalization))
    return [NEUTRAL if value is None else next(scored) for value in values]


def _lower_is_better(values: Sequence[float], normalization: Normalization) -> list[float]:
    most = max(values)
    least = min(values)
    floor = most * FLOOR
    best = least if least > floor else floor
    if normalization == "ratio":
        if best > floor:
            return [best / value for value in values]
        if best <= 0.0:
            return [1.0] * len(values)
        return [best / (value if value > floor else floor) for value in values]
    span = most - best
    if span <= 0.0:
        return [NEUTRAL] * len(values)
    return [(most - (value if value > floor else floor)) / span for value in values]


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
    if isfinite(sum(raws)):
        return Column(raws, _lower_is_better(raws, scoring.policy.normalization), scoring.no_flags)
    finite = _finite(raws)
    return _column(finite, lower_is_better(finite, scoring.policy.normalization), "no_data")


def _absolute(raws: Sequence[float], scoring: Scoring) -> Column:
    return Column(_finite(raws), [raw if 0.0 <= raw <= 1.0 else float(raw > 1.0) for raw in raws], scoring.no_flags)


def _column(raws: Sequence[float | None], values: list[float], unknown: str) -> Column:
    if None not in raws:
        return Column(raws, values, [None] * len(raws))
    return Column(raws, values, [unknown if raw is None else None for raw in raws])


def _finite(raws: Sequence[float]) -> Sequence[float | None]:
    """Sums so large that they overflow say nothing."""
    return raws if isfinite(sum(raws)) else [raw if isfinite(raw) else None for raw in raws]


def _no_data(scoring: Scoring) -> Column:
    count = scoring.count
    return Column([None] * count, [NEUTRAL] * count, ["no_data"] * count)


def _unit(value: float) -> float:
    return value if 0.0 <= value <= 1.0 else float(value > 1.0)
