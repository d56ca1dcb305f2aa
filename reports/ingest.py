"""The spool into rows: every record once in effect, whatever dies in between.

A batch of lines, the offset behind them and all that follows from them are written in one transaction. Lines are known by
their exchange's id, so a file that is read again changes nothing.
"""

import contextlib
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from django.db import DataError, Error, IntegrityError, connection, transaction

from accounts import tokens
from reports import ingest_tables
from reports.core.record import VERSION, EndRecord, IntentRecord
from reports.ingest_files import DAMAGED, NEWER, Aside, Line, OpenFile, Source, SpoolReader
from reports.ingest_rows import ABORTED, LONGEST_TEXT, Rows, moment
from reports.models import Exchange, OpenExchange, SpoolFile
from reports.spool import SUFFIX, decode_line, dropped_before

log = logging.getLogger("reports.ingest")

TOKEN_USE_SECONDS: Final = 60.0
"""A token's last use is written at most once in this time."""
_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 10.0
"""Between two attempts to reach the database; doubled each time."""
_SAY_EVERY_S: Final = 60.0
_BATCH_BYTES: Final = 4 << 20
_MOST_TOKENS_REMEMBERED: Final = 100_000
_LIMIT_EXCEEDED: Final = "54"
"""SQLSTATE class of what PostgreSQL cannot hold, which it reports like a failing server."""


@dataclass(slots=True)
class _Batch:
    """Lines of one file, read but not written."""

    ends: dict[str, EndRecord] = field(default_factory=dict)
    intents: dict[str, tuple[IntentRecord, str]] = field(default_factory=dict)
    damaged: list[bytes] = field(default_factory=list)
    newer: list[bytes] = field(default_factory=list)
    repeated: int = 0
    dropped: int = 0
    """Records that a gateway could not write, as its spool tells."""


