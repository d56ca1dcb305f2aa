"""The protocol between clients and the application, on real sockets: what uvicorn's own does not keep."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import msgspec
import pytest

from gateway import http_protocol
from gateway.http_protocol import Server, server_for
from gateway.relay.messages import BODY_FOLLOWS, HANG_UP, WHOLE_BODY, WRITE_AT_ONCE
from gateway.serving import DRAINING, ClientLimits, Message, PortTaken, Receive, Scope, Send, listen, refuse_root_path
from tests.support.hostile import ambiguous
from tests.support.loops import run

QUICK = ClientLimits(head_seconds=0.3, min_body_bytes_per_second=1000, write_stall_seconds=0.3)
PATIENT = ClientLimits()


@pytest.fixture(autouse=True)
def _quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(http_protocol, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(http_protocol, "LINGER_SECONDS", 0.3)
    DRAINING.clear()
    yield
    DRAINING.clear()


class Application:
    """Answers `ok`; its path says otherwise. Notes what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, int]] = []
        """Method, path and length of the body of every whole request."""
        self.left: list[str] = []
        """Paths whose client went away."""
        self.heads: list[list[tuple[bytes, bytes]]] = []
        self.written_at_once = 0
        self.gave_up = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == "/refuse":
            return await self._answer(send, 413)
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return self.left.append(path)
            size += len(message["body"])
            if not message["more_body"]:
                break
        self.got.append((scope["method"], path, size))
        self.heads.append(scope["headers"])
        if path == "/wait":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.append(path)
        elif path == "/watch":
            scope["extensions"][HANG_UP](self._hung_up)
            await asyncio.sleep(60)
        elif path == "/flood":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            piece: Message = {"type": "http.response.body", "body": b"x" * 65536, "more_body": True}
            for _ in range(1000):
                await send(piece)
                await asyncio.sleep(0)
            self.left.append(path)
        elif path == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            try:
                await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await send({"type": "http.response.body", "body": b"cut", "more_body": True})
                raise
        elif path == "/half":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        elif path == "/whole":
            assert WHOLE_BODY in scope["extensions"]
            head = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]}
            await send(head | {WHOLE_BODY: b"whole"})
            with pytest.raises(RuntimeError):
                await send({"type": "http.response.body", "body": b"more"})
        elif path == "/at-once":
            write = scope["extensions"][WRITE_AT_ONCE]()
            assert not write(b"before the head")
            await send({"type": "http.response.start", "status": 200, "headers": [], BODY_FOLLOWS: True})
            assert not write(b"while the head waits")
            await send({"type": "http.response.body", "body": b"one ", "more_body": True})
            assert write(b"two ")
            await send({"type": "http.response.body", "body": b"three"})
            assert not write(b"behind the end")
        elif path == "/at-once-for-ever":
            write = scope["extensions"][WRITE_AT_ONCE]()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await asyncio.sleep(0.05)
            while write(b"x" * 65536):
                self.written_at_once += 65536
                await asyncio.sleep(0)
            self.gave_up.set()
        elif path == "/slow":
            await asyncio.sleep(0.3)
            await self._answer(send, 200)
        else:
            await self._answer(send, 200)

    def _hung_up(self, task: asyncio.Task[None]) -> None:
        self.left.append("/watch")
        task.cancel()

    async def _answer(self, send: Send, status: int) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


