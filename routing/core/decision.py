"""A Decision and its parts: what `decide` returns, and what a record or an explanation is made from."""

from typing import Literal

import msgspec

from routing.core.catalog import ScorePolicy, Target, TargetId
from routing.core.document import Strategy

Mode = Literal["configured", "cold_start", "score", "pinned", "probe", "panic"]
"""`configured`: static, failover and weighted. `panic`: every target was excluded by health, the least bad serves."""

AffinityOutcome = Literal[
    "affinity_hit",
    "affinity_miss",
    "affinity_expired",
    "affinity_ineligible",
    "affinity_disabled",
    "affinity_evicted",
]

Stage = Literal["eligibility", "hard_filter", "required_tags", "cool_down", "capacity", "health", "thresholds"]


class Exclusion(msgspec.Struct, frozen=True, kw_only=True):
    target: TargetId
    stage: Stage
    reason: str
    """A slug of the fixed list in the routing documentation."""
    detail: str = ""
    wait_s: float | None = None
    """For `cooling_down`: seconds left."""
    probe_overdue_s: float | None = None
    """For an exclusion by health: seconds since its trial request became due. `None`: none is due."""


class ScoreValue(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    raw: float | None
    """In the score's own unit (dollars, seconds, tokens per second, a rate); `None`: no data."""
    value: float
    """In [0, 1]."""
    flag: str | None = None
    """`no_data`, `unknown_price`, `disabled`, `stale` .."""


class TermValue(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: float
    share: float
    preferred_tags: int = 0
    flag: str | None = None
    """`not_finite`: the expression gave no finite number and counts as 0."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    target: Target
    weight: float = 1.0
    """W: configured weight over the largest among the survivors."""
    dynamic: float | None = None
    """D, before contrast. `None`: nothing was scored."""
    contrasted: float | None = None
    """D'."""
    final: float | None = None
    confidence: float = 0.0
    observations: float = 0.0
    in_flight: int = 0
    overdue: int = 0
    in_band: bool = False
    scores: tuple[ScoreValue, ...] = ()
    terms: tuple[TermValue, ...] = ()


class NoTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody is left."""

    status: int
    code: str
    """`request_too_large`, `context_length_exceeded`, `no_eligible_target`, `rate_limited`, `no_healthy_target`, `at_capacity`."""
    message: str
    param: str | None = None
    retry_after_s: float | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    strategy: Strategy
    mode: Mode
    revision: int
    candidates: tuple[Candidate, ...]
    """Primary first, then the fallbacks in order. Empty when `no_target` is set."""
    exclusions: tuple[Exclusion, ...] = ()
    affinity: AffinityOutcome | None = None
    """`None`: not a dynamic_score group."""
    conversation_key: bytes | None = None
    pin: TargetId | None = None
    """The target to pin the conversation to; `None`: leave the pins as they are."""
    propensity: float = 1.0
    """Probability with which the primary was chosen."""
    tie_break: str | None = None
    """What made the primary: `only`, `final`, `in_flight`, `weight`, `position`, `draw`. `None`: its pin or its probe."""
    matched_terms: tuple[str, ...] = ()
    mean_output_tokens: float = 300.0
    flags: tuple[str, ...] = ()
    """`panic`: health kept every target out; `not_finite`: an expression gave no finite number."""
    pinned: TargetId | None = None
    """The target that the conversation was pinned to before this decision, used or not."""
    drawn: float | None = None
    """The number in [0, 1) that `weighted` drew."""
    observations: int = 0
    """The group's counted attempts in the window: below the policy's minimum is a cold start."""
    policy: ScorePolicy | None = None
    """The settings that the arithmetic used. `None`: not a dynamic_score group."""
    no_target: NoTarget | None = None
