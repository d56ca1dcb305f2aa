"""Answers that come whole: what passes, what a malformed one is worth, and which time limits hold."""

import asyncio
import json
import socket
from collections.abc import Iterator

import msgspec
import pytest

from routing.core.catalog import AttemptPolicy, ProviderTimeouts
from routing.core.document import Dialect
from tests.support.documents import some_provider, some_target
from tests.support.loops import in_loop
from tests.support.relays import answering, completion, in_order, message, relaying, target_on
from tests.support.scripted import (
    LAST_CHUNK,
    AwaitPeer,
    Close,
    Drip,
    Expect,
    Flood,
    Reset,
    Script,
    Send,
    answer,
    chunk,
    chunked_head,
    scripted,
)

HI = {"model": "g", "messages": [{"role": "user", "content": "hi"}]}
ASK = {"model": "g", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "dialect", "body", "given"),
    [
        (CHAT, "openai-chat", HI, completion("é日🙂", odd={"n": 12345678901234567890, "f": 1.0})),
        ("/v1/messages", "anthropic", ASK, message("é日🙂", odd={"n": 12345678901234567890, "f": 1.0})),
    ],
)
@in_loop
async def test_an_answer_passes_byte_for_byte(path, dialect: Dialect, body, given):
    raw = msgspec.json.format(msgspec.json.encode(given), indent=3) + b"\n"
    async with (
        scripted([Expect(), Send(answer(raw))]) as upstream,
        relaying(in_order(target_on(upstream, "a", dialect=dialect))) as bench,
    ):
        reply = await bench.post(path, body)
    assert (reply.status, reply.body) == (200, raw)
    assert (reply.header("content-type"), reply.header("content-length")) == ("application/json", str(len(raw)))
    assert reply.header("x-request-id") == bench.end.id
    end = bench.end
    assert (end.outcome, end.status, end.input_tokens, end.output_tokens, end.usage_quality, end.response_bytes) == (
        "success",
        200,
        5,
        2,
        "reported",
        len(raw),
    )


@in_loop
async def test_a_chunked_answer_comes_out_whole():
    raw = msgspec.json.encode(completion("in pieces"))
    pieces = b"".join(chunk(raw[at : at + 7]) for at in range(0, len(raw), 7))
    script: Script = [Expect(), Send(chunked_head(content_type="application/json") + pieces + LAST_CHUNK)]
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        reply = await bench.post(CHAT, HI)
    assert (reply.status, reply.body) == (200, raw)


@in_loop
async def test_a_group_may_show_its_own_name_in_whole_answers():
    raw = b'{ "model" : "vendor/x-1" , "object":"chat.completion","choices":[{"message":{"content":"vendor/x-1"}}] }'
    async with (
        scripted([Expect(), Send(answer(raw))]) as upstream,
        relaying(in_order(target_on(upstream, "a"), model_identity="requested_group")) as bench,
    ):
        reply = await bench.post(CHAT, HI)
    assert reply.body == raw.replace(b'"model" : "vendor/x-1"', b'"model" : "g"')
    assert reply.header("content-length") == str(len(reply.body))


MALFORMED: dict[str, bytes] = {
    "an error with 200": answer(b'{"error":{"message":"boom"}}'),
    "no choices": answer(b'{"choices":[]}'),
    "HTML": answer(b"<html>upstream.internal</html>", content_type="text/html"),
    "half a body": answer(b'{"choices":[{"mess'),
    "nothing": answer(b""),
    "204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "a redirect": answer(b"", status=302, headers={"location": "http://127.0.0.1:1/v1/chat/completions"}),
    "compressed": answer(b"\x1f\x8b\x08", headers={"content-encoding": "gzip"}),
    "not HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
}


@pytest.mark.parametrize("what", MALFORMED)
@in_loop
async def test_what_is_no_answer_is_the_targets_failure_and_the_next_one_serves(what):
    async with (
        scripted([Expect(), Send(MALFORMED[what]), Close()]) as bad,
        scripted(answering(completion("b"))) as good,
        relaying(in_order(target_on(bad, "a"), target_on(good, "b"))) as bench,
    ):
        reply = await bench.post(CHAT, HI)
    assert (reply.status, reply.json()) == (200, completion("b"))
    assert [(a.target, a.outcome) for a in bench.end.attempts] == [("a", "server_error"), ("b", "ok")]
    assert len(bad.requests) == 1


@pytest.mark.parametrize("what", MALFORMED)
@in_loop
async def test_what_is_no_answer_is_never_passed_off_as_one(what):
    async with (
        scripted([Expect(), Send(MALFORMED[what]), Close()]) as bad,
        relaying(in_order(target_on(bad, "a", dialect="anthropic"))) as bench,
    ):
        reply = await bench.post("/v1/messages", ASK)
    assert (reply.status, reply.json()["error"]["type"]) == (502, "api_error")
    assert "internal" not in reply.text
    assert bench.end.outcome == "upstream_failed"


@pytest.mark.parametrize("end", [Close(), Reset()])
@in_loop
async def test_a_body_that_is_cut_is_served_whole_by_the_next_target(end: Close | Reset):
    raw = msgspec.json.encode(completion("whole"))
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(raw)
    async with (
        scripted([Expect(), Send(head + raw[:-1]), end]) as bad,
        scripted(answering(completion("b"))) as good,
        relaying(in_order(target_on(bad, "a"), target_on(good, "b"))) as bench,
    ):
        reply = await bench.post(CHAT, HI)
    assert (reply.status, reply.json()) == (200, completion("b"))


