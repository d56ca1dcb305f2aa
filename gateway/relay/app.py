"""The ASGI callable for `/v1/`, `/healthz` and `/readyz`: one process's relay and its routes."""

import asyncio
import logging
import os
import struct
from collections.abc import Callable, Coroutine, Iterator, Sequence
from math import inf
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec

from accounts.core.directory import Token
from gateway.dialects import anthropic_messages
from gateway.dialects.neutral import DialectModule
from gateway.dialects.registry import BY_NAME
from gateway.relay.admission import MIB, Admission
from gateway.relay.attempt import AttemptFailed, RetryBudget
from gateway.relay.catalogue import model, models
from gateway.relay.exchange import Endpoint, Exchange, authenticate
from gateway.relay.messages import JSON, Header, Receive, Scope, Send, answer
from gateway.relay.recording import end_record, log_line
from gateway.relay.refusals import Refusal
from gateway.snapshot import Snapshot
from gateway.upstream.client import Transport
from gateway.upstream.errors import ConnectError
from reports.core.record import EndRecord, IntentRecord
from routing.core.affinity import Pins
from routing.core.catalog import Catalog, Provider, Target
from routing.core.observations import Observations

CHAT = BY_NAME["openai-chat"]
MESSAGES = BY_NAME["anthropic"]

ENDPOINTS: dict[str, Endpoint] = {
    "/v1/chat/completions": Endpoint("chat", CHAT, CHAT.PATH, CHAT.decode, CHAT.decoding, is_anthropic=False),
    "/v1/messages": Endpoint(
        "messages", MESSAGES, MESSAGES.PATH, MESSAGES.decode, MESSAGES.decoding, is_anthropic=True
    ),
    "/v1/messages/count_tokens": Endpoint(
        "count_tokens",
        MESSAGES,
        anthropic_messages.COUNT_PATH,
        anthropic_messages.decode_count,
        anthropic_messages.decoding_count,
        is_anthropic=True,
    ),
}

MODELS = "/v1/models"

IDS_AT_ONCE = 256

AT_ONCE_SECONDS = 0.001
COMPANY = 4
"""An exchange that begins so shortly after another one, while so many others are in flight, has come with them."""

TOLD_AT_ONCE = 32
"""Exchanges whose records are made in one go: more would hold up the others."""

WARN_EVERY_SECONDS = 60.0
MAX_WARNED = 1_000
"""Problems of providers that are remembered as said."""

log = logging.getLogger("pilotage.relay")

_encode = msgspec.json.Encoder().encode


class RecordSink(Protocol):
    """Where records go; the spool. Never raises."""

    def intent(self, record: IntentRecord) -> None: ...
    def end(self, record: EndRecord) -> None: ...
    def flush(self) -> None:
        """What came before outlives the process from now on."""
        ...


class LineSink(Protocol):
    """Where log lines go; never blocks."""

    def write(self, entry: object) -> None: ...


