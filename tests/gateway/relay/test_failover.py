"""When a target fails: who is blamed, who serves instead, how long nobody asks it again, and what the client hears."""

import asyncio
from collections.abc import Mapping

import msgspec
import pytest

from routing.core.catalog import AttemptPolicy, HealthPolicy
from routing.core.document import Dialect
from routing.core.stats import Sums
from tests.support.loops import in_loop
from tests.support.relays import (
    DONE,
    Bench,
    answering,
    chat_event,
    completion,
    in_order,
    message,
    relaying,
    sse,
    target_on,
    text,
)
from tests.support.scripted import AwaitPeer, Close, Expect, Pause, Script, ScriptedUpstream, Send, answer, scripted

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
STOP = chat_event(finish="stop")
TOO_MANY = {"error": {"message": "slow down", "type": "rate_limit_error"}}


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def hi(number: int = 0, *, stream: bool = False) -> dict[str, object]:
    """A request of conversation `number`."""
    return {"model": "g", "messages": [{"role": "user", "content": f"hi {number}"}], "stream": stream}


def ask(*, stream: bool = False) -> dict[str, object]:
    return {**hi(stream=stream), "max_tokens": 64}


def in_turn(*answers: bytes) -> Script:
    """A provider that gives these answers one after the other, on one connection."""
    return [step for each in answers for step in (Expect(), Send(each))]


def json_answer(body: Mapping[str, object], status: int = 200, **headers: str) -> bytes:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return answer(msgspec.json.encode(body), status=status, headers=fields)


def saying(*events: bytes) -> Script:
    """A provider that streams these bytes to every request and ends its connection."""
    return [Expect(), Send(sse(*events)), Close()]


FAILING: Script = answering({"error": {"message": "boom"}}, status=500)


def attempts(bench: Bench) -> list[tuple[str, str]]:
    return [(attempt.target, attempt.outcome) for attempt in bench.end.attempts]


# By whose fault.


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_a_callers_own_fault_changes_nothing_for_the_target_and_is_passed_on_as_it_was_said(status, stream):
    said = {"error": {"message": "image too large", "type": "invalid_request_error", "param": "messages", "code": "x"}}
    async with (
        scripted(answering(said, status=status, headers=[("openai-processing-ms", "7"), ("set-cookie", "a=b")])) as a,
        scripted(answering(completion())) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b"))) as bench,
    ):
        for number in range(50):
            reply = await bench.post(CHAT, hi(number, stream=stream))
            assert (reply.status, reply.body) == (status, msgspec.json.encode(said))
            assert reply.header("content-type") == "application/json"
            assert (reply.header("openai-processing-ms"), reply.header("set-cookie")) == ("7", None)
        assert (len(a.requests), len(b.requests)) == (50, 0)
        group = bench.snapshot.catalog.groups["g"]  # type: ignore[union-attr]  # the bench always has a catalog
        stats = bench.relay.observations.stats(group, now=bench.relay.clock())
        assert (stats.observations, stats.targets["a"].window) == (0, Sums())
        assert bench.relay.observations.health(group, now=bench.relay.clock()) == {}
    assert attempts(bench) == [("a", "caller_fault")]
    assert (bench.end.outcome, bench.end.status) == ("refused", status)


@pytest.mark.parametrize("status", [401, 403, 404])
@in_loop
async def test_a_refused_credential_takes_the_target_out_at_once_and_is_never_the_callers(status):
    said = {"error": {"message": "Incorrect API key provided: sk-secret", "code": "invalid_api_key"}}
    async with (
        scripted(answering(said, status=status)) as a,
        scripted(answering(completion("b"))) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b"))) as bench,
    ):
        first = await bench.post(CHAT, hi())
        assert attempts(bench) == [("a", "denied"), ("b", "ok")]
        second = await bench.post(CHAT, hi())
        assert attempts(bench) == [("b", "ok")]
        assert [(exclusion.target, exclusion.reason) for exclusion in bench.end.exclusions] == [("a", "denied")]
    assert [(reply.status, reply.json()) for reply in (first, second)] == [(200, completion("b"))] * 2
    assert len(a.requests) == 1


