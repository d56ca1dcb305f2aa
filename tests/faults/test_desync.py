"""Bytes that a provider sends past an answer are nobody's: they reach no other call, and their connection is not used again."""

import asyncio

import pytest

from tests.faults.stories import CHAT, SIDES, settle
from tests.support.loops import in_loop
from tests.support.relays import answering, in_order, relaying, target_on
from tests.support.scripted import (
    LAST_CHUNK,
    AwaitPeer,
    Expect,
    Pause,
    Script,
    Send,
    answer,
    chunk,
    chunked_head,
    scripted,
)

pytestmark = pytest.mark.usefixtures("transport")

OWN = CHAT.body("own", stream=False)
EVIL = CHAT.answered("evil", stream=False)
STREAM = CHAT.whole("own")
SPOILS: dict[str, tuple[bool, Script]] = {
    "another answer in the same write": (False, [Send(answer(OWN) + EVIL)]),
    "another answer in the next write": (False, [Send(answer(OWN)), Send(EVIL)]),
    "another answer a moment later": (False, [Send(answer(OWN)), Pause(0.0), Send(EVIL)]),
    "half a head": (False, [Send(answer(OWN) + b"HTTP/1.1 200 OK\r\ncontent-le")]),
    "line breaks and an answer": (False, [Send(answer(OWN) + b"\r\n\r\n" + EVIL)]),
    "an interim answer": (False, [Send(answer(OWN) + b"HTTP/1.1 100 Continue\r\n\r\n")]),
    "more body than its length": (False, [Send(answer(OWN) + b" " * 100)]),
    "a null byte": (False, [Send(answer(OWN) + b"\0")]),
    "an answer behind the last chunk": (
        False,
        [Send(chunked_head(content_type="application/json") + chunk(OWN) + LAST_CHUNK + EVIL)],
    ),
    "a second last chunk": (
        False,
        [Send(chunked_head(content_type="application/json") + chunk(OWN) + LAST_CHUNK + LAST_CHUNK)],
    ),
    "an answer behind an error": (False, [Send(answer(b'{"error":{"message":"own"}}', status=400) + EVIL)]),
    "an answer behind a stream": (True, [Send(answer(STREAM, content_type="text/event-stream") + EVIL)]),
    "an answer behind a chunked stream": (True, [Send(chunked_head() + chunk(STREAM) + LAST_CHUNK + EVIL)]),
    "a body behind an answer that has none": (
        False,
        [Send(b"HTTP/1.1 204 No Content\r\ncontent-length: %d\r\n\r\n" % len(EVIL)), Pause(0.0), Send(EVIL)],
    ),
}


@pytest.mark.parametrize("calls", [30, pytest.param(1_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("spoil", SPOILS)
@in_loop
async def test_what_comes_behind_an_answer_reaches_no_other_call(spoil, calls, transport):
    stream, wire = SPOILS[spoil]
    async with (
        scripted([Expect(), *wire, AwaitPeer()]) as bad,
        scripted(answering(CHAT.answer("own"))) as good,
        relaying(in_order(target_on(bad, "a"), name="g"), in_order(target_on(good, "b"), name="h")) as bench,
    ):
        heard: list[bytes] = []
        for _ in range(calls):
            for group in ("g", "h"):
                request = CHAT.asking(stream=stream if group == "g" else False, model=group)
                heard.append((await bench.post(CHAT.path, request)).body)
        assert [body for body in heard if b"evil" in body or (b"own" not in body and b"error" not in body)] == []
        assert [len(played.requests) for played in bad.connections] == [1] * len(bad.connections)
        assert len(good.connections) == (1 if transport == "http1" else calls)
        await settle(bench, bad, good, requests=2 * calls)


@pytest.mark.parametrize("calls", [128, pytest.param(1_024, marks=pytest.mark.full)])
@in_loop
async def test_calls_at_once_each_get_their_own_answer(calls, transport):
    """Every connection numbers its answers; a client that got another one's answer would see a number twice."""
    scripts: list[Script] = [
        [
            step
            for turn in range(calls)
            for step in (Expect(), Send(CHAT.answered(f"own {connection}/{turn}", stream=False)))
        ]
        for connection in range(16 if transport == "http1" else calls)
    ]
    async with scripted(scripts=scripts) as upstream:
        provider = {"max_in_flight": 16}
        async with relaying(in_order(target_on(upstream, "a", provider=provider))) as bench:

            async def client() -> list[bytes]:
                return [(await bench.post(CHAT.path, CHAT.asking(stream=False))).body for _ in range(calls // 16)]

            bodies = [body for each in await asyncio.gather(*(client() for _ in range(16))) for body in each]
            assert len(set(bodies)) == len(bodies) == calls
            assert all(b"own " in body for body in bodies)
            await settle(bench, upstream, requests=calls)


@pytest.mark.parametrize("side", SIDES)
@in_loop
async def test_an_answer_that_comes_before_its_request_is_nobodys(side):
    speaking = SIDES[side]
    script: Script = [Send(speaking.answered("evil", stream=False)), *answering(speaking.answer("own"))]
    async with scripted(script) as bad, relaying(in_order(target_on(bad, "a", dialect=speaking.dialect))) as bench:
        heard = [await bench.post(speaking.path, speaking.asking(stream=False)) for _ in range(20)]
        # The first request of a connection cannot be told from one that was answered at once; none gets a second answer.
        assert all(reply.status in (200, 502) for reply in heard)
        assert all(len(played.requests) <= 1 for played in bad.connections)
