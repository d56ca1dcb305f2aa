"""One published configuration, compiled: immutable, everything looked up, parsed and sorted beforehand.

The request path reads only this. Times are seconds, prices US dollars per token, weights plain floats.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from routing.core.document import Complexity, Dialect, Feature, Modality, Strategy

TargetId = str
"""`provider/model_ref` (or `provider/model`), with `#2` .. for a repetition inside one group. Stable over edits of other targets."""

ModelKey = str
"""`provider/upstream model name`: what a cool-down holds for, over all groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTimeouts:
    connect_s: float = 3.0
    first_byte_s: float = 60.0
    idle_s: float = 60.0
    total_s: float = 600.0
    keepalive_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    name: str
    base_url: str
    dialect: Dialect
    api_key_env: str | None = None
    api_key_file: str | None = None
    api_key: str | None = field(default=None, repr=False)
    auth: Literal["bearer", "x-api-key", "none"] = "bearer"
    headers: tuple[tuple[str, str], ...] = ()
    transport: Literal["http1", "httpx"] = "http1"
    proxy_env: str | None = None
    """The environment variable that holds the egress proxy's URL. `None`: no proxy."""
    allow_private_addresses: bool = False
    ca_file: str | None = None
    max_in_flight: int = 256
    timeouts: ProviderTimeouts = ProviderTimeouts()
    max_response_bytes: int = 33_554_432
    max_event_bytes: int = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    always_on: bool = False
    control: Literal["effort", "budget", "any"] = "any"
    efforts: frozenset[str] = frozenset()
    min_budget_tokens: int | None = None
    max_budget_tokens: int | None = None
    signing_family: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    id: TargetId
    position: int
    """In the group's list, from 0."""
    provider: Provider
    model: str
    """The name that goes upstream."""
    model_ref: str
    """The catalogue's name, or the upstream one when it is not in the catalogue."""
    model_key: ModelKey
    weight: float = 1.0
    tags: frozenset[str] = frozenset()
    tool_only: bool = False
    tier: str | None = None
    region: str | None = None
    max_in_flight: int | None = None
    input_price: float | None = None
    output_price: float | None = None
    cached_input_price: float | None = None
    input_price_microusd_per_million: int | None = None
    """Exact, for billing: micro-dollars for a million tokens. `None`: unknown."""
    output_price_microusd_per_million: int | None = None
    cached_input_price_microusd_per_million: int | None = None
    cache_write_price_microusd_per_million: int | None = None
    cache_write_1h_price_microusd_per_million: int | None = None
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    max_request_bytes: int | None = None
    input_modalities: frozenset[Modality] = frozenset({"text"})
    tools: bool | None = None
    """Whether the provider's own dialect may carry tools. `None`: undeclared."""
    forced_tool_choice: bool | None = None
    structured_outputs: bool | None = None
    honors_max_tokens: bool | None = None
    output_token_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    drops_stream_options: bool = False
    renames_developer_role: bool = False
    reasoning: Reasoning | None = None
    """`None`: undeclared or unsupported."""
    quality: float | None = None
    """Declared evaluation quality in [0, 1]: policy metadata, else validation quality, else pass rate."""
    quality_until: float | None = None
    """POSIX day (days since 1970-01-01) after which `quality` is too old to use. `None`: no end."""


class NotANumber(ArithmeticError):
    """An expression gave no finite number."""


Expression = Callable[[tuple[float, ...]], float]
"""Takes the scores in the order of `expressions.NAMES`. Raises `ZeroDivisionError` or gives inf/nan where the arithmetic does."""


class Scored(Protocol):
    """A score of several candidates."""

    @property
    def values(self) -> Sequence[float]: ...


