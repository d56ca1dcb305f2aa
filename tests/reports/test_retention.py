"""What retention deletes, what it keeps and why; and that no figure of a report changes with it."""

import dataclasses
import os
import threading
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import connections
from django.db.models import Sum

from reports import retention, rollups
from reports.core.latency import Histogram, merged
from reports.core.rollup import DIMENSIONS, HOUR, TIMES
from reports.models import Attempt, Candidate, Exchange, Exclusion, TouchedHour, Transition
from reports.retention import Deleted, Keep, Plan, plan, run, why_held
from reports.rollup_models import DailyRollup, DecisionBucket, LegalHold, RolledDay, RolledHour, SlotRollup
from reports.rollups import Pending, pending, roll
from reports.summing import MEASURES
from tests.reports.rows import an_exchange, elsewhere, save
from tests.support.databases import serving_from

KATHMANDU = ZoneInfo("Asia/Kathmandu")
UTC_ZONE = ZoneInfo("UTC")
FIRST = date(2026, 3, 1)
NOW = datetime(2026, 6, 1, 6, tzinfo=UTC)
KEEP = Keep(detail=30, attempts=40, exchanges=60)


def moment(day: int, hour: int = 12, minute: int = 0) -> datetime:
    """Of day 0, which is FIRST, and so on."""
    return datetime(FIRST.year, FIRST.month, FIRST.day, hour, minute, tzinfo=UTC) + timedelta(days=day)


def rows() -> dict[str, int]:
    return {model.__name__: model.objects.count() for model in (Exchange, Candidate, Exclusion, Attempt, Transition)}


def report() -> dict[Any, Any]:
    """Every figure of every table that reports are made of: sums, percentiles, buckets; generations together."""
    found: dict[Any, Any] = {}
    for model, period in ((SlotRollup, "slot"), (DailyRollup, "day")):
        for row in model.objects.all():
            key = tuple(getattr(row, name) for name in (period, *DIMENSIONS))
            sums, times = found.setdefault(key, (Counter(), [Histogram() for _ in TIMES]))
            sums.update({name: getattr(row, name) for name in MEASURES})
            for histogram, time in zip(times, TIMES, strict=True):
                histogram.merge(merged([getattr(row, time)]))
    names = ("day", "group", "dimension", "bucket", "target", "provider", "model")
    for *key, count in DecisionBucket.objects.values(*names).annotate(n=Sum("count")).values_list(*names, "n"):
        found[tuple(key)] = count
    return found


def a_month(days: int = 31) -> None:
    """One or two exchanges a day, of which the later is in the next day of Kathmandu, with all their detail."""
    save(
        [
            an_exchange(
                moment(day, hour, 20), cost_microdollars=1_000 * day + hour, duration_ms=10.0 * (day + 1), fell_back=day % 3 == 0
            )
            for day in range(days)
            for hour in ((2, 18) if day < 6 else (18,))
        ],
        detail=True,
    )  # fmt: skip


@pytest.mark.parametrize("zone", [UTC_ZONE, KATHMANDU], ids=str)
def test_every_figure_stays_when_a_month_of_detail_and_then_of_exchanges_has_gone(database, zone):
    a_month()
    roll(now=NOW, zone=zone)
    before = report()
    everything = rows()
    naps: list[float] = []
    deleted = run(now=NOW, zone=zone, keep=Keep(detail=30), batch=7, sleep=naps.append)
    assert deleted == Deleted(rows={"detail": everything["Candidate"] + everything["Exclusion"]})
    assert len(naps) >= 31
    assert rows() == {**everything, "Candidate": 0, "Exclusion": 0}
    assert report() == before
    run(now=NOW, zone=zone, keep=KEEP, sleep=naps.append)
    assert rows() == dict.fromkeys(everything, 0)
    assert report() == before
    roll(FIRST, FIRST + timedelta(days=4), now=NOW, zone=zone)
    assert report() == before
    assert pending(now=NOW, zone=zone) == Pending()


