"""Listening to a Messages stream."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import anthropic_messages
from gateway.dialects.neutral import InBandError, MalformedAnswer, StreamEvent, StreamReader, Usage


def event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


def delta(**members: Any) -> bytes:
    return event("content_block_delta", index=0, delta=members)


START = event("message_start", message={"id": "m", "usage": {"input_tokens": 200, "output_tokens": 1}})
BLOCK = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
HELLO = delta(type="text_delta", text="hello")
BLOCK_STOP = event("content_block_stop", index=0)
END = event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 30})
STOP = event("message_stop")
PING = event("ping")


def listen(*pieces: bytes) -> tuple[StreamReader, list[str]]:
    reader = anthropic_messages.stream_reader(max_event_bytes=10_000)
    return reader, [heard.kind for piece in pieces for heard in reader.feed(piece)]


def test_a_whole_answer_is_heard() -> None:
    reader, kinds = listen(START, PING, BLOCK, HELLO, HELLO, BLOCK_STOP, END, STOP)
    assert kinds == ["opening", "opening", "opening", "content", "content", "opening", "terminal", "done"]
    assert (reader.terminal, reader.done, reader.error, reader.pending) == (True, True, None, False)
    assert reader.usage == Usage(input_tokens=200, output_tokens=30, quality="reported")
    assert reader.output_bytes == 10
    assert anthropic_messages.ending(reader) == b""


@pytest.mark.parametrize(
    ("members", "kind", "size"),
    [
        ({"type": "text_delta", "text": ""}, "opening", 0),
        ({"type": "text_delta", "text": "é日🙂"}, "content", 9),
        ({"type": "thinking_delta", "thinking": "hm"}, "content", 2),
        ({"type": "thinking_delta", "thinking": ""}, "opening", 0),
        ({"type": "input_json_delta", "partial_json": ""}, "opening", 0),
        ({"type": "input_json_delta", "partial_json": '{"x"'}, "content", 4),
        ({"type": "signature_delta", "signature": "c2ln"}, "opening", 0),
        ({"type": "hologram_delta", "x": 1}, "opening", 0),
        ({"type": "text_delta", "text": 5}, "opening", 0),
    ],
)
def test_content_is_what_the_model_made(members: Any, kind: str, size: int) -> None:
    reader, kinds = listen(delta(**members))
    assert (kinds, reader.output_bytes) == ([kind], size)


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        ({"type": "text", "text": ""}, "opening"),
        ({"type": "thinking", "thinking": "", "signature": ""}, "opening"),
        ({"type": "tool_use", "id": "t", "name": "f", "input": {}}, "opening"),
        ({"type": "text", "text": "a"}, "content"),
        ({"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}, "content"),
        ({"type": "redacted_thinking", "data": "b3BhcXVl"}, "content"),
        ({"type": "web_search_tool_result", "content": [{"type": "web_search_result"}]}, "content"),
        ({"type": "hologram"}, "opening"),
    ],
)
def test_a_block_that_starts_with_something_in_it_is_content(block: Any, kind: str) -> None:
    assert listen(event("content_block_start", index=0, content_block=block))[1] == [kind]


def test_a_missing_message_stop_is_added_once_after_the_terminal_event_only() -> None:
    assert anthropic_messages.ending(listen(START, HELLO, END)[0]) == (
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )
    assert anthropic_messages.ending(listen(START, HELLO)[0]) == b""


def test_a_message_delta_without_a_stop_reason_ends_nothing() -> None:
    reader, kinds = listen(event("message_delta", delta={"stop_reason": None}, usage={"output_tokens": 3}), STOP)
    assert (kinds, reader.terminal, reader.done) == (["opening", "done"], False, True)
    assert reader.usage.output_tokens == 3


def test_an_error_inside_the_stream_is_kept() -> None:
    error = {"type": "overloaded_error", "message": "x"}
    expected = InBandError(type="overloaded_error", message="x")
    for stream in (
        event("error", error=error),
        b"data: " + json.dumps({"type": "error", "error": error}).encode() + b"\n\n",
        b"event: error\ndata: " + json.dumps({"error": error}).encode() + b"\n\n",
        event("error", error=error, delta="odd"),
    ):
        reader, kinds = listen(stream)
        assert (kinds, reader.error) == (["error"], expected)
    assert listen(b"event: error\ndata: 5\n\n")[1] == ["error"]


@pytest.mark.parametrize("odd", [5, None, [], "x", {}, {"type": 7}, {"type": "content_block_delta", "delta": "x"}])
def test_odd_json_passes_and_commits_nothing(odd: Any) -> None:
    reader, kinds = listen(b"event: new\ndata: " + json.dumps(odd).encode() + b"\n\n")
    assert (kinds, reader.error) == (["opening"], None)


def test_data_without_a_type_takes_the_events_name() -> None:
    assert listen(b"event: message_stop\ndata: {}\n\n")[1] == ["done"]


def test_data_that_is_no_json_is_malformed_and_earlier_events_come_along() -> None:
    with pytest.raises(MalformedAnswer) as caught:
        listen(HELLO + b"data: <html>\n\n")
    assert list(caught.value.events) == [StreamEvent(kind="content", raw=HELLO)]
    with pytest.raises(MalformedAnswer):
        listen(b"data: [DONE]x\n\n")


def test_the_keepalive_is_a_ping_that_says_nothing() -> None:
    assert listen(anthropic_messages.keepalive())[1] == ["opening"]


TRANSCRIPTS = st.lists(
    st.sampled_from([START, PING, BLOCK, HELLO, END, STOP, delta(type="text_delta", text="日"), b": c\n\n"]), max_size=8
).map(b"".join)


@given(TRANSCRIPTS, st.data())
def test_any_split_gives_the_same_events_and_the_same_end(stream: bytes, data: st.DataObject) -> None:
    whole = anthropic_messages.stream_reader(max_event_bytes=10_000)
    expected = whole.feed(stream)
    assert b"".join(each.raw for each in expected) == stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    reader = anthropic_messages.stream_reader(max_event_bytes=10_000)
    assert [each for piece in pieces for each in reader.feed(piece)] == expected
    assert (reader.usage, reader.terminal, reader.done, reader.output_bytes) == (
        whole.usage,
        whole.terminal,
        whole.done,
        whole.output_bytes,
    )
