"""429 and 529 from everywhere: providers hear little more than clients ask, and each wait is kept as it was asked for."""

import asyncio
from math import ceil

import pytest

from routing.core.document import Dialect
from tests.faults.stories import CHAT, MESSAGES, SIDES, attempts, settle, until
from tests.support.loops import in_loop
from tests.support.relays import answering, completion, in_order, relaying, target_on
from tests.support.scripted import Await, Expect, Repeat, Script, Send, answer, scripted

NOON = 1_764_417_600.0
"""2025-11-29 12:00:00 UTC."""


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def throttling(status: int, **headers: str) -> Script:
    wire = answer(
        b'{"error":{"message":"slow down"}}',
        status=status,
        headers={k.replace("_", "-"): v for k, v in headers.items()},
    )
    return [Repeat([Expect(), Send(wire)])]


WAITS: dict[str, dict[str, str]] = {
    "without a wait": {},
    "a wait of 0": {"retry_after": "0"},
    "a wait that is none": {"retry_after": "soon"},
    "2 seconds": {"retry_after": "2"},
    "a date": {"retry_after": "Sat, 29 Nov 2025 12:00:03 GMT", "date": "Sat, 29 Nov 2025 12:00:00 GMT"},
    "milliseconds": {"retry_after_ms": "1500"},
}


