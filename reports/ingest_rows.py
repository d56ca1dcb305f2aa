"""Records as rows: plain tuples in the order of the tables' columns, ready for the database's fastest way in."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from reports.core.buckets import SCORES, digits_of
from reports.core.cost import Bill, bill, bill_aborted
from reports.core.record import AttemptRecord, CandidatesRecord, EndRecord, IntentRecord
from reports.core.shape_buckets import complexity_bucket, input_bucket, output_cap_bucket
from reports.models import Attempt, Candidate, Exchange, Exclusion, Transition

LONGEST_TEXT: Final = 255
"""Characters of a name or code. Ours are far shorter; an index cannot hold a text of any length."""

Row = tuple[Any, ...]
TABLES: Final = (Exchange, Attempt, Candidate, Exclusion, Transition)
"""In the order of writing. A row has its values in the order of the model's columns."""

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Rows:
    """What one batch adds, by table."""

    exchanges: list[Row] = field(default_factory=list)
    attempts: list[Row] = field(default_factory=list)
    candidates: list[Row] = field(default_factory=list)
    exclusions: list[Row] = field(default_factory=list)
    transitions: list[Row] = field(default_factory=list)

    def add(self, end: EndRecord, *, pk: int, now: datetime, max_candidates: int) -> None:
        """`max_candidates` bounds the candidates and the exclusions that are kept, from the first on."""
        billed = bill(end)
        candidates = list(_candidate_rows(pk, end, max_candidates))
        exclusions = end.exclusions[:max_candidates]
        attempts = end.attempts
        self.exchanges.append(_exchange_row(pk, end, billed, len(candidates), len(exclusions), now))
        self.attempts.extend(_attempt_rows(pk, attempts, billed))
        self.candidates.extend(candidates)
        self.exclusions.extend(
            (pk, place, _text(each.target), _text(each.stage), _text(each.reason), _text(each.detail))
            for place, each in enumerate(exclusions)
        )
        self.transitions.extend(
            (pk, place, _text(before.target), _text(after.target), _text(before.outcome))
            for place, (before, after) in enumerate(itertools.pairwise(attempts))
        )

    def add_aborted(self, intent: IntentRecord, *, pk: int, now: datetime) -> None:
        """For an exchange whose process has died. Its first target is known, not what became of it."""
        self.exchanges.append(_exchange_row(pk, _as_aborted(intent), bill_aborted(intent), 0, 0, now))

    def by_table(self) -> Iterator[tuple[Any, list[Row]]]:
        rows = (self.exchanges, self.attempts, self.candidates, self.exclusions, self.transitions)
        return zip(TABLES, rows, strict=True)


def moment(at: float) -> datetime:
    """Raises `ValueError` for what is no time."""
    try:
        return datetime.fromtimestamp(at, UTC)
    except (OverflowError, OSError) as error:
        raise ValueError(str(error)) from error


def columns(model: Any) -> list[str]:
    """In the order of the model's rows here: a detail's exchange and place come first, an exchange's id does."""
    names = [each.column for each in model._meta.concrete_fields]
    first = [name for name in ("exchange_id", "place") if name in names]
    return first + [name for name in names if name not in first]


def _exchange_row(pk: int, end: EndRecord, billed: Bill, candidates: int, exclusions: int, now: datetime) -> Row:
    tokens, prices, attempts = billed.tokens, billed.prices, end.attempts
    aborted = end.outcome == ABORTED
    return (
        pk,
        _text(end.id),
        moment(end.at),
        _text(end.caller),
        _text(end.project),
        _text(end.environment),
        end.token[:12],
        _text(end.endpoint),
        _text(end.group),
        _text(end.dialect),
        end.stream,
        end.revision,
        None if aborted else end.status,
        _text(end.outcome),
        _text(end.error_code),
        _text(end.error_detail),
        _text(end.terminal_marker),
        None if aborted else end.duration_ms,
        end.first_content_ms,
        end.queued_ms,
        end.request_bytes,
        end.response_bytes,
        _text(end.strategy),
        _text(end.mode),
        _text(end.affinity),
        _text(end.tie_break),
        end.propensity,
        _text(end.target),
        _text(end.provider),
        _text(end.model),
        len(attempts),
        candidates,
        exclusions,
        len(attempts) > 1 and any(each.target != attempts[0].target for each in attempts),
        _json(end.signals),
        _json(end.matched_terms),
        _json(end.flags),
        end.input_tokens_estimated,
        end.output_cap,
        end.tool_count,
        end.image_count,
        end.complexity,
        _json(end.prompt_features),
        input_bucket(end.input_tokens_estimated),
        output_cap_bucket(end.output_cap),
        complexity_bucket(end.complexity),
        tokens.input,
        tokens.cache_read,
        tokens.cache_write_5m,
        tokens.cache_write_1h,
        tokens.output,
        tokens.reasoning,
        billed.quality,
        _prompt_cache(billed),
        prices.input,
        prices.cache_read,
        prices.cache_write_5m,
        prices.cache_write_1h,
        prices.output,
        billed.microdollars,
        _json(billed.flags),
        False,
        now,
    )


