"""Many streams at a time: every byte of each, in order, and little memory for each."""

import asyncio
import hashlib
import json
import resource

import pytest

from tests.support.grounds import Ground, Grounds, hello
from tests.support.hostile import Client, connect, descriptors_of, parse, post, resident_bytes
from tests.support.loops import run
from tests.support.relays import DONE, chat_event, sse, text
from tests.support.scripted import Close, Drip, Expect, Script, Send, scripted

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
KIB = 1 << 10
MEMORY_EACH = 128 * KIB
END = chat_event(finish="stop") + DONE
SPARE_DESCRIPTORS = 500


def events_of(number: int, count: int) -> bytes:
    """No two streams hold the same bytes, and no two events of one."""
    return b"".join(
        text(f"{number}.{event}." + hashlib.md5(b"%d %d" % (number, event)).hexdigest()) for event in range(count)
    )


async def streamed(ground: Ground, *, streams: int, events: int, every_s: float, at_a_time: int = 50) -> None:
    """So many streams, all open together. The pieces of each are cut anywhere, by its number."""
    contents = [events_of(number, events) for number in range(streams)]
    scripts: list[Script] = [
        [Expect(), Send(sse()), Drip(content, every_s, len(content) // events + number % 7), Send(END), Close()]
        for number, content in enumerate(contents)
    ]
    async with scripted(scripts=scripts) as upstream:
        # Without comments of ours between events that are far apart.
        group = await ground.lead_to(upstream.base_url, timeouts={"keepalive_ms": 600_000})
        descriptors = await ground.idle_descriptors()
        before = resident_bytes(ground.pid)
        clients: list[Client] = []
        try:
            for number in range(streams):
                client = await connect(ground.address)
                clients.append(client)
                sent = hello(group, stream=True, user=f"client {number}")
                await client.send(post(CHAT, sent, token=ground.token, headers=[("Connection", "close")]))
                if len(clients) % at_a_time == 0:
                    await ground.until(lambda: len(upstream.requests) == len(clients), what="streams", within=60)
            await ground.until(lambda: len(upstream.requests) == streams, what="all streams", within=60)
            reading = [asyncio.ensure_future(client.rest(within=600)) for client in clients]
            most = resident_bytes(ground.pid)
            while not all(each.done() for each in reading):
                most = max(most, resident_bytes(ground.pid))
                await asyncio.sleep(0.1)
            answers = [parse(await each) for each in reading]
        finally:
            for client in clients:
                client.close()
        each = (most - before) / streams
        print(f"{streams} streams: {each / KIB:.0f} KiB each")
        asked_by = [json.loads(played.requests[0].body)["user"] for played in upstream.connections]
        expected = {user: digest(contents[number] + END) for number, user in enumerate(asked_by)}
        came = {f"client {number}": digest(answer.body) for number, answer in enumerate(answers) if answer is not None}
        wrong = [user for user in expected if came.get(user) != expected[user]]
        assert wrong == [], (len(wrong), [answers[int(user.split()[1])] for user in wrong[:2]])
        assert all(answer is not None and answer.whole for answer in answers)
        assert each <= MEMORY_EACH
        await ground.until(lambda: len(ground.records_of(group)[1]) == streams, what="all records")
        assert {end.outcome for end in ground.records_of(group)[1]} == {"success"}
    await ground.until(lambda: descriptors_of(ground.pid) <= descriptors, what="closed sockets")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_nothing_is_lost_or_reordered(ground: Ground) -> None:
    run(streamed(ground, streams=250, events=10, every_s=0.4), within=100)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_thousand_at_two_events_a_second(ground: Ground) -> None:
    run(streamed(ground, streams=1000, events=40, every_s=0.5), within=800)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_as_many_as_there_are_descriptors(grounds: Grounds) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    streams = min(10_000, (hard - SPARE_DESCRIPTORS) // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        # The first events have to wait until the last stream is open.
        run(streamed(grounds.start("many"), streams=streams, events=4, every_s=30.0), within=1700)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
