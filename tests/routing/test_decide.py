from dataclasses import replace
from typing import Any

import pytest

from routing.core.affinity import Pins
from routing.core.catalog import AffinityPolicy, Group, ScorePolicy, ThresholdPolicy
from routing.core.decide import decide
from routing.core.decision import Decision
from routing.core.explain import explain, recompute
from routing.core.observations import Observations
from routing.core.shape import RequestShape
from routing.core.stats import Sums
from tests.routing.deciding import (
    KEY,
    Scripted,
    decided,
    order,
    reasons,
    seen,
    sick,
    some_shape,
    some_stats,
    term,
)
from tests.support.documents import some_group, some_provider, some_target

FEW = Scripted(observations=19)


def weighing(*weights: float, strategy: Any = "dynamic_score", policy: ScorePolicy | None = None) -> Group:
    """Targets a, b, c .. of these weights."""
    targets = [some_target(name, weight=weight) for name, weight in zip("abcdef", weights, strict=False)]
    return some_group(targets, strategy=strategy, policy=policy)


def turn(
    group: Group, pins: Pins, observed: Any = None, *, now: float = 100.0, caller: str = "ada", **shape: Any
) -> Decision:
    """A request of one conversation: decided and remembered, as the relay does."""
    decision = decided(group, observed, some_shape(**{"conversation_key": KEY, **shape}), pins=pins, now=now)
    pins.remember(group, decision, caller=caller, now=now)
    return decision


def of(decision: Decision) -> tuple[str, str | None, list[str]]:
    return decision.mode, decision.affinity, order(decision)


# Strategies without scores.


def test_static_has_the_first_eligible_target_alone() -> None:
    group = some_group([some_target("a", tool_only=True), "b", "c"], strategy="static")
    decision = decided(group)
    assert (decision.mode, decision.affinity, decision.tie_break, order(decision)) == (
        "configured",
        None,
        "position",
        ["b"],
    )


def test_failover_has_the_listed_order_with_weight_zero_behind() -> None:
    decision = decided(weighing(0.0, 1.0, 9.0, strategy="failover"))
    assert (order(decision), decision.tie_break, decision.propensity) == (["b", "c", "a"], "position", 1.0)


def test_weighted_draws_its_primary_and_records_how_likely_it_was() -> None:
    decision = decided(weighing(1.0, 3.0, 0.0, strategy="weighted"), drawn=0.3)
    assert (order(decision), decision.tie_break, decision.propensity, decision.drawn) == (
        ["b", "a", "c"],
        "draw",
        0.75,
        0.3,
    )


def test_chance_is_used_by_weighted_alone() -> None:
    def no_chance() -> float:
        raise AssertionError("drew a number")

    for strategy in ("static", "failover", "dynamic_score"):
        group = weighing(1.0, 2.0, strategy=strategy)
        decision = decide(
            group,
            some_shape(),
            Scripted(),
            Pins(),
            caller_tags=frozenset(),
            now=0.0,
            today=0.0,
            draw=no_chance,
            revision=1,
        )
        assert decision.drawn is None


@pytest.mark.parametrize("strategy", ["static", "failover", "weighted"])
def test_no_strategy_but_dynamic_score_pins(strategy: Any) -> None:
    pins, group = Pins(), weighing(1.0, 2.0, strategy=strategy)
    decision = turn(group, pins)
    assert (decision.affinity, decision.pin, pins.size("chat")) == (None, None, 0)


# Cold start.


def test_until_enough_is_observed_the_weights_decide() -> None:
    group = weighing(5.0, 60.0, 60.0)
    decision = decided(group, FEW)
    assert (decision.mode, order(decision), decision.tie_break) == ("cold_start", ["b", "c", "a"], "position")
    assert [candidate.final for candidate in decision.candidates] == [None, None, None]
    assert [candidate.scores for candidate in decision.candidates] == [(), (), ()]
    assert [candidate.weight for candidate in decision.candidates] == [1.0, 1.0, 5 / 60]
    assert decided(group, Scripted(observations=20)).mode == "score"


