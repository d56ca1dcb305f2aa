"""The admin's pages of providers, models and groups. `gateway.admin` registers them, because saving there publishes."""

import os
from functools import partial
from pathlib import Path
from typing import Any

from django.contrib import messages
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin, StackedInline
from unfold.decorators import display

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


PRICES = {
    "fields": (
        ("input_price_per_million_usd", "output_price_per_million_usd"),
        ("cached_input_price_per_million_usd", "cache_write_price_per_million_usd"),
        ("cache_write_1h_price_per_million_usd", "cache_ttl_seconds"),
        ("pricing_source", "pricing_updated_at"),
    )
}
ABILITIES = {
    "fields": (
        ("context_tokens", "max_output_tokens"),
        "max_request_bytes",
        ("input_modalities", "output_modalities"),
        "tool_support",
        "reasoning",
        ("honors_max_tokens", "output_token_field"),
        "unsupported_request_features",
    )
}
VALIDATION = {"fields": ("validation",)}


class PageAdmin(ModelAdmin):
    """A page whose parts are judged together once each has been read."""

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
    collapsible = True
    verbose_name_plural = "models"
    fieldsets = (
        (None, {"fields": (("name", "model"),)}),
        ("Prices", PRICES),
        ("What it can do", ABILITIES),
        ("Validation", VALIDATION),
    )


