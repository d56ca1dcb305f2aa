"""Heads and bodies that come slowly, in pieces, too large or not at all: refused in time, and before they are read."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.support.grounds import HEAD_SECONDS, MAX_REQUEST_BYTES, Ground, hello
from tests.support.hostile import Answer, answer_of, ask, connected, descriptors_of, head, parse, post
from tests.support.loops import run
from tests.support.relays import DONE, answering, chat_event, completion, sse, text
from tests.support.scripted import Close, Drip, Expect, Script, ScriptedUpstream, Send, scripted, scripted_in_thread

pytestmark = pytest.mark.e2e

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
MB = 1_000_000
AT_MOST_S = HEAD_SECONDS + 3.0
"""Deadlines are looked at twice a second, and the machine may be busy."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with scripted_in_thread(answering(completion())) as upstream:
        yield upstream


def of_size(size: int, group: str) -> bytes:
    """A request body of exactly so many bytes."""
    body = json.dumps(hello(group) | {"messages": [{"role": "user", "content": "x"}]}).encode()
    return body.replace(b'"x"', b'"%s"' % (b"x" * (size - len(body) + 1)))


def without_body(path: str, declared: int | None, token: str) -> bytes:
    length = ("Transfer-Encoding", "chunked") if declared is None else ("Content-Length", str(declared))
    return head("POST", path, [("Host", "x"), ("Authorization", f"Bearer {token}"), length])


def reason_of(answer: Answer) -> str:
    """The code; of an answer in Anthropic's form, which has none, the type."""
    error = answer.json["error"]
    reason: str = error.get("code") or error["type"]
    return reason


# Slow.


