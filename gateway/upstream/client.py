"""The small protocol that every transport to a provider answers to."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from routing.core.catalog import Provider

Take = Callable[[bytes], float]
"""Takes a piece of a body and says, on the loop's clock, by when the next one has to come; 0: it has enough."""

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, values as on the wire, in order."""


class UpstreamRequest(msgspec.Struct, frozen=True, kw_only=True):
    provider: Provider
    path: str
    """Appended to the provider's base URL, query string included: `/chat/completions`."""
    headers: Headers
    """All but Host, Content-Length, Connection and the provider's credential and fixed headers, which the transport adds."""
    body: bytes


class UpstreamResponse(Protocol):
    status: int
    headers: Headers
    complete_by_eof: bool
    """The body has neither a length nor chunks: it ends where the connection does, and a cut looks like an end."""

    async def receive(self, *, by: float) -> bytes:
        """The next bytes of the body as they come; `b""` once at its end.

        `by` is the event loop's clock (`loop.time()`): past it, `ResponseTimeout`, which ends nothing: `receive` and `read`
        may be called again, and whoever gives up calls `close`. One reader at a time. A body that ends early raises
        `ConnectionLost`; one over `max_response_bytes` of a unary answer is the caller's to bound (`read`).
        """
        ...

    async def hand_on(self, take: Take, *, by: float) -> None:
        """Gives `take` what `receive` would return, piece after piece, until it has enough; of `b""` it always has.

        A transport that can calls it from where the bytes come in, so that nobody has to be woken for them.
        Raises what `receive` does.
        """
        while by := take(await self.receive(by=by)):
            pass

    async def read(self, *, by: float, limit: int) -> bytes:
        """The whole rest of the body, at most `limit` bytes (`ResponseTooLarge`)."""
        ...

    def close(self) -> None:
        """Ends the exchange at once, from any state; idempotent. A body not fully read closes the connection."""
        ...


class Transport(Protocol):
    async def send(self, request: UpstreamRequest, *, connect_by: float, respond_by: float) -> UpstreamResponse:
        """Sends one POST and returns when the response head has come. Never follows a redirect.

        Both limits are on the event loop's clock: `connect_by` for DNS, TCP and TLS, `respond_by` for the whole head.
        Cancelling this call closes the connection at once. Raises an `UpstreamError`.
        """
        ...

    async def close(self) -> None:
        """Closes every connection."""
        ...