class Served:
    def __init__(self, app: Application, server: Server, port: int) -> None:
        self.app = app
        self.server = server
        self.port = port

    async def ask(self, *pieces: bytes | float, within: float = 3.0) -> tuple[bytes, bool]:
        """Sends the pieces, waiting where a number stands; returns what came and whether the server closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        got = bytearray()
        try:
            for piece in pieces:
                if isinstance(piece, float):
                    await asyncio.sleep(piece)
                    continue
                writer.write(piece)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
            try:
                async with asyncio.timeout(within):
                    while data := await reader.read(65536):
                        got += data
            except TimeoutError:
                return bytes(got), False
            except ConnectionError:
                pass
            return bytes(got), True
        finally:
            writer.close()

    async def status(self, *pieces: bytes | float, within: float = 3.0) -> tuple[int, bool]:
        """Of the first answer; 0: none came."""
        got, closed = await self.ask(*pieces, within=within)
        return int(got[9:12]) if got else 0, closed

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110 - what is awaited has no event
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def serving(limits: ClientLimits = PATIENT, drain_seconds: float = 5.0) -> AsyncIterator[Served]:
    app = Application()
    server = server_for(app, limits=limits, drain_seconds=drain_seconds)
    bound = listen("127.0.0.1", 0)
    task = asyncio.ensure_future(server._serve([bound]))
    served = Served(app, server, bound.getsockname()[1])
    await served.until(lambda: server.started)
    try:
        yield served
    finally:
        server.handle_exit(15, None)
        server.force_exit = True
        await task


def on_uvloop(main: Coroutine[Any, Any, None]) -> None:
    run(main, loop="uvloop")


POST = b"POST /a HTTP/1.1\r\nHost: x\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

AMBIGUOUS = ambiguous(POST, b"abcde") | {
    "a path that is not ASCII": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n",
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("request_bytes", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_an_ambiguous_request_is_refused_and_nothing_behind_it_is_read(request_bytes: bytes) -> None:
    async def main() -> None:
        async with serving() as served:
            assert await served.status(request_bytes + SMUGGLED) == (400, True)
            assert served.app.got == []

    on_uvloop(main())


@pytest.mark.parametrize(
    "head",
    [
        POST + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        POST + b"".join(b"X%d: %s\r\n" % (n, b"a" * 100) for n in range(700)) + b"\r\n",
        POST + b"X: " + b"a" * 70_000,
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ],
    ids=["one field", "many fields", "without an end", "the path"],
)
def test_a_head_over_64_kib_is_refused(head: bytes) -> None:
    async def main() -> None:
        async with serving() as served:
            assert await served.status(head) == (431, True)
            assert served.app.got == []

    on_uvloop(main())


def test_a_head_just_under_64_kib_followed_by_a_large_body_is_served() -> None:
    async def main() -> None:
        async with serving() as served:
            head = POST + b"X: " + b"a" * 65_000 + b"\r\nConnection: close\r\nContent-Length: 300000\r\n\r\n"
            assert await served.status(head + b"b" * 300_000) == (200, True)
            assert served.app.got == [("POST", "/a", 300_000)]

    on_uvloop(main())


def test_a_slow_head_is_answered_408_and_a_silent_connection_is_closed() -> None:
    async def main() -> None:
        async with serving(QUICK) as served:
            assert await served.status(POST) == (408, True)
            assert await served.ask(within=2.0) == (b"", True)
            # also the second one on a connection
            first = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
            got, closed = await served.ask(first, 0.1, b"GET /b HT")
            assert [got.count(b"HTTP/1.1 200"), got.count(b"HTTP/1.1 408"), closed] == [1, 1, True]

    on_uvloop(main())


def test_a_slow_body_is_answered_408_in_the_dialect_of_its_path() -> None:
    async def main() -> None:
        async with serving(QUICK) as served:
            head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n%s\r\n"
            for path, extra, shape in (
                (b"/v1/messages", b"", {"type", "error", "request_id"}),
                (b"/v1/chat/completions", b"", {"error"}),
                (b"/v1/x", b"anthropic-version: 2023-06-01\r\n", {"type", "error", "request_id"}),
            ):
                got, closed = await served.ask(head % (path, extra) + b"abc")
                body = msgspec.json.decode(got.partition(b"\r\n\r\n")[2])
                assert (got[:12], closed, set(body)) == (b"HTTP/1.1 408", True, shape)
                assert body["error"]["code"] == "request_timeout"
                assert b"\r\nx-request-id: req_" in got
            assert served.app.left == ["/v1/messages", "/v1/chat/completions", "/v1/x"]

    on_uvloop(main())


def test_a_body_that_is_fast_enough_may_take_longer_than_the_grace() -> None:
    async def main() -> None:
        async with serving(QUICK) as served:
            pieces = [piece for _ in range(10) for piece in (b"a" * 300, 0.08)]
            head = POST + b"Connection: close\r\nContent-Length: 3000\r\n\r\n"
            assert await served.status(head, *pieces) == (200, True)
            assert served.app.got == [("POST", "/a", 3000)]

    on_uvloop(main())


def test_a_client_that_reads_nothing_is_cut_off() -> None:
    async def main() -> None:
        async with serving(QUICK) as served:
            _, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
            writer.write(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
            await served.until(lambda: served.app.got)
            await served.until(lambda: not served.server.server_state.connections)
            await served.until(lambda: served.app.left == ["/flood"])
            writer.close()

    on_uvloop(main())


def test_a_client_that_reads_slowly_is_not_cut_off() -> None:
    async def main() -> None:
        async with serving(QUICK) as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=65536)
            writer.write(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
            loop = asyncio.get_running_loop()
            by = loop.time() + 3 * QUICK.write_stall_seconds
            while loop.time() < by:
                await reader.readexactly(400_000)
                await asyncio.sleep(0.02)
            assert served.app.left == []
            assert len(served.server.server_state.connections) == 1
            writer.close()
            await served.until(lambda: served.app.left == ["/flood"])

    on_uvloop(main())


def test_a_refused_body_is_read_for_a_while_and_then_the_connection_ends() -> None:
    async def main() -> None:
        async with serving() as served:
            head = b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 300\r\n\r\n"
            assert await served.status(head, within=2.0) == (413, True)
            # a client that sends it all the same can go on using its connection
            again = b"a" * 300 + b"GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            got, closed = await served.ask(head, 0.1, again)
            assert [got.count(b"HTTP/1.1 413"), got.count(b"HTTP/1.1 200"), closed] == [1, 1, True]
            assert served.app.got == [("GET", "/b", 0)]

    on_uvloop(main())


def test_a_client_that_waits_for_100_and_is_refused_loses_its_connection() -> None:
    async def main() -> None:
        async with serving() as served:
            expecting = b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n"
            assert await served.status(b"POST /refuse HTTP/1.1\r\nHost: x\r\n" + expecting) == (413, True)
            got, _ = await served.ask(POST + b"Connection: close\r\n" + expecting, 0.1, b"abc")
            assert got.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
            assert served.app.got == [("POST", "/a", 3)]

    on_uvloop(main())


def test_an_answer_in_one_message_is_whole() -> None:
    async def main() -> None:
        async with serving() as served:
            whole = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwhole"
            head = b"HEAD /whole HTTP/1.1\r\nHost: x\r\n\r\n"
            last = b"GET /whole HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            got, closed = await served.ask(b"GET /whole HTTP/1.1\r\nHost: x\r\n\r\n", 0.1, head, 0.1, last)
            got = re.sub(rb"date: [^\r]*\r\n", b"", got)
            assert got == whole + whole[:-5] + whole.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
            assert closed
            assert len(served.app.got) == 3

    on_uvloop(main())


def test_pipelined_requests_are_answered_in_order_within_a_bound() -> None:
    async def main() -> None:
        async with serving() as served:
            last = b"GET /z HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            got, closed = await served.ask(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * 3 + last)
            assert [got.count(b"HTTP/1.1 200"), closed] == [4, True]
            assert [path for _, path, _ in served.app.got] == ["/a", "/a", "/a", "/z"]
            got, closed = await served.ask(b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n" * 30)
            assert [got.count(b"HTTP/1.1 "), closed, served.app.got[4:]] == [1, True, [("GET", "/b", 0)]]

    on_uvloop(main())


def test_the_request_being_served_hears_its_client_leave_also_with_others_queued() -> None:
    async def main() -> None:
        async with serving() as served:
            await served.ask(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n" + SMUGGLED, within=0.2)
            await served.until(lambda: served.app.left == ["/wait"])
            assert served.app.got == [("GET", "/wait", 0)]

    on_uvloop(main())


@pytest.mark.parametrize("behind", [b"", SMUGGLED], ids=["alone", "with another queued"])
def test_what_a_request_asked_to_call_when_its_client_leaves_is_called(behind: bytes) -> None:
    async def main() -> None:
        async with serving() as served:
            _, closed = await served.ask(b"GET /watch HTTP/1.1\r\nHost: x\r\n\r\n" + behind, within=0.2)
            assert not closed
            await served.until(lambda: served.app.left == ["/watch"])
            await served.until(lambda: not served.server.server_state.tasks)
            assert served.app.got == [("GET", "/watch", 0)]

    on_uvloop(main())


def test_a_connection_is_closed_once_it_has_been_idle_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "KEEP_ALIVE_SECONDS", 0.5)
    get = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
    slow = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"

    async def main() -> None:
        async with serving() as served:
            got, closed = await served.ask(get, 0.3, get, 0.3, slow, slow, within=0.4)
            assert [got.count(b"HTTP/1.1 200"), closed] == [3, False]
            got, closed = await served.ask(get, within=3.0)
            assert [got.count(b"HTTP/1.1 200"), closed] == [1, True]

    on_uvloop(main())


def test_the_body_of_a_queued_request_may_come_after_the_answer_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "LINGER_SECONDS", 0.1)
    begun = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nPOST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab"

    async def main() -> None:
        async with serving() as served:
            got, _ = await served.ask(begun, 0.5, b"cde", within=0.5)
            assert got.count(b"HTTP/1.1 200") == 2
            assert served.app.got == [("GET", "/a", 0), ("POST", "/b", 5)]

    on_uvloop(main())


def test_pieces_written_at_once_stand_between_those_that_were_sent() -> None:
    async def main() -> None:
        async with serving() as served:
            got, closed = await served.ask(b"GET /at-once HTTP/1.1\r\nHost: x\r\n\r\n", within=0.5)
            head, _, body = got.partition(b"\r\n\r\n")
            assert (b"transfer-encoding: chunked" in head, closed) == (True, False)
            assert body == b"4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n"

    on_uvloop(main())


def test_nothing_is_written_at_once_for_a_client_that_does_not_read() -> None:
    async def main() -> None:
        async with serving() as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
            writer.write(b"GET /at-once-for-ever HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(20):
                await served.app.gave_up.wait()
            assert 0 < served.app.written_at_once < 64 << 20
            assert not reader.at_eof()
            writer.close()

    on_uvloop(main())


def test_rubbish_behind_a_request_does_not_spoil_its_answer() -> None:
    async def main() -> None:
        async with serving() as served:
            got, closed = await served.ask(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n", 0.1, b"rubbish\r\n\r\n")
            assert [got[:15], got.count(b"HTTP/1.1"), closed] == [b"HTTP/1.1 200 OK", 1, True]

    on_uvloop(main())


def test_trailers_do_not_change_the_head() -> None:
    async def main() -> None:
        async with serving() as served:
            await served.ask(CHUNKED + b"0\r\nauthorization: late\r\n\r\n", within=0.2)
            assert served.app.heads == [[(b"host", b"x"), (b"transfer-encoding", b"chunked")]]

    on_uvloop(main())


def test_an_offer_of_another_protocol_does_not_cost_the_body() -> None:
    async def main() -> None:
        async with serving() as served:
            offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n"
            assert await served.status(POST + offer + b"Content-Length: 6\r\n\r\nabc", 0.05, b"def") == (200, True)
            websocket = b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            assert await served.status(websocket) == (200, True)
            assert served.app.got == [("POST", "/a", 6), ("GET", "/v1/responses", 0)]
            assert (b"upgrade", b"websocket") in served.app.heads[1]

    on_uvloop(main())


def test_half_an_answer_never_looks_like_a_whole_one() -> None:
    async def main() -> None:
        async with serving() as served:
            got, closed = await served.ask(b"GET /half HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (got.endswith(b"\r\n4\r\nhalf\r\n"), closed) == (True, True)

    on_uvloop(main())


def test_a_stop_waits_for_answers_and_cuts_what_is_left_at_its_end() -> None:
    async def main() -> None:
        async with serving(drain_seconds=0.6) as served:
            idle = asyncio.ensure_future(served.ask(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"))
            slow = asyncio.ensure_future(served.ask(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"))
            endless = asyncio.ensure_future(served.ask(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"))
            await served.until(lambda: len(served.app.got) == 3)
            served.server.handle_exit(15, None)
            assert DRAINING.is_set()
            got, closed = await idle
            assert (got[:15], closed) == (b"HTTP/1.1 200 OK", True)
            got, closed = await slow
            assert (got[:15], closed) == (b"HTTP/1.1 200 OK", True)
            got, closed = await endless
            assert (got.endswith(b"\r\n3\r\ncut\r\n"), closed) == (True, True)

    on_uvloop(main())


def test_a_taken_port_is_named() -> None:
    with listen("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(PortTaken, match=f"^port {port} on 127.0.0.1 is already in use$"):
            listen("127.0.0.1", port)


def test_only_requests_with_a_root_path_are_refused() -> None:
    async def main() -> None:
        reached: list[str] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            reached.append(scope["type"])

        async def receive() -> Message:
            return {}

        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        guarded = refuse_root_path(app)
        await guarded({"type": "http", "root_path": ""}, receive, send)
        await guarded({"type": "lifespan"}, receive, send)
        assert (reached, sent) == (["http", "lifespan"], [])
        await guarded({"type": "http", "path": "/v1/messages", "root_path": "/evil"}, receive, send)
        await guarded({"type": "websocket", "root_path": "/evil"}, receive, send)
        assert reached == ["http", "lifespan"]
        assert [(message["type"], message.get("status")) for message in sent] == [
            ("http.response.start", 400),
            ("http.response.body", None),
            ("websocket.close", None),
        ]

    run(main())
