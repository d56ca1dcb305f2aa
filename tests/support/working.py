"""Real workers with tasks of the tests' own. Run as a module, this is such a worker; tests import the rest."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    import django

    django.setup()

from kombu import Connection

from gateway.celery import app
from tests.support.processes import Process


@app.task(name="tests.note")
def note(path: str, text: str) -> None:
    with open(path, "a") as file:
        file.write(f"{text}\n")


@app.task(name="tests.hold")
def hold(folder: str) -> None:
    """Says in `folder` that it has begun, waits there for `go`, then says that it is done."""
    here = Path(folder)
    note(str(here / "begun"), str(os.getpid()))
    while not (here / "go").exists():
        time.sleep(0.02)
    note(str(here / "done"), str(os.getpid()))


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class Worker(Process):
    """A worker that is ready, on the broker that `environment` names."""

    def __init__(self, folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        super().__init__(
            folder,
            *arguments,
            environment={"DJANGO_SETTINGS_MODULE": "gateway.settings"} | (environment or {}),
            program=("-m", "tests.support.working"),
        )
        self.until(lambda: "the worker is ready" in self.output(), what="a worker")

    def children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]


class Broker:
    """What stands between a test and its workers. `environment` makes a worker use it."""

    def __init__(self, kind: str, environment: dict[str, str], url: str, options: dict[str, Any]) -> None:
        self.kind = kind
        self.environment = environment
        self._url, self._options = url, options

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A `Connection`, whose channels are those of kombu's virtual transports."""
        with Connection(self._url, transport_options=self._options) as connection:
            yield connection

    def send(self, name: str, *args: Any, **how: Any) -> None:
        with self.connection() as connection:
            app.send_task(name, args=args, connection=connection, **how)

    def waiting(self) -> int:
        with self.connection() as connection, connection.channel() as channel:
            return int(channel._size("pilotage"))


def files_broker(data_dir: Path) -> Broker:
    return Broker("files", {}, "files://localhost", {"folder": str(data_dir / "broker"), "polling_interval": 0.1})


def redis_broker(url: str) -> Broker:
    return Broker("redis", {"REDIS_URL": url}, url, {"global_keyprefix": "pilotage:"})


if __name__ == "__main__":
    from django.core.management import call_command

    call_command("worker", *sys.argv[1:])
