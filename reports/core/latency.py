"""Times in logarithmic buckets that add up: percentiles of any days and dimensions together, within 4.4 %.

`routing.core.histogram` is another thing: a fixed array with a cursor at one percentile, made for one window of one
process. This one is sparse and has bytes for a database column; what they share is one logarithm.
"""

from collections.abc import Iterable, Mapping
from math import ceil, log

SMALLEST_MS = 0.1
"""Bucket 0 holds everything below, and is reported as 0."""
PER_DOUBLING = 8
LAST = 280
"""Its lower edge is 36 days. It holds everything above, too."""
GROWTH: float = 2.0 ** (1.0 / PER_DOUBLING)
RELATIVE_ERROR: float = (GROWTH - 1.0) / (GROWTH + 1.0)
"""4.33 %: how far the harmonic middle of a bucket may be from a value in it."""
PER_LOG: float = PER_DOUBLING / log(2.0)

_FORMAT = 1


class BadHistogram(ValueError):
    """Bytes that no `Histogram.to_bytes` wrote."""


def bucket_of(ms: float) -> int:
    """0 to LAST. A value on an edge may fall to either side of it."""
    if ms < SMALLEST_MS:
        return 0
    return min(int(log(ms / SMALLEST_MS) * PER_LOG) + 1, LAST)


def middle_of(bucket: int) -> float:
    """Milliseconds."""
    return 0.0 if bucket == 0 else 2.0 * SMALLEST_MS * GROWTH**bucket / (GROWTH + 1.0)


class Histogram:
    """How many values fell into each bucket."""

    __slots__ = ("counts",)

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: dict[int, int] = dict(counts or {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Histogram({dict(sorted(self.counts.items()))})"

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def add(self, bucket: int, times: int = 1) -> None:
        self.counts[bucket] = self.counts.get(bucket, 0) + times

    def merge(self, other: "Histogram") -> None:
        for bucket, times in other.counts.items():
            self.add(bucket, times)

    def percentile(self, share: float) -> float | None:
        """Milliseconds below or at which `share` (0 to 1) of the values are, by nearest rank. `None`: there are none."""
        count = self.count
        if not count:
            return None
        rank = min(max(ceil(share * count), 1), count)
        below = 0
        for bucket in sorted(self.counts):
            below += self.counts[bucket]
            if below >= rank:
                return middle_of(bucket)
        return None

    def to_bytes(self) -> bytes:
        """A format byte, then for each bucket that holds something the step from the one before and its count, both in
        base 128. Two bytes a bucket as a rule; nothing at all when empty. Equal histograms give equal bytes."""
        if not self.counts:
            return b""
        out = bytearray((_FORMAT,))
        before = 0
        for bucket in sorted(self.counts):
            times = self.counts[bucket]
            if times:
                _write(out, bucket - before)
                _write(out, times)
                before = bucket
        return bytes(out)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Histogram":
        """Raises `BadHistogram`."""
        if not data:
            return cls()
        if data[0] != _FORMAT:
            raise BadHistogram(f"format {data[0]}")
        numbers = list(_read(data[1:]))
        if len(numbers) % 2:
            raise BadHistogram("a bucket without a count")
        made = cls()
        bucket = 0
        for step, times in zip(numbers[::2], numbers[1::2], strict=True):
            bucket += step
            if bucket > LAST:
                raise BadHistogram(f"bucket {bucket}")
            made.add(bucket, times)
        return made


def merged(parts: Iterable[bytes | memoryview]) -> Histogram:
    """Of the columns of many rollup rows. Raises `BadHistogram`."""
    whole = Histogram()
    for part in parts:
        whole.merge(Histogram.from_bytes(bytes(part)))
    return whole


def _write(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _read(data: bytes) -> Iterable[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 127) << shift
        if byte < 128:
            yield number
            number = shift = 0
        else:
            shift += 7
    if shift:
        raise BadHistogram("it ends inside a number")
