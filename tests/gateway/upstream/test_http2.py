"""HTTP/2 as httpx speaks it keeps the contract: limits, back-pressure, cancelling, one exchange's bytes for one exchange."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.upstream.errors import UpstreamError
from gateway.upstream.httpx_transport import HttpxTransport
from routing.core.catalog import Provider
from tests.gateway.upstream import calling
from tests.gateway.upstream.calling import call, failure, now, send, transport, until
from tests.support.certificates import Authority
from tests.support.http2 import Asked, Fields, Http2Upstream, Peer, frame, head_frame, http2_upstream
from tests.support.loops import LoopName, on_both_loops, run
from tests.support.scripted import Expect, Repeat, Send, answer, scripted

Play = Callable[[Peer], Awaitable[None]]


@pytest.fixture(autouse=True)
def kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the directory's: HTTP/2 is the second transport's alone."""
    monkeypatch.setattr(calling, "kind", HttpxTransport)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def provider_at(upstream: Http2Upstream, authority: Authority, **fields: Any) -> Provider:
    known = {"name": "p", "base_url": upstream.base_url, "dialect": "openai-chat", "transport": "httpx"}
    return Provider(**{**known, "ca_file": str(authority.ca_file), **fields})


async def keeps_answering(peer: Peer) -> None:
    while True:
        request = await peer.request()
        peer.answer(request.stream, b"%d bytes" % len(request.body))


def answers_with(*wires: bytes) -> Play:
    """Sends `wires` in answer to the first request (stream 1)."""

    async def play(peer: Peer) -> None:
        await peer.request()
        peer.raw(b"".join(wires))

    return play


@on_both_loops
def test_a_request_and_its_answer_are_those_of_the_other_protocol(loop: LoopName, authority: Authority) -> None:
    async def main() -> None:
        seen: list[Asked] = []

        async def play(peer: Peer) -> None:
            seen.append(await peer.request())
            peer.answer(seen[0].stream, b"hello", ("x-b", "1"), ("x-b", "2"), ("content-length", "5"), status=207)

        async with http2_upstream(play, authority) as upstream, transport(environ={"KEY": "s3cret"}) as through:
            provider = provider_at(upstream, authority, api_key_env="KEY", headers=(("X-Team", "ml"),))
            response = await send(through, provider, b"{}", headers=[(b"content-type", b"application/json")])
            body = await response.read(by=now() + 5, limit=5)
            headers = [(b"x-b", b"1"), (b"x-b", b"2"), (b"content-length", b"5")]
            got = (response.status, response.headers, response.complete_by_eof, body)
            assert got == (207, headers, False, b"hello")
            assert (seen[0].headers, bytes(seen[0].body)) == (
                [
                    (b":method", b"POST"),
                    (b":authority", b"127.0.0.1:%d" % upstream.port),
                    (b":scheme", b"https"),
                    (b":path", b"/v1/chat/completions"),
                    (b"accept-encoding", b"identity"),
                    (b"x-team", b"ml"),
                    (b"authorization", b"Bearer s3cret"),
                    (b"content-type", b"application/json"),
                    (b"content-length", b"2"),
                ],
                b"{}",
            )

    run(main(), loop=loop)


@on_both_loops
def test_a_thousand_calls_use_one_connection_after_another(loop: LoopName, authority: Authority) -> None:
    async def main() -> None:
        async with http2_upstream(keeps_answering, authority) as upstream, transport() as through:
            provider = provider_at(upstream, authority)
            for number in range(1000):
                assert await call(through, provider, b"x" * number) == b"%d bytes" % number
            assert len(upstream.peers) <= 3

    run(main(), loop=loop, within=60)


def test_a_server_that_prefers_http1_is_spoken_to_in_it(authority: Authority) -> None:
    async def main() -> None:
        tls = authority.server_context("127.0.0.1", alpn=("http/1.1", "h2"))
        async with scripted([Repeat([Expect(), Send(answer(b"ok"))])], tls=tls) as upstream, transport() as through:
            provider = Provider(
                name="p", base_url=upstream.base_url, dialect="openai-chat", ca_file=str(authority.ca_file)
            )
            assert [await call(through, provider), await call(through, provider)] == [b"ok", b"ok"]
            assert [played.requests[0].line for played in upstream.connections] == [
                b"POST /v1/chat/completions HTTP/1.1"
            ] * 2

    run(main())


OK: Fields = [(":status", "200")]


