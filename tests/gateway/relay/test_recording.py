"""What is written down of an exchange: when, how often, with which numbers, and never a word of anybody's text."""

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from gateway.dialects.neutral import Usage
from gateway.relay.recording import _candidates, end_record, intent_record, log_line
from reports.core.record import AttemptRecord, CandidatesRecord, EndRecord, IntentRecord
from routing.core.catalog import Catalog, ProviderTimeouts, ScorePolicy
from routing.core.decision import Candidates, Decision, Exclusion, Sheet
from routing.core.document import Dialect
from routing.core.shape import RequestShape
from tests.routing.deciding import Scripted, decided, seen, some_stats
from tests.support.documents import some_group, some_target
from tests.support.loops import in_loop
from tests.support.relays import (
    DONE,
    Bench,
    answering,
    chat_event,
    completion,
    in_order,
    message,
    relaying,
    sse,
    target_on,
    text,
)
from tests.support.scripted import (
    AwaitPeer,
    Close,
    Expect,
    Pause,
    Repeat,
    Reset,
    Script,
    ScriptedUpstream,
    Send,
    answer,
    scripted,
)

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
STOP = chat_event(finish="stop")


def hi(*, stream: bool = False) -> dict[str, Any]:
    return {"model": "g", "messages": [{"role": "user", "content": "hi"}], "stream": stream}


def streaming(*events: bytes) -> Script:
    """A provider that streams these bytes to every request, on a connection that stays."""
    body = b"".join(events)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
    return [Repeat([Expect(), Send(head + body)])]


# When and how often.


@dataclass(slots=True)
class Watching:
    """A spool that notes what the provider and the client had seen when it was written to."""

    upstream: ScriptedUpstream
    bench: Bench
    seen: list[tuple[str, int, int]] = field(default_factory=list)
    """What was written; connections at the provider; bytes that the client had."""
    answered: list[bytes] = field(default_factory=list)

    def intent(self, record: IntentRecord) -> None:
        self.seen.append(("intent", len(self.upstream.connections), len(b"".join(self.answered))))

    def flush(self) -> None:
        self.seen.append(("flush", len(self.upstream.connections), len(b"".join(self.answered))))

    def end(self, record: EndRecord) -> None:
        self.seen.append(("end", len(self.upstream.connections), len(b"".join(self.answered))))


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_an_intent_goes_out_before_the_provider_hears_anything_and_the_end_after_the_client_has_it_all(stream):
    script = streaming(text("a"), STOP, DONE) if stream else answering(completion())
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        spool = bench.relay.spool = Watching(upstream, bench)
        call = bench.call(CHAT, hi(stream=stream))
        spool.answered = call.reply.pieces
        reply = await call.answered()
    whole = len(reply.body)
    assert spool.seen == [("intent", 0, 0), ("flush", 0, 0), ("end", 1, whole), ("flush", 1, whole)]


@in_loop
async def test_an_intent_and_its_end_name_the_same_exchange():
    async with scripted(answering(completion())) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        await bench.post(CHAT, hi())
    [intent], end = bench.kept.intents, bench.end
    assert intent == IntentRecord(
        id=end.id,
        at=end.at,
        caller="alice",
        project="product",
        environment="",
        token=bench.secret[:12],
        group="g",
        dialect="openai-chat",
        stream=False,
        revision=1,
        target="a",
        input_tokens_estimated=1,
        endpoint="chat",
        provider="a",
        model="a",
    )


@in_loop
async def test_a_refused_request_leaves_an_end_without_an_intent_and_one_line():
    async with scripted(answering(completion())) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        await bench.post(CHAT, {**hi(), "model": "nobody"})
        await bench.post(CHAT, hi(), anonymous=True)
    assert bench.kept.intents == []
    assert [(end.status, end.error_code, end.caller) for end in bench.kept.ends] == [
        (404, "model_not_found", "alice"),
        (401, "missing_api_key", ""),
    ]
    assert [line["id"] for line in lines(bench)] == [end.id for end in bench.kept.ends]


def lines(bench: Bench) -> list[dict[str, Any]]:
    """The log lines as they are written."""
    return [json.loads(msgspec.json.encode(line)) for line in bench.kept.lines]


# With which numbers.


