"""Days of any zone in quarters of an hour of UTC, and times that merge."""

import random
import zoneinfo
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from reports.core import latency
from reports.core.latency import BadHistogram, Histogram, bucket_of, merged, middle_of
from reports.core.rollup import Span, day_of, day_span, days_of_hour, slot_of


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "day", "start", "end"),
    [
        ("America/New_York", "2026-03-08", "2026-03-08T05:00", "2026-03-09T04:00"),
        ("America/New_York", "2026-11-01", "2026-11-01T04:00", "2026-11-02T05:00"),
        ("Asia/Kolkata", "2026-03-08", "2026-03-07T18:30", "2026-03-08T18:30"),
        ("Asia/Kathmandu", "2026-03-08", "2026-03-07T18:15", "2026-03-08T18:15"),
        ("Australia/Lord_Howe", "2026-04-05", "2026-04-04T13:00", "2026-04-05T13:30"),
        ("America/Santiago", "2026-09-06", "2026-09-06T04:00", "2026-09-07T03:00"),
        ("Pacific/Apia", "2011-12-30", "2011-12-30T10:00", "2011-12-30T10:00"),
    ],
)
def test_a_day_is_as_long_as_its_clocks_say(zone, day, start, end):
    assert day_span(date.fromisoformat(day), ZoneInfo(zone)) == Span(start=at(start), end=at(end))


@pytest.mark.parametrize(
    "zone", ["America/New_York", "America/Santiago", "America/St_Johns", "Australia/Lord_Howe", "UTC"]
)
def test_every_moment_belongs_to_the_day_whose_span_holds_it(zone):
    """St. John's set its clocks back at one minute past midnight until 2011: two minutes carry the day before again."""
    rng, place = random.Random(4), ZoneInfo(zone)
    for year in (2010, 2026):
        for _ in range(2_000):
            moment = datetime(year, 1, 1, tzinfo=UTC) + timedelta(minutes=rng.randrange(365 * 1440))
            assert moment in day_span(day_of(moment, place), place)
    back = datetime(2010, 11, 7, 2, 30, tzinfo=UTC)
    for minute in range(180):
        moment = back + timedelta(minutes=minute)
        assert moment in day_span(day_of(moment, place), place)


def test_the_days_of_every_zone_begin_at_quarters_of_an_hour():
    for name in zoneinfo.available_timezones():
        place = ZoneInfo(name)
        for days in range(0, 366 * 3, 7):
            start = day_span(date(2026, 1, 1) + timedelta(days=days), place).start
            assert start == slot_of(start), name


def test_an_hour_may_belong_to_two_days():
    kathmandu = ZoneInfo("Asia/Kathmandu")
    assert days_of_hour(at("2026-03-07T18:00"), kathmandu) == (date(2026, 3, 7), date(2026, 3, 8))
    assert days_of_hour(at("2026-03-07T19:00"), kathmandu) == (date(2026, 3, 8),)


def test_a_percentile_is_within_the_promised_error_however_the_values_were_split():
    rng = random.Random(8)
    values = [rng.lognormvariate(5, 2) for _ in range(5_000)]
    parts = [Histogram() for _ in range(31)]
    for value in values:
        rng.choice(parts).add(bucket_of(value))
    whole = merged(part.to_bytes() for part in parts)
    assert whole.count == len(values)
    values.sort()
    for share in (0.01, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0):
        exact = values[max(0, -(-int(share * 1000) * len(values) // 1000) - 1)]
        found = whole.percentile(share)
        assert found is not None
        assert abs(found - exact) / exact <= latency.RELATIVE_ERROR * 1.000001 <= 0.05


def test_an_empty_histogram_has_no_percentile_and_takes_no_room():
    assert (Histogram().percentile(0.5), Histogram().to_bytes(), merged([b"", b""])) == (None, b"", Histogram())


def test_a_histogram_survives_its_bytes():
    for counts in ({0: 1}, {latency.LAST: 3}, {0: 127, 5: 128, 200: 2**40}):
        assert Histogram.from_bytes(Histogram(counts).to_bytes()) == Histogram(counts)
    assert len(Histogram(dict.fromkeys(range(80, 120), 100)).to_bytes()) == 81


@pytest.mark.parametrize("data", [b"\x02", b"\x01\x05", b"\x01\x85", b"\x01\xff\x7f\x01"])
def test_bytes_of_something_else_are_refused(data):
    with pytest.raises(BadHistogram):
        Histogram.from_bytes(data)


def test_buckets_hold_all_times():
    assert [bucket_of(ms) for ms in (-1.0, 0.0, 0.09, 0.1, 1e300)] == [0, 0, 0, 1, latency.LAST]
    assert middle_of(0) == 0.0
