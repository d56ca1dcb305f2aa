"""Who gets a place when a process is full: turns, bounds, refusals, and what a waiting client sees."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.core.directory import Caller, Directory, Token
from accounts.core.secret import digest_of, with_checksum
from gateway.relay.admission import Admission, Place, read_resident_bytes
from gateway.relay.refusals import Refusal
from reports.core.record import LogLine
from tests.support.asgi import Call
from tests.support.loops import in_loop
from tests.support.relays import PEPPER, Bench, answering, completion, in_order, message, relaying, target_on
from tests.support.scripted import AwaitPeer, Expect, Script, ScriptedUpstream, scripted

CHAT, MESSAGES, COUNT = "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"


@dataclass
class Door:
    """An Admission with a clock of its own, and what it told everyone: names are `a1`, `a2`, `b1`, the caller first."""

    admission: Admission
    now: float = 100.0
    places: dict[str, Place] = field(default_factory=dict)
    told: list[tuple[str, str | None]] = field(default_factory=list)

    def enter(self, *names: str, size: int = 0) -> None:
        for name in names:
            place = self.places[name] = self.admission.enter(name[0], size, now=self.now)
            if not place.admitted:
                place.told = lambda refusal, name=name: self.told.append((name, refusal and refusal.code))

    def refused(self, name: str, size: int = 0) -> tuple[str, int, int | None]:
        with pytest.raises(Refusal) as caught:
            self.enter(name, size=size)
        wait = caught.value.retry_after_s
        assert wait is None or wait == int(wait)
        return caught.value.code, caught.value.status, None if wait is None else int(wait)

    def leave(self, *names: str, after: float = 0.0) -> None:
        self.now += after
        for name in names:
            self.admission.leave(self.places[name], now=self.now)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """In flight, waiting, bytes, callers."""
        at = self.admission
        return at.in_flight, at.queued, at.held_bytes, at.callers


def door(**bounds: Any) -> Door:
    return Door(Admission(**({"max_in_flight": 2, "max_queued": 100} | bounds)))


# -- turns


def test_a_free_place_is_taken_at_once_without_a_loop_a_task_or_a_future() -> None:
    at = door()
    at.enter("a1", "a2", size=10)
    assert [at.places[name].admitted for name in ("a1", "a2")] == [True, True]
    assert at.counts == (2, 0, 20, 1)
    at.leave("a1", "a2")
    assert at.counts == (0, 0, 0, 0)


def test_a_callers_own_requests_are_served_in_the_order_they_came() -> None:
    at = door(max_in_flight=1)
    at.enter("a1", "a2", "a3", "a4")
    at.leave("a1", "a2", "a3")
    assert at.told == [("a2", None), ("a3", None), ("a4", None)]


def test_callers_take_turns_whatever_the_number_they_wait_with() -> None:
    at = door(max_in_flight=1)
    at.enter("a1", "a2", "a3", "a4", "a5", "b1", "b2", "c1")
    for name in ("a1", "a2", "b1", "c1", "a3", "b2", "a4"):
        at.leave(name)
    assert [name for name, _ in at.told] == ["a2", "b1", "c1", "a3", "b2", "a4", "a5"]


def test_a_caller_alone_has_every_place_and_gets_no_further_one_while_others_have_fewer() -> None:
    at = door(max_in_flight=4)
    at.enter("a1", "a2", "a3", "a4", "a5", "a6", "b1", "b2", "b3")
    at.leave("a1", "a2")
    assert at.told == [("b1", None), ("b2", None)]
    at.leave("b1")  # two of a's are running, one of b's
    at.leave("a3")
    assert [name for name, _ in at.told] == ["b1", "b2", "b3", "a5"]


def test_a_caller_with_nothing_in_flight_gets_one_of_the_next_places_whatever_others_have_sent() -> None:
    at = door(max_in_flight=2)
    at.enter("a1", "b1", *(f"{caller}{number}" for number in range(2, 9) for caller in "ab"), "z1")
    at.leave("a1", "b1", "a2")
    assert [name for name, _ in at.told] == ["a2", "b2", "z1"]


def test_no_place_stays_empty_while_anybody_waits() -> None:
    at = door(max_in_flight=2)
    at.enter("a1", "b1", "a2", "a3")
    at.leave("b1")
    assert at.counts == (2, 1, 0, 1)


def test_one_who_leaves_the_queue_is_passed_over() -> None:
    at = door(max_in_flight=1)
    at.enter("a1", "b1", "b2", "c1")
    at.leave("b1")
    at.leave("c1")
    assert at.counts == (1, 1, 0, 2)
    at.leave("a1")
    assert at.told == [("b2", None)]


def test_one_who_is_admitted_and_leaves_before_it_heard_of_it_gives_the_place_on() -> None:
    at = door(max_in_flight=1)
    at.enter("a1", "b1", "c1")
    at.leave("a1")
    at.leave("b1")
    assert at.told == [("b1", None), ("c1", None)]


def test_leaving_twice_gives_one_place_back() -> None:
    at = door(max_in_flight=2)
    at.enter("a1", "b1", "c1", "c2", size=5)
    at.leave("a1", "a1", "a1")
    assert at.counts == (2, 1, 15, 2)


# -- refusals


def test_a_full_queue_refuses_one_who_waits_with_as_much_as_any_other() -> None:
    at = door(max_in_flight=1, max_queued=2)
    at.enter("a1", "a2", "b1")
    assert at.refused("c1") == ("overloaded", 503, 0)
    assert (at.counts, at.told) == ((1, 2, 0, 2), [])


def test_a_full_queue_makes_room_for_who_waits_with_less_and_the_newest_of_the_most_has_to_go() -> None:
    at = door(max_in_flight=1, max_queued=3)
    at.enter("a1", "a2", "a3", "a4", "b1")
    assert at.told == [("a4", "caller_over_share")]
    assert at.counts == (1, 3, 0, 2)
    assert at.refused("a5")[:2] == ("caller_over_share", 429)
    at.leave("a1", "b1", "a2", "a3")
    assert at.counts == (0, 0, 0, 0)


def test_only_a_caller_with_far_more_than_an_equal_share_is_told_that_it_is_its_own_load() -> None:
    alone, equal, unequal = (door(max_in_flight=2, max_queued=2) for _ in range(3))
    alone.enter("a1", "a2", "a3", "a4")
    equal.enter("a1", "b1", "a2", "b2")
    unequal.enter("b1", "a1", "a2", "a3")
    assert [at.refused("a9")[:2] for at in (alone, equal, unequal)] == [
        ("overloaded", 503),
        ("overloaded", 503),
        ("caller_over_share", 429),
    ]


def test_a_process_without_a_queue_refuses_when_it_is_full() -> None:
    at = door(max_in_flight=1, max_queued=0)
    at.enter("a1")
    assert at.refused("b1")[0] == "overloaded"
    at.leave("a1")
    at.enter("b1")
    assert at.counts == (1, 0, 0, 1)


def test_what_could_not_be_served_in_time_is_refused_when_it_comes() -> None:
    at = door(max_in_flight=2, queue_seconds=5.0)
    for _ in range(200):  # a place is held for four seconds
        at.enter("a1", "a2")
        at.leave("a1", "a2", after=4.0)
    at.enter("a1", "a2", "a3", "a4")  # a3 may expect two seconds, a4 four, the next one six
    assert at.refused("a5") == ("overloaded", 503, 6)
    assert at.counts == (2, 2, 0, 1)


def test_when_nothing_moves_one_may_wait_and_all_others_are_refused() -> None:
    at = door(max_in_flight=1, queue_seconds=5.0)
    at.enter("a1", "b1")
    at.now += 5.1
    assert at.refused("c1")[0] == "overloaded"
    at.leave("b1")
    at.enter("c1")
    assert at.counts == (1, 1, 0, 2)


def test_retry_after_is_never_more_than_a_minute() -> None:
    at = door(max_in_flight=1, queue_seconds=1.0)
    for _ in range(200):
        at.enter("a1")
        at.leave("a1", after=1000.0)
    at.enter("a1")
    assert at.refused("b1") == ("overloaded", 503, 60)


# -- memory


def test_declared_bodies_are_bounded_in_all_and_given_back() -> None:
    at = door(max_in_flight=9, max_body_bytes_held=100)
    at.enter("a1", "b1", "c1", size=30)
    assert at.refused("d1", size=11) == ("overloaded", 503, 0)
    at.enter("d1", size=10)
    at.leave("a1")
    at.enter("e1", size=30)
    assert at.counts == (4, 0, 100, 4)


def test_a_caller_may_hold_as_much_as_it_leaves_free() -> None:
    at = door(max_in_flight=9, max_body_bytes_held=100)
    at.enter("a1", "a2", size=25)
    assert at.refused("a3", size=1)[0] == "overloaded"
    at.enter("b1", size=20)
    assert at.refused("b2", size=6)[0] == "overloaded"
    at.enter("b2", size=5)
    assert at.counts == (4, 0, 75, 2)


def test_a_waiting_body_counts_too() -> None:
    at = door(max_in_flight=1, max_body_bytes_held=100)
    at.enter("a1", size=10)
    at.enter("b1", size=50)
    assert at.refused("c1", size=41)[0] == "overloaded"
    at.leave("b1")
    at.enter("c1", size=41)
    assert at.counts == (1, 1, 51, 2)


def test_making_room_in_the_queue_keeps_the_bytes_right() -> None:
    at = door(max_in_flight=1, max_queued=2, max_body_bytes_held=1000)
    at.enter("a1", "a2", "a3", size=100)
    at.enter("b1", size=7)
    assert (at.counts, at.told) == ((1, 2, 207, 2), [("a3", "overloaded")])


def test_a_body_of_undeclared_length_counts_as_it_comes() -> None:
    at = door(max_in_flight=9, max_body_bytes_held=100)
    at.enter("a1", "b1")
    at.admission.grow(at.places["a1"], 30)
    at.admission.grow(at.places["a1"], 20)
    with pytest.raises(Refusal):
        at.admission.grow(at.places["a1"], 1)
    assert at.counts == (2, 0, 50, 2)
    at.leave("a1")
    assert at.counts == (1, 0, 0, 1)


def test_above_the_bound_of_memory_new_requests_are_refused_until_it_is_less() -> None:
    resident = [50]
    at = door(max_in_flight=9, max_memory_bytes=100, resident_bytes=lambda: resident[0])
    at.enter("a1")
    resident[0] = 101
    at.now += 0.06
    at.enter("a2")  # asked less than 100 ms ago
    at.now += 0.06
    assert at.refused("b1") == ("overloaded", 503, 0)
    resident[0] = 100
    at.now += 0.11
    at.enter("b1")
    assert at.counts == (3, 0, 0, 2)


def test_above_the_bound_of_memory_one_is_let_in_when_nothing_is_in_flight() -> None:
    at = door(max_in_flight=9, max_memory_bytes=100, resident_bytes=lambda: 101)
    at.enter("a1")
    assert at.refused("a2")[0] == "overloaded"
    at.leave("a1")
    at.enter("a2")
    assert at.counts == (1, 0, 0, 1)


def test_the_resident_memory_is_read_in_bytes() -> None:
    before = read_resident_bytes()
    block = bytearray(b"x" * (64 << 20))
    grown = read_resident_bytes() - before
    assert 48 << 20 < grown < 96 << 20
    assert len(block) == 64 << 20


# -- any sequence

arrivals = st.tuples(st.just("arrive"), st.sampled_from("abcd"), st.integers(0, 40))
departures = st.tuples(st.sampled_from(["finish", "give up"]), st.integers(0, 50), st.integers(0, 3))


@given(
    steps=st.lists(st.one_of(arrivals, departures), max_size=80),
    max_in_flight=st.integers(1, 4),
    max_queued=st.integers(0, 6),
)
def test_any_sequence_of_coming_and_going_keeps_the_bounds_and_loses_nobody(
    steps: list[Any], max_in_flight: int, max_queued: int
) -> None:
    admission = Admission(
        max_in_flight=max_in_flight, max_queued=max_queued, queue_seconds=5.0, max_body_bytes_held=200
    )
    now = 0.0
    running: list[tuple[str, Place, int]] = []
    waiting: list[tuple[str, Place, int]] = []
    told: list[Place] = []

    def held(caller: str) -> int:
        return sum(other == caller for other, _, _ in running)

    def settle() -> None:
        """Moves whom the admission told. An admitted one was the first of a caller who had the fewest."""
        while told:
            place = told.pop(0)
            entry = next(entry for entry in waiting if entry[1] is place)
            if place.admitted:
                assert entry is next(other for other in waiting if other[0] == entry[0])
                assert held(entry[0]) == min(held(other) for other, _, _ in waiting)
                running.append(entry)
            else:
                most = max(sum(other == caller for other, _, _ in waiting) for caller, _, _ in waiting)
                assert most == sum(other == entry[0] for other, _, _ in waiting)
            waiting.remove(entry)

    def check() -> None:
        assert admission.in_flight == len(running) <= max_in_flight
        assert admission.queued == len(waiting) <= max_queued
        assert admission.held_bytes == sum(size for _, _, size in running + waiting) <= 200
        assert admission.callers == len({caller for caller, _, _ in running + waiting})
        assert not waiting or len(running) == max_in_flight  # no lost wake-up

    def leave(entries: list[tuple[str, Place, int]], index: int) -> None:
        entry = entries.pop(index % len(entries))
        admission.leave(entry[1], now=now)
        settle()

    for what, who, size in steps:
        now += 0.25
        if what == "arrive":
            try:
                place = admission.enter(who, size, now=now)
            except Refusal:
                assert len(running) == max_in_flight or admission.held_bytes + size + size > 60
            else:
                settle()
                (running if place.admitted else waiting).append((who, place, size))
                if not place.admitted:
                    place.told = lambda _, place=place: told.append(place)
        elif what == "finish" and running:
            leave(running, who)
        elif what == "give up" and waiting:
            leave(waiting, who)
        check()
    left = len(running) + len(waiting)
    while running:
        leave(running, 0)
        left -= 1
        check()
    assert (left, waiting) == (0, [])
    assert (admission.in_flight, admission.queued, admission.held_bytes, admission.callers) == (0, 0, 0, 0)


# -- what clients see


def hi(**more: Any) -> dict[str, Any]:
    return {"model": "g", "messages": [{"role": "user", "content": "hi"}], **more}


async def until(condition: Any, *, within: float = 5.0) -> None:
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - sockets and scripts tell nobody
            await asyncio.sleep(0.002)


@dataclass
class Full:
    """A relay with one place, which is taken."""

    bench: Bench
    upstream: ScriptedUpstream
    first: Call
    """The request that has the place; the provider does not answer it."""

    async def finish(self) -> None:
        self.first.hang_up()
        await self.first.answered()

    async def waits(self, path: str = CHAT, body: Any = None, **how: Any) -> Call:
        queued = self.bench.relay.admission.queued
        call = self.bench.call(path, hi() if body is None else body, **how)
        await until(lambda: self.bench.relay.admission.queued == queued + 1)
        return call

    @property
    def counts(self) -> tuple[int, int, int]:
        at = self.bench.relay.admission
        return at.in_flight, at.queued, at.held_bytes


@contextlib.asynccontextmanager
async def full(
    then: dict[str, Any] | None = None, *, dialect: Any = "openai-chat", **bounds: Any
) -> AsyncIterator[Full]:
    scripts: list[Script] = [[Expect(), AwaitPeer()], answering(then or completion("served"))]
    settings = {"max_in_flight": 1, "max_queued": 4} | bounds
    async with (
        scripted(scripts=scripts) as upstream,
        relaying(in_order(target_on(upstream, "a", dialect=dialect)), **settings) as bench,
    ):
        body = hi() if dialect == "openai-chat" else hi(max_tokens=5)
        first = bench.call(CHAT if dialect == "openai-chat" else MESSAGES, body)
        await until(lambda: len(upstream.requests) == 1)
        yield Full(bench, upstream, first)


@pytest.mark.parametrize("pieces", [1, 7])
@in_loop
async def test_a_request_that_waited_is_served_and_its_record_says_how_long_it_waited(pieces):
    async with full() as at:
        call = await at.waits(pieces=pieces)
        await asyncio.sleep(0.05)
        await at.finish()
        reply = await call.answered()
        await until(lambda: len(at.bench.kept.ends) == 2)
        assert at.counts == (0, 0, 0)
    cancelled, served = at.bench.kept.ends
    assert (reply.status, reply.json()["choices"][0]["message"]["content"]) == (200, "served")
    assert cancelled.queued_ms == 0
    assert 50 <= served.queued_ms < served.duration_ms
    assert served.attempts[0].started_ms >= served.queued_ms
    assert served.attempts[0].duration_ms <= served.duration_ms - served.queued_ms
    waits = [line.queued_ms for line in at.bench.kept.lines if isinstance(line, LogLine)]
    assert waits == [0, served.queued_ms]


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
@in_loop
async def test_messages_and_counting_wait_too(path):
    then = message("served") if path == MESSAGES else {"input_tokens": 7}
    async with full(then, dialect="anthropic") as at:
        call = await at.waits(path, hi(max_tokens=5) if path == MESSAGES else hi())
        await at.finish()
        reply = await call.answered()
    assert reply.status == 200
    assert at.bench.end.queued_ms > 0


@in_loop
async def test_models_and_health_never_wait():
    async with full() as at:
        replies = [await at.bench.call(path, method="GET").answered() for path in ("/v1/models", "/healthz", "/readyz")]
    assert [reply.status for reply in replies] == [200, 200, 200]


@pytest.mark.parametrize("pieces", [1, 7])
@in_loop
async def test_a_client_that_leaves_the_queue_frees_its_place_at_once_and_leaves_one_record(pieces):
    async with full() as at:
        call = await at.waits(pieces=pieces)
        call.hang_up()
        await call.answered(limit_s=1.0)
        assert (at.counts[:2], call.reply.status, len(at.upstream.requests)) == ((1, 0), 0, 1)
        ends = list(at.bench.kept.ends)
    assert [(end.outcome, end.error_code, end.status) for end in ends] == [
        ("client_cancelled", "client_closed_request", 499)
    ]
    assert ends[0].queued_ms > 0
    assert (ends[0].caller, ends[0].attempts) == ("alice", [])


@in_loop
async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_the_queue():
    async with full() as at:
        left = asyncio.Event()
        messages = [{"type": "http.request", "body": b'{"model', "more_body": True}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError(message)

        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": at_headers(at.bench, length=500)}
        task = asyncio.ensure_future(at.bench.relay(scope, receive, send))
        await until(lambda: at.bench.relay.admission.queued == 1)
        assert at.counts[2] > 500
        left.set()
        await asyncio.wait_for(task, 1.0)
        assert at.counts[:2] == (1, 0)
    assert [end.outcome for end in at.bench.kept.ends][:1] == ["client_cancelled"]


def at_headers(bench: Bench, *, length: int) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + bench.secret.encode()), (b"content-length", b"%d" % length)]


@in_loop
async def test_a_request_whose_time_is_up_is_refused():
    async with full(queue_seconds=0.05) as at:
        reply = await at.bench.post(CHAT, hi())
        assert at.counts[:2] == (1, 0)
    assert (reply.status, reply.header("retry-after"), reply.json()["error"]["code"]) == (503, "1", "overloaded")
    assert "within 0.05 s" in reply.json()["error"]["message"]
    end = at.bench.kept.ends[0]
    assert (end.outcome, end.status, end.error_code, end.attempts) == ("refused", 503, "overloaded", [])
    assert end.queued_ms >= 49  # a timer may come a clock tick early


@in_loop
async def test_a_refusal_reads_nothing_of_the_body():
    async with full(max_queued=0) as at:
        call = at.bench.call(CHAT, hi(padding="x" * 5000), pieces=9)
        whole = call.unread
        reply = await call.answered()
    assert (reply.status, call.unread) == (503, whole)


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({"anonymous": True}, 401),
        ({"anonymous": True, "headers": [(b"x-api-key", b"plt_wrong")]}, 401),
        ({"headers": [(b"content-encoding", b"gzip")]}, 415),
        ({"headers": [(b"content-length", b"99999999999")]}, 413),
    ],
)
@in_loop
async def test_what_its_head_forbids_never_waits(how, status):
    async with full() as at:
        reply = await at.bench.call(CHAT, hi(), **how).answered(limit_s=1.0)
        assert at.counts[:2] == (1, 0)
    assert reply.status == status


@in_loop
async def test_a_body_without_a_length_is_refused_when_it_passes_the_bound_of_memory():
    chunked = [(b"transfer-encoding", b"chunked")]
    async with full(max_body_bytes_held=20_000) as at:
        for _ in range(2):  # once while it waits, once when it has its place
            call = at.bench.call(CHAT, hi(padding="x" * 15_000), headers=chunked, pieces=50)
            reply = await call.answered(limit_s=2.0)
            assert (reply.status, reply.json()["error"]["code"]) == (503, "overloaded")
            assert call.unread > 3_000
            await at.finish()
            assert at.counts == (0, 0, 0)


@in_loop
async def test_a_token_that_is_revoked_while_its_request_waits_is_refused():
    async with full() as at:
        call = await at.waits()
        at.bench.snapshot.directory = Directory(version=2, tokens={})
        await at.finish()
        reply = await call.answered()
    assert (reply.status, reply.json()["error"]["code"]) == (401, "invalid_api_key")
    assert len(at.upstream.requests) == 1


@in_loop
async def test_a_server_that_ends_while_requests_wait_tells_them_so():
    async with full() as at:
        call = await at.waits()
        call.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call.task
        assert at.counts[:2] == (1, 0)
    assert (call.reply.status, call.reply.json()["error"]["code"]) == (503, "gateway_shutting_down")
    assert at.bench.kept.ends[0].queued_ms > 0


@in_loop
async def test_a_waiting_request_is_sent_away_for_a_caller_who_waits_with_less():
    async with full(max_queued=3) as at:
        secret = with_checksum("Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4")
        bob = Token(
            caller=Caller(name="bob", allow=frozenset({"*"})),
            shown=secret[:12],
            digest=digest_of(secret.encode(), PEPPER),
        )
        known = at.bench.snapshot.directory
        assert known is not None
        at.bench.snapshot.directory = Directory(version=2, tokens={**known.tokens, bob.digest: bob})
        older, old, newest = await at.waits(), await at.waits(), await at.waits()
        bobs = at.bench.call(CHAT, hi(), anonymous=True, headers=[(b"authorization", b"Bearer " + secret.encode())])
        refused = await newest.answered(limit_s=1.0)
        await at.finish()
        served = [await call.answered() for call in (bobs, older, old)]
    assert (refused.status, refused.header("retry-after")) == (429, "1")
    assert refused.json()["error"]["code"] == "caller_over_share"
    assert [reply.status for reply in served] == [200, 200, 200]


@in_loop
async def test_a_thousand_who_come_and_leave_at_random_leave_nothing_behind():
    async with (
        scripted(scripts=[answering(completion())]) as upstream,
        relaying(in_order(target_on(upstream, "a")), max_in_flight=3, max_queued=20) as bench,
    ):
        for start in range(20):
            calls = [bench.call(CHAT, hi(), pieces=1 + number % 3) for number in range(50)]
            for number, call in enumerate(calls):
                if (number * 7 + start) % 5 == 0:
                    await asyncio.sleep(0)
                    call.hang_up()
            await asyncio.gather(*(call.answered() for call in calls))
            at = bench.relay.admission
            assert (at.in_flight, at.queued, at.held_bytes, at.callers) == (0, 0, 0, 0)
        assert len(bench.kept.ends) == 1000
        assert {end.outcome for end in bench.kept.ends} == {"success", "refused", "client_cancelled"}