@on_both_loops
@pytest.mark.parametrize(
    ("wires", "error"),
    [
        ([frame(0, 1, 1, b"data before a head")], "ProtocolError"),
        ([frame(0, 0, 0, b"data on no stream")], "ProtocolError"),
        ([frame(0, 0, 1, b"x" * 16_385)], "ProtocolError"),
        ([frame(1, 5, 1, b"\xff\xff\xff\xff\xff")], "ProtocolError"),
        ([frame(1, 0, 1, b"\x88"), frame(6, 0, 0, b"12345678")], "ProtocolError"),
        ([head_frame(1, [(":status", "abc")], end=True)], "ProtocolError"),
        ([head_frame(1, [(":status", "600")], end=True)], "ProtocolError"),
        ([head_frame(1, [*OK, ("connection", "close")], end=True)], "ProtocolError"),
        ([head_frame(1, [*OK, ("transfer-encoding", "chunked")])], "ProtocolError"),
        ([head_frame(1, [*OK, ("x-a", "b\r\nx-c: d")], end=True)], "ProtocolError"),
        ([head_frame(1, [*OK, ("X-Upper", "b")], end=True)], "ProtocolError"),
        ([head_frame(1, [*OK, ("content-length", "2"), ("content-length", "2")])], "ProtocolError"),
        ([head_frame(1, [*OK, ("content-length", "2"), ("content-length", "3")])], "ProtocolError"),
        ([head_frame(1, [*OK, ("content-length", "-2")])], "ProtocolError"),
        ([head_frame(1, [*OK, ("content-length", "9" * 30)])], "ProtocolError"),
        ([head_frame(1, [*OK, ("content-length", "3")]), frame(0, 1, 1, b"ab")], "ProtocolError"),
        ([head_frame(1, [*OK, ("content-length", "1")]), frame(0, 1, 1, b"ab")], "ProtocolError"),
        ([frame(5, 4, 1, b"\0\0\0\2\x88")], "ProtocolError"),
        ([frame(1, 0, 1, b"\x88"), *[frame(9, 0, 1, b"\0\1x\x7f" + b"y" * 16_000)] * 8], "ResponseTooLarge"),
        ([frame(6, 0, 0, b"12345678")] * 5000, "ResponseTooLarge"),
        ([head_frame(1, OK), *[frame(6, 0, 0, b"12345678")] * 12_000], "ResponseTooLarge"),
        ([head_frame(1, OK), *[frame(0, 0, 1)] * 20_000], "ResponseTooLarge"),
        ([frame(3, 0, 1, b"\0\0\0\2")], "ConnectionLost"),
        ([head_frame(1, OK), frame(0, 0, 1, b"half"), frame(3, 0, 1, b"\0\0\0\2")], "ConnectionLost"),
        ([frame(7, 0, 0, b"\0\0\0\0" + b"\0\0\0\2")], "ConnectionLost"),
        ([frame(7, 0, 0, b"\0\0")], "ProtocolError"),
    ],
)
def test_a_fault_is_the_error_of_its_kind_and_closes_the_connection(
    wires: list[bytes], error: str, loop: LoopName, authority: Authority
) -> None:
    async def read(through: Any, provider: Provider) -> bytes:
        response = await send(through, provider)
        return bytes(await response.read(by=now() + 5, limit=1 << 20))

    async def main() -> None:
        async with http2_upstream(answers_with(*wires), authority) as upstream, transport() as through:
            name, text = await failure(read(through, provider_at(upstream, authority)))
            assert (name, through.in_use("p")) == (error, 0), text
            await until(lambda: upstream.peers[0].gone.is_set() and not through.open_connections)

    run(main(), loop=loop)


@on_both_loops
@pytest.mark.parametrize("stage", ["head", "body"])
def test_limits_hold_against_what_drips_and_a_body_can_be_waited_for_again(
    stage: str, loop: LoopName, authority: Authority
) -> None:
    async def drip(peer: Peer) -> None:
        request = await peer.request()
        if stage == "body":
            peer.head(request.stream)
        while True:
            peer.raw(frame(6, 0, 0, b"12345678"))
            await asyncio.sleep(0.02)

    async def main() -> None:
        async with http2_upstream(drip, authority) as upstream, transport() as through:
            provider = provider_at(upstream, authority)
            if stage == "head":
                started = now()
                assert (await failure(send(through, provider, within=0.4)))[0] == "ResponseTimeout"
                assert 0.39 < now() - started < 0.9
                await until(lambda: not through.open_connections)
                return
            response = await send(through, provider)
            for _ in range(2):
                started = now()
                assert (await failure(response.receive(by=now() + 0.2)))[0] == "ResponseTimeout"
                assert 0.19 < now() - started < 0.7
            upstream.peers[0].data(1, b"late", end=True)
            assert await response.receive(by=now() + 5) == b"late"
            assert await response.receive(by=now() + 5) == b""

    run(main(), loop=loop)


