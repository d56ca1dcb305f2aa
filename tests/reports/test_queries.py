"""What reports read: the same sums as of the rows, in any zone and period, and every exchange once in a list."""

import dataclasses
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from reports.core.latency import Histogram, bucket_of
from reports.core.rollup import Span, day_span
from reports.filters import FilterForm, Filters
from reports.models import Exchange
from reports.queries import decision_counts, merged, scope
from reports.queries_exchanges import Cursor, Wanted, everything, page
from reports.rollup_models import DailyRollup, RolledDay, SlotRollup
from reports.rollups import report_zone, roll, roll_hour
from tests.reports.rows import an_exchange, save

KATHMANDU = ZoneInfo("Asia/Kathmandu")
BERLIN = ZoneInfo("Europe/Berlin")
FIRST, LAST = date(2025, 3, 24), date(2025, 4, 2)
"""Berlin's clock is set forward on the 30th of March."""
NOW = datetime(2025, 4, 2, 13, 20, tzinfo=UTC)
MEASURES = ("requests", "success", "cost_microdollars", "cost_unknown", "input_tokens", "output_tokens")


def asked(**said: Any) -> Filters:
    values: dict[str, Any] = {
        "period": "custom",
        "first": FIRST,
        "last": LAST,
        "zone": report_zone(),
        "now": NOW,
        **said,
    }
    return Filters(**values)


def read(query: dict[str, str], now: datetime = NOW) -> Filters:
    form = FilterForm(query, now=now)
    assert form.is_valid(), form.errors.as_data()
    return form.filters()


def some_exchanges(count: int = 400) -> list[Exchange]:
    """Over twelve days, in few hours of each, some at the very edges of days, none after `NOW`."""
    rng = random.Random(5)
    start = datetime(2025, 3, 22, tzinfo=UTC)
    made = []
    for _ in range(count):
        at = start + timedelta(seconds=rng.uniform(0, (NOW - start).total_seconds()))
        at = at.replace(hour=rng.choice((5, 13)))
        if rng.random() < 0.2:
            at = at.replace(hour=rng.choice((22, 23, 18, 0)), minute=rng.choice((0, 15, 59)), second=0, microsecond=0)
        if at > NOW:
            continue
        refused = rng.random() < 0.1
        made.append(
            an_exchange(
                at,
                group=rng.choice(("chat", "code")),
                caller=rng.choice(("team", "shop")),
                project=rng.choice(("search", "sales")),
                provider="" if refused else rng.choice(("paris", "oslo")),
                outcome="refused" if refused else rng.choice(("success", "success", "upstream_failed")),
                cost_microdollars=rng.choice((None, 0, rng.randrange(10**6))),
                input_tokens=rng.randrange(5_000),
                output_tokens=rng.randrange(900),
                duration_ms=rng.lognormvariate(6, 1),
            )
        )
    return made


def sums_of(exchanges: Sequence[Exchange], span: Span, **names: str) -> dict[str, int]:
    rows = [
        row
        for row in exchanges
        if row.started_at in span and all(getattr(row, name) == value for name, value in names.items())
    ]
    return {
        "requests": len(rows),
        "success": sum(row.outcome == "success" for row in rows),
        "cost_microdollars": sum(row.cost_microdollars or 0 for row in rows),
        "cost_unknown": sum(row.cost_microdollars is None for row in rows),
        "input_tokens": sum(row.input_tokens or 0 for row in rows),
        "output_tokens": sum(row.output_tokens or 0 for row in rows),
    }


def test_sums_are_those_of_the_rows_in_every_zone_and_period_and_for_every_name(database):
    exchanges = some_exchanges()
    save(exchanges)
    roll(now=NOW)
    late = an_exchange(datetime(2025, 3, 26, 9, tzinfo=UTC), cost_microdollars=77)
    save([late])  # whose hour is summed again, and its day not yet
    roll_hour(datetime(2025, 3, 26, 9, tzinfo=UTC), now=NOW, zone=report_zone())
    exchanges.append(late)
    assert RolledDay.objects.get(day=date(2025, 3, 26)).stale
    for zone in (report_zone(), KATHMANDU, BERLIN):
        for period in ("today", "7d", "30d", "month"):
            filters = read({"period": period, "zone": zone.key})
            found = scope(filters)
            assert found.now.total(MEASURES) == sums_of(exchanges, filters.span), (zone, period)
            assert found.before.total(MEASURES) == sums_of(exchanges, filters.before), (zone, period)
        for names in (
            {"group": "chat"},
            {"caller": "shop", "provider": "oslo"},
            {"project": "search"},
            {"model": "none"},
        ):
            filters = asked(zone=zone, **names)
            assert scope(filters).now.total(MEASURES) == sums_of(exchanges, filters.span, **names), (zone, names)


