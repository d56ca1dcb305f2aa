"""Counting a Messages request's tokens: by a target that can, else by our estimate, and without a trace in health."""

import asyncio
from typing import Any

import msgspec
import pytest

from routing.core.catalog import ProviderTimeouts
from routing.core.stats import Sums
from tests.support.loops import in_loop
from tests.support.relays import Bench, answering, completion, in_order, relaying, target_on
from tests.support.scripted import AwaitPeer, Close, Expect, Script, Send, answer, scripted

COUNT = "/v1/messages/count_tokens"
TEXT = "How many roads must a man walk down?"
BARE: dict[str, Any] = {"model": "g", "messages": [{"role": "user", "content": TEXT}]}
TOOL = {"name": "look_up", "description": "Looks a word up.", "input_schema": {"type": "object", "properties": {}}}
WITH_TOOLS: dict[str, Any] = {**BARE, "system": "Be brief.", "tools": [TOOL, {**TOOL, "name": "look_down"}]}


async def counted(script: Script, body: dict[str, Any] = WITH_TOOLS) -> tuple[int, bool, Bench]:
    """The count that a client of one target gets, whether it is said to be an estimate, and the relay."""
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a", dialect="anthropic"))) as bench:
        reply = await bench.post(COUNT, body, query=b"beta=true")
        group = bench.snapshot.catalog.groups["g"]  # type: ignore[union-attr]  # the bench always has a catalog
        stats = bench.relay.observations.stats(group, now=bench.relay.clock())
        assert (stats.observations, stats.targets["a"].window, stats.targets["a"].in_flight) == (0, Sums(), 0)
        assert bench.relay.observations.health(group, now=bench.relay.clock()) == {}
    assert reply.status == 200
    assert list(reply.json()) == ["input_tokens"]
    return reply.json()["input_tokens"], reply.header("x-pilotage-estimated") == "true", bench


@in_loop
async def test_a_target_that_counts_is_asked_and_its_number_given():
    async with (
        scripted(answering({"input_tokens": 403, "more": 1})) as upstream,
        relaying(in_order(target_on(upstream, "a", dialect="anthropic")), see_routing=True) as bench,
    ):
        reply = await bench.post(COUNT, WITH_TOOLS, query=b"beta=true")
    assert (reply.status, reply.body) == (200, b'{"input_tokens":403}')
    assert (reply.header("x-pilotage-estimated"), reply.header("x-pilotage-target")) == (None, "a")
    request = upstream.requests[0]
    assert request.line == b"POST /v1/messages/count_tokens?beta=true HTTP/1.1"
    assert request.header(b"anthropic-version") == b"2023-06-01"
    assert msgspec.json.decode(request.body) == {**WITH_TOOLS, "model": "a"}


CANNOT: dict[str, Script] = {
    "no such path": answering({"error": {"message": "not found"}}, status=404),
    "a server error": answering({"error": {"message": "boom"}}, status=500),
    "a refused credential": answering({"error": {"message": "bad key"}}, status=401),
    "throttled": answering({"error": {"message": "slow down"}}, status=429, headers=[("retry-after", "60")]),
    "HTML with 400": [Expect(), Send(answer(b"<html>", status=400, content_type="text/html"))],
    "something else": answering({"tokens": 9}),
    "zero": answering({"input_tokens": 0}),
    "less than nothing": answering({"input_tokens": -4}),
    "no number": answering({"input_tokens": "403"}),
    "a closed connection": [Expect(), Close()],
}


@pytest.mark.parametrize("what", CANNOT)
@in_loop
async def test_a_target_that_cannot_count_is_replaced_by_an_estimate_and_bears_no_mark(what):
    number, estimated, bench = await counted(CANNOT[what])
    assert estimated
    assert number > len(TEXT) // 4
    assert (bench.end.outcome, bench.end.endpoint, bench.end.target, bench.end.attempts) == (
        "success",
        "count_tokens",
        None,
        [],
    )
    assert bench.kept.intents == []


@in_loop
async def test_an_estimate_counts_the_system_text_and_the_tools():
    cannot = CANNOT["no such path"]
    bare, _, _ = await counted(cannot, BARE)
    with_system, _, _ = await counted(cannot, {**BARE, "system": "Be brief."})
    with_tools, _, _ = await counted(cannot, WITH_TOOLS)
    assert bare == -(-len(TEXT) // 4)
    assert bare < with_system < with_tools


@in_loop
async def test_an_estimate_is_never_zero():
    number, estimated, _ = await counted(
        CANNOT["no such path"], {"model": "g", "messages": [{"role": "user", "content": ""}]}
    )
    assert (number, estimated) == (1, True)


@in_loop
async def test_a_group_that_speaks_no_messages_gives_an_estimate_and_asks_nobody():
    async with scripted(answering(completion())) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        reply = await bench.post(COUNT, BARE)
    assert (reply.status, reply.json(), reply.header("x-pilotage-estimated")) == (200, {"input_tokens": 9}, "true")
    assert upstream.connections == []


@pytest.mark.parametrize("status", [400, 413, 422])
@in_loop
async def test_a_fault_of_the_request_is_passed_on_and_bears_no_mark(status):
    said = {"type": "error", "error": {"type": "invalid_request_error", "message": "messages: too odd"}}
    async with (
        scripted(answering(said, status=status)) as upstream,
        relaying(in_order(target_on(upstream, "a", dialect="anthropic"))) as bench,
    ):
        reply = await bench.post(COUNT, BARE)
        group = bench.snapshot.catalog.groups["g"]  # type: ignore[union-attr]  # the bench always has a catalog
        assert bench.relay.observations.stats(group, now=bench.relay.clock()).targets["a"].window == Sums()
    assert (reply.status, reply.json()) == (status, said)
    assert bench.end.outcome == "refused"


@in_loop
async def test_a_target_that_does_not_answer_is_given_up_in_time():
    provider = {"timeouts": ProviderTimeouts(first_byte_s=0.2)}
    async with (
        scripted([Expect(), AwaitPeer()]) as upstream,
        relaying(in_order(target_on(upstream, "a", dialect="anthropic", provider=provider))) as bench,
    ):
        reply = await bench.post(COUNT, BARE)
        async with asyncio.timeout(1):
            await upstream.connections[0].peer_gone.wait()
    assert (reply.status, reply.header("x-pilotage-estimated")) == (200, "true")


@in_loop
async def test_a_body_that_is_none_is_refused_as_on_messages():
    async with scripted(answering(completion())) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        replies = [await bench.post(COUNT, body) for body in (b"{", b'{"model":"g"}', b'{"model":"g","messages":[]}')]
    assert [reply.status for reply in replies] == [400] * 3
    assert {reply.json()["error"]["type"] for reply in replies} == {"invalid_request_error"}
