"""Listening to a Chat stream: what commits, what ends it, what was used."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import openai_chat
from gateway.dialects.neutral import InBandError, MalformedAnswer, StreamEvent, StreamReader, Usage


def event(content: object) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def chunk(delta: Any = None, *, finish: str | None = None, index: Any = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": {} if delta is None else delta, "finish_reason": finish}
    return event({"id": "c1", "object": "chat.completion.chunk", "choices": [choice], **more})


ROLE = chunk({"role": "assistant", "content": ""})
HELLO = chunk({"content": "hello"})
STOP = chunk(finish="stop")
USAGE = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}})
DONE = b"data: [DONE]\n\n"


def listen(*pieces: bytes) -> tuple[StreamReader, list[str]]:
    reader = openai_chat.stream_reader(max_event_bytes=10_000)
    return reader, [heard.kind for piece in pieces for heard in reader.feed(piece)]


@pytest.mark.parametrize(
    ("delta", "kind", "size"),
    [
        ({"role": "assistant"}, "opening", 0),
        ({"role": "assistant", "content": ""}, "opening", 0),
        ({"role": "assistant", "content": None, "refusal": None, "tool_calls": None}, "opening", 0),
        ({"tool_calls": [], "reasoning_content": ""}, "opening", 0),
        ({"content": "é日🙂"}, "content", 9),
        ({"content": " "}, "content", 1),
        ({"content": [{"type": "text", "text": "abc"}]}, "content", 3),
        ({"refusal": "no"}, "content", 2),
        ({"reasoning_content": "hm"}, "content", 2),
        ({"reasoning": "hm"}, "content", 2),
        ({"reasoning": "hm", "reasoning_content": "hm"}, "content", 2),
        ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}, "content", 0),
        ({"audio": {"id": "a1", "transcript": ""}}, "opening", 0),
        ({"audio": {"data": "AAAA"}}, "content", 0),
        ({"audio": {"transcript": "hey"}}, "content", 3),
        ({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]}, "content", 0),
        ({"tool_calls": [{"function": {"arguments": '{"x"'}}]}, "content", 4),
        ({"tool_calls": [{"index": None, "custom": {"input": "ls"}}]}, "content", 2),
        ({"function_call": {"name": "f", "arguments": "{}"}}, "content", 2),
        ({"hologram": "x"}, "opening", 0),
    ],
)
def test_content_is_what_the_model_made(delta: Any, kind: str, size: int) -> None:
    reader, kinds = listen(chunk(delta))
    assert (kinds, reader.output_bytes, reader.terminal) == ([kind], size, False)


def test_a_whole_answer_is_heard() -> None:
    reader, kinds = listen(b": PROCESSING\n\n", ROLE, HELLO, HELLO, STOP, USAGE, DONE)
    assert kinds == ["comment", "opening", "content", "content", "terminal", "usage", "done"]
    assert (reader.terminal, reader.done, reader.error, reader.pending) == (True, True, None, False)
    assert reader.usage == Usage(input_tokens=5, output_tokens=2, quality="reported")
    assert reader.output_bytes == 10
    assert openai_chat.ending(reader) == b""


def test_events_keep_their_bytes() -> None:
    stream = b": x\r\n\r\n" + ROLE + b'data:{"choices":\ndata: [{"delta":{"content":"a"}}]}\n\n' + DONE
    reader = openai_chat.stream_reader(max_event_bytes=10_000)
    heard = reader.feed(stream)
    assert [each.kind for each in heard] == ["comment", "opening", "content", "done"]
    assert b"".join(each.raw for each in heard) == stream


@pytest.mark.parametrize("before", [b"data:   ", b"data:\t", b"data:\ndata: ", b"data:\r\ndata:\r\ndata:"])
def test_white_space_before_the_json_means_nothing(before: bytes) -> None:
    reader, kinds = listen(HELLO.replace(b"data: ", before), STOP, DONE)
    assert (kinds, reader.output_bytes) == (["content", "terminal", "done"], 5)


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-32-be"])
def test_json_in_another_coding_than_utf8_is_none(coding: str) -> None:
    with pytest.raises(MalformedAnswer):
        openai_chat.read_answer('{"choices":[{"message":{"content":"a"}}]}'.encode(coding))


def test_a_missing_done_is_added_once_after_the_terminal_event_only() -> None:
    assert openai_chat.ending(listen(HELLO, STOP)[0]) == DONE
    assert openai_chat.ending(listen(HELLO)[0]) == b""
    assert openai_chat.ending(listen(HELLO, DONE)[0]) == b""


def test_the_answer_ends_when_every_choice_that_was_seen_has_finished() -> None:
    reader, kinds = listen(
        chunk({"content": "a"}), chunk({"content": "b"}, index=1), chunk(finish="stop"), chunk(finish="length", index=1)
    )
    assert kinds == ["content", "content", "opening", "terminal"]
    assert reader.terminal


def test_a_choice_that_begins_later_opens_the_answer_again() -> None:
    reader, kinds = listen(chunk({"content": "a"}, finish="stop"), chunk({"content": "b"}, index=1))
    assert (kinds, reader.terminal) == (["content", "content"], False)
    assert [each.kind for each in reader.feed(chunk(finish="stop", index=1))] == ["terminal"]


def test_content_and_finish_in_one_chunk_are_content_that_ends() -> None:
    reader, kinds = listen(chunk({"content": "all"}, finish="stop"))
    assert (kinds, reader.terminal) == (["content"], True)


def test_an_empty_finish_reason_finishes_nothing() -> None:
    assert listen(chunk({"content": "a"}, finish=""))[0].terminal is False


def test_usage_on_the_last_chunk_is_read_and_is_no_chunk_of_its_own() -> None:
    reported = {"prompt_tokens": 5, "completion_tokens": 2}
    reader, kinds = listen(HELLO, chunk(finish="stop", usage=reported))
    assert kinds == ["content", "terminal"]
    assert reader.usage == Usage(input_tokens=5, output_tokens=2, quality="reported")


def test_a_chunk_without_choices_and_usage_is_an_opening() -> None:
    assert listen(event({"choices": [], "prompt_filter_results": []}))[1] == ["opening"]
    assert listen(event({"choices": [], "usage": None}))[1] == ["opening"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"message": "x", "type": "server_error"}, InBandError(type="server_error", message="x")),
        ({"message": "x", "code": "busy"}, InBandError(type="busy", message="x")),
        ({"message": None, "code": 502}, InBandError(type="", message="")),
        ("boom", InBandError(type="", message="boom")),
        ({"message": "\ud800"}, InBandError(type="", message="?")),
    ],
)
def test_an_error_inside_the_stream_is_kept(error: Any, expected: InBandError) -> None:
    reader, kinds = listen(event({"error": error}))
    assert (kinds, reader.error) == (["error"], expected)
    reader, kinds = listen(event({"choices": "odd", "error": error}))
    assert (kinds, reader.error) == (["error"], expected)


def test_a_null_error_is_none() -> None:
    assert listen(chunk({"content": "a"}, error=None))[1] == ["content"]


@pytest.mark.parametrize(
    "odd",
    [
        [],
        5,
        "text",
        None,
        {},
        {"choices": None},
        {"choices": {}},
        {"choices": ["x"]},
        {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": {"content": 5}}]},
        {"choices": [{"index": "0"}]},
        {"event": "unknown", "x": [1]},
    ],
)
def test_odd_json_passes_and_is_no_error(odd: Any) -> None:
    reader, kinds = listen(event(odd))
    assert reader.error is None
    assert kinds in (["opening"], ["content"])


def test_data_that_is_no_json_is_malformed_and_earlier_events_come_along() -> None:
    for bad in (b"data: <html>\n\n", b'data: {"a":\n\n', b"data: {}x\n\n", b"data: [DONE\n\n"):
        with pytest.raises(MalformedAnswer) as caught:
            listen(HELLO + bad)
        assert list(caught.value.events) == [StreamEvent(kind="content", raw=HELLO)]


def test_an_event_without_end_is_malformed() -> None:
    reader = openai_chat.stream_reader(max_event_bytes=100)
    assert reader.feed(b"data: " + b"1" * 90) == []
    with pytest.raises(MalformedAnswer, match="limit"):
        reader.feed(b"1" * 10)


def test_an_emoji_cut_between_two_chunks_is_no_fault() -> None:
    cut = rb'data: {"choices":[{"index":0,"delta":{"content":"\ud83d"}}]}' + b"\n\n"
    reader, kinds = listen(cut)
    assert (kinds, reader.output_bytes) == (["content"], 3)


def test_the_last_event_may_lack_its_empty_line() -> None:
    reader, _ = listen(HELLO, STOP[:-2])
    assert reader.pending
    assert reader.flush() == [StreamEvent(kind="terminal", raw=STOP)]
    assert (reader.pending, reader.terminal) == (False, True)
    assert reader.flush() == []


def test_half_an_event_at_the_end_is_dropped_and_stays_known() -> None:
    for half in (HELLO[:-6], b"data: {", b": no", b"da"):
        reader, _ = listen(HELLO, half)
        assert (reader.flush(), reader.pending, reader.terminal) == ([], True, False)


TRANSCRIPTS = st.lists(
    st.sampled_from(
        [ROLE, HELLO, STOP, USAGE, DONE, b": c\n\n", chunk({"content": "é日🙂"}), HELLO.replace(b"\n\n", b"\r\n\r\n")]
    ),
    max_size=8,
).map(b"".join)


@given(TRANSCRIPTS, st.data())
def test_any_split_gives_the_same_events_and_the_same_end(stream: bytes, data: st.DataObject) -> None:
    whole = openai_chat.stream_reader(max_event_bytes=10_000)
    expected = whole.feed(stream)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    reader = openai_chat.stream_reader(max_event_bytes=10_000)
    assert [each for piece in pieces for each in reader.feed(piece)] == expected
    assert (reader.usage, reader.terminal, reader.done, reader.output_bytes) == (
        whole.usage,
        whole.terminal,
        whole.done,
        whole.output_bytes,
    )


def test_every_single_cut_of_a_character_gives_the_same_bytes() -> None:
    stream = 'data: {"choices":[{"index":0,"delta":{"content":"é日🙂"},"finish_reason":null}]}\n\n'.encode()
    for at in range(len(stream) + 1):
        reader = openai_chat.stream_reader(max_event_bytes=10_000)
        heard = reader.feed(stream[:at]) + reader.feed(stream[at:])
        assert heard == [StreamEvent(kind="content", raw=stream)]
        assert reader.output_bytes == 9
