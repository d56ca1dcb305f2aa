"""A provider's stream to the client: held until the commit point, then passed on event by event.

The commit point is the first content or the terminal event. Until then a failure leaves the client untouched, so that
another target can be tried. After it, an end without the terminal event is never made to look like a whole answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.dialects.neutral import DialectModule, MalformedAnswer, StreamEvent, StreamReader
from gateway.relay.attempt import AttemptFailed, failure_of, malformed
from gateway.relay.messages import BODY_FOLLOWS, ClientLeft, Header, Send, WriteAtOnce
from gateway.upstream.client import UpstreamResponse
from gateway.upstream.errors import ResponseTimeout, UpstreamError
from routing.core.catalog import ProviderTimeouts

MAX_HELD_BYTES = 65_536
"""Of role chunks, pings and comments before the first content. More than that commits."""

WRITE_BYTES = 65_536
"""Given to the server at a time, which copies it: for a client that does not read, one such piece waits twice."""

DRAIN_SECONDS = 1.0
"""How long a provider may take to end its body after the last event, before its connection is given up."""


AFTER_TERMINAL_SECONDS = 5.0
"""How long a usage chunk and the end marker may come after the terminal event, before we write the marker."""


class StreamBroken(Exception):
    """The stream ended after the commit point and before its terminal event."""

    def __init__(self, failure: AttemptFailed, code: str) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.code = code


class Downstream:
    """The client's side of one exchange's stream, over all its attempts."""

    __slots__ = (
        "_clock",
        "_dialect",
        "_leaves_open",
        "_rename",
        "_send",
        "_show_usage",
        "_write_at_once",
        "committed",
        "ended",
        "first_content_at",
        "head",
        "last_content_at",
        "sent_bytes",
        "started",
        "synthesized",
    )

    def __init__(
        self,
        send: Send,
        head: list[Header],
        dialect: DialectModule,
        *,
        show_usage: bool,
        model_shown: str | None,
        leaves_open: bool,
        write_at_once: WriteAtOnce | None,
        clock: Callable[[], float],
    ) -> None:
        """`model_shown`: the name that answers carry instead of the provider's; `None`: the provider's own.

        `leaves_open`: the server closes the connection of an answer that was not ended. `write_at_once`: see `WRITE_AT_ONCE`.
        """
        self._clock = clock
        self._send = send
        self.head = head
        """Of the attempt under way; of the one that answered, once it is out."""
        self._dialect = dialect
        self._leaves_open = leaves_open
        self._show_usage = show_usage
        self._write_at_once = write_at_once
        self._rename = model_shown
        self.started = False
        """The head is out."""
        self.committed = False
        self.ended = False
        self.synthesized = False
        """We wrote the marker that the provider left out after its terminal event."""
        self.first_content_at: float | None = None
        self.last_content_at: float | None = None
        """The relay's seconds at the attempt's first and latest content."""
        self.sent_bytes = 0

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        """Raises `ClientLeft` where the server tells that the client is gone."""
        try:
            if not self.started:
                self.started = True
                await self._send(
                    {"type": "http.response.start", "status": 200, "headers": self.head, BODY_FOLLOWS: True}
                )
            size = len(body)
            self.sent_bytes += size
            self.ended = not more
            if size <= WRITE_BYTES:
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
                return
            for start in range(0, size, WRITE_BYTES):
                piece = body[start : start + WRITE_BYTES]
                await self._send(
                    {"type": "http.response.body", "body": piece, "more_body": more or start + WRITE_BYTES < size}
                )
        except OSError as error:
            raise ClientLeft from error

    async def keepalive(self) -> None:
        if not self.ended:
            await self._write(self._dialect.keepalive())

    async def fail(self, *, code: str, message: str, request_id: str) -> None:
        """The dialect's error event, and the end. Only once the head is out."""
        if not self.ended:
            await self._break(self._dialect.error_event(code=code, message=message, request_id=request_id))

    async def _break(self, event: bytes) -> None:
        """The last event of a broken stream. Its end is no end of a message: clients take that for a whole answer."""
        await self._write(event, more=self._leaves_open)
        self.ended = True

    def write_at_once(self, body: bytes) -> bool:
        """`False`: it was not, and has to wait for the client."""
        write, size = self._write_at_once, len(body)
        if write is None or size > WRITE_BYTES or not write(body):
            return False
        self.sent_bytes += size
        return True

    async def relay(
        self,
        response: UpstreamResponse,
        reader: StreamReader,
        *,
        timeouts: ProviderTimeouts,
        content_by: float,
        on_content: "OnContent",
    ) -> None:
        """One attempt's stream, to its end.

        `content_by`: loop time of the first content at the latest. Raises `AttemptFailed` before the commit point,
        `StreamBroken` after it.
        """
        clock = asyncio.get_running_loop().time
        passage = _Passage(self, reader, timeouts, content_by, on_content, clock)
        while True:
            try:
                await response.hand_on(passage.take, by=passage.due)
            except ResponseTimeout as error:
                if passage.keepalive_at < passage.by:
                    if not reader.terminal:
                        await self.keepalive()
                    passage.keepalive_at = clock() + timeouts.keepalive_s
                    continue
                if reader.terminal:
                    return await self._finish(reader)
                raise self._failure(failure_of(error), "upstream_idle_timeout") from error
            except UpstreamError as error:
                if reader.terminal:
                    return await self._finish(reader)
                raise self._failure(failure_of(error), "upstream_stream_truncated") from error
            out, passage.out = passage.out, b""
            if passage.malformed is not None:
                if self.committed:
                    await self._write(out)
                raise self._failure(malformed(passage.malformed), "upstream_stream_truncated")
            if reader.error is not None:
                if self.committed:
                    await self._break(out)
                raise self._failure(_in_band(reader), "upstream_error")
            if reader.done:
                if not reader.terminal:
                    if self.committed:
                        await self._write(out)
                    raise self._failure(
                        malformed("The stream ended without a finish reason."), "upstream_stream_truncated"
                    )
                await self._write(out, more=False)
                return await _drain(response, clock() + DRAIN_SECONDS)
            if out:
                await self._write(out)
                passage.went_on(told=True)
            if passage.is_over:
                if reader.terminal:
                    return await self._finish(reader)
                raise self._failure(
                    malformed("The stream ended before the answer was complete."), "upstream_stream_truncated"
                )

    def listen(self, events: Sequence[StreamEvent], reader: StreamReader, on_content: "OnContent") -> bytes:
        """The bytes of these events that the client gets; notes the commit point."""
        # By far the most pieces are one more piece of content.
        if len(events) == 1 and events[0].kind == "content" and self.first_content_at is not None and not self._rename:
            self.last_content_at = self._clock()
            return events[0].raw
        pieces = []
        for event in events:
            kind = event.kind
            if kind == "content":
                self.last_content_at = self._clock()
                if self.first_content_at is None:
                    self.first_content_at = self.last_content_at
                    on_content()
                self.committed = True
            elif kind == "terminal":
                self.committed = True
            elif (kind == "usage" and not self._show_usage) or (kind == "done" and not reader.terminal):
                continue
            pieces.append(
                event.raw if self._rename is None else self._dialect.event_with_model(event.raw, self._rename)
            )
            if kind == "done":
                break  # what comes behind the marker is no part of the answer, however the bytes were cut
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _finish(self, reader: StreamReader) -> None:
        """The terminal event has come: whatever ends the provider's bytes, the answer is whole."""
        self.synthesized = not reader.done
        await self._write(b"" if reader.done else self._dialect.ending(reader), more=False)

    def _failure(self, failure: AttemptFailed, code: str) -> Exception:
        if self.committed:
            return StreamBroken(failure, code)
        return failure


