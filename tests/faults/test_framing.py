"""Bodies that end too early, too late or not as their framing says: before the commit point the other target serves, after
it the client hears of it."""

import pytest

from tests.faults.stories import SIDES, Side, broke, failed_over, head, refused, told
from tests.support.loops import in_loop
from tests.support.scripted import LAST_CHUNK, AwaitPeer, Close, Expect, HalfClose, Pause, Reset, Script, Send, chunk

pytestmark = pytest.mark.usefixtures("transport")

CHUNKED = b"transfer-encoding: chunked\r\n"


def framed(body: bytes, fault: str, *, stream: bool) -> Script:
    """An answer that breaks in this way after `body`."""
    long = head(stream=stream, more=b"content-length: %d\r\n" % (len(body) + 100))
    bare = head(stream=stream)
    chunked = head(stream=stream, more=CHUNKED)
    start: dict[str, list[Send | Pause | Close | Reset | HalfClose]] = {
        "short of its length, closed": [Send(long + body), Close()],
        "short of its length, half-closed": [Send(long + body), HalfClose()],
        "short of its length, reset": [Send(long + body), Pause(0.02), Reset()],
        "without a last chunk": [Send(chunked + chunk(body)), Close()],
        "without a last chunk, reset": [Send(chunked + chunk(body)), Pause(0.02), Reset()],
        "closed inside a chunk": [Send(chunked + chunk(body) + b"50\r\nabc"), Close()],
        "closed in a chunk's size": [Send(chunked + chunk(body) + b"5"), Close()],
        "closed in the trailers": [Send(chunked + chunk(body) + b"0\r\nx-a: b"), Close()],
        "a size that is none": [Send(chunked + chunk(body) + b"zz\r\nabc\r\n")],
        "a negative size": [Send(chunked + chunk(body) + b"-1\r\nabc\r\n")],
        "a size of 17 digits": [Send(chunked + chunk(body) + b"1" + b"0" * 16 + b"\r\nabc\r\n")],
        "a size in another notation": [Send(chunked + chunk(body) + b"0x5\r\nabcde\r\n")],
        "a chunk longer than its size": [Send(chunked + chunk(body) + b"2\r\nabcd\r\n")],
        "a size without an end": [Send(chunked + chunk(body) + b"5" * 200)],
        "a bare line feed behind a size": [Send(chunked + chunk(body) + b"5\nabcde\r\n")],
        "a null byte in the framing": [Send(chunked + chunk(body) + b"\0\r\n")],
        "reset without framing": [Send(bare + body), Pause(0.02), Reset()],
    }
    return [Expect(), *start[fault], AwaitPeer()]


FAULTS = [
    "short of its length, closed",
    "short of its length, half-closed",
    "short of its length, reset",
    "without a last chunk",
    "without a last chunk, reset",
    "closed inside a chunk",
    "closed in a chunk's size",
    "closed in the trailers",
    "a size that is none",
    "a negative size",
    "a size of 17 digits",
    "a size in another notation",
    "a chunk longer than its size",
    "a size without an end",
    "a bare line feed behind a size",
    "a null byte in the framing",
    "reset without framing",
]
MALFORMED = FAULTS[8:16]


@pytest.fixture(autouse=True)
def _only_what_ends_without_a_limit(request: pytest.FixtureRequest, transport: str) -> None:
    if transport == "httpx" and request.node.callspec.params.get("fault") in (
        "a size of 17 digits",
        "a size without an end",
    ):
        pytest.skip("h11 waits for more, until the call's time is up")


