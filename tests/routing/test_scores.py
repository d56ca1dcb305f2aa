from typing import Any

import pytest

from routing.core.catalog import ScorePolicy, Target
from routing.core.estimates import load_factor
from routing.core.expressions import NAMES
from routing.core.scores import SIGNALS, Declared, Scoring, higher_is_better, lower_is_better, measure, relative_cost
from routing.core.stats import GroupStats, Sums, TargetStats
from tests.routing.deciding import seen, some_shape, some_stats
from tests.support.documents import some_target


def scored(
    name: str,
    own: list[TargetStats],
    *,
    targets: list[Target] | None = None,
    others: list[TargetStats] | None = None,
    policy: ScorePolicy | None = None,
    shape: Any = None,
    today: float = 20_000.0,
    mean_output_tokens: float = 300.0,
) -> tuple[Any, Any, Any]:
    """Raw values, scores and flags of candidates with these statistics; `others` are in the group, not candidates."""
    everyone = dict(enumerate([*own, *(others or [])]))
    column = measure(
        {name},
        Scoring(
            declared=Declared(targets or [some_target(f"t{i}") for i in range(len(everyone))]),
            columns={},
            positions=range(len(own)),
            group=GroupStats(
                targets={f"t{i}": stats for i, stats in everyone.items()}, mean_output_tokens=mean_output_tokens
            ),
            shape=shape or some_shape(),
            policy=policy or ScorePolicy(),
            today=today,
        ),
    )[name]
    return list(column.raws), list(column.values), list(column.flags)


# From values to scores.


@pytest.mark.parametrize(
    ("values", "ratio", "minmax"),
    [
        ([2.0, 1.0, 4.0], [0.5, 1.0, 0.25], [2 / 3, 1.0, 0.0]),
        ([3.0], [1.0], [0.5]),
        ([3.0, 3.0], [1.0, 1.0], [0.5, 0.5]),
        ([None, 2.0, 4.0], [0.5, 1.0, 0.5], [0.5, 1.0, 0.0]),
        ([None, None], [0.5, 0.5], [0.5, 0.5]),
        ([0.0, 0.0], [1.0, 1.0], [0.5, 0.5]),
        # Zero counts as a thousandth of the largest: 0.01 / 10 = 0.001; (10 - 5) / (10 - 0.01) = 0.5005
        ([0.0, 10.0, 5.0], [1.0, 0.001, 0.002], [1.0, 0.0, 5 / 9.99]),
        ([0.001, 0.0, 10.0], [1.0, 1.0, 0.001], [1.0, 1.0, 0.0]),
        # The original's example, in minmax: prices 0.6, 1.5 and unknown.
        ([0.6, 1.5, None], [1.0, 0.4, 0.5], [1.0, 0.0, 0.5]),
        ([900.0, 1400.0, None], [1.0, 9 / 14, 0.5], [1.0, 0.0, 0.5]),
        ([1e300, 1e-300], [1e-3 * 1e3 / 1e3, 1.0], [0.0, 1.0]),
    ],
    ids=str,
)
def test_lower_values_score_higher(values: list[float | None], ratio: list[float], minmax: list[float]) -> None:
    assert lower_is_better(values, "ratio") == pytest.approx(ratio)
    assert lower_is_better(values, "minmax") == pytest.approx(minmax)


@pytest.mark.parametrize(
    ("values", "ratio", "minmax"),
    [
        ([80.0, 40.0], [1.0, 0.5], [1.0, 0.0]),
        ([80.0, 40.0, 60.0], [1.0, 0.5, 0.75], [1.0, 0.0, 0.5]),
        ([7.0], [1.0], [0.5]),
        ([7.0, 7.0], [1.0, 1.0], [0.5, 0.5]),
    ],
    ids=str,
)
def test_higher_values_score_higher(values: list[float], ratio: list[float], minmax: list[float]) -> None:
    assert higher_is_better(values, "ratio") == pytest.approx(ratio)
    assert higher_is_better(values, "minmax") == pytest.approx(minmax)


def test_where_everything_is_free_every_cost_is_best_in_both_normalisations() -> None:
    assert relative_cost([0.0, 0.0, None], "ratio") == [1.0, 1.0, 0.5]
    assert relative_cost([0.0, 0.0, None], "minmax") == [1.0, 1.0, 0.5]


# Cost.


def priced(*prices: tuple[float, float] | None) -> list[Target]:
    return [some_target(f"t{i}", prices=price) for i, price in enumerate(prices)]


