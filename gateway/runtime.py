"""What one gateway process holds, wired together: it starts on first use, under any ASGI server, without lifespan."""

import os
import time

from django.conf import settings

from gateway.loader import Follower
from gateway.relay.app import Relay
from gateway.relay.messages import Receive, Scope, Send
from gateway.serving import DRAINING
from gateway.snapshot import Snapshot
from gateway.upstream.http1 import Http1Transport
from gateway.upstream.httpx_transport import HttpxTransport
from gateway.upstream.transports import Transports
from reports.spool import LineLog, Spool
from routing.core.affinity import Pins
from routing.core.observations import Observations


class Runtime:
    """One process's Relay and what keeps it up to date."""

    def __init__(self) -> None:
        self._relay: Relay | None = None
        self._follower: Follower | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        relay = self._relay
        if relay is None:
            relay = self.start()
        await relay(scope, receive, send)

    def start(self, *, patience_s: float = 0.0) -> Relay:
        """Idempotent. Waits at most `patience_s` for the first configuration: until it is loaded, requests get `not_ready`."""
        if self._relay is None:
            snapshot = Snapshot()
            self._relay = _relay(snapshot)
            self._follower = Follower(snapshot)
            self._follower.start()
            self._follower.first_look.wait(patience_s)
        return self._relay


def _relay(snapshot: Snapshot) -> Relay:
    process = settings.PILOTAGE
    return Relay(
        snapshot=snapshot,
        observations=Observations(),
        pins=Pins(),
        transport=Transports(http1=Http1Transport(environ=os.environ), httpx=HttpxTransport(environ=os.environ)),
        spool=Spool(
            process.data_dir / "spool",
            max_file_bytes=process.spool_file_bytes,
            max_total_bytes=process.spool_max_bytes,
        ),
        lines=LineLog(1),
        pepper=settings.TOKEN_PEPPER,
        max_request_bytes=process.max_request_bytes,
        max_in_flight=process.max_in_flight,
        max_queued=process.max_queued,
        queue_seconds=process.queue_seconds,
        max_body_bytes_held=process.max_body_bytes_held,
        max_memory_bytes=process.max_memory_bytes,
        clock=time.monotonic,
        wall=time.time,
        draining=DRAINING.is_set,
    )
