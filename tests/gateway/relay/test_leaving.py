"""A client that leaves, at every stage: the provider is let go at once, and nothing stays behind but one record."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from gateway.relay.messages import Message, Scope
from tests.support.asgi import Call
from tests.support.documents import some_provider, some_target
from tests.support.loops import in_loop
from tests.support.relays import Bench, answering, chat_event, completion, in_order, relaying, sse, target_on, text
from tests.support.scripted import AwaitPeer, Expect, Flood, Pause, Script, ScriptedUpstream, Send, scripted

CHAT = "/v1/chat/completions"
LIMIT_S = 1.0
"""Within this the provider's connection is closed."""
ROLE = chat_event({"role": "assistant", "content": ""})


def hi(*, stream: bool, number: int = 0) -> dict[str, Any]:
    return {"model": "g", "messages": [{"role": "user", "content": f"hi {number}"}], "stream": stream}


async def until(condition: Callable[[], bool], *, within: float = 5.0) -> None:
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - sockets and scripts tell nobody
            await asyncio.sleep(0.002)


async def assert_nothing_is_left(bench: Bench, *, status: int, attempts: list[tuple[str, str]]) -> None:
    """One record, and neither a request in flight nor a connection."""
    await until(lambda: bench.transport.open_connections == 0, within=LIMIT_S)
    relay = bench.relay
    assert [end.outcome for end in bench.kept.ends] == ["client_cancelled"]
    assert (bench.end.error_code, bench.end.status) == ("client_closed_request", status)
    assert [(attempt.target, attempt.outcome) for attempt in bench.end.attempts] == attempts
    assert relay.in_flight == 0
    for name in ("a", "b"):
        assert (relay.observations.provider_in_flight(name), bench.transport.in_use(name)) == (0, 0)
        assert relay.observations.target_in_flight("g", name) == 0


async def hangs_up(call: Call, upstream: ScriptedUpstream) -> None:
    """The client leaves; the provider's connection has to end in time."""
    left_at = asyncio.get_running_loop().time()
    call.hang_up()
    async with asyncio.timeout(LIMIT_S):
        await upstream.connections[-1].peer_gone.wait()
        await call.answered()
    gone_at = upstream.connections[-1].peer_gone_at
    assert gone_at is not None
    assert gone_at - left_at < LIMIT_S


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


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_while_connecting(stream, deaf_port):
    provider = some_provider("a", base_url=f"http://127.0.0.1:{deaf_port}/v1")
    async with relaying(in_order(some_target("a", provider=provider))) as bench:
        call = bench.call(CHAT, hi(stream=stream))
        await until(lambda: bench.transport.in_use("a") == 1)
        call.hang_up()
        await call.answered(limit_s=LIMIT_S)
        await assert_nothing_is_left(bench, status=499, attempts=[("a", "client_cancelled")])
    assert (call.reply.status, len(bench.kept.intents)) == (0, 1)


