"""What a pool lends; and one connection of the transport `http1` with the response that is under way on it.

A connection carries one exchange at a time and is handed back only when nothing about it is in doubt. Waiting, time, caps and
the end are here; `http1_connection.py` knows the bytes.
"""

import asyncio
import select
from typing import NoReturn, Protocol, cast
from weakref import WeakKeyDictionary

import msgspec

from gateway.upstream.client import Headers, Take, UpstreamResponse
from gateway.upstream.dialing import Dialed
from gateway.upstream.errors import ConnectionLost, ResponseTimeout, ResponseTooLarge, UpstreamError

WRITE_WHOLE = 65_536
"""Head and body up to this size go out in one write; a larger body follows its head in pieces of this size."""
READ_BYTES = 65_536
"""Taken from the socket at a time: what a connection holds for a client that does not read goes with it."""
TAKEN_AT_ONCE = 65_536
"""What `receive` gives at most, about: who waits with it holds all of it twice."""
_SPILL_PIECES = 512
"""More pieces of a body than this are joined, so that a body of tiny chunks costs memory by its bytes."""
_CLOCK_STEP_S = 0.001
"""uvloop's clock and timers count whole milliseconds."""
_LONGEST_TIMER_S = 3600.0
"""A timer is set no further ahead (uvloop refuses absurd delays); it sets itself again."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What one response may take."""

    max_head_bytes: int = 65_536
    """All heads of one answer together, interim ones included; also chunk framing or trailers without any body byte."""
    max_interim: int = 8
    """1xx answers before the final one."""
    max_buffered_bytes: int = 65_536
    """Body bytes waiting for `receive` above which nothing more is read from the socket."""


class Carrier(Protocol):
    """What a pool lends: it carries one exchange after the other, never two at a time."""

    generation: int
    """Which version of the provider it was opened for."""
    idle_since: float
    closed: bool

    @property
    def heard(self) -> bool:
        """A byte of the answer to the latest request has come, so that it may not be sent again."""
        ...

    def is_ready(self) -> bool:
        """Open, and fit for another request."""
        ...

    async def exchange(self, head: bytes, body: bytes, *, by: float) -> UpstreamResponse:
        """Sends the request and waits for the final head. Whatever it raises, the connection is closed then.

        `head` is in the form of HTTP/1.1, as `RequestHead` builds it.
        """
        ...

    def fail(self, error: UpstreamError) -> None:
        """Ends the exchange with `error` and the connection with it."""
        ...

    def close(self) -> None:
        """Closes at once; an exchange under way is the caller's to end (`fail`)."""
        ...


class Owner(Protocol):
    """Who lends connections: told once of each event."""

    def opened(self, connection: Carrier) -> None: ...

    def finished(self, connection: Carrier, *, reusable: bool) -> None:
        """The exchange is over. A connection that is not reusable is closing already."""
        ...

    def lost(self, connection: Carrier) -> None: ...