@in_loop
async def test_the_end_of_a_fallback_tells_both_attempts_and_the_prices_of_who_served():
    clock = Clock()
    async with (
        scripted([Expect(), Send(answer(b"{}", status=503, headers={"retry-after": "7"}))]) as a,
        scripted(answering(completion())) as b,
        relaying(
            in_order(target_on(a, "a", prices=(2.0, 8.0)), target_on(b, "b", prices=(0.1, 0.5))),
            clock=clock,
            wall=lambda: 1_700_000_000.25,
        ) as bench,
    ):
        reply = await bench.post(CHAT, hi())
    end = bench.end
    assert end.attempts == [
        AttemptRecord(
            target="a",
            provider="a",
            model="a",
            outcome="server_error",
            status=503,
            error_code="upstream_server_error",
            started_ms=0.0,
            duration_ms=0.0,
            first_content_ms=None,
            retry_after_s=7.0,
        ),
        AttemptRecord(
            target="b",
            provider="b",
            model="b",
            outcome="ok",
            status=200,
            error_code=None,
            started_ms=0.0,
            duration_ms=0.0,
            first_content_ms=None,
        ),
    ]
    assert (end.target, end.provider, end.model, end.order) == ("b", "b", "b", ["a", "b"])
    assert (end.input_price, end.output_price) == (100_000, 500_000)
    assert (end.id, end.at, end.outcome, end.status) == (
        reply.header("x-request-id"),
        1_700_000_000.25,
        "success",
        200,
    )
    assert (end.strategy, end.mode, end.revision, end.request_bytes) == (
        "failover",
        "configured",
        1,
        len(msgspec.json.encode(hi())),
    )


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@in_loop
async def test_prices_and_revision_are_those_of_the_admission():
    script: Script = [Expect(), Pause(0.15), Send(answer(msgspec.json.encode(completion())))]
    async with (
        scripted([Repeat(script)]) as upstream,
        relaying(in_order(target_on(upstream, "a", prices=(2.0, 8.0)))) as bench,
    ):
        call = bench.call(CHAT, hi())
        while not upstream.requests:  # noqa: ASYNC110 - a script tells nobody
            await asyncio.sleep(0.002)
        dearer = in_order(target_on(upstream, "a", prices=(3.0, 9.0)))
        bench.snapshot.catalog = Catalog(revision=2, groups={"g": dearer}, providers={})
        await call.answered()
        await bench.post(CHAT, hi())
    assert [(end.revision, end.input_price, end.output_price) for end in bench.kept.ends] == [
        (1, 2_000_000, 8_000_000),
        (2, 3_000_000, 9_000_000),
    ]


@in_loop
async def test_the_numbers_behind_a_scored_choice_are_on_the_record():
    async with (
        scripted(answering(completion())) as a,
        scripted(answering(completion())) as b,
        relaying(
            in_order(
                target_on(a, "a", prices=(2.0, 8.0)),
                target_on(b, "b", prices=(0.1, 0.5)),
                strategy="dynamic_score",
                policy=ScorePolicy(min_observations=4),
            )
        ) as bench,
    ):
        for number in range(5):
            await bench.post(CHAT, {**hi(), "messages": [{"role": "user", "content": f"hi {number}"}]})
    assert [end.mode for end in bench.kept.ends] == ["cold_start"] * 4 + ["score"]
    end = msgspec.json.decode(msgspec.json.encode(bench.end), type=EndRecord)
    sheet = end.candidates
    assert sheet is not None
    assert (end.strategy, end.affinity, end.propensity, end.matched_terms) == (
        "dynamic_score",
        "affinity_miss",
        1.0,
        ["default"],
    )
    assert (sheet.targets, sheet.weights, sheet.observations, sheet.in_flight) == (["a", "b"], [1, 1], [4, 0], [0, 0])
    assert sheet.finals is not None
    assert end.order == [name for _, name in sorted(zip(sheet.finals, sheet.targets, strict=True), reverse=True)]
    assert set(sheet.scores) == {"cost_score", "latency_score", "throughput_score", "reliability_score"}
    cost = sheet.scores["cost_score"]
    assert cost[1][1] == 1.0


def read_back(record: CandidatesRecord | None) -> CandidatesRecord:
    return msgspec.json.decode(msgspec.json.encode(record), type=CandidatesRecord)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_record_keeps_the_first_candidates_in_the_order_of_trying(limit: int) -> None:
    names = ("a", "b", "c", "d")
    known = {name: some_stats(seen(100, errors=10.0 * place)) for place, name in enumerate(names)}
    chosen = decided(some_group(names), Scripted(known))
    whole, bounded = read_back(_candidates(chosen, 4)), read_back(_candidates(chosen, limit))
    order = [candidate.target.id for candidate in chosen.candidates]
    assert (sorted(whole.targets), list(bounded.targets)) == (list(names), order[:limit])

    def rows(record: CandidatesRecord) -> dict[str, Any]:
        """Everything that is said of each target."""
        columns: list[Sequence[object] | None] = [record.weights, record.observations, record.in_flight, record.overdue]
        columns += [record.dynamics, record.contrasted, record.finals]
        columns += [part for score in record.scores.values() for part in score]
        columns += [part for term in record.terms for part in term[2:]]
        near = [place in record.near_ties for place in range(len(record.targets))]
        return {
            name: [near[row], *(column[row] for column in columns if column is not None)]
            for row, name in enumerate(record.targets)
        }

    assert rows(bounded) == {name: rows(whole)[name] for name in order[:limit]}
    assert len(msgspec.json.encode(bounded)) < len(msgspec.json.encode(whole))