@pytest.mark.parametrize(
    "sent", [b"", b"P", b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX: "], ids=["none", "one", "some"]
)
def test_a_head_that_does_not_end_is_given_up(ground: Ground, sent: bytes) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()  # the server counts from the connection on
        async with connected(ground.address) as client:
            await client.send(sent)
            heard = await client.rest()
            assert HEAD_SECONDS <= loop.time() - began < AT_MOST_S
            assert heard.startswith(b"HTTP/1.1 408 ") == bool(sent)

    run(main())


def test_a_head_that_drips_is_given_up_too(ground: Ground) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()  # the server counts from the connection on
        async with connected(ground.address) as client:
            sending = asyncio.ensure_future(client.send(post(CHAT, hello("g")), size=1, every=0.1))
            heard = await client.rest()
            assert HEAD_SECONDS <= loop.time() - began < AT_MOST_S
            assert heard.startswith(b"HTTP/1.1 408 ")
            sending.cancel()

    run(main())


@pytest.mark.parametrize("declared", [50_000, None], ids=["with a length", "chunked"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_body_of_a_few_bytes_a_second_is_given_up_and_its_place_is_free(
    ground: Ground, path: str, declared: int | None
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ends = len(ground.ends())
        began = loop.time()
        async with connected(ground.address) as client:
            await client.send(without_body(path, declared, ground.token))
            piece = b" " if declared else b"1\r\n \r\n"
            sending = asyncio.ensure_future(client.send(piece * 200, size=len(piece), every=0.05))
            answer = await answer_of(client)
            assert HEAD_SECONDS <= loop.time() - began < AT_MOST_S
            assert (answer.status, answer.json["error"]["code"]) == (408, "request_timeout")
            assert ("request_id" in answer.json) == (path == MESSAGES)
            await client.rest()
            sending.cancel()
            await ground.until(lambda: len(ground.ends()) == ends + 1, what="a record")
            assert ground.ends()[-1].outcome == "client_cancelled"

    run(main())


def test_a_hundred_slow_clients_hold_up_nobody(ground: Ground, upstream: ScriptedUpstream) -> None:
    async def main() -> None:
        group = await ground.lead_to(upstream.base_url)
        descriptors = await ground.idle_descriptors()
        async with contextlib.AsyncExitStack() as stack:
            for number in range(100):
                client = await stack.enter_async_context(connected(ground.address))
                sent = post(CHAT, hello(group), token=ground.token)
                await client.send(sent[: 30 if number % 2 else -3])
            for _ in range(20):
                assert (await ask(ground.address, post(CHAT, hello(group), token=ground.token))).status == 200
            await ground.until(lambda: descriptors_of(ground.pid) <= descriptors + 1, what="closed sockets")

    run(main())


# Large.


@pytest.mark.parametrize("size", [1 * MB, 9_900_000, MAX_REQUEST_BYTES])
@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "chunked"])
def test_a_body_within_the_bound_goes_upstream_whole(
    either_ground: Ground, upstream: ScriptedUpstream, size: int, chunked: bool
) -> None:
    ground = either_ground

    async def main() -> None:
        group = await ground.lead_to(upstream.base_url)
        body = of_size(size, group)
        assert len(body) == size
        sent = without_body(CHAT, None if chunked else size, ground.token)
        pieces = [body[at : at + 70_000] for at in range(0, size, 70_000)]
        sent += b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n" if chunked else body
        answer = await ask(ground.address, sent)
        assert answer.status == 200, answer
        assert upstream.requests[-1].body == body.replace(group.encode(), b"m", 1)

    run(main())


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("size", [MAX_REQUEST_BYTES + 1, 10_100_000, 64 * MB])
def test_a_length_over_the_bound_is_refused_before_anything_is_read(ground: Ground, path: str, size: int) -> None:
    async def main() -> None:
        async with connected(ground.address) as client:
            await client.send(without_body(path, size, ground.token))
            answer = await answer_of(client)
            assert (answer.status, reason_of(answer)) == (413, "request_too_large")
            assert ("request_id" in answer.json) == (path == MESSAGES)

    run(main())


def test_a_client_that_sends_all_before_it_reads_gets_its_answer(ground: Ground) -> None:
    """Most do. Without somebody who takes their bytes their kernel would throw the answer away."""

    async def main() -> None:
        async with connected(ground.address) as client:
            assert await client.send(without_body(CHAT, 30 * MB, ground.token) + b"x" * 30 * MB)
            answer = await answer_of(client)
            assert (answer.status, reason_of(answer)) == (413, "request_too_large")

    run(main())


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_chunked_body_is_cut_at_the_bound(ground: Ground, upstream: ScriptedUpstream, path: str) -> None:
    async def main() -> None:
        before = len(upstream.requests)
        async with connected(ground.address) as client:
            chunks = b"10000\r\n%s\r\n" % (b" " * 65_536) * 160  # never ended
            sending = asyncio.ensure_future(client.send(without_body(path, None, ground.token) + chunks))
            answer = await answer_of(client)
            assert (answer.status, reason_of(answer)) == (413, "request_too_large")
            sending.cancel()
        assert len(upstream.requests) == before

    run(main())


@pytest.mark.parametrize("declared", [9 * MB, None], ids=["with a length", "chunked"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_credentials_are_judged_before_the_body_is_read(ground: Ground, path: str, declared: int | None) -> None:
    async def main() -> None:
        for token, code in (("", "missing_api_key"), ("plt_wrong", "invalid_api_key")):
            sent = without_body(path, declared, token)
            if not token:
                sent = sent.replace(b"Authorization: Bearer \r\n", b"")
            async with connected(ground.address) as client:
                await client.send(sent)
                answer = await answer_of(client, within=HEAD_SECONDS)
                assert answer.status == 401
                if path == CHAT:
                    assert answer.json["error"]["code"] == code

    run(main())


def test_streams_go_on_while_large_bodies_are_read(ground: Ground) -> None:
    """The gaps between events, with bodies of nearly ten megabytes under way, are told; `make bench` judges the loop."""
    events = 60
    paced: Script = [Expect(), Send(sse()), Drip(text("x") * events, 0.02, len(text("x")))]
    ending: Script = [Send(chat_event(finish="stop") + DONE), Close()]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        quick: Script = [Expect(), Send(sse(text("x"), chat_event(finish="stop"), DONE)), Close()]
        async with scripted(scripts=[[*paced, *ending], quick]) as upstream:
            group = await ground.lead_to(upstream.base_url)
            async with connected(ground.address) as client:
                await client.send(post(CHAT, hello(group, stream=True), token=ground.token))
                await client.until(text("x"))
                at = [loop.time()]
                body = json.loads(of_size(9_900_000, group)) | {"stream": True}
                posting = [
                    asyncio.ensure_future(ask(ground.address, post(CHAT, body, token=ground.token))) for _ in range(3)
                ]
                while (answer := parse(bytes(client.heard))) is None or not answer.whole:
                    assert await client.read()
                    at.append(loop.time())
                assert answer.body == text("x") * events + chat_event(finish="stop") + DONE
                assert [each.status for each in await asyncio.gather(*posting)] == [200] * 3
        print(f"longest gap between events: {max(b - a for a, b in pairwise(at)) * 1000:.0f} ms")

    run(main(), within=60)
