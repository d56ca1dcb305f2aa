"""Through the real servers: every event reaches the client before the next one exists, whatever it says it accepts."""

import asyncio

import pytest

from tests.faults.stories import SIDES, head
from tests.support.grounds import Ground, hello
from tests.support.hostile import connected, post
from tests.support.loops import run
from tests.support.scripted import Await, Close, Expect, Script, Send, scripted

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("side", SIDES)
def test_an_event_is_sent_on_before_the_next_one_comes(either_ground: Ground, side: str) -> None:
    speaking = SIDES[side]
    texts = [speaking.content(f"number {number}") for number in range(5)]

    async def main() -> None:
        heard = [asyncio.Event() for _ in texts]
        script: Script = [
            Expect(),
            Send(head(stream=True) + speaking.opening),
            *[step for event, gate in zip(texts, heard, strict=True) for step in (Send(event), Await(gate))],
            Send(speaking.ending),
            Close(),
        ]
        async with scripted(script) as upstream, connected(either_ground.address) as client:
            group = await either_ground.lead_to(upstream.base_url)
            accepts = [("Accept-Encoding", "gzip, deflate, br, zstd")]
            await client.send(
                post(speaking.path, hello(group, stream=True), token=either_ground.token, headers=accepts)
            )
            for event, gate in zip(texts, heard, strict=True):
                # The provider goes on only when the client has this event.
                await client.until(event)
                gate.set()
            await client.until(speaking.marker)
            start = bytes(client.heard).partition(b"\r\n\r\n")[0].lower()
            assert b"content-encoding" not in start
            assert b"content-length" not in start
            assert b"cache-control: no-cache" in start
            assert b"x-accel-buffering: no" in start

    run(main(), within=60)


def test_keepalives_come_while_a_provider_is_silent_and_then_its_events(either_ground: Ground) -> None:
    speaking = SIDES["chat"]

    async def main() -> None:
        heard = asyncio.Event()
        script: Script = [
            Expect(),
            Await(heard),
            Send(head(stream=True) + speaking.whole("late")),
            Close(),
        ]
        async with scripted(script) as upstream, connected(either_ground.address) as client:
            group = await either_ground.lead_to(upstream.base_url, timeouts={"keepalive_ms": 1_000})
            await client.send(post(speaking.path, hello(group, stream=True), token=either_ground.token))
            await client.until(b": keepalive\n\n")
            heard.set()
            await client.until(speaking.marker)
            assert bytes(client.heard).count(b"HTTP/1.1 200") == 1
            assert speaking.content("late") in bytes(client.heard)

    run(main(), within=60)
