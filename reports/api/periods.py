"""Sums by hour or day, page by page, of quarters of an hour or of days that were summed before.

A page takes three queries, however many rows there are: which periods come next, their sums, and their histograms.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import QuerySet, Sum

from reports.core.latency import Histogram
from reports.core.rollup import SLOT, TIMES, day_of

SUMS = (
    "requests", "streamed", "success", "refused", "upstream_failed", "upstream_truncated", "client_cancelled",
    "internal_error", "aborted", "attempts", "fallbacks", "cost_microdollars", "cost_unknown", "input_tokens",
    "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens", "output_tokens", "reasoning_tokens", "images",
    "request_bytes", "response_bytes", "usage_reported", "usage_estimated", "usage_inconsistent", "usage_none",
    "prompt_cache_read", "prompt_cache_written", "affinity_hit", "affinity_miss", "affinity_expired", "affinity_evicted",
    "affinity_ineligible", "affinity_disabled",
)  # fmt: skip
_MICROSECONDS = tuple(f"{name}_us" for name in TIMES)
AT_ONCE = 2_000
"""Rows that are fetched at a time."""

Period = datetime | date
Key = tuple[Any, ...]
"""The period, then the names in the order of `group_by`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    rows: QuerySet[Any]
    column: str
    """`slot` or `day`."""
    period_of: Callable[[Any], Period]
    """Of a value of the column; never decreasing."""
    most_per_period: int
    """Values of the column that one period can have."""


@dataclass(slots=True)
class Summed:
    key: Key
    sums: dict[str, int]
    times: dict[str, Histogram] = field(default_factory=lambda: {name: Histogram() for name in TIMES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    rows: Sequence[Summed]
    more: bool


def read_page(source: Source, group_by: Sequence[str], *, after: Key | None, size: int) -> Page:
    """The first `size` rows behind `after`, in the order of their keys. `source.rows` begin with the period of `after`."""
    # The first period may lie before the cursor as a whole, the last may be cut: both are read beside the page's own.
    most = (size + 3) * source.most_per_period
    values = source.rows.order_by(source.column).values_list(source.column, flat=True).distinct()[:most]
    known = list(values)
    if not known:
        return Page(rows=(), more=False)
    cut = len(known) == most
    whole = [each for each in known if not cut or source.period_of(each) != source.period_of(known[-1])]
    within = source.rows.filter(**{f"{source.column}__lte": whole[-1]})
    found, more = _sums(source, within, group_by, after, size)
    page = found[:size]
    if page:
        _add_times(source, within, group_by, {each.key: each for each in page})
    return Page(rows=page, more=more or cut)


def _sums(
    source: Source, rows: QuerySet[Any], group_by: Sequence[str], after: Key | None, size: int
) -> tuple[list[Summed], bool]:
    """At least the first `size` rows behind `after`, as far as there are, and whether there are more."""
    columns = (*SUMS, *_MICROSECONDS)
    # Under other names: a sum that is called like its column hides the column from those behind it.
    wanted = {f"sum_{name}": Sum(name) for name in columns}
    totals = rows.values(source.column, *group_by).annotate(**wanted).order_by(source.column)
    found: list[Summed] = []
    for period, part in _by_period(source, totals.values_list(source.column, *group_by, *wanted).iterator(AT_ONCE)):
        if len(found) > size:
            return found, True
        sums: dict[Key, dict[str, int]] = {}
        for row in part:
            names, numbers = row[1 : 1 + len(group_by)], row[1 + len(group_by) :]
            of_key = sums.setdefault((period, *names), dict.fromkeys(columns, 0))
            for name, number in zip(columns, numbers, strict=True):
                of_key[name] += int(number)
        found += [Summed(key=key, sums=sums[key]) for key in sorted(sums) if after is None or key > after]
    return found, len(found) > size


def _by_period(source: Source, rows: Iterator[Sequence[Any]]) -> Iterator[tuple[Period, list[Sequence[Any]]]]:
    """Rows come in the order of the column, which is their first value."""
    period: Period | None = None
    part: list[Sequence[Any]] = []
    for row in rows:
        of_row = source.period_of(row[0])
        if period is not None and of_row != period:
            yield period, part
            part = []
        period = of_row
        part.append(row)
    if period is not None:
        yield period, part


def _add_times(source: Source, rows: QuerySet[Any], group_by: Sequence[str], page: Mapping[Key, Summed]) -> None:
    last = max(key[0] for key in page)
    first = min(key[0] for key in page)
    for at, *rest in rows.values_list(source.column, *group_by, *TIMES).order_by(source.column).iterator(AT_ONCE):
        period = source.period_of(at)
        if period < first:
            continue
        if period > last:
            break
        of_key = page.get((period, *rest[: len(group_by)]))
        if of_key is not None:
            for name, packed in zip(TIMES, rest[len(group_by) :], strict=True):
                of_key.times[name].merge(Histogram.from_bytes(bytes(packed)))


# -- which period a slot belongs to


def hours_of(zone: ZoneInfo) -> Callable[[datetime], datetime]:
    """The start, in UTC, of the hour on the zone's clocks that holds the slot. An hour that the clocks show twice is two,
    and where they are set by half an hour, one is half as long: no slot is in two."""

    @lru_cache(maxsize=8_192)
    def start(slot: datetime) -> datetime:
        slot = slot.astimezone(UTC)
        local = slot.astimezone(zone)
        shown = (local.date(), local.hour, local.utcoffset())
        while True:
            before = (slot - SLOT).astimezone(zone)
            if (before.date(), before.hour, before.utcoffset()) != shown:
                return slot
            slot -= SLOT

    return start


def end_of_hour(start: datetime, hour: Callable[[datetime], datetime]) -> datetime:
    end = start + SLOT
    while hour(end) == start:
        end += SLOT
    return end


def days_of(zone: ZoneInfo) -> Callable[[datetime], date]:
    @lru_cache(maxsize=8_192)
    def day(slot: datetime) -> date:
        return day_of(slot, zone)

    return day


LONGEST_HOUR = 4
LONGEST_DAY = 100
"""Slots."""
DAY = timedelta(days=1)
