"""The transport `httpx`: HTTP/2 where the provider offers it, and an egress proxy, on `httpx.AsyncClient`.

Under the client is httpcore's pool with one connection at most, on sockets of our own (`httpx_network.py`): httpx can neither
be told to connect to a checked address nor be left without waiting.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpcore
import httpx

from gateway.upstream.connection import Bounds, Owner
from gateway.upstream.credentials import RequestHead
from gateway.upstream.dialing import (
    HTTP1,
    HTTP2_OR_1,
    Dialer,
    Place,
    Resolver,
    TlsContexts,
    is_literally_private,
    place_of,
)
from gateway.upstream.egress import Proxy, proxy_of
from gateway.upstream.errors import ConnectError
from gateway.upstream.httpx_exchange import Lane
from gateway.upstream.httpx_network import Network
from gateway.upstream.pool import Line
from gateway.upstream.pooled import PooledTransport
from routing.core.catalog import Provider

_CLOSING_S = 1.0


class HttpxTransport(PooledTransport):
    """See `Transport`. The proxy's variable is read when a provider is first called in a state of its configuration."""

    def __init__(self, **options: Any) -> None:
        """Takes what `PooledTransport` takes."""
        super().__init__(**options)
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        await super().close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSING_S)
        # One turn for the loop to close the sockets that were aborted.
        await asyncio.sleep(0)

    def _lay(self, provider: Provider) -> Line:
        head = RequestHead(provider, self._environ)
        place = place_of(provider)
        proxy = proxy_of(provider, self._environ)
        if proxy is not None and is_literally_private(place.host) and not provider.allow_private_addresses:
            # A name is the proxy's to resolve; what is plain to see is judged here all the same.
            raise ConnectError(
                f"provider {provider.name}: {place.host} behind a proxy is not public and needs allow_private_addresses"
            )
        return _Line(provider, head, place, proxy, self._contexts, self._resolve, self._bounds, self._tasks)


class _Line:
    """To the provider itself, or through a proxy: a tunnel to an https one, the request itself for an http one."""

    def __init__(
        self,
        provider: Provider,
        head: RequestHead,
        place: Place,
        proxy: Proxy | None,
        contexts: TlsContexts,
        resolve: Resolver,
        bounds: Bounds,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self.head = head
        first = place if proxy is None else proxy.place
        # TLS is httpcore's to begin, over a connection that is only just made.
        self._dialer = Dialer(provider, contexts, resolve, place=Place(host=first.host, port=first.port, tls=False))
        self._name = provider.name
        self._ca_file = provider.ca_file
        self._tls = place.tls
        self._proxy = proxy
        self._contexts = contexts
        self._bounds = bounds
        self._tasks = tasks
        try:
            self._url = httpx.URL(f"{'https' if place.tls else 'http'}://{head.authority}/")
        except httpx.InvalidURL as error:
            raise ConnectError(f"provider {provider.name}: the base URL cannot be called") from error

    async def open(self, owner: Owner, generation: int, *, by: float) -> Lane:
        proxy = self._proxy
        context = await self._contexts.context(self._ca_file, HTTP2_OR_1, by=by) if self._tls else None
        through: httpcore.Proxy | None = None
        layers = int(self._tls)
        if proxy is not None:
            context_there = None
            if proxy.place.tls:
                context_there = await self._contexts.context(self._ca_file, HTTP1, by=by)
                layers += 1
            credential = [] if proxy.authorization is None else [(b"proxy-authorization", proxy.authorization)]
            url = f"{'https' if proxy.place.tls else 'http'}://{proxy.place.authority}"
            through = httpcore.Proxy(url, headers=credential, ssl_context=context_there)
        network = Network(self._dialer, self._name, self._bounds, tls_layers=layers, connect_by=by)
        pool = httpcore.AsyncConnectionPool(
            ssl_context=context, proxy=through, max_connections=1, http2=self._tls, network_backend=network
        )
        client = httpx.AsyncClient(transport=_OverPool(pool), trust_env=False, follow_redirects=False, timeout=None)  # noqa: S113
        return Lane(owner, client, network, self._url, self._bounds, generation, self._tasks)


class _OverPool(httpx.AsyncBaseTransport):
    """httpx's requests to httpcore's pool, which httpx itself makes without a choice of the network under it."""

    def __init__(self, pool: httpcore.AsyncConnectionPool) -> None:
        self._pool = pool

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.raw_host
        url = httpcore.URL(
            scheme=request.url.raw_scheme,
            # httpcore names it to proxies as it is.
            host=b"[%b]" % host if b":" in host else host,
            port=request.url.port,
            target=request.extensions["target"],
        )
        answer = await self._pool.handle_async_request(
            httpcore.Request(request.method, url, headers=request.headers.raw, content=request.stream)
        )
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Incoming(answer), extensions=answer.extensions
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Incoming(httpx.AsyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._answer.aiter_stream():
            yield piece

    async def aclose(self) -> None:
        await self._answer.aclose()
