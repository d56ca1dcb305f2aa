from collections import Counter
from random import Random
from typing import Any

import pytest

from routing.core.strategies import Blend, Order, Ranking, by_weight, drawn_index, listed, relative_weights, weighted


def ranked(
    weights: list[float], dynamics: list[float], in_flight: list[int] | None = None, **settings: float
) -> Ranking:
    given: dict[str, Any] = {"adjustment": 0.7, "contrast": 4.0, "near_tie": 0.07, **settings}
    return Blend(weights, **given).rank(dynamics, in_flight or [0] * len(weights))


def test_listed_targets_keep_their_order_and_weight_zero_is_behind() -> None:
    assert listed([3.0, 1.0, 2.0]) == Order([0, 1, 2], "position")
    assert listed([0.0, 1.0, 0.0, 2.0]) == Order([1, 3, 0, 2], "position")
    assert listed([0.0, 0.0]) == Order([0, 1], "position")
    assert listed([5.0]) == Order([0], "only")


def test_by_weight_is_heaviest_first_then_as_listed() -> None:
    assert by_weight([5.0, 60.0, 25.0]) == Order([1, 2, 0], "weight")
    assert by_weight([5.0, 60.0, 60.0]) == Order([1, 2, 0], "position")
    assert by_weight([0.0, 0.004]) == Order([1, 0], "weight")


def test_a_weighted_draw_falls_where_the_shares_lie() -> None:
    shares = [1.0, 0.0, 3.0]
    picked = [drawn_index(shares, number) for number in (0.0, 0.2499, 0.25, 0.5, 0.9999999999999999)]
    assert picked == [0, 0, 2, 2, 2]


def test_the_drawn_target_is_followed_by_the_others_as_listed() -> None:
    assert weighted([1.0, 0.0, 1.0, 2.0], lambda: 0.5) == Order([3, 0, 2, 1], "draw", 0.5, 0.5)
    assert weighted([0.0, 0.0], lambda: 0.75) == Order([1, 0], "draw", 0.5, 0.75)
    assert weighted([4.0], lambda: 0.1) == Order([0], "only")


def test_small_weights_are_drawn_in_their_exact_shares_and_zero_never() -> None:
    rng = Random(42)
    weights = [4.0, 1.0, 995.0, 0.0]
    picks = Counter(weighted(weights, rng.random).order[0] for _ in range(100_000))
    assert picks[3] == 0
    # Chi-square with 2 degrees of freedom: p > 0.001 below 13.816.
    assert sum((picks[i] - 100 * weights[i]) ** 2 / (100 * weights[i]) for i in range(3)) < 13.816


def test_tiny_weights_are_not_cut_to_zero() -> None:
    rng = Random(1)
    picks = Counter(weighted([0.004, 0.001], rng.random).order[0] for _ in range(10_000))
    assert picks[0] / 10_000 == pytest.approx(0.8, abs=0.02)


def test_weights_are_relative_to_the_largest() -> None:
    assert relative_weights([60.0, 25.0, 5.0]) == [1.0, 25 / 60, 5 / 60]
    assert relative_weights([0.0, 0.0]) == [1.0, 1.0]
    assert relative_weights([0.004, 0.001]) == [1.0, 0.25]


def test_weight_and_score_are_blended_after_contrast() -> None:
    ranking = ranked([60.0, 25.0, 5.0], [0.70, 0.80, 0.50])
    # D' = 1 - 4 x 0.10, 1, max(0, 1 - 4 x 0.30); final = 0.3 x W + 0.7 x D'
    assert ranking.contrasted == pytest.approx([0.6, 1.0, 0.0])
    assert ranking.finals == pytest.approx([0.3 + 0.42, 0.3 * 25 / 60 + 0.7, 0.3 * 5 / 60])
    assert (ranking.order, ranking.tie_break, ranking.band) == ([1, 0, 2], "final", frozenset({1}))


def test_a_contrast_of_one_ranks_as_the_plain_blend_does() -> None:
    weights, dynamics = [60.0, 25.0, 5.0], [0.2, 0.5, 0.9]
    ranking = ranked(weights, dynamics, contrast=1.0, near_tie=0.0)
    plain = [0.3 * w / 60 + 0.7 * d for w, d in zip(weights, dynamics, strict=True)]
    assert ranking.order == sorted(range(3), key=lambda i: -plain[i])


