"""The metrics of a gateway process: counted as exchanges end, sampled once a second, added up when somebody asks."""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.loader import Follower
from gateway.metrics.board import Board, Shared, stands
from gateway.metrics.counts import OTHER, Recorder, merged
from gateway.metrics.families import Figures, Gauges, families
from gateway.relay.app import Relay
from reports.core.record import EndRecord, IntentRecord
from reports.progress import Progress
from reports.spool import SUFFIX, LineLog, Spool

log = logging.getLogger("pilotage.metrics")

TICK_SECONDS = 1.0
GROUPS_A_TICK = 20
"""Groups whose targets' health is looked at in one tick: it is done between requests."""
LAGS_KEPT = 10
"""Ticks over which the longest lag of the event loop is told."""
REFRESH_SECONDS = 5.0
"""How often at most the database is asked how far ingest and rollups are."""
PATIENCE_SECONDS = 1.0
"""How long an exposition waits for the database before it tells what was found last."""


class CountingSpool:
    """The spool of a Relay, with every end counted."""

    def __init__(self, spool: Spool, recorder: Recorder) -> None:
        self.open_streams: set[str] = set()
        self.loop: asyncio.AbstractEventLoop | None = None
        """That the exchanges run on, once one has ended."""
        self._spool = spool
        self._add = recorder.add
        self._failed = False

    def intent(self, record: IntentRecord) -> None:
        self._spool.intent(record)
        if record.stream:
            self.open_streams.add(record.id)

    def end(self, record: EndRecord) -> None:
        self._spool.end(record)
        if record.stream:
            self.open_streams.discard(record.id)
        if self.loop is None:
            self.loop = asyncio.get_running_loop()
        try:
            self._add(record)
        except Exception:  # an exchange must not suffer from being counted
            if not self._failed:
                self._failed = True
                log.exception("exchange %s was not counted; the next that is not goes unsaid", record.id)

    def flush(self) -> None:
        self._spool.flush()


