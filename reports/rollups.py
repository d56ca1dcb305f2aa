"""Raw rows to slots, slots to days: each period is read in one snapshot and replaced in one short transaction.

Reading takes no lock, so that nobody waits for a long sum. A period has a version, which every replacement and every
reason for one moves on; what was read under an older version is thrown away and read again. So a rollup may run any
number of times, in any order and at the same time, and a killed one leaves the table as it was.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Case, Count, F, Max, Min, Q, QuerySet, Sum, Value, When
from django.db.models.functions import TruncHour
from django.utils import timezone

from reports import ingest_tables
from reports.core.rollup import HOUR, Span, day_of, day_span, days_between, days_of_hour, hour_of
from reports.models import Exchange, TouchedHour
from reports.rollup_models import DailyRollup, DecisionBucket, RolledDay, RolledHour, SlotRollup, Summed
from reports.summing import DayKey, buckets_of_day, slots_of_hour, sums_of_day

TRIES = 5
"""Every further one means that another process has replaced the same period meanwhile."""
_LOCK = 0x50494C4F54524F4C
"""Of PostgreSQL's advisory locks: whoever replaces or seals a period holds it for that transaction."""


class RollupBusy(RuntimeError):
    """Others kept replacing the period; it stays pending, and may be rolled again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """What has to be summed, oldest first."""

    hours: tuple[datetime, ...] = ()
    """Of UTC, whose raw rows changed."""
    days: tuple[date, ...] = ()
    """Of the zone: an hour of theirs was summed since, or they never were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    hours: int = 0
    days: int = 0
    rows: int = 0
    """Of slots, days and buckets, written."""


def report_zone() -> ZoneInfo:
    """The installation's: where its days begin."""
    return ZoneInfo(settings.TIME_ZONE)


def pending(*, now: datetime | None = None, zone: ZoneInfo | None = None) -> Pending:
    """A running day counts as pending only when it was last summed more than PILOTAGE_ROLLUP_TODAY_SECONDS ago: every
    batch of records changes it, and its slots are up to date anyway."""
    now, zone = now or timezone.now(), zone or report_zone()
    hours = tuple(TouchedHour.objects.order_by("hour").values_list("hour", flat=True))
    days = {day for day in _days_without_a_rollup(zone) if can_be_made(day, zone)}
    recently = now - timedelta(seconds=settings.PILOTAGE.rollup_today_seconds)
    for day, rolled_at in RolledDay.objects.filter(zone=zone.key, stale=True).values_list("day", "rolled_at"):
        if rolled_at is None or rolled_at <= recently or day_span(day, zone).end <= now:
            days.add(day)
    return Pending(hours=hours, days=tuple(sorted(days)))


def roll(
    first: date | None = None, last: date | None = None, *, now: datetime | None = None, zone: ZoneInfo | None = None
) -> Rolled:
    """Sums the days from `first` to `last`, both included, again; without them, what is pending.

    Safe to run twice and in parallel. Raises `RollupBusy`; what was done until then stays done.
    """
    now, zone = now or timezone.now(), zone or report_zone()
    if (first is None) != (last is None):
        raise ValueError("Give both the first and the last day, or neither.")
    rows = 0
    if first is not None and last is not None:
        days = tuple(days_between(first, last))
        hours = tuple(dict.fromkeys(hour for day in days for hour in _hours_with_rows(day_span(day, zone))))
    else:
        hours, days = pending(now=now, zone=zone).hours, ()
    for hour in hours:
        rows += roll_hour(hour, now=now, zone=zone)
    if first is None:
        days = pending(now=now, zone=zone).days
    done = [day for day in days if can_be_made(day, zone)]
    for day in done:
        rows += roll_day(day, now=now, zone=zone)
    return Rolled(hours=len(hours), days=len(done), rows=rows)


def roll_hour(hour: datetime, *, now: datetime, zone: ZoneInfo) -> int:
    """Replaces the slots of an hour of UTC by the sums of its raw rows. The number of its slots."""
    for _ in range(TRIES):
        with _snapshot():
            touched = TouchedHour.objects.filter(hour=hour).values_list("sequence", flat=True).first()
            before = RolledHour.objects.filter(hour=hour).first() or RolledHour(hour=hour)
            rows = slots_of_hour(hour, after=before.sealed_through, generation=before.generation)
        with exclusively():
            ledger = RolledHour.objects.filter(hour=hour)
            if (ledger.values_list("version", flat=True).first() or 0) != before.version:
                continue
            replaced = SlotRollup.objects.filter(slot__gte=hour, slot__lt=hour + HOUR, generation=before.generation)
            if touched is None and before.version and _are_the_same(rows, replaced):
                return len(rows)  # and its days need not be summed again
            replaced.delete()
            _insert(SlotRollup, rows)
            RolledHour.objects.update_or_create(hour=hour, defaults={"version": before.version + 1, "rolled_at": now})
            if touched is not None:  # unless further rows have come since
                TouchedHour.objects.filter(hour=hour, sequence=touched).delete()
            for day in days_of_hour(hour, zone):
                _reopen(day, zone)
            return len(rows)
    raise RollupBusy(f"Others kept summing the hour {hour:%Y-%m-%dT%HZ}.")


def roll_day(day: date, *, now: datetime, zone: ZoneInfo) -> int:
    """Replaces the sums of a day by those of its slots, and its buckets by those of its raw rows. The number of rows."""
    span = day_span(day, zone)
    for _ in range(TRIES):
        with _snapshot():
            found = RolledDay.objects.filter(zone=zone.key, day=day).first()
            before = found or RolledDay(zone=zone.key, day=day, sealed_through=_sealed_elsewhere(day, zone))
            key = DayKey(zone=zone.key, day=day, generation=before.generation)
            sums = sums_of_day(key, span, after_slot=before.slots_sealed_through)
            buckets = buckets_of_day(key, span, after=before.sealed_through)
        with exclusively():
            ledger = RolledDay.objects.filter(zone=zone.key, day=day)
            if (ledger.values_list("version", flat=True).first() or 0) != before.version:
                continue
            DailyRollup.objects.filter(**key).delete()
            _insert(DailyRollup, sums)
            DecisionBucket.objects.filter(**key).delete()
            _insert(DecisionBucket, buckets)
            RolledDay.objects.update_or_create(
                zone=zone.key,
                day=day,
                defaults={"version": before.version + 1, "rolled_at": now, "stale": False},
                create_defaults={
                    "version": before.version + 1,
                    "rolled_at": now,
                    "stale": False,
                    "sealed_through": before.sealed_through,
                },
            )
            return len(sums) + len(buckets)
    raise RollupBusy(f"Others kept summing the day {day}.")


class NotSummed(RuntimeError):
    """Why rows of a day cannot go yet, in words."""


def why_open(day: date, *, zone: ZoneInfo) -> str:
    """What is to be summed before rows of the day may go; empty when nothing is."""
    row = RolledDay.objects.filter(zone=zone.key, day=day).first()
    if row is None or row.rolled_at is None:
        return f"{day} is not summed"
    hours = list(day_span(day, zone).hours())
    touched = (
        TouchedHour.objects.filter(hour__gte=hours[0], hour__lte=hours[-1]).order_by("hour").first() if hours else None
    )
    if touched is not None:
        return f"records of {touched} came in since {day} was summed"
    return f"hours of {day} were summed again since" if row.stale else ""


def seal_day(day: date, *, zone: ZoneInfo) -> int:
    """Makes what is summed of a day final, so that its rows may go: what comes later is summed beside it, as a further
    generation. The number of the last exchange that may go. Raises `NotSummed`, also when sums and rows differ."""
    span = day_span(day, zone)
    with exclusively():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:  # a row with a lower number may be about to be committed
                cursor.execute("LOCK TABLE reports_exchange IN SHARE MODE")
        if why := why_open(day, zone=zone):
            raise NotSummed(why)
        row = RolledDay.objects.get(zone=zone.key, day=day)
        last = _last_exchange(span.start, span.end, row.sealed_through)
        if last is None:
            return row.sealed_through
        _seal_hours(span)
        slots = SlotRollup.objects.filter(slot__gte=span.start, slot__lt=span.end)
        RolledDay.objects.filter(pk=row.pk).update(
            version=F("version") + 1,
            generation=F("generation") + 1,
            sealed_through=last,
            slots_sealed_through=slots.aggregate(last=Max("pk"))["last"] or 0,
        )
        return last


