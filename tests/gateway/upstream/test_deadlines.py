"""Time limits hold to 50 ms, whatever drips in."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.upstream.calling import call, failure, http1_only, now, provider_at, send, transport, until
from tests.support.certificates import Authority
from tests.support.loops import LoopName, on_both_loops, run
from tests.support.scripted import (
    AwaitPeer,
    Drip,
    Expect,
    ExpectHead,
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

LIMIT_S = 0.25
PRECISION_S = 0.05


async def timed(awaitable: Any) -> tuple[str, float]:
    """The name of the error it raises, and after how many seconds."""
    started = now()
    name, _ = await failure(awaitable)
    return name, now() - started


def assert_on_time(seconds: float) -> None:
    assert LIMIT_S - 0.002 <= seconds <= LIMIT_S + PRECISION_S


@on_both_loops
@pytest.mark.parametrize(
    "script",
    [
        [Expect()],
        [StopReading()],
        [Expect(), Repeat([Drip(b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 200, every=0.01)])],
        [Expect(), Repeat([Send(b"HTTP/1.1 100 Continue\r\n\r\n"), Pause(0.06)])],
    ],
)
def test_a_head_that_does_not_come_to_its_end_ends_the_call_on_time(script: Script, loop: LoopName) -> None:
    async def main() -> None:
        async with scripted([*script, AwaitPeer()]) as upstream, transport() as through:
            name, seconds = await timed(send(through, provider_at(upstream), within=LIMIT_S))
            assert name == "ResponseTimeout"
            assert_on_time(seconds)
            assert through.in_use("p") == 0
            await until(lambda: through.open_connections == 0)

    run(main(), loop=loop)


@on_both_loops
def test_a_large_request_that_nobody_reads_ends_on_time(loop: LoopName) -> None:
    async def main() -> None:
        async with scripted([StopReading(), AwaitPeer()]) as upstream, transport() as through:
            name, seconds = await timed(send(through, provider_at(upstream), b"x" * 30_000_000, within=LIMIT_S))
            assert name == "ResponseTimeout"
            assert_on_time(seconds)
            await until(lambda: through.open_connections == 0)

    run(main(), loop=loop)


@on_both_loops
def test_a_body_that_drips_ends_reading_on_time(loop: LoopName) -> None:
    async def main() -> None:
        drip: Script = [Repeat([Send(chunk(b"x")), Pause(0.01)])]
        async with scripted([Expect(), Send(chunked_head()), *drip]) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            name, seconds = await timed(response.read(by=now() + LIMIT_S, limit=1000))
            assert name == "ResponseTimeout"
            assert_on_time(seconds)
            response.close()

    run(main(), loop=loop)


@on_both_loops
def test_receiving_again_and_again_ends_on_time_also_when_more_is_always_there(loop: LoopName) -> None:
    async def drain(response: Any, by: float) -> None:
        while await response.receive(by=by):
            pass

    async def main() -> None:
        drip: Script = [Repeat([Send(chunk(b"x" * 50_000)), Pause(0.0)])]
        async with scripted([Expect(), Send(chunked_head()), *drip]) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            name, seconds = await timed(drain(response, now() + LIMIT_S))
            assert name == "ResponseTimeout"
            assert_on_time(seconds)
            response.close()

    run(main(), loop=loop)


@on_both_loops
def test_a_receive_that_timed_out_may_be_followed_by_another(kind: str, loop: LoopName) -> None:
    async def main() -> None:
        script: Script = [Expect(), Send(chunked_head()), Pause(0.15), Send(chunk(b"late") + b"0\r\n\r\n"), AwaitPeer()]
        async with scripted(script) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            assert (await failure(response.receive(by=now() + 0.05)))[0] == "ResponseTimeout"
            assert (await failure(response.receive(by=now() + 0.05)))[0] == "ResponseTimeout"
            assert await response.receive(by=now() + 5) == b"late"
            assert await response.receive(by=now() + 5) == b""
            assert (through.in_use("p"), through.open_connections) == (0, int(kind == "http1"))

    run(main(), loop=loop)


@on_both_loops
def test_a_later_limit_of_the_next_call_replaces_an_earlier_one_of_the_call_before(loop: LoopName) -> None:
    async def main() -> None:
        script: Script = [Repeat([Expect(), Pause(0.1), Send(answer(b"ok"))])]
        async with scripted(script) as upstream, transport() as through:
            provider = provider_at(upstream)
            assert await call(through, provider, within=0.15) == b"ok"
            assert await call(through, provider, within=0.5) == b"ok"
            assert await call(through, provider, within=5.0) == b"ok"
            assert (await failure(send(through, provider, within=0.05)))[0] == "ResponseTimeout"

    run(main(), loop=loop)


@http1_only
@on_both_loops
def test_a_limit_holds_after_the_timer_of_an_earlier_call_went_off(loop: LoopName) -> None:
    async def main() -> None:
        script: Script = [Expect(), Send(answer(b"ok")), Expect(), AwaitPeer()]
        async with scripted(script) as upstream, transport() as through:
            provider = provider_at(upstream)
            assert await call(through, provider, within=0.1) == b"ok"
            name, seconds = await timed(send(through, provider, within=LIMIT_S))
            assert name == "ResponseTimeout"
            assert_on_time(seconds)

    run(main(), loop=loop)


@on_both_loops
def test_a_limit_in_the_far_future_is_none(loop: LoopName) -> None:
    async def main() -> None:
        async with scripted([ExpectHead(), Pause(0.02), Send(answer(b"ok"))]) as upstream, transport() as through:
            assert await call(through, provider_at(upstream), within=float("inf")) == b"ok"

    run(main(), loop=loop)


@on_both_loops
def test_a_tls_handshake_that_never_ends_is_a_connect_timeout(loop: LoopName, tmp_path: Path) -> None:
    ca_file = str(Authority(tmp_path).ca_file)

    async def main() -> None:
        async with scripted([AwaitPeer()]) as upstream, transport() as through:
            provider = provider_at(upstream, base_url=f"https://127.0.0.1:{upstream.port}", ca_file=ca_file)
            name, seconds = await timed(send(through, provider, connect_within=LIMIT_S))
            assert name == "ConnectTimeout"
            assert_on_time(seconds)
            assert through.in_use("p") == 0
            await asyncio.wait_for(upstream.connections[0].peer_gone.wait(), 0.2)

    run(main(), loop=loop)


def test_a_name_that_is_not_resolved_in_time_is_a_connect_timeout() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        held = asyncio.Event()

        def resolve(host: str, port: int) -> list[str]:
            asyncio.run_coroutine_threadsafe(held.wait(), loop).result(5)
            return ["127.0.0.1"]

        async with scripted([AwaitPeer()]) as upstream, transport(resolve=resolve) as through:
            provider = provider_at(upstream, base_url="http://up.example")
            name, seconds = await timed(send(through, provider, connect_within=LIMIT_S))
            held.set()
            assert name == "ConnectTimeout"
            assert_on_time(seconds)

    run(main())
