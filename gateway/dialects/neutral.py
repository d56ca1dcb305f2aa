"""What every dialect gives the relay: a decoded request, a reader of answers, and the words for errors."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from routing.core.catalog import Target
from routing.core.document import Dialect


class BadRequest(Exception):
    """The body cannot be served whatever the target. Answered as 400 in the dialect."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class MalformedAnswer(Exception):
    """A provider's answer that is not one in its dialect.

    `events`: the good events that the same call of `feed` had read before the bad one.
    """

    def __init__(self, message: str, *, events: "Sequence[StreamEvent]" = ()) -> None:
        super().__init__(message)
        self.events = events


class Usage(msgspec.Struct, kw_only=True, gc=False):
    """Tokens as the provider reported them, in disjoint classes. `None`: not reported."""

    input_tokens: int | None = None
    """Uncached input."""
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    """Written for 5 minutes, or without a stated lifetime."""
    cache_write_1h_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    """Part of `output_tokens`."""
    quality: Literal["reported", "inconsistent", "missing"] = "missing"
    """`reported`: uncached input and output are both known. `inconsistent`: a value was negative, no whole number, over
    1e12 or contradicted another; such a value is left `None`."""


class Call(msgspec.Struct, kw_only=True):
    """A decoded request. `content` is the parsed body and must not outlive the exchange."""

    dialect: Dialect
    model: str
    stream: bool
    body: bytes
    content: dict[str, Any]


class InBandError(msgspec.Struct, frozen=True, kw_only=True):
    """An error event inside a stream that began with 200."""

    type: str
    message: str


EventKind = Literal["content", "opening", "terminal", "usage", "error", "done", "comment"]
"""`content` commits the answer. `opening` is anything else before or between (role chunk, ping, message_start, unknown
event). `terminal` ends it (Chat: a finish_reason for every choice seen; Messages: `message_delta` with a stop_reason); a chunk
that brings content and the finish is `content`, and the reader's `terminal` says the rest.
`usage` is the extra chunk that only `include_usage` brings. `done` is `[DONE]` or `message_stop`."""


class StreamEvent(msgspec.Struct, frozen=True, gc=False):
    kind: EventKind
    raw: bytes
    """The event's bytes as they came, with the blank line that ends it."""


class StreamReader(Protocol):
    """Listens to one provider stream; takes any split of its bytes and gives the same events."""

    usage: Usage
    terminal: bool
    """The answer's terminal event has come."""
    done: bool
    """`[DONE]` or `message_stop` has come."""
    output_bytes: int
    """UTF-8 bytes of generated text, thinking and tool arguments so far: for an estimate when usage is missing."""
    error: InBandError | None

    def feed(self, data: bytes) -> list[StreamEvent]:
        """Raises `MalformedAnswer` when an event grows beyond the bound given at construction or is not JSON."""
        ...

    def flush(self) -> list[StreamEvent]:
        """At the end of the stream: a last event whose blank line is missing, if it is whole; else nothing."""
        ...

    @property
    def pending(self) -> bool:
        """Part of an event has come and not its end."""
        ...


class Answer(msgspec.Struct, kw_only=True):
    """A unary answer, as far as the gateway needs to know it."""

    usage: Usage
    output_bytes: int


class DialectModule(Protocol):
    """One module per dialect keeps this shape; `registry.py` lists them."""

    NAME: Dialect
    PATH: str
    """Below a provider's base URL: `/chat/completions`."""

    def decode(self, body: bytes) -> Call: ...
    def decoding(self, body: bytes) -> Iterator[Call | None]:
        """`decode` in steps of a few milliseconds, for large bodies: yields `None` between steps, the Call last."""
        ...

    def upstream_body(self, call: Call, target: Target) -> bytes:
        """The caller's bytes with the model name replaced and what the target declares applied."""
        ...

    def read_answer(self, body: bytes) -> Answer: ...
    def stream_reader(self, *, max_event_bytes: int) -> StreamReader: ...
    def wants_usage_chunk(self, call: Call) -> bool:
        """False: the `usage` chunk was our own wish and is hidden from the caller."""
        ...

    def ending(self, reader: StreamReader) -> bytes:
        """What completes a stream whose terminal event came but whose `done` did not."""
        ...

    def error(
        self, *, status: int, type: str, code: str | None, message: str, param: str | None, request_id: str
    ) -> bytes:
        """The dialect's error body. `type` is one of `ERROR_TYPES` of refusals."""
        ...

    def error_event(self, *, code: str, message: str, request_id: str) -> bytes:
        """The dialect's error inside a stream, as one complete SSE event."""
        ...

    def keepalive(self) -> bytes: ...
    def answer_with_model(self, body: bytes, model: str) -> bytes:
        """A unary answer's bytes with its `model` member showing `model`, the rest untouched."""
        ...

    def event_with_model(self, raw: bytes, model: str) -> bytes:
        """The same for one stream event; an event that names no model comes back as it was."""
        ...
