"""Clients that misbehave on real sockets: they send in pieces, do not read, and leave in every way there is.

Each is a raw socket on the running loop. What a client does not read stays in the kernels' buffers.
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Address = tuple[str, int]
Pairs = Sequence[tuple[str, str]]

PIECE = 65_536


@dataclass(slots=True, eq=False)
class Client:
    """One connection. Everything that was read is in `heard`."""

    socket: socket.socket
    heard: bytearray = field(default_factory=bytearray)
    ended: Literal["closed", "reset"] | None = None
    """How the server ended the connection, as far as it was read."""

    @property
    def port(self) -> int:
        port: int = self.socket.getsockname()[1]
        return port

    async def send(self, data: bytes, *, size: int = 0, every: float = 0.0) -> bool:
        """In pieces of `size` bytes, one every `every` seconds. False: the server did not take all of it."""
        loop = asyncio.get_running_loop()
        try:
            for start in range(0, len(data), size or len(data) or 1):
                await loop.sock_sendall(self.socket, data[start : start + size] if size else data)
                if every:
                    await asyncio.sleep(every)
        except ConnectionError:
            return False
        return True

    async def read(self, limit: int = PIECE) -> bytes:
        """Some bytes; `b""` at the end."""
        try:
            data = await asyncio.get_running_loop().sock_recv(self.socket, limit)
        except ConnectionError:
            self.ended = "reset"
            return b""
        if not data:
            self.ended = "closed"
        self.heard += data
        return data

    async def until(self, piece: bytes, *, within: float = 20.0) -> None:
        """Reads until `piece` has come. Fails the test when the connection ends without it."""
        async with asyncio.timeout(within):
            while piece not in self.heard:
                assert await self.read(), (self.ended, bytes(self.heard[-400:]))

    async def rest(self, *, within: float = 20.0) -> bytes:
        """Everything up to the end of the connection. `TimeoutError`: the server left it open."""
        async with asyncio.timeout(within):
            while await self.read():
                pass
        return bytes(self.heard)

    def close(self) -> None:
        """Leaves with a FIN; with a RST when anything that came was not read."""
        self.socket.close()

    def finish(self) -> None:
        """Half-closes: nothing more will be sent, and what still comes is taken."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Leaves with a RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


LEAVING: dict[str, Callable[[Client], None]] = {"FIN": Client.close, "RST": Client.reset, "half-close": Client.finish}


@contextlib.asynccontextmanager
async def connected(address: Address, *, receive_buffer: int | None = None) -> AsyncIterator[Client]:
    """`receive_buffer`: bytes that the kernel takes in for a client that does not read, about."""
    client = await connect(address, receive_buffer=receive_buffer)
    try:
        yield client
    finally:
        client.close()


async def connect(address: Address, *, receive_buffer: int | None = None) -> Client:
    """The caller closes it."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setblocking(False)
    if receive_buffer is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        await asyncio.get_running_loop().sock_connect(made, address)
    except BaseException:
        made.close()
        raise
    return Client(made)


async def ask(address: Address, sent: bytes, *, within: float = 20.0) -> "Answer":
    """The answer to these bytes on a connection of their own, read to the connection's end or the answer's."""
    async with connected(address) as client:
        await client.send(sent)
        return await answer_of(client, within=within)


# -- requests


def head(method: str, target: str, headers: Pairs = ()) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def post(path: str, body: bytes | dict[str, Any], *, token: str = "", headers: Pairs = ()) -> bytes:
    """A whole, correct request; `token` as a bearer."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = [("Host", "gateway.example"), ("Content-Length", str(len(raw))), *headers]
    if token:
        fields.append(("Authorization", f"Bearer {token}"))
    return head("POST", path, fields) + raw


