"""Anthropic's Messages: requests, token counts, answers, streams and errors."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from gateway.dialects.jsonbytes import (
    answer_of,
    encode,
    json_length,
    object_in_steps,
    object_of,
    utf8_length,
    with_inner,
    with_model,
    with_model_shown,
)
from gateway.dialects.neutral import Answer, BadRequest, Call, EventKind, MalformedAnswer, StreamReader, Usage
from gateway.dialects.requests import call_of, read_cap
from gateway.dialects.sse import with_data
from gateway.dialects.streams import Listener, lone_text
from gateway.dialects.usage import ODD, read_messages, tokens
from routing.core.catalog import Target
from routing.core.document import Dialect

NAME: Dialect = "anthropic"
PATH = "/messages"
COUNT_PATH = "/messages/count_tokens"

ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The API's own words by status; any other status is an `api_error`."""

_KNOWN_TYPES = frozenset(ERROR_TYPES.values())


def decode(body: bytes) -> Call:
    """Raises `BadRequest`. What the gateway has no need to know passes unchecked."""
    return _call(body, object_of(body))


def decoding(body: bytes) -> Iterator[Call | None]:
    for content in object_in_steps(body):
        yield None if content is None else _call(body, content)


def decode_count(body: bytes) -> Call:
    """A body of `COUNT_PATH`, where a cap is not asked for. Never a stream."""
    return _count_call(body, object_of(body))


def decoding_count(body: bytes) -> Iterator[Call | None]:
    for content in object_in_steps(body):
        yield None if content is None else _count_call(body, content)


def upstream_body(call: Call, target: Target) -> bytes:
    """The caller's bytes with the model's name replaced."""
    return with_model(call.body, encode(target.model))


def read_answer(body: bytes) -> Answer:
    """Raises `MalformedAnswer` for anything but a message."""
    message = answer_of(body, _MESSAGE, _Message)
    if message is None or message.type != "message" or message.content is None:
        raise MalformedAnswer("not a message")
    usage = Usage()
    read_messages(usage, message.usage, final=True)
    return Answer(usage=usage, output_bytes=sum(_block_bytes(block) for block in message.content))


def read_count(body: bytes) -> int:
    """The answer of `COUNT_PATH`. Raises `MalformedAnswer`."""
    answer = answer_of(body, _COUNT, _Count)
    count = None if answer is None else tokens(answer.input_tokens)
    if count is None or count == ODD:
        raise MalformedAnswer("not a token count")
    return count


def stream_reader(*, max_event_bytes: int) -> StreamReader:
    return MessagesStream(max_event_bytes)


def wants_usage_chunk(call: Call) -> bool:
    """Usage is part of every Messages stream: nothing is added, nothing hidden."""
    return True


def ending(reader: StreamReader) -> bytes:
    return b'event: message_stop\ndata: {"type":"message_stop"}\n\n' if reader.terminal and not reader.done else b""


def error(*, status: int, type: str, code: str | None, message: str, param: str | None, request_id: str) -> bytes:
    """A `type` that the API does not know becomes the status's own. `code` and `param` have no place in this body."""
    known = type if type in _KNOWN_TYPES else ERROR_TYPES.get(status, "api_error")
    return encode({"type": "error", "error": {"type": known, "message": message}, "request_id": request_id})


