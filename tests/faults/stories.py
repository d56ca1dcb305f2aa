"""One request to a group of two: `a`, whose upstream plays a hostile script, and `b`, which answers. What came of it.

A story also checks what holds after every request, whatever happened: one record of the beginning and one of the end, one
log line, no place taken and no attempt under way, no connection left that is not fit for reuse, no task left.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from reports.core.record import EndRecord
from routing.core.catalog import Group, Target
from routing.core.document import Dialect
from tests.support.asgi import Reply
from tests.support.relays import (
    DONE,
    Bench,
    chat_event,
    completion,
    in_order,
    message,
    relaying,
    sse,
    target_on,
    text,
)
from tests.support.scripted import (
    Close,
    Expect,
    Repeat,
    Script,
    ScriptedUpstream,
    Send,
    answer,
    scripted,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A dialect, as a client and a provider speak it."""

    path: str
    dialect: Dialect
    request: dict[str, Any]
    opening: bytes
    """Events before the first content."""
    content: Callable[[str], bytes]
    """An event with this text."""
    ending: bytes
    """The terminal event and the marker."""
    marker: bytes
    answer: Callable[[str], dict[str, Any]]
    """A unary answer with this text."""

    def asking(self, *, stream: bool, **more: Any) -> dict[str, Any]:
        return {**self.request, "stream": stream, **more}

    def whole(self, said: str) -> bytes:
        """A complete stream."""
        return self.opening + self.content(said) + self.ending

    def body(self, said: str, *, stream: bool) -> bytes:
        return self.whole(said) if stream else msgspec.json.encode(self.answer(said))

    def answered(self, said: str, *, stream: bool) -> bytes:
        """The bytes of a whole HTTP answer."""
        kind = "text/event-stream" if stream else "application/json"
        return answer(self.body(said, stream=stream), content_type=kind)


def message_event(name: str, **data: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode({"type": name, **data}))


def _message_delta(said: str) -> bytes:
    return message_event("content_block_delta", index=0, delta={"type": "text_delta", "text": said})


CHAT = Side(
    path="/v1/chat/completions",
    dialect="openai-chat",
    request={"model": "g", "messages": [{"role": "user", "content": "hi"}]},
    opening=chat_event({"role": "assistant", "content": ""}),
    content=text,
    ending=chat_event(finish="stop") + DONE,
    marker=DONE,
    answer=completion,
)
MESSAGES = Side(
    path="/v1/messages",
    dialect="anthropic",
    request={"model": "g", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]},
    opening=message_event("message_start", message={"id": "m", "role": "assistant", "usage": {"input_tokens": 5}})
    + message_event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    content=_message_delta,
    ending=message_event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
    + message_event("message_stop"),
    marker=message_event("message_stop"),
    answer=message,
)
SIDES = {"chat": CHAT, "messages": MESSAGES}

HEAD = b"HTTP/1.1 200 OK\r\n"


def head(*, stream: bool, more: bytes = b"") -> bytes:
    """Of an answer with status 200 whose framing `more` says."""
    kind = b"text/event-stream" if stream else b"application/json"
    return HEAD + b"content-type: " + kind + b"\r\n" + more + b"\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came of one request."""

    reply: Reply
    end: EndRecord
    attempts: list[tuple[str, str, str | None]]
    """Target, outcome, error code."""
    books: dict[str, tuple[float, float, float, float]]
    """Of each target: attempts, errors, timeouts, fallbacks."""
    asked: dict[str, int]
    """Requests that reached each upstream."""
    bad: ScriptedUpstream


def serving(side: Side, *, stream: bool, said: str = "b") -> Script:
    return [Repeat([Expect(), Send(side.answered(said, stream=stream))])]


async def told(
    script: Script | None,
    *,
    side: Side,
    stream: bool,
    alone: bool = False,
    first: Callable[[Target], Target] = lambda target: target,
    provider: dict[str, Any] | None = None,
    request: dict[str, Any] | bytes | None = None,
    scripts: Sequence[Script] | None = None,
    settled: bool = True,
    **group: Any,
) -> Told:
    """`alone`: there is no `b`. `first` changes the target `a`. `settled=False`: the caller checks what is left."""
    async with (
        scripted(script, scripts=scripts) as bad,
        scripted(serving(side, stream=stream)) as good,
    ):
        a = first(target_on(bad, "a", dialect=side.dialect, provider=provider or {}))
        b = target_on(good, "b", dialect=side.dialect)
        targets = (a,) if alone else (a, b)
        async with relaying(in_order(*targets, **group)) as bench:
            reply = await bench.post(side.path, side.asking(stream=stream) if request is None else request)
            if settled:
                await settle(bench, bad, good)
            return Told(
                reply=reply,
                end=bench.end,
                attempts=attempts(bench),
                books=books(bench),
                asked={"a": len(bad.requests), "b": len(good.requests)},
                bad=bad,
            )


def attempts(bench: Bench) -> list[tuple[str, str, str | None]]:
    return [(attempt.target, attempt.outcome, attempt.error_code) for attempt in bench.end.attempts]


