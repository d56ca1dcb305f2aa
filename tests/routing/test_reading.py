"""Outside data to a Document and back."""

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.document import (
    Document,
    DynamicScore,
    Group,
    HardFilters,
    Model,
    Provider,
    Reasoning,
    RoutingPolicy,
    ScoreTerm,
    Signals,
    Target,
    Timeouts,
    ToolSupport,
    Validation,
    When,
)
from routing.core.reading import read, write
from tests.support.documents import declared_group, declared_provider, some_document


def problems(kind: type, data: object, path: str = "") -> list[str]:
    value, found = read(kind, data, path)
    assert (value is None) == bool(found)
    return [str(each) for each in found]


def test_an_empty_document_is_all_defaults() -> None:
    assert read(Document, {}) == (Document(), [])
    assert read(Document, None) == (Document(), [])


def test_what_is_given_is_read_and_the_rest_is_default() -> None:
    data = {
        "providers": {
            "baseten": {
                "base_url": "https://inference.example/v1",
                "dialect": "openai-chat",
                "api_key_env": "BASETEN_API_KEY",
                "headers": {"x-team": "ml"},
                "timeouts": {"connect_ms": 500},
                "models": {
                    "gpt-oss-120b": {
                        "model": "openai/gpt-oss-120b",
                        "input_price_per_million_usd": 0.1,
                        "pricing_updated_at": datetime.date(2026, 11, 1),
                        "input_modalities": ["text", "image"],
                        "tool_support": {"openai_chat": ["tools"]},
                        "reasoning": {"supported": True},
                        "validation": {"validated_at": "2026-10-02", "quality_score": 1},
                    }
                },
            }
        },
        "models": {
            "chat": {
                "strategy": "dynamic_score",
                "targets": [{"provider": "baseten", "model_ref": "gpt-oss-120b", "weight": 0.5, "tags": ["a"]}],
                "routing_policy": {"dynamic_score": {"score_terms": [{"name": "t", "weights": {"cost": 1}}]}},
            }
        },
    }
    expected = Document(
        providers={
            "baseten": Provider(
                base_url="https://inference.example/v1",
                dialect="openai-chat",
                api_key_env="BASETEN_API_KEY",
                headers={"x-team": "ml"},
                timeouts=Timeouts(connect_ms=500),
                models={
                    "gpt-oss-120b": Model(
                        model="openai/gpt-oss-120b",
                        input_price_per_million_usd=Decimal("0.1"),
                        pricing_updated_at=datetime.date(2026, 11, 1),
                        input_modalities=("text", "image"),
                        tool_support=ToolSupport(openai_chat=("tools",)),
                        reasoning=Reasoning(supported=True),
                        validation=Validation(validated_at=datetime.date(2026, 10, 2), quality_score=1.0),
                    )
                },
            )
        },
        models={
            "chat": Group(
                strategy="dynamic_score",
                targets=(Target(provider="baseten", model_ref="gpt-oss-120b", weight=Decimal("0.5"), tags=("a",)),),
                routing_policy=RoutingPolicy(
                    dynamic_score=DynamicScore(score_terms=(ScoreTerm(name="t", weights={"cost": 1.0}),))
                ),
            )
        },
    )
    assert read(Document, data) == (expected, [])