ABORTED: Final = "aborted"


def _as_aborted(intent: IntentRecord) -> EndRecord:
    return EndRecord(
        v=intent.v,
        id=intent.id,
        at=intent.at,
        caller=intent.caller,
        project=intent.project,
        environment=intent.environment,
        token=intent.token,
        endpoint=intent.endpoint,
        group=intent.group,
        dialect=intent.dialect,
        stream=intent.stream,
        revision=intent.revision,
        status=0,
        outcome=ABORTED,
        duration_ms=0.0,
        target=intent.target,
        provider=intent.provider,
        model=intent.model,
        input_tokens_estimated=intent.input_tokens_estimated,
    )


def _attempt_rows(pk: int, attempts: Sequence[AttemptRecord], billed: Bill) -> Iterator[Row]:
    """The last attempt has the exchange's usage and cost, unless no provider accepted anything."""
    last = len(attempts) - 1
    for place, each in enumerate(attempts):
        served = place == last and billed.quality != "none"
        refused = each.status is None or not 200 <= each.status < 300
        yield (
            pk,
            place,
            _text(each.target),
            _text(each.provider),
            _text(each.model),
            _text(each.outcome),
            each.status,
            _text(each.error_code),
            each.started_ms,
            each.duration_ms,
            each.first_content_ms,
            each.retry_after_s,
            served,
            billed.tokens.all_input if served else None,
            billed.tokens.output if served else None,
            billed.microdollars if served else 0 if refused else None,
        )


def _candidate_rows(pk: int, end: EndRecord, max_candidates: int) -> Iterator[Row]:
    sheet = end.candidates
    rows = {name: row for row, name in enumerate(sheet.targets)} if sheet is not None else {}
    digits = _digits(sheet) if sheet is not None else []
    for place, target in enumerate(end.order[:max_candidates]):
        row = rows.get(target)
        if sheet is None or row is None:
            yield (pk, place, _text(target), None, None, None, None, None, None, None, False, "{}", "[]", "")
        else:
            yield (pk, place, _text(target), *_numbers(sheet, row), digits[row])


def _digits(sheet: CandidatesRecord) -> list[str]:
    found = sheet.scores
    values = [found[name][1] if name in found else None for name in SCORES]
    return digits_of([sheet.dynamics, sheet.contrasted, sheet.finals, *values], len(sheet.targets))


def _numbers(sheet: CandidatesRecord, row: int) -> Row:
    scores = {
        name: [raws[row], values[row]] if flags[row] is None else [raws[row], values[row], flags[row]]
        for name, (raws, values, flags) in sheet.scores.items()
    }
    terms = [[name, share, values[row], tags[row], flags[row]] for name, share, values, tags, flags in sheet.terms]
    return (
        sheet.weights[row],
        sheet.observations[row],
        sheet.in_flight[row],
        sheet.overdue[row],
        None if sheet.dynamics is None else sheet.dynamics[row],
        None if sheet.contrasted is None else sheet.contrasted[row],
        None if sheet.finals is None else sheet.finals[row],
        row in sheet.near_ties,
        _encode(scores).decode(),
        _encode(terms).decode(),
    )


def _prompt_cache(billed: Bill) -> str:
    tokens = billed.tokens
    if tokens.cache_read:
        return "read"
    if tokens.cache_write_5m or tokens.cache_write_1h:
        return "written"
    return "unknown" if tokens.cache_read is None else "none"


def _json(value: object) -> str:
    if value == [] or value == ():
        return "[]"
    return _encode(value).decode()


def _text(value: str | None) -> str:
    return value[:LONGEST_TEXT] if value else ""
