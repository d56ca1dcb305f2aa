"""From a base URL to a connected transport: names, addresses that may be called, TLS.

An address is checked, not a name: the name is resolved here, each address is judged, and exactly that address is connected to.
"""

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from gateway.upstream.errors import ConnectError, ConnectTimeout
from routing.core.catalog import Provider

Resolver = Callable[[str, int], Sequence[str]]
"""Host and port to IP addresses in order of preference. May block: it runs in a thread. Raises `OSError`."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Dialed(asyncio.BaseProtocol):
    """What a dialer makes a connection for."""

    __slots__ = ()

    def abandon(self) -> None:
        """Nothing came of it: forget it, also when the loop hands it a transport after all."""
        raise NotImplementedError


Alpn = tuple[str, ...]
"""What is offered to speak in a TLS handshake, the preferred first."""
HTTP1: Alpn = ("http/1.1",)
HTTP2_OR_1: Alpn = ("h2", "http/1.1")

T = TypeVar("T")
P = TypeVar("P", bound=Dialed)

MAX_ADDRESSES = 8
"""Addresses of one name that are tried; more share too little time each."""

_CARRIER_NAT = ipaddress.ip_network("100.64.0.0/10")
_SIX_TO_FOUR = ipaddress.ip_network("2002::/16")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def system_resolver(host: str, port: int) -> list[str]:
    """The system's own answer, without repetitions."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_public(address: Address) -> bool:
    """Whether nothing private is reachable at `address`, also not through an IPv4 address inside it."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if address.ipv4_mapped is not None:
            return False
        if inner is not None and not is_public(inner):
            return False
        if address in _SIX_TO_FOUR or address in _NAT64:
            return True
        if address.is_site_local:
            return False
    elif address in _CARRIER_NAT:
        return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified or address.is_link_local
    )


def is_literally_private(host: str) -> bool:
    """An address, or `localhost`, that is not public on the face of it; a name is never."""
    literal = _literal(host)
    return host.lower() == "localhost" if literal is None else not is_public(literal)


def is_literally_loopback(host: str) -> bool:
    """`localhost`, 127.0.0.0/8 in its usual form, `::1`; not a name that merely resolves there."""
    literal = _literal(host)
    return host.lower() == "localhost" if literal is None else literal.is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to connect to."""

    host: str
    """A name or an address, without brackets."""
    port: int
    tls: bool

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def place_of(provider: Provider) -> Place:
    """Raises `ConnectError` when the base URL cannot be called."""
    url = urlsplit(provider.base_url)
    try:
        port = url.port
    except ValueError:
        port = 0
    if url.scheme not in ("http", "https") or not url.hostname or port == 0:
        raise ConnectError(f"provider {provider.name}: the base URL cannot be called")
    tls = url.scheme == "https"
    return Place(host=url.hostname, port=port or (443 if tls else 80), tls=tls)


class TlsContexts:
    """Verifying client contexts, one per `ca_file` and what is offered to speak, loaded in a thread: the authorities are hundreds of files to parse."""

    def __init__(self) -> None:
        self._contexts: dict[tuple[str | None, Alpn], ssl.SSLContext] = {}
        self._loading: dict[tuple[str | None, Alpn], asyncio.Future[ssl.SSLContext]] = {}

    async def context(self, ca_file: str | None, alpn: Alpn, *, by: float) -> ssl.SSLContext:
        """Raises `ConnectError` when the file cannot be used, `ConnectTimeout` when loading takes longer than `by`."""
        wanted = (ca_file, alpn)
        context = self._contexts.get(wanted)
        if context is not None:
            return context
        loading = self._loading.get(wanted)
        if loading is None or loading.done():
            loading = asyncio.get_running_loop().run_in_executor(None, _load_context, ca_file, alpn)
            loading.add_done_callback(_look_at_exception)
            self._loading[wanted] = loading
        try:
            async with asyncio.timeout_at(by):
                context = await asyncio.shield(loading)
        except TimeoutError as error:
            raise ConnectTimeout("the authorities' certificates were not loaded in time") from error
        except OSError as error:
            reason = "not a certificate file" if isinstance(error, ssl.SSLError) else _reason(error)
            raise ConnectError(f"ca_file {ca_file}: {reason}") from error
        self._contexts[wanted] = context
        self._loading.pop(wanted, None)
        return context


