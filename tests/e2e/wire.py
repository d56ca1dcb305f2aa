"""A client without a mind of its own: it sends exactly these bytes, and reads what comes back without judging it."""

import contextlib
import json
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any

Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    headers: tuple[tuple[str, str], ...]
    """Names in lower case, in order."""
    body: bytes
    whole: bool = True
    """False: the connection ended before the body did."""

    def header(self, name: str) -> str | None:
        """The only value of that field; `None` when it is absent."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) < 2, (name, values)
        return values[0] if values else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        id = self.header("x-request-id")
        assert id is not None, self
        return id


def head(method: str, target: str, headers: Pairs) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def exchange(address: tuple[str, int], sent: bytes, *, method: str = "POST", timeout: float = 20.0) -> Reply:
    """Sends these bytes on a connection of their own and reads one answer."""
    with socket.create_connection(address, timeout) as connection:
        connection.sendall(sent)
        return read_reply(connection, method=method)


def read_reply(connection: socket.socket, *, method: str = "POST") -> Reply:
    """One answer, to its end or the connection's; a `HEAD` has no body."""
    with contextlib.closing(HTTPResponse(connection, method=method)) as response:
        response.begin()
        whole = True
        try:
            body = response.read()
        except IncompleteRead as error:
            body, whole = error.partial, False
        headers = tuple((name.lower(), value) for name, value in response.getheaders())
        return Reply(status=response.status, headers=headers, body=body, whole=whole)


def request(
    address: tuple[str, int],
    method: str,
    target: str,
    *,
    headers: Pairs = (),
    body: bytes | dict[str, Any] | None = None,
    timeout: float = 20.0,
) -> Reply:
    """Host, and Content-Length where there is a body, come first; then `headers` as they are."""
    fields = [("Host", "gateway.example")]
    raw = b""
    if body is not None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields.append(("Content-Length", str(len(raw))))
    return exchange(address, head(method, target, [*fields, *headers]) + raw, method=method, timeout=timeout)


@contextlib.contextmanager
def connected(address: tuple[str, int], *, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """`receive_buffer`: bytes that the kernel takes in for us, about; small, and we are a slow client."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(20)
    try:
        connection.connect(address)
        yield connection
    finally:
        connection.close()


def unread_by(connection: socket.socket) -> int:
    """Bytes that the other end's kernel still holds for us. Linux tells, of both ends on one machine."""
    host, port = connection.getpeername()
    peer, ours = f":{port:04X}", f":{connection.getsockname()[1]:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(peer) and fields[2].endswith(ours):
            return int(fields[4].partition(":")[0], 16)
    raise LookupError(f"no connection of {host}:{port}")


def finish(connection: socket.socket) -> None:
    """Leaves with a FIN: nothing more will be sent, and what still comes is taken."""
    connection.shutdown(socket.SHUT_WR)


def reset(connection: socket.socket) -> None:
    """Leaves with a RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
