"""Marks planted in everything secret or said: none may stand in anything that the gateway writes."""

import base64
import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import wire
from tests.support.processes import GatewayProcess, SimulatorProcess, StartGateway

pytestmark = pytest.mark.e2e

on_both_servers = pytest.mark.parametrize("server", ["uvicorn", "daphne"])

MARKS = {
    "prompt": "canary-prompt-7f1e",
    "system": "canary-system-c0de",
    "tool": "canary_tool_44aa",
    "result": "canary-result-b00f",
    "picture": "canary/picture/5150",
    "answer": "canary-answer-9d9d",
    "key": "canary-provider-key-3c3c",
    "header": "canary-header-8e8e",
    "query": "canary-query-6a6a",
    "model": "canary-model-2b2b",
}


def forms(mark: str) -> Iterator[bytes]:
    """How a text may be disguised: as it is, escaped, in base64 at any offset, in hex."""
    raw = mark.encode()
    yield raw
    yield json.dumps(mark).strip('"').encode()
    yield raw.hex().encode()
    yield urllib.parse.quote(mark, safe="").encode()
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw)
        yield encoded[(shift * 8 + 5) // 6 : -4]


def found_in(data: bytes, marks: dict[str, str]) -> set[str]:
    return {name for name, mark in marks.items() if any(form in data for form in forms(mark))}


def test_the_search_finds_what_is_planted_in_every_form() -> None:
    for name, mark in MARKS.items():
        disguised = [
            mark.encode(),
            json.dumps({"a": [mark]}).encode(),
            mark.encode().hex().encode(),
            urllib.parse.urlencode({"q": mark}).encode(),
            *(base64.b64encode(b"x" * shift + mark.encode() + b"yyyy") for shift in range(3)),
        ]
        assert [found_in(b"..." + data + b"...", MARKS) for data in disguised] == [{name}] * len(disguised)


def configuration(simulator: SimulatorProcess) -> str:
    providers = {
        "chat": {"base_url": simulator.base_url, "dialect": "openai-chat", "api_key_env": "CANARY_KEY"},
        "messages": {"base_url": simulator.base_url, "dialect": "anthropic", "api_key_env": "CANARY_KEY"},
    }
    target = {"model": "m", "input_modalities": ["text", "image"]}
    targets = [{"provider": name, **target} for name in providers]
    group = {"strategy": "failover", "targets": targets}
    return json.dumps({"providers": providers, "models": {"g": group}, "callers": {"tester": {"allow": ["g"]}}})


def bodies() -> Iterator[tuple[str, dict[str, Any]]]:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{MARKS['picture']}"}}
    call = {"id": "c1", "type": "function", "function": {"name": MARKS["tool"], "arguments": "{}"}}
    yield (
        "/v1/chat/completions",
        {
            "model": "g",
            "messages": [
                {"role": "system", "content": MARKS["system"]},
                {"role": "user", "content": [{"type": "text", "text": MARKS["prompt"]}, image]},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": MARKS["result"]},
            ],
            "tools": [{"type": "function", "function": {"name": MARKS["tool"], "parameters": {"type": "object"}}}],
        },
    )
    source = {"type": "base64", "media_type": "image/png", "data": MARKS["picture"]}
    yield (
        "/v1/messages",
        {
            "model": "g",
            "max_tokens": 100,
            "system": MARKS["system"],
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": MARKS["prompt"]}, {"type": "image", "source": source}],
                },
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "t1", "name": MARKS["tool"], "input": {}}],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t1", "content": MARKS["result"]}],
                },
            ],
            "tools": [{"name": MARKS["tool"], "input_schema": {"type": "object"}}],
        },
    )


@on_both_servers
def test_nothing_that_is_said_or_secret_is_written(
    server: str, simulator: SimulatorProcess, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(
        configuration(simulator),
        server=server,
        environment={"CANARY_KEY": MARKS["key"], "PILOTAGE_LOG_LEVEL": "DEBUG"},
    )
    token = gateway.until_accepted(gateway.token())
    wrong = "plt_wrong" + token[9:]
    faults: list[dict[str, Any]] = [
        {},
        {"error_rate": 1, "status": 400},
        {"error_rate": 1, "status": 500},
        {"error_rate": 1, "status": 401},
        {"error_rate": 0, "cut_rate": 1},
        {"cut_rate": 0, "error_event_rate": 1},
        {"error_event_rate": 0},
    ]
    asked = 0
    host, port = gateway.url.removeprefix("http://").split(":")

    def ask(path: str, content: bytes, *, bearer: str = token) -> wire.Reply:
        headers = [("Authorization", f"Bearer {bearer}"), ("x-note", MARKS["header"])]
        return wire.request((host, int(port)), "POST", f"{path}?q={MARKS['query']}", headers=headers, body=content)

    for behaviour in faults:
        simulator.set(name=MARKS["answer"], **behaviour)
        for path, body in bodies():
            for stream in (False, True):
                reply = ask(path, json.dumps(body | {"stream": stream}).encode())
                asked += 1
                if not behaviour:
                    assert (reply.status, MARKS["answer"].encode() in reply.body) == (200, True)
                assert MARKS["key"].encode() not in reply.body
    for path, body in bodies():
        whole = json.dumps(body).encode()
        refused = [
            ask(path, json.dumps(body | {"model": MARKS["model"]}).encode()),
            ask(path, whole[:-20]),
            ask(path, json.dumps(body | {"stream": MARKS["prompt"]}).encode()),
            ask(path, whole, bearer=wrong),
            ask(f"/v1/{MARKS['prompt']}", whole),
        ]
        assert [reply.status for reply in refused] == [404, 400, 400, 401, 404]
        asked += len(refused) - 1  # the last is no exchange
    assert gateway.stop() == 0
    assert len(gateway.lines()) == asked

    marks = MARKS | {"token": token[12:], "wrong token": wrong[4:16]}
    assert {file: found for file in written(gateway) if (found := found_in(file.read_bytes(), marks))} == {}
    assert {path.parent.name for path in written(gateway)} >= {"spool", "last_good"}


def written(gateway: GatewayProcess) -> list[Path]:
    """Everything below the gateway's folder: data directory and output."""
    return [path for path in sorted(gateway.folder.rglob("*")) if path.is_file()]
