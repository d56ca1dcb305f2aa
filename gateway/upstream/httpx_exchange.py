"""One httpx client with one connection: the exchanges it carries one after the other, and the answers that come of them.

httpx's own pool locks up when its callers are cancelled, and bytes past an answer can reach the next call on a connection of
HTTP/1.1. So no client is ever shared: it belongs to one exchange, and is used for another one only when the answer was read
cleanly to its end and is framed (HTTP/2). Any other end closes its socket at once and leaves the client behind.
"""

import asyncio
import re
from collections.abc import AsyncIterator

import h2.errors
import h2.events
import h11
import httpcore
import httpx

from gateway.upstream.client import Headers, UpstreamResponse
from gateway.upstream.connection import Bounds, Owner
from gateway.upstream.errors import (
    ConnectError,
    ConnectionLost,
    ConnectTimeout,
    ProtocolError,
    ResponseTimeout,
    ResponseTooLarge,
    UpstreamError,
)
from gateway.upstream.httpx_network import Network

_PIECE_BYTES = 65_536
_LONGEST_WAIT_S = 1e6
"""A limit further away is none (uvloop refuses absurd delays)."""
_TOO_LONG = 431
"""How h11 marks input that goes on and on."""
_LENGTH = re.compile(rb"[0-9]{1,18}")
_OF_A_CONNECTION = frozenset({b"connection", b"transfer-encoding", b"keep-alive", b"proxy-connection", b"upgrade"})


class Lane:
    """See `Carrier`. Connects with its first exchange."""

    def __init__(
        self,
        owner: Owner,
        client: httpx.AsyncClient,
        network: Network,
        url: httpx.URL,
        bounds: Bounds,
        generation: int,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        """`tasks` holds what still runs when nobody waits for it any more."""
        self.generation = generation
        self.idle_since = 0.0
        self.closed = False
        self.client = client
        self.network = network
        self._owner = owner
        self._url = url
        self._bounds = bounds
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._limit: asyncio.Timeout | None = None
        self._answer: Answer | None = None
        self._failure: UpstreamError | None = None
        network.on_lost = self.close
        owner.opened(self)

    @property
    def heard(self) -> bool:
        return self.network.heard and not self.network.was_untaken

    def is_ready(self) -> bool:
        return not self.closed and self.network.is_fresh

    async def exchange(self, head: bytes, body: bytes, *, by: float) -> "Answer":
        network = self.network
        network.begin()
        network.on_established = lambda: self._move_limit(by)
        try:
            if self.closed:
                raise ConnectionLost("closed before the request")
            async with asyncio.timeout_at(self._when(by if network.is_established else network.connect_by)) as limit:
                self._limit = limit
                response = await self.client.send(self._request(head, body), stream=True)
            self._limit = None
            network.progress()
            self._answer = answer = Answer(self, response, self._loop, self._bounds)
        except BaseException as error:
            self._limit = None
            self.finish(reusable=False)
            if isinstance(error, TimeoutError):
                raise self._failure or self._late() from None
            if isinstance(error, Exception):
                fault = self.translated(error)
                if fault is error:
                    raise
                raise fault from None
            raise
        task = self._loop.create_task(answer.pump(response))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return answer

    def fail(self, error: UpstreamError) -> None:
        """Ends an exchange under way with `error`, and the connection."""
        if self._answer is not None:
            self._answer.end(error)
        elif self._limit is not None and not self._limit.expired():
            self._failure = error
            self._limit.reschedule(self._loop.time())
        self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.network.abort()
            self._owner.lost(self)

    def finish(self, *, reusable: bool) -> None:
        """The exchange is over; its place is given back, once."""
        if self.network.is_busy:
            self.network.is_busy = False
            self._answer = None
            reusable = reusable and self.is_ready()
            if reusable:
                # Nothing is kept of one answer for the next request; the client would remember for ever.
                self.client.cookies.clear()
            else:
                self.close()
            self._owner.finished(self, reusable=reusable)

    def translated(self, error: Exception) -> UpstreamError:
        """What a failure of httpx, httpcore, h11 or h2 means here. Never holds what was received."""
        network = self.network
        if isinstance(error, ConnectError | ConnectTimeout):
            return error
        if not network.is_established:
            return ConnectError(f"provider {network.provider_name}: {self._proxys_fault(error)}")
        if isinstance(error, UpstreamError):
            return error
        if network.told_end or isinstance(error, httpcore.WriteError):
            return ConnectionLost("the connection was closed early")
        cause = error.args[0] if error.args else None
        if isinstance(cause, h2.events.StreamReset):
            network.was_untaken = cause.error_code == h2.errors.ErrorCodes.REFUSED_STREAM
            return ConnectionLost("the server reset the stream")
        if isinstance(cause, h2.events.ConnectionTerminated):
            return ConnectionLost("the server ended the connection")
        if isinstance(cause, h11.RemoteProtocolError) and cause.error_status_hint == _TOO_LONG:
            return ResponseTooLarge("a head, chunk framing or trailers without end")
        # Malformed input surfaces as many classes, some (ValueError, KeyError) of no library in particular.
        return ProtocolError(f"the exchange is not HTTP: {type(error).__name__}")

    def _proxys_fault(self, error: Exception) -> str:
        if isinstance(error, httpcore.ProxyError):
            return f"the proxy refused with status {str(error)[:3]}"
        if isinstance(error, ResponseTooLarge):
            return "the proxy sent more than its answer"
        if self.network.told_end or isinstance(error, ConnectionLost | httpcore.WriteError):
            return "the proxy closed the connection"
        return "the proxy's answer is not HTTP/1.1"

    def _late(self) -> UpstreamError:
        if self.network.is_established:
            return ResponseTimeout("no response head came in time")
        return ConnectTimeout(f"provider {self.network.provider_name}: no connection in time")

    def _move_limit(self, by: float) -> None:
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self._when(by))

    def _when(self, by: float) -> float | None:
        return by if by - self._loop.time() < _LONGEST_WAIT_S else None

    def _request(self, head: bytes, body: bytes) -> httpx.Request:
        """From a head in the form of HTTP/1.1, as `RequestHead` builds it."""
        start, *lines = head[:-4].split(b"\r\n")
        fields = [(name, value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in lines)]
        # The path goes out as it is: a URL of httpx would encode some of it once more.
        extensions = {"target": start.split(b" ")[1]}
        return httpx.Request("POST", self._url, headers=fields, stream=_Body(body), extensions=extensions)


