"""A dead target among good ones is left soon, tried again one request at a time, and comes back; all dead is no dead end."""

import asyncio
import itertools

import pytest

from routing.core.catalog import HealthPolicy, ScorePolicy
from tests.faults.stories import CHAT, SIDES, attempts, group_of, serving, settle, until
from tests.faults.test_storms import Clock
from tests.support.loops import in_loop
from tests.support.relays import Bench, answering, completion, in_order, relaying, target_on
from tests.support.scripted import Await, Close, Expect, Repeat, Reset, Script, Send, answer, scripted

DEAD: dict[str, Script] = {
    "500": answering({"error": {"message": "boom"}}, status=500),
    "a reset": [Expect(), Reset()],
    "an empty reply": [Expect(), Close()],
    "nonsense": [Expect(), Send(b"nonsense\r\n\r\n"), Close()],
    "HTML with 200": [Repeat([Expect(), Send(answer(b"<html>", content_type="text/html"))])],
}


@pytest.mark.parametrize("requests", [300, pytest.param(3_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("strategy", ["dynamic_score", "weighted", "failover"])
@pytest.mark.parametrize("fault", DEAD)
@in_loop
async def test_one_dead_target_of_three_is_out_after_five_failures_and_no_client_fails(fault, strategy, requests):
    """Ten requests a second; trials are the only further ones that it gets."""
    clock = Clock()
    good = serving(CHAT, stream=False)
    async with scripted(DEAD[fault]) as a, scripted(good) as b, scripted(good) as c:
        group = in_order(
            *(target_on(each, name, weight=1.0) for each, name in ((a, "a"), (b, "b"), (c, "c"))), strategy=strategy
        )
        async with relaying(group, clock=clock) as bench:
            failed = 0
            asked: list[float] = []
            for number in range(requests):
                before = len(a.requests)
                reply = await bench.post(CHAT.path, CHAT.asking(stream=False, user=str(number), messages=turn(number)))
                failed += reply.status != 200
                if len(a.requests) > before:
                    asked.append(clock.now - 1_000.0)
                clock.now += 0.1
    trials = asked[5:]
    out_at = asked[4]
    print(
        f"{fault}, {strategy}: {failed} of {requests} failed; {len(asked)} reached the dead target, out at {out_at:.1f} s"
    )
    assert failed <= requests * 0.001
    assert out_at <= 10.0
    assert all(later - earlier >= 9.99 for earlier, later in itertools.pairwise([out_at, *trials]))


def turn(number: int) -> list[dict[str, str]]:
    """A conversation of its own."""
    return [{"role": "user", "content": f"hi {number}"}]


@pytest.mark.parametrize("strategy", ["dynamic_score", "failover"])
@in_loop
async def test_a_hanging_target_is_seen_to_be_one_although_none_of_its_attempts_has_ended(strategy):
    """Overdue attempts count before they time out."""
    clock = Clock()
    policy = ScorePolicy(min_observations=5)
    hangs = asyncio.Event()
    good = serving(CHAT, stream=True)
    fine: Script = [Expect(), Send(CHAT.answered("b", stream=True))] * 6
    async with scripted(scripts=[[*fine, Expect(), Await(hangs)], [Expect(), Await(hangs)]]) as a, scripted(good) as b:
        targets = (target_on(a, "a", weight=3.0), target_on(b, "b", weight=1.0))
        async with relaying(in_order(*targets, strategy=strategy, policy=policy), clock=clock) as bench:
            for number in range(6):
                await bench.post(CHAT.path, CHAT.asking(stream=True, messages=turn(number)))
            waiting = []
            for number in range(6, 14):
                call = bench.call(CHAT.path, CHAT.asking(stream=True, messages=turn(number)))
                waiting.append(call)
                await until(lambda: call.task.done() or bench.transport.in_use("a") > 0)  # noqa: B023
                clock.now += 1.0
            clock.now += 2.0
            stats = bench.relay.observations.stats(group_of(bench), now=clock.now).targets["a"]
            hanging = bench.transport.in_use("a")
            assert hanging >= 1
            assert stats.overdue >= 1
            assert stats.fast.timeouts > 0
            for call in waiting:
                call.hang_up()
            hangs.set()
            for call in waiting:
                await call.answered()


@pytest.mark.usefixtures("transport")
@in_loop
async def test_a_target_that_is_out_gets_one_trial_at_a_time_also_from_a_hundred_clients(transport):
    clock = Clock()
    gate = asyncio.Event()
    boom = Send(answer(b"{}", status=500))
    once: Script = [Expect(), boom, Close()]
    trial: Script = [Expect(), Await(gate), boom, Close()]
    if transport == "http1":
        scripts = [[Repeat([Expect(), boom], times=5), *trial], once]
    else:  # a connection for each call
        scripts = [*[once] * 5, trial, once]
    async with scripted(scripts=scripts) as a, scripted(serving(CHAT, stream=False)) as b:
        group = in_order(target_on(a, "a"), target_on(b, "b"))
        async with relaying(group, clock=clock) as bench:
            for _ in range(5):
                await bench.post(CHAT.path, CHAT.asking(stream=False))
            assert len(a.requests) == 5
            clock.now += 10.0
            calls = [bench.call(CHAT.path, CHAT.asking(stream=False)) for _ in range(100)]
            await until(lambda: sum(call.task.done() for call in calls) == 99)
            assert len(a.requests) == 6
            gate.set()
            assert [(await call.answered()).status for call in calls] == [200] * 100
            await settle(bench, a, b, requests=105)
            assert [end.mode for end in bench.kept.ends].count("probe") == 1
            again = [await bench.post(CHAT.path, CHAT.asking(stream=False)) for _ in range(20)]
            assert [reply.status for reply in again] == [200] * 20
            assert len(a.requests) == 6
            clock.now += 20.0
            await bench.post(CHAT.path, CHAT.asking(stream=False))
            assert len(a.requests) == 7


@in_loop
async def test_the_trial_of_a_dead_target_costs_its_client_nothing():
    clock = Clock()
    async with (
        scripted(DEAD["500"]) as a,
        scripted(serving(CHAT, stream=False)) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b")), clock=clock) as bench,
    ):
        for _ in range(5):
            await bench.post(CHAT.path, CHAT.asking(stream=False))
        clock.now += 10.0
        reply = await bench.post(CHAT.path, CHAT.asking(stream=False))
    assert (reply.status, reply.body) == (200, CHAT.body("b", stream=False))
    assert bench.end.mode == "probe"
    assert attempts(bench) == [("a", "server_error", "upstream_server_error"), ("b", "ok", None)]


# All of them out.


async def all_out(bench: Bench, clock: Clock) -> None:
    for _ in range(6):
        await bench.post(CHAT.path, CHAT.asking(stream=False))
        clock.now += 0.1
    health = bench.relay.observations.health(group_of(bench), now=clock.now)
    assert set(health) == {"a", "b", "c"}


@pytest.mark.parametrize("side", SIDES)
@in_loop
async def test_with_all_targets_out_the_least_bad_serves_and_the_record_says_so(side):
    clock = Clock()
    speaking = SIDES[side]
    boom = (Expect(), Send(answer(b"{}", status=500)))
    recovering: Script = [Repeat([*boom], times=6), *answering(speaking.answer("b"))]
    async with scripted(DEAD["500"]) as a, scripted(recovering) as b, scripted(DEAD["500"]) as c:
        group = in_order(
            *(target_on(each, name, dialect=speaking.dialect) for each, name in ((a, "a"), (b, "b"), (c, "c")))
        )
        async with relaying(group, clock=clock) as bench:
            for _ in range(6):
                await bench.post(speaking.path, speaking.asking(stream=False))
                clock.now += 0.1
            assert len(bench.relay.observations.health(group_of(bench), now=clock.now)) == 3
            began = asyncio.get_running_loop().time()
            reply = await bench.post(speaking.path, speaking.asking(stream=False))
            assert asyncio.get_running_loop().time() - began < 1.0
            assert (reply.status, reply.body) == (200, speaking.body("b", stream=False))
            assert (bench.end.mode, bench.end.flags) == ("panic", ["panic"])
            assert {exclusion.reason for exclusion in bench.end.exclusions} == {"excluded_consecutive"}


@in_loop
async def test_with_all_targets_out_and_all_dead_the_client_hears_of_it_at_once():
    clock = Clock()
    async with scripted(DEAD["500"]) as a, scripted(DEAD["500"]) as b, scripted(DEAD["500"]) as c:
        group = in_order(*(target_on(each, name) for each, name in ((a, "a"), (b, "b"), (c, "c"))))
        async with relaying(group, clock=clock) as bench:
            await all_out(bench, clock)
            reply = await bench.post(CHAT.path, CHAT.asking(stream=False))
    assert (reply.status, reply.json()["error"]["code"]) == (500, "upstream_server_error")
    assert bench.end.flags == ["panic"]


@in_loop
async def test_a_rest_and_a_refused_credential_hold_when_all_are_out():
    """The least bad is never one that asked for rest, nor does a caller's fault count."""
    clock = Clock()
    throttled = answering({}, status=429, headers=[("retry-after", "30")])
    async with scripted(throttled) as a, scripted(DEAD["500"]) as b:
        group = in_order(target_on(a, "a"), target_on(b, "b"), health=HealthPolicy(max_consecutive_failures=2))
        async with relaying(group, clock=clock) as bench:
            for _ in range(5):
                await bench.post(CHAT.path, CHAT.asking(stream=False))
                clock.now += 0.1
            assert (len(a.requests), len(b.requests)) == (1, 5)
            assert bench.end.flags == ["panic"]
            assert [(e.target, e.reason) for e in bench.end.exclusions if e.target == "a"] == [("a", "cooling_down")]


@in_loop
async def test_a_recovered_target_comes_back_after_two_good_trials():
    clock = Clock()
    boom = (Expect(), Send(answer(b"{}", status=500)))
    recovering: Script = [Repeat([*boom], times=6), *answering(completion("a"))]
    served: list[tuple[str | None, str | None]] = []
    async with (
        scripted(recovering) as a,
        scripted(serving(CHAT, stream=False)) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b")), clock=clock) as bench,
    ):
        for _ in range(5):
            await bench.post(CHAT.path, CHAT.asking(stream=False))
        for seconds in (10.0, 9.9, 0.1, 0.0, 0.0):
            clock.now += seconds
            await bench.post(CHAT.path, CHAT.asking(stream=False))
            served.append((bench.end.target, bench.end.mode))
    assert served == [("b", "probe"), ("b", "configured"), ("a", "probe"), ("a", "probe"), ("a", "configured")]
