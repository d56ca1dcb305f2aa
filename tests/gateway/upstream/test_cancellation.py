"""A cancelled call closes its connection at once, and gives its place back once."""

import asyncio
import random

import pytest

from tests.gateway.upstream.calling import (
    call,
    failure,
    now,
    provider_at,
    send,
    transport,
    until,
)
from tests.support.loops import LoopName, on_both_loops, run
from tests.support.scripted import (
    LAST_CHUNK,
    AwaitPeer,
    Expect,
    Pause,
    Repeat,
    Script,
    Send,
    StopReading,
    answer,
    chunk,
    chunked_head,
    scripted,
)


@on_both_loops
@pytest.mark.parametrize(
    ("script", "body", "scheme"),
    [
        ([], b"{}", "https"),
        ([StopReading()], b"x" * 30_000_000, "http"),
        ([Expect()], b"{}", "http"),
        ([Expect(), Send(b"HTTP/1.1 200 OK\r\nx-a")], b"{}", "http"),
        ([Expect(), Send(chunked_head())], b"{}", "http"),
        ([Expect(), Send(chunked_head() + chunk(b"abc"))], b"{}", "http"),
        ([Expect(), Send(answer(b"abc")[:-1])], b"{}", "http"),
    ],
    ids=["tls", "sending", "no byte", "in the head", "after the head", "mid-chunks", "mid-length"],
)
def test_a_call_cancelled_at_any_stage_is_closed_upstream_within_100_ms(
    script: Script, body: bytes, scheme: str, loop: LoopName
) -> None:
    async def main() -> None:
        async with scripted([*script, AwaitPeer()]) as upstream, transport() as through:
            provider = provider_at(upstream, base_url=f"{scheme}://127.0.0.1:{upstream.port}")
            calling = asyncio.create_task(call(through, provider, body))
            await until(lambda: through.in_use("p") == 1 and len(upstream.connections) == 1)
            await asyncio.sleep(0.03)
            assert not calling.done()
            cancelled_at = now()
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            assert through.in_use("p") == 0
            await until(lambda: through.open_connections == 0, within=0.1)
            if StopReading() not in script:
                await asyncio.wait_for(upstream.connections[0].peer_gone.wait(), 0.1)
                assert now() - cancelled_at < 0.1

    run(main(), loop=loop)


@on_both_loops
def test_a_call_cancelled_as_its_answer_arrives_leaves_nothing_behind(kind: str, loop: LoopName) -> None:
    async def main() -> None:
        async with scripted([Repeat([Expect(), Send(answer(b"ok"))])]) as upstream, transport() as through:
            provider = provider_at(upstream, max_in_flight=1)
            for turns in range(12):
                calling = asyncio.create_task(call(through, provider))
                for _ in range(turns):
                    await asyncio.sleep(0)
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)
                assert through.in_use("p") == 0
                assert await call(through, provider) == b"ok"
            assert through.open_connections == int(kind == "http1")

    run(main(), loop=loop)


@on_both_loops
def test_after_churn_on_a_small_pool_a_hundred_calls_succeed(loop: LoopName) -> None:
    async def main() -> None:
        rng = random.Random(7)
        streaming: Script = [Send(chunked_head() + chunk(b"o")), Pause(0.002), Send(chunk(b"k") + LAST_CHUNK)]
        script: Script = [Repeat([Expect(), Send(answer(b"ok")), Expect(), Pause(0.002), *streaming])]
        async with scripted(script) as upstream, transport() as through:
            provider = provider_at(upstream, max_in_flight=8)

            async def churn(ends_at: float) -> None:
                while now() < ends_at:
                    calling = asyncio.create_task(call(through, provider))
                    await asyncio.sleep(rng.random() * 0.006)
                    calling.cancel()
                    await asyncio.gather(calling, return_exceptions=True)

            await asyncio.gather(*(churn(now() + 0.5) for _ in range(16)))
            assert through.in_use("p") == 0
            for _ in range(25):
                assert await asyncio.gather(*(call(through, provider) for _ in range(4))) == [b"ok"] * 4
            assert through.in_use("p") == 0
            assert through.open_connections <= 8
            await until(lambda: upstream.open_connections == through.open_connections)
            assert len(asyncio.all_tasks()) == 1 + upstream.open_connections

    run(main(), loop=loop)


@on_both_loops
def test_closing_a_response_ends_the_receive_that_waits_for_it(loop: LoopName) -> None:
    async def main() -> None:
        async with scripted([Expect(), Send(chunked_head()), AwaitPeer()]) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            receiving = asyncio.create_task(failure(response.receive(by=now() + 5)))
            await asyncio.sleep(0)
            response.close()
            response.close()
            assert await receiving == ("ConnectionLost", "the response was closed")
            assert through.in_use("p") == 0
            await asyncio.wait_for(upstream.connections[0].peer_gone.wait(), 0.1)

    run(main(), loop=loop)


def test_the_cancelled_lookup_of_a_name_leaves_the_other_waiting_for_it_alone() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        held = asyncio.Event()
        asked: list[str] = []

        def resolve(host: str, port: int) -> list[str]:
            asked.append(host)
            asyncio.run_coroutine_threadsafe(held.wait(), loop).result(5)
            return ["127.0.0.1"]

        async with scripted([Expect(), Send(answer(b"ok"))]) as upstream, transport(resolve=resolve) as through:
            base_url = f"http://up.example:{upstream.port}"
            provider = provider_at(upstream, base_url=base_url, allow_private_addresses=True)
            first = asyncio.create_task(call(through, provider))
            second = asyncio.create_task(call(through, provider))
            await until(lambda: through.in_use("p") == 2)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            held.set()
            assert (await second, asked, through.in_use("p")) == (b"ok", ["up.example"], 0)

    run(main())
