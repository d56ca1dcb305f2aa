"""Whole decisions with their arithmetic written out, so that a formula cannot change without a table changing."""

from dataclasses import replace
from typing import Any

import pytest

from routing.core.catalog import ScorePolicy, ScoreTerm
from routing.core.decision import Decision
from routing.core.scores import lower_is_better
from routing.core.stats import Sums
from routing.core.strategies import Blend
from tests.routing.deciding import Scripted, decided, order, seen, some_shape, some_stats, term
from tests.support.documents import some_group, some_target

# The request: 4,000 bytes of text = 1,000 tokens in; the group's mean answer of 300 tokens out.
#
#             weight  $/M in  $/M out   window                                          p95      in flight
#   fast        60     0.10     0.50    100 attempts, 2 errors, 400 s for 30,000 tokens  2.0 s         0
#   cheap       25     0.05     0.20     50 attempts, 1 timeout, 300 s for 15,000        4.0 s         0
#   new          5     (unknown)          none                                             -           0
GROUP = some_group(
    [
        some_target("fast", weight=60.0, prices=(0.10, 0.50)),
        some_target("cheap", weight=25.0, prices=(0.05, 0.20)),
        some_target("new", weight=5.0),
    ]
)
STATS = {
    "fast": some_stats(
        Sums(attempts=100.0, errors=2.0, completed=98.0, generation_s=400.0, generation_tokens=30_000.0),
        p95_s=2.0,
        p95_n=100,
    ),
    "cheap": some_stats(
        Sums(attempts=50.0, timeouts=1.0, completed=49.0, generation_s=300.0, generation_tokens=15_000.0),
        p95_s=4.0,
        p95_n=50,
    ),
}
SEEDS_TERM = term(
    "cheapest_fast_enough",
    "0.45 * cost_score + 0.25 * latency_score + 0.20 * throughput_score + 0.10 * reliability_score",
)


def golden(terms: tuple[ScoreTerm, ...] = (SEEDS_TERM,), stats: Any = None, **policy: Any) -> Decision:
    group = replace(GROUP, score=ScorePolicy(score_terms=terms, **policy))
    return decided(group, Scripted(STATS if stats is None else stats, observations=150))


def table(decision: Decision, *names: str) -> dict[str, list[float | None]]:
    rows: dict[str, list[float | None]] = {}
    for candidate in sorted(decision.candidates, key=lambda each: each.target.position):
        values = {score.name: score.value for score in candidate.scores}
        shown: list[float | None] = [candidate.weight, *(values[name] for name in names)]
        rows[candidate.target.id] = [*shown, candidate.dynamic, candidate.contrasted, candidate.final]
    return rows


NAMES = ("cost_score", "latency_score", "throughput_score", "reliability_score")

# Cost:   fast 1,000 x 0.10/M + 300 x 0.50/M = $0.000250; cheap 1,000 x 0.05/M + 300 x 0.20/M = $0.000110; new unknown.
# p95:    group (100 x 2 + 50 x 4) / 150 = 8/3.
#         fast (200 + 5 x 8/3) / 105 = 2.031746; cheap (200 + 5 x 8/3) / 55 = 3.878788; new 2.666667.
# s/tok:  k = 5 x 300 = 1,500 tokens; group 700 / 45,000 = 0.0155556, times k = 23.333333.
#         fast 423.333333 / 31,500 = 0.01343915 (74.4094/s); cheap 323.333333 / 16,500 = 0.01959596 (51.0309/s);
#         new 0.01555556 (64.2857/s).
# bad:    group (2 + 1) / 150 = 0.02, times 5 = 0.1.
#         fast (2 + 0.1) / 105 = 0.02; cheap (1 + 0.1) / 55 = 0.02; new 0.1 / 5 = 0.02 -> 0.98 each.


def test_ratio() -> None:
    # cost 0.11/0.25 = 0.44, 1, 0.5
    # latency 1, 2.031746/3.878788 = 0.523810, 2.031746/2.666667 = 0.761905
    # throughput 1, 51.0309/74.4094 = 0.685813, 64.2857/74.4094 = 0.863946
    # D  fast  0.45 x 0.44 + 0.25 x 1        + 0.2 x 1        + 0.098 = 0.746
    #    cheap 0.45 x 1    + 0.25 x 0.523810 + 0.2 x 0.685813 + 0.098 = 0.816115
    #    new   0.45 x 0.5  + 0.25 x 0.761905 + 0.2 x 0.863946 + 0.098 = 0.686265
    # D' cheap 1; fast 1 - 4 x 0.070115 = 0.719540; new 1 - 4 x 0.129850 = 0.480601
    # final = 0.3 x W + 0.7 x D'
    decision = golden()
    assert table(decision, *NAMES) == {
        "fast": pytest.approx([1.0, 0.44, 1.0, 1.0, 0.98, 0.746, 0.719540, 0.803678], abs=2e-6),
        "cheap": pytest.approx([0.416667, 1.0, 0.523810, 0.685813, 0.98, 0.816115, 1.0, 0.825], abs=2e-6),
        "new": pytest.approx([0.083333, 0.5, 0.761905, 0.863946, 0.98, 0.686265, 0.480601, 0.361420], abs=2e-6),
    }
    # 0.825 - 0.803678 = 0.021 is a near tie, both are idle: the higher final serves.
    assert (order(decision), decision.tie_break) == (["cheap", "fast", "new"], "final")