def test_without_adjustment_the_weights_alone_decide_and_there_is_no_band() -> None:
    ranking = ranked([60.0, 59.0, 5.0], [0.1, 0.9, 1.0], [50, 0, 0], adjustment=0.0, near_tie=1.0)
    assert (ranking.order, ranking.tie_break, ranking.band) == ([0, 1, 2], "final", frozenset())


def test_with_full_adjustment_the_scores_alone_decide() -> None:
    assert ranked([60.0, 1.0], [0.5, 0.7], adjustment=1.0).order == [1, 0]


def test_of_near_ties_the_least_busy_serves_and_the_others_follow_by_final() -> None:
    ranking = ranked([1.0, 1.0, 1.0], [0.80, 0.79, 0.40], [3, 2, 0])
    # finals 1, 0.3 + 0.7 x 0.96 = 0.972, 0.3: the first two are within 0.07
    assert (ranking.order, ranking.tie_break, ranking.band) == ([1, 0, 2], "in_flight", frozenset({0, 1}))


def test_a_near_tie_includes_its_border() -> None:
    # final = 0.3 x W + 0.7: W = 1 and 0.75 differ by 0.075
    assert ranked([1.0, 0.75], [0.5, 0.5], [1, 0], near_tie=0.08).order == [1, 0]
    assert ranked([1.0, 0.75], [0.5, 0.5], [1, 0], near_tie=0.07).order == [0, 1]


@pytest.mark.parametrize(
    ("weights", "dynamics", "in_flight", "order", "tie_break"),
    [
        ([1.0, 1.0], [0.5, 0.5], [1, 1], [0, 1], "position"),
        ([1.0, 1.0], [0.5, 0.5], [1, 0], [1, 0], "in_flight"),
        ([1.0, 1.0], [0.50, 0.51], [1, 1], [1, 0], "final"),
        ([1.0, 1.0], [0.2, 0.9], [9, 9], [1, 0], "final"),
        ([7.0], [0.5], [3], [0], "only"),
        # Three near ties; two are equally idle, of which the second has the higher final.
        ([1.0, 1.0, 1.0], [0.51, 0.50, 0.505], [4, 1, 1], [2, 0, 1], "final"),
    ],
)
def test_a_band_is_settled_by_load_then_final_then_position(
    weights: list[float], dynamics: list[float], in_flight: list[int], order: list[int], tie_break: str
) -> None:
    ranking = ranked(weights, dynamics, in_flight)
    assert (ranking.order, ranking.tie_break) == (order, tie_break)


def test_equal_finals_are_settled_by_weight_for_the_primary_and_by_score_for_the_others() -> None:
    # final = 0.5 x W + 0.5 x D': 0.5 + 0.5 x 0.5 = 0.75 and 0.25 + 0.5 = 0.75
    settings: dict[str, Any] = {"adjustment": 0.5, "contrast": 1.0, "near_tie": 0.0}
    ranking = ranked([1.0, 2.0], [1.0, 0.5], **settings)
    assert ranking.finals == [0.75, 0.75]
    assert (ranking.order, ranking.tie_break) == ([1, 0], "weight")
    # With a better third in front, the same two follow by D: finals 1.0 against 0.75 and 0.75.
    ranking = ranked([1.0, 2.0, 2.0], [1.0, 0.5, 1.0], **settings)
    assert (ranking.finals, ranking.order) == ([0.75, 0.75, 1.0], [2, 0, 1])


def test_weight_zero_is_behind_every_positive_weight_whatever_its_score() -> None:
    ranking = ranked([0.0, 1.0, 0.0, 0.001], [1.0, 0.1, 0.9, 0.05], [0, 9, 0, 9])
    assert (ranking.order[:2], ranking.order[2:]) == ([1, 3], [0, 2])
    assert ranking.band == {1}


def test_where_all_weights_are_zero_the_scores_decide() -> None:
    ranking = ranked([0.0, 0.0], [0.2, 0.9])
    assert (ranking.relative, ranking.order) == ([1.0, 1.0], [1, 0])


@pytest.mark.parametrize(("adjustment", "width"), [(0.7, 0.07), (1.0, 0.07), (0.35, 0.035), (0.07, 0.007)])
def test_the_band_narrows_with_the_adjustment_below_70_percent(adjustment: float, width: float) -> None:
    kept = 1.0 - adjustment
    for gap, tied in ((width * 0.99, True), (width * 1.01, False)):
        ranking = ranked(
            [1.0, 1.0 - gap / kept] if kept else [1.0, 1.0],
            [0.5, 0.5 if kept else 0.5 - gap / 4],
            adjustment=adjustment,
        )
        assert (ranking.band == {0, 1}) is tied