@in_loop
async def test_times_count_from_the_start_and_in_order():
    async with (
        scripted(streaming(text("a"), STOP, DONE)) as upstream,
        relaying(in_order(target_on(upstream, "a"))) as bench,
    ):
        for _ in range(50):
            await bench.post(CHAT, hi(stream=True))
    for end in bench.kept.ends:
        [attempt] = end.attempts
        assert end.first_content_ms is not None
        assert attempt.first_content_ms is not None
        assert 0 <= attempt.started_ms < end.first_content_ms < end.duration_ms
        assert 0 < attempt.first_content_ms < attempt.duration_ms


@in_loop
async def test_a_stream_that_failed_after_a_keepalive_is_recorded_with_the_status_that_the_client_got():
    silent: Script = [Expect(), Pause(0.25), Reset()]
    provider = {"timeouts": ProviderTimeouts(keepalive_s=0.1)}
    async with scripted(silent) as upstream, relaying(in_order(target_on(upstream, "a", provider=provider))) as bench:
        reply = await bench.post(CHAT, hi(stream=True))
    assert (reply.status, bench.end.status, bench.end.outcome) == (200, 200, "upstream_failed")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}},
            (2, 8, 4, "reported"),
        ),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (0, None, 0, "reported")),
        (None, (1, None, 1, "estimated")),
        ({"prompt_tokens": -5, "completion_tokens": "x"}, (1, None, 1, "inconsistent")),
        ({"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 9}, (5, None, 3, "inconsistent")),
    ],
)
@in_loop
async def test_usage_is_recorded_as_it_was_reported_else_as_an_estimate(usage, expected):
    given = completion("hello")
    given["usage"] = usage
    async with scripted(answering(given)) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        await bench.post(CHAT, hi())
    end = bench.end
    assert (end.input_tokens, end.cache_read_tokens, end.output_tokens, end.usage_quality) == expected


# Records are made by the order of their fields: each must hold what its name says.

CALLER_SAID = {"caller": "a caller", "project": "a project", "environment": "an environment", "token": "a token"}
PRICES = ("input_price", "output_price", "cached_input_price", "cache_write_price", "cache_write_1h_price")
TOKENS = ("cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens", "reasoning_tokens")


def an_exchange() -> Any:
    """Every value in it is the only one of its kind."""
    target = some_target("first", prices=(3.0, 5.0))
    prices = {f"{name}_microusd_per_million": 7_000_000 + place for place, name in enumerate(PRICES)}
    serving = SimpleNamespace(id="served", provider=SimpleNamespace(name="a provider"), model="a model", **prices)
    decision = Decision(
        "dynamic_score",
        "probe",
        8,
        candidates=Candidates([target], Sheet(stats=[some_stats(seen(3))], weights=[0.5]), [0]),
        exclusions=(Exclusion(target="out", stage="health", reason="denied", detail="said"),),
        affinity="affinity_evicted",
        propensity=0.25,
        tie_break="weight",
        matched_terms=("a term",),
        flags=("panic",),
        policy=ScorePolicy(enabled_signals=frozenset({"cost"})),
    )
    shape = RequestShape(
        "anthropic",
        True,
        input_tokens=31,
        output_cap=32,
        tool_count=33,
        image_count=34,
        complexity_score=0.35,
        prompt_features=frozenset({"code"}),
    )
    caller = SimpleNamespace(name="a caller", project="a project", environment="an environment")
    return SimpleNamespace(
        id="an id",
        wall=1.5,
        started_at=100.0,
        ended_at=100.002,
        queued_s=0.003,
        token=SimpleNamespace(caller=caller, shown="a token"),
        endpoint=SimpleNamespace(name="an endpoint", dialect=SimpleNamespace(NAME="a dialect")),
        group=SimpleNamespace(name="a group"),
        call=SimpleNamespace(stream=True),
        catalog=SimpleNamespace(revision=9),
        status=201,
        outcome="success",
        error_code="a code",
        error_detail="a detail",
        downstream=SimpleNamespace(first_content_at=100.001, ended=True, synthesized=True),
        request_bytes=11,
        body_sent=12,
        output_bytes=0,
        decision=decision,
        serving=serving,
        attempts=["an attempt"],
        shape=shape,
        usage=Usage(
            input_tokens=20,
            output_tokens=21,
            quality="reported",
            **{name: 22 + place for place, name in enumerate(TOKENS)},
        ),
        trace=SimpleNamespace(trace_id="a trace", span_id="a span", parent_id="a parent", sampled=True),
        relay=SimpleNamespace(max_candidates=4),
    )