def test_minmax() -> None:
    # cost (0.25 - 0.25)/0.14 = 0, 1, 0.5
    # latency 1, 0, (3.878788 - 2.666667)/(3.878788 - 2.031746) = 0.656250
    # throughput 1, 0, (64.2857 - 51.0309)/(74.4094 - 51.0309) = 0.566964
    # D  fast 0.25 + 0.2 + 0.098 = 0.548; cheap 0.45 + 0.098 = 0.548;
    #    new 0.225 + 0.164063 + 0.113393 + 0.098 = 0.600455
    # D' new 1; the others 1 - 4 x 0.052455 = 0.790179
    decision = golden(normalization="minmax")
    assert table(decision, *NAMES) == {
        "fast": pytest.approx([1.0, 0.0, 1.0, 1.0, 0.98, 0.548, 0.790179, 0.853125], abs=2e-6),
        "cheap": pytest.approx([0.416667, 1.0, 0.0, 0.0, 0.98, 0.548, 0.790179, 0.678125], abs=2e-6),
        "new": pytest.approx([0.083333, 0.5, 0.656250, 0.566964, 0.98, 0.600455, 1.0, 0.725], abs=2e-6),
    }
    assert (order(decision), decision.tie_break) == (["fast", "new", "cheap"], "final")


def test_the_fast_counters_and_what_is_in_flight() -> None:
    # fast now has 14 in flight where 2 were usual: q_mean = (0 + 5 x 196/98)/(0 + 5) = 2, m = sqrt(16/4) = 2:
    #   p95 4.063492, 37.2047 tokens/s; and 5 of its last 5 attempts failed: (5 + 5 x 0.02)/(5 + 5) = 0.51 -> 0.49.
    # latency: best is now new 2.666667: 0.65625; cheap 0.6875; new 1
    # throughput: best is new 64.2857: 0.578740; cheap 51.0309/64.2857 = 0.793814; new 1
    # D fast 0.198 + 0.1640625 + 0.115748 + 0.049 = 0.526811; cheap 0.45 + 0.171875 + 0.158763 + 0.098 = 0.878638;
    #   new 0.225 + 0.25 + 0.2 + 0.098 = 0.773
    slow = replace_stats(
        STATS["fast"],
        window=Sums(
            attempts=100.0,
            errors=2.0,
            completed=98.0,
            in_flight_at_start=196.0,
            generation_s=400.0,
            generation_tokens=30_000.0,
        ),
        fast=Sums(attempts=5.0, errors=5.0),
        in_flight=14,
    )
    decision = golden(stats={**STATS, "fast": slow})
    assert table(decision, *NAMES) == {
        "fast": pytest.approx([1.0, 0.44, 0.65625, 0.578740, 0.49, 0.526811, 0.0, 0.3], abs=2e-6),
        "cheap": pytest.approx([0.416667, 1.0, 0.6875, 0.793814, 0.98, 0.878638, 1.0, 0.825], abs=2e-6),
        "new": pytest.approx([0.083333, 0.5, 1.0, 1.0, 0.98, 0.773, 0.577449, 0.429214], abs=2e-6),
    }
    assert order(decision) == ["cheap", "new", "fast"]


def replace_stats(stats: Any, **fields: Any) -> Any:
    return type(stats)(**{**{name: getattr(stats, name) for name in stats.__struct_fields__}, **fields})


def test_terms_shares_and_preferred_tags() -> None:
    # quality 0.8 and 0.6, new unknown 0.5; term `quality` share 3, `local` prefers two tags: cheap has both.
    # D fast (3 x 0.8 + 0)/4 = 0.6; cheap (3 x 0.6 + 0.10)/4 = 0.475; new (3 x 0.5)/4 = 0.375
    # D' 1; 1 - 4 x 0.125 = 0.5; 1 - 4 x 0.225 = 0.1
    group = some_group(
        [
            some_target("fast", quality=0.8, tags=["gpu"]),
            some_target("cheap", quality=0.6, tags=["eu", "green"]),
            some_target("new"),
        ],
        policy=ScorePolicy(
            score_terms=(
                term("quality", "eval_quality_score", share=3.0),
                term("local", prefer_tags=("eu", "green")),
            )
        ),
    )
    assert table(decided(group), "eval_quality_score") == {
        "fast": pytest.approx([1.0, 0.8, 0.6, 1.0, 1.0]),
        "cheap": pytest.approx([1.0, 0.6, 0.475, 0.5, 0.65]),
        "new": pytest.approx([1.0, 0.5, 0.375, 0.1, 0.37]),
    }


