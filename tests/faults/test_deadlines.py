"""Limits of time hold against whoever sends a byte now and then, to half a second; scaled down to a fifth of one."""

import asyncio

import pytest

from routing.core.catalog import AttemptPolicy, ProviderTimeouts
from tests.faults.stories import CHAT, HEAD, SIDES, broke, failed_over, head, refused, told
from tests.support.loops import in_loop
from tests.support.scripted import (
    AwaitPeer,
    Drip,
    Expect,
    ExpectHead,
    HalfClose,
    Pause,
    Repeat,
    Script,
    Send,
    StopReading,
)

pytestmark = pytest.mark.usefixtures("transport")

SCALED, WRITTEN = 0.2, 2.0
SLACK = 0.5
LIMITS = [SCALED, pytest.param(WRITTEN, marks=pytest.mark.full)]

DRIPS: dict[str, Script] = {
    "silence": [AwaitPeer()],
    "silence behind a half-open connection": [Pause(0.05), HalfClose(), AwaitPeer()],
    "a dripping status line": [Drip(b"HTTP/1.1 200 " + b"OK" * 5_000, every=0.01)],
    "a dripping head": [Send(HEAD), Drip(b"x-a: b\r\n" * 5_000, every=0.01)],
    "interim answers now and then": [Repeat([Send(b"HTTP/1.1 100 Continue\r\n\r\n"), Pause(0.35)])],
}
UNARY_DRIPS: dict[str, Script] = {
    "a dripping body": [Send(head(stream=False, more=b"content-length: 90000\r\n")), Drip(b" " * 9_000, every=0.01)],
    "dripping chunks": [
        Send(head(stream=False, more=b"transfer-encoding: chunked\r\n")),
        Drip(b"1\r\n \r\n" * 5_000, every=0.02),
    ],
    "a dripping chunk's size": [
        Send(head(stream=False, more=b"transfer-encoding: chunked\r\n")),
        Drip(b"1;" + b"x" * 5_000, every=0.02),
    ],
    "a body without end": [Send(head(stream=False)), Drip(b" " * 9_000, every=0.01)],
    "compressed bytes that say nothing": [
        Send(head(stream=False, more=b"content-encoding: deflate\r\n") + b"\x78\x9c"),
        Drip(b"\x00\x00\x00\xff\xff" * 2_000, every=0.01),
    ],
}
STREAM_DRIPS: dict[str, Script] = {
    "comments": [Send(head(stream=True)), Repeat([Send(b": busy\n\n"), Pause(0.02)])],
    "role chunks": [Send(head(stream=True)), Repeat([Send(CHAT.opening), Pause(0.02)])],
    "half an event": [Send(head(stream=True)), Drip(b'data: {"x":"' + b"y" * 5_000, every=0.01)],
    "empty lines": [Send(head(stream=True)), Repeat([Send(b"\n"), Pause(0.01)])],
}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("drip", DRIPS | UNARY_DRIPS)
@in_loop
async def test_the_total_limit_of_a_unary_answer_holds(drip, limit):
    script: Script = [Expect(), *(DRIPS | UNARY_DRIPS)[drip]]
    provider = {"timeouts": ProviderTimeouts(total_s=limit, first_byte_s=60.0)}
    story = await told(script, side=CHAT, stream=False, provider=provider)
    if "half-open" in drip:
        failed_over(story, CHAT, stream=False, code="upstream_connection_lost")
        return
    failed_over(story, CHAT, stream=False, code="upstream_timeout", outcome="timeout")
    assert limit * 1_000 - 20 <= story.end.attempts[0].duration_ms < (limit + SLACK) * 1_000


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("drip", DRIPS | STREAM_DRIPS)
@in_loop
async def test_the_limit_for_the_first_content_of_a_stream_holds(drip, limit):
    script: Script = [Expect(), *(DRIPS | STREAM_DRIPS)[drip]]
    provider = {"timeouts": ProviderTimeouts(first_byte_s=limit, total_s=60.0)}
    story = await told(script, side=CHAT, stream=True, provider=provider)
    if "half-open" in drip:
        failed_over(story, CHAT, stream=True, code="upstream_connection_lost")
        return
    failed_over(story, CHAT, stream=True, code="upstream_timeout", outcome="timeout")
    assert limit * 1_000 - 20 <= story.end.attempts[0].duration_ms < (limit + SLACK) * 1_000


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("after", ["silence", "half an event that goes on dripping"])
@in_loop
async def test_the_idle_limit_of_a_stream_holds_after_content(after, limit, side):
    """Bytes are signs of life, so a drip goes on until its event is too large; silence does not."""
    speaking = SIDES[side]
    delivered = speaking.opening + speaking.content("hello")
    rest: Script = [AwaitPeer()]
    provider = {"timeouts": ProviderTimeouts(idle_s=limit)}
    if after != "silence":
        rest = [Drip(b": " + b"y" * 5_000, every=0.004, size=20)]
        provider["max_event_bytes"] = 2_000  # type: ignore[assignment]
    story = await told(
        [Expect(), Send(head(stream=True) + delivered), *rest], side=speaking, stream=True, provider=provider
    )
    if after == "silence":
        code = "upstream_idle_timeout"
        broke(story, speaking, delivered=delivered, code=code, attempt=code, outcome="timeout")
        assert limit * 1_000 - 20 <= story.end.attempts[0].duration_ms < (limit + SLACK) * 1_000
    else:
        code = "upstream_stream_truncated"
        broke(story, speaking, delivered=delivered, code=code, attempt=code)


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_nobody_left_to_try_is_a_504(stream):
    provider = {"timeouts": ProviderTimeouts(total_s=SCALED, first_byte_s=SCALED)}
    story = await told([Expect(), AwaitPeer()], side=CHAT, stream=stream, provider=provider, alone=True)
    refused(story, 504, "upstream_timeout")


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_the_groups_deadline_holds_over_all_attempts(stream):
    """The second target has what the first has left."""
    slow = ProviderTimeouts(total_s=SCALED, first_byte_s=SCALED)
    script: Script = [Expect(), AwaitPeer()]
    story = await told(
        script,
        side=CHAT,
        stream=stream,
        provider={"timeouts": slow},
        attempts=AttemptPolicy(deadline_s=SCALED + 0.02),
    )
    refused(story, 504, "upstream_timeout")
    assert story.asked == {"a": 1, "b": 0}
    assert story.end.duration_ms < (SCALED + SLACK) * 1_000


