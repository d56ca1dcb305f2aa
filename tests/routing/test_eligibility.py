from typing import Any

import pytest

from routing.core.affinity import Pins
from routing.core.catalog import Group, HardFilters, Reasoning, ScorePolicy
from routing.core.decision import NoTarget
from routing.core.eligibility import REASONS
from routing.core.shape import ReasoningWish, RequestShape
from tests.routing.deciding import KEY, Scripted, decided, order, reasons, sick, some_shape, some_stats, term
from tests.support.documents import some_group, some_provider, some_target

PLAIN = Reasoning()
EFFORTS = Reasoning(efforts=frozenset({"low", "high"}))
BUDGETS = Reasoning(min_budget_tokens=1_024, max_budget_tokens=8_192)


def group_of(*, policy: ScorePolicy | None = None, strategy: Any = "failover", **fields: Any) -> Group:
    """A target with the fields under test, and one that can do everything."""
    able = some_target(
        "able",
        reasoning=PLAIN,
        tools=True,
        forced_tool_choice=True,
        structured_outputs=True,
        input_modalities=frozenset({"text", "image", "file", "audio"}),
    )
    return some_group([some_target("paris", **fields), able], strategy=strategy, policy=policy)


EXCLUDED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("tool_only", {"tool_only": True}, {}, "takes only requests with tools"),
    ("tools", {"tools": False}, {"tool_count": 1}, "declares that it takes no tools"),
    (
        "forced_tool_choice",
        {"forced_tool_choice": False},
        {"tool_count": 1, "forced_tool_choice": True},
        "declares that it takes no forced tool choice",
    ),
    ("modality_image", {}, {"media": frozenset({"image"}), "image_count": 1}, "does not declare image input"),
    ("modality_file", {}, {"media": frozenset({"file"})}, "does not declare file input"),
    ("modality_audio", {}, {"media": frozenset({"audio"})}, "does not declare audio input"),
    (
        "modality_image",
        {},
        {"media": frozenset({"audio", "image"})},
        "does not declare image and audio input",
    ),
    (
        "structured_output",
        {"structured_outputs": False},
        {"structured_output": True},
        "declares that it takes no response schema",
    ),
    ("reasoning", {}, {"reasoning": ReasoningWish()}, "declares no reasoning"),
    (
        "reasoning",
        {"reasoning": EFFORTS},
        {"reasoning": ReasoningWish(effort="medium")},
        "takes the efforts high, low, not the one asked for",
    ),
    (
        "reasoning",
        {"reasoning": BUDGETS},
        {"reasoning": ReasoningWish(budget_tokens=1_023)},
        "a budget of 1,023 tokens is below its 1,024",
    ),
    (
        "reasoning",
        {"reasoning": BUDGETS},
        {"reasoning": ReasoningWish(budget_tokens=8_193)},
        "a budget of 8,193 tokens is above its 8,192",
    ),
    (
        "output_cap_not_honoured",
        {"honors_max_tokens": False},
        {"output_cap": 1},
        "does not keep to a cap on output tokens",
    ),
    (
        "output_cap_exceeded",
        {"max_output_tokens": 4_096},
        {"output_cap": 4_097},
        "the cap is 4,097 tokens, it gives at most 4,096",
    ),
    (
        "request_bytes",
        {"max_request_bytes": 4_999},
        {"request_bytes": 5_000},
        "the request has 5,000 bytes, it takes 4,999",
    ),
    (
        "context_exceeded",
        {"context_tokens": 32_768},
        {"text_bytes": 160_000, "output_cap": 1_200},
        "needs 41,200 tokens, window is 32,768",
    ),
]


