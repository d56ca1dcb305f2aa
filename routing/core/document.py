"""The whole configuration as plain data: what the YAML file says and the rows hold, before it is compiled.

Field names and defaults are the configuration file's. `reading.py` builds these from outside data and reports every
problem with its path; `compile.py` turns them into a Catalog. An absent key is the field's default.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Literal

Dialect = Literal["openai-chat", "openai-responses", "anthropic"]
Modality = Literal["text", "image", "file", "audio"]
Strategy = Literal["static", "failover", "weighted", "dynamic_score", "script", "external"]


@dataclass(frozen=True, slots=True)
class Within:
    """Inclusive bounds of a number."""

    low: float
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Matches:
    """A regular expression that the whole string must match, and how to say it to a person."""

    pattern: str
    meaning: str


@dataclass(frozen=True, slots=True)
class NotYet:
    """A key of the design that this release does not serve: refused by name, an empty mapping or `unless` excepted."""

    unless: object = None


@dataclass(frozen=True, slots=True)
class GivenFieldsOf:
    """No key of the file: the reader puts here the names of those fields of `kind` that the file gives."""

    kind: type


NAME = Matches(r"[a-z0-9][a-z0-9._-]{0,63}", "1 to 64 of a-z, 0-9, '.', '_' and '-', the first a letter or digit")
NON_NEGATIVE = Within(0)
AT_LEAST_ONE = Within(1)
SHARE = Within(0, 1)
PERCENT = Within(0, 100)

Milliseconds = Annotated[int, Within(1, 86_400_000)]
Count = Annotated[int, AT_LEAST_ONE]
Price = Annotated[Decimal, Within(0, 1_000_000)]
"""US dollars for a million tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    connect_ms: Milliseconds = 3_000
    first_byte_ms: Milliseconds = 60_000
    idle_ms: Milliseconds = 60_000
    total_ms: Milliseconds = 600_000
    keepalive_ms: Milliseconds = 15_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseLimits:
    max_response_bytes: Annotated[int, Within(1024)] = 33_554_432
    max_event_bytes: Annotated[int, Within(1024)] = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSupport:
    """What a model's tools can do, per dialect. `None`: undeclared. A list without its tool word: unsupported."""

    openai_chat: tuple[str, ...] | None = None
    openai_responses: tuple[str, ...] | None = None
    anthropic_messages: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    supported: bool = False
    always_on: bool = False
    control: Literal["effort", "budget", "any"] = "any"
    efforts: tuple[str, ...] = ()
    min_budget_tokens: Annotated[int, NON_NEGATIVE] | None = None
    max_budget_tokens: Annotated[int, NON_NEGATIVE] | None = None
    signing_family: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    status: Literal["passed", "failed", "pending", "stale", "expired", "skipped"] | None = None
    workload: str | None = None
    validated_at: datetime.date | None = None
    quality_score: Annotated[float, SHARE] | None = None
    pass_rate: Annotated[float, SHARE] | None = None
    harness: str | None = None
    notes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFields:
    """What is declared of one model. A target may override any of it."""

    input_price_per_million_usd: Price | None = None
    output_price_per_million_usd: Price | None = None
    cached_input_price_per_million_usd: Price | None = None
    cache_write_price_per_million_usd: Price | None = None
    cache_write_1h_price_per_million_usd: Price | None = None
    cache_ttl_seconds: Annotated[int, NON_NEGATIVE] | None = None
    pricing_source: str | None = None
    pricing_updated_at: datetime.date | None = None
    context_tokens: Count | None = None
    max_output_tokens: Count | None = None
    max_request_bytes: Count | None = None
    input_modalities: tuple[Modality, ...] = ("text",)
    output_modalities: tuple[Modality, ...] = ("text",)
    tool_support: ToolSupport = field(default_factory=ToolSupport)
    honors_max_tokens: bool | None = None
    output_token_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    unsupported_request_features: tuple[Literal["stream_options", "developer_role"], ...] = ()
    reasoning: Reasoning | None = None
    validation: Validation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(ModelFields):
    """One model of a provider, found by its `model_ref`."""

    model: Annotated[str, Matches(r"\S(.*\S)?", "a name without spaces around it")]
    """The name that goes upstream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    base_url: str
    """Ends before `/chat/completions`, `/messages` or `/responses`."""
    dialect: Dialect
    api_key_env: Annotated[str, Matches(r"[A-Za-z_][A-Za-z0-9_]*", "an environment variable's name")] | None = None
    api_key_file: str | None = None
    api_key: str | None = field(default=None, repr=False)
    """Literal credential; accepted only where `base_url` is literally loopback. Never exported."""
    auth: Literal["bearer", "x-api-key", "none"] | None = None
    """`None`: by dialect (`x-api-key` for anthropic, else `bearer`)."""
    headers: Mapping[str, str] = field(default_factory=dict)
    transport: Literal["http1", "httpx"] = "http1"
    """`httpx`: HTTP/2 where the provider offers it, and an egress proxy."""
    proxy_env: Annotated[str, Matches(r"[A-Za-z_][A-Za-z0-9_]*", "an environment variable's name")] | None = None
    """The variable that holds the egress proxy's URL. Only with `transport: httpx`."""
    allow_private_addresses: bool = False
    ca_file: str | None = None
    max_in_flight: Count = 256
    """Per process."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: ResponseLimits = field(default_factory=ResponseLimits)
    models: Mapping[Annotated[str, NAME], Model] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(ModelFields):
    """A provider's model in a group. A model field that stands in `overrides` is the target's own."""

    provider: str
    model_ref: str | None = None
    model: Annotated[str, Matches(r"\S(.*\S)?", "a name without spaces around it")] | None = None
    """For a model that is not in the provider's catalogue. Exactly one of `model_ref` and `model` is given."""
    weight: Annotated[Decimal, NON_NEGATIVE] = Decimal(1)
    tags: tuple[str, ...] = ()
    tool_only: bool = False
    tier: str | None = None
    region: str | None = None
    max_in_flight: Count | None = None
    """Per process; `None`: only the provider's bound."""
    bridges: Annotated[Mapping[str, object], NotYet()] = field(default_factory=dict)
    overrides: Annotated[frozenset[str], GivenFieldsOf(ModelFields)] = frozenset()
    """Names of the ModelFields that the file gives here. Filled by the reader, not a key of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoolDown:
    default_ms: Milliseconds = 1_000
    max_ms: Milliseconds = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    max: Annotated[int, Within(1, 100)] = 3
    deadline_ms: Milliseconds = 600_000
    retry_percent: Annotated[float, PERCENT] = 20
    retry_min_per_second: Annotated[float, NON_NEGATIVE] = 3
    cool_down: CoolDown = field(default_factory=CoolDown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    first_seconds: Annotated[float, Within(0.1, 86_400)] = 10
    max_seconds: Annotated[float, Within(0.1, 86_400)] = 300
    successes: Annotated[int, Within(1, 100)] = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthThresholds:
    """For every strategy."""

    max_consecutive_failures: Count = 5
    probe: Probe = field(default_factory=Probe)


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    enabled: bool = True
    ttl_seconds: Annotated[float, Within(1, 31_536_000)] = 600
    max_entries: Annotated[int, Within(1, 10_000_000)] = 10_000
    sliding: bool = False
    session_header: Annotated[str, Matches(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}", "a header name")] | None = None
    repin_on_fallback: Annotated[object, NotYet(unless="never")] = "never"
    shared: Annotated[bool, NotYet(unless=False)] = False


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
class Signal:
    enabled: bool = True


Feature = Literal["code", "diff", "stack_trace", "summarize", "extract", "translate", "security_review", "tool_agent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFeatures:
    enabled: bool = False
    max_scan_bytes: Annotated[int, Within(0, 65_536)] = 16_384
    features: tuple[Feature, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    request_shape: Signal = field(default_factory=Signal)
    prompt_features: PromptFeatures = field(default_factory=PromptFeatures)
    complexity: Signal = field(default_factory=Signal)
    observed_performance: Signal = field(default_factory=Signal)
    cost: Signal = field(default_factory=Signal)
    evaluation_metadata: Signal = field(default_factory=Signal)


Complexity = Literal["simple", "standard", "complex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """All that are given must hold."""

    complexity_lte: Complexity | None = None
    complexity_gte: Complexity | None = None
    prompt_feature: Feature | None = None
    prompt_features_any: tuple[Feature, ...] | None = None
    stream: bool | None = None
    tools: bool | None = None
    images: bool | None = None
    reasoning: bool | None = None
    dialect: Dialect | None = None
    input_tokens_lte: Annotated[int, NON_NEGATIVE] | None = None
    input_tokens_gte: Annotated[int, NON_NEGATIVE] | None = None
    caller_tag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTerm:
    """At least one of `expression`, `weights`, `require_tags` and `prefer_tags`; not both of the first two."""

    name: str
    when: When = field(default_factory=When)
    require_tags: tuple[str, ...] = ()
    prefer_tags: tuple[str, ...] = ()
    expression: str | None = None
    weights: Mapping[str, Annotated[float, NON_NEGATIVE]] | None = None
    share: Annotated[float, NON_NEGATIVE] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationMetadata:
    provider: str
    model: str
    """The `model_ref`, or the upstream name."""
    quality_score: Annotated[float, SHARE] | None = None
    pass_rate: Annotated[float, SHARE] | None = None
    workload: str | None = None
    validation_date: datetime.date | None = None
    max_age_days: Annotated[int, NON_NEGATIVE] | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreThresholds:
    max_error_rate: Annotated[float, SHARE] | None = None
    max_timeout_rate: Annotated[float, SHARE] | None = None
    max_p95_latency_ms: Annotated[float, NON_NEGATIVE] | None = None
    max_ttfb_ms: Annotated[float, NON_NEGATIVE] | None = None
    min_output_tokens_per_second: Annotated[float, NON_NEGATIVE] | None = None
    min_observations: Count = 10
    fast_min_observations: Count = 5
    latency_min_observations: Count = 60
    confidence_z: Annotated[float, Within(0, 10)] = 2.33
    when_all_excluded: Literal["least_bad", "fail"] = "least_bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicScore:
    cold_start_policy: Literal["configured_weight"] = "configured_weight"
    min_observations: Annotated[int, NON_NEGATIVE] = 20
    observation_window_seconds: Annotated[int, Within(1, 86_400)] = 600
    fast_half_life_seconds: Annotated[float, Within(0.1, 3_600)] = 30
    prior_strength: Annotated[float, Within(0, 1_000)] = 5
    normalization: Literal["ratio", "minmax"] = "ratio"
    max_score_adjustment_percent: Annotated[float, PERCENT] = 70
    contrast: Annotated[float, Within(0, 1_000)] = 4
    near_tie: Annotated[float, SHARE] = 0.07
    selection: Annotated[Literal["best", "proportional"], NotYet(unless="best")] = "best"
    exploration_percent: Annotated[float, NotYet(unless=0)] = 0
    client_cancellations: Literal["before_first_byte", "always", "never"] = "before_first_byte"
    affinity: Affinity = field(default_factory=Affinity)
    hard_filters: HardFilters = field(default_factory=HardFilters)
    signals: Signals = field(default_factory=Signals)
    score_terms: tuple[ScoreTerm, ...] = ()
    evaluation_metadata: tuple[EvaluationMetadata, ...] = ()
    thresholds: ScoreThresholds = field(default_factory=ScoreThresholds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPolicy:
    dynamic_score: DynamicScore = field(default_factory=DynamicScore)
    script: Annotated[Mapping[str, object], NotYet()] = field(default_factory=dict)
    external: Annotated[Mapping[str, object], NotYet()] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    strategy: Annotated[Strategy, NotYet(unless=("static", "failover", "weighted", "dynamic_score"))]
    targets: tuple[Target, ...]
    description: str = ""
    model_identity: Literal["upstream", "requested_group"] = "upstream"
    attempts: Attempts = field(default_factory=Attempts)
    contract: Annotated[Mapping[str, object], NotYet()] = field(default_factory=dict)
    spend_ceiling: Annotated[Mapping[str, object], NotYet()] = field(default_factory=dict)
    thresholds: HealthThresholds = field(default_factory=HealthThresholds)
    routing_policy: RoutingPolicy = field(default_factory=RoutingPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Providers and groups. Callers live apart: see `accounts`."""

    providers: Mapping[Annotated[str, NAME], Provider] = field(default_factory=dict)
    models: Mapping[Annotated[str, NAME], Group] = field(default_factory=dict)