def named(record: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def test_each_field_of_an_end_is_what_its_name_says() -> None:
    end = named(end_record(an_exchange()))
    assert end.pop("candidates") is not None
    assert [excluded.target for excluded in end.pop("exclusions")] == ["out"]
    assert end == {
        "v": 1,
        "id": "an id",
        "at": 1.5,
        **CALLER_SAID,
        "endpoint": "an endpoint",
        "group": "a group",
        "dialect": "a dialect",
        "stream": True,
        "revision": 9,
        "status": 201,
        "outcome": "success",
        "duration_ms": 2.0,
        "error_code": "a code",
        "error_detail": "a detail",
        "first_content_ms": 1.0,
        "queued_ms": 3.0,
        "request_bytes": 11,
        "response_bytes": 12,
        "strategy": "dynamic_score",
        "mode": "probe",
        "affinity": "affinity_evicted",
        "propensity": 0.25,
        "tie_break": "weight",
        "matched_terms": ["a term"],
        "flags": ["panic"],
        "target": "served",
        "provider": "a provider",
        "model": "a model",
        "attempts": ["an attempt"],
        "order": ["first"],
        "input_tokens_estimated": 31,
        "output_cap": 32,
        "tool_count": 33,
        "image_count": 34,
        "complexity": 0.35,
        "prompt_features": ["code"],
        "input_tokens": 20,
        "output_tokens": 21,
        **{name: 22 + place for place, name in enumerate(TOKENS)},
        "usage_quality": "reported",
        "terminal_marker": "synthesized",
        **{name: 7_000_000 + place for place, name in enumerate(PRICES)},
        "signals": ["cost"],
        "trace_id": "a trace",
        "span_id": "a span",
        "parent_span_id": "a parent",
        "sampled": True,
    }


def test_each_field_of_an_intent_is_what_its_name_says() -> None:
    assert named(intent_record(an_exchange())) == {
        "v": 1,
        "id": "an id",
        "at": 1.5,
        **CALLER_SAID,
        "group": "a group",
        "dialect": "anthropic",
        "stream": True,
        "revision": 8,
        "target": "first",
        "input_tokens_estimated": 31,
        "endpoint": "an endpoint",
        "provider": some_target("first").provider.name,
        "model": some_target("first").model,
        "input_price": 3_000_000,
    }


def test_a_log_line_says_what_the_end_says() -> None:
    end = end_record(an_exchange())
    line = named(log_line(end))
    assert line.pop("attempts") == 1
    assert line == {name: value for name, value in named(end).items() if name in line}
    assert line["error_detail"] == "a detail"


# Never anybody's text.

MARKS = {
    name: f'{name}-mark "é/{number}\\ 7f3a9c'
    for number, name in enumerate(
        [
            "prompt",
            "system",
            "tool-output",
            "arguments",
            "schema",
            "answer",
            "metadata",
            "header",
            "unknown",
            "complaint",
        ]
    )
}
IMAGE = base64.b64encode(b"image-mark-51d2 " * 3).decode()
KEY = "sk-provider-key-mark-a91c"


def forms(mark: str) -> set[str]:
    """How a text may stand in a line: raw, JSON-escaped, URL-encoded, in hex, in base64 at each of three offsets."""
    raw = mark.encode()
    shifted = {base64.b64encode(b"\0" * offset + raw).decode()[4:-4] for offset in range(3)}
    return {mark, json.dumps(mark)[1:-1], msgspec.json.encode(mark)[1:-1].decode(), quote(mark), raw.hex(), *shifted}


def found(haystack: str) -> list[str]:
    marks = [*MARKS.values(), IMAGE, base64.b64decode(IMAGE).decode(), KEY]
    return [mark for mark in marks if any(form in haystack for form in forms(mark))]


def test_planted_marks_are_found_in_every_form():
    for mark in (*MARKS.values(), IMAGE, KEY):
        for form in forms(mark):
            assert mark in found(f"before {form} after")
        assert mark in found(base64.b64encode(f"x{mark}".encode()).decode())
        assert mark in found(json.dumps({"a": mark}))
    assert found("nothing of it") == []


def marked(path: str, *, stream: bool) -> dict[str, Any]:
    """A request with a mark wherever a client may put text."""
    schema = {"type": "object", "description": MARKS["schema"]}
    body: dict[str, Any] = {"model": "g", "stream": stream, "foo": MARKS["unknown"], "user": MARKS["metadata"]}
    if path == CHAT:
        call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": MARKS["arguments"]}}
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}
        body["messages"] = [
            {"role": "system", "content": MARKS["system"]},
            {"role": "user", "content": [{"type": "text", "text": MARKS["prompt"]}, image]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "t1", "content": MARKS["tool-output"]},
        ]
        body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    else:
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}
        body |= {"max_tokens": 64, "system": MARKS["system"], "metadata": {"user_id": MARKS["metadata"]}}
        body["messages"] = [
            {"role": "user", "content": [{"type": "text", "text": MARKS["prompt"]}, image]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"x": MARKS["arguments"]}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": MARKS["tool-output"]}],
            },
        ]
        body["tools"] = [{"name": "f", "input_schema": schema}]
    return body


