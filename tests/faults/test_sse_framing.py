"""Every framing of server-sent events that WHATWG's grammar allows: the client gets the same events, the gateway hears the same.

What a client gets is judged by a reader of its own, written from the standard line by line and knowing nothing of ours.
"""

import itertools
import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.stories import CHAT, MESSAGES, SIDES, Side, broke, error_event_of, failed_over, told
from tests.support.loops import in_loop, run
from tests.support.scripted import Close, Expect, Pause, Script, Send

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
BOM = b"\xef\xbb\xbf"

Heard = tuple[str, str]
"""The type and the data of an event."""


def dispatched(stream: bytes) -> list[Heard]:
    """HTML, 9.2.6: what an EventSource would dispatch, with the last event when its blank line is there."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    events: list[Heard] = []
    data: list[str] = []
    kind = ""
    line = ""
    at = 0
    while at < len(text):
        character = text[at]
        at += 1
        if character not in "\r\n":
            line += character
            continue
        if character == "\r" and text[at : at + 1] == "\n":
            at += 1
        if not line:
            if data:
                events.append((kind or "message", "\n".join(data)))
            data, kind = [], ""
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                data.append(value)
            elif field == "event":
                kind = value
        line = ""
    return events


def fields_of(stream: bytes) -> list[tuple[bytes, bytes]]:
    """The `event` and `data` of each event of a plainly written stream."""
    events = []
    for event in stream.strip(b"\n").split(b"\n\n"):
        lines = dict(line.split(b": ", 1) for line in event.split(b"\n"))
        events.append((lines.get(b"event", b""), lines[b"data"]))
    return events


Framing = Callable[[bytes, bytes], bytes]
"""Writes an event of this name and data."""


def named(name: bytes) -> bytes:
    return b"event: " + name + b"\n" if name else b""


def multiline(name: bytes, data: bytes) -> bytes:
    """Data cut behind each comma that stands between members, as JSON allows white space there."""
    if data[:1] != b"{":
        return named(name) + b"data: " + data + b"\n\n"
    pretty = msgspec.json.format(data, indent=1)
    return named(name) + b"".join(b"data: " + line + b"\n" for line in pretty.split(b"\n")) + b"\n"


FRAMINGS: dict[str, Framing] = {
    "CRLF": lambda name, data: (named(name) + b"data: " + data + b"\n\n").replace(b"\n", b"\r\n"),
    "CR": lambda name, data: (named(name) + b"data: " + data + b"\n\n").replace(b"\n", b"\r"),
    "mixed: LF, CR": lambda name, data: named(name) + b"data: " + data + b"\n\r",
    "mixed: CRLF, LF": lambda name, data: named(name) + b"data: " + data + b"\r\n\n",
    "mixed: LF, CRLF": lambda name, data: named(name) + b"data: " + data + b"\n\r\n",
    "mixed: CR, CRLF": lambda name, data: named(name) + b"data: " + data + b"\r\r\n",
    "no space": lambda name, data: named(name).replace(b": ", b":") + b"data:" + data + b"\n\n",
    "more spaces": lambda name, data: named(name) + b"data:   " + data + b"\n\n",
    "the name behind the data": lambda name, data: b"data: " + data + b"\n" + named(name) + b"\n",
    "the name twice": lambda name, data: (
        (b"event: other\n" + named(name) if name else b"") + b"data: " + data + b"\n\n"
    ),
    "comments inside": lambda name, data: b": a\n" + named(name) + b":\n:b\ndata: " + data + b"\n: c\n\n",
    "comments between": lambda name, data: b": ping\n\n" + named(name) + b"data: " + data + b"\n\n:\n\n",
    "ids and retry": lambda name, data: b"id: 7\nretry: 3000\n" + named(name) + b"data: " + data + b"\n\n",
    "odd ids and retry": lambda name, data: (
        b"id: a\0b\nretry: soon\nid\nretry\n" + named(name) + b"data: " + data + b"\n\n"
    ),
    "unknown fields": lambda name, data: (
        b"foo: bar\nDATA: x\ndat: y\n data: z\n" + named(name) + b"data: " + data + b"\n\n"
    ),
    "unknown fields without a colon": lambda name, data: b"foo\n" + named(name) + b"data: " + data + b"\nbar\n\n",
    "many empty lines": lambda name, data: b"\n\n\n" + named(name) + b"data: " + data + b"\n\n\n\n",
    "events without data": lambda name, data: b"event: nothing\n\nid: 1\n\n" + named(name) + b"data: " + data + b"\n\n",
    "data of several lines": multiline,
    "an empty first line of data": lambda name, data: (
        named(name) + b"data\ndata: " + data + b"\n\n" if data[:1] == b"{" else named(name) + b"data: " + data + b"\n\n"
    ),
    "a character reference that is none": lambda name, data: named(name) + b"x: &lf;\ndata: " + data + b"\n\n",
    "separators of other standards": lambda name, data: (
        named(name) + "x: \u2028\u2029\u0085\x0b\x0c".encode() + b"\ndata: " + data + b"\n\n"
    ),
}


def framed(side: Side, framing: str, said: str = "é日🙂") -> bytes:
    return b"".join(FRAMINGS[framing](name, data) for name, data in fields_of(side.whole(said)))


def without_comments(events: list[Heard]) -> list[Heard]:
    return [(kind, data) for kind, data in events if data]


@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("mark", [b"", BOM])
@pytest.mark.parametrize("framing", FRAMINGS)
@in_loop
async def test_the_events_are_the_same_however_they_are_written(framing, mark, side):
    speaking = SIDES[side]
    stream = framed(speaking, framing)
    story = await told([Expect(), Send(HEAD + mark + stream), Close()], side=speaking, stream=True, alone=True)
    assert story.attempts == [("a", "ok", None)]
    assert (story.end.outcome, story.end.terminal_marker) == ("success", "received")
    assert dispatched(story.reply.body) == dispatched(stream)
    assert stream.startswith(
        story.reply.body
    )  # byte for byte; what may be missing is empty lines behind the end marker
    assert stream[len(story.reply.body) :].strip(b"\r\n:") == b""
    assert story.end.output_tokens == (2 if speaking is MESSAGES else 2 + (len("é日🙂".encode()) // 4 - 2))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("framing", ["CRLF", "CR", "mixed: LF, CR", "comments inside", "data of several lines"])
@in_loop
async def test_an_event_may_be_cut_at_every_byte(framing, side):
    speaking = SIDES[side]
    stream = BOM + framed(speaking, framing)
    whole = dispatched(stream)
    start = stream.index(b"data")
    step = 1 if framing == "CRLF" and speaking is CHAT else 7
    for at in [*range(5), *range(start, len(stream), step)]:
        script: Script = [Expect(), Send(HEAD + stream[:at]), Pause(0.0), Send(stream[at:]), Close()]
        story = await told(script, side=speaking, stream=True, alone=True, settled=False)
        assert story.attempts == [("a", "ok", None)], at
        assert dispatched(story.reply.body) == whole, at


ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
TWO_ENDS = st.tuples(ENDS, ENDS).filter(lambda ends: ends != (b"\r", b"\n"))
"""A CR and an LF are one end of a line."""
NOISE = st.sampled_from([b"", b": c", b"id: 1", b"retry: 1", b"foo", b"x: y", b":", b"\xef\xbb\xbfx: y"])


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A whole Chat stream, each line end and each piece of noise drawn."""
    pieces = [draw(st.sampled_from([b"", BOM]))]
    for name, data in fields_of(CHAT.whole("é日🙂")):
        for _ in range(draw(st.integers(0, 2))):
            noise = draw(NOISE)
            pieces += [noise, draw(ENDS)] if noise else []
        if name:
            pieces += [b"event: ", name, draw(ENDS)]
        pieces += [draw(st.sampled_from([b"data: ", b"data:"])), data, *draw(TWO_ENDS)]
    return b"".join(pieces)


