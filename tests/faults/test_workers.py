"""Workers and brokers that die, and messages that are none: what was asked for is done in the end, and nothing is left behind."""

import json
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import is_alive
from tests.support.redis_server import RedisServer, redis_server
from tests.support.working import Broker, Worker, files_broker, lines, redis_broker

__all__ = ["redis_server"]

pytestmark = pytest.mark.e2e

StartWorker = Callable[..., Worker]


@pytest.fixture
def files(tmp_path: Path) -> Broker:
    return files_broker(tmp_path / "data")


@pytest.fixture
def on_redis(redis_server: RedisServer) -> Broker:
    return redis_broker(redis_server.url)


@pytest.fixture(params=["files", "on_redis"])
def broker(request: pytest.FixtureRequest) -> Broker:
    found: Broker = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Workers that share one data directory, ended with the test."""
    started: list[Worker] = []

    def start(broker: Broker, *arguments: str, **environment: str) -> Worker:
        own = {"PILOTAGE_DATA_DIR": str(tmp_path / "data")} | broker.environment | environment
        worker = Worker(tmp_path / f"worker-{len(started)}", *arguments, environment=own)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.kill()


def until(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    by = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < by
        time.sleep(0.02)


def test_a_worker_runs_what_was_sent_and_lets_the_running_task_end_before_it_does(
    broker: Broker, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker(broker)
    broker.send("tests.note", str(tmp_path / "notes"), "one")
    worker.until(lambda: lines(tmp_path / "notes") == ["one"], what="the note")
    broker.send("tests.hold", str(tmp_path))
    worker.until(lambda: len(lines(tmp_path / "begun")) == 1, what="a task under way")
    children = worker.children()
    worker.signal(signal.SIGTERM)
    worker.until(lambda: "Warm shutdown" in worker.output(), what="the shutdown")
    (tmp_path / "go").touch()
    assert worker.wait() == 0
    assert len(lines(tmp_path / "done")) == 1
    assert [pid for pid in children if is_alive(pid)] == []
    assert broker.waiting() == 0


def test_a_task_whose_worker_was_killed_is_done_by_another(
    broker: Broker, start_worker: StartWorker, tmp_path: Path
) -> None:
    """On Redis after twice the time limit."""
    limits = {"PILOTAGE_TASK_SOFT_SECONDS": "1", "PILOTAGE_TASK_HARD_SECONDS": "2"} if broker.kind == "redis" else {}
    first = start_worker(broker, "--schedule", **limits)
    broker.send("tests.hold", str(tmp_path))
    first.until(lambda: len(lines(tmp_path / "begun")) == 1, what="a task under way")
    children = first.children()
    assert len(children) == 2  # the task's, and the schedule's
    first.kill()
    (tmp_path / "go").touch()
    until(lambda: not any(is_alive(pid) for pid in children))
    second = start_worker(broker, **limits)
    second.until(lambda: len(lines(tmp_path / "begun")) == 2, what="the task again")
    second.until(lambda: lines(tmp_path / "begun")[1] in lines(tmp_path / "done"), what="its end")
    assert second.stop() == 0
    assert broker.waiting() == 0


def test_a_worker_whose_schedule_was_killed_ends_too(files: Broker, start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker(files, "--schedule")
    children = worker.children()
    lock = tmp_path / "data/schedule.lock"

    def scheduling() -> list[int]:
        return [pid for pid in children if any(fd.resolve() == lock for fd in Path(f"/proc/{pid}/fd").iterdir())]

    worker.until(lambda: len(scheduling()) == 1, what="a schedule")
    os.kill(scheduling()[0], signal.SIGKILL)
    assert worker.wait() == 0
    assert "the schedule's process has ended" in worker.output()
    assert [pid for pid in children if is_alive(pid)] == []


def test_pickle_is_refused(broker: Broker, start_worker: StartWorker, tmp_path: Path) -> None:
    class Planted:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {tmp_path / 'planted'}",)

    body = pickle.dumps(((Planted(),), {}, {}))
    pickle.loads(body)
    assert (tmp_path / "planted").exists()  # it would bite
    (tmp_path / "planted").unlink()
    worker = start_worker(broker)
    with broker.connection() as connection, connection.channel() as channel:
        for content_type in ("application/x-python-serialize", "pickle", "application/x-yaml"):
            message = channel.prepare_message(
                body,
                content_type=content_type,
                content_encoding="binary",
                headers={"task": "tests.note", "id": "1", "lang": "py", "argsrepr": "", "kwargsrepr": ""},
                properties={"correlation_id": "1"},
            )
            channel.basic_publish(message, exchange="", routing_key="pilotage")
    broker.send("tests.note", str(tmp_path / "notes"), "after")
    worker.until(lambda: lines(tmp_path / "notes") == ["after"], what="the task behind them")
    refused = [line for line in worker.output().splitlines() if "Refusing to deserialize untrusted content" in line]
    assert len(refused) == 3
    assert not (tmp_path / "planted").exists()
    worker.until(lambda: broker.waiting() == 0, what="an empty queue")


def test_a_broker_folder_full_of_garbage_stops_nobody(files: Broker, start_worker: StartWorker, tmp_path: Path) -> None:
    files.send("tests.note", str(tmp_path / "notes"), "first")
    waiting, damaged = tmp_path / "data/broker/waiting", tmp_path / "data/broker/damaged"
    true = json.loads(next(waiting.iterdir()).read_text())

    def name(number: int) -> str:
        return f"{number:020d}-0-{number:032x}.pilotage.json"

    garbage = [
        b"",
        b"\x00" * 4096,
        b"{",
        b"null",
        b"[]",
        b"{}",
        json.dumps(true | {"properties": None}).encode(),
        json.dumps(true | {"body": "not base64 \u20ac"}).encode(),
        b"[" * 100_000,
        b" " * (2 << 20),
    ]
    for number, content in enumerate(garbage):
        (waiting / name(number)).write_bytes(content)
    for number in range(500):
        (waiting / f"garbage-{number}").write_bytes(os.urandom(64))
    (waiting / name(100)).mkdir()
    os.mkfifo(waiting / name(101))
    (waiting / name(102)).symlink_to("/etc/hostname")
    (tmp_path / "data/broker/taken/nobody").mkdir()
    (tmp_path / "data/broker/taken/nobody/notes").write_text("?")
    (tmp_path / "data/broker/taken/file").write_text("?")
    worker = start_worker(files)
    files.send("tests.note", str(tmp_path / "notes"), "last")
    worker.until(lambda: lines(tmp_path / "notes") == ["first", "last"], what="both notes")
    assert sorted(path.name for path in damaged.iterdir()) == sorted([*map(name, range(len(garbage))), "notes"])
    assert len(list(waiting.iterdir())) == 503


def test_a_broker_folder_that_is_removed_is_made_again(
    files: Broker, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker(files)
    folder = tmp_path / "data/broker"
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    worker.until(lambda: (folder / "waiting").is_dir(), what="the folder")
    files.send("tests.note", str(tmp_path / "notes"), "again")
    worker.until(lambda: lines(tmp_path / "notes") == ["again"], what="the note")
    assert folder.stat().st_mode & 0o077 == 0


def test_redis_may_be_killed_and_started_again(
    on_redis: Broker, redis_server: RedisServer, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker(on_redis, "--schedule")
    on_redis.send("tests.note", str(tmp_path / "notes"), "before")
    worker.until(lambda: lines(tmp_path / "notes") == ["before"], what="the first note")
    redis_server.kill()
    worker.until(lambda: "Cannot connect to redis" in worker.output(), what="a word about it")
    redis_server.start()
    with redis_server.client() as client:
        client.flushall()
    on_redis.send("tests.note", str(tmp_path / "notes"), "after")
    worker.until(lambda: lines(tmp_path / "notes") == ["before", "after"], what="the second note")
    assert worker.stop() == 0


def test_a_task_that_ends_while_redis_is_away_does_not_hold_its_worker_up_for_ever(
    on_redis: Broker, redis_server: RedisServer, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker(on_redis)
    on_redis.send("tests.hold", str(tmp_path))
    worker.until(lambda: len(lines(tmp_path / "begun")) == 1, what="a task under way")
    redis_server.kill()
    (tmp_path / "go").touch()
    worker.until(lambda: "Couldn't ack" in worker.output(), what="its end")
    redis_server.start()
    on_redis.send("tests.note", str(tmp_path / "notes"), "after")
    worker.until(lambda: lines(tmp_path / "notes") == ["after"], what="the note")


def test_a_worker_ends_when_it_is_told_while_redis_is_away(
    on_redis: Broker, redis_server: RedisServer, start_worker: StartWorker
) -> None:
    worker = start_worker(on_redis, "--schedule")
    children = worker.children()
    redis_server.kill()
    worker.until(lambda: "broker" in worker.err.read_text().lower(), what="a word about it")
    worker.stop()
    assert [pid for pid in children if is_alive(pid)] == []