@pytest.mark.parametrize("status", [401, 403, 404])
@in_loop
async def test_a_refused_credential_without_another_target_is_a_502_that_tells_nothing(status):
    said = {"error": {"message": "Incorrect API key provided: sk-secret", "code": "invalid_api_key"}}
    async with scripted(answering(said, status=status)) as a, relaying(in_order(target_on(a, "a"))) as bench:
        reply = await bench.post(CHAT, hi())
    assert (reply.status, reply.json()["error"]["code"]) == (502, "upstream_denied")
    assert "sk-secret" not in reply.text


@in_loop
async def test_a_providers_server_error_keeps_its_status_and_not_its_text():
    said = {"error": {"message": "crash at http://10.0.0.1 with sk-secret"}}
    async with (
        scripted(answering(said, status=507, headers=[("retry-after", "9")])) as a,
        relaying(in_order(target_on(a, "a"))) as bench,
    ):
        reply = await bench.post(CHAT, hi())
    assert (reply.status, reply.header("retry-after")) == (507, "9")
    assert (reply.json()["error"]["type"], reply.json()["error"]["code"]) == ("api_error", "upstream_server_error")
    assert "sk-secret" not in reply.text
    assert "10.0.0.1" not in reply.text


@in_loop
async def test_a_provider_that_is_not_there_is_a_502_or_the_next_target():
    async with scripted([]) as gone:
        away = target_on(gone, "a")
    async with (
        scripted(answering(completion("b"))) as b,
        relaying(in_order(away, target_on(b, "b")), in_order(away, name="alone")) as bench,
    ):
        served = await bench.post(CHAT, hi())
        alone = await bench.post(CHAT, {**hi(), "model": "alone"})
    assert (served.status, served.json()) == (200, completion("b"))
    assert (alone.status, alone.json()["error"]["code"]) == (502, "upstream_error")


# Failing in a row.


@in_loop
async def test_a_target_that_fails_fast_gains_nothing_and_is_out_after_five_failures_with_one_probe_a_time():
    clock = Clock()
    async with (
        scripted(FAILING) as a,
        scripted(answering(completion("b"))) as b,
        relaying(
            in_order(
                target_on(a, "a", weight=3.0),
                target_on(b, "b", weight=1.0),
                strategy="dynamic_score",
                health=HealthPolicy(max_consecutive_failures=5, probe_first_s=10.0),
            ),
            clock=clock,
        ) as bench,
    ):
        asked: list[float] = []
        modes: list[str | None] = []
        for number in range(200):
            before = len(a.requests)
            reply = await bench.post(CHAT, hi(number))
            assert (reply.status, reply.json()) == (200, completion("b"))
            if len(a.requests) > before:
                asked.append(clock.now - 1_000.0)
                modes.append(bench.end.mode)
            clock.now += 0.5
    assert asked[:5] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert asked[5:] == [12.0, 22.0, 42.0, 82.0]
    assert modes == ["cold_start"] * 5 + ["probe"] * 4


@in_loop
async def test_two_good_probes_bring_a_target_back():
    clock = Clock()
    script: Script = [*in_turn(*[json_answer({}, 500)] * 5), *answering(completion("a"))]
    async with (
        scripted(script) as a,
        scripted(answering(completion("b"))) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b")), clock=clock) as bench,
    ):
        for _ in range(6):
            await bench.post(CHAT, hi())
        assert attempts(bench) == [("b", "ok")]
        clock.now += 10.0
        served: list[object] = []
        for _ in range(3):
            await bench.post(CHAT, hi())
            served.append((bench.end.target, bench.end.mode))
    assert served == [("a", "probe"), ("a", "probe"), ("a", "configured")]


@in_loop
async def test_when_every_target_is_out_the_least_bad_is_tried_and_the_record_says_so():
    async with scripted(FAILING) as a, relaying(in_order(target_on(a, "a"))) as bench:
        for _ in range(6):
            reply = await bench.post(CHAT, hi())
            assert reply.status == 500
    assert (bench.end.mode, bench.end.flags, attempts(bench)) == ("panic", ["panic"], [("a", "server_error")])


# How many attempts.


@in_loop
async def test_no_more_attempts_are_made_than_the_group_allows():
    async with (
        scripted(FAILING) as a,
        scripted(FAILING) as b,
        scripted(answering(completion("c"))) as c,
        relaying(
            in_order(target_on(a, "a"), target_on(b, "b"), target_on(c, "c"), attempts=AttemptPolicy(max=2))
        ) as bench,
    ):
        reply = await bench.post(CHAT, hi())
    assert (reply.status, c.requests) == (500, [])
    assert attempts(bench) == [("a", "server_error"), ("b", "server_error")]
    assert bench.end.candidates is not None
    assert bench.end.candidates.targets == ["a", "b", "c"]