class ProviderAdmin(PageAdmin):
    form = ProviderForm
    inlines = (ProviderModelInline,)
    list_display = ("name", "dialect", "base_url", "credential", "models", "max_in_flight")
    list_filter = ("dialect", "allow_private_addresses")
    search_fields = ("name", "base_url")
    readonly_fields = ("literal_key",)
    fieldsets = (
        (None, {"fields": ("name", "base_url", "dialect")}),
        (
            "Credential",
            {
                "description": "One of the three, or none at all.",
                "fields": (
                    ("api_key_env", "api_key_file"),
                    "literal_key",
                    ("new_api_key", "clear_api_key"),
                    "auth",
                ),
            },
        ),
        ("Connection", {"fields": ("headers", "allow_private_addresses", "ca_file", "max_in_flight")}),
        (
            "Limits",
            {
                "classes": ("collapse",),
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

    @display(description="Credential")
    def credential(self, provider: Provider) -> str:
        return credential(provider)

    @display(description="Models", ordering="model_count")
    def models(self, provider: Provider) -> int:
        counted: int = vars(provider)["model_count"]
        return counted

    @display(description="Literal key")
    def literal_key(self, provider: Provider) -> str:
        return "set" if provider.api_key else "not set"


class ProviderModelAdmin(ModelAdmin):
    form = ProviderModelForm
    list_display = (
        *("name", "provider", "model", "input_price_per_million_usd", "output_price_per_million_usd"),
        *("context_tokens", "groups"),
    )
    list_filter = ("provider", "provider__dialect")
    list_select_related = ("provider",)
    search_fields = ("name", "model", "provider__name")
    search_help_text = "The name, the upstream name or the provider's name."
    fieldsets = (
        (None, {"fields": ("provider", ("name", "model"))}),
        ("Prices", PRICES),
        ("What it can do", ABILITIES),
        ("Validation", VALIDATION),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[ProviderModel]:
        found: QuerySet[ProviderModel] = super().get_queryset(request)
        return found.prefetch_related("targets__group")

    def get_form(
        self, request: HttpRequest, obj: ProviderModel | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        return type("AloneForm", (_ModelAlone, super().get_form(request, obj, change=change, **kwargs)), {})

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
    collapsible = True


class TargetInline(OrderedInline):
    model = Target
    form = TargetForm
    autocomplete_fields = ("provider_model",)
    fieldsets = (
        (None, {"fields": ("position", ("provider_model", "weight"), "tags")}),
        (
            "More",
            {
                "classes": ("collapse",),
                "fields": Lines(
                    (
                        ("provider", "model"),
                        ("tier", "region"),
                        ("tool_only", "max_in_flight"),
                        "overrides",
                    )
                ),
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Target]:
        targets: QuerySet[Target] = super().get_queryset(request)
        return targets.select_related("provider", "provider_model__provider")


class ScoreTermInline(OrderedInline):
    model = ScoreTerm
    form = ScoreTermForm
    fieldsets = (
        (None, {"fields": ("position", ("name", "share"), "expression", "when")}),
        ("Tags and weights", {"classes": ("collapse",), "fields": Lines((("require_tags", "prefer_tags"), "weights"))}),
    )


class EvaluationMetadataInline(OrderedInline):
    model = EvaluationMetadata
    form = EvaluationMetadataForm
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
    list_display = ("name", "strategy", "target_list", "tag_list", "description")
    list_filter = ("strategy", "targets__provider_model__provider")
    search_fields = ("name", "description", "targets__provider_model__name", "targets__model")
    fieldsets = (
        (None, {"fields": ("name", "description", ("strategy", "model_identity"))}),
        (
            "Attempts",
            {
                "classes": ("collapse",),
                "fields": Lines(
                    (
                        ("attempts_max", "attempts_deadline_ms"),
                        ("retry_percent", "retry_min_per_second"),
                        ("cool_down_default_ms", "cool_down_max_ms"),
                    )
                ),
            },
        ),
        (
            "Failing targets",
            {
                "classes": ("collapse",),
                "description": "For every strategy.",
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
                "description": "From here on only for the strategy dynamic_score.",
                "fields": (
                    ("max_score_adjustment_percent", "normalization"),
                    ("min_observations", "observation_window_seconds"),
                    ("fast_half_life_seconds", "prior_strength"),
                    ("contrast", "near_tie"),
                    "client_cancellations",
                ),
            },
        ),
        (
            "Conversations",
            {
                "classes": ("collapse",),
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
            "Targets must have",
            {
                "classes": ("collapse",),
                "fields": Lines(
                    (
                        ("require_requested_api_skin", "require_input_modalities"),
                        ("require_tool_support_when_tools_present", "require_forced_tool_choice_support"),
                        ("require_structured_output_support", "require_reasoning_support_when_requested"),
                        "require_honors_max_tokens_when_caller_capped",
                    )
                ),
            },
        ),
        (
            "Signals",
            {
                "classes": ("collapse",),
                "fields": Lines(
                    (
                        ("signal_cost", "signal_observed_performance", "signal_evaluation_metadata"),
                        ("signal_request_shape", "signal_complexity", "signal_prompt_features"),
                        ("prompt_features", "prompt_scan_bytes"),
                    )
                ),
            },
        ),
        (
            "Limits on targets",
            {
                "classes": ("collapse",),
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
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[ModelGroup]:
        groups: QuerySet[ModelGroup] = super().get_queryset(request)
        return groups.prefetch_related("targets__provider", "targets__provider_model__provider")

    def judge(self, form: ReadForm, *formsets: PageFormSet) -> bool:
        targets, terms, evaluations = formsets
        return judge_group(form, targets, terms, evaluations)

    @display(description="Targets and weights")
    def target_list(self, group: ModelGroup) -> str:
        return ", ".join(f"{target} {target.weight:g}" for target in group.targets.all())

    @display(description="Tags")
    def tag_list(self, group: ModelGroup) -> str:
        return ", ".join(sorted({tag for target in group.targets.all() for tag in target.tags}))


def credential(provider: Provider) -> str:
    """Where the key comes from and whether it is there, as this process sees it."""
    if provider.api_key_env:
        there = "set" if os.environ.get(provider.api_key_env) else "not set in this process"
        return f"${provider.api_key_env}, {there}"
    if provider.api_key_file:
        there = "readable" if os.access(Path(provider.api_key_file), os.R_OK) else "not readable by this process"
        return f"{provider.api_key_file}, {there}"
    return "literal key" if provider.api_key else "none"
