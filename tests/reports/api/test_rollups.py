"""Sums by hour and day are those of the exchanges, on everybody's clocks."""

import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from reports.api.periods import end_of_hour, hours_of
from reports.core.latency import Histogram, bucket_of
from reports.core.rollup import SLOT, day_of, day_span
from reports.models import Exchange
from reports.rollups import roll
from tests.reports.api.ground import LATER, NOON, Ground
from tests.reports.rows import an_exchange, save

CLOCK_CHANGES = {
    "Europe/Berlin": (date(2026, 3, 29), date(2026, 10, 25)),
    "Australia/Lord_Howe": (date(2026, 4, 5), date(2026, 10, 4)),
    "Asia/Kathmandu": (date(2026, 3, 29), date(2026, 11, 1)),
}


@pytest.mark.parametrize("zone", CLOCK_CHANGES)
def test_the_hours_of_a_day_follow_each_other_without_a_gap(zone: str) -> None:
    hour = hours_of(ZoneInfo(zone))
    lengths = []
    for day in CLOCK_CHANGES[zone]:
        span = day_span(day, ZoneInfo(zone))
        at, count = span.start, Counter[timedelta]()
        assert hour(at) == at
        while at < span.end:
            end = end_of_hour(at, hour)
            assert {hour(at + SLOT * part) for part in range((end - at) // SLOT)} == {at}
            count[end - at] += 1
            at = end
        assert at == span.end
        lengths.append({part.seconds // 60: times for part, times in count.items()})
    assert (
        lengths
        == {
            "Europe/Berlin": [{60: 23}, {60: 25}],
            "Australia/Lord_Howe": [{60: 24, 30: 1}, {60: 23, 30: 1}],
            "Asia/Kathmandu": [{60: 24}, {60: 24}],
        }[zone]
    )


@pytest.mark.parametrize("name", CLOCK_CHANGES)
def test_days_and_hours_of_a_zone_hold_exactly_their_exchanges(ground: Ground, name: str) -> None:
    zone, rng = ZoneInfo(name), random.Random(11)
    hour = hours_of(zone)
    days: Counter[str] = Counter()
    hours: Counter[datetime] = Counter()
    made = []
    for day in CLOCK_CHANGES[name]:
        start = day_span(day, zone).start
        for _ in range(60):
            moment = start + timedelta(minutes=rng.randrange(-120, 26 * 60))
            made.append(an_exchange(moment))
            days[day_of(moment, zone).isoformat()] += 1
            hours[hour(moment - timedelta(minutes=moment.minute % 15))] += 1
    save(made)
    roll(now=LATER)
    asked: dict[str, Any] = {"zone": name, "page_size": 1000}
    daily = ground.get("admin", "rollups/daily/", **asked, **{"from": "2026-03-01", "to": "2026-12-01"}).json()
    assert daily["made_of"] == "slots"
    assert {row["day"]: row["requests"] for row in daily["results"]} == days
    moments = {"from": "2026-03-01T00:00:00Z", "to": "2026-12-01T00:00:00Z"}
    hourly = ground.get("admin", "rollups/hourly/", **asked, **moments).json()
    assert {datetime.fromisoformat(row["start"]): row["requests"] for row in hourly["results"]} == hours


def test_days_of_the_installation_and_of_slots_agree(busy: Ground) -> None:
    asked = {"from": "2026-03-01", "to": "2026-03-31", "group_by": ["caller", "provider"]}
    kept = busy.get("admin", "rollups/daily/", **asked).json()
    made = busy.get("admin", "rollups/daily/", **asked, zone="Africa/Abidjan").json()  # the same clocks
    assert (kept["made_of"], made["made_of"]) == ("days", "slots")
    assert kept["results"] == made["results"]
    assert len(kept["results"]) == 6


def test_a_row_tells_everything_of_its_exchanges(ground: Ground) -> None:
    durations = [10.0, 20.0, 40.0, 80.0, 1_000.0]
    said: list[dict[str, Any]] = [
        {"outcome": "success", "cost_microdollars": 1_500_000, "stream": True},
        {"outcome": "refused", "status": 429, "cost_microdollars": 0, "usage_quality": "none"},
        {"outcome": "upstream_failed", "cost_microdollars": None, "fell_back": True, "attempt_count": 3},
        {"affinity": "affinity_hit", "prompt_cache": "read", "cache_read_tokens": 7},
        {"input_tokens": 100, "output_tokens": 50, "reasoning_tokens": 20, "first_content_ms": None},
    ]
    save([
        an_exchange(NOON + timedelta(minutes=number), duration_ms=ms, **each)
        for number, (ms, each) in enumerate(zip(durations, said, strict=True))
    ])  # fmt: skip
    roll(now=LATER)
    histogram = Histogram()
    for ms in durations:
        histogram.add(bucket_of(ms))
    asked = {"from": "2026-03-10T12:00:00Z", "to": "2026-03-10T13:00:00Z", "group_by": "group"}
    (row,) = ground.get("admin", "rollups/hourly/", **asked).json()["results"]
    zeros = {name: value for name, value in row.items() if value == 0}
    told = {name: value for name, value in row.items() if name not in zeros}
    assert told == {
        "start": "2026-03-10T12:00:00Z",
        "end": "2026-03-10T13:00:00Z",
        "by": {"group": "chat"},
        "requests": 5,
        "streamed": 1,
        "success": 3,
        "refused": 1,
        "upstream_failed": 1,
        "attempts": 7,
        "fallbacks": 1,
        "cost_microdollars": 1_502_000,
        "cost_unknown": 1,
        "cost_usd": "1.502000",
        "input_tokens": 140,
        "cache_read_tokens": 7,
        "output_tokens": 70,
        "reasoning_tokens": 20,
        "usage_reported": 4,
        "usage_none": 1,
        "prompt_cache_read": 1,
        "affinity_hit": 1,
        "affinity_miss": 4,
        "duration": {
            "count": 5,
            "mean_ms": 230.0,
            "p50_ms": round(histogram.percentile(0.5) or 0, 3),
            "p90_ms": round(histogram.percentile(0.9) or 0, 3),
            "p95_ms": round(histogram.percentile(0.95) or 0, 3),
            "p99_ms": round(histogram.percentile(0.99) or 0, 3),
        },
        "first_content": {
            "count": 4, "mean_ms": 20.0, "p50_ms": 20.595, "p90_ms": 20.595, "p95_ms": 20.595, "p99_ms": 20.595,
        },
        "queued": {"count": 5, "mean_ms": 0.0, "p50_ms": 0.0, "p90_ms": 0.0, "p95_ms": 0.0, "p99_ms": 0.0},
    }  # fmt: skip


def test_only_quarters_within_the_span_count(busy: Ground) -> None:
    def requests(first: str, before: str) -> list[int]:
        asked = {"from": f"2026-03-10T{first}:00Z", "to": f"2026-03-10T{before}:00Z"}
        return [row["requests"] for row in busy.get("admin", "rollups/hourly/", **asked).json()["results"]]

    assert requests("12:00", "12:15") == [6]
    assert requests("12:15", "13:00") == [12]
    assert requests("11:00", "12:00") == []


def test_names_choose_rows_and_an_empty_one_those_without(busy: Ground) -> None:
    def callers(**parameters: Any) -> dict[str, int]:
        asked: dict[str, Any] = {"from": "2026-03-10", "to": "2026-03-10", "group_by": "caller", **parameters}
        rows = busy.get("admin", "rollups/daily/", **asked).json()["results"]
        return {row["by"]["caller"]: row["requests"] for row in rows}

    assert callers(project="") == {"loner": 3, "other-loner": 3}
    assert callers(caller=["team", "rival"]) == {"rival": 3, "team": 3}
    assert callers(project="search", caller=["team", "rival"]) == {"team": 3}
    assert callers(provider="paris-open") == {"open": 3}
    assert callers(model="other") == {}


def test_without_a_span_the_last_day_and_the_last_thirty_days_are_told(ground: Ground) -> None:
    now = datetime.now(UTC)
    save([an_exchange(now - timedelta(hours=ago)) for ago in (1, 20, 30, 24 * 20, 24 * 40)])
    roll(now=now)
    assert Exchange.objects.count() == 5
    hourly = ground.get("admin", "rollups/hourly/").json()["results"]
    daily = ground.get("admin", "rollups/daily/").json()["results"]
    assert (sum(row["requests"] for row in hourly), sum(row["requests"] for row in daily)) == (2, 4)
