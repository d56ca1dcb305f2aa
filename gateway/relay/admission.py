"""Who may come in when a process is full: places in flight, a queue that is fair by caller, bounds on memory.

A place is given at once while one is free. When none is, requests wait, and each place that comes free goes to the
waiting caller who holds the fewest, in turns where several hold as few. So a caller has more than an equal share only
while nobody else wants it, and no place stays empty while anybody waits. A full queue makes room for a caller who
waits with less than another: the newest request of whoever waits with the most has to go.
"""

import asyncio
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from math import ceil
from typing import Any

from gateway.relay.messages import ClientLeft, Receive
from gateway.relay.refusals import Refusal

MIB = 1 << 20

MAX_RETRY_AFTER_SECONDS = 60

OVER_SHARE = 1.5
"""A caller with more than this many times an equal share of all places, taken and waited for, is told that it is its own
load that is too much."""

EXPECTED_PART = 0.8
"""A wait that is expected to be longer than this part of the longest one allowed is refused: expectation is not exact."""

SMOOTHING = 1 / 16
"""Weight of the newest request in the mean time that a place is held."""

RESIDENT_SECONDS = 0.1
"""How long a reading of the resident memory is good for."""


class Share:
    """What one caller has in this process. Kept only while it has anything."""

    __slots__ = ("caller", "held_bytes", "running", "waiting")

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.running = 0
        self.waiting: deque[Place] = deque()
        self.held_bytes = 0


class Place:
    """One request's place: in flight when `admitted`, else in the queue. Ends with `Admission.leave`, whatever happens."""

    __slots__ = ("admitted", "held_bytes", "share", "since", "told")

    def __init__(self, share: Share, held_bytes: int, since: float) -> None:
        self.share: Share | None = share
        """`None`: it has left."""
        self.held_bytes = held_bytes
        self.admitted = True
        self.since = since
        """When it was admitted; before that, when it came."""
        self.told: Callable[[Refusal | None], None] | None = None
        """Of a waiting one: called once, with `None` when it is admitted, or with why it has to go."""


