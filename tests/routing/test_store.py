"""Rows to a Document and back."""

import datetime
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from routing.core import document
from routing.core.errors import ConfigurationError
from routing.models import ModelGroup, Provider, ProviderModel, ScoreTerm, Target
from routing.store import apply_document, document_from_rows, readable_document
from tests.support.documents import declared_group, declared_provider, declared_target, some_document

pytestmark = pytest.mark.django_db


def test_what_is_applied_is_what_is_read_back() -> None:
    wanted = some_document(
        declared_group(
            [
                declared_target(weight=Decimal("0.004")),
                declared_target(weight=Decimal("0.001"), reasoning=None, input_modalities=("image", "text")),
                declared_target(weight=Decimal(995), tier="", region="eu", overrides=frozenset()),
                declared_target(None, model="other", max_in_flight=3, tags=("b", "a")),
                declared_target(weight=Decimal(0), tool_only=True),
            ],
            description="Ünïcode, 'quotes' and a\nline",
            policy=document.DynamicScore(
                near_tie=1e-9,
                prior_strength=0.1 + 0.2,
                affinity=document.Affinity(session_header="x-c", sliding=True),
                score_terms=(document.ScoreTerm(name="a", weights={"cost_score": 1.5}), document.ScoreTerm(name="")),
                signals=document.Signals(cost=document.Signal(enabled=False)),
            ),
        ),
        providers={
            "house": declared_provider(
                {"small": document.Model(model="s", output_price_per_million_usd=Decimal("0.000001"))},
                headers={"b": "1", "a": "2"},
                limits=document.ResponseLimits(max_response_bytes=2**53),
            ),
            "empty": declared_provider({}, dialect="anthropic"),
        },
    )
    apply_document(wanted)
    assert document_from_rows() == wanted
    apply_document(wanted)
    assert document_from_rows() == wanted


def test_applying_a_second_document_leaves_nothing_of_the_first() -> None:
    apply_document(some_document(models={"chat": declared_group(), "old": declared_group()}))
    wanted = some_document(
        models={"chat": declared_group([declared_target("large", provider="new")])},
        providers={"new": declared_provider(["large"])},
    )
    apply_document(wanted)
    assert document_from_rows() == wanted
    assert [model.objects.count() for model in (Provider, ProviderModel, ModelGroup, Target)] == [1, 1, 1, 1]


def test_a_row_that_stays_keeps_its_identity() -> None:
    apply_document(some_document())
    before = (Provider.objects.get().pk, ProviderModel.objects.get().pk, ModelGroup.objects.get().pk)
    apply_document(some_document(declared_group(description="changed")))
    assert (Provider.objects.get().pk, ProviderModel.objects.get().pk, ModelGroup.objects.get().pk) == before


def test_reading_takes_as_many_queries_for_many_rows_as_for_one() -> None:
    apply_document(some_document())
    with CaptureQueriesContext(connection) as one:
        document_from_rows()
    apply_document(
        some_document(
            models={f"g{number}": declared_group([declared_target(), declared_target()]) for number in range(20)},
            providers={"house": declared_provider([f"m{number}" for number in range(20)] + ["small"])},
        )
    )
    with CaptureQueriesContext(connection) as many:
        document_from_rows()
    assert (len(one), len(many)) == (6, 6)


def test_a_document_without_a_credential_keeps_the_literal_key_while_the_origin_stays() -> None:
    def provider(**fields: Any) -> document.Document:
        return some_document(providers={"house": declared_provider(**fields)}, models={})

    def key_after(wanted: document.Document) -> str | None:
        apply_document(provider(base_url="http://127.0.0.1:9001/v1", api_key="k"))
        apply_document(wanted)
        return Provider.objects.values_list("api_key", flat=True).get()

    assert key_after(provider(base_url="http://127.0.0.1:9001/other")) == "k"
    assert key_after(provider(base_url="http://127.0.0.1:9002/v1")) is None
    assert key_after(provider(base_url="https://inference.example/v1")) is None
    assert key_after(provider(base_url="http://127.0.0.1:9001/v1", api_key_env="KEY")) is None
    assert key_after(provider(base_url="http://127.0.0.1:9001/v1", api_key="new")) == "new"


