"""Exchanges that come at once take their steps together. What holds for each of them alone must hold then, too."""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.relay import app
from gateway.relay.app import COMPANY, TOLD_AT_ONCE
from gateway.relay.recording import end_record
from gateway.upstream.client import Transport, UpstreamRequest, UpstreamResponse
from gateway.upstream.errors import ConnectionLost
from reports.core.record import EndRecord, IntentRecord
from routing.core.catalog import Group, ScorePolicy
from tests.support.asgi import Call
from tests.support.documents import some_group
from tests.support.loops import in_loop
from tests.support.relays import (
    DONE,
    Bench,
    answering,
    chat_event,
    completion,
    in_order,
    relaying,
    sse,
    target_on,
    text,
)
from tests.support.scripted import Close, Expect, Script, ScriptedUpstream, Send, scripted

CHAT = "/v1/chat/completions"
MANY = 40


@dataclass(slots=True)
class Flushed:
    """A sink that tells what is queued from what is written."""

    queued: list[IntentRecord | EndRecord] = field(default_factory=list)
    writes: list[list[IntentRecord | EndRecord]] = field(default_factory=list)

    def intent(self, record: IntentRecord) -> None:
        self.queued.append(record)

    def end(self, record: EndRecord) -> None:
        self.queued.append(record)

    def flush(self) -> None:
        if self.queued:
            self.writes.append(self.queued)
            self.queued = []

    def written(self, kind: type[IntentRecord] | type[EndRecord]) -> list[str]:
        return [record.id for batch in self.writes for record in batch if isinstance(record, kind)]


def group_on(upstream: ScriptedUpstream, **fields: Any) -> Group:
    return in_order(target_on(upstream, "a"), **fields)


def at_once(group: Group) -> Any:
    """A relay whose clock stands still: whoever comes has come with the one before."""
    return relaying(group, clock=lambda: 100.0)


def calls(bench: Bench, number: int = MANY, *, stream: bool = False, **how: Any) -> list[Call]:
    return [
        bench.call(CHAT, {"model": "g", "messages": [{"role": "user", "content": f"{i}"}], "stream": stream}, **how)
        for i in range(number)
    ]


@dataclass(slots=True)
class Slow:
    """A transport that keeps every request until all are there, and then fails it."""

    transport: Transport
    number: int
    sent: int = 0
    _all: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, request: UpstreamRequest, *, connect_by: float, respond_by: float) -> UpstreamResponse:
        self.sent += 1
        if self.sent == self.number:
            self._all.set()
        await self._all.wait()
        raise ConnectionLost("no")

    async def close(self) -> None:
        await self.transport.close()


@dataclass(slots=True)
class Watched:
    """A transport that checks, before each request, that its intent is written."""

    transport: Transport
    sink: Flushed
    sent: int = 0

    async def send(self, request: UpstreamRequest, *, connect_by: float, respond_by: float) -> UpstreamResponse:
        self.sent += 1
        assert len(self.sink.written(IntentRecord)) >= self.sent
        return await self.transport.send(request, connect_by=connect_by, respond_by=respond_by)

    async def close(self) -> None:
        await self.transport.close()


STREAM: Script = [Expect(), Send(sse(text("a"), chat_event(finish="stop"), DONE)), Close()]


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_no_provider_hears_of_a_request_whose_intent_is_not_written(stream: bool) -> None:
    async with (
        scripted(STREAM if stream else answering(completion())) as upstream,
        at_once(group_on(upstream)) as bench,
    ):
        sink = bench.relay.spool = Flushed()
        transport = bench.relay.transport = Watched(bench.transport, sink)
        replies = [await call.answered() for call in calls(bench, stream=stream)]
        await asyncio.sleep(0)
        assert [reply.status for reply in replies] == [200] * MANY
        assert transport.sent == MANY
    assert sink.queued == []
    intents, ends = sink.written(IntentRecord), sink.written(EndRecord)
    assert len(set(intents)) == MANY
    assert sorted(ends) == sorted(intents)
    # The first ones had no company yet; all others share a write.
    assert max(len(batch) for batch in sink.writes) >= MANY - 2 * COMPANY


