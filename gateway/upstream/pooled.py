"""What both transports are: pooled connections, every wait and size bounded."""

import asyncio
from collections.abc import Mapping

from gateway.upstream.client import UpstreamRequest, UpstreamResponse
from gateway.upstream.connection import Bounds, Carrier
from gateway.upstream.dialing import Resolver, TlsContexts, system_resolver
from gateway.upstream.errors import ConnectError, ConnectionLost
from gateway.upstream.pool import Line, ProviderPool
from routing.core.catalog import Provider

_CLOSING_S = 1.0
"""How long `close` waits for the loop to report its sockets closed."""


class PooledTransport:
    """See `Transport`; how connections are made is the subclass's to say. Belongs to the event loop of its first `send`; not safe for threads."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        max_idle_s: float = 55.0,
        max_head_bytes: int = 65_536,
        max_interim: int = 8,
        max_buffered_bytes: int = 65_536,
        stale_within_s: float = 1.0,
        resolve: Resolver = system_resolver,
    ) -> None:
        """`environ` is where `api_key_env` is looked up.

        `max_idle_s`: an idle connection is used or kept no longer; under the 60 s after which many servers close theirs.
        `max_head_bytes`, `max_interim`, `max_buffered_bytes`: see `Bounds`.
        `stale_within_s`: a request on a reused connection that is lost this soon, before any byte of an answer, is sent once
        more on a new one.
        """
        self._environ = environ
        self._max_idle_s = max_idle_s
        self._bounds = Bounds(
            max_head_bytes=max_head_bytes, max_interim=max_interim, max_buffered_bytes=max_buffered_bytes
        )
        self._stale_within_s = stale_within_s
        self._resolve = resolve
        self._contexts = TlsContexts()
        self._pools: dict[str, ProviderPool] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def open_connections(self) -> int:
        """Sockets not yet closed, of all providers, idle ones included."""
        return sum(pool.open_connections for pool in self._pools.values())

    def in_use(self, provider_name: str) -> int:
        """Connections of that provider that carry an exchange or are being opened."""
        pool = self._pools.get(provider_name)
        return 0 if pool is None else pool.in_use

    async def send(self, request: UpstreamRequest, *, connect_by: float, respond_by: float) -> UpstreamResponse:
        if self._closed:
            raise ConnectError("the transport is closed")
        loop = self._loop
        if loop is None:  # asked once: that is a system call
            loop = self._loop = asyncio.get_running_loop()
        now = loop.time()
        provider = request.provider
        pool = self._pools.get(provider.name)
        if pool is None or pool.provider is not provider:
            pool = self._pool(provider, loop)
        body = request.body
        head = pool.head.build(request.path, request.headers, len(body), now)
        connection = pool.take()
        if connection is not None:
            try:
                return await connection.exchange(head, body, by=respond_by)
            except ConnectionLost:
                if not self._was_stale(connection, loop.time() - now):
                    raise
                pool = self._pool(provider, loop)
        connection = await pool.open_one(by=connect_by)
        return await connection.exchange(head, body, by=respond_by)

    async def close(self) -> None:
        """Closes every connection; exchanges under way raise `ConnectionLost`, later ones `ConnectError`."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        await asyncio.gather(*(pool.close(within_s=_CLOSING_S) for pool in self._pools.values()))

    def _lay(self, provider: Provider) -> Line:
        """Raises `ConnectError` for a provider that cannot be called at all."""
        raise NotImplementedError

    def _was_stale(self, connection: Carrier, after_s: float) -> bool:
        # A POST must not run twice. A server that closes an idle connection while the next request is on its way answers
        # that with nothing but an end or a reset within one round trip; one that took the request and died later is not it.
        return not self._closed and not connection.heard and after_s <= self._stale_within_s

    def _pool(self, provider: Provider, loop: asyncio.AbstractEventLoop) -> ProviderPool:
        """The pool of the provider's name, brought to this state of it."""
        pool = self._pools.get(provider.name)
        if pool is None:
            pool = ProviderPool(provider, lay=self._lay, max_idle_s=self._max_idle_s)
            self._pools[provider.name] = pool
            if self._sweep is None:
                self._sweep = loop.call_later(self._max_idle_s / 2, self._close_old, loop)
        elif pool.provider == provider:
            pool.provider = provider
        else:
            pool.adopt(provider)
        return pool

    def _close_old(self, loop: asyncio.AbstractEventLoop) -> None:
        for name, pool in list(self._pools.items()):
            if not pool.close_old():
                del self._pools[name]
        self._sweep = loop.call_later(self._max_idle_s / 2, self._close_old, loop) if self._pools else None
