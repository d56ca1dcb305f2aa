"""An exchange as the lines that outlive it: scalars only, no text of anybody's."""

from typing import TYPE_CHECKING, Literal

from gateway.dialects.neutral import Usage
from reports.core.record import (
    VERSION,
    CandidateRecord,
    EndRecord,
    ExclusionRecord,
    IntentRecord,
)
from routing.core.decision import Candidate

if TYPE_CHECKING:
    from gateway.relay.exchange import Exchange

MAX_CANDIDATES = 64
"""Candidates and exclusions on one record."""


def intent_record(exchange: "Exchange") -> IntentRecord:
    token, shape, decision, group = exchange.token, exchange.shape, exchange.decision, exchange.group
    assert token is not None
    assert shape is not None
    assert decision is not None
    assert group is not None
    caller = token.caller
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
        target=decision.candidates[0].target.id,
        input_tokens_estimated=shape.input_tokens,
    )


def end_record(exchange: "Exchange") -> EndRecord:
    token, shape, decision, serving = exchange.token, exchange.shape, exchange.decision, exchange.serving
    call, downstream = exchange.call, exchange.downstream
    caller = token.caller if token is not None else None
    first = downstream.first_content_at if downstream is not None else None
    usage = exchange.usage or Usage()
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
        duration_ms=round((exchange.relay.clock() - exchange.started_at) * 1000, 3),
        first_content_ms=None if first is None else round((first - exchange.started_at) * 1000, 3),
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
        candidates=[_candidate(rank, candidate) for rank, candidate in enumerate(decision.candidates[:MAX_CANDIDATES])]
        if decision
        else [],
        exclusions=[
            ExclusionRecord(
                target=exclusion.target, stage=exclusion.stage, reason=exclusion.reason, detail=exclusion.detail
            )
            for exclusion in decision.exclusions[:MAX_CANDIDATES]
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
    )


def _counted(exchange: "Exchange", usage: Usage) -> tuple[int | None, int | None, str]:
    """Input and output tokens and the quality of the usage: what was delivered counts even where nobody reported it."""
    shape = exchange.shape
    whole = exchange.outcome == "success"
    if shape is None or not exchange.output_bytes or (whole and usage.quality != "missing"):
        return usage.input_tokens, usage.output_tokens, usage.quality
    delivered = max(1, exchange.output_bytes // 4)
    input = shape.input_tokens if usage.input_tokens is None else usage.input_tokens
    return input, max(delivered, usage.output_tokens or 0), "estimated"


def _candidate(rank: int, candidate: Candidate) -> CandidateRecord:
    return CandidateRecord(
        target=candidate.target.id,
        rank=rank,
        weight=candidate.weight,
        dynamic=candidate.dynamic,
        contrasted=candidate.contrasted,
        final=candidate.final,
        confidence=candidate.confidence,
        observations=candidate.observations,
        in_flight=candidate.in_flight,
        overdue=candidate.overdue,
        in_band=candidate.in_band,
        scores=[(score.name, score.raw, score.value, score.flag) for score in candidate.scores],
        terms=[(term.name, term.value, term.share, term.preferred_tags, term.flag) for term in candidate.terms],
    )


def log_line(end: EndRecord) -> dict[str, object]:
    """The one line on stdout: what an operator looks for first. The spool's record has the rest."""
    return {
        "at": end.at,
        "id": end.id,
        "caller": end.caller,
        "token": end.token,
        "endpoint": end.endpoint,
        "group": end.group,
        "stream": end.stream,
        "status": end.status,
        "outcome": end.outcome,
        "error_code": end.error_code,
        "target": end.target,
        "mode": end.mode,
        "affinity": end.affinity,
        "attempts": len(end.attempts),
        "duration_ms": end.duration_ms,
        "first_content_ms": end.first_content_ms,
        "input_tokens": end.input_tokens,
        "output_tokens": end.output_tokens,
        "revision": end.revision,
    }
