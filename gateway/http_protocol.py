"""uvicorn's HTTP/1.1 protocol with what it lacks: deadlines for slow clients, bounds, and a drain that ends in code 0.

One sweep over all connections, twice a second, keeps every deadline: a request costs no timer of its own.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
import sys
import uuid
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any
from urllib.parse import unquote

import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import HANDLED_SIGNALS

from gateway.http_cycle import Cycle, ExpectingCycle
from gateway.relay.messages import HANG_UP, UNFINISHED, WHOLE_BODY, WRITE_AT_ONCE, WriteAtOnce
from gateway.serving import DRAINING, KEEP_ALIVE_SECONDS, SOCKETS, Application, ClientLimits
from gateway.socket_protocol import MAX_MESSAGE_BYTES, PING_SECONDS, sockets

log = logging.getLogger("pilotage.serving")

MAX_HEAD_BYTES = 64 << 10
MAX_PIPELINED = 8
"""Requests that may wait on one connection behind the one being served."""
LINGER_SECONDS = 5.0
"""How long the rest of a body is read and thrown away after it was refused, so that the client can read the answer."""
SWEEP_SECONDS = 0.5
ENDING_SECONDS = 2.0
"""What a request that was still running at the end of the drain has for its error event."""

_BODY_FIELDS = (b"content-length", b"transfer-encoding")

IDLE, HEAD, BODY = range(3)
"""Where the parser stands: between two requests, in a request's head, in its body."""


REFUSALS: dict[str, tuple[int, str]] = {
    "malformed_request": (400, "The request is not valid HTTP/1.1."),
    "too_many_pipelined": (400, "Too many requests wait on this connection."),
    "request_timeout": (408, "The request did not arrive in time."),
    "head_too_large": (431, f"The request's head is larger than {MAX_HEAD_BYTES:,} bytes."),
}
"""What is refused before the application sees it: code, status, message."""


class Refused(Exception):
    """Raised in a parser callback; ends the connection with an answer."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.status, self.message = REFUSALS[code]
        super().__init__(self.message)


_AT_ONCE = struct.pack("ii", 1, 0)


def _reset(transport: asyncio.Transport) -> None:
    """Ends the connection with a RST: else the kernel keeps what waits in it for a client that does not take it."""
    with contextlib.suppress(OSError):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()


ESTABLISHED = 1
"""The kernel's word for a connection that neither side has ended (`tcp_states.h`)."""
TCP_INFO_SIZE, TCP_BYTES_ACKED = 128, 120
"""How much of Linux's `tcp_info` is asked for; where its `tcpi_bytes_acked` (8 bytes, since 4.1) stands."""


def _has_left(transport: asyncio.Transport) -> bool:
    """Whether the client has closed its side. Nothing else tells while nothing is read."""
    state: int = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state != ESTABLISHED


def _acknowledged(transport: asyncio.Transport) -> int:
    """How many bytes the client's side has taken over the connection's life."""
    info: bytes = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_SIZE)
    return int.from_bytes(info[TCP_BYTES_ACKED : TCP_BYTES_ACKED + 8], sys.byteorder)


