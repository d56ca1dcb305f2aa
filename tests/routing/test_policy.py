"""A group's dynamic_score block: its terms, filters and signals, and what is wrong with them."""

from typing import Any

import pytest

from routing.core import catalog
from routing.core.compile import compile_document, warnings
from routing.core.document import (
    Affinity,
    Attempts,
    CoolDown,
    Document,
    DynamicScore,
    EvaluationMetadata,
    HardFilters,
    HealthThresholds,
    Probe,
    PromptFeatures,
    Reasoning,
    ScoreTerm,
    Signal,
    Signals,
    Target,
    ToolSupport,
    When,
)
from routing.core.errors import ConfigurationError
from tests.support.documents import declared_group, declared_target, some_document

POLICY = "models.chat.routing_policy.dynamic_score"


def problems(document: Document) -> list[str]:
    try:
        compile_document(document)
    except ConfigurationError as error:
        return [str(each) for each in error.problems]
    return []


def policy_problems(policy: DynamicScore, *targets: Target) -> list[str]:
    return problems(some_document(declared_group(targets or None, policy=policy)))


def policy_warnings(policy: DynamicScore, *targets: Target) -> list[str]:
    return [str(each) for each in warnings(some_document(declared_group(targets or None, policy=policy)))]


def test_contradictions_of_a_policy_are_reported_at_once() -> None:
    policy = DynamicScore(
        affinity=Affinity(session_header="Authorization"),
        signals=Signals(prompt_features=PromptFeatures(enabled=True, features=("code",))),
        score_terms=(
            ScoreTerm(name="a", expression="0.45 * latencey_score"),
            ScoreTerm(name="a"),
            ScoreTerm(name=" ", expression="cost_score", weights={"cost": 1}),
            ScoreTerm(name="b", weights={"Latency": 0, "latency_score": 0}),
            ScoreTerm(name="c", weights={"latencey": 1, "cache": 1}),
            ScoreTerm(name="d", weights={}),
            ScoreTerm(name="e", require_tags=("",), when=When(complexity_gte="complex", complexity_lte="simple")),
            ScoreTerm(name="f", prefer_tags=("x",), when=When(input_tokens_gte=2, input_tokens_lte=1)),
            ScoreTerm(
                name="g",
                expression="cost_score",
                when=When(prompt_feature="diff", prompt_features_any=("code", "extract")),
            ),
            ScoreTerm(name="h", expression="cost_score", when=When(prompt_features_any=())),
        ),
        evaluation_metadata=(
            EvaluationMetadata(provider="house", model="small", max_age_days=1),
            EvaluationMetadata(provider="house", model="small", pass_rate=1.0),
        ),
    )
    group = declared_group(
        policy=policy,
        attempts=Attempts(cool_down=CoolDown(default_ms=2_000, max_ms=1_000)),
        thresholds=HealthThresholds(probe=Probe(first_seconds=20, max_seconds=10)),
    )
    terms = f"{POLICY}.score_terms"
    assert problems(some_document(group)) == [
        "models.chat.attempts.cool_down.default_ms: must not be above max_ms (1,000)",
        "models.chat.thresholds.probe.first_seconds: must not be above max_seconds (10)",
        f"{POLICY}.evaluation_metadata[0].quality_score: quality_score or pass_rate must be given",
        f"{POLICY}.evaluation_metadata[0].validation_date: must be given with max_age_days",
        f"{POLICY}.evaluation_metadata[1].model: is given twice for the same workload",
        f"{terms}[0].expression: unknown score 'latencey_score' at 8; did you mean 'latency_score'?",
        f"{terms}[1].name: 'a' is the name of an earlier term",
        f"{terms}[1].expression: one of expression, weights, require_tags and prefer_tags must be given",
        f"{terms}[2].name: must not be empty",
        f"{terms}[2].weights: only one of expression and weights may be given",
        f"{terms}[3].weights.latency_score: 'latency_score' is given twice",
        f"{terms}[4].weights.latencey: unknown score 'latencey'; did you mean 'latency_score'?",
        f"{terms}[4].weights.cache: score 'cache_score' is not available in this release",
        f"{terms}[5].weights: must hold at least one number above 0",
        f"{terms}[6].when.complexity_gte: never holds with complexity_lte: simple",
        f"{terms}[6].require_tags[0]: must be a word without spaces around it",
        f"{terms}[7].when.input_tokens_gte: never holds with input_tokens_lte: 1",
        f"{terms}[8].when.prompt_features_any[1]: 'extract' is never seen: signals.prompt_features.features lacks it",
        f"{terms}[8].when.prompt_feature: 'diff' is never seen: signals.prompt_features.features lacks it",
        f"{terms}[9].when.prompt_features_any: must name at least one feature",
        f"{POLICY}.affinity.session_header: says nothing about the conversation",
    ]


def test_a_feature_is_never_seen_while_its_signal_is_off() -> None:
    policy = DynamicScore(
        signals=Signals(prompt_features=PromptFeatures(features=("code",))),
        score_terms=(ScoreTerm(name="a", expression="cost_score", when=When(prompt_feature="code")),),
    )
    assert policy_problems(policy) == [
        f"{POLICY}.score_terms[0].when.prompt_feature: 'code' is never seen: signals.prompt_features is not enabled"
    ]


