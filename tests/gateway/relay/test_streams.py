"""What a client gets of a provider's stream, however the bytes come and wherever they stop."""

import asyncio
import json

import pytest

from gateway.relay.messages import UNFINISHED
from gateway.relay.stream import MAX_HELD_BYTES
from routing.core.catalog import ProviderTimeouts
from routing.core.document import Dialect
from tests.support.asgi import Call
from tests.support.loops import in_loop
from tests.support.relays import (
    DONE,
    Bench,
    answering,
    chat_event,
    completion,
    in_order,
    relaying,
    sse,
    target_on,
    text,
)
from tests.support.scripted import Close, Expect, Pause, Reset, Script, Send, chunk, chunked_head, scripted


@pytest.fixture(autouse=True, params=[True, False], ids=["at once", "sent"])
def writes_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Call, "writes_at_once", request.param)


HI = {"model": "g", "messages": [{"role": "user", "content": "hi"}], "stream": True}
ASK = {"model": "g", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}], "stream": True}
ROLE = chat_event({"role": "assistant", "content": ""})
STOP = chat_event(finish="stop")


def said(*events: bytes, end: Close | Reset | None = None) -> Script:
    """A provider that streams these bytes and ends its connection."""
    return [Expect(), Send(sse(*events)), end or Close()]


