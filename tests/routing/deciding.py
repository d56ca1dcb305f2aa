"""Observations that say what a test tells them, and shapes and statistics that name only what matters."""

from collections.abc import Mapping
from typing import Any

from routing.core.affinity import Pins
from routing.core.catalog import Group, ScoreTerm, TargetId, When
from routing.core.decide import decide
from routing.core.decision import Decision
from routing.core.expressions import compile_expression, compile_weights
from routing.core.shape import RequestShape, shape_with_complexity
from routing.core.stats import GroupStats, Health, Sums, TargetStats

KEY = b"\x01" * 32


def some_shape(**fields: Any) -> RequestShape:
    return shape_with_complexity(**{"dialect": "openai-chat", "text_bytes": 4_000, "request_bytes": 5_000, **fields})


def some_stats(window: Sums | None = None, fast: Sums | None = None, **fields: Any) -> TargetStats:
    return TargetStats(window=window or Sums(), fast=fast or Sums(), **fields)


def seen(attempts: float = 100.0, **fields: float) -> Sums:
    """A healthy target's window: a second to the first content, 50 tokens a second."""
    return Sums(
        **{
            "attempts": attempts,
            "completed": attempts,
            "first_content_s": attempts * 1.0,
            "first_content_n": attempts,
            "generation_s": attempts * 6.0,
            "generation_tokens": attempts * 300.0,
            "streams": attempts,
            "streams_ended": attempts,
            **fields,
        }
    )


class Scripted:
    """What `decide` asks of the observations. A target without an entry in `stats` has not been seen."""

    def __init__(
        self,
        stats: Mapping[TargetId, TargetStats] | None = None,
        *,
        observations: int = 1_000,
        mean_output_tokens: float = 300.0,
        health: Mapping[TargetId, Health] | None = None,
        providers: Mapping[str, int] | None = None,
        targets: Mapping[TargetId, int] | None = None,
    ) -> None:
        self._stats = stats or {}
        self._observations = observations
        self._mean_output_tokens = mean_output_tokens
        self._health = health or {}
        self._providers = providers or {}
        self._targets = targets or {}

    def stats(self, group: Group, *, now: float) -> GroupStats:
        return GroupStats(
            targets={target.id: self._stats.get(target.id) or some_stats() for target in group.targets},
            mean_output_tokens=self._mean_output_tokens,
            observations=self._observations,
        )

    def health(self, group: Group, *, now: float) -> Mapping[TargetId, Health]:
        return self._health

    def provider_in_flight(self, provider_name: str) -> int:
        return self._providers.get(provider_name, 0)

    def target_in_flight(self, group_name: str, target_id: TargetId) -> int:
        return self._targets.get(target_id, 0)


def sick(
    reason: Any = "excluded_consecutive", *, probe_due: bool = False, overdue_s: float = 0.0, detail: str = "5 failures"
) -> Health:
    return Health(reason=reason, detail=detail, probe_due=probe_due, overdue_s=overdue_s)


def term(
    name: str = "all",
    expression: str | None = None,
    *,
    weights: Mapping[str, float] | None = None,
    require_tags: tuple[str, ...] = (),
    prefer_tags: tuple[str, ...] = (),
    share: float = 1.0,
    **when: Any,
) -> ScoreTerm:
    compiled = compile_expression(expression) if expression is not None else None
    if weights is not None:
        compiled = compile_weights(weights)
    return ScoreTerm(
        name=name,
        when=When(**when),
        require_tags=frozenset(require_tags),
        prefer_tags=frozenset(prefer_tags),
        expression=None if compiled is None else compiled.evaluate,
        over_columns=None if compiled is None else compiled.over_columns,
        source="" if compiled is None else compiled.source,
        names=frozenset() if compiled is None else compiled.names,
        weights={} if compiled is None else compiled.weights,
        share=share,
    )


def decided(
    group: Group,
    observations: Any = None,
    shape: RequestShape | None = None,
    *,
    pins: Pins | None = None,
    caller_tags: tuple[str, ...] = (),
    now: float = 100.0,
    today: float = 20_000.0,
    drawn: float = 0.5,
) -> Decision:
    return decide(
        group,
        shape or some_shape(),
        observations or Scripted(),
        pins or Pins(),
        caller_tags=frozenset(caller_tags),
        now=now,
        today=today,
        draw=lambda: drawn,
        revision=7,
    )


def order(decision: Decision) -> list[TargetId]:
    return [candidate.target.id for candidate in decision.candidates]


def reasons(decision: Decision) -> dict[TargetId, str]:
    return {exclusion.target: exclusion.reason for exclusion in decision.exclusions}