class Ingest:
    """One spool directory into the database. `clock` gives seconds that only go forward, `now` the time of day."""

    def __init__(
        self,
        directory: Path,
        *,
        batch_lines: int = 2_000,
        max_candidates: int = 32,
        max_aside_bytes: int = 256 << 20,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.reader = SpoolReader(directory)
        self._batch_lines = batch_lines
        self._max_candidates = max_candidates
        self._damaged = Aside(directory / DAMAGED, max_bytes=max_aside_bytes)
        self._newer = Aside(directory / NEWER, max_bytes=max_aside_bytes)
        self._clock = clock
        self._now = now
        self._spool = ""
        self._swept = False
        self._uses: dict[str, float] = {}
        """Uses of tokens that are to be written: Unix seconds."""
        self._uses_written: dict[str, float] = {}
        """When each token's use was written last, by our clock."""
        self._told_at = -_SAY_EVERY_S

    def follow(self, stop: threading.Event, *, poll_s: float = 0.5) -> None:
        """Until `stop` is set. A database or disk that is away is waited for; `stop` ends that too."""
        wait = _FIRST_WAIT_S
        while not stop.is_set():
            try:
                busy = self.cycle(stop)
                wait = _FIRST_WAIT_S
            except (Error, OSError) as error:
                self._tell("records wait in the spool: %s", error)
                connection.close()
                stop.wait(wait)
                wait = min(2 * wait, _LONGEST_WAIT_S)
                continue
            if not busy:
                stop.wait(poll_s)
        with contextlib.suppress(Error):
            self._write_uses(all_of_them=True)

    def once(self) -> None:
        """What is there now, and nothing is waited for. Raises as `cycle` does."""
        while self.cycle():
            pass
        self._write_uses(all_of_them=True)

    def cycle(self, stop: threading.Event | None = None) -> int:
        """Reads once what every file has, and clears away what is finished. The number of lines.

        Raises Django's database errors and `OSError`; what was not committed is read again.
        """
        if not self._spool:
            self._begin()
        offsets = dict(SpoolFile.objects.filter(spool=self._spool).values_list("name", "offset"))
        sources = self.reader.sources()
        living: set[str] = set()
        finished: list[Source] = []
        lines = 0
        for source in sources:
            try:
                with self.reader.open(source) as file:
                    lines += self._read(source, file, offsets.get(source.name, 0), stop)
                    whole = file.is_finished and (stop is None or not stop.is_set())
            except FileNotFoundError:
                continue
            except PermissionError as error:
                self._tell("a file of records cannot be read: %s", error)
                whole = False
            if whole:
                finished.append(source)
            else:
                living.add(source.process)
        if finished or not self._swept:
            self._close_dead(living, finished)
            self._clear(finished, offsets.keys() - {source.name for source in sources})
        self._write_uses()
        return lines

    # -- one file

    def _read(self, source: Source, file: OpenFile, offset: int, stop: threading.Event | None) -> int:
        if offset > file.size:  # somebody has cut it: known ids are skipped
            offset = 0
        total = 0
        while lines := file.read(offset, max_lines=self._batch_lines, max_bytes=_BATCH_BYTES):
            self._write(source, lines)
            offset = lines[-1].end
            total += len(lines)
            if stop is not None and stop.is_set():
                break
        return total

    def _write(self, source: Source, lines: Sequence[Line]) -> None:
        """As one transaction; what the database cannot hold is found by halves and set aside."""
        batch = _sorted(lines)
        try:
            try:
                return self._write_batch(source, lines, batch)
            except IntegrityError:  # another spool's ingest wrote one of them in this moment; now it is known
                return self._write_batch(source, lines, batch)
        except (ValueError, LookupError, TypeError, OverflowError) as unfit:
            problem: Exception = unfit
        except Error as error:
            if not _is_unfit(error):
                raise
            problem = error
        if len(lines) > 1:
            middle = len(lines) // 2
            self._write(source, lines[:middle])
            return self._write(source, lines[middle:])
        log.warning("a record does not fit into the tables and is set aside: %s", type(problem).__name__)
        return self._write_batch(source, lines, _Batch(damaged=[line.text for line in lines]))

    def _write_batch(self, source: Source, lines: Sequence[Line], batch: _Batch) -> None:
        now = self._now()
        counts = Counter(
            damaged=len(batch.damaged), newer=len(batch.newer), repeated=batch.repeated, dropped=batch.dropped
        )
        counts["lost"] = len(batch.damaged) - self._damaged.add(batch.damaged)
        counts["lost"] += len(batch.newer) - self._newer.add(batch.newer)
        with transaction.atomic():
            self._write_records(source, batch, counts, now)
            ingest_tables.move_on(self._spool, source.name, lines[-1].end)
            ingest_tables.count(counts)
        if counts["lost"]:
            self._tell("%s lines could not be set aside: their files are full", counts["lost"])
        self._note_uses(batch)

    def _write_records(self, source: Source, batch: _Batch, counts: Counter[str], now: datetime) -> None:
        ids = batch.ends.keys() | batch.intents.keys()
        if not ids:
            return
        known = {
            request_id: (pk, outcome, started_at)
            for pk, request_id, outcome, started_at in Exchange.objects.filter(request_id__in=ids).values_list(
                "pk", "request_id", "outcome", "started_at"
            )
        }
        assumed = [id for id in batch.ends if id in known and known[id][1] == ABORTED]
        new = [end for id, end in batch.ends.items() if id not in known or known[id][1] == ABORTED]
        counts["repeated"] += len(batch.ends) - len(new)
        counts["replaced"] += len(assumed)
        counts["ended"] += len(new)
        hours = {_hour(known[id][2]) for id in assumed} | {_hour(moment(end.at)) for end in new}
        if assumed:
            Exchange.objects.filter(pk__in=[known[id][0] for id in assumed]).delete()
        OpenExchange.objects.filter(request_id__in=batch.ends.keys()).delete()
        opened = [
            OpenExchange(
                request_id=id, spool=self._spool, process=source.process, started_at=moment(intent.at), intent=line
            )
            for id, (intent, line) in batch.intents.items()
            if id not in batch.ends and id not in known
        ]
        OpenExchange.objects.bulk_create(opened, ignore_conflicts=True)
        rows = Rows()
        for pk, end in zip(ingest_tables.reserve_ids(len(new)) if new else (), new, strict=True):
            rows.add(end, pk=pk, now=now, max_candidates=self._max_candidates)
        self._add(rows, hours, now)

    def _add(self, rows: Rows, hours: set[datetime], now: datetime) -> None:
        for model, added in rows.by_table():
            ingest_tables.write(model, added)
        ingest_tables.touch(hours, now=now)

    # -- processes that are gone

    def _close_dead(self, living: set[str], finished: Sequence[Source]) -> None:
        """What a dead process has begun is `aborted`; an end that comes to light later replaces it."""
        living = living | {source.process for source in self.reader.sources() if source not in finished}
        dead = OpenExchange.objects.filter(spool=self._spool).exclude(process__in=living)
        while chunk := list(dead.order_by("pk")[: self._batch_lines]):
            now = self._now()
            with transaction.atomic():
                ids = [each.request_id for each in chunk]
                known = set(Exchange.objects.filter(request_id__in=ids).values_list("request_id", flat=True))
                lost = [each for each in chunk if each.request_id not in known]
                rows = Rows()
                for pk, each in zip(ingest_tables.reserve_ids(len(lost)) if lost else (), lost, strict=True):
                    record = decode_line(each.intent.encode())
                    assert isinstance(record, IntentRecord)
                    rows.add_aborted(record, pk=pk, now=now)
                self._add(rows, {_hour(each.started_at) for each in lost}, now)
                OpenExchange.objects.filter(pk__in=[each.pk for each in chunk]).delete()
                ingest_tables.count({ABORTED: len(lost)})
        self._swept = True

    def _clear(self, finished: Sequence[Source], gone: set[str]) -> None:
        """Files that are read to their end, and the rows of files that are no more."""
        for source in finished:
            self.reader.remove(source)
        names = [source.name for source in finished] + sorted(gone)
        if names:
            SpoolFile.objects.filter(spool=self._spool, name__in=names).delete()

    # -- beside the records

    def _begin(self) -> None:
        self.reader.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._spool = self.reader.identity()
        self._take_up_newer()

    def _take_up_newer(self) -> None:
        """Lines that an older release has set aside are records again, once this one can read them."""
        path = self.reader.directory / NEWER
        try:
            with path.open("rb") as file:
                readable = isinstance(_decoded(file.readline().rstrip(b"\n")), EndRecord | IntentRecord)
        except FileNotFoundError:
            return
        if readable:
            path.rename(path.with_name(f"{NEWER}-0-{time.time_ns() // 1_000_000}-0000{SUFFIX}"))

    def _note_uses(self, batch: _Batch) -> None:
        uses: dict[str, float] = {}
        begun = (intent for intent, _ in batch.intents.values())
        records: Iterable[EndRecord | IntentRecord] = itertools.chain(batch.ends.values(), begun)
        uses = self._uses
        for record in records:
            if record.token and record.at > uses.get(record.token, 0.0):
                uses[record.token] = record.at

    def _write_uses(self, *, all_of_them: bool = False) -> None:
        now = self._clock()
        written = self._uses_written
        due = [
            token
            for token in self._uses
            if all_of_them or token not in written or now - written[token] >= TOKEN_USE_SECONDS
        ]
        if not due:
            return
        tokens.note_uses({token: moment(self._uses[token]) for token in due})
        for token in due:
            del self._uses[token]
        if len(written) + len(due) > _MOST_TOKENS_REMEMBERED:
            written.clear()
        written.update(dict.fromkeys(due, now))

    def _tell(self, message: str, *values: object) -> None:
        """At most once a minute."""
        now = self._clock()
        if now - self._told_at >= _SAY_EVERY_S:
            self._told_at = now
            log.warning(message, *values)


def _sorted(lines: Sequence[Line]) -> _Batch:
    batch = _Batch()
    for line in lines:
        text = line.text
        if not text:
            continue
        record = _decoded(text)
        if record is None:
            if (dropped := dropped_before(text)) is None:
                batch.damaged.append(text)
            else:
                batch.dropped += dropped
        elif isinstance(record, bytes):
            batch.newer.append(text)
        elif record.id in (batch.ends if isinstance(record, EndRecord) else batch.intents):
            batch.repeated += 1
        elif isinstance(record, EndRecord):
            batch.ends[record.id] = record
        else:
            batch.intents[record.id] = (record, text.decode())
    return batch


class _Head(msgspec.Struct):
    kind: str
    v: int


_heads = msgspec.json.Decoder(_Head)


def _decoded(line: bytes) -> EndRecord | IntentRecord | bytes | None:
    """The record; the line itself when a newer release wrote it; `None`: neither."""
    try:
        record = decode_line(line.replace(b"\\u0000", b"\\ufffd"))  # which no database holds in a text
        if record.v <= VERSION:
            return record if 0 < len(record.id) <= LONGEST_TEXT else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        return line if _heads.decode(line).v > VERSION else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _is_unfit(error: Error) -> bool:
    """Whether the rows are at fault, not the server."""
    if isinstance(error, DataError | IntegrityError):
        return True
    return (getattr(error.__cause__, "sqlstate", None) or "").startswith(_LIMIT_EXCEEDED)


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)