def code_of(fault: str) -> str:
    return "upstream_protocol_error" if fault in MALFORMED else "upstream_connection_lost"


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("fault", FAULTS)
@in_loop
async def test_a_unary_answer_that_breaks_is_served_whole_by_the_other_target(fault, side):
    body = SIDES[side].body("evil", stream=False)
    story = await told(framed(body, fault, stream=False), side=SIDES[side], stream=False)
    failed_over(story, SIDES[side], stream=False, code=code_of(fault))
    alone = await told(framed(body, fault, stream=False), side=SIDES[side], stream=False, alone=True)
    refused(alone, 502, "upstream_error")


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("fault", FAULTS)
@in_loop
async def test_a_stream_that_breaks_before_its_content_is_served_whole_by_the_other_target(fault, side):
    script = framed(SIDES[side].opening, fault, stream=True)
    story = await told(script, side=SIDES[side], stream=True)
    failed_over(story, SIDES[side], stream=True, code=code_of(fault))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("fault", FAULTS)
@in_loop
async def test_a_stream_that_breaks_after_its_content_ends_in_an_error_event(fault, side):
    delivered = SIDES[side].opening + SIDES[side].content("hello")
    story = await told(framed(delivered, fault, stream=True), side=SIDES[side], stream=True)
    broke(
        story, SIDES[side], delivered=delivered, code="upstream_stream_truncated", attempt="upstream_stream_truncated"
    )


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("fault", FAULTS)
@in_loop
async def test_a_stream_that_breaks_after_its_terminal_event_is_whole(fault, side):
    """Everything has been said, with the end marker or without it; the connection is not used again."""
    speaking = SIDES[side]
    body = speaking.whole("hello")
    for sent, marker in ((body, "received"), (body.removesuffix(speaking.marker), "synthesized")):
        story = await told(framed(sent, fault, stream=True), side=speaking, stream=True)
        assert (story.reply.status, story.reply.complete, story.reply.body) == (200, True, body)
        assert story.attempts == [("a", "ok", None)]
        assert (story.end.outcome, story.end.terminal_marker, story.asked["b"]) == ("success", marker, 0)
        assert story.bad.open_connections == 0


@pytest.mark.parametrize(
    "cut", ["inside the data", "inside a character", "before the blank line", "in the field's name"]
)
@pytest.mark.parametrize("side", SIDES)
@in_loop
async def test_half_an_event_is_dropped_so_that_the_error_is_an_event_of_its_own(side, cut):
    speaking: Side = SIDES[side]
    delivered = speaking.opening + speaking.content("hello")
    event = speaking.content("é日🙂")
    at = {
        "inside the data": len(event) - 20,
        "inside a character": event.index("日".encode()) + 1,
        "before the blank line": None,
        "in the field's name": 3,
    }[cut]
    half = event[:at] if at is not None else event[:-2].replace(b"}", b"", 1)
    script: Script = [Expect(), Send(head(stream=True) + delivered + half), Close()]
    story = await told(script, side=speaking, stream=True)
    broke(story, speaking, delivered=delivered, code="upstream_stream_truncated", attempt="upstream_stream_truncated")


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("side", SIDES)
@in_loop
async def test_chunks_of_any_size_are_put_together(side, size):
    for stream in (False, True):
        body = SIDES[side].body("é日🙂", stream=stream)
        pieces = b"".join(chunk(body[at : at + size]) for at in range(0, len(body), size))
        wire = head(stream=stream, more=CHUNKED) + pieces + LAST_CHUNK
        story = await told([Expect(), Send(wire), AwaitPeer()], side=SIDES[side], stream=stream)
        assert (story.reply.body, story.attempts) == (body, [("a", "ok", None)])
        assert story.bad.open_connections == 0 or len(story.bad.connections) == 1


@in_loop
async def test_chunk_extensions_and_trailers_are_read_over():
    body = SIDES["chat"].body("hello", stream=False)
    wire = head(stream=False, more=CHUNKED)
    wire += b'%x;name="a;b";flag\r\n' % len(body) + body + b"\r\n000\r\nx-trailer: 1\r\n\r\n"
    story = await told([Expect(), Send(wire), AwaitPeer()], side=SIDES["chat"], stream=False)
    assert (story.reply.status, story.reply.body) == (200, body)
    assert story.reply.header("x-trailer") is None