def books(bench: Bench) -> dict[str, tuple[float, float, float, float]]:
    group = group_of(bench)
    stats = bench.relay.observations.stats(group, now=bench.relay.clock()).targets
    return {
        name: (each.window.attempts, each.window.errors, each.window.timeouts, each.window.fallbacks)
        for name, each in stats.items()
    }


def group_of(bench: Bench, name: str = "g") -> Group:
    assert bench.snapshot.catalog is not None
    return bench.snapshot.catalog.groups[name]


async def settle(bench: Bench, *upstreams: ScriptedUpstream, requests: int = 1) -> None:
    """Nothing is left of the requests but their records."""
    kept = bench.kept
    assert (len(kept.intents), len(kept.ends), len(kept.lines)) == (requests, requests, requests)
    assert {intent.id for intent in kept.intents} == {end.id for end in kept.ends}
    relay = bench.relay
    names = [target.provider.name for target in group_of(bench).targets]
    await until(lambda: not relay.in_flight and not any(bench.transport.in_use(name) for name in names))
    await until(lambda: sum(each.open_connections for each in upstreams) == bench.transport.open_connections)
    await until(lambda: len(asyncio.all_tasks()) <= 1 + sum(each.open_connections for each in upstreams))
    assert [relay.observations.provider_in_flight(name) for name in names] == [0] * len(names)
    assert bench.end.status == kept.lines[-1].status  # type: ignore[attr-defined]  # a LogLine


async def until(condition: Callable[[], bool], *, within: float = 5.0) -> None:
    """Gives the loop turns until `condition()` holds."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - no one else knows when
            await asyncio.sleep(0.002)


def failed_over(
    told: Told,
    side: Side,
    *,
    stream: bool,
    code: str,
    outcome: Literal["server_error", "timeout", "denied"] = "server_error",
) -> None:
    """The client has `b`'s answer and no trace of `a`; `a` is charged once and `b` has one good attempt."""
    errors, timeouts = (0.0, 1.0) if outcome == "timeout" else (1.0, 0.0)
    assert (told.reply.status, told.reply.complete) == (200, True)
    assert told.reply.body == side.body("b", stream=stream)
    assert told.attempts == [("a", outcome, code), ("b", "ok", None)]
    assert told.books == {"a": (1.0, errors, timeouts, 1.0), "b": (1.0, 0.0, 0.0, 0.0)}
    end = told.end
    assert (end.outcome, end.status, end.target, end.error_code) == ("success", 200, "b", None)
    assert (end.input_tokens, end.output_tokens) == (
        (5, 2) if not stream or side is MESSAGES else (end.input_tokens, 1)
    )


def refused(told: Told, status: int, code: str) -> None:
    """There was no other target: one error of the gateway's, in the dialect, that tells nothing of the provider."""
    reply = told.reply
    assert (reply.status, reply.complete, reply.header("content-type")) == (status, True, "application/json")
    error = reply.json()["error"]
    kind = {429: "rate_limit_error"}.get(status, "api_error")
    assert error["type"] == kind
    if "code" in error:
        assert error["code"] == code
    assert (told.end.outcome, told.end.status, told.end.error_code) == ("upstream_failed", status, code)
    assert b"127.0.0.1" not in reply.body


def broke(
    told: Told,
    side: Side,
    *,
    delivered: bytes,
    code: str,
    attempt: str,
    outcome: Literal["server_error", "timeout"] = "server_error",
) -> None:
    """After the commit point: what came, then one error event, no end marker, nobody else asked, charged once."""
    reply = told.reply
    assert (reply.status, reply.complete) == (200, True)
    assert reply.body[: len(delivered)] == delivered
    error = error_event_of(reply.body[len(delivered) :], side)
    if side is CHAT:
        assert error == {"message": error["message"], "type": "upstream_error", "param": None, "code": code}
    else:
        assert error["type"] in ("api_error", "overloaded_error")
    assert side.marker not in reply.body
    errors, timeouts = (0.0, 1.0) if outcome == "timeout" else (1.0, 0.0)
    assert told.attempts == [("a", outcome, attempt)]
    assert told.books["a"] == (1.0, errors, timeouts, 0.0)
    assert told.asked == {"a": told.asked["a"], "b": 0}
    end = told.end
    assert (end.outcome, end.status, end.error_code) == ("upstream_truncated", 200, code)
    assert (end.usage_quality, end.terminal_marker) == ("estimated", None)


def error_event_of(event: bytes, side: Side) -> dict[str, Any]:
    """The error of a body's rest that is one whole error event."""
    assert event.endswith(b"\n\n"), event
    lines = event[:-2].split(b"\n")
    if side is MESSAGES:
        assert lines[0] == b"event: error", event
        lines = lines[1:]
    assert len(lines) == 1, event
    decoded = msgspec.json.decode(lines[0].removeprefix(b"data: "))
    error: dict[str, Any] = decoded["error"]
    return error


def stream_of(*events: bytes) -> Script:
    """Streams these bytes and ends with the connection."""
    return [Expect(), Send(sse(*events)), Close()]
