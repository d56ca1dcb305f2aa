"""Which targets are kept out, and how trial requests bring them back."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from routing.core.catalog import HealthPolicy, ScorePolicy
from routing.core.stats import ExclusionReason, Health, Outcome, Sums, TargetStats
from tests.support.scenes import PROVIDER, Scene, excluded_scene, group, limits, target


def test_five_failures_in_a_row_keep_a_target_out_in_every_strategy() -> None:
    scene = Scene(group(strategy="failover"))
    scene.attempts("server_error", 4)
    scene.attempt("ok", 1.0)
    scene.attempts("timeout", 4, at=2.0)
    assert scene.health(3.0) == {}
    scene.attempt("server_error", 2.0)
    assert scene.health(3.0) == {
        "paris": Health(
            reason="excluded_consecutive", detail="5 failures in a row, the last one server_error", probe_due=False
        )
    }


def test_a_caller_fault_neither_breaks_nor_adds_to_failures_in_a_row() -> None:
    scene = Scene(group())
    scene.attempts("server_error", 4)
    scene.attempts("caller_fault", 4)
    assert scene.health(1.0) == {}
    scene.attempt("server_error", 0.0)
    assert scene.reasons(1.0) == {"paris": "excluded_consecutive"}


def test_a_refused_credential_keeps_a_target_out_at_once_and_it_is_probed() -> None:
    scene = Scene(group(strategy="weighted"))
    scene.attempt("denied", 0.0, took=0.0)
    assert (scene.reasons(0.0), scene.due(9.9), scene.due(10.0)) == ({"paris": "denied"}, set(), {"paris"})


def test_a_changed_provider_lifts_a_refusal_and_an_equal_one_does_not() -> None:
    scene = Scene(group())
    scene.attempt("denied", 0.0)
    scene.group = replace(scene.group, targets=(target(provider=replace(PROVIDER)),))
    assert scene.reasons(1.0) == {"paris": "denied"}
    scene.group = replace(scene.group, targets=(target(provider=replace(PROVIDER, api_key_env="NEW_KEY")),))
    assert scene.reasons(1.0) == {}


def test_a_rate_limit_belongs_to_dynamic_score() -> None:
    for strategy, reasons in (("dynamic_score", {"paris": "excluded_error_rate"}), ("failover", {})):
        scene = Scene(group(strategy=strategy, score=limits(max_error_rate=0.03)))
        for _ in range(3):
            scene.attempt("server_error", 0.0)
            scene.attempt("ok", 0.0)
        assert scene.reasons(1.0) == reasons


def test_hanging_streams_keep_a_target_out_before_they_time_out_and_their_content_brings_it_back() -> None:
    scene = Scene(group(score=limits(max_timeout_rate=0.02)))
    running = [scene.begin(0.0) for _ in range(5)]
    assert scene.reasons(4.9) == {}
    assert scene.reasons(5.1) == {"paris": "excluded_timeout_rate"}
    for each in running:
        scene.observations.content(each, now=6.0)
    assert scene.reasons(6.0) == {}


def test_overdue_attempts_are_no_failures_in_a_row() -> None:
    scene = Scene(group())
    for _ in range(9):
        scene.begin(0.0)
    assert scene.stats(20.0).overdue == 9
    assert scene.health(20.0) == {}


def test_a_slow_target_is_kept_out_and_probes_that_are_as_slow_do_not_bring_it_back() -> None:
    scene = Scene(group(score=limits(max_p95_s=10.0)))
    scene.attempts("ok", 60, took=20.0)
    assert scene.reasons(20.0) == {"paris": "excluded_p95"}
    for at in (30.0, 60.0):
        scene.attempt("ok", at, took=20.0, probe=True)
    assert scene.reasons(80.0) == {"paris": "excluded_p95"}
    for at in (110.0, 111.0):
        scene.attempt("ok", at, took=1.0, probe=True)
    assert scene.reasons(112.0) == {}


def test_two_good_probes_bring_a_target_back_with_an_empty_memory_that_still_counts_for_cold_start() -> None:
    scene = excluded_scene()
    scene.attempt("ok", 30.0, took=1.0, content=0.5, probe=True)
    assert scene.due(31.0) == {"paris"}
    scene.attempt("ok", 31.0, took=1.0, content=0.5, probe=True)
    stats = scene.observations.stats(scene.group, now=32.0)
    assert scene.health(32.0) == {}
    assert stats.targets["paris"] == TargetStats(window=Sums(), fast=Sums())
    assert stats.observations == 7
    assert scene.observations.stats(scene.group, now=600.0).observations == 2
    assert scene.observations.stats(scene.group, now=620.0).observations == 0


def test_one_probe_runs_at_a_time_and_a_second_one_is_an_ordinary_attempt() -> None:
    scene = excluded_scene()
    probe = scene.begin(10.0, probe=True)
    assert scene.due(10.0) == set()
    scene.attempts("ok", 3, at=10.0, probe=True)
    assert (scene.reasons(11.0), scene.due(11.0)) == ({"paris": "excluded_consecutive"}, set())
    scene.observations.end(probe, "ok", now=12.0)
    assert scene.due(12.0) == {"paris"}


def test_ordinary_attempts_neither_bring_a_target_back_nor_move_its_next_probe() -> None:
    scene = excluded_scene()
    scene.attempts("ok", 20, at=1.0)
    scene.attempts("server_error", 20, at=2.0)
    assert (scene.due(9.9), scene.due(10.0)) == (set(), {"paris"})


@pytest.mark.parametrize("outcome", ["client_cancelled", "caller_fault", "refused_here"])
def test_a_probe_that_shows_nothing_is_no_verdict(outcome: Outcome) -> None:
    scene = excluded_scene()
    scene.attempt("ok", 10.0, took=1.0, probe=True)
    scene.attempt(outcome, 11.0, took=1.0, probe=True)
    assert scene.due(12.0) == {"paris"}
    scene.attempt("ok", 12.0, took=1.0, probe=True)
    assert scene.health(13.0) == {}


def test_a_client_that_leaves_an_overdue_probe_does_not_draw_the_next_client_in_at_once() -> None:
    scene = excluded_scene()
    scene.attempt("client_cancelled", 10.0, took=8.0, probe=True)
    assert (scene.due(27.9), scene.due(28.0)) == (set(), {"paris"})


def test_a_failed_probe_waits_longer_each_time() -> None:
    scene, at, waits = excluded_scene(), 10.0, []
    for _ in range(3):
        scene.attempt("server_error", at, took=0.0, probe=True)
        due = next(at + wait for wait in range(1, 400) if scene.due(at + wait))
        waits.append(due - at)
        at = due
    assert waits == [10, 20, 40]


def test_attempts_from_before_a_reinstatement_say_nothing_about_the_time_after() -> None:
    scene = Scene(group(score=limits(max_timeout_rate=0.02)))
    hanging = [scene.begin(0.0) for _ in range(6)]
    scene.attempts("server_error", 5, took=0.0)
    assert scene.stats(9.0).overdue == 6
    scene.attempt("ok", 10.0, took=1.0, probe=True)
    scene.attempt("ok", 11.0, took=1.0, probe=True)
    assert (scene.reasons(12.0), scene.stats(12.0).overdue, scene.stats(12.0).in_flight) == ({}, 0, 6)
    for running in hanging:
        scene.observations.end(running, "timeout", now=60.0)
    assert (scene.reasons(60.0), scene.stats(60.0).window, scene.stats(60.0).in_flight) == ({}, Sums(), 0)
    assert scene.observations.stats(scene.group, now=60.0).observations == 13


def test_a_probe_of_an_earlier_exclusion_does_not_judge_a_later_one() -> None:
    scene = excluded_scene(score=limits(max_error_rate=0.5))
    stale = scene.begin(10.0, probe=True)
    assert scene.health(700.0) == {}  # its window is empty
    scene.attempts("server_error", 5, at=700.0, took=0.0)
    scene.observations.end(stale, "ok", now=701.0)
    current = scene.begin(710.0, probe=True)
    assert scene.due(720.0) == set()
    scene.observations.end(current, "ok", now=720.0)
    assert scene.reasons(720.0) == {"paris": "excluded_consecutive"}


def test_a_rate_limit_lets_go_when_few_attempts_are_left_and_nothing_binds() -> None:
    scene = Scene(group(score=limits(max_error_rate=0.03)))
    for at in (0.0, 0.0, 0.0, 0.0, 100.0, 100.0, 100.0):
        scene.attempt("server_error", at)
        scene.attempt("ok", at)
    assert scene.reasons(101.0) == {"paris": "excluded_error_rate"}
    assert scene.reasons(500.0) == {"paris": "excluded_error_rate"}
    assert scene.reasons(600.0) == {}
    assert scene.stats(600.0).window.attempts == 6.0


@pytest.mark.parametrize("outcome", ["denied", "server_error"])
def test_a_refusal_and_failures_in_a_row_let_go_only_when_nothing_is_left(outcome: Outcome) -> None:
    scene = Scene(group())
    scene.attempts(outcome, 5, took=0.0)
    scene.attempt("server_error", 500.0, took=0.0)
    assert len(scene.reasons(1080.0)) == 1
    assert scene.reasons(1100.0) == {}
    scene.attempt("server_error", 1100.0, took=0.0)
    assert scene.reasons(1100.0) == {}


def test_a_limit_that_is_taken_away_lets_its_targets_go() -> None:
    scene = Scene(group(score=limits(max_error_rate=0.03)))
    for _ in range(10):
        scene.attempt("server_error", 0.0)
        scene.attempt("ok", 0.0)
    assert scene.reasons(1.0) == {"paris": "excluded_error_rate"}
    scene.group = replace(scene.group, score=ScorePolicy())
    assert scene.reasons(1.0) == {}


def test_health_settings_of_the_group_apply() -> None:
    policy = HealthPolicy(max_consecutive_failures=2, probe_first_s=1.0, probe_max_s=3.0, probe_successes=1)
    scene = Scene(group(health=policy))
    scene.attempts("server_error", 2, took=0.0)
    assert (scene.reasons(0.0), scene.due(1.0)) == ({"paris": "excluded_consecutive"}, {"paris"})
    scene.attempt("ok", 1.0, took=0.0, probe=True)
    assert scene.health(1.0) == {}


def test_every_outcome_and_every_reason_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "health.md").read_text()
    words = (*get_args(Outcome), *get_args(ExclusionReason), "cooling_down")
    assert [word for word in words if f"`{word}`" not in text] == []
