"""How the cost of a choice grows. Ratios of CPU time, each the best of many short rounds that alternate."""

from functools import partial

from bench.decide import NAMED, decide_us, shape, some_call, some_group
from bench.timing import cpu_us

ROUNDS = 25


def test_a_hundred_targets_cost_at_most_twenty_times_eight() -> None:
    groups = [some_group(8), some_group(100)]
    eight, hundred = decide_us([(group, shape(some_call(500), group)) for group in groups], times=10, rounds=ROUNDS)
    assert hundred <= 20 * eight


def test_a_choice_costs_the_same_for_a_long_prompt() -> None:
    group = some_group(8)
    shapes = [shape(some_call(size), group) for size in (500, 500_000)]
    short, long = decide_us([(group, each) for each in shapes], times=10, rounds=ROUNDS)
    assert long < 1.5 * short


def test_a_prompt_is_looked_at_no_further_than_it_may_be_scanned() -> None:
    """The client names its conversation, so that nobody reads the prompt's beginning for it."""
    group = some_group(8, prompt_features=True)
    scanned = group.score.max_scan_bytes
    bound, beyond = cpu_us(
        [partial(shape, some_call(size), group, NAMED) for size in (2 * scanned, 16 * scanned)], times=10, rounds=ROUNDS
    )
    assert beyond < 1.5 * bound
