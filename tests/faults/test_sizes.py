"""Answers without measure: an event, a stream, a body that never ends. Bounded, and taken no faster than they are used."""

import asyncio

import pytest

from gateway.relay.stream import MAX_HELD_BYTES
from tests.faults.stories import CHAT, SIDES, attempts, broke, failed_over, head, refused, settle, told
from tests.support.loops import in_loop
from tests.support.relays import in_order, relaying, target_on
from tests.support.scripted import (
    AwaitPeer,
    Close,
    Expect,
    Flood,
    Pause,
    Repeat,
    Script,
    Send,
    answer,
    chunk,
    scripted,
)

pytestmark = pytest.mark.usefixtures("transport")

MIB = 1 << 20

LINES: dict[str, bytes] = {
    "data": b'data: {"x":"' + b"y" * 65_536,
    "a comment": b": " + b"y" * 65_536,
    "a field of any name": b"y" * 65_536,
    "many lines of data": b"data: y\n" * 8_192,
    "many empty comments": b":\n" * 32_768,
    "an id": b"id: " + b"y" * 65_536,
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("line", LINES)
@in_loop
async def test_an_event_without_end_before_the_content_gives_way(line, side):
    script: Script = [Expect(), Send(head(stream=True)), Flood(LINES[line], 64 * MIB), AwaitPeer()]
    story = await told(script, side=SIDES[side], stream=True)
    failed_over(story, SIDES[side], stream=True, code="upstream_malformed")
    assert story.bad.connections[0].sent < 16 * MIB


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("line", LINES)
@in_loop
async def test_an_event_without_end_after_the_content_ends_in_an_error_event(line, side):
    speaking = SIDES[side]
    delivered = speaking.opening + speaking.content("hello")
    script: Script = [Expect(), Send(head(stream=True) + delivered), Flood(LINES[line], 64 * MIB), AwaitPeer()]
    story = await told(script, side=speaking, stream=True)
    broke(story, speaking, delivered=delivered, code="upstream_stream_truncated", attempt="upstream_stream_truncated")
    assert len(story.reply.body) < len(delivered) + 1_000


@pytest.mark.parametrize("over", [0, 1])
@in_loop
async def test_an_event_of_a_mebibyte_passes_and_one_byte_more_does_not(over):
    bare = CHAT.content("")
    event = CHAT.content("x" * (MIB - len(bare) + over))
    assert len(event) == MIB + over
    body = CHAT.opening + event + CHAT.ending
    script: Script = [Expect(), Send(head(stream=True) + body), Close()]
    story = await told(script, side=CHAT, stream=True)
    if over:
        failed_over(story, CHAT, stream=True, code="upstream_malformed")
    else:
        assert (story.reply.body, story.attempts) == (body, [("a", "ok", None)])


@in_loop
async def test_openings_without_end_commit_at_a_bound_and_end_honestly():
    """Role chunks are held back only so long: then the client gets them, and no other target can serve."""
    opening = CHAT.opening * (MAX_HELD_BYTES // len(CHAT.opening) + 1)
    story = await told([Expect(), Send(head(stream=True) + opening), Close()], side=CHAT, stream=True)
    assert story.reply.body[: len(opening)] == opening
    assert story.attempts == [("a", "server_error", "upstream_stream_truncated")]
    assert story.asked["b"] == 0


@in_loop
async def test_a_stream_without_end_flows_as_fast_as_the_client_reads_and_ends_when_it_leaves():
    event = CHAT.content("x" * 1_000)
    script: Script = [Expect(), Send(head(stream=True) + CHAT.opening), Flood(event * 50, 1 << 40), AwaitPeer()]
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        call = bench.call(CHAT.path, CHAT.asking(stream=True))
        async with asyncio.timeout(20):
            while len(call.reply.pieces) < 200:  # noqa: ASYNC110 - what the client got
                await asyncio.sleep(0)
        call.hang_up()
        await call.answered()
        body = call.reply.body
        assert body.startswith(CHAT.opening + event)
        assert upstream.connections[0].sent - len(body) < 32 * MIB
        await settle(bench, upstream)
        assert attempts(bench) == [("a", "client_cancelled", "client_closed_request")]


@pytest.mark.parametrize("framing", ["by its length", "in chunks", "by the end of the connection"])
@pytest.mark.parametrize("side", SIDES)
@in_loop
async def test_a_unary_body_over_the_bound_gives_way_and_is_not_taken_in(framing, side):
    piece = b" " * 65_536
    script: dict[str, Script] = {
        "by its length": [Send(head(stream=False, more=b"content-length: 1000001\r\n")), Flood(piece, 64 * MIB)],
        "in chunks": [
            Send(head(stream=False, more=b"transfer-encoding: chunked\r\n")),
            Flood(chunk(piece), len(chunk(piece)) * 1_000),
        ],
        "by the end of the connection": [Send(head(stream=False)), Flood(piece, 64 * MIB)],
    }
    playing: Script = [Expect(), *script[framing], AwaitPeer()]
    story = await told(playing, side=SIDES[side], stream=False, provider={"max_response_bytes": 1_000_000})
    failed_over(story, SIDES[side], stream=False, code="upstream_response_too_large")
    assert story.bad.connections[0].sent < 16 * MIB


@pytest.mark.parametrize("over", [0, 1])
@in_loop
async def test_a_unary_body_of_just_the_bound_passes(over):
    body = CHAT.body("hello", stream=False)
    body += b" " * (100_000 + over - len(body))
    script: Script = [Expect(), Send(answer(body)), AwaitPeer()]
    story = await told(script, side=CHAT, stream=False, provider={"max_response_bytes": 100_000}, alone=True)
    if over:
        refused(story, 502, "upstream_error")
    else:
        assert (story.reply.status, story.reply.body) == (200, body)


@pytest.mark.full
@in_loop
async def test_a_unary_body_of_32_mib_passes_and_more_does_not():
    body = CHAT.body("hello", stream=False)
    for over in (0, 1):
        sized = body + b" " * (33_554_432 + over - len(body))
        story = await told([Expect(), Send(answer(sized)), AwaitPeer()], side=CHAT, stream=False, alone=True)
        assert story.reply.status == (502 if over else 200)


@pytest.mark.parametrize("side", SIDES)
@in_loop
async def test_a_stream_in_single_bytes_is_the_same_stream(side):
    body = SIDES[side].whole("é日🙂")
    steps = [step for byte in body for step in (Send(bytes([byte])), Pause(0.0))]
    story = await told([Expect(), Send(head(stream=True)), *steps, Close()], side=SIDES[side], stream=True)
    assert (story.reply.body, story.attempts) == (body, [("a", "ok", None)])


@in_loop
async def test_ten_thousand_events_in_one_write_come_out_in_order():
    events = b"".join(CHAT.content(str(number)) for number in range(10_000))
    script: Script = [Expect(), Send(head(stream=True) + events + CHAT.ending), Close()]
    story = await told(script, side=CHAT, stream=True)
    assert (story.reply.body, story.attempts) == (events + CHAT.ending, [("a", "ok", None)])


@in_loop
async def test_an_answer_that_goes_on_after_its_end_marker_is_over_at_the_marker():
    body = CHAT.whole("hello")
    script: Script = [Expect(), Send(head(stream=True) + body), Repeat([Send(CHAT.content("evil")), Pause(0.01)])]
    story = await told(script, side=CHAT, stream=True)
    assert (story.reply.body, story.attempts) == (body, [("a", "ok", None)])
