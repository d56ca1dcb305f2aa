"""What a target is expected to do, by what it did: each quantity shrunk towards the group's average.

`value = (own sum + k x prior) / (own samples + k)`, first for the window, then for the decayed sums on top of it.
Formulas: "Scores" in docs/routing.md.

An estimate is worked out for all targets of a group when a choice first asks for it, and from then on again only for
the targets about which something changed: `renewed`. The group's average in it then stays as it was, until all is
read again (`memory.READ_S`, `memory.DRIFT`).
"""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Final, NamedTuple

from routing.core.catalog import ScorePolicy
from routing.core.eligibility import LEAST_BYTES_PER_TOKEN
from routing.core.stats import Estimate, GroupStats, Sums, TargetStats

PRIOR_ERROR_RATE: Final = 0.01
"""Of a group without an attempt in its window; its timeout and fallback rates are 0, its stream integrity 1."""

LEAST_PRIOR: Final = 1e-12
"""Stands for a `prior_strength` of 0: without any sample the group's average is still what is left."""


class Estimator(NamedTuple):
    prior: Callable[[GroupStats, float], tuple[float, ...] | None]
    """From the group and k, the policy's `prior_strength`, what `of` takes; `None`: there is no data."""
    of: Callable[[TargetStats, tuple[float, ...]], float]
    seen: Callable[[TargetStats], bool] | None = None
    """Whether this target has shown any of it; `None`: without data there is a value, too."""
    by_load: bool = False
    """It also depends on what runs now."""


def estimate(name: str, stats: GroupStats, policy: ScorePolicy) -> Estimate | None:
    """The estimate of this name; `None`: no data. Always with the same policy for the same stats."""
    try:
        return stats.estimates[name]
    except KeyError:
        estimator = ESTIMATORS[name]
        prior = estimator.prior(stats, policy.prior_strength or LEAST_PRIOR)
        of = estimator.of
        found = None if prior is None else Estimate(prior, [of(own, prior) for own in stats.targets.values()])
        stats.estimates[name] = found
        return found


def renewed(
    estimates: dict[str, Estimate | None], changed: Sequence[tuple[int, TargetStats, bool]]
) -> dict[str, Estimate | None]:
    """The estimates, taken anew for these targets: each with its place in the list, and whether more than its load changed."""
    fresh: dict[str, Estimate | None] = {}
    for name, known in estimates.items():
        estimator = ESTIMATORS[name]
        if known is None:
            seen = estimator.seen
            if seen is None or not any(seen(own) for _, own, _ in changed):
                fresh[name] = None
            continue
        of, by_load = estimator.of, estimator.by_load
        values: list[float] | None = None
        prior = known.prior
        for place, own, observed in changed:
            if observed or by_load:
                value = of(own, prior)
                if values is not None:
                    values[place] = value
                elif value != known.values[place]:
                    values = [*known.values]
                    values[place] = value
        fresh[name] = known if values is None else Estimate(prior, values)
    return fresh


def load_factor(stats: TargetStats, k: float) -> float:
    """By how much observed times are stretched when more is in flight now than when they were observed; >= 1."""
    q = stats.in_flight
    if not q:
        return 1.0
    window, fast = stats.window, stats.fast
    usual = window.in_flight_at_start / window.completed if window.completed > 0.0 else 0.0
    mean = (fast.in_flight_at_start + k * usual) / (fast.completed + k)
    return sqrt((2.0 + q) / (2.0 + mean)) if q > mean else 1.0


def _windows(stats: GroupStats) -> list[Sums]:
    return [each.window for each in stats.targets.values()]


# Seconds: the p95 of the total time, corrected for what is in flight now.


def _latency_prior(stats: GroupStats, k: float) -> tuple[float, ...] | None:
    seen = [(each.p95_n, each.p95_s) for each in stats.targets.values() if each.p95_s is not None]
    samples = sum([n for n, _ in seen])
    if samples <= 0:
        return None
    group = sum([n * p95 for n, p95 in seen]) / samples
    return k, group, k * group


def _latency(own: TargetStats, prior: tuple[float, ...]) -> float:
    k, group, drawn_to = prior
    p95 = group if own.p95_s is None else (own.p95_n * own.p95_s + drawn_to) / (own.p95_n + k)
    return p95 * load_factor(own, k)


