"""What observations look like when read: plain sums per target, unshrunk, for scoring and for limits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from routing.core.catalog import TargetId

Outcome = Literal[
    "ok", "server_error", "timeout", "throttled", "denied", "caller_fault", "client_cancelled", "refused_here"
]
"""How an attempt ended, by whose fault (the table in the routing documentation)."""


class Sums(msgspec.Struct, kw_only=True, gc=False):
    """Sums over the window, or decayed sums (then fractional). Attempts are those that count for health."""

    attempts: float = 0.0
    errors: float = 0.0
    timeouts: float = 0.0
    fallbacks: float = 0.0
    first_content_s: float = 0.0
    first_content_n: float = 0.0
    """Streams whose first content came."""
    generation_s: float = 0.0
    generation_tokens: float = 0.0
    """Output tokens of the answers whose generation time is known."""
    in_flight_at_start: float = 0.0
    completed: float = 0.0
    """Completed answers; the count behind `in_flight_at_start`."""
    streams: float = 0.0
    """Streams that got content."""
    streams_ended: float = 0.0
    """Of those, ended with their terminal event."""


class TargetStats(msgspec.Struct, frozen=True, kw_only=True):
    window: Sums
    fast: Sums
    """Decaying with the policy's half-life, as of the moment of reading; provisional overdue attempts included as timeouts."""
    p95_s: float | None = None
    """Length-normalised p95 of completed answers and timeouts; `None`: no sample."""
    p95_n: int = 0
    in_flight: int = 0
    """Attempts running now (this process at once; the fleet as of the last merge)."""
    overdue: int = 0
    """Of those, counted as provisional timeouts."""
    bytes_per_token: float = 4.0
    cooling_until: float | None = None
    """Monotonic second until which its model is cooling down; `None` or past: not cooling."""


class Estimate(msgspec.Struct, frozen=True):
    """One quantity of every target of a group, in the order of its list."""

    prior: tuple[float, ...]
    """Of the group: what targets of which little is known are drawn to."""
    values: Sequence[float]


@dataclass(slots=True, kw_only=True)
class GroupStats:
    """Not to be changed by who reads it."""

    targets: dict[TargetId, TargetStats]
    """One for every target of the group, in the order of its list."""
    mean_output_tokens: float = 300.0
    """Running mean over the group's last 500 completed answers."""
    observations: int = 0
    """Counted attempts in the window, those erased by a reinstatement included until they would have aged out."""
    cooling: bool | None = field(default=None, compare=False)
    """False: no target's model is cooling down. `None`: not looked at."""
    estimates: dict[str, Estimate | None] = field(default_factory=dict, compare=False, repr=False)
    """By name, as far as a choice has asked for them; `None`: no data. Filled by `estimates`."""


ExclusionReason = Literal[
    "denied",
    "excluded_consecutive",
    "excluded_error_rate",
    "excluded_timeout_rate",
    "excluded_p95",
    "excluded_ttfb",
    "excluded_throughput",
]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A target that health keeps out."""

    reason: ExclusionReason
    detail: str
    probe_due: bool
    """A trial request may go to it now: its wait is over and none is running."""
    overdue_s: float = 0.0
    """Seconds since the probe became due."""
