"""Telling what happened without ever waiting: records to an append-only file, log lines to a stream.

A record is one JSON line. `flush` writes those that are queued with one `write` on a descriptor opened for appending: once it
has returned, they survive the death of the process. Each process has files of its own, `NAME-PID-START-NUMBER.jsonl`, and
keeps the newest locked (`flock`) as long as it lives: a file that can be locked is finished.
"""

import atexit
import contextlib
import fcntl
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from reports.core.record import EndRecord, GapRecord, IntentRecord

SUFFIX = ".jsonl"
_CHECK_EVERY_BYTES = 4 << 20
"""How much this process writes between two looks at what all processes together have on disk."""
_PAUSE_S = 1.0
"""After a failure, and while the bound is reached, the disk is asked again once in this time."""


class _Process:
    """Which process this is, without asking the kernel for every record."""

    def __init__(self) -> None:
        self.look()
        os.register_at_fork(after_in_child=self.look)

    def look(self) -> None:
        self.id = os.getpid()


process = _Process()


class _DiskFull(OSError):
    def __init__(self, written: int) -> None:
        """`written`: whole lines that found room."""
        self.written = written
        super().__init__("the disk is full")


class Spool:
    """Appends the records of one process. Never raises: what cannot be written is dropped and counted.

    Whoever queues flushes within the same turn of the loop: nothing else bounds the queue.
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "records",
        max_file_bytes: int = 64 << 20,
        max_total_bytes: int = 2 << 30,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_total_bytes` bounds the spool files of all processes in `directory` together; `clock` gives seconds."""
        self.dropped = 0
        """Records not written since the start: bound reached, disk full, directory not writable."""
        self.written = 0
        self.problem: str | None = None
        """Why records are being dropped now; `None`: they are not."""
        self._told = 0
        """Of the dropped records, those that a line of a file tells of."""
        self._directory = directory
        self._name = name
        self._max_file_bytes = max_file_bytes
        self._max_total_bytes = max_total_bytes
        self._clock = clock
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()
        """The queued lines; after `flush` the old ones, until others are written over them."""
        self._queued = 0
        self._queued_bytes = 0
        self._fd = -1
        self._pid = 0
        self._prefix = ""
        self._number = 0
        self._file_bytes = 0
        self._total_bytes = 0
        self._unchecked_bytes = 0
        self._torn = False
        self._retry_at = 0.0

    def intent(self, record: IntentRecord) -> None:
        self._queue(record)

    def end(self, record: EndRecord) -> None:
        self._queue(record)

    def flush(self) -> None:
        """Writes what is queued."""
        queued, size = self._queued, self._queued_bytes
        if not queued:
            return
        self._queued = self._queued_bytes = 0
        try:
            if self._may_write(size):
                self._write(self._buffer)
                self.written += queued
            else:
                self.dropped += queued
        except _DiskFull as full:
            self.written += full.written
            self._fail(str(full), queued - full.written)
        except (OSError, ValueError) as error:
            self._fail(str(error), queued)

    def close(self) -> None:
        """Writes what is queued, ends the file and frees it for reading. A later record opens another."""
        self.flush()
        self._end_file()

    def _end_file(self) -> None:
        if self._fd >= 0:
            if self._pid == process.id:
                with contextlib.suppress(OSError):
                    self._tell_of_dropped()
            os.close(self._fd)
            self._fd = -1

    def _queue(self, record: IntentRecord | EndRecord) -> None:
        if self._pid != process.id:
            self._start_process()
        buffer = self._buffer
        try:
            self._encoder.encode_into(record, buffer, self._queued_bytes)
        except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            del buffer[self._queued_bytes :]
            self.dropped += 1
            self.problem = str(error)
            return
        buffer.append(0x0A)
        self._queued_bytes = len(buffer)
        self._queued += 1

    def _may_write(self, size: int) -> bool:
        if self._retry_at:
            if self._clock() < self._retry_at:
                return False
            self._retry_at = 0.0
            self._measure()
        if self._fd < 0 or (self._file_bytes and self._file_bytes + size > self._max_file_bytes):
            self._rotate()
        elif self._unchecked_bytes >= _CHECK_EVERY_BYTES:
            self._measure()
        if self._total_bytes + size > self._max_total_bytes:
            self._retry_at = self._clock() + _PAUSE_S
            self.problem = f"the spool's bound of {self._max_total_bytes} bytes is reached"
            return False
        if self.problem is not None:
            self._tell_of_dropped()
            self.problem = None
        return True

    def _tell_of_dropped(self) -> None:
        """Writes how many records are missing here, so that whoever reads the file knows."""
        missing = self.dropped - self._told
        if not missing:
            return
        self._write(bytearray(self._encoder.encode(GapRecord(at=time.time(), dropped=missing)) + b"\n"))
        self._told = self.dropped

    def _write(self, lines: bytearray) -> None:
        """Raises `OSError`; `_DiskFull`, if not all of it was written."""
        torn = self._torn
        if torn:
            lines[:0] = b"\n"
        done = os.write(self._fd, lines)
        self._file_bytes += done
        self._total_bytes += done
        self._unchecked_bytes += done
        # A disk that fills up takes the beginning of a line. The next line starts on one of its own.
        self._torn = done < len(lines) and not lines.endswith(b"\n", 0, done)
        if done < len(lines):
            raise _DiskFull(max(lines.count(b"\n", 0, done) - torn, 0))

    def _start_process(self) -> None:
        """The first record, or the first one after a fork: the file of the parent is not ours."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._pid:  # what the parent dropped, the parent tells; what it queued, it writes
            self._told = self.dropped
            self._queued = self._queued_bytes = 0
        self._pid = process.id
        self._prefix = f"{self._name}-{self._pid}-{time.time_ns() // 1_000_000}"
        self._number = 0

    def _rotate(self) -> None:
        """The new file is locked before it has its name, and has it before the old one is free: to a reader, a process
        that lives always has a file that cannot be locked."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._directory / f"{self._prefix}-{self._number:04d}{SUFFIX}"
        own = path.with_suffix(".begun")
        fd = os.open(own, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with contextlib.suppress(OSError):  # a file system without locks still keeps records
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            own.rename(path)
        except OSError:
            os.close(fd)
            own.unlink(missing_ok=True)
            raise
        self._number += 1
        self._end_file()
        self._fd = fd
        self._file_bytes = 0
        self._torn = False
        self._measure()

    def _measure(self) -> None:
        total = 0
        with contextlib.suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX):
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat().st_size
        self._total_bytes = total
        self._unchecked_bytes = 0

    def _fail(self, problem: str, records: int) -> None:
        self.dropped += records
        self.problem = problem
        self._retry_at = self._clock() + _PAUSE_S