def test_what_comes_in_after_its_day_has_gone_is_added_to_it(database):
    a_month(2)
    roll(now=NOW, zone=KATHMANDU)
    run(now=NOW, zone=KATHMANDU, keep=KEEP, sleep=lambda _: None)
    for late in (1, 2):
        save([an_exchange(moment(0, 18, 20), cost_microdollars=5)], detail=True)
        for _ in range(2):
            roll(now=NOW, zone=KATHMANDU)
            roll(FIRST, FIRST + timedelta(days=3), now=NOW, zone=KATHMANDU)
        sums = DailyRollup.objects.values("day").annotate(a=Sum("requests"), b=Sum("cost_microdollars"))
        assert list(sums.order_by("day").values_list("day", "a", "b")) == [
            (FIRST, 1, 2), (FIRST + timedelta(days=1), 2 + late, 18 + 1_002 + 5 * late), (FIRST + timedelta(days=2), 1, 1_018)
        ]  # fmt: skip
        assert DecisionBucket.objects.filter(dimension="exclusion").aggregate(n=Sum("count"))["n"] == 4 + late
        assert SlotRollup.objects.aggregate(n=Sum("requests"))["n"] == 4 + late
        run(now=NOW, zone=KATHMANDU, keep=KEEP, sleep=lambda _: None)
        assert rows() == dict.fromkeys(rows(), 0)


def test_each_kind_goes_by_its_own_age(database):
    save([an_exchange(moment(day)) for day in (0, 31, 32, 41, 42, 51, 52, 61, 62)], detail=True)
    roll(now=NOW, zone=UTC_ZONE)  # which is day 92
    run(now=NOW, zone=UTC_ZONE, keep=Keep(detail=30, attempts=40, exchanges=50), sleep=lambda _: None)

    def days(model: Any) -> list[int]:
        return [
            (e.started_at - moment(0)).days
            for e in Exchange.objects.order_by("pk")
            if model.filter(exchange=e).exists()
        ]

    assert {
        "exchanges": [(e.started_at - moment(0)).days for e in Exchange.objects.order_by("pk")],
        "attempts": days(Attempt.objects),
        "candidates": days(Candidate.objects),
        "exclusions": days(Exclusion.objects),
    } == {"exchanges": [42, 51, 52, 61, 62], "attempts": [52, 61, 62], "candidates": [62], "exclusions": [62]}


def test_a_dry_run_says_what_would_go_and_deletes_nothing(database):
    a_month(3)
    roll(now=NOW, zone=UTC_ZONE)
    before = rows()
    last = FIRST + timedelta(days=2)
    assert plan(now=NOW, zone=UTC_ZONE, keep=KEEP) == (
        Plan(kind="detail", keep_days=30, rows=18, oldest=FIRST, newest=last),
        Plan(kind="attempts", keep_days=40, rows=6 + 2, oldest=FIRST, newest=last),
        Plan(kind="exchanges", keep_days=60, rows=18 + 8 + 6, oldest=FIRST, newest=last),
        Plan(kind="slots", keep_days=0),
        Plan(kind="days", keep_days=0),
        Plan(kind="damaged", keep_days=0),
    )
    assert rows() == before
    assert run(now=NOW, zone=UTC_ZONE, keep=Keep(detail=30), sleep=lambda _: None) == Deleted(rows={"detail": 18})


def test_days_before_a_gap_go_and_those_from_it_on_wait(database):
    a_month(5)
    roll(now=NOW, zone=UTC_ZONE)
    save([an_exchange(moment(2, 3))])
    deleted = run(now=NOW, zone=UTC_ZONE, keep=KEEP, sleep=lambda _: None)
    why = "records of 2026-03-03T03Z came in since 2026-03-03 was summed"
    assert deleted.waiting == dict.fromkeys(("detail", "attempts", "exchanges"), why)
    assert sorted({e.started_at.date() for e in Exchange.objects.all()}) == [
        FIRST + timedelta(days=d) for d in (2, 3, 4)
    ]
    rollups.roll_hour(moment(2, 3), now=NOW, zone=UTC_ZONE)
    assert {each.waiting for each in plan(now=NOW, zone=UTC_ZONE, keep=KEEP)[:3]} == {
        "hours of 2026-03-03 were summed again since"
    }
    roll(now=NOW, zone=UTC_ZONE)
    assert run(now=NOW, zone=UTC_ZONE, keep=KEEP, sleep=lambda _: None).waiting == {}
    assert Exchange.objects.count() == 0


