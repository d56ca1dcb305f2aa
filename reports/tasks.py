"""What the workers do for the reports. Every task may run twice, at the same time, and be killed at any point."""

import logging
from datetime import UTC, datetime
from typing import Any

from celery import Task, shared_task
from celery.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError
from django.utils import timezone

from reports import mailing, retention, scheduled
from reports.rollups import RollupBusy, roll

log = logging.getLogger("pilotage.reports")

RETRIES: dict[str, Any] = {
    "autoretry_for": (OperationalError, RollupBusy),
    "max_retries": 4,
    "retry_backoff": 2,
    "retry_backoff_max": 60,
}
"""A database that is away or locked: again after about 2, 4, 8 and 16 seconds; then the task's next turn is its next try."""


TURN_SECONDS = 60
"""How often it is looked for scheduled reports: the next look sends again what was dropped."""


@shared_task(name="reports.roll_pending", **RETRIES)
def roll_pending() -> None:
    """Sums up the hours and days that have new records. What is not done within the time limit is left to the next turn."""
    try:
        rolled = roll()
    except SoftTimeLimitExceeded:
        log.warning("summing up took too long and goes on at its next turn")
        return
    if rolled.hours or rolled.days:
        log.info("summed up", extra={"hours": rolled.hours, "days": rolled.days, "rows": rolled.rows})


@shared_task(name="reports.retain", bind=True, **RETRIES | {"max_retries": 100})
def retain(self: "Task[Any, Any]") -> None:
    """Deletes what has been kept long enough. What is not done within the time limit follows in some seconds."""
    try:
        deleted = retention.run()
    except SoftTimeLimitExceeded as stopped:
        raise self.retry(exc=stopped, countdown=10) from stopped
    if deleted.rows:
        log.info("deleted what was kept long enough", extra={"rows": dict(deleted.rows)})
    for kind, why in deleted.waiting.items():
        log.warning("%s are kept for longer: %s", kind, why)


@shared_task(name="reports.make_due", **RETRIES)
def make_due(now: str | None = None) -> None:
    """Has every scheduled report made that is due, and sends mail that waits. `now`: another time than the clock's."""
    moment = datetime.fromisoformat(now).astimezone(UTC) if now else timezone.now()
    due = scheduled.due(now=moment)
    if due.make:
        try:
            roll()  # what came in before a report is due belongs to it
        except SoftTimeLimitExceeded:
            log.warning("summing up took too long: scheduled reports wait for the next turn")
            return
    for run_id in due.make:
        make_report.apply_async((run_id,), expires=TURN_SECONDS)
    for run_id in due.mail:
        mail_report.apply_async((run_id,), expires=TURN_SECONDS)


@shared_task(name="reports.make_report", **RETRIES)
def make_report(run_id: int) -> None:
    """Makes one, unless another worker does. Its own failure stands in its row."""
    if scheduled.make(run_id):
        mail_report.apply_async((run_id,), expires=TURN_SECONDS)


@shared_task(name="reports.mail_report", **RETRIES)
def mail_report(run_id: int) -> None:
    mailing.mail(run_id, now=timezone.now())


def make_now(run_id: int) -> None:
    """For a person who waits. A broker that is away costs a minute: the run is queued."""
    _send(make_report, run_id)


def mail_now(run_id: int) -> None:
    _send(mail_report, run_id)


def _send(task: "Task[Any, Any]", run_id: int) -> None:
    try:
        task.apply_async((run_id,), expires=TURN_SECONDS, retry=False)
    except Exception:
        log.exception("no worker can be told of a scheduled report: it waits for the schedule")