_decoder = msgspec.json.Decoder(IntentRecord | EndRecord)


def decode_line(line: bytes) -> IntentRecord | EndRecord:
    """Raises `msgspec.DecodeError` for a line that is not a whole record."""
    record: IntentRecord | EndRecord = _decoder.decode(line)
    return record


_gap_decoder = msgspec.json.Decoder(GapRecord)


def dropped_before(line: bytes) -> int | None:
    """The number of records that are missing where this line stands. `None`: it tells of none."""
    try:
        return max(_gap_decoder.decode(line).dropped, 0)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


class LineLog:
    """JSON lines to a stream, written by a thread of their own: a reader that stalls costs lines, never time."""

    def __init__(self, fd: int, max_lines: int = 10_000, *, pause_s: float = 0.02) -> None:
        """`pause_s`: how long the thread gathers lines before it writes them together."""
        self.dropped = 0
        self._fd = fd
        self._max_lines = max_lines
        self._pause_s = pause_s
        self._lines: deque[bytes] = deque()
        self._encoder = msgspec.json.Encoder()
        self._wanted = threading.Event()
        """There are lines, or the end."""
        self._closing = False
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._reported = 0

    def write(self, entry: object) -> None:
        """Queues the line of one entry. Never waits, never raises."""
        if self._pid != process.id:
            self._start()
        lines = self._lines
        if len(lines) >= self._max_lines or self._closing:
            self.dropped += 1
            return
        try:
            lines.append(self._encoder.encode(entry))
        except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError):
            self.dropped += 1
            return
        if not self._wanted.is_set():
            self._wanted.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Writes what is queued, as far as the reader lets it within `timeout_s`. Later lines are dropped.

        Called when the process ends, if nobody did before.
        """
        if self._thread is None or self._pid != process.id or self._closing:
            return
        self._closing = True
        self._wanted.set()
        self._thread.join(timeout_s)
        atexit.unregister(self.close)

    def _start(self) -> None:
        self._pid = process.id
        self._lines = deque()
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="line-log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _run(self) -> None:
        queued = self._lines
        ended = False
        while not ended:
            self._wanted.wait()
            if not self._closing:
                time.sleep(self._pause_s)
            self._wanted.clear()  # before the look at the queue: what comes after it wakes us again
            ended = self._closing
            batch = [queued.popleft() for _ in range(min(len(queued), self._max_lines))]
            if self.dropped > self._reported:
                missing = self.dropped - self._reported
                self._reported = self.dropped
                batch.append(b'{"event":"log_lines_dropped","count":%d}' % missing)
            if batch and not self._write_all(b"\n".join(batch) + b"\n"):
                self.dropped += len(batch)

    def _write_all(self, data: bytes) -> bool:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # somebody made the stream non-blocking
                select.select([], [self._fd], [])
            except OSError:
                return False
        return True
