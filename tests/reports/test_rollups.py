"""Slots, days and buckets from raw rows: exact, by any zone, however often and in whatever order they are made."""

import random
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection, connections
from django.db.models import Sum
from django.test.utils import CaptureQueriesContext

from reports import rollups
from reports.core.latency import Histogram, bucket_of, merged
from reports.core.rollup import DIMENSIONS, HOUR, TIMES, day_of, day_span, hour_of
from reports.models import Exchange, TouchedHour
from reports.rollup_models import DailyRollup, DecisionBucket, RolledDay, RolledHour, SlotRollup
from reports.rollups import Pending, Rolled, pending, roll
from reports.summing import MEASURES, slots_of_hour
from tests.reports.rows import an_exchange, elsewhere, save

BERLIN = ZoneInfo("Europe/Berlin")
KATHMANDU = ZoneInfo("Asia/Kathmandu")
NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
LATER = datetime(2027, 1, 1, tzinfo=UTC)
DAY = date(2026, 3, 10)

CLOCK_CHANGES = {
    "Europe/Berlin": (date(2026, 3, 29), date(2026, 10, 25)),
    "America/New_York": (date(2026, 3, 8), date(2026, 11, 1)),
    "Australia/Lord_Howe": (date(2026, 4, 5), date(2026, 10, 4)),
    "Asia/Kolkata": (date(2026, 3, 8), date(2026, 10, 25)),
    "Asia/Kathmandu": (date(2026, 3, 29), date(2026, 11, 1)),
}


def table(model: Any) -> list[tuple[Any, ...]]:
    """Everything but the key, in an order of its own."""
    columns = [field.name for field in model._meta.concrete_fields if not field.primary_key]
    rows = model.objects.values_list(*columns)
    return sorted((tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in rows), key=repr)


def tables() -> list[list[tuple[Any, ...]]]:
    return [table(SlotRollup), table(DailyRollup), table(DecisionBucket)]


def figures(row: Any) -> dict[str, Any]:
    """What is not zero, without the times."""
    return {name: value for name in MEASURES if (value := getattr(row, name)) and not name.endswith("_us")}


def scattered(rng: random.Random, zone: ZoneInfo, days: Sequence[date], count: int) -> list[Exchange]:
    """Within an hour of where the days begin and end, some exactly at and just before full quarters."""
    edges = sorted({edge for day in days for edge in (day_span(day, zone).start, day_span(day, zone).end)})
    made = []
    for _ in range(count):
        moment = rng.choice(edges) + timedelta(minutes=15 * rng.randrange(-4, 4))
        moment += rng.choice((timedelta(0), timedelta(microseconds=-1), timedelta(seconds=rng.uniform(0, 900))))
        made.append(
            an_exchange(
                moment,
                caller=rng.choice(("team", "shop")),
                cost_microdollars=rng.choice((None, 0, 1, rng.randrange(10**9), 2**52 + rng.randrange(9))),
                duration_ms=rng.lognormvariate(6, 2),
                stream=rng.random() < 0.5,
            )
        )
    return made


