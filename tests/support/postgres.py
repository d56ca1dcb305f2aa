"""A PostgreSQL server of the tests' own: made in a temporary directory, on a free loopback port, gone afterwards."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

HOW_TO_INSTALL = "PostgreSQL is not installed: apt-get install postgresql"


class PostgresCluster:
    """A server that can be stopped and started again, with what it holds."""

    def __init__(self, binaries: Path, folder: Path, as_user: list[str]) -> None:
        self.port = _free_port()
        self._command = [
            *as_user, str(binaries / "postgres"), "-D", str(folder / "data"), "-h", "127.0.0.1", "-p", str(self.port),
            "-k", str(folder), "-c", "fsync=off", "-c", "max_connections=50",
        ]  # fmt: skip
        self._folder = folder
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self._folder)
        self._wait_until_it_answers(self._server)

    def stop(self) -> None:
        """Ends connections, then itself."""
        server, self._server = self._server, None
        if server is None:
            return
        server.send_signal(signal.SIGINT)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()

    def url(self, database: str) -> str:
        return f"postgres://pilotage@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str) -> str:
        """Makes it anew, empty; its URL."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def _wait_until_it_answers(self, server: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end and server.poll() is None:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url("postgres"), connect_timeout=2).close()
                return
            time.sleep(0.05)
        raise RuntimeError(f"PostgreSQL did not start:\n{(self._folder / 'log').read_text()}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresCluster]:
    binaries = _binaries()
    if binaries is None:
        if os.environ.get("CI"):
            pytest.fail(HOW_TO_INSTALL)
        pytest.skip(HOW_TO_INSTALL)
    folder = Path(tempfile.mkdtemp(prefix="pilotage-postgres-", dir="/tmp"))
    as_user: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    data = folder / "data"
    subprocess.run(
        [*as_user, str(binaries / "initdb"), "--pgdata", str(data), "--username", "pilotage", "--auth", "trust",
         "--encoding", "UTF8", "--no-sync"],
        check=True, capture_output=True, cwd=folder,
    )  # fmt: skip
    cluster = PostgresCluster(binaries, folder, as_user)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _binaries() -> Path | None:
    """The directory of `initdb` and `postgres`: of the path, or the newest where Debian keeps them."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent if shutil.which("postgres") else None
    kept = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: float(p.parts[-3]))
    return kept[-1].parent if kept else None


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
