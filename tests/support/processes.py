"""Real processes: simulators, and gateways on either server with a data directory and a database of their own.

Every process takes a free port and says which; it is ended by its process id when its block or test ends.
"""

import contextlib
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from django.conf import settings
from pytest_django import DjangoDbBlocker

from accounts import tokens
from accounts.models import Caller
from gateway import config, publish
from reports.core.record import EndRecord, IntentRecord
from reports.spool import decode_line
from tests.support.databases import serving_from

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
"""Far more than it takes; a machine may be busy."""

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For requests to plain HTTP: loading the certificates of the world takes far longer than they do."""


class Process:
    """A `manage.py` command under way, its output in two files."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        environment: dict[str, str] | None = None,
        program: tuple[str, ...] = ("manage.py",),
    ) -> None:
        """`program`: what Python runs, and before `arguments`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.out = folder / "stdout"
        self.err = folder / "stderr"
        self._said_before = [file.stat().st_size if file.exists() else 0 for file in (self.out, self.err)]
        """Bytes in both files that an earlier process in this folder has written."""
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("PILOTAGE_", "DATABASE_URL", "REDIS_URL"))
        }
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self._popen = subprocess.Popen(
                [sys.executable, *program, *arguments],
                cwd=ROOT,
                env=inherited | {"PILOTAGE_DATA_DIR": str(folder / "data")} | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def address(self, announced: str) -> str:
        """The `http://host:port` that follows `announced` in the output."""
        found: list[str] = []

        def said() -> bool:
            found[:] = re.findall(re.escape(announced) + r" (http://[^\s/\"]+)", self.output())
            return bool(found)

        self.until(said, what=f"{announced!r}")
        return found[0]

    def until(self, condition: Callable[[], bool], *, what: str, seconds: float = START_SECONDS) -> None:
        """Looks again and again; fails with the output when the process ends or the time is up."""
        by = time.monotonic() + seconds
        while not condition():
            if not self.running:
                raise AssertionError(f"exit code {self._popen.returncode} before {what}:\n{self.output()}")
            if time.monotonic() > by:
                raise AssertionError(f"no {what} within {seconds:g} s:\n{self.output()}")
            time.sleep(0.02)

    def output(self) -> str:
        """What this process has said so far."""
        files = zip((self.out, self.err), self._said_before, strict=True)
        return "".join(file.read_bytes()[before:].decode(errors="replace") for file, before in files)

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def wait(self, seconds: float = 30.0) -> int:
        """The exit code."""
        return self._popen.wait(seconds)

    def stop(self, seconds: float = 30.0) -> int:
        """Ends it with SIGTERM, and with SIGKILL when that does not help in time, which fails the test."""
        if self.running:
            self.signal(signal.SIGTERM)
            try:
                self._popen.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return self._popen.returncode

    def kill(self) -> None:
        if self.running:
            self._popen.kill()
            self._popen.wait()


def descendants(pid: int) -> dict[int, str]:
    """The command line of every living process below `pid`, by process id."""
    found: dict[int, str] = {}
    for line in subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True).stdout.splitlines():
        child, parent, command = line.split(maxsplit=2)
        if int(parent) == pid:
            found |= {int(child): command} | descendants(int(child))
    return found


def is_alive(pid: int) -> bool:
    """A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class SimulatorProcess(Process):
    """`behaviour` are the fields of `gateway.simulator.Behaviour`."""

    def __init__(self, folder: Path, **behaviour: Any) -> None:
        name = str(behaviour.get("name", "simulator"))
        super().__init__(folder, "--port", "0", "--name", name, program=("-m", "tests.support.simulating"))
        self.origin = self.address(" serves")
        self.base_url = f"{self.origin}/v1"
        self.set(**behaviour)

    def set(self, **behaviour: Any) -> None:
        httpx.post(f"{self.origin}/control", json=behaviour, verify=NO_TLS).raise_for_status()

    def reset(self) -> None:
        httpx.post(f"{self.origin}/control/reset", verify=NO_TLS).raise_for_status()

    def counters(self) -> dict[str, int]:
        counters: dict[str, int] = httpx.get(f"{self.origin}/control", verify=NO_TLS).json()["counters"]
        return counters

    def last(self) -> dict[str, Any]:
        """`method`, `path`, `query`, `headers` (pairs) and `body` of the last request."""
        last: dict[str, Any] = httpx.get(f"{self.origin}/control/last", verify=NO_TLS).raise_for_status().json()
        return last

    def last_body(self) -> bytes:
        return httpx.get(f"{self.origin}/control/last/body", verify=NO_TLS).content


