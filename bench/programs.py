"""The two programs in C: the stand-in for a provider, and the load generator."""

import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import bodies
from bench.machine import Cores, on_core, running

HERE = Path(__file__).parent
PROGRAMS = ("upstream", "load")
HOW_TO_INSTALL = "gcc is not installed: apt-get install gcc libc6-dev"
UPSTREAM_PORTS = 2
PATIENCE_S = 60.0
"""How long after its end the load generator may take."""


class CannotBuild(Exception):
    """The message says what is missing."""


def build(folder: Path) -> None:
    """Compiles both into `folder`. Raises `CannotBuild`."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise CannotBuild(HOW_TO_INSTALL)
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        command = [compiler, "-O2", "-Wall", "-o", str(folder / name), str(HERE / f"{name}.c")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotBuild(f"{name}.c does not compile:\n{done.stderr}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    pid: int
    ports: tuple[int, ...]
    """One process behind several ports: several providers to a gateway."""

    def requests(self) -> int:
        """POSTs answered since its start."""
        counted = json.load(_direct.open(f"http://127.0.0.1:{self.ports[0]}/stats"))
        return int(counted["requests"])


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextlib.contextmanager
def upstream(out: Path, cores: Cores) -> Iterator[Upstream]:
    log = out / "upstream.log"
    command: list[str | Path] = [out / "bin" / "upstream", *["0"] * UPSTREAM_PORTS]
    with running(command, core=cores.load, log=log) as process:
        while not (announced := log.read_text()).endswith("\n"):
            if process.poll() is not None:
                raise CannotBuild(f"the upstream ended: {announced}")
            time.sleep(0.01)
        yield Upstream(pid=process.pid, ports=tuple(int(port) for port in announced.split()))


def load(
    out: Path,
    cores: Cores,
    *,
    port: int,
    headers: Sequence[str],
    body: str,
    in_flight: int,
    seconds: float,
    requests: int | None = None,
    stream: bool = False,
) -> dict[str, Any]:
    """What `load` prints. Every request is a conversation of its own."""
    command = [str(out / "bin" / "load"), "-p", str(port), "-b", str(out / "bodies" / f"{body}.json")]
    command += ["-k", bodies.CONVERSATION, "-c", str(in_flight), "-d", str(seconds)]
    for header in headers:
        command += ["-H", header]
    if requests is not None:
        command += ["-n", str(requests)]
    if stream:
        command.append("-s")
    with on_core(cores.load):
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + PATIENCE_S, check=True)
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed
