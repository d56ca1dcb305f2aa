"""Times in logarithmic buckets: a 95th percentile within 2 %, in fixed memory, mergeable by adding counts."""

from collections.abc import Mapping
from math import log

SMALLEST_S = 0.0001
LARGEST_S = 1_000_000.0
GROWTH = 1.04
"""Width of a bucket. Its harmonic middle is at most (GROWTH - 1) / (GROWTH + 1) = 1.96 % from any value in it."""

_PER_LOG = 1.0 / log(GROWTH)
_LAST = int(log(LARGEST_S / SMALLEST_S) * _PER_LOG) + 1
_MIDDLES = (
    0.0,
    *(2.0 * SMALLEST_S * GROWTH**index / (GROWTH + 1.0) for index in range(1, _LAST + 1)),
)


def bucket_of(seconds: float) -> int:
    """Bucket 0 holds everything below 0.1 ms, the last one everything above 1,000,000 s."""
    if seconds < SMALLEST_S:
        return 0
    if seconds >= LARGEST_S:
        return _LAST
    return min(int(log(seconds / SMALLEST_S) * _PER_LOG) + 1, _LAST)


class Histogram:
    """Counts per bucket, with a cursor that stands at the 95th percentile and moves only as far as the counts did."""

    __slots__ = ("_below", "_counts", "_cursor", "count")

    def __init__(self) -> None:
        self.count = 0
        self._counts = [0] * (_LAST + 1)
        self._cursor = 0
        self._below = 0
        """Values in the buckets before the cursor's."""

    def add(self, bucket: int, times: int = 1) -> None:
        self._counts[bucket] += times
        self.count += times
        if bucket < self._cursor:
            self._below += times

    def merge(self, buckets: Mapping[int, int]) -> None:
        for bucket, times in buckets.items():
            self.add(bucket, times)

    def take(self, buckets: Mapping[int, int]) -> None:
        """Remove what was added or merged before."""
        for bucket, times in buckets.items():
            self.add(bucket, -times)

    def clear(self) -> None:
        self._counts = [0] * (_LAST + 1)
        self.count = self._cursor = self._below = 0

    def p95(self) -> float | None:
        """Seconds; the nearest rank, `ceil(0.95 n)`. `None`: nothing was counted."""
        if not self.count:
            return None
        rank = (95 * self.count + 99) // 100
        counts, cursor, below = self._counts, self._cursor, self._below
        while below >= rank:
            cursor -= 1
            below -= counts[cursor]
        while below + counts[cursor] < rank:
            below += counts[cursor]
            cursor += 1
        self._cursor, self._below = cursor, below
        return _MIDDLES[cursor]
