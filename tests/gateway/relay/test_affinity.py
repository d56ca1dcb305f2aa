"""A conversation's target through real requests: it stays, fails, is out, and is chosen anew."""

from typing import Any

import msgspec

from routing.core.catalog import AffinityPolicy, Group, HealthPolicy, ScorePolicy
from tests.support.loops import in_loop
from tests.support.relays import Bench, answering, completion, in_order, relaying, target_on
from tests.support.scripted import Expect, Script, ScriptedUpstream, Send, answer, scripted

CHAT = "/v1/chat/completions"


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def turn(number: int, *, conversation: str = "one") -> dict[str, Any]:
    """The conversation's turn of that number, with all before it."""
    said: list[dict[str, str]] = [{"role": "user", "content": f"hi, I am {conversation}"}]
    for each in range(1, number):
        said += [{"role": "assistant", "content": f"answer {each}"}, {"role": "user", "content": f"and {each}?"}]
    return {"model": "g", "messages": said}


def pinning(first: ScriptedUpstream, second: ScriptedUpstream, **policy: Any) -> Group:
    """`a` is preferred until the group is known; nothing is learnt fast enough here to change that."""
    return in_order(
        target_on(first, "a", weight=2.0),
        target_on(second, "b", weight=1.0),
        strategy="dynamic_score",
        policy=ScorePolicy(min_observations=1_000, affinity=AffinityPolicy(**policy)),
        health=HealthPolicy(max_consecutive_failures=3, probe_first_s=3_600.0),
    )


def good_then_failing(name: str) -> Script:
    fine = Send(answer(msgspec.json.encode(completion(name))))
    return [Expect(), fine, *answering({"error": {"message": "boom"}}, status=500)]


async def take(bench: Bench, body: dict[str, Any], **headers: str) -> tuple[str | None, str | None, list[str]]:
    """Who served it, the affinity outcome, who was tried."""
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    reply = await bench.post(CHAT, body, headers=fields)
    assert reply.status == 200
    return bench.end.target, bench.end.affinity, [attempt.target for attempt in bench.end.attempts]


@in_loop
async def test_a_pinned_target_that_fails_keeps_its_pin_until_it_is_out_and_then_one_attempt_is_enough():
    async with (
        scripted(good_then_failing("a")) as a,
        scripted(answering(completion("b"))) as b,
        relaying(pinning(a, b)) as bench,
    ):
        seen = [await take(bench, turn(number)) for number in range(1, 8)]
    assert seen == [
        ("a", "affinity_miss", ["a"]),
        ("b", "affinity_hit", ["a", "b"]),
        ("b", "affinity_hit", ["a", "b"]),
        ("b", "affinity_hit", ["a", "b"]),
        ("b", "affinity_ineligible", ["b"]),
        ("b", "affinity_hit", ["b"]),
        ("b", "affinity_hit", ["b"]),
    ]
    assert (len(a.requests), bench.end.mode) == (4, "pinned")


@in_loop
async def test_a_pinned_target_that_is_cooling_down_loses_the_conversation():
    clock = Clock()
    throttled = answer(b"{}", status=429, headers={"retry-after": "30"})
    fine = answer(msgspec.json.encode(completion("a")))
    async with (
        scripted([Expect(), Send(fine), Expect(), Send(throttled), *answering(completion("a"))]) as a,
        scripted(answering(completion("b"))) as b,
        relaying(pinning(a, b), clock=clock) as bench,
    ):
        seen = [await take(bench, turn(number)) for number in (1, 2, 3)]
        clock.now += 31.0
        seen.append(await take(bench, turn(4)))
        seen.append(await take(bench, turn(1, conversation="two")))
    assert seen == [
        ("a", "affinity_miss", ["a"]),
        ("b", "affinity_hit", ["a", "b"]),
        ("b", "affinity_ineligible", ["b"]),
        ("b", "affinity_hit", ["b"]),
        ("a", "affinity_miss", ["a"]),
    ]


@in_loop
async def test_a_pin_ends_when_its_time_is_up_however_often_it_was_used():
    clock = Clock()
    async with (
        scripted(answering(completion("a"))) as a,
        scripted(answering(completion("b"))) as b,
        relaying(pinning(a, b, ttl_s=600.0), clock=clock) as bench,
    ):
        seen: list[str | None] = []
        for number in range(1, 6):
            seen.append((await take(bench, turn(number)))[1])
            clock.now += 290.0
    assert seen == ["affinity_miss", "affinity_hit", "affinity_hit", "affinity_expired", "affinity_hit"]


@in_loop
async def test_a_sliding_pin_lives_as_long_as_it_is_used():
    clock = Clock()
    async with (
        scripted(answering(completion("a"))) as a,
        scripted(answering(completion("b"))) as b,
        relaying(pinning(a, b, ttl_s=600.0, sliding=True), clock=clock) as bench,
    ):
        seen: list[str | None] = []
        for number in range(1, 6):
            seen.append((await take(bench, turn(number)))[1])
            clock.now += 290.0
        clock.now += 311.0
        seen.append((await take(bench, turn(6)))[1])
    assert seen == ["affinity_miss", *["affinity_hit"] * 4, "affinity_expired"]


@in_loop
async def test_a_session_id_holds_a_conversation_together_whatever_its_messages():
    async with (
        scripted(answering(completion("a"))) as a,
        scripted(answering(completion("b"))) as b,
        relaying(pinning(a, b)) as bench,
    ):
        first = await take(bench, turn(1, conversation="one"), x_session_id="s-1")
        second = await take(bench, turn(1, conversation="two"), x_session_id="s-1")
        other = await take(bench, turn(1, conversation="one"), x_session_id="s-2")
    assert [each[1] for each in (first, second, other)] == ["affinity_miss", "affinity_hit", "affinity_miss"]