def test_cost_is_the_expected_price_of_this_request() -> None:
    # 4,000 bytes / 4 = 1,000 tokens in; the group's mean of 300 tokens out.
    # 1,000 x $1/M + 300 x $2/M = $0.0016;  1,000 x $2/M + 300 x $4/M = $0.0032
    raws, values, flags = scored("cost_score", [some_stats()] * 2, targets=priced((1.0, 2.0), (2.0, 4.0)))
    assert raws == pytest.approx([0.0016, 0.0032])
    assert (values, flags) == (pytest.approx([1.0, 0.5]), [None, None])


def test_a_cap_bounds_the_expected_output() -> None:
    # 1,000 x $1/M + 100 x $2/M = $0.0012
    raws, _, _ = scored("cost_score", [some_stats()], targets=priced((1.0, 2.0)), shape=some_shape(output_cap=100))
    assert raws == pytest.approx([0.0012])
    raws, _, _ = scored("cost_score", [some_stats()], targets=priced((1.0, 2.0)), shape=some_shape(output_cap=999))
    assert raws == pytest.approx([0.0016])


def test_a_target_that_counts_more_tokens_costs_more() -> None:
    own = [some_stats(bytes_per_token=2.0), some_stats()]
    raws, _, _ = scored("cost_score", own, targets=priced((1.0, 0.0), (1.0, 0.0)), shape=some_shape(media_tokens=85))
    assert raws == pytest.approx([0.002085, 0.001085])


def test_an_unknown_price_is_neutral_and_left_out_of_the_best() -> None:
    half = some_target("half", input_price=1e-9)
    targets = [*priced((1.0, 2.0), None, (2.0, 4.0)), half]
    raws, values, flags = scored("cost_score", [some_stats()] * 4, targets=targets)
    assert raws == [pytest.approx(0.0016), None, pytest.approx(0.0032), None]
    assert values == pytest.approx([1.0, 0.5, 0.5, 0.5])
    assert flags == [None, "unknown_price", None, "unknown_price"]


def test_a_free_target_is_best_and_the_others_keep_their_distances() -> None:
    _, values, _ = scored("cost_score", [some_stats()] * 3, targets=priced((0.0, 0.0), (1.0, 0.0), (2.0, 0.0)))
    # The largest is $0.002, the floor $0.000002.
    assert values == pytest.approx([1.0, 0.002, 0.001])


def test_budget_is_one_less_cost() -> None:
    raws, values, flags = scored("budget_score", [some_stats()] * 2, targets=priced((1.0, 2.0), (2.0, 4.0)))
    assert (raws, values, flags) == (pytest.approx([0.0016, 0.0032]), pytest.approx([0.0, 0.5]), [None, None])


# Observed times.


def test_latency_is_the_p95_drawn_to_the_groups() -> None:
    own = [some_stats(p95_s=2.0, p95_n=100), some_stats(p95_s=1.0, p95_n=50), some_stats()]
    raws, values, _ = scored("latency_score", own)
    # p95_group = (100 x 2 + 50 x 1) / 150 = 5/3
    expected = [(200 + 5 * 5 / 3) / 105, (50 + 5 * 5 / 3) / 55, 5 / 3]
    assert raws == pytest.approx(expected)
    assert raws == pytest.approx([1.984127, 1.060606, 1.666667], abs=1e-6)
    assert values == pytest.approx([0.534545, 1.0, 0.636364], abs=1e-6)


def test_a_target_that_is_no_candidate_still_counts_in_the_groups_average() -> None:
    own, other = [some_stats()], [some_stats(p95_s=3.0, p95_n=10)]
    assert scored("latency_score", own, others=other) == ([3.0], [1.0], [None])


def test_time_to_first_content_is_drawn_in_two_steps() -> None:
    own = [
        some_stats(
            Sums(first_content_s=20.0, first_content_n=40.0),
            Sums(first_content_s=8.0, first_content_n=5.0),
        ),
        some_stats(Sums(first_content_s=30.0, first_content_n=10.0)),
    ]
    raws, values, _ = scored("ttfb_score", own)
    # group: 50 / 50 = 1. First: (20 + 5) / 45 = 0.5556, then (8 + 5 x 0.5556) / 10 = 1.0778.
    # Second: (30 + 5) / 15 = 2.3333, then (0 + 5 x 2.3333) / 5 = 2.3333.
    assert raws == pytest.approx([(8 + 5 * 25 / 45) / 10, 35 / 15])
    assert values == pytest.approx([1.0, (8 + 5 * 25 / 45) / 10 / (35 / 15)])


