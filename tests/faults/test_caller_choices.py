"""What a caller sends chooses no address, key, host, proxy or header of the gateway's own, and makes it fetch nothing."""

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.grounds import Ground, hello
from tests.support.hostile import ask, post
from tests.support.loops import run
from tests.support.relays import answering, completion, message
from tests.support.scripted import Received, ScriptedUpstream, scripted, scripted_in_thread

pytestmark = pytest.mark.e2e

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
PATHS = (CHAT, MESSAGES)
KEY = "the-gateways-own-key"


@pytest.fixture(scope="module")
def trap() -> Iterator[ScriptedUpstream]:
    """Where callers would lead the gateway to."""
    with scripted_in_thread(answering({"trapped": True})) as upstream:
        yield upstream


def fields_of(request: Received) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in request.headers:
        found.setdefault(name.decode(), []).append(value.decode())
    return found


async def arrived(ground: Ground, path: str, body: dict[str, Any], *, query: str = "", headers: Any = ()) -> Received:
    """The one request that reached the provider."""
    whole = completion() if path == CHAT else message()
    async with scripted(answering(whole)) as upstream:
        group = await ground.lead_to(upstream.base_url, api_key=KEY, headers={"x-team": "the operator's"})
        answer = await ask(
            ground.address, post(path + query, hello(group) | body, token=ground.token, headers=headers), within=10
        )
        assert answer.status == 200, answer
        assert len(upstream.connections) == 1
        (request,) = upstream.requests
        assert fields_of(request)["host"] == [f"127.0.0.1:{upstream.port}"]
        return request


def judged(path: str, request: Received) -> None:
    """Line, key and host are the operator's."""
    fields = fields_of(request)
    assert request.line.split(b"?")[0].split(b" ")[1] == path.encode()
    assert fields["x-team"] == ["the operator's"]
    if path == CHAT:
        assert fields["authorization"] == [f"Bearer {KEY}"]
        assert "x-api-key" not in fields
    else:
        assert fields["x-api-key"] == [KEY]
        assert "authorization" not in fields
    assert fields["accept-encoding"] == ["identity"]
    assert fields["content-length"] == [str(len(request.body))]


@pytest.mark.parametrize("path", PATHS)
def test_no_header_field_chooses_anything(either_ground: Ground, trap: ScriptedUpstream, path: str) -> None:
    evil = f"http://127.0.0.1:{trap.port}/v1"
    host = f"127.0.0.1:{trap.port}"
    addresses = (
        "x-base-url", "x-target-url", "x-upstream-url", "x-api-base", "x-portkey-custom-host", "x-portkey-config",
        "helicone-target-url", "x-litellm-api-base", "x-openai-base-url", "x-forwarded-host", "x-original-url",
        "x-rewrite-url", "x-http-method-override", "x-host", "x-proxy-url", "x-forwarded-for", "forwarded", "via",
        "x-real-ip", "referer", "origin", "destination", "x-pilotage-target", "x-pilotage-provider", "x-pilotage-key",
    )  # fmt: skip
    keys = (
        "api-key", "x-goog-api-key", "openai-organization", "openai-project", "cookie", "proxy-authorization",
        "x-pilotage-api-key", "X_API_KEY", "x_api_key",
    )  # fmt: skip
    sent = [(name, evil if "url" in name or "base" in name else host) for name in addresses]
    sent += [(name, "callers-own") for name in keys]
    sent += [("x-team", "callers"), ("X-Team", "again"), ("Connection", "authorization, x-api-key, host")]

    async def main() -> None:
        request = await arrived(either_ground, path, {}, headers=sent)
        judged(path, request)
        fields = fields_of(request)
        ours = (
            "x-pilotage",
            "x-forwarded",
            "forwarded",
            "via",
            "x-real-ip",
            "x-original",
            "x-rewrite",
            "x-http-method",
        )
        assert [name for name in fields if name.startswith(ours)] == []
        assert [name for name, values in fields.items() if "callers-own" in values] == []
        assert either_ground.token not in json.dumps(fields)

    before = len(trap.connections)
    run(main())
    assert len(trap.connections) == before


