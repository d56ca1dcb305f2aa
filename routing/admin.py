"""The admin's pages of providers, models and groups. `gateway.admin` registers them, because saving there publishes."""

from functools import partial
from typing import Any

from django.contrib import messages
from django.db.models import Count, QuerySet, Value
from django.db.models.functions import Concat
from django.http import HttpRequest
from unfold.admin import ModelAdmin, StackedInline
from unfold.decorators import display

from routing import key_files
from routing.forms import (
    EvaluationMetadataForm,
    ModelGroupForm,
    PageFormSet,
    ProviderForm,
    ProviderModelForm,
    ReadForm,
    ScoreTermForm,
    TargetForm,
    judge_group,
    judge_model,
    judge_provider,
)
from routing.models import EvaluationMetadata, ModelGroup, Provider, ProviderModel, ScoreTerm, Target


class Lines(tuple[str | tuple[str, ...], ...]):
    """The lines of a section. Django opens a folded section that holds an error when the field is `in` its lines, and
    does not look into lines of several fields by itself."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        return any(name == line or (isinstance(line, tuple) and name in line) for line in self)


FOLDED = ("collapse",)
SCORED = "pilotage-scored"
"""Of sections and parts that mean something for the strategy dynamic_score alone; the page hides them for the others."""

BASICS = Lines(
    (
        ("name", "model"),
        ("input_price_per_million_usd", "output_price_per_million_usd"),
        ("context_tokens", "max_output_tokens"),
    )
)
MODEL_SECTIONS = (
    (
        "More prices",
        {
            "classes": FOLDED,
            "fields": Lines(
                (
                    ("cached_input_price_per_million_usd", "cache_write_price_per_million_usd"),
                    ("cache_write_1h_price_per_million_usd", "cache_ttl_seconds"),
                    ("pricing_source", "pricing_updated_at"),
                )
            ),
        },
    ),
    (
        "What it can do",
        {
            "classes": FOLDED,
            "fields": Lines(
                (
                    ("input_modalities", "output_modalities"),
                    "tool_support",
                    "reasoning",
                    ("honors_max_tokens", "output_token_field"),
                    "unsupported_request_features",
                    "max_request_bytes",
                )
            ),
        },
    ),
    ("Validation", {"classes": FOLDED, "fields": Lines(("validation",))}),
)


class PageAdmin(ModelAdmin):
    """A page whose parts are judged together once each has been read. Its folded sections stand below its parts."""

    change_form_template = "routing/page.html"

    def save_form(self, request: HttpRequest, form: ReadForm, change: bool) -> Any:
        """Django calls it when the main form is good, before it looks at the others."""
        saved = super().save_form(request, form, change)
        formsets: list[PageFormSet] = getattr(request, "page_formsets", [])
        if formsets:
            formsets[0].judge = partial(self._judge, form, formsets)
        return saved

    def _judge(self, form: ReadForm, formsets: list[PageFormSet]) -> bool:
        for formset in formsets[1:]:
            formset.is_valid()  # reads its forms; this one is being read
        return self.judge(form, *formsets)

    def _create_formsets(self, request: HttpRequest, obj: Any, change: bool) -> Any:
        formsets, inlines = super()._create_formsets(request, obj, change)
        request.page_formsets = formsets  # type: ignore[attr-defined]  # handed to save_form
        return formsets, inlines

    def judge(self, form: ReadForm, *formsets: PageFormSet) -> bool:
        """Places what is wrong with the page at its fields; whether any of it stands at the main form."""
        raise NotImplementedError


class ProviderModelInline(StackedInline):
    model = ProviderModel
    form = ProviderModelForm
    formset = PageFormSet
    extra = 0
    verbose_name_plural = "models"
    template_before = "routing/hint.html"
    hint = "The provider's catalogue: models that groups can have as targets."
    fieldsets = ((None, {"fields": BASICS}), *MODEL_SECTIONS)

    def get_extra(self, request: HttpRequest, obj: Provider | None = None, **kwargs: Any) -> int:
        return 1 if obj is None else 0


class ProviderAdmin(PageAdmin):
    form = ProviderForm
    inlines = (ProviderModelInline,)
    list_display = ("name", "dialect", "base_url", "credential", "models", "max_in_flight")
    list_filter = ("dialect", "allow_private_addresses")
    search_fields = ("name", "base_url")
    search_help_text = "The name or the base URL."
    empty_hint = "A provider is whom requests are sent to: an account at a hosted API, or a server of your own."
    readonly_fields = ("credential", "literal_key")

    def get_fieldsets(self, request: HttpRequest, obj: Provider | None = None) -> Any:
        now = ("credential",) if obj is not None else ()
        return (
            (None, {"fields": ("name", "base_url", "dialect", "allow_private_addresses")}),
            (
                "Key",
                {
                    "description": "Where the provider's key is found: in an environment variable or in a file. "
                    "With neither, none is sent.",
                    "fields": (("api_key_env", "api_key_file"), *now, "auth"),
                },
            ),
            (
                "Key typed in, for a provider on this machine",
                {"classes": FOLDED, "fields": Lines(("literal_key", ("new_api_key", "clear_api_key")))},
            ),
            (
                "Connection",
                {
                    "classes": FOLDED,
                    "fields": Lines((("transport", "proxy_env"), "headers", "ca_file", "max_in_flight")),
                },
            ),
            (
                "Limits",
                {
                    "classes": FOLDED,
                    "fields": Lines(
                        (
                            ("connect_ms", "first_byte_ms"),
                            ("idle_ms", "total_ms"),
                            "keepalive_ms",
                            ("max_response_bytes", "max_event_bytes"),
                        )
                    ),
                },
            ),
        )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Provider]:
        providers: QuerySet[Provider] = super().get_queryset(request)
        return providers.annotate(model_count=Count("catalogue"))

    def judge(self, form: ReadForm, *formsets: PageFormSet) -> bool:
        (catalogue,) = formsets
        return judge_provider(form, catalogue)

    def save_model(self, request: HttpRequest, obj: Provider, form: ProviderForm, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if form.key_was_cleared:
            messages.warning(request, "The base URL leads elsewhere now: the literal key was removed.")

    @display(description="Key")
    def credential(self, provider: Provider) -> str:
        return credential(provider)

    @display(description="Models", ordering="model_count")
    def models(self, provider: Provider) -> int:
        counted: int = vars(provider)["model_count"]
        return counted

    @display(description="Literal key now")
    def literal_key(self, provider: Provider) -> str:
        return "set" if provider.api_key else "not set"


class ProviderModelAdmin(ModelAdmin):
    form = ProviderModelForm
    list_display = ("name", "provider", "model", "price", "window", "groups")
    list_filter = ("provider", "provider__dialect")
    list_select_related = ("provider",)
    search_fields = ("name", "model", "provider__name", "ref")
    search_help_text = "Name, upstream name, provider, or PROVIDER/NAME."
    empty_hint = "A model of a provider: the name that goes there, and what is known of it."
    fieldsets = ((None, {"fields": Lines(("provider", *BASICS))}), *MODEL_SECTIONS)

    def get_queryset(self, request: HttpRequest) -> QuerySet[ProviderModel]:
        found: QuerySet[ProviderModel] = super().get_queryset(request)
        ref = Concat("provider__name", Value("/"), "name")
        return found.prefetch_related("targets__group").annotate(ref=ref)

    def get_form(
        self, request: HttpRequest, obj: ProviderModel | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        return type("AloneForm", (_ModelAlone, super().get_form(request, obj, change=change, **kwargs)), {})

    @display(description="Input / output, $ per million", ordering="input_price_per_million_usd")
    def price(self, model: ProviderModel) -> str:
        prices = (model.input_price_per_million_usd, model.output_price_per_million_usd)
        return "unknown" if prices == (None, None) else " / ".join("?" if p is None else f"{p:.6g}" for p in prices)

    @display(description="Context, tokens", ordering="context_tokens")
    def window(self, model: ProviderModel) -> str:
        return "unknown" if model.context_tokens is None else f"{model.context_tokens:,}"

    @display(description="Groups")
    def groups(self, model: ProviderModel) -> str:
        return ", ".join(sorted({target.group.name for target in model.targets.all()})) or "none"


class _ModelAlone(ProviderModelForm):
    """On its own page there is no other form to be judged with."""

    def _post_clean(self) -> None:
        super()._post_clean()
        if not self.errors:
            judge_model(self)


class OrderedInline(StackedInline):
    formset = PageFormSet
    extra = 0
    ordering_field = "position"
    hide_ordering_field = True
    template_before = "routing/hint.html"


class TargetInline(OrderedInline):
    model = Target
    form = TargetForm
    autocomplete_fields = ("provider_model",)
    hint = (
        "The models that may answer. Their order counts for static and failover, the weights for weighted, and for "
        "dynamic_score until enough has been measured."
    )
    fieldsets = (
        (None, {"fields": ("position", "provider_model", ("weight", "tags"))}),
        (
            "More",
            {
                "classes": FOLDED,
                "fields": Lines(
                    (
                        ("provider", "model"),
                        ("tool_only", "max_in_flight"),
                        ("tier", "region"),
                        "overrides",
                    )
                ),
            },
        ),
    )

    def get_extra(self, request: HttpRequest, obj: ModelGroup | None = None, **kwargs: Any) -> int:
        return 1 if obj is None else 0

    def get_queryset(self, request: HttpRequest) -> QuerySet[Target]:
        targets: QuerySet[Target] = super().get_queryset(request)
        return targets.select_related("provider", "provider_model__provider")


class ScoreTermInline(OrderedInline):
    model = ScoreTerm
    form = ScoreTermForm
    classes = (SCORED,)
    hint = (
        "What makes a target good. Of the terms that apply to a request, the average by share is the score. Without any: "
        "0.25 cost_score + 0.25 latency_score + 0.2 throughput_score + 0.3 reliability_score."
    )
    fieldsets = (
        (None, {"fields": ("position", ("name", "share"), "expression", "when")}),
        ("Tags and weights", {"classes": FOLDED, "fields": Lines((("require_tags", "prefer_tags"), "weights"))}),
    )


class EvaluationMetadataInline(OrderedInline):
    model = EvaluationMetadata
    form = EvaluationMetadataForm
    classes = (SCORED,)
    verbose_name = "evaluation"
    verbose_name_plural = "evaluations"
    hint = "Measured quality of targets, for eval_quality_score. Counts before what stands in a model's validation."
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "position",
                    ("provider", "model"),
                    ("quality_score", "pass_rate"),
                    ("validation_date", "max_age_days"),
                    ("workload", "tags"),
                )
            },
        ),
    )


class ModelGroupAdmin(PageAdmin):
    form = ModelGroupForm
    inlines = (TargetInline, ScoreTermInline, EvaluationMetadataInline)
    list_display = ("name", "chosen_by", "target_list", "description")
    list_filter = ("strategy", "targets__provider_model__provider")
    search_fields = ("name", "description", "targets__provider_model__name", "targets__model")
    search_help_text = "The group's name or a target's."
    empty_hint = "A model group is a model name that your applications ask for, and the models that may answer."
    fieldsets = (
        (None, {"fields": ("name", "description", "strategy")}),
        (
            "Attempts and answers",
            {
                "classes": FOLDED,
                "description": "How many targets one request may try, and how long a target rests after a rate limit.",
                "fields": Lines(
                    (
                        ("attempts_max", "attempts_deadline_ms"),
                        ("retry_percent", "retry_min_per_second"),
                        ("cool_down_default_ms", "cool_down_max_ms"),
                        "model_identity",
                    )
                ),
            },
        ),
        (
            "Failing targets",
            {
                "classes": FOLDED,
                "description": "When a target is left out after failures, and how it comes back.",
                "fields": Lines(
                    (
                        ("max_consecutive_failures", "probe_successes"),
                        ("probe_first_seconds", "probe_max_seconds"),
                    )
                ),
            },
        ),
        (
            "Scores",
            {
                "classes": (*FOLDED, SCORED),
                "description": "How targets are measured, and how much that decides.",
                "fields": Lines(
                    (
                        ("max_score_adjustment_percent", "normalization"),
                        ("min_observations", "observation_window_seconds"),
                        ("fast_half_life_seconds", "prior_strength"),
                        ("contrast", "near_tie"),
                        "client_cancellations",
                    )
                ),
            },
        ),
        (
            "Conversations",
            {
                "classes": (*FOLDED, SCORED),
                "description": "The requests of one conversation stay with one target while it can serve them.",
                "fields": Lines(
                    (
                        ("affinity_enabled", "affinity_sliding"),
                        ("affinity_ttl_seconds", "affinity_max_entries"),
                        "affinity_session_header",
                    )
                ),
            },
        ),
        (
            "Limits on targets",
            {
                "classes": (*FOLDED, SCORED),
                "description": "A target beyond one of these is left out while others are not.",
                "fields": Lines(
                    (
                        ("max_error_rate", "max_timeout_rate"),
                        ("max_p95_latency_ms", "max_ttfb_ms"),
                        ("min_output_tokens_per_second", "confidence_z"),
                        ("threshold_min_observations", "fast_min_observations"),
                        ("latency_min_observations", "when_all_excluded"),
                    )
                ),
            },
        ),
        (
            "Targets must have",
            {
                "classes": (*FOLDED, SCORED),
                "description": "Tools, forced tool choice and structured output: a target that does not declare them gets "
                "no request that needs them. The other four hold anyway; on, a group of which no target could pass is "
                "refused here. All are off by default.",
                "fields": Lines(
                    (
                        ("require_tool_support_when_tools_present", "require_forced_tool_choice_support"),
                        ("require_structured_output_support", "require_reasoning_support_when_requested"),
                        ("require_requested_api_skin", "require_input_modalities"),
                        "require_honors_max_tokens_when_caller_capped",
                    )
                ),
            },
        ),
        (
            "Signals",
            {
                "classes": (*FOLDED, SCORED),
                "description": "What scores and conditions may look at. Off: its scores are 0.5 for every target, and "
                "conditions on it never hold. All are on by default but prompt features, which read the prompt.",
                "fields": Lines(
                    (
                        ("signal_cost", "signal_observed_performance", "signal_evaluation_metadata"),
                        ("signal_request_shape", "signal_complexity", "signal_prompt_features"),
                        ("prompt_features", "prompt_scan_bytes"),
                    )
                ),
            },
        ),
    )

    class Media:
        js = ("routing/strategy.js",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[ModelGroup]:
        groups: QuerySet[ModelGroup] = super().get_queryset(request)
        return groups.prefetch_related("targets__provider", "targets__provider_model__provider")

    def judge(self, form: ReadForm, *formsets: PageFormSet) -> bool:
        targets, terms, evaluations = formsets
        return judge_group(form, targets, terms, evaluations)

    @display(description="Strategy", ordering="strategy")
    def chosen_by(self, group: ModelGroup) -> str:
        return group.strategy

    @display(description="Targets and weights")
    def target_list(self, group: ModelGroup) -> str:
        return ", ".join(f"{target} {target.weight:g}" for target in group.targets.all())


def credential(provider: Provider) -> str:
    """Where the key comes from and whether it is there, as this process sees it."""
    there = key_files.is_there(provider.api_key_env, provider.api_key_file)
    if provider.api_key_env:
        return f"${provider.api_key_env}, {'set' if there else 'not set in this process'}"
    if provider.api_key_file:
        return f"{provider.api_key_file}, {'readable' if there else 'not readable by this process'}"
    return "literal key" if provider.api_key else "none"