def test_throughput_is_drawn_as_seconds_per_token_with_tokens_as_counts() -> None:
    own = [
        some_stats(Sums(generation_s=60.0, generation_tokens=6_000.0)),
        some_stats(Sums(generation_s=60.0, generation_tokens=3_000.0)),
        some_stats(),
    ]
    raws, values, _ = scored("throughput_score", own, mean_output_tokens=200.0)
    # k = 5 x 200 = 1,000 tokens; group: 120 s / 9,000 tokens = 1/75 s.
    # (60 + 1000/75) / 7,000 -> 95.455 tokens/s; (60 + 1000/75) / 4,000 -> 54.545; unseen: 75.
    expected = [7_000 / (60 + 1_000 / 75), 4_000 / (60 + 1_000 / 75), 75.0]
    assert raws == pytest.approx(expected)
    assert raws == pytest.approx([95.4545, 54.5455, 75.0], abs=1e-4)
    assert values == pytest.approx([1.0, 4 / 7, 75 / (7_000 / (60 + 1_000 / 75))])


@pytest.mark.parametrize("name", ["latency_score", "ttfb_score", "throughput_score"])
def test_what_the_whole_group_does_not_know_is_neutral_for_all(name: str) -> None:
    unseen = scored(name, [some_stats(), some_stats()])
    assert unseen == ([None, None], [0.5, 0.5], ["no_data", "no_data"])
    # One answer without a token, in no time: no division by zero.
    empty = scored(name, [some_stats(Sums(attempts=1.0, completed=1.0)), some_stats()])
    assert empty == unseen


def test_one_sample_of_no_time_divides_nothing() -> None:
    zero = some_stats(
        Sums(attempts=1.0, completed=1.0, first_content_n=1.0, generation_tokens=100.0), p95_s=0.0, p95_n=1
    )
    slow = some_stats(seen(10.0), p95_s=1.0, p95_n=10)
    for name in NAMES:
        for own in ([zero], [zero, slow], [zero, some_stats()]):
            for normalization in ("ratio", "minmax"):
                _, values, _ = scored(name, own, policy=ScorePolicy(normalization=normalization))
                assert all(0.0 <= value <= 1.0 for value in values), name


def test_a_new_target_is_the_groups_average_neither_hidden_nor_favoured() -> None:
    fast, slow = some_stats(seen(50.0), p95_s=1.0, p95_n=50), some_stats(seen(50.0), p95_s=3.0, p95_n=50)
    _, values, _ = scored("latency_score", [fast, slow, some_stats()])
    assert values[1] < values[2] < values[0]
    # Rates: 100 attempts, 4 errors -> 0.96 for who has none.
    bad = some_stats(seen(50.0, errors=4.0))
    raws, _, _ = scored("reliability_score", [some_stats(seen(50.0)), bad, some_stats()])
    assert raws[2] == pytest.approx(0.96)


def test_a_prior_strength_of_zero_takes_observed_values_as_they_are() -> None:
    own = [some_stats(p95_s=2.0, p95_n=1), some_stats(p95_s=1.0, p95_n=3), some_stats()]
    raws, _, _ = scored("latency_score", own, policy=ScorePolicy(prior_strength=0.0))
    assert raws == pytest.approx([2.0, 1.0, 1.25])
    own = [some_stats(seen(10.0, errors=1.0)), some_stats()]
    raws, _, _ = scored("reliability_score", own, policy=ScorePolicy(prior_strength=0.0))
    assert raws == pytest.approx([0.9, 0.9])


# The correction for attempts in flight.


def test_times_are_stretched_when_more_is_in_flight_than_when_they_were_observed() -> None:
    usual = Sums(completed=10.0, in_flight_at_start=20.0)
    # q_mean = (0 + 5 x 20/10) / (0 + 5) = 2; q = 14: sqrt((2 + 14) / (2 + 2)) = 2
    assert load_factor(some_stats(usual, in_flight=14), 5.0) == 2.0
    assert load_factor(some_stats(usual, in_flight=2), 5.0) == 1.0
    assert load_factor(some_stats(usual, in_flight=0), 5.0) == 1.0
    # q_mean = (30 + 5 x 2) / (5 + 5) = 4; q = 22: sqrt(24 / 6) = 2
    fast = Sums(completed=5.0, in_flight_at_start=30.0)
    assert load_factor(some_stats(usual, fast, in_flight=22), 5.0) == 2.0
    # Without answers q_mean is 0: sqrt((2 + 6) / 2) = 2
    assert load_factor(some_stats(in_flight=6), 5.0) == 2.0


