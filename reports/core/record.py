"""The lines of the spool: an intent before the first upstream call, an end after the exchange. Scalars only, no prompt text.

Whoever makes one for every exchange gives the fields in their order: by name a struct of sixty takes fifteen times as long.
"""

from collections.abc import Mapping, Sequence

import msgspec

VERSION = 1


class IntentRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="intent"):
    """Written before the first upstream call: an exchange whose process dies still leaves a trace."""

    id: str
    """The exchange's id, which the client sees as `x-request-id`."""
    at: float
    """Unix seconds, to the microsecond."""
    caller: str
    project: str
    environment: str
    token: str
    """First 12 characters."""
    group: str
    dialect: str
    stream: bool
    revision: int
    target: str
    input_tokens_estimated: int
    endpoint: str = ""
    provider: str = ""
    """Of `target`, as are the next two."""
    model: str = ""
    input_price: int | None = None
    """As in EndRecord."""
    v: int = VERSION


class GapRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="gap"):
    """Written as soon as records can be written again, or at the end."""

    v: int = VERSION
    at: float
    """Unix seconds of the writing."""
    dropped: int
    """Records that this process could not write, since the last such line."""


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    target: str
    provider: str
    model: str
    outcome: str
    status: int | None
    """The provider's status; `None`: none came. 200 for one that was broken off after its head."""
    error_code: str | None
    started_ms: float
    """From the exchange's start."""
    duration_ms: float
    first_content_ms: float | None
    """From this attempt's start."""
    retry_after_s: float | None = None


class CandidatesRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The numbers behind a choice, in columns: every list has one entry for each of `targets`."""

    targets: Sequence[str]
    weights: Sequence[float]
    """Relative to the largest."""
    observations: Sequence[float]
    """Counted attempts in the window."""
    in_flight: Sequence[int]
    overdue: Sequence[int]
    dynamics: Sequence[float] | None = None
    """D; `None` here and below: nothing was scored."""
    contrasted: Sequence[float] | None = None
    """D'."""
    finals: Sequence[float] | None = None
    near_ties: Sequence[int] = ()
    """Indices of the targets within the band of the best."""
    scores: Mapping[str, tuple[Sequence[float | None], Sequence[float], Sequence[str | None]]] = {}
    """By name: raw values in the score's own unit, values in [0, 1], flags."""
    terms: Sequence[tuple[str, float, Sequence[float], Sequence[int], Sequence[str | None]]] = ()
    """Name, share, values, preferred tags, flags."""


class ExclusionRecord(msgspec.Struct, frozen=True, kw_only=True):
    target: str
    stage: str
    reason: str
    detail: str


class EndRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="end", omit_defaults=True):
    v: int
    id: str
    at: float
    """Unix seconds of the exchange's start."""
    caller: str
    project: str
    environment: str
    token: str
    endpoint: str
    """`chat`, `messages`, `count_tokens`."""
    group: str
    dialect: str
    stream: bool
    revision: int
    status: int
    """As the client got it; 499: the client left before one."""
    outcome: str
    """`success`, `refused`, `upstream_failed`, `upstream_truncated`, `client_cancelled`, `internal_error`."""
    duration_ms: float
    error_code: str | None = None
    error_detail: str | None = None
    """Why a token was refused: `malformed`, `unknown`, `revoked`, `expired` or `inactive`. The client is not told."""
    first_content_ms: float | None = None
    queued_ms: float = 0.0
    """Of `duration_ms`, in which it waited for its place in the process."""
    request_bytes: int = 0
    response_bytes: int = 0
    strategy: str | None = None
    mode: str | None = None
    affinity: str | None = None
    propensity: float | None = None
    tie_break: str | None = None
    matched_terms: list[str] = []
    flags: list[str] = []
    target: str | None = None
    """That served, or was tried last."""
    provider: str | None = None
    model: str | None = None
    attempts: list[AttemptRecord] = []
    order: list[str] = []
    """Targets in the order of trying, whether or not they were reached."""
    candidates: CandidatesRecord | None = None
    exclusions: list[ExclusionRecord] = []
    input_tokens_estimated: int = 0
    output_cap: int | None = None
    tool_count: int = 0
    image_count: int = 0
    complexity: float = 0.0
    prompt_features: list[str] = []
    input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    usage_quality: str = "missing"
    """`reported`, `estimated`, `inconsistent`, `missing`."""
    terminal_marker: str | None = None
    """`received`, `synthesized`, or `None` for a unary or broken answer."""
    input_price: int | None = None
    """Micro-dollars per million tokens at admission; `None`: unknown. So are the next four."""
    output_price: int | None = None
    cached_input_price: int | None = None
    cache_write_price: int | None = None
    cache_write_1h_price: int | None = None
    signals: list[str] = []
    """Names of the policy's enabled signals."""
    trace_id: str | None = None
    """32 hexadecimal digits; `None`: no traces are made. So are the next two, with 16."""
    span_id: str | None = None
    parent_span_id: str | None = None
    sampled: bool = False


class LogLine(msgspec.Struct, frozen=True):
    """The one line on stdout for an exchange: what an operator looks for first. Fields as in EndRecord."""

    at: float
    id: str
    caller: str
    token: str
    endpoint: str
    group: str
    stream: bool
    status: int
    outcome: str
    error_code: str | None
    error_detail: str | None
    target: str | None
    mode: str | None
    affinity: str | None
    attempts: int
    duration_ms: float
    first_content_ms: float | None
    queued_ms: float
    input_tokens: int | None
    output_tokens: int | None
    revision: int