def seal_slots(day: date, *, zone: ZoneInfo) -> int:
    """As `seal_day`, for the slots of a day whose raw rows have gone. The number of the last slot that may go."""
    span = day_span(day, zone)
    with exclusively():
        if why := why_open(day, zone=zone):
            raise NotSummed(why)
        row = RolledDay.objects.get(zone=zone.key, day=day)
        last = SlotRollup.objects.filter(slot__gte=span.start, slot__lt=span.end).aggregate(last=Max("pk"))["last"] or 0
        if last > row.slots_sealed_through:
            RolledDay.objects.filter(pk=row.pk).update(
                version=F("version") + 1, generation=F("generation") + 1, slots_sealed_through=last
            )
        RolledDay.objects.filter(pk=row.pk).update(slots_gone=True)
        return max(last, row.slots_sealed_through)


def _seal_hours(span: Span) -> None:
    """Also of the part of an hour that is another day's. Raises `NotSummed` when open sums are not those of the rows."""
    hours = list(span.hours())
    start, end = hours[0], hours[-1] + HOUR
    ledger = {row.hour: row for row in RolledHour.objects.filter(hour__gte=start, hour__lt=end)}
    sealed = Case(
        *(
            When(started_at__gte=hour, started_at__lt=hour + HOUR, then=Value(row.sealed_through))
            for hour, row in ledger.items()
            if row.sealed_through
        ),
        default=Value(0),
    )
    rows = Exchange.objects.filter(started_at__gte=start, started_at__lt=end, pk__gt=sealed).order_by()
    of_rows: dict[datetime, tuple[int, int]] = {}
    last: dict[datetime, int] = {}
    for hour, requests, cost, last[hour] in (
        rows.values(hour=TruncHour("started_at", tzinfo=UTC))
        .annotate(requests=Count("pk"), cost=Sum("cost_microdollars", default=0), last=Max("pk"))
        .values_list("hour", "requests", "cost", "last")
    ):
        of_rows[hour] = (requests, int(cost))
    of_slots: dict[datetime, tuple[int, int]] = {}
    for hour, generation, requests, cost in (
        SlotRollup.objects.filter(slot__gte=start, slot__lt=end)
        .order_by()
        .values("generation", hour=TruncHour("slot", tzinfo=UTC))
        .annotate(sum_requests=Sum("requests"), sum_cost=Sum("cost_microdollars"))
        .values_list("hour", "generation", "sum_requests", "sum_cost")
    ):
        if hour not in ledger or generation == ledger[hour].generation:
            of_slots[hour] = (int(requests), int(cost))
    for hour in sorted({*of_rows, *of_slots}):
        if of_rows.get(hour) != of_slots.get(hour):
            raise NotSummed(f"the sums of {hour:%Y-%m-%dT%HZ} are not those of its records; run rollup for that day")
    for hour, row in ledger.items():
        if hour in last:
            row.version, row.generation, row.sealed_through = row.version + 1, row.generation + 1, last[hour]
    RolledHour.objects.bulk_update(ledger.values(), ["version", "generation", "sealed_through"])


def _last_exchange(start: datetime, end: datetime, after: int) -> int | None:
    rows = Exchange.objects.filter(started_at__gte=start, started_at__lt=end, pk__gt=after)
    last: int | None = rows.aggregate(last=Max("pk"))["last"]
    return last


@contextlib.contextmanager
def exclusively() -> Iterator[None]:
    """A transaction in which nobody else replaces or seals a period. On SQLite every writing transaction is one."""
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                wait_ms = round(settings.PILOTAGE.database_wait_seconds * 1000)
                cursor.execute("SELECT set_config('lock_timeout', %s, true)", [str(wait_ms)])
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        yield


