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
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

HOW_TO_INSTALL = "PostgreSQL is not installed: apt-get install postgresql"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresCluster:
    port: int
    pid: int

    def url(self, database: str) -> str:
        return f"postgres://pilotage@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str) -> str:
        """Makes it anew, empty; its URL."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)


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
    port = _free_port()
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*as_user, str(binaries / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(port),
             "-k", str(folder), "-c", "fsync=off", "-c", "max_connections=50"],
            stdout=log, stderr=log, cwd=folder,
        )  # fmt: skip
    cluster = PostgresCluster(port=port, pid=server.pid)
    try:
        _wait_until_it_answers(cluster, server, folder / "log")
        yield cluster
    finally:
        server.send_signal(signal.SIGINT)  # ends connections, then itself
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_it_answers(cluster: PostgresCluster, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(cluster.url("postgres"), connect_timeout=2).close()
            return
        time.sleep(0.05)
    raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}")


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
