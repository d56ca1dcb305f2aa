"""What can be said of a group before any request: which conditions its terms set, which tags its targets lack."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from typing import Final

from routing.core.catalog import Group, Provider, ScoreTerm, When
from routing.core.decision import Exclusion
from routing.core.document import Complexity
from routing.core.scores import DEFAULT_TERM, Columns, Declared
from routing.core.shape import RequestShape
from routing.core.strategies import Blend

Condition = Callable[[RequestShape, frozenset[str]], bool]
"""Takes the shape and the caller's tags."""

PREFERRED_TAG: Final = 0.05
"""Added to a term's value for each of its preferred tags that a target has."""

RANKS: Final[dict[Complexity, int]] = {"simple": 0, "standard": 1, "complex": 2}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TermPlan:
    term: ScoreTerm
    conditions: tuple[Condition, ...]
    """All must hold."""
    lacking: tuple[str | None, ...]
    """Per target, in the order of the list: the required tags that it lacks, in words; `None`: none."""
    preferred: tuple[int, ...]
    """Per target: how many of the preferred tags it has."""
    bonuses: tuple[float, ...]
    """Per target: what they add to the term's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    terms: tuple[TermPlan, ...]
    default: TermPlan
    positions: dict[str, int]
    """Of each target id in the group's list."""
    weights: tuple[float, ...]
    """As configured, in the order of the list."""
    blend: Blend
    """Of all targets."""
    all_fallbacks: bool
    """Every target has weight 0, which then says nothing."""
    tightened: bool
    """Hard filters that look at undeclared support are on."""
    requires_tags: bool
    """Some term does."""
    providers: tuple[Provider, ...]
    """Each once."""
    bounded: frozenset[int]
    """Positions of the targets with a bound of their own on attempts in flight."""
    least_output: float
    """The smallest of what the targets declare; infinite: none does. So for the next two."""
    least_bytes: float
    least_context: float
    declared: Declared
    columns: Columns
    """Filled by `decide`."""
    names: dict[tuple[TermPlan, ...], tuple[str, ...]]
    """The scores that these terms use together, in order. Filled by `decide`."""
    eligible: dict[Hashable, tuple[tuple[int, ...], tuple[Exclusion, ...]]]
    """What the checks said that look at no number, by what they looked at. Bounded by `decide`."""

    def matching(self, shape: RequestShape, caller_tags: frozenset[str]) -> tuple[TermPlan, ...]:
        """The terms whose conditions all hold, in the policy's order; the built-in one if there is none."""
        matched = []
        for plan in self.terms:
            for holds in plan.conditions:
                if not holds(shape, caller_tags):
                    break
            else:
                matched.append(plan)
        return tuple(matched) or (self.default,)


def plan_of(group: Group) -> Plan:
    """Worked out once and kept on the group."""
    plan = group.plan
    if not isinstance(plan, Plan):
        plan = _plan(group)
        # The one place that writes to a compiled group: what it writes follows from the group alone.
        object.__setattr__(group, "plan", plan)
    return plan


def _plan(group: Group) -> Plan:
    policy = group.score
    filters = policy.hard_filters
    weights = tuple(target.weight for target in group.targets)
    return Plan(
        terms=tuple(_term_plan(term, group) for term in policy.score_terms),
        default=_term_plan(DEFAULT_TERM, group),
        positions={target.id: position for position, target in enumerate(group.targets)},
        weights=weights,
        blend=Blend(weights, adjustment=policy.adjustment, contrast=policy.contrast, near_tie=policy.near_tie),
        all_fallbacks=not any(target.weight for target in group.targets),
        tightened=filters.require_tool_support_when_tools_present
        or filters.require_forced_tool_choice_support
        or filters.require_structured_output_support,
        requires_tags=any(term.require_tags for term in policy.score_terms),
        providers=tuple({target.provider.name: target.provider for target in group.targets}.values()),
        bounded=frozenset(i for i, target in enumerate(group.targets) if target.max_in_flight is not None),
        least_output=min((t.max_output_tokens for t in group.targets if t.max_output_tokens is not None), default=inf),
        least_bytes=min((t.max_request_bytes for t in group.targets if t.max_request_bytes is not None), default=inf),
        least_context=min((t.context_tokens for t in group.targets if t.context_tokens is not None), default=inf),
        declared=Declared(group.targets),
        columns={},
        names={},
        eligible={},
    )


def _term_plan(term: ScoreTerm, group: Group) -> TermPlan:
    preferred = tuple(len(term.prefer_tags & target.tags) for target in group.targets)
    return TermPlan(
        term=term,
        conditions=tuple(_conditions(term.when, group)),
        lacking=tuple(_tags(term.require_tags - target.tags) for target in group.targets),
        preferred=preferred,
        bonuses=tuple(PREFERRED_TAG * tags for tags in preferred),
    )


def _tags(tags: frozenset[str]) -> str | None:
    if not tags:
        return None
    return f"the tag{'s' if len(tags) > 1 else ''} {', '.join(sorted(tags))}"


def _never(shape: RequestShape, caller_tags: frozenset[str]) -> bool:
    return False


def _conditions(when: When, group: Group) -> list[Condition]:
    """One function for each condition given. A condition on what a disabled signal would show never holds."""
    enabled, features = group.score.enabled_signals, group.score.features
    conditions: list[Condition] = []
    if when.complexity_lte is not None or when.complexity_gte is not None:
        if "complexity" not in enabled:
            return [_never]
        low = RANKS[when.complexity_gte or "simple"]
        high = RANKS[when.complexity_lte or "complex"]
        buckets = frozenset(bucket for bucket, rank in RANKS.items() if low <= rank <= high)
        conditions.append(lambda shape, tags: shape.complexity in buckets)
    for wanted in (when.prompt_features_any, None if when.prompt_feature is None else frozenset({when.prompt_feature})):
        if wanted is not None:
            seen = wanted & features
            conditions.append(lambda shape, tags, seen=seen: not seen.isdisjoint(shape.prompt_features))  # type: ignore[misc]  # the default binds this turn's set
    of_shape = _shape_conditions(when)
    if of_shape and "request_shape" not in enabled:
        return [_never]
    conditions += of_shape
    if when.caller_tag is not None:
        caller_tag = when.caller_tag
        conditions.append(lambda shape, tags: caller_tag in tags)
    return conditions


def _shape_conditions(when: When) -> list[Condition]:
    conditions: list[Condition] = []
    if when.stream is not None:
        stream = when.stream
        conditions.append(lambda shape, tags: shape.stream is stream)
    if when.tools is not None:
        tools = when.tools
        conditions.append(lambda shape, tags: (shape.tool_count > 0) is tools)
    if when.images is not None:
        images = when.images
        conditions.append(lambda shape, tags: (shape.image_count > 0) is images)
    if when.reasoning is not None:
        reasoning = when.reasoning
        conditions.append(lambda shape, tags: (shape.reasoning is not None) is reasoning)
    if when.dialect is not None:
        dialect = when.dialect
        conditions.append(lambda shape, tags: shape.dialect == dialect)
    if when.input_tokens_lte is not None:
        most = when.input_tokens_lte
        conditions.append(lambda shape, tags: shape.input_tokens <= most)
    if when.input_tokens_gte is not None:
        least = when.input_tokens_gte
        conditions.append(lambda shape, tags: shape.input_tokens >= least)
    return conditions
