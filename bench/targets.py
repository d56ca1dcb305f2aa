"""What can be measured: how each is made ready, started and asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class Unavailable(Exception):
    """This target cannot be measured here; the message says why, and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A gateway that is ready to be started."""

    command: Sequence[str | Path]
    port: int
    headers: Sequence[str] = ()
    """Sent with every request: `Name: value`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


class Target(Protocol):
    name: str
    title: str
    """In the table."""
    home: str
    """The folder of its installation below `out/peers`."""

    def install(self, folder: Path) -> str:
        """Puts it into `folder` unless it is there; its version. Raises `Unavailable`."""
        ...

    def prepare(self, folder: Path, upstreams: Sequence[int], *, installed: Path) -> Start | None:
        """Writes its configuration into `folder` for the upstreams on these ports.

        `installed`: what `install` got. `None`: there is nothing to start, the upstream itself is asked. Raises
        `Unavailable`.
        """
        ...


class Direct:
    """No gateway: what the upstream and the load generator do between themselves."""

    name = home = "direct"
    title = "direct, no gateway"

    def install(self, folder: Path) -> str:
        return ""

    def prepare(self, folder: Path, upstreams: Sequence[int], *, installed: Path) -> Start | None:
        return None
