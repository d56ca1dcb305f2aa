"""An exchange as the lines that outlive it: scalars only, no text of anybody's."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from gateway.dialects.neutral import Usage
from reports.core.record import VERSION, CandidatesRecord, EndRecord, ExclusionRecord, IntentRecord, LogLine
from routing.core.decision import Candidates, Decision

if TYPE_CHECKING:
    from gateway.relay.exchange import Exchange


def milliseconds(seconds: float) -> float:
    """To the microsecond. `round` would take three times as long."""
    return int(seconds * 1_000_000.0 + 0.5) / 1_000.0


def intent_record(exchange: "Exchange") -> IntentRecord:
    token, shape, decision, group = exchange.token, exchange.shape, exchange.decision, exchange.group
    assert token is not None
    assert shape is not None
    assert decision is not None
    assert group is not None
    caller = token.caller
    first = decision.candidates.primary
    return IntentRecord(
        exchange.id,
        exchange.wall,
        caller.name,
        caller.project,
        caller.environment,
        token.shown,
        group.name,
        shape.dialect,
        shape.stream,
        decision.revision,
        first.id,
        shape.input_tokens,
        exchange.endpoint.name,
        first.provider.name,
        first.model,
        first.input_price_microusd_per_million,
    )


def end_record(exchange: "Exchange") -> EndRecord:
    token, shape, decision, serving = exchange.token, exchange.shape, exchange.decision, exchange.serving
    call, downstream = exchange.call, exchange.downstream
    caller = token.caller if token is not None else None
    first = downstream.first_content_at if downstream is not None else None
    usage = exchange.usage or Usage()
    trace, limit = exchange.trace, exchange.relay.max_candidates
    input, output, quality = _counted(exchange, usage)
    marker: Literal["received", "synthesized"] | None = None
    if downstream is not None and downstream.ended and exchange.outcome == "success":
        marker = "synthesized" if downstream.synthesized else "received"
    return EndRecord(
        VERSION,
        exchange.id,
        exchange.wall,
        caller.name if caller else "",
        caller.project if caller else "",
        caller.environment if caller else "",
        token.shown if token else "",
        exchange.endpoint.name,
        exchange.group.name if exchange.group else "",
        exchange.endpoint.dialect.NAME,
        call.stream if call else False,
        exchange.catalog.revision if exchange.catalog else 0,
        exchange.status,
        exchange.outcome,
        milliseconds(exchange.ended_at - exchange.started_at),
        exchange.error_code,
        exchange.error_detail,
        None if first is None else milliseconds(first - exchange.started_at),
        milliseconds(exchange.queued_s),
        exchange.request_bytes,
        exchange.body_sent,
        decision.strategy if decision else None,
        decision.mode if decision else None,
        decision.affinity if decision else None,
        decision.propensity if decision else None,
        decision.tie_break if decision else None,
        list(decision.matched_terms) if decision else [],
        list(decision.flags) if decision else [],
        serving.id if serving else None,
        serving.provider.name if serving else None,
        serving.model if serving else None,
        exchange.attempts,
        decision.candidates.first(limit).ids() if decision else [],
        _candidates(decision, limit) if decision else None,
        [
            ExclusionRecord(
                target=exclusion.target, stage=exclusion.stage, reason=exclusion.reason, detail=exclusion.detail
            )
            for exclusion in decision.exclusions[:limit]
        ]
        if decision
        else [],
        shape.input_tokens if shape else 0,
        shape.output_cap if shape else None,
        shape.tool_count if shape else 0,
        shape.image_count if shape else 0,
        shape.complexity_score if shape else 0.0,
        sorted(shape.prompt_features) if shape else [],
        input,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.cache_write_1h_tokens,
        output,
        usage.reasoning_tokens,
        quality,
        marker,
        serving.input_price_microusd_per_million if serving else None,
        serving.output_price_microusd_per_million if serving else None,
        serving.cached_input_price_microusd_per_million if serving else None,
        serving.cache_write_price_microusd_per_million if serving else None,
        serving.cache_write_1h_price_microusd_per_million if serving else None,
        _sorted(decision.policy.enabled_signals) if decision and decision.policy else [],
        trace.trace_id if trace else None,
        trace.span_id if trace else None,
        trace.parent_id if trace else None,
        trace.sampled if trace else False,
    )


@lru_cache(maxsize=256)
def _sorted(names: frozenset[str]) -> list[str]:
    """Shared by the records: not to be changed."""
    return sorted(names)


def _counted(exchange: "Exchange", usage: Usage) -> tuple[int | None, int | None, str]:
    """Input and output tokens and the quality of the usage: what was delivered counts even where nobody reported it."""
    shape = exchange.shape
    if shape is None or not exchange.output_bytes or usage.quality == "reported":
        return usage.input_tokens, usage.output_tokens, usage.quality
    delivered = max(1, exchange.output_bytes // 4)
    input = shape.input_tokens if usage.input_tokens is None else usage.input_tokens
    if exchange.outcome == "success" and usage.quality == "inconsistent":
        return input, delivered if usage.output_tokens is None else usage.output_tokens, "inconsistent"
    return input, max(delivered, usage.output_tokens or 0), "estimated"


def _candidates(decision: Decision, limit: int) -> CandidatesRecord | None:
    """The columns of the decision's sheet. A probe stands beside the sheet, with its exclusion."""
    candidates = decision.candidates
    if not candidates:
        return None
    sheet, targets = candidates.sheet, candidates.targets
    if len(sheet.weights) > limit:
        return _first(candidates, limit)
    names = [""] * len(sheet.weights)
    for row in candidates.order:
        names[row] = targets[row].id
    return CandidatesRecord(
        targets=names,
        weights=sheet.weights,
        observations=[stats.window.attempts for stats in sheet.stats],
        in_flight=[stats.in_flight for stats in sheet.stats],
        overdue=[stats.overdue for stats in sheet.stats],
        dynamics=sheet.dynamics,
        contrasted=sheet.contrasted,
        finals=sheet.finals,
        near_ties=list(sheet.band),
        scores=sheet.scores,  # type: ignore[arg-type]  # columns are written as tuples
        terms=sheet.terms,  # type: ignore[arg-type]  # so are they
    )