@pytest.mark.parametrize("strategy", ["failover", "dynamic_score"])
@pytest.mark.parametrize(("reason", "target", "shape", "detail"), EXCLUDED, ids=lambda value: str(value)[:40])
def test_a_target_that_cannot_serve_is_excluded_with_its_reason(
    reason: str, target: dict[str, Any], shape: dict[str, Any], detail: str, strategy: Any
) -> None:
    decision = decided(group_of(strategy=strategy, **target), shape=some_shape(**shape))
    said = [(each.target, each.stage, each.reason, each.detail) for each in decision.exclusions]
    assert (said, order(decision)) == ([("paris", "eligibility", reason, detail)], ["able"])


PASSED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("tool_only with tools", {"tool_only": True}, {"tool_count": 1}),
    ("undeclared tools", {}, {"tool_count": 3, "forced_tool_choice": True}),
    ("undeclared structured output", {}, {"structured_output": True}),
    ("declared image", {"input_modalities": frozenset({"text", "image"})}, {"media": frozenset({"image"})}),
    (
        "reasoning in any form",
        {"reasoning": Reasoning(control="effort")},
        {"reasoning": ReasoningWish(budget_tokens=9)},
    ),
    ("a listed effort", {"reasoning": EFFORTS}, {"reasoning": ReasoningWish(effort="high")}),
    ("a budget at the limit", {"reasoning": BUDGETS}, {"reasoning": ReasoningWish(budget_tokens=8_192)}),
    ("always on, not asked for", {"reasoning": Reasoning(always_on=True)}, {}),
    ("undeclared cap", {}, {"output_cap": 1}),
    ("not honoured, no cap", {"honors_max_tokens": False}, {}),
    ("a cap at the limit", {"max_output_tokens": 4_096}, {"output_cap": 4_096}),
    ("bytes at the limit", {"max_request_bytes": 5_000}, {"request_bytes": 5_000}),
    ("tokens at the limit", {"context_tokens": 1_100}, {"text_bytes": 4_000, "output_cap": 100}),
]


@pytest.mark.parametrize(("name", "target", "shape"), PASSED, ids=[name for name, _, _ in PASSED])
def test_a_target_that_can_serve_stays(name: str, target: dict[str, Any], shape: dict[str, Any]) -> None:
    decision = decided(group_of(**target), shape=some_shape(**shape))
    assert (order(decision), reasons(decision)) == (["paris", "able"], {})


def test_a_target_of_another_dialect_is_excluded() -> None:
    group = some_group(
        [some_target("paris", provider=some_provider("p", dialect="anthropic")), "able"], strategy="static"
    )
    assert reasons(decided(group)) == {"paris": "dialect"}


def test_the_window_is_filled_by_the_targets_own_count_of_tokens() -> None:
    group = group_of(context_tokens=1_500)
    dense = Scripted({"paris": some_stats(bytes_per_token=2.5)})
    assert reasons(decided(group, dense)) == {"paris": "context_exceeded"}
    assert reasons(decided(group, Scripted({"paris": some_stats(bytes_per_token=2.7)}))) == {}


def test_media_and_the_reserve_of_messages_count_in_the_window() -> None:
    provider = some_provider("p", dialect="anthropic")
    group = some_group([some_target("paris", provider=provider, context_tokens=3_000)], strategy="static")
    fits = some_shape(dialect="anthropic", text_bytes=3_504, media_tokens=1_100)
    over = some_shape(dialect="anthropic", text_bytes=3_505, media_tokens=1_100)
    assert [order(decided(group, shape=fits)), reasons(decided(group, shape=over))] == [
        ["paris"],
        {"paris": "context_exceeded"},
    ]


def test_what_is_remembered_of_one_request_does_not_decide_another() -> None:
    group = group_of(
        tools=False, honors_max_tokens=False, context_tokens=2_000, max_request_bytes=9_000, max_output_tokens=500
    )
    plain, tools = some_shape(text_bytes=400), some_shape(text_bytes=400, tool_count=1)
    large, long = some_shape(text_bytes=400, request_bytes=9_001), some_shape(text_bytes=9_000)
    capped = some_shape(text_bytes=400, output_cap=10)
    for _ in range(2):
        assert reasons(decided(group, shape=plain)) == {}
        assert reasons(decided(group, shape=tools)) == {"paris": "tools"}
        assert reasons(decided(group, shape=large)) == {"paris": "request_bytes"}
        assert reasons(decided(group, shape=long)) == {"paris": "context_exceeded"}
        assert reasons(decided(group, shape=capped)) == {"paris": "output_cap_not_honoured"}


