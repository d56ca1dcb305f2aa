"""SIGTERM with many streams and with clients that try to hold it up: nothing new, everything recorded, an end in time."""

import asyncio
import contextlib
import json
import signal

import pytest

from reports.core.record import EndRecord, IntentRecord
from tests.support.grounds import Ground, Grounds, hello
from tests.support.hostile import Client, answer_of, connect, connected, head, parse, post
from tests.support.loops import run
from tests.support.relays import DONE, chat_event, sse, text
from tests.support.scripted import Close, Drip, Expect, Flood, Script, Send, scripted

pytestmark = pytest.mark.e2e

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
EVENT = text("a word ")
END = chat_event(finish="stop") + DONE


def stream_of(events: int, every_s: float) -> Script:
    return [Expect(), Send(sse()), Drip(EVENT * events, every_s, len(EVENT)), Send(END), Close()]


async def drained(ground: Ground, *, streams: int, grace_s: float) -> None:
    """Half of the streams end within the grace, half would go on for ever."""
    short, endless = stream_of(int(grace_s / 0.1 / 2), 0.1), stream_of(100_000, 0.1)
    loop = asyncio.get_running_loop()
    async with scripted(scripts=[short, endless] * (streams // 2)) as upstream, contextlib.AsyncExitStack() as stack:
        group = await ground.lead_to(upstream.base_url)
        clients = [await stack.enter_async_context(connected(ground.address)) for _ in range(streams)]
        for client in clients:
            await client.send(post(CHAT, hello(group, stream=True), token=ground.token))
        await asyncio.gather(*(client.until(EVENT, within=30) for client in clients))
        balancer = await stack.enter_async_context(connected(ground.address))
        idle = await stack.enter_async_context(connected(ground.address))
        for kept in (balancer, idle):
            await kept.send(head("GET", "/readyz", [("Host", "x")]))
            assert (await answer_of(kept)).status == 200
            kept.heard.clear()
        began = loop.time()
        ground.process.signal(signal.SIGTERM)
        await balancer.send(head("GET", "/readyz", [("Host", "x")]))
        with contextlib.suppress(TimeoutError):
            await balancer.rest(within=0.3)
        # It was idle: closed at once, or answered and then closed.
        if balancer.heard:
            refused = parse(bytes(balancer.heard))
            assert refused is not None
            assert (refused.status, refused.json) == (503, {"status": "draining"})
        assert await idle.rest(within=1.0) == b""
        await asyncio.sleep(max(0.0, began + 0.3 - loop.time()))
        with pytest.raises(ConnectionRefusedError):
            await connect(ground.address)
        heard = await asyncio.gather(*(client.rest(within=grace_s + 20) for client in clients))
        took = loop.time() - began
        print(f"{streams} streams drained in {took:.1f} s")
        assert grace_s <= took < grace_s + 5
        whole, cut = 0, 0
        for each in heard:
            answer = parse(each)
            assert answer is not None
            if answer.whole:
                whole += answer.body.endswith(END)
            else:
                last = json.loads(answer.body.rpartition(b"data: ")[2])
                cut += last["error"]["code"] == "gateway_shutting_down"
        assert (whole, cut) == (streams // 2, streams // 2)
        assert await asyncio.to_thread(ground.process.wait, 10) == 0
    intents, ends = ground.records_of(group)
    assert len(intents) == streams
    assert {intent.id for intent in intents} == {end.id for end in ends}
    assert sorted(end.error_code or "" for end in ends) == [""] * (streams // 2) + ["gateway_shutting_down"] * (
        streams // 2
    )
    assert len(ground.process.lines()) == len(
        [record for record in ground.process.records() if isinstance(record, EndRecord)]
    )


def test_streams_go_on_until_the_grace_is_over(grounds: Grounds) -> None:
    run(drained(grounds.start("draining", PILOTAGE_DRAIN_SECONDS="2"), streams=60, grace_s=2.0), within=100)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_two_hundred_streams_go_on_for_five_minutes(grounds: Grounds) -> None:
    run(drained(grounds.start("draining-full"), streams=200, grace_s=300.0), within=800)


def test_nobody_holds_it_up(grounds: Grounds) -> None:
    """Clients that do not read, do not finish their head or body, or keep sending: the process ends in time all the same."""
    ground = grounds.start(
        "held-up",
        PILOTAGE_DRAIN_SECONDS="1",
        PILOTAGE_WRITE_STALL_SECONDS="60",
        PILOTAGE_HEAD_SECONDS="60",
    )

    async def main() -> None:
        loop = asyncio.get_running_loop()
        flooding: Script = [Expect(), Send(sse()), Flood(text("x" * 4000), 1 << 30), Close()]
        async with scripted(flooding) as upstream, contextlib.AsyncExitStack() as stack:
            group = await ground.lead_to(upstream.base_url)
            asking = post(CHAT, hello(group, stream=True), token=ground.token)

            async def client(sent: bytes) -> Client:
                made = await stack.enter_async_context(connected(ground.address, receive_buffer=4096))
                await made.send(sent)
                return made

            deaf = [await client(asking) for _ in range(5)]
            half_heads = [await client(asking[:40]) for _ in range(5)]
            half_bodies = [await client(asking[:-5]) for _ in range(5)]
            silent = [await client(b"") for _ in range(5)]
            await ground.until(lambda: len(upstream.requests) == 5, what="the streams")
            await asyncio.sleep(0.3)
            began = loop.time()
            ground.process.signal(signal.SIGTERM)
            assert await asyncio.to_thread(ground.process.wait, 20) == 0
            took = loop.time() - began
            assert 1.0 <= took < 6.0, took
            for each in (*deaf, *half_heads, *half_bodies, *silent):
                await each.rest()
        intents, ends = ground.records_of(group)
        assert len(intents) == 5
        assert {intent.id for intent in intents} <= {end.id for end in ends}

    run(main(), within=60)


def test_three_workers_lose_no_record(grounds: Grounds) -> None:
    ground = grounds.start("draining-three", workers=3, PILOTAGE_DRAIN_SECONDS="1")
    streams = 30

    async def main() -> None:
        async with scripted(stream_of(100_000, 0.1)) as upstream, contextlib.AsyncExitStack() as stack:
            group = await ground.lead_to(upstream.base_url)
            await asyncio.sleep(0.5)  # one worker has told; the others look as often
            clients = [await stack.enter_async_context(connected(ground.address)) for _ in range(streams)]
            for client in clients:
                await client.send(post(CHAT, hello(group, stream=True), token=ground.token))
            await asyncio.gather(*(client.until(EVENT, within=30) for client in clients))
            ground.process.signal(signal.SIGTERM)
            heard = await asyncio.gather(*(client.rest() for client in clients))
            assert [each.count(b"gateway_shutting_down") for each in heard] == [1] * streams
            assert await asyncio.to_thread(ground.process.wait, 20) == 0
        intents, ends = ground.records_of(group)
        assert (len(intents), len(ends)) == (streams, streams)
        assert all(isinstance(intent, IntentRecord) for intent in intents)

    run(main(), within=60)
