"""What comes back, and what is not believed."""

import asyncio

import pytest

from gateway.upstream.client import Headers
from gateway.upstream.pooled import PooledTransport
from tests.gateway.upstream.calling import call, failure, http1_only, now, provider_at, send, transport, until
from tests.support.loops import LoopName, on_both_loops, run
from tests.support.scripted import (
    LAST_CHUNK,
    AwaitPeer,
    Close,
    Drip,
    Expect,
    ExpectHead,
    Flood,
    Pause,
    Reset,
    Script,
    ScriptedUpstream,
    Send,
    answer,
    chunk,
    chunked_head,
    scripted,
)

OK = b"HTTP/1.1 200 OK\r\n"


async def exchange(script: Script) -> tuple[int, Headers, bytes, bool, bool]:
    """Status, headers, body, whether the end of the connection ended it, whether the connection is kept."""
    async with scripted([Expect(), *script]) as upstream, transport() as through:
        response = await send(through, provider_at(upstream))
        body = await response.read(by=now() + 5, limit=1 << 20)
        assert through.in_use("p") == 0
        await asyncio.sleep(0)
        kept = not upstream.connections[0].peer_gone.is_set() and await _is_still_open(through)
        return response.status, response.headers, body, response.complete_by_eof, kept


async def _is_still_open(through: PooledTransport) -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return through.open_connections > 0


