"""How the gateway stands, on the first page: what is in order, what is not, and what somebody should do."""

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from gateway import standing
from gateway.standing import Check
from reports.models import IngestCount, TouchedHour
from reports.rollup_models import RolledHour
from reports.rollups import roll
from tests.reports.records import NOON, a_spool, an_end
from tests.reports.rows import an_exchange, save
from tests.support.databases import serving_from

STATEMENTS = 41
"""Of the first page, with everything there is to see on it."""
NOW = datetime.fromtimestamp(NOON, UTC)


@pytest.fixture(autouse=True)
def folder(sqlite_url: str, django_db_blocker: DjangoDbBlocker, settings, tmp_path: Path) -> Iterator[Path]:
    settings.PILOTAGE = dataclasses.replace(settings.PILOTAGE, data_dir=tmp_path / "data", spool_max_bytes=2_000)
    with django_db_blocker.unblock(), serving_from(sqlite_url):
        yield tmp_path / "data"


def checks(*, now: datetime = NOW) -> dict[str, Check]:
    return {check.title: check for check in standing.health(now=now)}


def test_a_gateway_that_did_nothing_yet_lacks_nothing() -> None:
    assert {title: check.state for title, check in checks().items()} == {
        "Configuration": "unknown",
        "Ingest": "unknown",
        "Worker": "unknown",
        "Spool": "good",
        "Records": "good",
        "Targets": "good",
    }
    assert standing.needs(list(checks().values()), standing.traffic(now=NOW)) == []


def test_records_that_nobody_reads_are_told_with_what_to_start(folder: Path) -> None:
    a_spool(folder / "spool", [an_end(f"req_{number}", duration_ms=0.0) for number in range(3)]).close()
    assert checks(now=NOW + timedelta(seconds=59))["Ingest"].state == "good"
    found = checks(now=NOW + timedelta(seconds=90))
    assert (found["Ingest"].state, found["Spool"].state) == ("bad", "bad")
    assert found["Ingest"].text.startswith("The oldest record that was not read is 1 min 30 s old")
    said = [text for text, _ in standing.needs(list(found.values()), None)]
    assert [text.split(":")[0] for text in said] == ["Ingest", "Spool"]
    assert said[0].endswith("Is `manage.py ingest` running?")


def test_sums_that_nobody_makes_are_told() -> None:
    TouchedHour.objects.create(hour=NOW, touched_at=NOW)
    assert checks()["Worker"] == Check(
        title="Worker",
        state="warning",
        text="Nothing was summed up yet; 1 hour with new records wait.",
        action="Is `manage.py worker` running?",
    )
    RolledHour.objects.create(hour=NOW, rolled_at=NOW - timedelta(seconds=599))
    assert checks()["Worker"].state == "good"
    assert checks(now=NOW + timedelta(seconds=1))["Worker"].state == "bad"
    TouchedHour.objects.all().delete()
    assert checks(now=NOW + timedelta(days=1))["Worker"].text == "Everything is summed up."


def test_damaged_lines_and_targets_that_were_kept_out_are_told() -> None:
    IngestCount.objects.create(name="damaged", count=3)
    IngestCount.objects.create(name="dropped", count=5)
    IngestCount.objects.create(name="ended", count=30)
    assert checks()["Records"].text == "Since ever: 3 damaged, 5 never written."
    exchange = an_exchange(NOW)
    save([exchange], detail=True)
    exchange.exclusions.update(stage="health", reason="denied")
    roll(now=NOW)
    kept_out = checks()["Targets"]
    assert (kept_out.state, kept_out.text) == (
        "warning",
        "Kept out today by health, limits or cool-down: rome/m (once).",
    )
    assert kept_out.url == "/admin/reports/decisions/?period=today"


def test_failures_and_unknown_costs_want_somebody() -> None:
    save([an_exchange(NOW, outcome="upstream_failed" if number < 3 else "success") for number in range(19)])
    roll(now=NOW)
    assert standing.needs([], standing.traffic(now=NOW)) == []
    save([an_exchange(NOW, cost_microdollars=None)])
    roll(now=NOW)
    assert standing.needs([], standing.traffic(now=NOW)) == [
        ("15.0 % of today's requests failed. See where and why.", "/admin/reports/reliability/?period=today"),
        (
            "One request of the last 7 days without a known cost: enter the missing prices.",
            "/admin/routing/providermodel/",
        ),
    ]


def test_traffic_is_the_sum_of_the_rows_by_target() -> None:
    save(
        [an_exchange(NOW - timedelta(days=number % 9), provider=("paris", "oslo")[number % 2]) for number in range(18)]
    )
    roll(now=NOW)
    found = standing.traffic(now=NOW)
    cards = {card.title: (card.value, card.before) for card in found.cards}
    assert cards["Requests today"] == (2, 2)
    assert cards["Requests, 7 days"] == (14, 4)
    assert cards["Cost, 7 days"] == (14_000, 4_000)
    assert [tuple(row.values) for row in found.targets.rows] == [("oslo/m", 7, 0.5, 7_000), ("paris/m", 7, 0.5, 7_000)]


def test_the_first_page_takes_as_many_statements_whatever_the_volume() -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("ada", password="x"))
    counts = []
    for count in (8, 80):
        save([an_exchange(timezone.now() - timedelta(hours=9 * (number % 8))) for number in range(count)], detail=True)
        roll()
        client.get("/admin/")
        with CaptureQueriesContext(connection) as statements:
            assert client.get("/admin/").status_code == 200
        counts.append(len(statements))
    assert counts == [STATEMENTS] * 2