def test_a_row_of_each_kind_is_counted_in_its_column(database):
    save(
        [
            an_exchange(NOON, stream=True, queued_ms=3.0, cache_read_tokens=7, reasoning_tokens=2, image_count=1),
            an_exchange(NOON, outcome="client_cancelled", cost_microdollars=None, usage_quality="estimated",
                        affinity="affinity_hit", fell_back=True, attempt_count=2, prompt_cache="read"),
            an_exchange(NOON, outcome="refused", caller="", project="", environment="", group="", strategy="", mode="",
                        affinity="", target="", provider="", model="", attempt_count=0, usage_quality="none",
                        prompt_cache="unknown", input_tokens=None, output_tokens=None, cost_microdollars=0,
                        first_content_ms=None, duration_ms=0.05),
        ]
    )  # fmt: skip
    assert roll(now=LATER) == Rolled(hours=1, days=1, rows=2 + 2 + DecisionBucket.objects.count())
    refused, served = SlotRollup.objects.order_by("group")
    assert figures(served) == {
        "requests": 2, "streamed": 1, "success": 1, "client_cancelled": 1, "attempts": 3, "fallbacks": 1,
        "cost_microdollars": 1_000, "cost_unknown": 1, "input_tokens": 20, "cache_read_tokens": 7, "output_tokens": 10,
        "reasoning_tokens": 2, "images": 1, "usage_reported": 1, "usage_estimated": 1, "prompt_cache_read": 1,
        "affinity_hit": 1, "affinity_miss": 1,
    }  # fmt: skip
    assert figures(refused) == {"requests": 1, "refused": 1, "usage_none": 1}
    assert [getattr(served, f"{time}_us") for time in TIMES] == [200_000, 40_000, 3_000]
    assert [merged([getattr(served, time)]) for time in TIMES] == [
        Histogram({bucket_of(100.0): 2}), Histogram({bucket_of(20.0): 2}), Histogram({0: 1, bucket_of(3.0): 1})
    ]  # fmt: skip
    assert merged([bytes(refused.first_content)]) == Histogram()
    assert tuple(getattr(served, name) for name in DIMENSIONS) == (
        "chat", "team", "search", "prod", "paris", "m", "dynamic_score",
    )  # fmt: skip


@pytest.mark.parametrize("zone_name", CLOCK_CHANGES)
def test_days_add_up_to_the_rows_around_the_changes_of_the_clock(database, zone_name):
    zone, rng = ZoneInfo(zone_name), random.Random(19)
    for change in CLOCK_CHANGES[zone_name]:
        exchanges = scattered(rng, zone, [change], 200)
        save(exchanges)
        roll(now=LATER, zone=zone)
        by_day: dict[date, list[int]] = {}
        for exchange in exchanges:
            sums = by_day.setdefault(day_of(exchange.started_at, zone), [0, 0, 0])
            sums[0] += 1
            sums[1] += exchange.cost_microdollars or 0
            sums[2] += exchange.cost_microdollars is None
        rolled = {
            day: [requests, cost, unknown]
            for day, requests, cost, unknown in DailyRollup.objects.filter(day__in=by_day)
            .values("day")
            .annotate(a=Sum("requests"), b=Sum("cost_microdollars"), c=Sum("cost_unknown"))
            .values_list("day", "a", "b", "c")
        }
        assert rolled == by_day
        assert {
            day: merged(DailyRollup.objects.filter(day=day).values_list("duration", flat=True)) for day in by_day
        } == {
            day: histogram_of(e.duration_ms for e in exchanges if day_of(e.started_at, zone) == day) for day in by_day
        }


@pytest.mark.parametrize(
    ("zone_name", "day", "dollars"),
    [
        ("America/New_York", "2026-03-08", 46),
        ("America/New_York", "2026-11-01", 50),
        ("Asia/Kolkata", "2026-03-08", 48),
        ("Australia/Lord_Howe", "2026-04-05", 49),
        ("America/Santiago", "2026-09-06", 46),
    ],
)
def test_a_dollar_every_half_hour_is_as_many_as_the_day_has(database, zone_name, day, dollars):
    zone, today = ZoneInfo(zone_name), date.fromisoformat(day)
    span = day_span(today, zone)
    halves = range(-2, dollars + 2)
    save([an_exchange(span.start + timedelta(minutes=30 * half), cost_microdollars=1_000_000) for half in halves])
    roll(now=LATER, zone=zone)
    assert list(DailyRollup.objects.order_by("day").values_list("day", "cost_microdollars")) == [
        (today - timedelta(days=1), 2_000_000), (today, dollars * 1_000_000), (today + timedelta(days=1), 2_000_000)
    ]  # fmt: skip