def _first(candidates: Candidates, limit: int) -> CandidatesRecord:
    """The rows of the first `limit` in the order of trying."""
    sheet, targets = candidates.sheet, candidates.targets
    rows = candidates.order[:limit]
    # Of one row `itemgetter` would give the entry alone.
    of: Callable[[Sequence[Any]], Sequence[Any]] = itemgetter(*rows) if limit > 1 else lambda column: [column[rows[0]]]
    stats = of(sheet.stats)
    return CandidatesRecord(
        targets=[targets[row].id for row in rows],
        weights=of(sheet.weights),
        observations=[each.window.attempts for each in stats],
        in_flight=[each.in_flight for each in stats],
        overdue=[each.overdue for each in stats],
        dynamics=None if sheet.dynamics is None else of(sheet.dynamics),
        contrasted=None if sheet.contrasted is None else of(sheet.contrasted),
        finals=None if sheet.finals is None else of(sheet.finals),
        near_ties=[place for place, row in enumerate(rows) if row in sheet.band],
        scores={name: (of(column.raws), of(column.values), of(column.flags)) for name, column in sheet.scores.items()},
        terms=[
            (term.name, term.share, of(term.values), of(term.preferred_tags), of(term.flags)) for term in sheet.terms
        ],
    )


def log_line(end: EndRecord) -> LogLine:
    return LogLine(
        end.at,
        end.id,
        end.caller,
        end.token,
        end.endpoint,
        end.group,
        end.stream,
        end.status,
        end.outcome,
        end.error_code,
        end.error_detail,
        end.target,
        end.mode,
        end.affinity,
        len(end.attempts),
        end.duration_ms,
        end.first_content_ms,
        end.queued_ms,
        end.input_tokens,
        end.output_tokens,
        end.revision,
    )
