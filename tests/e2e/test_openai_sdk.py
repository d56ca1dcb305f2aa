"""The official `openai` client against both servers: what it asks, it gets, and what fails raises its own classes."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.e2e.fleet import MAX_REQUEST_BYTES, STATUSES, Served
from tests.support.loops import in_loop
from tests.support.processes import SimulatorProcess

pytestmark = pytest.mark.e2e

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
USE_THE_TOOLS: list[Any] = [{"role": "user", "content": "Use the tools."}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a place",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"type": "integer", "minimum": 3}},
                "required": ["place", "days"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "clock", "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}}},
    },
]
CALLED = [("weather", {"place": "value", "days": 3}), ("clock", {"zone": "UTC"})]


@pytest.fixture
def client(served: Served, simulator: SimulatorProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.token, max_retries=0, timeout=20) as client:
        yield client


def test_an_answer_and_its_usage_are_read(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(model="g", messages=HELLO)
    choice = completion.choices[0]
    assert completion.object == "chat.completion"
    assert (choice.finish_reason, choice.message.role) == ("stop", "assistant")
    assert (choice.message.content or "").startswith("Simulated answer from sim:")
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 24
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + 24


def test_the_request_id_is_the_records(client: openai.OpenAI, served: Served) -> None:
    raw = client.chat.completions.with_raw_response.create(model="g", messages=HELLO)
    completion = raw.parse()
    assert completion._request_id == raw.headers["x-request-id"]
    record = served.end_of(raw.headers["x-request-id"])
    assert (record.status, record.outcome, record.target) == (200, "success", raw.headers["x-pilotage-target"])
    assert completion.usage is not None
    assert (record.input_tokens, record.output_tokens) == (completion.usage.prompt_tokens, 24)
    assert record.usage_quality == "reported"


def test_a_cap_is_kept_and_its_reason_is_shown(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(model="g", messages=HELLO, max_completion_tokens=3)
    choice = completion.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("length", "Simulated answer from")


def test_a_raw_stream_without_usage_has_no_chunk_without_choices(client: openai.OpenAI, served: Served) -> None:
    with client.chat.completions.create(model="g", messages=HELLO, stream=True) as stream:
        chunks = list(stream)
        id = stream.response.headers["x-request-id"]
    assert {len(chunk.choices) for chunk in chunks} == {1}
    assert all(chunk.usage is None for chunk in chunks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text.startswith("Simulated answer from sim:")
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "stop"]
    assert served.end_of(id).output_tokens == 24  # asked for on the way, though the caller did not


def test_a_raw_stream_with_usage_ends_in_its_chunk(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model="g", messages=HELLO, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 24


def test_the_stream_helper_gathers_the_whole_answer(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="g", messages=HELLO, stream_options={"include_usage": True}) as stream:
        kinds = [event.type for event in stream]
        completion = stream.get_final_completion()
    assert kinds.count("content.done") == 1
    assert kinds.count("content.delta") == 1 + 24  # the role's chunk has an empty one
    assert (completion.choices[0].message.content or "").startswith("Simulated answer from sim:")
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 24


def test_tool_calls_come_whole(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(model="g", messages=USE_THE_TOOLS, tools=TOOLS)
    choice = completion.choices[0]
    calls = choice.message.tool_calls or []
    assert choice.finish_reason == "tool_calls"
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls if call.type == "function"] == (
        CALLED
    )


def test_tool_results_go_back_as_they_are(client: openai.OpenAI, simulator: SimulatorProcess) -> None:
    asked = client.chat.completions.create(model="g", messages=USE_THE_TOOLS, tools=TOOLS).choices[0].message
    assert asked.tool_calls
    results: list[Any] = [
        {"role": "tool", "tool_call_id": call.id, "content": f"result {number}"}
        for number, call in enumerate(asked.tool_calls)
    ]
    messages: list[Any] = [*USE_THE_TOOLS, asked.to_dict(), *results]
    completion = client.chat.completions.create(model="g", messages=messages, tools=TOOLS)
    assert completion.choices[0].finish_reason == "stop"
    assert json.loads(simulator.last_body())["messages"] == messages


def test_tool_calls_are_put_together_from_their_deltas(client: openai.OpenAI) -> None:
    with client.chat.completions.create(model="g", messages=USE_THE_TOOLS, tools=TOOLS, stream=True) as stream:
        chunks = list(stream)
    arguments: dict[int, str] = {}
    names: dict[int, str] = {}
    for chunk in chunks:
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.function is not None
            names[call.index] = names.get(call.index, "") + (call.function.name or "")
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    assert [(names[index], json.loads(arguments[index])) for index in sorted(names)] == CALLED
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_stream_helper_parses_tool_calls(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="g", messages=USE_THE_TOOLS, tools=TOOLS) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, json.loads(event.arguments)) for event in done] == CALLED


def test_a_structured_answer_fits_its_schema(client: openai.OpenAI) -> None:
    schema: dict[str, object] = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "size": {"type": "integer"}},
    }
    completion = client.chat.completions.create(
        model="g",
        messages=HELLO,
        response_format={"type": "json_schema", "json_schema": {"name": "town", "strict": True, "schema": schema}},
    )
    assert json.loads(completion.choices[0].message.content or "") == {"city": "value", "size": 1}


def test_only_the_callers_groups_are_listed(client: openai.OpenAI, served: Served) -> None:
    names = [model.id for model in client.models.list()]
    assert "secret" not in names
    assert names == sorted(names)
    assert {"g", "chat-only", "nobody", "stub-model"} < set(names)
    with client.with_options(api_key=served.customer) as customer:
        assert [(model.id, model.object, model.owned_by) for model in customer.models.list()] == [
            ("g", "model", "pilotage")
        ]


def test_one_model_is_shown_and_an_unknown_one_is_not(client: openai.OpenAI) -> None:
    model = client.models.retrieve("g")
    assert (model.id, model.object) == ("g", "model")
    for name in ("unknown", "secret"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve(name)
        assert caught.value.code == "model_not_found"


def test_a_wrong_key_is_an_authentication_error(client: openai.OpenAI) -> None:
    with client.with_options(api_key="sk-wrong") as wrong, pytest.raises(openai.AuthenticationError) as caught:
        wrong.chat.completions.create(model="g", messages=HELLO)
    assert (caught.value.code, caught.value.type) == ("invalid_api_key", "authentication_error")
    assert caught.value.request_id is not None


def test_a_group_of_others_is_a_permission_error(client: openai.OpenAI, simulator: SimulatorProcess) -> None:
    with pytest.raises(openai.PermissionDeniedError) as caught:
        client.chat.completions.create(model="secret", messages=HELLO)
    assert (caught.value.code, caught.value.param) == ("model_not_allowed", "model")
    assert simulator.counters()["requests"] == 0


def test_an_unknown_group_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="unknown", messages=HELLO)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_wrong_request_is_a_bad_request_that_names_its_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="g", messages=HELLO, max_completion_tokens=-1)
    assert (caught.value.code, caught.value.param) == ("invalid_request", "max_completion_tokens")


def test_a_request_over_the_bound_is_refused_as_too_large(client: openai.OpenAI) -> None:
    long: list[Any] = [{"role": "user", "content": "x" * MAX_REQUEST_BYTES}]
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="g", messages=long)
    assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")


RAISED: dict[int, tuple[type[openai.APIStatusError], int]] = {
    400: (openai.BadRequestError, 400),
    # The provider's quarrel is with the gateway's credential and model names, not with the caller's.
    401: (openai.InternalServerError, 502),
    403: (openai.InternalServerError, 502),
    404: (openai.InternalServerError, 502),
    408: (openai.InternalServerError, 504),
    413: (openai.APIStatusError, 413),
    422: (openai.UnprocessableEntityError, 422),
    429: (openai.RateLimitError, 429),
    500: (openai.InternalServerError, 500),
    502: (openai.InternalServerError, 502),
    503: (openai.InternalServerError, 503),
    504: (openai.InternalServerError, 504),
    529: (openai.InternalServerError, 503),
}


@pytest.mark.parametrize("kind", ["unary", "stream"])
@pytest.mark.parametrize("status", STATUSES)
def test_what_a_provider_refuses_raises_the_matching_class(
    client: openai.OpenAI, simulator: SimulatorProcess, status: int, kind: str
) -> None:
    simulator.set(error_rate=1, status=status)
    raised, expected = RAISED[status]
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model=f"{kind}-{status}", messages=HELLO, stream=kind == "stream")
    assert (type(caught.value), caught.value.status_code) == (raised, expected)


def test_the_wait_that_a_provider_asks_for_is_passed_on(client: openai.OpenAI, simulator: SimulatorProcess) -> None:
    simulator.set(error_rate=1, status=429, retry_after=7)
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model="chat-only", messages=HELLO)
    assert caught.value.response.headers["retry-after"] == "7"


def test_nobody_to_connect_to_is_a_server_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="nobody", messages=HELLO)
    assert (caught.value.status_code, caught.value.code) == (502, "upstream_error")


def test_a_stream_that_is_cut_raises_and_does_not_end(client: openai.OpenAI, simulator: SimulatorProcess) -> None:
    simulator.set(cut_rate=1)
    got: list[str] = []

    def read(stream: openai.Stream[ChatCompletionChunk]) -> None:
        for chunk in stream:
            got.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 - what came before counts

    with (
        client.chat.completions.create(model="g", messages=HELLO, stream=True) as stream,
        pytest.raises(openai.APIError) as caught,
    ):
        read(stream)
    assert "".join(got).startswith("Simulated answer from sim:")
    assert caught.value.code == "upstream_stream_truncated"


def test_leaving_a_stream_ends_the_call_to_the_provider(
    client: openai.OpenAI, simulator: SimulatorProcess, served: Served
) -> None:
    simulator.set(tokens_per_second=20, output_tokens=2000)
    stream = client.chat.completions.create(model="g", messages=HELLO, stream=True)
    id = stream.response.headers["x-request-id"]
    for _ in range(3):
        next(stream)
    assert simulator.counters()["in_flight"] == 1
    left_at = time.monotonic()
    stream.close()
    simulator.until(lambda: simulator.counters()["cancelled"] == 1, what="the provider's call to end", seconds=5)
    assert time.monotonic() - left_at < 1.0
    record = served.end_of(id)
    assert (record.outcome, record.error_code, record.status) == ("client_cancelled", "client_closed_request", 200)


@in_loop
async def test_async_clients_ask_at_the_same_time(served: Served, simulator: SimulatorProcess) -> None:
    simulator.set(latency_ms=200)

    async def stream() -> str:
        async with asking.chat.completions.stream(model="g", messages=HELLO) as events:
            completion = await events.get_final_completion()
            return completion.choices[0].message.content or ""

    async def unary() -> str:
        completion = await asking.chat.completions.create(model="g", messages=HELLO)
        return completion.choices[0].message.content or ""

    async with openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key=served.token, max_retries=0, timeout=20
    ) as asking:
        answers = await asyncio.gather(*(work() for work in (stream, unary) for _ in range(5)))
    assert len(answers) == 10
    assert all(answer.startswith("Simulated answer from sim:") for answer in answers)
    assert simulator.counters()["max_in_flight"] == 10


@in_loop
async def test_a_cancelled_async_stream_ends_the_call_to_the_provider(
    served: Served, simulator: SimulatorProcess
) -> None:
    simulator.set(tokens_per_second=20, output_tokens=2000)
    begun = asyncio.Event()

    async def listen() -> None:
        async with await asking.chat.completions.create(model="g", messages=HELLO, stream=True) as stream:
            async for _ in stream:
                begun.set()

    async with openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key=served.token, max_retries=0, timeout=20
    ) as asking:
        task = asyncio.create_task(listen())
        await asyncio.wait_for(begun.wait(), 10)
        left_at = time.monotonic()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(
            simulator.until, lambda: simulator.counters()["cancelled"] == 1, what="the end", seconds=5
        )
        assert time.monotonic() - left_at < 1.0
