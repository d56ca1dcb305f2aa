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


def intent_record(exchange: "Exchange") -> IntentRecord:
    token, shape, decision, group = exchange.token, exchange.shape, exchange.decision, exchange.group
    assert token is not None
    assert shape is not None
    assert decision is not None
    assert group is not None
    caller = token.caller
    first = decision.candidates.primary
    return IntentRecord(
        id=exchange.id,
        at=exchange.wall,
        caller=caller.name,
        project=caller.project,
        environment=caller.environment,
        token=token.shown,
        group=group.name,
        dialect=shape.dialect,
        stream=shape.stream,
        revision=decision.revision,
        target=first.id,
        input_tokens_estimated=shape.input_tokens,
        endpoint=exchange.endpoint.name,
        provider=first.provider.name,
        model=first.model,
        input_price=first.input_price_microusd_per_million,
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
        v=VERSION,
        id=exchange.id,
        at=exchange.wall,
        caller=caller.name if caller else "",
        project=caller.project if caller else "",
        environment=caller.environment if caller else "",
        token=token.shown if token else "",
        endpoint=exchange.endpoint.name,
        group=exchange.group.name if exchange.group else "",
        dialect=exchange.endpoint.dialect.NAME,
        stream=call.stream if call else False,
        revision=exchange.catalog.revision if exchange.catalog else 0,
        status=exchange.status,
        outcome=exchange.outcome,
        error_code=exchange.error_code,
        error_detail=exchange.error_detail,
        duration_ms=round((exchange.ended_at - exchange.started_at) * 1000, 3),
        first_content_ms=None if first is None else round((first - exchange.started_at) * 1000, 3),
        queued_ms=round(exchange.queued_s * 1000, 3),
        request_bytes=exchange.request_bytes,
        response_bytes=exchange.body_sent,
        strategy=decision.strategy if decision else None,
        mode=decision.mode if decision else None,
        affinity=decision.affinity if decision else None,
        propensity=decision.propensity if decision else None,
        tie_break=decision.tie_break if decision else None,
        matched_terms=list(decision.matched_terms) if decision else [],
        flags=list(decision.flags) if decision else [],
        target=serving.id if serving else None,
        provider=serving.provider.name if serving else None,
        model=serving.model if serving else None,
        attempts=exchange.attempts,
        order=decision.candidates.ids()[:limit] if decision else [],
        candidates=_candidates(decision, limit) if decision else None,
        exclusions=[
            ExclusionRecord(
                target=exclusion.target, stage=exclusion.stage, reason=exclusion.reason, detail=exclusion.detail
            )
            for exclusion in decision.exclusions[:limit]
        ]
        if decision
        else [],
        input_tokens_estimated=shape.input_tokens if shape else 0,
        output_cap=shape.output_cap if shape else None,
        tool_count=shape.tool_count if shape else 0,
        image_count=shape.image_count if shape else 0,
        complexity=shape.complexity_score if shape else 0.0,
        prompt_features=sorted(shape.prompt_features) if shape else [],
        input_tokens=input,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cache_write_1h_tokens=usage.cache_write_1h_tokens,
        output_tokens=output,
        reasoning_tokens=usage.reasoning_tokens,
        usage_quality=quality,
        terminal_marker=marker,
        input_price=serving.input_price_microusd_per_million if serving else None,
        output_price=serving.output_price_microusd_per_million if serving else None,
        cached_input_price=serving.cached_input_price_microusd_per_million if serving else None,
        cache_write_price=serving.cache_write_price_microusd_per_million if serving else None,
        cache_write_1h_price=serving.cache_write_1h_price_microusd_per_million if serving else None,
        trace_id=trace.trace_id if trace else None,
        span_id=trace.span_id if trace else None,
        parent_span_id=trace.parent_id if trace else None,
        sampled=trace.sampled if trace else False,
        signals=_sorted(decision.policy.enabled_signals) if decision and decision.policy else [],
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
        at=end.at,
        id=end.id,
        caller=end.caller,
        token=end.token,
        endpoint=end.endpoint,
        group=end.group,
        stream=end.stream,
        status=end.status,
        outcome=end.outcome,
        error_code=end.error_code,
        error_detail=end.error_detail,
        target=end.target,
        mode=end.mode,
        affinity=end.affinity,
        attempts=len(end.attempts),
        duration_ms=end.duration_ms,
        first_content_ms=end.first_content_ms,
        queued_ms=end.queued_ms,
        input_tokens=end.input_tokens,
        output_tokens=end.output_tokens,
        revision=end.revision,
    )