@in_loop
async def test_an_empty_retry_budget_leaves_one_attempt_until_it_has_filled_again():
    clock = Clock()
    policy = AttemptPolicy(retry_min_per_second=1.0, retry_share=0.0)
    async with (
        scripted(FAILING) as a,
        scripted(answering(completion("b"))) as b,
        relaying(
            in_order(
                target_on(a, "a"),
                target_on(b, "b"),
                attempts=policy,
                health=HealthPolicy(max_consecutive_failures=1_000),
            ),
            clock=clock,
        ) as bench,
    ):
        statuses = [(await bench.post(CHAT, hi())).status for _ in range(32)]
        assert statuses == [200] * 30 + [500] * 2
        assert attempts(bench) == [("a", "server_error")]
        clock.now += 1.0
        statuses = [(await bench.post(CHAT, hi())).status for _ in range(2)]
    assert statuses == [200, 500]
    assert len(b.requests) == 31


# At capacity.


@pytest.mark.parametrize("bound", ["target", "provider"])
@in_loop
async def test_a_target_at_its_bound_is_passed_over_at_once_and_without_blame(bound):
    fields = {"max_in_flight": 1} if bound == "target" else {"provider": {"max_in_flight": 1}}
    async with (
        scripted([Expect(), AwaitPeer()]) as a,
        scripted(answering(completion("b"))) as b,
        relaying(in_order(target_on(a, "a", **fields), target_on(b, "b"))) as bench,
    ):
        held = bench.call(CHAT, hi())
        await asked(a)
        reply = await bench.post(CHAT, hi())
        assert (reply.status, reply.json()) == (200, completion("b"))
        assert attempts(bench) == [("b", "ok")]
        assert [(e.target, e.stage, e.reason) for e in bench.end.exclusions] == [("a", "capacity", "at_capacity")]
        held.hang_up()
        await held.answered()
    assert len(a.requests) == 1


@pytest.mark.parametrize("bound", ["target", "provider"])
@in_loop
async def test_a_lone_target_at_its_bound_is_a_503_and_a_second_to_wait(bound):
    fields = {"max_in_flight": 1} if bound == "target" else {"provider": {"max_in_flight": 1}}
    async with scripted([Expect(), AwaitPeer()]) as a, relaying(in_order(target_on(a, "a", **fields))) as bench:
        held = bench.call(CHAT, hi())
        await asked(a)
        reply = await bench.post(CHAT, hi())
        held.hang_up()
        await held.answered()
    assert (reply.status, reply.header("retry-after"), reply.json()["error"]["code"]) == (503, "1", "at_capacity")


# Throttled.

NOON = 1_764_417_600.0
"""2025-11-29 12:00:00 UTC."""


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "45"}, "45"),
        ({"retry_after": "Sat, 29 Nov 2025 12:00:30 GMT"}, "30"),
        ({"retry_after_ms": "1500"}, "2"),
        ({"retry_after_ms": "100"}, "1"),
        ({"retry_after": "0"}, "1"),
        ({"retry_after": "-3"}, "1"),
        ({"retry_after": "abc"}, "1"),
        ({"retry_after": "999999"}, "60"),
        ({}, "1"),
    ],
)
@in_loop
async def test_a_throttled_caller_is_told_the_wait_and_nobody_is_asked_before_it_is_over(headers, seconds):
    clock = Clock()
    script = in_turn(json_answer(TOO_MANY, 429, **headers), json_answer(completion("again")))
    async with (
        scripted(script) as a,
        relaying(in_order(target_on(a, "a")), clock=clock, wall=lambda: NOON) as bench,
    ):
        first = await bench.post(CHAT, hi())
        assert (first.status, first.header("retry-after")) == (429, seconds)
        assert (first.json()["error"]["type"], first.json()["error"]["code"]) == (
            "rate_limit_error",
            "upstream_rate_limited",
        )
        second = await bench.post(CHAT, hi())
        assert (second.status, second.header("retry-after")) == (429, seconds)
        assert (second.json()["error"]["code"], bench.end.attempts) == ("rate_limited", [])
        assert len(a.requests) == 1
        clock.now += int(seconds)
        third = await bench.post(CHAT, hi())
    assert (third.status, third.json()) == (200, completion("again"))