@pytest.mark.parametrize("requests", [200, pytest.param(1_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("status", [429, 529])
@in_loop
async def test_a_storm_over_all_targets_is_asked_little_more_than_clients_ask(status, wait, requests):
    """Ten requests a second, one after the other."""
    clock = Clock()
    script = throttling(status, **WAITS[wait])
    async with scripted(script) as a, scripted(script) as b, scripted(script) as c:
        group = in_order(*(target_on(each, name) for each, name in ((a, "a"), (b, "b"), (c, "c"))))
        async with relaying(group, clock=clock, wall=lambda: NOON + clock.now - 1_000.0) as bench:
            heard: list[tuple[int, str | None]] = []
            for number in range(requests):
                reply = await bench.post(CHAT.path, CHAT.asking(stream=number % 2 == 0))
                heard.append((reply.status, reply.header("retry-after")))
                clock.now += 0.1
    asked = len(a.requests) + len(b.requests) + len(c.requests)
    print(f"{status}, {wait}: {asked / requests:.2f} attempts per request")
    assert asked <= 1.2 * requests
    assert {each for each, _ in heard} <= {429, 503}
    assert all(seconds is not None and seconds.isdigit() and int(seconds) >= 1 for _, seconds in heard)


@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("requests", [64, pytest.param(192, marks=pytest.mark.full)])
@in_loop
async def test_a_storm_that_hits_requests_under_way_spends_no_more_than_the_retry_budget(requests):
    """All are under way before the first 429: each could fail over twice, and the budget allows 30."""
    gate = asyncio.Event()
    script: Script = [Expect(), Await(gate), Send(answer(b"{}", status=429, headers={"retry-after": "5"}))]
    async with scripted(script) as a, scripted(script) as b, scripted(script) as c:
        group = in_order(*(target_on(each, name) for each, name in ((a, "a"), (b, "b"), (c, "c"))))
        async with relaying(group) as bench:
            calls = [bench.call(CHAT.path, CHAT.asking(stream=False)) for _ in range(requests)]
            async with asyncio.timeout(10):
                while len(a.requests) < requests:  # noqa: ASYNC110 - a script tells nobody
                    await asyncio.sleep(0.002)
            gate.set()
            replies = [await call.answered() for call in calls]
            assert [reply.status for reply in replies] == [429] * requests
            await settle(bench, a, b, c, requests=requests)
    asked = len(a.requests) + len(b.requests) + len(c.requests)
    assert len(a.requests) == requests
    assert asked <= requests + 30 + 0.2 * requests + 3


@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_a_storm_of_one_provider_is_no_ones_trouble(side, stream):
    clock = Clock()
    speaking = SIDES[side]
    good: Script = [Repeat([Expect(), Send(speaking.answered("b", stream=stream))])]
    async with scripted(throttling(429, retry_after="30")) as a, scripted(good) as b:
        group = in_order(target_on(a, "a", dialect=speaking.dialect), target_on(b, "b", dialect=speaking.dialect))
        async with relaying(group, clock=clock) as bench:
            for _ in range(100):
                reply = await bench.post(speaking.path, speaking.asking(stream=stream))
                assert (reply.status, reply.body) == (200, speaking.body("b", stream=stream))
                clock.now += 0.25
            await settle(bench, a, b, requests=100)
    assert (len(a.requests), len(b.requests)) == (1, 100)


@in_loop
async def test_after_the_storm_every_target_serves_again_by_its_own_wait():
    clock = Clock()

    def once(seconds: str, name: str) -> list[Script]:
        serving = answering(completion(name))
        return [[Expect(), Send(answer(b"{}", status=429, headers={"retry-after": seconds})), *serving], serving]

    async with (
        scripted(scripts=once("5", "a")) as a,
        scripted(scripts=once("10", "b")) as b,
        scripted(scripts=once("15", "c")) as c,
    ):
        group = in_order(*(target_on(each, name) for each, name in ((c, "c"), (b, "b"), (a, "a"))))
        async with relaying(group, clock=clock) as bench:
            first = await bench.post(CHAT.path, CHAT.asking(stream=False))
            assert (first.status, first.header("retry-after")) == (429, "5")
            assert attempts(bench) == [(name, "throttled", "upstream_rate_limited") for name in ("c", "b", "a")]
            served: list[tuple[float, int, str | None, str | None]] = []
            for at in (4.5, 5.0, 9.5, 10.0, 14.5, 15.0):
                clock.now = 1_000.0 + at
                reply = await bench.post(CHAT.path, CHAT.asking(stream=False))
                served.append(
                    (at, reply.status, bench.end.target if reply.status == 200 else None, reply.header("retry-after"))
                )
    assert served == [
        (4.5, 429, None, "1"),
        (5.0, 200, "a", None),
        (9.5, 200, "a", None),
        (10.0, 200, "b", None),
        (14.5, 200, "b", None),
        (15.0, 200, "c", None),
    ]


# How a wait is read; on both clocks, whatever the gateway's own says.

FORMS: list[tuple[dict[str, str], float]] = [
    ({"retry-after": "7"}, 7),
    ({"Retry-After": " 7 "}, 7),
    ({"retry-after": "007"}, 7),
    ({"retry-after": "6.2"}, 6.2),
    ({"retry-after-ms": "6001"}, 6.001),
    ({"retry-after": "50", "retry-after-ms": "6500"}, 6.5),
    ({"date": "Sat, 29 Nov 2025 12:00:00 GMT", "retry-after": "Sat, 29 Nov 2025 12:00:07 GMT"}, 7),
    ({"date": "Sat, 29 Nov 2025 12:00:00 GMT", "retry-after": "Saturday, 29-Nov-25 12:00:07 GMT"}, 7),
    ({"date": "Sat, 29 Nov 2025 12:00:00 GMT", "retry-after": "Sat Nov 29 12:00:07 2025"}, 7),
    ({"date": "Sat, 29 Nov 2025 20:00:00 GMT", "retry-after": "Sat, 29 Nov 2025 20:00:07 GMT"}, 7),
    ({"retry-after": "Sat, 29 Nov 2025 12:00:07 GMT"}, 7),
    ({"retry-after": "Sat, 29 Nov 2025 11:00:00 GMT"}, 1),
    ({"retry-after": "Mon, 29 Nov 2055 12:00:00 GMT"}, 60),
    ({"retry-after": "61"}, 60),
    ({"retry-after": "9" * 15}, 60),
    ({"retry-after": "9" * 400}, 1),
    ({"retry-after": "0"}, 1),
    ({"retry-after": "-3"}, 1),
    ({"retry-after": "+3"}, 1),
    ({"retry-after": "3s"}, 1),
    ({"retry-after": "3, 5"}, 1),
    ({"retry-after": "1e3"}, 1),
    ({"retry-after": "NaN"}, 1),
    ({"retry-after": "Infinity"}, 1),
    ({"retry-after": "\u0663"}, 1),
    ({"retry-after": ""}, 1),
    ({"retry-after": "Sat, 99 Nov 2025 12:00:07 GMT"}, 1),
    ({"retry-after": "abc"}, 1),
    ({"retry-after-ms": "-5", "retry-after": "7"}, 7),
    ({"x-ratelimit-reset-requests": "7s"}, 1),
]


@pytest.mark.parametrize(("headers", "seconds"), FORMS)
@pytest.mark.parametrize("status", [429, 529])
@in_loop
async def test_a_wait_in_any_form_is_kept_and_passed_on(status, headers, seconds):
    clock = Clock()
    again = answering(completion("again"))
    first_one: Script = [Expect(), Send(answer(b"{}", status=status, headers=headers)), *again]
    async with (
        scripted(scripts=[first_one, again]) as a,
        relaying(in_order(target_on(a, "a")), clock=clock, wall=lambda: NOON) as bench,
    ):
        first = await bench.post(CHAT.path, CHAT.asking(stream=False))
        assert (first.status, first.header("retry-after")) == (429 if status == 429 else 503, str(ceil(seconds)))
        clock.now += seconds - 0.01
        early = await bench.post(CHAT.path, CHAT.asking(stream=False))
        assert (early.status, early.header("retry-after"), len(a.requests)) == (429, "1", 1)
        clock.now += 0.01
        assert (await bench.post(CHAT.path, CHAT.asking(stream=False))).status == 200


@pytest.mark.parametrize(("later", "left"), [(5, 50), (49, 50), (51, 51), (60, 60)])
@in_loop
async def test_a_wait_is_never_shortened_by_a_later_one(later, left):
    """One request is under way when another one is told to wait a minute; ten seconds on it is told to wait `later`."""
    clock = Clock()
    gate = asyncio.Event()
    late: Script = [Expect(), Await(gate), Send(answer(b"{}", status=429, headers={"retry-after": str(later)}))]
    at_once: Script = [Expect(), Send(answer(b"{}", status=429, headers={"retry-after": "60"}))]
    async with scripted(scripts=[late, at_once]) as a, relaying(in_order(target_on(a, "a")), clock=clock) as bench:
        in_flight = bench.call(CHAT.path, CHAT.asking(stream=False))
        async with asyncio.timeout(5):
            while not a.requests:  # noqa: ASYNC110 - a script tells nobody
                await asyncio.sleep(0.002)
        assert (await bench.post(CHAT.path, CHAT.asking(stream=False))).header("retry-after") == "60"
        clock.now += 10.0
        gate.set()
        assert (await in_flight.answered()).header("retry-after") == str(left)
        assert (await bench.post(CHAT.path, CHAT.asking(stream=False))).header("retry-after") == str(left)


@in_loop
async def test_a_request_under_way_does_not_fall_back_on_a_model_that_began_to_rest_meanwhile():
    gate = asyncio.Event()
    failing: Script = [Expect(), Await(gate), Send(answer(b"{}", status=500))]
    async with scripted(failing) as a, scripted(throttling(429, retry_after="30")) as b:
        group = in_order(target_on(a, "a"), target_on(b, "b"))
        async with relaying(group, in_order(target_on(b, "b"), name="h")) as bench:
            under_way = bench.call(CHAT.path, CHAT.asking(stream=False))
            await until(lambda: len(a.requests) == 1)
            await bench.post(CHAT.path, CHAT.asking(stream=False, model="h"))
            gate.set()
            assert (await under_way.answered()).status == 500
            assert attempts(bench) == [("a", "server_error", "upstream_server_error")]
            assert len(b.requests) == 1


EXHAUSTED: list[tuple[int, object]] = [
    (429, {"error": {"code": "insufficient_quota", "message": "x"}}),
    (400, {"error": {"type": "billing_hard_limit_reached"}}),
    (403, {"error": {"code": "quota_exceeded"}}),
    (402, {"error": {}}),
]


@pytest.mark.parametrize(("status", "said"), EXHAUSTED)
@in_loop
async def test_an_account_that_is_used_up_rests_and_is_not_the_callers_fault(status, said):
    async with (
        scripted(answering(said, status=status)) as a,
        scripted(answering(completion("b"))) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b"))) as bench,
    ):
        for _ in range(5):
            assert (await bench.post(CHAT.path, CHAT.asking(stream=False))).json() == completion("b")
    assert (len(a.requests), len(b.requests)) == (1, 5)


@pytest.mark.parametrize(("dialect", "status"), [("openai-chat", 503), ("anthropic", 529)])
@in_loop
async def test_a_storm_of_overloads_is_said_in_each_dialects_words(dialect: Dialect, status: int):
    side = MESSAGES if dialect == "anthropic" else CHAT
    script = throttling(529, retry_after="20")
    async with scripted(script) as a, scripted(script) as b:
        group = in_order(target_on(a, "a", dialect=dialect), target_on(b, "b", dialect=dialect))
        async with relaying(group) as bench:
            first = await bench.post(side.path, side.asking(stream=False))
            second = await bench.post(side.path, side.asking(stream=False))
    assert (first.status, first.header("retry-after"), first.json()["error"]["type"]) == (
        status,
        "20",
        "overloaded_error",
    )
    assert (second.status, second.header("retry-after"), second.json()["error"]["type"]) == (
        429,
        "20",
        "rate_limit_error",
    )
