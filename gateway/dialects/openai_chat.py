"""OpenAI's Chat Completions: requests, answers, streams and errors."""

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.dialects.jsonbytes import (
    SPACE,
    Members,
    answer_of,
    encode,
    join,
    join_array,
    object_in_steps,
    object_of,
    split,
    split_array,
    utf8_length,
    with_model,
    with_model_shown,
    with_values,
)
from gateway.dialects.neutral import Answer, Call, EventKind, MalformedAnswer, StreamReader, Usage
from gateway.dialects.requests import call_of, read_cap
from gateway.dialects.sse import with_data
from gateway.dialects.streams import Listener, lone_text
from gateway.dialects.usage import read_chat
from routing.core.catalog import Target
from routing.core.document import Dialect

NAME: Dialect = "openai-chat"
PATH = "/chat/completions"

CAPS = ("max_completion_tokens", "max_tokens")
"""The names of the caller's cap; the first that is given counts."""

_INCLUDE_USAGE = b'{"include_usage":true}'


def decode(body: bytes) -> Call:
    """Raises `BadRequest`. What the gateway has no need to know passes unchecked."""
    return _call(body, object_of(body))


def decoding(body: bytes) -> Iterator[Call | None]:
    for content in object_in_steps(body):
        yield None if content is None else _call(body, content)


def upstream_body(call: Call, target: Target) -> bytes:
    """The caller's bytes with the model's name replaced; of the rest only what must change for this target."""
    content = call.content
    model = encode(target.model)
    options = content.get("stream_options")
    changed: dict[str, bytes] = {}
    dropped: list[str] = []
    added = b""
    if call.stream and not target.drops_stream_options:
        if options is None:
            if "stream_options" in content:
                changed["stream_options"] = _INCLUDE_USAGE
            else:
                added = b',"stream_options":' + _INCLUDE_USAGE
        elif type(options) is dict and options.get("include_usage") is not True:
            raw = bytes(split(call.body)["stream_options"])
            changed["stream_options"] = with_values(raw, {"include_usage": b"true"})
    elif "stream_options" in content:
        dropped.append("stream_options")
    if target.renames_developer_role and any(message.get("role") == "developer" for message in content["messages"]):
        changed["messages"] = _without_developer(call)
    body = call.body
    if target.output_token_field is not None:
        body = _with_one_cap(call, target.output_token_field)
    if dropped:
        body = join({name: value for name, value in split(body).items() if name not in dropped})
    if changed:
        body = with_values(body, changed)
    return with_model(body, model, added)


def read_answer(body: bytes) -> Answer:
    """Raises `MalformedAnswer` for anything but a completion with at least one choice."""
    answer = answer_of(body, _COMPLETION, _Completion)
    if answer is None:
        raise MalformedAnswer("not a chat completion")
    if answer.error is not None:
        raise MalformedAnswer("an error with a status of success")
    if not answer.choices:
        raise MalformedAnswer("a chat completion without choices")
    usage = Usage()
    read_chat(usage, answer.usage)
    size = 0
    for choice in answer.choices:
        if choice.message is not None:
            size += _generated(choice.message)[1]
    return Answer(usage=usage, output_bytes=size)


def stream_reader(*, max_event_bytes: int) -> StreamReader:
    return ChatStream(max_event_bytes)


def wants_usage_chunk(call: Call) -> bool:
    options = call.content.get("stream_options")
    return type(options) is dict and options.get("include_usage") is True


def ending(reader: StreamReader) -> bytes:
    return b"data: [DONE]\n\n" if reader.terminal and not reader.done else b""


def error(*, status: int, type: str, code: str | None, message: str, param: str | None, request_id: str) -> bytes:
    """The request id has no place in this body: it is the `x-request-id` header's."""
    return encode({"error": {"message": message, "type": type, "param": param, "code": code}})


def error_event(*, code: str, message: str, request_id: str) -> bytes:
    payload = {"error": {"message": message, "type": "upstream_error", "param": None, "code": code}}
    return b"data: " + encode(payload) + b"\n\n"


def keepalive() -> bytes:
    return b": keepalive\n\n"


def answer_with_model(body: bytes, model: str) -> bytes:
    return with_model_shown(body, model)


def event_with_model(raw: bytes, model: str) -> bytes:
    return with_data(raw, lambda data: with_model_shown(data, model)) if b'"model"' in raw else raw


class _Delta(msgspec.Struct, gc=False):
    content: Any = None
    refusal: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


class _ChunkChoice(msgspec.Struct, gc=False):
    index: Any = 0
    delta: _Delta | None = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_ChunkChoice] | None = None
    usage: Any = None
    error: Any = None


class _Choice(msgspec.Struct, gc=False):
    message: _Delta | None = None


class _Completion(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


class _OnlyError(msgspec.Struct, gc=False):
    error: Any = None
    usage: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)