class Admission:
    """The bounds of one process. Synchronous, and knows no clock: `now` is monotonic seconds."""

    def __init__(
        self,
        *,
        max_in_flight: int,
        max_queued: int = 0,
        queue_seconds: float = 5.0,
        max_body_bytes_held: int = 512 * MIB,
        max_memory_bytes: int = 0,
        resident_bytes: Callable[[], int] | None = None,
    ) -> None:
        """`max_memory_bytes`: 0 for no bound. `resident_bytes`: the process's own, unless a test has another."""
        self.max_in_flight = max_in_flight
        self.max_queued = max_queued
        self.queue_seconds = queue_seconds
        self.max_body_bytes_held = max_body_bytes_held
        self.max_memory_bytes = max_memory_bytes
        self.in_flight = 0
        self.queued = 0
        self.held_bytes = 0
        self._resident_bytes = resident_bytes or read_resident_bytes
        self._resident = 0
        self._resident_at = float("-inf")
        self._shares: dict[str, Share] = {}
        self._turns: OrderedDict[str, Share] = OrderedDict()
        """Callers with waiting requests; the first has waited longest for its turn."""
        self._mean_held_s = 0.0
        self._moved_at = 0.0
        """When a place was last taken or came free."""

    def enter(self, caller: str, size: int, *, now: float) -> Place:
        """A place for a request whose body is declared as `size` bytes long: admitted, or waiting. Raises `Refusal`."""
        share = self._shares.get(caller)
        if share is None:
            share = Share(caller)
        if self.held_bytes + share.held_bytes + size + size > self.max_body_bytes_held:
            self._check_bytes(share, size)
        if self.max_memory_bytes:
            self._check_memory(now)
        if self.in_flight < self.max_in_flight:
            place = Place(share, size, now)
            share.running += 1
            self.in_flight += 1
            self._moved_at = now
        else:
            place = self._join_queue(share, size, now)
        share.held_bytes += size
        self.held_bytes += size
        self._shares[caller] = share
        return place

    def grow(self, place: Place, size: int) -> None:
        """`size` further bytes came of a body that declared no length. Raises `Refusal`."""
        share = place.share
        if share is None:
            return
        self._check_bytes(share, size)
        place.held_bytes += size
        share.held_bytes += size
        self.held_bytes += size

    def leave(self, place: Place, *, now: float) -> None:
        """Idempotent. A place in flight goes to whoever waits."""
        share = place.share
        if share is None:
            return
        place.share = None
        share.held_bytes -= place.held_bytes
        self.held_bytes -= place.held_bytes
        if place.admitted:
            share.running -= 1
            self.in_flight -= 1
            self._mean_held_s += (now - place.since - self._mean_held_s) * SMOOTHING
            self._moved_at = now
            if self._turns and self.in_flight < self.max_in_flight:
                self._admit_next(now)
        else:
            share.waiting.remove(place)
            self.queued -= 1
            if not share.waiting:
                del self._turns[share.caller]
        if not share.running and not share.waiting:
            del self._shares[share.caller]

    @property
    def callers(self) -> int:
        """Those who have anything in flight or waiting."""
        return len(self._shares)

    def late(self, place: Place) -> Refusal:
        """For a place in the queue whose time is up."""
        share = place.share
        assert share is not None
        return self._full(share, f"No place came free within {self.queue_seconds:g} s.")

    # -- the queue

    def _join_queue(self, share: Share, size: int, now: float) -> Place:
        # What could not be served in time is refused now, not after it has waited in vain.
        stuck = self.queued and now - self._moved_at > self.queue_seconds
        if stuck or self._expected_wait_s(share) > EXPECTED_PART * self.queue_seconds:
            raise self._full(share, newcomer=share)
        if self.queued >= self.max_queued:
            self._make_room(share, now)
        place = Place(share, size, now)
        place.admitted = False
        if not share.waiting:
            self._turns[share.caller] = share
        share.waiting.append(place)
        self.queued += 1
        return place

    def _make_room(self, share: Share, now: float) -> None:
        """Sends the newest request of the caller away who waits with the most. Raises `Refusal` when that is this one."""
        longest = max(self._turns.values(), key=lambda other: len(other.waiting), default=None)
        if longest is None or len(longest.waiting) <= len(share.waiting) + 1:
            raise self._full(share, newcomer=share)
        refusal = self._full(longest, newcomer=share)
        place = longest.waiting[-1]
        self.leave(place, now=now)
        if place.told is not None:
            place.told(refusal)

    def _admit_next(self, now: float) -> None:
        chosen: Share | None = None
        for share in self._turns.values():
            if chosen is None or share.running < chosen.running:
                chosen = share
                if not share.running:
                    break
        assert chosen is not None
        place = chosen.waiting.popleft()
        if chosen.waiting:
            self._turns.move_to_end(chosen.caller)
        else:
            del self._turns[chosen.caller]
        self.queued -= 1
        chosen.running += 1
        self.in_flight += 1
        place.admitted = True
        place.since = now
        if place.told is not None:
            place.told(None)

    def _expected_wait_s(self, share: Share) -> float:
        """How long a further request of this caller would wait for its turn."""
        waiting = len(share.waiting)
        callers = len(self._turns) + (not waiting)
        turns = min(self.queued + 1, (waiting + 1) * callers)
        return turns * self._mean_held_s / max(1, self.max_in_flight)

    # -- the bounds on memory

    def _check_bytes(self, share: Share, size: int) -> None:
        """A caller may hold as much as it leaves free: one alone half of the bound, two a third each, and so on."""
        free = self.max_body_bytes_held - self.held_bytes - size
        if free < 0:
            raise self._out_of_memory("The bodies of requests in this gateway process are at their bound of memory.")
        if share.held_bytes and share.held_bytes + size > free:
            raise self._out_of_memory("The bodies of this caller's requests are at its share of the memory for them.")

    def _check_memory(self, now: float) -> None:
        if now - self._resident_at >= RESIDENT_SECONDS:
            self._resident = self._resident_bytes()
            self._resident_at = now
        # With nothing in flight nothing would ever be given back: then one is let in.
        if self._resident > self.max_memory_bytes and self.in_flight:
            raise self._out_of_memory("This gateway process is at its bound of memory.")

    # -- refusals

    def _full(self, share: Share, message: str | None = None, *, newcomer: Share | None = None) -> Refusal:
        wait_s = self._expected_wait_s(share)
        code = "caller_over_share" if self._over_share(share, newcomer) else "overloaded"
        return Refusal(code, message, retry_after_s=min(MAX_RETRY_AFTER_SECONDS, ceil(wait_s)))

    def _over_share(self, share: Share, newcomer: Share | None) -> bool:
        """`newcomer`: who has just come and is not among those counted so far."""
        callers, own, everybodys = len(self._shares), share.running + len(share.waiting), self.in_flight + self.queued
        if newcomer is not None:
            callers += newcomer.caller not in self._shares
            own += newcomer is share
            everybodys += 1
        return callers > 1 and own > OVER_SHARE * everybodys / callers

    def _out_of_memory(self, message: str) -> Refusal:
        return Refusal("overloaded", message, retry_after_s=min(MAX_RETRY_AFTER_SECONDS, ceil(self._mean_held_s)))


async def read_in_turn(admission: Admission, place: Place, body: Coroutine[Any, Any, bytes], receive: Receive) -> bytes:
    """The body of a waiting request, once it is admitted.

    The body is read meanwhile: nothing else tells that the client has left. Raises `Refusal`, `ClientLeft`, and what
    `body` raises.
    """
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()
    watcher: asyncio.Task[None] | None = None

    def tell(problem: Exception | None) -> None:
        if turn.done():
            return
        if problem is None:
            turn.set_result(None)
        else:
            turn.set_exception(problem)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        tell(ClientLeft())

    def have_read(reading: asyncio.Task[bytes]) -> None:
        nonlocal watcher
        if reading.cancelled():
            return
        problem = reading.exception()
        if turn.done():
            return
        if problem is None:
            watcher = asyncio.ensure_future(watch())
        else:
            assert isinstance(problem, Exception)
            tell(problem)

    def give_up() -> None:
        if not turn.done():
            tell(admission.late(place))

    place.told = tell
    reading = asyncio.ensure_future(body)
    reading.add_done_callback(have_read)
    timer = loop.call_later(admission.queue_seconds, give_up)
    try:
        await turn
        timer.cancel()
        if watcher is not None and not watcher.cancel():
            raise ClientLeft
        return await reading
    finally:
        timer.cancel()
        reading.cancel()
        if watcher is not None:
            watcher.cancel()


PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def read_resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * PAGE_BYTES
