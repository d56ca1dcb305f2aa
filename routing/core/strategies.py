"""Putting candidates in order: by the list, by weight, by a draw, or by weight and score blended."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

FULL_BAND_AT: Final = 0.7
"""`max_score_adjustment_percent` / 100 from which on the near-tie band has its full width; below it is narrower."""


class Order(msgspec.Struct, frozen=True):
    """Indices into the candidates, the primary first."""

    order: list[int]
    tie_break: str
    propensity: float = 1.0
    drawn: float | None = None


class Ranking(msgspec.Struct, frozen=True):
    """The blend and the order it gives; lists in the candidates' order."""

    relative: list[float]
    """W. Shared by the rankings of a Blend: not to be changed."""
    contrasted: list[float]
    """D'."""
    finals: list[float]
    band: frozenset[int]
    """Indices of the near ties; empty: no band."""
    order: list[int]
    tie_break: str


def listed(weights: Sequence[float]) -> Order:
    """As listed, weight 0 behind."""
    return Order(_listed(weights), "only" if len(weights) == 1 else "position")


def by_weight(weights: Sequence[float]) -> Order:
    """Heaviest first, then as listed: what a group does before it has observed enough."""
    order = sorted(range(len(weights)), key=lambda index: -weights[index])
    if len(order) == 1:
        return Order(order, "only")
    return Order(order, "weight" if weights[order[0]] > weights[order[1]] else "position")


def weighted(weights: Sequence[float], draw: Callable[[], float]) -> Order:
    """The primary drawn with probability weight / sum, the others as listed. All weights 0: all equally likely."""
    if len(weights) == 1:
        return Order([0], "only")
    shares = weights if any(weights) else [1.0] * len(weights)
    number = draw()
    total = sum(shares)
    primary = drawn_index(shares, number)
    order = [primary, *(index for index in _listed(weights) if index != primary)]
    return Order(order, "draw", shares[primary] / total, number)


def drawn_index(shares: Sequence[float], number: float) -> int:
    """Where `number` in [0, 1) falls when the shares lie side by side. A share of 0 is never hit."""
    point = number * sum(shares)
    last = 0
    for index, share in enumerate(shares):
        if share <= 0.0:
            continue
        last = index
        if point < share:
            break
        point -= share
    return last


def _listed(weights: Sequence[float]) -> list[int]:
    everyone = range(len(weights))
    if all(weights) or not any(weights):
        return list(everyone)
    return [i for i in everyone if weights[i] > 0.0] + [i for i in everyone if weights[i] <= 0.0]


def relative_weights(weights: Sequence[float]) -> list[float]:
    """W: each weight over the largest; where all are 0, all are 1."""
    largest = max(weights)
    return [weight / largest for weight in weights] if largest > 0.0 else [1.0] * len(weights)


class Blend:
    """What weights and policy alone say of an order; of a group whose targets all survive it is always the same."""

    __slots__ = ("_adjustment", "_band_width", "_behind", "_contrast", "_first", "_kept", "_relative", "_weights")

    def __init__(self, weights: Sequence[float], *, adjustment: float, contrast: float, near_tie: float) -> None:
        self._weights = weights
        self._adjustment = adjustment
        self._contrast = contrast
        self._relative = relative_weights(weights)
        self._kept = [(1.0 - adjustment) * weight for weight in self._relative]
        self._band_width: float | None = None
        """`None`: no band."""
        if near_tie > 0.0 and adjustment > 0.0:
            self._band_width = near_tie * min(1.0, adjustment / FULL_BAND_AT)
        everyone = sorted(range(len(weights)), key=weights.__getitem__, reverse=True)
        self._first: Sequence[int] = everyone
        """By weight and position, as are those behind them."""
        self._behind: Sequence[int] = ()
        if 0.0 in weights and any(weights):
            self._first = [i for i in everyone if weights[i] > 0.0]
            self._behind = [i for i in everyone if weights[i] <= 0.0]

    def rank(self, dynamics: Sequence[float], in_flight: Sequence[float]) -> Ranking:
        """Blends weight and score and orders the candidates, given in the order of the group's list.

        D' = max(0, 1 - contrast x (Dmax - D)); final = (1 - adjustment) x W + adjustment x D'. The primary is the
        least busy of those within the near-tie band below the highest final, then by final, weight, position. The others
        follow by final, D, weight, position; weight 0 is behind every positive weight.
        """
        adjustment, contrast, weights = self._adjustment, self._contrast, self._weights
        best = max(dynamics)
        contrasted = [left if (left := 1.0 - contrast * (best - dynamic)) > 0.0 else 0.0 for dynamic in dynamics]
        finals = [kept + adjustment * value for kept, value in zip(self._kept, contrasted, strict=True)]

        # Sorting is stable, also in reverse: what is equal in final and D stays by weight and position.
        by_dynamic, by_final = dynamics.__getitem__, finals.__getitem__
        order = sorted(self._first, key=by_dynamic, reverse=True)
        order.sort(key=by_final, reverse=True)

        primary = order[0]
        band: Sequence[int] = ()
        if self._band_width is not None:
            band = order[:1]
            least = finals[primary] - self._band_width
            if len(order) > 1 and finals[order[1]] >= least:
                band = sorted([i for i in order if finals[i] >= least])
        if len(order) == 1:
            tie_break = "only"
        elif len(band) == 1:
            tie_break = "final"
        elif band:
            primary = min(band, key=lambda i: (in_flight[i], -finals[i], -weights[i]))
            tie_break = _tie_break(primary, band, in_flight, finals, weights)
        else:
            primary = max(self._first, key=lambda i: (finals[i], weights[i]))
            tie_break = _tie_break(primary, self._first, None, finals, weights)
        if primary != order[0]:
            order.remove(primary)
            order.insert(0, primary)
        if self._behind:
            order += sorted(sorted(self._behind, key=by_dynamic, reverse=True), key=by_final, reverse=True)
        return Ranking(self._relative, contrasted, finals, frozenset(band), order, tie_break)


def _tie_break(
    primary: int,
    rivals: Sequence[int],
    in_flight: Sequence[float] | None,
    finals: Sequence[float],
    weights: Sequence[float],
) -> str:
    """What set the primary apart from the last rivals that were still equal to it."""
    if len(rivals) == 1:
        return "final"
    if in_flight is not None:
        rivals = [i for i in rivals if in_flight[i] == in_flight[primary]]
        if len(rivals) == 1:
            return "in_flight"
    rivals = [i for i in rivals if finals[i] == finals[primary]]
    if len(rivals) == 1:
        return "final"
    return "weight" if sum(weights[i] == weights[primary] for i in rivals) == 1 else "position"