@pytest.mark.parametrize("path", PATHS)
def test_no_second_host_counts(either_ground: Ground, trap: ScriptedUpstream, path: str) -> None:
    """Absolute targets and other hosts than ours name us, nobody else."""

    async def main() -> None:
        async with scripted(answering(completion() if path == CHAT else message())) as upstream:
            group = await either_ground.lead_to(upstream.base_url, api_key=KEY)
            sent = post(path, hello(group), token=either_ground.token)
            evil = b"127.0.0.1:%d" % trap.port
            for tampered in (
                sent.replace(b"Host: gateway.example", b"Host: " + evil),
                sent.replace(b"POST /", b"POST http://" + evil + b"/"),
            ):
                answer = await ask(either_ground.address, tampered)
                assert answer.status in (200, 400, 404), answer
            for request in upstream.requests:
                assert fields_of(request)["host"] == [f"127.0.0.1:{upstream.port}"]

    before = len(trap.connections)
    run(main())
    assert len(trap.connections) == before


@pytest.mark.parametrize("path", PATHS)
def test_no_field_of_a_body_chooses_anything_and_all_of_them_pass_as_they_are(
    either_ground: Ground, trap: ScriptedUpstream, path: str
) -> None:
    evil = f"http://127.0.0.1:{trap.port}/v1"
    names = (
        "api_base", "base_url", "api_key", "url", "endpoint", "host", "proxy", "proxies", "http_client", "provider",
        "custom_llm_provider", "deployment_id", "api_version", "azure_endpoint", "callback_url", "webhook", "fallbacks",
    )  # fmt: skip
    nested = {"extra_headers": {"authorization": "Bearer x", "host": "x", "x-evil": "1"}, "extra_body": {"model": "x"}}
    nested |= {"headers": {"x-evil": "1"}, "extra_query": {"a": "b"}, "litellm_params": {"api_base": evil}}
    own = dict.fromkeys(names, evil) | nested

    async def main() -> None:
        request = await arrived(either_ground, path, own)
        judged(path, request)
        assert b"x-evil" not in json.dumps(fields_of(request)).encode()
        body = json.loads(request.body)
        assert {name: body[name] for name in own} == own
        assert body["model"] == "m"

    before = len(trap.connections)
    run(main())
    assert len(trap.connections) == before


@pytest.mark.parametrize("path", PATHS)
def test_a_query_chooses_nothing(either_ground: Ground, trap: ScriptedUpstream, path: str) -> None:
    evil = f"http%3A%2F%2F127.0.0.1:{trap.port}"
    query = f"?api_base={evil}&base_url={evil}&key=callers&api-version=2&model=x&proxy={evil}&beta=true"

    async def main() -> None:
        request = await arrived(either_ground, path, {}, query=query)
        judged(path, request)
        assert request.line == f"POST {path}?beta=true HTTP/1.1".encode()

    before = len(trap.connections)
    run(main())
    assert len(trap.connections) == before


@pytest.mark.parametrize(
    "name", ["http://127.0.0.1:1/v1", "../g", "openai-chat/m", "m", "nowhere\r\nHost: x", "", "g?x=y", "__proto__"]
)
@pytest.mark.parametrize("path", PATHS)
def test_a_model_name_is_looked_up_and_nothing_else(either_ground: Ground, path: str, name: str) -> None:
    async def main() -> None:
        async with scripted(answering(completion())) as upstream:
            await either_ground.lead_to(upstream.base_url)
            answer = await ask(
                either_ground.address, post(path, hello("") | {"model": name}, token=either_ground.token)
            )
            assert answer.status in (400, 404)
            assert answer.header("content-type") == "application/json"
            assert upstream.connections == []

    run(main())


def test_nothing_that_a_prompt_points_to_is_fetched(either_ground: Ground, trap: ScriptedUpstream) -> None:
    evil = f"http://127.0.0.1:{trap.port}/picture.png"

    async def main() -> None:
        parts = [{"type": "text", "text": evil}, {"type": "image_url", "image_url": {"url": evil}}]
        request = await arrived(either_ground, CHAT, {"messages": [{"role": "user", "content": parts}]})
        assert json.loads(request.body)["messages"][0]["content"] == parts
        blocks = [{"type": "image", "source": {"type": "url", "url": evil}}]
        request = await arrived(either_ground, MESSAGES, {"messages": [{"role": "user", "content": blocks}]})
        assert json.loads(request.body)["messages"][0]["content"] == blocks
        await asyncio.sleep(0.2)

    before = len(trap.connections)
    run(main())
    assert len(trap.connections) == before


def test_the_trap_notices_whoever_comes(trap: ScriptedUpstream) -> None:
    before = len(trap.connections)
    with socket.create_connection(("127.0.0.1", trap.port), 5) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert caller.recv(100).startswith(b"HTTP/1.1 200")
    assert len(trap.connections) == before + 1
