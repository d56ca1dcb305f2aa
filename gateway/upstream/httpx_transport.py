"""The transport `httpx`: what the client of that name adds to HTTP/1.1, which is HTTP/2 and an egress proxy.

It stands in for that client and is not built on it. Cancelled callers lock up httpx's pool, and bytes past an answer's end reach
the next call on the connection; both happen out of reach of whoever uses it. So the connections are those of `http1`, with
HTTP/2 framing (h2, as in httpx) where the server prefers it, and a tunnel where there is a proxy.
"""

import asyncio
from collections.abc import Mapping

from gateway.upstream.connection import Bounds, Connection, Owner
from gateway.upstream.credentials import RequestHead
from gateway.upstream.dialing import (
    HTTP2_OR_1,
    Dialer,
    Resolver,
    TlsContexts,
    connect_failure,
    is_literally_private,
    place_of,
)
from gateway.upstream.egress import Fresh, Proxy, Tunnel, proxy_of
from gateway.upstream.errors import ConnectError, ConnectTimeout
from gateway.upstream.http1_connection import Http1Connection
from gateway.upstream.http2_connection import Http2Connection
from gateway.upstream.pool import Line
from gateway.upstream.pooled import PooledTransport
from routing.core.catalog import Provider


class HttpxTransport(PooledTransport):
    """See `Transport`. The proxy's variable is read when a provider is first called in a state of its configuration."""

    def _lay(self, provider: Provider) -> Line:
        proxy = proxy_of(provider, self._environ)
        if proxy is None:
            return _Direct(provider, self._environ, self._contexts, self._resolve, self._bounds)
        place = place_of(provider)
        if is_literally_private(place.host) and not provider.allow_private_addresses:
            # A name is the proxy's to resolve; what is plain to see is judged here all the same.
            raise ConnectError(
                f"provider {provider.name}: {place.host} behind a proxy is not public and needs allow_private_addresses"
            )
        made = _Tunnelled if place.tls else _Forwarded
        return made(provider, proxy, self._environ, self._contexts, self._resolve, self._bounds)


class _Direct:
    """To the provider itself; HTTP/2 where its TLS handshake says so."""

    def __init__(
        self, provider: Provider, environ: Mapping[str, str], contexts: TlsContexts, resolve: Resolver, bounds: Bounds
    ) -> None:
        self.head = RequestHead(provider, environ)
        self._dialer = Dialer(provider, contexts, resolve, alpn=HTTP2_OR_1)
        self._bounds = bounds

    async def open(self, owner: Owner, generation: int, *, by: float) -> Connection:
        fresh = await self._dialer.connect(Fresh, by=by)
        return _settle(fresh, owner, self._bounds, generation)


class _Forwarded:
    """An http URL: the proxy is sent the request itself, and may keep the connection for further ones."""

    def __init__(
        self,
        provider: Provider,
        proxy: Proxy,
        environ: Mapping[str, str],
        contexts: TlsContexts,
        resolve: Resolver,
        bounds: Bounds,
    ) -> None:
        self.head = RequestHead(provider, environ, through_proxy=True, proxy_authorization=proxy.authorization)
        self._dialer = Dialer(provider, contexts, resolve, place=proxy.place)
        self._bounds = bounds

    async def open(self, owner: Owner, generation: int, *, by: float) -> Connection:
        loop = asyncio.get_running_loop()
        return await self._dialer.connect(lambda: Http1Connection(owner, self._bounds, loop, generation), by=by)


class _Tunnelled:
    """An https URL: the proxy sees the host and nothing else."""

    def __init__(
        self,
        provider: Provider,
        proxy: Proxy,
        environ: Mapping[str, str],
        contexts: TlsContexts,
        resolve: Resolver,
        bounds: Bounds,
    ) -> None:
        self.head = RequestHead(provider, environ)
        self._provider = provider
        self._place = place_of(provider)
        self._authorization = proxy.authorization
        self._contexts = contexts
        self._dialer = Dialer(provider, contexts, resolve, place=proxy.place)
        self._bounds = bounds

    async def open(self, owner: Owner, generation: int, *, by: float) -> Connection:
        loop = asyncio.get_running_loop()
        name = self._provider.name
        context = await self._contexts.context(self._provider.ca_file, HTTP2_OR_1, by=by)
        tunnel = await self._dialer.connect(lambda: Tunnel(loop), by=by)
        fresh = Fresh()
        try:
            async with asyncio.timeout_at(by):
                await tunnel.open(self._place, self._authorization)
                assert tunnel.transport is not None
                made = await loop.start_tls(tunnel.transport, fresh, context, server_hostname=self._place.host)
            if made is None:
                raise ConnectionError("closed in the handshake")
        except BaseException as error:
            tunnel.abandon()
            fresh.abandon()
            match error:
                case TimeoutError():
                    failure: Exception = ConnectTimeout(f"provider {name}: no tunnel through the proxy in time")
                case OSError():
                    failure = connect_failure(error, name, self._place.host)
                case ConnectError():
                    failure = ConnectError(f"provider {name}: {error}")
                case _:
                    raise
            raise failure from error
        fresh.connection_made(made)
        return _settle(fresh, owner, self._bounds, generation)


def _settle(fresh: Fresh, owner: Owner, bounds: Bounds, generation: int) -> Connection:
    kind = Http2Connection if fresh.speaks_http2 else Http1Connection
    connection = kind(owner, bounds, asyncio.get_running_loop(), generation)
    fresh.hand_over(connection)
    return connection
