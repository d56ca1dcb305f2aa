"""One client request and its whole answer: from the caller's token to the record of what happened."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accounts.core.directory import Directory, Token, find, presented
from accounts.core.errors import Unauthenticated
from gateway.dialects import anthropic_messages
from gateway.dialects.neutral import BadRequest, Call, DialectModule, MalformedAnswer, Usage
from gateway.dialects.shape import shape_of
from gateway.relay.admission import Place, read_in_turn
from gateway.relay.attempt import (
    AttemptFailed,
    failure_answered,
    failure_of,
    malformed,
    refusal_of,
)
from gateway.relay.counting import count
from gateway.relay.headers import RETURNED_ON_ERROR, forwarded, returned
from gateway.relay.messages import (
    HANG_UP,
    JSON,
    UNFINISHED,
    WHOLE_BODY,
    WRITE_AT_ONCE,
    BodyTooLarge,
    ClientLeft,
    Header,
    Message,
    Receive,
    Scope,
    Send,
    WriteAtOnce,
    answer,
    read_body,
)
from gateway.relay.recording import intent_record, milliseconds
from gateway.relay.refusals import Refusal
from gateway.relay.stream import Downstream, StreamBroken
from gateway.relay.tracing import TRACEPARENT, Trace, trace_of
from gateway.upstream.client import Headers, UpstreamRequest
from gateway.upstream.decoding import plain
from gateway.upstream.errors import UpstreamError
from reports.core.record import AttemptRecord
from routing.core.catalog import Catalog, Group, Provider, Target
from routing.core.decide import decide
from routing.core.decision import Decision
from routing.core.observations import Running
from routing.core.shape import RequestShape
from routing.core.stats import Outcome

if TYPE_CHECKING:
    from gateway.relay.app import Relay

log = logging.getLogger("pilotage.relay")

STEPWISE_BYTES = 1_048_576
"""Bodies over this are decoded in steps, so that other exchanges are not held up."""

LEAST_ATTEMPT_SECONDS = 0.05
"""With less than this left of the group's deadline no other target is tried: it could only fail, and be blamed for it."""

WATCH_AFTER_SECONDS = 0.02
"""Where nothing but `receive` tells of the client's leaving: an answer that takes longer is worth watching for it, a faster
one is over before it matters."""

CallAtHangUp = Callable[[Callable[[asyncio.Task[None]], None]], None]
"""See `HANG_UP`."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One POST route of the relay."""

    name: str
    dialect: DialectModule
    path: str
    """Below a provider's base URL."""
    decode: Callable[[bytes], Call]
    decoding: Callable[[bytes], Iterator[Call | None]]
    """`decode` in steps, for large bodies."""
    is_anthropic: bool
    """So `x-api-key` wins over `Authorization`, when a token comes in both forms, and some fields have other names."""


