"""A Relay in this process on real connections: scripted providers, one caller `alice` with a token, records kept."""

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from accounts.core.directory import Caller, Directory, Token
from accounts.core.secret import digest_of, with_checksum
from gateway.relay.app import Relay
from gateway.snapshot import Snapshot
from gateway.upstream.http1 import Http1Transport
from gateway.upstream.pooled import PooledTransport
from reports.core.record import EndRecord, IntentRecord
from routing.core.affinity import Pins
from routing.core.catalog import Group, Target
from routing.core.document import Dialect
from routing.core.observations import Observations
from tests.support.asgi import Call, Reply, call
from tests.support.documents import some_catalog, some_group, some_provider, some_target
from tests.support.scripted import Expect, Repeat, Script, ScriptedUpstream, Send

PEPPER = b"pepper" * 6

kind: type[PooledTransport] = Http1Transport
"""What carries a relay's requests; the fixture `transport` of `tests/faults` sets it to each in turn."""


@dataclass(slots=True)
class Kept:
    """Records and log lines in lists instead of files."""

    intents: list[IntentRecord] = field(default_factory=list)
    ends: list[EndRecord] = field(default_factory=list)
    lines: list[object] = field(default_factory=list)

    def intent(self, record: IntentRecord) -> None:
        self.intents.append(record)

    def end(self, record: EndRecord) -> None:
        self.ends.append(record)

    def flush(self) -> None:
        pass

    def write(self, line: object) -> None:
        self.lines.append(line)


@dataclass(slots=True)
class Bench:
    """What a test holds: the relay, its parts and its one caller."""

    relay: Relay
    snapshot: Snapshot
    transport: PooledTransport
    kept: Kept
    secret: str

    def call(
        self,
        path: str,
        body: bytes | dict[str, Any] = b"",
        *,
        method: str = "POST",
        headers: Sequence[tuple[bytes, bytes]] = (),
        query: bytes = b"",
        pieces: int = 1,
        extensions: dict[str, Any] | None = None,
        anonymous: bool = False,
    ) -> Call:
        fields = list(headers)
        if not anonymous:
            fields.append((b"authorization", b"Bearer " + self.secret.encode()))
        return call(self.relay, method, path, body, headers=fields, query=query, pieces=pieces, extensions=extensions)

    async def post(self, path: str, body: bytes | dict[str, Any], **kwargs: Any) -> Reply:
        return await self.call(path, body, **kwargs).answered()

    @property
    def end(self) -> EndRecord:
        """The newest end record."""
        return self.kept.ends[-1]


@contextlib.asynccontextmanager
async def relaying(group: Group, *more: Group, **settings: Any) -> AsyncIterator[Bench]:
    """A relay that serves these groups; `settings` go to the Relay."""
    secret = with_checksum("a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6")
    caller = Caller(
        name="alice", project="product", allow=frozenset({"*"}), see_routing=settings.pop("see_routing", False)
    )
    token = Token(caller=caller, shown=secret[:12], digest=digest_of(secret.encode(), PEPPER))
    snapshot = Snapshot(some_catalog(group, *more), Directory(version=1, tokens={token.digest: token}))
    transport = kind(environ={})
    kept = Kept()
    chosen: dict[str, Any] = {
        "max_request_bytes": 33_554_432,
        "max_in_flight": 1_024,
        "clock": time.monotonic,
        "wall": time.time,
    } | settings
    relay = Relay(
        snapshot=snapshot,
        observations=Observations(),
        pins=Pins(),
        transport=transport,
        spool=kept,
        lines=kept,
        pepper=PEPPER,
        **chosen,
    )
    try:
        yield Bench(relay, snapshot, transport, kept, secret)
    finally:
        await transport.close()


def target_on(upstream: ScriptedUpstream, name: str, *, dialect: Dialect = "openai-chat", **fields: Any) -> Target:
    """A target called `name` whose provider is this upstream. `provider`: further fields of the provider."""
    provider = some_provider(name, base_url=upstream.base_url, dialect=dialect, **fields.pop("provider", {}))
    return some_target(name, provider=provider, **fields)


def in_order(*targets: Target, name: str = "g", **fields: Any) -> Group:
    """A failover group: the first target first."""
    return some_group(targets, name=name, strategy=fields.pop("strategy", "failover"), **fields)


def sse(*events: bytes) -> bytes:
    """A streamed answer's head, and these bytes; its end is the connection's."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + b"".join(events)


def chat_event(delta: dict[str, Any] | None = None, *, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    """One Chat chunk as an event."""
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish}
    data = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def text(content: str) -> bytes:
    return chat_event({"content": content})


DONE = b"data: [DONE]\n\n"


def answering(body: dict[str, Any], *, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Script:
    """A script that answers every request of a connection with this JSON."""
    raw = msgspec.json.encode(body)
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{fields}content-length: {len(raw)}\r\n\r\n"
    return [Repeat([Expect(), Send(head.encode() + raw)])]


def completion(content: str = "hello", **more: Any) -> dict[str, Any]:
    """A unary Chat answer."""
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
        **more,
    }


def message(content: str = "hello", **more: Any) -> dict[str, Any]:
    """A unary Messages answer."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": content}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 2},
        **more,
    }
