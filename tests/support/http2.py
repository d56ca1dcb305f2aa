"""An HTTP/2 upstream that does on each connection what a coroutine of the test says, frame by frame where it matters.

async def play(peer: Peer) -> None:
    request = await peer.request()
    peer.answer(request.stream, b"ok")

async with http2_upstream(play, authority) as upstream:
    ...  # call upstream.base_url, trusting authority.ca_file
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import h2.config
import h2.connection
import h2.errors
import h2.events
from hpack import Encoder

from tests.support.certificates import Authority

Fields = Sequence[tuple[str, str]]


@dataclass(slots=True)
class Asked:
    stream: int
    headers: list[tuple[bytes, bytes]]
    body: bytearray = field(default_factory=bytearray)


class Peer(asyncio.Protocol):
    """One connection. What the client sends is taken and acknowledged at once, unless `takes` is False."""

    def __init__(self, upstream: "Http2Upstream") -> None:
        self._upstream = upstream
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, validate_outbound_headers=False)
        )
        self.takes = True
        self.asked: dict[int, Asked] = {}
        self.events: list[h2.events.Event] = []
        self.gone = asyncio.Event()
        self._whole: asyncio.Queue[Asked] = asyncio.Queue()
        self._heads: asyncio.Queue[Asked] = asyncio.Queue()
        self._moved = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass.
        self.transport = cast(asyncio.Transport, transport)
        self._upstream.peers.append(self)
        self.h2.initiate_connection()
        self.flush()
        self._task = asyncio.get_running_loop().create_task(self._play())

    async def _play(self) -> None:
        # A client that leaves is the subject of many tests, not a failure of this one.
        with contextlib.suppress(ConnectionError):
            await self._upstream.play(self)

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            self.events.append(event)
            match event:
                case h2.events.RequestReceived():
                    asked = Asked(event.stream_id, [(bytes(name), bytes(value)) for name, value in event.headers])
                    self.asked[event.stream_id] = asked
                    self._heads.put_nowait(asked)
                case h2.events.DataReceived():
                    self.asked[event.stream_id].body += event.data
                    if self.takes:
                        self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.StreamEnded():
                    self._whole.put_nowait(self.asked[event.stream_id])
        self._moved.set()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self._moved.set()
        self._task.cancel()

    def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            self.raw(data)

    def raw(self, data: bytes) -> None:
        if self.transport.is_closing():
            raise ConnectionError
        self.transport.write(data)

    async def request(self) -> Asked:
        """The next request, whole."""
        return await self._whole.get()

    async def request_head(self) -> Asked:
        return await self._heads.get()

    def head(self, stream: int, *fields: tuple[str, str], status: int = 200, end: bool = False) -> None:
        self.h2.send_headers(stream, [(":status", str(status)), *fields], end_stream=end)
        self.flush()

    def data(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Within the window, one frame for each 16 KiB."""
        for start in range(0, max(len(data), 1), 16_384):
            self.h2.send_data(stream, data[start : start + 16_384], end_stream=end and start + 16_384 >= len(data))
        self.flush()

    def answer(self, stream: int, body: bytes, *fields: tuple[str, str], status: int = 200) -> None:
        self.head(stream, *fields, status=status)
        self.data(stream, body, end=True)

    async def pour(self, stream: int, total: int) -> int:
        """Sends up to `total` bytes as the client's window allows, until nothing has moved for a while; what was sent."""
        sent = 0
        while sent < total and not self.gone.is_set():
            size = min(self.h2.local_flow_control_window(stream), 16_384, total - sent)
            if size:
                self.data(stream, b"x" * size)
                sent += size
                await asyncio.sleep(0)
                continue
            self._moved.clear()
            try:
                async with asyncio.timeout(0.2):
                    await self._moved.wait()
            except TimeoutError:
                break
        return sent


class Http2Upstream:
    def __init__(self, play: Callable[[Peer], Awaitable[None]]) -> None:
        self.play = play
        self.peers: list[Peer] = []
        self.port = 0

    @property
    def base_url(self) -> str:
        return f"https://127.0.0.1:{self.port}/v1"


@contextlib.asynccontextmanager
async def http2_upstream(
    play: Callable[[Peer], Awaitable[None]], authority: Authority, *, alpn: tuple[str, ...] = ("h2", "http/1.1")
) -> AsyncIterator[Http2Upstream]:
    """Listens on 127.0.0.1 with a certificate for that address. What `play` raises is raised at the end."""
    upstream = Http2Upstream(play)
    server = await asyncio.get_running_loop().create_server(
        lambda: Peer(upstream), "127.0.0.1", 0, ssl=authority.server_context("127.0.0.1", alpn=alpn), backlog=1024
    )
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        for peer in upstream.peers:
            peer.transport.abort()
            await peer.gone.wait()
        results = await asyncio.gather(*(peer._task for peer in upstream.peers), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame as RFC 9113, 4.1 has it."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def head_frame(stream: int, fields: Fields, *, end: bool = False) -> bytes:
    """A HEADERS frame that h2 would refuse to make."""
    return frame(1, 4 | end, stream, Encoder().encode(list(fields)))
