"""What is known of a decoded request before a target is chosen: a `RequestShape` of numbers and flags, no text.

One reading serves both dialects, so that the same conversation gives the same estimate in each.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from gateway.dialects.conversation import key_of
from gateway.dialects.jsonbytes import json_length, utf8_length
from gateway.dialects.neutral import Call
from routing.core.catalog import Group
from routing.core.document import Feature, Modality
from routing.core.features import scanner
from routing.core.shape import ReasoningWish, RequestShape, shape_with_complexity

IMAGE_TOKENS: Final = 1_100
LOW_DETAIL_IMAGE_TOKENS: Final = 85
MEDIA_BYTES_PER_TOKEN: Final = 400

_CLIENT_TOOLS = ("bash_", "text_editor_", "computer_", "memory_")
"""Beginnings of the tool types that Anthropic defines and the client runs; every other type but `custom` is hosted."""

_NO_FEATURES: Final[frozenset[Feature]] = frozenset()


def shape_of(call: Call, *, headers: Mapping[bytes, bytes], caller: str, group: Group) -> RequestShape:
    """`headers`: names in lower case. Never raises for a Call that a decoder gave."""
    content = call.content
    messages = content["messages"]
    messages_dialect = call.dialect == "anthropic"
    tally = _Tally()
    system = content.get("system") if messages_dialect else None
    if system:
        tally.count(system)
    for message in messages:
        tally.count(message.get("content"))
        if not messages_dialect and not message.keys() <= _BARE:
            tally.count_chat_extras(message)
    wishes = _NO_WISHES if _WISHES.isdisjoint(content) else _wishes(content, messages_dialect, tally)
    policy = group.score
    return shape_with_complexity(
        dialect=call.dialect,
        stream=call.stream,
        text_bytes=tally.text_bytes,
        media_tokens=tally.image_tokens + -(-tally.media_bytes // MEDIA_BYTES_PER_TOKEN),
        request_bytes=len(call.body),
        tool_count=wishes.tool_count,
        forced_tool_choice=wishes.forced_tool_choice,
        image_count=tally.images,
        media=frozenset(tally.media) if tally.media else _NO_MEDIA,
        structured_output=wishes.structured_output,
        reasoning=wishes.reasoning,
        output_cap=_cap(content, messages_dialect),
        n=wishes.n,
        logprobs=wishes.logprobs,
        signed_thinking=messages_dialect and tally.signed_thinking,
        hosted_tools=wishes.hosted_tools,
        tool_loop=_answers_a_tool(messages),
        prompt_features=_features(policy.features, policy.max_scan_bytes, system, messages, wishes.tool_count > 0),
        conversation_key=(
            key_of(call, headers=headers, caller=caller, group=group.name, policy=policy.affinity)
            if policy.affinity.enabled
            else None
        ),
    )


_NO_MEDIA: Final[frozenset[Modality]] = frozenset()

_BARE: Final = frozenset({"role", "content", "name"})
"""Members of a Chat message beside which nothing else is counted."""


class _Wishes(NamedTuple):
    """What is asked for beside the messages. Fields as in RequestShape."""

    tool_count: int = 0
    forced_tool_choice: bool = False
    structured_output: bool = False
    reasoning: ReasoningWish | None = None
    n: int = 1
    logprobs: bool = False
    hosted_tools: bool = False


_NO_WISHES: Final = _Wishes()

_WISHES: Final = frozenset(
    {
        "function_call",
        "functions",
        "logprobs",
        "mcp_servers",
        "n",
        "output_config",
        "output_format",
        "reasoning_effort",
        "response_format",
        "thinking",
        "tool_choice",
        "tools",
        "web_search_options",
    }
)
"""The members that say so."""


def _wishes(content: dict[str, Any], messages_dialect: bool, tally: "_Tally") -> _Wishes:
    """Counts the text of tools and schema, too."""
    tools = _tools(content, messages_dialect)
    for tool in tools:
        tally.text_bytes += _tool_bytes(tool)
    schema, structured = (_messages_format if messages_dialect else _chat_format)(content)
    if schema is not None:
        tally.text_bytes += json_length(schema)
    return _Wishes(
        tool_count=len(tools),
        forced_tool_choice=_forced(content.get("tool_choice")) or _forced(content.get("function_call")),
        structured_output=structured,
        reasoning=_messages_reasoning(content) if messages_dialect else _chat_reasoning(content),
        n=_choices(content),
        logprobs=content.get("logprobs") is True,
        hosted_tools=_hosted(content, tools, messages_dialect),
    )


class _Tally:
    """Sums over everything that stands in messages."""

    __slots__ = ("image_tokens", "images", "media", "media_bytes", "signed_thinking", "text_bytes")

    def __init__(self) -> None:
        self.text_bytes = 0
        self.image_tokens = 0
        self.images = 0
        self.media_bytes = 0
        self.media: set[Modality] = set()
        self.signed_thinking = False

    def count(self, content: object) -> None:
        """A text, a list of parts, or neither. Parts within parts are counted without recursion."""
        if type(content) is str:
            self.text_bytes += utf8_length(content)
            return
        if type(content) is not list:
            return
        waiting = [content]
        while waiting:
            for part in waiting.pop():
                if type(part) is not dict:
                    continue
                kind = part.get("type")
                if kind == "text":
                    self.text(part.get("text"))
                    continue
                count = _PARTS.get(kind) if type(kind) is str else None
                if count is not None:
                    inner = count(self, part)
                    if type(inner) is list:
                        waiting.append(inner)
                else:
                    self.text(part.get("text"))

    def count_chat_extras(self, message: dict[str, Any]) -> None:
        """What Chat keeps beside a message's content."""
        calls = message.get("tool_calls")
        if type(calls) is list:
            for call in calls:
                if type(call) is dict:
                    self.function(call.get("function"))
                    self.function(call.get("custom"))
        if "function_call" in message:
            self.function(message["function_call"])
        self.text(message.get("reasoning_content"))
        self.text(message.get("refusal"))

    def text(self, text: object) -> None:
        if type(text) is str:
            self.text_bytes += utf8_length(text)

    def function(self, function: object) -> None:
        if type(function) is dict:
            self.text(function.get("name"))
            self.text(function.get("arguments"))
            self.text(function.get("input"))

    def image(self, tokens: int) -> None:
        self.images += 1
        self.image_tokens += tokens
        self.media.add("image")

    def base64(self, modality: Modality, data: object) -> None:
        """Media given inline, as base64 or as a data URL; a reference counts as nothing but its modality."""
        self.media.add(modality)
        if type(data) is str:
            self.media_bytes += (len(data) - data.find(",") - 1) * 3 // 4 if data[:5] == "data:" else len(data) * 3 // 4