def test_a_day_that_was_never_summed_is_a_gap(database):
    a_month(3)
    roll(now=NOW, zone=UTC_ZONE)
    RolledDay.objects.filter(day=FIRST + timedelta(days=1)).delete()
    deleted = run(now=NOW, zone=UTC_ZONE, keep=KEEP, sleep=lambda _: None)
    assert set(deleted.waiting.values()) == {"2026-03-02 is not summed"}
    assert Exchange.objects.count() == 4


def test_rows_stay_when_their_sums_are_not_theirs(database):
    a_month(1)
    roll(now=NOW, zone=UTC_ZONE)
    SlotRollup.objects.filter(slot__hour=2).update(cost_microdollars=1)
    deleted = run(now=NOW, zone=UTC_ZONE, keep=KEEP, sleep=lambda _: None)
    assert set(deleted.waiting.values()) == {
        "the sums of 2026-03-01T02Z are not those of its records; run rollup for that day"
    }
    assert Exchange.objects.count() == 2
    roll(FIRST, FIRST, now=NOW, zone=UTC_ZONE)
    assert run(now=NOW, zone=UTC_ZONE, keep=KEEP, sleep=lambda _: None).waiting == {}
    assert Exchange.objects.count() == 0


@pytest.mark.parametrize(
    "hold",
    [
        {"caller": "shop"},
        {"project": "shopping"},
        {"group": "vision"},
        {"request_id": "req_held"},
        {"started_from": moment(0, 12, 1), "started_before": moment(0, 12, 3)},
        {"caller": "shop", "group": "vision", "started_from": moment(0)},
    ],
    ids=lambda hold: "+".join(hold),
)
def test_a_hold_keeps_what_matches_all_of_it_until_it_is_released(database, hold):
    ours = an_exchange(
        moment(0, 12, 2), caller="shop", project="shopping", group="vision", request_id="req_held", fell_back=True
    )
    almost = an_exchange(moment(0, 12, 3))
    save([ours, almost], detail=True)
    roll(now=NOW, zone=UTC_ZONE)
    before = report()
    made = LegalHold.objects.create(reason="audit 7", **hold)
    assert why_held(Exchange.objects.get(request_id="req_held")) == [f"hold {made.pk}, {made}"]
    assert plan(now=NOW, zone=UTC_ZONE, keep=KEEP)[0] == Plan(
        kind="detail", keep_days=30, rows=3, oldest=FIRST, newest=FIRST, held=((f"hold {made.pk}, {made}", 1),)
    )
    for _ in range(2):
        run(now=NOW, zone=UTC_ZONE, keep=KEEP, sleep=lambda _: None)
        assert rows() == {"Exchange": 1, "Candidate": 2, "Exclusion": 1, "Attempt": 1, "Transition": 1}
    assert list(Exchange.objects.values_list("request_id", flat=True)) == ["req_held"]
    roll(FIRST, FIRST, now=NOW, zone=UTC_ZONE)
    assert report() == before
    made.released_at = NOW
    made.save()
    run(now=NOW, zone=UTC_ZONE, keep=KEEP, sleep=lambda _: None)
    assert rows() == dict.fromkeys(rows(), 0)
    assert report() == before


def test_a_mark_on_the_exchange_keeps_it_too(database):
    save([an_exchange(moment(0), legal_hold=True), an_exchange(moment(0))])
    roll(now=NOW, zone=UTC_ZONE)
    run(now=NOW, zone=UTC_ZONE, keep=KEEP, sleep=lambda _: None)
    assert why_held(Exchange.objects.get()) == ["marked"]


