"""The connections of one provider: how many may be in use, which idle one comes next, when one is too old."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Protocol

from gateway.upstream.connection import Carrier, Owner
from gateway.upstream.credentials import RequestHead
from gateway.upstream.errors import AtCapacity, ConnectionLost
from routing.core.catalog import Provider


class Line(Protocol):
    """The way to one provider as it is configured now."""

    head: RequestHead

    async def open(self, owner: Owner, generation: int, *, by: float) -> Carrier:
        """A new connection. Raises `ConnectError`, `ConnectTimeout`."""
        ...


class ProviderPool:
    """Lends connections to a provider of one name, over all its revisions.

    Every lent connection and every one being opened holds one of `max_in_flight` places; each place is given back once,
    when the exchange is over on the wire. Idle ones are lent last in, first out, so that the surplus grows old and goes.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        lay: Callable[[Provider], Line],
        max_idle_s: float,
    ) -> None:
        """`lay` raises `ConnectError` for a provider that cannot be called at all."""
        self._lay = lay
        self._max_idle_s = max_idle_s
        self._loop = asyncio.get_running_loop()
        self._idle: deque[Carrier] = deque()
        self._open: set[Carrier] = set()
        self._lent: set[Carrier] = set()
        self._opening = 0
        self._closed = False
        self._all_lost = asyncio.Event()
        self._generation = 0
        self.adopt(provider)

    @property
    def in_use(self) -> int:
        """Places taken: connections lent or being opened."""
        return len(self._lent) + self._opening

    @property
    def open_connections(self) -> int:
        """Sockets not yet closed, idle ones included."""
        return len(self._open)

    def adopt(self, provider: Provider) -> None:
        """Goes on with a changed provider: what was opened for the old one is closed, idle now, in use when it is done."""
        self._line = self._lay(provider)
        self.head = self._line.head
        self.provider = provider
        self._generation += 1
        self._close_idle()

    def take(self) -> Carrier | None:
        """An idle connection that is fit for use, with a place taken; `None` when there is none, and no place is taken.

        Raises `AtCapacity` when every place is taken: nobody waits for one.
        """
        self._check_place()
        oldest_allowed = self._loop.time() - self._max_idle_s
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= oldest_allowed and connection.is_ready():
                self._lent.add(connection)
                return connection
            connection.close()
        return None

    async def open_one(self, *, by: float) -> Carrier:
        """A new connection, with a place taken before it is opened. Raises `AtCapacity`, `ConnectError`, `ConnectTimeout`."""
        self._check_place()
        generation = self._generation
        self._opening += 1
        try:
            connection = await self._line.open(self, generation, by=by)
        finally:
            self._opening -= 1
        if self._closed:
            connection.close()
            raise ConnectionLost("the transport was closed")
        self._lent.add(connection)
        return connection

    def close_old(self) -> bool:
        """Closes what has been idle too long; whether anything of this provider is left open or in use."""
        oldest_allowed = self._loop.time() - self._max_idle_s
        while self._idle and self._idle[0].idle_since < oldest_allowed:
            self._idle.popleft().close()
        return bool(self._open) or self._opening > 0

    async def close(self, *, within_s: float) -> None:
        """Ends everything at once: exchanges under way raise `ConnectionLost`. Then waits for the loop to close the sockets."""
        self._closed = True
        for connection in list(self._open):
            connection.fail(ConnectionLost("the transport was closed"))
        if self._open:
            self._all_lost.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._all_lost.wait()

    # What a connection tells its owner.

    def opened(self, connection: Carrier) -> None:
        self._open.add(connection)

    def finished(self, connection: Carrier, *, reusable: bool) -> None:
        self._lent.discard(connection)
        if not reusable:
            return
        if self._closed or connection.generation != self._generation:
            connection.close()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)

    def lost(self, connection: Carrier) -> None:
        self._open.discard(connection)
        if not self._open:
            self._all_lost.set()
        if connection in self._idle:
            self._idle.remove(connection)

    def _check_place(self) -> None:
        if len(self._lent) + self._opening >= self.provider.max_in_flight:
            raise AtCapacity(f"provider {self.provider.name}: all {self.provider.max_in_flight} connections are in use")

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()
