"""The workers: the Celery application, what it runs by the clock, and how its processes end together.

Its settings stand in `gateway.settings` under `CELERY_`.
"""

import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from billiard import pool as billiard_pool
from celery import Celery, signals
from celery.schedules import crontab
from celery.worker import state
from django.conf import settings
from kombu.transport import TRANSPORT_ALIASES

from gateway.file_broker import Folder

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")

TRANSPORT_ALIASES["files"] = "gateway.file_broker:Transport"
TRANSPORT_ALIASES["redis"] = TRANSPORT_ALIASES["rediss"] = "gateway.redis_broker:Transport"

log = logging.getLogger("pilotage.worker")

ORPHAN_SECONDS = 0.5
"""How long a child may outlive its killed worker."""

LAST_RESULT_SECONDS = 3.0
"""How long a task's process that was told to end waits until its worker has taken note of its last result. Where both end
at once that may not come, and the process would wait 30 s. Nothing is lost without: what was not taken note of is sent again."""

app = Celery("pilotage")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["reports"])


def schedule() -> dict[str, dict[str, Any]]:
    """What runs by itself. A task that waited until its next turn has come is dropped: the next one does its work."""
    process = settings.PILOTAGE
    hour, minute = process.retention_at
    return {
        "rollup": {
            "task": "reports.roll_pending",
            "schedule": process.rollup_seconds,
            "options": {"expires": process.rollup_seconds},
        },
        "retention": {
            "task": "reports.retain",
            "schedule": crontab(hour=str(hour), minute=str(minute)),
            "options": {"expires": 12 * 3600},
        },
        "scheduled reports": {"task": "reports.make_due", "schedule": 60, "options": {"expires": 60}},
        "broker": {"task": "gateway.sweep_broker", "schedule": 3600, "options": {"expires": 3600}},
    }


app.conf.beat_schedule = schedule()


@app.task(name="gateway.sweep_broker")
def sweep_broker() -> None:
    """Removes stale files of the broker in the data directory."""
    options = settings.CELERY_BROKER_TRANSPORT_OPTIONS
    if "folder" in options:
        Folder(Path(options["folder"])).sweep(older_than_s=settings.PILOTAGE.broker_keep_days * 86_400, now=time.time())


@signals.setup_logging.connect
def _keep_logging(**_: Any) -> None:
    """Django's logging stays as it is: a receiver here keeps Celery from setting up its own."""


@signals.worker_ready.connect
def _say_ready(sender: Any, **_: Any) -> None:
    log.info("the worker is ready")
    beat = getattr(sender.controller, "beat", None)
    if beat is not None:
        threading.Thread(target=_end_with_the_schedule, args=(beat,), name="schedule-watch", daemon=True).start()


def _end_with_the_schedule(beat: Any) -> None:
    """A worker whose schedule was killed ends too: whoever started it sees that, and starts it again."""
    while beat.is_alive():
        time.sleep(ORPHAN_SECONDS)
    told_to_stop: list[object] = [state.should_stop, state.should_terminate]  # exit codes, 0 among them
    if told_to_stop == [None, None]:
        log.error("the schedule's process has ended: so does this worker")
        os.kill(os.getpid(), signal.SIGTERM)


@signals.worker_process_init.connect
def _bound_the_last_wait(**_: Any) -> None:
    interval = billiard_pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_INTERVAL
    billiard_pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = round(LAST_RESULT_SECONDS / interval)


_worker_pid: list[int] = []


@signals.worker_init.connect
def _remember_the_worker(**_: Any) -> None:
    _worker_pid[:] = [os.getpid()]


@signals.worker_process_init.connect
@signals.beat_embedded_init.connect
def _end_with_the_worker(**_: Any) -> None:
    """A worker that is killed cannot end its children: they see for themselves that they are alone."""

    def watch() -> None:
        while os.getppid() in _worker_pid:
            time.sleep(ORPHAN_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="orphan-watch", daemon=True).start()
