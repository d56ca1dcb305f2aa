"""A Redis server of one test's own: on a free loopback port, without persistence to anywhere but its folder."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

HOW_TO_INSTALL = "Redis is not installed: apt-get install redis-server"


class RedisServer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = int(s.getsockname()[1])
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """What was written before it was killed is there again."""
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder),
                 "--save", "", "--appendonly", "yes", "--appendfsync", "no", "--daemonize", "no"],
                stdout=log, stderr=log,
            )  # fmt: skip
        by = time.monotonic() + 30
        while time.monotonic() < by and self._server.poll() is None:
            with contextlib.suppress(redis.RedisError), self.client() as client:
                client.ping()
                return
            time.sleep(0.02)
        raise RuntimeError(f"Redis did not start:\n{(self._folder / 'log').read_text()}")

    def client(self) -> "redis.Redis":
        return redis.Redis(port=self.port, socket_timeout=5)

    def kill(self) -> None:
        self._server.kill()
        self._server.wait()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    if shutil.which("redis-server") is None:
        if os.environ.get("CI"):
            pytest.fail(HOW_TO_INSTALL)
        pytest.skip(HOW_TO_INSTALL)
    folder = Path(tempfile.mkdtemp(prefix="pilotage-redis-", dir="/tmp"))
    server = RedisServer(folder)
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