def test_a_row_that_no_file_could_say_is_named_and_the_rest_can_still_be_read() -> None:
    apply_document(some_document(models={"bad": declared_group(), "good": declared_group()}))
    Target.objects.filter(group__name="bad").update(overrides={"reasoning": {"efort": 1}, "tags": []})
    with pytest.raises(ConfigurationError) as refused:
        document_from_rows()
    assert [str(problem) for problem in refused.value.problems] == [
        "models.bad.targets[0].reasoning.efort: unknown key; did you mean 'efforts'?",
        "models.bad.targets[0].overrides: unknown key; did you mean 'bridges'?",
    ]
    assert readable_document() == some_document(models={"good": declared_group()})


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        (Target, {"weight": -0.001}),
        (Target, {"max_in_flight": 0}),
        (Target, {"model": "both"}),
        (ModelGroup, {"max_score_adjustment_percent": 100.1}),
        (ModelGroup, {"strategy": "chance"}),
        (ModelGroup, {"near_tie": -1}),
        (ModelGroup, {"max_error_rate": 1.01}),
        (Provider, {"dialect": "gopher"}),
        (Provider, {"auth": "basic"}),
        (Provider, {"connect_ms": 0}),
        (ProviderModel, {"input_price_per_million_usd": -1}),
        (ProviderModel, {"context_tokens": 0}),
        (ScoreTerm, {"weights": {"cost_score": 1}}),
        (ScoreTerm, {"share": -1}),
    ],
)
def test_the_database_holds_the_rules_that_it_can_hold(row: Any, columns: dict[str, Any]) -> None:
    policy = document.DynamicScore(score_terms=(document.ScoreTerm(name="t", expression="cost_score"),))
    apply_document(some_document(declared_group(policy=policy)))
    with pytest.raises(IntegrityError), transaction.atomic():
        row.objects.update(**columns)


@pytest.mark.parametrize("make", [lambda: Provider(name="house"), lambda: ModelGroup(name="chat")])
def test_names_are_unique(make: Any) -> None:
    apply_document(some_document())
    row = make()
    if isinstance(row, Provider):
        row.base_url, row.dialect = "http://127.0.0.1/v1", "openai-chat"
    with pytest.raises(IntegrityError), transaction.atomic():
        row.save()


def test_every_field_of_a_document_has_its_place_in_the_rows() -> None:
    """All fields that this release serves, each with a value that is not its default."""
    wanted = replace(some_document(EVERYTHING), providers={"house": EVERY_PROVIDER_FIELD})
    apply_document(wanted)
    assert document_from_rows() == wanted
    for kind, value in SHOWN:
        same = [name for name, field in kind.__dataclass_fields__.items() if getattr(value, name) == _default(field)]
        assert set(same) <= ONE_VALUE_ONLY, kind


def _default(field: Any) -> object:
    return field.default_factory() if callable(field.default_factory) else field.default