class GatewayProcess(Process):
    """A gateway that is ready. `url` is its address; tests reach its database through `open_database`.

    `known` is a token of `caller`, issued before the start: every worker knows it from its first request on.
    """

    def __init__(
        self,
        folder: Path,
        *,
        database: Path,
        configuration: str | None,
        server: str = "uvicorn",
        workers: int = 1,
        environment: dict[str, str] | None = None,
        port: int = 0,
        caller: str | None = None,
        unblock: DjangoDbBlocker,
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self._unblock = unblock
        self._database = self.data / "pilotage.sqlite3"
        if not self._database.exists():
            shutil.copy(database, self._database)
        if configuration is not None:
            self.configure(configuration)
        self.known = "" if caller is None else self.token(caller)
        pepper = (settings.PILOTAGE.data_dir / "token_pepper").read_text().strip()
        super().__init__(
            folder,
            "serve",
            *("--port", str(port), "--server", server, "--workers", str(workers)),
            environment={"PILOTAGE_TOKEN_PEPPER": pepper} | (environment or {}),
        )
        self.url = self.address("Pilotage serves")
        if configuration is not None:
            self.until(self.ready, what="readiness")

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5, verify=NO_TLS).status_code == 200
        except httpx.TransportError:
            return False

    @contextlib.contextmanager
    def open_database(self) -> Iterator[None]:
        with self._unblock.unblock(), serving_from(f"sqlite:///{self._database}"):
            yield

    def configure(self, text: str) -> int:
        """Publishes a configuration file; returns the Revision's number."""
        with self.open_database():
            return publish.import_configuration(config.load(text.encode()), author="test").published.number

    def token(self, caller: str = "tester", **how: Any) -> str:
        """A new token's secret. The running process knows it within two seconds: see `until_accepted`."""
        with self.open_database():
            return tokens.issue(Caller.objects.get(name=caller), **how)[1]

    def until_accepted(self, token: str) -> str:
        headers = {"authorization": f"Bearer {token}"}
        self.until(
            lambda: httpx.get(f"{self.url}/v1/models", headers=headers, verify=NO_TLS).status_code == 200,
            what="an accepted token",
        )
        return token

    def lines(self) -> list[dict[str, Any]]:
        """The exchange lines on standard output so far."""
        return [msgspec.json.decode(line) for line in self.out.read_bytes().splitlines() if line.startswith(b"{")]

    def records(self) -> list[IntentRecord | EndRecord]:
        """What stands in the spool, file by file."""
        files = sorted((self.data / "spool").glob("*.jsonl"))
        return [decode_line(line) for file in files for line in file.read_bytes().splitlines() if line]


StartSimulator = Callable[..., SimulatorProcess]
StartGateway = Callable[..., GatewayProcess]


@pytest.fixture
def start_simulator(tmp_path: Path) -> Iterator[StartSimulator]:
    """`start_simulator(name="swift", latency_ms=0, ...)`: as many as a test wants, ended with it."""
    started: list[SimulatorProcess] = []

    def start(**behaviour: Any) -> SimulatorProcess:
        process = SimulatorProcess(tmp_path / f"simulator-{len(started)}", **behaviour)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def start_gateway(tmp_path: Path, sqlite_template: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[StartGateway]:
    """`start_gateway(configuration, server="daphne", environment={...})`: a gateway that is ready, ended with the test."""
    started: list[GatewayProcess] = []

    def start(configuration: str | None, *, name: str = "", **how: Any) -> GatewayProcess:
        process = GatewayProcess(
            tmp_path / (name or f"gateway-{len(started)}"),
            database=sqlite_template,
            configuration=configuration,
            unblock=django_db_blocker,
            **how,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
