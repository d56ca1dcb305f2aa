"""Two memories of one target, both of fixed size: a rolling window of time slices, and counters that decay."""

from collections import deque
from math import exp2

from routing.core.histogram import Histogram
from routing.core.stats import Sums

SLICES = 30
"""Per window: nothing older than the window counts, and everything younger than 29/30 of it does."""


class Slice:
    """What was observed in one thirtieth of the window."""

    __slots__ = ("buckets", "erased", "index", "sums", "unary")

    def __init__(self, index: int) -> None:
        self.index = index
        self.sums = Sums()
        self.buckets: dict[int, int] = {}
        """Histogram bucket -> count of the times that were recorded in this slice."""
        self.unary = 0
        """Completed answers that were no streams."""
        self.erased = 0.0
        """Counted attempts that a reinstatement has erased."""

    def absorb(self, other: "Slice") -> None:
        self.sums = _sum(self.sums, other.sums)
        for bucket, times in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + times
        self.unary += other.unary
        self.erased += other.erased


class Window:
    """A ring of slices, newest last. `now` may repeat or step back: what comes late counts in the newest slice."""

    __slots__ = ("_base", "_base_erased", "_base_unary", "_slice_s", "_slices", "current", "histogram")

    def __init__(self, window_s: float, *, now: float) -> None:
        self._slice_s = window_s / SLICES
        self.current = Slice(int(now // self._slice_s))
        self._slices = deque([self.current])
        self.histogram = Histogram()
        self._base: Sums | None = None
        """Sums of all slices but the current one. `None`: to be added up again."""
        self._base_unary = 0
        self._base_erased = 0.0

    def at(self, now: float) -> Slice:
        """The slice to record into."""
        index = int(now // self._slice_s)
        if index > self.current.index:
            self._turn(index)
        return self.current

    def total(self) -> tuple[Sums, int, float]:
        """Sums over the window, unary answers, erased attempts; as of the last `at`. The sums are the caller's to keep."""
        total = _sum(self._base or self._add_up(), self.current.sums)
        return total, self._base_unary + self.current.unary, self._base_erased + self.current.erased

    def record_time(self, slice_: Slice, bucket: int) -> None:
        slice_.buckets[bucket] = slice_.buckets.get(bucket, 0) + 1
        self.histogram.add(bucket)

    def correct(self) -> None:
        """An older slice was changed after it had been closed."""
        self._base = None

    def erase(self) -> None:
        """Forget everything but how many attempts there were."""
        for slice_ in self._slices:
            slice_.erased += slice_.sums.attempts
            slice_.sums = Sums()
            slice_.buckets = {}
            slice_.unary = 0
        self.histogram.clear()
        self._base = None

    def resize(self, window_s: float, *, now: float) -> None:
        """Follow a changed policy: slices keep the time they began at."""
        slice_s = window_s / SLICES
        if slice_s == self._slice_s:
            return
        slices: deque[Slice] = deque()
        for slice_ in self._slices:
            slice_.index = int(slice_.index * self._slice_s // slice_s)
            if slices and slices[-1].index == slice_.index:
                slices[-1].absorb(slice_)
            else:
                slices.append(slice_)
        self._slice_s = slice_s
        self._slices = slices
        self.current = slices[-1]
        self._base = None
        self.at(now)

    def _turn(self, index: int) -> None:
        self.current = Slice(index)
        self._slices.append(self.current)
        while self._slices[0].index <= index - SLICES:
            self.histogram.take(self._slices.popleft().buckets)
        self._base = None

    def _add_up(self) -> Sums:
        base = Sums()
        self._base_unary = 0
        self._base_erased = 0.0
        for slice_ in self._slices:
            if slice_ is not self.current:
                base = _sum(base, slice_.sums)
                self._base_unary += slice_.unary
                self._base_erased += slice_.erased
        self._base = base
        return base


class Decaying:
    """Counters that halve every `half_life_s`.

    They are kept as they would stand at `_since`, so that recording touches only what it adds to: an event counts
    `weight(now)`, and reading divides by it.
    """

    __slots__ = ("_half_lives_per_s", "_since", "sums")

    def __init__(self, half_life_s: float, *, now: float) -> None:
        self._half_lives_per_s = 1.0 / half_life_s
        self._since = now
        self.sums = Sums()

    def weight(self, now: float) -> float:
        """What to add for one event at `now`."""
        age = (now - self._since) * self._half_lives_per_s
        if age > _REBASE_AFTER:
            self.sums = self.read(now)
            self._since = now
            return 1.0
        return exp2(age) if age > 0.0 else 1.0

    def read(self, now: float, *, overdue: int = 0) -> Sums:
        """The sums as of `now`, `overdue` attempts added as timeouts."""
        age = (now - self._since) * self._half_lives_per_s
        sums = self.sums
        if age > _NOTHING_AFTER or not (sums.attempts or sums.first_content_n):
            return Sums(attempts=float(overdue), timeouts=float(overdue))
        share = exp2(-age) if age > 0.0 else 1.0
        return Sums(
            attempts=sums.attempts * share + overdue,
            errors=sums.errors * share,
            timeouts=sums.timeouts * share + overdue,
            fallbacks=sums.fallbacks * share,
            first_content_s=sums.first_content_s * share,
            first_content_n=sums.first_content_n * share,
            generation_s=sums.generation_s * share,
            generation_tokens=sums.generation_tokens * share,
            in_flight_at_start=sums.in_flight_at_start * share,
            completed=sums.completed * share,
            streams=sums.streams * share,
            streams_ended=sums.streams_ended * share,
        )

    def clear(self) -> None:
        self.sums = Sums()

    def change_half_life(self, half_life_s: float, *, now: float) -> None:
        if self._half_lives_per_s != 1.0 / half_life_s:
            self.sums = self.read(now)
            self._since = now
            self._half_lives_per_s = 1.0 / half_life_s


def _sum(one: Sums, other: Sums) -> Sums:
    return Sums(
        attempts=one.attempts + other.attempts,
        errors=one.errors + other.errors,
        timeouts=one.timeouts + other.timeouts,
        fallbacks=one.fallbacks + other.fallbacks,
        first_content_s=one.first_content_s + other.first_content_s,
        first_content_n=one.first_content_n + other.first_content_n,
        generation_s=one.generation_s + other.generation_s,
        generation_tokens=one.generation_tokens + other.generation_tokens,
        in_flight_at_start=one.in_flight_at_start + other.in_flight_at_start,
        completed=one.completed + other.completed,
        streams=one.streams + other.streams,
        streams_ended=one.streams_ended + other.streams_ended,
    )


_REBASE_AFTER = 32.0
"""Half-lives; keeps the weights far from the ends of a float."""

_NOTHING_AFTER = 64.0
"""Half-lives after which the oldest weight, 2^32 at most, is nothing."""
