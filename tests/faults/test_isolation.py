"""What one caller does is not another one's: pins, cancellations, faults."""

import asyncio
from dataclasses import replace

import pytest

from accounts.core.directory import Caller, Directory, Token
from accounts.core.secret import digest_of, with_checksum
from routing.core.catalog import AffinityPolicy, ScorePolicy, Target
from tests.faults.stories import CHAT, SIDES, books, group_of, serving
from tests.support.loops import in_loop
from tests.support.relays import PEPPER, Bench, in_order, relaying, target_on
from tests.support.scripted import AwaitPeer, Expect, Repeat, Script, Send, answer, chunk, chunked_head, scripted


def with_another_caller(bench: Bench) -> str:
    """Adds the caller `bob`; his secret."""
    secret = with_checksum("b" * 32)
    bob = Token(
        caller=Caller(name="bob", allow=frozenset({"*"})), shown=secret[:12], digest=digest_of(secret.encode(), PEPPER)
    )
    assert bench.snapshot.directory is not None
    tokens = {**bench.snapshot.directory.tokens, bob.digest: bob}
    bench.snapshot.directory = Directory(version=2, tokens=tokens)
    return secret


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("by", ["the prompt", "a session id"])
@in_loop
async def test_two_callers_with_the_same_prompt_have_their_own_pins(by, side):
    """Alice's conversation is pinned to `a`; then `b` becomes the choice for new ones. Bob's equal one is new."""
    speaking = SIDES[side]
    headers = [(b"x-session-id", b"same")] if by == "a session id" else []
    good = serving(speaking, stream=False)
    async with scripted(good) as a, scripted(good) as b:
        first, second = (target_on(each, name, dialect=speaking.dialect) for each, name in ((a, "a"), (b, "b")))
        policy = ScorePolicy(min_observations=1_000, affinity=AffinityPolicy())

        def preferring(winner: str) -> tuple[Target, ...]:
            return tuple(replace(target, weight=9.0 if target.id == winner else 1.0) for target in (first, second))

        async with relaying(in_order(*preferring("a"), strategy="dynamic_score", policy=policy)) as bench:
            secret = with_another_caller(bench)
            served: list[tuple[str, str | None, str | None]] = []

            async def turn(who: str) -> None:
                fields = list(headers)
                if who == "bob":
                    fields.append((b"authorization", f"Bearer {secret}".encode()))
                request = speaking.asking(stream=False)
                reply = await bench.post(speaking.path, request, headers=fields, anonymous=who == "bob")
                assert reply.status == 200
                served.append((who, bench.end.target, bench.end.affinity))

            await turn("alice")
            assert bench.snapshot.catalog is not None
            other = in_order(*preferring("b"), strategy="dynamic_score", policy=policy)
            bench.snapshot.catalog = replace(bench.snapshot.catalog, revision=2, groups={"g": other})
            for who in ("bob", "alice", "bob", "alice"):
                await turn(who)
    assert [(who, target) for who, target, _ in served] == [
        ("alice", "a"),
        ("bob", "b"),
        ("alice", "a"),
        ("bob", "b"),
        ("alice", "a"),
    ]
    assert [affinity for _, _, affinity in served] == [
        f"affinity_{how}" for how in ("miss", "miss", "hit", "hit", "hit")
    ]


@pytest.mark.parametrize("side", SIDES)
@in_loop
async def test_a_hundred_streams_that_are_left_after_an_event_leave_only_their_first_contents_times(side):
    speaking = SIDES[side]
    script: Script = [Expect(), Send(chunked_head() + chunk(speaking.opening + speaking.content("hello"))), AwaitPeer()]
    async with (
        scripted(script) as a,
        relaying(in_order(target_on(a, "a", dialect=speaking.dialect), strategy="dynamic_score")) as bench,
    ):

        async def one() -> None:
            call = bench.call(speaking.path, speaking.asking(stream=True))
            await call.until(speaking.content("hello"))
            call.hang_up()
            await call.answered()

        for _ in range(10):
            await asyncio.gather(*(one() for _ in range(10)))
        assert books(bench) == {"a": (0.0, 0.0, 0.0, 0.0)}
        group = group_of(bench)
        stats = bench.relay.observations.stats(group, now=bench.relay.clock()).targets["a"]
        assert (stats.window.first_content_n, stats.window.completed, stats.window.streams_ended) == (100.0, 0.0, 0.0)
        assert bench.relay.observations.health(group, now=bench.relay.clock()) == {}
        assert {end.outcome for end in bench.kept.ends} == {"client_cancelled"}
        assert len(bench.kept.ends) == 100


@in_loop
async def test_one_callers_faults_and_cancellations_do_not_close_a_target_for_another():
    """Fifty bad requests and fifty impatient leavings; then another caller's request goes where it went before."""
    refusing: Script = [Expect(), Send(answer(b'{"error":{"message":"no"}}', status=400))]
    script: Script = [Repeat(refusing, times=50), *serving(CHAT, stream=False, said="a")]
    async with (
        scripted(script) as a,
        scripted(serving(CHAT, stream=False)) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b"))) as bench,
    ):
        secret = with_another_caller(bench)
        for _ in range(50):
            assert (await bench.post(CHAT.path, CHAT.asking(stream=False))).status == 400
        reply = await bench.post(
            CHAT.path,
            CHAT.asking(stream=False),
            headers=[(b"authorization", f"Bearer {secret}".encode())],
            anonymous=True,
        )
    assert reply.body == CHAT.body("a", stream=False)
    assert (bench.end.caller, bench.end.target) == ("bob", "a")
    assert len(b.requests) == 0


@in_loop
async def test_impatient_clients_of_a_slow_unary_target_do_not_take_it_out():
    async with (
        scripted([Expect(), AwaitPeer()]) as a,
        scripted(serving(CHAT, stream=False)) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b"))) as bench,
    ):
        calls = [bench.call(CHAT.path, CHAT.asking(stream=False)) for _ in range(40)]
        await asyncio.sleep(0.05)
        for call in calls:
            call.hang_up()
        for call in calls:
            await call.answered()
        assert bench.relay.observations.health(group_of(bench), now=bench.relay.clock()) == {}
        assert books(bench)["a"] == (0.0, 0.0, 0.0, 0.0)
