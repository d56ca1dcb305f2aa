"""Every recorded request of a real client, through a real server to a real provider's stand-in."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.dialects import anthropic_messages, openai_chat
from gateway.dialects.conversation import explicit_id, prefix
from tests.e2e import wire
from tests.e2e.fleet import CHAT_KEY, MESSAGES_KEY, Served, configuration
from tests.support.captures import Capture, captures
from tests.support.processes import SimulatorProcess, StartGateway

pytestmark = pytest.mark.e2e

RECORDED = [capture for capture in captures() if capture.endpoint != "root"]
ASKED = [capture for capture in RECORDED if capture.content is not None]

on_both_servers = pytest.mark.parametrize("server", ["uvicorn", "daphne"])

NOT_FORWARDED = {"authorization", "x-api-key", "host", "content-length", "connection", "accept-encoding", "cookie"}
"""Ours to say, or of one connection only."""


def sent_as_recorded(capture: Capture, token: str) -> list[tuple[str, str]]:
    """The recorded fields in their order and case, with a real token and the right length."""
    fields = []
    for name, value in capture.headers:
        if name.lower() == "content-length":
            value = str(len(capture.body))
        elif name.lower() in ("authorization", "x-api-key"):
            assert "<redacted>" in value
            value = value.replace("<redacted>", token)
        fields.append((name, value))
    return fields


def target_of(capture: Capture) -> str:
    return f"{capture.path}?{capture.query}" if capture.query else capture.path


def send(capture: Capture, served: Served) -> wire.Reply:
    head = wire.head(capture.method, target_of(capture), sent_as_recorded(capture, served.token))
    return wire.exchange(served.address, head + capture.body, method=capture.method)


def names(capture: Capture) -> str:
    return capture.name


@pytest.mark.parametrize("capture", ASKED, ids=names)
def test_it_is_answered_and_arrives_as_it_was_sent(
    served: Served, simulator: SimulatorProcess, capture: Capture
) -> None:
    reply = send(capture, served)
    assert reply.status == 200, reply.body
    assert capture.content is not None
    assert_answered(capture, reply)

    last = simulator.last()
    dialect = "chat" if capture.endpoint == "chat" else "messages"
    assert (last["method"], last["path"]) == ("POST", capture.path)
    assert last["query"] == ("beta=true" if "beta=true" in capture.query else "")
    assert list(pairs(json.loads(last["body"]))) == list(pairs(as_it_may_arrive(capture, last["body"])))

    arrived = [(name, value) for name, value in last["headers"] if name not in NOT_FORWARDED]
    recorded = [(name.lower(), value) for name, value in capture.headers if name.lower() not in NOT_FORWARDED]
    assert arrived == recorded
    ours = {name: value for name, value in last["headers"] if name in NOT_FORWARDED}
    credential = {"authorization": f"Bearer {CHAT_KEY}"} if dialect == "chat" else {"x-api-key": MESSAGES_KEY}
    assert ours == credential | {
        "host": simulator.origin.removeprefix("http://"),
        "content-length": str(len(last["body"].encode())),
        "accept-encoding": "identity",
    }


def as_it_may_arrive(capture: Capture, arrived: str) -> dict[str, Any]:
    """The recorded body with what the gateway may change: the model's name, and that usage is asked for."""
    assert capture.content is not None
    expected = dict(capture.content)
    model = json.loads(arrived)["model"]
    assert model in {f"{expected['model']}-{number}" for number in range(3)}
    expected["model"] = model
    if capture.endpoint == "chat" and expected.get("stream") is True:
        expected["stream_options"] = (expected.get("stream_options") or {}) | {"include_usage": True}
    return expected