def test_terms_are_compiled_with_their_conditions() -> None:
    policy = DynamicScore(
        signals=Signals(
            prompt_features=PromptFeatures(enabled=True, features=("code", "diff")), cost=Signal(enabled=False)
        ),
        score_terms=(
            ScoreTerm(name="one", weights={"Latency": 1, "cost_score": 3}, when=When(prompt_feature="code"), share=2),
            ScoreTerm(
                name="two",
                require_tags=("a",),
                prefer_tags=("b",),
                when=When(prompt_feature="code", prompt_features_any=("code", "diff"), stream=False),
            ),
        ),
    )
    score = compile_document(some_document(declared_group(policy=policy))).groups["chat"].score
    one, two = score.score_terms
    assert one.expression is not None
    assert (one.expression((1.0, 0.5, *(0.0,) * 8)), one.source, dict(one.weights), one.share, one.when) == (
        0.875,
        "0.75 * cost_score + 0.25 * latency_score",
        {"cost_score": 0.75, "latency_score": 0.25},
        2.0,
        catalog.When(prompt_features_any=frozenset({"code"})),
    )
    assert two == catalog.ScoreTerm(
        name="two",
        require_tags=frozenset({"a"}),
        prefer_tags=frozenset({"b"}),
        when=catalog.When(prompt_feature="code", prompt_features_any=frozenset({"code", "diff"}), stream=False),
    )
    assert score.enabled_signals == {
        "request_shape",
        "prompt_features",
        "complexity",
        "observed_performance",
        "evaluation_metadata",
    }
    assert score.features == {"code", "diff"}


@pytest.mark.parametrize(
    ("name", "incapable", "capable", "what"),
    [
        (
            "require_tool_support_when_tools_present",
            {"tool_support": ToolSupport(openai_chat=())},
            {},
            "tools",
        ),
        (
            "require_forced_tool_choice_support",
            {"tool_support": ToolSupport(openai_chat=("tools",))},
            {},
            "a forced tool choice",
        ),
        (
            "require_structured_output_support",
            {"tool_support": ToolSupport(openai_chat=("tools",))},
            {},
            "structured output",
        ),
        ("require_reasoning_support_when_requested", {}, {"reasoning": Reasoning(supported=True)}, "reasoning"),
        ("require_honors_max_tokens_when_caller_capped", {"honors_max_tokens": False}, {}, "a cap on output tokens"),
    ],
)
def test_a_filter_that_no_target_can_ever_pass_is_refused(
    name: str, incapable: dict[str, Any], capable: dict[str, Any], what: str
) -> None:
    policy = DynamicScore(hard_filters=HardFilters(**{name: True}))
    hopeless = declared_target(**incapable)
    assert policy_problems(policy, hopeless) == [
        f"{POLICY}.hard_filters.{name}: no target of the group supports {what}"
    ]
    assert policy_problems(policy, hopeless, declared_target(**capable)) == []
    idle = some_document(declared_group([hopeless], policy=policy, strategy="weighted"))
    assert problems(idle) == []


def test_a_missing_provider_is_one_problem_and_not_many() -> None:
    policy = DynamicScore(hard_filters=HardFilters(require_reasoning_support_when_requested=True))
    assert policy_problems(policy, Target(provider="hause", model_ref="small")) == [
        "models.chat.targets[0].provider: unknown provider 'hause'; did you mean 'house'?"
    ]


# Warnings.


def test_what_is_hardly_meant_is_warned_of() -> None:
    policy = DynamicScore(
        hard_filters=HardFilters(require_forced_tool_choice_support=True),
        signals=Signals(
            cost=Signal(enabled=False),
            complexity=Signal(enabled=False),
            prompt_features=PromptFeatures(enabled=True),
        ),
        score_terms=(
            ScoreTerm(name="a", expression="cost_score + budget_score", when=When(complexity_lte="simple")),
            ScoreTerm(name="b", expression="cost_score + latency_score", require_tags=("validted",)),
            ScoreTerm(name="c", weights={"cost": 1}, prefer_tags=("fast", "validated")),
        ),
        evaluation_metadata=(EvaluationMetadata(provider="house", model="smal", quality_score=0.5),),
    )
    terms = f"{POLICY}.score_terms"
    assert policy_warnings(policy, declared_target(tags=("validated",))) == [
        f"{terms}[0].expression: leans only on signals that are disabled, so it is the same for every target",
        f"{terms}[0].when.complexity_lte: the signal complexity is disabled",
        f"{terms}[1].require_tags: no target of the group has them all; did you mean 'validated'?",
        f"{terms}[2].weights: leans only on signals that are disabled, so it is the same for every target",
        f"{terms}[2].prefer_tags[0]: no target of the group has it",
        f"{POLICY}.evaluation_metadata[0].model: no target of the group is 'house/smal'; did you mean 'house/small'?",
        f"{POLICY}.signals.prompt_features.features: leaves nothing to look for",
        f"{POLICY}.hard_filters.require_forced_tool_choice_support: "
        "no target declares it in tool_support, so none will pass",
    ]


def test_a_sound_policy_is_not_warned_of() -> None:
    policy = DynamicScore(
        score_terms=(ScoreTerm(name="a", expression="cost_score * complexity_score", require_tags=("a",)),),
        evaluation_metadata=(EvaluationMetadata(provider="house", model="small", quality_score=0.5),),
    )
    assert policy_warnings(policy, declared_target(tags=("a",)), declared_target()) == []


def test_complexity_alone_tells_no_target_from_another() -> None:
    policy = DynamicScore(score_terms=(ScoreTerm(name="a", expression="1 - complexity_score"),))
    assert policy_warnings(policy) == [
        f"{POLICY}.score_terms[0].expression: complexity_score alone is the same for every target"
    ]
