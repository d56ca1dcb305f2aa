"""A provider's stream to the client: held until the commit point, then passed on event by event.

The commit point is the first content or the terminal event. Until then a failure leaves the client untouched, so that
another target can be tried. After it, an end without the terminal event is never made to look like a whole answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.dialects.neutral import DialectModule, MalformedAnswer, StreamEvent, StreamReader
from gateway.relay.attempt import AttemptFailed, failure_of, malformed
from gateway.relay.messages import BODY_FOLLOWS, ClientLeft, Header, Send
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
        clock: Callable[[], float],
    ) -> None:
        """`model_shown`: the name that answers carry instead of the provider's; `None`: the provider's own.

        `leaves_open`: the server closes the connection of an answer that was not ended.
        """
        self._clock = clock
        self._send = send
        self.head = head
        """Of the attempt under way; of the one that answered, once it is out."""
        self._dialect = dialect
        self._leaves_open = leaves_open
        self._show_usage = show_usage
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
        loop = asyncio.get_running_loop()
        clock = loop.time
        last = clock()
        keepalive_at = last + timeouts.keepalive_s
        held: list[bytes] = []
        held_bytes = 0
        while True:
            by = last + timeouts.idle_s
            if reader.terminal:
                by = min(by, last + AFTER_TERMINAL_SECONDS)
            elif not self.committed and content_by < by:
                by = content_by
            try:
                data = await response.receive(by=by if by < keepalive_at else keepalive_at)
            except ResponseTimeout as error:
                if keepalive_at < by:
                    if not reader.terminal:
                        await self.keepalive()
                    keepalive_at = clock() + timeouts.keepalive_s
                    continue
                if reader.terminal:
                    return await self._finish(reader)
                raise self._failure(failure_of(error), "upstream_idle_timeout") from error
            except UpstreamError as error:
                if reader.terminal:
                    return await self._finish(reader)
                raise self._failure(failure_of(error), "upstream_stream_truncated") from error
            heard_at = clock()
            try:
                events = reader.feed(data) if data else reader.flush()
            except MalformedAnswer as error:
                good = self._listen(error.events, reader, on_content)
                if self.committed:
                    await self._write(b"".join([*held, good]))
                raise self._failure(malformed(str(error)), "upstream_stream_truncated") from error
            out = self._listen(events, reader, on_content) if events else b""
            is_over = not data
            del data, events  # a client that does not read makes this frame last
            if self.committed:
                if held:
                    held.append(out)
                    out = b"".join(held)
                    held.clear()
            elif out:
                held.append(out)
                held_bytes += len(out)
                out = b""
                if held_bytes > MAX_HELD_BYTES:
                    self.committed = True
                    out = b"".join(held)
                    held.clear()
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
                last = clock()
                keepalive_at = last + timeouts.keepalive_s
            else:
                last = heard_at
            if is_over:
                if reader.terminal:
                    return await self._finish(reader)
                raise self._failure(
                    malformed("The stream ended before the answer was complete."), "upstream_stream_truncated"
                )

    def _listen(self, events: Sequence[StreamEvent], reader: StreamReader, on_content: "OnContent") -> bytes:
        """The bytes of these events that the client gets; notes the commit point."""
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
