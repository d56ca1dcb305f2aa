"""Single exchanges: lists by an index, a bounded stretch of rows at a time, however rare what is looked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db.models import Q, QuerySet

from reports.filters import ODDITIES, Filters
from reports.models import Exchange
from reports.tables import Column, Row

COLUMNS: Final[Sequence[Column]] = (
    Column(name="exchange", title="Exchange", kind="exchange"),
    Column(name="started_at", title="Started", kind="time"),
    Column(name="caller", title="Caller"),
    Column(name="group", title="Model group"),
    Column(name="target", title="Target"),
    Column(name="outcome", title="Outcome"),
    Column(name="duration_ms", title="Duration", kind="ms"),
    Column(name="cost_usd", title="Cost", kind="usd"),
    Column(name="input_tokens", title="Input", kind="count"),
    Column(name="output_tokens", title="Output", kind="count"),
    Column(name="attempts", title="Attempts", kind="count"),
    Column(name="status", title="Status", kind="count"),
)
_READ: Final = (
    "request_id",
    "started_at",
    "caller",
    "group",
    "target",
    "outcome",
    "duration_ms",
    "cost_microdollars",
    "output_tokens",
    "attempt_count",
    "status",
    "input_tokens",
    "cache_read_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
)
_INDEXED: Final = ("caller", "project", "group")
"""Each has an index with the time; the first that is filtered by is used."""
CHUNK: Final = 1_000
"""Exchanges of an export that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """What is older than this is still to come."""

    at: datetime
    pk: int
    """Of several that began in the same moment those with a lower number are to come."""

    def __str__(self) -> str:
        return f"{int((self.at - _EPOCH) / timedelta(microseconds=1))}-{self.pk}"

    @classmethod
    def read(cls, text: str) -> "Cursor":
        """Raises `ValueError`."""
        microseconds, _, pk = text.partition("-")
        if not (microseconds.isascii() and microseconds.isdecimal() and pk.isascii() and pk.isdecimal()):
            raise ValueError(text)
        if len(microseconds) > 18 or len(pk) > 18:
            raise ValueError(text)
        return cls(at=_EPOCH + timedelta(microseconds=int(microseconds)), pk=int(pk))


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which exchanges of the filters' span."""

    filters: Filters
    outcome: str = ""
    odd: str = ""
    """A key of `ODDITIES`."""

    @property
    def condition(self) -> Q:
        condition = Q(**self.filters.names)
        if self.outcome:
            condition &= Q(outcome=self.outcome)
        return condition & ODDITIES[self.odd][1] if self.odd else condition

    def base(self) -> "QuerySet[Exchange]":
        """What one index finds, newest first."""
        span = self.filters.span
        rows = Exchange.objects.filter(started_at__gte=span.start, started_at__lt=span.end)
        names = self.filters.names
        indexed = next((name for name in _INDEXED if name in names), None)
        if indexed is not None:
            rows = rows.filter(**{indexed: names[indexed]})
        return rows.order_by("-started_at", "-pk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    rows: Sequence[Row]
    following: Cursor | None
    """`None`: there are no more."""
    searched_to: datetime | None = None
    """The page is not full, and older ones than this were not looked at yet."""


def page(wanted: Wanted, after: Cursor | None, *, size: int | None = None) -> Page:
    """Two statements. Looks through PILOTAGE_REPORT_SEARCH_ROWS exchanges at most."""
    size = size or settings.PILOTAGE.report_page_rows
    base = _after(wanted.base(), after)
    limit = base.values_list("started_at", "pk")[settings.PILOTAGE.report_search_rows :][:1]
    boundary = next(iter(limit), None)
    rows = base.filter(wanted.condition)
    if boundary is not None:
        rows = rows.filter(started_at__gte=boundary[0])
    found = list(rows.values_list("pk", *_READ)[: size + 1])
    if len(found) > size:
        *_, last = found[:size]
        return Page(rows=[_row(each[1:]) for each in found[:size]], following=Cursor(at=last[2], pk=last[0]))
    if boundary is None:
        return Page(rows=[_row(each[1:]) for each in found], following=None)
    # Those of the boundary's own moment were looked at with the rest.
    following = Cursor(at=boundary[0], pk=0)
    return Page(rows=[_row(each[1:]) for each in found], following=following, searched_to=boundary[0])


def everything(wanted: Wanted) -> Iterator[Row | None]:
    """All of them, PILOTAGE_REPORT_EXPORT_ROWS at most: then `None` comes last, and there are more."""
    left = settings.PILOTAGE.report_export_rows
    after: Cursor | None = None
    while left > 0:
        part = page(wanted, after, size=min(CHUNK, left))
        yield from part.rows
        left -= len(part.rows)
        after = part.following
        if after is None:
            return
    yield None


def oddest(wanted: Wanted, order: str, condition: Q, *, since: datetime | None, most: int) -> list[Row]:
    """By `order`, of those that began at `since` or later."""
    rows = wanted.base().filter(wanted.condition & condition)
    if since is not None:
        rows = rows.filter(started_at__gte=since)
    return [_row(each) for each in rows.order_by(order, "-started_at", "-pk").values_list(*_READ)[:most]]


def search_limit(wanted: Wanted) -> datetime | None:
    """When the last exchange began that a search may look at. `None`: it may look at all."""
    limit = wanted.base().values_list("started_at", flat=True)[settings.PILOTAGE.report_search_rows :][:1]
    return next(iter(limit), None)


def _after(rows: "QuerySet[Exchange]", after: Cursor | None) -> "QuerySet[Exchange]":
    if after is None:
        return rows
    return rows.filter(started_at__lte=after.at).filter(Q(started_at__lt=after.at) | Q(pk__lt=after.pk))


def _row(read: Sequence[Any]) -> Row:
    *names, duration, microdollars, output, attempts, status, fresh, cached, short, long = read
    tokens = None if fresh is None else fresh + (cached or 0) + (short or 0) + (long or 0)
    return Row(values=[*names, duration, microdollars, tokens, output, attempts, status])
