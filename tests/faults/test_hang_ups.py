"""Clients that leave, in every way and at every stage: the provider is let go at once, and nothing stays behind."""

import asyncio
import contextlib
import itertools
import json
import socket
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from reports.core.record import EndRecord
from tests.support.grounds import Ground, Grounds
from tests.support.hostile import LEAVING, Client, answer_of, connect, connected, descriptors_of, post
from tests.support.loops import run
from tests.support.relays import DONE, chat_event, completion, sse, text
from tests.support.scripted import (
    LAST_CHUNK,
    AwaitPeer,
    Close,
    Drip,
    Expect,
    Flood,
    Pause,
    Played,
    Repeat,
    Script,
    ScriptedUpstream,
    Send,
    answer,
    chunk,
    chunked_head,
    scripted,
)

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
PLACES = 8
SOON_S = 0.1
"""In which the provider's connection closes when nothing else goes on. One round of each test has to show it."""
LOADED_S = 0.5
"""In which it closes whatever goes on in the gateway: every round, where nothing else goes on in the machine."""
BUSY_S = 1.0
"""The same in a run beside others."""
FINISH = chat_event(finish="stop")
ANSWER = answer(json.dumps(completion()).encode())


@pytest.fixture(scope="module")
def narrow(grounds: Grounds) -> Iterator[Ground]:
    """A gateway with few places, so that one which is not given back is missed."""
    ground = grounds.start(
        "narrow",
        PILOTAGE_MAX_IN_FLIGHT=str(PLACES),
        PILOTAGE_MAX_QUEUED=str(PLACES),
        # No deadline may do what leaving has to.
        PILOTAGE_HEAD_SECONDS="30",
        PILOTAGE_WRITE_STALL_SECONDS="30",
    )
    yield ground
    ground.process.kill()


@dataclass(slots=True, kw_only=True)
class Stage:
    """How far an exchange has come when its client leaves."""

    script: Script
    """What the provider does."""
    record: tuple[str, int, list[str]] | None
    """Outcome, status and the attempts' outcomes; `None`: there is no exchange yet."""
    reached: Callable[[Client, ScriptedUpstream, int], Awaitable[None]]
    """Waits until it is there; the number is that of the provider's connections before."""
    sent: Callable[[str, str], bytes]
    """What the client has sent by then, of group and token."""


def whole(group: str, token: str, *, stream: bool = True) -> bytes:
    body = {"model": group, "messages": [{"role": "user", "content": "Hello"}], "stream": stream}
    return post(CHAT, body, token=token)


async def at_once(client: Client, upstream: ScriptedUpstream, before: int) -> None:
    await asyncio.sleep(0.05)


async def at_the_provider(client: Client, upstream: ScriptedUpstream, before: int) -> None:
    async with asyncio.timeout(10):
        while len(upstream.connections) == before or not upstream.connections[-1].requests:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def heard(piece: bytes) -> Callable[[Client, ScriptedUpstream, int], Awaitable[None]]:
    async def reached(client: Client, upstream: ScriptedUpstream, before: int) -> None:
        await client.until(piece)

    return reached


def stages() -> dict[str, Stage]:
    def cut_head(group: str, token: str) -> bytes:
        return whole(group, token)[:60]

    def only_head(group: str, token: str) -> bytes:
        return whole(group, token).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    def half_body(group: str, token: str) -> bytes:
        return whole(group, token)[:-20]

    left: tuple[str, int, list[str]] = ("client_cancelled", 499, [])
    given_up = ["client_cancelled"]
    return {
        "within the head": Stage(script=[], record=None, reached=at_once, sent=cut_head),
        "head sent": Stage(script=[], record=left, reached=at_once, sent=only_head),
        "mid-body": Stage(script=[], record=left, reached=at_once, sent=half_body),
        "waiting for the first byte": Stage(
            script=[Expect(), AwaitPeer()],
            record=("client_cancelled", 499, given_up),
            reached=at_the_provider,
            sent=whole,
        ),
        "waiting for a unary answer": Stage(
            script=[Expect(), Send(ANSWER[:-1]), AwaitPeer()],
            record=("client_cancelled", 499, given_up),
            reached=at_the_provider,
            sent=lambda group, token: whole(group, token, stream=False),
        ),
        "mid-stream": Stage(
            script=[Expect(), Send(sse(text("first"))), AwaitPeer()],
            record=("client_cancelled", 200, given_up),
            reached=heard(b"first"),
            sent=whole,
        ),
        "last event": Stage(
            script=[Expect(), Send(sse(text("first"), FINISH)), AwaitPeer()],
            record=("client_cancelled", 200, given_up),
            reached=heard(b'"stop"'),
            sent=whole,
        ),
        "after done": Stage(
            # The provider's connection serves the next round too.
            script=[Repeat([Expect(), Send(chunked_head() + chunk(text("first") + FINISH + DONE) + LAST_CHUNK)])],
            record=("success", 200, ["ok"]),
            reached=heard(b"0\r\n\r\n"),
            sent=whole,
        ),
    }


STAGES = stages()