def test_a_minimum_of_zero_never_starts_cold() -> None:
    group = weighing(1.0, 2.0, policy=ScorePolicy(min_observations=0))
    decision = decided(group, Scripted(observations=0))
    assert (decision.mode, decision.candidates[0].confidence) == ("score", 1.0)


# Scores.


def test_the_record_of_a_candidate_holds_every_number() -> None:
    group = some_group(
        [some_target("a", weight=2.0, tags=["fast"], prices=(1.0, 2.0))],
        policy=ScorePolicy(score_terms=(term("t", "0.5 * cost_score", prefer_tags=("fast", "near"), share=2.0),)),
    )
    observed = Scripted({"a": some_stats(seen(10.0), in_flight=3, overdue=1)})
    candidate = decided(group, observed).candidates[0]
    assert [
        candidate.weight,
        candidate.dynamic,
        candidate.contrasted,
        candidate.final,
        candidate.confidence,
        candidate.observations,
        candidate.in_flight,
        candidate.overdue,
        candidate.in_band,
    ] == [1.0, 0.55, 1.0, 1.0, 0.5, 10.0, 3, 1, True]
    scores: list[Any] = [(s.name, s.raw, s.value, s.flag) for s in candidate.scores]
    assert scores == [("cost_score", pytest.approx(0.0016), 1.0, None)]
    assert [(t.name, t.value, t.share, t.preferred_tags, t.flag) for t in candidate.terms] == [
        ("t", 0.55, 2.0, 1, None)
    ]


def test_matching_terms_are_averaged_by_their_share() -> None:
    policy = ScorePolicy(
        score_terms=(
            term("one", "0.2", share=3.0),
            term("two", "0.8"),
            term("other", "1", stream=True),
        )
    )
    decision = decided(weighing(1.0, policy=policy))
    # (3 x 0.2 + 1 x 0.8) / 4 = 0.35
    assert decision.candidates[0].dynamic == pytest.approx(0.35)
    assert decision.matched_terms == ("one", "two")


@pytest.mark.parametrize(("text", "dynamic"), [("3", 1.0), ("-3", 0.0), ("0.25", 0.25)])
def test_a_score_is_clamped(text: str, dynamic: float) -> None:
    policy = ScorePolicy(score_terms=(term("t", text),))
    assert decided(weighing(1.0, policy=policy)).candidates[0].dynamic == dynamic


def test_shares_of_zero_leave_the_weights() -> None:
    policy = ScorePolicy(score_terms=(term("t", "cost_score", share=0.0), term("u", "1", share=0.0)))
    decision = decided(weighing(1.0, 2.0, policy=policy))
    assert ([c.dynamic for c in decision.candidates], order(decision)) == ([0.0, 0.0], ["b", "a"])


def test_without_a_matching_term_the_built_in_one_scores() -> None:
    policy = ScorePolicy(score_terms=(term("streams", "1", stream=True),))
    decision = decided(weighing(1.0, policy=policy))
    assert decision.matched_terms == ("default",)
    # Unknown price 0.5, no latency 0.5, no throughput 0.5, reliability 0.99
    assert decision.candidates[0].dynamic == pytest.approx(0.25 * 0.5 + 0.25 * 0.5 + 0.2 * 0.5 + 0.3 * 0.99)


def test_a_term_that_only_prefers_tags_is_worth_its_tags() -> None:
    policy = ScorePolicy(score_terms=(term("t", prefer_tags=("near", "cheap", "eu")),))
    group = some_group([some_target("a"), some_target("b", tags=["near", "eu"])], policy=policy)
    decision = decided(group)
    assert (order(decision), [c.dynamic for c in decision.candidates]) == (["b", "a"], [0.1, 0.0])


