"""The wall clock jumps an hour, to and fro, at every request: windows, rests, trials, pins and waits do not notice."""

import itertools
from typing import Any

import msgspec
import pytest

from gateway.relay import app
from routing.core.catalog import AffinityPolicy, ScorePolicy
from tests.faults.stories import CHAT
from tests.faults.test_storms import Clock
from tests.support.loops import run
from tests.support.relays import answering, completion, in_order, relaying, target_on
from tests.support.scripted import Expect, Repeat, Script, Send, answer, scripted

NOON = 1_764_417_600.0
"""2025-11-29 12:00:00 UTC."""

STEPS = [
    0.0,
    0.2,
    0.2,
    0.2,
    0.2,
    3.0,
    4.9,
    0.1,
    5.0,
    10.0,
    0.1,
    19.9,
    0.1,
    30.0,
    30.0,
    60.0,
    300.0,
    0.5,
    299.0,
    1.5,
    700.0,
]
"""Seconds between the requests: over rests, trials, the life of a pin and of the window."""


def throttled(wait: str, **more: str) -> Script:
    headers = {"retry-after": wait, **more}
    return [Expect(), Send(answer(b"{}", status=429, headers=headers))]


async def tale(jumps: list[float], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was told of the same requests while the wall clock was off by each of `jumps` in turn."""
    clock = Clock()
    numbers = itertools.count()
    monkeypatch.setattr(app, "new_id", lambda: f"req_{next(numbers):032x}")
    offsets = itertools.cycle(jumps)
    boom: Script = [Expect(), Send(answer(b"{}", status=500))]
    dated = throttled("Sat, 29 Nov 2025 18:00:05 GMT", date="Sat, 29 Nov 2025 18:00:00 GMT")
    scripts: list[Script] = [
        [*throttled("5"), *dated, *answering(completion("a"))],
        [Repeat(boom, times=7), *answering(completion("b"))],
        answering(completion("c")),
    ]
    async with scripted(scripts[0]) as a, scripted(scripts[1]) as b, scripted(scripts[2]) as c:
        targets = (
            target_on(each, name, weight=weight) for each, name, weight in ((a, "a", 9.0), (b, "b", 3.0), (c, "c", 1.0))
        )
        policy = ScorePolicy(min_observations=1_000, affinity=AffinityPolicy())
        group = in_order(*targets, strategy="dynamic_score", policy=policy)
        wall = lambda: NOON + clock.now - 1_000.0 + next(offsets)  # noqa: E731
        async with relaying(group, clock=clock, wall=wall) as bench:
            told: list[dict[str, Any]] = []
            for number, seconds in enumerate(STEPS):
                clock.now += seconds
                for conversation in ("one", f"new {number}"):
                    request = CHAT.asking(stream=False, messages=[{"role": "user", "content": conversation}])
                    reply = await bench.post(CHAT.path, request)
                    end = msgspec.to_builtins(bench.end)
                    end.pop("at")
                    told.append({**end, "retry_after": reply.header("retry-after")})
            return told


@pytest.mark.parametrize(
    "jumps", [[0.0, 3_600.0], [0.0, -3_600.0], [3_600.0, -3_600.0, 0.0], [0.0, 36.0, -86_400.0 * 0.4]]
)
def test_a_jump_of_the_wall_clock_changes_nothing(jumps, monkeypatch):
    steady = run(tale([0.0], monkeypatch), loop="uvloop")
    modes = {end.get("mode") for end in steady}
    affinities = {end.get("affinity") for end in steady}
    reasons = {exclusion["reason"] for end in steady for exclusion in end.get("exclusions", [])}
    # The tale is worth telling: everything that has a time of its own happens in it.
    assert "probe" in modes
    assert {"affinity_hit", "affinity_miss"} <= affinities
    assert {"cooling_down", "excluded_consecutive"} <= reasons
    assert run(tale(jumps, monkeypatch), loop="uvloop") == steady