@in_loop
async def test_an_answer_over_the_providers_bound_is_a_failure_and_is_not_read_to_its_end():
    script: Script = [
        Expect(),
        Send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"),
        Flood(b" " * 65_536, 1 << 26),
        AwaitPeer(),
    ]
    async with (
        scripted(script) as endless,
        relaying(in_order(target_on(endless, "a", provider={"max_response_bytes": 100_000}))) as bench,
    ):
        reply = await bench.post(CHAT, HI)
        await endless.connections[0].ended.wait()
    assert (reply.status, reply.json()["error"]["code"]) == (502, "upstream_error")
    assert bench.end.attempts[0].error_code == "upstream_response_too_large"
    assert endless.connections[0].sent < 16_000_000


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


@in_loop
async def test_no_connection_in_time_is_a_timeout_and_the_next_target_serves(deaf_port):
    deaf = some_provider("a", base_url=f"http://127.0.0.1:{deaf_port}/v1", timeouts=ProviderTimeouts(connect_s=0.3))
    async with (
        scripted(answering(completion("b"))) as good,
        relaying(in_order(some_target("a", provider=deaf), target_on(good, "b"))) as bench,
    ):
        reply = await bench.post(CHAT, HI)
    assert (reply.status, reply.json()) == (200, completion("b"))
    assert [(a.target, a.outcome) for a in bench.end.attempts] == [("a", "timeout"), ("b", "ok")]
    assert 280 <= bench.end.attempts[0].duration_ms < 800


SLOW: dict[str, Script] = {
    "a silent provider": [Expect(), AwaitPeer()],
    "a dripping head": [Expect(), Drip(b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 5_000, every=0.005), AwaitPeer()],
    "a dripping body": [
        Expect(),
        Send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9000\r\n\r\n"),
        Drip(b" " * 9_000, every=0.005),
        AwaitPeer(),
    ],
}


@pytest.mark.parametrize("what", SLOW)
@in_loop
async def test_the_total_limit_holds_whatever_drips_in(what):
    provider = {"timeouts": ProviderTimeouts(total_s=0.4)}
    async with (
        scripted(SLOW[what]) as slow,
        scripted(answering(completion("b"))) as good,
        relaying(in_order(target_on(slow, "a", provider=provider), target_on(good, "b"))) as bench,
    ):
        reply = await bench.post(CHAT, HI)
        async with asyncio.timeout(1):
            await slow.connections[0].peer_gone.wait()
    assert (reply.status, reply.json()) == (200, completion("b"))
    assert [(a.target, a.outcome) for a in bench.end.attempts] == [("a", "timeout"), ("b", "ok")]
    assert 380 <= bench.end.attempts[0].duration_ms < 900


@in_loop
async def test_a_provider_that_is_too_slow_and_has_no_stand_in_is_a_504():
    provider = {"timeouts": ProviderTimeouts(total_s=0.2)}
    async with (
        scripted([Expect(), AwaitPeer()]) as slow,
        relaying(in_order(target_on(slow, "a", provider=provider))) as bench,
    ):
        reply = await bench.post(CHAT, HI)
    assert (reply.status, reply.json()["error"]["code"]) == (504, "upstream_timeout")


@in_loop
async def test_the_first_byte_limit_is_a_streams_alone():
    provider = {"timeouts": ProviderTimeouts(first_byte_s=0.1, total_s=5.0)}
    raw = msgspec.json.encode(completion("late"))
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (len(raw) + 60)
    async with (
        scripted([Expect(), Send(head), Drip(b" " * 60, every=0.005), Send(raw)]) as upstream,
        relaying(in_order(target_on(upstream, "a", provider=provider))) as bench,
    ):
        reply = await bench.post(CHAT, HI)
    assert (reply.status, json.loads(reply.body)) == (200, completion("late"))
    assert bench.end.duration_ms > 250


@in_loop
async def test_the_groups_deadline_ends_the_trying():
    silent: Script = [Expect(), AwaitPeer()]
    async with (
        scripted(silent) as a,
        scripted(silent) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b"), attempts=AttemptPolicy(deadline_s=0.3))) as bench,
    ):
        reply = await bench.post(CHAT, HI)
    assert (reply.status, reply.json()["error"]["code"]) == (504, "upstream_timeout")
    assert [(attempt.target, attempt.outcome) for attempt in bench.end.attempts] == [("a", "timeout")]
    assert (len(a.requests), len(b.requests)) == (1, 0)
    assert 280 <= bench.end.duration_ms < 800


@in_loop
async def test_a_caller_who_may_see_it_is_told_who_served():
    async with (
        scripted(answering({}, status=500)) as bad,
        scripted(answering(completion())) as good,
        relaying(in_order(target_on(bad, "a"), target_on(good, "b")), see_routing=True) as bench,
    ):
        reply = await bench.post(CHAT, HI)
    seen = {name.decode(): value.decode() for name, value in reply.headers if name.startswith(b"x-pilotage-")}
    assert seen == {
        "x-pilotage-target": "b",
        "x-pilotage-mode": "configured",
        "x-pilotage-revision": "1",
        "x-pilotage-attempts": "2",
    }


@in_loop
async def test_nobody_else_is_told_who_served():
    async with scripted(answering(completion())) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        reply = await bench.post(CHAT, HI)
    assert {name for name, _ in reply.headers} == {b"content-type", b"content-length", b"x-request-id"}