# Seconds: the mean time to first content.


def _ttfb_prior(stats: GroupStats, k: float) -> tuple[float, ...] | None:
    windows = _windows(stats)
    samples = sum([window.first_content_n for window in windows])
    if samples <= 0.0:
        return None
    return k, k * (sum([window.first_content_s for window in windows]) / samples)


def _ttfb(own: TargetStats, prior: tuple[float, ...]) -> float:
    k, drawn_to = prior
    window, fast = own.window, own.fast
    return (fast.first_content_s + k * ((window.first_content_s + drawn_to) / (window.first_content_n + k))) / (
        fast.first_content_n + k
    )


# Seconds of generation per output token, corrected for what is in flight now.


def _seconds_per_token_prior(stats: GroupStats, k: float) -> tuple[float, ...] | None:
    windows = _windows(stats)
    tokens = sum([window.generation_tokens for window in windows])
    total = sum([window.generation_s for window in windows])
    if tokens <= 0.0 or total <= 0.0:
        return None
    of_tokens = k * stats.mean_output_tokens or LEAST_PRIOR
    return k, of_tokens, of_tokens * (total / tokens)


def _seconds_per_token(own: TargetStats, prior: tuple[float, ...]) -> float:
    k, of_tokens, drawn_to = prior
    window, fast = own.window, own.fast
    return (
        (fast.generation_s + of_tokens * ((window.generation_s + drawn_to) / (window.generation_tokens + of_tokens)))
        / (fast.generation_tokens + of_tokens)
        * load_factor(own, k)
    )


# 1 - error rate - timeout rate - half the fallback rate. The three have one denominator, so they are shrunk as one sum.


def _reliability_prior(stats: GroupStats, k: float) -> tuple[float, ...]:
    windows = _windows(stats)
    attempts = sum([window.attempts for window in windows])
    bad = sum([window.errors + window.timeouts + 0.5 * window.fallbacks for window in windows])
    return k, k * (bad / attempts if attempts > 0.0 else PRIOR_ERROR_RATE)


def _reliability(own: TargetStats, prior: tuple[float, ...]) -> float:
    k, drawn_to = prior
    window, fast = own.window, own.fast
    return 1.0 - (
        fast.errors
        + fast.timeouts
        + 0.5 * fast.fallbacks
        + k * ((window.errors + window.timeouts + 0.5 * window.fallbacks + drawn_to) / (window.attempts + k))
    ) / (fast.attempts + k)


# Share of streams that ended with their terminal event.


def _stream_integrity_prior(stats: GroupStats, k: float) -> tuple[float, ...]:
    windows = _windows(stats)
    streams = sum([window.streams for window in windows])
    return k, k * (sum([window.streams_ended for window in windows]) / streams if streams > 0.0 else 1.0)


def _stream_integrity(own: TargetStats, prior: tuple[float, ...]) -> float:
    k, drawn_to = prior
    window, fast = own.window, own.fast
    return (fast.streams_ended + k * ((window.streams_ended + drawn_to) / (window.streams + k))) / (fast.streams + k)


# What needs no average, kept here because it, too, changes with its target alone.


def _nothing(stats: GroupStats, k: float) -> tuple[float, ...]:
    return ()


def _bytes_per_token(own: TargetStats, prior: tuple[float, ...]) -> float:
    return max(own.bytes_per_token, LEAST_BYTES_PER_TOKEN)


def _in_flight(own: TargetStats, prior: tuple[float, ...]) -> int:
    return own.in_flight


ESTIMATORS: Final[dict[str, Estimator]] = {
    "latency": Estimator(_latency_prior, _latency, lambda own: own.p95_s is not None, by_load=True),
    "ttfb": Estimator(_ttfb_prior, _ttfb, lambda own: own.window.first_content_n > 0.0),
    "seconds_per_token": Estimator(
        _seconds_per_token_prior, _seconds_per_token, lambda own: own.window.generation_tokens > 0.0, by_load=True
    ),
    "reliability": Estimator(_reliability_prior, _reliability),
    "stream_integrity": Estimator(_stream_integrity_prior, _stream_integrity),
    "bytes_per_token": Estimator(_nothing, _bytes_per_token),
    "in_flight": Estimator(_nothing, _in_flight, by_load=True),
}