@on_both_loops
def test_a_flood_is_taken_only_as_fast_as_it_is_received(loop: LoopName, authority: Authority) -> None:
    total = 14 << 20

    async def main() -> None:
        async def play(peer: Peer) -> None:
            request = await peer.request()
            peer.head(request.stream)
            await peer.pour(request.stream, total)
            peer.data(request.stream, b"", end=True)

        async with http2_upstream(play, authority) as upstream, transport() as through:
            response = await send(through, provider_at(upstream, authority))
            await asyncio.sleep(0.5)
            (lent,) = through._pools["p"]._lent
            stream = lent.network._stream  # type: ignore[attr-defined]
            assert 0 < response._buffered + len(stream._unread) < 1 << 20
            body = await response.read(by=now() + 10, limit=total)
            assert (len(body), through.in_use("p")) == (total, 0)

    run(main(), loop=loop)


@on_both_loops
def test_a_large_request_goes_out_as_the_server_takes_it(loop: LoopName, authority: Authority) -> None:
    async def main() -> None:
        body = bytes(range(256)) * 40_000
        async with http2_upstream(keeps_answering, authority) as upstream, transport() as through:
            provider = provider_at(upstream, authority)
            for _ in range(2):
                assert await call(through, provider, body) == b"%d bytes" % len(body)
            assert [bytes(asked.body) == body for peer in upstream.peers for asked in peer.asked.values()] == [True] * 2

    run(main(), loop=loop)


@on_both_loops
def test_a_server_that_takes_nothing_of_a_request_ends_the_call_on_time(loop: LoopName, authority: Authority) -> None:
    async def play(peer: Peer) -> None:
        peer.takes = False
        await peer.gone.wait()

    async def main() -> None:
        async with http2_upstream(play, authority) as upstream, transport() as through:
            started = now()
            name, _ = await failure(send(through, provider_at(upstream, authority), b"x" * 1_000_000, within=0.4))
            assert (name, 0.39 < now() - started < 0.9) == ("ResponseTimeout", True)

    run(main(), loop=loop)


@on_both_loops
def test_a_server_that_leaves_after_its_answer_is_called_on_a_new_connection(
    loop: LoopName, authority: Authority
) -> None:
    async def play(peer: Peer) -> None:
        request = await peer.request()
        peer.head(request.stream)
        peer.data(request.stream, b"to the end", end=True)
        peer.raw(frame(7, 0, 0, request.stream.to_bytes(4, "big") + b"\0\0\0\0"))

    async def main() -> None:
        async with http2_upstream(play, authority) as upstream, transport() as through:
            provider = provider_at(upstream, authority)
            assert [await call(through, provider) for _ in range(3)] == [b"to the end"] * 3
            assert len(upstream.peers) == 3

    run(main(), loop=loop)


@on_both_loops
@pytest.mark.parametrize(
    ("said", "error", "requests"),
    [
        (frame(3, 0, 3, b"\0\0\0\7"), None, 2),
        (frame(7, 0, 0, b"\0\0\0\1\0\0\0\0"), None, 2),
        (frame(3, 0, 3, b"\0\0\0\2"), "ConnectionLost", 1),
        (head_frame(3, OK) + frame(3, 0, 3, b"\0\0\0\7"), "ConnectionLost", 1),
    ],
    ids=["refused", "leaves", "failed", "after its head"],
)
def test_only_a_request_that_the_server_did_not_take_is_sent_once_more(
    said: bytes, error: str | None, requests: int, loop: LoopName, authority: Authority
) -> None:
    async def play(peer: Peer) -> None:
        peer.answer((await peer.request()).stream, b"ok")
        await peer.request()
        peer.raw(said)
        await peer.gone.wait()

    async def main() -> None:
        async with http2_upstream(play, authority) as upstream, transport() as through:
            provider = provider_at(upstream, authority)
            assert await call(through, provider) == b"ok"
            if error is None:
                assert await call(through, provider) == b"ok"
            else:
                assert (await failure(call(through, provider)))[0] == error
            assert len(upstream.peers) == requests

    run(main(), loop=loop)


@on_both_loops
@pytest.mark.parametrize("stage", ["no byte", "head", "body"])
def test_a_cancelled_call_is_closed_upstream_within_100_ms(stage: str, loop: LoopName, authority: Authority) -> None:
    async def play(peer: Peer) -> None:
        request = await peer.request()
        if stage != "no byte":
            peer.head(request.stream)
        if stage == "body":
            peer.data(request.stream, b"some")
        await peer.gone.wait()

    async def main() -> None:
        async with http2_upstream(play, authority) as upstream, transport() as through:
            calling_it = asyncio.create_task(call(through, provider_at(upstream, authority)))
            await until(lambda: len(upstream.peers) == 1 and len(upstream.peers[0].asked) == 1, within=5)
            await asyncio.sleep(0.02)
            calling_it.cancel()
            await asyncio.gather(calling_it, return_exceptions=True)
            assert through.in_use("p") == 0
            await asyncio.wait_for(upstream.peers[0].gone.wait(), 0.1)

    run(main(), loop=loop)


