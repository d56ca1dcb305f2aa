"""The stand-in provider: it answers as providers do, misbehaves on demand, and tells what it saw."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from gateway.simulator import Behaviour, Simulator
from tests.support.asgi import Reply, call
from tests.support.loops import run
from tests.support.processes import StartSimulator

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"


def at_once(**behaviour: Any) -> Simulator:
    return Simulator(Behaviour(latency_ms=0, jitter_ms=0, tokens_per_second=0, **behaviour))


def asking(text: str = "Hello", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]} | more


async def post(app: Simulator, path: str, body: dict[str, Any] | bytes) -> Reply:
    return await call(app, "POST", path, body).answered()


def answer(app: Simulator, path: str, body: dict[str, Any] | bytes) -> Reply:
    return run(post(app, path, body))


def bounded(main: Coroutine[Any, Any, None]) -> None:
    run(main)


def test_the_same_seed_and_request_give_the_same_answer_and_others_do_not() -> None:
    def text(seed: int, question: str) -> str:
        app = Simulator(Behaviour(latency_ms=0, jitter_ms=0, tokens_per_second=0), seed=seed)
        body: str = answer(app, CHAT, asking(question)).text
        return body

    assert text(1, "a") == text(1, "a")
    assert len({text(1, "a"), text(2, "a"), text(1, "b")}) == 3


def test_a_cap_ends_the_answer_and_says_so() -> None:
    app = at_once(output_tokens=50)
    chat = answer(app, CHAT, asking(max_completion_tokens=7)).json()
    assert (chat["choices"][0]["finish_reason"], chat["usage"]["completion_tokens"]) == ("length", 7)
    messages = answer(app, MESSAGES, asking(max_tokens=7)).json()
    assert (messages["stop_reason"], messages["usage"]["output_tokens"]) == ("max_tokens", 7)
    assert answer(app, CHAT, asking()).json()["usage"]["completion_tokens"] == 50


def test_a_stream_says_what_the_whole_answer_says() -> None:
    app = at_once()
    whole = answer(app, CHAT, asking()).json()["choices"][0]["message"]["content"]
    assert whole.startswith("Simulated answer from simulator:")
    streamed = answer(app, CHAT, asking(stream=True))
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == whole
    assert streamed.header("content-type") == "text/event-stream; charset=utf-8"
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert '"usage"' not in streamed.text
    with_usage = answer(app, CHAT, asking(stream=True, stream_options={"include_usage": True})).text
    assert '"choices":[],"usage":{"prompt_tokens":' in with_usage


def test_a_beginning_that_was_seen_counts_as_cached_until_its_time_is_up() -> None:
    now = 0.0
    app = Simulator(Behaviour(latency_ms=0, jitter_ms=0, tokens_per_second=0), clock=lambda: now)
    system = {"role": "system", "content": "s" * 4000}

    def cached(question: str) -> int:
        body = {"model": "m", "messages": [system, {"role": "user", "content": question}]}
        usage = answer(app, CHAT, body).json()["usage"]
        count: int = usage["prompt_tokens_details"]["cached_tokens"]
        assert count < usage["prompt_tokens"]
        return count

    assert cached("a") == 0
    assert 1000 <= cached("b") <= 1020
    now = 299.0
    assert cached("c") >= 1000
    now = 299.0 + 300.0
    assert cached("d") == 0


def test_messages_report_cached_tokens_apart_from_the_others() -> None:
    app = at_once()
    body = asking("x" * 4000, max_tokens=10)
    first = answer(app, MESSAGES, body).json()["usage"]
    second = answer(app, MESSAGES, body).json()["usage"]
    total = first["input_tokens"]
    assert (first["cache_read_input_tokens"], second["cache_read_input_tokens"]) == (0, total - 1)
    assert second["input_tokens"] == 1


def test_counting_counts_and_grows_with_system_and_tools() -> None:
    app = at_once()
    bare = answer(app, COUNT, asking("x" * 400)).json()
    tools = [{"name": "t", "input_schema": {"type": "object"}}]
    more = answer(app, COUNT, asking("x" * 400, system="s" * 400, tools=tools)).json()
    assert set(bare) == {"input_tokens"}
    assert 100 <= bare["input_tokens"] < 130
    assert more["input_tokens"] > bare["input_tokens"] + 100


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, asking()), (MESSAGES, asking(max_tokens=9)), (RESPONSES, {"model": "m", "input": "Hello"})],
)
def test_failures_have_the_shape_of_their_dialect_and_the_wait_that_was_set(path: str, body: dict[str, Any]) -> None:
    reply = answer(at_once(error_rate=1.0, status=429, retry_after=7), path, body)
    assert (reply.status, reply.header("retry-after")) == (429, "7")
    assert reply.json()["error"]["type"] == "rate_limit_error"
    assert ("type" in reply.json()) is (path == MESSAGES)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"model":"m"}', b'{"model":"m","messages":[]}', b'{"messages":[{}]}'])
def test_a_body_that_is_no_request_is_400(body: bytes) -> None:
    app = at_once()
    assert answer(app, CHAT, body).status == 400
    assert app.counters.errors == 1


def test_a_share_of_requests_fails_and_the_rest_is_answered() -> None:
    app = at_once(error_rate=0.3)

    async def main() -> None:
        replies = [await post(app, CHAT, asking()) for _ in range(300)]
        failed = sum(reply.status == 500 for reply in replies)
        assert 60 <= failed <= 120
        assert (app.counters.requests, app.counters.errors, app.counters.answered) == (300, failed, 300 - failed)

    bounded(main())


@pytest.mark.parametrize("stream", [True, False])
def test_a_cut_answer_breaks_off_in_the_middle(stream: bool) -> None:
    app = at_once(cut_rate=1.0)
    reply = answer(app, CHAT, asking(stream=stream))
    assert (reply.status, reply.complete, app.counters.cut, app.counters.answered) == (200, False, 1, 0)
    assert "Simulated" in reply.text
    assert "[DONE]" not in reply.text


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_stream_can_open_with_an_error(path: str) -> None:
    body = {"model": "m", "input": "x", "messages": [{"role": "user", "content": "x"}], "stream": True}
    reply = answer(at_once(error_event_rate=1.0), path, body)
    assert reply.status == 200
    assert reply.text.count("\n\n") == 1
    assert "simulated failure" in reply.text


def test_a_hanging_simulator_keeps_the_request_until_the_client_leaves() -> None:
    async def main() -> None:
        app = at_once(hang=True)
        under_way = call(app, "POST", CHAT, asking())
        while not app.counters.in_flight:  # noqa: ASYNC110 - the simulator has no event for it
            await asyncio.sleep(0)
        under_way.hang_up()
        await under_way.answered()
        assert (app.counters.in_flight, app.counters.cancelled, app.counters.answered) == (0, 1, 0)

    bounded(main())


@pytest.mark.parametrize("speed", [0.0, 20.0])
def test_a_client_that_leaves_a_stream_is_noticed(speed: float) -> None:
    async def main() -> None:
        app = Simulator(Behaviour(latency_ms=0, jitter_ms=0, tokens_per_second=speed, output_tokens=100_000))
        under_way = call(app, "POST", CHAT, asking(stream=True))
        await under_way.until(b"Simulated")
        under_way.hang_up()
        await under_way.answered()
        assert (app.counters.in_flight, app.counters.cancelled) == (0, 1)

    bounded(main())


def test_behaviour_changes_while_it_runs_and_can_be_put_back() -> None:
    async def main() -> None:
        app = at_once(name="a")
        await call(app, "POST", "/control", {"error_rate": 1.0, "status": 503}).answered()
        assert (await post(app, CHAT, asking())).status == 503
        refused = await call(app, "POST", "/control", {"eror_rate": 0.5}).answered()
        assert (refused.status, app.behaviour.status) == (400, 503)
        assert "eror_rate" in refused.text
        said = (await call(app, "GET", "/control").answered()).json()
        assert (said["behaviour"]["name"], said["counters"]["requests"]) == ("a", 1)
        await call(app, "POST", "/control/reset").answered()
        assert (await post(app, CHAT, asking())).status == 200
        assert app.counters.requests == 1

    bounded(main())


def test_what_arrived_can_be_looked_at_byte_for_byte() -> None:
    async def main() -> None:
        app = at_once()
        assert (await call(app, "GET", "/control/last").answered()).status == 404
        body = b'{ "model":"m","messages":[{"role":"user","content":"\xc3\xa9"}],"seed":12345678901234567890, "x":1.0}'
        await call(app, "POST", CHAT, body, headers=[(b"X-Y", b"z")], query=b"beta=true").answered()
        last = (await call(app, "GET", "/control/last").answered()).json()
        assert (last["method"], last["path"], last["query"], last["body"]) == ("POST", CHAT, "beta=true", body.decode())
        assert ["x-y", "z"] in last["headers"]
        assert (await call(app, "GET", "/control/last/body").answered()).body == body

    bounded(main())


def test_only_the_credential_that_was_set_is_taken() -> None:
    async def main() -> None:
        app = at_once(api_key="k")
        statuses = [
            (await call(app, "POST", CHAT, asking(), headers=[header]).answered()).status
            for header in ((b"x-other", b"k"), (b"authorization", b"Bearer no"), (b"authorization", b"Bearer k"))
        ]
        statuses.append((await call(app, "POST", MESSAGES, asking(), headers=[(b"x-api-key", b"k")]).answered()).status)
        assert statuses == [401, 401, 200, 200]

    bounded(main())


def test_other_paths_and_methods_are_told() -> None:
    async def main() -> None:
        app = at_once()
        assert (await call(app, "GET", "/v1/nothing").answered()).status == 404
        wrong = await call(app, "GET", CHAT).answered()
        assert (wrong.status, wrong.header("allow")) == (405, "POST")
        models = (await call(app, "GET", "/v1/models").answered()).json()
        assert [model["id"] for model in models["data"]] == ["simulator"]

    bounded(main())


PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}


class City(BaseModel):
    name: str
    inhabitants: int


@pytest.mark.e2e
def test_the_openai_client_understands_every_kind_of_answer(start_simulator: StartSimulator) -> None:
    simulator = start_simulator(latency_ms=0, jitter_ms=0, tokens_per_second=0)
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
    hello: Any = [{"role": "user", "content": "Hello"}]
    use: Any = [{"role": "user", "content": "Please use the tool."}]
    with openai.OpenAI(base_url=simulator.base_url, api_key="k", max_retries=0) as client:
        whole = client.chat.completions.create(model="m", messages=hello)
        assert whole.choices[0].message.content is not None
        with client.chat.completions.stream(
            model="m", messages=hello, stream_options={"include_usage": True}
        ) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.content is not None
        assert final.usage is not None
        with client.chat.completions.stream(model="m", messages=use, tools=[tool]) as stream:
            call = stream.get_final_completion().choices[0].message.tool_calls
        assert call is not None
        assert (call[0].function.name, call[0].function.arguments) == ("weather", '{"city":"value","days":1}')
        parsed = client.chat.completions.parse(model="m", messages=hello, response_format=City)
        assert parsed.choices[0].message.parsed == City(name="value", inhabitants=1)
        response = client.responses.create(model="m", input="Hello")
        assert response.output_text.startswith("Simulated answer")
        with client.responses.stream(model="m", input="Hello") as events:
            assert events.get_final_response().output_text.startswith("Simulated answer")
        simulator.set(error_rate=1.0, status=429)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="m", messages=hello)


@pytest.mark.e2e
def test_the_anthropic_client_understands_every_kind_of_answer(start_simulator: StartSimulator) -> None:
    simulator = start_simulator(latency_ms=0, jitter_ms=0, tokens_per_second=0)
    tool: Any = {"name": "weather", "input_schema": PARAMETERS}
    hello: Any = [{"role": "user", "content": "Hello"}]
    use: Any = [{"role": "user", "content": "Please use the tool."}]
    with anthropic.Anthropic(base_url=simulator.origin, api_key="k", max_retries=0) as client:
        whole = client.messages.create(model="m", max_tokens=200, messages=hello)
        assert (whole.stop_reason, whole.content[0].type) == ("end_turn", "text")
        with client.messages.stream(
            model="m", max_tokens=2000, messages=hello, thinking={"type": "enabled", "budget_tokens": 1024}
        ) as stream:
            final = stream.get_final_message()
        assert [block.type for block in final.content] == ["thinking", "text"]
        with client.messages.stream(model="m", max_tokens=200, messages=use, tools=[tool]) as stream:
            block = stream.get_final_message().content[0]
        assert block.type == "tool_use"
        assert (block.name, block.input) == ("weather", {"city": "value", "days": 1})
        assert client.messages.count_tokens(model="m", messages=hello).input_tokens > 0
        simulator.set(error_rate=1.0, status=529)
        with pytest.raises(anthropic.APIStatusError) as error:
            client.messages.create(model="m", max_tokens=200, messages=hello)
        assert error.value.status_code == 529


@pytest.mark.e2e
def test_a_cut_answer_reaches_a_client_as_a_broken_connection(start_simulator: StartSimulator) -> None:
    simulator = start_simulator(latency_ms=0, jitter_ms=0, tokens_per_second=0, cut_rate=1.0)
    hello: Any = [{"role": "user", "content": "Hello"}]
    client = openai.OpenAI(base_url=simulator.base_url, api_key="k", max_retries=0)
    with client, pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(model="m", messages=hello)
    assert simulator.counters()["cut"] == 1
    assert "Traceback" not in simulator.output()
