"""When scheduled reports are due, in any zone, around every change of its clock."""

import itertools
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from typing import Any, get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as some

from reports.core.schedule import PERIODS, Every, Period, Schedule, days_of

ZONES = [
    "UTC",
    "Europe/Oslo",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Havana",
    "Pacific/Apia",
    "Africa/Casablanca",
    "Pacific/Chatham",
]
moments = some.datetimes(datetime(2010, 1, 1), datetime(2035, 1, 1), timezones=some.just(UTC))
schedules = some.builds(
    Schedule,
    every=some.sampled_from(get_args(Every)),
    zone=some.sampled_from(ZONES).map(ZoneInfo),
    minute=some.integers(0, 59),
    hour=some.integers(0, 23),
    weekday=some.integers(0, 6),
    day=some.integers(1, 31),
)
LONGEST = {
    "hour": timedelta(minutes=91),
    "day": timedelta(hours=50),
    "week": timedelta(days=9),
    "month": timedelta(days=33),
}


@given(schedules, moments)
def test_the_next_time_is_later_and_not_too_late_and_nothing_lies_between(schedule: Schedule, moment: datetime) -> None:
    after = schedule.next_after(moment)
    assert moment < after <= moment + LONGEST[schedule.every]
    middle = moment + (after - moment) / 2
    assert {schedule.next_after(at) for at in (middle, after - timedelta(microseconds=1))} == {after}


@given(schedules, moments)
def test_the_clock_shows_the_time_unless_it_skips_it(schedule: Schedule, moment: datetime) -> None:
    after = schedule.next_after(moment)
    shown = after.astimezone(schedule.zone)
    if schedule.every == "hour":
        assert (shown.minute, shown.second) == (schedule.minute, 0)
        return
    wanted = shown.replace(hour=schedule.hour, minute=schedule.minute, fold=0)
    skipped = shown.utcoffset() != (after - timedelta(hours=25)).astimezone(schedule.zone).utcoffset()
    assert shown == wanted or skipped
    assert shown.fold == 0 or skipped
    if schedule.every == "week" and not skipped:
        assert shown.weekday() == schedule.weekday
    if schedule.every == "month" and not skipped:
        assert shown.day == min(schedule.day, monthrange(shown.year, shown.month)[1])


@given(schedules, moments)
def test_times_one_after_the_other_are_those_of_the_calendar(schedule: Schedule, moment: datetime) -> None:
    """A day has one, whatever the clock does; a month has one, whatever its length."""
    first = schedule.next_after(moment)
    times = [at.astimezone(schedule.zone) for at in schedule.between(moment, first + timedelta(days=70))]
    if schedule.every == "month":
        months = [(at.year * 12 + at.month) for at in times]
        assert months == list(range(months[0], months[0] + len(months)))
    if schedule.every in ("day", "week") and str(schedule.zone) != "Pacific/Apia":  # it skipped a whole day once
        step = 1 if schedule.every == "day" else 7
        days = [(later.date() - earlier.date()).days for earlier, later in itertools.pairwise(times)]
        assert set(days) <= {step}


