"""`manage.py ingest` as a process: alone, stopped, killed, without its database."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.models import Sum
from pytest_django import DjangoDbBlocker

from reports.models import Candidate, Exchange, IngestCount, OpenExchange, SpoolFile, TouchedHour
from tests.reports.records import NOON, a_spool, add, an_end, an_intent
from tests.support.databases import serving_from
from tests.support.postgres import PostgresCluster
from tests.support.processes import Process

pytestmark = pytest.mark.e2e

Start = Callable[..., Process]
READS = "Ingest reads"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ingest" / "data" / "spool"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start("--follow", url, PILOTAGE_...="...")`: an ingest, killed with the test."""
    started: list[Process] = []

    def start(how: str, url: str, **environment: Any) -> Process:
        process = Process(
            tmp_path / "ingest",
            "ingest",
            how,
            environment={"DATABASE_URL": url, "PILOTAGE_INGEST_POLL_SECONDS": "0.05", **environment},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def looking_at(django_db_blocker: DjangoDbBlocker) -> Callable[[str], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def looking(url: str) -> Iterator[None]:
        with django_db_blocker.unblock(), serving_from(url):
            yield

    return looking


def has(count: int) -> Callable[[], bool]:
    return lambda: Exchange.objects.count() >= count


def test_only_one_ingest_reads_a_spool_and_a_second_names_the_first(start, postgres_url, folder):
    first = start("--follow", postgres_url)
    first.until(lambda: READS in first.output(), what="the first ingest")
    for how in ("--follow", "--once"):
        second = start(how, postgres_url)
        assert second.wait() == 1
        assert f"another ingest reads this spool, process {first.pid}; one is enough" in second.output()
    first.kill()
    assert start("--once", postgres_url).wait() == 0


def test_sigterm_ends_it_after_its_batch(start, sqlite_url, folder, looking_at):
    spool = a_spool(folder, [an_intent(), an_end(), an_intent("req_2")])
    with looking_at(sqlite_url):
        ingest = start("--follow", sqlite_url)
        ingest.until(has(1), what="a row")
        ingest.signal(signal.SIGTERM)
        assert ingest.wait() == 0
        assert Exchange.objects.count() == 1
        assert list(OpenExchange.objects.values_list("request_id", flat=True)) == ["req_2"]
    spool.close()
    assert ingest.output().strip() == f"{READS} {folder}"


def test_it_follows_what_is_written(start, postgres_url, folder, looking_at):
    with looking_at(postgres_url):
        ingest = start("--follow", postgres_url)
        spool = a_spool(folder, [an_end()])
        ingest.until(has(1), what="the first row")
        add(spool, [an_end("req_2")])
        ingest.until(has(2), what="the second row")
        spool.close()
        ingest.until(lambda: not list(folder.glob("*.jsonl")), what="the end of the file")
        assert ingest.stop() == 0


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=[pytest.mark.full, pytest.mark.timeout(900)])])
def test_killed_in_the_middle_again_and_again_it_leaves_every_record_once(
    start, database, folder, tmp_path, kills, looking_at
):
    many = 200 * (kills + 2)
    spool = a_spool(folder, (record for number in range(many) for record in pair(number)), max_file_bytes=1 << 19)
    spool.close()
    assert len(list(folder.glob("*.jsonl"))) > 1
    for kill in range(kills):
        ingest = start("--follow", database, PILOTAGE_INGEST_BATCH_LINES="20")
        ingest.until(has(200 * kill + 100), what="rows")
        ingest.kill()
    between = Exchange.objects.count()
    assert start("--once", database).wait(120) == 0
    assert between < many
    assert exactly() == {
        "exchanges": many,
        "cost": 2_800 * many - 800 * len(range(0, many, 10)),
        "candidates": 2 * (many - len(range(0, many, 10))),
        "counted": {"ended": many - len(range(0, many, 10)), "aborted": len(range(0, many, 10))},
        "open": 0,
        "files": 0,
        "hours": len({NOON + number * 7 - (NOON + number * 7) % 3_600 for number in range(many)}),
    }
    assert list(folder.glob("*.jsonl")) == []


def pair(number: int) -> Iterator[Any]:
    """Seven seconds behind the one before; every tenth has no end."""
    yield an_intent(f"req_{number}", at=NOON + number * 7)
    if number % 10:
        yield an_end(f"req_{number}", at=NOON + number * 7)


def exactly() -> dict[str, Any]:
    return {
        "exchanges": Exchange.objects.count(),
        "cost": Exchange.objects.aggregate(all=Sum("cost_microdollars"))["all"],
        "candidates": Candidate.objects.count(),
        "counted": dict(IngestCount.objects.values_list("name", "count")),
        "open": OpenExchange.objects.count(),
        "files": SpoolFile.objects.count(),
        "hours": TouchedHour.objects.count(),
    }


def test_without_its_database_it_waits_says_so_once_and_goes_on_exactly(
    start, postgres: PostgresCluster, postgres_url, folder, looking_at
):
    with looking_at(postgres_url):
        spool = a_spool(folder, [an_end()])
        ingest = start("--follow", postgres_url)
        ingest.until(has(1), what="a row")
        connection.close()
        postgres.stop()
        try:
            add(spool, (an_end(f"more_{number}") for number in range(300)))
            ingest.until(lambda: "records wait in the spool" in ingest.output(), what="a word of it")
        finally:
            postgres.start()
        ingest.until(has(301), what="the rest")
        spool.close()
        assert ingest.stop() == 0
        assert exactly()["counted"] == {"ended": 301}
        assert ingest.output().count("records wait in the spool") == 1


def test_without_its_database_it_can_be_stopped(start, folder):
    a_spool(folder, [an_end()]).close()
    ingest = start("--follow", "postgres://nobody@127.0.0.1:9/nothing")
    ingest.until(lambda: "records wait in the spool" in ingest.output(), what="a word of it")
    assert ingest.stop() == 0


def test_once_without_its_database_fails_and_keeps_the_records(start, folder):
    a_spool(folder, [an_end()]).close()
    assert start("--once", "postgres://nobody@127.0.0.1:9/nothing").wait() == 1
    assert len(list(folder.glob("*.jsonl"))) == 1


def test_before_the_tables_are_made_it_waits(start, postgres, folder):
    a_spool(folder, [an_end()]).close()
    ingest = start("--follow", postgres.create_database("empty_for_ingest"))
    ingest.until(lambda: "records wait in the spool" in ingest.output(), what="a word of it")
    assert "reports_spoolfile" in ingest.output()
    assert ingest.stop() == 0