class Response:
    """See `UpstreamResponse`. A `ResponseTimeout` of `receive` or `read` ends nothing: they may be called again."""

    __slots__ = (
        "_buffered",
        "_connection",
        "_loop",
        "_pause_above",
        "_pieces",
        "_spill",
        "_wake_at",
        "complete_by_eof",
        "content_length",
        "error",
        "headers",
        "status",
        "take",
    )

    def __init__(self, connection: "Connection", loop: asyncio.AbstractEventLoop, max_buffered_bytes: int) -> None:
        self.status = 0
        self.headers: Headers = []
        self.complete_by_eof = False
        """The body has neither length nor chunks: the end of the connection is its end, and a cut cannot be told from it."""
        self.content_length: int | None = None
        self._connection: Connection | None = connection
        self._loop = loop
        self.error: UpstreamError | None = None
        """How it ended, if not well."""
        self._pieces: list[bytes] = []
        self._spill: bytearray | None = None
        self._buffered = 0
        self._wake_at = 0
        self._pause_above = max_buffered_bytes
        self.take: Take | None = None
        """Who waits for the next piece."""

    async def receive(self, *, by: float) -> bytes:
        if self._loop.time() > by:
            raise ResponseTimeout("the time for more of the body is over")
        while not self._buffered:
            connection = self._connection
            if connection is None:
                if self.error is not None:
                    raise self.error
                return b""
            if not await connection.news(self, by):
                raise ResponseTimeout("nothing more of the body came in time")
        return self._take_some()

    async def hand_on(self, take: Take, *, by: float) -> None:
        while by:
            if self._loop.time() > by:
                raise ResponseTimeout("the time for more of the body is over")
            while not self._buffered:
                connection = self._connection
                if connection is None:
                    if self.error is not None:
                        raise self.error
                    take(b"")
                    return
                self.take = take
                try:
                    if not await connection.news(self, by):
                        raise ResponseTimeout("nothing more of the body came in time")
                finally:
                    self.take = None
                by = connection.deadline
                if not by:
                    return
            by = take(self._take_some())

    async def read(self, *, by: float, limit: int) -> bytes:
        if self.content_length is not None and self.content_length > limit:
            self.close()
            raise ResponseTooLarge(f"a body of {self.content_length} bytes, {limit} are allowed")
        held_above, self._pause_above, self._wake_at = self._pause_above, limit, limit + 1
        try:
            while self._buffered <= limit and (connection := self._connection) is not None:
                connection.resume_reading()
                if not await connection.news(self, by):
                    raise ResponseTimeout("the body did not end in time")
        finally:
            self._pause_above, self._wake_at = held_above, 1
        if self._buffered > limit:
            self.close()
            raise ResponseTooLarge(f"a body of more than {limit} bytes")
        if self.error is not None:
            raise self.error
        return self.taken()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.fail(ConnectionLost("the response was closed"))
        elif self.error is None:
            self.error = ConnectionLost("the response was closed")
        self._pieces.clear()
        self._spill = None
        self._buffered = 0

    def _take_some(self) -> bytes:
        """At most `TAKEN_AT_ONCE`, about."""
        pieces = self._pieces
        if self._buffered <= TAKEN_AT_ONCE or self._spill is not None:
            return self.taken()
        size = number = 0
        for piece in pieces:
            size += len(piece)
            number += 1
            if size >= TAKEN_AT_ONCE:
                break
        surplus = size - TAKEN_AT_ONCE
        taken = pieces[:number]
        del pieces[:number]
        if surplus > 0:
            last = taken[-1]
            taken[-1] = last[:-surplus]
            pieces.insert(0, last[-surplus:])
            size -= surplus
        self._buffered -= size
        if self._connection is not None and not self.is_ahead:
            self._connection.resume_reading()
        return taken[0] if len(taken) == 1 else b"".join(taken)

    # What the connection does to its response.

    def add(self, piece: bytes) -> None:
        pieces = self._pieces
        pieces.append(piece)
        self._buffered += len(piece)
        if len(pieces) > _SPILL_PIECES:
            if self._spill is None:
                self._spill = bytearray()
            self._spill += b"".join(pieces)
            pieces.clear()

    def taken(self) -> bytes:
        """All that is there."""
        pieces = self._pieces
        if self._spill is not None:
            taken = bytes(self._spill) + b"".join(pieces)
            self._spill = None
        else:
            taken = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._buffered = 0
        if self._connection is not None:
            self._connection.resume_reading()
        return taken

    def expect_body(self) -> None:
        """The head was enough to wake the reader; from now on it takes a byte of the body."""
        self._wake_at = 1

    def end(self, error: UpstreamError | None) -> None:
        self._connection = None
        self.error = error

    @property
    def is_under_way(self) -> bool:
        return self._connection is not None

    @property
    def is_wanted(self) -> bool:
        """As much is there as the reader waits for."""
        return self._buffered >= self._wake_at

    @property
    def is_ahead(self) -> bool:
        """More is there than may wait."""
        return self._buffered > self._pause_above


_INPUTS: WeakKeyDictionary[asyncio.AbstractEventLoop, bytearray] = WeakKeyDictionary()