def _thinking(tally: _Tally, part: dict[str, Any]) -> object:
    tally.text(part.get("thinking"))
    if part.get("signature"):
        tally.signed_thinking = True
    return None


def _redacted_thinking(tally: _Tally, part: dict[str, Any]) -> object:
    tally.signed_thinking = True
    return None


def _tool_use(tally: _Tally, part: dict[str, Any]) -> object:
    tally.text(part.get("name"))
    arguments = part.get("input")
    if arguments is not None:
        tally.text_bytes += json_length(arguments)
    return None


def _content(tally: _Tally, part: dict[str, Any]) -> object:
    """A part that holds a text or parts of its own."""
    tally.text(part.get("title"))
    content = part.get("content")
    tally.text(content)
    return content


def _image(tally: _Tally, part: dict[str, Any]) -> object:
    tally.image(IMAGE_TOKENS)
    return None


def _image_url(tally: _Tally, part: dict[str, Any]) -> object:
    image = part.get("image_url")
    low = type(image) is dict and image.get("detail") == "low"
    tally.image(LOW_DETAIL_IMAGE_TOKENS if low else IMAGE_TOKENS)
    return None


def _document(tally: _Tally, part: dict[str, Any]) -> object:
    tally.text(part.get("title"))
    tally.text(part.get("context"))
    source = part.get("source")
    if type(source) is not dict:
        return None
    if source.get("type") == "text":
        tally.text(source.get("data"))
        return None
    if source.get("type") == "content":
        tally.text(source.get("content"))
        return source.get("content")
    tally.base64("file", source.get("data"))
    return None


def _file(tally: _Tally, part: dict[str, Any]) -> object:
    file = part.get("file")
    tally.base64("file", file.get("file_data") if type(file) is dict else None)
    return None


def _audio(tally: _Tally, part: dict[str, Any]) -> object:
    audio = part.get("input_audio")
    tally.base64("audio", audio.get("data") if type(audio) is dict else None)
    return None


_PARTS: Final[Mapping[str, Callable[[_Tally, dict[str, Any]], object]]] = {
    "thinking": _thinking,
    "redacted_thinking": _redacted_thinking,
    "tool_use": _tool_use,
    "server_tool_use": _tool_use,
    "mcp_tool_use": _tool_use,
    "tool_result": _content,
    "mcp_tool_result": _content,
    "search_result": _content,
    "image": _image,
    "image_url": _image_url,
    "document": _document,
    "file": _file,
    "input_audio": _audio,
}
"""Each counts its part and returns the parts inside it, if any. Of a type not listed only its `text` counts."""


def _tools(content: dict[str, Any], messages_dialect: bool) -> list[Any]:
    tools = content.get("tools")
    found = tools if type(tools) is list else []
    if not messages_dialect and type(functions := content.get("functions")) is list:
        return found + functions
    return found


def _tool_bytes(tool: object) -> int:
    """Name, description and schema, however a dialect wraps them; a tool of another build counts whole."""
    if type(tool) is not dict:
        return 0
    function = tool.get("function", tool)
    if type(function) is not dict:
        return json_length(tool)
    schema = function.get("parameters", function.get("input_schema"))
    name = function.get("name")
    if schema is None or type(name) is not str:
        return json_length(tool)
    description = function.get("description")
    size = utf8_length(name) + json_length(schema)
    return size + utf8_length(description) if type(description) is str else size