STAGES: dict[str, tuple[bool, Script, int]] = {
    "waiting for the head": (False, [Expect(), AwaitPeer()], 499),
    "waiting for a stream's head": (True, [Expect(), AwaitPeer()], 499),
    "waiting for the rest of a body": (
        False,
        [
            Expect(),
            Send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{"),
            AwaitPeer(),
        ],
        499,
    ),
    "waiting for a stream's first content": (True, [Expect(), Send(sse(ROLE)), AwaitPeer()], 499),
}


@pytest.mark.parametrize("stage", STAGES)
@in_loop
async def test_while_the_provider_is_waited_for(stage):
    stream, script, status = STAGES[stage]
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        call = bench.call(CHAT, hi(stream=stream))
        await until(lambda: len(upstream.requests) == 1)
        await asyncio.sleep(0.03)
        await hangs_up(call, upstream)
        await assert_nothing_is_left(bench, status=status, attempts=[("a", "client_cancelled")])
    assert call.reply.status == 0


@in_loop
async def test_between_two_events_of_a_stream():
    script: Script = [Expect(), Send(sse(text("a word"))), AwaitPeer()]
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        call = bench.call(CHAT, hi(stream=True))
        await call.until(text("a word"))
        await hangs_up(call, upstream)
        await assert_nothing_is_left(bench, status=200, attempts=[("a", "client_cancelled")])
    assert call.reply.body == text("a word")
    end = bench.end
    assert (end.usage_quality, end.output_tokens, end.input_tokens) == ("estimated", 1, end.input_tokens_estimated)
    assert end.first_content_ms is not None


@in_loop
async def test_during_the_second_attempt():
    async with (
        scripted(answering({}, status=500)) as failing,
        scripted([Expect(), AwaitPeer()]) as upstream,
        relaying(in_order(target_on(failing, "a"), target_on(upstream, "b"))) as bench,
    ):
        call = bench.call(CHAT, hi(stream=False))
        await until(lambda: len(upstream.requests) == 1)
        await hangs_up(call, upstream)
        await until(lambda: bench.transport.open_connections == 1)
        assert [(a.target, a.outcome) for a in bench.end.attempts] == [("a", "server_error"), ("b", "client_cancelled")]
        assert bench.relay.observations.provider_in_flight("b") == 0


@in_loop
async def test_right_after_sending():
    """The client is gone before anybody looked: the provider may be asked, and is let go."""
    async with scripted([Expect(), AwaitPeer()]) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        call = bench.call(CHAT, hi(stream=True))
        await asyncio.sleep(0)
        call.hang_up()
        await call.answered(limit_s=LIMIT_S)
        await assert_nothing_is_left(bench, status=499, attempts=[("a", "client_cancelled")])


# Clients that no ordinary call can play.


def scope_of(bench: Bench, length: int) -> Scope:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": CHAT,
        "raw_path": CHAT.encode(),
        "query_string": b"",
        "headers": [
            (b"authorization", b"Bearer " + bench.secret.encode()),
            (b"content-length", b"%d" % length),
        ],
    }


