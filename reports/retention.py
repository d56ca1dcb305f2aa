"""What may go, why the rest is kept, and the deleting: day by day, in small batches, with room for others in between.

Rows of a day go only once their sums are final. Nothing here knows what a sum is: `reports.rollups` says whether a day
is closed, and seals it.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import connection
from django.db.models import Model, Q, QuerySet
from django.utils import timezone

from reports.core.rollup import day_of, day_span
from reports.ingest_files import DAMAGED
from reports.models import Attempt, Candidate, Exchange, Exclusion, Transition
from reports.rollup_models import DailyRollup, DecisionBucket, LegalHold, RolledDay, SlotRollup
from reports.rollups import NotSummed, can_be_made, exclusively, report_zone, seal_day, seal_slots, why_open

Kind = Literal["detail", "attempts", "exchanges", "slots", "days", "damaged"]
KINDS: tuple[Kind, ...] = get_args(Kind)

RAW: dict[Kind, tuple[type[Model], ...]] = {
    "detail": (Candidate, Exclusion),
    "attempts": (Attempt, Transition),
    "exchanges": (Candidate, Exclusion, Attempt, Transition, Exchange),
}
"""Tables that a kind of raw rows is deleted from, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Days that each kind is kept beside the current one. 0: for ever."""

    detail: int = 0
    attempts: int = 0
    exchanges: int = 0
    slots: int = 0
    days: int = 0
    damaged: int = 0

    @classmethod
    def of_settings(cls) -> "Keep":
        chosen = settings.PILOTAGE
        return cls(
            detail=chosen.keep_detail_days,
            attempts=chosen.keep_attempt_days,
            exchanges=chosen.keep_exchange_days,
            slots=chosen.keep_slot_days,
            days=chosen.keep_day_days,
            damaged=chosen.keep_damaged_days,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would go of one kind."""

    kind: Kind
    keep_days: int
    rows: int = 0
    """Of `damaged`: bytes."""
    oldest: date | None = None
    newest: date | None = None
    """Days of the first and last row that would go. `None`: none would."""
    held: tuple[tuple[str, int], ...] = ()
    """By legal hold, or "marked" for a mark on the exchange itself: exchanges of those days that stay."""
    waiting: str = ""
    """Why older rows than these are kept as well: what has not been summed. Empty: nothing waits."""


@dataclass(slots=True)
class Deleted:
    rows: dict[Kind, int] = field(default_factory=dict)
    """Kinds of which anything went. Of `damaged`: bytes."""
    waiting: dict[Kind, str] = field(default_factory=dict)


def plan(*, now: datetime | None = None, zone: ZoneInfo | None = None, keep: Keep | None = None) -> tuple[Plan, ...]:
    """Deletes nothing. One plan for each kind, also where nothing would go."""
    now, zone, keep = now or timezone.now(), zone or report_zone(), keep or Keep.of_settings()
    return (
        *(_plan_raw(kind, now, zone, keep) for kind in RAW),
        _plan_slots(now, zone, keep),
        _plan_days(now, zone, keep),
        _plan_damaged(now, keep),
    )


