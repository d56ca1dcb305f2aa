"""What one gateway process holds, wired together: it starts on first use, under any ASGI server, without lifespan."""

import atexit
import os
import socket
import time
from collections.abc import Coroutine
from typing import Any

from django.conf import settings
from django.db import connections

from gateway.live import Live
from gateway.loader import Follower
from gateway.metrics.board import Board
from gateway.metrics.listener import LISTENING, listen_for_metrics
from gateway.metrics.process import Metrics
from gateway.relay.app import RecordSink, Relay
from gateway.relay.messages import Receive, Scope, Send
from gateway.serving import DRAINING, PLACE
from gateway.snapshot import Snapshot
from gateway.upstream.http1 import Http1Transport
from gateway.upstream.httpx_transport import HttpxTransport
from gateway.upstream.transports import Transports
from reports.live_folder import LiveFolder
from reports.progress import Progress, read_progress
from reports.spool import LineLog, Spool
from routing.core.affinity import Pins
from routing.core.observations import Observations


class Runtime:
    """One process's Relay and what keeps it up to date."""

    def __init__(self) -> None:
        self._relay: Relay | None = None
        self._follower: Follower | None = None
        self.metrics: Metrics | None = None
        """`None`: nobody wants them."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        relay = self._relay
        if relay is None:
            relay = self.start()
        return relay(scope, receive, send)

    def start(self, *, patience_s: float = 0.0) -> Relay:
        """Idempotent. Waits at most `patience_s` for the first configuration: until it is loaded, requests get `not_ready`."""
        if self._relay is None:
            process = settings.PILOTAGE
            snapshot = Snapshot()
            spool = Spool(
                process.data_dir / "spool",
                max_file_bytes=process.spool_file_bytes,
                max_total_bytes=process.spool_max_bytes,
            )
            lines = LineLog(1)
            if process.metrics_port is not None or process.metrics_token is not None:
                self.metrics = _metrics(spool, lines)
            records: RecordSink = spool if self.metrics is None else self.metrics.sink
            if process.traces_endpoint is not None:
                records = _tracing(records, process.traces_endpoint)
            self._relay = _relay(snapshot, records, lines)
            atexit.register(self._relay.close)
            self._follower = Follower(snapshot)
            if self.metrics is not None:
                self.metrics.start(self._relay, self._follower)
                if LISTENING.bound is not None:
                    listen_for_metrics(LISTENING.bound, self.metrics.registry(), token=process.metrics_token)
            Live(self._relay, LiveFolder(process.data_dir), max_names=process.live_max_names).start()
            self._follower.start()
            self._follower.first_look.wait(patience_s)
        return self._relay


def _metrics(spool: Spool, lines: LineLog) -> Metrics:
    process = settings.PILOTAGE
    directory = process.data_dir / "spool"

    def progress(now: float) -> Progress:
        try:
            return read_progress(directory, now=now)
        finally:
            connections.close_all()  # its thread ends

    return Metrics(
        spool=spool,
        lines=lines,
        spool_directory=directory,
        max_names=process.metrics_max_names,
        board=Board(process.data_dir / "metrics", server=PLACE.server, number=PLACE.number) if PLACE.server else None,
        read_progress=progress,
    )


def _tracing(records: RecordSink, endpoint: str) -> RecordSink:
    from gateway import tracing  # the SDK takes a third of a second and ten megabytes: only who wants it pays

    process = settings.PILOTAGE
    made = tracing.Tracing(
        records,
        tracing.collector(
            endpoint, headers=dict(process.traces_headers or {}), timeout_s=process.traces_timeout_seconds
        ),
        instance=f"{socket.gethostname()}-{os.getpid()}",
        max_waiting=process.traces_max_waiting,
    )
    made.start()
    atexit.register(made.close)
    return made


def _relay(snapshot: Snapshot, spool: RecordSink, lines: LineLog) -> Relay:
    process = settings.PILOTAGE
    return Relay(
        snapshot=snapshot,
        observations=Observations(),
        pins=Pins(),
        transport=Transports(http1=Http1Transport(environ=os.environ), httpx=HttpxTransport(environ=os.environ)),
        spool=spool,
        lines=lines,
        pepper=settings.TOKEN_PEPPER,
        max_request_bytes=process.max_request_bytes,
        max_in_flight=process.max_in_flight,
        max_queued=process.max_queued,
        queue_seconds=process.queue_seconds,
        max_body_bytes_held=process.max_body_bytes_held,
        max_memory_bytes=process.max_memory_bytes,
        max_candidates=process.max_candidates,
        clock=time.monotonic,
        wall=time.time,
        draining=DRAINING.is_set,
        trace_share=process.traces_share if process.traces_endpoint is not None else None,
    )
