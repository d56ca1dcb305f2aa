"""A stand-in provider for trying, testing and measuring: Chat, Messages and Responses with a temper of its own.

The same seed and prompt give the same answer. `GET /control` tells what it does and has counted, `POST /control`
changes how it behaves from the next request on, `GET /control/last` shows what arrived.
"""

import asyncio
import hashlib
import math
import random
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from gateway import simulator_dialects as dialects
from gateway.simulator_dialects import Answer, Asked, BadRequest, DialectWire

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_BODY_BYTES = 64 << 20
CACHE_TTL_S = 300.0
CACHE_ENTRIES = 10_000


class Behaviour(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What can be set at the start and changed through `/control`."""

    name: str = "simulator"
    latency_ms: float = 50.0
    """To the first content; a unary answer takes its generation time on top."""
    jitter_ms: float = 10.0
    """The latency is drawn evenly from `latency_ms` minus to plus this."""
    tokens_per_second: float = 80.0
    """0: as fast as it can."""
    error_rate: float = 0.0
    """Share of requests answered with `status`."""
    status: int = 500
    retry_after: float | None = None
    """Seconds in the `Retry-After` of such an answer."""
    error_event_rate: float = 0.0
    """Share of streams whose first event is an error."""
    cut_rate: float = 0.0
    """Share of answers that break off half-way, the connection closed."""
    hang: bool = False
    """Takes requests and never answers."""
    output_tokens: int | None = None
    """`None`: 20 to 120, by the request."""
    reasoning: bool = False
    """Thinks before it answers, also unasked."""
    api_key: str | None = None
    """The only credential it takes; `None`: any, or none."""
    models: list[str] = []
    """What `GET /v1/models` lists; any model name is served."""


class Counters(msgspec.Struct, kw_only=True):
    requests: int = 0
    """That asked for an answer or a count."""
    answered: int = 0
    """Complete answers with status 200."""
    errors: int = 0
    cut: int = 0
    cancelled: int = 0
    """The client left before its answer was complete."""
    in_flight: int = 0
    max_in_flight: int = 0


class Arrived(msgspec.Struct, kw_only=True):
    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: str


class ClientLeft(Exception):
    pass


class Cut(Exception):
    """Ends the ASGI call in mid-answer; the server then closes the connection."""


class Simulator:
    """The ASGI application."""

    def __init__(
        self, behaviour: Behaviour | None = None, *, seed: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.behaviour = behaviour or Behaviour()
        self.counters = Counters()
        self._at_start = msgspec.to_builtins(self.behaviour)
        self._seed = seed
        self._clock = clock
        self._chance = random.Random(seed)  # noqa: S311 - a simulation
        self._cache: OrderedDict[bytes, float] = OrderedDict()
        self._last: Arrived | None = None
        self._last_body = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if path.startswith("/control"):
            await self._control(scope, receive, send)
            return
        method: str = scope["method"]
        wire = dialects.BY_PATH.get(path)
        if method == "GET" and path == "/v1/models":
            await _reply(send, 200, self._models())
        elif wire is None:
            await _reply(send, 404, dialects.CHAT.error(404, f"no such path: {path}"))
        elif method != "POST":
            await _reply(send, 405, wire.error(405, "use POST"), [(b"allow", b"POST")])
        else:
            await self._serve(wire, scope, receive, send)

    async def _serve(self, wire: DialectWire, scope: Scope, receive: Receive, send: Send) -> None:
        counters = self.counters
        counters.requests += 1
        counters.in_flight += 1
        counters.max_in_flight = max(counters.max_in_flight, counters.in_flight)
        listener: asyncio.Task[None] | None = None
        try:
            body = await _read(receive)
            self._remember(scope, body)
            listener = asyncio.create_task(_wait_for_disconnect(receive))
            await self._answer(wire, scope, body, send, listener)
        except ClientLeft:
            counters.cancelled += 1
        except Cut:
            counters.cut += 1
        except asyncio.CancelledError:
            counters.cancelled += 1
            raise
        finally:
            counters.in_flight -= 1
            if listener is not None:
                listener.cancel()

    async def _answer(
        self, wire: DialectWire, scope: Scope, body: bytes, send: Send, listener: "asyncio.Task[None]"
    ) -> None:
        behaviour = self.behaviour
        if behaviour.hang:
            await _pause(listener, math.inf)
        if behaviour.api_key is not None and _credential(scope) != behaviour.api_key:
            self.counters.errors += 1
            await _reply(send, 401, wire.error(401, "invalid api key"))
            return
        try:
            asked = wire.read(body)
        except BadRequest as problem:
            self.counters.errors += 1
            await _reply(send, 400, wire.error(400, str(problem)))
            return
        chance = self._chance.random
        # Drawn whether they are needed or not, so that one setting does not shift the fate of another.
        latency_at, error_at, event_at, cut_at = chance(), chance(), chance(), chance()
        wait = max(0.0, behaviour.latency_ms + (2 * latency_at - 1) * behaviour.jitter_ms) / 1000
        began = self._clock()
        if error_at < behaviour.error_rate:
            await _pause(listener, wait)
            self.counters.errors += 1
            headers = []
            if behaviour.retry_after is not None:
                headers.append((b"retry-after", f"{behaviour.retry_after:g}".encode()))
            await _reply(send, behaviour.status, wire.error(behaviour.status, "simulated failure"), headers)
            return
        answer = self._compose(asked)
        if asked.count_only:
            await _pause(listener, wait)
            await _reply(send, 200, msgspec.json.encode({"input_tokens": answer.input_tokens}))
            self.counters.answered += 1
            return
        cut = cut_at < behaviour.cut_rate
        if not asked.stream:
            await _pause(listener, wait + self._generation_s(answer.output_tokens))
            document = wire.whole(asked, answer)
            if cut:
                await _reply(send, 200, document[: len(document) // 2], declared=len(document))
                raise Cut
            await _reply(send, 200, document)
            self.counters.answered += 1
            return
        await self._stream(
            wire, asked, answer, send, listener, began + wait, event_at < behaviour.error_event_rate, cut
        )

    async def _stream(
        self,
        wire: DialectWire,
        asked: Asked,
        answer: Answer,
        send: Send,
        listener: "asyncio.Task[None]",
        first_at: float,
        broken: bool,
        cut: bool,
    ) -> None:
        await _pause(listener, first_at - self._clock())
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        if broken:
            self.counters.errors += 1
            await send({"type": "http.response.body", "body": wire.error_event("simulated failure")})
            return
        speed = self.behaviour.tokens_per_second
        cut_after = answer.output_tokens // 2 if cut else None
        tokens = 0
        async for event, weight in _events(wire, asked, answer):
            if weight:
                if cut_after is not None and tokens >= cut_after:
                    raise Cut
                if speed > 0:
                    # By the plan, not by the last event: a late wake-up does not slow the whole stream.
                    await _pause(listener, first_at + tokens / speed - self._clock())
                tokens += weight
            if listener.done():
                raise ClientLeft
            await send({"type": "http.response.body", "body": event, "more_body": True})
        if cut:
            raise Cut
        if listener.done():
            raise ClientLeft
        await send({"type": "http.response.body", "body": b""})
        self.counters.answered += 1

    def _generation_s(self, tokens: int) -> float:
        speed = self.behaviour.tokens_per_second
        return tokens / speed if speed > 0 else 0.0

    def _compose(self, asked: Asked) -> Answer:
        digest = hashlib.blake2b(b"\0".join(asked.parts), digest_size=16, key=str(self._seed).encode()[:64])
        choice = random.Random(digest.digest())  # noqa: S311 - a simulation
        behaviour = self.behaviour
        wanted = behaviour.output_tokens if behaviour.output_tokens is not None else choice.randint(20, 120)
        cached, total = self._cached_tokens(asked)
        return dialects.compose(
            asked,
            choice=choice,
            name=behaviour.name,
            wanted_tokens=wanted,
            reasoning=behaviour.reasoning or asked.reasoning,
            input_tokens=total,
            cached_tokens=cached,
            id=digest.hexdigest()[:24],
        )

    def _cached_tokens(self, asked: Asked) -> tuple[int, int]:
        """Tokens of the longest beginning seen within the TTL, and of everything."""
        now = self._clock()
        running = hashlib.blake2b(asked.model.encode(errors="replace"), digest_size=16)
        total = cached = 0
        still_cached = True
        for part in asked.parts:
            running.update(part)
            key = running.digest()
            total += len(part)
            still_cached = still_cached and self._cache.get(key, 0.0) > now
            if still_cached:
                cached = total
            self._cache[key] = now + CACHE_TTL_S
            self._cache.move_to_end(key)
        while len(self._cache) > CACHE_ENTRIES:
            self._cache.popitem(last=False)
        tokens = max(1, -(-total // 4))
        return min(cached // 4, tokens - 1), tokens

    def _models(self) -> bytes:
        models = [
            {
                "id": model,
                "object": "model",
                "type": "model",
                "display_name": model,
                "created": 1_700_000_000,
                "created_at": "2023-11-14T22:13:20Z",
                "owned_by": self.behaviour.name,
            }
            for model in self.behaviour.models or [self.behaviour.name]
        ]
        return msgspec.json.encode({"object": "list", "data": models, "has_more": False})

    def _remember(self, scope: Scope, body: bytes) -> None:
        self._last_body = body
        self._last = Arrived(
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"].decode("latin-1"),
            headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]],
            body="",
        )

    async def _control(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        body = await _read(receive)
        if path == "/control" and method == "POST":
            try:
                changes = msgspec.json.decode(body, type=dict[str, Any])
                self.behaviour = msgspec.convert(msgspec.to_builtins(self.behaviour) | changes, Behaviour)
            except (msgspec.MsgspecError, TypeError) as problem:
                await _reply(send, 400, msgspec.json.encode({"error": str(problem)}))
                return
        elif path == "/control/reset" and method == "POST":
            self.behaviour = msgspec.convert(self._at_start, Behaviour)
            self.counters = Counters(in_flight=self.counters.in_flight)
            self._cache.clear()
            self._last = None
            self._last_body = b""
        elif path == "/control/last" and method == "GET":
            if self._last is None:
                await _reply(send, 404, b'{"error":"nothing has arrived"}')
                return
            self._last.body = self._last_body.decode(errors="replace")
            await _reply(send, 200, msgspec.json.encode(self._last))
            return
        elif path == "/control/last/body" and method == "GET":
            await _reply(send, 200, self._last_body)
            return
        elif path != "/control" or method != "GET":
            await _reply(send, 404, b'{"error":"GET or POST /control, POST /control/reset, GET /control/last[/body]"}')
            return
        await _reply(send, 200, msgspec.json.encode({"behaviour": self.behaviour, "counters": self.counters}))


_STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


async def _events(wire: DialectWire, asked: Asked, answer: Answer) -> AsyncIterator[tuple[bytes, int]]:
    """Yields to the event loop now and then, so that a stream without pauses still hears its client leave."""
    for number, event in enumerate(wire.events(asked, answer)):
        if number % 16 == 15:
            await asyncio.sleep(0)
        yield event


async def _read(receive: Receive) -> bytes:
    first = await receive()
    if first["type"] == "http.disconnect":
        raise ClientLeft
    if not first.get("more_body", False):
        return bytes(first.get("body", b""))
    body = bytearray(first.get("body", b""))
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise Cut
        if not message.get("more_body", False):
            return bytes(body)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _pause(listener: "asyncio.Task[None]", seconds: float) -> None:
    """Waits, unless the client leaves first (`ClientLeft`)."""
    if seconds > 0:
        await asyncio.wait((listener,), timeout=None if seconds == math.inf else seconds)
    if listener.done():
        raise ClientLeft


async def _reply(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None, declared: int | None = None
) -> None:
    """`declared`: the Content-Length of an answer that is not whole."""
    length = len(body) if declared is None else declared
    head = [(b"content-type", b"application/json"), (b"content-length", str(length).encode()), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": declared is not None})


def _credential(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            return str(value.decode("latin-1"))
        if name == b"authorization":
            return str(value.decode("latin-1")).removeprefix("Bearer ")
    return None
