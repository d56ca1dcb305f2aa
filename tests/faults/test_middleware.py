"""Nothing between provider and client holds events back, whatever the client says that it can unpack."""

import asyncio

import pytest

from tests.support.grounds import Ground, hello
from tests.support.hostile import answer_of, connected, head, post
from tests.support.loops import run
from tests.support.relays import DONE, chat_event, sse, text
from tests.support.scripted import Close, Expect, Pause, Script, Send, scripted

pytestmark = pytest.mark.e2e

PATHS = ("/v1/chat/completions", "/v1/messages")
SOON_S = 0.1
EVENTS = 6
CHAT_END = chat_event(finish="stop") + DONE


def message_event(kind: str, data: str) -> bytes:
    return f'event: {kind}\ndata: {{"type":"{kind}"{data}}}\n\n'.encode()


OPENING = message_event(
    "message_start", ',"message":{"id":"m","role":"assistant","content":[],"usage":{"input_tokens":1}}'
)
MESSAGES_END = (
    message_event("message_delta", ',"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}')
    + message_event("message_stop", "")
)  # fmt: skip


def marked(path: str, number: int) -> bytes:
    """A short event, such as compression would gather."""
    if path == PATHS[0]:
        return text(f"[{number}]")
    return message_event("content_block_delta", f',"index":0,"delta":{{"type":"text_delta","text":"[{number}]"}}')


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("encodings", ["gzip", "gzip, deflate, br, zstd", "*", "identity;q=0, gzip"])
def test_every_event_comes_as_soon_as_it_is_written(either_ground: Ground, path: str, encodings: str) -> None:
    events = [marked(path, number) for number in range(EVENTS)]
    opening, end = (b"", CHAT_END) if path == PATHS[0] else (OPENING, MESSAGES_END)
    late: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        steps: list[Script] = [[Pause(0.12), Send(event)] for event in events]
        script: Script = [Expect(), Send(sse(opening)), *(step for each in steps for step in each), Send(end), Close()]
        async with scripted(script) as upstream:
            group = await either_ground.lead_to(upstream.base_url)
            async with connected(either_ground.address) as client:
                headers = [("Accept-Encoding", encodings), ("Accept", "text/event-stream")]
                await client.send(post(path, hello(group, stream=True), token=either_ground.token, headers=headers))
                sizes = [len(sse(opening)) + sum(map(len, events[: number + 1])) for number in range(EVENTS)]
                for number, size in enumerate(sizes):
                    while not upstream.connections or upstream.connections[0].sent < size:  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
                    written_at = loop.time()
                    await client.until(b"[%d]" % number)
                    late.append(loop.time() - written_at)
                answer = await answer_of(client)
        assert answer.body == opening + b"".join(events) + end
        assert answer.header("content-encoding") is None
        assert answer.header("content-length") is None
        assert answer.header("cache-control") == "no-cache"
        assert answer.header("x-accel-buffering") == "no"
        assert answer.header("content-type") == "text/event-stream; charset=utf-8"

    run(main())
    print(f"late by {max(late) * 1000:.0f} ms at most")
    assert sorted(late)[EVENTS // 2] < SOON_S  # one may be held up by the machine
    assert max(late) < 5 * SOON_S


def test_a_first_event_that_comes_late_is_preceded_by_comments_each_in_its_time(either_ground: Ground) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        script: Script = [Expect(), Pause(1.0), Send(sse(text("late"), CHAT_END)), Close()]
        async with scripted(script) as upstream:
            group = await either_ground.lead_to(upstream.base_url, timeouts={"keepalive_ms": 200})
            async with connected(either_ground.address) as client:
                began = loop.time()
                headers = [("Accept-Encoding", "gzip")]
                await client.send(post(PATHS[0], hello(group, stream=True), token=either_ground.token, headers=headers))
                await client.until(b"\r\n\r\n")
                assert 0.15 < loop.time() - began < 0.8
                answer = await answer_of(client)
        comments, end, rest = answer.body.partition(b"data: ")
        assert set(comments.split(b"\n\n")[:-1]) == {b": keepalive"}
        assert 2 <= comments.count(b": keepalive") <= 5
        assert end + rest == text("late") + CHAT_END
        assert answer.header("content-encoding") is None

    run(main())


def test_a_unary_answer_is_not_packed_either(either_ground: Ground) -> None:
    """It is small beside what a stream costs, and secrets beside texts of others are what BREACH feeds on."""

    async def main() -> None:
        async with connected(either_ground.address) as client:
            fields = [("Host", "x"), ("Accept-Encoding", "gzip"), ("Authorization", f"Bearer {either_ground.token}")]
            await client.send(head("GET", "/v1/models", fields))
            answer = await answer_of(client)
            assert (answer.status, answer.header("content-encoding")) == (200, None)
            assert answer.json["object"] == "list"

    run(main())
