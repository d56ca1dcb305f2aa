"""How long the reports' pages take on sums of ten million exchanges; few of them here, all under `full`."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from pytest_django import DjangoDbBlocker

from reports.catalogue import REPORTS
from reports.core.latency import Histogram, bucket_of
from reports.rollup_models import DailyRollup, DecisionBucket, RolledDay, SlotRollup
from reports.summing import MEASURES
from tests.support.databases import serving_from

FIRST = date(2025, 3, 1)
PERIOD = "period=custom&from=2025-03-01&to=2025-03-30"


@pytest.fixture(params=["sqlite", "postgresql"])
def summed(request, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    with django_db_blocker.unblock(), serving_from(url):
        yield


def fill(days: int, *, callers: int, exchanges: int) -> int:
    """Sums of so many exchanges, over days of 3 groups, `callers` callers and 4 targets; a caller is busy in one quarter
    of an hour in eight. The number of slots."""
    combinations = [(group, caller, target) for group in range(3) for caller in range(callers) for target in range(4)]
    per_day = max(1, exchanges // days // len(combinations))
    times = Histogram({bucket_of(40.0 * 1.3**step): max(1, per_day // 20) for step in range(20)}).to_bytes()
    few = Histogram({bucket_of(300.0): 1, bucket_of(900.0): 1}).to_bytes()
    slots = 0
    for number in range(days + 30):  # and as many before, to compare with
        day = FIRST + timedelta(days=number - 30)
        names = [
            {"group": f"group{g}", "caller": f"caller{c}", "project": f"project{c % 7}", "environment": "prod",
             "provider": f"provider{t}", "model": f"m{t}", "strategy": "dynamic_score"}
            for g, c, t in combinations
        ]  # fmt: skip
        sums = dict.fromkeys(MEASURES, per_day) | {"cost_unknown": 0}
        histograms = {"duration": times, "first_content": times, "queued": few}
        DailyRollup.objects.bulk_create(
            (DailyRollup(zone="UTC", day=day, **each, **sums, **histograms) for each in names), batch_size=500
        )
        RolledDay.objects.create(
            zone="UTC", day=day, version=1, stale=False, rolled_at=datetime(2025, 5, 1, tzinfo=UTC)
        )
        DecisionBucket.objects.bulk_create(
            (
                DecisionBucket(
                    zone="UTC", day=day, group=f"group{g}", dimension=dimension, bucket=f"{tenth / 10:.1f}-{(tenth + 1) / 10:.1f}",
                    target=f"provider{t}/m{t}", count=per_day,
                )
                for g in range(3)
                for t in range(4)
                for tenth in range(10)
                for dimension in ("final_score", "dynamic_score", "chosen_final_score", "value.cost_score", "value.latency_score")
            ),
            batch_size=500,
        )  # fmt: skip
        if number >= 28:
            rows = []
            small = dict.fromkeys(MEASURES, 2) | {"cost_unknown": 0}
            for quarter in range(96):
                slot = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(minutes=15 * quarter)
                rows += [
                    SlotRollup(slot=slot, **each, **small, duration=few, first_content=few, queued=few)
                    for place, each in enumerate(names)
                    if (place + quarter) % 8 == 0
                ]
            SlotRollup.objects.bulk_create(rows, batch_size=500)
            slots += len(rows)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return slots


def seconds_by_page(query: str) -> dict[str, float]:
    client = Client()
    client.force_login(User.objects.create_superuser(f"ada{query}", password="x"))
    client.get(f"/admin/reports/usage/?{PERIOD}")
    taken = {}
    for slug in REPORTS:
        began = time.perf_counter()
        answer = client.get(f"/admin/reports/{slug}/?{query}")
        taken[slug] = time.perf_counter() - began
        assert answer.status_code == 200
        assert not answer.context["report"].nothing
    return taken


def test_pages_are_made_of_daily_sums_alone_when_the_days_are_whole(summed):
    fill(3, callers=2, exchanges=10_000)
    SlotRollup.objects.all().delete()
    assert set(seconds_by_page("period=custom&from=2025-03-01&to=2025-03-03")) == set(REPORTS)


@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_each_page_on_ten_million_exchanges(summed, capsys):
    slots = fill(30, callers=50, exchanges=10_000_000)
    days = DailyRollup.objects.count()
    ours = seconds_by_page(PERIOD)
    elsewhere = seconds_by_page(f"{PERIOD}&zone=Asia/Kathmandu")
    with capsys.disabled():
        print(f"\n{connection.vendor}, {days:,} daily rows, {slots:,} slots, load {os.getloadavg()[0]:.1f}")
        for slug in REPORTS:
            print(f"  {slug:<12} {ours[slug]:6.2f} s   another zone {elsewhere[slug]:6.2f} s")