def test_groups_and_steps_over_time_add_up_to_the_whole(database):
    exchanges = some_exchanges()
    save(exchanges)
    roll(now=NOW)
    for zone in (report_zone(), BERLIN):
        filters = asked(zone=zone)
        found = scope(filters).now.sums(("requests",), by=("group", "provider"), over_time=True)
        expected: dict[tuple[int, str, str], dict[str, int]] = {}
        for row in exchanges:
            if row.started_at in filters.span:
                day = next(
                    place for place in range(10) if row.started_at in day_span(FIRST + timedelta(days=place), zone)
                )
                expected.setdefault((day, row.group, row.provider), {"requests": 0})["requests"] += 1
        assert found == expected


def test_percentiles_are_those_of_the_rows_that_reached_a_provider(database):
    exchanges = some_exchanges()
    save(exchanges)
    roll(now=NOW)
    found = scope(asked()).now.histograms(("duration",), over_time=True)
    whole = scope(asked()).now.histograms(("duration",))
    expected = Histogram()
    for row in exchanges:
        if row.started_at in asked().span and row.provider:
            expected.add(bucket_of(row.duration_ms or 0))
    assert merged(histogram for (histogram,) in found.values()) == expected
    assert (len(found), whole) == (10, {(): (expected,)})


def test_a_day_whose_quarters_are_deleted_is_told_from_its_daily_sums_and_said_to_be_missing_elsewhere(database):
    save([an_exchange(datetime(2025, 3, 25, 9, tzinfo=UTC))])
    roll(now=NOW)
    SlotRollup.objects.all().delete()
    RolledDay.objects.update(slots_gone=True, stale=True)
    assert scope(asked()).now.total(("requests",)) == {"requests": 1}
    assert scope(asked()).missing == []
    one_day = scope(asked(first=date(2025, 3, 25), last=date(2025, 3, 25)))
    assert one_day.now.sums(("requests",), over_time=True) == {(0,): {"requests": 1}}
    assert one_day.missing == [
        "Sums by quarter of an hour are deleted up to 2025-03-25: a day stands at its first hour."
    ]
    assert scope(asked(zone=KATHMANDU)).now.total(("requests",)) == {"requests": 1}
    assert scope(asked(zone=KATHMANDU)).now.sums(("requests",), over_time=True) == {}
    assert scope(asked(zone=KATHMANDU)).missing == [
        "Sums by quarter of an hour are deleted up to 2025-03-25: until then only days of UTC are known."
    ]


def test_a_running_day_is_compared_with_as_much_of_the_day_before():
    filters = read({"period": "today"})
    assert filters.span == Span(start=datetime(2025, 4, 2, tzinfo=UTC), end=datetime(2025, 4, 2, 13, 30, tzinfo=UTC))
    assert filters.before == Span(start=datetime(2025, 4, 1, tzinfo=UTC), end=datetime(2025, 4, 1, 13, 30, tzinfo=UTC))
    month = read({"period": "month"}, now=datetime(2025, 3, 31, 10, tzinfo=UTC))
    assert (month.before.start, month.before.end) == (
        datetime(2025, 2, 1, tzinfo=UTC),
        datetime(2025, 3, 1, tzinfo=UTC),
    )
    week = read({"period": "7d"})
    assert (week.first, week.before.start) == (date(2025, 3, 27), datetime(2025, 3, 20, tzinfo=UTC))
    assert week.before.end - week.before.start == week.span.end - week.span.start


@pytest.mark.parametrize(
    ("query", "errors"),
    [
        (
            {"zone": "Mars/Olympus"},
            {"zone": ["“Mars/Olympus” is no time zone; one is called like Europe/Oslo or UTC."]},
        ),
        ({"period": "ever"}, {"period": ["Select a valid choice. ever is not one of the available choices."]}),
        ({"period": "custom", "from": "2025-13-01", "to": "2025-01-01"}, {"from": ["Enter a valid date."]}),
        ({"period": "custom", "from": "2025-03-01"}, {"to": ["A period from – to needs both days."]}),
        (
            {"period": "custom", "from": "2025-03-02", "to": "2025-03-01"},
            {"to": ["It must not end before it begins."]},
        ),
        (
            {"period": "custom", "from": "2020-03-02", "to": "2025-03-01"},
            {"to": ["At most 400 days can be shown at once (PILOTAGE_REPORT_MAX_DAYS)."]},
        ),
    ],
)
def test_a_wrong_filter_is_named_with_what_is_right(query: dict[str, str], errors: dict[str, list[str]]) -> None:
    form = FilterForm(query, now=NOW)
    assert not form.is_valid()
    assert {name: [str(error) for error in found] for name, found in form.errors.items()} == errors


def test_filters_are_kept_in_the_address() -> None:
    query = {"period": "custom", "from": "2025-03-24", "to": "2025-04-02", "zone": "Asia/Kathmandu", "group": "a&b=c"}
    said = read(query).query(caller="team")
    assert said == "period=custom&from=2025-03-24&to=2025-04-02&zone=Asia%2FKathmandu&group=a%26b%3Dc&caller=team"