def daily(zone: str, hour: int, minute: int) -> Schedule:
    return Schedule(every="day", zone=ZoneInfo(zone), hour=hour, minute=minute)


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        # Oslo skips 02:00 to 03:00 on 29 March 2026, and shows it twice on 25 October.
        (daily("Europe/Oslo", 2, 30), "2026-03-28T12:00Z", ["2026-03-29T01:30Z", "2026-03-30T00:30Z"]),
        (daily("Europe/Oslo", 2, 30), "2026-10-24T12:00Z", ["2026-10-25T00:30Z", "2026-10-26T01:30Z"]),
        # Havana skips midnight.
        (daily("America/Havana", 0, 0), "2026-03-07T12:00Z", ["2026-03-08T05:00Z", "2026-03-09T04:00Z"]),
        # Apia had no 30 December 2011.
        (daily("Pacific/Apia", 12, 0), "2011-12-29T00:00Z", ["2011-12-29T22:00Z", "2011-12-30T22:00Z", "2011-12-31T22:00Z"]),
        # Toronto skipped the half hours around a midnight: the time of a day came on the next.
        (daily("America/Toronto", 23, 45), "1919-03-31T04:35Z", ["1919-03-31T04:45Z", "1919-04-01T03:45Z"]),
        # An hour that the clock shows twice has its minute twice; Lord Howe moves by half an hour.
        (
            Schedule(every="hour", zone=ZoneInfo("Europe/Oslo"), minute=30),
            "2026-10-24T23:45Z",
            ["2026-10-25T00:30Z", "2026-10-25T01:30Z", "2026-10-25T02:30Z"],
        ),
        (
            Schedule(every="hour", zone=ZoneInfo("Australia/Lord_Howe"), minute=15),
            "2026-04-04T13:50Z",
            ["2026-04-04T14:15Z", "2026-04-04T15:45Z", "2026-04-04T16:45Z"],
        ),
        (
            Schedule(every="month", zone=UTC, day=31, hour=6),
            "2028-01-31T06:00Z",
            ["2028-02-29T06:00Z", "2028-03-31T06:00Z", "2028-04-30T06:00Z", "2028-05-31T06:00Z"],
        ),
        (
            Schedule(every="week", zone=UTC, weekday=0, hour=6),
            "2026-11-30T06:00Z",
            ["2026-12-07T06:00Z", "2026-12-14T06:00Z"],
        ),
    ],
)  # fmt: skip
def test_times_around_changes_of_the_clock_and_ends_of_months(
    schedule: Schedule, after: str, expected: list[str]
) -> None:
    at = datetime.fromisoformat(after)
    times = []
    for _ in expected:
        at = schedule.next_after(at)
        times.append(at)
    assert times == [datetime.fromisoformat(text) for text in expected]


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (
            "2026-03-01T00:30Z",  # a Sunday, which in Oslo has begun half an hour earlier
            {
                "today": ("2026-03-01", "2026-03-01"),
                "yesterday": ("2026-02-28", "2026-02-28"),
                "7d": ("2026-02-22", "2026-02-28"),
                "30d": ("2026-01-30", "2026-02-28"),
                "week": ("2026-02-23", "2026-03-01"),
                "last_week": ("2026-02-16", "2026-02-22"),
                "month": ("2026-03-01", "2026-03-01"),
                "last_month": ("2026-02-01", "2026-02-28"),
            },
        ),
        ("2025-12-31T23:30Z", {"yesterday": ("2025-12-31", "2025-12-31"), "last_month": ("2025-12-01", "2025-12-31")}),
    ],
)
def test_a_period_is_of_days_of_the_zone(moment: str, expected: dict[Period, tuple[str, str]]) -> None:
    at = datetime.fromisoformat(moment)
    found = {period: days_of(period, at, ZoneInfo("Europe/Oslo")) for period in expected}
    assert found == {period: tuple(map(date.fromisoformat, days)) for period, days in expected.items()}


@given(some.sampled_from(list(PERIODS)), moments, some.sampled_from(ZONES))
def test_no_period_ends_before_it_begins_or_after_its_moment(period: Period, moment: datetime, zone: str) -> None:
    first, last = days_of(period, moment, ZoneInfo(zone))
    assert first <= last <= moment.astimezone(ZoneInfo(zone)).date() + timedelta(days=1)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"every": "hour", "minute": 5}, "every hour at :05"),
        ({"every": "day", "hour": 6, "minute": 30}, "every day at 06:30"),
        ({"every": "week", "weekday": 6, "hour": 6}, "every Sunday at 06:00"),
        ({"every": "month", "day": 1, "hour": 6}, "every month on day 1 at 06:00"),
        ({"every": "month", "day": 31, "hour": 6}, "every month on day 31 or the last at 06:00"),
    ],
)
def test_a_schedule_is_said_in_words(how: dict[str, Any], words: str) -> None:
    assert Schedule(zone=UTC, **how).words() == words
