"""Every provider over its own transport."""

from collections.abc import Coroutine
from typing import Any

from gateway.upstream.client import Transport, UpstreamRequest, UpstreamResponse


class Transports:
    """See `Transport`."""

    def __init__(self, *, http1: Transport, httpx: Transport) -> None:
        self._of = {"http1": http1, "httpx": httpx}

    def send(
        self, request: UpstreamRequest, *, connect_by: float, respond_by: float
    ) -> Coroutine[Any, Any, UpstreamResponse]:
        return self._of[request.provider.transport].send(request, connect_by=connect_by, respond_by=respond_by)

    async def close(self) -> None:
        for transport in self._of.values():
            await transport.close()
