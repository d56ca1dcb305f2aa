"""Bodies up to their bounds: served byte for byte, kept from targets that do not take them, and never in the way of the
streams beside them. What is over the bound of the process, or too slow, is in `test_slow_requests.py`."""

import asyncio
import contextlib
import time
from typing import Any

import msgspec
import pytest

from tests.faults.stories import CHAT, SIDES, head, serving
from tests.support.loops import in_loop
from tests.support.relays import in_order, relaying, target_on
from tests.support.scripted import Close, Expect, Pause, Repeat, Script, Send, chunk, scripted, scripted_in_thread

pytestmark = pytest.mark.usefixtures("transport")

MB = 1_000_000
MODALITIES = frozenset({"text", "image"})


def screenshots(size: int) -> bytes:
    """A request of `size` bytes, nearly all of it base64 of images."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 32_768}}
    count = max(1, (size - 3_000) // (len(msgspec.json.encode(image)) + 1))
    request: dict[str, Any] = {
        "model": "g",
        "messages": [{"role": "user", "content": [image] * count}, {"role": "user", "content": ""}],
    }
    request["messages"][1]["content"] = "x" * (size - len(msgspec.json.encode(request)))
    body = msgspec.json.encode(request)
    assert len(body) == size
    return body


@pytest.mark.parametrize("size", [MB, 9_900_000, pytest.param(33_554_432, marks=pytest.mark.full)])
@in_loop
async def test_a_body_up_to_the_bound_arrives_byte_for_byte(size):
    sent = screenshots(size)
    async with (
        scripted(serving(CHAT, stream=False)) as upstream,
        relaying(in_order(target_on(upstream, "a", input_modalities=MODALITIES))) as bench,
    ):
        reply = await bench.call(CHAT.path, sent, pieces=size // 65_536).answered()
        assert (reply.status, reply.body) == (200, CHAT.body("b", stream=False))
        assert upstream.requests[0].body == sent.replace(b'"model":"g"', b'"model":"a"')
        assert bench.end.request_bytes == size


@pytest.mark.parametrize("declared", [True, False])
@in_loop
async def test_a_byte_over_the_bound_is_refused_without_a_provider_and_without_reading_on(declared):
    async with (
        scripted(serving(CHAT, stream=False)) as upstream,
        relaying(in_order(target_on(upstream, "a")), max_request_bytes=MB) as bench,
    ):
        sent = screenshots(10 * MB)
        headers = [] if declared else [(b"transfer-encoding", b"chunked")]
        call = bench.call(CHAT.path, sent, pieces=160, headers=headers)
        reply = await call.answered()
        assert (reply.status, reply.json()["error"]["code"]) == (413, "request_too_large")
        assert call.unread > (9 * MB if declared else 8 * MB)
        assert upstream.connections == []


class Stall:
    """CPU seconds that this thread worked without giving way: the longest turn of the loop."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            self.longest = max(self.longest, time.thread_time() - began)


@pytest.mark.parametrize(
    ("size", "times"),
    [
        (MB, 20),
        (9_900_000, 8),
        pytest.param(33_554_432, 5, marks=pytest.mark.full),
    ],
)
@in_loop
async def test_streams_go_on_while_a_large_body_is_read_routed_and_sent(size, times):
    """64 streams run beside it. The loop's longest turn, in CPU time and as a multiple of reading the body's JSON once,
    beyond what the streams alone take; the best of three, which no collection of garbage spoils."""
    event = CHAT.content("x" * 40)
    streaming: Script = [
        Expect(),
        Send(head(stream=True, more=b"transfer-encoding: chunked\r\n") + chunk(CHAT.opening)),
        Repeat([Send(chunk(event)), Pause(0.01)]),
        Close(),
    ]
    sent = screenshots(size)
    with scripted_in_thread(streaming) as ticking, scripted_in_thread(serving(CHAT, stream=False)) as upstream:
        group = in_order(target_on(upstream, "a", input_modalities=MODALITIES))
        async with relaying(group, in_order(target_on(ticking, "s"), name="s")) as bench:
            streams = [bench.call(CHAT.path, CHAT.asking(stream=True, model="s")) for _ in range(64)]
            for stream in streams:
                await stream.until(event)
            alone = Stall()
            watching = asyncio.create_task(alone.watch())
            await asyncio.sleep(0.3)
            watching.cancel()
            longest: list[float] = []
            reading: list[float] = []
            for _ in range(3):
                stall = Stall()
                watching = asyncio.create_task(stall.watch())
                reply = await bench.call(CHAT.path, sent, pieces=max(1, size // 65_536)).answered()
                watching.cancel()
                assert reply.status == 200
                longest.append(stall.longest)
                began = time.thread_time()
                msgspec.json.decode(sent)
                reading.append(time.thread_time() - began)
            for stream in streams:
                stream.hang_up()
            for stream in streams:
                with contextlib.suppress(TimeoutError):
                    await stream.answered()
    print(
        f"{size / MB:.1f} MB: longest turn {min(longest) * 1_000:.1f} ms of CPU, streams alone {alone.longest * 1_000:.1f}, "
        f"reading the JSON once {min(reading) * 1_000:.1f}"
    )
    assert min(longest) < alone.longest + times * min(reading)


# A body may be too large for one target and not for another.


@pytest.mark.parametrize("side", SIDES)
@in_loop
async def test_a_target_that_takes_fewer_bytes_is_passed_over_and_none_left_is_a_413_that_names_the_most(side):
    speaking = SIDES[side]
    request = speaking.asking(stream=False, messages=[{"role": "user", "content": "x" * 8_000}])
    size = len(msgspec.json.encode(request))
    good = serving(speaking, stream=False)
    async with scripted(good) as a, scripted(good) as b:
        small = target_on(a, "a", dialect=speaking.dialect, max_request_bytes=size - 1)
        large = target_on(b, "b", dialect=speaking.dialect, max_request_bytes=size)
        async with relaying(in_order(small, large), in_order(small, name="h")) as bench:
            served = await bench.post(speaking.path, request)
            assert [(e.target, e.reason) for e in bench.end.exclusions] == [("a", "request_bytes")]
            refused = await bench.post(speaking.path, {**request, "model": "h"})
    assert (served.status, bench.kept.ends[0].target) == (200, "b")
    assert (refused.status, bench.end.error_code) == (413, "request_too_large")
    assert f"at most {size - 1}." in refused.json()["error"]["message"]
    assert len(a.requests) == 0
