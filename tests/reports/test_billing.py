"""What real exchanges are billed: whole, cancelled, cut, fallen back, and priced anew while they run."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from reports.core.cost import Tokens, bill
from reports.core.record import EndRecord
from tests.support.loops import in_loop
from tests.support.relays import (
    DONE,
    answering,
    chat_event,
    completion,
    in_order,
    relaying,
    sse,
    target_on,
    text,
)
from tests.support.scripted import AwaitPeer, Close, Expect, Repeat, Script, Send, answer, scripted

CHAT = "/v1/chat/completions"
PRICES = (2.0, 8.0)
"""Of a million tokens, in dollars: so many micro-dollars for a token."""
STOP = chat_event(finish="stop")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def hi(*, stream: bool = True) -> dict[str, Any]:
    return {"model": "g", "messages": [{"role": "user", "content": "hi" * 200}], "stream": stream}


def billed(end: EndRecord) -> tuple[str, str, int | None, int | None, int | None]:
    found = bill(end)
    return end.outcome, found.quality, found.tokens.input, found.tokens.output, found.microdollars


INPUT = 100
"""What 400 bytes are taken for."""


@pytest.mark.parametrize(
    ("stage", "script", "stream", "expected"),
    [
        ("no byte has come", [Expect(), AwaitPeer()], False, ("none", None, None, 0)),
        ("no byte of a stream has come", [Expect(), AwaitPeer()], True, ("none", None, None, 0)),
        (
            "accepted, the body is under way",
            [Expect(), Send(HEAD.replace(b"text/event-stream", b"application/json") + b"{"), AwaitPeer()],
            False,
            ("estimated", INPUT, 0, INPUT * 2),
        ),
        ("accepted, no event has come", [Expect(), Send(HEAD), AwaitPeer()], True, ("estimated", INPUT, 0, INPUT * 2)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@in_loop
async def test_who_leaves_before_the_first_content_pays_for_the_input_once_the_provider_has_accepted(
    stage, script, stream, expected
):
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a", prices=PRICES))) as bench:
        call = bench.call(CHAT, hi(stream=stream))
        while not upstream.requests:  # noqa: ASYNC110 - scripts tell nobody
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.1)
        call.hang_up()
        await call.answered()
    assert billed(bench.end) == ("client_cancelled", *expected)


@in_loop
async def test_who_leaves_in_the_middle_pays_once_for_what_was_delivered():
    script: Script = [Expect(), Send(HEAD + b"".join(text("word") for _ in range(20))), AwaitPeer()]
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a", prices=PRICES))) as bench:
        call = bench.call(CHAT, hi())
        await call.until(b"".join(text("word") for _ in range(20)))
        call.hang_up()
        await call.answered()
    assert billed(bench.end) == ("client_cancelled", "estimated", INPUT, 20, INPUT * 2 + 20 * 8)
    assert len(bench.kept.ends) == 1


@in_loop
async def test_reading_all_but_the_last_event_is_not_free():
    usage = chat_event(usage={"prompt_tokens": 90, "completion_tokens": 7})
    script: Script = [Expect(), Send(HEAD + text("seven words") + STOP + usage), AwaitPeer()]
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a", prices=PRICES))) as bench:
        call = bench.call(CHAT, hi())
        await call.until(STOP)
        await asyncio.sleep(0.05)
        call.hang_up()
        await call.answered()
    outcome, _, input, output, cost = billed(bench.end)
    assert outcome in ("client_cancelled", "success")
    assert (input, output, cost) == (90, 7, 90 * 2 + 7 * 8)


@in_loop
async def test_a_stream_that_is_cut_is_billed_once_for_what_was_delivered():
    script: Script = [Expect(), Send(HEAD + text("word") * 8), Close()]
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a", prices=PRICES))) as bench:
        await bench.post(CHAT, hi())
    assert billed(bench.end) == ("upstream_truncated", "estimated", INPUT, 8, INPUT * 2 + 8 * 8)


@in_loop
async def test_after_a_fallback_the_price_is_that_of_who_served_and_the_failed_attempt_has_its_cause():
    failing: Script = [Expect(), Send(answer(b'{"error":{"message":"boom"}}', status=500))]
    async with (
        scripted(failing) as a,
        scripted(answering(completion())) as b,
        relaying(
            in_order(target_on(a, "a", prices=(50.0, 90.0)), target_on(b, "b", prices=PRICES)),
        ) as bench,
    ):
        await bench.post(CHAT, hi(stream=False))
    end = bench.end
    assert (end.target, end.outcome) == ("b", "success")
    assert [(each.target, each.outcome, each.status, each.error_code) for each in end.attempts] == [
        ("a", "server_error", 500, "upstream_server_error"),
        ("b", "ok", 200, None),
    ]
    found = bill(end)
    assert found.quality == "reported"
    assert found.microdollars == (found.tokens.input or 0) * 2 + (found.tokens.output or 0) * 8


@in_loop
async def test_what_a_broken_attempt_was_told_is_not_billed_to_the_next_one():
    opening = chat_event({"role": "assistant"}, usage={"prompt_tokens": 5_000, "completion_tokens": 4_000})
    broken: Script = [Expect(), Send(HEAD + opening), Close()]
    async with (
        scripted(broken) as a,
        scripted([Repeat([Expect(), Send(sse(text("word"), STOP, DONE))])]) as b,
        relaying(in_order(target_on(a, "a", prices=PRICES), target_on(b, "b", prices=PRICES))) as bench,
    ):
        await bench.post(CHAT, hi())
    assert [each.target for each in bench.end.attempts] == ["a", "b"]
    assert billed(bench.end) == ("success", "estimated", INPUT, 1, INPUT * 2 + 8)


@in_loop
async def test_what_a_broken_attempt_was_told_is_not_billed_when_the_next_one_gives_nothing():
    opening = chat_event({"role": "assistant"}, usage={"prompt_tokens": 5_000, "completion_tokens": 4_000})
    broken: Script = [Expect(), Send(HEAD + opening), Close()]
    failing: Script = [Repeat([Expect(), Send(answer(b"{}", status=500))])]
    async with (
        scripted(broken) as a,
        scripted(failing) as b,
        relaying(in_order(target_on(a, "a", prices=PRICES), target_on(b, "b", prices=PRICES))) as bench,
    ):
        await bench.post(CHAT, hi())
    assert [each.target for each in bench.end.attempts] == ["a", "b"]
    assert billed(bench.end) == ("upstream_failed", "none", None, None, 0)


@in_loop
async def test_a_price_that_changes_while_an_exchange_runs_is_not_its_price():
    script: Script = [Repeat([Expect(), Send(HEAD + text("word")), AwaitPeer()])]
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a", prices=PRICES))) as bench:
        call = bench.call(CHAT, hi())
        await call.until(text("word"))
        catalog = bench.snapshot.catalog
        assert catalog is not None
        dear = in_order(target_on(upstream, "a", prices=(200.0, 800.0)))
        bench.snapshot.catalog = replace(catalog, revision=catalog.revision + 1, groups={"g": dear})
        call.hang_up()
        await call.answered()
    assert billed(bench.end) == ("client_cancelled", "estimated", INPUT, 1, INPUT * 2 + 8)
    assert bench.end.revision == catalog.revision


@in_loop
async def test_an_answer_of_a_target_without_a_price_costs_nobody_knows_what():
    async with scripted(answering(completion())) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        await bench.post(CHAT, hi(stream=False))
    found = bill(bench.end)
    assert (found.microdollars, found.flags) == (None, ("no_input_price", "no_output_price"))


@in_loop
async def test_what_was_refused_before_any_call_costs_nothing():
    async with scripted(answering(completion())) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        await bench.post(CHAT, {**hi(stream=False), "model": "nobody"})
    found = bill(bench.end)
    assert (found.tokens, found.quality, found.microdollars) == (Tokens(), "none", 0)