def test_decisions_are_counted_by_group_over_the_days(database):
    save([an_exchange(datetime(2025, 3, day, 9, tzinfo=UTC), group=group) for day, group in ((23, "chat"), (24, "chat"), (25, "chat"), (25, "code"))], detail=True)  # fmt: skip
    roll(now=NOW)
    modes = decision_counts(asked(), dimensions=("mode", "exclusion"))
    assert modes == {
        ("mode", "chat", "score", "paris/m"): 2,
        ("mode", "code", "score", "paris/m"): 1,
        ("exclusion", "chat", "eligibility/context_exceeded", "rome/m"): 2,
        ("exclusion", "code", "eligibility/context_exceeded", "rome/m"): 1,
    }
    assert decision_counts(asked(group="code"), dimensions=("mode",)) == {("mode", "code", "score", "paris/m"): 1}


@pytest.fixture
def searching_ten(settings):
    settings.PILOTAGE = dataclasses.replace(settings.PILOTAGE, report_search_rows=10, report_export_rows=25)


def walk(wanted: Wanted, size: int) -> tuple[list[str], int]:
    """Ids in the order of the pages, and how many pages there are."""
    after, ids, pages = None, [], 0
    while True:
        found = page(wanted, after, size=size)
        ids += [str(row.values[0]) for row in found.rows]
        pages += 1
        if found.following is None:
            return ids, pages
        after = Cursor.read(str(found.following))


def test_pages_show_every_exchange_once_the_newest_first_also_those_of_one_moment(database, searching_ten):
    moment = datetime(2025, 3, 25, 9, tzinfo=UTC)
    made = [an_exchange(moment + timedelta(seconds=number // 4), caller=f"c{number % 3}") for number in range(40)]
    save(made)
    rows = sorted(Exchange.objects.all(), key=lambda row: (row.started_at, row.pk), reverse=True)
    assert walk(Wanted(filters=asked()), size=7)[0] == [row.request_id for row in rows]
    ids, _ = walk(Wanted(filters=asked(caller="c1")), size=3)
    assert ids == [row.request_id for row in rows if row.caller == "c1"]


def test_what_is_rare_is_searched_for_in_bounded_steps(database, searching_ten):
    moment = datetime(2025, 3, 25, 9, tzinfo=UTC)
    save([an_exchange(moment + timedelta(seconds=number), fell_back=number == 3) for number in range(40)])
    rare = Wanted(filters=asked(), odd="fell_back")
    first = page(rare, None, size=5)
    assert (first.rows, first.searched_to) == ([], moment + timedelta(seconds=29))
    found = Exchange.objects.get(fell_back=True).request_id
    assert walk(rare, size=5) == ([found], 4)
    assert walk(Wanted(filters=asked(), outcome="refused"), size=5) == ([], 4)


def test_an_export_ends_at_its_bound_and_says_so(database, searching_ten):
    moment = datetime(2025, 3, 25, 9, tzinfo=UTC)
    save([an_exchange(moment + timedelta(seconds=number)) for number in range(40)])
    rows = list(everything(Wanted(filters=asked())))
    assert (len(rows), rows[-1]) == (26, None)
    some = list(everything(Wanted(filters=asked(first=date(2025, 3, 26)))))
    assert some == []


@pytest.mark.parametrize("text", ["", "x", "1", "1-", "-1", "1-x", "9" * 30 + "-1", "１-1", "1--1"])
def test_a_place_in_a_list_that_no_page_gave_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Cursor.read(text)


@pytest.mark.django_db
def test_a_page_reads_an_index_and_not_the_table():
    save([an_exchange(datetime(2025, 3, 25, 9, tzinfo=UTC), caller="team")])
    for wanted, index in (
        (Wanted(filters=asked()), "reports_exchange_started"),
        (Wanted(filters=asked(caller="team", group="chat")), "reports_exchange_caller"),
        (Wanted(filters=asked(group="chat")), "reports_exchange_group"),
    ):
        with CaptureQueriesContext(connection) as statements:
            page(wanted, Cursor(at=NOW, pk=7))
        assert len(statements) == 2
        for statement in statements:
            with connection.cursor() as cursor:
                cursor.execute("EXPLAIN QUERY PLAN " + statement["sql"])
                plan = [row[3] for row in cursor.fetchall()]
            assert [step for step in plan if index in step] == plan, plan


def test_only_days_that_are_wholly_summed_come_from_the_daily_sums(database):
    save([an_exchange(datetime(2025, 3, 25, 9, tzinfo=UTC)), an_exchange(datetime(2025, 4, 2, 9, tzinfo=UTC))])
    roll(now=NOW)
    DailyRollup.objects.update(requests=1_000)
    assert scope(asked()).now.total(("requests",)) == {"requests": 1_001}
