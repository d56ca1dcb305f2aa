"""Which target serves a request, and which ones stand by: one pure function.

The order: eligibility, hard filters, required tags, cool-down, capacity, health; then the pin, a due probe, and
the strategy's own order. Everything that took a target out is on the Decision, and so are all numbers that the order
came from: `explain` shows them and works the choice out again from them alone.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Final, Protocol

from routing.core.affinity import Looked, Pins
from routing.core.catalog import Group, ModelKey, Target, TargetId
from routing.core.decision import (
    AffinityOutcome,
    Candidate,
    Decision,
    Exclusion,
    Mode,
    ScoreValue,
    Stage,
    TermValue,
)
from routing.core.eligibility import ineligible, nobody_left, signing_family, undeclared
from routing.core.expressions import NAMES
from routing.core.plan import Plan, TermPlan, plan_of
from routing.core.scores import NEUTRAL, Column, Scoring, measure
from routing.core.shape import RequestShape
from routing.core.stats import GroupStats, Health, TargetStats
from routing.core.strategies import by_weight, listed, rank_by_policy, relative_weights, weighted

PREFERRED_TAG: Final = 0.05
"""Added to a term's value for each of its preferred tags that a target has."""


class Observed(Protocol):
    """What a decision asks of the observations."""

    def stats(self, group: Group, *, now: float) -> GroupStats: ...
    def health(self, group: Group, *, now: float) -> Mapping[TargetId, Health]:
        """Only the targets that are kept out."""
        ...

    def cooling_until(self, model_key: ModelKey, *, now: float) -> float | None: ...
    def provider_in_flight(self, provider_name: str) -> int:
        """Attempts running now in this process."""
        ...

    def target_in_flight(self, group_name: str, target_id: TargetId) -> int: ...


def decide(
    group: Group,
    shape: RequestShape,
    observations: Observed,
    pins: Pins,
    *,
    caller_tags: frozenset[str],
    now: float,
    today: float,
    draw: Callable[[], float],
    revision: int,
) -> Decision:
    """Changes nothing: `Decision.pin` says what to remember.

    `now`: monotonic seconds. `today`: days since 1970-01-01. `draw`: uniform in [0, 1), called by `weighted` alone and
    at most once. A decision without a candidate has `no_target` set.
    """
    plan = plan_of(group)
    stats = observations.stats(group, now=now)
    dynamic = group.strategy == "dynamic_score"
    key, looked = _conversation(group, shape, pins, now=now) if dynamic else (None, None)
    pinned = None if looked is None else looked.target
    terms = plan.matching(shape, caller_tags) if dynamic else ()

    exclusions: list[Exclusion] = []
    alive = _eligible(group, plan, shape, stats, pinned, exclusions)
    if dynamic:
        alive = _policy_allows(group, plan, shape, terms, alive, exclusions)
    alive = _available(group, observations, alive, exclusions, now=now)
    kept_out = observations.health(group, now=now)
    survivors, sick = _healthy(group, kept_out, alive, exclusions)
    panic = not survivors and bool(sick) and group.score.thresholds.when_all_excluded == "least_bad"
    if panic:
        survivors = sick

    affinity = _outcome(group, looked, pinned, survivors, plan) if dynamic else None
    matched_terms = tuple([plan.term.name for plan in terms])
    if not survivors:
        return Decision(
            strategy=group.strategy,
            mode="configured",
            revision=revision,
            candidates=(),
            exclusions=tuple(exclusions),
            affinity=affinity,
            conversation_key=key,
            pinned=pinned,
            matched_terms=matched_terms,
            mean_output_tokens=stats.mean_output_tokens,
            observations=stats.observations,
            policy=group.score if dynamic else None,
            no_target=nobody_left(group.name, group.targets, shape, exclusions, stats=stats.targets),
        )

    mode: Mode
    if not dynamic:
        mode, ordered, tie_break, propensity, drawn = _configured(group, plan, stats, survivors, draw)
    elif stats.observations < group.score.min_observations:
        order = by_weight([plan.weights[i] for i in survivors])
        candidates = _unscored(group, plan, stats, survivors)
        mode, ordered, tie_break = "cold_start", [candidates[i] for i in order.order], order.tie_break
        propensity, drawn = 1.0, None
    else:
        mode = "score"
        ordered, tie_break = _scored(group, plan, stats, survivors, terms, shape, today=today)
        propensity, drawn = 1.0, None

    flags: tuple[str, ...] = ("panic",) if panic else ()
    if any(term.flag for candidate in ordered for term in candidate.terms):
        flags += ("not_finite",)
    if panic:
        mode = "panic"
    pin = None
    chosen_by: str | None = tie_break
    if affinity == "affinity_hit":
        mode, chosen_by, propensity = "pinned", None, 1.0
        ordered = _to_front(ordered, pinned)
    else:
        probe = _due_probe(group, plan, kept_out, survivors, sick, panic)
        if probe is not None:
            mode, chosen_by, propensity = "probe", None, 1.0
            ordered = (
                _to_front(ordered, group.targets[probe].id)
                if panic
                else [*_unscored(group, plan, stats, [probe], beside=survivors), *ordered]
            )
        elif key is not None and (ordered[0].target.weight > 0.0 or plan.all_fallbacks):
            pin = ordered[0].target.id

    return Decision(
        strategy=group.strategy,
        mode=mode,
        revision=revision,
        candidates=tuple(ordered),
        exclusions=tuple(exclusions),
        affinity=affinity,
        conversation_key=key,
        pin=pin,
        propensity=propensity,
        tie_break=chosen_by,
        matched_terms=matched_terms,
        mean_output_tokens=stats.mean_output_tokens,
        flags=flags,
        pinned=pinned,
        drawn=drawn,
        observations=stats.observations,
        policy=group.score if dynamic else None,
    )


