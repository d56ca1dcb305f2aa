"""How far records have got on their way from the spool into the reports: what the metrics say of ingest and rollups."""

from pathlib import Path
from typing import Final

import msgspec
from django.db.models import Max

from reports.ingest_files import IDENTITY
from reports.models import IngestCount, SpoolFile, TouchedHour
from reports.rollup_models import RolledHour
from reports.spool import SUFFIX

_LINE_BYTES: Final = 1 << 20
"""A longer line's age is not told."""


class Progress(msgspec.Struct, kw_only=True):
    read_at: float = 0.0
    """Unix seconds; 0: the database has not answered yet."""
    ingested: dict[str, int] = {}
    """Lines since ever, by what became of them."""
    unread_bytes: int = 0
    """Of this spool, not in the database yet."""
    lag_s: float = 0.0
    """Age of the oldest record of those; 0: there is none."""
    pending_hours: int = 0
    """With records that were not summed up yet."""
    rolled_at: float = 0.0
    """Unix seconds at which an hour was last summed up; 0: never."""


class _Times(msgspec.Struct):
    at: float
    duration_ms: float = 0.0


def read_progress(spool: Path, *, now: float) -> Progress:
    """`now` in Unix seconds. Raises Django's database errors; a spool that cannot be read counts as empty."""
    rolled_at = RolledHour.objects.aggregate(last=Max("rolled_at"))["last"]
    ingested = dict(IngestCount.objects.values_list("name", "count"))
    pending_hours = TouchedHour.objects.count()
    try:
        identity = (spool / IDENTITY).read_text().strip()
    except OSError:
        identity = ""
    # Sizes first: what is written and read in between must not count as unread.
    sizes = _sizes(spool)
    offsets = dict(SpoolFile.objects.filter(spool=identity).values_list("name", "offset"))
    unread = {name: size - offsets.get(name, 0) for name, size in sizes.items() if size > offsets.get(name, 0)}
    oldest = min((at for name in unread if (at := _written_at(spool / name, offsets.get(name, 0)))), default=now)
    return Progress(
        read_at=now,
        ingested=ingested,
        unread_bytes=sum(unread.values()),
        lag_s=max(0.0, now - oldest),
        pending_hours=pending_hours,
        rolled_at=rolled_at.timestamp() if rolled_at else 0.0,
    )


def _sizes(spool: Path) -> dict[str, int]:
    try:
        return {path.name: path.stat().st_size for path in spool.glob(f"*{SUFFIX}")}
    except OSError:  # cleared away meanwhile: the next reading sees it
        return {}


def _written_at(path: Path, offset: int) -> float | None:
    """When the record at `offset` was written. `None`: it is damaged, not whole yet, or gone."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            times = msgspec.json.decode(file.readline(_LINE_BYTES), type=_Times)
    except (OSError, msgspec.MsgspecError):
        return None
    return times.at + times.duration_ms / 1000