def test_every_problem_is_reported_at_once_with_its_path() -> None:
    data = {
        "version": 1,
        "providers": {
            "p": {
                "dialect": "openai",
                "api_key_env": "not a name",
                "max_in_flight": 0,
                "models": {"Big One": {}, "m": {"model": " m", "validation": {"validated_at": "2026-13-01"}}},
            }
        },
        "models": {
            "chat": {
                "strategy": "weighted",
                "targets": [{"provider": "p", "weight": -1}, {"provder": "p"}, "p"],
                "routing_policy": {
                    "dynamic_score": {
                        "near_ty": 1,
                        "score_terms": [{"name": "a"}, {"expression": 5, "when": {"complexity_lte": "standart"}}],
                    }
                },
            }
        },
    }
    assert problems(Document, data) == [
        "version: unknown key",
        "providers.p.dialect: 'openai' is not one of openai-chat, openai-responses, anthropic; "
        "did you mean 'openai-chat'?",
        "providers.p.api_key_env: must be an environment variable's name",
        "providers.p.max_in_flight: must be at least 1",
        "providers.p.models['Big One']: name must be 1 to 64 of a-z, 0-9, '.', '_' and '-', "
        "the first a letter or digit",
        "providers.p.models['Big One'].model: must be given",
        "providers.p.models.m.model: must be a name without spaces around it",
        "providers.p.models.m.validation.validated_at: must be a date such as 2026-11-01",
        "providers.p.base_url: must be given",
        "models.chat.targets[0].weight: must be at least 0",
        "models.chat.targets[1].provder: unknown key; did you mean 'provider'?",
        "models.chat.targets[1].provider: must be given",
        "models.chat.targets[2]: must be a mapping, not text",
        "models.chat.routing_policy.dynamic_score.near_ty: unknown key; did you mean 'near_tie'?",
        "models.chat.routing_policy.dynamic_score.score_terms[1].expression: must be text, not a number",
        "models.chat.routing_policy.dynamic_score.score_terms[1].when.complexity_lte: "
        "'standart' is not one of simple, standard, complex; did you mean 'standard'?",
        "models.chat.routing_policy.dynamic_score.score_terms[1].name: must be given",
    ]


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (Timeouts, {"connect_ms": True}, "connect_ms: must be a whole number, not true or false"),
        (Timeouts, {"connect_ms": "3000"}, "connect_ms: must be a whole number, not text"),
        (Timeouts, {"connect_ms": 3000.0}, "connect_ms: must be a whole number, not a number with a fraction"),
        (Timeouts, {"connect_ms": None}, "connect_ms: must be a whole number, not null"),
        (Timeouts, {"connect_ms": 0}, "connect_ms: must be from 1 to 86,400,000"),
        (Timeouts, {"connect_ms": 10**5000}, "connect_ms: must not be beyond 9,007,199,254,740,992"),
        (HardFilters, {"require_input_modalities": 1}, "require_input_modalities: must be true or false, not a number"),
        (DynamicScore, {"near_tie": float("nan")}, "near_tie: must be a finite number"),
        (DynamicScore, {"near_tie": float("inf")}, "near_tie: must be a finite number"),
        (DynamicScore, {"near_tie": Decimal("sNaN")}, "near_tie: must be a finite number"),
        (DynamicScore, {"near_tie": False}, "near_tie: must be a number, not true or false"),
        (DynamicScore, {"near_tie": 1.01}, "near_tie: must be from 0 to 1"),
        (DynamicScore, {"contrast": -(10**400)}, "contrast: must not be beyond 9,007,199,254,740,992"),
        (DynamicScore, {"score_terms": "cost"}, "score_terms: must be a list, not text"),
        (DynamicScore, {"score_terms": {}}, "score_terms: must be a list, not a mapping"),
        (DynamicScore, {"affinity": []}, "affinity: must be a mapping, not a list"),
        (DynamicScore, {1: 2}, "[1]: unknown key"),
        (DynamicScore, {None: 2}, "[None]: unknown key"),
        (DynamicScore, {10**5000: 2}, "[int]: unknown key"),
        (DynamicScore, {"a\nb": 2}, "['a\\nb']: unknown key"),
        (ScoreTerm, {"name": "a\x00"}, "name: holds a character that cannot be stored"),
        (ScoreTerm, {"name": "a\ud800"}, "name: holds a character that cannot be stored"),
        (ScoreTerm, {"name": "t", "weights": {"cost": -1}}, "weights.cost: must be at least 0"),
        (Signals, {"promptfeatures": {}}, "promptfeatures: unknown key; did you mean 'prompt_features'?"),
        (When, {"prompt-feature": "code"}, "prompt-feature: unknown key; did you mean 'prompt_feature'?"),
        (Validation, {"validated_at": "20261101"}, "validated_at: must be a date such as 2026-11-01"),
        (
            Validation,
            {"validated_at": datetime.datetime(2026, 1, 1)},
            "validated_at: must be a date such as 2026-11-01",
        ),
        (
            Model,
            {"model": "m", "input_price_per_million_usd": "1"},
            "input_price_per_million_usd: must be a number, not text",
        ),
        (
            Model,
            {"model": "m", "input_price_per_million_usd": Decimal("0.12345678901234567890")},
            "input_price_per_million_usd: has more digits than can be kept; 15 always can",
        ),
        (Target, {"provider": "p", "overrides": []}, "overrides: unknown key; did you mean 'bridges'?"),
    ],
)
def test_a_wrong_value_is_refused(kind: type, data: object, message: str) -> None:
    assert problems(kind, data) == [message]