ColumnExpression = Callable[[Mapping[str, Scored]], list[float]]
"""The same for several candidates at once: takes the scores by name, and raises for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    complexity_lte: Complexity | None = None
    complexity_gte: Complexity | None = None
    prompt_features_any: frozenset[Feature] | None = None
    """`prompt_feature` is folded into a set of one; when both are given, both are kept as `prompt_feature`."""
    prompt_feature: Feature | None = None
    stream: bool | None = None
    tools: bool | None = None
    images: bool | None = None
    reasoning: bool | None = None
    dialect: Dialect | None = None
    input_tokens_lte: int | None = None
    input_tokens_gte: int | None = None
    caller_tag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTerm:
    name: str
    when: When = When()
    require_tags: frozenset[str] = frozenset()
    prefer_tags: frozenset[str] = frozenset()
    expression: Expression | None = None
    """Compiled from `expression` or from `weights`. `None`: the term only requires or prefers tags, and its own value is 0."""
    over_columns: ColumnExpression | None = None
    """The same expression; `None` where it is, or where it names no score."""
    source: str = ""
    """The expression as written, or the weights written out."""
    names: frozenset[str] = frozenset()
    """Score names that the expression uses."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Coefficients, when the expression is a plain weighted sum: for showing contributions."""
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """For every strategy."""

    max_consecutive_failures: int = 5
    probe_first_s: float = 10.0
    probe_max_s: float = 300.0
    probe_successes: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdPolicy:
    max_error_rate: float | None = None
    max_timeout_rate: float | None = None
    max_p95_s: float | None = None
    max_ttfb_s: float | None = None
    min_output_tokens_per_second: float | None = None
    min_observations: int = 10
    fast_min_observations: int = 5
    latency_min_observations: int = 60
    confidence_z: float = 2.33
    when_all_excluded: Literal["least_bad", "fail"] = "least_bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityPolicy:
    enabled: bool = True
    ttl_s: float = 600.0
    max_entries: int = 10_000
    sliding: bool = False
    session_header: str | None = None
    """Lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardFilters:
    require_requested_api_skin: bool = False
    require_input_modalities: bool = False
    require_tool_support_when_tools_present: bool = False
    require_forced_tool_choice_support: bool = False
    require_structured_output_support: bool = False
    require_reasoning_support_when_requested: bool = False
    require_honors_max_tokens_when_caller_capped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePolicy:
    """The group's `dynamic_score` block."""

    min_observations: int = 20
    window_s: int = 600
    fast_half_life_s: float = 30.0
    prior_strength: float = 5.0
    normalization: Literal["ratio", "minmax"] = "ratio"
    adjustment: float = 0.7
    """`max_score_adjustment_percent` / 100."""
    contrast: float = 4.0
    near_tie: float = 0.07
    client_cancellations: Literal["before_first_byte", "always", "never"] = "before_first_byte"
    affinity: AffinityPolicy = AffinityPolicy()
    hard_filters: HardFilters = HardFilters()
    enabled_signals: frozenset[str] = frozenset(
        {"request_shape", "complexity", "observed_performance", "cost", "evaluation_metadata"}
    )
    features: frozenset[Feature] = frozenset()
    """Prompt features to look for; empty when the signal is off."""
    max_scan_bytes: int = 16_384
    score_terms: tuple[ScoreTerm, ...] = ()
    thresholds: ThresholdPolicy = ThresholdPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPolicy:
    max: int = 3
    deadline_s: float = 600.0
    retry_share: float = 0.2
    retry_min_per_second: float = 3.0
    cool_down_default_s: float = 1.0
    cool_down_max_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    name: str
    strategy: Strategy
    targets: tuple[Target, ...]
    description: str = ""
    model_identity: Literal["upstream", "requested_group"] = "upstream"
    attempts: AttemptPolicy = AttemptPolicy()
    health: HealthPolicy = HealthPolicy()
    score: ScorePolicy = ScorePolicy()
    plan: object | None = field(default=None, init=False, repr=False, compare=False)
    """What `decide` worked out of this group beforehand; filled by the group's first decision, the same for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    revision: int
    """0: nothing published yet."""
    groups: Mapping[str, Group]
    providers: Mapping[str, Provider]
    created: int = 0
    """Unix seconds of publication; the `created` of each group in the models list."""
