"""Events that differ from the one before in their text alone: known by the bytes around it, and heard as if they had been read."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.dialects import anthropic_messages, openai_chat
from gateway.dialects.neutral import MalformedAnswer, StreamEvent
from gateway.dialects.streams import LESSONS, Listener

LIMIT = 2_000


def chat(delta: dict[str, Any], **more: Any) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **more})


def message(delta: dict[str, Any], index: int = 0) -> bytes:
    return b"event: content_block_delta\n" + event({"type": "content_block_delta", "index": index, "delta": delta})


def event(data: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogatepass")


class Reading:
    """Counts what a listener reads."""

    def __init__(self, kind: type[Listener], monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = 0
        listen = kind.listen

        def counted(listener: Listener, name: bytes, payload: bytes) -> Any:
            self.read += 1
            return listen(listener, name, payload)

        monkeypatch.setattr(kind, "listen", counted)


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        (openai_chat.ChatStream, lambda text: chat({"content": text})),
        (openai_chat.ChatStream, lambda text: chat({"reasoning_content": text, "content": None})),
        (openai_chat.ChatStream, lambda text: chat({"role": "assistant", "content": text}, usage=None)),
        (anthropic_messages.MessagesStream, lambda text: message({"type": "text_delta", "text": text})),
        (anthropic_messages.MessagesStream, lambda text: message({"type": "thinking_delta", "thinking": text})),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_an_event_with_another_text_is_not_read_again(
    kind: type[Listener], made: Any, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading(kind, monkeypatch)
    listener = kind(LIMIT)
    raws = [made(text) for text in ("a", " b", "c: d {e}, [f]", "é日🙂", "\x7f")]
    heard = listener.feed(b"".join(raws)) if together else [each for raw in raws for each in listener.feed(raw)]
    assert heard == [StreamEvent("content", raw) for raw in raws]
    assert (reading.read, listener.output_bytes) == (1, 1 + 2 + 13 + 9 + 1)


@pytest.mark.parametrize(
    "raw",
    [
        chat({"content": ""}),
        chat({"content": 'a"b'}),
        chat({"content": "a\\b"}),
        chat({"content": "a\nb"}),
        chat({"content": "\ud83d"}),
        chat({"content": "b", "refusal": "no"}),
        chat({"content": "b"}, usage={"prompt_tokens": 1}),
        chat({"content": "b"}, error={"message": "no"}),
        chat({"content": "b"}).replace(b"null", b'"stop"'),
        chat({"content": "b"}).replace(b"data: ", b"data:"),
        chat({"content": "b"}).replace(b"\n\n", b"\r\n\r\n"),
        chat({"content": "b"})[:-1] + b": note\n\n",
        event({"id": "c", "choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": None}]}),
        chat({"content": "b"}).replace(b'"b"', b'"\xff"'),
        chat({"content": "b"}).replace(b'"b"', b'"\x01"'),
        b"data: [DONE]\n\n",
    ],
)
def test_what_is_built_otherwise_is_read(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(openai_chat.ChatStream, monkeypatch)
    taught, other = openai_chat.ChatStream(LIMIT), openai_chat.ChatStream(LIMIT)
    other._lessons = 0
    results = []
    for listener in (taught, other):
        listener.feed(chat({"content": "a"}))
        before = reading.read
        try:
            results.append(
                (listener.feed(raw), listener.output_bytes, listener.terminal, listener.done, listener.usage)
            )
        except MalformedAnswer as error:
            results.append((str(error), listener.output_bytes))  # type: ignore[arg-type]  # compared as a whole
        assert reading.read == before + 1
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "first",
    [
        chat({"content": "index"}),  # stands twice
        chat({"content": "a", "note": "a"}),
        chat({"content": "c"}),  # as the id
        chat({"content": "a"}, usage={"prompt_tokens": 1}),
        chat({"content": "a"}).replace(b"null", b'"stop"'),
        b'data: {"choices":[{"delta":{"content":"b","content":"\\u0061"}}],"x":"a"}\n\n',
        b'data: {"choices":[{"delta":{"content":"a","content":"a\\u0061"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"a"}},{"delta":{}}]}\n\n',
        event({"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "a"}}]}}]}),
    ],
)
def test_nothing_is_learnt_from_an_event_whose_text_is_not_all_that_counts(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading(openai_chat.ChatStream, monkeypatch)
    listener = openai_chat.ChatStream(LIMIT)
    assert [each.kind for each in listener.feed(first)] == ["content"]
    listener.feed(first)
    assert reading.read == 2


def test_a_stream_whose_events_all_differ_is_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    lessons = []
    only_text = openai_chat.ChatStream.only_text

    def counted(listener: openai_chat.ChatStream, payload: bytes) -> str | None:
        lessons.append(payload)
        return only_text(listener, payload)

    monkeypatch.setattr(openai_chat.ChatStream, "only_text", counted)
    listener = openai_chat.ChatStream(LIMIT)
    for number in range(50):
        assert len(listener.feed(chat({"content": "a"}, obfuscation="x" * number))) == 1
    assert (len(lessons), listener.output_bytes) == (2 * LESSONS, 50)


def test_an_event_beyond_the_limit_is_none_however_well_it_is_known() -> None:
    listener = openai_chat.ChatStream(LIMIT)
    listener.feed(chat({"content": "a"}))
    with pytest.raises(MalformedAnswer, match="size limit"):
        listener.feed(chat({"content": "x" * LIMIT}))


TEXTS = st.one_of(st.text(max_size=8), st.sampled_from(["a", "id", '"', "\\", "\n", "é", "\ud800"]))
CHAT_EVENTS = st.one_of(
    st.builds(lambda text: chat({"content": text}), TEXTS),
    st.builds(lambda text: chat({"reasoning": text}), TEXTS),
    st.builds(lambda text, other: chat({"content": text, "refusal": other}), TEXTS, TEXTS),
    st.builds(lambda text: chat({"content": text}).replace(b"null", b'"stop"'), TEXTS),
    st.sampled_from(
        [b": note\n\n", b"\n", b"data: [DONE]\n\n", b"\r\n", event({"choices": [], "usage": {"prompt_tokens": 1}})]
    ),
)
MESSAGE_EVENTS = st.one_of(
    st.builds(lambda text: message({"type": "text_delta", "text": text}), TEXTS),
    st.builds(lambda text: message({"type": "text_delta", "text": text}, 1), TEXTS),
    st.builds(lambda text: message({"type": "input_json_delta", "partial_json": text}), TEXTS),
    st.sampled_from(
        [b"event: ping\n" + event({"type": "ping"}), b"event: message_stop\n" + event({"type": "message_stop"})]
    ),
)
STREAMS = st.one_of(
    st.tuples(st.just(openai_chat.ChatStream), st.lists(CHAT_EVENTS, max_size=12)),
    st.tuples(st.just(anthropic_messages.MessagesStream), st.lists(MESSAGE_EVENTS, max_size=12)),
)


@given(stream=STREAMS, cuts=st.lists(st.integers(min_value=0, max_value=3_000), max_size=6))
@example(stream=(openai_chat.ChatStream, [chat({"content": "a"})] * 3), cuts=[104, 150])
def test_a_stream_is_heard_as_if_every_event_had_been_read(
    stream: tuple[type[Listener], list[bytes]], cuts: list[int]
) -> None:
    kind, raws = stream
    data = b"".join(raws)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    results = []
    for lessons in (LESSONS, 0):
        listener = kind(LIMIT)
        listener._lessons = lessons
        events: list[StreamEvent] = []
        fault = ""
        try:
            for start, end in pairwise(places):
                events += listener.feed(data[start:end])
        except MalformedAnswer as error:
            events += error.events
            fault = str(error)
        state = (
            listener.output_bytes,
            listener.terminal,
            listener.done,
            listener.usage,
            listener.error,
            listener.pending,
        )
        results.append((events, fault, state))
    assert results[0] == results[1]
