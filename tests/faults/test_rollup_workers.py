"""Workers that are killed while they sum up: another goes on, and the tables are as if nothing had happened."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import Model

from reports.models import TouchedHour
from reports.rollup_models import DailyRollup, DecisionBucket, RolledDay, RolledHour, SlotRollup
from reports.rollups import pending, roll
from tests.reports.rows import an_exchange, save
from tests.support.working import Worker, files_broker

pytestmark = pytest.mark.e2e

HOURS = 60
FIRST = datetime(2026, 3, 1, tzinfo=UTC)

StartWorker = Callable[[], Worker]


@pytest.fixture
def start_worker(tmp_path: Path, database: str) -> Iterator[StartWorker]:
    started: list[Worker] = []

    def start() -> Worker:
        own = {"PILOTAGE_DATA_DIR": str(tmp_path / "data"), "DATABASE_URL": database}
        started.append(Worker(tmp_path / f"worker-{len(started)}", environment=own))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


def table(model: type[Model]) -> list[tuple[Any, ...]]:
    """Every row, but for its key."""
    names = [field.name for field in model._meta.concrete_fields if not field.primary_key]
    return sorted(model._default_manager.values_list(*names), key=repr)


def tables() -> dict[str, list[tuple[Any, ...]]]:
    return {model.__name__: table(model) for model in (SlotRollup, DailyRollup, DecisionBucket)}


def test_a_worker_killed_while_it_sums_up_is_followed_by_another_and_the_tables_are_exact(
    database: str, start_worker: StartWorker, tmp_path: Path
) -> None:
    save(
        [an_exchange(FIRST + timedelta(hours=hour, minutes=minute)) for hour in range(HOURS) for minute in (0, 20, 59)]
    )
    broker = files_broker(tmp_path / "data")
    first, second = start_worker(), start_worker()
    broker.send("reports.roll_pending")
    first.until(lambda: RolledHour.objects.count() >= 5, what="some hours that are summed up")
    at_work = next(worker for worker in (first, second) if str(worker.pid) in taken(tmp_path))
    at_work.kill()
    done = RolledHour.objects.count()
    assert 5 <= done < HOURS
    other = second if at_work is first else first
    other.until(lambda: not TouchedHour.objects.exists() and not pending().days, what="the rest")
    other.until(lambda: not taken(tmp_path), what="the end of the task")
    assert RolledHour.objects.count() == HOURS
    assert RolledDay.objects.filter(stale=False).count() == 3
    by_workers = tables()
    assert sum(row.requests for row in DailyRollup.objects.all()) == 3 * HOURS
    SlotRollup.objects.all().delete()
    DailyRollup.objects.all().delete()
    DecisionBucket.objects.all().delete()
    roll(FIRST.date(), (FIRST + timedelta(hours=HOURS)).date())
    assert by_workers == tables()


def taken(tmp_path: Path) -> set[str]:
    """Process ids of the workers that are at a task."""
    return {path.parent.name.split("-")[0] for path in (tmp_path / "data/broker/taken").glob("*/*.json")}