@on_both_loops
def test_status_headers_in_order_and_lower_case_and_body_come_as_sent(kind: str, loop: LoopName) -> None:
    wire = OK + b"X-B: 1\r\nContent-Length: 3\r\nx-a:  Two \r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\nabc"
    headers = [
        (b"x-b", b"1"),
        (b"content-length", b"3"),
        (b"x-a", b"Two " if kind == "http1" else b"Two"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
    ]
    assert run(exchange([Send(wire)]), loop=loop) == (200, headers, b"abc", False, kind == "http1")


@on_both_loops
@pytest.mark.parametrize(
    ("wire", "status", "body", "by_eof", "kept"),
    [
        (answer(b"abc"), 200, b"abc", False, True),
        (answer(b"", status=500), 500, b"", False, True),
        (answer(b"no", status=429), 429, b"no", False, True),
        (answer(b"", status=302, headers={"location": "http://10.0.0.1/"}), 302, b"", False, True),
        (chunked_head() + chunk(b"ab") + chunk(b"c") + LAST_CHUNK, 200, b"abc", False, True),
        (chunked_head() + b"1;x=y\r\na\r\n0\r\nx-trailer: 1\r\n\r\n", 200, b"a", False, False),
        (b"HTTP/1.1 204 No\r\n\r\n", 204, b"", False, True),
        (b"HTTP/1.1 204 No\r\ncontent-length: 3\r\n\r\n", 204, b"", False, False),
        (b"HTTP/1.1 204 No\r\ncontent-length: 3\r\n\r\nabc", 204, b"", False, False),
        (b"HTTP/1.1 204 No\r\n\r\nabc", 204, b"", False, False),
        (b"HTTP/1.1 304 No\r\ncontent-length: 3\r\n\r\n", 304, b"", False, False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nab", 200, b"ab", False, False),
        (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nab", 200, b"ab", False, False),
        (answer(b"ab", headers={"connection": "close"}), 200, b"ab", False, False),
        (answer(b"ab") + b"\r\n", 200, b"ab", False, False),
        (answer(b"") + b"\r\n", 200, b"", False, False),
        (answer(b"ab") + b"x", 200, b"ab", False, False),
        (answer(b"ab") + answer(b"evil"), 200, b"ab", False, False),
        (chunked_head() + chunk(b"ab") + LAST_CHUNK + answer(b"evil"), 200, b"ab", False, False),
        (chunked_head() + chunk(b"ab") + LAST_CHUNK + b"\r\n", 200, b"ab", False, False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 8 + answer(b"ab"), 200, b"ab", False, True),
        (b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + answer(b"ab"), 200, b"ab", False, True),
        (OK + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nab", 200, b"ab", False, True),
    ],
)
def test_a_well_formed_answer_is_read_and_the_connection_kept_only_when_nothing_is_in_doubt(
    wire: bytes, status: int, body: bytes, by_eof: bool, kept: bool, kind: str, loop: LoopName
) -> None:
    got = run(exchange([Send(wire)]), loop=loop)
    assert (got[0], got[2], got[3], got[4]) == (status, body, by_eof, kept and kind == "http1")


@on_both_loops
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_body_without_length_or_chunks_ends_with_the_connection_and_says_so(version: bytes, loop: LoopName) -> None:
    wire = b"HTTP/%b 200 OK\r\nx-a: b\r\n\r\nabc" % version
    got = run(exchange([Send(wire), Close()]), loop=loop)
    assert got == (200, [(b"x-a", b"b")], b"abc", True, False)


@on_both_loops
def test_an_answer_that_comes_byte_by_byte_is_the_same_answer(loop: LoopName) -> None:
    wire = b"HTTP/1.1 100 C\r\n\r\n" + chunked_head() + chunk(b"hello") + chunk(b"x" * 20) + LAST_CHUNK
    got = run(exchange([Drip(wire, every=0.0)]), loop=loop)
    assert (got[0], got[2], got[3]) == (200, b"hello" + b"x" * 20, False)


async def faulty(script: Script, error: str) -> None:
    async def read(through: PooledTransport, upstream: ScriptedUpstream) -> bytes:
        response = await send(through, provider_at(upstream))
        return bytes(await response.read(by=now() + 5, limit=1 << 20))

    async with scripted([Expect(), *script, AwaitPeer()]) as upstream, transport() as through:
        name, _ = await failure(read(through, upstream))
        assert (name, through.in_use("p")) == (error, 0)
        await until(lambda: upstream.connections[0].ended.is_set() and not through.open_connections)


@on_both_loops
@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([Close()], "ConnectionLost"),
        ([Reset()], "ConnectionLost"),
        ([Send(b"HTTP/1.1 200 OK\r\nx-a"), Reset()], "ConnectionLost"),
        ([Send(b"HTTP/1.1 200 OK\r\nx-a"), Close()], "ConnectionLost"),
        ([Send(OK + b"content-length: 10\r\n\r\nabc"), Close()], "ConnectionLost"),
        ([Send(OK + b"content-length: 10\r\n\r\nabc"), Reset()], "ConnectionLost"),
        ([Send(chunked_head() + chunk(b"abc")), Close()], "ConnectionLost"),
        ([Send(chunked_head() + b"5\r\nab"), Close()], "ConnectionLost"),
        ([Send(OK + b"\r\nabc"), Pause(0.02), Reset()], "ConnectionLost"),
        ([Send(b"nonsense\r\n\r\n")], "ProtocolError"),
        ([Send(b"HTTP/1.1 2000 OK\r\n\r\n")], "ProtocolError"),
        ([Send(b"HTTP/1.1 abc OK\r\n\r\n")], "ProtocolError"),
        ([Send(b"HTTP/1.1 000 OK\r\n\r\n")], "ProtocolError"),
        ([Send(b"HTTP/1.1 600 OK\r\n\r\n")], "ProtocolError"),
        ([Send(b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n")], "ProtocolError"),
        ([Send(b"HTTP/0.9 200 OK\r\ncontent-length: 0\r\n\r\n")], "ProtocolError"),
        ([Send(b"SSH-2.0-OpenSSH_9.0\r\n")], "ProtocolError"),
        ([Send(OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nabc")], "ProtocolError"),
        ([Send(OK + b"content-length: -2\r\n\r\nab")], "ProtocolError"),
        ([Send(OK + b"content-length: 99999999999999999999999\r\n\r\nab")], "ProtocolError"),
        ([Send(OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n")], "ProtocolError"),
        ([Send(OK + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nab\r\n")], "ProtocolError"),
        ([Send(OK + b"transfer-encoding: gzip, chunked\r\n\r\n")], "ProtocolError"),
        ([Send(OK + b"transfer-encoding: gzip\r\n\r\n")], "ProtocolError"),
        ([Send(OK + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n")], "ProtocolError"),
        ([Send(b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")], "ProtocolError"),
        ([Send(OK + b"x-a : b\r\n\r\n")], "ProtocolError"),
        ([Send(chunked_head() + b"zz\r\nabc\r\n")], "ProtocolError"),
        ([Send(chunked_head() + b"2\r\nabc\r\n")], "ProtocolError"),
        ([Send(chunked_head() + b"fffffffffffffffffffff\r\n")], "ProtocolError"),
        ([Send(b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")], "ProtocolError"),
        ([Send(b"HTTP/1.1 101 Switching\r\n\r\n")], "ProtocolError"),
        ([Send(OK + b"x-a: " + b"y" * 204_800 + b"\r\n\r\n")], "ResponseTooLarge"),
        ([Send(OK + b"x: y\r\n" * 20_000 + b"\r\n")], "ResponseTooLarge"),
        ([Send(OK), Flood(b"x: y\r\n" * 100, 1 << 30)], "ResponseTooLarge"),
        ([Send(chunked_head() + b"1;" + b"x" * 1000), Flood(b"x" * 10_000, 1 << 30)], "ResponseTooLarge"),
        ([Send(chunked_head() + b"0\r\n"), Flood(b"x: y\r\n" * 1000, 1 << 30)], "ResponseTooLarge"),
        ([Send(answer(b"x" * 2_000_000))], "ResponseTooLarge"),
        ([Send(chunked_head()), Flood(chunk(b"x" * 100_000), 1 << 30)], "ResponseTooLarge"),
    ],
)
def test_a_fault_is_the_error_of_its_kind_and_closes_the_connection(script: Script, error: str, loop: LoopName) -> None:
    run(faulty(script, error), loop=loop)


@http1_only
@on_both_loops
@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([Send(OK + b"content-length: 2\r\ncontent-length: 2\r\n\r\nab")], "ProtocolError"),
        ([Send(OK + b"x-a: b\r\n folded\r\n\r\n")], "ProtocolError"),
        ([Send(b"HTTP/1.1 200 OK\ncontent-length: 0\n\n")], "ProtocolError"),
        ([Send(b"HTTP/1.1 100 C\r\ncontent-length: 3\r\n\r\nabc")], "ProtocolError"),
        ([Send(b"HTTP/1.1 100 Continue\r\n\r\n" * 9 + answer())], "ResponseTooLarge"),
    ],
)
def test_what_the_other_transport_lets_pass_is_refused(script: Script, error: str, loop: LoopName) -> None:
    run(faulty(script, error), loop=loop)


def test_interim_answers_without_end_are_refused() -> None:
    run(faulty([Flood(b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 1 << 30)], "ResponseTooLarge"))


def test_what_came_before_a_fault_is_received_before_the_error() -> None:
    async def main() -> None:
        script: Script = [Expect(), Send(chunked_head() + chunk(b"good")), Send(b"bad chunk\r\n")]
        async with scripted(script) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            assert await response.receive(by=now() + 5) == b"good"
            assert (await failure(response.receive(by=now() + 5)))[0] == "ProtocolError"
            assert (await failure(response.receive(by=now() + 5)))[0] == "ProtocolError"

    run(main())


def test_an_error_of_the_parser_does_not_repeat_what_was_received() -> None:
    async def main() -> None:
        async with scripted([Expect(), Send(b"CANARY canary\r\n\r\n")]) as upstream, transport() as through:
            name, text = await failure(send(through, provider_at(upstream)))
            assert (name, "anary" in text) == ("ProtocolError", False)

    run(main())


def test_a_head_of_just_the_allowed_size_is_read_and_one_byte_more_is_not() -> None:
    def sized(size: int) -> bytes:
        start, end = OK + b"content-length: 70000\r\nx-a: ", b"\r\n\r\n"
        return start + b"y" * (size - len(start) - len(end)) + end + b"z" * 70_000

    async def main() -> None:
        async with scripted([Expect(), Send(sized(65_536))]) as upstream, transport() as through:
            assert await call(through, provider_at(upstream)) == b"z" * 70_000
        async with scripted([Expect(), Send(sized(65_537))]) as upstream, transport() as through:
            assert (await failure(send(through, provider_at(upstream))))[0] == "ResponseTooLarge"

    run(main())


def test_an_encoded_body_is_handed_on_as_it_is(kind: str) -> None:
    wire = answer(b"\x1f\x8bzip", headers={"content-encoding": "gzip"})
    _, headers, body, _, kept = run(exchange([Send(wire)]))
    assert ((b"content-encoding", b"gzip") in headers, body, kept) == (True, b"\x1f\x8bzip", kind == "http1")


@on_both_loops
def test_an_answer_before_the_request_is_out_is_read_and_its_connection_not_used_again(loop: LoopName) -> None:
    async def main() -> None:
        early: Script = [ExpectHead(), Send(answer(b"too large", status=413)), AwaitPeer()]
        async with scripted(early) as upstream, transport() as through:
            response = await send(through, provider_at(upstream), b"x" * 50_000_000)
            body = await response.read(by=now() + 5, limit=100)
            assert (response.status, body, through.in_use("p")) == (413, b"too large", 0)
            await until(lambda: not through.open_connections)

    run(main(), loop=loop)


@on_both_loops
def test_a_request_cut_short_by_its_answer_spoils_the_connection_also_when_what_was_written_has_drained(
    loop: LoopName,
) -> None:
    async def main() -> None:
        wire = answer(b"too large", status=413)
        early: Script = [ExpectHead(), Send(wire[:-1]), Pause(0.1), Send(wire[-1:]), AwaitPeer()]
        async with scripted(early) as upstream, transport() as through:
            response = await send(through, provider_at(upstream), b"x" * 50_000_000)
            assert await response.read(by=now() + 5, limit=100) == b"too large"
            assert len(upstream.connections[0].raw) < 50_000_000
            await until(lambda: not through.open_connections)

    run(main(), loop=loop)


@on_both_loops
def test_bytes_before_any_request_spoil_the_connection(loop: LoopName) -> None:
    async def main() -> None:
        async with scripted([Send(b"x"), AwaitPeer()]) as upstream, transport() as through:
            name, _ = await failure(send(through, provider_at(upstream)))
            assert name in ("ConnectionLost", "ProtocolError")

    run(main(), loop=loop)


def test_a_closed_response_has_nothing_more_to_give() -> None:
    async def main() -> None:
        async with scripted([Expect(), Send(answer(b"abc"))]) as upstream, transport() as through:
            response = await send(through, provider_at(upstream))
            response.close()
            response.close()
            assert (await failure(response.receive(by=now() + 1)))[0] == "ConnectionLost"

    run(main())