COMPLAINT = {"error": {"type": "x", "code": "y", "message": MARKS["complaint"] + KEY}}

FATES: dict[str, tuple[bool, Script]] = {
    "answered": (False, answering(completion(MARKS["answer"]) | message(MARKS["answer"]))),
    "streamed": (True, streaming(text(MARKS["answer"]), STOP, DONE)),
    "cut": (True, [Expect(), Send(sse(text(MARKS["answer"]))), Reset()]),
    "an error inside": (True, [Expect(), Send(sse(b"data: " + msgspec.json.encode(COMPLAINT) + b"\n\n")), Close()]),
    "malformed": (False, [Expect(), Send(answer(MARKS["answer"].encode())), Close()]),
    "malformed events": (True, [Expect(), Send(sse(text("a"), b"data: {" + MARKS["answer"].encode() + b"\n\n"))]),
    "not HTTP": (False, [Expect(), Send(MARKS["answer"].encode() + b"\r\n\r\n"), Close()]),
    "its own fault": (False, answering(COMPLAINT, status=400)),
    "denied": (False, answering(COMPLAINT, status=401)),
    "throttled": (False, answering(COMPLAINT, status=429)),
    "failing": (False, answering(COMPLAINT, status=500)),
}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("fate", FATES)
@in_loop
async def test_records_and_lines_hold_no_text_of_client_or_provider_and_no_secret(fate, path, caplog):
    caplog.set_level("DEBUG")
    stream, script = FATES[fate]
    dialect: Dialect = "openai-chat" if path == CHAT else "anthropic"
    async with scripted(script) as upstream:
        provider = {"api_key": KEY}
        target = target_on(
            upstream, "a", dialect=dialect, provider=provider, input_modalities=frozenset({"text", "image"})
        )
        async with relaying(in_order(target)) as bench:
            headers = [(b"x-session-id", b"session-mark-77"), (b"x-note", MARKS["header"].encode())]
            await bench.post(path, marked(path, stream=stream), headers=headers)
    assert len(upstream.requests) == 1
    written = "\n".join(
        msgspec.json.encode(each).decode() for each in (*bench.kept.intents, *bench.kept.ends, *bench.kept.lines)
    )
    assert bench.end.id in written
    everything = written + caplog.text
    assert found(everything) == []
    assert "session-mark-77" not in everything
    assert bench.secret[12:] not in everything
    assert bench.secret[:12] in written


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: {**body, "model": MARKS["prompt"]},
        lambda body: {**body, "messages": MARKS["prompt"]},
        lambda body: {**body, "stream": MARKS["prompt"]},
        lambda body: {**body, "max_tokens": MARKS["prompt"]},
        lambda body: {**body, "messages": [MARKS["prompt"]]},
    ],
)
@in_loop
async def test_a_refused_body_leaves_no_text_either(spoil, caplog):
    caplog.set_level("DEBUG")
    async with scripted([Expect(), AwaitPeer()]) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        reply = await bench.post(CHAT, spoil(marked(CHAT, stream=False)))
        cut = await bench.post(CHAT, msgspec.json.encode(marked(CHAT, stream=False))[:-9])
    assert (reply.status // 100, cut.status) == (4, 400)
    written = "\n".join(msgspec.json.encode(each).decode() for each in (*bench.kept.ends, *bench.kept.lines))
    assert found(written + caplog.text) == []
