"""Whatever the numbers: no exception, no NaN, nobody who is out, the same again, and a record that explains itself."""

import json
from dataclasses import replace
from math import isfinite
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing.core.affinity import Pins
from routing.core.catalog import AffinityPolicy, Group, ScorePolicy, Target
from routing.core.decide import decide
from routing.core.decision import Decision
from routing.core.explain import explain, recompute
from routing.core.expressions import NAMES
from routing.core.shape import RequestShape
from routing.core.stats import Health, Sums, TargetStats
from tests.routing.deciding import Scripted, some_shape, term
from tests.support.documents import some_group, some_target

POSITIVE = st.floats(0, 1e15) | st.sampled_from([0.0, 5e-324, 1e-9, 1.0, 1e300, 1.7e308])
SMALL = st.integers(0, 5) | st.integers(0, 10**9)
SUMS = st.builds(Sums, **dict.fromkeys(Sums.__struct_fields__, POSITIVE))
STATS = st.builds(
    TargetStats,
    window=SUMS,
    fast=SUMS,
    p95_s=st.none() | POSITIVE,
    p95_n=SMALL,
    in_flight=SMALL,
    overdue=SMALL,
    bytes_per_token=st.floats(5e-324, 1e6),
    cooling_until=st.none() | st.sampled_from([99.0, 100.0, 101.0]),
)
HEALTH = st.builds(
    Health,
    reason=st.sampled_from(["denied", "excluded_consecutive", "excluded_p95", "excluded_error_rate"]),
    detail=st.just("out"),
    probe_due=st.booleans(),
    overdue_s=POSITIVE,
)
TAGS = st.sets(st.sampled_from(["eu", "validated"]))
TERMS = st.lists(
    st.builds(
        term,
        st.sampled_from(["one", "two", "three"]),
        st.sampled_from(
            [None, *NAMES, "cost_score - 3 * latency_score", "1 / (load_score - 0.5)", "1e308 * ttfb_score * 10"]
        ),
        require_tags=st.sampled_from([(), (), (), ("validated",)]),
        prefer_tags=TAGS.map(tuple),
        share=st.sampled_from([0.0, 1.0, 2.5]),
        tools=st.none() | st.booleans(),
    ),
    max_size=3,
    unique_by=lambda made: made.name,
).map(tuple)
POLICIES = st.builds(
    ScorePolicy,
    min_observations=st.integers(0, 30),
    prior_strength=st.sampled_from([0.0, 5.0, 1000.0]),
    normalization=st.sampled_from(["ratio", "minmax"]),
    adjustment=st.floats(0, 1),
    contrast=st.floats(0, 1000),
    near_tie=st.floats(0, 1),
    enabled_signals=st.sets(
        st.sampled_from(["request_shape", "complexity", "observed_performance", "cost", "evaluation_metadata"])
    ).map(frozenset),
    score_terms=TERMS,
)
TARGETS = st.lists(
    st.builds(
        some_target,
        st.just("x"),
        weight=st.sampled_from([0.0, 0.004, 1.0, 60.0]) | POSITIVE,
        tags=TAGS,
        input_price=st.none() | st.floats(0, 1) | st.just(0.0),
        output_price=st.none() | st.floats(0, 1) | st.just(0.0),
        quality=st.none() | st.floats(0, 1),
        quality_until=st.none() | st.sampled_from([0.0, 19_999.0, 20_000.0]),
        tools=st.none() | st.booleans(),
        context_tokens=st.none() | st.integers(1, 10**6),
        max_output_tokens=st.none() | st.integers(1, 10**5),
        max_request_bytes=st.none() | st.integers(1, 10**6),
        honors_max_tokens=st.none() | st.booleans(),
    ),
    min_size=1,
    max_size=6,
)
SHAPES = st.builds(
    some_shape,
    text_bytes=st.integers(0, 10**7),
    media_tokens=st.integers(0, 10**6),
    request_bytes=st.integers(0, 10**8),
    tool_count=st.integers(0, 5),
    output_cap=st.none() | st.integers(1, 10**6),
    conversation_key=st.none() | st.just(b"k"),
)