def test_an_expression_without_a_finite_value_counts_as_zero_and_is_flagged() -> None:
    policy = ScorePolicy(
        score_terms=(term("t", "1 / (eval_quality_score - 0.5)"), term("u", "eval_quality_score")),
    )
    group = some_group([some_target("a", quality=0.5), some_target("b", quality=0.9)], policy=policy)
    decision = decided(group)
    assert decision.flags == ("not_finite",)
    terms = {c.target.id: [(t.value, t.flag) for t in c.terms] for c in decision.candidates}
    assert terms == {"a": [(0.0, "not_finite"), (0.5, None)], "b": [(pytest.approx(2.5), None), (0.9, None)]}
    assert reasons(decision) == {}


@pytest.mark.parametrize(
    ("when", "shape", "caller_tags", "holds"),
    [
        ({"complexity_lte": "standard"}, {}, (), True),
        ({"complexity_lte": "simple"}, {"text_bytes": 80_000}, (), False),
        ({"complexity_gte": "complex"}, {"text_bytes": 80_000, "tool_count": 3}, (), True),
        ({"complexity_gte": "standard", "complexity_lte": "standard"}, {"text_bytes": 80_000}, (), True),
        ({"prompt_feature": "code"}, {"prompt_features": frozenset({"code"})}, (), True),
        ({"prompt_feature": "code"}, {"prompt_features": frozenset({"diff"})}, (), False),
        ({"prompt_features_any": frozenset({"code", "diff"})}, {"prompt_features": frozenset({"diff"})}, (), True),
        ({"prompt_features_any": frozenset({"code"})}, {}, (), False),
        ({"stream": True}, {"stream": True}, (), True),
        ({"stream": False}, {"stream": True}, (), False),
        ({"tools": True}, {"tool_count": 2}, (), True),
        ({"tools": False}, {"tool_count": 2}, (), False),
        ({"images": True}, {"image_count": 1}, (), True),
        ({"images": False}, {}, (), True),
        ({"reasoning": False}, {}, (), True),
        ({"reasoning": True}, {}, (), False),
        ({"dialect": "openai-chat"}, {}, (), True),
        ({"dialect": "anthropic"}, {}, (), False),
        ({"input_tokens_lte": 1_000}, {}, (), True),
        ({"input_tokens_lte": 999}, {}, (), False),
        ({"input_tokens_gte": 1_000}, {}, (), True),
        ({"input_tokens_gte": 1_001}, {}, (), False),
        ({"caller_tag": "gold"}, {}, ("gold",), True),
        ({"caller_tag": "gold"}, {}, ("silver",), False),
        ({"stream": False, "tools": True}, {}, (), False),
    ],
    ids=str,
)
def test_a_term_matches_when_all_its_conditions_hold(
    when: dict[str, Any], shape: dict[str, Any], caller_tags: tuple[str, ...], holds: bool
) -> None:
    policy = ScorePolicy(score_terms=(term("t", "1", **when),), features=frozenset({"code", "diff"}))
    decision = decided(weighing(1.0, policy=policy), shape=some_shape(**shape), caller_tags=caller_tags)
    assert decision.matched_terms == (("t",) if holds else ("default",))


@pytest.mark.parametrize(
    ("when", "signal"),
    [
        ({"stream": False}, "request_shape"),
        ({"input_tokens_gte": 0}, "request_shape"),
        ({"complexity_lte": "complex"}, "complexity"),
        ({"prompt_feature": "code"}, "prompt_features"),
    ],
    ids=str,
)
def test_a_condition_on_a_disabled_signal_never_holds(when: dict[str, Any], signal: str) -> None:
    enabled = ScorePolicy(score_terms=(term("t", "1", **when),), features=frozenset({"code"}))
    off = replace(
        enabled,
        enabled_signals=enabled.enabled_signals - {signal},
        features=frozenset() if signal == "prompt_features" else enabled.features,
    )
    shape = some_shape(prompt_features=frozenset({"code"}))
    matched = [decided(weighing(1.0, policy=policy), shape=shape).matched_terms for policy in (enabled, off)]
    assert matched == [("t",), ("default",)]


