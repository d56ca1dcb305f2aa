"""An egress proxy on 127.0.0.1 that tunnels (CONNECT) and forwards (absolute URLs), resolves names its own way, and remembers."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit


class EgressProxy:
    def __init__(self, *, names: Mapping[str, str], authorization: str | None, answer: bytes | None) -> None:
        self.asked: list[str] = []
        """The first line of each head."""
        self.heads: list[bytes] = []
        self.open_connections = 0
        self.port = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._names = names
        self._authorization = authorization
        self._answer = answer

    async def quiet(self) -> None:
        """Returns when no connection is open."""
        await self._quiet.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections += 1
        self._quiet.clear()
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._lead_on(reader, writer)
        finally:
            self.open_connections -= 1
            if not self.open_connections:
                self._quiet.set()
            writer.transport.abort()

    async def _lead_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *fields = head[:-4].decode().split("\r\n")
        self.asked.append(line)
        self.heads.append(head)
        if self._answer is not None:
            writer.write(self._answer)
            await reader.read()
            return
        given = dict(field.split(": ", 1) for field in fields)
        if given.get("proxy-authorization") != self._authorization:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            await reader.read()
            return
        method, target, _ = line.split(" ")
        url = urlsplit(f"//{target}" if method == "CONNECT" else target)
        assert url.hostname is not None
        there_reader, there_writer = await asyncio.open_connection(
            self._names.get(url.hostname, url.hostname), url.port
        )
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            there_writer.write(head.replace(target.encode(), (url.path or "/").encode(), 1))
        done, pending = await asyncio.wait(
            [asyncio.create_task(_pump(reader, there_writer)), asyncio.create_task(_pump(there_reader, writer))],
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in pending:
            task.cancel()
        await asyncio.gather(*done, *pending, return_exceptions=True)
        there_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


@contextlib.asynccontextmanager
async def egress_proxy(
    *,
    names: Mapping[str, str] | None = None,
    authorization: str | None = None,
    answer: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[EgressProxy]:
    """`names`: where names lead; `authorization`: what a client has to send; `answer`: all that any client is told."""
    proxy = EgressProxy(names=names or {}, authorization=authorization, answer=answer)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=tls)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        async with asyncio.timeout(5):
            await proxy.quiet()
