"""The workers' broker where there is no Redis: messages are files, a message's state is the folder it lies in.

Kombu's own filesystem transport forgets a message as soon as it is handed out, dies of a file that it cannot read and
moves through `/tmp`. Here a message that is being worked on lies in a folder of its worker, which keeps it locked
(`flock`): what lies in a folder that can be locked belonged to a worker that died, and goes back to the others.

    waiting/TIME-DELIVERIES-ID.QUEUE.json    taken/OWNER/...    damaged/...

Every move is one `rename`, so that a message is in one place whenever a process is killed.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
import secrets
import stat
import time
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.exceptions import OperationalError
from kombu.transport import base, virtual

log = logging.getLogger("pilotage.broker")

MAX_MESSAGE_BYTES = 1 << 20
"""A task's message has ids, no data."""
MAX_DELIVERIES = 5
"""A message whose worker died so often is taken for the reason, and set aside."""
RESCUE_SECONDS = 2.0
"""How often a waiting worker looks for what dead ones left."""
MAX_WAITING = 10_000
"""Unless the transport's options say otherwise."""

LOCK = ".lock"

_NAME = re.compile(
    r"(?P<time>[0-9]{20})-(?P<deliveries>[0-9]{1,3})-(?P<id>[0-9a-f]{32})\.(?P<queue>[A-Za-z0-9_-]+)\.json"
)


class QoS(virtual.QoS):
    """What was handed out and not acknowledged yet."""

    channel: "Channel"

    def ack(self, delivery_tag: str) -> None:
        super().ack(delivery_tag)
        self.channel.finish(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            self.channel.put_back(delivery_tag)
        else:
            self.channel.finish(delivery_tag)
        super().ack(delivery_tag)


class Channel(virtual.Channel):
    QoS = QoS

    def __init__(self, connection: "Transport", **how: Any) -> None:
        super().__init__(connection, **how)
        options: dict[str, Any] = connection.client.transport_options
        self._folder = Folder(Path(options["folder"]), max_waiting=options.get("max_waiting", MAX_WAITING))
        self._rescued_at = float("-inf")

    def finish(self, name: str) -> None:
        self._folder.finish(name)

    def put_back(self, name: str) -> None:
        self._folder.put_back(name)

    def close(self) -> None:
        was_closed = self.closed
        super().close()  # which puts back what was handed out and not acknowledged
        if not was_closed:
            self._folder.leave()

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        self._folder.put(queue, json.dumps(message).encode())

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        now = time.monotonic()
        if now - self._rescued_at >= RESCUE_SECONDS:
            self._rescued_at = now
            self._folder.rescue()
        while (name := self._folder.take(queue)) is not None:
            payload = self._read(name)
            if payload is not None:
                return payload
        raise Empty

    def _read(self, name: str) -> dict[str, Any] | None:
        """The message, whose tag of delivery is its file's name; `None`: it was no message and is set aside."""
        try:
            payload: dict[str, Any] = json.loads(self._folder.read(name))
            payload["properties"]["delivery_tag"] = name
            self.Message(payload, channel=self)
        except Exception as problem:  # a file may hold anything
            log.error("a file of the broker is no message and was set aside: %r", problem, extra={"file": name})
            self._folder.set_aside(name)
            return None
        return payload

    def _restore(self, message: virtual.Message) -> None:
        assert message.delivery_tag is not None
        self.put_back(message.delivery_tag)

    def _size(self, queue: str) -> int:
        return self._folder.size(queue)

    def _purge(self, queue: str) -> int:
        return self._folder.purge(queue)


class Transport(virtual.Transport):
    Channel = Channel
    global_state = virtual.BrokerState()
    default_port = 0
    driver_type = "files"
    driver_name = "files"
    client: Any
    implements = base.Transport.implements.extend(asynchronous=False, exchange_type=frozenset(["direct"]))

    def __init__(self, client: Any, **how: Any) -> None:
        super().__init__(client, **how)
        self.state = self.global_state

    def driver_version(self) -> str:
        return "1"


class Folder:
    """One process's view of the broker's folder. What it takes it owns until `finish`, `put_back` or its death."""

    def __init__(self, root: Path, *, max_waiting: int = MAX_WAITING) -> None:
        self._waiting = root / "waiting"
        self._taken = root / "taken"
        self._damaged = root / "damaged"
        self._max_waiting = max_waiting
        self._own: Path | None = None
        self._lock = -1
        self._pid = 0
        self._make()

    def put(self, queue: str, content: bytes) -> None:
        """Raises `OperationalError`: no place, or a disk that cannot be written."""
        try:
            if len(content) > MAX_MESSAGE_BYTES:
                raise OperationalError(f"a message of {len(content)} bytes is longer than {MAX_MESSAGE_BYTES}")
            if len(os.listdir(self._waiting)) >= self._max_waiting:
                raise OperationalError(f"{self._max_waiting} messages wait in {self._waiting}: is no worker running?")
            name = f"{time.time_ns():020d}-0-{secrets.token_hex(16)}.{queue}.json"
            if _queue_of(name) != queue:
                raise OperationalError(f"{queue!r} is no name of a queue")
            new = self._waiting / f".{name}"
            try:
                descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                new.rename(self._waiting / name)
            except BaseException:
                new.unlink(missing_ok=True)
                raise
        except OSError as problem:
            raise OperationalError(f"the broker's folder cannot be written: {problem}") from problem

    def take(self, queue: str) -> str | None:
        """The name of the oldest message of `queue`, now owned. Anything but a message's file is passed over."""
        try:
            with os.scandir(self._waiting) as entries:
                names = [e.name for e in entries if _queue_of(e.name) == queue and e.is_file(follow_symlinks=False)]
            for name in sorted(names):
                with contextlib.suppress(FileNotFoundError):  # another was faster
                    (self._waiting / name).rename(self._owned(name))
                    return name
        except FileNotFoundError:
            log.error("the broker's folder was removed and is made again")
            self.leave()
            self._make()
        except OSError as problem:
            log.error("the broker's folder cannot be used: %s", problem)
        return None

    def read(self, name: str) -> bytes:
        """Raises `OSError`, and `ValueError` for what is no file or too long."""
        descriptor = os.open(self._owned(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError("no file")
            content = file.read(MAX_MESSAGE_BYTES + 1)
        if len(content) > MAX_MESSAGE_BYTES:
            raise ValueError(f"longer than {MAX_MESSAGE_BYTES} bytes")
        return content

    def finish(self, name: str) -> None:
        if self._is_ours():
            self._owned(name).unlink(missing_ok=True)

    def put_back(self, name: str) -> None:
        if self._is_ours():
            self._return(self._owned(name))

    def set_aside(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self._owned(name).rename(self._damaged / name)

    def leave(self) -> None:
        """Ends the ownership of what was taken: another process finds it."""
        if self._own is not None and self._is_ours():
            with contextlib.suppress(OSError):
                (self._own / LOCK).unlink(missing_ok=True)
                self._own.rmdir()
            os.close(self._lock)
        self._own, self._lock = None, -1

    def rescue(self) -> int:
        """Gives back what dead processes had taken; how many messages."""
        rescued = 0
        with contextlib.suppress(OSError), os.scandir(self._taken) as owners:
            for owner in [Path(entry.path) for entry in owners if entry.is_dir(follow_symlinks=False)]:
                if owner != self._own and not owner.name.startswith("."):
                    with contextlib.suppress(OSError):
                        rescued += self._rescue_from(owner)
        return rescued

    def size(self, queue: str) -> int:
        return sum(_queue_of(name) == queue for name in os.listdir(self._waiting))

    def purge(self, queue: str) -> int:
        """Removes what waits in `queue`; how many messages."""
        names = [name for name in os.listdir(self._waiting) if _queue_of(name) == queue]
        for name in names:
            (self._waiting / name).unlink(missing_ok=True)
        return len(names)

    def sweep(self, *, older_than_s: float, now: float) -> int:
        """Removes files that nobody will ask for again; how many. `now` in Unix seconds.

        These are damaged ones, messages that waited for so long that no worker serves their queue, and what is neither.
        """
        removed = 0
        for folder in (self._waiting, self._damaged):
            with os.scandir(folder) as entries:
                for entry in list(entries):
                    with contextlib.suppress(OSError):
                        found = entry.stat(follow_symlinks=False)
                        if not stat.S_ISDIR(found.st_mode) and now - found.st_mtime > older_than_s:
                            os.unlink(entry.path)
                            removed += 1
        return removed

    def _make(self) -> None:
        for folder in (self._waiting.parent, self._waiting, self._taken, self._damaged):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _rescue_from(self, owner: Path) -> int:
        lock = os.open(owner / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            names = [name for name in os.listdir(owner) if name != LOCK]
            for name in names:
                self._return(owner / name)
            (owner / LOCK).unlink(missing_ok=True)
            owner.rmdir()
        finally:
            os.close(lock)
        if names:
            log.warning("a worker died: its messages go to another", extra={"messages": len(names)})
        return len(names)

    def _return(self, path: Path) -> None:
        """Back to the others, counted; aside, if that was often enough."""
        found = _NAME.fullmatch(path.name)
        with contextlib.suppress(FileNotFoundError):
            if found is None or int(found["deliveries"]) + 1 >= MAX_DELIVERIES:
                log.error("a message was given back %d times and is set aside", MAX_DELIVERIES)
                path.rename(self._damaged / path.name)
            else:
                name = f"{found['time']}-{int(found['deliveries']) + 1}-{found['id']}.{found['queue']}.json"
                path.rename(self._waiting / name)

    def _is_ours(self) -> bool:
        """A forked child has the object, not the messages."""
        return self._pid == os.getpid()

    def _owned(self, name: str) -> Path:
        if self._own is None or not self._is_ours():
            # Appears under its name only when it is locked: before, another might take it for a dead one's.
            new = self._taken / f".{os.getpid()}-{secrets.token_hex(8)}"
            new.mkdir(mode=0o700)
            self._lock = os.open(new / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._own = self._taken / new.name[1:]
            new.rename(self._own)
            self._pid = os.getpid()
        return self._own / name


def _queue_of(name: str) -> str | None:
    found = _NAME.fullmatch(name)
    return found["queue"] if found else None
