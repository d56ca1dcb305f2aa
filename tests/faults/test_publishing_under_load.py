"""Configuration changes a hundred times a second while 64 requests are always under way: each is served by one revision alone."""

import asyncio
from collections import Counter

import msgspec
import pytest

from reports.core.record import EndRecord
from routing.core.catalog import AttemptPolicy, Catalog, Group, HealthPolicy, Target
from tests.faults.stories import CHAT, serving, until
from tests.support.documents import some_catalog, some_group, some_provider, some_target
from tests.support.loops import run
from tests.support.relays import answering, relaying
from tests.support.scripted import ScriptedUpstream, scripted

pytestmark = pytest.mark.usefixtures("transport")


def revision(number: int, dead: ScriptedUpstream, odd: ScriptedUpstream, even: ScriptedUpstream) -> Catalog:
    """`first` always fails, so that `second` serves. Everything of a revision says its number; the addresses take turns."""

    def target(name: str, upstream: ScriptedUpstream) -> Target:
        provider = some_provider(
            name, base_url=upstream.base_url, headers=(("x-revision", str(number)),), max_in_flight=512
        )
        return some_target(
            f"{name}#{number}", provider=provider, model=f"m{number}", model_key=name, prices=(number, number * 2)
        )

    served_by = odd if number % 2 else even
    group: Group = some_group(
        (target("first", dead), target("second", served_by)),
        name="g",
        strategy="failover",
        health=HealthPolicy(max_consecutive_failures=1_000_000),
        attempts=AttemptPolicy(retry_min_per_second=1_000_000.0),
    )
    return some_catalog(group, revision=number)


@pytest.mark.parametrize(("revisions", "every"), [(20, 0.005), pytest.param(500, 0.01, marks=pytest.mark.full)])
def test_no_request_mixes_revisions(revisions: int, every: float) -> None:
    """Until so many revisions have served, however long that takes here."""

    async def main() -> None:
        failing = answering({"error": {"message": "boom"}}, status=500)
        good = serving(CHAT, stream=False)
        async with scripted(failing) as dead, scripted(good) as odd, scripted(good) as even:
            first = revision(1, dead, odd, even)
            async with relaying(first.groups["g"]) as bench:
                bench.snapshot.catalog = first
                ends = bench.kept.ends
                bodies = Counter[bytes]()
                published = 1

                def enough() -> bool:
                    return len({end.revision for end in ends}) >= revisions

                async def client() -> None:
                    while not enough():
                        reply = await bench.post(CHAT.path, CHAT.asking(stream=False))
                        bodies[reply.body] += 1

                async def publish() -> None:
                    nonlocal published
                    while not enough():
                        published += 1
                        bench.snapshot.catalog = revision(published, dead, odd, even)
                        await asyncio.sleep(every)

                await asyncio.gather(publish(), *(client() for _ in range(64)))
                assert [end for end in ends if not is_of_one_revision(end)] == []
                served_by = {end.id: end.revision for end in ends}
                assert {intent.id: intent.revision for intent in bench.kept.intents} == served_by
                assert bodies == {CHAT.body("b", stream=False): len(ends)}
                print(f"{len(ends)} requests over {len(set(served_by.values()))} of {published} revisions")
                for upstream, parity in ((odd, 1), (even, 0)):
                    numbers = [number_of(request.headers, request.body) for request in upstream.requests]
                    assert {number % 2 for number in numbers} == {parity}
                for request in dead.requests:
                    number_of(request.headers, request.body)
                await until(lambda: bench.transport.in_use("first") == bench.transport.in_use("second") == 0)

    run(main(), loop="uvloop", within=60)


def is_of_one_revision(end: EndRecord) -> bool:
    number = end.revision
    return (
        end.outcome == "success"
        and end.target == f"second#{number}"
        and end.model == f"m{number}"
        and (end.input_price, end.output_price) == (number * 1_000_000, number * 2_000_000)
        and [attempt.target for attempt in end.attempts] == [f"first#{number}", f"second#{number}"]
        and {attempt.model for attempt in end.attempts} == {f"m{number}"}
        and end.order == [f"first#{number}", f"second#{number}"]
    )


def number_of(headers: list[tuple[bytes, bytes]], body: bytes) -> int:
    """The one revision that a request shows in its header and its body."""
    number = int(dict(headers)[b"x-revision"])
    assert msgspec.json.decode(body)["model"] == f"m{number}"
    return number
