"""By whose fault an upstream call failed, and what the client hears when all did."""

import asyncio
import email.utils
from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any

import msgspec

from gateway.relay.messages import Header
from gateway.relay.refusals import Refusal
from gateway.upstream.client import UpstreamResponse
from gateway.upstream.errors import AtCapacity, CredentialMissing, EncodingError, ResponseTooLarge, UpstreamError
from routing.core.stats import Outcome

MAX_ERROR_BYTES = 65_536
"""Of a provider's error body: more is not worth passing on."""

MAX_ERROR_SECONDS = 5.0
"""For a provider's error body: its head has said what matters."""

EXHAUSTED = ("insufficient_quota", "quota_exceeded", "billing_hard_limit_reached")
"""Error codes with which providers say that an account is used up; looked for in `error.code` and `error.type` alone."""


class AttemptFailed(Exception):
    """An attempt gave no answer. Everything the relay branches on is here."""

    def __init__(
        self,
        outcome: Outcome,
        code: str,
        message: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        body: bytes | None = None,
        headers: Sequence[Header] = (),
        sent: bool = True,
    ) -> None:
        super().__init__(message)
        self.outcome: Outcome = outcome
        self.code = code
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s
        self.body = body
        """The provider's own error, to be passed on: only for the caller's faults, only JSON."""
        self.headers = list(headers)
        self.sent = sent
        """False: nothing was sent, as the provider or target is at its bound; the attempt does not count."""

    @property
    def another_may_help(self) -> bool:
        return self.outcome not in ("caller_fault", "client_cancelled")


def failure_of(error: UpstreamError) -> AttemptFailed:
    """What a failure of the connection means. The text names no address and no credential."""
    if isinstance(error, AtCapacity):
        return AttemptFailed(
            "refused_here", "at_capacity", "The provider is at its bound of requests in flight.", sent=False
        )
    if error.is_timeout:
        return AttemptFailed("timeout", "upstream_timeout", "The provider did not answer in time.")
    if isinstance(error, CredentialMissing):
        return AttemptFailed("denied", error.code, "The gateway has no credential for this provider.")
    if isinstance(error, ResponseTooLarge):
        return AttemptFailed("server_error", error.code, "The provider's answer is larger than its limit.")
    if isinstance(error, EncodingError):
        return AttemptFailed("server_error", error.code, "The provider's answer could not be decoded.")
    return AttemptFailed("server_error", error.code, "The connection to the provider failed.")


def refusal_of(failures: Sequence[AttemptFailed], *, is_anthropic: bool, shortest_rest: Callable[[], float]) -> Refusal:
    """What the client hears when every attempt failed: the last failure that says most.

    `shortest_rest`: seconds, asked for where all were throttled.
    """

    def overloaded(failure: AttemptFailed, retry_after_s: float | None) -> Refusal:
        return Refusal(
            "upstream_overloaded",
            failure.message,
            status=529 if is_anthropic else None,
            retry_after_s=retry_after_s,
        )

    sent = [failure for failure in failures if failure.sent]
    if not sent:
        return Refusal("at_capacity", retry_after_s=1)
    others = [failure for failure in sent if failure.outcome != "throttled"]
    last = others[-1] if others else sent[-1]
    if not others:
        wait = shortest_rest()
        if last.code == "upstream_overloaded":
            return overloaded(last, wait)
        return Refusal("upstream_rate_limited", last.message, retry_after_s=wait)
    status = last.status
    if last.outcome == "server_error" and status is not None and status >= 500:
        return Refusal("upstream_server_error", last.message, status=status, retry_after_s=last.retry_after_s)
    if last.outcome == "timeout":
        return Refusal("upstream_timeout", last.message)
    if last.outcome == "denied":
        return Refusal("upstream_denied", last.message if status is None else None)
    if last.code == "upstream_overloaded":
        return overloaded(last, None)
    return Refusal("upstream_error", last.message)


