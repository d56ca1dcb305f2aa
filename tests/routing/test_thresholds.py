"""Bounds, limits, and the way back of a target that is kept out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.catalog import HealthPolicy, ThresholdPolicy
from routing.core.stats import Health, Sums
from routing.core.thresholds import Outage, binding, has_limits, lower_bound, too_slow

NOTHING = Sums()


@pytest.mark.parametrize(
    ("bad", "attempts", "bound"),
    [
        # p = .2: (.2 + 5.4289/20 - 2.33 sqrt(.16/10 + 5.4289/400)) / (1 + .54289) = (.471445 - .400689) / 1.54289
        (2, 10, 0.045860),
        # p = 1: (1 + 5.4289/10 - 2.33 sqrt(5.4289/100)) / (1 + 5.4289/5) = 1 / 2.08578
        (5, 5, 0.479437),
        # p = .05: (.05 + .0271445 - 2.33 sqrt(.0475/100 + 5.4289/40000)) / 1.054289
        (5, 100, 0.018553),
        (0, 10, 0.0),
        (0, 0, 0.0),
        (3, 0, 0.0),
    ],
)
def test_the_bound_is_wilsons(bad: float, attempts: float, bound: float) -> None:
    assert lower_bound(bad, attempts, 2.33) == pytest.approx(bound, abs=5e-6)


def test_without_confidence_asked_for_the_bound_is_the_rate() -> None:
    assert lower_bound(3, 10, 0.0) == pytest.approx(0.3)


@given(st.floats(-10, 1e6), st.floats(-10, 1e6), st.floats(0, 10))
def test_the_bound_is_a_rate_never_above_the_observed_one(bad: float, attempts: float, z: float) -> None:
    bound = lower_bound(bad, attempts, z)
    assert 0.0 <= bound <= 1.0
    if 0 <= bad <= attempts and attempts > 0:
        assert bound <= bad / attempts + 1e-9


def test_no_limit_is_set_by_default() -> None:
    assert not has_limits(ThresholdPolicy())
    assert has_limits(ThresholdPolicy(max_ttfb_s=0.0))


def bound_by(
    policy: ThresholdPolicy,
    window: Sums = NOTHING,
    fast: Sums = NOTHING,
    *,
    p95_s: float | None = None,
    overdue: int = 0,
) -> str | None:
    bound = binding(policy, window, fast, p95_s=p95_s, overdue=overdue)
    return bound[0] if bound else None


def errors(bad: float, attempts: float) -> Sums:
    return Sums(attempts=attempts, errors=bad)


def timeouts(bad: float, attempts: float) -> Sums:
    return Sums(attempts=attempts, timeouts=bad)


def test_an_error_limit_binds_when_the_lower_bound_is_over_it_not_the_rate() -> None:
    assert bound_by(ThresholdPolicy(max_error_rate=0.045), errors(2, 10)) == "excluded_error_rate"
    assert bound_by(ThresholdPolicy(max_error_rate=0.046), errors(2, 10)) is None


def test_a_bound_equal_to_its_limit_passes() -> None:
    assert bound_by(ThresholdPolicy(max_error_rate=lower_bound(2, 10, 2.33)), errors(2, 10)) is None


def test_one_bad_attempt_never_excludes() -> None:
    never = ThresholdPolicy(max_error_rate=0.0, max_timeout_rate=0.0, min_observations=1, fast_min_observations=1)
    assert bound_by(never, errors(1, 1), errors(1, 1)) is None
    assert bound_by(never, timeouts(1, 1), timeouts(1, 1)) is None
    assert bound_by(never, errors(2, 2)) == "excluded_error_rate"


def test_the_window_needs_ten_attempts_and_the_fast_counters_five() -> None:
    policy = ThresholdPolicy(max_error_rate=0.03)
    assert bound_by(policy, errors(9, 9), errors(4.9, 4.9)) is None
    assert bound_by(policy, errors(9, 10)) == "excluded_error_rate"
    assert bound_by(policy, errors(9, 9), errors(5.0, 5.0)) == "excluded_error_rate"


def test_the_arithmetic_is_in_the_detail() -> None:
    assert binding(ThresholdPolicy(max_error_rate=0.03), errors(2, 10), NOTHING, p95_s=None, overdue=0) == (
        "excluded_error_rate",
        "failed: 2 of 10 attempts, lower bound 0.046, is over max_error_rate 0.03",
    )
    assert binding(ThresholdPolicy(max_timeout_rate=0.02), timeouts(5, 5), timeouts(5, 5), p95_s=None, overdue=0) == (
        "excluded_timeout_rate",
        "timed out: 5.0 of 5.0 recent attempts, lower bound 0.479, is over max_timeout_rate 0.02",
    )


def test_overdue_attempts_count_as_timeouts_on_the_window_and_are_in_the_fast_counters_already() -> None:
    policy = ThresholdPolicy(max_timeout_rate=0.02)
    assert bound_by(policy, timeouts(0, 7), timeouts(0, 3), overdue=2) is None
    assert bound_by(policy, timeouts(0, 8), NOTHING, overdue=2) == "excluded_timeout_rate"
    assert bound_by(policy, NOTHING, timeouts(5, 5), overdue=5) == "excluded_timeout_rate"


def test_timeouts_do_not_break_the_error_limit() -> None:
    assert bound_by(ThresholdPolicy(max_error_rate=0.0), timeouts(20, 20), timeouts(20, 20)) is None


def answers(count: float, **sums: float) -> Sums:
    return Sums(attempts=count, completed=count, first_content_n=count, **sums)


def test_latency_limits_need_sixty_complete_answers_and_let_equality_pass() -> None:
    policy = ThresholdPolicy(max_p95_s=10.0)
    assert bound_by(policy, answers(59), p95_s=99.0) is None
    assert bound_by(policy, answers(60), p95_s=10.0) is None
    assert bound_by(policy, answers(60), p95_s=10.1) == "excluded_p95"
    assert binding(policy, answers(60), NOTHING, p95_s=10.1, overdue=0) == (
        "excluded_p95",
        "p95 10100 is over max_p95_latency_ms 10000",
    )


def test_the_first_content_limit_compares_the_mean_of_sixty_streams() -> None:
    policy = ThresholdPolicy(max_ttfb_s=0.5)
    assert bound_by(policy, answers(60, first_content_s=30.0)) is None
    assert bound_by(policy, answers(60, first_content_s=31.0)) == "excluded_ttfb"
    assert bound_by(policy, Sums(attempts=99, completed=99, first_content_n=59, first_content_s=99.0)) is None


def test_the_throughput_limit_compares_tokens_with_seconds_and_divides_by_nothing() -> None:
    policy = ThresholdPolicy(min_output_tokens_per_second=20.0)
    assert bound_by(policy, answers(60, generation_tokens=2000, generation_s=100.0)) is None
    assert bound_by(policy, answers(60, generation_tokens=1999, generation_s=100.0)) == "excluded_throughput"
    assert bound_by(policy, answers(60)) is None


RATES = st.floats(0, 1e9)
SUMS = st.builds(
    Sums,
    attempts=RATES,
    errors=RATES,
    timeouts=RATES,
    first_content_s=RATES,
    first_content_n=RATES,
    generation_s=RATES,
    generation_tokens=RATES,
    completed=RATES,
)


@given(SUMS, SUMS, st.none() | RATES, st.integers(0, 1000))
def test_no_sums_make_the_limits_raise(window: Sums, fast: Sums, p95_s: float | None, overdue: int) -> None:
    policy = ThresholdPolicy(
        max_error_rate=0.1,
        max_timeout_rate=0.1,
        max_p95_s=1.0,
        max_ttfb_s=1.0,
        min_output_tokens_per_second=1.0,
        latency_min_observations=1,
    )
    bound = binding(policy, window, fast, p95_s=p95_s, overdue=overdue)
    assert bound is None or bound[1]


@pytest.mark.parametrize(
    ("reason", "slow"),
    [
        ("excluded_p95", True),
        ("excluded_ttfb", True),
        ("excluded_throughput", True),
        ("excluded_error_rate", False),
        ("excluded_consecutive", False),
        ("denied", False),
    ],
)
def test_a_trial_is_measured_by_the_limit_that_its_target_is_out_for(reason: str, slow: bool) -> None:
    policy = ThresholdPolicy(max_error_rate=0.0, max_p95_s=1.0, max_ttfb_s=1.0, min_output_tokens_per_second=10.0)
    within = {"normalised_s": 1.0, "first_content_s": 1.0, "tokens_per_second": 10.0}
    beyond = {"normalised_s": 1.1, "first_content_s": 1.1, "tokens_per_second": 9.9}
    assert too_slow(policy, reason, **beyond) is slow  # type: ignore[arg-type]  # a slug of the list
    assert too_slow(policy, reason, **within) is False  # type: ignore[arg-type]
    assert too_slow(ThresholdPolicy(), reason, **beyond) is False  # type: ignore[arg-type]


def test_what_a_trial_could_not_measure_is_not_slow() -> None:
    policy = ThresholdPolicy(max_ttfb_s=1.0, min_output_tokens_per_second=10.0)
    unmeasured = {"normalised_s": 9.0, "first_content_s": None, "tokens_per_second": None}
    assert too_slow(policy, "excluded_ttfb", **unmeasured) is False  # type: ignore[arg-type]
    assert too_slow(policy, "excluded_throughput", **unmeasured) is False  # type: ignore[arg-type]


HEALTH = HealthPolicy()


def outage(now: float = 0.0) -> Outage:
    return Outage("excluded_consecutive", "why", HEALTH, now=now)


def probe_due(out: Outage, now: float) -> bool:
    return out.health(now=now).probe_due


def test_the_first_trial_is_due_after_ten_seconds_and_says_for_how_long() -> None:
    out = outage(now=100.0)
    assert out.health(now=109.9) == Health(reason="excluded_consecutive", detail="why", probe_due=False)
    assert out.health(now=112.0) == Health(reason="excluded_consecutive", detail="why", probe_due=True, overdue_s=2.0)


def test_one_trial_runs_at_a_time() -> None:
    out = outage()
    assert out.begin_probe() is True
    assert out.begin_probe() is False
    assert not probe_due(out, now=99.0)


def test_after_failed_trials_the_wait_doubles_up_to_five_minutes() -> None:
    out, now, waits = outage(), 10.0, []
    for _ in range(7):
        assert out.begin_probe()
        assert out.end_probe("failed", HEALTH, now=now) is False
        waits.append(out.probe_at - now)
        now = out.probe_at
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]


def test_a_good_trial_is_followed_at_once_by_the_next_and_two_in_a_row_bring_the_target_back() -> None:
    out = outage()
    out.begin_probe()
    assert out.end_probe("good", HEALTH, now=10.0) is False
    assert probe_due(out, now=10.0)
    out.begin_probe()
    assert out.end_probe("good", HEALTH, now=11.0) is True


def test_a_failed_trial_between_good_ones_starts_the_row_again_but_not_the_waits() -> None:
    out = outage()
    for verdict, now in (("failed", 10.0), ("good", 20.0), ("failed", 21.0), ("good", 41.0)):
        assert out.end_probe(verdict, HEALTH, now=now) is False  # type: ignore[arg-type]
    assert out.end_probe("failed", HEALTH, now=42.0) is False
    assert out.probe_at == 42.0 + 40.0


def test_a_trial_without_verdict_leaves_everything_as_it_was() -> None:
    out = outage()
    out.begin_probe()
    assert out.end_probe("good", HEALTH, now=10.0) is False
    out.begin_probe()
    assert out.end_probe("none", HEALTH, now=15.0) is False
    assert probe_due(out, now=15.0)
    assert out.end_probe("good", HEALTH, now=16.0) is True


def test_an_overdue_trial_without_verdict_waits_once_more_as_long_as_the_last() -> None:
    out = outage()
    out.end_probe("failed", HEALTH, now=10.0)
    out.end_probe("failed", HEALTH, now=20.0)
    out.end_probe("none", HEALTH, now=47.0, was_overdue=True)
    assert out.probe_at == 47.0 + 20.0
