"""An ASGI client that can hang up: calls an application in this process, as a server would."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from gateway.relay.messages import WRITE_AT_ONCE, Message, Scope


@dataclass(slots=True)
class Reply:
    """What the client got; `pieces` are the body messages as they came."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    def header(self, name: str) -> str | None:
        """The only value of that header; two of them fail the test."""
        values = [value.decode() for key, value in self.headers if key == name.encode()]
        assert len(values) < 2, (name, values)
        return values[0] if values else None


class Call:
    """One request under way. `await call.answered()` for the whole reply; `hang_up()` at any time."""

    writes_at_once: ClassVar[bool] = True
    """Its server offers `WRITE_AT_ONCE`, as ours does."""

    def __init__(self, app: Any, scope: Scope, body: bytes, *, pieces: int = 1) -> None:
        self.reply = Reply()
        self._left = asyncio.Event()
        self._news = asyncio.Event()
        size = max(1, -(-len(body) // pieces))
        self._body = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        if self.writes_at_once:
            scope["extensions"] = {WRITE_AT_ONCE: lambda: self._write_at_once} | (scope["extensions"] or {})
        self.task: asyncio.Task[None] = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self._left.is_set():
            return {"type": "http.disconnect"}
        if self._body:
            piece = self._body.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._body)}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._left.is_set():
            return
        if message["type"] == "http.response.start":
            assert self.reply.status == 0, "two heads"
            self.reply.status = message["status"]
            self.reply.headers = list(message["headers"])
        else:
            assert self.reply.status, "a body before its head"
            assert not self.reply.complete, "a body after its end"
            if message.get("body"):
                self.reply.pieces.append(message["body"])
            self.reply.complete = not message.get("more_body", False)
        self._news.set()

    def _write_at_once(self, body: bytes) -> bool:
        if self._left.is_set() or not self.reply.status or self.reply.complete:
            return False
        assert body
        self.reply.pieces.append(body)
        self._news.set()
        return True

    @property
    def unread(self) -> int:
        """Bytes of the request body that the application has not taken."""
        return sum(map(len, self._body))

    def hang_up(self) -> None:
        self._left.set()

    async def until(self, piece: bytes, *, limit_s: float = 5.0) -> None:
        """Waits until `piece` has come. Fails the test when the answer ends without it."""
        async with asyncio.timeout(limit_s):
            while piece not in self.reply.body:
                assert not self.task.done(), self.reply.body
                self._news.clear()
                await self._news.wait()

    async def answered(self, *, limit_s: float = 20.0) -> Reply:
        async with asyncio.timeout(limit_s):
            await self.task
        return self.reply


def call(
    app: Any,
    method: str,
    path: str,
    body: bytes | dict[str, Any] = b"",
    *,
    headers: list[tuple[bytes, bytes]] | None = None,
    query: bytes = b"",
    pieces: int = 1,
    extensions: dict[str, Any] | None = None,
) -> Call:
    """`pieces`: into how many messages the body is cut. Header names are lower-cased, as servers do."""
    raw = msgspec.json.encode(body) if isinstance(body, dict) else body
    fields = [(name.lower(), value) for name, value in headers or []]
    if raw and not any(name in (b"content-length", b"transfer-encoding") for name, _ in fields):
        fields.append((b"content-length", b"%d" % len(raw)))
    scope: Scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": fields,
        "extensions": extensions,
    }
    return Call(app, scope, raw, pieces=pieces)
