"""When the scheduled tasks are due: Celery's scheduler, with the times of the last runs in a JSON file.

Any number of schedulers may run beside each other on one machine: the one that holds the file's lock sends, the others
stand by and take over when it ends.
"""

import datetime
import fcntl
import json
import logging
import os
import secrets
from pathlib import Path
from typing import Any

from celery.beat import ScheduleEntry, Scheduler

log = logging.getLogger("pilotage.schedule")

STANDBY_SECONDS = 5.0
"""How often a scheduler that stands by asks whether the other is gone."""


class KeptScheduler(Scheduler):
    def __init__(self, *args: Any, schedule_filename: str, **how: Any) -> None:
        self._path = Path(schedule_filename)
        self._lock = -1
        super().__init__(*args, **how)

    def setup_schedule(self) -> None:
        super().setup_schedule()
        if self._leads():
            self._recall()

    def tick(self, *args: Any, **how: Any) -> float:
        """Sends what is due; seconds until it wants to be called again."""
        if self._lock < 0:
            if not self._leads():
                return STANDBY_SECONDS
            self._recall()
        return float(super().tick(*args, **how))

    def sync(self) -> None:
        """Keeps the times of the last runs. A disk that is full costs a run too many after a restart, no more."""
        if self._lock < 0:
            return
        runs = {name: entry.last_run_at.timestamp() for name, entry in self.schedule.items() if entry.last_run_at}
        new = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        try:
            new.touch(0o600)
            new.write_text(json.dumps(runs, indent=1))
            new.replace(self._path)
        except OSError as problem:
            log.error("the times of scheduled tasks cannot be kept: %s", problem)
            new.unlink(missing_ok=True)

    def close(self) -> None:
        super().close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def info(self) -> str:
        return f"    . file -> {self._path}"

    def _leads(self) -> bool:
        """Whether this process holds the lock, taking it if nobody does."""
        if self._lock < 0:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
            else:
                self._lock = lock
        return self._lock >= 0

    def _recall(self) -> None:
        """The times of the last runs, as a scheduler before this one kept them. What is no time counts as never kept."""
        try:
            runs = json.loads(self._path.read_text())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as problem:
            log.error("the times of scheduled tasks cannot be read: %s", problem)
            return
        for name, at in runs.items() if isinstance(runs, dict) else ():
            entry: ScheduleEntry | None = self.schedule.get(name)
            if entry is None or not isinstance(at, int | float):
                continue
            now = entry.default_now()
            if 0 <= at < now.timestamp():  # a time to come would hold the task back until then
                entry.last_run_at = datetime.datetime.fromtimestamp(at, now.tzinfo)