def test_load_moves_near_ties_and_nothing_else() -> None:
    policy = ScorePolicy(score_terms=(term("quality", "eval_quality_score"),))
    group = some_group(
        [some_target("a", quality=0.80), some_target("b", quality=0.79), some_target("c", quality=0.2)], policy=policy
    )
    busy = Scripted({"a": some_stats(in_flight=9), "b": some_stats(in_flight=8)})
    decision = decided(group, busy)
    assert (order(decision), decision.tie_break) == (["b", "a", "c"], "in_flight")
    assert [c.in_band for c in decision.candidates] == [True, True, False]


# Weight zero.


def test_a_weight_of_zero_is_a_fallback_however_good_it_is() -> None:
    policy = ScorePolicy(score_terms=(term("quality", "eval_quality_score"),))
    group = some_group([some_target("best", weight=0.0, quality=1.0), some_target("plain", quality=0.1)], policy=policy)
    pins = Pins()
    assert of(turn(group, pins)) == ("score", "affinity_miss", ["plain", "best"])
    assert of(turn(group, pins)) == ("pinned", "affinity_hit", ["plain", "best"])


def test_a_weight_of_zero_is_not_pinned_when_it_alone_is_left_but_keeps_a_pin_it_has() -> None:
    group, pins = weighing(1.0, 0.0), Pins()
    down = Scripted({"a": some_stats(cooling_until=1e9)})
    decision = turn(group, pins, down)
    assert (order(decision), decision.pin, pins.size("chat")) == (["b"], None, 0)
    assert turn(group, pins).pin == "a"

    before, after = weighing(0.5, 2.0), weighing(1.0, 0.0)
    pins = Pins()
    assert turn(before, pins).pin == "b"
    assert of(turn(after, pins)) == ("pinned", "affinity_hit", ["b", "a"])


def test_where_every_weight_is_zero_pins_are_made_as_usual() -> None:
    assert turn(weighing(0.0, 0.0), Pins()).pin == "a"


# Affinity.


def test_a_conversation_keeps_its_target_while_the_order_changes() -> None:
    group, pins = weighing(1.0, 1.0, 1.0), Pins()
    assert of(turn(group, pins)) == ("score", "affinity_miss", ["a", "b", "c"])
    busy = Scripted({"a": some_stats(in_flight=50)})
    decision = turn(group, pins, busy)
    assert (of(decision), decision.pin, decision.pinned, decision.tie_break) == (
        ("pinned", "affinity_hit", ["a", "b", "c"]),
        None,
        "a",
        None,
    )
    assert order(decided(group, busy)) == ["b", "a", "c"]


def test_a_pin_holds_in_a_cold_start_too() -> None:
    group, pins = weighing(1.0, 1.0), Pins()
    turn(group, pins, Scripted({"a": some_stats(in_flight=9)}))
    assert of(turn(group, pins, FEW)) == ("pinned", "affinity_hit", ["b", "a"])


def test_two_callers_with_equal_prompts_have_independent_pins() -> None:
    group, pins = weighing(1.0, 1.0), Pins()
    ada, bob = b"\x0a" * 32, b"\x0b" * 32
    busy = Scripted({"a": some_stats(in_flight=9)})
    assert order(turn(group, pins, conversation_key=ada))[0] == "a"
    assert order(turn(group, pins, busy, conversation_key=bob, caller="bob"))[0] == "b"
    assert [order(turn(group, pins, conversation_key=key))[0] for key in (ada, bob)] == ["a", "b"]


def test_outcomes_of_affinity() -> None:
    group = weighing(1.0, 1.0, policy=ScorePolicy(affinity=AffinityPolicy(ttl_s=600.0, max_entries=1)))
    pins = Pins()
    assert turn(group, pins, now=0.0).affinity == "affinity_miss"
    assert turn(group, pins, now=599.0).affinity == "affinity_hit"
    assert turn(group, pins, now=600.0).affinity == "affinity_expired"
    assert turn(group, pins, now=601.0).affinity == "affinity_hit"
    assert turn(group, pins, now=602.0, conversation_key=b"other").affinity == "affinity_miss"
    assert turn(group, pins, now=603.0).affinity == "affinity_evicted"
    assert turn(group, pins, now=604.0, conversation_key=None).affinity == "affinity_disabled"
    off = weighing(1.0, 1.0, policy=ScorePolicy(affinity=AffinityPolicy(enabled=False)))
    decision = turn(off, pins, now=604.0)
    assert (decision.affinity, decision.conversation_key, decision.pin) == ("affinity_disabled", None, None)


