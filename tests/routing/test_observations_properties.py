"""No story of attempts raises, leaves a number that is none, or an attempt in flight."""

import math
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.catalog import HealthPolicy, ScorePolicy
from routing.core.observations import Observations, Running
from routing.core.stats import GroupStats, Outcome, Sums
from tests.support.scenes import group, limits, target

OUTCOMES = st.sampled_from(get_args(Outcome))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "content", "end", "end", "fell_back", "read", "forget", "configure"]),
        st.integers(0, 7),
        st.one_of(st.floats(-0.5, 5.0), st.floats(0.0, 1e5)),
        OUTCOMES,
        st.tuples(
            st.none() | st.integers(-5, 10**9),
            st.none() | st.floats(allow_nan=True),
            st.sampled_from([None, True, False]),
            st.none() | st.floats(allow_nan=True),
            st.integers(-5, 10**12),
            st.none() | st.integers(-5, 10**12),
            st.booleans(),
            st.booleans(),
        ),
    ),
    max_size=60,
)
TIGHT = limits(
    max_error_rate=0.1,
    max_timeout_rate=0.0,
    max_p95_s=1.0,
    max_ttfb_s=0.5,
    min_output_tokens_per_second=10.0,
    latency_min_observations=2,
    min_observations=2,
    fast_min_observations=2,
)


def check(stats: GroupStats, running: list[Running]) -> None:
    assert 1.0 <= stats.mean_output_tokens < math.inf
    assert stats.observations >= 0
    for name, each in stats.targets.items():
        for sums in (each.window, each.fast):
            numbers = [getattr(sums, field) for field in Sums.__struct_fields__]
            assert all(math.isfinite(number) and number >= 0.0 for number in numbers)
            assert sums.errors + sums.timeouts <= sums.attempts * (1 + 1e-9)
            assert sums.fallbacks <= sums.attempts * (1 + 1e-9)
            assert sums.streams_ended <= sums.streams * (1 + 1e-9)
        assert each.in_flight == sum(handle.target.id == name and handle.ended_at is None for handle in running)
        assert 0 <= each.overdue <= each.in_flight
        assert each.p95_n >= each.window.completed + each.window.timeouts - 1e-9
        assert (each.p95_s is None) == (each.p95_n == 0)
        assert each.p95_s is None or 0.0 <= each.p95_s < math.inf
        assert 1.0 <= each.bytes_per_token <= 16.0


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_no_story_raises_or_leaves_a_number_that_is_none(steps: list[Any]) -> None:
    targets = (target("paris"), target("oslo"))
    groups = (
        group(*targets, score=TIGHT),
        group(*targets, score=ScorePolicy(client_cancellations="always", window_s=30, fast_half_life_s=0.1)),
        group(*targets, strategy="failover", health=HealthPolicy(max_consecutive_failures=1, probe_first_s=0.1)),
    )
    observations, running, chat, now = Observations(), list[Running](), groups[0], 50.0
    for verb, which, seconds, outcome, (tokens, last, terminal, retry, sent, read, stream, probe) in steps:
        now += seconds
        handle = running[which % len(running)] if running else None
        match verb:
            case "begin":
                running.append(observations.begin(chat, targets[which % 2], stream=stream, probe=probe, now=now))
            case "configure":
                chat = groups[which % 3]
            case "forget":
                observations.forget({"chat"} if stream else ())
            case "content" if handle is not None:
                observations.content(handle, now=now)
            case "fell_back" if handle is not None:
                observations.fell_back(handle)
            case "end" if handle is not None:
                observations.end(
                    handle,
                    outcome,
                    now=now,
                    output_tokens=tokens,
                    last_content_at=last,
                    terminal=terminal,
                    retry_after_s=retry,
                    text_bytes=sent,
                    input_tokens=read,
                )
        check(observations.stats(chat, now=now), running)
        for health in observations.health(chat, now=now).values():
            assert health.overdue_s >= 0.0
            assert health.detail
    for handle in running:
        observations.end(handle, "ok", now=now)
    check(observations.stats(chat, now=now), running)
    assert {each.in_flight for each in observations.stats(chat, now=now).targets.values()} == {0}
    assert observations.provider_in_flight("acme") == 0
