"""Counting the tokens of a Messages request: by a target that counts, else our estimate. Leaves no trace in health."""

from typing import TYPE_CHECKING

from gateway.dialects import anthropic_messages
from gateway.dialects.neutral import Call, MalformedAnswer
from gateway.relay.attempt import MAX_ERROR_BYTES, AttemptFailed, failure_answered
from gateway.relay.messages import JSON
from gateway.upstream.decoding import plain
from gateway.upstream.errors import UpstreamError
from routing.core.catalog import Target
from routing.core.decision import Decision

if TYPE_CHECKING:
    from gateway.relay.exchange import Exchange


async def count(exchange: "Exchange", call: Call, decision: Decision) -> None:
    """Answers the client."""
    target = decision.candidates.primary if decision.candidates else None
    if target is not None and target.provider.dialect == "anthropic":
        exchange.serving = target
        exchange.watch()
        try:
            counted = await _count_at(exchange, call, target)
        except AttemptFailed as failure:
            return await exchange.pass_on(failure)
        if counted:
            return await exchange.reply(200, exchange.head([JSON]), b'{"input_tokens":%d}' % counted)
    exchange.serving = None
    assert exchange.shape is not None
    head = exchange.head([JSON, (b"x-pilotage-estimated", b"true")])
    await exchange.reply(200, head, b'{"input_tokens":%d}' % max(1, exchange.shape.input_tokens))
    return None


async def _count_at(exchange: "Exchange", call: Call, target: Target) -> int | None:
    """`None`: this target cannot tell. Raises `AttemptFailed` where the request itself is at fault."""
    relay = exchange.relay
    now = exchange.loop.time()
    timeouts = target.provider.timeouts
    by = now + min(timeouts.first_byte_s, timeouts.total_s)
    try:
        response = plain(
            await relay.transport.send(
                exchange.request_to(call, target), connect_by=min(now + timeouts.connect_s, by), respond_by=by
            )
        )
        try:
            if response.status == 200:
                return anthropic_messages.read_count(await response.read(by=by, limit=MAX_ERROR_BYTES))
            failure = await failure_answered(response, by=by, wall=relay.wall())
        finally:
            response.close()
    except (UpstreamError, MalformedAnswer):
        return None
    if failure.outcome == "caller_fault" and failure.status in (400, 413, 422) and failure.body is not None:
        raise failure
    return None
