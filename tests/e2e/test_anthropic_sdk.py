"""The official `anthropic` client, its current major and the one before, against both servers."""

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.e2e.fleet import MAX_REQUEST_BYTES, MESSAGES_KEY, STATUSES, Served
from tests.support.loops import in_loop
from tests.support.processes import ROOT, SimulatorProcess

pytestmark = pytest.mark.e2e

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
USE_THE_TOOLS: list[Any] = [{"role": "user", "content": "Use the tools."}]
TOOLS: list[Any] = [
    {
        "name": "weather",
        "description": "The weather of a place",
        "input_schema": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer", "minimum": 3}},
        },
    },
    {"name": "clock", "input_schema": {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}}},
]
CALLED = [("weather", {"place": "value", "days": 3}), ("clock", {"zone": "UTC"})]

PREVIOUS = ROOT / ".venv-sdk-previous" / "bin" / "python"


@pytest.fixture
def client(served: Served, simulator: SimulatorProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key=served.token, max_retries=0, timeout=20) as client:
        yield client


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def calls_of(message: anthropic.types.Message) -> list[tuple[str, object]]:
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


def test_an_answer_and_its_usage_are_read(client: anthropic.Anthropic, simulator: SimulatorProcess) -> None:
    message = client.messages.create(model="g", max_tokens=100, messages=HELLO)
    assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "end_turn")
    assert text_of(message).startswith("Simulated answer from sim:")
    assert message.usage.output_tokens == 24
    assert message.usage.input_tokens > 0
    arrived = dict(simulator.last()["headers"])
    assert arrived["anthropic-version"] == "2026-10-21"
    assert arrived["x-api-key"] == MESSAGES_KEY
    assert "authorization" not in arrived


def test_the_request_id_is_the_records(client: anthropic.Anthropic, served: Served) -> None:
    message = client.messages.create(model="g", max_tokens=100, messages=HELLO)
    assert message._request_id is not None
    record = served.end_of(message._request_id)
    assert (record.status, record.outcome, record.endpoint) == (200, "success", "messages")
    assert (record.input_tokens, record.output_tokens) == (message.usage.input_tokens, 24)
    assert record.usage_quality == "reported"


def test_a_key_sent_as_bearer_is_taken_too(served: Served, simulator: SimulatorProcess) -> None:
    with anthropic.Anthropic(base_url=served.url, auth_token=served.token, max_retries=0, timeout=20) as client:
        message = client.messages.create(model="g", max_tokens=100, messages=HELLO)
    assert message.stop_reason == "end_turn"


def test_a_cap_is_kept_and_its_reason_is_shown(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="g", max_tokens=3, messages=HELLO)
    assert (message.stop_reason, text_of(message)) == ("max_tokens", "Simulated answer from")


def test_cached_tokens_are_shown_and_recorded(client: anthropic.Anthropic, served: Served) -> None:
    system: list[Any] = [{"type": "text", "text": "Speak plainly. " * 50, "cache_control": {"type": "ephemeral"}}]
    first = client.messages.create(model="g", max_tokens=9, system=system, messages=HELLO)
    again = client.messages.create(model="g", max_tokens=9, system=system, messages=HELLO)
    assert first.usage.cache_creation_input_tokens
    assert again.usage.cache_read_input_tokens
    assert again._request_id is not None
    record = served.end_of(again._request_id)
    assert (record.input_tokens, record.cache_read_tokens, record.cache_write_tokens) == (
        again.usage.input_tokens,
        again.usage.cache_read_input_tokens,
        again.usage.cache_creation_input_tokens,
    )


def test_a_raw_stream_has_every_event_in_order(client: anthropic.Anthropic) -> None:
    with client.messages.create(model="g", max_tokens=100, messages=HELLO, stream=True) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 24,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    text = "".join(
        event.delta.text for event in events if event.type == "content_block_delta" and event.delta.type == "text_delta"
    )
    assert text.startswith("Simulated answer from sim:")


def test_the_stream_helper_gathers_the_whole_answer(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="g", max_tokens=100, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text.startswith("Simulated answer from sim:")
    assert text_of(message) == text
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 24)


