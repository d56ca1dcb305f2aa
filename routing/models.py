"""Providers, their models and model groups as rows: what people edit, before it is published.

Every key of the configuration file has its place here; `store.py` turns rows into a Document and back. What belongs to
one scalar is a column, what is a nested and rarely used map is JSON in the file's form. The database holds the rules
that it can hold; the others are the reader's and the compiler's. Prices and weights are floats: a Document's decimals
are exactly those that a float means and gives back, which a decimal column of fixed places would round.
"""

from collections.abc import Iterable, Sequence
from typing import Any, get_args

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q

from routing.core.document import NAME, Dialect, Feature, Modality, Strategy

IS_NAME = RegexValidator(rf"^{NAME.pattern}\Z", f"A name is {NAME.meaning}.")


def _choices(words: Iterable[str], **labels: str) -> list[tuple[str, str]]:
    return [(word, labels.get(word.replace("-", "_"), word)) for word in words]


DIALECTS = _choices(
    get_args(Dialect),
    openai_chat="OpenAI Chat Completions",
    openai_responses="OpenAI Responses",
    anthropic="Anthropic Messages",
)
AUTHS = _choices(("bearer", "x-api-key", "none"), bearer="Authorization: Bearer", x_api_key="x-api-key", none="none")
TRANSPORTS = _choices(
    ("http1", "httpx"),
    http1="http1: HTTP/1.1, straight to the provider",
    httpx="httpx: HTTP/2 or HTTP/1.1, or by a proxy",
)
MODALITIES = _choices(get_args(Modality))
STRATEGIES = _choices(
    (word for word in get_args(Strategy) if word not in ("script", "external")),
    static="static: always the first target",
    failover="failover: in the order of the list",
    weighted="weighted: by chance, in proportion to the weights",
    dynamic_score="dynamic_score: by score, measured as requests go by",
)
MODEL_IDENTITIES = _choices(
    ("upstream", "requested_group"), upstream="the upstream model's name", requested_group="the group's name"
)
NORMALIZATIONS = _choices(
    ("ratio", "minmax"),
    ratio="ratio: against the best of the group",
    minmax="minmax: best is 1, worst is 0",
)
CLIENT_CANCELLATIONS = _choices(
    ("before_first_byte", "always", "never"),
    before_first_byte="count when nothing had come yet",
    always="always count",
    never="never count",
)
WHEN_ALL_EXCLUDED = _choices(
    ("least_bad", "fail"), least_bad="use the least bad target", fail="refuse the request with 503"
)
OUTPUT_TOKEN_FIELDS = _choices(("max_tokens", "max_completion_tokens"))
REQUEST_FEATURES = _choices(
    ("stream_options", "developer_role"),
    stream_options="stream_options (removed from the request)",
    developer_role="developer role (sent as system)",
)
FEATURES = _choices(get_args(Feature))


def text_only() -> list[str]:
    return ["text"]


