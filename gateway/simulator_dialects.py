"""What the simulator says, in the words of each dialect. Pure: a request's bytes in, an answer's bytes out."""

import random
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

Json = dict[str, Any]
Event = tuple[bytes, int]
"""The event's bytes, and how many output tokens it carries."""

CREATED = 1_700_000_000
"""A fixed time of birth keeps answers deterministic."""


class BadRequest(Exception):
    pass


class Asked(msgspec.Struct, kw_only=True):
    """A request as far as the simulator needs to know it."""

    model: str
    stream: bool = False
    include_usage: bool = False
    cap: int | None = None
    parts: list[bytes]
    """Tools, system and messages in order, each as it stands: what a prompt cache would compare."""
    last_text: str = ""
    """Of the last message, when it is a user's."""
    tools: list[tuple[str, Json]] = []
    """Name and schema."""
    forced_tool: bool = False
    schema: Json | None = None
    """Of a structured output."""
    reasoning: bool = False
    cache_marked: bool = False
    count_only: bool = False


class Answer(msgspec.Struct, kw_only=True):
    id: str
    model: str
    words: list[str]
    """One token each."""
    thoughts: list[str]
    calls: list[tuple[str, str, list[str]]]
    """Id, name, arguments as JSON in pieces of one token."""
    capped: bool
    """Ended by the caller's cap."""
    input_tokens: int
    """All of them."""
    cached_tokens: int
    """Part of `input_tokens`."""

    @property
    def text(self) -> str:
        return "".join(self.words)

    @property
    def output_tokens(self) -> int:
        return len(self.words) + len(self.thoughts) + sum(len(pieces) for _, _, pieces in self.calls)


class DialectWire(Protocol):
    def read(self, body: bytes) -> Asked: ...
    def whole(self, asked: Asked, answer: Answer) -> bytes: ...
    def events(self, asked: Asked, answer: Answer) -> Iterator[Event]: ...
    def error(self, status: int, message: str) -> bytes: ...
    def error_event(self, message: str) -> bytes: ...


def compose(
    asked: Asked,
    *,
    choice: random.Random,
    name: str,
    wanted_tokens: int,
    reasoning: bool,
    input_tokens: int,
    cached_tokens: int,
    id: str,
) -> Answer:
    calls: list[tuple[str, str, list[str]]] = []
    words: list[str] = []
    asked_for_tool = "use the tool" in asked.last_text.lower()
    if asked.tools and (asked.forced_tool or asked_for_tool):
        every = "use the tools" in asked.last_text.lower()
        for number, (tool, schema) in enumerate(asked.tools if every else asked.tools[:1]):
            arguments = msgspec.json.encode(_example(schema)).decode()
            pieces = [arguments[i : i + 6] for i in range(0, len(arguments), 6)]
            calls.append((f"{id[:20]}{number:04d}", tool, pieces))
    elif asked.schema is not None:
        document = msgspec.json.encode(_example(asked.schema)).decode()
        words = [document[i : i + 6] for i in range(0, len(document), 6)]
    else:
        opening = ["Simulated", " answer", " from", f" {name}:"]
        words = [*opening, *(" " + choice.choice(_VOCABULARY) for _ in range(wanted_tokens - len(opening) - 1)), "."]
        words = words[: max(1, wanted_tokens)]
    thoughts = ["Let", " me", *(" " + choice.choice(_VOCABULARY) for _ in range(6)), "."] if reasoning else []
    capped = False
    if asked.cap is not None and not calls and len(words) + len(thoughts) > asked.cap:
        capped = True
        thoughts = thoughts[: max(0, asked.cap - 1)]
        words = words[: max(1, asked.cap - len(thoughts))]
    return Answer(
        id=id,
        model=asked.model,
        words=words,
        thoughts=thoughts,
        calls=calls,
        capped=capped,
        input_tokens=input_tokens,
        cached_tokens=cached_tokens,
    )