async def rounds_of(ground: Ground, stage: Stage, rounds: int) -> list[float]:
    """Seconds until the provider's connection was closed, of every round; then nothing may be left. Each way in turn."""
    took: list[float] = []
    loop = asyncio.get_running_loop()
    async with scripted(stage.script) as upstream, leaving_nothing(ground, upstream.base_url) as group:
        ends = len(all_ends(ground))
        for leave in ways(rounds):
            connections = len(upstream.connections)
            client = await connect(ground.address)
            await client.send(stage.sent(group, ground.token))
            await stage.reached(client, upstream, connections)
            left_at = loop.time()
            leave(client)
            if stage.record is not None and stage.record[0] == "client_cancelled" and stage.record[2]:
                gone = upstream.connections[-1]
                async with asyncio.timeout(5):
                    await gone.peer_gone.wait()
                assert gone.peer_gone_at is not None
                took.append(gone.peer_gone_at - left_at)
            client.close()
        if stage.record is None:
            await asyncio.sleep(0.05)
            assert len(all_ends(ground)) == ends
        else:
            outcome, status, attempts = stage.record
            await recorded(ground, ends, rounds, (outcome, status, *attempts))
    return took


@contextlib.asynccontextmanager
async def leaving_nothing(ground: Ground, base_url: str) -> AsyncIterator[str]:
    """Gives a group that leads there. Afterwards no socket is open that was not before, and every place is free."""
    group = await ground.lead_to(base_url)
    before = await ground.idle_descriptors()
    yield group
    # A provider's connection in good order is kept; configuring another provider closes it.
    await assert_every_place_is_free(ground)
    await ground.until(lambda: descriptors_of(ground.pid) <= before, what=f"no more than {before} descriptors")
    said = ground.process.err.read_text()
    for complaint in ("Traceback", "was destroyed", "never retrieved", "never awaited"):
        assert complaint not in said, said[-4000:]


async def assert_every_place_is_free(ground: Ground) -> None:
    """As many exchanges as there are places reach the provider at the same time."""
    async with scripted([Expect(), Pause(0.05), Send(ANSWER), AwaitPeer()]) as upstream:
        group = await ground.lead_to(upstream.base_url)
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(ground.address)) for _ in range(PLACES)]
            for client in clients:
                await client.send(whole(group, ground.token, stream=False))
            answers = [await answer_of(client) for client in clients]
        assert [reply.status for reply in answers] == [200] * PLACES
        await ground.until(lambda: len(ground.records_of(group)[1]) == PLACES, what="all records")
        assert {end.queued_ms for end in ground.records_of(group)[1]} == {0.0}


def all_ends(ground: Ground) -> list[EndRecord]:
    return [record for record in ground.process.records() if isinstance(record, EndRecord)]


async def recorded(ground: Ground, before: int, count: int, told: tuple[object, ...], within: float = 5.0) -> None:
    """There are `count` end records more than `before`, and all say the same."""
    await ground.until(lambda: len(all_ends(ground)) == before + count, what=f"{count} records", within=within)
    seen = {
        (end.outcome, end.status, *(attempt.outcome for attempt in end.attempts)) for end in all_ends(ground)[before:]
    }
    assert seen == {told}


def judge(took: list[float], *, at_most_s: float = BUSY_S) -> None:
    print(f"closed within {max(took) * 1000:.0f} ms, median {statistics.median(took) * 1000:.0f} ms")
    assert min(took) <= SOON_S, took
    assert max(took) <= at_most_s, took


def ways(rounds: int) -> Iterator[Callable[[Client], None]]:
    """Of leaving, in turn."""
    return itertools.islice(itertools.cycle(LEAVING.values()), rounds)


at_every_stage = pytest.mark.parametrize("name", STAGES)


@at_every_stage
def test_at_this_stage(narrow: Ground, name: str) -> None:
    took = run(rounds_of(narrow, STAGES[name], 6), within=60)
    if took:
        judge(took)


@pytest.mark.full
@pytest.mark.timeout(1800)
@at_every_stage
def test_at_this_stage_over_and_over(narrow: Ground, name: str) -> None:
    took = run(rounds_of(narrow, STAGES[name], 1000), within=1700)
    if took:
        judge(took, at_most_s=LOADED_S)


