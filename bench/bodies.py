"""The request bodies that every target gets: the same bytes for all."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MODEL: Final = "gpt-4o-mini"
"""Asked for by every request; what a target calls its group."""

CONVERSATION: Final = "conversation "
"""Before the twelve digits that the load generator changes with every request."""

TEXT: Final = (
    "the quick brown fox jumps over a lazy dog while seventeen engineers measure latency under load "
    "and write down every number carefully"
)
WORDS: Final = TEXT.split()

LONG_BYTES: Final = 4_000
"""Longer prompts are a conversation of several messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    name: str
    size: int
    """Bytes, roughly."""
    tools: int = 0
    stream: bool = False
    script: str = ""
    """`MOCK:<events>:<milliseconds between>:`, for the upstream."""


BODIES: Final = (
    Body(name="small", size=600),
    Body(name="1k", size=1_024),
    Body(name="50k", size=51_200, tools=24),
    Body(name="1m", size=1_048_576, tools=24),
    Body(name="stream", size=600, stream=True, script="MOCK:100:0: "),
    Body(name="paced", size=600, stream=True, script="MOCK:100:10: "),
)


def write(folder: Path) -> None:
    """One file `NAME.json` for each body."""
    folder.mkdir(parents=True, exist_ok=True)
    for body in BODIES:
        (folder / f"{body.name}.json").write_text(json.dumps(content(body)))


def content(body: Body) -> dict[str, Any]:
    """A Chat request. The same at every call: the words come from a generator with a fixed seed."""
    chosen = random.Random(7)
    request: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "system", "content": "You are a helpful assistant."}],
        "temperature": 0.2,
        "max_tokens": 256,
    }
    if body.tools:
        request["tools"] = [_tool(number, chosen) for number in range(body.tools)]
    if body.stream:
        request |= {"stream": True, "stream_options": {"include_usage": True}}
    left = max(40, body.size - len(json.dumps(request)) - 80)
    request["messages"] += _messages(left, f"{body.script}{CONVERSATION}{0:012} ", chosen)
    return request


def _messages(size: int, opening: str, chosen: random.Random) -> Iterator[dict[str, str]]:
    if size < LONG_BYTES:
        yield {"role": "user", "content": opening + _text(size, chosen)}
        return
    count = 20
    for number in range(count):
        role = "assistant" if number % 2 else "user"
        yield {"role": role, "content": ("" if number else opening) + _text(size // count - 40, chosen)}
    yield {"role": "user", "content": "go on"}


def _tool(number: int, chosen: random.Random) -> dict[str, Any]:
    properties = {
        f"arg_{index}": {"type": "string", "description": _text(80, chosen), "enum": ["a", "b", "c"]}
        for index in range(6)
    }
    parameters = {"type": "object", "properties": properties, "required": ["arg_0", "arg_1"]}
    function = {"name": f"tool_{number}", "description": _text(300, chosen), "parameters": parameters}
    return {"type": "function", "function": function}


def _text(size: int, chosen: random.Random) -> str:
    words: list[str] = []
    length = 0
    while length < size:
        words.append(chosen.choice(WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)[:size]
