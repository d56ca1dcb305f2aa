"""Nobody's speed but the reader's decides how much is held."""

import asyncio
from typing import Any

import pytest

from tests.gateway.upstream.calling import failure, now, provider_at, send, transport, until
from tests.support.loops import LoopName, on_both_loops, run
from tests.support.scripted import (
    LAST_CHUNK,
    AwaitPeer,
    Close,
    Expect,
    ExpectHead,
    Flood,
    Pause,
    Script,
    Send,
    StartReading,
    StopReading,
    answer,
    chunk,
    chunked_head,
    scripted,
)

MIB = 1 << 20


@on_both_loops
@pytest.mark.parametrize("framing", ["length", "chunks", "eof"])
def test_a_flood_of_64_mib_is_taken_only_as_fast_as_it_is_received(framing: str, loop: LoopName) -> None:
    total = 64 * MIB
    framings: dict[str, tuple[bytes, bytes, Script]] = {
        "length": (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total, b"x" * 65_536, []),
        "chunks": (chunked_head(), chunk(b"x" * 65_536), [Send(LAST_CHUNK)]),
        "eof": (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65_536, [Close()]),
    }
    head, piece, end = framings[framing]

    async def main() -> None:
        script: Script = [Expect(), Send(head), Flood(piece, 1024 * len(piece)), *end, AwaitPeer()]
        async with scripted(script) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            received = most = 0
            for _ in range(20):
                await asyncio.sleep(0.005)
                most = max(most, response._buffered)
                received += len(await response.receive(by=now() + 5))
            assert 0 < most < MIB
            assert received < 20 * MIB
            assert upstream.connections[0].sent < total / 2
            while piece_received := await response.receive(by=now() + 5):
                most = max(most, response._buffered)
                received += len(piece_received)
            assert (received, most < MIB) == (total, True)

    run(main(), loop=loop)


@on_both_loops
def test_a_whole_body_is_read_up_to_its_limit_past_the_usual_buffer(loop: LoopName) -> None:
    async def main() -> None:
        body = bytes(range(256)) * 8192
        async with scripted([Expect(), Send(answer(body)), AwaitPeer()]) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            await asyncio.sleep(0.02)
            assert await response.read(by=now() + 5, limit=len(body)) == body
            assert through.in_use("p") == 0

    run(main(), loop=loop)


def test_a_body_of_single_byte_chunks_is_put_together_right() -> None:
    async def main() -> None:
        wire = chunked_head() + b"".join(chunk(b"%d" % (n % 10)) for n in range(20_000)) + LAST_CHUNK
        async with scripted([Expect(), Send(wire), AwaitPeer()]) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            body = await response.read(by=now() + 5, limit=20_000)
            assert body == b"".join(b"%d" % (n % 10) for n in range(20_000))
            assert response._buffered == 0

    run(main())


def test_the_rest_of_a_body_is_read_after_its_start_was_received() -> None:
    async def main() -> None:
        script: Script = [
            Expect(),
            Send(chunked_head() + chunk(b"start")),
            Pause(0.02),
            Send(chunk(b"rest") + LAST_CHUNK),
        ]
        async with scripted(script) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            assert await response.receive(by=now() + 5) == b"start"
            assert await response.read(by=now() + 5, limit=4) == b"rest"
            assert await response.read(by=now() + 5, limit=4) == b""

    run(main())


def test_a_body_over_the_limit_is_refused_by_its_length_before_it_comes() -> None:
    async def main() -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n"
        async with scripted([Expect(), Send(head), AwaitPeer()]) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            error = await failure(response.read(by=now() + 5, limit=1000))
            assert error == ("ResponseTooLarge", "a body of 1001 bytes, 1000 are allowed")
            assert through.in_use("p") == 0
            await until(lambda: through.open_connections == 0)

    run(main())


@on_both_loops
def test_a_large_request_waits_for_a_slow_server(kind: str, loop: LoopName) -> None:
    async def main() -> None:
        body = b"x" * 20_000_000
        script: Script = [StopReading(), Pause(0.1), StartReading(), Expect(), Send(answer(b"ok")), AwaitPeer()]
        async with scripted(script) as upstream, transport() as through:
            sending = asyncio.create_task(send(through, provider_at(upstream), body))
            await asyncio.sleep(0.05)
            (lent,) = through._pools["p"]._lent
            connection: Any = lent if kind == "http1" else lent.network._stream  # type: ignore[attr-defined]
            assert connection._transport.get_write_buffer_size() < MIB
            response = await sending
            assert await response.read(by=now() + 5, limit=10) == b"ok"
            assert upstream.requests[0].body == body
            assert (through.in_use("p"), through.open_connections) == (0, int(kind == "http1"))

    run(main(), loop=loop)


@on_both_loops
def test_a_large_request_notices_at_once_that_the_server_left(loop: LoopName) -> None:
    async def main() -> None:
        async with scripted([ExpectHead(), StopReading(), Pause(0.02), Close()]) as upstream, transport() as through:
            started = now()
            assert (await failure(send(through, provider_at(upstream), b"x" * 50_000_000)))[0] == "ConnectionLost"
            assert now() - started < 1.0

    run(main(), loop=loop)