@given(stream=streams(), cuts=st.lists(st.integers(0, 2_000), max_size=6))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_mixture_cut_anywhere_dispatches_the_same(stream: bytes, cuts: list[int]) -> None:
    expected = dispatched(stream)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [stream[start:end] for start, end in itertools.pairwise(places)]

    async def main() -> None:
        steps = [step for piece in pieces for step in (Send(piece), Pause(0.0))]
        story = await told([Expect(), Send(HEAD), *steps, Close()], side=CHAT, stream=True, alone=True, settled=False)
        assert story.attempts == [("a", "ok", None)]
        assert dispatched(story.reply.body) == expected

    run(main())


BROKEN: dict[str, bytes] = {
    "data that is no JSON": b"data: {oops\n\n",
    "data that is cut": b'data: {"choices":[{"index":0,"delta":\n\n',
    "data that is not UTF-8": b'data: {"type":"\xff\xfe","choices":[{"index":"\xff\xfe"}]}\n\n',
    "data that is cut inside a character": b'data: {"type":"\xf0\x9f","choices":[{"index":"\xf0\x9f"}]}\n\n',
    "two values": b'data: {"choices":[]}{"choices":[]}\n\n',
    "a value with a comma behind it": b'data: {"choices":[]},\n\n',
    "single quotes": b"data: {'choices':[]}\n\n",
    "data nested without end": b"data: " + b"[" * 100_000 + b"\n\n",
    "HTML": b"data: <html>\n\n",
    "two events without an empty line": b'data: {"choices":[]}\ndata: {"choices":[]}\n\n',
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("fault", BROKEN)
@in_loop
async def test_data_that_is_no_json_fails_before_the_content_and_breaks_after_it(fault, side):
    speaking = SIDES[side]
    rest: Script = [Pause(0.01), Send(speaking.whole("evil")), Close()]
    before: Script = [Expect(), Send(HEAD + speaking.opening + BROKEN[fault]), *rest]
    story = await told(before, side=speaking, stream=True)
    failed_over(story, speaking, stream=True, code="upstream_malformed")
    delivered = speaking.opening + speaking.content("hello")
    after: Script = [Expect(), Send(HEAD + delivered + BROKEN[fault]), *rest]
    story = await told(after, side=speaking, stream=True)
    broke(story, speaking, delivered=delivered, code="upstream_stream_truncated", attempt="upstream_stream_truncated")


ODD: list[bytes] = [
    b"data: null\n\n",
    b"data: 1\n\n",
    b'data: "text"\n\n',
    b"data: []\n\n",
    b"data: {}\n\n",
    b'data: {"choices":null,"type":null}\n\n',
    b'data: {"choices":{},"type":{}}\n\n',
    b'data: {"choices":[null],"type":[],"delta":1}\n\n',
    b'data: {"choices":[{"delta":"x","index":"y"}]}\n\n',
    b'data: {"choices":[{"delta":{"content":{"a":[1]}},"index":[]}],"usage":"many"}\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":{"a":1}},"finish_reason":{}}]}\n\n',
    b'data: {"type":"content_block_delta","delta":{"text":5,"thinking":[]}}\n\n',
    b'data: {"type":"content_block_start","content_block":{"input":1e999,"text":{}}}\n\n',
    b'data: {"type":"message_start","message":{"usage":[1,2]}}\n\n',
    b'data: {"choices":[{}],"usage":{"prompt_tokens":-1,"completion_tokens":1e30,"input_tokens":"x","output_tokens":true}}\n\n',
    b'event: ping\ndata: {"type": "ping", "x": NaN}\n\n',
    b'event: \xff\xfe\ndata: {"a":1}\n\n',
    b'data: {"choices":[{"index":12345678901234567890123,"delta":{}}]}\n\n',
    b'data: {"\\ud800":"\\udfff"}\n\n',
    b'data: {"a":' + b"9" * 300 + b"}\n\n",
]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("event", ODD)
@in_loop
async def test_json_of_any_build_passes_and_is_neither_a_fault_nor_a_defect(event, side):
    speaking = SIDES[side]
    stream = speaking.opening + event + speaking.content("hello") + event + speaking.ending
    story = await told([Expect(), Send(HEAD + stream), Close()], side=speaking, stream=True)
    assert story.end.outcome in ("success", "upstream_truncated")
    if story.end.outcome == "success":
        assert story.reply.body == stream
        assert story.attempts == [("a", "ok", None)]


ERRORS: list[bytes] = [
    b'{"error":{"message":"x","type":"server_error"}}',
    b'{"error":"boom"}',
    b'{"error":{"message":null,"type":5,"code":[]}}',
    b'{"type":"error","error":{"type":"overloaded_error","message":"x"}}',
    b'{"type":"error","error":null}',
    b'{"type":"error"}',
    b'{"type":"error","error":{"message":"\\ud800"}}',
]


@pytest.mark.parametrize("said", ERRORS)
@pytest.mark.parametrize("side", SIDES)
@in_loop
async def test_an_error_event_of_any_build_is_one_at_any_place(said, side):
    speaking = SIDES[side]
    if speaking is CHAT and (b'"error":' not in said or b'"error":null' in said):
        said = b'{"error":{}}'  # a type alone says nothing in this dialect
    if speaking is MESSAGES and b'"type":"error"' not in said:
        said = b'{"type":"error",' + said[1:]
    event = (b"event: error\n" if speaking is MESSAGES else b"") + b"data: " + said + b"\n\n"
    early = await told([Expect(), Send(HEAD + speaking.opening + event), Close()], side=speaking, stream=True)
    code = "upstream_overloaded" if b"overloaded" in said else "upstream_error"
    failed_over(early, speaking, stream=True, code=code)
    delivered = speaking.opening + speaking.content("hello")
    late = await told([Expect(), Send(HEAD + delivered + event), Close()], side=speaking, stream=True)
    assert late.reply.body == delivered + event
    assert late.attempts == [("a", "server_error", "upstream_error")]
    assert (late.end.outcome, late.asked["b"]) == ("upstream_truncated", 0)


@pytest.mark.parametrize("ending", ["LF", "CRLF", "CR"])
@in_loop
async def test_our_error_is_an_event_of_its_own_behind_any_line_end(ending):
    event = CHAT.content("hello").replace(b"\n", {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}[ending])
    story = await told([Expect(), Send(HEAD + event), Close()], side=CHAT, stream=True)
    assert story.reply.body.startswith(event)
    assert error_event_of(story.reply.body[len(event) :], CHAT)["code"] == "upstream_stream_truncated"
    assert len(dispatched(story.reply.body)) == 2


def test_a_stream_of_noise_is_never_a_whole_answer() -> None:
    rng = random.Random(11)
    alphabet = [
        b"data: ",
        b"data:",
        b"\n",
        b"\r",
        b"\r\n",
        b"{",
        b"}",
        b'"choices"',
        b"[DONE]",
        b": ",
        b"event: ",
        b"\0",
        b"\xff",
        BOM,
    ]

    async def main() -> None:
        for _ in range(40):
            noise = b"".join(rng.choice(alphabet) for _ in range(rng.randrange(60)))
            story = await told([Expect(), Send(HEAD + noise), Close()], side=CHAT, stream=True, settled=False)
            assert story.attempts[0][1] == "server_error"
            assert story.reply.body == CHAT.whole("b")

    run(main())