def test_a_hold_that_is_made_while_retention_runs_keeps_what_is_left(database):
    save([an_exchange(moment(0, 12, minute)) for minute in range(4)])
    roll(now=NOW, zone=UTC_ZONE)

    def hold(_: float) -> None:
        LegalHold.objects.get_or_create(caller="team", reason="now")

    run(now=NOW, zone=UTC_ZONE, keep=Keep(exchanges=60), batch=1, sleep=hold)
    assert Exchange.objects.count() == 3


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({}, "Say what is to be kept: a caller, project, group, request id or a time."),
        ({"started_from": NOW, "started_before": NOW}, "It must begin before it ends."),
    ],
)
def test_a_hold_on_nothing_is_refused(database, said, problem):
    with pytest.raises(ValidationError) as caught:
        LegalHold(reason="r", **said).full_clean()
    assert caught.value.messages == [problem]


def test_sums_by_quarters_go_after_the_rows_and_sums_by_day_after_them(database):
    a_month(3)
    roll(now=NOW, zone=KATHMANDU)
    before = {key: value for key, value in report().items() if not isinstance(key[0], datetime)}
    slots = SlotRollup.objects.count()
    assert run(now=NOW, zone=KATHMANDU, keep=Keep(slots=80, days=80), sleep=lambda _: None).rows == {}
    run(now=NOW, zone=KATHMANDU, keep=KEEP, sleep=lambda _: None)
    assert run(now=NOW, zone=KATHMANDU, keep=Keep(slots=80), batch=2, sleep=lambda _: None).rows["slots"] == slots
    roll(FIRST, FIRST + timedelta(days=4), now=NOW, zone=KATHMANDU)
    assert report() == before
    save([an_exchange(moment(0, 2, 20), cost_microdollars=9)])
    roll(now=NOW, zone=KATHMANDU)
    assert list(
        DailyRollup.objects.filter(day=FIRST).order_by("generation").values_list("cost_microdollars", flat=True)
    ) == [2, 9]
    run(now=NOW, zone=KATHMANDU, keep=Keep(exchanges=60, slots=80, days=80), sleep=lambda _: None)
    assert (SlotRollup.objects.count(), DailyRollup.objects.count(), DecisionBucket.objects.count()) == (0, 0, 0)
    assert RolledDay.objects.filter(exchanges_gone=True, slots_gone=True).count() == 4


def test_after_a_change_of_the_zone_no_day_is_made_of_what_is_left_of_another(database):
    a_month(3)
    roll(now=NOW, zone=UTC_ZONE)
    run(now=NOW, zone=UTC_ZONE, keep=Keep(exchanges=60, slots=91), sleep=lambda _: None)
    assert set(SlotRollup.objects.values_list("slot__day", flat=True)) == {2, 3}
    assert pending(now=NOW, zone=KATHMANDU) == Pending(days=(FIRST + timedelta(days=2), FIRST + timedelta(days=3)))
    roll(now=NOW, zone=KATHMANDU)
    roll(FIRST, FIRST + timedelta(days=1), now=NOW, zone=KATHMANDU)
    save([an_exchange(moment(1, 10))])
    roll(now=NOW, zone=KATHMANDU)
    sums = DailyRollup.objects.filter(zone="Asia/Kathmandu").order_by("day").values_list("day", "requests")
    assert list(sums) == [(FIRST + timedelta(days=2), 2), (FIRST + timedelta(days=3), 1)]