# The pin.


def _conversation(
    group: Group, shape: RequestShape, pins: Pins, *, now: float
) -> tuple[bytes, Looked] | tuple[None, None]:
    """Nothing where affinity is off, or where the request shows no conversation."""
    key = shape.conversation_key
    if key is None or not group.score.affinity.enabled:
        return None, None
    return key, pins.look(group, key, now=now)


def _outcome(
    group: Group, looked: Looked | None, pinned: TargetId | None, survivors: Sequence[int], plan: Plan
) -> AffinityOutcome:
    if looked is None:
        return "affinity_disabled"
    match looked.found:
        case "miss":
            return "affinity_miss"
        case "expired":
            return "affinity_expired"
        case "evicted":
            return "affinity_evicted"
        case "pinned":
            position = None if pinned is None else plan.positions.get(pinned)
            return "affinity_hit" if position in survivors else "affinity_ineligible"


def _to_front(ordered: Sequence[Candidate], target: TargetId | None) -> list[Candidate]:
    return [each for each in ordered if each.target.id == target] + [
        each for each in ordered if each.target.id != target
    ]


# Who is left. Each step takes the positions of the targets that are, and adds an Exclusion for each that it removes.


def _eligible(
    group: Group,
    plan: Plan,
    shape: RequestShape,
    stats: GroupStats,
    pinned: TargetId | None,
    exclusions: list[Exclusion],
) -> list[int]:
    family = None
    if shape.signed_thinking and pinned in plan.positions:
        family = signing_family(group.targets[plan.positions[pinned]])
    alive: list[int] = []
    of = stats.targets
    for position, target in enumerate(group.targets):
        said = ineligible(target, shape, bytes_per_token=of[target.id].bytes_per_token, family=family)
        if said is None:
            alive.append(position)
        else:
            exclusions.append(_exclusion(target, "eligibility", said))
    return alive


def _policy_allows(
    group: Group,
    plan: Plan,
    shape: RequestShape,
    terms: Sequence[TermPlan],
    alive: list[int],
    exclusions: list[Exclusion],
) -> list[int]:
    """Hard filters, then the required tags of the matching terms."""
    if plan.tightened:
        passed = []
        for position in alive:
            target = group.targets[position]
            said = undeclared(target, shape, group.score.hard_filters)
            if said is None:
                passed.append(position)
            else:
                exclusions.append(_exclusion(target, "hard_filter", said))
        alive = passed
    for term in terms:
        if not term.term.require_tags:
            continue
        passed = []
        for position in alive:
            lacking = term.lacking[position]
            if lacking is None:
                passed.append(position)
            else:
                said = "required_tags", f"lacks {lacking}, which the term {term.term.name} requires"
                exclusions.append(_exclusion(group.targets[position], "required_tags", said))
        alive = passed
    return alive