class OptionalText(models.CharField):  # type: ignore[type-arg]  # generic for the checker only
    """A text of any length that may be absent: absent is NULL and differs from empty."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"null": True, "blank": True, "default": None, **kwargs})

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.CharField", args, kwargs


def _is_one_of(model: str, field: str, choices: list[tuple[str, str]]) -> models.CheckConstraint:
    words = [word for word, _ in choices]
    return models.CheckConstraint(
        condition=Q(**{f"{field}__in": words}),
        name=f"{model}_{field}_choice",
        violation_error_message=f"{field} is one of {', '.join(words)}.",
    )


def _within(model: str, low: float, high: float | None, *fields: str) -> list[models.CheckConstraint]:
    bounds = f"at least {low:g}" if high is None else f"from {low:g} to {high:g}"
    return [
        models.CheckConstraint(
            condition=Q(**{f"{field}__gte": low}) & (Q() if high is None else Q(**{f"{field}__lte": high})),
            name=f"{model}_{field}_range",
            violation_error_message=f"{field} is {bounds}.",
        )
        for field in fields
    ]


def _price(label: str, help_text: str = "US dollars for a million tokens. Empty: unknown; 0: known to be free.") -> Any:
    return models.FloatField(label, null=True, blank=True, help_text=help_text)


def _milliseconds(label: str, default: int, what: str) -> Any:
    return models.PositiveBigIntegerField(
        label, default=default, help_text=f"Milliseconds. {what} Default {default:,}."
    )


class Provider(models.Model):
    """An upstream account."""

    name = models.CharField(
        max_length=64, unique=True, validators=[IS_NAME], help_text="How targets and the configuration file call it."
    )
    base_url = models.CharField(
        "base URL",
        help_text="Ends before /chat/completions, /messages or /responses, for example https://api.example.com/v1.",
    )
    dialect = models.CharField(max_length=32, choices=DIALECTS, help_text="The API that is spoken at the base URL.")
    api_key_env = OptionalText(
        "environment variable with the key", help_text="The name of the variable, not the key itself."
    )
    api_key_file = OptionalText("file with the key", help_text="A path that every gateway process can read.")
    api_key = OptionalText("literal key", editable=False)
    auth = OptionalText(
        "how the key is sent",
        max_length=16,
        choices=AUTHS,
        help_text="Empty: by dialect, x-api-key for Anthropic and Authorization: Bearer for the others.",
    )
    headers = models.JSONField(
        "extra headers", default=dict, blank=True, help_text='Sent with every request, as JSON: {"x-team": "ml"}.'
    )
    transport = models.CharField(
        max_length=16,
        choices=TRANSPORTS,
        default="http1",
        help_text="HTTP/2 where the provider offers it, and an egress proxy, need the second.",
    )
    proxy_env = OptionalText(
        "environment variable with the proxy",
        help_text="The name of the variable that holds an egress proxy's URL. Only with the second transport.",
    )
    allow_private_addresses = models.BooleanField(
        default=False,
        help_text="Needed when the host name resolves to a private or loopback address. "
        "A base URL that is literally 127.0.0.0/8, ::1 or localhost is always allowed.",
    )
    ca_file = OptionalText("certificate authority file", help_text="PEM file to trust. Empty: the system's.")
    max_in_flight = models.PositiveBigIntegerField(
        "most requests at once",
        default=256,
        help_text="Per gateway process; when full, the next target is taken. Default 256.",
    )
    connect_ms = _milliseconds("connect limit", 3_000, "Until the connection stands.")
    first_byte_ms = _milliseconds("first byte limit", 60_000, "From sending to the first byte of the answer.")
    idle_ms = _milliseconds("silence limit", 60_000, "Between two pieces of an answer.")
    total_ms = _milliseconds("total limit", 600_000, "For one whole attempt.")
    keepalive_ms = _milliseconds("keep-alive", 15_000, "An unused connection is closed after this.")
    max_response_bytes = models.PositiveBigIntegerField(
        "largest answer", default=33_554_432, help_text="Bytes. Default 33,554,432."
    )
    max_event_bytes = models.PositiveBigIntegerField(
        "largest event of a stream", default=1_048_576, help_text="Bytes. Default 1,048,576."
    )

    class Meta:
        ordering = ("name",)
        constraints = (
            _is_one_of("provider", "dialect", DIALECTS),
            _is_one_of("provider", "auth", AUTHS),
            *_within("provider", 1, None, "max_in_flight"),
            *_within("provider", 1, 86_400_000, "connect_ms", "first_byte_ms", "idle_ms", "total_ms", "keepalive_ms"),
            *_within("provider", 1024, None, "max_response_bytes", "max_event_bytes"),
        )

    def __str__(self) -> str:
        return self.name


class ProviderModel(models.Model):
    """One of a provider's models, found by its name (the file's `model_ref`)."""

    provider = models.ForeignKey(Provider, models.CASCADE, related_name="catalogue")
    name = models.CharField(max_length=64, validators=[IS_NAME], help_text="What targets call it: the model_ref.")
    model = models.CharField("upstream name", help_text="The model name that goes to the provider.")
    input_price_per_million_usd = _price("input price")
    output_price_per_million_usd = _price("output price")
    cached_input_price_per_million_usd = _price("cached input price")
    cache_write_price_per_million_usd = _price("cache write price")
    cache_write_1h_price_per_million_usd = _price("cache write price, one hour")
    cache_ttl_seconds = models.PositiveBigIntegerField(
        "cache lifetime", null=True, blank=True, help_text="Seconds. Empty: unknown."
    )
    pricing_source = OptionalText("where the prices come from")
    pricing_updated_at = models.DateField("prices checked on", null=True, blank=True)
    context_tokens = models.PositiveBigIntegerField(
        "context window", null=True, blank=True, help_text="Tokens of input and output together. Empty: no limit known."
    )
    max_output_tokens = models.PositiveBigIntegerField(
        "most output tokens", null=True, blank=True, help_text="Empty: no limit known."
    )
    max_request_bytes = models.PositiveBigIntegerField(
        "largest request", null=True, blank=True, help_text="Bytes of the body. Empty: no limit known."
    )
    input_modalities = models.JSONField("reads", default=text_only, blank=True)
    output_modalities = models.JSONField("writes", default=text_only, blank=True)
    tool_support = models.JSONField(
        default=dict,
        blank=True,
        help_text='Per dialect, as JSON: {"openai_chat": ["tools", "tool_choice", "structured_outputs"], '
        '"openai_responses": ["function"], "anthropic_messages": ["client_tools"]}. Empty: undeclared.',
    )
    honors_max_tokens = models.BooleanField(
        "keeps to the caller's output cap", null=True, blank=True, help_text="Unknown is taken for yes."
    )
    output_token_field = OptionalText(
        "output cap sent as",
        max_length=32,
        choices=OUTPUT_TOKEN_FIELDS,
        help_text="Renames the caller's cap. Empty: sent as it came.",
    )
    unsupported_request_features = models.JSONField("does not understand", default=list, blank=True)
    reasoning = models.JSONField(
        null=True,
        blank=True,
        help_text='As JSON: {"supported": true, "control": "effort", "efforts": ["low", "high"]}. Empty: undeclared, '
        "and requests that ask for reasoning go elsewhere.",
    )
    validation = models.JSONField(
        null=True,
        blank=True,
        help_text='As JSON: {"status": "passed", "workload": "coding", "validated_at": "2026-11-01", '
        '"quality_score": 0.93, "pass_rate": 0.97}.',
    )

    class Meta:
        ordering = ("provider__name", "name")
        constraints = (
            models.UniqueConstraint(
                fields=("provider", "name"),
                name="providermodel_name_unique",
                violation_error_message="The provider already has a model of this name.",
            ),
            _is_one_of("providermodel", "output_token_field", OUTPUT_TOKEN_FIELDS),
            *_within(
                "providermodel",
                0,
                1_000_000,
                "input_price_per_million_usd",
                "output_price_per_million_usd",
                "cached_input_price_per_million_usd",
                "cache_write_price_per_million_usd",
                "cache_write_1h_price_per_million_usd",
            ),
            *_within("providermodel", 1, None, "context_tokens", "max_output_tokens", "max_request_bytes"),
        )

    def __str__(self) -> str:
        return f"{self.provider}/{self.name}"


class ModelGroup(models.Model):
    """The model name that a caller asks for, and how one of its targets is chosen."""

    name = models.CharField(
        max_length=64, unique=True, validators=[IS_NAME], help_text="The model name that callers ask for."
    )
    description = models.CharField(default="", blank=True)
    strategy = models.CharField(max_length=32, choices=STRATEGIES, default="dynamic_score")
    model_identity = models.CharField(
        "model named in answers", max_length=32, choices=MODEL_IDENTITIES, default="upstream"
    )

    attempts_max = models.PositiveIntegerField(
        "most attempts", default=3, help_text="For one request, the first included. 1 to 100, default 3."
    )
    attempts_deadline_ms = _milliseconds("no attempt after", 600_000, "Counted from the request's arrival.")
    retry_percent = models.FloatField(
        "retry budget", default=20, help_text="Further attempts, in percent of the requests. 0 to 100, default 20."
    )
    retry_min_per_second = models.FloatField(
        "retry floor", default=3, help_text="Further attempts a second that are always allowed. Default 3."
    )
    cool_down_default_ms = _milliseconds("cool-down", 1_000, "After a rate limit that names no time.")
    cool_down_max_ms = _milliseconds("longest cool-down", 60_000, "Whatever the provider asks for.")

    max_consecutive_failures = models.PositiveBigIntegerField(
        "failures in a row", default=5, help_text="A target is left out after as many. Default 5."
    )
    probe_first_seconds = models.FloatField(
        "first probe after", default=10, help_text="Seconds out of use before one request tries it again. Default 10."
    )
    probe_max_seconds = models.FloatField(
        "longest wait between probes", default=300, help_text="Seconds; the wait doubles up to this. Default 300."
    )
    probe_successes = models.PositiveIntegerField(
        "probes to return", default=2, help_text="Successes in a row that bring a target back. 1 to 100, default 2."
    )

    min_observations = models.PositiveBigIntegerField(
        "observations before scoring", default=20, help_text="Until then the weights decide. Default 20."
    )
    observation_window_seconds = models.PositiveIntegerField(
        "observation window", default=600, help_text="Seconds that an observation counts. 1 to 86,400, default 600."
    )
    fast_half_life_seconds = models.FloatField(
        "fast half-life", default=30, help_text="Seconds after which a recent failure weighs half. Default 30."
    )
    prior_strength = models.FloatField(
        default=5, help_text="Observations' worth of trust in the group's average. 0 to 1,000, default 5."
    )
    normalization = models.CharField("scores compare by", max_length=16, choices=NORMALIZATIONS, default="ratio")
    max_score_adjustment_percent = models.FloatField(
        "influence of scores",
        default=70,
        help_text="How far scores may move traffic away from the weights, in percent. 0: not at all. Default 70.",
    )
    contrast = models.FloatField(
        default=4, help_text="How strongly a better score is preferred. 0 to 1,000, default 4."
    )
    near_tie = models.FloatField(
        default=0.07, help_text="Targets this close to the best share the traffic. 0 to 1, default 0.07."
    )
    client_cancellations = models.CharField(
        "requests the client gave up",
        max_length=32,
        choices=CLIENT_CANCELLATIONS,
        default="before_first_byte",
        help_text="Whether they count against the target.",
    )

    affinity_enabled = models.BooleanField("keep conversations on their target", default=True, help_text="Default: on.")
    affinity_ttl_seconds = models.FloatField(
        "for how long", default=600, help_text="Seconds from the first request. Default 600."
    )
    affinity_max_entries = models.PositiveIntegerField(
        "most conversations", default=10_000, help_text="Remembered per process; the oldest goes first. Default 10,000."
    )
    affinity_sliding = models.BooleanField(
        "every request extends it", default=False, help_text="Default: off, the time runs from the first request."
    )
    affinity_session_header = OptionalText(
        "header with the conversation's id", help_text="Empty: only the known ones and the conversation's beginning."
    )

    require_requested_api_skin = models.BooleanField("only the caller's own dialect", default=False)
    require_input_modalities = models.BooleanField("declared input modalities", default=False)
    require_tool_support_when_tools_present = models.BooleanField("declared tool support", default=False)
    require_forced_tool_choice_support = models.BooleanField("declared forced tool choice", default=False)
    require_structured_output_support = models.BooleanField("declared structured output", default=False)
    require_reasoning_support_when_requested = models.BooleanField("declared reasoning", default=False)
    require_honors_max_tokens_when_caller_capped = models.BooleanField("keeping to the output cap", default=False)

    signal_request_shape = models.BooleanField("request shape", default=True)
    signal_complexity = models.BooleanField("complexity", default=True)
    signal_observed_performance = models.BooleanField("observed performance", default=True)
    signal_cost = models.BooleanField("cost", default=True)
    signal_evaluation_metadata = models.BooleanField("evaluation", default=True)
    signal_prompt_features = models.BooleanField("prompt features", default=False)
    prompt_features = models.JSONField("features to look for", default=list, blank=True)
    prompt_scan_bytes = models.PositiveIntegerField(
        "prompt bytes looked at", default=16_384, help_text="0 to 65,536, default 16,384."
    )

    max_error_rate = models.FloatField(
        "most errors", null=True, blank=True, help_text="Share from 0 to 1, for example 0.03. Empty: no limit."
    )
    max_timeout_rate = models.FloatField(
        "most timeouts", null=True, blank=True, help_text="Share from 0 to 1. Empty: no limit."
    )
    max_p95_latency_ms = models.FloatField(
        "slowest 95th percentile", null=True, blank=True, help_text="Milliseconds. Empty: no limit."
    )
    max_ttfb_ms = models.FloatField(
        "slowest first byte", null=True, blank=True, help_text="Milliseconds. Empty: no limit."
    )
    min_output_tokens_per_second = models.FloatField(
        "slowest output", null=True, blank=True, help_text="Tokens a second. Empty: no limit."
    )
    threshold_min_observations = models.PositiveBigIntegerField(
        "observations needed", default=10, help_text="Before a limit applies. Default 10."
    )
    fast_min_observations = models.PositiveBigIntegerField(
        "recent observations needed", default=5, help_text="Before a recent burst of failures counts. Default 5."
    )
    latency_min_observations = models.PositiveBigIntegerField(
        "observations needed for times", default=60, help_text="Before a limit on times applies. Default 60."
    )
    confidence_z = models.FloatField(
        "confidence", default=2.33, help_text="Standard errors beyond the limit. 0 to 10, default 2.33."
    )
    when_all_excluded = models.CharField(
        "when every target is out", max_length=16, choices=WHEN_ALL_EXCLUDED, default="least_bad"
    )

    class Meta:
        ordering = ("name",)
        constraints = (
            _is_one_of("modelgroup", "strategy", STRATEGIES),
            _is_one_of("modelgroup", "model_identity", MODEL_IDENTITIES),
            _is_one_of("modelgroup", "normalization", NORMALIZATIONS),
            _is_one_of("modelgroup", "client_cancellations", CLIENT_CANCELLATIONS),
            _is_one_of("modelgroup", "when_all_excluded", WHEN_ALL_EXCLUDED),
            *_within("modelgroup", 1, 100, "attempts_max", "probe_successes"),
            *_within("modelgroup", 1, 86_400_000, "attempts_deadline_ms", "cool_down_default_ms", "cool_down_max_ms"),
            *_within("modelgroup", 0, 100, "retry_percent", "max_score_adjustment_percent"),
            *_within("modelgroup", 0, None, "retry_min_per_second"),
            *_within("modelgroup", 0, None, "max_p95_latency_ms", "max_ttfb_ms", "min_output_tokens_per_second"),
            *_within("modelgroup", 0.1, 86_400, "probe_first_seconds", "probe_max_seconds"),
            *_within("modelgroup", 0.1, 3_600, "fast_half_life_seconds"),
            *_within("modelgroup", 1, 86_400, "observation_window_seconds"),
            *_within("modelgroup", 0, 1_000, "prior_strength", "contrast"),
            *_within("modelgroup", 0, 1, "near_tie", "max_error_rate", "max_timeout_rate"),
            *_within("modelgroup", 1, 31_536_000, "affinity_ttl_seconds"),
            *_within("modelgroup", 1, 10_000_000, "affinity_max_entries"),
            *_within("modelgroup", 0, 65_536, "prompt_scan_bytes"),
            *_within(
                "modelgroup",
                1,
                None,
                "max_consecutive_failures",
                "threshold_min_observations",
                "fast_min_observations",
                "latency_min_observations",
            ),
            *_within("modelgroup", 0, 10, "confidence_z"),
        )

    def __str__(self) -> str:
        return self.name


class Target(models.Model):
    """A provider's model in a group: from the catalogue, or a provider and the upstream name."""

    group = models.ForeignKey(ModelGroup, models.CASCADE, related_name="targets")
    position = models.PositiveIntegerField(default=0)
    provider_model = models.ForeignKey(
        ProviderModel,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="targets",
        help_text="A model of a provider's catalogue.",
    )
    provider = models.ForeignKey(
        Provider,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="uncatalogued_targets",
        help_text="Only for a model that is not in the catalogue.",
    )
    model = OptionalText("upstream name", help_text="Only for a model that is not in the catalogue.")
    weight = models.FloatField(default=1, help_text="Share of the traffic; fractions are kept. Default 1.")
    tags = models.JSONField(default=list, blank=True)
    tool_only = models.BooleanField("only requests with tools", default=False)
    tier = OptionalText()
    region = OptionalText()
    max_in_flight = models.PositiveBigIntegerField(
        "most requests at once", null=True, blank=True, help_text="Per process. Empty: only the provider's bound."
    )
    overrides = models.JSONField(
        "own model fields",
        default=dict,
        blank=True,
        help_text='Fields of the model that differ here, as JSON: {"context_tokens": 32768}.',
    )

    class Meta:
        ordering = ("position", "pk")
        constraints = (
            models.CheckConstraint(
                condition=Q(provider_model__isnull=False, provider__isnull=True, model__isnull=True)
                | Q(provider_model__isnull=True, provider__isnull=False, model__isnull=False),
                name="target_model_xor_model_ref",
                violation_error_message="Choose a model of the catalogue, or a provider and an upstream name; not both.",
            ),
            *_within("target", 0, None, "weight"),
            *_within("target", 1, None, "max_in_flight"),
        )

    def __str__(self) -> str:
        return str(self.provider_model) if self.provider_model_id else f"{self.provider}/{self.model}"


