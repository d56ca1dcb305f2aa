"""When a scheduled report is due, and which days it is then about. Pure: moments come in and go out in UTC."""

from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Literal, get_args

from reports.core.rollup import day_of

Every = Literal["hour", "day", "week", "month"]
Period = Literal["today", "yesterday", "7d", "30d", "week", "last_week", "month", "last_month"]
PERIODS: dict[Period, str] = {
    "today": "Today so far",
    "yesterday": "Yesterday",
    "7d": "Last 7 whole days",
    "30d": "Last 30 whole days",
    "week": "This week so far",
    "last_week": "Last week",
    "month": "This month so far",
    "last_month": "Last month",
}
"""Weeks begin on Monday."""
assert tuple(PERIODS) == get_args(Period)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Times of the zone's clock. A time that the clock skips comes as much later as it skips; one that it shows twice
    counts the first time. What hours show counts as often as they show it."""

    every: Every
    zone: tzinfo
    minute: int = 0
    hour: int = 0
    """Of days, weeks and months."""
    weekday: int = 0
    """Of weeks: 0 is Monday."""
    day: int = 1
    """Of months: 1 to 31; in a shorter month its last day."""

    def next_after(self, moment: datetime) -> datetime:
        """The first time it is due later than `moment`."""
        if self.every == "hour":
            return self._next_hour(moment)
        # Two days back: with a day that a zone skipped or a time that the clock skips, it may come out later.
        first = moment.astimezone(self.zone).date() - timedelta(days=2)
        return next(at for day in self._days(first) if (at := self._at(day)) > moment)

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """All due times later than `start` and until `end`, both in order of time."""
        at = self.next_after(start)
        while at <= end:
            yield at
            at = self.next_after(at)

    def words(self) -> str:
        at = f"{self.hour:02}:{self.minute:02}"
        match self.every:
            case "hour":
                return f"every hour at :{self.minute:02}"
            case "day":
                return f"every day at {at}"
            case "week":
                return f"every {WEEKDAYS[self.weekday]} at {at}"
            case "month":
                which = f"day {self.day}" if self.day < 29 else f"day {self.day} or the last"
                return f"every month on {which} at {at}"

    def _next_hour(self, moment: datetime) -> datetime:
        at = moment.astimezone(UTC).replace(second=0, microsecond=0)
        while True:
            away = (self.minute - at.astimezone(self.zone).minute) % 60
            at += timedelta(minutes=away)
            if at > moment and at.astimezone(self.zone).minute == self.minute:
                return at
            at += timedelta(minutes=1)  # it was now, or the clock was moved by half an hour on the way

    def _days(self, first: date) -> Iterator[date]:
        """Days on which it is due, from `first` on or from before it."""
        if self.every == "month":
            year, month = first.year, first.month
            while True:
                yield date(year, month, min(self.day, monthrange(year, month)[1]))
                year, month = (year + 1, 1) if month == 12 else (year, month + 1)
        step = 1 if self.every == "day" else 7
        day = first if self.every == "day" else first - timedelta(days=(first.weekday() - self.weekday) % 7)
        while True:
            yield day
            day += timedelta(days=step)

    def _at(self, day: date) -> datetime:
        return datetime.combine(day, time(self.hour, self.minute), tzinfo=self.zone).astimezone(UTC)


def days_of(period: Period, moment: datetime, zone: tzinfo) -> tuple[date, date]:
    """First and last day, both included, as seen at `moment`."""
    today = day_of(moment.astimezone(UTC), zone)
    yesterday = today - timedelta(days=1)
    monday = today - timedelta(days=today.weekday())
    match period:
        case "today":
            return today, today
        case "yesterday":
            return yesterday, yesterday
        case "7d":
            return today - timedelta(days=7), yesterday
        case "30d":
            return today - timedelta(days=30), yesterday
        case "week":
            return monday, today
        case "last_week":
            return monday - timedelta(days=7), monday - timedelta(days=1)
        case "month":
            return today.replace(day=1), today
        case "last_month":
            last = today.replace(day=1) - timedelta(days=1)
            return last.replace(day=1), last
