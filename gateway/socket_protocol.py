"""uvicorn's websocket protocol with what it lacks: an end for who reads nothing."""

import asyncio
import importlib.util
from typing import Any

from gateway.serving import ClientLimits

MAX_MESSAGE_BYTES = 4096
"""Of what a page sends; it only ever says that it has shown something."""
PING_SECONDS = 20.0
"""Between two pings, and how long an answer may take."""


def sockets(limits: ClientLimits) -> type[asyncio.Protocol] | None:
    """The protocol that takes over a connection. `None`: the library `websockets` is missing, and so are websockets."""
    if importlib.util.find_spec("websockets") is None:
        return None
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    class SocketProtocol(WebSocketsSansIOProtocol):
        _stalled_since: float | None = None

        def sweep(self, now: float) -> None:
            """As of connections with requests: ends one whose buffer is full for too long."""
            transport: Any = self.transport
            if not transport.get_write_buffer_size():
                self._stalled_since = None
            elif self._stalled_since is None:
                self._stalled_since = now
            elif now - self._stalled_since >= limits.write_stall_seconds:
                transport.abort()

    return SocketProtocol