@contextlib.contextmanager
def _snapshot() -> Iterator[None]:
    """Everything read inside is of one moment, and nobody waits for it."""
    if connection.vendor == "postgresql":
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute("SET LOCAL jit = off")  # compiling sums of many columns takes longer than making them
            cursor.execute("SET LOCAL enable_sort = off")  # groups are fewer than it thinks: sorting takes longer
            cursor.execute(f"SET LOCAL work_mem = '{settings.PILOTAGE.rollup_memory_mb}MB'")
            yield
        return
    with connection.cursor() as cursor:
        cursor.execute("BEGIN DEFERRED")  # Django would begin a writing one
        try:
            yield
        finally:
            cursor.execute("ROLLBACK")


def _insert(model: type[Summed] | type[DecisionBucket], rows: Sequence[Summed] | Sequence[DecisionBucket]) -> None:
    columns = [column.attname for column in model._meta.concrete_fields if not column.primary_key]
    ingest_tables.write(model, [tuple(getattr(row, column) for column in columns) for row in rows], columns)


def _are_the_same(some: list[SlotRollup], others: "QuerySet[SlotRollup]") -> bool:
    columns = [column.attname for column in SlotRollup._meta.concrete_fields if not column.primary_key]
    kept = {tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in others.values_list(*columns)}
    return kept == {tuple(getattr(row, column) for column in columns) for row in some}


def _reopen(day: date, zone: ZoneInfo) -> None:
    """What is gone of the day stays gone, but rows may be there again."""
    if not can_be_made(day, zone):
        return
    again = {"stale": True, "detail_gone": False, "attempts_gone": False, "exchanges_gone": False}
    row, made = RolledDay.objects.get_or_create(
        zone=zone.key, day=day, defaults={"version": 1, "sealed_through": _sealed_elsewhere(day, zone)}
    )
    if not made:
        RolledDay.objects.filter(pk=row.pk).update(version=F("version") + 1, **again)


def _hours_with_rows(span: Span) -> Iterator[datetime]:
    """Those that have raw rows, or had some when they were last summed."""
    rolled = set(
        RolledHour.objects.filter(hour__gte=hour_of(span.start), hour__lt=span.end).values_list("hour", flat=True)
    )
    for hour in span.hours():
        if hour in rolled or Exchange.objects.filter(started_at__gte=hour, started_at__lt=hour + HOUR).exists():
            yield hour


def _days_without_a_rollup(zone: ZoneInfo) -> Iterator[date]:
    """Days that have slots and were never summed in this zone: after the installation's zone was changed."""
    reach = SlotRollup.objects.aggregate(first=Min("slot"), last=Max("slot"))
    if reach["first"] is None:
        return
    first, last = day_of(reach["first"], zone), day_of(reach["last"], zone)
    known = set(RolledDay.objects.filter(zone=zone.key, day__gte=first, day__lte=last).values_list("day", flat=True))
    for day in days_between(first, last):
        if day not in known:
            span = day_span(day, zone)
            if SlotRollup.objects.filter(slot__gte=span.start, slot__lt=span.end).exists():
                yield day


def can_be_made(day: date, zone: ZoneInfo) -> bool:
    """Not when the day is new in this zone and slots of it went with a day of another."""
    if RolledDay.objects.filter(zone=zone.key, day=day).exists():
        return True
    return not any(row.slots_gone for row in _overlapping(day, zone))


def _sealed_elsewhere(day: date, zone: ZoneInfo) -> int:
    """Raw rows up to this one may be gone with a day of another zone; the buckets stay with that day."""
    return max((row.sealed_through for row in _overlapping(day, zone)), default=0)


def _overlapping(day: date, zone: ZoneInfo) -> Iterator[RolledDay]:
    """Days of other zones that share a moment with this one."""
    span = day_span(day, zone)
    near = RolledDay.objects.filter(
        ~Q(zone=zone.key), day__gte=day - timedelta(days=2), day__lte=day + timedelta(days=2)
    )
    for row in near:
        other = day_span(row.day, ZoneInfo(row.zone))
        if other.start < span.end and span.start < other.end:
            yield row