def test_thinking_comes_with_its_signature(client: anthropic.Anthropic, simulator: SimulatorProcess) -> None:
    simulator.set(reasoning=True)
    with client.messages.stream(model="g", max_tokens=100, messages=HELLO) as stream:
        message = stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text"]
    first = message.content[0]
    assert first.type == "thinking"
    assert (first.thinking[:6], first.signature) == ("Let me", "c2ltdWxhdGVkLXNpZ25hdHVyZQ==")


def test_tool_calls_come_whole(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="g", max_tokens=100, messages=USE_THE_TOOLS, tools=TOOLS)
    assert (message.stop_reason, calls_of(message)) == ("tool_use", CALLED)


def test_tool_calls_are_put_together_from_their_deltas(client: anthropic.Anthropic) -> None:
    with client.messages.create(model="g", max_tokens=100, messages=USE_THE_TOOLS, tools=TOOLS, stream=True) as stream:
        events = list(stream)
    pieces: dict[int, str] = {}
    for event in events:
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            pieces[event.index] = pieces.get(event.index, "") + event.delta.partial_json
    assert [json.loads(pieces[index]) for index in sorted(pieces)] == [arguments for _, arguments in CALLED]


def test_the_stream_helper_parses_tool_calls(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="g", max_tokens=100, messages=USE_THE_TOOLS, tools=TOOLS) as stream:
        message = stream.get_final_message()
    assert (message.stop_reason, calls_of(message)) == ("tool_use", CALLED)


def test_tool_results_go_back_as_they_are(client: anthropic.Anthropic, simulator: SimulatorProcess) -> None:
    asked = client.messages.create(model="g", max_tokens=100, messages=USE_THE_TOOLS, tools=TOOLS)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
        for block in asked.content
        if block.type == "tool_use"
    ]
    turn = {"role": "assistant", "content": [block.to_dict() for block in asked.content]}
    messages: list[Any] = [*USE_THE_TOOLS, turn, {"role": "user", "content": results}]
    message = client.messages.create(model="g", max_tokens=100, messages=messages, tools=TOOLS)
    assert message.stop_reason == "end_turn"
    assert json.loads(simulator.last_body())["messages"] == messages


def test_tokens_are_counted_by_a_target_that_can(client: anthropic.Anthropic, simulator: SimulatorProcess) -> None:
    bare = client.messages.count_tokens(model="g", messages=HELLO).input_tokens
    raw = client.messages.with_raw_response.count_tokens(model="g", messages=HELLO, system="Be kind.", tools=TOOLS)
    assert raw.parse().input_tokens > bare > 0
    assert "x-pilotage-estimated" not in raw.headers
    assert simulator.last()["path"] == "/v1/messages/count_tokens"
    body = json.loads(simulator.last_body())
    assert (body["model"], "max_tokens" in body) == ("m", False)


def test_tokens_are_estimated_where_no_target_counts(client: anthropic.Anthropic, simulator: SimulatorProcess) -> None:
    bare = client.messages.count_tokens(model="chat-only", messages=HELLO).input_tokens
    raw = client.messages.with_raw_response.count_tokens(model="chat-only", messages=HELLO, system="x", tools=TOOLS)
    assert raw.parse().input_tokens > bare > 0
    assert raw.headers["x-pilotage-estimated"] == "true"
    assert simulator.counters()["requests"] == 0


def test_only_the_callers_groups_are_listed(client: anthropic.Anthropic, served: Served) -> None:
    listed = client.models.list(limit=1000)
    names = [model.id for model in listed.data]
    assert "secret" not in names
    assert (listed.has_more, listed.first_id, listed.last_id) == (False, names[0], names[-1])
    with client.with_options(api_key=served.customer) as customer:
        models = list(customer.models.list())
    assert [(model.id, model.type, model.display_name) for model in models] == [("g", "model", "g")]
    assert models[0].created_at.tzinfo is not None


