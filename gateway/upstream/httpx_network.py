"""What httpx sends and receives through: sockets that lead where `Dialer` allows, and that can be closed without waiting.

httpcore asks a network backend for a stream, reads, writes, and wraps it in TLS. This one counts what a response may take
before a byte of its body, tells an end from a fault, and is aborted at once from outside, which ends whatever waits on it.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, cast

import httpcore

from gateway.upstream.connection import Bounds
from gateway.upstream.dialing import Dialed, Dialer, connect_failure
from gateway.upstream.errors import ConnectError, ConnectionLost, ProtocolError, ResponseTooLarge, UpstreamError

_WRITE_BYTES = 65_536
_CONNECT_ANSWER_BYTES = 16_384
"""What a proxy may say before its tunnel stands."""
_IDLE_BYTES = 16_384
"""What may wait unread while no answer is due: settings, pings and windows of HTTP/2."""
_START = b"HTTP/1."
_INTERIM = b"HTTP/1.1 1"


class Stream(Dialed, asyncio.Protocol, httpcore.AsyncNetworkStream):
    """One socket, first plain, then TLS once or twice."""

    def __init__(self, network: "Network") -> None:
        self._network = network
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._max_unread = network.bounds.max_buffered_bytes
        self._read_paused = False
        self._write_paused = False
        self._has_ended = False
        self._failure: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.is_closed = False
        self.told_end = False
        """Whoever reads was told that the other end has finished."""

    @property
    def speaks_http2(self) -> bool:
        tls = self.get_extra_info("ssl_object")
        return tls is not None and tls.selected_alpn_protocol() == "h2"

    @property
    def is_fresh(self) -> bool:
        """Open, and nothing says that it will not stay so."""
        return not (self.is_closed or self._has_ended)

    # What httpcore does; it is given no timeouts, every limit is the exchange's.

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        unread = self._unread
        while not unread:
            if self._failure is not None:
                raise self._failure
            if self._has_ended:
                self.told_end = True
                return b""
            await self._news()
        room = self._network.room
        if room <= 0:
            raise ResponseTooLarge(f"more than {self._network.bounds.max_head_bytes} bytes without any of the body")
        if not self._network.heard and not self.speaks_http2 and not unread.startswith(_START[: len(unread)]):
            # h11 would wait for the end of the line.
            raise ProtocolError("the answer is not HTTP/1.1")
        taken = bytes(unread[: min(max_bytes, room)])
        del unread[: len(taken)]
        self._network.room -= len(taken)
        self._network.heard = True
        if self._read_paused and len(unread) <= self._max_unread and self._transport is not None:
            self._read_paused = False
            if not self.is_closed:
                self._transport.resume_reading()
        return taken

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Waits while the server takes nothing. `httpcore.WriteError`, on which an answer is looked for, when it is gone or,
        in HTTP/1.1, has answered already."""
        view = memoryview(buffer)
        for start in range(0, len(view), _WRITE_BYTES):
            while self._write_paused and not self._is_answered():
                await self._news()
            if not self.is_fresh or self._transport is None or (self._write_paused and self._is_answered()):
                raise httpcore.WriteError("the request could not be sent to its end")
            self._transport.write(view[start : start + _WRITE_BYTES])

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        name = self._network.provider_name
        host = (server_hostname or "").strip("[]")
        if self._unread or self._transport is None:
            raise ConnectError(f"provider {name}: the proxy sent more than its answer")
        try:
            made = await self._loop.start_tls(self._transport, self, ssl_context, server_hostname=host)
            if made is None:
                raise ConnectionError("closed in the handshake")
        except OSError as error:
            self.abort()
            raise connect_failure(error, name, host) from error
        except BaseException:
            self.abort()
            raise
        self._transport = made
        if self.is_closed:
            made.abort()
            raise ConnectionLost("the connection was closed")
        self._network.secured()
        return self

    async def aclose(self) -> None:
        self.abort()

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return bool(self._unread) or not self.is_fresh
        return None if self._transport is None else self._transport.get_extra_info(info)

    # What the loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass.
        self._transport = cast(asyncio.Transport, transport)
        if self.is_closed:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if not self._network.is_busy and len(self._unread) > _IDLE_BYTES:
            self._network.lost()
        elif len(self._unread) > self._max_unread and not self._read_paused and self._transport is not None:
            self._read_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._has_ended = True
        self._wake()
        if not self._network.is_busy:
            self._network.lost()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self._has_ended and self._failure is None:
            self._failure = ConnectionLost("the connection was reset")
            self._failure.__cause__ = exc
        self._has_ended = True
        self.is_closed = True
        self._wake()
        self._network.lost()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._wake()

    def abandon(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Closes the socket, whatever it is doing."""
        if not self.is_closed:
            self.is_closed = True
            if self._failure is None:
                self._failure = ConnectionLost("the connection was closed")
            self._unread.clear()
            if self._transport is not None:
                self._transport.abort()
            self._wake()

    def _is_answered(self) -> bool:
        """A final answer to a request that is still being sent, or the end of all waiting for it."""
        if not self.is_fresh:
            return True
        if self.speaks_http2 or len(self._unread) < len(_INTERIM):
            return False
        return not self._unread.startswith(_INTERIM)

    async def _news(self) -> None:
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            if self._waiter is waiter:
                self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Network(httpcore.AsyncNetworkBackend):
    """Leads one client to one place, once."""

    def __init__(
        self, dialer: Dialer, provider_name: str, bounds: Bounds, *, tls_layers: int, connect_by: float
    ) -> None:
        """`tls_layers`: how many handshakes make the way complete."""
        self.bounds = bounds
        self.provider_name = provider_name
        self.is_established = False
        """The provider itself can be talked to, or a proxy that passes requests on."""
        self.heard = False
        """A byte of the answer to the latest request has come."""
        self.was_untaken = False
        """The server said that it did not take the latest request."""
        self.is_busy = True
        """An exchange is under way."""
        self.room = _CONNECT_ANSWER_BYTES
        """Bytes that may still come before one of a body."""
        self.connect_by = connect_by
        self.on_established: Callable[[], None] = _nothing
        self.on_lost: Callable[[], None] = _nothing
        """Nobody was waiting for the connection when it ended."""
        self._dialer = dialer
        self._layers_left = tls_layers
        self._stream: Stream | None = None
        self._is_aborted = False

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """To the dialer's place; httpcore names the same one."""
        if self._stream is not None:
            # The pool would send a request that was refused on the connection once more by itself.
            self.was_untaken = True
            raise ConnectionLost("the server left before it took the request")
        stream = await self._dialer.connect(lambda: Stream(self), by=self.connect_by)
        self._stream = stream
        if self._is_aborted:
            stream.abort()
            raise ConnectionLost("the connection was closed")
        self._check()
        return stream

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @property
    def speaks_http2(self) -> bool:
        return self._stream is not None and self._stream.speaks_http2

    @property
    def told_end(self) -> bool:
        return self._stream is not None and self._stream.told_end

    @property
    def is_fresh(self) -> bool:
        return self._stream is not None and self._stream.is_fresh

    def secured(self) -> None:
        self._layers_left -= 1
        self._check()

    def begin(self) -> None:
        """Another request goes out."""
        self.is_busy = True
        self.heard = self.was_untaken = False
        if self.is_established:
            self.room = self.bounds.max_head_bytes

    def progress(self) -> None:
        """The head, or a piece of the body, has been read."""
        self.room = self.bounds.max_head_bytes

    def lost(self) -> None:
        if not self.is_busy:
            self.on_lost()

    def abort(self) -> None:
        self._is_aborted = True
        if self._stream is not None:
            self._stream.abort()

    def _check(self) -> None:
        if not self._layers_left:
            self.is_established = True
            self.heard = False
            self.room = self.bounds.max_head_bytes
            self.on_established()


def _nothing() -> None:
    pass
