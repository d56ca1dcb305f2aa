"""One request and its answer on a connection of uvicorn's HTTP/1.1 protocol, where ours differs."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.relay.messages import BODY_FOLLOWS, WHOLE_BODY

log = logging.getLogger("pilotage.serving")

JOINED_BYTES = 65_536
"""A longer body goes out behind its head instead of being copied."""


class Cycle(RequestResponseCycle):
    tasks: set[asyncio.Task[None]]
    """The server's, of which `task` is one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.task: asyncio.Task[None] | None = None
        """That serves it, while it runs."""
        self.at_hang_up: Callable[[asyncio.Task[None]], None] | None = None
        """Called once with `task`."""
        self._head = b""
        """Waits for what comes behind it, at most to the end of the loop's turn: both go out in one write."""
        self._pieces: list[bytes] = []
        self._held_bytes = 0

    def hold(self, piece: bytes) -> bool:
        """Keeps a piece of the body, as it is, until the application asks; whether that is enough for now."""
        self._pieces.append(piece)
        self._held_bytes += len(piece)
        self.message_event.set()
        return self._held_bytes > HIGH_WATER_LIMIT

    async def receive(self) -> Any:
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body = b"".join(self._pieces)
        self._pieces.clear()
        self._held_bytes = 0
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.response_complete or (message["type"] == "http.response.start") is self.response_started:
            raise RuntimeError(f"The application sent {message['type']!r} out of its turn.")
        if not self.response_started:
            self.response_started = True
            self.waiting_for_100_continue = False
            self._head = self._head_of(message["status"], [*self.default_headers, *message.get("headers", ())])
            if WHOLE_BODY in message:
                self._write_body(message[WHOLE_BODY], more=False)
                self._complete()
            elif BODY_FOLLOWS not in message:
                asyncio.get_running_loop().call_soon(self._write_head)
            return
        more = message.get("more_body", False)
        self._write_body(message.get("body", b""), more=more)
        if not more:
            self._complete()

    def write_at_once(self, body: bytes) -> bool:
        """A piece, not empty, of an answer under way, as `_write_body` would write it. `False`: it has to be sent."""
        if (
            not self.chunked_encoding
            or self.flow.write_paused
            or self.disconnected
            or self.response_complete
            or self._head
        ):
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True

    def _head_of(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        closes = False
        for name, value in headers:
            match name.lower():
                case b"content-length":
                    if self.chunked_encoding is None:
                        self.expected_content_length = int(value)
                        self.chunked_encoding = False
                case b"transfer-encoding":
                    if value.lower() == b"chunked":
                        self.expected_content_length = 0
                        self.chunked_encoding = True
                case b"connection":
                    if b"close" in [token.strip() for token in value.lower().split(b",")]:
                        self.keep_alive = False
                        closes = True
        lines = b"".join([b"%b: %b\r\n" % field for field in headers])
        if lines.count(b"\n") != len(headers) or lines.count(b"\r") != len(headers) or b"\0" in lines:
            raise RuntimeError("A header holds a line break.")
        if not self.keep_alive and not closes:
            lines += b"connection: close\r\n"
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in (204, 304):
            self.chunked_encoding = True
            lines += b"transfer-encoding: chunked\r\n"
        return b"%b%b\r\n" % (STATUS_LINE[status], lines)

    def _write_head(self) -> None:
        head, self._head = self._head, b""
        if head and not self.transport.is_closing():
            self.transport.write(head)

    def _write_body(self, body: bytes, *, more: bool) -> None:
        head, self._head = self._head, b""
        if self.scope["method"] == "HEAD":
            body = b""
            self.expected_content_length = 0
        elif self.chunked_encoding:
            end = b"" if more else b"0\r\n\r\n"
            body = b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end
        else:
            if len(body) > self.expected_content_length:
                raise RuntimeError("The answer is longer than its Content-Length.")
            self.expected_content_length -= len(body)
        if len(body) > JOINED_BYTES:
            if head:
                self.transport.write(head)
            self.transport.write(body)
        elif head or body:
            self.transport.write(head + body)

    def _complete(self) -> None:
        if self.expected_content_length:
            raise RuntimeError("The answer is shorter than its Content-Length.")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def hang_up(self) -> None:
        """The client has left."""
        self.disconnected = True
        self.message_event.set()
        call, self.at_hang_up = self.at_hang_up, None
        if call is not None and self.task is not None:
            call(self.task)

    def start(self, app: Any, loop: asyncio.AbstractEventLoop, tasks: set[asyncio.Task[None]]) -> None:
        """`tasks`: it is one of them as long as it runs. One that is cancelled before its first step stays, as done."""
        self.task = loop.create_task(self.run_asgi(app))
        self.tasks = tasks
        tasks.add(self.task)

    async def run_asgi(self, app: Any) -> None:
        """As uvicorn's, but that a cancelled request is no error of the application, and closes without an end."""
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            if not self.response_complete:
                self.transport.close()
        except Exception as problem:
            log.error("the application failed", exc_info=problem)
            if self.response_started:
                self.transport.close()
            elif not self.disconnected:
                await self.send_500_response()
        else:
            if not self.response_complete and not self.disconnected:
                # Half an answer must never look like a whole one.
                self.transport.close()
        finally:
            self.on_response = _nothing
            self.at_hang_up = None
            if self.task is not None:
                self.tasks.discard(self.task)
                self.task = None


class ExpectingCycle(Cycle):
    """The client waits to be told to send its body. An answer without that leaves the connection of no use."""

    async def send(self, message: Any) -> None:
        if not self.response_started and self.waiting_for_100_continue and self.more_body:
            self.keep_alive = False
        await super().send(message)


def _nothing() -> None:
    pass