def error_event(*, code: str, message: str, request_id: str) -> bytes:
    kind = "overloaded_error" if code == "upstream_overloaded" else "api_error"
    payload = {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
    return b"event: error\ndata: " + encode(payload) + b"\n\n"


def keepalive() -> bytes:
    return b'event: ping\ndata: {"type":"ping"}\n\n'


def answer_with_model(body: bytes, model: str) -> bytes:
    return with_model_shown(body, model)


def event_with_model(raw: bytes, model: str) -> bytes:
    """Only `message_start` names the model, inside its message."""
    if b"message_start" not in raw:
        return raw
    return with_data(raw, lambda data: with_inner(data, "message", lambda message: with_model_shown(message, model)))


class _Delta(msgspec.Struct, gc=False):
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    stop_reason: Any = None


class _Block(msgspec.Struct, gc=False):
    text: Any = None
    thinking: Any = None
    input: Any = None
    data: Any = None
    content: Any = None


class _Started(msgspec.Struct, gc=False):
    usage: Any = None


class _Event(msgspec.Struct, gc=False):
    type: Any = None
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Started | None = None
    usage: Any = None
    error: Any = None


class _OddEvent(msgspec.Struct, gc=False):
    type: Any = None
    usage: Any = None
    error: Any = None


class _Message(msgspec.Struct, gc=False):
    type: Any = None
    content: list[_Block] | None = None
    usage: Any = None


class _Count(msgspec.Struct, gc=False):
    input_tokens: Any = None


_EVENT = msgspec.json.Decoder(_Event)
_ODD_EVENT = msgspec.json.Decoder(_OddEvent)
_MESSAGE = msgspec.json.Decoder(_Message)
_COUNT = msgspec.json.Decoder(_Count)


class MessagesStream(Listener):
    """Listens to one stream of message events."""

    __slots__ = ()

    def listen(self, name: bytes, payload: bytes) -> EventKind:
        event = answer_of(payload, _EVENT, _Event)
        if event is None:
            return self._listen_odd(name, payload)
        kind = event.type if type(event.type) is str else name.decode("latin-1")
        if kind == "content_block_delta":
            return "content" if event.delta is not None and self._hear(event.delta) else "opening"
        if kind == "content_block_start":
            block = event.content_block
            if block is None:
                return "opening"
            self.output_bytes += _block_bytes(block)
            return (
                "content" if block.text or block.thinking or block.input or block.data or block.content else "opening"
            )
        if kind == "message_start":
            if event.message is not None:
                read_messages(self.usage, event.message.usage, final=False)
            return "opening"
        if kind == "message_delta":
            read_messages(self.usage, event.usage, final=True)
            if event.delta is not None and event.delta.stop_reason and not self.terminal:
                self.terminal = True
                return "terminal"
            return "opening"
        if kind == "message_stop":
            self.done = True
            return "done"
        if kind == "error":
            return self.fail(event.error)
        return "opening"

    def only_text(self, payload: bytes) -> str | None:
        event = answer_of(payload, _EVENT, _Event)
        if event is None or event.type != "content_block_delta" or event.delta is None:
            return None
        return lone_text(event.delta, ("text", "thinking", "partial_json"))

    def _listen_odd(self, name: bytes, payload: bytes) -> EventKind:
        """JSON of another build than expected: passed on, an error only if it says so."""
        odd = answer_of(payload, _ODD_EVENT, _OddEvent)
        if odd is not None and (odd.type == "error" or (odd.type is None and name == b"error")):
            return self.fail(odd.error)
        if odd is None and name == b"error":
            return self.fail(None)
        return "opening"

    def _hear(self, delta: _Delta) -> bool:
        size = 0
        for text in (delta.text, delta.thinking, delta.partial_json):
            if type(text) is str and text:
                size += utf8_length(text)
        self.output_bytes += size
        return size > 0


def _call(body: bytes, content: dict[str, Any]) -> Call:
    call = call_of(NAME, body, content)
    if read_cap(content, "max_tokens") is None:
        raise BadRequest("'max_tokens' is required.", param="max_tokens")
    return call


def _count_call(body: bytes, content: dict[str, Any]) -> Call:
    call = call_of(NAME, body, content)
    read_cap(content, "max_tokens")
    call.stream = False
    return call


def _block_bytes(block: _Block) -> int:
    """UTF-8 bytes of generated text, thinking and arguments in a whole block."""
    size = sum(utf8_length(text) for text in (block.text, block.thinking) if type(text) is str)
    return size + json_length(block.input) if block.input else size