_VOCABULARY = (
    "the", "quiet", "river", "carries", "small", "boats", "past", "old", "stone", "houses", "while", "morning", "light",
    "moves", "over", "green", "hills", "and", "people", "walk", "slowly", "along", "narrow", "paths", "talking", "about",
    "bread", "weather", "music", "letters", "maps", "and", "the", "long", "way", "home", "again",
)  # fmt: skip


def _example(schema: Any, depth: int = 0) -> Any:
    """A small value that fits a JSON schema of the usual kind."""
    if not isinstance(schema, dict) or depth > 8:
        return "value"
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return _example(schema[key][0], depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = kind[0] if kind else "string"
    match kind:
        case "object":
            properties = schema.get("properties")
            if not isinstance(properties, dict):
                return {}
            return {key: _example(value, depth + 1) for key, value in properties.items()}
        case "array":
            return [_example(schema.get("items"), depth + 1)]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
    return "value"


_ENCODER = msgspec.json.Encoder()


def _body(body: bytes) -> Json:
    try:
        content = msgspec.json.decode(body)
    except msgspec.DecodeError as problem:
        raise BadRequest(f"not JSON: {problem}") from problem
    except RecursionError as problem:
        raise BadRequest("nested too deeply") from problem
    if not isinstance(content, dict):
        raise BadRequest("the body must be an object")
    if not isinstance(content.get("model"), str):
        raise BadRequest("model is missing")
    return content


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _cap(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in _list(content) if isinstance(_object(part).get("text"), str))


def _parts(*groups: Any) -> list[bytes]:
    parts = []
    for group in groups:
        if isinstance(group, list):
            parts += [_ENCODER.encode(item) for item in group]
        elif group:
            parts.append(_ENCODER.encode(group))
    return parts


def _messages(content: Json, key: str = "messages") -> list[Any]:
    messages = content.get(key)
    if not isinstance(messages, list) or not messages:
        raise BadRequest(f"{key} must be a list with at least one item")
    return messages


def _last_user_text(messages: list[Any]) -> str:
    last = _object(messages[-1])
    return _text(last.get("content")) if last.get("role") == "user" else ""


def _data(content: Json) -> bytes:
    return b"data: " + _ENCODER.encode(content) + b"\n\n"


def _named(content: Json) -> bytes:
    return b"event: " + str(content["type"]).encode() + b"\ndata: " + _ENCODER.encode(content) + b"\n\n"


class _OpenAI:
    def error(self, status: int, message: str) -> bytes:
        kind, code = {
            400: ("invalid_request_error", "bad_request"),
            401: ("invalid_request_error", "invalid_api_key"),
            403: ("invalid_request_error", "permission_denied"),
            404: ("invalid_request_error", "not_found"),
            429: ("rate_limit_error", "rate_limit_exceeded"),
        }.get(status, ("server_error", "server_error"))
        return _ENCODER.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


class _Chat(_OpenAI):
    def read(self, body: bytes) -> Asked:
        content = _body(body)
        messages = _messages(content)
        tools = []
        for tool in _list(content.get("tools")):
            function = _object(_object(tool).get("function"))
            if isinstance(function.get("name"), str):
                tools.append((function["name"], _object(function.get("parameters"))))
        choice = content.get("tool_choice")
        named = _object(_object(choice).get("function")).get("name")
        if named is not None:
            tools = [tool for tool in tools if tool[0] == named] or tools
        response_format = _object(content.get("response_format"))
        schema: Json | None = None
        if response_format.get("type") == "json_schema":
            schema = _object(_object(response_format.get("json_schema")).get("schema"))
        elif response_format.get("type") == "json_object":
            schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
        return Asked(
            model=content["model"],
            stream=content.get("stream") is True,
            include_usage=_object(content.get("stream_options")).get("include_usage") is True,
            cap=_cap(content.get("max_completion_tokens")) or _cap(content.get("max_tokens")),
            parts=_parts(content.get("tools"), messages),
            last_text=_last_user_text(messages),
            tools=tools,
            forced_tool=choice == "required" or named is not None,
            schema=schema,
            reasoning=content.get("reasoning_effort") not in (None, "none"),
        )

    def whole(self, asked: Asked, answer: Answer) -> bytes:
        message: Json = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if answer.thoughts:
            message["reasoning_content"] = "".join(answer.thoughts)
        if answer.calls:
            message["tool_calls"] = [
                {"id": f"call_{id}", "type": "function", "function": {"name": name, "arguments": "".join(pieces)}}
                for id, name, pieces in answer.calls
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish(answer)}
        return _ENCODER.encode(
            self._envelope(answer, "chat.completion") | {"choices": [choice], "usage": self._usage(answer)}
        )

    def events(self, asked: Asked, answer: Answer) -> Iterator[Event]:
        envelope = self._envelope(answer, "chat.completion.chunk")

        def chunk(delta: Json, finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            extra = {"usage": None} if asked.include_usage else {}
            return _data(envelope | {"choices": [choice]} | extra)

        yield chunk({"role": "assistant", "content": ""}), 0
        for thought in answer.thoughts:
            yield chunk({"reasoning_content": thought}), 1
        for word in answer.words:
            yield chunk({"content": word}), 1
        for index, (id, name, pieces) in enumerate(answer.calls):
            function: Json = {"name": name, "arguments": ""}
            yield (
                chunk({"tool_calls": [{"index": index, "id": f"call_{id}", "type": "function", "function": function}]}),
                0,
            )
            for piece in pieces:
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}), 1
        yield chunk({}, self._finish(answer)), 0
        if asked.include_usage:
            yield _data(envelope | {"choices": [], "usage": self._usage(answer)}), 0
        yield b"data: [DONE]\n\n", 0

    def error_event(self, message: str) -> bytes:
        return b"data: " + self.error(500, message) + b"\n\n"

    @staticmethod
    def _envelope(answer: Answer, kind: str) -> Json:
        return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": CREATED, "model": answer.model}

    @staticmethod
    def _finish(answer: Answer) -> str:
        return "tool_calls" if answer.calls else "length" if answer.capped else "stop"

    @staticmethod
    def _usage(answer: Answer) -> Json:
        return {
            "prompt_tokens": answer.input_tokens,
            "completion_tokens": answer.output_tokens,
            "total_tokens": answer.input_tokens + answer.output_tokens,
            "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": len(answer.thoughts)},
        }


