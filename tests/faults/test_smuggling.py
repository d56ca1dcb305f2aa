"""Requests that two readers would take for different ones, through the real servers: refused, and nothing goes upstream."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.grounds import Ground, Grounds
from tests.support.hostile import ambiguous, ask, connected, parse, post
from tests.support.loops import run
from tests.support.relays import answering, completion
from tests.support.scripted import ScriptedUpstream, scripted_in_thread

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
NAMES = list(ambiguous(b"POST / HTTP/1.1\r\n", b"abc"))

DAPHNE_UNFOLDS = ("a folded line", "a folded coding")
"""Read as one line with a space, as RFC 9112, section 5.2, allows a server to."""
DAPHNE_WAITS = ("a chunk size of 17 digits",)
"""For the rest of a body that no one will ever send."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with scripted_in_thread(answering(completion())) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def groups(grounds: Grounds, upstream: ScriptedUpstream) -> dict[str, str]:
    """The group that leads to the upstream, on each gateway that was asked for it."""
    return {}


def leading(ground: Ground, groups: dict[str, str], upstream: ScriptedUpstream) -> str:
    url = ground.process.url
    if url not in groups:
        groups[url] = run(ground.lead_to(upstream.base_url))
    return groups[url]


def hello(group: str, **more: Any) -> bytes:
    return json.dumps({"model": group, "messages": [{"role": "user", "content": "Hello"}], **more}).encode()


async def heard_of(ground: Ground, sent: bytes) -> tuple[list[int], bool]:
    """The statuses of all answers, and whether the server closed the connection."""
    async with connected(ground.address) as client:
        await client.send(sent)
        with contextlib.suppress(TimeoutError):
            await client.rest(within=3 if ground.server == "uvicorn" else 0.5)
        statuses, rest = [], bytes(client.heard)
        while rest:
            answer = parse(rest)
            assert answer is not None
            statuses.append(answer.status)
            rest = answer.behind
        return statuses, client.ended is not None


@pytest.mark.parametrize("name", NAMES)
def test_an_ambiguous_request_is_refused_and_nothing_behind_it_is_read(
    either_ground: Ground, upstream: ScriptedUpstream, groups: dict[str, str], name: str
) -> None:
    ground, group = either_ground, leading(either_ground, groups, upstream)
    before = len(upstream.requests)
    start = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ground.token}\r\n".encode()
    behind = post(CHAT, hello(group, user="smuggled"), token=ground.token)
    heard = run(heard_of(ground, ambiguous(start, hello(group))[name] + behind))
    arrived = upstream.requests[before:]
    if ground.server == "daphne" and name in DAPHNE_UNFOLDS:
        # Two requests, each as it was sent: the second is no other one for us than for whoever stands before us.
        assert heard == ([200, 200], False)
        assert [json.loads(request.body).get("user") for request in arrived] == [None, "smuggled"]
    elif ground.server == "daphne" and name in DAPHNE_WAITS:
        assert (heard, arrived) == (([], False), [])
    else:
        assert (heard, arrived) == (([400], True), [])


def test_the_same_request_without_anything_odd_is_served_and_so_is_the_one_behind_it(
    either_ground: Ground, upstream: ScriptedUpstream, groups: dict[str, str]
) -> None:
    ground, group = either_ground, leading(either_ground, groups, upstream)
    before = len(upstream.requests)
    start = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ground.token}\r\n".encode()
    body = hello(group)
    in_chunks = start + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    heard = run(heard_of(ground, in_chunks + post(CHAT, body, token=ground.token, headers=[("Connection", "close")])))
    assert (heard, len(upstream.requests) - before) == (([200, 200], True), 2)


def test_no_text_of_a_body_becomes_a_header(
    either_ground: Ground, upstream: ScriptedUpstream, groups: dict[str, str]
) -> None:
    ground, group = either_ground, leading(either_ground, groups, upstream)
    broken = "\r\nX-Evil: yes\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n"

    async def main() -> None:
        unknown = await ask(ground.address, post(CHAT, hello(group + broken), token=ground.token))
        assert (unknown.status, unknown.header("x-evil"), unknown.json["error"]["code"]) == (
            404, None, "model_not_found",
        )  # fmt: skip
        assert "\r\n" not in unknown.json["error"]["message"]
        fields = dict.fromkeys(("user", "service_tier", "safety_identifier", "prompt_cache_key"), broken)
        served = await ask(
            ground.address, post(CHAT, hello(group, metadata={"k": broken}, **fields), token=ground.token)
        )
        assert (served.status, served.header("x-evil")) == (200, None)

    before = len(upstream.requests)
    run(main())
    (arrived,) = upstream.requests[before:]
    assert arrived.header(b"x-evil") is None
    assert json.loads(arrived.body)["user"] == broken


def test_pieces_of_any_size_make_the_same_request(
    either_ground: Ground, upstream: ScriptedUpstream, groups: dict[str, str]
) -> None:
    ground, group = either_ground, leading(either_ground, groups, upstream)
    sent = post(CHAT, hello(group), token=ground.token, headers=[("Connection", "close")])

    async def main() -> None:
        for size in (1, 2, 7):
            async with connected(ground.address) as client:
                await client.send(sent, size=size, every=0.001)
                assert (await client.rest()).startswith(b"HTTP/1.1 200 OK\r\n")

    before = len(upstream.requests)
    run(main())
    assert [request.body for request in upstream.requests[before:]] == [upstream.requests[before].body] * 3