def test_of_several_reasons_the_first_in_the_order_of_checks_is_given() -> None:
    group = group_of(tool_only=True, max_request_bytes=10, context_tokens=10)
    assert reasons(decided(group)) == {"paris": "tool_only"}
    group = group_of(honors_max_tokens=False, max_request_bytes=10, context_tokens=10)
    assert reasons(decided(group, shape=some_shape(output_cap=5))) == {"paris": "output_cap_not_honoured"}
    assert reasons(decided(group)) == {"paris": "request_bytes"}


# Signed thinking.


def messages_group() -> Group:
    house, other = some_provider("house", dialect="anthropic"), some_provider("other", dialect="anthropic")
    signed = Reasoning(signing_family="claude")
    return some_group(
        [
            some_target("paris", provider=house, reasoning=PLAIN),
            some_target("london", provider=house),
            some_target("rome", provider=other, reasoning=Reasoning(signing_family="house")),
            some_target("oslo", provider=other, reasoning=signed),
        ]
    )


def pinned_to(group: Group, target: str) -> Pins:
    pins = Pins()
    first = decided(group, shape=some_shape(dialect=group.targets[0].provider.dialect, conversation_key=KEY))
    pins.remember(group, type(first)(**{**_fields(first), "pin": target}), caller="ada", now=100.0)
    return pins


def _fields(decision: Any) -> dict[str, Any]:
    return {name: getattr(decision, name) for name in decision.__struct_fields__}


def test_signed_thinking_of_a_pinned_conversation_stays_in_its_signing_family() -> None:
    group = messages_group()
    shape = some_shape(dialect="anthropic", signed_thinking=True, conversation_key=KEY)
    decision = decided(group, shape=shape, pins=pinned_to(group, "paris"))
    assert (order(decision), reasons(decision)) == (["paris", "london", "rome"], {"oslo": "signed_thinking"})
    decision = decided(group, shape=shape, pins=pinned_to(group, "oslo"))
    assert order(decision) == ["oslo"]


def test_signed_thinking_without_a_pin_may_go_to_any_messages_target() -> None:
    group = messages_group()
    shape = some_shape(dialect="anthropic", signed_thinking=True, conversation_key=KEY)
    assert order(decided(group, shape=shape)) == ["paris", "london", "rome", "oslo"]


def test_signed_thinking_needs_the_anthropic_dialect() -> None:
    decision = decided(some_group(["paris"]), shape=some_shape(signed_thinking=True))
    assert reasons(decision) == {"paris": "signed_thinking"}


# Hard filters, tags, cool-down, capacity.


