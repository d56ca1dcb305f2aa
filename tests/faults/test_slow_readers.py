"""Clients that do not read: each costs a bounded amount of memory and is cut off in time. Who reads, however slowly, loses nothing."""

import asyncio
import contextlib

import pytest

from reports.core.record import EndRecord
from tests.support.grounds import WRITE_STALL_SECONDS, Ground, Grounds, hello
from tests.support.hostile import answer_of, connected, descriptors_of, parse, post, resident_bytes
from tests.support.loops import run
from tests.support.relays import DONE, answering, chat_event, completion, sse, text
from tests.support.scripted import Close, Expect, Flood, Script, Send, scripted

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
KIB, MIB = 1 << 10, 1 << 20
EVENT = text("x" * 4000)
EVENTS = 64 * MIB // len(EVENT)
"""What the provider would send to each: 64 MiB."""
MEMORY_EACH = 512 * KIB
TAKEN_EACH = 8 * MIB
END = chat_event(finish="stop") + DONE


def flooding(events: int) -> Script:
    return [Expect(), Send(sse()), Flood(EVENT, events * len(EVENT)), Send(END), Close()]


def asking(ground: Ground, group: str) -> bytes:
    return post(CHAT, hello(group, stream=True), token=ground.token, headers=[("Connection", "close")])


def ends_of(ground: Ground, group: str) -> list[EndRecord]:
    return ground.records_of(group)[1]


async def stall(ground: Ground, *, clients: int, stall_s: float) -> None:
    """So many clients ask and do not read. Prints and judges what they cost."""
    loop = asyncio.get_running_loop()
    async with scripted(flooding(EVENTS)) as upstream, contextlib.AsyncExitStack() as stack:
        group = await ground.lead_to(upstream.base_url)
        descriptors = await ground.idle_descriptors()
        before = most = resident_bytes(ground.pid)
        taken = 0
        stalling = []
        for _ in range(clients):
            client = await stack.enter_async_context(connected(ground.address, receive_buffer=4096))
            await client.send(asking(ground, group))
            stalling.append(client)
        began = loop.time()
        while len(ends_of(ground, group)) < clients:
            most = max(most, resident_bytes(ground.pid))
            taken = max(taken, *upstream.taken(), 0)
            assert loop.time() - began < 3 * stall_s + 30, f"{len(ends_of(ground, group))} of {clients} were cut off"
            await asyncio.sleep(0.05)
        took = loop.time() - began
        each = (most - before) / clients
        print(
            f"{clients} clients: {each / KIB:.0f} KiB each, at most {taken / MIB:.1f} MiB taken from the provider for one,"
            f" all cut off after {took:.1f} s"
        )
        assert took >= stall_s
        assert each <= MEMORY_EACH
        assert taken <= TAKEN_EACH
        assert {(end.outcome, end.status) for end in ends_of(ground, group)} == {("client_cancelled", 200)}
        for client in stalling:
            await client.rest()
            assert client.ended == "reset"
    await ground.until(lambda: descriptors_of(ground.pid) <= descriptors, what="closed sockets")


def test_who_reads_nothing_costs_little_and_is_cut_off(ground: Ground) -> None:
    run(stall(ground, clients=80, stall_s=WRITE_STALL_SECONDS), within=100)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_two_hundred_who_read_nothing_for_a_minute(grounds: Grounds) -> None:
    patient = grounds.start("patient", PILOTAGE_WRITE_STALL_SECONDS="60")
    run(stall(patient, clients=200, stall_s=60.0), within=500)


def test_who_reads_slowly_gets_everything_beside_those_who_do_not(ground: Ground) -> None:
    events = 3_000

    async def slow(group: str) -> bytes:
        """A little now and then, for longer than a client may read nothing."""
        async with connected(ground.address, receive_buffer=65_536) as client:
            await client.send(asking(ground, group))
            for _ in range(16):
                await asyncio.sleep(WRITE_STALL_SECONDS / 4)
                for _ in range(2):
                    await client.read()
            await client.rest()
            answer = parse(bytes(client.heard))
            assert answer is not None
            assert answer.whole
            return answer.body

    async def main() -> None:
        async with scripted(flooding(events)) as upstream, contextlib.AsyncExitStack() as stack:
            group = await ground.lead_to(upstream.base_url)
            for _ in range(5):
                client = await stack.enter_async_context(connected(ground.address, receive_buffer=4096))
                await client.send(asking(ground, group))
            assert await slow(group) == EVENT * events + END
            await ground.until(lambda: len(ends_of(ground, group)) == 6, what="all records")
            assert sorted(end.outcome for end in ends_of(ground, group)) == ["client_cancelled"] * 5 + ["success"]

    run(main(), within=60)


def test_a_unary_answer_that_is_not_read_is_cut_off_too(ground: Ground) -> None:
    """The answer is whole and recorded; what is left of it in the process goes with the connection."""

    async def main() -> None:
        async with scripted(answering(completion("x" * (6 * MIB)))) as upstream:
            group = await ground.lead_to(upstream.base_url)
            descriptors = await ground.idle_descriptors()
            async with connected(ground.address, receive_buffer=4096) as client:
                await client.send(post(CHAT, hello(group), token=ground.token))
                await ground.until(lambda: len(ends_of(ground, group)) == 1, what="a record")
                # The provider's connection stays in the pool, the client's must go.
                await ground.until(lambda: descriptors_of(ground.pid) <= descriptors + 1, what="the cut")
                await client.rest()
                assert client.ended == "reset"
            async with connected(ground.address) as client:
                await client.send(post(CHAT, hello(group), token=ground.token))
                assert len((await answer_of(client)).body) > 6 * MIB

    run(main(), within=60)
