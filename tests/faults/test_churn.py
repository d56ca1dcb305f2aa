"""Clients that leave all the time on a small pool: afterwards everything is as if they had never been."""

import asyncio
import random

import pytest

from tests.faults.stories import SIDES, attempts, until
from tests.support.loops import in_loop
from tests.support.relays import in_order, relaying, target_on
from tests.support.scripted import LAST_CHUNK, Await, Expect, Pause, Repeat, Script, Send, chunk, chunked_head, scripted

pytestmark = pytest.mark.usefixtures("transport")


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("seconds", [0.6, pytest.param(4.0, marks=pytest.mark.full)])
@in_loop
async def test_after_seconds_of_cancelled_calls_a_hundred_succeed(seconds, side):
    speaking = SIDES[side]
    whole = speaking.whole("hello")
    cut = len(speaking.opening + speaking.content("hello"))
    over = asyncio.Event()
    script: Script = [
        Repeat(
            [
                *(Expect(), Send(speaking.answered("hello", stream=True))),
                *(Expect(), Send(chunked_head() + chunk(whole[:cut])), Pause(0.03)),
                Send(chunk(whole[cut:]) + LAST_CHUNK),
                *(Expect(), Pause(0.03), Send(speaking.answered("hello", stream=True))),
                *(Expect(), Await(over), Send(speaking.answered("hello", stream=True))),
            ]
        )
    ]
    rng = random.Random(7)
    async with scripted(script) as upstream:
        target = target_on(upstream, "a", dialect=speaking.dialect, provider={"max_in_flight": 8})
        async with relaying(in_order(target)) as bench:
            loop = asyncio.get_running_loop()
            ends_at = loop.time() + seconds

            def somebody_left() -> bool:
                return any(end.outcome == "client_cancelled" for end in bench.kept.ends)

            async def churn() -> int:
                calls = 0
                while loop.time() < ends_at or not somebody_left():  # the first calls may take all the time there is
                    call = bench.call(speaking.path, speaking.asking(stream=True))
                    await asyncio.sleep(rng.random() * 0.05)
                    call.hang_up()
                    await call.answered()
                    calls += 1
                return calls

            calls = sum(await asyncio.gather(*(churn() for _ in range(16))))
            outcomes = {end.outcome for end in bench.kept.ends}
            assert "client_cancelled" in outcomes
            assert outcomes <= {"client_cancelled", "success", "refused", "upstream_failed"}
            await until(lambda: bench.transport.in_use("a") == 0)
            over.set()
            for _ in range(25):
                replies = await asyncio.gather(
                    *(bench.post(speaking.path, speaking.asking(stream=True)) for _ in range(4))
                )
                assert [reply.body for reply in replies] == [whole] * 4
            assert attempts(bench) == [("a", "ok", None)]
            assert len(bench.kept.ends) == calls + 100
            assert len({end.id for end in bench.kept.ends}) == calls + 100
            assert bench.transport.open_connections <= 8
            await until(lambda: upstream.open_connections == bench.transport.open_connections)
            await until(lambda: len(asyncio.all_tasks()) <= 1 + upstream.open_connections)
            assert bench.relay.observations.provider_in_flight("a") == 0
            assert bench.relay.in_flight == 0