class _Messages:
    def read(self, body: bytes) -> Asked:
        content = _body(body)
        messages = _messages(content)
        offered = [tool for tool in map(_object, _list(content.get("tools"))) if isinstance(tool.get("name"), str)]
        tools = [(tool["name"], _object(tool.get("input_schema"))) for tool in offered]
        choice = _object(content.get("tool_choice"))
        if choice.get("type") == "tool":
            tools = [tool for tool in tools if tool[0] == choice.get("name")] or tools
        output = _object(_object(content.get("output_config")).get("format"))
        return Asked(
            model=content["model"],
            stream=content.get("stream") is True,
            cap=_cap(content.get("max_tokens")),
            parts=_parts(content.get("tools"), content.get("system"), messages),
            last_text=_last_user_text(messages),
            tools=tools,
            forced_tool=choice.get("type") in ("any", "tool"),
            schema=_object(output.get("schema")) if output.get("type") == "json_schema" else None,
            reasoning=_object(content.get("thinking")).get("type") in ("enabled", "adaptive"),
            cache_marked=b'"cache_control"' in body,
        )

    def whole(self, asked: Asked, answer: Answer) -> bytes:
        blocks: list[Json] = []
        if answer.thoughts:
            blocks.append({"type": "thinking", "thinking": "".join(answer.thoughts), "signature": _SIGNATURE})
        if answer.words:
            blocks.append({"type": "text", "text": answer.text})
        for id, name, pieces in answer.calls:
            arguments = msgspec.json.decode("".join(pieces))
            blocks.append({"type": "tool_use", "id": f"toolu_{id}", "name": name, "input": arguments})
        return _ENCODER.encode(
            self._message(answer)
            | {
                "content": blocks,
                "stop_reason": self._stop(answer),
                "usage": self._usage(asked, answer) | {"output_tokens": answer.output_tokens},
            }
        )

    def events(self, asked: Asked, answer: Answer) -> Iterator[Event]:
        usage = self._usage(asked, answer)
        start = self._message(answer) | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
        yield _named({"type": "message_start", "message": start}), 0
        yield _named({"type": "ping"}), 0
        blocks: list[tuple[Json, str, str, list[str]]] = []
        if answer.thoughts:
            empty: Json = {"type": "thinking", "thinking": "", "signature": ""}
            blocks.append((empty, "thinking_delta", "thinking", answer.thoughts))
        if answer.words:
            blocks.append(({"type": "text", "text": ""}, "text_delta", "text", answer.words))
        for id, name, pieces in answer.calls:
            block = {"type": "tool_use", "id": f"toolu_{id}", "name": name, "input": {}}
            blocks.append((block, "input_json_delta", "partial_json", pieces))
        for index, (block, kind, key, pieces) in enumerate(blocks):
            yield _named({"type": "content_block_start", "index": index, "content_block": block}), 0
            for piece in pieces:
                delta = {"type": kind, key: piece}
                yield _named({"type": "content_block_delta", "index": index, "delta": delta}), 1
            if kind == "thinking_delta":
                signature = {"type": "signature_delta", "signature": _SIGNATURE}
                yield _named({"type": "content_block_delta", "index": index, "delta": signature}), 0
            yield _named({"type": "content_block_stop", "index": index}), 0
        ending = {"stop_reason": self._stop(answer), "stop_sequence": None}
        final = usage | {"output_tokens": answer.output_tokens}
        yield _named({"type": "message_delta", "delta": ending, "usage": final}), 0
        yield _named({"type": "message_stop"}), 0

    def error(self, status: int, message: str) -> bytes:
        kind = {
            400: "invalid_request_error",
            401: "authentication_error",
            403: "permission_error",
            404: "not_found_error",
            413: "request_too_large",
            429: "rate_limit_error",
            529: "overloaded_error",
        }.get(status, "invalid_request_error" if status < 500 else "api_error")
        return _ENCODER.encode({"type": "error", "error": {"type": kind, "message": message}})

    def error_event(self, message: str) -> bytes:
        return _named({"type": "error", "error": {"type": "overloaded_error", "message": message}})

    @staticmethod
    def _message(answer: Answer) -> Json:
        return {
            "id": f"msg_{answer.id}",
            "type": "message",
            "role": "assistant",
            "model": answer.model,
            "stop_sequence": None,
        }

    @staticmethod
    def _stop(answer: Answer) -> str:
        return "tool_use" if answer.calls else "max_tokens" if answer.capped else "end_turn"

    @staticmethod
    def _usage(asked: Asked, answer: Answer) -> Json:
        fresh = answer.input_tokens - answer.cached_tokens
        written = fresh // 2 if asked.cache_marked else 0
        return {
            "input_tokens": fresh - written,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": answer.cached_tokens,
        }


