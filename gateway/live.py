"""What a gateway process says of itself to the live page, once a second and only while somebody watches.

While nobody does, the relay's records go straight to where they always go. When somebody begins to, a tap is put before
it, which counts into a few dictionaries; when the last one has left, it is taken out again.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Final

from gateway.relay.app import RecordSink, Relay
from reports.core.live import Said
from reports.core.record import CandidatesRecord, EndRecord, IntentRecord
from reports.live_folder import LiveFolder, seconds_until_tick

log = logging.getLogger("pilotage.live")

OTHER: Final = "other"
"""Stands for groups and targets beyond the bound."""
SAMPLE_SECONDS: Final = 0.5
"""How long is waited for the event loop to tell how targets are; what it told before counts when it has no time."""

Out = list[tuple[str, str, str, str]]


class Tap:
    """Before the sink of records. On the event loop, but for `begin`, `in_flight` and reading."""

    def __init__(self, sink: RecordSink, *, max_names: int) -> None:
        self.sink = sink
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ended: dict[tuple[str, str], int] = {}
        self.served: dict[tuple[str, str], int] = {}
        self.choices: dict[str, tuple[float, CandidatesRecord]] = {}
        self._max_names = max_names

    def intent(self, record: IntentRecord) -> None:
        self.sink.intent(record)

    def end(self, record: EndRecord) -> None:
        self.sink.end(record)
        if self.loop is None:
            self.loop = asyncio.get_running_loop()
        group = record.group
        self._count(self.ended, group, record.outcome)
        if record.attempts and record.target is not None:
            self._count(self.served, group, record.target)
        candidates = record.candidates
        if candidates is not None and (group in self.choices or len(self.choices) < self._max_names):
            self.choices[group] = (record.at, candidates)

    def flush(self) -> None:
        self.sink.flush()

    def _count(self, counts: dict[tuple[str, str], int], group: str, name: str) -> None:
        key = (group, name)
        count = counts.get(key)
        if count is None and len(counts) >= self._max_names:
            key = (OTHER, OTHER)
            count = counts.get(key)
        counts[key] = 1 if count is None else count + 1


class Live:
    def __init__(self, relay: Relay, folder: LiveFolder, *, max_names: int) -> None:
        self._relay, self._folder, self._max_names = relay, folder, max_names
        self._tap: Tap | None = None
        self._since = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        """That the exchanges run on, once known."""
        self._out: Out = []
        self._failed = ""

    def start(self) -> None:
        threading.Thread(target=self._run, name="pilotage-live", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(seconds_until_tick())
            try:
                self.tick(now=time.time())
                self._failed = ""
            except Exception as problem:  # the thread must outlive a full disk
                if str(problem) != self._failed:
                    self._failed = str(problem)
                    log.exception("the live page cannot be told how this process stands")

    def tick(self, *, now: float) -> None:
        relay = self._relay
        if not self._folder.is_watched(now=now):
            if self._tap is not None:
                relay.spool, self._tap = self._tap.sink, None
                self._folder.fall_silent()
            return
        if self._tap is None:
            self._tap = Tap(relay.spool, max_names=self._max_names)
            self._since = now
            relay.spool = self._tap
        tap = self._tap
        self._loop = tap.loop or self._loop
        self._sample()
        catalog = relay.snapshot.catalog
        self._folder.say(
            Said(
                pid=os.getpid(),
                at=now,
                since=self._since,
                revision=catalog.revision if catalog is not None else 0,
                in_flight=relay.admission.in_flight,
                queued=relay.admission.queued,
                ended=[(*key, count) for key, count in list(tap.ended.items())],
                served=[(*key, count) for key, count in list(tap.served.items())],
                out=self._out,
                scores=[(group, at, _scores(chosen)) for group, (at, chosen) in list(tap.choices.items())],
            )
        )

    def _sample(self) -> None:
        """Health is the event loop's own: it is asked there, between requests."""
        loop = self._loop
        if loop is None:
            return
        done = threading.Event()

        def look() -> None:
            self._out = self._targets_out()
            done.set()

        with contextlib.suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(look)
            done.wait(SAMPLE_SECONDS)

    def _targets_out(self) -> Out:
        relay = self._relay
        catalog, now = relay.snapshot.catalog, relay.clock()
        found: Out = []
        for group in list(catalog.groups.values())[: self._max_names] if catalog is not None else ():
            health = relay.observations.health(group, now=now)
            for target in group.targets:
                if (kept := health.get(target.id)) is not None:
                    found.append((group.name, target.id, "kept_out", kept.detail))
                if (until := relay.observations.cooling_until(target.model_key, now=now)) is not None:
                    found.append((group.name, target.id, "cooling_down", f"for {max(0.0, until - now):.0f} s more"))
        return found[: self._max_names]


def _scores(chosen: CandidatesRecord) -> list[tuple[str, float, float | None]]:
    finals = chosen.finals
    if finals is None:
        return []
    dynamics: Sequence[float | None] = chosen.dynamics or [None] * len(finals)
    return list(zip(chosen.targets, finals, dynamics, strict=False))
