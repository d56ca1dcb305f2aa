"""Which target serves a request, and which ones stand by: one pure function.

The order: eligibility, hard filters, required tags, cool-down, capacity, health; then the pin, a due probe, and
the strategy's own order. Everything that took a target out is on the Decision, and so are all numbers that the order
came from: `explain` shows them and works the choice out again from them alone.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, nan
from typing import Final, Protocol

import msgspec

from routing.core.affinity import Looked, Pins
from routing.core.catalog import Expression, Group, ScoreTerm, Target, TargetId
from routing.core.decision import (
    NOBODY,
    AffinityOutcome,
    Candidates,
    Column,
    Decision,
    Exclusion,
    Mode,
    Sheet,
    Stage,
    TermColumn,
)
from routing.core.eligibility import LEAST_BYTES_PER_TOKEN, ineligible, nobody_left, signing_family, undeclared
from routing.core.expressions import NAMES
from routing.core.plan import Plan, TermPlan, plan_of
from routing.core.scores import NEUTRAL, Scoring, measure
from routing.core.shape import RequestShape
from routing.core.stats import GroupStats, Health
from routing.core.strategies import Blend, by_weight, listed, relative_weights, weighted

KINDS: Final = 64
"""Kinds of request whose eligible targets a group remembers at a time."""


class Observed(Protocol):
    """What a decision asks of the observations."""

    def stats(self, group: Group, *, now: float) -> GroupStats: ...
    def health(self, group: Group, *, now: float) -> Mapping[TargetId, Health]:
        """Only the targets that are kept out."""
        ...

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
    if dynamic and (plan.tightened or plan.requires_tags):
        alive = _policy_allows(group, plan, shape, terms, alive, exclusions)
    alive = _available(group, plan, stats, observations, alive, exclusions, now=now)
    kept_out = observations.health(group, now=now)
    survivors, sick = _healthy(group, kept_out, alive, exclusions)
    panic = not survivors and bool(sick) and group.score.thresholds.when_all_excluded == "least_bad"
    if panic:
        survivors = sick

    affinity = _outcome(group, looked, pinned, survivors, plan) if dynamic else None
    matched_terms = tuple([each.term.name for each in terms])
    if not survivors:
        return Decision(
            strategy=group.strategy,
            mode="score" if dynamic else "configured",
            revision=revision,
            candidates=NOBODY,
            exclusions=tuple(exclusions),
            affinity=affinity,
            conversation_key=key,
            pinned=pinned,
            matched_terms=matched_terms,
            terms=tuple([each.term for each in terms]),
            mean_output_tokens=stats.mean_output_tokens,
            observations=stats.observations,
            policy=group.score if dynamic else None,
            no_target=nobody_left(
                group.name,
                group.targets,
                shape,
                exclusions,
                stats=stats.targets,
                lacking=sorted({words for each in terms for words in each.lacking if words is not None}),
            ),
        )

    ordered = _ordered(group, plan, stats, survivors, terms, shape, today=today, draw=draw)
    candidates = ordered.candidates
    mode, tie_break, propensity = ordered.mode, ordered.tie_break, ordered.propensity
    flags: tuple[str, ...] = ()
    if panic:
        mode, flags = "panic", ("panic",)
    if not ordered.finite:
        flags += ("not_finite",)
    pin = None
    if affinity == "affinity_hit":
        mode, tie_break, propensity = "pinned", None, 1.0
        candidates = candidates.from_front(pinned)
    else:
        probe = _due_probe(group, plan, kept_out, survivors, sick)
        if probe is not None:
            mode, tie_break, propensity = "probe", None, 1.0
            if panic:
                candidates = candidates.from_front(group.targets[probe].id)
            else:
                alone = _unscored(group, plan, stats, [probe], (0,), beside=survivors)
                candidates = Candidates(candidates.targets, candidates.sheet, candidates.order, alone[0])
        elif key is not None and (candidates.primary.weight > 0.0 or plan.all_fallbacks):
            pin = candidates.primary.id
    if group.strategy == "static":
        # One target serves; a trial request, which may well fail, has it behind.
        candidates = candidates.first(2 if mode == "probe" else 1)

    return Decision(
        group.strategy,
        mode,
        revision,
        candidates,
        tuple(exclusions),
        affinity,
        key,
        pin,
        propensity,
        tie_break,
        matched_terms,
        tuple([each.term for each in terms]),
        stats.mean_output_tokens,
        flags,
        pinned,
        ordered.drawn,
        stats.observations,
        group.score if dynamic else None,
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


# Who is left. Each step takes the positions of the targets that are, and adds an Exclusion for each that it removes.


def _eligible(
    group: Group,
    plan: Plan,
    shape: RequestShape,
    stats: GroupStats,
    pinned: TargetId | None,
    exclusions: list[Exclusion],
) -> Sequence[int]:
    if shape.reasoning is None and not shape.signed_thinking and _numbers_fit(plan, shape):
        # No number of this request excludes anyone, so the answer is that of the last request of its kind.
        kind = (
            shape.dialect,
            shape.tool_count > 0,
            shape.forced_tool_choice,
            shape.structured_output,
            shape.output_cap is None,
            shape.media,
        )
        known = plan.eligible.get(kind)
        if known is None:
            known = _check_all(group, shape, stats, None)
            if len(plan.eligible) >= KINDS:
                plan.eligible.clear()
            plan.eligible[kind] = known
    else:
        family = None
        if shape.signed_thinking and pinned in plan.positions:
            family = signing_family(group.targets[plan.positions[pinned]])
        known = _check_all(group, shape, stats, family)
    exclusions += known[1]
    return known[0]


def _numbers_fit(plan: Plan, shape: RequestShape) -> bool:
    """Whether the cap, the size and the tokens are within what every target declares, however it counts tokens."""
    return (
        shape.request_bytes <= plan.least_bytes
        and shape.text_bytes / LEAST_BYTES_PER_TOKEN + shape.media_tokens + shape.reserved_output
        <= plan.least_context - 1.0
        and (shape.output_cap is None or shape.output_cap <= plan.least_output)
    )


def _check_all(
    group: Group, shape: RequestShape, stats: GroupStats, family: str | None
) -> tuple[tuple[int, ...], tuple[Exclusion, ...]]:
    passed: list[int] = []
    excluded: list[Exclusion] = []
    of = stats.targets
    for position, target in enumerate(group.targets):
        said = ineligible(target, shape, bytes_per_token=of[target.id].bytes_per_token, family=family)
        if said is None:
            passed.append(position)
        else:
            excluded.append(_exclusion(target, "eligibility", said))
    return tuple(passed), tuple(excluded)


def _policy_allows(
    group: Group,
    plan: Plan,
    shape: RequestShape,
    terms: Sequence[TermPlan],
    alive: Sequence[int],
    exclusions: list[Exclusion],
) -> Sequence[int]:
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
    group: Group,
    plan: Plan,
    stats: GroupStats,
    observations: Observed,
    alive: Sequence[int],
    exclusions: list[Exclusion],
    *,
    now: float,
) -> Sequence[int]:
    """Cool-down, then capacity."""
    full = [
        provider
        for provider in plan.providers
        if observations.provider_in_flight(provider.name) >= provider.max_in_flight
    ]
    cooling = stats.cooling is not False and any(each.cooling_until is not None for each in stats.targets.values())
    if not full and not cooling and not plan.bounded:
        return alive
    passed: list[int] = []
    for position in alive:
        target = group.targets[position]
        until = stats.targets[target.id].cooling_until
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
        elif target.provider in full:
            said = f"{target.provider.name} has its {target.provider.max_in_flight:,} attempts in flight"
            exclusions.append(_exclusion(target, "capacity", ("at_capacity", said)))
        elif (
            target.max_in_flight is not None
            and observations.target_in_flight(group.name, target.id) >= target.max_in_flight
        ):
            said = f"has its {target.max_in_flight:,} attempts in flight"
            exclusions.append(_exclusion(target, "capacity", ("at_capacity", said)))
        else:
            passed.append(position)
    return passed


def _healthy(
    group: Group, kept_out: Mapping[TargetId, Health], alive: Sequence[int], exclusions: list[Exclusion]
) -> tuple[Sequence[int], Sequence[int]]:
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


class _Ordered(msgspec.Struct, frozen=True):
    candidates: Candidates
    mode: Mode
    tie_break: str | None
    propensity: float = 1.0
    drawn: float | None = None
    finite: bool = True
    """No expression gave anything but a finite number."""


def _ordered(
    group: Group,
    plan: Plan,
    stats: GroupStats,
    survivors: Sequence[int],
    terms: tuple[TermPlan, ...],
    shape: RequestShape,
    *,
    today: float,
    draw: Callable[[], float],
) -> _Ordered:
    """By the strategy alone: no pin, no probe."""
    mode: Mode = "configured"
    if group.strategy == "dynamic_score" and stats.observations >= group.score.min_observations:
        return _scored(group, plan, stats, survivors, terms, shape, today=today)
    weights = [plan.weights[position] for position in survivors]
    if group.strategy == "dynamic_score":
        mode, order = "cold_start", by_weight(weights)
    elif group.strategy == "weighted":
        order = weighted(weights, draw)
    else:
        order = listed(weights)
    candidates = _unscored(group, plan, stats, survivors, order.order)
    return _Ordered(candidates, mode, order.tie_break, order.propensity, order.drawn)


def _unscored(
    group: Group,
    plan: Plan,
    stats: GroupStats,
    positions: Sequence[int],
    order: Sequence[int],
    *,
    beside: Sequence[int] = (),
) -> Candidates:
    """Candidates without scores. `beside`: positions whose weights theirs are taken relative to, besides their own."""
    weights = relative_weights([plan.weights[position] for position in (*positions, *beside)])
    targets = [group.targets[position] for position in positions]
    sheet = Sheet(
        stats=[stats.targets[target.id] for target in targets],
        weights=weights,
        min_observations=group.score.min_observations,
    )
    return Candidates(targets, sheet, order)


def _scored(
    group: Group,
    plan: Plan,
    stats: GroupStats,
    survivors: Sequence[int],
    terms: tuple[TermPlan, ...],
    shape: RequestShape,
    *,
    today: float,
) -> _Ordered:
    policy = group.score
    scoring = Scoring(
        declared=plan.declared,
        columns=plan.columns,
        positions=survivors,
        group=stats,
        shape=shape,
        policy=policy,
        today=today,
    )
    targets = scoring.own(group.targets)
    columns = measure(_names(plan, terms), scoring)
    term_columns = _term_columns(terms, scoring, columns)
    dynamics = mean_by_share(term_columns)
    blend = plan.blend
    if not scoring.everyone:
        weights = scoring.own(plan.weights)
        blend = Blend(weights, adjustment=policy.adjustment, contrast=policy.contrast, near_tie=policy.near_tie)
    ranking = blend.rank(dynamics, scoring.estimated("in_flight") or ())
    sheet = Sheet(
        stats=scoring.own(list(stats.targets.values())),
        weights=ranking.relative,
        min_observations=policy.min_observations,
        dynamics=dynamics,
        contrasted=ranking.contrasted,
        finals=ranking.finals,
        band=ranking.band,
        scores=columns,
        terms=term_columns,
    )
    candidates = Candidates(targets, sheet, ranking.order)
    finite = True
    for column in term_columns:
        finite = finite and column.flags is scoring.no_flags
    return _Ordered(candidates, "score", ranking.tie_break, finite=finite)


def _names(plan: Plan, terms: tuple[TermPlan, ...]) -> tuple[str, ...]:
    names = plan.names.get(terms)
    if names is None:
        used = frozenset().union(*[each.term.names for each in terms])
        names = tuple(name for name in NAMES if name in used)
        if len(plan.names) >= KINDS:
            plan.names.clear()
        plan.names[terms] = names
    return names


def _term_columns(terms: Sequence[TermPlan], scoring: Scoring, columns: Mapping[str, Column]) -> tuple[TermColumn, ...]:
    made: list[TermColumn] = []
    for plan in terms:
        term = plan.term
        values, flags = _evaluated(term, columns, scoring.no_flags)
        preferred = scoring.own(plan.preferred)
        if term.prefer_tags:
            values = [value + more for value, more in zip(values, scoring.own(plan.bonuses), strict=True)]
        made.append(TermColumn(term.name, term.share, values, preferred, flags))
    return tuple(made)


def _evaluated(
    term: ScoreTerm, columns: Mapping[str, Column], no_flags: Sequence[str | None]
) -> tuple[Sequence[float], Sequence[str | None]]:
    expression, over_columns = term.expression, term.over_columns
    if expression is None:
        return [0.0] * len(no_flags), no_flags
    if over_columns is not None:
        try:
            values = over_columns(columns)
            if isfinite(sum(values)):
                return values, no_flags
        except ArithmeticError:
            pass  # in some row: each is taken by itself
    unused = [NEUTRAL] * len(no_flags)
    rows = zip(*[columns[name].values if name in columns else unused for name in NAMES], strict=True)
    values = [_evaluated_alone(expression, row) for row in rows]
    return [value if isfinite(value) else 0.0 for value in values], [
        None if isfinite(value) else "not_finite" for value in values
    ]


def _evaluated_alone(expression: Expression, vector: tuple[float, ...]) -> float:
    try:
        return expression(vector)
    except ArithmeticError:
        return nan


def mean_by_share(terms: Sequence[TermColumn]) -> Sequence[float]:
    """D of each candidate: the mean of its term values by share, clamped to [0, 1]; 0 where all shares are 0."""
    first = terms[0]
    shares = sum([term.share for term in terms])
    if shares <= 0.0:
        return [0.0] * len(first.values)
    if len(terms) == 1:
        means = first.values
    else:
        # The first two at once: most policies have no more.
        second = terms[1]
        share, other = first.share / shares, second.share / shares
        means = [share * one + other * two for one, two in zip(first.values, second.values, strict=True)]
        for term in terms[2:]:
            share = term.share / shares
            means = [so_far + share * value for so_far, value in zip(means, term.values, strict=True)]
    if min(means) >= 0.0 and max(means) <= 1.0:
        return means
    return [mean if 0.0 <= mean <= 1.0 else float(mean > 1.0) for mean in means]