def test_while_connecting(narrow: Ground, deaf_port: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        took: list[float] = []
        async with leaving_nothing(narrow, f"http://127.0.0.1:{deaf_port}/v1") as group:
            ends = len(all_ends(narrow))
            for leave in ways(3):
                client = await connect(narrow.address)
                await client.send(whole(group, narrow.token))
                await narrow.until(lambda: connecting_to(deaf_port) == 1, what="a call to the provider", within=3)
                await asyncio.sleep(0.05)
                left_at = loop.time()
                leave(client)
                await narrow.until(lambda: connecting_to(deaf_port) == 0, what="its end", within=3)
                took.append(loop.time() - left_at)
                client.close()
            await recorded(narrow, ends, 3, ("client_cancelled", 499, "client_cancelled"))
        judge(took)

    run(main(), within=60)


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port of 127.0.0.1 that takes no further connection: connecting there neither succeeds nor fails."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def connecting_to(port: int) -> int:
    """How many connections to this port are under way, but for the one that the port's own fixture left so."""
    found = -1
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, state, *_ = line.split()
        found += state == "02" and int(remote.partition(":")[2], 16) == port
    return found


def test_in_the_queue(narrow: Ground) -> None:
    async def main() -> None:
        async with (
            scripted([Expect(), AwaitPeer()]) as upstream,
            leaving_nothing(narrow, upstream.base_url) as group,
            contextlib.AsyncExitStack() as stack,
        ):
            for _ in range(PLACES):
                blocking = await stack.enter_async_context(connected(narrow.address))
                await blocking.send(whole(group, narrow.token))
            await narrow.until(lambda: len(upstream.requests) == PLACES, what="a full process")
            ends = len(all_ends(narrow))
            # More than the queue holds at a time: those who left must have given their place back.
            for number, leave in enumerate(ways(2 * PLACES)):
                client = await connect(narrow.address)
                await client.send(whole(group, narrow.token))
                await asyncio.sleep(0.02)
                leave(client)
                await recorded(narrow, ends + number, 1, ("client_cancelled", 499), within=BUSY_S)
                client.close()
            assert len(upstream.requests) == PLACES

    run(main(), within=60)


def test_while_its_own_buffer_is_full(narrow: Ground) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        took: list[float] = []
        script: Script = [Expect(), Send(sse()), Flood(text("x" * 4000), 1 << 30)]
        async with scripted(script) as upstream, leaving_nothing(narrow, upstream.base_url) as group:
            ends = len(all_ends(narrow))
            for leave in ways(3):
                client = await connect(narrow.address, receive_buffer=4096)
                await client.send(whole(group, narrow.token))
                await client.until(b"HTTP/1.1 200")
                flooded = upstream.connections[-1]
                await still(flooded)
                left_at = loop.time()
                leave(client)
                async with asyncio.timeout(5):
                    await flooded.peer_gone.wait()
                took.append(loop.time() - left_at)
                client.close()
            await recorded(narrow, ends, 3, ("client_cancelled", 200, "client_cancelled"))
        judge(took)

    run(main(), within=60)


async def still(played: Played) -> None:
    """Waits until the provider can send nothing more: every buffer is full."""
    last = -1
    while last != (now := played.sent):
        last = now
        await asyncio.sleep(0.15)


def test_with_a_request_more_on_its_connection(narrow: Ground) -> None:
    """A second request makes the server stop reading; it must hear of the leaving all the same."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with scripted([Expect(), AwaitPeer()]) as upstream, leaving_nothing(narrow, upstream.base_url) as group:
            ends = len(all_ends(narrow))
            for number, leave in enumerate(ways(3)):
                client = await connect(narrow.address)
                await client.send(whole(group, narrow.token, stream=False))
                await at_the_provider(client, upstream, number)
                await asyncio.sleep(0.1)
                await client.send(whole(group, narrow.token) + b"x" * 100_000)
                await asyncio.sleep(0.1)
                left_at = loop.time()
                leave(client)
                async with asyncio.timeout(5):
                    await upstream.connections[-1].peer_gone.wait()
                assert loop.time() - left_at < 1.0
                client.close()
            await recorded(narrow, ends, 3, ("client_cancelled", 499, "client_cancelled"))
            assert len(upstream.requests) == 3

    run(main(), within=60)


def test_many_at_a_time_while_others_go_on(ground: Ground) -> None:
    """Forty leave at once in the middle of their streams, again and again; those who stay lose nothing."""
    paced = [text(f"{number};") for number in range(60)]
    rest = FINISH + DONE

    async def staying(group: str) -> bytes:
        async with connected(ground.address) as client:
            await client.send(whole(group, ground.token))
            return (await answer_of(client, within=60)).body

    async def leaving(group: str, number: int) -> None:
        client = await connect(ground.address)
        await client.send(whole(group, ground.token))
        await client.until(b"0;", within=30)
        list(LEAVING.values())[number % 3](client)
        await asyncio.sleep(0.5)
        client.close()

    async def main() -> None:
        script: Script = [Expect(), Send(sse()), Drip(b"".join(paced), 0.05, len(paced[0])), Send(rest), Close()]
        async with scripted(script) as upstream:
            group = await ground.lead_to(upstream.base_url)
            before = await ground.idle_descriptors()
            stay = [asyncio.ensure_future(staying(group)) for _ in range(20)]
            for _ in range(3):
                await asyncio.gather(*(leaving(group, number) for number in range(40)))
            took = [each.peer_gone_at for each in upstream.connections if each.peer_gone_at is not None]
            assert len(took) >= 120 - 20
            assert await asyncio.gather(*stay) == [b"".join(paced) + rest] * 20
            await ground.until(lambda: len(ground.records_of(group)[1]) == 140, what="all records")
            outcomes = [end.outcome for end in ground.records_of(group)[1]]
            assert (outcomes.count("success"), outcomes.count("client_cancelled")) == (20, 120)
        await ground.until(lambda: descriptors_of(ground.pid) <= before, what="closed sockets")

    run(main(), within=90)