def test_one_model_is_shown_and_an_unknown_one_is_not(client: anthropic.Anthropic) -> None:
    model = client.models.retrieve("g")
    assert (model.id, model.type) == ("g", "model")
    for name in ("unknown", "secret"):
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.models.retrieve(name)
        assert caught.value.type == "not_found_error"


def test_a_wrong_key_is_an_authentication_error(client: anthropic.Anthropic) -> None:
    with client.with_options(api_key="sk-wrong") as wrong, pytest.raises(anthropic.AuthenticationError) as caught:
        wrong.messages.create(model="g", max_tokens=9, messages=HELLO)
    assert caught.value.type == "authentication_error"
    assert caught.value.request_id is not None
    assert caught.value.request_id.startswith("req_")


def test_a_group_of_others_is_a_permission_error(client: anthropic.Anthropic, simulator: SimulatorProcess) -> None:
    with pytest.raises(anthropic.PermissionDeniedError) as caught:
        client.messages.create(model="secret", max_tokens=9, messages=HELLO)
    assert caught.value.type == "permission_error"
    assert simulator.counters()["requests"] == 0


def test_an_unknown_group_is_not_found(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="unknown", max_tokens=9, messages=HELLO)
    assert caught.value.type == "not_found_error"


def test_a_wrong_request_is_a_bad_request(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model="g", max_tokens=-1, messages=HELLO)
    assert caught.value.type == "invalid_request_error"
    assert "max_tokens" in (caught.value.api_message or "")


def test_a_request_over_the_bound_is_refused_as_too_large(client: anthropic.Anthropic) -> None:
    long: list[Any] = [{"role": "user", "content": "x" * MAX_REQUEST_BYTES}]
    with pytest.raises(anthropic.ContentTooLargeError) as caught:
        client.messages.create(model="g", max_tokens=9, messages=long)
    assert str(caught.value.type) == "request_too_large"


RAISED: dict[int, tuple[type[anthropic.APIStatusError], int, str]] = {
    400: (anthropic.BadRequestError, 400, "invalid_request_error"),
    401: (anthropic.InternalServerError, 502, "api_error"),
    403: (anthropic.InternalServerError, 502, "api_error"),
    404: (anthropic.InternalServerError, 502, "api_error"),
    408: (anthropic.GatewayTimeoutError, 504, "api_error"),
    413: (anthropic.ContentTooLargeError, 413, "request_too_large"),
    422: (anthropic.UnprocessableEntityError, 422, "invalid_request_error"),
    429: (anthropic.RateLimitError, 429, "rate_limit_error"),
    500: (anthropic.InternalServerError, 500, "api_error"),
    502: (anthropic.InternalServerError, 502, "api_error"),
    503: (anthropic.ServiceUnavailableError, 503, "api_error"),
    504: (anthropic.GatewayTimeoutError, 504, "api_error"),
    529: (anthropic.OverloadedError, 529, "overloaded_error"),
}


@pytest.mark.parametrize("kind", ["unary", "stream"])
@pytest.mark.parametrize("status", STATUSES)
def test_what_a_provider_refuses_raises_the_matching_class(
    client: anthropic.Anthropic, simulator: SimulatorProcess, status: int, kind: str
) -> None:
    simulator.set(error_rate=1, status=status)
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(model=f"{kind}-{status}", max_tokens=9, messages=HELLO, stream=kind == "stream")
    assert (type(caught.value), caught.value.status_code, caught.value.type) == RAISED[status]


def test_the_wait_that_a_provider_asks_for_is_passed_on(
    client: anthropic.Anthropic, simulator: SimulatorProcess
) -> None:
    simulator.set(error_rate=1, status=429, retry_after=7)
    with pytest.raises(anthropic.RateLimitError) as caught:
        client.messages.create(model="messages-only", max_tokens=9, messages=HELLO)
    assert caught.value.response.headers["retry-after"] == "7"


def test_nobody_to_connect_to_is_a_server_error(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.InternalServerError) as caught:
        client.messages.create(model="nobody", max_tokens=9, messages=HELLO)
    assert (caught.value.status_code, caught.value.type) == (502, "api_error")


