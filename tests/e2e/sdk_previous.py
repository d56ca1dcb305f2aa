"""Run by a Python that has the previous major of `anthropic`: tries everything once and prints what came, as JSON.

    python sdk_previous.py GATEWAY_URL TOKEN SIMULATOR_ORIGIN

Imports nothing of this project.
"""

import asyncio
import json
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import anthropic

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
USE_THE_TOOLS: list[Any] = [{"role": "user", "content": "Use the tools."}]
TOOLS: list[Any] = [
    {
        "name": "weather",
        "input_schema": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer", "minimum": 3}},
        },
    },
    {"name": "clock", "input_schema": {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}}},
]
OPENING = len("Simulated answer from sim:")


def main(url: str, token: str, simulator: str) -> dict[str, object]:
    client = anthropic.Anthropic(base_url=url, api_key=token, max_retries=0, timeout=20)
    create = client.messages.create

    def behave(**behaviour: object) -> None:
        asked = urllib.request.Request(f"{simulator}/control", json.dumps(behaviour).encode(), method="POST")
        with urllib.request.urlopen(asked) as answer:
            assert answer.status == 200

    found: dict[str, object] = {"major": int(anthropic.__version__.partition(".")[0])}

    message = create(model="g", max_tokens=100, messages=HELLO)
    found["unary"] = [opening(message), message.stop_reason, message.usage.output_tokens]
    with client.messages.stream(model="g", max_tokens=100, messages=HELLO) as stream:
        message = stream.get_final_message()
    found["stream helper"] = [opening(message), message.stop_reason, message.usage.output_tokens]
    with create(model="g", max_tokens=100, messages=HELLO, stream=True) as events:
        every: list[Any] = list(events)
    text = "".join(event.delta.text for event in every if event.type == "content_block_delta")
    found["raw stream"] = [text[:OPENING], every[-1].type]

    message = create(model="g", max_tokens=100, messages=USE_THE_TOOLS, tools=TOOLS)
    found["tools"] = [message.stop_reason, calls(message)]
    with client.messages.stream(model="g", max_tokens=100, messages=USE_THE_TOOLS, tools=TOOLS) as stream:
        message = stream.get_final_message()
    found["tools streamed"] = [message.stop_reason, calls(message)]

    found["counted"] = client.messages.count_tokens(model="g", messages=HELLO).input_tokens > 0
    model = client.models.retrieve("g")
    found["models"] = [next(each.id for each in client.models.list() if each.id == "g"), model.type]

    with anthropic.Anthropic(base_url=url, api_key="sk-wrong", max_retries=0) as wrong:
        found["wrong key"] = error_of(lambda: wrong.messages.create(model="g", max_tokens=9, messages=HELLO))
    found["group of others"] = error_of(lambda: create(model="secret", max_tokens=9, messages=HELLO))
    found["unknown group"] = error_of(lambda: create(model="unknown", max_tokens=9, messages=HELLO))
    found["wrong request"] = error_of(lambda: create(model="g", max_tokens=-1, messages=HELLO))
    long: list[Any] = [{"role": "user", "content": "x" * (4 << 20)}]
    found["too large"] = error_of(lambda: create(model="g", max_tokens=9, messages=long))
    for status in (400, 429, 500, 503, 529):
        behave(error_rate=1, status=status)
        group = f"previous-{status}"
        found[f"provider answers {status}"] = error_of(lambda: create(model=group, max_tokens=9, messages=HELLO))  # noqa: B023

    behave(error_rate=0, cut_rate=1)
    got = []
    try:
        with client.messages.stream(model="g", max_tokens=100, messages=HELLO) as stream:
            for piece in stream.text_stream:
                got.append(piece)  # noqa: PERF402 - what came before the error counts
    except anthropic.APIStatusError as error:
        found["cut stream"] = [type(error).__name__, "".join(got)[:OPENING]]
    behave(cut_rate=0)

    async def ask() -> object:
        async with (
            anthropic.AsyncAnthropic(base_url=url, api_key=token, max_retries=0, timeout=20) as asking,
            asking.messages.stream(model="g", max_tokens=100, messages=HELLO) as stream,
        ):
            message = await stream.get_final_message()
            return [opening(message), message.usage.output_tokens]

    found["async"] = asyncio.run(ask())
    return found


def opening(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")[:OPENING]


def calls(message: Any) -> list[list[object]]:
    return [[block.name, block.input] for block in message.content if block.type == "tool_use"]


def error_of(call: Callable[[], object]) -> list[object]:
    try:
        call()
    except anthropic.APIStatusError as error:
        body: Any = error.body
        return [type(error).__name__, error.status_code, body["error"]["type"]]
    return ["no error"]


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:4])))