@pytest.mark.parametrize(
    ("filters", "shape", "reason"),
    [
        ({"require_tool_support_when_tools_present": True}, {"tool_count": 1}, "tools"),
        (
            {"require_forced_tool_choice_support": True},
            {"tool_count": 1, "forced_tool_choice": True},
            "forced_tool_choice",
        ),
        ({"require_structured_output_support": True}, {"structured_output": True}, "structured_output"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_hard_filter_removes_undeclared_support_when_it_is_asked_for(
    filters: dict[str, bool], shape: dict[str, Any], reason: str
) -> None:
    group = group_of(policy=ScorePolicy(hard_filters=HardFilters(**filters)), strategy="dynamic_score")
    decision = decided(group, shape=some_shape(**shape))
    assert [(each.target, each.stage, each.reason) for each in decision.exclusions] == [
        ("paris", "hard_filter", reason)
    ]
    assert reasons(decided(group)) == {}
    assert reasons(decided(group_of(strategy="dynamic_score"), shape=some_shape(**shape))) == {}


def test_a_candidate_without_the_required_tags_of_a_matching_term_is_no_fallback_either() -> None:
    policy = ScorePolicy(
        score_terms=(
            term("floor", require_tags=("validated", "coding"), complexity_gte="complex"),
            term("cheap", "cost_score"),
        )
    )
    group = some_group(
        [some_target("paris", tags=["coding"]), some_target("rome", tags=["coding", "validated"])], policy=policy
    )
    decision = decided(group, shape=some_shape(text_bytes=80_000, tool_count=9))
    assert [(each.target, each.stage, each.reason, each.detail) for each in decision.exclusions] == [
        ("paris", "required_tags", "required_tags", "lacks the tag validated, which the term floor requires")
    ]
    assert order(decision) == ["rome"]
    assert order(decided(group)) == ["paris", "rome"]


@pytest.mark.parametrize("strategy", ["failover", "dynamic_score"])
def test_a_cooling_target_is_excluded_until_its_time_is_up(strategy: Any) -> None:
    group = some_group(["paris", "rome"], strategy=strategy)
    observed = Scripted({"paris": some_stats(cooling_until=30.0)})
    early = decided(group, observed, now=29.5)
    assert [(each.target, each.reason, each.detail, each.wait_s) for each in early.exclusions] == [
        ("paris", "cooling_down", "throttled by its provider, 0.5 s left", 0.5)
    ]
    assert reasons(decided(group, observed, now=30.0)) == {}


def test_a_provider_or_a_target_that_is_full_is_excluded() -> None:
    small = some_provider("small", max_in_flight=2)
    group = some_group(
        [some_target("paris", provider=small), some_target("rome", max_in_flight=3), "oslo"], strategy="failover"
    )
    full = decided(group, Scripted(providers={"small": 2}, targets={"rome": 3}))
    assert [(each.target, each.stage, each.reason, each.detail) for each in full.exclusions] == [
        ("paris", "capacity", "at_capacity", "small has its 2 attempts in flight"),
        ("rome", "capacity", "at_capacity", "has its 3 attempts in flight"),
    ]
    assert reasons(decided(group, Scripted(providers={"small": 1}, targets={"rome": 2}))) == {}


# Nobody left.


def nobody(group: Group, observed: Scripted | None = None, shape: RequestShape | None = None) -> NoTarget | None:
    decision = decided(group, observed, shape)
    assert decision.candidates == ()
    assert decision.pin is None
    return decision.no_target


def test_nobody_takes_so_many_bytes() -> None:
    group = some_group([some_target("a", max_request_bytes=10), some_target("b", max_request_bytes=4_000)])
    assert nobody(group) == NoTarget(
        status=413,
        code="request_too_large",
        message="The request has 5000 bytes; model 'chat' takes at most 4000.",
    )


def test_nobody_has_so_large_a_window() -> None:
    group = some_group([some_target("a", context_tokens=1_000), some_target("b", context_tokens=1_050)])
    assert nobody(group, shape=some_shape(output_cap=100)) == NoTarget(
        status=400,
        code="context_length_exceeded",
        message="The maximum context length of model 'chat' is 1050 tokens, and this request needs about 1100: "
        "1000 of input and 100 set aside for the output.",
        param="messages",
    )


def test_what_is_missing_is_named_in_the_callers_words_and_no_target_is() -> None:
    group = some_group([some_target("a", tools=False), some_target("b")])
    shape = some_shape(tool_count=1, media=frozenset({"image"}), image_count=1)
    assert nobody(group, shape=shape) == NoTarget(
        status=400,
        code="no_eligible_target",
        message="No target of model 'chat' can serve this request. Missing: tool calls; image input.",
    )


@pytest.mark.parametrize(
    ("target", "shape", "missing"),
    [
        ({"tool_only": True}, {}, "tools in the request, without which this model is not served"),
        ({"provider": some_provider("p", dialect="anthropic")}, {}, "the OpenAI Chat Completions API"),
        ({"max_output_tokens": 10}, {"output_cap": 11}, "an output of 11 tokens (at most 10)"),
        ({"honors_max_tokens": False}, {"output_cap": 1}, "a cap on output tokens that is kept"),
        ({}, {"reasoning": ReasoningWish()}, "the reasoning asked for"),
        ({}, {"signed_thinking": True}, "the signing family of the thinking in the history"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_each_capability_has_its_words(target: dict[str, Any], shape: dict[str, Any], missing: str) -> None:
    refused = nobody(some_group([some_target("a", **target)], strategy="static"), shape=some_shape(**shape))
    assert refused is not None
    assert (refused.status, refused.code) == (400, "no_eligible_target")
    assert refused.message == f"No target of model 'chat' can serve this request. Missing: {missing}."


def test_nobody_has_the_required_tags() -> None:
    group = some_group(policy=ScorePolicy(score_terms=(term("floor", require_tags=("validated",)),)))
    refused = nobody(group)
    assert refused is not None
    assert (refused.code, refused.message.partition("Missing: ")[2]) == (
        "no_eligible_target",
        "the tag validated.",
    )


def test_all_are_cooling_down() -> None:
    observed = Scripted({"a": some_stats(cooling_until=107.0), "b": some_stats(cooling_until=103.5)})
    assert nobody(some_group(["a", "b"]), observed) == NoTarget(
        status=429,
        code="rate_limited",
        message="Every target of model 'chat' that can serve this request is rate limited by its provider.",
        retry_after_s=3.5,
    )


def test_all_are_full() -> None:
    group = some_group([some_target("a", max_in_flight=1)])
    assert nobody(group, Scripted(targets={"a": 1})) == NoTarget(
        status=503,
        code="at_capacity",
        message="Every target of model 'chat' is busy with as many requests as it may take.",
        retry_after_s=1.0,
    )


def test_the_latest_stage_that_any_target_reached_decides() -> None:
    group = some_group(
        [
            some_target("toolless", tools=False),
            some_target("short", context_tokens=10),
            some_target("small", max_request_bytes=10),
            some_target("cooling"),
            some_target("full", max_in_flight=1),
        ]
    )
    cooling = {"cooling": some_stats(cooling_until=105.0)}
    shape = some_shape(tool_count=1)

    def code(targets: list[str], observed: Scripted | None = None) -> str | None:
        some = some_group([target for target in group.targets if target.id in targets])
        refused = nobody(some, observed, shape)
        return None if refused is None else refused.code

    assert code(["toolless", "small"]) == "request_too_large"
    assert code(["toolless", "small", "short"]) == "context_length_exceeded"
    assert code(["toolless", "short", "cooling"], Scripted(cooling)) == "rate_limited"
    assert code(["short", "cooling", "full"], Scripted(cooling, targets={"full": 1})) == "at_capacity"


def test_every_reason_is_produced_by_some_test() -> None:
    produced = {reason for reason, _, _, _ in EXCLUDED} | {"dialect", "signed_thinking"}
    produced |= {"required_tags", "cooling_down", "at_capacity"}
    health: list[Any] = [
        "denied",
        "excluded_consecutive",
        "excluded_error_rate",
        "excluded_timeout_rate",
        "excluded_p95",
        "excluded_ttfb",
        "excluded_throughput",
    ]
    for reason in health:
        decision = decided(some_group(["paris", "rome"]), Scripted(health={"paris": sick(reason)}))
        stage = "health" if reason in ("denied", "excluded_consecutive") else "thresholds"
        assert [(each.stage, each.reason, each.detail) for each in decision.exclusions] == [
            (stage, reason, "5 failures")
        ]
        produced.add(reason)
    assert produced == set(REASONS)
