"""What a decoded request is known by."""

import json
from typing import Any

import pytest

from gateway.dialects import anthropic_messages, openai_chat
from gateway.dialects.shape import shape_of
from routing.core.catalog import ScorePolicy
from routing.core.document import Feature
from routing.core.shape import ReasoningWish, RequestShape
from tests.support.documents import some_group

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "Stadt, 都市"}}}
SCHEMA_BYTES = len(json.dumps(SCHEMA, ensure_ascii=False, separators=(",", ":")).encode())


def chat(*messages: Any, policy: ScorePolicy | None = None, **members: Any) -> RequestShape:
    content = {"model": "g", "messages": list(messages) or [user("")], **members}
    call = openai_chat.decode(json.dumps(content).encode())
    return shape_of(call, headers={}, caller="ann", group=some_group(policy=policy))


def messages(*messages: Any, policy: ScorePolicy | None = None, **members: Any) -> RequestShape:
    content = {"model": "g", "max_tokens": 10, "messages": list(messages) or [user("")], **members}
    call = anthropic_messages.decode(json.dumps(content).encode())
    return shape_of(call, headers={}, caller="ann", group=some_group(policy=policy))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_a_small_request_is_known_by_few_facts() -> None:
    body = b'{"model":"g","messages":[{"role":"user","content":"hello"}],"stream":true}'
    shape = shape_of(openai_chat.decode(body), headers={}, caller="ann", group=some_group())
    assert shape == RequestShape(
        dialect="openai-chat",
        stream=True,
        text_bytes=5,
        input_tokens=2,
        request_bytes=len(body),
        conversation_key=shape.conversation_key,
    )
    assert shape.conversation_key is not None


def test_a_messages_request_without_a_cap_sets_output_aside() -> None:
    body = b'{"model":"g","messages":[{"role":"user","content":"hello"}]}'
    shape = shape_of(anthropic_messages.decode_count(body), headers={}, caller="ann", group=some_group())
    assert (shape.output_cap, shape.reserved_output) == (None, 1_024)


def test_the_same_conversation_gives_the_same_estimate_in_both_dialects() -> None:
    arguments = {"city": "São Paulo"}
    written = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    in_chat = chat(
        {"role": "system", "content": "Be brief. 短く"},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": written}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "18 °C"},
        tools=[{"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": SCHEMA}}],
        response_format={"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}},
    )
    in_messages = messages(
        user("Weather?"),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": arguments},
            ],
        },
        user([{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "18 °C"}]}]),
        system=[{"type": "text", "text": "Be brief. 短く", "cache_control": {"type": "ephemeral"}}],
        tools=[{"name": "weather", "description": "Now.", "input_schema": SCHEMA}],
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    texts = len("Be brief. 短くWeather?I look.Hm.weather18 °Cweather".encode()) + len("Now.") + len(written.encode())
    assert in_chat.text_bytes == in_messages.text_bytes == texts + 2 * SCHEMA_BYTES
    assert in_chat.input_tokens == in_messages.input_tokens == -(-(texts + 2 * SCHEMA_BYTES) // 4)
    assert (in_chat.tool_loop, in_messages.tool_loop) == (True, True)
    assert (in_chat.structured_output, in_messages.structured_output) == (True, True)


def test_images_and_other_media_are_estimated_by_kind() -> None:
    shape = chat(
        user(
            [
                {"type": "image_url", "image_url": {"url": "https://h/i.png"}},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "A" * 1_600, "format": "wav"}},
                {"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 1_600}},
            ]
        )
    )
    assert (shape.image_count, set(shape.media)) == (2, {"image", "audio", "file"})
    assert shape.media_tokens == 1_100 + 85 + 2_400 // 400
    assert shape.text_bytes == 0
    assert shape.input_tokens == shape.media_tokens


def test_media_of_messages_are_found_inside_tool_results_too() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    pdf = {"type": "document", "title": "T", "source": {"type": "base64", "data": "A" * 1_600}}
    plain = {"type": "document", "source": {"type": "text", "data": "12345"}}
    listed = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "123"}, image]}}
    shape = messages(user([{"type": "tool_result", "content": [image, pdf, plain, listed]}]))
    assert (shape.image_count, set(shape.media)) == (2, {"image", "file"})
    assert (shape.media_tokens, shape.text_bytes) == (2_200 + 3, 1 + 5 + 3)


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        (None, False),
        ("auto", False),
        ("none", False),
        ("required", True),
        ({"type": "function", "function": {"name": "f"}}, True),
        ({"type": "custom", "custom": {"name": "f"}}, True),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}, False),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required"}}, True),
    ],
)
def test_a_chat_tool_choice_is_forced_when_a_tool_must_be_called(choice: Any, forced: bool) -> None:
    assert chat(tool_choice=choice).forced_tool_choice is forced


@pytest.mark.parametrize(("kind", "forced"), [("auto", False), ("none", False), ("any", True), ("tool", True)])
def test_a_messages_tool_choice_is_forced_when_a_tool_must_be_called(kind: str, forced: bool) -> None:
    assert messages(tool_choice={"type": kind, "name": "f"}).forced_tool_choice is forced