@pytest.mark.parametrize(
    "observed",
    [
        Scripted({"a": some_stats(cooling_until=1e9)}),
        Scripted(health={"a": sick()}),
        Scripted(health={"a": sick("excluded_p95")}),
        Scripted(providers={"a": 256}),
    ],
    ids=["cooling", "failing", "slow", "full"],
)
def test_a_pinned_target_that_is_out_is_replaced(observed: Scripted) -> None:
    group, pins = weighing(1.0, 1.0), Pins()
    turn(group, pins)
    decision = turn(group, pins, observed)
    assert (of(decision), decision.pin) == (("score", "affinity_ineligible", ["b"]), "b")
    assert of(turn(group, pins)) == ("pinned", "affinity_hit", ["b", "a"])


def test_a_pinned_target_that_the_request_cannot_use_is_replaced() -> None:
    group, pins = some_group([some_target("a", tools=False), some_target("b")]), Pins()
    turn(group, pins)
    assert of(turn(group, pins, tool_count=1)) == ("score", "affinity_ineligible", ["b"])


def test_a_pinned_target_without_the_required_tags_is_replaced() -> None:
    policy = ScorePolicy(score_terms=(term("floor", "1", require_tags=("validated",), tools=True),))
    group, pins = some_group([some_target("a"), some_target("b", tags=["validated"])], policy=policy), Pins()
    turn(group, pins)
    assert of(turn(group, pins, tool_count=1)) == ("score", "affinity_ineligible", ["b"])


def test_a_pin_survives_a_change_of_the_other_targets_and_not_of_its_own() -> None:
    pins = Pins()
    turn(some_group(["a", "b"]), pins, Scripted({"a": some_stats(in_flight=9)}))
    assert of(turn(some_group(["c", "b"]), pins)) == ("pinned", "affinity_hit", ["b", "c"])
    decision = turn(some_group(["a", "c"]), pins)
    assert (decision.affinity, decision.pinned, decision.pin) == ("affinity_ineligible", "b", "a")


def test_the_pin_stays_after_a_successful_fallback_and_one_attempt_is_enough_once_the_target_is_out() -> None:
    group, pins = weighing(1.0, 1.0), Pins()
    turn(group, pins)
    # The primary fails before the first content, the fallback serves: the pin is as it was.
    assert of(turn(group, pins)) == ("pinned", "affinity_hit", ["a", "b"])
    # Once the target is excluded the conversation moves, and its next turn has its target in front.
    turn(group, pins, Scripted(health={"a": sick()}))
    assert of(turn(group, pins, Scripted(health={"a": sick()}))) == ("pinned", "affinity_hit", ["b"])


# Health.


def test_an_excluded_target_is_no_candidate() -> None:
    decision = decided(weighing(9.0, 1.0), Scripted(health={"a": sick()}))
    assert (decision.mode, order(decision), reasons(decision)) == ("score", ["b"], {"a": "excluded_consecutive"})


@pytest.mark.parametrize("strategy", ["static", "failover", "weighted", "dynamic_score"])
def test_a_due_probe_takes_the_first_attempt_with_the_others_behind(strategy: Any) -> None:
    observed = Scripted(health={"b": sick(probe_due=True, overdue_s=3.0)})
    decision = decided(weighing(1.0, 1.0, strategy=strategy), observed)
    assert (decision.mode, order(decision), decision.tie_break, decision.propensity) == (
        "probe",
        ["b", "a"],
        None,
        1.0,
    )
    assert [each.probe_overdue_s for each in decision.exclusions] == [3.0]


