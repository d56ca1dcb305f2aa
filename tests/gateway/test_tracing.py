"""Spans reach a collector as the conventions name them, and the trace context goes on to the provider."""

import gzip
import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from gateway.relay.tracing import Trace, trace_of
from gateway.tracing import Tracing, collector
from reports.core.record import EndRecord
from tests.e2e import wire
from tests.support.loops import in_loop
from tests.support.processes import StartGateway, StartSimulator
from tests.support.relays import Kept, answering, completion, in_order, relaying, target_on
from tests.support.scripted import scripted

CHAT = "/v1/chat/completions"
HI = {"model": "g", "messages": [{"role": "user", "content": "planted words"}]}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CAME = f"00-{TRACE}-{PARENT}-01".encode()
ID = "req_00f067aa0ba902b7000000000000000a"


class Collector:
    """A real OTLP receiver on a free port."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[Span] = []
        self.resource: dict[str, Any] = {}
        self.headers: list[dict[str, str]] = []
        kept = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                kept.headers.append({name.lower(): value for name, value in self.headers.items()})
                for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                    kept.resource = values(part.resource)
                    kept.spans += [span for scope in part.scope_spans for span in scope.spans]
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def values(of: Any) -> dict[str, Any]:
    def value(any: AnyValue) -> Any:
        kind = any.WhichOneof("value")
        return [value(each) for each in any.array_value.values] if kind == "array_value" else getattr(any, str(kind))

    return {each.key: value(each.value) for each in of.attributes}


@pytest.fixture
def receiver() -> Iterator[Collector]:
    collecting = Collector()
    yield collecting
    collecting.close()


def exporter(receiver: Collector, **headers: str) -> SpanExporter:
    return collector(receiver.url, headers=headers, timeout_s=5.0)


def tracing(records: Kept, to: SpanExporter, *, max_waiting: int = 100) -> Tracing:
    made = Tracing(records, to, instance="here-1", max_waiting=max_waiting)
    made.start()
    return made


@in_loop
async def test_an_exchange_and_its_attempts_are_spans_of_the_callers_trace(receiver: Collector) -> None:
    usage = {
        "prompt_tokens": 30,
        "completion_tokens": 7,
        "total_tokens": 37,
        "prompt_tokens_details": {"cached_tokens": 10},
    }
    failing = answering({"error": {"message": "boom"}}, status=500)
    async with (
        scripted(failing) as a,
        scripted(answering(completion("b", usage=usage))) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b")), trace_share=0.0) as bench,
    ):
        headers = [(b"traceparent", CAME), (b"tracestate", b"vendor=1")]
        assert (await bench.post(CHAT, HI, headers=headers)).status == 200
        sent = [request for provider in (a, b) for request in provider.requests]
    end = bench.end
    spans = tracing(Kept(), exporter(receiver, authorization="Basic abc"))
    spans.end(end)
    spans.close()

    whole, first, second = receiver.spans
    assert {span.trace_id.hex() for span in receiver.spans} == {TRACE}
    assert [span.parent_span_id.hex() for span in receiver.spans] == [PARENT, *[whole.span_id.hex()] * 2]
    assert [request.header(b"traceparent") for request in sent] == [
        f"00-{TRACE}-{span.span_id.hex()}-01".encode() for span in (first, second)
    ]
    assert [request.header(b"tracestate") for request in sent] == [b"vendor=1"] * 2
    assert [span.kind for span in receiver.spans] == [Span.SPAN_KIND_SERVER, *[Span.SPAN_KIND_CLIENT] * 2]
    assert (whole.name, first.status.code, second.status.code) == ("chat g", 2, 0)
    assert values(whole) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "g",
        "gen_ai.response.model": end.model,
        "gen_ai.provider.name": end.provider,
        "gen_ai.request.stream": False,
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 10,
        "http.request.method": "POST",
        "url.path": CHAT,
        "http.response.status_code": 200,
        "pilotage.request_id": end.id,
        "pilotage.caller": "alice",
        "pilotage.project": "product",
        "pilotage.outcome": "success",
        "pilotage.target": "b",
        "pilotage.strategy": "failover",
        "pilotage.mode": "configured",
        "pilotage.attempts": 2,
        "pilotage.revision": end.revision,
        "pilotage.queued_seconds": 0.0,
    }
    assert values(first) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": end.attempts[0].model,
        "gen_ai.provider.name": end.attempts[0].provider,
        "gen_ai.request.stream": False,
        "http.request.method": "POST",
        "http.response.status_code": 500,
        "error.type": end.attempts[0].error_code,
        "pilotage.target": "a",
        "pilotage.outcome": "server_error",
    }
    assert values(second)["gen_ai.usage.input_tokens"] == 30
    assert whole.start_time_unix_nano <= first.start_time_unix_nano <= first.end_time_unix_nano
    assert first.end_time_unix_nano <= second.start_time_unix_nano + 2_000
    assert second.end_time_unix_nano <= whole.end_time_unix_nano + 2_000
    assert receiver.resource["service.name"] == "pilotage"
    assert receiver.resource["service.instance.id"] == "here-1"
    assert receiver.headers[0]["authorization"] == "Basic abc"
    assert b"planted words" not in b"".join(span.SerializeToString() for span in receiver.spans)


@in_loop
async def test_without_tracing_a_trace_context_is_passed_on_as_it_came() -> None:
    async with scripted(answering(completion())) as a, relaying(in_order(target_on(a, "a"))) as bench:
        await bench.post(CHAT, HI, headers=[(b"traceparent", CAME)])
        await bench.post(CHAT, HI)
        assert [request.header(b"traceparent") for request in a.requests] == [CAME, None]
    assert (bench.end.trace_id, bench.end.sampled) == (None, False)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (CAME, Trace(TRACE, ID[20:], PARENT, True)),
        (CAME[:-2] + b"00", Trace(TRACE, ID[20:], PARENT, False)),
        (CAME[:-2] + b"03", Trace(TRACE, ID[20:], PARENT, True)),
        (b"cc" + CAME[2:] + b"-what-comes-later", Trace(TRACE, ID[20:], PARENT, True)),
        (CAME + b"-more", None),
        (b"cc" + CAME[2:] + b"more", None),
        (b"ff" + CAME[2:], None),
        (CAME.upper(), None),
        (CAME.replace(TRACE.encode(), b"0" * 32), None),
        (CAME.replace(PARENT.encode(), b"0" * 16), None),
        (CAME[:-1], None),
        (b"", None),
    ],
    ids=repr,
)
def test_a_trace_context_is_taken_as_the_specification_reads_it(field: bytes, expected: Trace | None) -> None:
    begun = Trace(ID[4:], ID[20:], None, True)
    assert trace_of(ID, field, share=1.0) == (expected or begun)


@given(st.binary(max_size=80) | st.from_regex(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True))
def test_whatever_comes_the_provider_gets_a_context_that_is_one(field: bytes) -> None:
    trace = trace_of(ID, field, share=0.5)
    for attempt in (1, 2, 30):
        read = trace_of("req_" + "1" * 32, trace.traceparent(attempt), share=0.0)
        assert (read.trace_id, read.parent_id, read.sampled) == (
            trace.trace_id,
            trace.attempt_id(attempt),
            trace.sampled,
        )


@pytest.mark.parametrize(("share", "sampled"), [(0.0, 0), (0.25, 1), (0.75, 3), (1.0, 4)])
def test_a_share_of_the_traces_that_begin_here_is_sampled(share: float, sampled: int) -> None:
    ids = [f"req_{first}{'3' * 31}" for first in "048c"]
    assert sum(trace_of(id, None, share=share).sampled for id in ids) == sampled


def some_end(number: int = 0) -> EndRecord:
    own = f"{number + 1:032x}"
    told = {"kind": "end", "v": 1, "id": f"req_{own}", "at": 1.0, "duration_ms": 1.0, "status": 401}
    told |= dict.fromkeys(("caller", "project", "environment", "token"), "")
    told |= {"endpoint": "chat", "group": "g", "dialect": "openai-chat", "stream": False, "revision": 1}
    told |= {"outcome": "refused", "trace_id": own, "span_id": own[16:], "sampled": True}
    return msgspec.convert(told, EndRecord)


def test_records_go_on_whatever_the_collector_does(caplog: pytest.LogCaptureFixture) -> None:
    refusing = Collector(status=400)
    kept = Kept()
    spans = tracing(kept, exporter(refusing))
    for number in range(3):
        spans.end(some_end(number))
    spans.close()
    refusing.close()
    assert len(kept.ends) == 3
    assert (spans.sent, spans.dropped) == (0, 3)
    assert [record.getMessage() for record in caplog.records if record.name == "pilotage.tracing"] == [
        "spans of 3 exchanges were lost: the collector did not take it"
    ]


def test_what_finds_no_room_is_dropped_and_counted(receiver: Collector) -> None:
    spans = Tracing(Kept(), exporter(receiver), instance="x", max_waiting=2)
    for number in range(5):
        spans.end(some_end(number))
    spans.end(msgspec.structs.replace(some_end(9), sampled=False))
    spans.start()
    spans.close()
    assert (spans.sent, spans.dropped, len(receiver.spans)) == (2, 3, 2)


def test_an_exporter_that_fails_loses_its_spans_and_not_the_next() -> None:
    class Failing(SpanExporter):
        def __init__(self) -> None:
            self.calls = 0

        def export(self, spans: Any) -> SpanExportResult:
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("no route")
            return SpanExportResult.SUCCESS

    failing = Failing()
    spans = tracing(Kept(), failing)
    spans.end(some_end())
    while not failing.calls:
        time.sleep(0.01)
    spans.end(some_end(1))
    spans.close()
    assert (spans.sent, spans.dropped) == (1, 1)


@pytest.mark.e2e
def test_a_gateway_sends_its_spans_and_the_rest_when_it_ends(
    receiver: Collector, start_gateway: StartGateway, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator(name="a", latency_ms=0, jitter_ms=0, tokens_per_second=0)
    gateway = start_gateway(
        f"""
        version: 1
        providers:
          p: {{base_url: "{simulator.base_url}", dialect: openai-chat, models: {{m: {{model: m-1}}}}}}
        models:
          g: {{strategy: static, targets: [{{provider: p, model_ref: m}}]}}
        callers:
          tester: {{allow: [g]}}
        """,
        caller="tester",
        environment={"PILOTAGE_TRACES_ENDPOINT": receiver.url, "PILOTAGE_TRACES_HEADERS": "x-key=planted"},
    )
    host, port = gateway.url.removeprefix("http://").split(":")
    for _ in range(3):
        headers = [("Authorization", f"Bearer {gateway.known}"), ("traceparent", CAME.decode())]
        body = json.dumps(HI).encode()
        assert wire.request((host, int(port)), "POST", CHAT, headers=headers, body=body).status == 200
    gateway.stop()
    ours = [span for span in receiver.spans if span.trace_id.hex() == TRACE]
    assert sorted(span.name for span in ours) == ["chat g"] * 3 + ["chat m-1"] * 3
    assert {fields["x-key"] for fields in receiver.headers} == {"planted"}
    assert "planted" not in gateway.output()