async def failure_answered(response: UpstreamResponse, *, by: float, wall: float) -> AttemptFailed:
    """What an answer other than 200 means. Its status counts also when its body is cut, too large, too slow or unreadable."""
    try:
        by = min(by, asyncio.get_running_loop().time() + MAX_ERROR_SECONDS)
        body = await response.read(by=by, limit=MAX_ERROR_BYTES)
    except UpstreamError:
        body = b""
    return failure_of_status(response.status, response.headers, body, wall=wall)


def failure_of_status(status: int, headers: Sequence[Header], body: bytes, *, wall: float) -> AttemptFailed:
    """What a provider's answer other than 2xx means. `wall`: Unix seconds, for a Retry-After that is a date."""
    wait = retry_after(headers, wall=wall)
    document = _object(body)
    if status in (429, 529) or status == 402 or (status in (400, 403) and _exhausted(document)):
        code = "upstream_overloaded" if status == 529 else "upstream_rate_limited"
        return AttemptFailed(
            "throttled", code, f"The provider answered {status}.", status=status, retry_after_s=wait, headers=headers
        )
    if status in (401, 403, 404):
        return AttemptFailed("denied", "upstream_denied", "The provider refused the gateway's request.", status=status)
    if status == 408:
        return AttemptFailed("timeout", "upstream_timeout", "The provider did not answer in time.", status=status)
    if 400 <= status < 500:
        return AttemptFailed(
            "caller_fault",
            "upstream_bad_request",
            f"The provider refused the request with {status}.",
            status=status,
            body=body if document is not None else None,
            headers=headers,
        )
    if status >= 500:
        return AttemptFailed(
            "server_error",
            "upstream_server_error",
            f"The provider answered {status}.",
            status=status,
            retry_after_s=wait,
            headers=headers,
        )
    return AttemptFailed("server_error", "upstream_error", f"The provider answered {status}.", status=status)


def malformed(message: str) -> AttemptFailed:
    return AttemptFailed("server_error", "upstream_malformed", message, status=200)


def retry_after(headers: Sequence[Header], *, wall: float) -> float | None:
    """Seconds that the provider asks to wait; `None`: it did not say, or not in a way that means anything.

    `retry-after-ms` is the more precise and wins. A date is counted from the answer's own `Date`, so that neither side's clock
    has to be right; without one from `wall`. Forms: RFC 9110, sections 5.6.7 and 10.2.3.
    """
    found: float | None = None
    until: float | None = None
    for name, value in headers:
        if name == b"retry-after-ms":
            milliseconds = _number(value)
            if milliseconds is not None:
                return milliseconds / 1000
        elif name == b"retry-after" and found is None and until is None:
            found = _number(value)
            if found is None:
                until = _instant(value)
        elif name == b"date":
            wall = _instant(value) or wall
    if until is not None:
        return max(0.0, until - wall)
    return found


def _instant(value: bytes) -> float | None:
    """Unix seconds of an HTTP date in any of its three forms, all of which mean GMT."""
    try:
        moment = email.utils.parsedate_to_datetime(value.decode("ascii"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, UnicodeDecodeError, OverflowError):
        return None


def _number(value: bytes) -> float | None:
    text = value.strip()
    if len(text) > 15 or not text.replace(b".", b"", 1).isdigit():
        return None
    return float(text)


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _exhausted(document: dict[str, Any] | None) -> bool:
    error = document.get("error") if document else None
    if not isinstance(error, dict):
        return False
    said = (error.get("code"), error.get("type"))
    return any(word in said for word in EXHAUSTED)


class RetryBudget:
    """Bounds second attempts of one group in one process: a bucket of 30 tokens.

    It fills with `per_second` or with `share` of the group's requests, whichever has given more since the last fill.
    """

    SIZE = 30.0

    __slots__ = ("_requests", "_since", "_tokens")

    def __init__(self, *, now: float) -> None:
        self._tokens = self.SIZE
        self._requests = 0
        self._since = now

    def request(self) -> None:
        """A request of the group began."""
        self._requests += 1

    def take(self, *, per_second: float, share: float, now: float) -> bool:
        """One more attempt: whether the group can afford it."""
        earned = max(per_second * (now - self._since), share * self._requests)
        self._tokens = min(self.SIZE, self._tokens + earned)
        self._since = now
        self._requests = 0
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
