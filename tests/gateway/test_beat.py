"""The schedule: what is remembered over a restart, and that one scheduler sends while others stand by."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from gateway.beat import STANDBY_SECONDS, KeptScheduler


@pytest.fixture
def app() -> Celery:
    app = Celery("schedule", broker="memory://", set_as_current=False)
    app.conf.update(
        beat_sync_every=1,
        beat_schedule={
            "often": {"task": "tests.often", "schedule": 100.0},
            "rarely": {"task": "tests.rarely", "schedule": 10_000.0},
        },
    )
    return app


class Sent(KeptScheduler):
    """Keeps what it would send."""

    def __init__(self, *args: Any, **how: Any) -> None:
        self.sent: list[str] = []
        super().__init__(*args, **how)

    def send_task(self, *args: Any, **how: Any) -> None:
        self.sent.append(args[0])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "schedule.json"


def scheduler(app: Celery, file: Path) -> Sent:
    return Sent(app, schedule_filename=str(file))


def seconds_ago(seconds: float) -> float:
    return datetime.datetime.now(datetime.UTC).timestamp() - seconds


def kept(file: Path, content: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))


def turns(found: Sent) -> list[str]:
    """What it sends now."""
    for _ in range(4):
        found.tick()
    found.close()
    return found.sent


def test_what_became_due_while_nobody_ran_is_sent_at_the_start_and_nothing_else(app: Celery, file: Path) -> None:
    kept(file, {"often": seconds_ago(101), "rarely": seconds_ago(101)})
    assert turns(scheduler(app, file)) == ["tests.often"]
    assert turns(scheduler(app, file)) == []
    runs = json.loads(file.read_text())
    assert (set(runs), round(runs["often"] - runs["rarely"])) == ({"often", "rarely"}, 101)


def test_a_first_start_waits_for_the_first_turn(app: Celery, file: Path) -> None:
    assert turns(scheduler(app, file)) == []
    assert set(json.loads(file.read_text())) == {"often", "rarely"}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", "\x00", {"often": "soon", "rarely": None}, {"gone": 1.0}, {"often": -1e300}]
)
def test_a_file_that_says_nothing_counts_as_none(app: Celery, file: Path, content: object) -> None:
    kept(file, content)
    assert turns(scheduler(app, file)) == []
    assert set(json.loads(file.read_text())) == {"often", "rarely"}


def test_a_run_that_is_still_to_come_by_a_clock_that_was_set_back_holds_nothing_up(app: Celery, file: Path) -> None:
    kept(file, {"often": seconds_ago(-100_000), "rarely": seconds_ago(20_000)})
    found = scheduler(app, file)
    last = found.schedule["often"].last_run_at
    assert last is not None
    assert last.timestamp() <= seconds_ago(0)
    assert turns(found) == ["tests.rarely"]


def test_one_sends_and_another_takes_over_with_what_the_first_has_kept(app: Celery, file: Path) -> None:
    kept(file, {"often": seconds_ago(101), "rarely": seconds_ago(10_001)})
    first, second = scheduler(app, file), scheduler(app, file)
    assert (second.tick(), second.sent) == (STANDBY_SECONDS, [])
    assert sorted(turns(first)) == ["tests.often", "tests.rarely"]
    assert turns(second) == []
    third = scheduler(app, file)
    assert third.tick() > STANDBY_SECONDS


def test_a_disk_that_cannot_be_written_stops_no_task(app: Celery, file: Path) -> None:
    kept(file, {"often": seconds_ago(101)})
    found = scheduler(app, file)
    file.unlink()
    file.mkdir()  # nothing replaces a directory
    assert turns(found) == ["tests.often"]
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == []
