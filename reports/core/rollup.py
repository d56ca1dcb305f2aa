"""What is summed, and which day and which quarter of an hour a moment belongs to.

An exchange belongs to the moment of its start, whenever it ends. Rollups are kept by quarters of an hour of UTC,
because every offset from UTC in use is a whole number of them: the days of any zone are sums of quarters.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

DIMENSIONS = ("group", "caller", "project", "environment", "provider", "model", "strategy")
"""Names that sums are kept by."""
OUTCOMES = (
    "success",
    "refused",
    "upstream_failed",
    "upstream_truncated",
    "client_cancelled",
    "internal_error",
    "aborted",
)
USAGE_QUALITIES = ("reported", "estimated", "inconsistent", "none")
AFFINITIES = (
    "affinity_hit",
    "affinity_miss",
    "affinity_expired",
    "affinity_evicted",
    "affinity_ineligible",
    "affinity_disabled",
)
TIMES = ("duration", "first_content", "queued")
"""Columns with a histogram; the exchange has them in milliseconds."""

HOUR = timedelta(hours=1)
SLOT = timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Moments from `start` to before `end`, both in UTC."""

    start: datetime
    end: datetime

    def __contains__(self, moment: datetime) -> bool:
        return self.start <= moment < self.end

    def hours(self) -> Iterator[datetime]:
        """The starts of all UTC hours that share a moment with it."""
        hour = hour_of(self.start)
        while hour < self.end:
            yield hour
            hour += HOUR


def day_span(day: date, zone: tzinfo) -> Span:
    """From the first moment of the local day to the first of the next: 23, 24 or 25 hours, or 24.5, or none."""
    return Span(start=_first_moment(day, zone), end=_first_moment(day + timedelta(days=1), zone))


def day_of(moment: datetime, zone: tzinfo) -> date:
    """The day whose span holds the moment."""
    day = moment.astimezone(zone).date()
    span = day_span(day, zone)
    if moment < span.start:  # the clock was set back over midnight, and shows the day before once more
        return day - timedelta(days=1)
    return day if moment < span.end else day + timedelta(days=1)


def days_of_hour(hour: datetime, zone: tzinfo) -> tuple[date, ...]:
    """The one or two local days that share a moment with the UTC hour that begins at `hour`."""
    first, last = day_of(hour, zone), day_of(hour + HOUR - SLOT, zone)
    return (first,) if first == last else (first, last)


def hour_of(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def slot_of(moment: datetime) -> datetime:
    moment = moment.astimezone(UTC)
    return moment.replace(minute=moment.minute // 15 * 15, second=0, microsecond=0)


def days_between(first: date, last: date) -> Iterator[date]:
    """Both included."""
    while first <= last:
        yield first
        first += timedelta(days=1)


def _first_moment(day: date, zone: tzinfo) -> datetime:
    """Where midnight is skipped, the moment at which the clock jumps over it; where it comes twice, the first."""
    return datetime(day.year, day.month, day.day, tzinfo=zone, fold=0).astimezone(UTC)
