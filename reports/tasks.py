"""What the workers do for the reports. Every task may run twice, at the same time, and be killed at any point."""

import logging
from typing import Any

from celery import Task, shared_task
from celery.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError

from reports import retention
from reports.rollups import RollupBusy, roll

log = logging.getLogger("pilotage.reports")

RETRIES: dict[str, Any] = {
    "autoretry_for": (OperationalError, RollupBusy),
    "max_retries": 4,
    "retry_backoff": 2,
    "retry_backoff_max": 60,
}
"""A database that is away or locked: again after about 2, 4, 8 and 16 seconds; then the task's next turn is its next try."""


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