@pytest.mark.parametrize(
    ("members", "wanted"),
    [
        ({}, None),
        ({"reasoning_effort": None}, None),
        ({"reasoning_effort": "none"}, None),
        ({"reasoning_effort": "minimal"}, ReasoningWish(effort="minimal")),
        ({"reasoning_effort": "high"}, ReasoningWish(effort="high")),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, None),
    ],
)
def test_chat_wishes_for_reasoning_by_effort(members: Any, wanted: ReasoningWish | None) -> None:
    assert chat(**members).reasoning == wanted


@pytest.mark.parametrize(
    ("members", "wanted"),
    [
        ({}, None),
        ({"thinking": {"type": "disabled"}}, None),
        ({"output_config": {"effort": "high"}}, None),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, None),
        ({"thinking": {"type": "adaptive"}}, ReasoningWish()),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, ReasoningWish(effort="high")),
        ({"thinking": {"type": "enabled", "budget_tokens": 1_024}}, ReasoningWish(budget_tokens=1_024)),
        ({"reasoning_effort": "high"}, None),
    ],
)
def test_messages_wishes_for_reasoning_by_thinking(members: Any, wanted: ReasoningWish | None) -> None:
    assert messages(**members).reasoning == wanted


@pytest.mark.parametrize(
    ("members", "cap"),
    [
        ({}, None),
        ({"max_tokens": 10}, 10),
        ({"max_completion_tokens": 1}, 1),
        ({"max_completion_tokens": 10, "max_tokens": 20}, 10),
        ({"max_completion_tokens": None, "max_tokens": 20}, 20),
        ({"max_output_tokens": 20}, None),
    ],
)
def test_the_cap_is_the_first_that_is_given(members: Any, cap: int | None) -> None:
    shape = chat(**members)
    assert (shape.output_cap, shape.reserved_output) == (cap, cap or 0)
    assert messages(max_tokens=7, max_completion_tokens=3).output_cap == 7


@pytest.mark.parametrize(
    ("members", "wanted"),
    [
        ({}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, True),
        ({"response_format": "json"}, False),
    ],
)
def test_structured_output_of_chat(members: Any, wanted: bool) -> None:
    assert chat(**members).structured_output is wanted


@pytest.mark.parametrize(
    ("members", "wanted"),
    [
        ({}, False),
        ({"output_config": {"effort": "low"}}, False),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, True),
        ({"output_format": {"type": "json_schema", "schema": {}}}, True),
        ({"response_format": {"type": "json_object"}}, False),
    ],
)
def test_structured_output_of_messages(members: Any, wanted: bool) -> None:
    assert messages(**members).structured_output is wanted


@pytest.mark.parametrize(
    ("tools", "hosted"),
    [
        ([{"name": "f", "input_schema": {}}], False),
        ([{"type": "custom", "name": "f", "input_schema": {}}], False),
        ([{"type": "bash_20250124", "name": "bash"}, {"type": "text_editor_20250728", "name": "e"}], False),
        ([{"type": "web_search_20250305", "name": "web_search"}], True),
        ([{"type": "code_execution_20250825", "name": "c"}], True),
    ],
)
def test_tools_that_the_provider_runs_are_hosted_in_messages(tools: Any, hosted: bool) -> None:
    shape = messages(tools=tools)
    assert (shape.tool_count, shape.hosted_tools) == (len(tools), hosted)


def test_tools_that_the_provider_runs_are_hosted_in_chat() -> None:
    function = {"type": "function", "function": {"name": "f"}}
    assert chat(tools=[function, {"type": "custom", "custom": {"name": "f"}}]).hosted_tools is False
    assert chat(tools=[function, {"type": "web_search_preview"}]).hosted_tools is True
    assert chat(web_search_options={}).hosted_tools is True
    assert messages(mcp_servers=[{"url": "https://h"}]).hosted_tools is True
    assert chat(functions=[{"name": "f", "parameters": {}}]).tool_count == 1


def test_signed_and_redacted_thinking_in_the_history_is_seen() -> None:
    def history(block: Any) -> RequestShape:
        return messages(user("a"), {"role": "assistant", "content": [block]}, user("b"))

    assert history({"type": "thinking", "thinking": "", "signature": "c2ln"}).signed_thinking
    assert history({"type": "redacted_thinking", "data": "b3BhcXVl"}).signed_thinking
    assert not history({"type": "thinking", "thinking": "hm"}).signed_thinking
    assert not history({"type": "text", "text": "thinking"}).signed_thinking


def test_a_tool_loop_is_a_result_after_the_models_last_word() -> None:
    call: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    result = {"role": "tool", "content": "x"}
    assert chat(user("a"), call, result).tool_loop
    assert chat(user("a"), call, result, user("and?")).tool_loop
    assert not chat(user("a"), call, result, {"role": "assistant", "content": "b"}, user("c")).tool_loop
    answered = user([{"type": "tool_result", "content": "x"}, {"type": "text", "text": "and?"}])
    assert messages(user("a"), {"role": "assistant", "content": "b"}, answered).tool_loop
    assert messages(
        user("a"), {"role": "assistant", "content": "b"}, answered, {"role": "system", "content": "s"}
    ).tool_loop
    assert not messages(user("a")).tool_loop


