"""Everything that is known of one exchange, as one object: for the command, the pages and the API."""

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
from django.conf import settings

from reports.core.cost import Line, Prices, Tokens, arithmetic
from reports.core.record import EndRecord, IntentRecord
from reports.ingest_files import IDENTITY, SpoolReader
from reports.ingest_rows import ABORTED, LONGEST_TEXT, Rows, columns
from reports.models import Attempt, Candidate, Exchange, Exclusion, OpenExchange, SpoolFile, Transition
from reports.spool import decode_line

Completeness = Literal["complete", "in_progress", "aborted", "expired", "not_ingested_yet", "unknown"]
"""`in_progress`: begun, its end has not been read. `aborted`: its process died. `expired`: some of its detail was deleted
for its age, see `missing`. `not_ingested_yet`: read from the spool of this host, not from the database. `unknown`: no
trace, or deleted as a whole."""

_SHAPE = (
    "input_tokens_estimated",
    "output_cap",
    "tool_count",
    "image_count",
    "complexity",
    "prompt_features",
    "input_bucket",
    "output_cap_bucket",
    "complexity_bucket",
)
_DECISION = ("strategy", "mode", "affinity", "tie_break", "propensity", "signals", "matched_terms", "flags")
_OUTCOME = ("outcome", "status", "error_code", "error_detail", "terminal_marker")
_TIMINGS = ("duration_ms", "first_content_ms", "queued_ms")
_WHO = ("caller", "project", "environment", "token")
_WHAT = ("endpoint", "group", "dialect", "stream", "revision", "request_bytes", "response_bytes", "legal_hold")

