"""Sums of a period from the rollups: whole days from the daily sums, everything else from the quarters of an hour.

How many statements a question takes depends on the period alone, never on how many exchanges or rows there are.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final

from django.db.models import Q, QuerySet, Sum

from reports.core.latency import Histogram
from reports.core.rollup import Span, day_of, day_span, days_between
from reports.filters import NAMES, Filters
from reports.rollup_models import DailyRollup, DecisionBucket, RolledDay, SlotRollup
from reports.rollups import report_zone

Key = tuple[Any, ...]
"""Values of the columns that were grouped by; over time, the bucket's place comes first."""
Sums = Mapping[str, int]
READ_AT_ONCE: Final = 2_000
MOST_NAMES: Final = 1_000
"""That a filter offers; others can be asked for by the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    days: Q | None = None
    """Of daily rows. `None`: none."""
    slots: Q | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Rows of the rollups that make up one span, each exchange in exactly one of them."""

    filters: Filters
    span: Span
    whole: Parts
    """For sums of the whole span: days of the installation's zone wherever they lie within it."""
    steps: Parts
    """For sums over time: only rows that lie within one step."""

    def sums(self, measures: Sequence[str], *, by: Sequence[str] = (), over_time: bool = False) -> Mapping[Key, Sums]:
        """Grouped by columns of `reports.core.rollup.DIMENSIONS`, within the filters' names."""
        found: dict[Key, dict[str, int]] = {}
        for rows, time in self._rows(self.steps if over_time else self.whole):
            grouping = (*((time,) if over_time else ()), *by)
            sums = {f"sum_{name}": Sum(name, default=0) for name in measures}
            if not grouping:
                self._add(found, (), list(rows.aggregate(**sums).values()), measures)
                continue
            summed = rows.order_by().values(*grouping).annotate(**sums).values_list(*grouping, *sums)
            for row in summed.iterator(chunk_size=READ_AT_ONCE):
                key, numbers = row[: len(grouping)], row[len(grouping) :]
                self._add(found, self._placed(key, time) if over_time else key, numbers, measures)
        return found

    def total(self, measures: Sequence[str]) -> dict[str, int]:
        """Zeros where there is nothing."""
        return dict.fromkeys(measures, 0) | dict(self.sums(measures).get((), {}))

    def histograms(
        self, times: Sequence[str], *, by: Sequence[str] = (), over_time: bool = False
    ) -> dict[Key, tuple[Histogram, ...]]:
        """One histogram for each of `times`, of exchanges that were
        sent to a provider."""
        counted: dict[Key, tuple[Counter[bytes], ...]] = {}
        for rows, time in self._rows(self.steps if over_time else self.whole):
            sent = rows.exclude(provider="").order_by().values_list(time, *by, *times)
            for row in sent.iterator(chunk_size=READ_AT_ONCE):
                key = self._placed(row[: 1 + len(by)], time) if over_time else row[1 : 1 + len(by)]
                counters = counted.setdefault(key, tuple(Counter() for _ in times))
                for counter, data in zip(counters, row[1 + len(by) :], strict=True):
                    if data:
                        counter[bytes(data)] += 1
        return {key: tuple(_merged(counter) for counter in counters) for key, counters in counted.items()}

    def names(self) -> dict[str, list[str]]:
        """What there is of each of the filters' names in the span, whatever else is filtered."""
        found: dict[str, set[str]] = {name: set() for name in NAMES}
        for rows, _ in self._rows(self.whole, filtered=False):
            for row in rows.order_by().values_list(*NAMES).distinct()[: MOST_NAMES * len(NAMES)]:
                for name, value in zip(NAMES, row, strict=True):
                    if value and len(found[name]) < MOST_NAMES:
                        found[name].add(value)
        return {name: sorted(values) for name, values in found.items()}

    def _rows(self, parts: Parts, *, filtered: bool = True) -> Iterable[tuple[QuerySet[Any], str]]:
        """Each with the column that holds its time."""
        names = self.filters.names if filtered else {}
        if parts.days is not None:
            yield DailyRollup.objects.filter(parts.days, **names), "day"
        if parts.slots is not None:
            yield SlotRollup.objects.filter(parts.slots, **names), "slot"

    def _placed(self, key: Key, time: str) -> Key:
        first, *rest = key
        place = self.filters.bucket_of_day(first) if time == "day" else self.filters.bucket_of(first)
        return (place, *rest)

    @staticmethod
    def _add(found: dict[Key, dict[str, int]], key: Key, numbers: Sequence[Any], measures: Sequence[str]) -> None:
        sums = found.setdefault(key, dict.fromkeys(measures, 0))
        for name, number in zip(measures, numbers, strict=True):
            sums[name] += int(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a report reads: its period, and the one before for comparison."""

    filters: Filters
    now: Source
    before: Source
    missing: Sequence[str]
    """What the sums lack, in words."""


def scope(filters: Filters) -> Scope:
    """Takes one statement."""
    ours = report_zone()
    spans = (filters.span, filters.before)
    first = day_of(filters.before.start, ours) - timedelta(days=1)
    last = day_of(filters.span.end, ours) + timedelta(days=1)
    ledger = {row.day: row for row in RolledDay.objects.filter(zone=ours.key, day__gte=first, day__lte=last)}
    gone = [day for day, row in ledger.items() if row.slots_gone]
    now, before = (_source(filters, span, ledger) for span in spans)
    missing: list[str] = []
    if gone and day_span(max(gone), ours).end > filters.span.start:
        if filters.zone != ours:
            missing.append(
                f"Sums by quarter of an hour are deleted up to {max(gone)}: until then only days of {ours.key} are known."
            )
        elif filters.by_hours:
            missing.append(f"Sums by quarter of an hour are deleted up to {max(gone)}: a day stands at its first hour.")
    return Scope(filters=filters, now=now, before=before, missing=missing)


def decision_counts(filters: Filters, *, dimensions: Sequence[str] = ()) -> dict[tuple[str, str, str, str], int]:
    """How often, by dimension, group, bucket and target. Days of the installation's zone, all callers and projects.

    `dimensions`: only these. Of the filters the group counts, as the others are not kept with every bucket.
    """
    rows = DecisionBucket.objects.filter(
        zone=report_zone().key, day__gte=filters.first, day__lte=filters.last
    ).order_by()
    if filters.group:
        rows = rows.filter(group=filters.group)
    if dimensions:
        rows = rows.filter(dimension__in=dimensions)
    columns = ("dimension", "group", "bucket", "target")
    summed = rows.values(*columns).annotate(n=Sum("count")).values_list(*columns, "n")
    return {
        (dimension, group, bucket, target): int(count)
        for dimension, group, bucket, target, count in summed.iterator(chunk_size=READ_AT_ONCE)
    }


def _source(filters: Filters, span: Span, ledger: Mapping[date, RolledDay]) -> Source:
    if span.start >= span.end:
        return Source(filters=filters, span=span, whole=Parts(), steps=Parts())
    whole = _parts(span, ledger)
    gone = any(row.slots_gone and day_span(day, report_zone()).end > span.start for day, row in ledger.items())
    in_slots = filters.zone != report_zone() or (filters.by_hours and not gone)
    steps = Parts(slots=_within([span])) if in_slots else whole
    return Source(filters=filters, span=span, whole=whole, steps=steps)


def _parts(span: Span, ledger: Mapping[date, RolledDay]) -> Parts:
    """Whole days that are summed up, and quarters of an hour for all else."""
    zone = report_zone()
    whole: list[date] = []
    open_spans: list[Span] = []
    for day in days_between(day_of(span.start, zone), day_of(span.end, zone)):
        of_day = day_span(day, zone)
        start, end = max(of_day.start, span.start), min(of_day.end, span.end)
        if start >= end:
            continue
        row = ledger.get(day)
        summed = row is not None and row.rolled_at is not None and (row.slots_gone or not row.stale)
        if summed and (start, end) == (of_day.start, of_day.end):
            whole.append(day)
        elif open_spans and open_spans[-1].end == start:
            open_spans[-1] = Span(start=open_spans[-1].start, end=end)
        else:
            open_spans.append(Span(start=start, end=end))
    return Parts(days=_of_days(whole), slots=_within(open_spans))


def _of_days(days: Sequence[date]) -> Q | None:
    ranges: list[list[date]] = []
    for day in days:
        if ranges and ranges[-1][1] + timedelta(days=1) == day:
            ranges[-1][1] = day
        else:
            ranges.append([day, day])
    condition: Q | None = None
    for first, last in ranges:
        part = Q(zone=report_zone().key, day__gte=first, day__lte=last)
        condition = part if condition is None else condition | part
    return condition


def _within(spans: Sequence[Span]) -> Q | None:
    condition: Q | None = None
    for span in spans:
        part = Q(slot__gte=span.start, slot__lt=span.end)
        condition = part if condition is None else condition | part
    return condition


def _merged(counter: "Counter[bytes]") -> Histogram:
    """Rows of a quiet quarter of an hour are often alike, and are read once."""
    whole = Histogram()
    for data, times in counter.items():
        for bucket, count in Histogram.from_bytes(data).counts.items():
            whole.add(bucket, count * times)
    return whole


def merged(parts: Iterable[Histogram]) -> Histogram:
    whole = Histogram()
    for part in parts:
        whole.merge(part)
    return whole
