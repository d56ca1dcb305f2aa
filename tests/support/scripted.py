"""An upstream that does on each connection exactly what a script says, byte for byte, and remembers what it was sent.

    async with scripted([Expect(), Send(answer(b"{}")), Close()]) as upstream:
        ...  # call upstream.base_url
    assert upstream.requests[0].body == b"..."

One script: every connection plays it. `scripts=[a, b]`: the first connection plays `a`, all later ones `b`. A script that
runs out leaves the connection open and silent. `scripted_in_thread` is the same for tests without an event loop.
"""

import asyncio
import contextlib
import fcntl
import socket
import ssl
import struct
import termios
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast


@dataclass(frozen=True, slots=True)
class Expect:
    """Waits for one whole request, head and body."""


@dataclass(frozen=True, slots=True)
class ExpectHead:
    """Waits for the head of a request; its body, if any, stays unread by the script."""


@dataclass(frozen=True, slots=True)
class Send:
    data: bytes


@dataclass(frozen=True, slots=True)
class Drip:
    """Sends `data` in pieces of `size` bytes, one every `every` seconds."""

    data: bytes
    every: float
    size: int = 1


@dataclass(frozen=True, slots=True)
class Flood:
    """Sends `piece` over and over until `total` bytes are handed to the kernel or the peer is gone."""

    piece: bytes
    total: int


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Await:
    """Waits until the test sets the event."""

    event: asyncio.Event


@dataclass(frozen=True, slots=True)
class AwaitPeer:
    """Waits until the peer has closed its side (FIN or RST)."""


@dataclass(frozen=True, slots=True)
class StopReading:
    """Takes nothing more from the kernel: the peer's writes pile up."""


@dataclass(frozen=True, slots=True)
class StartReading:
    pass


@dataclass(frozen=True, slots=True)
class Reset:
    """Ends the connection with a RST."""


@dataclass(frozen=True, slots=True)
class HalfClose:
    """Sends FIN and goes on reading."""


@dataclass(frozen=True, slots=True)
class Close:
    """Sends what is pending, then FIN, and closes."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Plays `steps` `times` times; `None`: until the peer is gone."""

    steps: "Script"
    times: int | None = None


Step = (
    Expect
    | ExpectHead
    | Send
    | Drip
    | Flood
    | Pause
    | Await
    | AwaitPeer
    | StopReading
    | StartReading
    | Reset
    | HalfClose
    | Close
    | Repeat
)
Script = Sequence[Step]


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came."""

    line: bytes
    """`POST /v1/x HTTP/1.1`"""
    headers: list[tuple[bytes, bytes]]
    """Names in lower case, in order."""
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        """The only value of that header; `None` when it is absent. Two of them fail the test."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) < 2, (name, values)
        return values[0] if values else None


@dataclass(slots=True, eq=False)
class Played:
    """One connection: what came in, what went out, how it ended."""

    raw: bytearray = field(default_factory=bytearray)
    """Every byte the script's reading has let in."""
    requests: list[Received] = field(default_factory=list)
    sent: int = 0
    """Bytes written to the transport."""
    opened_at: float = 0.0
    peer_gone_at: float | None = None
    """`loop.time()` at the peer's FIN or RST; `None` while it is there, or when this side closed first."""
    peer_gone: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """The connection is closed on both sides."""


class ScriptedUpstream:
    """A listening server on 127.0.0.1; see the module's text."""

    def __init__(self, scripts: Sequence[Script], *, tls: ssl.SSLContext | None = None) -> None:
        assert scripts
        self.connections: list[Played] = []
        self._scripts = scripts
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._live: set[_Player] = set()
        self.port = 0

    @property
    def base_url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/v1"

    @property
    def requests(self) -> list[Received]:
        """Of all connections, in the order of connecting."""
        return [request for played in self.connections for request in played.requests]

    @property
    def open_connections(self) -> int:
        return len(self._live)

    def taken(self) -> list[int]:
        """Bytes that the peer's kernel has taken in, of every open connection."""
        return [player.taken() for player in self._live]

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Player(self), "127.0.0.1", 0, ssl=self._tls, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        live = list(self._live)
        for player in live:
            player.stop()
        for player in live:
            await player.played.ended.wait()

    def script_of_next(self) -> Script:
        return self._scripts[min(len(self.connections), len(self._scripts)) - 1]

    def joined(self, player: "_Player") -> None:
        self.connections.append(player.played)
        self._live.add(player)

    def left(self, player: "_Player") -> None:
        self._live.discard(player)