def _available(
    group: Group, observations: Observed, alive: list[int], exclusions: list[Exclusion], *, now: float
) -> list[int]:
    """Cool-down, then capacity."""
    passed: list[int] = []
    full: dict[str, bool] = {}
    for position in alive:
        target = group.targets[position]
        until = observations.cooling_until(target.model_key, now=now)
        if until is not None and until > now:
            exclusions.append(
                Exclusion(
                    target=target.id,
                    stage="cool_down",
                    reason="cooling_down",
                    detail=f"throttled by its provider, {until - now:.1f} s left",
                    wait_s=until - now,
                )
            )
            continue
        provider = target.provider
        busy = full.get(provider.name)
        if busy is None:
            busy = full[provider.name] = observations.provider_in_flight(provider.name) >= provider.max_in_flight
        if busy:
            said = "at_capacity", f"{provider.name} has its {provider.max_in_flight:,} attempts in flight"
            exclusions.append(_exclusion(target, "capacity", said))
            continue
        most = target.max_in_flight
        if most is not None and observations.target_in_flight(group.name, target.id) >= most:
            exclusions.append(_exclusion(target, "capacity", ("at_capacity", f"has its {most:,} attempts in flight")))
            continue
        passed.append(position)
    return passed


def _healthy(
    group: Group, kept_out: Mapping[TargetId, Health], alive: list[int], exclusions: list[Exclusion]
) -> tuple[list[int], list[int]]:
    """Those whom health lets serve, and those whom it keeps out."""
    if not kept_out:
        return alive, []
    passed: list[int] = []
    sick: list[int] = []
    for position in alive:
        target = group.targets[position]
        health = kept_out.get(target.id)
        if health is None:
            passed.append(position)
            continue
        sick.append(position)
        exclusions.append(
            Exclusion(
                target=target.id,
                stage="health" if health.reason in ("denied", "excluded_consecutive") else "thresholds",
                reason=health.reason,
                detail=health.detail,
                probe_overdue_s=health.overdue_s if health.probe_due else None,
            )
        )
    return passed, sick


def _exclusion(target: Target, stage: Stage, said: tuple[str, str]) -> Exclusion:
    return Exclusion(target=target.id, stage=stage, reason=said[0], detail=said[1])


def _due_probe(
    group: Group,
    plan: Plan,
    kept_out: Mapping[TargetId, Health],
    survivors: Sequence[int],
    sick: Sequence[int],
    panic: bool,
) -> int | None:
    """The position whose trial request is due longest. Weight 0 is not probed while a positive weight survives."""
    if not sick:
        return None
    positive = any(plan.weights[position] > 0.0 for position in survivors)
    due = [
        position
        for position in sick
        if kept_out[group.targets[position].id].probe_due and (plan.weights[position] > 0.0 or not positive)
    ]
    return max(due, key=lambda position: kept_out[group.targets[position].id].overdue_s, default=None)


# In which order.


def _configured(
    group: Group, plan: Plan, stats: GroupStats, survivors: Sequence[int], draw: Callable[[], float]
) -> tuple[Mode, list[Candidate], str, float, float | None]:
    weights = [plan.weights[position] for position in survivors]
    order = weighted(weights, draw) if group.strategy == "weighted" else listed(weights)
    candidates = _unscored(group, plan, stats, survivors)
    ordered = [candidates[index] for index in order.order]
    if group.strategy == "static":
        ordered = ordered[:1]
    return "configured", ordered, order.tie_break, order.propensity, order.drawn