@on_both_loops
def test_after_churn_on_a_small_pool_a_hundred_calls_succeed(loop: LoopName, authority: Authority) -> None:
    async def play(peer: Peer) -> None:
        while True:
            request = await peer.request()
            peer.head(request.stream)
            await asyncio.sleep(0.002)
            peer.data(request.stream, b"o")
            await asyncio.sleep(0.002)
            peer.data(request.stream, b"k", end=True)

    async def main() -> None:
        rng = random.Random(7)
        async with http2_upstream(play, authority) as upstream, transport() as through:
            provider = provider_at(upstream, authority, max_in_flight=8)

            async def churn(ends_at: float) -> None:
                while now() < ends_at:
                    calling_it = asyncio.create_task(call(through, provider))
                    await asyncio.sleep(rng.random() * 0.02)
                    calling_it.cancel()
                    await asyncio.gather(calling_it, return_exceptions=True)

            await asyncio.gather(*(churn(now() + 0.5) for _ in range(16)))
            assert through.in_use("p") == 0
            for _ in range(25):
                assert await asyncio.gather(*(call(through, provider) for _ in range(4))) == [b"ok"] * 4
            assert (through.in_use("p"), through.open_connections <= 8) == (0, True)

    run(main(), loop=loop)


def test_above_max_in_flight_a_call_fails_at_once(authority: Authority) -> None:
    async def silent(peer: Peer) -> None:
        await peer.gone.wait()

    async def main() -> None:
        async with http2_upstream(silent, authority) as upstream, transport() as through:
            provider = provider_at(upstream, authority, max_in_flight=1)
            first = asyncio.create_task(call(through, provider))
            await until(lambda: through.in_use("p") == 1)
            assert (await failure(call(through, provider)))[0] == "AtCapacity"
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)

    run(main())


@on_both_loops
def test_a_server_that_allows_no_stream_is_a_protocol_error(loop: LoopName, authority: Authority) -> None:
    async def play(peer: Peer) -> None:
        peer.answer((await peer.request()).stream, b"ok")
        peer.h2.update_settings({3: 0})
        peer.flush()
        await peer.gone.wait()

    async def main() -> None:
        async with http2_upstream(play, authority) as upstream, transport() as through:
            provider = provider_at(upstream, authority)
            assert await call(through, provider) == b"ok"
            await asyncio.sleep(0.05)
            name, text = await failure(call(through, provider))
            assert name == "ProtocolError", text
            await until(lambda: not through.open_connections)

    run(main(), loop=loop)


@on_both_loops
def test_frames_after_an_answer_reach_no_other_call(loop: LoopName, authority: Authority) -> None:
    async def play(peer: Peer) -> None:
        while True:
            request = await peer.request()
            peer.answer(request.stream, b"own")
            peer.raw(frame(0, 1, request.stream, b"foreign"))

    async def main() -> None:
        async with http2_upstream(play, authority) as upstream, transport() as through:
            provider = provider_at(upstream, authority)
            own = 0
            for _ in range(50):
                try:
                    body = await call(through, provider)
                except UpstreamError:
                    continue
                assert body == b"own"
                own += 1
            assert own > 0
            assert through.in_use("p") == 0

    run(main(), loop=loop)


def test_what_a_server_says_without_being_asked_is_held_only_so_far(authority: Authority) -> None:
    async def play(peer: Peer) -> None:
        peer.answer((await peer.request()).stream, b"ok")
        while not peer.gone.is_set():
            peer.raw(frame(6, 0, 0, b"12345678") * 100)
            await asyncio.sleep(0.001)

    async def main() -> None:
        async with http2_upstream(play, authority) as upstream, transport() as through:
            assert await call(through, provider_at(upstream, authority)) == b"ok"
            await until(lambda: not through.open_connections, within=5)

    run(main())


def test_a_cookie_of_one_answer_is_not_kept_for_the_next_request(authority: Authority) -> None:
    asked: list[Asked] = []

    async def play(peer: Peer) -> None:
        while True:
            asked.append(await peer.request())
            peer.answer(asked[-1].stream, b"ok", ("set-cookie", "a=b; Path=/"))

    async def main() -> None:
        async with http2_upstream(play, authority) as upstream, transport() as through:
            for _ in range(2):
                await call(through, provider_at(upstream, authority))
            assert len(upstream.peers) == 1
            assert [name for request in asked for name, _ in request.headers if name == b"cookie"] == []

    run(main())
