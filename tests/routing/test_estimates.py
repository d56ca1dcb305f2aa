"""Estimates are carried on from choice to choice; what they say stays what they would say afresh."""

import pytest

from routing.core.catalog import Group, ScorePolicy
from routing.core.estimates import ESTIMATORS, estimate, renewed
from routing.core.observations import Observations
from routing.core.stats import Estimate, GroupStats, Sums, TargetStats
from tests.routing.deciding import seen, some_stats
from tests.support.scenes import group, target

POLICY = ScorePolicy()


def values(name: str, stats: GroupStats) -> list[float] | None:
    found = estimate(name, stats, POLICY)
    return None if found is None else list(found.values)


def three() -> Group:
    return group(target("paris"), target("oslo"), target("rome"))


def attempts(observations: Observations, chat: Group, name: str, times: int, *, now: float, took: float = 1.0) -> None:
    chosen = next(each for each in chat.targets if each.id == name)
    for _ in range(times):
        running = observations.begin(chat, chosen, stream=True, now=now)
        observations.content(running, now=now + took / 4)
        observations.end(running, "ok", now=now + took, output_tokens=100, last_content_at=now + took)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_changed_target_is_estimated_anew_with_the_average_as_it_was(name: str) -> None:
    slow = some_stats(seen(100, first_content_s=300.0, generation_s=900.0, errors=9.0, streams_ended=80.0), p95_n=1)
    slow = some_stats(slow.window, p95_s=4.0, p95_n=100, in_flight=3, bytes_per_token=2.5)
    fast = some_stats(seen(100), p95_s=1.0, p95_n=100)
    before = GroupStats(targets={"a": fast, "b": fast, "c": slow})
    known = estimate(name, before, POLICY)
    assert known is not None
    after = renewed(before.estimates, [(1, slow, True)])[name]
    of = ESTIMATORS[name].of
    assert after == Estimate(known.prior, [known.values[0], of(slow, known.prior), known.values[2]])
    assert after is not None
    assert after.values[1] == after.values[2] != known.values[1]


def test_a_target_that_is_only_busier_keeps_what_does_not_depend_on_its_load() -> None:
    usual = some_stats(seen(100), p95_s=1.0, p95_n=100)
    before = GroupStats(targets={"a": usual, "b": usual})
    for name in ESTIMATORS:
        estimate(name, before, POLICY)
    busier = some_stats(usual.window, usual.fast, p95_s=1.0, p95_n=100, in_flight=40)
    after = renewed(before.estimates, [(0, busier, False)])
    assert {name for name, known in after.items() if known is not before.estimates[name]} == {
        "latency",
        "seconds_per_token",
        "in_flight",
    }
    assert after == renewed(before.estimates, [(0, busier, True)])


@pytest.mark.parametrize(
    ("name", "shows_it"),
    [
        ("latency", some_stats(p95_s=1.0, p95_n=1)),
        ("ttfb", some_stats(Sums(first_content_n=1.0, first_content_s=0.5))),
        ("seconds_per_token", some_stats(Sums(generation_tokens=10.0, generation_s=0.5))),
    ],
)
def test_what_nobody_has_shown_is_asked_for_again_once_somebody_shows_it(name: str, shows_it: TargetStats) -> None:
    stats = GroupStats(targets={"a": some_stats(), "b": some_stats()})
    assert values(name, stats) is None
    assert renewed(stats.estimates, [(1, some_stats(Sums(attempts=5.0)), True)]) == {name: None}
    asked_again = renewed(stats.estimates, [(1, shows_it, True)])
    assert asked_again == {}
    assert values(name, GroupStats(targets={"a": some_stats(), "b": shows_it}, estimates=asked_again)) is not None


def test_the_first_hundred_observations_move_the_average_at_once() -> None:
    chat, observations = three(), Observations()
    for number in range(30):
        attempts(observations, chat, "paris", 1, now=10.0, took=1.0 + number)
        carried = values("latency", observations.stats(chat, now=50.0))
        assert carried == values("latency", GroupStats(targets=observations.stats(chat, now=50.0).targets))


def test_later_the_average_is_taken_again_after_a_hundredth_more_or_a_tenth_of_a_second() -> None:
    chat, observations = three(), Observations()
    for each in chat.targets:
        attempts(observations, chat, each.id, 200, now=10.0)

    def averages(now: float) -> tuple[float, float]:
        """As carried, and as it is now."""
        stats = observations.stats(chat, now=now)
        carried = estimate("ttfb", stats, POLICY)
        fresh = estimate("ttfb", GroupStats(targets=stats.targets), POLICY)
        assert carried is not None
        assert fresh is not None
        return carried.prior[1], fresh.prior[1]

    first, _ = averages(50.0)
    for _ in range(6):
        attempts(observations, chat, "paris", 1, now=49.0, took=40.0)
        carried, fresh = averages(50.0)
        assert carried == first != fresh
    attempts(observations, chat, "paris", 1, now=49.0, took=40.0)
    carried, fresh = averages(50.0)
    assert carried == fresh
    attempts(observations, chat, "paris", 1, now=49.0, took=90.0)
    carried, fresh = averages(50.0)
    assert carried < fresh
    carried, fresh = averages(50.11)
    assert carried == fresh