def histogram_of(values: Iterable[float | None]) -> Histogram:
    made = Histogram()
    for value in values:
        assert value is not None
        made.add(bucket_of(value))
    return made


def test_a_month_can_be_made_in_another_zone_after_the_raw_rows_have_gone(database):
    exchanges = scattered(random.Random(3), BERLIN, [date(2026, 10, 25)], 200)
    save(exchanges)
    roll(now=LATER, zone=BERLIN)
    Exchange.objects.all().delete()
    assert roll(now=LATER, zone=KATHMANDU).days == len({day_of(e.started_at, KATHMANDU) for e in exchanges})
    for day in {day_of(e.started_at, KATHMANDU) for e in exchanges}:
        span = day_span(day, KATHMANDU)
        assert DailyRollup.objects.filter(zone="Asia/Kathmandu", day=day).aggregate(n=Sum("cost_microdollars"))[
            "n"
        ] == sum(e.cost_microdollars or 0 for e in exchanges if e.started_at in span)


def test_once_twice_and_five_times_give_the_same_table(database):
    save(scattered(random.Random(5), BERLIN, [DAY], 200), detail=True)
    roll(now=LATER, zone=BERLIN)
    once = tables()
    assert all(once)
    for _ in range(4):
        roll(DAY - timedelta(days=1), DAY + timedelta(days=1), now=LATER, zone=BERLIN)
        assert tables() == once


def test_days_out_of_order_and_hours_in_pieces_give_the_same_table(database):
    rng = random.Random(7)
    exchanges = scattered(rng, KATHMANDU, [DAY], 120)
    save(exchanges, detail=True)
    roll(now=LATER, zone=KATHMANDU)
    whole = tables()
    for model in (SlotRollup, DailyRollup, DecisionBucket, RolledDay, RolledHour):
        model.objects.all().delete()
    hours = sorted({hour_of(e.started_at) for e in exchanges})
    rng.shuffle(hours)
    days = sorted({day_of(e.started_at, KATHMANDU) for e in exchanges}, reverse=True)
    for hour in hours:
        rollups.roll_hour(hour, now=LATER, zone=KATHMANDU)
        rollups.roll_day(rng.choice(days), now=LATER, zone=KATHMANDU)
    for day in days:
        roll(day, day, now=LATER, zone=KATHMANDU)
    assert tables() == whole


