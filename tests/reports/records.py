"""Records as a gateway writes them, and a spool with them in it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from reports.core.record import AttemptRecord, CandidatesRecord, EndRecord, ExclusionRecord, IntentRecord
from reports.spool import Spool

NOON = 1_796_040_000.0
"""2026-11-30T12:00:00Z."""


def an_intent(id: str = "req_1", **said: Any) -> IntentRecord:
    values: dict[str, Any] = {
        "id": id,
        "at": NOON,
        "caller": "team",
        "project": "search",
        "environment": "prod",
        "token": "plt_12345678",
        "group": "chat",
        "dialect": "openai-chat",
        "stream": True,
        "revision": 3,
        "target": "paris/m",
        "input_tokens_estimated": 1_000,
        "endpoint": "chat",
        "provider": "paris",
        "model": "m-1",
        "input_price": 2_000_000,
        **said,
    }
    return IntentRecord(**values)


def an_attempt(target: str = "paris/m", **said: Any) -> AttemptRecord:
    values: dict[str, Any] = {
        "target": target,
        "provider": target.partition("/")[0],
        "model": "m-1",
        "outcome": "ok",
        "status": 200,
        "error_code": None,
        "started_ms": 0.5,
        "duration_ms": 90.0,
        "first_content_ms": 20.0,
        **said,
    }
    return AttemptRecord(**values)


def an_end(id: str = "req_1", **said: Any) -> EndRecord:
    """A success of 1,000 input and 100 output tokens at $2 and $8 per million: 2,800 micro-dollars."""
    values: dict[str, Any] = {
        "v": 1,
        "id": id,
        "at": NOON,
        "caller": "team",
        "project": "search",
        "environment": "prod",
        "token": "plt_12345678",
        "endpoint": "chat",
        "group": "chat",
        "dialect": "openai-chat",
        "stream": True,
        "revision": 3,
        "status": 200,
        "outcome": "success",
        "duration_ms": 100.25,
        "first_content_ms": 20.5,
        "strategy": "dynamic_score",
        "mode": "score",
        "affinity": "affinity_miss",
        "propensity": 1.0,
        "tie_break": "final",
        "target": "paris/m",
        "provider": "paris",
        "model": "m-1",
        "attempts": [an_attempt()],
        "order": ["paris/m", "oslo/m"],
        "candidates": some_candidates(),
        "exclusions": [
            ExclusionRecord(target="rome/m", stage="eligibility", reason="context_exceeded", detail="needs 9, has 8")
        ],
        "input_tokens_estimated": 1_000,
        "output_cap": 256,
        "complexity": 0.4,
        "prompt_features": ["code"],
        "input_tokens": 1_000,
        "output_tokens": 100,
        "usage_quality": "reported",
        "terminal_marker": "received",
        "input_price": 2_000_000,
        "output_price": 8_000_000,
        "signals": ["complexity", "cost"],
        **said,
    }
    return EndRecord(**values)


def some_candidates() -> CandidatesRecord:
    return CandidatesRecord(
        targets=["oslo/m", "paris/m"],
        weights=[0.5, 1.0],
        observations=[40.0, 60.0],
        in_flight=[1, 0],
        overdue=[0, 0],
        dynamics=[0.25, 0.75],
        contrasted=[0.125, 0.875],
        finals=[0.25, 0.9],
        near_ties=[1],
        scores={"cost_score": ([0.02, None], [0.5, 1.0], [None, "no_data"])},
        terms=[("cheap", 1.0, [0.25, 0.75], [0, 1], [None, None])],
    )


def a_spool(directory: Path, records: Iterable[EndRecord | IntentRecord], **how: Any) -> Spool:
    """The records in one file, which is finished once the spool is closed."""
    spool = Spool(directory, **how)
    add(spool, records)
    return spool


def add(spool: Spool, records: Iterable[EndRecord | IntentRecord]) -> None:
    for record in records:
        if isinstance(record, IntentRecord):
            spool.intent(record)
        else:
            spool.end(record)
        spool.flush()


def line_of(record: EndRecord | IntentRecord) -> bytes:
    return msgspec.json.encode(record) + b"\n"