def test_a_probe_is_sent_during_a_cold_start_too() -> None:
    observed = Scripted(health={"b": sick(probe_due=True)}, observations=3)
    assert (decided(weighing(1.0, 1.0), observed).mode, order(decided(weighing(1.0, 1.0), observed))) == (
        "probe",
        ["b", "a"],
    )


def test_of_several_due_probes_the_longest_overdue_goes_first_and_alone() -> None:
    health = {"a": sick(probe_due=True, overdue_s=1.0), "b": sick(probe_due=True, overdue_s=8.0), "c": sick()}
    assert order(decided(weighing(1.0, 1.0, 1.0, 1.0), Scripted(health=health))) == ["b", "d"]


def test_a_probe_writes_no_pin_and_leaves_a_pinned_conversation_alone() -> None:
    group, pins = weighing(1.0, 1.0), Pins()
    due = Scripted(health={"b": sick(probe_due=True)})
    assert (of(turn(group, pins, due)), pins.size("chat")) == (("probe", "affinity_miss", ["b", "a"]), 0)
    turn(group, pins)
    assert of(turn(group, pins, due)) == ("pinned", "affinity_hit", ["a"])


def test_a_weight_of_zero_is_probed_only_when_no_positive_weight_survives() -> None:
    due = {"b": sick(probe_due=True)}
    assert decided(weighing(1.0, 0.0), Scripted(health=due)).mode == "score"
    assert decided(weighing(0.0, 0.0), Scripted(health=due)).mode == "probe"
    other = Scripted({"a": some_stats(cooling_until=1e9)}, health={"c": sick(probe_due=True)})
    assert order(decided(weighing(1.0, 0.0, 0.0), other)) == ["c", "b"]


def test_a_cooling_target_is_not_probed() -> None:
    observed = Scripted({"b": some_stats(cooling_until=1e9)}, health={"b": sick(probe_due=True)})
    assert (order(decided(weighing(1.0, 1.0), observed)), reasons(decided(weighing(1.0, 1.0), observed))) == (
        ["a"],
        {"b": "cooling_down"},
    )


def test_when_health_keeps_everyone_out_the_least_bad_serves_flagged() -> None:
    policy = ScorePolicy(score_terms=(term("r", "reliability_score"),))
    observed = Scripted(
        {"a": some_stats(seen(50.0, errors=25.0)), "b": some_stats(seen(50.0, errors=10.0))},
        health={"a": sick("excluded_error_rate"), "b": sick("excluded_error_rate")},
    )
    decision = decided(weighing(1.0, 1.0, policy=policy), observed)
    assert (decision.mode, decision.flags, order(decision)) == ("panic", ("panic",), ["b", "a"])
    assert reasons(decision) == {"a": "excluded_error_rate", "b": "excluded_error_rate"}


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("static", ["a"]), ("failover", ["a", "b"]), ("weighted", ["b", "a"]), ("dynamic_score", ["b", "a"])],
)
def test_every_strategy_serves_the_least_bad_in_its_own_order(strategy: Any, expected: list[str]) -> None:
    observed = Scripted(health={"a": sick(), "b": sick("denied")})
    decision = decided(weighing(1.0, 9.0, strategy=strategy), observed)
    assert (decision.mode, decision.flags, order(decision)) == ("panic", ("panic",), expected)


@pytest.mark.parametrize(("strategy", "expected"), [("static", ["b", "a"]), ("dynamic_score", ["b", "a", "c"])])
def test_among_the_least_bad_a_due_probe_goes_first(strategy: Any, expected: list[str]) -> None:
    observed = Scripted(health={"a": sick(), "b": sick(probe_due=True), "c": sick()})
    decision = decided(weighing(3.0, 2.0, 1.0, strategy=strategy), observed)
    assert (decision.mode, decision.flags, order(decision)) == ("probe", ("panic",), expected)