def run(
    *,
    now: datetime | None = None,
    zone: ZoneInfo | None = None,
    keep: Keep | None = None,
    batch: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Deleted:
    """Deletes what `plan` names. May be killed at any point and run again, and several may run at once."""
    now, zone, keep = now or timezone.now(), zone or report_zone(), keep or Keep.of_settings()
    pace = _Pace(batch or settings.PILOTAGE.retention_batch, settings.PILOTAGE.retention_pause_seconds, sleep)
    deleted = Deleted()
    rows: dict[Kind, int] = {}
    for kind in RAW:
        days, waiting = _raw_days(kind, now, zone, keep)
        rows[kind] = 0
        for day in days:
            try:
                rows[kind] += _delete_raw(kind, day, zone, pace)
            except NotSummed as why:  # since it was looked at
                waiting = str(why)
                break
        if waiting:
            deleted.waiting[kind] = waiting
    rows["slots"] = sum(_delete_slots(day, zone, pace) for day in list(_slot_days(now, zone, keep)))
    rows["days"] = sum(_delete_days(key, pace) for key in list(_summed_days(now, zone, keep)))
    rows["damaged"] = _delete_damaged(now, keep)
    deleted.rows = {kind: count for kind, count in rows.items() if count}
    return deleted


@dataclass(frozen=True, slots=True)
class _Pace:
    batch: int
    pause_s: float
    sleep: Callable[[float], None]

    def let_others(self) -> None:
        self.sleep(self.pause_s)


# Raw rows


def _raw_days(kind: Kind, now: datetime, zone: ZoneInfo, keep: Keep) -> tuple[list[date], str]:
    """Days of which the kind may go, and what the days behind them wait for."""
    cutoff = _cutoff(kind, now, zone, keep)
    if cutoff is None:
        return [], ""
    known = RolledDay.objects.filter(zone=zone.key, day__lt=cutoff, **{f"{kind}_gone": False})
    days: list[date] = []
    gap = _first_gap(cutoff, zone)
    for day in known.order_by("day").values_list("day", flat=True):
        if gap is not None and day >= gap:
            return days, f"{gap} is not summed"
        if why := why_open(day, zone=zone):
            return days, why
        days.append(day)
    return days, "" if gap is None else f"{gap} is not summed"


def _first_gap(cutoff: date, zone: ZoneInfo) -> date | None:
    """The first day before `cutoff` that has exchanges and was never summed, though it can be."""
    known = set(RolledDay.objects.filter(zone=zone.key, day__lt=cutoff).values_list("day", flat=True))
    end = day_span(cutoff, zone).start
    after = datetime.min.replace(tzinfo=UTC) + timedelta(days=2)
    while True:
        rows = Exchange.objects.filter(started_at__gte=after, started_at__lt=end).order_by("started_at")
        first = rows.values_list("started_at", flat=True).first()
        if first is None:
            return None
        day = day_of(first, zone)
        if day not in known and can_be_made(day, zone):
            return day
        after = day_span(day, zone).end


def _delete_raw(kind: Kind, day: date, zone: ZoneInfo, pace: _Pace) -> int:
    """Raises `NotSummed`."""
    sealed_through = seal_day(day, zone=zone)
    span = day_span(day, zone)
    rows = 0
    last: tuple[datetime, int] = (span.start, 0)
    while True:
        with exclusively():
            # In the order of the index: each batch begins where the one before ended.
            ours = _of_day(day, zone).filter(pk__lte=sealed_through, started_at__gte=last[0]).exclude(held())
            ours = ours.exclude(started_at=last[0], pk__lte=last[1]).order_by("started_at", "pk")
            found = list(ours.values_list("started_at", "pk")[: pace.batch])
            ids = [pk for _, pk in found]
            for model in RAW[kind]:
                rows += _delete_of(model, ids)
        if len(found) < pace.batch:
            break
        last = found[-1]
        pace.let_others()
    if not _of_day(day, zone).filter(held() | Q(pk__gt=sealed_through)).exists():
        gone = {f"{each}_gone": True for each in (RAW if kind == "exchanges" else (kind,))}
        RolledDay.objects.filter(zone=zone.key, day=day, stale=False).update(**gone)
    pace.let_others()
    return rows


def _delete_of(model: type[Model], ids: list[int]) -> int:
    """Without loading what goes, which Django does for models that others refer to."""
    column = "pk__in" if model is Exchange else "exchange_id__in"
    rows = model._default_manager.filter(**{column: ids})
    return int(rows._raw_delete(connection.alias)) if ids else 0


def _of_day(day: date, zone: ZoneInfo) -> "QuerySet[Exchange]":
    span = day_span(day, zone)
    return Exchange.objects.filter(started_at__gte=span.start, started_at__lt=span.end)


def _plan_raw(kind: Kind, now: datetime, zone: ZoneInfo, keep: Keep) -> Plan:
    days, waiting = _raw_days(kind, now, zone, keep)
    rows, seen = 0, []
    kept: dict[str, int] = {}
    for day in days:
        exchanges = _of_day(day, zone)
        count = sum(_count_of(model, exchanges.exclude(held())) for model in RAW[kind])
        rows += count
        if count:
            seen.append(day)
        for name, condition in _holds():
            if number := exchanges.filter(condition).count():
                kept[name] = kept.get(name, 0) + number
    return Plan(
        kind=kind,
        keep_days=getattr(keep, kind),
        rows=rows,
        oldest=min(seen, default=None),
        newest=max(seen, default=None),
        held=tuple(kept.items()),
        waiting=waiting,
    )


def _count_of(model: type[Model], exchanges: "QuerySet[Exchange]") -> int:
    if model is Exchange:
        return exchanges.count()
    return model._default_manager.filter(exchange__in=exchanges).count()


# Legal holds


def held() -> Q:
    """Exchanges that stay, whatever their age."""
    condition = Q(pk__in=[])
    for _, each in _holds():
        condition |= each
    return condition


def why_held(exchange: Exchange) -> list[str]:
    """The holds that keep it, in words."""
    return [name for name, condition in _holds() if Exchange.objects.filter(condition, pk=exchange.pk).exists()]


def _holds() -> Iterator[tuple[str, Q]]:
    yield "marked", Q(legal_hold=True)
    for hold in LegalHold.objects.filter(released_at=None):
        condition = Q()
        for name in ("caller", "project", "group", "request_id"):
            if value := getattr(hold, name):
                condition &= Q(**{name: value})
        if hold.started_from is not None:
            condition &= Q(started_at__gte=hold.started_from)
        if hold.started_before is not None:
            condition &= Q(started_at__lt=hold.started_before)
        yield f"hold {hold.pk}, {hold}", condition


# Sums


def _slot_days(now: datetime, zone: ZoneInfo, keep: Keep) -> Iterator[date]:
    """Days whose slots may go: their raw rows have gone, and their sums by day are final."""
    cutoff = _cutoff("slots", now, zone, keep)
    if cutoff is None:
        return
    end = day_span(cutoff, zone).start
    after = datetime.min.replace(tzinfo=UTC) + timedelta(days=2)
    while True:
        rows = SlotRollup.objects.filter(slot__gte=after, slot__lt=end).order_by("slot")
        first = rows.values_list("slot", flat=True).first()
        if first is None:
            return
        day = day_of(first, zone)
        after = day_span(day, zone).end
        if not why_open(day, zone=zone) and not _of_day(day, zone).exists():
            yield day


def _delete_slots(day: date, zone: ZoneInfo, pace: _Pace) -> int:
    try:
        last = seal_slots(day, zone=zone)
    except NotSummed:  # since it was looked at; the next run finds it again
        return 0
    span = day_span(day, zone)
    rows = 0
    while True:
        with exclusively():
            slots = SlotRollup.objects.filter(slot__gte=span.start, slot__lt=span.end, pk__lte=last)
            ids = list(slots.order_by("slot").values_list("pk", flat=True)[: pace.batch])
            rows += SlotRollup.objects.filter(pk__in=ids).delete()[0]
        pace.let_others()
        if len(ids) < pace.batch:
            return rows


def _plan_slots(now: datetime, zone: ZoneInfo, keep: Keep) -> Plan:
    days = list(_slot_days(now, zone, keep))
    spans = [day_span(day, zone) for day in days]
    rows = sum(SlotRollup.objects.filter(slot__gte=span.start, slot__lt=span.end).count() for span in spans)
    return Plan(
        kind="slots", keep_days=keep.slots, rows=rows, oldest=min(days, default=None), newest=max(days, default=None)
    )


def _summed_days(now: datetime, zone: ZoneInfo, keep: Keep) -> Iterator[tuple[str, date]]:
    """Zone and day of daily sums and buckets that may go: those of this zone only after their slots."""
    cutoff = _cutoff("days", now, zone, keep)
    if cutoff is None:
        return
    for zone_name, day in (
        DailyRollup.objects.filter(day__lt=cutoff)
        .values_list("zone", "day")
        .union(DecisionBucket.objects.filter(day__lt=cutoff).values_list("zone", "day"))
        .order_by("day", "zone")
    ):
        span = day_span(day, zone)
        if zone_name != zone.key or not SlotRollup.objects.filter(slot__gte=span.start, slot__lt=span.end).exists():
            yield zone_name, day


def _delete_days(key: tuple[str, date], pace: _Pace) -> int:
    zone_name, day = key
    with exclusively():
        rows = DailyRollup.objects.filter(zone=zone_name, day=day).delete()[0]
        rows += DecisionBucket.objects.filter(zone=zone_name, day=day).delete()[0]
    pace.let_others()
    return rows


def _plan_days(now: datetime, zone: ZoneInfo, keep: Keep) -> Plan:
    keys = list(_summed_days(now, zone, keep))
    rows = sum(
        model.objects.filter(zone=zone_name, day=day).count()
        for zone_name, day in keys
        for model in (DailyRollup, DecisionBucket)
    )
    days = [day for _, day in keys]
    return Plan(
        kind="days", keep_days=keep.days, rows=rows, oldest=min(days, default=None), newest=max(days, default=None)
    )


# Damaged lines


def _damaged(now: datetime, keep: Keep) -> tuple[Path, int, date] | None:
    """The file, its bytes and the day of its last line, when that is old enough."""
    path: Path = settings.PILOTAGE.data_dir / "spool" / DAMAGED
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    written = datetime.fromtimestamp(stat.st_mtime, UTC)
    if not keep.damaged or written >= now - timedelta(days=keep.damaged):
        return None
    return path, stat.st_size, written.date()


def _delete_damaged(now: datetime, keep: Keep) -> int:
    found = _damaged(now, keep)
    if found is None:
        return 0
    found[0].unlink(missing_ok=True)
    return found[1]


def _plan_damaged(now: datetime, keep: Keep) -> Plan:
    found = _damaged(now, keep)
    if found is None:
        return Plan(kind="damaged", keep_days=keep.damaged)
    return Plan(kind="damaged", keep_days=keep.damaged, rows=found[1], oldest=found[2], newest=found[2])


def _cutoff(kind: Kind, now: datetime, zone: ZoneInfo, keep: Keep) -> date | None:
    """The first day that is kept. `None`: all are."""
    days: int = getattr(keep, kind)
    return day_of(now, zone) - timedelta(days=days) if days else None
