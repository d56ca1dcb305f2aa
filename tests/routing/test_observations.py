"""What is remembered of attempts, and whose fault counts as what."""

import math
from dataclasses import replace
from typing import Any

import pytest

from routing.core.catalog import ScorePolicy
from routing.core.observations import Observations
from routing.core.stats import GroupStats, Outcome, Sums, TargetStats
from tests.support.scenes import Scene, excluded_scene, group, limits, target

# What an attempt leaves behind


def test_an_unknown_target_has_no_data_and_all_defaults() -> None:
    assert Observations().stats(group(), now=5.0) == GroupStats(
        targets={"paris": TargetStats(window=Sums(), fast=Sums())}, mean_output_tokens=300.0, observations=0
    )


def test_a_complete_stream_is_one_sample_of_everything() -> None:
    scene = Scene(group())
    scene.attempt("ok", 0.0, took=4.0, content=0.5, output_tokens=120, last_content_at=3.5, terminal=True)
    window = Sums(
        attempts=1.0,
        first_content_s=0.5,
        first_content_n=1.0,
        generation_s=3.0,
        generation_tokens=120.0,
        completed=1.0,
        streams=1.0,
        streams_ended=1.0,
    )
    stats = scene.stats(4.0)
    assert stats.window == window
    assert (stats.p95_n, stats.in_flight, stats.overdue) == (1, 0, 0)
    assert stats.p95_s == pytest.approx(3.5, rel=0.02)
    assert scene.observations.stats(scene.group, now=4.0).mean_output_tokens == 120.0


def test_a_unary_answer_has_no_time_to_first_content_and_no_speed() -> None:
    scene = Scene(group())
    scene.attempt("ok", 0.0, took=2.0, content=0.5, stream=False, output_tokens=50)
    stats = scene.stats(2.0)
    assert stats.window == Sums(attempts=1.0, completed=1.0)
    assert stats.p95_s == pytest.approx(2.0, rel=0.02)


def test_an_answer_that_came_in_one_piece_shows_no_speed() -> None:
    scene = Scene(group())
    scene.attempt("ok", 0.0, took=1.0, content=0.9, output_tokens=50, last_content_at=0.9)
    assert (scene.stats(1.0).window.generation_s, scene.stats(1.0).window.generation_tokens) == (0.0, 0.0)


