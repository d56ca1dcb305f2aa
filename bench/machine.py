"""Processes on their cores, and what they use: from `/proc`, with all their children."""

import contextlib
import os
import platform
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Where what runs; `None`: wherever the system likes."""

    load: int | None
    """The load generator and the upstream."""
    gateway: int | None


def two_cores() -> Cores:
    """The first two of those that this process may use; nothing is pinned where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return Cores(load=usable[0], gateway=usable[1]) if len(usable) > 1 else Cores(load=None, gateway=None)


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Processes started inside run on this core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def running(
    command: Sequence[str | Path],
    *,
    core: int | None,
    log: Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process and what it starts, ended with the block. Its output goes to `log`.

    It inherits neither a proxy nor a setting of Pilotage.
    """
    with log.open("wb") as output, on_core(core):
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd,
            env=plain_environment() | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the session is its own: whatever it left behind
        process.wait()


def plain_environment() -> dict[str, str]:
    """Ours, without what would make one machine measure something else than another."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy") and not name.startswith(("PILOTAGE_", "DATABASE_URL", "REDIS_URL"))
    }


def cpu_seconds(pid: int) -> float:
    """Of the process and all below it, those that have ended and been waited for included."""
    return sum(_times(each) for each in _tree(pid))


def memory_mib(pid: int) -> float:
    """Resident memory of the process and all below it. What several of them share counts in each."""
    total = 0
    for each in _tree(pid):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * PAGE
    return total / MIB


def busy_seconds() -> float:
    """CPU time of all cores since the start of the machine, without idling and waiting."""
    user, nice, system, _idle, _waiting, *interrupts = (
        int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    )
    return (user + nice + system + sum(interrupts[:2])) / TICKS


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def describe() -> dict[str, str]:
    """The kind of machine, for whoever reads the figures."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    return {
        "cpu": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "system": f"Linux {platform.release().split('-')[0]}",
        "python": platform.python_version(),
    }


def _tree(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(_stat(int(entry))[1]), []).append(int(entry))
    found = [pid]
    for each in found:
        found.extend(children.get(each, ()))
    return found


def _times(pid: int) -> float:
    """Seconds in user and system mode, its own and those of children that it has waited for."""
    try:
        return sum(int(field) for field in _stat(pid)[11:15]) / TICKS
    except OSError:
        return 0.0


def _stat(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` behind the name, which may hold anything: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
