"""What keeps a process up to date: a thread that follows published Revisions and changed callers and tokens.

It is the only part of a gateway process that asks the database anything. While the database is away the process serves
what it has; one that starts then takes the last good configuration from the data directory.
"""

import dataclasses
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connections

from accounts import store
from accounts.core import saved
from gateway import publish
from gateway.snapshot import Snapshot
from routing.core.catalog import Catalog

FALL_BACK_AFTER_S = 2.0
"""A process that is starting serves the last good configuration when the database has not answered by then. Before,
it waits: what is on disk may be older, and a token revoked meanwhile must not work."""

log = logging.getLogger("pilotage.loader")

T = TypeVar("T")


class Revisions(Protocol):
    """Published configurations: what `gateway.publish` does."""

    def latest(self) -> int | None:
        """The number of the newest Revision; `None`: nothing has been published."""
        ...

    def load(self, number: int) -> Catalog: ...

    def document_json(self, number: int) -> bytes:
        """Without literal keys."""
        ...

    def catalog_from_json(self, document: bytes) -> Catalog: ...


class _KeptRevision(msgspec.Struct, frozen=True):
    revision: int
    created: int
    document: msgspec.Raw


class Follower:
    """Keeps a Snapshot current, each part swapped by one assignment.

    `start` is cheap and may be called again. `look` is one pass; the thread makes one every `poll_s` seconds.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        data_dir: Path | None = None,
        poll_s: float | None = None,
        revisions: Revisions | None = None,
        on_catalog: Callable[[Catalog], None] = lambda catalog: None,
    ) -> None:
        """What is not given comes from the settings. `on_catalog` is called in the thread, after each swap."""
        self.snapshot = snapshot
        self.first_look = threading.Event()
        """Set when the first pass is over, whether or not it loaded anything."""
        self.answered_at = 0.0
        """Unix seconds of the last pass that the database answered; 0: none."""
        self._revisions: Revisions = publish if revisions is None else revisions
        self._poll_s = settings.PILOTAGE.poll_seconds if poll_s is None else poll_s
        self._on_catalog = on_catalog
        folder = (settings.PILOTAGE.data_dir if data_dir is None else data_dir) / "last_good"
        self._revision_file = folder / "revision.json"
        self._directory_file = folder / "directory.json"
        self._lock = threading.Lock()
        self._revision: int | None = None
        """The newest Revision that was looked at, loaded or refused."""
        self._directory_version: int | None = None
        self._said: dict[str, str] = {}
        """What is wrong now, by subject: a line is logged when it changes."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = 0

    def start(self) -> None:
        with self._lock:
            if self._thread is None or self._process != os.getpid():  # a forked child has the object, not the thread
                self._process = os.getpid()
                self._thread = threading.Thread(target=self._run, name="pilotage-loader", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Ends the thread and waits for it."""
        self._stop.set()
        if self._thread is not None and self._process == os.getpid():
            self._thread.join()

    def look(self) -> None:
        """One pass: whatever is new is loaded. Raises nothing."""
        try:
            self._follow_revisions()
            self._follow_directory()
        except DatabaseError as error:
            self._say("database", f"the database does not answer: {type(error).__name__}: {error}".strip())
            connections.close_all()
            self._fall_back()
        except Exception as error:
            self._say("database", f"callers and Revisions cannot be followed: {type(error).__name__}: {error}")
            self._fall_back()
        else:
            self.answered_at = time.time()
            self._say("database", "")

    def _run(self) -> None:
        fall_back = threading.Timer(FALL_BACK_AFTER_S, self._fall_back)
        fall_back.daemon = True
        fall_back.start()
        self.look()
        fall_back.cancel()
        self.first_look.set()
        while not self._stop.wait(self._poll_s):
            self.look()
        connections.close_all()

    def _follow_revisions(self) -> None:
        number = self._revisions.latest()
        if number is None:
            if self.snapshot.catalog is None:  # a new installation: ready, and every model is unknown
                self.snapshot.catalog = Catalog(revision=0, groups={}, providers={})
            return
        if number == self._revision:
            return
        try:
            catalog = self._revisions.load(number)
            document = self._revisions.document_json(number)
        except DatabaseError:
            raise
        except Exception as error:
            self._revision = number
            self._say("revision", f"Revision {number} cannot be served, the one before stays: {error}")
            self._fall_back()
            return
        with self._lock:
            self.snapshot.catalog = catalog
        self._revision = number
        self._say("revision", "")
        self._on_catalog(catalog)
        self._keep(
            self._revision_file,
            msgspec.json.encode(
                _KeptRevision(revision=catalog.revision, created=catalog.created, document=msgspec.Raw(document))
            ),
        )

    def _follow_directory(self) -> None:
        version = store.directory_version()
        if version == self._directory_version:
            return
        directory = store.directory_from_rows()
        with self._lock:
            self.snapshot.directory = directory
        self._directory_version = directory.version
        self._keep(self._directory_file, saved.to_json(directory))

    def _fall_back(self) -> None:
        """Takes from disk what was never loaded. What is not there either stays missing: the process is not ready."""
        with self._lock:
            if self.snapshot.catalog is None and (catalog := self._from_disk(self._revision_file, self._catalog_of)):
                self.snapshot.catalog = catalog
                self._on_catalog(catalog)
                log.warning("serving the last good Revision from disk", extra={"revision": catalog.revision})
            if self.snapshot.directory is None and (
                directory := self._from_disk(self._directory_file, saved.from_json)
            ):
                self.snapshot.directory = directory
                log.warning("serving the last good callers from disk", extra={"tokens": len(directory.tokens)})

    def _catalog_of(self, text: bytes) -> Catalog:
        kept = msgspec.json.decode(text, type=_KeptRevision)
        catalog = self._revisions.catalog_from_json(bytes(kept.document))
        return dataclasses.replace(catalog, revision=kept.revision, created=kept.created)

    def _from_disk(self, path: Path, parse: Callable[[bytes], T]) -> T | None:
        try:
            return parse(path.read_bytes())
        except FileNotFoundError:
            return None
        except Exception as error:
            self._say(path.name, f"{path} cannot be read: {error}")
            return None

    def _keep(self, path: Path, content: bytes) -> None:
        """Writes the file whole or not at all, for this user only. A full disk is reported and changes nothing else."""
        new = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                new.replace(path)
            finally:
                new.unlink(missing_ok=True)
        except OSError as error:
            self._say(path.name, f"{path} cannot be written: {error}")
        else:
            self._say(path.name, "")

    def _say(self, subject: str, problem: str) -> None:
        """Logs what is wrong with `subject` when that changes; an empty `problem` says that nothing is any more."""
        if self._said.get(subject, "") == problem:
            return
        self._said[subject] = problem
        if problem:
            log.error(problem, extra={"subject": subject})
        else:
            log.info("back in order", extra={"subject": subject})