Section = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    microdollars: int | None
    """`None`: a price that it needs is unknown, see `flags`."""
    flags: Sequence[str]
    lines: Sequence[Line]
    """Micro-dollars are the lines' pico-dollars, added up, over a million, rounded half to even."""
    prices: Prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Scalars and names by section, as the tables have them. Of an unknown id everything else is empty."""

    id: str
    completeness: Completeness
    missing: Sequence[str] = ()
    """Sections that have been deleted for their age: `candidates`, `exclusions`, `attempts`."""
    started_at: datetime | None = None
    who: Section = field(default_factory=dict)
    request: Section = field(default_factory=dict)
    shape: Section = field(default_factory=dict)
    decision: Section = field(default_factory=dict)
    candidates: Sequence[Section] = ()
    """In the order of trying, each with its `scores` and `terms`."""
    exclusions: Sequence[Section] = ()
    attempts: Sequence[Section] = ()
    transitions: Sequence[Section] = ()
    served_by: Section = field(default_factory=dict)
    """The target that served, or was tried last."""
    outcome: Section = field(default_factory=dict)
    timings: Section = field(default_factory=dict)
    tokens: Tokens | None = None
    usage: Section = field(default_factory=dict)
    cost: Cost | None = None


def evidence(request_id: str, *, spool: Path | None = None) -> Evidence:
    """`request_id`: what the client saw as `x-request-id`. `spool`: where to look for what is not ingested yet."""
    if not 0 < len(request_id) <= LONGEST_TEXT or "\x00" in request_id:
        return Evidence(id=request_id, completeness="unknown")
    found = _in_database(request_id)
    if found is None:
        record = _in_spool(request_id, spool or settings.PILOTAGE.data_dir / "spool")
        if record is not None:
            return _of_record(record, "not_ingested_yet")
        found = _in_database(request_id)  # it may have gone from the one to the other in between
    return found or Evidence(id=request_id, completeness="unknown")


def as_document(found: Evidence) -> dict[str, Any]:
    """Plain JSON values."""
    document: dict[str, Any] = msgspec.to_builtins(found)
    return document


def _in_database(request_id: str) -> Evidence | None:
    exchange = Exchange.objects.filter(request_id=request_id).first()
    if exchange is not None:
        return _of_rows(
            exchange,
            candidates=list(exchange.candidates.order_by("place")),
            exclusions=list(exchange.exclusions.order_by("place")),
            attempts=list(exchange.attempts.order_by("place")),
            transitions=list(exchange.transitions.order_by("place")),
        )
    begun = OpenExchange.objects.filter(request_id=request_id).first()
    return None if begun is None else _of_record(decode_line(begun.intent.encode()), "in_progress")


def _of_record(record: EndRecord | IntentRecord, completeness: Completeness) -> Evidence:
    """As it will be told once it is ingested."""
    rows = Rows()
    now = datetime.now(UTC)
    if isinstance(record, EndRecord):
        rows.add(record, pk=0, now=now, max_candidates=settings.PILOTAGE.max_candidates)
    else:
        rows.add_aborted(record, pk=0, now=now)
    made = {model: [_made(model, row) for row in added] for model, added in rows.by_table()}
    exchange = made[Exchange][0]
    if isinstance(record, IntentRecord):
        exchange.outcome = "in_progress"
    return _of_rows(
        exchange,
        candidates=made[Candidate],
        exclusions=made[Exclusion],
        attempts=made[Attempt],
        transitions=made[Transition],
        completeness=completeness,
    )


def _made(model: Any, row: Sequence[Any]) -> Any:
    json = {each.column for each in model._meta.concrete_fields if each.get_internal_type() == "JSONField"}
    values = zip(columns(model), row, strict=True)
    return model(**{name: msgspec.json.decode(value) if name in json else value for name, value in values})


def _of_rows(
    exchange: Exchange,
    *,
    candidates: Sequence[Candidate],
    exclusions: Sequence[Exclusion],
    attempts: Sequence[Attempt],
    transitions: Sequence[Transition],
    completeness: Completeness | None = None,
) -> Evidence:
    missing = [
        name
        for name, rows, once in (
            ("candidates", candidates, exchange.candidate_count),
            ("exclusions", exclusions, exchange.exclusion_count),
            ("attempts", attempts, exchange.attempt_count),
        )
        if len(rows) < once
    ]
    if completeness is None:
        completeness = "expired" if missing else "aborted" if exchange.outcome == ABORTED else "complete"
    tokens = Tokens(
        input=exchange.input_tokens,
        cache_read=exchange.cache_read_tokens,
        cache_write_5m=exchange.cache_write_5m_tokens,
        cache_write_1h=exchange.cache_write_1h_tokens,
        output=exchange.output_tokens,
        reasoning=exchange.reasoning_tokens,
    )
    prices = Prices(
        input=exchange.input_price,
        cache_read=exchange.cache_read_price,
        cache_write_5m=exchange.cache_write_5m_price,
        cache_write_1h=exchange.cache_write_1h_price,
        output=exchange.output_price,
    )
    return Evidence(
        id=exchange.request_id,
        completeness=completeness,
        missing=missing,
        started_at=exchange.started_at,
        who=_section(exchange, _WHO),
        request=_section(exchange, _WHAT),
        shape=_section(exchange, _SHAPE),
        decision=_section(exchange, _DECISION),
        candidates=[_candidate(each) for each in candidates],
        exclusions=[_detail(each) for each in exclusions],
        attempts=[_detail(each) for each in attempts],
        transitions=[_detail(each) for each in transitions],
        served_by=_section(exchange, ("target", "provider", "model")),
        outcome=_section(exchange, _OUTCOME),
        timings=_section(exchange, _TIMINGS),
        tokens=tokens,
        usage=_section(exchange, ("usage_quality", "prompt_cache")),
        cost=Cost(
            microdollars=exchange.cost_microdollars,
            flags=exchange.cost_flags,
            lines=arithmetic(tokens, prices),
            prices=prices,
        ),
    )


def _section(exchange: Exchange, names: Sequence[str]) -> Section:
    return {name: getattr(exchange, name) for name in names}


def _candidate(row: Candidate) -> Section:
    scores = [
        {"name": name, "raw": raw, "value": value, "flag": flag[0] if flag else None}
        for name, (raw, value, *flag) in row.scores.items()
    ]
    terms = [dict(zip(("name", "share", "value", "preferred_tags", "flag"), term, strict=True)) for term in row.terms]
    shown = {name: value for name, value in _detail(row).items() if name != "digits"}  # `scores` says more
    return {**shown, "scores": scores, "terms": terms}


def _detail(row: Attempt | Candidate | Exclusion | Transition) -> Section:
    names = [each.name for each in row._meta.concrete_fields if each.name not in ("exchange", "place")]
    return {name: getattr(row, name) for name in names}


# -- what is still in the spool


def _in_spool(request_id: str, directory: Path) -> EndRecord | IntentRecord | None:
    """Its end, else its intent, behind what has been ingested. A file is searched, not read line by line."""
    reader = SpoolReader(directory)
    try:
        identity = (directory / IDENTITY).read_text().strip()
    except OSError:  # nothing has been ingested from here
        identity = ""
    offsets = dict(SpoolFile.objects.filter(spool=identity).values_list("name", "offset"))
    best: EndRecord | IntentRecord | None = None
    for source in reader.sources():
        for record in _with_id(directory / source.name, request_id, offsets.get(source.name, 0)):
            if isinstance(record, EndRecord):
                return record
            best = record
    return best


def _with_id(path: Path, request_id: str, offset: int) -> list[EndRecord | IntentRecord]:
    found: list[EndRecord | IntentRecord] = []
    mark = b'"id":' + msgspec.json.encode(request_id)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = data.find(mark, offset)
            while at >= 0:
                end = data.find(b"\n", at)
                end = len(data) if end < 0 else end
                try:
                    record = decode_line(data[data.rfind(b"\n", 0, at) + 1 : end])
                except msgspec.MsgspecError:  # a line under way, or a damaged one
                    record = None
                if record is not None and record.id == request_id:
                    found.append(record)
                at = data.find(mark, end)
    except (FileNotFoundError, ValueError):  # gone in this moment, or empty
        return found
    return found
