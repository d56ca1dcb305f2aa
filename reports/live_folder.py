"""Where gateway processes and watchers of one machine meet: a folder of the data directory.

Whoever watches touches a file once a second; while it is fresh, each gateway process writes what it has to say into one
of its own. Nobody watching costs a process one look at the file a second.
"""

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Final

import msgspec

from reports.core.live import Said

log = logging.getLogger("pilotage.live")

STALE_SECONDS: Final = 4.0
"""After which nobody watches any more, or a process says nothing any more."""
MAX_BYTES: Final = 4 << 20


class LiveFolder:
    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / "live"
        self._watched = self.path / "watched"
        self._own = self.path / f"{os.getpid()}.json"
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(Said)

    def watch(self) -> None:
        """Raises `OSError`."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._watched, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.utime(descriptor)
        finally:
            os.close(descriptor)

    def is_watched(self, *, now: float) -> bool:
        try:
            return abs(now - self._watched.stat().st_mtime) < STALE_SECONDS
        except OSError:
            return False

    def say(self, said: Said) -> None:
        """Raises `OSError`."""
        new = self._own.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(self._encoder.encode(said))
        new.replace(self._own)

    def fall_silent(self) -> None:
        with contextlib.suppress(OSError):
            self._own.unlink()

    def said(self, *, now: float) -> list[Said]:
        """Of every process that still says something. Removes what the dead have left."""
        found = []
        for path in sorted(self.path.glob("*.json")):
            try:
                if now - path.stat().st_mtime >= 15 * STALE_SECONDS:
                    path.unlink()
                    continue
                with path.open("rb") as file:
                    said = self._decoder.decode(file.read(MAX_BYTES))
            except FileNotFoundError:
                continue
            except (OSError, msgspec.MsgspecError) as problem:
                log.warning("%s cannot be read: %s", path, problem)
                continue
            if abs(now - said.at) < STALE_SECONDS:
                found.append(said)
        return found


def seconds_until_tick(now: float | None = None) -> float:
    """So that all processes speak at the same moment of a second, and watchers listen half a second later."""
    at = time.time() if now is None else now
    return 1.0 - at % 1.0