@pytest.mark.parametrize(
    ("percent", "finals", "expected"),
    [
        # D 0.7, 0.8, 0.5 -> D' 0.6, 1, 0 (see test_strategies); W 1, 5/12, 1/12
        (0, [1.0, 0.416667, 0.083333], [0, 1, 2]),
        (35, [0.86, 0.620833, 0.054167], [0, 1, 2]),
        (70, [0.72, 0.825, 0.025], [1, 0, 2]),
        (100, [0.6, 1.0, 0.0], [1, 0, 2]),
    ],
)
def test_adjustment(percent: int, finals: list[float], expected: list[int]) -> None:
    ranking = Blend([60.0, 25.0, 5.0], adjustment=percent / 100, contrast=4.0, near_tie=0.07).rank(
        [0.7, 0.8, 0.5], [0, 0, 0]
    )
    assert ranking.finals == pytest.approx(finals, abs=1e-6)
    assert ranking.order == expected


def test_the_originals_example_for_comparison() -> None:
    """Its normalisation is `minmax` (3.9, 3.10 there); its missing values, weights and blend are not ours."""
    cost = lower_is_better([0.6, 1.5, None], "minmax")
    latency = lower_is_better([900.0, 1400.0, None], "minmax")
    assert (cost, latency) == ([1.0, 0.0, 0.5], [1.0, 0.0, 0.5])
    throughput, reliability = [1.0, 0.0, 0.0], [0.75, 0.5, 1.0]
    dynamics = [
        0.45 * c + 0.25 * p + 0.20 * t + 0.10 * r
        for c, p, t, r in zip(cost, latency, throughput, reliability, strict=True)
    ]
    assert dynamics == pytest.approx([0.975, 0.05, 0.45])
    # Its weights 60/25/5 are 1, 0.3636, 0 by minmax, its finals 0.9825, 0.1441, 0.315. Ours, contrast 1:
    # D' 1, 0.075, 0.475; W 1, 0.416667, 0.083333; final 1, 0.1775, 0.3575: the same order.
    ranking = Blend([60.0, 25.0, 5.0], adjustment=0.7, contrast=1.0, near_tie=0.07).rank(dynamics, [0, 0, 0])
    assert ranking.finals == pytest.approx([1.0, 0.1775, 0.3575])
    assert ranking.order == [0, 2, 1]


def test_one_survivor_is_recorded_all_the_same() -> None:
    group = some_group(
        [some_target("only", weight=7.0, prices=(1.0, 1.0))], policy=ScorePolicy(score_terms=(SEEDS_TERM,))
    )
    for normalization, value in (("ratio", 1.0), ("minmax", 0.5)):
        one = replace(group, score=replace(group.score, normalization=normalization))  # type: ignore[arg-type]
        stats = Scripted({"only": some_stats(seen(), p95_s=1.0, p95_n=100)})
        # D = 0.45 x v + 0.25 x v + 0.20 x v + 0.10 x 1
        assert table(decided(one, stats), *NAMES) == {
            "only": pytest.approx([1.0, value, value, value, 1.0, 0.9 * value + 0.1, 1.0, 1.0])
        }


def test_a_large_request_changes_what_is_cheap() -> None:
    # flat: $0.2/M in, $10/M out; long: $2/M in, $0.1/M out.
    # 1,000 tokens in, 300 out: 0.0002 + 0.003 = 0.0032 against 0.002 + 0.00003 = 0.00203 -> 0.634375, 1
    # 20,000 in, 10 out: 0.004 + 0.0001 = 0.0041 against 0.04 + 0.000001 = 0.040001 -> 1, 0.102497
    policy = ScorePolicy(score_terms=(term("cost", "cost_score"),))
    group = some_group([some_target("flat", prices=(0.2, 10.0)), some_target("long", prices=(2.0, 0.1))], policy=policy)
    small = decided(group)
    large = decided(group, shape=some_shape(text_bytes=80_000, output_cap=10))
    assert [table(each, "cost_score")["flat"][1] for each in (small, large)] == pytest.approx([0.634375, 1.0])
    assert [table(each, "cost_score")["long"][1] for each in (small, large)] == pytest.approx([1.0, 0.102497], abs=1e-6)
    assert [order(each)[0] for each in (small, large)] == ["long", "flat"]