_SIGNATURE = "c2ltdWxhdGVkLXNpZ25hdHVyZQ=="


class _CountTokens(_Messages):
    def read(self, body: bytes) -> Asked:
        asked = super().read(body)
        asked.count_only = True
        return asked


class _Responses(_OpenAI):
    def read(self, body: bytes) -> Asked:
        content = _body(body)
        given = content.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else _messages(content, "input")
        offered = [tool for tool in map(_object, _list(content.get("tools"))) if tool.get("type") == "function"]
        tools = [(str(tool.get("name")), _object(tool.get("parameters"))) for tool in offered]
        output = _object(_object(content.get("text")).get("format"))
        return Asked(
            model=content["model"],
            stream=content.get("stream") is True,
            cap=_cap(content.get("max_output_tokens")),
            parts=_parts(content.get("tools"), content.get("instructions"), items),
            last_text=_last_user_text(items),
            tools=tools,
            forced_tool=content.get("tool_choice") == "required" or isinstance(content.get("tool_choice"), dict),
            schema=_object(output.get("schema")) if output.get("type") == "json_schema" else None,
        )

    def whole(self, asked: Asked, answer: Answer) -> bytes:
        return _ENCODER.encode(self._response(answer, complete=True))

    def events(self, asked: Asked, answer: Answer) -> Iterator[Event]:
        number = -1

        def event(content: Json) -> bytes:
            nonlocal number
            number += 1
            return _named(content | {"sequence_number": number})

        opening = self._response(answer, complete=False)
        yield event({"type": "response.created", "response": opening}), 0
        yield event({"type": "response.in_progress", "response": opening}), 0
        for index, item in enumerate(self._items(answer)):
            place = {"item_id": item["id"], "output_index": index}
            if item["type"] == "message":
                empty = item | {"status": "in_progress", "content": []}
                yield event({"type": "response.output_item.added", "output_index": index, "item": empty}), 0
                at = place | {"content_index": 0}
                part = item["content"][0]
                yield event({"type": "response.content_part.added", **at, "part": part | {"text": ""}}), 0
                for word in answer.words:
                    yield event({"type": "response.output_text.delta", **at, "delta": word, "logprobs": []}), 1
                yield event({"type": "response.output_text.done", **at, "text": answer.text, "logprobs": []}), 0
                yield event({"type": "response.content_part.done", **at, "part": part}), 0
            else:
                pieces = answer.calls[index][2]
                empty = item | {"status": "in_progress", "arguments": ""}
                yield event({"type": "response.output_item.added", "output_index": index, "item": empty}), 0
                for piece in pieces:
                    yield event({"type": "response.function_call_arguments.delta", **place, "delta": piece}), 1
                done = place | {"name": item["name"], "arguments": item["arguments"]}
                yield event({"type": "response.function_call_arguments.done", **done}), 0
            yield event({"type": "response.output_item.done", "output_index": index, "item": item}), 0
        closing = "response.incomplete" if answer.capped else "response.completed"
        yield event({"type": closing, "response": self._response(answer, complete=True)}), 0

    def error_event(self, message: str) -> bytes:
        content = {"type": "error", "code": "server_error", "message": message, "param": None, "sequence_number": 0}
        return _named(content)

    @staticmethod
    def _items(answer: Answer) -> list[Json]:
        if not answer.calls:
            part: Json = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
            item = {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "status": "completed"}
            return [item | {"content": [part]}]
        return [
            {
                "id": f"fc_{id}",
                "type": "function_call",
                "call_id": f"call_{id}",
                "name": name,
                "arguments": "".join(pieces),
                "status": "completed",
            }
            for id, name, pieces in answer.calls
        ]

    def _response(self, answer: Answer, *, complete: bool) -> Json:
        status = "in_progress" if not complete else "incomplete" if answer.capped else "completed"
        usage = {
            "input_tokens": answer.input_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": answer.output_tokens,
            "output_tokens_details": {"reasoning_tokens": len(answer.thoughts)},
            "total_tokens": answer.input_tokens + answer.output_tokens,
        }
        return {
            "id": f"resp_{answer.id}",
            "object": "response",
            "created_at": CREATED,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if complete and answer.capped else None,
            "instructions": None,
            "metadata": {},
            "model": answer.model,
            "output": self._items(answer) if complete else [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage if complete else None,
        }


CHAT: DialectWire = _Chat()
MESSAGES: DialectWire = _Messages()
RESPONSES: DialectWire = _Responses()
BY_PATH: dict[str, DialectWire] = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": _CountTokens(),
    "/v1/responses": RESPONSES,
}
