"""W3C trace context: what came with a request, and what goes on to the provider.

Span ids follow from the exchange's id, so that nothing has to be kept for them: whoever has the record has the spans.
"""

from dataclasses import dataclass
from typing import Final

TRACEPARENT: Final = b"traceparent"

_LENGTH = len("00-") + 32 + 1 + 16 + 1 + 2
_LOWER_HEX = frozenset(b"0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Trace:
    """Where an exchange stands among the spans of others."""

    trace_id: str
    """32 lower-case hexadecimal digits, as are the next two with 16."""
    span_id: str
    """Of the exchange."""
    parent_id: str | None
    """Of the span that the request came from; `None`: it begins the trace."""
    sampled: bool

    def attempt_id(self, number: int) -> str:
        """The span of the exchange's attempt of this number, from 1."""
        return f"{(int(self.span_id, 16) + number) % 2**64 or 1:016x}"

    def traceparent(self, attempt: int) -> bytes:
        """The field that the provider gets with this attempt."""
        return f"00-{self.trace_id}-{self.attempt_id(attempt)}-{self.sampled:02x}".encode()


def trace_of(exchange_id: str, traceparent: bytes | None, *, share: float) -> Trace:
    """`exchange_id`: as `new_id` makes it. `share`: of the traces that begin here, how many are sampled.

    A field that the specification does not allow is as if absent. The sampling of a trace that began elsewhere was
    decided there.
    """
    own = exchange_id.removeprefix("req_")
    came = _read(traceparent) if traceparent is not None else None
    if came is not None:
        trace_id, parent_id, sampled = came
        return Trace(trace_id, _span(own), parent_id, sampled)
    return Trace(own, _span(own), None, int(own[:8], 16) < share * 2**32)


def _span(own: str) -> str:
    return own[16:] if own[16:].strip("0") else "1".zfill(16)


def _read(field: bytes) -> tuple[str, str, bool] | None:
    if len(field) < _LENGTH or field[2:3] + field[35:36] + field[52:53] != b"---":
        return None
    version, trace_id, parent_id, flags = field[:2], field[3:35], field[36:52], field[53:55]
    if not _LOWER_HEX.issuperset(version + trace_id + parent_id + flags):
        return None
    # A later version may have more behind a dash; this one has nothing.
    if version == b"ff" or (len(field) > _LENGTH and (version == b"00" or field[_LENGTH : _LENGTH + 1] != b"-")):
        return None
    if not trace_id.strip(b"0") or not parent_id.strip(b"0"):
        return None
    return trace_id.decode(), parent_id.decode(), bool(int(flags, 16) & 1)