def test_a_pin_is_honoured_among_the_least_bad() -> None:
    group, pins = weighing(1.0, 1.0), Pins()
    turn(group, pins)
    everyone = Scripted({"a": some_stats(in_flight=9)}, health={"a": sick(), "b": sick(probe_due=True)})
    decision = turn(group, pins, everyone)
    assert (of(decision), decision.flags) == (("pinned", "affinity_hit", ["a", "b"]), ("panic",))


def test_a_policy_may_fail_instead() -> None:
    policy = ScorePolicy(thresholds=ThresholdPolicy(when_all_excluded="fail"))
    decision = decided(weighing(1.0, policy=policy), Scripted(health={"a": sick(probe_due=True)}))
    assert decision.no_target is not None
    assert (decision.no_target.status, decision.no_target.code, [*decision.candidates]) == (
        503,
        "no_healthy_target",
        [],
    )


def test_neither_cool_down_nor_eligibility_is_relaxed_for_the_least_bad() -> None:
    observed = Scripted({"a": some_stats(cooling_until=107.0)}, health={"b": sick()})
    assert order(decided(weighing(1.0, 1.0), observed)) == ["b"]
    decision = decided(weighing(1.0), Scripted({"a": some_stats(cooling_until=107.0)}, health={"a": sick()}))
    assert decision.no_target is not None
    assert (decision.no_target.status, decision.no_target.retry_after_s) == (429, 7.0)


def test_a_decision_without_a_target_leaves_the_pin() -> None:
    group, pins = weighing(1.0), Pins()
    turn(group, pins)
    down = Scripted({"a": some_stats(cooling_until=107.0)})
    decision = turn(group, pins, down)
    assert (of(decision), decision.pin) == (("score", "affinity_ineligible", []), None)
    assert turn(group, pins).affinity == "affinity_hit"


# Explaining.


def test_an_explanation_is_plain_data_and_names_no_address_or_credential() -> None:
    provider = some_provider("p", base_url="http://127.0.0.1:9/v1", api_key="sk-hidden", headers=(("x-team", "ml"),))
    group = some_group(
        [some_target("a", provider=provider, prices=(1.0, 2.0)), some_target("b", tool_only=True)],
        policy=ScorePolicy(score_terms=(term("t", "0.6 * cost_score + 0.4 * latency_score"),)),
    )
    data = explain(decided(group))
    assert data == {
        "strategy": "dynamic_score",
        "mode": "score",
        "revision": 7,
        "order": ["a"],
        "tie_break": "only",
        "propensity": 1.0,
        "drawn": None,
        "affinity": "affinity_disabled",
        "pinned": None,
        "flags": [],
        "observations": 1_000,
        "mean_output_tokens": 300.0,
        "settings": {
            "min_observations": 20,
            "normalization": "ratio",
            "adjustment": 0.7,
            "contrast": 4.0,
            "near_tie": 0.07,
            "prior_strength": 5.0,
            "enabled_signals": [
                "complexity",
                "cost",
                "evaluation_metadata",
                "observed_performance",
                "request_shape",
            ],
            "when_all_excluded": "least_bad",
        },
        "terms": [
            {
                "name": "t",
                "share": 1.0,
                "expression": "0.6 * cost_score + 0.4 * latency_score",
                "weights": {"cost_score": 0.6, "latency_score": 0.4},
                "require_tags": [],
                "prefer_tags": [],
            }
        ],
        "candidates": [
            {
                "target": "a",
                "provider": "p",
                "model": "a",
                "position": 0,
                "configured_weight": 1.0,
                "weight": 1.0,
                "dynamic": 0.8,
                "contrasted": 1.0,
                "final": 1.0,
                "confidence": 0.0,
                "observations": 0.0,
                "in_flight": 0,
                "overdue": 0,
                "in_band": True,
                "scores": {
                    "cost_score": {"raw": pytest.approx(0.0016), "value": 1.0, "flag": None},
                    "latency_score": {"raw": None, "value": 0.5, "flag": "no_data"},
                },
                "terms": [
                    {
                        "name": "t",
                        "value": 0.8,
                        "share": 1.0,
                        "preferred_tags": 0,
                        "flag": None,
                        "contributions": {"cost_score": 0.6, "latency_score": 0.2},
                    }
                ],
            }
        ],
        "exclusions": [
            {
                "target": "b",
                "stage": "eligibility",
                "reason": "tool_only",
                "detail": "takes only requests with tools",
                "wait_s": None,
                "probe_overdue_s": None,
            }
        ],
        "no_target": None,
    }
    for hidden in ("127.0.0.1", "sk-hidden", "x-team"):
        assert hidden not in repr(data)


