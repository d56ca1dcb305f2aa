"""What the workers' tasks do beside calling the functions of the reports. Real workers: `tests/faults`."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from celery import signals
from celery.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError
from pytest_django import DjangoDbBlocker

from gateway.celery import app
from reports import retention, tasks
from reports.models import TouchedHour
from reports.rollup_models import RolledHour
from tests.reports.rows import an_exchange, save
from tests.support.databases import serving_from

NOON = datetime(2026, 3, 3, 12, tzinfo=UTC)


@pytest.fixture
def retries() -> Iterator[list[Any]]:
    """Why tasks were tried again."""
    reasons: list[Any] = []

    def note(reason: Any, **_: Any) -> None:
        reasons.append(type(reason.exc if reason.exc is not None else reason))

    signals.task_retry.connect(note, weak=False)
    yield reasons
    signals.task_retry.disconnect(note)


def test_what_is_pending_is_summed_up_and_a_second_run_changes_nothing(database: str) -> None:
    save([an_exchange(NOON)])
    for _ in range(2):
        assert tasks.roll_pending.apply().successful()
        assert (TouchedHour.objects.count(), [row.version for row in RolledHour.objects.all()]) == (0, [1])


def test_a_database_that_is_away_is_asked_five_times(
    tmp_path: Path, django_db_blocker: DjangoDbBlocker, retries: list[Any]
) -> None:
    (tmp_path / "folder").mkdir()
    with django_db_blocker.unblock(), serving_from(f"sqlite:///{tmp_path}/folder"):
        result = tasks.roll_pending.apply()
    assert (retries, result.status) == ([OperationalError] * 4, "FAILURE")


def test_a_rollup_that_takes_too_long_leaves_the_rest_to_its_next_turn(
    monkeypatch: pytest.MonkeyPatch, retries: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def endless() -> None:
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(tasks, "roll", endless)
    with caplog.at_level(logging.WARNING, "pilotage.reports"):
        assert tasks.roll_pending.apply().successful()
    assert retries == []
    assert caplog.messages == ["summing up took too long and goes on at its next turn"]


def test_retention_that_takes_too_long_goes_on_a_little_later(
    monkeypatch: pytest.MonkeyPatch, retries: list[Any]
) -> None:
    turns = iter([SoftTimeLimitExceeded, SoftTimeLimitExceeded, None])

    def run() -> Any:
        if (problem := next(turns)) is not None:
            raise problem
        return retention.Deleted()

    monkeypatch.setattr(retention, "run", run)
    assert tasks.retain.apply().successful()
    assert retries == [SoftTimeLimitExceeded] * 2


def test_tasks_are_acknowledged_when_they_are_done(database: str) -> None:
    assert {name: task.acks_late for name, task in app.tasks.items() if not name.startswith(("celery.", "tests."))} == {
        "reports.roll_pending": True,
        "reports.retain": True,
        "reports.make_due": True,
        "reports.make_report": True,
        "reports.mail_report": True,
        "gateway.sweep_broker": True,
    }