def test_several_choices_and_logprobs_are_seen() -> None:
    shape = chat(n=3, logprobs=True, top_logprobs=2)
    assert (shape.n, shape.logprobs) == (3, True)
    assert (chat(n="3", logprobs=False).n, chat(logprobs=False).logprobs) == (1, False)


FEATURES: frozenset[Feature] = frozenset({"code", "translate", "summarize", "tool_agent"})


@pytest.mark.parametrize(
    ("member", "value", "seen"),
    [
        ("n", 3, ("n", 3)),
        ("logprobs", True, ("logprobs", True)),
        ("function_call", {"name": "a"}, ("forced_tool_choice", True)),
    ],
)
def test_what_is_asked_for_alone_is_seen(member: str, value: Any, seen: tuple[str, Any]) -> None:
    assert getattr(chat(**{member: value}), seen[0]) == seen[1]


def test_prompt_features_are_looked_for_only_where_the_policy_lists_them() -> None:
    asked = user("Translate: ```x```")
    tool = {"type": "function", "function": {"name": "f"}}
    assert chat(asked, tools=[tool]).prompt_features == frozenset()
    policy = ScorePolicy(features=FEATURES)
    assert chat(asked, policy=policy).prompt_features == {"code", "translate"}
    assert chat(asked, policy=policy, tools=[tool]).prompt_features == {"code", "translate", "tool_agent"}
    only_tools = ScorePolicy(features=frozenset({"tool_agent"}))
    assert chat(asked, policy=only_tools, tools=[tool]).prompt_features == {"tool_agent"}
    without_scan = ScorePolicy(features=FEATURES, max_scan_bytes=0)
    assert chat(asked, policy=without_scan, tools=[tool]).prompt_features == {"tool_agent"}


def test_the_newest_user_turn_is_looked_at_first_and_the_system_last() -> None:
    turns = (user("summarize"), {"role": "assistant", "content": "ok"}, user("translate"))
    system = {"role": "system", "content": "code ```"}

    def found(size: int) -> frozenset[Feature]:
        return chat(system, *turns, policy=ScorePolicy(features=FEATURES, max_scan_bytes=size)).prompt_features

    assert found(len("translate")) == {"translate"}
    assert found(len("translateoksummarize")) == {"translate", "summarize"}
    assert found(1_000) == {"translate", "summarize", "code"}


def test_a_tool_result_is_not_the_newest_user_turn() -> None:
    policy = ScorePolicy(features=FEATURES, max_scan_bytes=len("translate"))
    shape = messages(
        user("translate"),
        {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]},
        user([{"type": "tool_result", "content": "summarize"}]),
        policy=policy,
    )
    assert shape.prompt_features == {"translate"}


ODD: list[Any] = [None, 0, True, "x", [], {}, [None], [[]], [{}], ["x"], {"type": None}, {"type": []}, [{"type": {}}]]


@pytest.mark.parametrize("odd", ODD)
def test_odd_values_are_the_providers_affair_and_never_ours(odd: Any) -> None:
    names = [
        "tools",
        "functions",
        "tool_choice",
        "function_call",
        "response_format",
        "reasoning_effort",
        "n",
        "logprobs",
        "metadata",
        "system",
        "thinking",
        "output_config",
        "output_format",
        "mcp_servers",
        "stream_options",
        "prompt_cache_key",
    ]
    members = dict.fromkeys(names, odd)
    everything = {"role": odd, "content": odd, "tool_calls": odd, "function_call": odd, "refusal": odd}
    kinds = ["text", "thinking", "tool_use", "tool_result", "image", "image_url", "document", "file", "input_audio"]
    fields = [
        "text",
        "thinking",
        "signature",
        "name",
        "input",
        "content",
        "title",
        "image_url",
        "source",
        "file",
        "input_audio",
        "context",
    ]
    parts = [{"type": kind, **dict.fromkeys(fields, odd)} for kind in kinds]
    parts += [
        {"type": "document", "source": {"type": kind, "data": odd, "content": odd}} for kind in ("text", "content")
    ]
    policy = ScorePolicy(features=FEATURES)
    for read in (chat, messages):
        shape = read(everything, user(odd), user(parts), user([odd]), policy=policy, **members)
        assert shape.text_bytes >= 0


def test_parts_nested_to_the_decoders_limit_are_no_fault() -> None:
    for depth in (50, 300, 900):
        nested = b'{"type":"tool_result","content":[' * (depth // 2) + b"]}" * (depth // 2)
        deep = b'{"a":' * depth + b"1" + b"}" * depth
        body = b'{"model":"g","max_tokens":1,"messages":[{"role":"user","content":[%b,{"type":"x","y":%b}]}]}' % (
            nested,
            deep,
        )
        call = anthropic_messages.decode(body)
        assert shape_of(call, headers={}, caller="ann", group=some_group()).text_bytes == 0
