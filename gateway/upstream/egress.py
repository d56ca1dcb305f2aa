"""Through an egress proxy: where it is, and the tunnel to a provider behind it.

The proxy's address is judged as a provider's would be. The provider's name is resolved by the proxy.
"""

import asyncio
import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote_to_bytes, urlsplit

from gateway.upstream.dialing import Dialed, Place
from gateway.upstream.errors import ConnectError, UpstreamError
from routing.core.catalog import Provider

_MAX_ANSWER = 16_384
_NO_URL = "holds no proxy's URL such as http://proxy.example:3128"
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: [^\r\n]*)?\r\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    place: Place
    authorization: bytes | None = field(default=None, repr=False)
    """The value of `proxy-authorization`."""


def proxy_of(provider: Provider, environ: Mapping[str, str]) -> Proxy | None:
    """`None` without `proxy_env`. Raises `ConnectError`, which names the variable and never repeats what it holds."""
    variable = provider.proxy_env
    if variable is None:
        return None
    what = f"provider {provider.name}: the environment variable {variable}"
    value = environ.get(variable, "").strip()
    if not value:
        raise ConnectError(f"{what} is not set")
    try:
        url = urlsplit(value)
        port = url.port or (443 if url.scheme == "https" else 80)
        host = (url.hostname or "").encode("idna" if url.hostname and not url.hostname.isascii() else "ascii").decode()
    except ValueError:  # UnicodeError is one
        raise ConnectError(f"{what} {_NO_URL}") from None
    bare = url.path in ("", "/") and not url.query and not url.fragment and host.isprintable()
    if url.scheme not in ("http", "https") or not host or not port or not bare:
        raise ConnectError(f"{what} {_NO_URL}")
    authorization = None
    if url.username is not None:
        user = unquote_to_bytes(url.username) + b":" + unquote_to_bytes(url.password or "")
        authorization = b"Basic " + base64.b64encode(user)
    return Proxy(place=Place(host=host, port=port, tls=url.scheme == "https"), authorization=authorization)


class Fresh(Dialed):
    """Holds what has just been dialled until it is known what is spoken on it."""

    __slots__ = ("_early", "_failure", "_is_gone", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._failure: Exception | None = None
        self._is_gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass.
        self.transport = cast(asyncio.Transport, transport)
        if self._is_gone:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_gone = True
        self._failure = exc

    def abandon(self) -> None:
        self._is_gone = True
        if self.transport is not None:
            self.transport.abort()

    @property
    def speaks_http2(self) -> bool:
        assert self.transport is not None
        tls = self.transport.get_extra_info("ssl_object")
        return tls is not None and tls.selected_alpn_protocol() == "h2"

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """`protocol` is told all that has happened so far, and everything from now on."""
        transport = self.transport
        assert transport is not None
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._early:
            protocol.data_received(b"".join(self._early))
        if self._is_gone:
            protocol.connection_lost(self._failure)


class Tunnel(Fresh):
    """A connection to a proxy that is asked to lead on."""

    __slots__ = ("_answer",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._answer: asyncio.Future[bytes] = loop.create_future()

    async def open(self, target: Place, authorization: bytes | None) -> None:
        """Raises `ConnectError` when the proxy does not lead there."""
        assert self.transport is not None
        authority = target.authority.encode("ascii")
        lines = [b"CONNECT %b HTTP/1.1" % authority, b"host: %b" % authority]
        if authorization is not None:
            lines.append(b"proxy-authorization: " + authorization)
        self.transport.write(b"\r\n".join([*lines, b"", b""]))
        answer = await self._answer
        status = _STATUS.match(answer)
        if status is None:
            raise ConnectError("the proxy's answer is not HTTP/1.1")
        if not status[1].startswith(b"2"):
            raise ConnectError(f"the proxy refused with status {status[1].decode()}")
        if not answer.endswith(b"\r\n\r\n") or answer.count(b"\r\n\r\n") > 1:
            raise ConnectError("the proxy sent more than its answer")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        so_far = b"".join(self._early)
        if self._answer.done():
            return
        if b"\r\n\r\n" in so_far or len(so_far) > _MAX_ANSWER:
            self._early.clear()
            self._answer.set_result(so_far)

    def eof_received(self) -> bool:
        self._end(ConnectError("the proxy closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end(ConnectError("the proxy closed the connection"))

    def _end(self, error: UpstreamError) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)
            # Nobody may be waiting any more, and the loop would complain.
            self._answer.exception()