_COMPLETION = msgspec.json.Decoder(_Completion)
_ONLY_ERROR = msgspec.json.Decoder(_OnlyError)


class ChatStream(Listener):
    """Listens to one stream of chunks."""

    __slots__ = ("_finished", "_seen")

    def __init__(self, max_event_bytes: int) -> None:
        super().__init__(max_event_bytes)
        self._seen: set[object] = set()
        self._finished: set[object] = set()

    def listen(self, name: bytes, payload: bytes) -> EventKind:
        if payload[:1] != b"{":
            payload = payload.lstrip(SPACE)
            if payload[:1] != b"{":
                return self._listen_odd(payload)
        chunk = answer_of(payload, _CHUNK, _Chunk)
        if chunk is None:
            return self._listen_odd(payload)
        if chunk.error is not None:
            return self.fail(chunk.error)
        if chunk.usage is not None:
            read_chat(self.usage, chunk.usage)
        if not chunk.choices:
            return "opening" if chunk.usage is None else "usage"
        content = False
        for choice in chunk.choices:
            index = choice.index if type(choice.index) is int else 0
            if choice.delta is not None:
                found, size = _generated(choice.delta)
                content = content or found
                self.output_bytes += size
            self._seen.add(index)
            if choice.finish_reason:
                self._finished.add(index)
        finished, self.terminal = self.terminal, self._finished >= self._seen
        if content:
            return "content"
        return "terminal" if self.terminal and not finished else "opening"

    def only_text(self, payload: bytes) -> str | None:
        chunk = answer_of(payload, _CHUNK, _Chunk)
        if chunk is None or chunk.error is not None or chunk.usage is not None:
            return None
        if chunk.choices is None or len(chunk.choices) != 1:
            return None
        choice = chunk.choices[0]
        if choice.delta is None or choice.finish_reason:
            return None
        return lone_text(choice.delta, ("content", "reasoning_content", "reasoning", "refusal"))

    def _listen_odd(self, payload: bytes) -> EventKind:
        """`[DONE]`, or a chunk of another build than expected: passed on, never a fault by itself."""
        if payload.strip() == b"[DONE]":
            self.done = True
            return "done"
        odd = answer_of(payload, _ONLY_ERROR, _OnlyError)
        if odd is None:
            return "opening"
        if odd.error is not None:
            return self.fail(odd.error)
        if odd.usage is not None:
            read_chat(self.usage, odd.usage)
        return "opening"


def _call(body: bytes, content: dict[str, Any]) -> Call:
    for name in CAPS:
        read_cap(content, name)
    return call_of(NAME, body, content)


def _with_one_cap(call: Call, field: str) -> bytes:
    """The body with the cap that counts under this name alone, at its place."""
    content = call.content
    given = next((name for name in CAPS if content.get(name) is not None), None)
    if given is None or (given == field and sum(name in content for name in CAPS) == 1):
        return call.body
    members: Members = {}
    for name, value in split(call.body).items():
        if name == given:
            members[field] = value
        elif name not in CAPS:
            members[name] = value
    return join(members)


def _without_developer(call: Call) -> bytes:
    raws: list[msgspec.Raw | bytes] = list(split_array(split(call.body)["messages"]))
    for number, message in enumerate(call.content["messages"]):
        if message.get("role") == "developer":
            raws[number] = with_values(bytes(raws[number]), {"role": b'"system"'})
    return join_array(raws)


def _generated(delta: _Delta) -> tuple[bool, int]:
    """Whether there is content in it, and the bytes of text and arguments."""
    text = delta.content
    if type(text) is str and text:
        size = len(text) if text.isascii() else utf8_length(text)
        found = True
    else:
        size = _size(text)
        found = bool(text)
    for text in (delta.reasoning_content or delta.reasoning, delta.refusal):
        if text:
            found = True
            size += _size(text)
    if delta.tool_calls:
        found = True
        if type(delta.tool_calls) is list:
            for tool_call in delta.tool_calls:
                if type(tool_call) is dict:
                    size += _arguments(tool_call.get("function")) or _arguments(tool_call.get("custom"))
    if delta.function_call:
        found = True
        size += _arguments(delta.function_call)
    if type(delta.audio) is dict and (delta.audio.get("data") or delta.audio.get("transcript")):
        found = True
        size += _size(delta.audio.get("transcript"))
    if delta.reasoning_details:
        found = True
    return found, size


def _size(text: object) -> int:
    """UTF-8 bytes of a text, or of the texts in a list of parts."""
    if type(text) is str:
        return utf8_length(text)
    if type(text) is list:
        return sum(_size(part.get("text")) for part in text if type(part) is dict)
    return 0


def _arguments(function: object) -> int:
    if type(function) is not dict:
        return 0
    return _size(function.get("arguments")) or _size(function.get("input"))