ONE_VALUE_ONLY = {
    *("bridges", "contract", "spend_ceiling", "script", "external", "overrides"),
    *("selection", "exploration_percent", "cold_start_policy", "repin_on_fallback", "shared"),
    *("model_ref", "model", "api_key_file", "api_key", "weights"),
}
MODEL_FIELDS: dict[str, Any] = {
    "input_price_per_million_usd": Decimal("0.1"),
    "output_price_per_million_usd": Decimal("0.2"),
    "cached_input_price_per_million_usd": Decimal("0.3"),
    "cache_write_price_per_million_usd": Decimal("0.4"),
    "cache_write_1h_price_per_million_usd": Decimal("0.5"),
    "cache_ttl_seconds": 300,
    "pricing_source": "https://provider.example",
    "pricing_updated_at": datetime.date(2026, 11, 1),
    "context_tokens": 1,
    "max_output_tokens": 2,
    "max_request_bytes": 3,
    "input_modalities": ("text", "image"),
    "output_modalities": ("text", "audio"),
    "tool_support": document.ToolSupport(openai_chat=("tools",), openai_responses=(), anthropic_messages=("x",)),
    "honors_max_tokens": False,
    "output_token_field": "max_completion_tokens",
    "unsupported_request_features": ("stream_options",),
    "reasoning": document.Reasoning(supported=True, efforts=("low",), signing_family="f", min_budget_tokens=4),
    "validation": document.Validation(status="passed", workload="w", quality_score=0.5, notes="n"),
}
EVERY_PROVIDER_FIELD = document.Provider(
    base_url="https://inference.example/v1",
    dialect="anthropic",
    api_key_env="KEY",
    auth="bearer",
    headers={"a": "b"},
    transport="httpx",
    proxy_env="EGRESS_PROXY",
    allow_private_addresses=True,
    ca_file="/ca.pem",
    max_in_flight=1,
    timeouts=document.Timeouts(connect_ms=1, first_byte_ms=2, idle_ms=3, total_ms=4, keepalive_ms=5),
    limits=document.ResponseLimits(max_response_bytes=2048, max_event_bytes=1024),
    models={"small": document.Model(model="s", **MODEL_FIELDS)},
)
POLICY = document.DynamicScore(
    min_observations=1,
    observation_window_seconds=2,
    fast_half_life_seconds=3,
    prior_strength=4,
    normalization="minmax",
    max_score_adjustment_percent=5,
    contrast=6,
    near_tie=0.5,
    client_cancellations="never",
    affinity=document.Affinity(enabled=False, ttl_seconds=7, max_entries=8, sliding=True, session_header="x"),
    hard_filters=document.HardFilters(**dict.fromkeys(document.HardFilters.__dataclass_fields__, True)),
    signals=document.Signals(
        request_shape=document.Signal(enabled=False),
        prompt_features=document.PromptFeatures(enabled=True, max_scan_bytes=9, features=("diff", "code")),
        complexity=document.Signal(enabled=False),
        observed_performance=document.Signal(enabled=False),
        cost=document.Signal(enabled=False),
        evaluation_metadata=document.Signal(enabled=False),
    ),
    score_terms=(
        document.ScoreTerm(
            name="t",
            when=document.When(tools=False, input_tokens_gte=0, prompt_features_any=("code",)),
            require_tags=("a",),
            prefer_tags=("b",),
            expression="cost_score",
            share=0.5,
        ),
    ),
    evaluation_metadata=(
        document.EvaluationMetadata(
            provider="house",
            model="small",
            quality_score=0.1,
            pass_rate=0.2,
            workload="w",
            validation_date=datetime.date(2026, 1, 1),
            max_age_days=1,
            tags=("x",),
        ),
    ),
    thresholds=document.ScoreThresholds(
        max_error_rate=0.1,
        max_timeout_rate=0.2,
        max_p95_latency_ms=1,
        max_ttfb_ms=2,
        min_output_tokens_per_second=3,
        min_observations=4,
        fast_min_observations=6,
        latency_min_observations=7,
        confidence_z=8,
        when_all_excluded="fail",
    ),
)
TARGET = document.Target(
    provider="house",
    model_ref="small",
    weight=Decimal("0.5"),
    tags=("a",),
    tool_only=True,
    tier="t",
    region="r",
    max_in_flight=1,
    overrides=frozenset(MODEL_FIELDS),
    **MODEL_FIELDS,
)
EVERYTHING = document.Group(
    strategy="dynamic_score",
    targets=(TARGET,),
    description="d",
    model_identity="requested_group",
    attempts=document.Attempts(
        max=1,
        deadline_ms=2,
        retry_percent=3,
        retry_min_per_second=4,
        cool_down=document.CoolDown(default_ms=5, max_ms=6),
    ),
    thresholds=document.HealthThresholds(
        max_consecutive_failures=1, probe=document.Probe(first_seconds=1, max_seconds=2, successes=3)
    ),
    routing_policy=document.RoutingPolicy(dynamic_score=POLICY),
)
SHOWN: tuple[tuple[Any, Any], ...] = (
    (document.Provider, EVERY_PROVIDER_FIELD),
    (document.Timeouts, EVERY_PROVIDER_FIELD.timeouts),
    (document.ResponseLimits, EVERY_PROVIDER_FIELD.limits),
    (document.Model, EVERY_PROVIDER_FIELD.models["small"]),
    (document.Group, EVERYTHING),
    (document.Attempts, EVERYTHING.attempts),
    (document.CoolDown, EVERYTHING.attempts.cool_down),
    (document.HealthThresholds, EVERYTHING.thresholds),
    (document.Probe, EVERYTHING.thresholds.probe),
    (document.Target, TARGET),
    (document.DynamicScore, POLICY),
    (document.Affinity, POLICY.affinity),
    (document.HardFilters, POLICY.hard_filters),
    (document.Signals, POLICY.signals),
    (document.PromptFeatures, POLICY.signals.prompt_features),
    (document.ScoreTerm, POLICY.score_terms[0]),
    (document.EvaluationMetadata, POLICY.evaluation_metadata[0]),
    (document.ScoreThresholds, POLICY.thresholds),
)