COUNTED: dict[Outcome, tuple[float, float, float]] = {
    "ok": (1.0, 0.0, 0.0),
    "server_error": (1.0, 1.0, 0.0),
    "timeout": (1.0, 0.0, 1.0),
    "throttled": (1.0, 1.0, 0.0),
    "denied": (1.0, 1.0, 0.0),
    "caller_fault": (0.0, 0.0, 0.0),
    "client_cancelled": (0.0, 0.0, 0.0),
    "refused_here": (0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("outcome", COUNTED)
def test_each_outcome_counts_as_the_table_says(outcome: Outcome) -> None:
    scene = Scene(group())
    scene.attempt(outcome, 0.0)
    window, fast = scene.stats(1.0).window, scene.stats(1.0).fast
    assert (window.attempts, window.errors, window.timeouts) == COUNTED[outcome]
    assert (fast.attempts, fast.errors, fast.timeouts) == COUNTED[outcome]
    assert scene.observations.stats(scene.group, now=1.0).observations == COUNTED[outcome][0]


def test_a_timeout_is_a_time_and_an_error_is_none() -> None:
    scene = Scene(group())
    scene.attempts("server_error", 3, took=0.005)
    scene.attempt("timeout", 0.0, took=60.0)
    stats = scene.stats(60.0)
    assert stats.p95_n == 1
    assert stats.p95_s == pytest.approx(60.0, rel=0.02)


def test_fifty_caller_faults_leave_no_trace_in_health() -> None:
    scene = Scene(group(score=limits(max_error_rate=0.0)))
    scene.attempts("ok", 10)
    before = scene.observations.stats(scene.group, now=1.0)
    scene.attempts("caller_fault", 50)
    assert scene.observations.stats(scene.group, now=1.0) == before
    assert scene.health(1.0) == {}


def test_a_stream_cut_after_content_counts_against_its_integrity_and_the_clients_leaving_does_not() -> None:
    scene = Scene(group())
    scene.attempt("ok", 0.0, content=0.1)
    scene.attempt("server_error", 0.0, content=0.1)
    scene.attempt("client_cancelled", 0.0, content=0.1)
    scene.attempt("server_error", 0.0)
    window = scene.stats(1.0).window
    assert (window.streams, window.streams_ended, window.first_content_n) == (2.0, 1.0, 3.0)


def test_ending_twice_counts_once() -> None:
    scene = Scene(group())
    running = scene.attempt("server_error", 0.0)
    before = scene.stats(1.0)
    scene.observations.end(running, "ok", now=1.0)
    scene.observations.content(running, now=1.0)
    assert scene.stats(1.0) == before
    assert scene.observations.provider_in_flight("acme") == 0


def test_only_the_first_content_is_the_first() -> None:
    scene = Scene(group())
    running = scene.begin(0.0)
    scene.observations.content(running, now=0.5)
    scene.observations.content(running, now=2.0)
    assert scene.stats(2.0).window.first_content_s == 0.5


def test_a_fallback_counts_once_at_the_target_that_was_left_before_or_after_its_end() -> None:
    scene = Scene(group())
    after = scene.attempt("server_error", 0.0)
    scene.observations.fell_back(after)
    scene.observations.fell_back(after)
    before = scene.begin(0.0)
    scene.observations.fell_back(before)
    scene.observations.end(before, "timeout", now=1.0)
    uncounted = scene.attempt("refused_here", 0.0)
    scene.observations.fell_back(uncounted)
    stats = scene.stats(1.0)
    assert (stats.window.attempts, stats.window.fallbacks) == (2.0, 2.0)
    assert stats.fast.fallbacks == pytest.approx(2.0)


def test_a_late_fallback_ages_with_its_attempt() -> None:
    scene = Scene(group())
    running = scene.attempt("server_error", 0.0)
    scene.attempt("ok", 60.0)
    scene.observations.fell_back(running)
    assert (scene.stats(61.0).window.attempts, scene.stats(61.0).window.fallbacks) == (2.0, 1.0)
    assert (scene.stats(630.0).window.attempts, scene.stats(630.0).window.fallbacks) == (1.0, 0.0)


# Clients that leave


@pytest.mark.parametrize(
    ("policy", "content", "took", "errors"),
    [
        ("before_first_byte", None, 0.9, 0.0),
        ("before_first_byte", None, 1.1, 1.0),
        ("before_first_byte", 0.5, 9.0, 0.0),
        ("always", None, 0.1, 1.0),
        ("always", 0.1, 0.5, 1.0),
        ("never", None, 99.0, 0.0),
    ],
)
def test_a_client_that_leaves_blames_the_target_as_the_policy_says(
    policy: Any, content: float | None, took: float, errors: float
) -> None:
    scene = Scene(group(score=ScorePolicy(client_cancellations=policy)))
    scene.attempts("ok", 20, took=1.0)
    scene.attempt("client_cancelled", 1.0, content=content, took=took)
    assert scene.stats(1.0 + took).window.errors == errors


@pytest.mark.parametrize(
    ("policy", "began", "heard", "errors"),
    [
        ("before_first_byte", 2.0, "content", 0.0),
        ("before_first_byte", 2.0, "answer", 0.0),
        ("before_first_byte", 2.0, "nothing", 1.0),
        ("before_first_byte", 20.0, "answer", 1.0),
        ("always", 2.0, "content", 1.0),
    ],
)
def test_a_target_that_others_hear_from_meanwhile_is_not_blamed_for_a_client_that_left(
    policy: Any, began: float, heard: str, errors: float
) -> None:
    scene = Scene(group(score=ScorePolicy(client_cancellations=policy)))
    scene.attempts("ok", 20, took=1.0)
    other = scene.begin(1.5)
    waiting = scene.begin(began)
    if heard == "content":
        scene.observations.content(other, now=3.0)
    elif heard == "answer":
        scene.observations.end(other, "ok", now=3.0)
    scene.observations.end(waiting, "client_cancelled", now=began + 5.0)
    assert scene.stats(began + 5.0).window.errors == errors


def test_a_client_that_waited_for_a_target_without_times_blames_nobody() -> None:
    scene = Scene(group())
    scene.attempt("client_cancelled", 0.0, took=500.0)
    assert scene.stats(500.0).window == Sums()


def test_a_unary_wait_is_one_before_the_first_byte_until_it_is_complete() -> None:
    scene = Scene(group())
    scene.attempts("ok", 20, took=1.0, stream=False)
    scene.attempt("client_cancelled", 1.0, took=1.5, content=0.1, stream=False)
    assert scene.stats(3.0).window.errors == 1.0


def test_a_hundred_cancelled_streams_leave_only_their_times_to_first_content() -> None:
    scene = Scene(group(score=limits(max_error_rate=0.0, max_timeout_rate=0.0)))
    scene.attempts("client_cancelled", 100, content=0.25)
    assert scene.stats(1.0).window == Sums(first_content_s=25.0, first_content_n=100.0)
    assert scene.health(1.0) == {}


def test_clients_that_leave_are_errors_but_no_failures_in_a_row() -> None:
    scene = Scene(group(score=ScorePolicy(client_cancellations="always")))
    scene.attempts("client_cancelled", 9)
    assert scene.stats(1.0).window.errors == 9.0
    assert scene.health(1.0) == {}


# Times brought to the group's mean answer


def test_a_p95_is_of_answers_brought_to_the_groups_mean_length() -> None:
    long, short = target("long"), target("short")
    scene = Scene(group(long, short))
    for at in range(0, 1000, 4):  # equal speed: 100 tokens a second
        scene.attempt("ok", at, name="long", took=22, content=2.0, output_tokens=2000, last_content_at=at + 22.0)
        scene.attempt("ok", at, name="short", took=1.3, content=0.3, output_tokens=100, last_content_at=at + 1.3)
    stats = scene.observations.stats(scene.group, now=1020.0)
    assert stats.mean_output_tokens == 1050.0
    slow, quick = stats.targets["long"], stats.targets["short"]
    assert slow.p95_s == pytest.approx(12.5, rel=0.03)  # 2 s and 10.5 s for the mean answer
    assert quick.p95_s == pytest.approx(8.3, rel=0.03)  # 0.3 s and 8 s: stretched by 8 at most
    assert slow.window.generation_tokens / slow.window.generation_s == pytest.approx(100.0)
    assert quick.window.generation_tokens / quick.window.generation_s == pytest.approx(100.0)


def test_an_answer_without_tokens_or_last_content_is_taken_as_it_is() -> None:
    scene = Scene(group())
    scene.attempt("ok", 0.0, took=3.0, content=1.0, last_content_at=3.0)
    assert scene.stats(3.0).p95_s == pytest.approx(3.0, rel=0.02)
    scene.attempt("ok", 3.0, took=5.0, content=1.0, output_tokens=10)
    assert scene.stats(8.0).p95_s == pytest.approx(5.0, rel=0.02)


def test_the_mean_output_runs_over_the_last_five_hundred_answers_and_may_divide() -> None:
    scene = Scene(group())
    scene.attempts("ok", 10, output_tokens=0)
    assert scene.observations.stats(scene.group, now=1.0).mean_output_tokens == 1.0
    scene.attempts("ok", 499, output_tokens=100)
    assert scene.observations.stats(scene.group, now=1.0).mean_output_tokens == pytest.approx(99.8)
    scene.attempts("server_error", 9, output_tokens=9)
    scene.attempt("ok", 0.0, output_tokens=100)
    assert scene.observations.stats(scene.group, now=1.0).mean_output_tokens == 100.0


# Window and fast counters


def test_the_window_forgets_what_is_older_than_itself() -> None:
    scene = Scene(group())
    scene.attempt("ok", 0.0, took=0.0)
    scene.attempt("server_error", 300.0, took=0.0)
    assert scene.stats(579.0).window.attempts == 2.0
    assert (scene.stats(600.0).window.attempts, scene.stats(600.0).p95_n) == (1.0, 0)
    assert scene.observations.stats(scene.group, now=600.0).observations == 1
    assert scene.stats(900.0).window == Sums()
    assert scene.stats(1e7).window == Sums()


def test_fast_counters_halve_every_thirty_seconds() -> None:
    scene = Scene(group())
    scene.attempt("ok", 0.0, took=0.0)
    scene.attempt("server_error", 30.0, took=0.0)
    fast = scene.stats(60.0).fast
    assert (fast.attempts, fast.completed, fast.errors) == (0.75, 0.25, 0.5)
    assert scene.stats(30.0 + 300 * 30).fast == Sums()


def test_fast_counters_stay_exact_over_days() -> None:
    scene = Scene(group())
    for day in range(40):
        scene.attempt("ok", day * 2000.0, took=0.0)
        assert scene.stats(day * 2000.0 + 30).fast.attempts == pytest.approx(0.5)


def test_in_flight_at_start_leaves_the_attempt_itself_out() -> None:
    scene = Scene(group())
    first, second, third = scene.begin(0.0), scene.begin(0.0), scene.begin(0.0)
    assert scene.stats(0.0).in_flight == 3
    for running in (first, second, third):
        scene.observations.end(running, "ok", now=0.0)
    stats = scene.stats(0.0)
    assert (stats.window.in_flight_at_start, stats.fast.in_flight_at_start, stats.in_flight) == (3.0, 3.0, 0)


def test_stats_are_read_again_after_an_observation_and_reused_without_one() -> None:
    scene = Scene(group(target("paris"), target("oslo")))
    first = scene.observations.stats(scene.group, now=0.0)
    assert scene.observations.stats(scene.group, now=0.05) is first
    scene.attempt("ok", 0.05, took=0.0)
    second = scene.observations.stats(scene.group, now=0.05)
    assert (first.targets["paris"].window.attempts, second.targets["paris"].window.attempts) == (0.0, 1.0)
    assert second.targets["oslo"] is first.targets["oslo"]
    assert list(second.targets) == ["paris", "oslo"]
    assert second.observations == 1


def test_time_that_steps_back_breaks_nothing() -> None:
    scene = Scene(group())
    running = scene.begin(100.0)
    scene.observations.content(running, now=99.9)
    scene.observations.end(running, "ok", now=99.8, output_tokens=10, last_content_at=99.7)
    scene.attempt("timeout", 10.0, took=1.0)
    stats = scene.stats(99.0)
    assert (stats.window.attempts, stats.window.first_content_s, stats.window.generation_s) == (2.0, 0.0, 0.0)


def test_bytes_per_token_are_the_targets_own_after_twenty_reports() -> None:
    scene = Scene(group())
    scene.attempts("ok", 19, text_bytes=300, input_tokens=100)
    scene.attempt("ok", 0.0, text_bytes=0, input_tokens=100)
    assert scene.stats(1.0).bytes_per_token == 4.0
    scene.attempt("ok", 0.0, text_bytes=300, input_tokens=100)
    assert scene.stats(1.0).bytes_per_token == 3.0
    scene.attempts("ok", 5000, text_bytes=500, input_tokens=100)
    assert scene.stats(1.0).bytes_per_token == pytest.approx(5.0, rel=0.01)


# Overdue


def test_a_silent_stream_is_overdue_after_five_seconds_until_its_content_comes() -> None:
    scene = Scene(group())
    running = scene.begin(0.0)
    assert scene.stats(5.0).overdue == 0
    stats = scene.stats(5.2)
    assert (stats.overdue, stats.fast) == (1, Sums(attempts=1.0, timeouts=1.0))
    assert stats.window == Sums()
    scene.observations.content(running, now=6.0)
    stats = scene.stats(6.0)
    assert (stats.overdue, stats.in_flight, stats.fast.timeouts) == (0, 1, 0.0)


@pytest.mark.parametrize(("content", "limit"), [(0.1, 1.0), (1.0, 3.0), (20.0, 10.0)])
def test_five_known_streams_set_when_the_next_is_overdue(content: float, limit: float) -> None:
    scene = Scene(group())
    scene.attempts("ok", 5, content=content, took=30.0)
    scene.begin(30.0)
    assert scene.stats(30.0 + limit - 0.01).overdue == 0
    assert scene.stats(30.0 + limit + 0.2).overdue == 1


def test_a_unary_attempt_is_overdue_after_three_p95_but_never_before_five_answers() -> None:
    scene = Scene(group())
    scene.attempts("ok", 4, took=10.0, stream=False)
    running = scene.begin(10.0, stream=False)
    assert scene.stats(500.0).overdue == 0
    scene.observations.end(running, "refused_here", now=500.0)
    scene.attempts("ok", 5, at=500.0, took=10.0, stream=False)
    scene.begin(510.0, stream=False)
    assert scene.stats(510.0 + 29.0).overdue == 0
    assert scene.stats(510.0 + 31.0).overdue == 1


def test_an_overdue_attempt_that_ends_counts_only_as_what_it_was() -> None:
    scene = Scene(group())
    running = scene.begin(0.0)
    assert scene.stats(6.0).overdue == 1
    scene.observations.end(running, "refused_here", now=6.0)
    stats = scene.stats(6.0)
    assert (stats.overdue, stats.in_flight, stats.fast) == (0, 0, Sums())


# Cool-down


@pytest.mark.parametrize(
    ("retry_after_s", "wait"),
    [
        (None, 1.0),
        (5.0, 5.0),
        (1.5, 1.5),
        (999_999.0, 60.0),
        (math.inf, 60.0),
        (-3.0, 1.0),
        (0.0, 1.0),
        (math.nan, 1.0),
    ],
)
def test_a_throttled_model_cools_down_for_as_long_as_it_asks_within_bounds(
    retry_after_s: float | None, wait: float
) -> None:
    scene = Scene(group())
    scene.attempt("throttled", 0.0, took=1.0, retry_after_s=retry_after_s)
    assert scene.observations.cooling_until("acme/paris", now=1.0) == 1.0 + wait
    assert scene.observations.cooling_until("acme/paris", now=1.0 + wait) is None
    assert scene.stats(1.0).cooling_until == 1.0 + wait


def test_a_cool_down_is_never_shortened_by_a_later_one() -> None:
    scene = Scene(group())
    scene.attempt("throttled", 0.0, took=0.0, retry_after_s=60.0)
    scene.attempt("throttled", 10.0, took=0.0, retry_after_s=5.0)
    assert scene.observations.cooling_until("acme/paris", now=10.0) == 60.0


def test_a_cool_down_holds_for_the_model_in_every_group_and_for_no_other_model() -> None:
    both = (target("paris"), target("oslo"))
    scene, other = Scene(group(*both)), group(*both, name="batch")
    assert scene.observations.stats(other, now=0.0).targets["paris"].cooling_until is None
    scene.attempt("throttled", 0.0, took=0.0, retry_after_s=30.0)
    cooling = {name: stats.cooling_until for name, stats in scene.observations.stats(other, now=0.0).targets.items()}
    assert cooling == {"paris": 30.0, "oslo": None}


# Counts of what runs


def test_attempts_in_flight_are_counted_per_target_and_per_provider() -> None:
    chat, batch = group(), group(name="batch")
    observations = Observations()
    one = observations.begin(chat, chat.targets[0], stream=True, now=0.0)
    observations.begin(batch, batch.targets[0], stream=False, now=0.0)
    assert observations.provider_in_flight("acme") == 2
    assert observations.in_flight("chat", "paris") == observations.target_in_flight("chat", "paris") == 1
    observations.end(one, "ok", now=1.0)
    assert (observations.provider_in_flight("acme"), observations.in_flight("chat", "paris")) == (1, 0)
    assert (observations.provider_in_flight("nobody"), observations.target_in_flight("chat", "nobody")) == (0, 0)


# Changes of configuration


def test_a_new_configuration_keeps_what_is_known() -> None:
    scene = excluded_scene()
    running = scene.begin(1.0)
    before = scene.stats(1.0)
    scene.group = replace(scene.group, targets=(target("oslo"), *scene.group.targets), strategy="weighted")
    assert scene.stats(1.0) == before
    assert scene.stats(1.0, "oslo") == TargetStats(window=Sums(), fast=Sums())
    assert scene.reasons(1.0) == {"paris": "excluded_consecutive"}
    scene.observations.end(running, "ok", now=2.0)
    assert scene.stats(2.0).in_flight == 0


def test_an_attempt_of_an_older_configuration_runs_on_beside_the_new_one() -> None:
    scene = Scene(group(target("paris"), target("oslo")))
    old = scene.group
    scene.group = replace(old, targets=(target("oslo"),))
    assert list(scene.observations.stats(scene.group, now=0.0).targets) == ["oslo"]
    running = scene.observations.begin(old, old.targets[0], stream=True, now=0.0)
    scene.observations.forget({"chat"})
    assert scene.observations.in_flight("chat", "paris") == 1
    scene.observations.end(running, "denied", now=1.0)
    assert list(scene.observations.stats(scene.group, now=1.0).targets) == ["oslo"]
    assert scene.health(1.0) == {}
    scene.observations.forget({"chat"})
    assert list(scene.observations.stats(old, now=1.0).targets) == ["paris", "oslo"]
    assert dict(scene.observations.health(old, now=1.0)) == {}


def test_forgetting_drops_groups_that_are_gone_and_idle() -> None:
    scene = excluded_scene()
    running = scene.begin(0.0)
    scene.observations.forget([])
    assert scene.reasons(1.0) == {"paris": "excluded_consecutive"}
    scene.observations.end(running, "refused_here", now=1.0)
    scene.observations.forget([])
    assert scene.stats(1.0) == TargetStats(window=Sums(), fast=Sums())
    assert scene.health(1.0) == {}


def test_a_shorter_window_keeps_what_is_young_enough() -> None:
    scene = Scene(group())
    for at in (0.0, 100.0, 190.0):
        scene.attempt("ok", at, took=1.0)
    scene.group = replace(scene.group, score=ScorePolicy(window_s=60, fast_half_life_s=10.0))
    stats = scene.stats(200.0)
    assert (stats.window.attempts, stats.p95_n) == (1.0, 1)
    scene.group = replace(scene.group, score=ScorePolicy(window_s=3600))
    assert scene.stats(201.0).window.attempts == 1.0
    scene.attempt("ok", 300.0, took=1.0)
    assert (scene.stats(301.0).window.attempts, scene.stats(301.0).p95_n) == (2.0, 2)