@in_loop
async def test_each_choice_sees_the_attempts_of_those_before_it() -> None:
    """Else all that come at once would go to the target that was least busy before them."""
    async with scripted(answering(completion())) as upstream:
        policy = ScorePolicy(min_observations=0)
        group = some_group([target_on(upstream, name) for name in "abcd"], name="g", policy=policy)
        async with at_once(group) as bench:
            for call in calls(bench):
                await call.answered()
            await asyncio.sleep(0)
            served = [end.target for end in bench.kept.ends]
    assert {name: served.count(name) for name in set(served)} == dict.fromkeys("abcd", MANY // 4)


@in_loop
async def test_whoever_leaves_between_two_steps_leaves_nothing_behind() -> None:
    async with scripted(answering(completion())) as upstream, at_once(group_on(upstream)) as bench:
        transport = bench.relay.transport = Slow(bench.transport, 2 * COMPANY)
        made: list[Call] = []

        def leave(hung_up: Any) -> None:
            hung_up(made[left.pop(0)].task)

        left = list(range(2 * COMPANY, MANY))
        made += calls(bench, 2 * COMPANY)
        made += calls(bench, MANY - 2 * COMPANY, extensions={"pilotage.hang_up": leave})
        await asyncio.gather(*(call.task for call in made), return_exceptions=True)
        await asyncio.sleep(0)
        assert transport.sent == 2 * COMPANY
        assert bench.relay.in_flight == 0
        assert bench.relay.observations.target_in_flight("g", "a") == 0
    outcomes = [end.outcome for end in bench.kept.ends]
    assert outcomes.count("client_cancelled") == MANY - 2 * COMPANY
    assert len(outcomes) == MANY


@in_loop
async def test_a_record_that_cannot_be_made_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = 0

    def sometimes(exchange: Any) -> EndRecord:
        nonlocal made
        made += 1
        if made % 10 == 0:
            raise RuntimeError("no")
        return end_record(exchange)

    monkeypatch.setattr(app, "end_record", sometimes)
    async with scripted(answering(completion())) as upstream, at_once(group_on(upstream)) as bench:
        with caplog.at_level(logging.ERROR, logger="pilotage.relay"):
            for call in calls(bench):
                await call.answered()
            await asyncio.sleep(0)
    assert (made, len(bench.kept.ends), len(bench.kept.lines)) == (MANY, MANY - MANY // 10, MANY - MANY // 10)
    assert sum("could not be recorded" in record.message for record in caplog.records) == MANY // 10


@in_loop
async def test_no_more_are_told_of_in_one_go_than_may_hold_up_the_others() -> None:
    number = 3 * TOLD_AT_ONCE
    async with scripted(answering(completion())) as upstream, at_once(group_on(upstream)) as bench:
        bench.relay.transport = Slow(bench.transport, number)
        sink = bench.relay.spool = Flushed()
        for call in calls(bench, number):
            await call.answered()
        for _ in range(number // TOLD_AT_ONCE):
            await asyncio.sleep(0)
    ends = [sum(isinstance(record, EndRecord) for record in batch) for batch in sink.writes]
    assert sum(ends) == number
    assert max(ends) == TOLD_AT_ONCE


@in_loop
async def test_what_ended_in_the_last_turn_of_the_loop_is_told_of_at_the_end_of_the_process() -> None:
    number = 2 * TOLD_AT_ONCE
    async with scripted(answering(completion())) as upstream, at_once(group_on(upstream)) as bench:
        bench.relay.transport = Slow(bench.transport, number)
        await asyncio.gather(*(call.answered() for call in calls(bench, number)))
        bench.relay.close()
        assert len(bench.kept.ends) == number


@in_loop
async def test_who_comes_alone_has_been_told_of_when_its_answer_is_out() -> None:
    async with scripted(answering(completion())) as upstream, relaying(group_on(upstream)) as bench:
        sink = bench.relay.spool = Flushed()
        for call in calls(bench, 1):
            await call.answered()
    assert [[type(record) for record in batch] for batch in sink.writes] == [[IntentRecord], [EndRecord]]