def test_a_message_never_repeats_what_may_be_a_secret() -> None:
    key = "sk-live-0123456789"
    data = {"base_url": 1, "dialect": "anthropic", "api_key_env": key, "api_key": [key], "auth": {key: key}}
    assert key not in "\n".join(problems(Provider, data))
    assert key not in repr(read(Provider, {"base_url": "x", "dialect": "anthropic", "api_key": key})[0])


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (Group, {"strategy": "script", "targets": []}, "strategy: 'script' is not available in this release"),
        (Group, {"strategy": "external", "targets": []}, "strategy: 'external' is not available in this release"),
        (
            Group,
            {"strategy": "wieghted", "targets": []},
            "strategy: 'wieghted' is not one of static, failover, weighted, dynamic_score; did you mean 'weighted'?",
        ),
        (Group, {"strategy": "static", "targets": [], "contract": {"a": 1}}, "contract: not available in this release"),
        (
            Group,
            {"strategy": "static", "targets": [], "spend_ceiling": {"a": 1}},
            "spend_ceiling: not available in this release",
        ),
        (RoutingPolicy, {"script": {"a": 1}}, "script: not available in this release"),
        (RoutingPolicy, {"external": {"a": 1}}, "external: not available in this release"),
        (Target, {"provider": "p", "bridges": {"anthropic": {}}}, "bridges: not available in this release"),
        (DynamicScore, {"selection": "proportional"}, "selection: 'proportional' is not available in this release"),
        (DynamicScore, {"exploration_percent": 0.5}, "exploration_percent: not available in this release"),
        (DynamicScore, {"exploration_percent": False}, "exploration_percent: must be a number, not true or false"),
        (DynamicScore, {"affinity": {"shared": True}}, "affinity.shared: not available in this release"),
        (
            DynamicScore,
            {"affinity": {"repin_on_fallback": {"after_n_failures": 2}}},
            "affinity.repin_on_fallback: not available in this release",
        ),
    ],
)
def test_what_this_release_does_not_serve_is_refused_by_name(kind: type, data: object, message: str) -> None:
    assert problems(kind, data) == [message]


def test_an_empty_or_neutral_value_of_an_unserved_key_is_accepted() -> None:
    data = {
        "strategy": "static",
        "targets": [{"provider": "p", "model": "m", "bridges": {}}],
        "contract": {},
        "spend_ceiling": None,
        "routing_policy": {
            "script": {},
            "external": None,
            "dynamic_score": {
                "selection": "best",
                "exploration_percent": 0.0,
                "affinity": {"repin_on_fallback": "never", "shared": False},
            },
        },
    }
    assert read(Group, data) == (Group(strategy="static", targets=(Target(provider="p", model="m"),)), [])
    provider = {"base_url": "x", "dialect": "anthropic", "transport": "http1", "proxy_env": None}
    assert read(Provider, provider) == (Provider(base_url="x", dialect="anthropic"), [])


def test_a_section_left_empty_is_its_default() -> None:
    data = {"signals": None, "score_terms": None, "thresholds": {"max_error_rate": None}}
    assert read(DynamicScore, data) == (DynamicScore(), [])


def test_a_part_is_read_below_the_path_it_is_given() -> None:
    path = "models.chat.routing_policy.dynamic_score.score_terms[1]"
    assert problems(ScoreTerm, {"name": "x", "sahre": 1}, path) == [f"{path}.sahre: unknown key; did you mean 'share'?"]


def test_a_target_remembers_which_model_fields_it_gives() -> None:
    data = {"provider": "p", "model_ref": "m", "tags": [], "context_tokens": None, "input_modalities": ["text"]}
    target, _ = read(Target, data)
    assert target == Target(provider="p", model_ref="m", overrides=frozenset({"context_tokens", "input_modalities"}))
    assert write(target) == {
        "provider": "p",
        "model_ref": "m",
        "context_tokens": None,
        "input_modalities": ["text"],
    }


@pytest.mark.parametrize("weight", [0.004, 0.001, 0, 1, 60, 995, 0.1, 2.5, 1e-7, 2**53, 0.30000000000000004])
def test_a_weight_saved_and_read_back_is_equal(weight: float) -> None:
    target, _ = read(Target, {"provider": "p", "model": "m", "weight": weight})
    assert target is not None
    assert target.weight == Decimal(repr(weight))
    assert read(Target, json.loads(json.dumps(write(target)))) == (target, [])