def _unscored(
    group: Group, plan: Plan, stats: GroupStats, positions: Sequence[int], *, beside: Sequence[int] = ()
) -> list[Candidate]:
    """Candidates without scores. `beside`: positions whose weights theirs are taken relative to, besides their own."""
    weights = relative_weights([plan.weights[position] for position in (*positions, *beside)])
    candidates = []
    for position, weight in zip(positions, weights, strict=False):
        target = group.targets[position]
        own = stats.targets[target.id]
        candidates.append(
            Candidate(
                target=target,
                weight=weight,
                confidence=_confidence(own, group.score.min_observations),
                observations=own.window.attempts,
                in_flight=own.in_flight,
                overdue=own.overdue,
            )
        )
    return candidates


def _confidence(stats: TargetStats, enough: int) -> float:
    attempts = stats.window.attempts
    return 1.0 if attempts >= enough else attempts / enough


def _scored(
    group: Group,
    plan: Plan,
    stats: GroupStats,
    survivors: Sequence[int],
    terms: Sequence[TermPlan],
    shape: RequestShape,
    *,
    today: float,
) -> tuple[list[Candidate], str]:
    policy = group.score
    targets = [group.targets[position] for position in survivors]
    own = [stats.targets[target.id] for target in targets]
    names = terms[0].term.names if len(terms) == 1 else frozenset().union(*[plan.term.names for plan in terms])
    columns = measure(
        names,
        Scoring(targets=targets, own=own, group=stats, shape=shape, policy=policy, today=today),
    )
    values = _term_values(terms, survivors, columns)
    dynamics = _dynamics(values, len(survivors))
    weights = [plan.weights[position] for position in survivors]
    in_flight = [each.in_flight for each in own]
    ranking = rank_by_policy(weights, dynamics, in_flight, policy)

    scores = list(zip(*[_score_values(name, column) for name, column in columns.items()], strict=True))
    relative = relative_weights(weights)
    ordered = []
    for index in ranking.order:
        stat = own[index]
        ordered.append(
            Candidate(
                target=targets[index],
                weight=relative[index],
                dynamic=dynamics[index],
                contrasted=ranking.contrasted[index],
                final=ranking.finals[index],
                confidence=_confidence(stat, policy.min_observations),
                observations=stat.window.attempts,
                in_flight=stat.in_flight,
                overdue=stat.overdue,
                in_band=index in ranking.band,
                scores=scores[index] if scores else (),
                terms=tuple([column[index] for column in values]),
            )
        )
    return ordered, ranking.tie_break


def _score_values(name: str, column: Column) -> list[ScoreValue]:
    return [
        ScoreValue(name=name, raw=raw, value=value, flag=flag)
        for raw, value, flag in zip(column.raws, column.values, column.flags, strict=True)
    ]


def _term_values(
    terms: Sequence[TermPlan], survivors: Sequence[int], columns: Mapping[str, Column]
) -> list[list[TermValue]]:
    """Per term, the value that it gives each candidate."""
    count = len(survivors)
    unused = [NEUTRAL] * count
    vectors = list(zip(*[columns[name].values if name in columns else unused for name in NAMES], strict=True))
    table: list[list[TermValue]] = []
    for plan in terms:
        term = plan.term
        column: list[TermValue] = []
        for position, vector in zip(survivors, vectors, strict=True):
            value, flag = 0.0, None
            if term.expression is not None:
                try:
                    value = term.expression(vector)
                except ArithmeticError:
                    flag = "not_finite"
                else:
                    if not isfinite(value):
                        value, flag = 0.0, "not_finite"
            preferred = plan.preferred[position]
            if preferred:
                value += PREFERRED_TAG * preferred
            column.append(TermValue(name=term.name, value=value, share=term.share, preferred_tags=preferred, flag=flag))
        table.append(column)
    return table


def _dynamics(values: Sequence[Sequence[TermValue]], count: int) -> list[float]:
    """D of each candidate: the mean of its term values by share, clamped to [0, 1]; 0 where all shares are 0."""
    return [dynamic([column[index] for column in values]) for index in range(count)]


def dynamic(terms: Sequence[TermValue]) -> float:
    if len(terms) == 1:
        mean = terms[0].value if terms[0].share > 0.0 else 0.0
    else:
        shares = sum([term.share for term in terms])
        mean = sum([term.share * term.value for term in terms]) / shares if shares > 0.0 else 0.0
    return mean if 0.0 <= mean <= 1.0 else float(mean > 1.0)
