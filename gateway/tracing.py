"""Spans of what went through, sent to an OpenTelemetry collector by a thread of its own.

They are made from the records, after the answer: a request pays for a place in a queue and, upstream, for one header.
Names follow the GenAI semantic conventions; no span holds text of a prompt or an answer.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from gateway.relay.app import RecordSink
from gateway.relay.tracing import Trace
from reports.core.record import AttemptRecord, EndRecord, IntentRecord

log = logging.getLogger("pilotage.tracing")

EVERY_S: Final = 1.0
BATCH: Final = 512
"""Exchanges sent at a time."""
WARN_EVERY_S: Final = 60.0
CLOSE_S: Final = 5.0

PATHS: Final = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "count_tokens": "/v1/messages/count_tokens",
}

Attributes = dict[str, str | bool | int | float | Sequence[str]]


def collector(endpoint: str, *, headers: dict[str, str], timeout_s: float) -> SpanExporter:
    """OTLP over HTTP with protobuf; `endpoint`: the whole URL, usually ending in `/v1/traces`."""
    return OTLPSpanExporter(endpoint=endpoint, headers=headers, timeout=timeout_s)


class Tracing:
    """A sink of records that passes them on and makes spans of the sampled ones."""

    def __init__(self, records: RecordSink, exporter: SpanExporter, *, instance: str, max_waiting: int) -> None:
        """`max_waiting`: exchanges that wait for the collector; beyond them they are dropped and counted."""
        self.dropped = 0
        self.sent = 0
        self._records = records
        self._exporter = exporter
        self._resource = Resource.create({"service.name": "pilotage", "service.instance.id": instance})
        self._max_waiting = max_waiting
        self._waiting: deque[EndRecord] = deque()
        self._closing = threading.Event()
        self._warned = float("-inf")
        self._thread = threading.Thread(target=self._run, name="pilotage-tracing", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Sends what waits, as far as the collector takes it in time."""
        self._closing.set()
        self._thread.join(CLOSE_S)

    def intent(self, record: IntentRecord) -> None:
        self._records.intent(record)

    def end(self, record: EndRecord) -> None:
        self._records.end(record)
        if record.sampled:
            if len(self._waiting) >= self._max_waiting:
                self.dropped += 1
            else:
                self._waiting.append(record)

    def flush(self) -> None:
        self._records.flush()

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._closing.wait(EVERY_S)
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]
                if not self._send(batch) and ended:
                    return

    def _send(self, batch: list[EndRecord]) -> bool:
        problem = "the collector did not take it"
        try:
            spans = [span for record in batch for span in spans_of(record, self._resource)]
            if self._exporter.export(spans) is SpanExportResult.SUCCESS:
                self.sent += len(batch)
                return True
        except Exception as error:  # of whatever the exporter is made of: tracing must not end with it
            problem = str(error)
        self.dropped += len(batch)
        now = time.monotonic()
        if now - self._warned >= WARN_EVERY_S:
            self._warned = now
            log.warning("spans of %d exchanges were lost: %s", len(batch), problem)
        return False


def spans_of(record: EndRecord, resource: Resource) -> list[ReadableSpan]:
    """The exchange's span, and one for each of its attempts."""
    if record.trace_id is None or record.span_id is None:
        return []
    trace = Trace(record.trace_id, record.span_id, record.parent_span_id, record.sampled)
    began = round(record.at * 1e9)
    own = _context(trace, trace.span_id, remote=False)
    whole = ReadableSpan(
        name=f"{_operation(record)} {record.group}".strip(),
        context=own,
        parent=None if trace.parent_id is None else _context(trace, trace.parent_id, remote=True),
        resource=resource,
        attributes=_of_exchange(record),
        kind=SpanKind.SERVER,
        status=_status(record.status >= 500 or record.outcome == "upstream_truncated", record.error_code),
        start_time=began,
        end_time=began + _ns(record.duration_ms),
    )
    return [whole, *(_attempt(record, trace, own, number, resource, began) for number in range(len(record.attempts)))]