class Relay:
    """What the exchanges of one process share. Belongs to the event loop of its first exchange."""

    def __init__(
        self,
        *,
        snapshot: Snapshot,
        observations: Observations,
        pins: Pins,
        transport: Transport,
        spool: RecordSink,
        lines: LineSink,
        pepper: bytes,
        max_request_bytes: int,
        max_in_flight: int,
        max_queued: int = 0,
        queue_seconds: float = 5.0,
        max_body_bytes_held: int = 512 * MIB,
        max_memory_bytes: int = 0,
        max_candidates: int = 32,
        clock: Callable[[], float],
        wall: Callable[[], float],
        draining: Callable[[], bool] = lambda: False,
        trace_share: float | None = None,
    ) -> None:
        """`clock`: monotonic seconds. `wall`: Unix seconds. `draining`: the process was told to stop.

        `max_candidates`: candidates, and exclusions, on one record.
        `trace_share`: of the traces that begin here, how many are sampled; `None`: none is made, and what a request
        brings is passed on as it is.
        """
        self.snapshot = snapshot
        self.observations = observations
        self.pins = pins
        self.transport = transport
        self.spool = spool
        self.pepper = pepper
        self.max_request_bytes = max_request_bytes
        self.max_candidates = max_candidates
        self.admission = Admission(
            max_in_flight=max_in_flight,
            max_queued=max_queued,
            queue_seconds=queue_seconds,
            max_body_bytes_held=max_body_bytes_held,
            max_memory_bytes=max_memory_bytes,
        )
        self.clock = clock
        self.wall = wall
        self.draining = draining
        self.trace_share = trace_share
        self._lines = lines
        self._loop: asyncio.AbstractEventLoop | None = None
        self._latest = -inf
        """When the last exchange began."""
        self._ended: list[Exchange] = []
        """That have not been told of."""
        self._known: Catalog | None = None
        self._budgets: dict[str, RetryBudget] = {}
        self._fixed: dict[str, tuple[Provider, frozenset[bytes]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._warned: dict[tuple[str, str], float] = {}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        if self.snapshot.catalog is not self._known:
            self._forget_removed()
        path: str = scope["path"]
        endpoint = ENDPOINTS.get(path)
        if endpoint is None and (path.endswith("/") or path.startswith("//")):
            path = "/" + path.strip("/")
            endpoint = ENDPOINTS.get(path)
        id = new_id()
        if endpoint is None or scope["method"] != "POST":
            return self._other(scope, send, path, endpoint, id)
        loop = self._loop
        if loop is None:  # asked once: that is a system call
            loop = self._loop = asyncio.get_running_loop()
        return Exchange(self, endpoint, scope, receive, send, id, loop).run()

    def _forget_removed(self) -> None:
        """A new configuration serves: what is remembered of groups that it no longer has can go."""
        catalog = self._known = self.snapshot.catalog
        if catalog is not None:
            self.observations.forget(catalog.groups)
            self.pins.keep_only(catalog.groups)
            self._budgets = {name: budget for name, budget in self._budgets.items() if name in catalog.groups}

    # -- what an exchange needs of its process

    @property
    def in_flight(self) -> int:
        return self.admission.in_flight

    def has_company(self, now: float) -> bool:
        """Told of each exchange once it is admitted, with its start: whether it came at once with others.

        Those take each step of their way together: the code and the data of a step are then in the processor's caches for all
        but the first, and their records go out in one write. On a busy process that is an eighth of what a request costs.
        """
        latest, self._latest = self._latest, now
        return now - latest < AT_ONCE_SECONDS and self.admission.in_flight > COMPANY

    def tell_of(self, exchange: Exchange) -> None:
        """An exchange is over: its record and its log line. In company all come together, in the loop's next turn."""
        if not exchange.in_company:
            return self._record([exchange])
        waiting = self._ended
        waiting.append(exchange)
        if len(waiting) == 1:
            exchange.loop.call_soon(self._tell)
        return None

    def _tell(self) -> None:
        """Tells of all that wait to be told of, `TOLD_AT_ONCE` in a turn."""
        waiting, self._ended = self._ended[:TOLD_AT_ONCE], self._ended[TOLD_AT_ONCE:]
        if self._ended:
            self._ended[0].loop.call_soon(self._tell)
        self._record(waiting)

    def close(self) -> None:
        """The loop has ended: tells of what it left."""
        waiting, self._ended = self._ended, []
        self._record(waiting)

    def _record(self, exchanges: Sequence[Exchange]) -> None:
        records: list[EndRecord] = []
        for exchange in exchanges:
            try:
                record = end_record(exchange)
                self.spool.end(record)
            except Exception:
                log.exception("exchange %s could not be recorded", exchange.id)
            else:
                records.append(record)
        self.spool.flush()
        for record in records:
            self._lines.write(log_line(record))

    def retry_budget(self, group: str) -> RetryBudget:
        budget = self._budgets.get(group)
        if budget is None:
            budget = self._budgets[group] = RetryBudget(now=self.clock())
        return budget

    def fixed_headers(self, provider: Provider) -> frozenset[bytes]:
        """Lower-case names of the fields that the provider's configuration sets."""
        known = self._fixed.get(provider.name)
        if known is None or known[0] is not provider:
            known = (provider, frozenset(name.lower().encode() for name, _ in provider.headers))
            self._fixed[provider.name] = known
        return known[1]

    def warn_of(self, target: Target, failure: AttemptFailed) -> None:
        """Tells the operator what only a change of configuration or of the network mends, once a minute for each."""
        if failure.outcome == "denied" and failure.status is not None:
            problem = f"the provider refuses the gateway's credential or model with {failure.status}"
        elif isinstance(failure.__cause__, ConnectError):
            problem = str(failure.__cause__)
        else:
            return
        key = (target.model_key, problem)
        now = self.clock()
        if now - self._warned.get(key, float("-inf")) >= WARN_EVERY_SECONDS:
            if len(self._warned) >= MAX_WARNED:
                self._warned.clear()
            self._warned[key] = now
            log.warning("target %s: %s", target.id, problem)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """A short task beside an exchange, kept alive until it ends."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- everything but the POST routes

    async def _other(self, scope: Scope, send: Send, path: str, endpoint: Endpoint | None, id: str) -> None:
        method: str = scope["method"]
        dialect = endpoint.dialect if endpoint is not None else _dialect_of(path, scope["headers"])
        handler, allowed = self._get_handler(path), "GET, HEAD"
        if endpoint is not None:
            allowed = "POST"
        elif handler is None:
            hint = ""
            if path.startswith("/v1/v1/"):
                hint = " Is the base URL one `/v1` too long?"
            elif not path.startswith("/v1"):
                hint = " Does the base URL lack its `/v1`?"
            return await self._refuse(
                Refusal("not_found", f"There is no {method} {path[:200]}.{hint}"), dialect, send, id, method=method
            )
        if method == "OPTIONS":
            headers: list[Header] = [(b"allow", f"{allowed}, OPTIONS".encode()), (b"x-request-id", id.encode())]
            return await answer(send, 204, headers, b"")
        if handler is None or method not in ("GET", "HEAD"):
            refusal = Refusal(
                "method_not_allowed",
                f"{path} does not serve {method}; it serves {allowed}.",
                headers=((b"allow", f"{allowed}, OPTIONS".encode()),),
            )
            return await self._refuse(refusal, dialect, send, id, method=method)
        try:
            status, body = handler(scope)
        except Refusal as refusal:
            return await self._refuse(refusal, dialect, send, id, method=method)
        raw_id = id.encode()
        headers = [JSON, (b"x-request-id", raw_id), (b"request-id", raw_id)]  # the second is Anthropic's name
        await answer(send, status, headers, _encode(body), head_only=method == "HEAD")
        return None

    def _get_handler(self, path: str) -> "Callable[[Scope], tuple[int, object]] | None":
        if path == MODELS:
            return self._models
        if path.startswith(MODELS + "/"):
            return self._model
        if path == "/healthz":
            return lambda scope: (200, {"status": "ok"})
        if path == "/readyz":
            return self._ready
        if path == "/":
            return lambda scope: (200, {"service": "pilotage"})
        return None

    def _ready(self, scope: Scope) -> tuple[int, object]:
        if self.draining():
            return 503, {"status": "draining"}
        if not self.snapshot.ready:
            return 503, {"status": "loading"}
        assert self.snapshot.catalog is not None
        return 200, {"status": "ready", "revision": self.snapshot.catalog.revision}

    def _models(self, scope: Scope) -> tuple[int, object]:
        catalog, token = self._reader(scope)
        return 200, models(catalog, token)

    def _model(self, scope: Scope) -> tuple[int, object]:
        catalog, token = self._reader(scope)
        name = unquote(scope["path"][len(MODELS) + 1 :].rstrip("/"))
        found = model(catalog, token, name)
        if found is None:
            raise Refusal("model_not_found", f"There is no model group {name[:100]!r} for this token.", param="model")
        return 200, found

    def _reader(self, scope: Scope) -> tuple[Catalog, Token]:
        catalog, directory = self.snapshot.catalog, self.snapshot.directory
        if catalog is None or directory is None:
            raise Refusal("not_ready", retry_after_s=1)
        return catalog, authenticate(
            directory, scope["headers"], api_key_first=False, pepper=self.pepper, wall=self.wall()
        )

    async def _refuse(
        self, refusal: Refusal, dialect: DialectModule, send: Send, id: str, *, method: str = "POST"
    ) -> None:
        headers, body = refusal.render(dialect, id)
        await answer(send, refusal.status, headers, body, head_only=method == "HEAD")


class _Random:
    """Random bits from the system, fetched for many ids at a time. A child of `fork` has none of its parent's."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._left: Iterator[tuple[bytes]] = iter(())

    def __call__(self) -> bytes:
        for (bits,) in self._left:
            return bits
        self._left = struct.iter_unpack("16s", os.urandom(16 * IDS_AT_ONCE))
        return self()


_random = _Random()


def new_id() -> str:
    """An exchange's id: 128 random bits."""
    return "req_" + _random().hex()


def _dialect_of(path: str, headers: list[Header]) -> DialectModule:
    """The dialect of an error outside a dialect's own paths."""
    if path.startswith("/v1/messages"):
        return MESSAGES
    if not path.startswith("/v1/chat") and any(name == b"anthropic-version" for name, _ in headers):
        return MESSAGES
    return CHAT