class _Body(httpx.AsyncByteStream):
    """In pieces: httpcore copies the rest of a piece with every frame it sends of it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        # The request lives as long as its connection, which must not keep a large body.
        body, self._body = self._body, b""
        for start in range(0, len(body), _PIECE_BYTES):
            yield body[start : start + _PIECE_BYTES]


class Answer(UpstreamResponse):
    """See `UpstreamResponse`. A task reads ahead of the reader, a little, so that no wait for it has to be broken off."""

    def __init__(self, lane: Lane, response: httpx.Response, loop: asyncio.AbstractEventLoop, bounds: Bounds) -> None:
        """Raises `ProtocolError`, `ResponseTooLarge` for a head that is not to be trusted."""
        version = response.extensions.get("http_version")
        self.status = response.status_code
        fields = response.headers.raw
        self.headers: Headers = [(name.lower(), value) for name, value in fields]
        self._is_http2 = version == b"HTTP/2"
        if self._is_http2 and self.headers != fields:
            raise ProtocolError("a header's name in upper case in HTTP/2")
        self.content_length = _check_head(self.status, self.headers, version, bounds)
        self.complete_by_eof = (
            not self._is_http2
            and self.content_length is None
            and self.status not in (204, 304)
            and all(name != b"transfer-encoding" for name, _ in self.headers)
        )
        self.error: UpstreamError | None = None
        """How it ended, if not well."""
        self._lane = lane
        self._loop = loop
        self._held = bytearray()
        self._pause_above = bounds.max_buffered_bytes
        self._has_ended = False
        self._reader: asyncio.Future[bool] | None = None
        """Whoever waits for news, which is `False` when its time is up."""
        self._room: asyncio.Future[None] | None = None

    async def receive(self, *, by: float) -> bytes:
        if self._loop.time() > by:
            raise ResponseTimeout("the time for more of the body is over")
        while not self._held:
            if self._has_ended:
                if self.error is not None:
                    raise self.error
                return b""
            if not await self._news(by):
                raise ResponseTimeout("nothing more of the body came in time")
        return self._take()

    async def read(self, *, by: float, limit: int) -> bytes:
        if self.content_length is not None and self.content_length > limit:
            self.close()
            raise ResponseTooLarge(f"a body of {self.content_length} bytes, {limit} are allowed")
        paused_above, self._pause_above = self._pause_above, limit
        try:
            while len(self._held) <= limit and not self._has_ended:
                self._make_room()
                if not await self._news(by):
                    raise ResponseTimeout("the body did not end in time")
        finally:
            self._pause_above = paused_above
        if len(self._held) > limit:
            self.close()
            raise ResponseTooLarge(f"a body of more than {limit} bytes")
        if self.error is not None:
            raise self.error
        return self._take()

    def close(self) -> None:
        self.end(ConnectionLost("the response was closed"))
        if self.error is None:
            self.error = ConnectionLost("the response was closed")
        self._held.clear()

    def end(self, error: UpstreamError | None) -> None:
        """Over on the wire; the first call counts."""
        if not self._has_ended:
            self._has_ended = True
            self.error = error
            self._lane.finish(reusable=error is None and self._is_http2)
            self._tell(True)
            self._make_room()

    async def pump(self, response: httpx.Response) -> None:
        """Reads to the end, waiting while more than enough is held."""
        fault: UpstreamError | None = None
        try:
            async for piece in response.aiter_raw():
                # After an end from outside the socket is closed: the next read fails, and all that is under it unwinds.
                if piece and not self._has_ended:
                    self._lane.network.progress()
                    self._held += piece
                    self._tell(True)
                    while len(self._held) > self._pause_above and not self._has_ended:
                        self._room = self._loop.create_future()
                        await self._room
        except Exception as error:
            fault = self._lane.translated(error)
        self.end(fault)
        if self._lane.closed:
            # The socket is closed already: what the client still has to do does not wait for anybody.
            await response.aclose()
            await self._lane.client.aclose()

    @property
    def _buffered(self) -> int:
        return len(self._held)

    def _take(self) -> bytes:
        taken = bytes(self._held)
        self._held.clear()
        self._make_room()
        return taken

    def _make_room(self) -> None:
        room = self._room
        if room is not None and not room.done() and (self._has_ended or len(self._held) <= self._pause_above):
            room.set_result(None)

    async def _news(self, by: float) -> bool:
        if self._reader is not None:
            raise RuntimeError("a response has one reader")
        reader: asyncio.Future[bool] = self._loop.create_future()
        self._reader = reader
        timer = None
        if by - self._loop.time() < _LONGEST_WAIT_S:
            timer = self._loop.call_at(by, self._tell, False)
        try:
            return await reader
        except BaseException:
            self.close()
            raise
        finally:
            self._reader = None
            if timer is not None:
                timer.cancel()

    def _tell(self, is_news: bool) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(is_news)


def _check_head(status: int, headers: Headers, version: object, bounds: Bounds) -> int | None:
    """The Content-Length. What the libraries let pass and is not to be trusted is refused."""
    if version not in (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2"):
        raise ProtocolError("an answer in another version of HTTP")
    if not 200 <= status <= 599:
        raise ProtocolError(f"the status {status} is none of HTTP, or an upgrade that was not asked for")
    size = 0
    length: bytes | None = None
    is_chunked = False
    for name, value in headers:
        size += len(name) + len(value)
        if b"\r" in value or b"\n" in value or b"\0" in value or not name or name.strip() != name:
            raise ProtocolError("a malformed header")
        if name == b"content-length":
            if length is not None or not _LENGTH.fullmatch(value):
                raise ProtocolError("a content-length that is none, or several")
            length = value
        elif name == b"transfer-encoding":
            is_chunked = True
        if version == b"HTTP/2" and name in _OF_A_CONNECTION:
            raise ProtocolError("a header of a connection in HTTP/2")
    if size > bounds.max_head_bytes:
        raise ResponseTooLarge(f"a response head of more than {bounds.max_head_bytes} bytes")
    if is_chunked and (length is not None or version == b"HTTP/1.0"):
        raise ProtocolError("a transfer-encoding beside a content-length, or in HTTP/1.0")
    return None if length is None else int(length)