def pairs(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every member with its path, in order: two bodies are equal when these are, the order of members included."""
    if isinstance(value, dict):
        yield path, dict
        for name, member in value.items():
            yield from pairs(member, f"{path}.{name}")
    elif isinstance(value, list):
        yield path, list
        for number, item in enumerate(value):
            yield from pairs(item, f"{path}[{number}]")
    else:
        yield path, (type(value), value)


def assert_answered(capture: Capture, reply: wire.Reply) -> None:
    """The whole answer, in the form that was asked for."""
    assert capture.content is not None
    if capture.endpoint == "count_tokens":
        assert reply.json["input_tokens"] > 0
    elif capture.content.get("stream") is True:
        assert (reply.header("content-type") or "").startswith("text/event-stream")
        last = b"data: [DONE]" if capture.endpoint == "chat" else b'data: {"type":"message_stop"}'
        assert reply.body.rstrip().splitlines()[-1] == last
    else:
        assert reply.header("content-type") == "application/json"
        assert reply.json["object" if capture.endpoint == "chat" else "type"] == (
            "chat.completion" if capture.endpoint == "chat" else "message"
        )


@pytest.mark.parametrize("capture", [capture for capture in RECORDED if capture.content is None], ids=names)
def test_the_models_are_shown_as_it_asks(served: Served, capture: Capture) -> None:
    reply = send(capture, served)
    assert reply.status == 200, reply.body
    if capture.path == "/v1/models":
        shown = next(model for model in reply.json["data"] if model["id"] == "stub-model")
    else:
        shown = reply.json
    assert (shown["id"], shown["object"], shown["type"], shown["display_name"]) == (
        "stub-model",
        "model",
        "model",
        "stub-model",
    )
    assert {"created", "created_at", "owned_by", "lifecycle"} <= set(shown)


def test_a_first_knock_without_a_token_is_answered(served: Served) -> None:
    knocks = list(captures("root"))
    assert len(knocks) > 1
    for capture in knocks:
        reply = wire.exchange(
            served.address, wire.head(capture.method, capture.path, list(capture.headers)), method=capture.method
        )
        assert (reply.status, reply.body) == (200, b"")


def conversations() -> dict[tuple[str, ...], list[Capture]]:
    """Requests of one folder that carry the same id, or begin alike where they carry none, in the order sent."""
    found: dict[tuple[str, ...], list[Capture]] = {}
    for capture in ASKED:
        if capture.endpoint == "count_tokens":
            continue
        decode = openai_chat.decode if capture.endpoint == "chat" else anthropic_messages.decode
        call = decode(capture.body)
        begins = b" ".join(prefix(call)).decode()
        named = explicit_id(call, capture.lower_headers, None) or begins
        found.setdefault((capture.folder, call.model, call.dialect, named), []).append(capture)
    return found


@on_both_servers
def test_requests_of_one_conversation_keep_their_target(
    server: str, simulator: SimulatorProcess, start_gateway: StartGateway
) -> None:
    """The first request of each is served under one set of weights, all later ones under the opposite."""
    process = start_gateway(configuration(simulator.base_url, weights=(40, 30, 20)), server=server)
    served = Served.by(process, server)
    every = conversations()
    turns = sum(len(captures) - 1 for captures in every.values())

    def served_by(capture: Capture) -> str:
        reply = send(capture, served)
        assert reply.status == 200, reply.body
        return (reply.header("x-pilotage-target") or "").rpartition("-")[2]

    def of_a_new_conversation() -> str:
        body = {"model": "stub-model", "messages": [{"role": "user", "content": os.urandom(8).hex()}]}
        bearer = [("Authorization", f"Bearer {served.token}")]
        reply = wire.request(served.address, "POST", "/v1/chat/completions", headers=bearer, body=body)
        return reply.header("x-pilotage-target") or ""

    assert {served_by(captures[0]) for captures in every.values()} == {"0"}
    process.configure(configuration(simulator.base_url, weights=(20, 30, 40)))
    process.until(lambda: of_a_new_conversation() == "chat/stub-model-2", what="the opposite weights", seconds=5)
    kept = {capture.name: served_by(capture) for captures in every.values() for capture in captures[1:]}
    assert kept == dict.fromkeys(kept, "0")
    assert len(kept) == turns > 40