def test_detail_of_one_day_goes_batch_by_batch(database):
    save([an_exchange(moment(0, 12, minute // 3)) for minute in range(7)], detail=True)
    roll(now=NOW, zone=UTC_ZONE)
    left: list[int] = []

    def look(_: float) -> None:
        left.append(Candidate.objects.count())
        assert len(left) < 9

    assert run(now=NOW, zone=UTC_ZONE, keep=Keep(detail=30), batch=2, sleep=look).rows == {"detail": 21}
    assert left == [10, 6, 2, 0]
    assert Exchange.objects.count() == 7


def test_others_write_between_two_batches(database):
    save([an_exchange(moment(0, 12, minute)) for minute in range(6)])
    roll(now=NOW, zone=UTC_ZONE)
    seen = []

    def write(_: float) -> None:
        elsewhere(lambda: save([an_exchange(moment(80))]))
        seen.append(Exchange.objects.filter(started_at__lt=moment(1)).count())

    run(now=NOW, zone=UTC_ZONE, keep=Keep(exchanges=60), batch=2, sleep=write)
    assert seen[:3] == [4, 2, 0]
    assert Exchange.objects.count() == len(seen)


def test_retention_in_parallel_with_itself_and_with_rollups_loses_nothing(database):
    a_month(6)
    roll(now=NOW, zone=UTC_ZONE)
    before = report()
    problems: list[BaseException] = []

    def work(what: Any) -> None:
        try:
            what()
        except rollups.RollupBusy:
            pass
        except BaseException as problem:
            problems.append(problem)
        finally:
            connections.close_all()

    jobs = [
        lambda: run(now=NOW, zone=UTC_ZONE, keep=KEEP, batch=1, sleep=lambda _: None),
        lambda: run(now=NOW, zone=UTC_ZONE, keep=KEEP, batch=1, sleep=lambda _: None),
        lambda: roll(FIRST, FIRST + timedelta(days=6), now=NOW, zone=UTC_ZONE),
    ]
    threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    roll(now=NOW, zone=UTC_ZONE)
    run(now=NOW, zone=UTC_ZONE, keep=KEEP, sleep=lambda _: None)
    assert rows() == dict.fromkeys(rows(), 0)
    assert report() == before


def test_damaged_lines_go_when_none_was_added_for_a_while(settings, tmp_path, sqlite_url, django_db_blocker):
    settings.PILOTAGE = dataclasses.replace(settings.PILOTAGE, data_dir=tmp_path)
    (tmp_path / "spool").mkdir()
    path = tmp_path / "spool" / "damaged"
    path.write_bytes(b"{]\n")
    os.utime(path, ((NOW - timedelta(days=30)).timestamp(),) * 2)
    with django_db_blocker.unblock(), serving_from(sqlite_url):
        assert run(now=NOW, keep=Keep(damaged=30)).rows == {}
        assert plan(now=NOW + HOUR, keep=Keep(damaged=30))[-1] == Plan(
            kind="damaged", keep_days=30, rows=3, oldest=date(2026, 5, 2), newest=date(2026, 5, 2)
        )
        assert path.exists()
        assert run(now=NOW + HOUR, keep=Keep(damaged=30)).rows == {"damaged": 3}
    assert not path.exists()


def test_the_commands_say_what_they_do(database, settings):
    old = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=40)
    save([an_exchange(old, caller="shop"), an_exchange(old)], detail=True)
    day = old.date()
    rolled = said("rollup").splitlines()
    assert rolled[0].startswith("pending: 1 hours, 1 days, ")
    hold = LegalHold.objects.create(caller="shop", reason="audit 7")
    detail = [
        f"detail: 3 rows from {day} to {day}, kept 30 days",
        f"  stays: 1 exchanges, hold {hold.pk}, caller shop: audit 7",
    ]
    rest = ["attempts: kept 90 days, none is older", "exchanges: kept 90 days, none is older",
            "slots: kept 400 days, none is older", "days: kept for ever", "damaged: kept 30 days, none is older"]  # fmt: skip
    assert said("retention").splitlines() == [*detail, *rest, "Nothing was deleted. With --apply it is."]
    assert Candidate.objects.count() == 4
    assert said("retention", "--apply").splitlines() == [
        *detail, *rest, "deleted detail: 3 rows", "deleted attempts: 0 rows", "deleted exchanges: 0 rows",
        "deleted slots: 0 rows", "deleted days: 0 rows", "deleted damaged: 0 bytes",
    ]  # fmt: skip
    assert said("rollup", "--from", str(day), "--to", str(day)).startswith(f"{day}: 1 hours, 1 days, ")
    assert TouchedHour.objects.count() == 0
    assert RolledHour.objects.get().generation == 1
    assert retention.Keep.of_settings() == Keep(detail=30, attempts=90, exchanges=90, slots=400, days=0, damaged=30)


def said(*command: str) -> str:
    out = StringIO()
    call_command(*command, stdout=out)
    return out.getvalue()