def test_the_stretch_applies_to_latency_and_throughput_after_the_estimate() -> None:
    window = seen(100.0)
    own = [some_stats(window, p95_s=1.0, p95_n=100), some_stats(window, p95_s=1.0, p95_n=100, in_flight=6)]
    assert scored("latency_score", own)[:2] == (pytest.approx([1.0, 2.0]), pytest.approx([1.0, 0.5]))
    assert scored("throughput_score", own)[:2] == (pytest.approx([50.0, 25.0]), pytest.approx([1.0, 0.5]))
    assert scored("ttfb_score", own)[1] == pytest.approx([1.0, 1.0])


# Scores that stand on their own.


def test_reliability_is_one_less_the_rates() -> None:
    own = [
        some_stats(seen(95.0, errors=9.5, timeouts=4.75, fallbacks=19.0)),
        some_stats(seen(5.0)),
    ]
    raws, values, _ = scored("reliability_score", own)
    # First: 9.5 + 4.75 + 0.5 x 19 = 23.75 bad of 95; the group: 23.75 / 100 = 0.2375.
    # (23.75 + 5 x 0.2375) / 100 = 0.249375 -> 0.750625; second: (0 + 5 x 0.2375) / 10 = 0.11875 -> 0.88125
    assert raws == pytest.approx([0.750625, 0.88125])
    assert values == raws


def test_the_fast_counters_move_reliability_at_once() -> None:
    raws, _, _ = scored("reliability_score", [some_stats(seen(100.0), Sums(attempts=5.0, timeouts=5.0))])
    # Window: 0 bad. Fast: (5 + 5 x 0) / 10 = 0.5
    assert raws == pytest.approx([0.5])


def test_reliability_without_any_attempt_is_the_prior() -> None:
    assert scored("reliability_score", [some_stats()]) == (
        [pytest.approx(0.99)],
        [pytest.approx(0.99)],
        [None],
    )


def test_reliability_is_clamped() -> None:
    everything = seen(1_000.0, errors=600.0, timeouts=400.0, fallbacks=1_000.0)
    raws, values, _ = scored("reliability_score", [some_stats(everything)])
    assert (raws, values) == ([pytest.approx(-0.5)], [0.0])


def test_stream_integrity_is_the_share_that_ended_well() -> None:
    own = [some_stats(Sums(streams=20.0, streams_ended=15.0)), some_stats()]
    # group 0.75; (15 + 5 x 0.75) / 25 = 0.75
    assert scored("stream_integrity_score", own)[1] == pytest.approx([0.75, 0.75])
    assert scored("stream_integrity_score", [some_stats()])[1] == [1.0]


def test_load_is_one_less_the_share_of_what_is_in_flight() -> None:
    own = [some_stats(in_flight=3), some_stats(in_flight=1), some_stats()]
    assert scored("load_score", own, others=[some_stats(in_flight=4)])[1] == [1 - 3 / 8, 1 - 1 / 8, 1.0]
    assert scored("load_score", [some_stats()])[1] == [1.0]


def test_complexity_is_the_same_for_every_candidate() -> None:
    shape = some_shape(tool_count=2)
    assert scored("complexity_score", [some_stats()] * 2, shape=shape) == ([0.31] * 2, [0.31] * 2, [None] * 2)


def test_quality_that_is_missing_or_too_old_is_neutral() -> None:
    targets = [
        some_target("good", quality=0.9),
        some_target("last day", quality=0.9, quality_until=20_000.0),
        some_target("stale", quality=0.9, quality_until=19_999.0),
        some_target("none"),
        some_target("zero", quality=0.0),
    ]
    raws, values, flags = scored("eval_quality_score", [some_stats()] * 5, targets=targets, today=20_000.7)
    assert raws == [0.9, 0.9, None, None, 0.0]
    assert values == [0.9, 0.9, 0.5, 0.5, 0.0]
    assert flags == [None, None, "stale", "no_data", None]


# Signals.


@pytest.mark.parametrize("name", NAMES)
def test_a_disabled_signal_makes_its_scores_neutral(name: str) -> None:
    others = frozenset(SIGNALS.values()) - {SIGNALS[name]}
    own = [some_stats(seen(), p95_s=1.0, p95_n=100), some_stats(seen(), p95_s=2.0, p95_n=100, in_flight=3)]
    disabled = scored(name, own, targets=priced((1.0, 1.0), (2.0, 2.0)), policy=ScorePolicy(enabled_signals=others))
    assert disabled == ([None, None], [0.5, 0.5], ["disabled", "disabled"])


def test_every_score_has_a_signal_and_a_column() -> None:
    assert tuple(SIGNALS) == NAMES
    for name in NAMES:
        raws, values, flags = scored(name, [some_stats()])
        assert (len(raws), len(values), len(flags)) == (1, 1, 1)