def _input_of(loop: asyncio.AbstractEventLoop) -> bytearray:
    """What all connections of a loop read into, one after the other. Left to itself uvloop reads 256 KB at a time."""
    found = _INPUTS.get(loop)
    if found is None:
        found = _INPUTS[loop] = bytearray(READ_BYTES)
    return found


class Connection(Dialed, asyncio.BufferedProtocol):
    """Made by a dialer; `exchange` one request after the other, never two at a time."""

    __slots__ = (
        "_bounds",
        "_head_bytes",
        "_input",
        "_interim",
        "_is_made",
        "_keep",
        "_loop",
        "_owner",
        "_poll",
        "_quiet_bytes",
        "_read_paused",
        "_response",
        "_timer",
        "_timer_at",
        "_transport",
        "_unsent",
        "_waiter",
        "_write_paused",
        "closed",
        "deadline",
        "generation",
        "heard",
        "idle_since",
    )

    def __init__(self, owner: Owner, bounds: Bounds, loop: asyncio.AbstractEventLoop, generation: int) -> None:
        self.generation = generation
        """Which version of the provider it was opened for."""
        self.closed = False
        self.heard = False
        """A byte of the answer to the latest request has come."""
        self.idle_since = 0.0
        self._owner = owner
        self._bounds = bounds
        self._loop = loop
        self._input = _input_of(loop)
        self._response: Response | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.deadline = 0.0
        """Of who waits, on the loop's clock; 0: who takes what comes has enough."""
        self._is_made = False
        self._read_paused = False
        self._write_paused = False
        self._unsent = False
        """A part of the request has not been handed to the transport."""
        self._reset()

    def _reset(self) -> None:
        """Forgets the last exchange."""
        self.heard = False
        self._head_bytes = 0
        self._interim = 0
        self._keep = False
        """The answer leaves the connection fit for another request."""
        self._quiet_bytes = 0

    def is_ready(self) -> bool:
        """Open and silent. Bytes or an end that the loop has not read yet make an idle connection unfit for use."""
        return not (self.closed or self._poll.poll(0))

    async def exchange(self, head: bytes, body: bytes, *, by: float) -> Response:
        """Sends the request and waits for the final head. Whatever it raises, the connection is closed then.

        `head` is in the form of HTTP/1.1, as `RequestHead` builds it.
        """
        response = Response(self, self._loop, self._bounds.max_buffered_bytes)
        if self.closed:
            self._owner.finished(self, reusable=False)
            raise ConnectionLost("closed before the request")
        self._reset()
        self._response = response
        if not self._begin(head, body):
            await self._send_rest(response, head, body, by)
        while not response.status:
            if response.error is not None:
                raise response.error
            if not await self.news(response, by):
                self.fail(ResponseTimeout("no response head came in time"))
        response.expect_body()
        return response

    async def news(self, response: Response, by: float) -> bool:
        """Waits until something happened to `response` (`True`) or `by` has passed (`False`).

        Cancelled, it closes the connection at once, if `response` is still under way on it.
        """
        if self._waiter is not None:
            raise RuntimeError("a response has one reader")
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiter = waiter
        self.deadline = by
        if self._timer is None or by < self._timer_at:
            self._set_timer(by)
        try:
            return await waiter
        except BaseException:
            if self._waiter is waiter:
                self._waiter = None
            response.close()
            raise

    def fail(self, error: UpstreamError) -> None:
        """Ends the exchange with `error` and the connection with it."""
        response = self._response
        if response is not None:
            self._response = None
            response.end(error)
            self.close()
            self._owner.finished(self, reusable=False)
            self._wake()
        else:
            self.close()

    def close(self) -> None:
        """Closes at once; an exchange under way is the caller's to end (`fail`)."""
        if not self.closed:
            self.closed = True
            self._transport.abort()

    def abandon(self) -> None:
        self.closed = True
        if self._is_made:
            self._transport.abort()
            self._owner.lost(self)

    def resume_reading(self) -> None:
        if self._read_paused:
            self._read_paused = False
            if not self.closed:
                self._transport.resume_reading()

    # Time and waking.

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(True)

    def _tell(self, response: Response) -> None:
        """Something has come: the reader gets it at once where it can, and is woken where it has to go on."""
        take, waiter = response.take, self._waiter
        if take is None or waiter is None or waiter.done():
            if response.is_ahead and not self._read_paused:
                self._read_paused = True
                self._transport.pause_reading()
            if response.is_wanted:
                self._wake()
        elif response.is_wanted:
            try:
                by = take(response.taken())
            except Exception as defect:
                self._waiter = None
                waiter.set_exception(defect)
                return
            self.deadline = by
            if not by:
                self._wake()
            elif by < self._timer_at or self._timer is None:
                self._set_timer(by)

    def _set_timer(self, by: float) -> None:
        # One timer for the connection: it is moved only to an earlier time, and moves itself to a later one when it fires.
        if self._timer is not None:
            self._timer.cancel()
        at = min(by, self._loop.time() + _LONGEST_TIMER_S)
        self._timer = self._loop.call_at(at, self._time_is_up)
        self._timer_at = at

    def _time_is_up(self) -> None:
        self._timer = None
        waiter = self._waiter
        if waiter is None:
            return
        if self._loop.time() + _CLOCK_STEP_S < self.deadline:
            self._set_timer(self.deadline)
            return
        self._waiter = None
        if not waiter.done():
            waiter.set_result(False)

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass.
        self._transport = cast(asyncio.Transport, transport)
        if self.closed:
            self._transport.abort()
            return
        self._is_made = True
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._owner.opened(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._input

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(memoryview(self._input)[:nbytes]))

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self._feed_idle(data)
            return
        if not response.status:
            room = self._bounds.max_head_bytes - self._head_bytes
            if len(data) > room:
                self._receive_much(data, room)
                return
            self._head_bytes += len(data)
        self._feed(response, data)

    def _receive_much(self, data: bytes, room: int) -> None:
        """More than a head may have: it has to end within `room` bytes, and body may follow."""
        response = self._response
        assert response is not None
        self._head_bytes += room
        self._feed(response, data[:room])
        if self._response is None:
            self.close()
        elif response.status:
            self._feed(response, data[room:])
        else:
            self.fail(ResponseTooLarge(f"a response head of more than {self._bounds.max_head_bytes} bytes"))

    def _finish(self, response: Response, *, surplus: bool) -> None:
        reusable = (
            self._keep
            and not surplus
            and not self._unsent
            and not self.closed
            and not self._transport.get_write_buffer_size()
        )
        self._response = None
        response.end(None)
        if reusable:
            self.resume_reading()
        else:
            self.close()
        self._owner.finished(self, reusable=reusable)
        self._wake()

    def eof_received(self) -> bool:
        self._end_of_input(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._end_of_input(exc)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_made:
            self._owner.lost(self)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._unsent:
            self._wake()

    def _end_of_input(self, exc: Exception | None) -> None:
        response = self._response
        if response is None:
            self.close()
        elif response.status and response.complete_by_eof and exc is None:
            self._finish(response, surplus=False)
        else:
            error = ConnectionLost("the connection was reset" if exc is not None else "the connection was closed early")
            error.__cause__ = exc
            self.fail(error)

    # What a protocol adds.

    def _begin(self, head: bytes, body: bytes) -> bool:
        """Sends what can be sent without waiting; whether that was all."""
        raise NotImplementedError

    async def _send_rest(self, response: Response, head: bytes, body: bytes, by: float) -> None:
        """Sends all, as the server takes it, and stops when the answer has begun or failed."""
        raise NotImplementedError

    def _feed(self, response: Response, data: bytes) -> None:
        raise NotImplementedError

    def _feed_idle(self, data: bytes) -> None:
        """Something comes while no answer is due."""
        raise NotImplementedError

    # What it may use.

    def _count_interim(self) -> None:
        self._interim += 1
        if self._interim > self._bounds.max_interim:
            self._refuse(ResponseTooLarge(f"more than {self._bounds.max_interim} interim answers"))

    def _refuse(self, fault: UpstreamError) -> NoReturn:
        """From inside the reading of an answer; whoever reads it ends the exchange with `fault`."""
        raise fault