@in_loop
async def test_a_later_shorter_wait_does_not_shorten_the_rest():
    clock = Clock()
    late: Script = [Expect(), Pause(0.5), Send(json_answer(TOO_MANY, 429, retry_after="5"))]
    at_once: Script = [Expect(), Send(json_answer(TOO_MANY, 429, retry_after="60"))]
    async with (
        scripted(scripts=[late, at_once]) as a,
        relaying(in_order(target_on(a, "a")), clock=clock) as bench,
    ):
        in_flight = bench.call(CHAT, hi())
        await asked(a)
        assert (await bench.post(CHAT, hi())).header("retry-after") == "60"
        clock.now += 10.0
        assert (await in_flight.answered()).header("retry-after") == "50"
        reply = await bench.post(CHAT, hi())
    assert (reply.status, reply.header("retry-after"), len(a.requests)) == (429, "50", 2)


@in_loop
async def test_a_throttled_target_gives_way_to_the_next_one_and_is_not_asked_meanwhile():
    clock = Clock()
    script = in_turn(json_answer(TOO_MANY, 429, retry_after="30"), json_answer(completion("a")))
    async with (
        scripted(script) as a,
        scripted(answering(completion("b"))) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b")), clock=clock) as bench,
    ):
        served: list[list[tuple[str, str]]] = []
        for seconds in (0.0, 29.5, 0.5):
            clock.now += seconds
            assert (await bench.post(CHAT, hi())).status == 200
            served.append(attempts(bench))
    assert served == [[("a", "throttled"), ("b", "ok")], [("b", "ok")], [("a", "ok")]]


@in_loop
async def test_a_throttled_model_rests_in_every_group():
    async with (
        scripted(answering(TOO_MANY, status=429, headers=[("retry-after", "30")])) as a,
        relaying(in_order(target_on(a, "a")), in_order(target_on(a, "a"), name="other")) as bench,
    ):
        assert (await bench.post(CHAT, hi())).status == 429
        reply = await bench.post(CHAT, {**hi(), "model": "other"})
    assert (reply.status, reply.json()["error"]["code"], len(a.requests)) == (429, "rate_limited", 1)


@in_loop
async def test_the_wait_is_the_smallest_of_all_targets_throttled_now_or_before():
    clock = Clock()
    async with (
        scripted(answering(TOO_MANY, status=429, headers=[("retry-after", "8")])) as a,
        scripted(in_turn(json_answer({}, 500), json_answer(TOO_MANY, 429, retry_after="40"))) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b")), clock=clock) as bench,
    ):
        await bench.post(CHAT, hi())
        assert attempts(bench) == [("a", "throttled"), ("b", "server_error")]
        clock.now += 2.0
        while_a_rests = await bench.post(CHAT, hi())
        assert attempts(bench) == [("b", "throttled")]
        clock.now += 1.0
        while_both_rest = await bench.post(CHAT, hi())
    assert (while_a_rests.status, while_a_rests.header("retry-after")) == (429, "6")
    assert (while_both_rest.status, while_both_rest.header("retry-after")) == (429, "5")
    assert (len(a.requests), len(b.requests)) == (1, 2)


@in_loop
async def test_a_failure_among_throttled_targets_is_what_the_client_hears():
    async with (
        scripted(FAILING) as a,
        scripted(answering(TOO_MANY, status=429)) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b"))) as bench,
    ):
        reply = await bench.post(CHAT, hi())
    assert (reply.status, reply.json()["error"]["code"]) == (500, "upstream_server_error")


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "dialect", "status", "code"),
    [(MESSAGES, "anthropic", 529, None), (CHAT, "openai-chat", 503, "upstream_overloaded")],
)
@in_loop
async def test_an_overloaded_provider_alone_is_said_in_the_dialects_own_way(
    path: str, dialect: Dialect, status: int, code: str | None, stream: bool
):
    async with (
        scripted(answering(OVERLOADED, status=529, headers=[("retry-after", "7")])) as a,
        relaying(in_order(target_on(a, "a", dialect=dialect))) as bench,
    ):
        reply = await bench.post(path, ask(stream=stream))
    assert (reply.status, reply.header("retry-after"), reply.header("content-type")) == (
        status,
        "7",
        "application/json",
    )
    assert (reply.json()["error"]["type"], reply.json()["error"].get("code")) == ("overloaded_error", code)


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_an_overloaded_provider_gives_way_to_the_next_target(stream):
    events = [*MESSAGE] if stream else []
    good = saying(*events) if stream else answering(message("b"))
    async with (
        scripted(answering(OVERLOADED, status=529)) as a,
        scripted(good) as b,
        relaying(in_order(target_on(a, "a", dialect="anthropic"), target_on(b, "b", dialect="anthropic"))) as bench,
    ):
        reply = await bench.post(MESSAGES, ask(stream=stream))
    assert (reply.status, reply.body) == (200, b"".join(events) if stream else msgspec.json.encode(message("b")))
    assert attempts(bench) == [("a", "throttled"), ("b", "ok")]