def test_only_what_differs_from_its_default_is_written_own_fields_first() -> None:
    document = some_document(
        declared_group(policy=DynamicScore(near_tie=0.0, contrast=2.5)),
        providers={
            "house": declared_provider(
                {"small": Model(model="s", validation=Validation(validated_at=datetime.date(2026, 1, 2)))},
                api_key="secret",
            )
        },
    )
    assert json.dumps(write(document)) == json.dumps(
        {
            "providers": {
                "house": {
                    "base_url": "http://127.0.0.1:9001/v1",
                    "dialect": "openai-chat",
                    "models": {"small": {"model": "s", "validation": {"validated_at": "2026-01-02"}}},
                }
            },
            "models": {
                "chat": {
                    "strategy": "dynamic_score",
                    "targets": [{"provider": "house", "model_ref": "small"}],
                    "routing_policy": {"dynamic_score": {"contrast": 2.5, "near_tie": 0}},
                }
            },
        }
    )


KEYS = st.one_of(
    st.sampled_from(
        [
            "providers", "models", "base_url", "dialect", "headers", "timeouts", "limits", "strategy",
            "targets", "provider", "model_ref", "model", "weight", "tags", "routing_policy", "dynamic_score",
            "score_terms", "name", "when", "weights", "expression", "signals", "prompt_features", "features",
            "affinity", "thresholds", "evaluation_metadata", "validation", "validated_at", "tool_support",
            "transport", "contract", "chat", "p",
        ]
    ),
    st.text(max_size=5),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(),
)  # fmt: skip
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.datetimes(),
    st.binary(max_size=3),
    st.decimals(),
    st.sampled_from(["openai-chat", "weighted", "script", "2026-01-01", "code", 10**400, -(10**400)]),
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4), st.sets(KEYS)),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(NESTED, st.sampled_from([Document, Provider, Group, Target, DynamicScore, ScoreTerm, Validation, Signals]))
def test_no_data_makes_the_reader_raise(data: object, kind: type[Any]) -> None:
    value, found = read(kind, data)
    assert (value is None) == bool(found)
    for problem in found:
        str(problem).encode()
    if value is not None:
        assert read(kind, json.loads(json.dumps(write(value)))) == (value, [])


TERMS = st.fixed_dictionaries(
    {"name": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)},
    optional={
        "expression": st.none() | st.just("cost_score"),
        "weights": st.none() | st.dictionaries(st.sampled_from(["cost", "latency"]), st.floats(0, 1e6)),
        "share": st.floats(0, 1e9) | st.integers(0, 10**6),
        "require_tags": st.lists(st.sampled_from(["a", "b"]), max_size=2),
        "when": st.fixed_dictionaries(
            {}, optional={"stream": st.booleans(), "input_tokens_lte": st.integers(0, 2**53)}
        ),
    },
)
TARGETS: st.SearchStrategy[dict[str, object]] = st.fixed_dictionaries(
    {"provider": st.just("p")},
    optional={
        "weight": st.floats(0, 1e9) | st.integers(0, 10**9),
        "context_tokens": st.none() | st.integers(1, 10**7),
        "input_price_per_million_usd": st.none() | st.floats(0, 1e6),
        "reasoning": st.none() | st.fixed_dictionaries({}, optional={"supported": st.booleans()}),
        "tool_support": st.just({}) | st.just({"openai_chat": []}),
        "validation": st.just({}) | st.just({"validated_at": datetime.date(2026, 1, 1), "pass_rate": 1}),
    },
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(TARGETS, max_size=3),
    st.lists(TERMS, max_size=3),
    st.fixed_dictionaries({}, optional={"near_tie": st.floats(0, 1)}),
)
def test_what_is_written_reads_back_equal_and_is_written_the_same(
    targets: list[dict[str, object]], terms: list[object], policy: dict[str, object]
) -> None:
    data = {
        "strategy": "dynamic_score",
        "targets": targets,
        "routing_policy": {"dynamic_score": {**policy, "score_terms": terms}},
    }
    group, found = read(Group, data)
    assert found == []
    written = json.dumps(write(group))
    again, found = read(Group, json.loads(written))
    assert (again, found, json.dumps(write(again))) == (group, [], written)