class _Player(asyncio.Protocol):
    def __init__(self, upstream: ScriptedUpstream) -> None:
        self.played = Played()
        self._upstream = upstream
        self._pending = bytearray()
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass.
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self.played.opened_at = self._loop.time()
        self._upstream.joined(self)
        self._task = self._loop.create_task(self._play_all(self._upstream.script_of_next()))

    def data_received(self, data: bytes) -> None:
        self.played.raw += data
        self._pending += data
        self._news.set()

    def eof_received(self) -> bool:
        self._peer_left()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._peer_left()
        self.played.peer_gone.set()
        self._writable.set()
        self._news.set()
        self._task.cancel()
        self._upstream.left(self)
        self.played.ended.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def stop(self) -> None:
        self._task.cancel()
        self._transport.abort()

    def taken(self) -> int:
        queued = bytearray(4)
        fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
        return self.played.sent - self._transport.get_write_buffer_size() - int.from_bytes(queued, "little")

    def _peer_left(self) -> None:
        if self.played.peer_gone_at is None:
            self.played.peer_gone_at = self._loop.time()
        self.played.peer_gone.set()
        self._news.set()

    async def _play_all(self, script: Script) -> None:
        # A peer that leaves in the middle of a script is the subject of many tests, not a failure of this one.
        with contextlib.suppress(_PeerLeft):
            await self._play(script)
            await self.played.peer_gone.wait()
        self._transport.close()

    async def _play(self, script: Script) -> None:
        for step in script:
            match step:
                case Expect():
                    await self._expect(whole=True)
                case ExpectHead():
                    await self._expect(whole=False)
                case Send(data):
                    await self._write(data)
                case Drip(data, every, size):
                    for start in range(0, len(data), size):
                        await self._write(data[start : start + size])
                        await asyncio.sleep(every)
                case Flood(piece, total):
                    while total > 0 and not self._transport.is_closing():
                        await self._write(piece[:total])
                        total -= len(piece)
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Await(event):
                    await event.wait()
                case AwaitPeer():
                    await self.played.peer_gone.wait()
                case StopReading():
                    self._transport.pause_reading()
                case StartReading():
                    self._transport.resume_reading()
                case Reset():
                    linger = struct.pack("ii", 1, 0)
                    self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self._transport.abort()
                    await asyncio.Event().wait()
                case HalfClose():
                    self._transport.write_eof()
                case Close():
                    self._transport.close()
                    await asyncio.Event().wait()
                case Repeat(steps, None):
                    while not self._transport.is_closing():
                        await self._play(steps)
                case Repeat(steps, int(times)):
                    for _ in range(times):
                        await self._play(steps)

    async def _write(self, data: bytes) -> None:
        if self._transport.is_closing():
            raise _PeerLeft
        self._transport.write(data)
        self.played.sent += len(data)
        await self._writable.wait()

    async def _expect(self, *, whole: bool) -> None:
        while (end := self._pending.find(b"\r\n\r\n")) < 0:
            await self._more()
        line, *rest = bytes(self._pending[:end]).split(b"\r\n")
        headers = [(name.lower(), value.strip()) for name, _, value in (field.partition(b":") for field in rest)]
        del self._pending[: end + 4]
        length = int(dict(headers).get(b"content-length", b"0")) if whole else 0
        while len(self._pending) < length:
            await self._more()
        self.played.requests.append(Received(line, headers, bytes(self._pending[:length])))
        del self._pending[:length]

    async def _more(self) -> None:
        if self.played.peer_gone.is_set():
            raise _PeerLeft
        self._news.clear()
        await self._news.wait()


class _PeerLeft(Exception):
    pass


def answer(
    body: bytes = b"{}",
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    content_type: str = "application/json",
) -> bytes:
    """A well-formed response with a Content-Length."""
    lines = [f"HTTP/1.1 {status} Status", f"content-type: {content_type}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked_head(*, status: int = 200, content_type: str = "text/event-stream") -> bytes:
    """The head of a chunked answer; follow it with `chunk(...)` and `LAST_CHUNK`."""
    return f"HTTP/1.1 {status} Status\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


@contextlib.asynccontextmanager
async def scripted(
    script: Script | None = None,
    *,
    scripts: Sequence[Script] | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[ScriptedUpstream]:
    """A running upstream on a free port of 127.0.0.1; give `script` or `scripts`."""
    upstream = ScriptedUpstream(_scripts(script, scripts), tls=tls)
    await upstream.start()
    try:
        yield upstream
    finally:
        await upstream.stop()


@contextlib.contextmanager
def scripted_in_thread(
    script: Script | None = None,
    *,
    scripts: Sequence[Script] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[ScriptedUpstream]:
    """The same on a loop of its own in a thread. Read `requests` and `connections`, await nothing of theirs."""
    upstream = ScriptedUpstream(_scripts(script, scripts), tls=tls)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(upstream.start(), loop).result(5)
        yield upstream
        asyncio.run_coroutine_threadsafe(upstream.stop(), loop).result(5)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


def _scripts(script: Script | None, scripts: Sequence[Script] | None) -> Sequence[Script]:
    assert (script is None) != (scripts is None)
    return [script] if script is not None else (scripts or [])