def _chat_format(content: dict[str, Any]) -> tuple[object, bool]:
    """The schema that the model reads, and whether structured output is wanted."""
    wanted = content.get("response_format")
    if type(wanted) is not dict:
        return None, False
    kind = wanted.get("type")
    if kind == "json_schema":
        described = wanted.get("json_schema")
        return described.get("schema") if type(described) is dict else None, True
    return None, kind == "json_object"


def _messages_format(content: dict[str, Any]) -> tuple[object, bool]:
    config = content.get("output_config")
    wanted = config.get("format") if type(config) is dict else None
    if wanted is None:
        wanted = content.get("output_format")
    if type(wanted) is not dict or wanted.get("type") != "json_schema":
        return None, False
    return wanted.get("schema"), True


def _forced(choice: object) -> bool:
    """The model must call a tool: `required`, `any`, or one that is named."""
    if type(choice) is str:
        return choice == "required"
    if type(choice) is not dict:
        return False
    kind = choice.get("type")
    if kind == "allowed_tools":
        allowed = choice.get("allowed_tools")
        return type(allowed) is dict and allowed.get("mode") == "required"
    return kind not in ("auto", "none")


def _chat_reasoning(content: dict[str, Any]) -> ReasoningWish | None:
    effort = content.get("reasoning_effort")
    return ReasoningWish(effort=effort) if type(effort) is str and effort != "none" else None


def _messages_reasoning(content: dict[str, Any]) -> ReasoningWish | None:
    thinking = content.get("thinking")
    if type(thinking) is not dict:
        return None
    kind = thinking.get("type")
    if kind not in ("enabled", "adaptive"):
        return None
    config = content.get("output_config")
    effort = config.get("effort") if type(config) is dict else None
    budget = thinking.get("budget_tokens") if kind == "enabled" else None
    return ReasoningWish(
        effort=effort if type(effort) is str else None, budget_tokens=budget if type(budget) is int else None
    )


def _cap(content: dict[str, Any], messages_dialect: bool) -> int | None:
    """The decoder has made sure that a cap is a whole number over zero."""
    if not messages_dialect:
        cap = content.get("max_completion_tokens")
        if type(cap) is int:
            return cap
    cap = content.get("max_tokens")
    return cap if type(cap) is int else None


def _choices(content: dict[str, Any]) -> int:
    n = content.get("n")
    return n if type(n) is int and n > 0 else 1


def _hosted(content: dict[str, Any], tools: list[Any], messages_dialect: bool) -> bool:
    """A tool that the provider runs."""
    if content.get("mcp_servers") or content.get("web_search_options") is not None:
        return True
    for tool in tools:
        kind = tool.get("type") if type(tool) is dict else None
        if kind is None or kind == "custom" or type(kind) is not str:
            continue
        if not (kind.startswith(_CLIENT_TOOLS) if messages_dialect else kind == "function"):
            return True
    return False


def _answers_a_tool(messages: list[dict[str, Any]]) -> bool:
    """Whether a tool's result stands after the last message that the model made."""
    for message in reversed(messages):
        role = message.get("role")
        if role == "assistant":
            return False
        if role == "tool" or role == "function":
            return True
        content = message.get("content")
        if type(content) is list:
            for part in content:
                if type(part) is dict and part.get("type") == "tool_result":
                    return True
    return False


def _features(
    listed: frozenset[Feature], max_scan_bytes: int, system: object, messages: list[dict[str, Any]], tools: bool
) -> frozenset[Feature]:
    if not listed:
        return _NO_FEATURES
    found = scanner(listed, max_scan_bytes).scan(_newest_first(system, messages))
    return found | {"tool_agent"} if tools and "tool_agent" in listed else found


def _newest_first(system: object, messages: list[dict[str, Any]]) -> Iterator[str]:
    """The texts of the newest user turn, of the older turns, of the system."""
    newest = next(
        (message for message in reversed(messages) if message.get("role") == "user" and _has_text(message)), None
    )
    if newest is not None:
        yield from _texts(newest.get("content"))
    for message in reversed(messages):
        if message is not newest and message.get("role") not in _SYSTEM_ROLES:
            yield from _texts(message.get("content"))
    yield from _texts(system)
    for message in messages:
        if message.get("role") in _SYSTEM_ROLES:
            yield from _texts(message.get("content"))


_SYSTEM_ROLES = ("system", "developer")


def _has_text(message: dict[str, Any]) -> bool:
    content = message.get("content")
    if type(content) is not list:
        return type(content) is str
    return any(type(part) is dict and type(part.get("text")) is str for part in content)


def _texts(content: object) -> Iterator[str]:
    """Texts of one message, those inside tool results included."""
    if type(content) is str:
        yield content
    elif type(content) is list:
        for part in content:
            if type(part) is not dict:
                continue
            text = part.get("text")
            if type(text) is str:
                yield text
            elif part.get("type") == "tool_result":
                inner = part.get("content")
                if type(inner) is str:
                    yield inner
                elif type(inner) is list:
                    for piece in inner:
                        if type(piece) is dict and type(piece.get("text")) is str:
                            yield piece["text"]