class Exchange:
    __slots__ = (
        "answered",
        "answers_in_one",
        "attempts",
        "body_sent",
        "call",
        "call_at_hang_up",
        "catalog",
        "client_left",
        "decision",
        "directory",
        "downstream",
        "ended_at",
        "endpoint",
        "error_code",
        "error_detail",
        "fields",
        "group",
        "headers",
        "id",
        "in_company",
        "keepalive",
        "leaves_open",
        "loop",
        "model_named",
        "now",
        "outcome",
        "output_bytes",
        "place",
        "query",
        "queued_s",
        "receive",
        "relay",
        "request_bytes",
        "send",
        "serving",
        "shape",
        "started_at",
        "status",
        "token",
        "trace",
        "usage",
        "wall",
        "watcher",
        "writer",
    )

    def __init__(
        self,
        relay: "Relay",
        endpoint: Endpoint,
        scope: Scope,
        receive: Receive,
        send: Send,
        id: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.relay = relay
        self.endpoint = endpoint
        self.headers: list[Header] = scope["headers"]
        self.fields = dict(self.headers)
        """The last of each name."""
        self.query: bytes = scope.get("query_string", b"")
        extensions = scope.get("extensions") or {}
        self.leaves_open = UNFINISHED in extensions
        self.answers_in_one = WHOLE_BODY in extensions
        self.call_at_hang_up: CallAtHangUp | None = extensions.get(HANG_UP)
        self.writer: Callable[[], WriteAtOnce] | None = extensions.get(WRITE_AT_ONCE)
        self.loop = loop
        self.receive = receive
        self.send = send
        self.id = id
        self.started_at = self.now = relay.clock()
        self.ended_at = 0.0
        self.wall = relay.wall()
        self.in_company = False
        """Others came at once with it: where it waits for a turn of the loop, they catch up."""
        self.trace: Trace | None = None
        if relay.trace_share is not None:
            self.trace = trace_of(id, self.fields.get(TRACEPARENT), share=relay.trace_share)
        self.catalog: Catalog | None = relay.snapshot.catalog
        self.directory: Directory | None = relay.snapshot.directory
        self.token: Token | None = None
        self.place: Place | None = None
        self.queued_s = 0.0
        self.call: Call | None = None
        self.group: Group | None = None
        self.shape: RequestShape | None = None
        self.decision: Decision | None = None
        self.attempts: list[AttemptRecord] = []
        self.serving: Target | None = None
        self.downstream: Downstream | None = None
        self.usage: Usage | None = None
        self.output_bytes = 0
        self.request_bytes = 0
        self.body_sent = 0
        self.model_named = ""
        self.status = 0
        self.answered = False
        self.outcome = "success"
        self.error_code: str | None = None
        self.error_detail: str | None = None
        self.client_left = False
        self.keepalive: asyncio.TimerHandle | None = None
        self.watcher: asyncio.Task[None] | asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Never raises but for a cancellation from outside."""
        try:
            try:
                await self._run()
            except Refusal as refusal:
                await self._refuse(refusal)
        except ClientLeft:
            self._client_left()
        except asyncio.CancelledError:
            if not self.client_left:
                with contextlib.suppress(ClientLeft):
                    await self._cut()
                raise
            _this_task().uncancel()
            self._client_left()
        except Exception:
            log.exception("exchange %s failed in the gateway", self.id)
            self.outcome = "internal_error"
            with contextlib.suppress(ClientLeft):
                await self._refuse(Refusal("internal_error"))
        finally:
            watcher = self.watcher
            if watcher is not None:
                watcher.cancel()
                # A cancelled task keeps its traceback and thereby this exchange: together they would wait, body and all,
                # for the collector.
                self.watcher = None
            if self.downstream is not None and self.downstream.started:
                self.status = 200
            if self.place is not None:
                self.relay.admission.leave(self.place, now=self.relay.clock())
            self.ended_at = self.relay.clock()
            self.relay.tell_of(self)

    async def _run(self) -> None:
        catalog, token = self._identify()
        endpoint = self.endpoint
        declared = self._declared_length()
        relay = self.relay
        place = self.place = relay.admission.enter(token.caller.name, declared or 0, now=self.started_at)
        self.in_company = relay.has_company(self.started_at)
        if place.admitted:
            body = await self._read(declared)
        else:
            body = await self._read_in_turn(place, declared)
            catalog, token = self._identify()
        call = self.call = await self._decode(body)
        self.model_named = call.model
        group = catalog.groups.get(call.model)
        if group is None:
            raise Refusal("model_not_found", f"There is no model group {_shown(call.model)}.", param="model")
        if not token.may_use(group.name):
            raise Refusal("model_not_allowed", f"This token may not use the model group {group.name!r}.", param="model")
        self.group = group
        caller = token.caller
        large = self.request_bytes > STEPWISE_BYTES
        if large:
            await asyncio.sleep(0)
        self.shape = shape_of(call, headers=self.fields, caller=caller.name, group=group)
        if large or self.in_company:
            await asyncio.sleep(0)
        self.now = now = relay.clock()
        decision = self.decision = decide(
            group,
            self.shape,
            relay.observations,
            relay.pins,
            caller_tags=caller.tags,
            now=now,
            today=self.wall / 86_400,
            draw=lambda: random.Random(self.id).random(),  # noqa: S311  # repeatable by design
            revision=catalog.revision,
        )
        if endpoint.path == anthropic_messages.COUNT_PATH:
            return await count(self, call, decision)
        nobody = decision.no_target
        if nobody is not None:
            raise Refusal(
                nobody.code,
                nobody.message,
                status=nobody.status,
                param=nobody.param,
                retry_after_s=nobody.retry_after_s,
            )
        relay.pins.remember(group, decision, caller=caller.name, now=now)
        relay.spool.intent(intent_record(self))
        self.watch()
        await self._attempt_all(call, group, decision)

    # -- before the choice

    def _identify(self) -> tuple[Catalog, Token]:
        catalog, directory = self.catalog, self.directory
        if catalog is None or directory is None:
            raise Refusal("not_ready", retry_after_s=1)
        token = self.token = authenticate(
            directory,
            self.headers,
            api_key_first=self.endpoint.is_anthropic,
            pepper=self.relay.pepper,
            wall=self.wall,
        )
        return catalog, token

    def _declared_length(self) -> int | None:
        """What the head says of the body. Raises `Refusal` for a body that is not wanted, before anything is read of it."""
        length = self.fields.get(b"content-length")
        declared = int(length) if length is not None and length.isdigit() and len(length) < 16 else None
        if b"content-encoding" in self.fields:
            for name, value in self.headers:
                if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
                    raise Refusal("unsupported_content_encoding")
        if declared is not None and declared > self.relay.max_request_bytes:
            raise self._too_large()
        return declared

    def _too_large(self) -> Refusal:
        return Refusal("request_too_large", f"The request body is larger than {self.relay.max_request_bytes:,} bytes.")

    async def _read(self, declared: int | None) -> bytes:
        receive = self.receive if declared is not None else self._receive_weighed
        try:
            body = await read_body(receive, declared=declared, limit=self.relay.max_request_bytes)
        except BodyTooLarge as error:
            raise self._too_large() from error
        self.request_bytes = len(body)
        return body

    async def _receive_weighed(self) -> Message:
        """A piece of a body of undeclared length counts when it comes."""
        message = await self.receive()
        assert self.place is not None
        self.relay.admission.grow(self.place, len(message.get("body", b"")))
        return message

    async def _read_in_turn(self, place: Place, declared: int | None) -> bytes:
        relay = self.relay
        try:
            body = await read_in_turn(relay.admission, place, self._read(declared), self.receive)
        finally:
            admitted_at = place.since if place.admitted else relay.clock()
            self.queued_s = admitted_at - self.started_at
        # What was published and revoked meanwhile holds for this exchange too.
        self.catalog = relay.snapshot.catalog
        self.directory = relay.snapshot.directory
        return body

    async def _decode(self, body: bytes) -> Call:
        try:
            if len(body) <= STEPWISE_BYTES:
                return self.endpoint.decode(body)
            for call in self.endpoint.decoding(body):
                if call is not None:
                    return call
                await asyncio.sleep(0)
        except BadRequest as error:
            raise Refusal(error.code or "invalid_request", str(error), param=error.param) from error
        raise AssertionError("a decoder ends with its Call")

    # -- the client's side

    def watch(self) -> None:
        """From now on the client's leaving cancels this exchange."""
        if self.call_at_hang_up is not None:
            self.call_at_hang_up(self._hung_up)
        else:
            self.watcher = self.loop.call_later(WATCH_AFTER_SECONDS, self._start_watching, _this_task())

    def _start_watching(self, task: asyncio.Task[None]) -> None:
        self.watcher = asyncio.ensure_future(self._until_client_leaves(task))

    async def _until_client_leaves(self, task: asyncio.Task[None]) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self._hung_up(task)

    def _hung_up(self, task: asyncio.Task[None]) -> None:
        whole = self.answered or (self.downstream is not None and self.downstream.ended)
        if not whole:
            self.client_left = True
            task.cancel()

    def _client_left(self) -> None:
        self.outcome = "client_cancelled"
        self.error_code = "client_closed_request"
        self.status = self.status or 499

    async def _cut(self) -> None:
        """The server ends this exchange: the stream says so before it ends."""
        self.outcome = "upstream_failed"
        self.error_code = "gateway_shutting_down"
        refusal = Refusal("gateway_shutting_down")
        if self.downstream is not None and self.downstream.started:
            await self.downstream.fail(code=refusal.code, message=refusal.message, request_id=self.id)
        elif not self.answered:
            await self._refuse(refusal)

    async def _refuse(self, refusal: Refusal) -> None:
        if self.outcome == "success":
            self.outcome = "refused"
        self.error_code = refusal.code
        self.error_detail = refusal.detail
        if self.answered:
            return None
        if self.downstream is not None and self.downstream.started:
            self.answered = True
            return await self.downstream.fail(code=refusal.code, message=refusal.message, request_id=self.id)
        headers, body = refusal.render(self.endpoint.dialect, self.id)
        await self.reply(refusal.status, headers, body)

    async def reply(self, status: int, headers: list[Header], body: bytes) -> None:
        self.status = status
        self.answered = True
        self.body_sent = len(body)
        try:
            await answer(self.send, status, headers, body, in_one=self.answers_in_one)
        except OSError as error:
            raise ClientLeft from error

    def head(self, headers: list[Header], *, attempts: int | None = None) -> list[Header]:
        """The fields that every answer carries, after `headers`. `attempts`: made so far; else one is under way."""
        id = self.id.encode()
        headers.append((b"x-request-id", id))
        if self.endpoint.is_anthropic:
            headers.append((b"request-id", id))
        assert self.token is not None
        if self.token.caller.see_routing and self.serving is not None and self.decision is not None:
            headers.append((b"x-pilotage-target", self.serving.id.encode()))
            headers.append((b"x-pilotage-mode", self.decision.mode.encode()))
            headers.append((b"x-pilotage-revision", b"%d" % self.decision.revision))
            made = len(self.attempts) + 1 if attempts is None else attempts
            headers.append((b"x-pilotage-attempts", b"%d" % made))
        return headers

    # -- attempts

    async def _attempt_all(self, call: Call, group: Group, decision: Decision) -> None:
        relay = self.relay
        policy = group.attempts
        budget = relay.retry_budget(group.name)
        budget.request()
        deadline = self.loop.time() + policy.deadline_s
        failures: list[AttemptFailed] = []
        previous: Running | None = None
        for candidate in decision.candidates:
            target = candidate.target
            if failures:
                now = relay.clock()
                if relay.observations.cooling_until(target.model_key, now=now) is not None:
                    continue
                if any(failure.sent for failure in failures) and not budget.take(
                    per_second=policy.retry_min_per_second, share=policy.retry_share, now=now
                ):
                    break
            if previous is not None:
                relay.observations.fell_back(previous)
                previous = None
            self.serving = target
            running = relay.observations.begin(
                group,
                target,
                stream=call.stream,
                probe=decision.mode == "probe" and not failures,
                now=relay.clock(),
            )
            try:
                await self._attempt(call, target, running, deadline)
            except AttemptFailed as failure:
                failures.append(failure)
                relay.warn_of(target, failure)
                if not failure.another_may_help:
                    return await self.pass_on(failure)
                if failure.sent:
                    previous = running
                if len(self.attempts) >= policy.max:
                    break
                if self.loop.time() > deadline - LEAST_ATTEMPT_SECONDS:
                    break
                continue
            return None
        self.outcome = "upstream_failed"
        raise refusal_of(failures, is_anthropic=self.endpoint.is_anthropic, shortest_rest=self._shortest_rest)

    async def _attempt(self, call: Call, target: Target, running: Running, deadline: float) -> None:
        """One upstream call to its end. Raises `AttemptFailed` while another target may still be tried."""
        relay = self.relay
        started = relay.clock()
        outcome: Outcome = "server_error"
        status: int | None = None
        code: str | None = None
        wait: float | None = None
        usage: Usage | None = None
        terminal: bool | None = None
        self.usage = None  # what an earlier attempt was told is not this one's
        self.output_bytes = 0
        try:
            if self.in_company:
                await asyncio.sleep(0)
                running.started = started = relay.clock()
            relay.spool.flush()  # the intent outlives this process before the provider hears of it
            request = self.request_to(call, target)
            if call.stream:
                terminal = False
                await self._stream(request, target, running, deadline)
                terminal = True
            else:
                await self._unary(request, target, deadline)
            outcome, status, usage = "ok", 200, self.usage
        except AttemptFailed as failure:
            outcome, status, code, wait = failure.outcome, failure.status, failure.code, failure.retry_after_s
            terminal = None
            raise
        except StreamBroken as broken:
            outcome, status, code = broken.failure.outcome, 200, broken.code
            await self._broken(broken)
        except asyncio.CancelledError:
            outcome, code, terminal = "client_cancelled", "client_closed_request", None
            if not self.client_left:
                outcome, code = "refused_here", "gateway_shutting_down"
            status = self._accepted()
            raise
        except ClientLeft:
            outcome, code, terminal = "client_cancelled", "client_closed_request", None
            status = self._accepted()
            raise
        except Exception:
            outcome, code, terminal = "refused_here", "internal_error", None
            raise
        finally:
            now = relay.clock()
            downstream = self.downstream
            first = last = None
            if downstream is not None and downstream.first_content_at is not None:
                first = downstream.first_content_at - started
                last = downstream.last_content_at
            output = None
            if usage is not None:
                output = usage.output_tokens
                if output is None and self.output_bytes:
                    output = max(1, self.output_bytes // 4)
            assert self.shape is not None
            relay.observations.end(
                running,
                outcome,
                now=now,
                output_tokens=output,
                last_content_at=last,
                terminal=terminal,
                retry_after_s=wait,
                text_bytes=self.shape.text_bytes if usage is not None and not self.shape.media_tokens else 0,
                input_tokens=_all_input(usage) if usage is not None else None,
            )
            if code != "at_capacity":
                self.attempts.append(
                    AttemptRecord(
                        target=target.id,
                        provider=target.provider.name,
                        model=target.model,
                        outcome=outcome,
                        status=status,
                        error_code=code,
                        started_ms=milliseconds(started - self.started_at),
                        duration_ms=milliseconds(now - started),
                        first_content_ms=None if first is None else milliseconds(first),
                        retry_after_s=wait,
                    )
                )

    def _accepted(self) -> int | None:
        """The status of an attempt that was broken off: 200 once its answer had begun."""
        return None if self.usage is None else 200

    def request_to(self, call: Call, target: Target) -> UpstreamRequest:
        endpoint = self.endpoint
        path = endpoint.path
        if self.query and b"beta=true" in self.query.split(b"&"):
            path += "?beta=true"
        return UpstreamRequest(
            provider=target.provider,
            path=path,
            headers=self._upstream_headers(target.provider),
            body=endpoint.dialect.upstream_body(call, target),
        )

    def _upstream_headers(self, provider: Provider) -> Headers:
        headers = forwarded(self.headers, fixed=self.relay.fixed_headers(provider))
        names = {name for name, _ in headers}
        if b"content-type" not in names:
            headers.append(JSON)
        if self.endpoint.is_anthropic and b"anthropic-version" not in names:
            headers.append((b"anthropic-version", b"2023-06-01"))
        if self.trace is not None:
            # Ours stands between: what came named the caller's span.
            headers = [field for field in headers if field[0] != TRACEPARENT]
            headers.append((TRACEPARENT, self.trace.traceparent(len(self.attempts) + 1)))
        return headers

    async def _unary(self, request: UpstreamRequest, target: Target, deadline: float) -> None:
        provider = target.provider
        now = self.loop.time()
        by = min(now + provider.timeouts.total_s, deadline)
        try:
            response = plain(
                await self.relay.transport.send(
                    request, connect_by=min(now + provider.timeouts.connect_s, by), respond_by=by
                )
            )
            try:
                if response.status != 200:
                    raise await failure_answered(response, by=by, wall=self.relay.wall())
                self.usage = Usage()  # the provider has accepted the request, and will bill it
                body = await response.read(by=by, limit=provider.max_response_bytes)
            finally:
                response.close()
        except UpstreamError as error:
            raise failure_of(error) from error
        dialect = self.endpoint.dialect
        try:
            read = dialect.read_answer(body)
        except MalformedAnswer as error:
            raise malformed(str(error)) from error
        self.usage = read.usage
        self.output_bytes = read.output_bytes
        assert self.group is not None
        if self.group.model_identity == "requested_group":
            body = dialect.answer_with_model(body, self.group.name)
        if self.in_company:
            await asyncio.sleep(0)
        head = self.head([JSON, *returned(response.headers)])
        await self.reply(200, head, body)

    async def _stream(self, request: UpstreamRequest, target: Target, running: Running, deadline: float) -> None:
        loop = self.loop
        provider = target.provider
        timeouts = provider.timeouts
        now = loop.time()
        content_by = min(now + timeouts.first_byte_s, deadline)
        dialect = self.endpoint.dialect
        head = self.head(
            [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
            ]
        )
        downstream = self.downstream
        if downstream is not None:
            downstream.head = head
        else:
            assert self.call is not None
            assert self.group is not None
            downstream = self.downstream = Downstream(
                self.send,
                head,
                dialect,
                show_usage=dialect.wants_usage_chunk(self.call),
                model_shown=self.group.name if self.group.model_identity == "requested_group" else None,
                leaves_open=self.leaves_open,
                write_at_once=None if self.writer is None else self.writer(),
                clock=self.relay.clock,
            )
        self.keepalive = loop.call_later(timeouts.keepalive_s, self._keep_alive, timeouts.keepalive_s)
        reader = dialect.stream_reader(max_event_bytes=provider.max_event_bytes)
        try:
            try:
                response = plain(
                    await self.relay.transport.send(
                        request, connect_by=min(now + timeouts.connect_s, content_by), respond_by=content_by
                    )
                )
            finally:
                self.keepalive.cancel()
            try:
                if response.status != 200:
                    raise await failure_answered(response, by=content_by, wall=self.relay.wall())
                for name, value in response.headers:
                    if name == b"content-type" and (b"json" in value.lower() or b"html" in value.lower()):
                        raise malformed("The provider answered a streaming request with something else.")
                self.usage = reader.usage
                await downstream.relay(
                    response,
                    reader,
                    timeouts=timeouts,
                    content_by=content_by,
                    on_content=lambda: self.relay.observations.content(running, now=self.relay.clock()),
                )
                self.answered = True
            finally:
                response.close()
                self.output_bytes = reader.output_bytes
                self.body_sent = downstream.sent_bytes
        except UpstreamError as error:
            raise failure_of(error) from error

    def _keep_alive(self, every_s: float) -> None:
        """No answer head for `every_s`: the client hears from us, and again after as long."""
        self.keepalive = self.loop.call_later(every_s, self._keep_alive, every_s)
        self.relay.spawn(self._say_alive())

    async def _say_alive(self) -> None:
        assert self.downstream is not None
        with contextlib.suppress(ClientLeft):
            await self.downstream.keepalive()

    async def _broken(self, broken: StreamBroken) -> None:
        """After the commit point: the stream ends in the dialect's error event, never as if it were whole."""
        self.outcome = "upstream_truncated"
        self.error_code = broken.code
        self.answered = True
        assert self.downstream is not None
        await self.downstream.fail(code=broken.code, message=str(broken), request_id=self.id)
        self.body_sent = self.downstream.sent_bytes

    async def pass_on(self, failure: AttemptFailed) -> None:
        """The caller's own fault, as the provider put it."""
        self.outcome = "refused"
        status = failure.status or 400
        if failure.body is None or (self.downstream is not None and self.downstream.started):
            raise Refusal("invalid_request", failure.message, status=status)
        self.error_code = failure.code
        head = self.head([JSON, *returned(failure.headers, RETURNED_ON_ERROR)], attempts=len(self.attempts))
        await self.reply(status, head, failure.body)

    def _shortest_rest(self) -> float:
        """Seconds until the first of those that could serve may again, those that were resting already included."""
        assert self.decision is not None
        assert self.group is not None
        now = self.relay.clock()
        able = set(self.decision.candidates.ids())
        able |= {exclusion.target for exclusion in self.decision.exclusions if exclusion.stage == "cool_down"}
        rest = self.relay.observations.cooling_until
        return min((rest(target.model_key, now=now) or now) - now for target in self.group.targets if target.id in able)


def authenticate(
    directory: Directory, headers: list[Header], *, api_key_first: bool, pepper: bytes, wall: float
) -> Token:
    """The caller's token, by the one extractor of every endpoint. Raises `Refusal`, the same for every wrong one."""
    secret = presented(headers, api_key_first=api_key_first)
    if not secret:
        raise Refusal("missing_api_key")
    try:
        return find(directory, secret, pepper, wall)
    except Unauthenticated as error:
        raise Refusal("invalid_api_key", detail=error.reason) from error


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _all_input(usage: Usage) -> int | None:
    if usage.input_tokens is None:
        return None
    written = (usage.cache_write_tokens or 0) + (usage.cache_write_1h_tokens or 0)
    return usage.input_tokens + (usage.cache_read_tokens or 0) + written


def _shown(name: str) -> str:
    return repr(name if len(name) <= 100 else name[:100] + "...")