def test_a_stream_that_is_cut_raises_and_does_not_end(client: anthropic.Anthropic, simulator: SimulatorProcess) -> None:
    simulator.set(cut_rate=1)
    got: list[str] = []

    def read(texts: Iterator[str]) -> None:
        for text in texts:
            got.append(text)  # noqa: PERF402 - what came before counts

    with (
        client.messages.stream(model="g", max_tokens=100, messages=HELLO) as stream,
        pytest.raises(anthropic.APIStatusError) as caught,
    ):
        read(stream.text_stream)
    assert "".join(got).startswith("Simulated answer from sim:")
    assert caught.value.type == "api_error"


def test_leaving_a_stream_ends_the_call_to_the_provider(
    client: anthropic.Anthropic, simulator: SimulatorProcess, served: Served
) -> None:
    simulator.set(tokens_per_second=20, output_tokens=2000)
    before = len(served.ends())
    stream = client.messages.create(model="g", max_tokens=3000, messages=HELLO, stream=True)
    for _ in range(4):
        next(stream)
    assert simulator.counters()["in_flight"] == 1
    left_at = time.monotonic()
    stream.close()
    simulator.until(lambda: simulator.counters()["cancelled"] == 1, what="the provider's call to end", seconds=5)
    assert time.monotonic() - left_at < 1.0
    record = served.next_end(before)
    assert (record.outcome, record.error_code, record.status) == ("client_cancelled", "client_closed_request", 200)
    assert (record.usage_quality, record.output_tokens is not None) == ("estimated", True)


@in_loop
async def test_async_clients_ask_at_the_same_time(served: Served, simulator: SimulatorProcess) -> None:
    simulator.set(latency_ms=200)

    async def stream() -> str:
        async with asking.messages.stream(model="g", max_tokens=100, messages=HELLO) as events:
            return text_of(await events.get_final_message())

    async def unary() -> str:
        return text_of(await asking.messages.create(model="g", max_tokens=100, messages=HELLO))

    async with anthropic.AsyncAnthropic(base_url=served.url, api_key=served.token, max_retries=0, timeout=20) as asking:
        answers = await asyncio.gather(*(work() for work in (stream, unary) for _ in range(5)))
    assert len(answers) == 10
    assert all(answer.startswith("Simulated answer from sim:") for answer in answers)
    assert simulator.counters()["max_in_flight"] == 10


def test_the_major_before_this_one_is_served_as_well(served: Served, simulator: SimulatorProcess) -> None:
    assert PREVIOUS.exists(), "run `make sdk-previous`"
    script = Path(__file__).with_name("sdk_previous.py")
    done = subprocess.run(
        [PREVIOUS, script, served.url, served.token, simulator.origin],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = "Simulated answer from sim:"
    called = [list(call) for call in CALLED]
    assert json.loads(done.stdout) == {
        "major": int(anthropic.__version__.partition(".")[0]) - 1,
        "unary": [text, "end_turn", 24],
        "stream helper": [text, "end_turn", 24],
        "raw stream": [text, "message_stop"],
        "tools": ["tool_use", called],
        "tools streamed": ["tool_use", called],
        "counted": True,
        "models": ["g", "model"],
        "wrong key": ["AuthenticationError", 401, "authentication_error"],
        "group of others": ["PermissionDeniedError", 403, "permission_error"],
        "unknown group": ["NotFoundError", 404, "not_found_error"],
        "wrong request": ["BadRequestError", 400, "invalid_request_error"],
        "too large": ["RequestTooLargeError", 413, "request_too_large"],
        "provider answers 400": ["BadRequestError", 400, "invalid_request_error"],
        "provider answers 429": ["RateLimitError", 429, "rate_limit_error"],
        "provider answers 500": ["InternalServerError", 500, "api_error"],
        "provider answers 503": ["InternalServerError", 503, "api_error"],
        "provider answers 529": ["OverloadedError", 529, "overloaded_error"],
        "cut stream": ["APIStatusError", text],
        "async": [text, 24],
    }
