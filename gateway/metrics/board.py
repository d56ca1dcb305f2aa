"""Where the workers of one server leave their figures for each other, so that whoever is asked answers for all.

One file per worker, replaced whole. The file of a worker that died stays, and the one that takes its place counts on:
a sum over workers that went back would look to Prometheus like a restart.
"""

import logging
import os
import shutil
from pathlib import Path

import msgspec

from gateway.metrics.counts import Counts
from gateway.metrics.families import Gauges

log = logging.getLogger("pilotage.metrics")

STALE_SECONDS = 10.0
"""A worker whose file is older does not say any more how it stands."""


class Shared(msgspec.Struct, kw_only=True):
    """What one worker says."""

    pid: int
    at: float
    """Unix seconds."""
    counts: Counts
    gauges: Gauges


class Board:
    def __init__(self, folder: Path, *, server: int, number: int) -> None:
        """`server`: the process that the workers have in common; `number`: of this worker among them."""
        self._root = folder
        self._folder = folder / str(server)
        self._own = self._folder / f"{number}.msgpack"
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Shared)

    def open(self) -> Shared | None:
        """What the worker before this one said last. Removes what servers left that are gone."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in self._root.iterdir():
            if folder != self._folder and not (folder.name.isdigit() and is_alive(int(folder.name))):
                shutil.rmtree(folder, ignore_errors=True)
        return self._read(self._own)

    def say(self, shared: Shared) -> None:
        """Raises `OSError`."""
        new = self._own.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(self._encoder.encode(shared))
        new.replace(self._own)

    def others(self) -> list[Shared]:
        """What the other workers said last, dead ones included."""
        said = [self._read(path) for path in sorted(self._folder.glob("*.msgpack")) if path != self._own]
        return [shared for shared in said if shared is not None]

    def _read(self, path: Path) -> Shared | None:
        try:
            return self._decoder.decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as problem:
            log.error("the figures in %s cannot be read: %s", path, problem)
            return None


def stands(shared: Shared, *, now: float) -> bool:
    """Whether the worker still is as it said."""
    return now - shared.at < STALE_SECONDS and is_alive(shared.pid)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
