"""Every error that the gateway itself answers: its code, status and type, and how it looks in each dialect."""

from dataclasses import dataclass
from math import ceil
from typing import Literal

from gateway.dialects.neutral import DialectModule
from gateway.relay.messages import JSON, Header

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "overloaded_error",
    "api_error",
]


@dataclass(frozen=True, slots=True)
class Kind:
    status: int
    type: ErrorType
    meaning: str


KINDS: dict[str, Kind] = {
    "missing_api_key": Kind(401, "authentication_error", "No token was sent."),
    "invalid_api_key": Kind(
        401, "authentication_error", "The token is unknown, expired, revoked or its caller inactive."
    ),
    "model_not_allowed": Kind(403, "permission_error", "The token may not use this model group."),
    "model_not_found": Kind(404, "not_found_error", "There is no such model group."),
    "not_found": Kind(404, "not_found_error", "There is no such path."),
    "method_not_allowed": Kind(
        405, "invalid_request_error", "The path does not serve this method; `Allow` names those it does."
    ),
    "request_timeout": Kind(408, "invalid_request_error", "The request did not arrive in time."),
    "unsupported_content_encoding": Kind(
        415, "invalid_request_error", "The request body is compressed; send it plain."
    ),
    "invalid_json": Kind(400, "invalid_request_error", "The body is not the JSON that RFC 8259 allows."),
    "invalid_request": Kind(400, "invalid_request_error", "A field is missing or wrong; `param` names it."),
    "request_too_large": Kind(
        413, "request_too_large", "The body is over the gateway's bound or that of every target."
    ),
    "context_length_exceeded": Kind(
        400, "invalid_request_error", "The request does not fit into the window of any target."
    ),
    "no_eligible_target": Kind(
        400,
        "invalid_request_error",
        "No target of the group can serve this request; the message names what is missing.",
    ),
    "rate_limited": Kind(
        429, "rate_limit_error", "Every target is cooling down; Retry-After is the smallest remaining wait."
    ),
    "no_healthy_target": Kind(503, "api_error", "Health keeps every target out and the group's policy says to fail."),
    "at_capacity": Kind(503, "api_error", "Every target is at its bound of requests in flight."),
    "overloaded": Kind(503, "overloaded_error", "This gateway process is full, or at its bound of memory."),
    "caller_over_share": Kind(
        429, "rate_limit_error", "This gateway process is full, and this caller has far more than its share of it."
    ),
    "not_ready": Kind(503, "api_error", "This gateway process has not loaded its configuration and callers yet."),
    "upstream_error": Kind(502, "api_error", "The provider could not be reached or gave no valid answer."),
    "upstream_server_error": Kind(502, "api_error", "The provider answered 5xx; the status is the provider's."),
    "upstream_denied": Kind(502, "api_error", "The provider refused the gateway's credential or model."),
    "upstream_timeout": Kind(504, "api_error", "The provider did not answer in time."),
    "upstream_rate_limited": Kind(429, "rate_limit_error", "Every provider that was tried asked to slow down."),
    "upstream_overloaded": Kind(503, "overloaded_error", "The provider is overloaded; 529 on Messages."),
    "upstream_stream_truncated": Kind(502, "api_error", "The provider's stream ended before the answer was complete."),
    "upstream_idle_timeout": Kind(504, "api_error", "The provider's stream fell silent for longer than its limit."),
    "gateway_shutting_down": Kind(
        503, "api_error", "The gateway process was told to stop and its time to drain is over."
    ),
    "client_closed_request": Kind(
        499, "invalid_request_error", "The client left before its answer; only in records and logs."
    ),
    "internal_error": Kind(500, "api_error", "A defect of the gateway; the request id finds it in the log."),
}


class Refusal(Exception):
    """Ends an exchange with an error of our own. `status` overrides the kind's, `retry_after_s` is rounded up to >= 1."""

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        status: int | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: tuple[Header, ...] = (),
        detail: str | None = None,
    ) -> None:
        """`detail`: for the record and the log line only; the client is not told."""
        kind = KINDS[code]
        super().__init__(message or kind.meaning)
        self.code = code
        self.status = status or kind.status
        self.type: ErrorType = kind.type
        self.message = message or kind.meaning
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers = headers
        self.detail = detail

    def render(self, dialect: DialectModule, request_id: str) -> tuple[list[Header], bytes]:
        id = request_id.encode()
        headers = [JSON, (b"x-request-id", id), *self.headers]
        if dialect.NAME == "anthropic":
            headers.append((b"request-id", id))
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % max(1, ceil(self.retry_after_s))))
        body = dialect.error(
            status=self.status,
            type=self.type,
            code=self.code,
            message=self.message,
            param=self.param,
            request_id=request_id,
        )
        return headers, body