class _Passage:
    """One attempt's stream on its way to the client: what becomes of each piece as it comes, and what is left to do."""

    __slots__ = (
        "_clock",
        "_content_by",
        "_downstream",
        "_held",
        "_held_bytes",
        "_idle_s",
        "_keepalive_s",
        "_on_content",
        "_reader",
        "by",
        "is_over",
        "keepalive_at",
        "malformed",
        "out",
    )

    def __init__(
        self,
        downstream: Downstream,
        reader: StreamReader,
        timeouts: ProviderTimeouts,
        content_by: float,
        on_content: "OnContent",
        clock: Callable[[], float],
    ) -> None:
        self._downstream = downstream
        self._reader = reader
        self._idle_s = timeouts.idle_s
        self._keepalive_s = timeouts.keepalive_s
        self._content_by = content_by
        self._on_content = on_content
        self._clock = clock
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.out = b""
        """What the client gets next."""
        self.malformed: str | None = None
        """What is wrong with the provider's bytes behind `out`."""
        self.is_over = False
        """The provider's bytes have ended."""
        self.by = self.keepalive_at = 0.0
        """Loop time: when more must have come, and when the client hears from us before that."""
        self.went_on(told=True)

    @property
    def due(self) -> float:
        return self.by if self.by < self.keepalive_at else self.keepalive_at

    def went_on(self, *, told: bool) -> float:
        """The provider has been heard, and the client too, when it was `told`. Gives what is `due`."""
        now = self._clock()
        if told:
            self.keepalive_at = now + self._keepalive_s
        by = now + self._idle_s
        if self._reader.terminal:
            by = min(by, now + AFTER_TERMINAL_SECONDS)
        elif self._content_by < by and not self._downstream.committed:
            by = self._content_by
        self.by = by
        return self.due

    def take(self, data: bytes) -> float:
        """Passes on what can be passed on at once. See `Take`; 0: the rest is `relay`'s."""
        reader, downstream = self._reader, self._downstream
        try:
            events: Sequence[StreamEvent] = reader.feed(data) if data else reader.flush()
        except MalformedAnswer as error:
            self.malformed = str(error)
            events = error.events
        out = downstream.listen(events, reader, self._on_content) if events else b""
        if not downstream.committed:
            out = self._hold(out)
        elif self._held:
            self._held.append(out)
            out = self._release()
        if (
            not data
            or reader.done
            or reader.error is not None
            or self.malformed is not None
            or (out and not downstream.write_at_once(out))
        ):
            self.is_over = not data
            self.out = out
            return 0.0
        return self.went_on(told=bool(out))

    def _hold(self, out: bytes) -> bytes:
        """Before the commit point. More than may be held is one."""
        if out:
            self._held.append(out)
            self._held_bytes += len(out)
            if self._held_bytes > MAX_HELD_BYTES:
                self._downstream.committed = True
                return self._release()
        return b""

    def _release(self) -> bytes:
        out = b"".join(self._held)
        self._held.clear()
        return out


class OnContent(Protocol):
    """Called once, at an attempt's first content."""

    def __call__(self) -> None: ...


def _in_band(reader: StreamReader) -> AttemptFailed:
    assert reader.error is not None
    code = "upstream_overloaded" if "overloaded" in reader.error.type else "upstream_error"
    return AttemptFailed("server_error", code, "The provider ended its stream with an error.", status=200)


async def _drain(response: UpstreamResponse, by: float) -> None:
    """Reads the end of a body whose last event has come, so that its connection can serve again."""
    try:
        while await response.receive(by=by):
            pass
    except UpstreamError:
        response.close()