class Dialer:
    """Opens connections to one provider, or to the proxy before it."""

    def __init__(
        self,
        provider: Provider,
        contexts: TlsContexts,
        resolve: Resolver,
        *,
        place: Place | None = None,
        alpn: Alpn = HTTP1,
    ) -> None:
        """`place`: `None` is the provider's own. Raises `ConnectError` when the base URL cannot be called."""
        place = place or place_of(provider)
        self._name = provider.name
        self._host = place.host
        self._port = place.port
        self._tls = place.tls
        self._alpn = alpn
        self._ca_file = provider.ca_file
        self._contexts = contexts
        self._resolve = resolve
        self._private_allowed = provider.allow_private_addresses
        self._loopback_allowed = is_literally_loopback(self._host)
        self._lookup: asyncio.Future[Sequence[str]] | None = None

    async def connect(self, factory: Callable[[], P], *, by: float) -> P:
        """A connected protocol; `by` on the loop's clock bounds DNS, TCP and TLS together.

        Addresses are tried in order; each but the last gets its share of the time that is left.
        Raises `ConnectError`, `ConnectTimeout`.
        """
        loop = asyncio.get_running_loop()
        context = await self._contexts.context(self._ca_file, self._alpn, by=by) if self._tls else None
        addresses = await self._addresses(loop, by)
        failure: ConnectError | ConnectTimeout | None = None
        for position, address in enumerate(addresses):
            now = loop.time()
            share_ends = now + (by - now) / (len(addresses) - position)
            try:
                async with asyncio.timeout_at(share_ends):
                    return await self._connect_to(address, factory(), context)
            except TimeoutError as error:
                # The kernel's own ETIMEDOUT is a TimeoutError as well, and as much the end of this address.
                failure = ConnectTimeout(f"provider {self._name}: {address} did not accept in time")
                failure.__cause__ = error
            except OSError as error:
                failure = connect_failure(error, self._name, self._host if isinstance(error, ssl.SSLError) else address)
        assert failure is not None
        raise failure

    async def _connect_to(self, address: str, protocol: P, context: ssl.SSLContext | None) -> P:
        server_name = self._host if context is not None else None
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: protocol, address, self._port, ssl=context, server_hostname=server_name
            )
        except BaseException:
            # uvloop, cancelled at the last moment, still calls `connection_made`, and never `connection_lost`.
            protocol.abandon()
            raise
        return protocol

    async def _addresses(self, loop: asyncio.AbstractEventLoop, by: float) -> list[str]:
        literal = _literal(self._host)
        found = [self._host] if literal is not None else await self._look_up(loop, by)
        allowed = [address for address in found if self._may_call(address)]
        if not allowed:
            if found:
                raise ConnectError(
                    f"provider {self._name}: {self._host} leads to {found[0]}, and addresses that are not public need "
                    "allow_private_addresses"
                )
            raise ConnectError(f"provider {self._name}: {self._host} has no address")
        return allowed[:MAX_ADDRESSES]

    def _may_call(self, address: str) -> bool:
        if self._private_allowed:
            return True
        parsed = ipaddress.ip_address(address)
        return parsed.is_loopback if self._loopback_allowed else is_public(parsed)

    async def _look_up(self, loop: asyncio.AbstractEventLoop, by: float) -> Sequence[str]:
        # Everybody who needs the name now waits for one lookup: a slow resolver would else take a thread for each.
        lookup = self._lookup
        if lookup is None or lookup.done():
            lookup = self._lookup = loop.run_in_executor(None, self._resolve, self._host, self._port)
            lookup.add_done_callback(_look_at_exception)
        try:
            async with asyncio.timeout_at(by):
                return await asyncio.shield(lookup)
        except TimeoutError as error:
            raise ConnectTimeout(f"provider {self._name}: {self._host} was not resolved in time") from error
        except (OSError, UnicodeError) as error:
            raise ConnectError(f"provider {self._name}: {self._host}: {_reason(error)}") from error


def connect_failure(error: OSError, provider_name: str, where: str) -> ConnectError:
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "verify_message", "") or error.reason or "handshake failed"
        failure = ConnectError(f"provider {provider_name}: TLS with {where}: {reason}")
    else:
        failure = ConnectError(f"provider {provider_name}: {where}: {_reason(error)}")
    failure.__cause__ = error
    return failure


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _reason(error: Exception) -> str:
    # The event loops word the text in their own ways; a resolver's number is none of the system's.
    if not isinstance(error, OSError):
        return type(error).__name__
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or type(error).__name__


def _load_context(ca_file: str | None, alpn: Alpn) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(list(alpn))
    return context


def _look_at_exception(begun: "asyncio.Future[T]") -> None:
    # When every waiter was cancelled nobody else looks, and the loop would complain.
    if not begun.cancelled():
        begun.exception()