class ClientProtocol(HttpToolsProtocol):
    limits = ClientLimits()
    cycle: Cycle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._phase = HEAD
        self._since = self.loop.time()
        """Start of the head; of the body, its first sweep; of the lingering, its first sweep."""
        self._head_bytes = 0
        self._weigh = False
        self._body_bytes = 0
        self._body_s = 0.0
        """How long we have waited for the body, the time in which we did not want it left out."""
        self._trailer_bytes = 0
        self._lingers = False
        self._acknowledged = -1
        """Bytes that the client's side had taken at the last sweep; -1 while none were waiting for it."""
        self._stalled_since = 0.0
        self._without_upgrade = False
        """The head that came asks for another protocol and has a body, which the parser would not read."""
        self._opens_socket = False
        """The head that came is a websocket's, whose protocol takes over."""
        self._ended = False
        """Nothing more is read from this connection."""
        self._running: Cycle | None = None
        self._idle_since = 0.0
        self._extensions: dict[str, Any] = {
            UNFINISHED: {},
            WHOLE_BODY: {},
            HANG_UP: self._call_at_hang_up,
            WRITE_AT_ONCE: self._writer,
        }

    def connection_lost(self, exc: Exception | None) -> None:
        running = self._running
        if running is not None and not running.response_complete:
            # uvicorn tells only the newest of several pipelined requests.
            running.hang_up()
        self.pipeline.clear()
        self._extensions.clear()  # they name this connection
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Nothing more will be sent: taken for leaving. What the client did not read would else keep the connection."""
        if self._is_serving():
            _reset(self.transport)

    def _call_at_hang_up(self, call: Callable[[asyncio.Task[None]], None]) -> None:
        running = self._running
        assert running is not None
        running.at_hang_up = call
        self.flow.resume_reading()  # nothing else tells that the client has left
        if running.disconnected:
            self.loop.call_soon(running.hang_up)

    def _writer(self) -> WriteAtOnce:
        assert self._running is not None
        return self._running.write_at_once

    def _is_serving(self) -> bool:
        running = self._running
        return running is not None and not running.response_complete

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        if self._phase == IDLE:
            self._begin_head(0)
        if self._phase == HEAD:
            self._weigh = self._head_bytes + len(data) > MAX_HEAD_BYTES
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._opens_socket:
                self._ended = True
                self.handle_websocket_upgrade()
                return
            # Answered as the plain request it also is: Java's client offers h2c with every first request.
            if self._without_upgrade:
                self._read_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as problem:
            refused = problem.__context__
            if not isinstance(refused, Refused):
                refused = Refused("malformed_request")
            self._refuse(refused)
            return
        if self._phase == HEAD and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(Refused("head_too_large"))

    def _begin_head(self, size: int) -> None:
        self._phase = HEAD
        self._since = self.loop.time()
        self._head_bytes = size

    def _read_without_upgrade(self, rest: bytes) -> None:
        """Reads the head once more without its offer, so that the body belongs to it."""
        self._without_upgrade = False
        named = (b"upgrade", b"connection", b"http2-settings")
        kept = b"".join(b"%s: %s\r\n" % field for field in self.headers if field[0] not in named)
        head = b"%s %s HTTP/1.1\r\n%sconnection: close\r\n\r\n" % (self.parser.get_method(), self.url, kept)
        self.parser = httptools.HttpRequestParser(self)
        self._begin_head(0)
        self.data_received(head + rest)

    # Parser callbacks

    def on_message_begin(self) -> None:
        if self._phase != HEAD:  # the second request in one piece of data
            self._begin_head(0)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == BODY:
            # A trailer. The head that the application has must not change under it.
            self._trailer_bytes += len(name) + len(value) + 4
            if self._trailer_bytes > MAX_HEAD_BYTES:
                raise Refused("head_too_large")
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser, scope = self.parser, self.scope
        if (
            self._weigh
            and len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES
        ):
            raise Refused("head_too_large")
        if parser.should_upgrade() and any(name in _BODY_FIELDS for name, _ in self.headers):
            self._without_upgrade = True
            return
        http_version = parser.get_http_version()
        if parser.should_upgrade() and self._wants_socket(http_version):
            scope["method"] = "GET"
            self._opens_socket = True
            return
        if http_version == "1.1":
            keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        else:
            keep_alive = False
            scope["http_version"] = http_version
        url = self.url
        if not url.startswith(b"/"):  # `GET http://host/path`, `OPTIONS *`
            parsed = httptools.parse_url(url)
            url = (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")
        raw_path, _, query = url.partition(b"?")
        path = raw_path.decode("ascii")
        scope["extensions"] = self._extensions
        scope["method"] = parser.get_method().decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = raw_path
        scope["query_string"] = query.partition(b"#")[0]
        self._phase = BODY
        self._body_bytes = self._trailer_bytes = 0
        self._body_s = 0.0
        self._lingers = False
        kind = ExpectingCycle if self.expect_100_continue else Cycle
        cycle = self.cycle = kind(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=keep_alive and not DRAINING.is_set(),
            on_response=self.on_response_complete,
        )
        running = self._running
        if running is None or running.response_complete:
            self._running = cycle
            cycle.start(self.app, self.loop, self.tasks)
        else:
            if len(self.pipeline) >= MAX_PIPELINED:
                raise Refused("too_many_pipelined")
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def _wants_socket(self, http_version: str) -> bool:
        """At the one address where there are any, as the connection's only request."""
        return (
            self.url.partition(b"?")[0] == SOCKETS
            and self.ws_protocol_class is not None
            and http_version == "1.1"
            and self.parser.get_method() == b"GET"
            and (b"upgrade", b"websocket") in [(name, value.lower()) for name, value in self.headers]
            and not self._is_serving()
        )

    def _should_upgrade(self) -> bool:
        """uvicorn asks; it would take every offer of a websocket, and the request would have no end."""
        return self._opens_socket

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        cycle = self.cycle
        if not self._opens_socket and not cycle.response_complete and cycle.hold(body):
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        if self._without_upgrade or self._opens_socket:
            return
        self._phase = IDLE
        if self._lingers:
            self._lingers = False
            self._idle_since = self.loop.time()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """As uvicorn's, but that the sweep ends what has been idle for long."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._idle_since = self.loop.time()
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            assert isinstance(cycle, Cycle)  # no other kind is put there
            self._running = cycle
            cycle.start(app, self.loop, self.tasks)
        elif self._phase == BODY and not self._lingers:
            # Refused before its body was whole.
            self._lingers = True
            self._since = self._idle_since

    # Ends

    def sweep(self, now: float) -> None:
        """Called every `SWEEP_SECONDS`: ends a connection whose client is too slow."""
        transport, limits = self.transport, self.limits
        if transport.get_write_buffer_size():
            # Our buffer may stay full for long while a slow reader empties the kernel's, which holds megabytes.
            acknowledged = _acknowledged(transport)
            if acknowledged != self._acknowledged:
                self._acknowledged = acknowledged
                self._stalled_since = now
            elif now - self._stalled_since >= limits.write_stall_seconds:
                log.info("a client was cut off: it read nothing", extra={"seconds": limits.write_stall_seconds})
                _reset(transport)
                return
        else:
            self._acknowledged = -1
        if self.flow.read_paused and self._is_serving() and _has_left(transport):
            _reset(transport)
            return
        if transport.is_closing():
            return
        if self._phase == IDLE:
            if now - self._idle_since >= KEEP_ALIVE_SECONDS and not self._is_serving():
                transport.close()
        elif self._phase == HEAD:
            if now - self._since >= limits.head_seconds:
                if self._head_bytes:
                    self._refuse(Refused("request_timeout"))
                else:
                    transport.close()
        elif self._lingers:
            if now - self._since >= LINGER_SECONDS:
                transport.close()
        elif limits.min_body_bytes_per_second and not self.flow.read_paused:
            cycle = self.cycle
            if not cycle.waiting_for_100_continue:
                self._body_s += SWEEP_SECONDS
                allowed = limits.head_seconds + self._body_bytes / limits.min_body_bytes_per_second
                if self._body_s >= allowed:
                    self._refuse(Refused("request_timeout"))

    def _refuse(self, refused: Refused) -> None:
        """Answers, if nobody else is answering on this connection, and closes it. Nothing more of it is read."""
        self._ended = True
        running = self._running
        if running is None or running.response_complete:
            self._answer(refused)
        elif running is not self.cycle or self._phase == HEAD:
            # The fault is in a later request: the one being served gets its answer whole.
            running.keep_alive = False
            self.pipeline.clear()
        elif running.response_started:
            self.transport.abort()
        else:
            running.hang_up()
            self._answer(refused)

    def _answer(self, refused: Refused) -> None:
        if self.transport.is_closing():
            return
        id = "req_" + uuid.uuid4().hex
        error = {"type": "invalid_request_error", "code": refused.code, "message": refused.message}
        content: dict[str, object]
        url, headers = getattr(self, "url", b""), self.headers or []
        if url.startswith(b"/v1/messages") or any(name == b"anthropic-version" for name, _ in headers):
            content = {"type": "error", "error": error, "request_id": id}
        else:
            content = {"error": error | {"param": None}}
        body = msgspec.json.encode(content)
        self.transport.write(
            b"%scontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\nrequest-id: %b\r\n"
            b"connection: close\r\n\r\n%b" % (STATUS_LINE[refused.status], len(body), id.encode(), id.encode(), body)
        )
        self.transport.close()


class Server(uvicorn.Server):
    """Drains on SIGTERM and SIGINT and then returns, where uvicorn would die of the signal."""

    def __init__(self, config: uvicorn.Config, *, drain_seconds: float, parent: int | None) -> None:
        super().__init__(config)
        self._drain_seconds = drain_seconds
        self._parent = parent
        self._sweeper: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        before = {number: signal.signal(number, self.handle_exit) for number in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        DRAINING.set()
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._sweep()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)
        now = loop.time()
        for connection in list(self.server_state.connections):
            connection.sweep(now)  # type: ignore[union-attr]  # `server_for` makes no other kind
        if self._parent is not None and os.getppid() != self._parent and not self.should_exit:
            log.error("the supervisor is gone: stopping")
            self.handle_exit(signal.SIGTERM, None)

    async def shutdown(self, sockets: Any = None) -> None:
        state = self.server_state
        for server in self.servers:
            server.close()
        for bound in sockets or []:
            bound.close()
        for connection in list(state.connections):
            connection.shutdown()
        log.info("draining", extra={"requests": len(self._running()), "seconds": self._drain_seconds})
        await self._until_idle(self._drain_seconds)
        running = self._running()
        if running:
            log.warning("requests were cut off at the end of the drain", extra={"requests": len(running)})
            for task in running:
                task.cancel()
            await self._until_idle(ENDING_SECONDS)
        for connection in list(state.connections):
            connection.transport.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _running(self) -> list[asyncio.Task[None]]:
        return [task for task in self.server_state.tasks if not task.done()]

    async def _until_idle(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        by = loop.time() + seconds
        state = self.server_state
        while (state.connections or self._running()) and not self.force_exit and loop.time() < by:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)


def server_for(
    application: Application, *, limits: ClientLimits, drain_seconds: float, parent: int | None = None
) -> Server:
    """`parent`: the process that supervises this one; when it is gone, the server stops."""
    config = uvicorn.Config(
        application,
        interface="asgi3",
        loop="uvloop",
        http=type("BoundClientProtocol", (ClientProtocol,), {"limits": limits}),
        ws=sockets(limits) or "none",
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PING_SECONDS,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    return Server(config, drain_seconds=drain_seconds, parent=parent)