def test_in_parallel_and_while_rows_come_in_it_is_the_same_table(database):
    rng = random.Random(11)
    first, second = (scattered(rng, BERLIN, [DAY], 40) for _ in range(2))
    save(first, detail=True)
    problems: list[BaseException] = []

    def work(what: Any) -> None:
        try:
            what()
        except rollups.RollupBusy:
            pass  # it stays pending
        except BaseException as problem:
            problems.append(problem)
        finally:
            connections.close_all()

    def both_ways() -> None:
        roll(now=LATER, zone=BERLIN)
        roll(DAY, DAY, now=LATER, zone=BERLIN)

    def come_in() -> None:
        for exchange in second:
            save([exchange], detail=True)

    threads = [threading.Thread(target=work, args=(both_ways,)) for _ in range(3)]
    threads.append(threading.Thread(target=work, args=(come_in,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    while (left := pending(now=LATER, zone=BERLIN)) != Pending():
        roll(now=LATER, zone=BERLIN)
        assert len(left.hours) + len(left.days) > 0
    side_by_side = tables()
    for model in (SlotRollup, DailyRollup, DecisionBucket, RolledDay, RolledHour):
        model.objects.all().delete()
    for hour in {hour_of(e.started_at) for e in (*first, *second)}:
        rollups.roll_hour(hour, now=LATER, zone=BERLIN)
    roll(now=LATER, zone=BERLIN)
    assert tables() == side_by_side


def test_a_late_row_opens_its_hour_and_its_day_again(database):
    save([an_exchange(NOON)])
    roll(now=LATER, zone=BERLIN)
    assert pending(now=LATER, zone=BERLIN) == Pending()
    save([an_exchange(NOON + timedelta(minutes=20), cost_microdollars=7)])
    assert pending(now=LATER, zone=BERLIN) == Pending(hours=(NOON,))
    rollups.roll_hour(NOON, now=LATER, zone=BERLIN)
    assert pending(now=LATER, zone=BERLIN) == Pending(days=(DAY,))
    roll(now=LATER, zone=BERLIN)
    assert list(DailyRollup.objects.values_list("day", "requests", "cost_microdollars")) == [(DAY, 2, 1_007)]


def test_an_hour_that_two_days_share_opens_both(database):
    shared = datetime(2026, 3, 10, 18, tzinfo=UTC)  # midnight of Kathmandu is at 18:15
    save([an_exchange(shared), an_exchange(shared + timedelta(minutes=15))])
    assert roll(now=LATER, zone=KATHMANDU).days == 2
    assert list(DailyRollup.objects.order_by("day").values_list("day", "requests")) == [
        (DAY, 1), (DAY + timedelta(days=1), 1)
    ]  # fmt: skip


def test_a_row_that_comes_in_while_its_hour_is_summed_leaves_it_pending(database, monkeypatch):
    save([an_exchange(NOON)])
    summed = slots_of_hour

    def overtaken(*args: Any, **how: Any) -> Sequence[SlotRollup]:
        rows = summed(*args, **how)
        elsewhere(lambda: save([an_exchange(NOON)]))
        return rows

    monkeypatch.setattr(rollups, "slots_of_hour", overtaken)
    rollups.roll_hour(NOON, now=LATER, zone=BERLIN)
    assert list(TouchedHour.objects.values_list("hour", "sequence")) == [(NOON, 2)]
    monkeypatch.undo()
    roll(now=LATER, zone=BERLIN)
    assert DailyRollup.objects.get().requests == 2
    assert pending(now=LATER, zone=BERLIN) == Pending()


def test_what_was_read_before_another_replaced_it_is_not_written(database, monkeypatch):
    save([an_exchange(NOON)])
    summed = slots_of_hour
    overtakings = iter((True, False))

    def overtaken(*args: Any, **how: Any) -> Sequence[SlotRollup]:
        rows = summed(*args, **how)
        if next(overtakings, False):
            monkeypatch.setattr(rollups, "slots_of_hour", summed)

            def other() -> None:
                save([an_exchange(NOON)])
                rollups.roll_hour(NOON, now=LATER, zone=BERLIN)

            elsewhere(other)
        return rows

    monkeypatch.setattr(rollups, "slots_of_hour", overtaken)
    rollups.roll_hour(NOON, now=LATER, zone=BERLIN)
    assert SlotRollup.objects.get().requests == 2


def test_a_running_day_is_summed_again_only_after_a_while(database, settings):
    save([an_exchange(NOON)])
    now = NOON + timedelta(minutes=30)
    assert roll(now=now, zone=BERLIN).days == 1
    save([an_exchange(NOON)])
    soon, later = now + timedelta(seconds=899), now + timedelta(seconds=900)
    assert roll(now=soon, zone=BERLIN) == Rolled(hours=1, rows=1)
    assert pending(now=soon, zone=BERLIN) == Pending()
    assert pending(now=later, zone=BERLIN) == Pending(days=(DAY,))
    assert pending(now=day_span(DAY, BERLIN).end, zone=BERLIN) == Pending(days=(DAY,))


def test_slots_begin_at_quarters_of_an_hour(database):
    quarter, instant = timedelta(minutes=15), timedelta(microseconds=1)
    save([an_exchange(NOON + quarter * n + before) for n in range(5) for before in (-instant, timedelta(0))])
    roll(now=LATER)
    assert list(SlotRollup.objects.order_by("slot").values_list("slot", "requests")) == [
        (NOON - quarter, 1), *((NOON + quarter * n, 2) for n in range(4)), (NOON + HOUR, 1)
    ]  # fmt: skip


def test_the_database_sorts_times_into_the_buckets_of_the_core(database):
    rng = random.Random(13)
    values = [0.0, 0.0999, 0.1, 1e10, *(rng.lognormvariate(5, 4) for _ in range(400))]
    save([an_exchange(NOON, duration_ms=value) for value in values])
    roll(now=LATER)
    assert merged([bytes(SlotRollup.objects.get().duration)]) == histogram_of(values)


def test_decisions_are_counted_by_bucket(database):
    save(
        [
            an_exchange(NOON, signals=["cost_score", "latency_score"], matched_terms=["code"], flags=["panic"],
                        input_tokens_estimated=5_000, output_cap=900, complexity=0.7, fell_back=True),
            an_exchange(NOON, signals=["cost_score"], input_tokens_estimated=5_000, complexity=0.7),
        ],
        detail=True,
    )  # fmt: skip
    save([an_exchange(NOON, outcome="refused", error_code="overloaded", mode="", strategy="", tie_break="", affinity="",
                      target="", provider="", model="", input_bucket="", output_cap_bucket="", complexity_bucket="")])  # fmt: skip
    roll(now=LATER)
    served, target = ("chat", "paris/m", "paris", "m"), ("paris/m", "", "")
    columns = ("dimension", "bucket", "group", "target", "provider", "model", "count")
    assert set(DecisionBucket.objects.values_list(*columns)) == {
        ("strategy", "dynamic_score", *served, 2),
        ("mode", "score", *served, 2),
        ("tie_break", "final", *served, 2),
        ("affinity", "affinity_miss", *served, 2),
        ("signal", "cost_score", *served, 2),
        ("signal", "latency_score", *served, 1),
        ("matched_term", "code", *served, 1),
        ("flag", "panic", *served, 1),
        ("input_tokens", "<=16000", *served, 2),
        ("output_cap", "<=1024", *served, 1),
        ("output_cap", "none", *served, 1),
        ("complexity", "complex", *served, 2),
        ("refusal", "overloaded", "chat", "", "", "", 1),
        ("exclusion", "eligibility/context_exceeded", "chat", "rome/m", "", "", 2),
        ("attempt", "ok", *served, 2),
        ("fallback", "server_error", "chat", "oslo/m", "", "", 1),
        ("fallback_to", "server_error", "chat", *target, 1),
        ("dynamic_score", "0.9-1.0", "chat", *target, 2),
        ("contrasted_score", "0.9-1.0", "chat", *target, 2),
        ("final_score", "0.4-0.5", "chat", *target, 2),
        ("chosen_final_score", "0.4-0.5", "chat", *target, 2),
        ("value.latency_score", "0.9-1.0", "chat", *target, 2),
        ("dynamic_score", "0.4-0.5", "chat", "oslo/m", "", "", 2),
        ("contrasted_score", "0.4-0.5", "chat", "oslo/m", "", "", 2),
        ("final_score", "0.2-0.3", "chat", "oslo/m", "", "", 2),
        ("near_tie", "yes", "chat", "oslo/m", "", "", 2),
        ("value.latency_score", "0.4-0.5", "chat", "oslo/m", "", "", 2),
    }


def test_a_first_day_without_a_last_is_refused():
    with pytest.raises(ValueError, match="both the first and the last"):
        roll(DAY)


def test_ten_times_the_rows_take_no_more_statements(database):
    asked = []
    for count in (20, 200):
        Exchange.objects.all().delete()
        save([an_exchange(NOON + timedelta(seconds=n)) for n in range(count)], detail=True)
        with CaptureQueriesContext(connection) as captured:
            roll(DAY, DAY, now=LATER)
        asked.append(len(captured))
        assert DailyRollup.objects.get().requests == count
    assert asked[1] <= asked[0]