@pytest.mark.parametrize("limit", LIMITS)
@in_loop
async def test_the_body_of_an_error_does_not_hold_up_what_its_status_says(limit, monkeypatch):
    monkeypatch.setattr("gateway.relay.attempt.MAX_ERROR_SECONDS", limit)
    wire = b"HTTP/1.1 429 Slow Down\r\nretry-after: 9\r\ncontent-length: 9000\r\n\r\n"
    script: Script = [Expect(), Send(wire), Drip(b" " * 9_000, every=0.01)]
    began = asyncio.get_running_loop().time()
    story = await told(script, side=CHAT, stream=False, alone=True)
    assert (story.reply.status, story.reply.header("retry-after")) == (429, "9")
    assert story.attempts == [("a", "throttled", "upstream_rate_limited")]
    assert asyncio.get_running_loop().time() - began < limit + SLACK


@in_loop
async def test_a_large_request_that_nobody_reads_ends_on_time():
    provider = {"timeouts": ProviderTimeouts(total_s=SCALED)}
    request = CHAT.asking(stream=False, messages=[{"role": "user", "content": "x" * 20_000_000}])
    script: Script = [ExpectHead(), StopReading(), AwaitPeer()]
    story = await told(script, side=CHAT, stream=False, provider=provider, request=request, settled=False)
    failed_over(story, CHAT, stream=False, code="upstream_timeout", outcome="timeout")