def messages_event(name: str, **data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


START = messages_event(
    "message_start",
    message={
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "usage": {"input_tokens": 5},
    },
)
BLOCK = messages_event("content_block_start", index=0, content_block={"type": "text", "text": ""})
BLOCK_DELTA = messages_event("content_block_delta", index=0, delta={"type": "text_delta", "text": "hel"})
BLOCK_STOP = messages_event("content_block_stop", index=0)
ENDING = messages_event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
MESSAGE_STOP = messages_event("message_stop")
PING = messages_event("ping")
WHOLE = (START, BLOCK, BLOCK_DELTA, BLOCK_STOP, ENDING, MESSAGE_STOP)


async def streamed(
    script: Script, *, path: str = "/v1/chat/completions", body: dict[str, object] = HI
) -> tuple[bytes, Bench]:
    """The body that a client of one target gets, and the relay with its record."""
    dialect: Dialect = "anthropic" if path == "/v1/messages" else "openai-chat"
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a", dialect=dialect))) as bench:
        reply = await bench.post(path, body)
        assert reply.complete
        return reply.body, bench


@in_loop
async def test_bytes_cut_at_any_offset_come_out_as_they_went_in():
    event = chat_event({"content": "é日🙂"})
    whole = event + STOP + DONE
    for offset in range(1, len(event)):
        script: Script = [
            Expect(),
            Send(sse(whole[:offset])),
            Pause(0.001),
            Send(whole[offset:]),
            Close(),
        ]
        body, bench = await streamed(script)
        assert body == whole, offset
        assert bench.end.outcome == "success"


@in_loop
async def test_data_without_a_space_and_data_of_several_lines_are_read():
    bare = b'data:{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    lines = b'data: {"choices":\ndata: [{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    body, bench = await streamed(said(bare, lines, DONE))
    assert body == bare + lines + DONE
    assert (bench.end.outcome, bench.end.terminal_marker) == ("success", "received")


@in_loop
async def test_comments_are_no_content_and_reset_the_idle_limit_alone():
    comment = b": PROCESSING\n\n"
    script: Script = [
        Expect(),
        Send(sse(comment)),
        *[step for _ in range(3) for step in (Pause(0.1), Send(comment))],
        Send(text("a") + STOP + DONE),
        Close(),
    ]
    provider = {"timeouts": ProviderTimeouts(idle_s=0.25, first_byte_s=5.0)}
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a", provider=provider))) as bench:
        reply = await bench.post("/v1/chat/completions", HI)
    assert reply.body == comment * 4 + text("a") + STOP + DONE
    assert bench.end.first_content_ms is not None
    assert bench.end.first_content_ms > 290


@in_loop
async def test_comments_alone_do_not_hold_off_the_next_target():
    dripping: Script = [Expect(), Send(sse()), *[step for _ in range(40) for step in (Send(b": x\n\n"), Pause(0.05))]]
    async with (
        scripted(dripping) as slow,
        scripted(said(text("b"), STOP, DONE)) as good,
        relaying(
            in_order(
                target_on(slow, "a", provider={"timeouts": ProviderTimeouts(first_byte_s=0.4)}), target_on(good, "b")
            )
        ) as bench,
    ):
        reply = await bench.post("/v1/chat/completions", HI)
        async with asyncio.timeout(1):
            await slow.connections[0].peer_gone.wait()
    assert reply.body == text("b") + STOP + DONE
    assert [(a.target, a.outcome) for a in bench.end.attempts] == [("a", "timeout"), ("b", "ok")]
    assert 350 < bench.end.attempts[0].duration_ms < 700


@in_loop
async def test_a_silent_provider_lets_the_client_hear_a_comment_and_other_targets_may_still_serve():
    silent: Script = [Expect(), Send(sse(ROLE)), Pause(0.5), Reset()]
    provider = {"timeouts": ProviderTimeouts(keepalive_s=0.1)}
    async with (
        scripted(silent) as slow,
        scripted(said(ROLE, text("b"), STOP, DONE)) as good,
        relaying(in_order(target_on(slow, "a", provider=provider), target_on(good, "b"))) as bench,
    ):
        reply = await bench.post("/v1/chat/completions", HI)
    comments, rest = reply.body.rsplit(b": keepalive\n\n", 1)
    assert reply.status == 200
    assert set(comments.split(b"\n\n")) <= {b": keepalive", b""}
    assert rest == ROLE + text("b") + STOP + DONE


@in_loop
async def test_keepalives_begin_before_the_provider_has_answered_at_all():
    silent: Script = [Expect(), Pause(0.35), Send(sse(text("a"), STOP, DONE)), Close()]
    provider = {"timeouts": ProviderTimeouts(keepalive_s=0.1)}
    async with scripted(silent) as upstream, relaying(in_order(target_on(upstream, "a", provider=provider))) as bench:
        reply = await bench.post("/v1/chat/completions", HI)
    assert reply.body.startswith(b": ")
    assert 2 <= reply.body.count(b": keepalive\n\n") <= 4
    assert reply.body.endswith(text("a") + STOP + DONE)


@in_loop
async def test_every_target_failing_after_a_keepalive_is_said_inside_the_stream():
    silent: Script = [Expect(), Pause(0.25), Reset()]
    provider = {"timeouts": ProviderTimeouts(keepalive_s=0.1)}
    async with scripted(silent) as upstream, relaying(in_order(target_on(upstream, "a", provider=provider))) as bench:
        reply = await bench.post("/v1/chat/completions", HI)
    assert reply.status == 200
    assert _error(reply.body)["code"] == "upstream_error"
    assert DONE not in reply.body
    assert bench.end.outcome == "upstream_failed"


@in_loop
async def test_a_finish_reason_without_done_is_a_whole_answer_and_gets_the_marker_once():
    body, bench = await streamed(said(text("a"), STOP))
    assert body == text("a") + STOP + DONE
    assert (bench.end.outcome, bench.end.terminal_marker, bench.end.attempts[0].outcome) == (
        "success",
        "synthesized",
        "ok",
    )


@in_loop
async def test_a_stop_reason_without_message_stop_is_a_whole_answer_and_gets_it_once():
    body, bench = await streamed(said(*WHOLE[:-1]), path="/v1/messages", body=ASK)
    assert body.startswith(b"".join(WHOLE[:-1]))
    assert body.count(b'"message_stop"') == 1
    assert (bench.end.outcome, bench.end.terminal_marker) == ("success", "synthesized")


@in_loop
async def test_a_reset_after_the_terminal_event_is_still_a_whole_answer():
    body, bench = await streamed(said(text("a"), STOP, end=Reset()))
    assert body == text("a") + STOP + DONE
    assert bench.end.attempts[0].outcome == "ok"


CUTS: dict[str, Script] = {
    "end of file": said(text("a"), text("b")),
    "reset": said(text("a"), text("b"), end=Reset()),
    "chunked without a last chunk": [Expect(), Send(chunked_head() + chunk(text("a") + text("b"))), Close()],
    "longer content length than bytes": [
        Expect(),
        Send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n"
            + text("a")
            + text("b")
        ),
        Close(),
    ],
    "inside an event": said(text("a"), text("b"), b'data: {"par', end=Reset()),
    "done without a finish reason": said(text("a"), text("b"), DONE),
    "an event that is not JSON": said(text("a"), text("b"), b"data: {oops\n\n", STOP, DONE),
}


@pytest.mark.parametrize("cut", CUTS)
@in_loop
async def test_a_stream_cut_after_content_ends_in_an_error_event_and_never_in_done(cut):
    async with (
        scripted(CUTS[cut]) as upstream,
        scripted(said(text("z"), STOP, DONE)) as other,
        relaying(in_order(target_on(upstream, "a"), target_on(other, "b"))) as bench,
    ):
        reply = await bench.post("/v1/chat/completions", HI)
    assert (reply.status, other.requests) == (200, [])
    delivered, error = reply.body[: len(text("a") * 2)], reply.body[len(text("a") * 2) :]
    assert delivered == text("a") + text("b")
    assert error.endswith(b"\n\n")
    assert (_error(error)["type"], _error(error)["code"]) == ("upstream_error", "upstream_stream_truncated")
    assert DONE not in reply.body
    end = bench.end
    assert (end.outcome, end.status, end.error_code) == ("upstream_truncated", 200, "upstream_stream_truncated")
    assert [(a.target, a.outcome) for a in end.attempts] == [("a", "server_error")]
    assert (end.usage_quality, end.output_tokens, end.terminal_marker) == ("estimated", 1, None)


@pytest.mark.parametrize("cut", CUTS)
@in_loop
async def test_a_stream_cut_before_content_is_served_whole_by_the_next_target(cut):
    empty: Script = [
        Send(step.data.replace(text("a") + text("b"), ROLE)) if isinstance(step, Send) else step for step in CUTS[cut]
    ]
    whole = ROLE + text("z") + STOP + DONE
    async with (
        scripted(empty) as upstream,
        scripted(said(whole)) as other,
        relaying(in_order(target_on(upstream, "a"), target_on(other, "b"))) as bench,
    ):
        reply = await bench.post("/v1/chat/completions", HI)
    assert (reply.status, reply.body) == (200, whole)
    assert [(a.target, a.outcome) for a in bench.end.attempts] == [("a", "server_error"), ("b", "ok")]


@pytest.mark.parametrize("events", [(), (b'data: {"error":{"message":"x","type":"server_error"}}\n\n',)])
@in_loop
async def test_a_broken_stream_is_left_without_an_end_where_the_server_can_close_it_so(events):
    async with (
        scripted(said(text("a"), *events)) as upstream,
        relaying(in_order(target_on(upstream, "a"))) as bench,
    ):
        call = bench.call("/v1/chat/completions", HI, extensions={UNFINISHED: {}})
        await call.task
    assert call.reply.body.startswith(text("a") + b'data: {"error":')
    assert not call.reply.complete


@in_loop
async def test_a_cut_messages_stream_ends_in_its_error_event_and_no_message_stop():
    body, bench = await streamed(said(*WHOLE[:3]), path="/v1/messages", body=ASK)
    delivered = b"".join(WHOLE[:3])
    assert body.startswith(delivered)
    lines = body[len(delivered) :].decode().splitlines()
    assert lines[0] == "event: error"
    error = json.loads(lines[1].removeprefix("data: "))
    assert (error["type"], error["error"]["type"]) == ("error", "api_error")
    assert b"message_stop" not in body
    assert (bench.end.input_tokens, bench.end.usage_quality) == (5, "estimated")


OVERLOADED = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n'


@in_loop
async def test_an_error_as_first_event_leaves_no_trace_and_the_next_target_serves():
    async with (
        scripted(said(START, PING, OVERLOADED)) as bad,
        scripted(said(*WHOLE)) as good,
        relaying(
            in_order(target_on(bad, "a", dialect="anthropic"), target_on(good, "b", dialect="anthropic"))
        ) as bench,
    ):
        reply = await bench.post("/v1/messages", ASK)
    assert (reply.status, reply.body) == (200, b"".join(WHOLE))
    assert [(a.target, a.outcome, a.error_code) for a in bench.end.attempts] == [
        ("a", "server_error", "upstream_overloaded"),
        ("b", "ok", None),
    ]


@in_loop
async def test_an_error_after_content_is_passed_on_and_ends_the_stream():
    async with (
        scripted(said(*WHOLE[:3], OVERLOADED)) as bad,
        scripted(said(*WHOLE)) as good,
        relaying(
            in_order(target_on(bad, "a", dialect="anthropic"), target_on(good, "b", dialect="anthropic"))
        ) as bench,
    ):
        reply = await bench.post("/v1/messages", ASK)
    assert reply.body == b"".join(WHOLE[:3]) + OVERLOADED
    assert (reply.complete, good.requests) == (True, [])
    assert [(a.target, a.outcome) for a in bench.end.attempts] == [("a", "server_error")]


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}\n\n'


@pytest.mark.parametrize(
    ("options", "upstream_options", "shown"),
    [
        (None, {"include_usage": True}, False),
        ({"include_usage": False}, {"include_usage": True}, False),
        ({"include_usage": True}, {"include_usage": True}, True),
        ({"include_obfuscation": False}, {"include_obfuscation": False, "include_usage": True}, False),
    ],
)
@in_loop
async def test_usage_is_asked_for_and_shown_only_to_who_asked(options, upstream_options, shown):
    body = HI if options is None else {**HI, "stream_options": options}
    async with (
        scripted(said(text("a"), STOP, USAGE, DONE)) as upstream,
        relaying(in_order(target_on(upstream, "a"))) as bench,
    ):
        reply = await bench.post("/v1/chat/completions", body)
    assert json.loads(upstream.requests[0].body)["stream_options"] == upstream_options
    assert reply.body == text("a") + STOP + (USAGE if shown else b"") + DONE
    assert (bench.end.input_tokens, bench.end.output_tokens, bench.end.usage_quality) == (5, 2, "reported")


@in_loop
async def test_a_target_that_knows_no_stream_options_gets_none_and_usage_is_estimated():
    async with (
        scripted(said(text("a"), STOP, DONE)) as upstream,
        relaying(in_order(target_on(upstream, "a", drops_stream_options=True))) as bench,
    ):
        await bench.post("/v1/chat/completions", {**HI, "stream_options": {"include_usage": True}})
    assert "stream_options" not in json.loads(upstream.requests[0].body)
    assert bench.end.usage_quality == "estimated"
    assert bench.end.output_tokens == 1


@in_loop
async def test_stream_options_never_go_out_with_a_body_that_does_not_stream():
    async with (
        scripted(answering(completion())) as upstream,
        relaying(in_order(target_on(upstream, "a"))) as bench,
    ):
        reply = await bench.post(
            "/v1/chat/completions", {**HI, "stream": False, "stream_options": {"include_usage": True}}
        )
    assert reply.status == 200
    assert json.loads(upstream.requests[0].body) == {**HI, "stream": False, "model": "a"}


@in_loop
async def test_events_and_fields_nobody_knows_pass_untouched():
    strange = b'event: thing\nid: 7\nretry: 10\ndata: {"x":{"y":[1.0,12345678901234567890]}}\n\n'
    odd = b'data: {"choices":[{"index":0,"delta":{"content":"a","zzz":{"q":1}},"finish_reason":null}],"foo":1}\n\n'
    body, _ = await streamed(said(strange, odd, STOP, DONE))
    assert body == strange + odd + STOP + DONE


@in_loop
async def test_a_last_event_without_its_blank_line_is_closed_before_the_marker():
    body, bench = await streamed(said(text("a"), STOP[:-1]))
    assert body == text("a") + STOP + DONE
    assert bench.end.outcome == "success"


@in_loop
async def test_more_than_the_bound_of_openings_is_not_held_for_ever():
    many = ROLE * (MAX_HELD_BYTES // len(ROLE) + 2)
    body, bench = await streamed(said(many))
    assert body.startswith(many)
    assert _error(body[len(many) :])["code"] == "upstream_stream_truncated"
    assert bench.end.outcome == "upstream_truncated"


@in_loop
async def test_a_stream_that_falls_silent_after_content_ends_with_the_idle_code():
    script: Script = [Expect(), Send(sse(text("a"))), Pause(5)]
    provider = {"timeouts": ProviderTimeouts(idle_s=0.3)}
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a", provider=provider))) as bench:
        reply = await bench.post("/v1/chat/completions", HI)
    assert _error(reply.body[len(text("a")) :])["code"] == "upstream_idle_timeout"
    assert bench.end.attempts[0].outcome == "timeout"


@in_loop
async def test_a_group_may_show_its_own_name_in_every_event():
    async with (
        scripted(said(text("a"), STOP, DONE)) as upstream,
        relaying(in_order(target_on(upstream, "a"), model_identity="requested_group")) as bench,
    ):
        reply = await bench.post("/v1/chat/completions", HI)
    assert reply.body == (text("a") + STOP).replace(b'"model":"m"', b'"model":"g"') + DONE


def _error(body: bytes) -> dict[str, object]:
    event = body.decode().strip().split("\n\n")[-1]
    error: dict[str, object] = json.loads(event.removeprefix("data: "))["error"]
    return error