def test_an_explanation_without_a_target_says_what_was_answered() -> None:
    data = explain(decided(weighing(1.0), Scripted({"a": some_stats(cooling_until=107.0)})))
    assert (data["candidates"], recompute(data)) == ([], None)
    assert data["no_target"]["code"] == "rate_limited"
    assert data["exclusions"][0]["wait_s"] == 7.0


def test_a_term_called_default_is_not_taken_for_the_built_in_one() -> None:
    policy = ScorePolicy(score_terms=(term("default", "load_score", stream=True),))
    built_in = explain(decided(weighing(1.0, policy=policy)))
    own = explain(decided(weighing(1.0, policy=policy), shape=some_shape(stream=True)))
    assert [each["terms"][0]["expression"] for each in (built_in, own)] == [
        "0.25 * cost_score + 0.25 * latency_score + 0.2 * throughput_score + 0.3 * reliability_score",
        "load_score",
    ]
    assert [recompute(each) for each in (built_in, own)] == ["a", "a"]


def test_rounded_weights_are_written_out_in_full() -> None:
    policy = ScorePolicy(score_terms=(term("t", weights={"cost_score": 1.0, "latency_score": 2.0}),))
    data = explain(decided(weighing(1.0, policy=policy)))
    assert data["terms"][0]["expression"] == "0.3333333333333333 * cost_score + 0.6666666666666666 * latency_score"


# With real observations.


def test_decisions_follow_what_was_observed() -> None:
    policy = ScorePolicy(score_terms=(term("fast", "latency_score"),), affinity=AffinityPolicy(enabled=False))
    group, observed, pins = weighing(1.0, 1.0, policy=policy), Observations(), Pins()

    def serve(target: int, seconds: float, outcome: Any = "ok", now: float = 0.0) -> None:
        running = observed.begin(group, group.targets[target], stream=False, now=now)
        observed.end(running, outcome, now=now + seconds, output_tokens=300)

    def now_decided(now: float) -> Decision:
        shape: RequestShape = some_shape()
        return decided(group, observed, shape, pins=pins, now=now)

    assert now_decided(0.0).mode == "cold_start"
    for number in range(10):
        serve(0, 2.0, now=float(number))
        serve(1, 1.0, now=float(number))
    decision = now_decided(12.0)
    assert (decision.mode, order(decision), decision.observations) == ("score", ["b", "a"], 20)
    for number in range(5):
        serve(1, 0.5, "server_error", now=12.0 + number)
    decision = now_decided(18.0)
    assert (order(decision), reasons(decision)) == (["a"], {"b": "excluded_consecutive"})
    decision = now_decided(30.0)
    assert (decision.mode, order(decision)) == ("probe", ["b", "a"])
    observed.cool(group, group.targets[0], retry_after_s=5.0, now=31.0)
    decision = now_decided(31.0)
    assert reasons(decision) == {"a": "cooling_down", "b": "excluded_consecutive"}
    assert (decision.mode, decision.flags, order(decision)) == ("probe", ("panic",), ["b"])


def test_a_single_windows_sums_are_enough_for_the_whole_record() -> None:
    observed = Scripted({"a": some_stats(Sums(attempts=10.0))})
    candidate = decided(weighing(1.0), observed).candidates[0]
    assert (candidate.confidence, candidate.observations) == (0.5, 10.0)