def _attempt(
    record: EndRecord, trace: Trace, parent: SpanContext, index: int, resource: Resource, began: int
) -> ReadableSpan:
    attempt = record.attempts[index]
    start = began + _ns(attempt.started_ms)
    return ReadableSpan(
        name=f"{_operation(record)} {attempt.model}",
        context=_context(trace, trace.attempt_id(index + 1), remote=False),
        parent=parent,
        resource=resource,
        attributes=_of_attempt(record, attempt),
        kind=SpanKind.CLIENT,
        status=_status(attempt.outcome != "ok", attempt.error_code or attempt.outcome),
        start_time=start,
        end_time=start + _ns(attempt.duration_ms),
    )


def _of_exchange(record: EndRecord) -> Attributes:
    found: dict[str, str | bool | int | float | Sequence[str] | None] = {
        "gen_ai.operation.name": _operation(record),
        "gen_ai.request.model": record.group or None,
        "gen_ai.response.model": record.model,
        "gen_ai.provider.name": record.provider,
        "gen_ai.request.stream": record.stream,
        "gen_ai.request.max_tokens": record.output_cap,
        "gen_ai.response.time_to_first_chunk": _seconds(record.first_content_ms),
        **_usage(record),
        "http.request.method": "POST",
        "url.path": PATHS.get(record.endpoint),
        "http.response.status_code": record.status,
        "error.type": record.error_code,
        "pilotage.request_id": record.id,
        "pilotage.caller": record.caller or None,
        "pilotage.project": record.project or None,
        "pilotage.environment": record.environment or None,
        "pilotage.outcome": record.outcome,
        "pilotage.target": record.target,
        "pilotage.strategy": record.strategy,
        "pilotage.mode": record.mode,
        "pilotage.affinity": record.affinity,
        "pilotage.attempts": len(record.attempts),
        "pilotage.matched_terms": record.matched_terms or None,
        "pilotage.revision": record.revision,
        "pilotage.queued_seconds": _seconds(record.queued_ms),
    }
    return {name: value for name, value in found.items() if value is not None}


def _of_attempt(record: EndRecord, attempt: AttemptRecord) -> Attributes:
    found: dict[str, str | bool | int | float | None] = {
        "gen_ai.operation.name": _operation(record),
        "gen_ai.request.model": attempt.model,
        "gen_ai.provider.name": attempt.provider,
        "gen_ai.request.stream": record.stream,
        "gen_ai.response.time_to_first_chunk": _seconds(attempt.first_content_ms),
        "http.request.method": "POST",
        "http.response.status_code": attempt.status,
        "error.type": None if attempt.outcome == "ok" else attempt.error_code or attempt.outcome,
        "pilotage.target": attempt.target,
        "pilotage.outcome": attempt.outcome,
        "pilotage.retry_after_seconds": attempt.retry_after_s,
    }
    if attempt is record.attempts[-1] and attempt.outcome == "ok":
        found |= _usage(record)
    return {name: value for name, value in found.items() if value is not None}


def _usage(record: EndRecord) -> dict[str, int | None]:
    """The conventions count cached input among the input."""
    written = [record.cache_write_tokens, record.cache_write_1h_tokens]
    creation = None if written == [None, None] else sum(count or 0 for count in written)
    total = record.input_tokens
    if total is not None:
        total += (record.cache_read_tokens or 0) + (creation or 0)
    return {
        "gen_ai.usage.input_tokens": total,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": creation,
        "gen_ai.usage.reasoning.output_tokens": record.reasoning_tokens,
    }


def _operation(record: EndRecord) -> str:
    return "count_tokens" if record.endpoint == "count_tokens" else "chat"


def _context(trace: Trace, span_id: str, *, remote: bool) -> SpanContext:
    return SpanContext(
        trace_id=int(trace.trace_id, 16),
        span_id=int(span_id, 16),
        is_remote=remote,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if trace.sampled else TraceFlags.DEFAULT),
    )


def _status(failed: bool, code: str | None) -> Status:
    return Status(StatusCode.ERROR, code) if failed else Status(StatusCode.UNSET)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0


def _ns(milliseconds: float) -> int:
    return round(milliseconds * 1e6)