def ambiguous(start: bytes, body: bytes) -> dict[str, bytes]:
    """Requests that two readers may take for different ones, by what is odd in them. Without that they are correct.

    `start`: request line and headers of a POST, each with its line end, without a length and without the empty line.
    `body`: at least three bytes; sent whole, so that a reader who overlooks the oddity has a request to serve.
    """
    size = len(body)
    length = b"Content-Length: %d\r\n" % size
    coding = b"Transfer-Encoding: chunked\r\n"
    in_chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (size, body)
    plain, chunked = start + length, start + coding + b"\r\n"
    line, _, fields = plain.partition(b"\r\n")
    return {
        "both lengths": start + length + coding + b"\r\n" + in_chunks,
        "both lengths, the other way round": start + coding + length + b"\r\n" + in_chunks,
        "two lengths": plain + b"Content-Length: %d\r\n\r\n" % (size + 1) + body,
        "one length twice": plain + length + b"\r\n" + body,
        "a list of lengths": start + b"Content-Length: %d, %d\r\n\r\n" % (size, size) + body,
        "a length with a sign": start + b"Content-Length: +%d\r\n\r\n" % size + body,
        "an unknown coding": start + b"Transfer-Encoding: xchunked\r\n\r\n" + in_chunks,
        "chunked that is not last": start + b"Transfer-Encoding: chunked, identity\r\n\r\n" + in_chunks,
        "chunked twice": start + coding + coding + b"\r\n" + in_chunks,
        "chunked behind a vertical tab": start + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + in_chunks,
        "a space before the colon": start + b"Transfer-Encoding : chunked\r\n\r\n" + in_chunks,
        "a folded line": plain + b"X: y\r\n z\r\n\r\n" + body,
        "a folded coding": start + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + in_chunks,
        "bare line feeds": line + b"\n" + fields.replace(b"\r\n", b"\n") + b"\n" + body,
        "one bare line feed": start + b"X: y\n" + length + b"\r\n" + body,
        "a bare carriage return": start + b"X: y\r" + length + b"\r\n" + body,
        "a zero byte in a value": plain + b"X: a\x00b\r\n\r\n" + body,
        "a chunk size in the style of C": chunked + b"0x" + in_chunks,
        "a negative chunk size": chunked + b"-" + in_chunks,
        "a chunk size of 17 digits": chunked + b"11111111111111111\r\n" + body + b"\r\n0\r\n\r\n",
        "a space behind the chunk size": chunked + b"%x \r\n%s\r\n0\r\n\r\n" % (size, body),
        "a line feed in a chunk extension": chunked + b"%x;x=\n\r\n%s\r\n0\r\n\r\n" % (size, body),
        "a chunk longer than its size": chunked + b"%x\r\n%s\r\n0\r\n\r\n" % (size - 2, body),
        "a chunk without its line end": chunked + b"%x\r\n%s0\r\n\r\n" % (size, body),
    }


# -- answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    """Names in lower case, in order."""
    body: bytes
    whole: bool
    """The body came to its end."""
    behind: bytes = b""
    """What came after it."""

    def header(self, name: str) -> str | None:
        """The only value of that field; `None` when it is absent."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) < 2, (name, values)
        return values[0] if values else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def answer_of(client: Client, *, within: float = 20.0) -> Answer:
    """Reads on until an answer is whole, or the connection ends. Fails the test when not even a head comes."""
    async with asyncio.timeout(within):
        while (read := parse(bytes(client.heard))) is None or not read.whole:
            if not await client.read():
                break
    assert read is not None, (client.ended, bytes(client.heard[:400]))
    return read


def parse(heard: bytes) -> Answer | None:
    """The first answer in these bytes, as far as it goes; `None`: no whole head yet."""
    while heard.startswith(b"HTTP/1.1 100"):
        heard = heard.partition(b"\r\n\r\n")[2]
    top, end, rest = heard.partition(b"\r\n\r\n")
    if not end:
        return None
    line, *fields = top.decode("latin-1").split("\r\n")
    headers = tuple((name.lower(), value.strip()) for name, _, value in (each.partition(":") for each in fields))
    named = dict(headers)
    status = int(line.split(" ")[1])
    if named.get("transfer-encoding") == "chunked":
        body, whole, behind = _unchunked(rest)
    else:
        length = int(named.get("content-length", "0"))
        body, whole, behind = rest[:length], len(rest) >= length, rest[length:]
    return Answer(status=status, headers=headers, body=body, whole=whole, behind=behind)


def _unchunked(data: bytes) -> tuple[bytes, bool, bytes]:
    pieces: list[bytes] = []
    while True:
        size_line, end, data = data.partition(b"\r\n")
        if not end:
            return b"".join(pieces), False, b""
        size = int(size_line, 16)
        if size == 0:
            return b"".join(pieces), data.startswith(b"\r\n"), data[2:]
        if len(data) < size + 2:
            pieces.append(data[:size])
            return b"".join(pieces), False, b""
        assert data[size : size + 2] == b"\r\n", data[size : size + 20]
        pieces.append(data[:size])
        data = data[size + 2 :]


# -- what a process holds, from outside


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sockets_of(pid: int) -> set[int]:
    """The inodes of its open sockets, listening ones included."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            name = os.readlink(entry)
            if name.startswith("socket:["):
                found.add(int(name[8:-1]))
    return found


def descriptors_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def server_sockets(port: int) -> dict[int, int]:
    """Inodes of the established connections to this port of 127.0.0.1, on the listening side, by the client's port."""
    found = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *more = line.split()
        if state == "01" and int(local.partition(":")[2], 16) == port:
            found[int(remote.partition(":")[2], 16)] = int(more[5])
    return found