class Metrics(Collector):
    """One process's figures and, through the board, those of the server's other workers."""

    def __init__(
        self,
        *,
        spool: Spool,
        lines: LineLog,
        spool_directory: Path,
        max_names: int,
        board: Board | None,
        read_progress: Callable[[float], Progress],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`board`: `None` for a process that serves alone. `read_progress` asks the database, `now` given."""
        before = board.open() if board is not None else None
        self._recorder = Recorder(max_names=max_names, counts=before.counts if before else None)
        self.sink = CountingSpool(spool, self._recorder)
        self._spool, self._lines, self._spool_directory = spool, lines, spool_directory
        self._max_names = max_names
        self._board = board
        self._before = before.gauges if before else Gauges()
        self._reading = _Reading(read_progress)
        self._wall = wall
        self._relay: Relay | None = None
        self._follower: Follower | None = None
        self._lags: deque[float] = deque(maxlen=LAGS_KEPT)
        self._out: dict[tuple[str, str, str], int] = {}
        self._to_look_at: deque[str] = deque()

    def start(self, relay: Relay, follower: Follower) -> None:
        self._relay, self._follower = relay, follower
        threading.Thread(target=self._run, name="pilotage-metrics", daemon=True).start()

    def registry(self) -> CollectorRegistry:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return families(self.figures())

    def figures(self) -> Figures:
        now = self._wall()
        own = self._shared()
        everybody = [own, *(self._board.others() if self._board is not None else [])]
        gauges = [shared.gauges for shared in everybody]
        return Figures(
            counts=merged([shared.counts for shared in everybody]),
            gauges=[own.gauges, *(shared.gauges for shared in everybody[1:] if stands(shared, now=now))],
            spool_bytes=_size_of(self._spool_directory),
            spool_written=sum(each.spool_written for each in gauges),
            spool_dropped=sum(each.spool_dropped for each in gauges),
            lines_dropped=sum(each.lines_dropped for each in gauges),
            progress=self._reading.latest(self._wall),
            now=now,
        )

    def _shared(self) -> Shared:
        return Shared(pid=os.getpid(), at=self._wall(), counts=self._recorder.counts, gauges=self._gauges())

    def _gauges(self) -> Gauges:
        relay, follower, before = self._relay, self._follower, self._before
        catalog = relay.snapshot.catalog if relay is not None else None
        return Gauges(
            in_flight=relay.admission.in_flight if relay is not None else 0,
            queued=relay.admission.queued if relay is not None else 0,
            open_streams=len(self.sink.open_streams),
            loop_lag_s=max(list(self._lags), default=0.0),
            out=self._out,
            revision=catalog.revision if catalog is not None else 0,
            revision_created=catalog.created if catalog is not None else 0,
            checked_at=follower.answered_at if follower is not None else 0.0,
            spool_written=before.spool_written + self._spool.written,
            spool_dropped=before.spool_dropped + self._spool.dropped,
            lines_dropped=before.lines_dropped + self._lines.dropped,
        )

    def _run(self) -> None:
        failed = ""
        while True:
            time.sleep(TICK_SECONDS)
            loop = self.sink.loop
            if loop is not None:
                with contextlib.suppress(RuntimeError):  # it has ended
                    loop.call_soon_threadsafe(self._sample, time.monotonic())
            if self._board is not None:
                try:
                    self._board.say(merged_shared(self._shared()))
                    failed = ""
                except OSError as problem:
                    if str(problem) != failed:
                        failed = str(problem)
                        log.error("the other workers cannot be told these figures: %s", problem)

    def _sample(self, asked_at: float) -> None:
        """On the event loop, between requests."""
        relay = self._relay
        assert relay is not None
        self._lags.append(max(0.0, time.monotonic() - asked_at))
        catalog = relay.snapshot.catalog
        if catalog is None:
            return
        if not self._to_look_at:
            known = {group for group, *_ in list(self._recorder.counts.exchanges)}
            self._to_look_at.extend(sorted(known))
        now = relay.clock()
        for _ in range(min(GROUPS_A_TICK, len(self._to_look_at))):
            name = self._to_look_at.popleft()
            group = catalog.groups.get(name)
            out = {key: 0 for key in self._out if key[0] == name}
            if group is not None and name != OTHER:
                health = relay.observations.health(group, now=now)
                for target in group.targets:
                    if target.id in health:
                        out[name, target.id, health[target.id].reason] = 1
                    if relay.observations.cooling_until(target.model_key, now=now) is not None:
                        out[name, target.id, "cooling_down"] = 1
            # Replaced, not changed: another thread may be reading it.
            rest = {key: value for key, value in self._out.items() if key[0] != name}
            self._out = dict(list((rest | out).items())[: 4 * self._max_names])


class _Reading:
    """What the database says, asked by a thread of its own: an exposition does not wait for one that is away."""

    def __init__(self, read: Callable[[float], Progress]) -> None:
        self._read = read
        self._last = Progress()
        self._asked_at = float("-inf")
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._said = ""

    def latest(self, wall: Callable[[], float]) -> Progress:
        with self._lock:
            now = time.monotonic()
            if (self._thread is None or not self._thread.is_alive()) and now - self._asked_at >= REFRESH_SECONDS:
                self._asked_at = now
                self._thread = threading.Thread(target=self._ask, args=(wall,), name="pilotage-progress", daemon=True)
                self._thread.start()
            thread = self._thread
        if thread is not None:
            thread.join(PATIENCE_SECONDS)
        return self._last

    def _ask(self, wall: Callable[[], float]) -> None:
        try:
            self._last = self._read(wall())
            self._said = ""
        except Exception as problem:
            if str(problem) != self._said:
                self._said = str(problem)
                log.warning("the database does not say how far ingest and rollups are: %s", problem)


def merged_shared(shared: Shared) -> Shared:
    """A copy that does not change while it is encoded."""
    return Shared(pid=shared.pid, at=shared.at, counts=merged([shared.counts]), gauges=shared.gauges)


def _size_of(directory: Path) -> int:
    total = 0
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX):
                with contextlib.suppress(OSError):
                    total += entry.stat().st_size
    return total
