"""The spool as a reader sees it: its files in order, their whole lines, and which are finished."""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reports.spool import SUFFIX

IDENTITY: Final = "spool.id"
LOCK: Final = "ingest.lock"
DAMAGED: Final = "damaged"
NEWER: Final = "newer"
"""Names in the spool's directory that are not files of records."""

LONGEST_LINE: Final = 4 << 20
"""Bytes. A record with all it may have is below one MiB; a line that does not end here is none."""


class AlreadyRunning(Exception):
    """Another ingest reads this spool. `pid`: its process, 0 when it cannot be told."""

    def __init__(self, pid: int) -> None:
        super().__init__(
            f"another ingest reads this spool, process {pid}" if pid else "another ingest reads this spool"
        )
        self.pid = pid


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    text: bytes
    """Without its end; cut when it is too long to be a record."""
    end: int
    """Offset in the file behind it."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Source:
    """A file of records."""

    process: str
    """What the names of one process's files have in common."""
    number: str
    name: str


class SpoolReader:
    """The files of one spool directory. Raises `OSError` for a directory that cannot be used."""

    def __init__(self, directory: Path, *, longest_line: int = LONGEST_LINE) -> None:
        self.directory = directory
        self._longest_line = longest_line

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, no other ingest reads this spool. Raises `AlreadyRunning`. The lock ends with the process."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                said = os.pread(fd, 32, 0).strip()
                raise AlreadyRunning(int(said) if said.isdigit() else 0) from error
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
            yield
        finally:
            os.close(fd)

    def identity(self) -> str:
        """The name under which the database remembers this directory; made at the first call."""
        path = self.directory / IDENTITY
        with contextlib.suppress(FileNotFoundError):
            if said := path.read_text().strip():
                return said
        made = secrets.token_hex(16)
        own = path.with_name(f".{IDENTITY}.{os.getpid()}")
        own.write_text(made + "\n")
        own.chmod(0o600)
        own.replace(path)
        return made

    def sources(self) -> list[Source]:
        """A process's files in the order in which it wrote them."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                    process, _, number = entry.name.removesuffix(SUFFIX).rpartition("-")
                    found.append(Source(process=process, number=number, name=entry.name))
        return sorted(found)

    def open(self, source: Source) -> "OpenFile":
        """Raises `OSError`."""
        return OpenFile(self.directory / source.name, self._longest_line)

    def remove(self, source: Source) -> None:
        (self.directory / source.name).unlink(missing_ok=True)


class OpenFile:
    """One file while it is being read; a context manager. A file that is finished gets no further line."""

    def __init__(self, path: Path, longest_line: int) -> None:
        self._longest_line = longest_line
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self.is_finished = self._is_free()
        self.size = os.fstat(self._fd).st_size
        """After the look at the lock: of a finished file it is final."""

    def __enter__(self) -> "OpenFile":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, offset: int, *, max_lines: int, max_bytes: int) -> list[Line]:
        """The next whole lines; empty at the end of what is there.

        The last line of a finished file counts as whole without its end; that of another is waited for.
        """
        data = os.pread(self._fd, max_bytes, offset)
        lines = list(_split(data, offset, max_lines))
        if lines or not data:
            return lines
        if len(data) == max_bytes < self._longest_line:
            return self.read(offset, max_lines=max_lines, max_bytes=self._longest_line)
        if len(data) >= self._longest_line:
            return self._overlong(data, offset)
        return [Line(text=data, end=offset + len(data))] if self.is_finished else []

    def _overlong(self, data: bytes, offset: int) -> list[Line]:
        """Its beginning stands for it. Behind it the file goes on."""
        at = offset + len(data)
        while piece := os.pread(self._fd, 1 << 20, at):
            found = piece.find(b"\n")
            if found >= 0:
                return [Line(text=data, end=at + found + 1)]
            at += len(piece)
        return [Line(text=data, end=at)] if self.is_finished else []

    def _is_free(self) -> bool:
        """Whether its writer is gone. Where the file system knows no locks, nobody can tell, and it stays."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


class Aside:
    """A file for lines that cannot become rows, mode 0600 and bounded."""

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def add(self, lines: Sequence[bytes]) -> int:
        """How many found room. Raises `OSError`."""
        if not lines:
            return 0
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            room = self._max_bytes - os.fstat(fd).st_size
            for kept, line in enumerate(lines):
                room -= len(line) + 1
                if room < 0:
                    return kept
                os.write(fd, line + b"\n")
        finally:
            os.close(fd)
        return len(lines)


def _split(data: bytes, offset: int, max_lines: int) -> Iterator[Line]:
    start = 0
    for _ in range(max_lines):
        end = data.find(b"\n", start) + 1
        if not end:
            return
        yield Line(text=data[start : end - 1], end=offset + end)
        start = end