def named(targets: list[Target]) -> list[Target]:
    return [replace(target, id=f"t{i}", model_key=f"t{i}") for i, target in enumerate(targets)]


def finite(data: Any) -> bool:
    """Whether JSON can hold it, which it cannot of NaN and infinity."""
    json.dumps(data, allow_nan=False)
    return True


def decided(group: Group, shape: RequestShape, observed: Scripted, pins: Pins, drawn: float) -> Decision:
    return decide(
        group,
        shape,
        observed,
        pins,
        caller_tags=frozenset(),
        now=100.0,
        today=20_000.0,
        draw=lambda: drawn,
        revision=1,
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_no_numbers_break_a_decision(data: st.DataObject) -> None:
    targets = named(data.draw(TARGETS))
    strategy: Any = data.draw(st.sampled_from(["dynamic_score"] * 5 + ["static", "failover", "weighted"]))
    group = some_group(targets, strategy=strategy, policy=data.draw(POLICIES))
    ids = [target.id for target in targets]
    observed = Scripted(
        {each: data.draw(STATS) for each in ids},
        observations=data.draw(st.integers(0, 40)),
        mean_output_tokens=data.draw(st.floats(1, 1e6)),
        health=data.draw(st.dictionaries(st.sampled_from(ids), HEALTH, max_size=len(ids))),
    )
    shape, drawn, pins = data.draw(SHAPES), data.draw(st.floats(0, 1, exclude_max=True)), Pins()
    decision = decided(group, shape, observed, pins, drawn)

    # Nobody who is out, but for a probe and the least bad.
    out = {each.target: each.stage for each in decision.exclusions}
    serving = [candidate.target.id for candidate in decision.candidates]
    assert len(set(serving)) == len(serving)
    for place, target in enumerate(serving):
        trial = decision.mode == "probe" and place == 0
        assert target not in out or (out[target] in ("health", "thresholds") and (trial or "panic" in decision.flags))
    assert bool(serving) is (decision.no_target is None)
    assert strategy == "static" or set(serving) | set(out) == set(ids)
    if decision.pin is not None:
        assert decision.pin == serving[0]

    # Weight 0 is behind every positive weight.
    if decision.mode not in ("pinned", "probe"):
        weights = [candidate.target.weight > 0 for candidate in decision.candidates]
        assert weights == sorted(weights, reverse=True)

    for candidate in decision.candidates:
        for value in (candidate.dynamic, candidate.contrasted, candidate.final, *(s.value for s in candidate.scores)):
            assert value is None or -1e-9 <= value <= 1 + 1e-9
        assert all(isfinite(each.value) for each in candidate.terms)
    explained = explain(decision)
    assert finite(explained)

    # The same again, and from the record alone.
    assert explain(decided(group, shape, observed, pins, drawn)) == explained
    again = recompute(json.loads(json.dumps(explained)))
    assert again == (serving[0] if serving else None)


def test_a_thousand_decisions_are_worked_out_again_from_their_records() -> None:
    rng = Random(5)
    pins, seen_modes, seen_ties = Pins(), set(), set()
    for number in range(1_000):
        group, observed = random_group(rng), None
        observed = random_observations(rng, group)
        shape = some_shape(
            text_bytes=rng.choice([40, 4_000, 90_000]),
            tool_count=rng.choice([0, 0, 3]),
            stream=rng.random() < 0.5,
            output_cap=rng.choice([None, None, 50, 9_000]),
            conversation_key=rng.choice([None, b"%d" % (number % 40)]),
        )
        decision = decided(group, shape, observed, pins, rng.random())
        pins.remember(group, decision, caller="ada", now=100.0 + number)
        winner = decision.candidates[0].target.id if decision.candidates else None
        record = json.loads(json.dumps(explain(decision)))
        assert recompute(record) == winner, (number, record)
        # The order, and what was written down of the results, are not what it is worked out from.
        for gone in ("order", "tie_break", "mode", "propensity"):
            del record[gone]
        for candidate in record["candidates"]:
            for gone in ("weight", "dynamic", "contrasted", "final", "in_band"):
                del candidate[gone]
            for name, score in candidate["scores"].items():
                if score["raw"] is not None and name in (
                    "cost_score",
                    "latency_score",
                    "ttfb_score",
                    "throughput_score",
                ):
                    del score["value"]
            for value in candidate["terms"]:
                del value["contributions"]
        assert recompute(record) == winner
        seen_modes.add(decision.mode)
        seen_ties.add(decision.tie_break)
    assert seen_modes == {"configured", "cold_start", "score", "pinned", "probe", "panic"}
    assert seen_ties == {None, "only", "final", "in_flight", "weight", "position", "draw"}


def random_group(rng: Random) -> Group:
    twins = rng.random() < 0.3
    price = rng.random()
    targets = [
        some_target(
            f"t{i}",
            weight=1.0 if twins else rng.choice([0.0, 0.5, 1.0, 60.0]),
            tags=rng.sample(["eu", "validated"], rng.randint(0, 2)),
            prices=None if rng.random() < 0.1 else (price, price) if twins else (rng.random(), rng.choice([0.0, 2.0])),
            quality=rng.choice([None, 0.5, rng.random()]),
            tools=rng.choice([None, True, False]),
            context_tokens=rng.choice([None, 20_000]),
        )
        for i in range(rng.randint(1, 6))
    ]
    terms = (
        term(
            "cheap",
            weights={"cost_score": 1.0, "throughput_score": 2.0, "reliability_score": 4.0},
            complexity_lte="standard",
        ),
        term(
            "floor", "0.7 * min(eval_quality_score, latency_score) + 0.3 * ttfb_score", require_tags=("eu",), tools=True
        ),
        term("near", prefer_tags=("validated",), share=0.5, stream=True),
        term("odd", "1 / (budget_score - load_score)", input_tokens_gte=20_000),
    )
    policy = ScorePolicy(
        score_terms=() if twins else terms[: rng.randint(0, 4)],
        normalization=rng.choice(["ratio", "minmax"]),
        adjustment=rng.choice([0.0, 0.3, 0.7, 1.0]),
        near_tie=rng.choice([0.0, 0.07]),
        affinity=AffinityPolicy(ttl_s=300.0),
    )
    strategy: Any = rng.choice(["dynamic_score"] * 6 + ["static", "failover", "weighted"])
    return some_group(targets, strategy=strategy, policy=policy)


def random_observations(rng: Random, group: Group) -> Scripted:
    same = rng.random() < 0.3
    stats = {}
    for target in group.targets:
        attempts = 50.0 if same else float(rng.randint(0, 200))
        stats[target.id] = TargetStats(
            window=Sums(
                attempts=attempts,
                errors=0.0 if same else attempts * rng.random() * 0.2,
                completed=attempts,
                first_content_s=attempts * (1.0 if same else rng.random()),
                first_content_n=attempts,
                generation_s=attempts * 3.0,
                generation_tokens=attempts * (300.0 if same else rng.uniform(50.0, 500.0)),
                in_flight_at_start=attempts,
            ),
            fast=Sums() if same else Sums(attempts=rng.random() * 9, timeouts=rng.random()),
            p95_s=(2.0 if same else rng.uniform(0.5, 9.0)) if attempts else None,
            p95_n=int(attempts),
            in_flight=0 if same else rng.choice([0, 0, 1, 2, 9]),
            cooling_until=rng.choice([None] * 9 + [150.0]),
        )
    health = {
        target.id: Health(
            reason="excluded_error_rate",
            detail="out",
            probe_due=rng.random() < 0.5,
            overdue_s=rng.choice([0.0, 1.0, rng.random()]),
        )
        for target in group.targets
        if rng.random() < 0.15
    }
    return Scripted(stats, observations=rng.choice([5, 500, 500]), health=health)