class ScoreTerm(models.Model):
    """One line of a group's score."""

    group = models.ForeignKey(ModelGroup, models.CASCADE, related_name="score_terms")
    position = models.PositiveIntegerField(default=0)
    name = models.CharField()
    when = models.JSONField(
        default=dict,
        blank=True,
        help_text='All must hold, as JSON: {"complexity_lte": "standard", "tools": true}. Empty: always.',
    )
    require_tags = models.JSONField(
        default=list, blank=True, help_text="Targets without them are out while this term applies."
    )
    prefer_tags = models.JSONField(default=list, blank=True, help_text="Each adds 0.05 to the target's score.")
    expression = OptionalText(help_text="For example 0.6 * cost_score + 0.4 * latency_score.")
    weights = models.JSONField(
        null=True,
        blank=True,
        help_text='Instead of an expression, as JSON: {"cost_score": 3, "latency_score": 1}; divided by their sum.',
    )
    share = models.FloatField(default=1, help_text="Weight of this term among those that apply. Default 1.")

    class Meta:
        ordering = ("position", "pk")
        constraints = (
            *_within("scoreterm", 0, None, "share"),
            models.CheckConstraint(
                condition=Q(expression__isnull=True) | Q(weights__isnull=True),
                name="scoreterm_expression_or_weights",
                violation_error_message="A term has an expression or weights, not both.",
            ),
        )

    def __str__(self) -> str:
        return self.name


class EvaluationMetadata(models.Model):
    """What a group knows of a model's quality, besides the model's own validation."""

    group = models.ForeignKey(ModelGroup, models.CASCADE, related_name="evaluation_metadata")
    position = models.PositiveIntegerField(default=0)
    provider = models.CharField()
    model = models.CharField(help_text="The model_ref, or the upstream name.")
    quality_score = models.FloatField(null=True, blank=True, help_text="0 to 1.")
    pass_rate = models.FloatField(null=True, blank=True, help_text="0 to 1; used when there is no quality score.")
    workload = OptionalText()
    validation_date = models.DateField("evaluated on", null=True, blank=True)
    max_age_days = models.PositiveBigIntegerField(
        "valid for", null=True, blank=True, help_text="Days. Empty: without end."
    )
    tags = models.JSONField(default=list, blank=True)

    class Meta:
        ordering = ("position", "pk")
        verbose_name_plural = "evaluation metadata"
        constraints = (*_within("evaluationmetadata", 0, 1, "quality_score", "pass_rate"),)

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"