def giving(body: bytes, left: asyncio.Event) -> Callable[[], Awaitable[Message]]:
    """A server's `receive` for a whole body and a client that leaves when `left` is set."""
    messages: list[Message] = [{"type": "http.request", "body": body}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    return receive


@pytest.mark.parametrize("size", [0, 1, 20])
@in_loop
async def test_in_the_middle_of_the_request_body(size):
    body = msgspec.json.encode(hi(stream=False))
    messages: list[Message] = [{"type": "http.disconnect"}]
    if size:
        messages.append({"type": "http.request", "body": body[:size], "more_body": True})
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    async with scripted(answering(completion())) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        await bench.relay(scope_of(bench, len(body)), receive, send)
        await assert_nothing_is_left(bench, status=499, attempts=[])
    assert (sent, upstream.connections, bench.kept.intents) == ([], [], [])


@in_loop
async def test_while_a_client_that_does_not_read_holds_everything_up():
    script: Script = [Expect(), Send(sse(text("a"))), Flood(text("b" * 1_000), 64 << 20)]
    left, blocked = asyncio.Event(), asyncio.Event()

    async def send(message: Message) -> None:
        if message.get("body"):
            blocked.set()
            await asyncio.Event().wait()

    body = msgspec.json.encode(hi(stream=True))
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        task = asyncio.ensure_future(bench.relay(scope_of(bench, len(body)), giving(body, left), send))
        await blocked.wait()
        await asyncio.sleep(0.1)
        taken = upstream.connections[0].sent
        left.set()
        async with asyncio.timeout(LIMIT_S):
            await task
            await upstream.connections[0].ended.wait()
        await assert_nothing_is_left(bench, status=200, attempts=[("a", "client_cancelled")])
    assert taken < 16 << 20


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_a_server_that_raises_when_the_client_is_gone(stream):
    script: Script = [Expect(), Send(sse(text("a"))), AwaitPeer()] if stream else answering(completion())

    async def send(message: Message) -> None:
        raise OSError("the client is gone")

    body = msgspec.json.encode(hi(stream=stream))
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        await bench.relay(scope_of(bench, len(body)), giving(body, asyncio.Event()), send)
        await until(lambda: bench.transport.in_use("a") == 0, within=LIMIT_S)
        assert bench.relay.observations.provider_in_flight("a") == 0
    assert [end.outcome for end in bench.kept.ends] == ["client_cancelled"]
    assert [attempt.outcome for attempt in bench.end.attempts] == ["client_cancelled"]


@in_loop
async def test_a_server_that_raises_when_the_client_is_gone_at_a_refusal():
    async def send(message: Message) -> None:
        raise OSError("the client is gone")

    async with scripted(answering({}, status=500)) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        body = msgspec.json.encode(hi(stream=False))
        await bench.relay(scope_of(bench, len(body)), giving(body, asyncio.Event()), send)
    assert [end.outcome for end in bench.kept.ends] == ["client_cancelled"]


# A server that ends its exchanges.


@in_loop
async def test_a_stream_that_the_server_ends_says_so_and_blames_nobody():
    script: Script = [Expect(), Send(sse(text("a"))), AwaitPeer()]
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        call = bench.call(CHAT, hi(stream=True))
        await call.until(text("a"))
        call.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.task
        await until(lambda: bench.transport.open_connections == 0, within=LIMIT_S)
    assert call.reply.complete
    error = msgspec.json.decode(call.reply.body[len(text("a")) :].removeprefix(b"data: "))["error"]
    assert error["code"] == "gateway_shutting_down"
    assert [(end.error_code, end.status) for end in bench.kept.ends] == [("gateway_shutting_down", 200)]
    assert [attempt.outcome for attempt in bench.end.attempts] == ["refused_here"]


@in_loop
async def test_an_exchange_that_the_server_ends_before_its_answer_is_a_503():
    async with scripted([Expect(), AwaitPeer()]) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        call = bench.call(CHAT, hi(stream=False))
        await until(lambda: len(upstream.requests) == 1)
        call.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.task
    assert (call.reply.status, call.reply.json()["error"]["code"]) == (503, "gateway_shutting_down")
    assert [end.status for end in bench.kept.ends] == [503]


# Many.


@in_loop
async def test_clients_that_leave_after_the_first_content_change_nothing_but_its_time():
    script: Script = [Expect(), Send(sse(text("a"))), AwaitPeer()]
    async with scripted(script) as upstream, relaying(in_order(target_on(upstream, "a"))) as bench:
        calls = [bench.call(CHAT, hi(stream=True, number=number)) for number in range(100)]
        for call in calls:
            await call.until(text("a"))
            call.hang_up()
        for call in calls:
            await call.answered()
        group = bench.snapshot.catalog.groups["g"]  # type: ignore[union-attr]  # the bench always has a catalog
        window = bench.relay.observations.stats(group, now=bench.relay.clock()).targets["a"].window
    assert (window.attempts, window.errors, window.timeouts, window.fallbacks) == (0, 0, 0, 0)
    assert window.first_content_n == 100


@in_loop
async def test_two_hundred_rounds_leave_no_task_and_no_connection():
    scripts: list[Script] = [
        [Expect(), AwaitPeer()],
        [Expect(), Send(sse(ROLE)), AwaitPeer()],
        [Expect(), Send(sse(text("a"))), AwaitPeer()],
        [Expect(), Pause(0.02), Send(sse(text("a")) * 3), AwaitPeer()],
    ]
    before = asyncio.all_tasks()
    async with (
        scripted(scripts[0]) as first,
        scripted(scripts[1]) as second,
        scripted(scripts[2]) as third,
        scripted(scripts[3]) as fourth,
    ):
        upstreams = [first, second, third, fourth]
        groups = [in_order(target_on(each, f"t{number}"), name=f"g{number}") for number, each in enumerate(upstreams)]
        async with relaying(*groups) as bench:
            for _ in range(5):
                calls = [
                    bench.call(CHAT, {**hi(stream=number % 8 > 3, number=number), "model": f"g{number % 4}"})
                    for number in range(40)
                ]
                for number, call in enumerate(calls):
                    await asyncio.sleep(0.001)
                    if number % 3:
                        call.hang_up()
                await asyncio.sleep(0.03)
                for call in calls:
                    call.hang_up()
                for call in calls:
                    await call.answered()
            await until(lambda: bench.transport.open_connections == 0)
            assert [bench.relay.observations.provider_in_flight(f"t{number}") for number in range(4)] == [0] * 4
            assert len({end.id for end in bench.kept.ends}) == len(bench.kept.ends) == 200
            assert {end.outcome for end in bench.kept.ends} == {"client_cancelled"}
            assert {intent.id for intent in bench.kept.intents} <= {end.id for end in bench.kept.ends}
        await until(lambda: all(upstream.open_connections == 0 for upstream in upstreams))
    await until(lambda: asyncio.all_tasks() <= before)