MESSAGE = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":5}}}\n\n',
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"b"}}\n\n',
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
)


@pytest.mark.parametrize(("path", "dialect", "status"), [(MESSAGES, "anthropic", 529), (CHAT, "openai-chat", 503)])
@in_loop
async def test_an_overload_said_as_first_event_of_a_stream_is_the_same_to_a_client(
    path: str, dialect: Dialect, status: int
):
    event = b"event: error\ndata: " + msgspec.json.encode(OVERLOADED) + b"\n\n"
    async with scripted(saying(event)) as a, relaying(in_order(target_on(a, "a", dialect=dialect))) as bench:
        reply = await bench.post(path, ask(stream=True))
    assert (reply.status, reply.json()["error"]["type"]) == (status, "overloaded_error")


# What a caller who may see it is told.


@in_loop
async def test_the_answers_head_names_the_target_that_serves_a_stream_and_not_the_one_that_failed():
    async with (
        scripted(FAILING) as a,
        scripted(saying(text("b"), STOP, DONE)) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b")), see_routing=True) as bench,
    ):
        reply = await bench.post(CHAT, hi(stream=True))
    assert (reply.header("x-pilotage-target"), reply.header("x-pilotage-attempts")) == ("b", "2")


@in_loop
async def test_a_fault_that_is_passed_on_names_the_target_that_found_it():
    async with (
        scripted(FAILING) as a,
        scripted(answering({"error": {}}, status=422)) as b,
        relaying(in_order(target_on(a, "a"), target_on(b, "b")), see_routing=True) as bench,
    ):
        reply = await bench.post(CHAT, hi())
    assert (reply.status, reply.header("x-pilotage-target"), reply.header("x-pilotage-attempts")) == (422, "b", "2")


async def asked(upstream: ScriptedUpstream, *, requests: int = 1) -> None:
    """Returns when the upstream has taken that many requests."""
    async with asyncio.timeout(5):
        while len(upstream.requests) < requests:  # noqa: ASYNC110 - a script tells nobody
            await asyncio.sleep(0.002)


@in_loop
async def test_a_missing_credential_keeps_its_target_out_and_the_log_names_the_variable(caplog):
    async with (
        scripted(answering(completion("b"))) as good,
        relaying(
            in_order(target_on(good, "a", provider={"api_key_env": "NO_SUCH_KEY"}), target_on(good, "b"))
        ) as bench,
    ):
        replies = [
            await bench.post(CHAT, {"model": "g", "messages": [{"role": "user", "content": "hi"}]}) for _ in range(3)
        ]
    assert [reply.status for reply in replies] == [200] * 3
    assert [[(a.target, a.outcome, a.error_code) for a in end.attempts] for end in bench.kept.ends] == [
        [("a", "denied", "upstream_credential_missing"), ("b", "ok", None)],
        [("b", "ok", None)],
        [("b", "ok", None)],
    ]
    warnings = [record.getMessage() for record in caplog.records if record.name == "pilotage.relay"]
    assert len(warnings) == 1
    assert "target a: " in warnings[0]
    assert "NO_SUCH_KEY" in warnings[0]


@in_loop
async def test_a_client_is_not_told_which_credential_is_missing():
    async with (
        scripted(answering(completion("b"))) as good,
        relaying(in_order(target_on(good, "a", provider={"api_key_env": "NO_SUCH_KEY"}))) as bench,
    ):
        reply = await bench.post(CHAT, {"model": "g", "messages": [{"role": "user", "content": "hi"}]})
    assert (reply.status, reply.json()["error"]["code"]) == (502, "upstream_denied")
    assert reply.json()["error"]["message"] == "The gateway has no credential for this provider."
