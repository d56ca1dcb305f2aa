"""The transport `http1`: HTTP/1.1 straight to the provider, on asyncio and llhttp."""

import asyncio
from collections.abc import Mapping

from gateway.upstream.connection import Bounds, Connection, Owner
from gateway.upstream.credentials import RequestHead
from gateway.upstream.dialing import Dialer, Resolver, TlsContexts
from gateway.upstream.http1_connection import Http1Connection
from gateway.upstream.pool import Line
from gateway.upstream.pooled import PooledTransport
from routing.core.catalog import Provider


class Http1Transport(PooledTransport):
    """See `Transport`."""

    def _lay(self, provider: Provider) -> Line:
        return _Line(provider, self._environ, self._contexts, self._resolve, self._bounds)


class _Line:
    def __init__(
        self, provider: Provider, environ: Mapping[str, str], contexts: TlsContexts, resolve: Resolver, bounds: Bounds
    ) -> None:
        self.head = RequestHead(provider, environ)
        self._dialer = Dialer(provider, contexts, resolve)
        self._bounds = bounds

    async def open(self, owner: Owner, generation: int, *, by: float) -> Connection:
        loop = asyncio.get_running_loop()
        return await self._dialer.connect(lambda: Http1Connection(owner, self._bounds, loop, generation), by=by)
