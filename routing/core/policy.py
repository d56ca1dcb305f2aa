"""A group's `dynamic_score` block compiled: terms to expressions, milliseconds to seconds, signals to sets."""

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Final

from routing.core import catalog
from routing.core.document import DynamicScore, ScoreTerm, Signals, When
from routing.core.errors import ExpressionError, Problem
from routing.core.expressions import (
    NAMES,
    NOT_YET,
    CompiledExpression,
    compile_expression,
    compile_weights,
    score_name,
)
from routing.core.reading import below, suggestion
from routing.core.scores import SIGNALS

Evaluations = Mapping[tuple[str, str], tuple[float, float | None]]
"""(provider, model_ref or upstream name) -> quality in [0, 1], last day (since 1970-01-01) it may be used."""


def compile_policy(declared: DynamicScore, path: str, problems: list[Problem]) -> catalog.ScorePolicy:
    """Adds to `problems` what is wrong; the policy returned then lacks those parts."""
    features = frozenset(declared.signals.prompt_features.features)
    _check_evaluations(declared, f"{path}.evaluation_metadata", problems)
    affinity, limits = declared.affinity, declared.thresholds
    return catalog.ScorePolicy(
        min_observations=declared.min_observations,
        window_s=declared.observation_window_seconds,
        fast_half_life_s=float(declared.fast_half_life_seconds),
        prior_strength=float(declared.prior_strength),
        normalization=declared.normalization,
        adjustment=declared.max_score_adjustment_percent / 100,
        contrast=float(declared.contrast),
        near_tie=float(declared.near_tie),
        client_cancellations=declared.client_cancellations,
        affinity=catalog.AffinityPolicy(
            enabled=affinity.enabled,
            ttl_s=float(affinity.ttl_seconds),
            max_entries=affinity.max_entries,
            sliding=affinity.sliding,
            session_header=None if affinity.session_header is None else affinity.session_header.lower(),
        ),
        hard_filters=catalog.HardFilters(
            **{each.name: getattr(declared.hard_filters, each.name) for each in fields(declared.hard_filters)}
        ),
        enabled_signals=_enabled(declared.signals),
        features=features if declared.signals.prompt_features.enabled else frozenset(),
        max_scan_bytes=declared.signals.prompt_features.max_scan_bytes,
        score_terms=tuple(_terms(declared, f"{path}.score_terms", problems)),
        thresholds=catalog.ThresholdPolicy(
            max_error_rate=limits.max_error_rate,
            max_timeout_rate=limits.max_timeout_rate,
            max_p95_s=_seconds(limits.max_p95_latency_ms),
            max_ttfb_s=_seconds(limits.max_ttfb_ms),
            min_output_tokens_per_second=limits.min_output_tokens_per_second,
            min_observations=limits.min_observations,
            fast_min_observations=limits.fast_min_observations,
            latency_min_observations=limits.latency_min_observations,
            confidence_z=float(limits.confidence_z),
            when_all_excluded=limits.when_all_excluded,
        ),
    )


def evaluations(declared: DynamicScore) -> Evaluations:
    """The first entry with a figure counts for a model."""
    known: dict[tuple[str, str], tuple[float, float | None]] = {}
    for entry in declared.evaluation_metadata:
        quality = entry.pass_rate if entry.quality_score is None else entry.quality_score
        if quality is None:
            continue
        until = None
        if entry.validation_date is not None and entry.max_age_days is not None:
            until = float((entry.validation_date - datetime.date(1970, 1, 1)).days + entry.max_age_days)
        known.setdefault((entry.provider, entry.model), (quality, until))
    return known


def _enabled(signals: Signals) -> frozenset[str]:
    return frozenset(each.name for each in fields(signals) if getattr(signals, each.name).enabled)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _check_evaluations(declared: DynamicScore, path: str, problems: list[Problem]) -> None:
    seen: set[tuple[str, str, str | None]] = set()
    for number, entry in enumerate(declared.evaluation_metadata):
        place = f"{path}[{number}]"
        if entry.quality_score is None and entry.pass_rate is None:
            problems.append(Problem(f"{place}.quality_score", "quality_score or pass_rate must be given"))
        if entry.max_age_days is not None and entry.validation_date is None:
            problems.append(Problem(f"{place}.validation_date", "must be given with max_age_days"))
        key = (entry.provider, entry.model, entry.workload)
        if key in seen:
            problems.append(Problem(f"{place}.model", "is given twice for the same workload"))
        seen.add(key)


# Terms.


def _terms(declared: DynamicScore, path: str, problems: list[Problem]) -> Iterator[catalog.ScoreTerm]:
    names: set[str] = set()
    for number, term in enumerate(declared.score_terms):
        place = f"{path}[{number}]"
        if not term.name.strip():
            problems.append(Problem(f"{place}.name", "must not be empty"))
        elif term.name in names:
            problems.append(Problem(f"{place}.name", f"{term.name[:64]!a} is the name of an earlier term"))
        names.add(term.name)
        _check_when(term.when, declared, f"{place}.when", problems)
        for key in ("require_tags", "prefer_tags"):
            for position, tag in enumerate(getattr(term, key)):
                if not tag or tag != tag.strip():
                    problems.append(Problem(f"{place}.{key}[{position}]", "must be a word without spaces around it"))
        compiled = _expression(term, place, problems)
        yield catalog.ScoreTerm(
            name=term.name,
            when=_when(term.when),
            require_tags=frozenset(term.require_tags),
            prefer_tags=frozenset(term.prefer_tags),
            expression=None if compiled is None else compiled.evaluate,
            over_columns=None if compiled is None else compiled.over_columns,
            source="" if compiled is None else compiled.source,
            names=frozenset() if compiled is None else compiled.names,
            weights={} if compiled is None else compiled.weights,
            share=float(term.share),
        )


def _expression(term: ScoreTerm, path: str, problems: list[Problem]) -> CompiledExpression | None:
    if term.expression is not None and term.weights is not None:
        problems.append(Problem(f"{path}.weights", "only one of expression and weights may be given"))
    if term.expression is not None:
        try:
            return compile_expression(term.expression)
        except ExpressionError as error:
            problems.append(Problem(f"{path}.expression", str(error)))
            return None
    if term.weights is not None:
        return _weighted(term.weights, f"{path}.weights", problems)
    if not term.require_tags and not term.prefer_tags:
        message = "one of expression, weights, require_tags and prefer_tags must be given"
        problems.append(Problem(f"{path}.expression", message))
    return None


def _weighted(weights: Mapping[str, float], path: str, problems: list[Problem]) -> CompiledExpression | None:
    by_name: dict[str, float] = {}
    before = len(problems)
    for word, weight in weights.items():
        name = score_name(word)
        if name is None:
            hint = suggestion(word, NAMES)
            problems.append(Problem(below(path, word), f"unknown score {word[:64]!a}{hint}"))
        elif name in NOT_YET:
            problems.append(Problem(below(path, word), f"score '{name}' is not available in this release"))
        elif name in by_name:
            problems.append(Problem(below(path, word), f"'{name}' is given twice"))
        else:
            by_name[name] = weight
    if len(problems) == before and not any(by_name.values()):
        problems.append(Problem(path, "must hold at least one number above 0"))
    return compile_weights(by_name) if len(problems) == before else None


_COMPLEXITIES: Final = ("simple", "standard", "complex")


def _check_when(when: When, declared: DynamicScore, path: str, problems: list[Problem]) -> None:
    low, high = when.complexity_gte, when.complexity_lte
    if low is not None and high is not None and _COMPLEXITIES.index(low) > _COMPLEXITIES.index(high):
        problems.append(Problem(f"{path}.complexity_gte", f"never holds with complexity_lte: {high}"))
    least, most = when.input_tokens_gte, when.input_tokens_lte
    if least is not None and most is not None and least > most:
        problems.append(Problem(f"{path}.input_tokens_gte", f"never holds with input_tokens_lte: {most}"))
    if when.prompt_features_any == ():
        problems.append(Problem(f"{path}.prompt_features_any", "must name at least one feature"))
    signal = declared.signals.prompt_features
    wanted = [
        (f"{path}.prompt_features_any[{number}]", each) for number, each in enumerate(when.prompt_features_any or ())
    ]
    if when.prompt_feature is not None:
        wanted.append((f"{path}.prompt_feature", when.prompt_feature))
    for place, feature in wanted:
        if not signal.enabled:
            problems.append(Problem(place, f"'{feature}' is never seen: signals.prompt_features is not enabled"))
        elif feature not in signal.features:
            problems.append(Problem(place, f"'{feature}' is never seen: signals.prompt_features.features lacks it"))


def _when(declared: When) -> catalog.When:
    features = None if declared.prompt_features_any is None else frozenset(declared.prompt_features_any)
    single = declared.prompt_feature
    if features is None and single is not None:
        features, single = frozenset({single}), None
    return catalog.When(
        complexity_lte=declared.complexity_lte,
        complexity_gte=declared.complexity_gte,
        prompt_features_any=features,
        prompt_feature=single,
        stream=declared.stream,
        tools=declared.tools,
        images=declared.images,
        reasoning=declared.reasoning,
        dialect=declared.dialect,
        input_tokens_lte=declared.input_tokens_lte,
        input_tokens_gte=declared.input_tokens_gte,
        caller_tag=declared.caller_tag,
    )


# Doubts: allowed, and most often a mistake.


def doubts(declared: DynamicScore, group: catalog.Group, path: str) -> Iterator[Problem]:
    """Of a block and its compiled group."""
    tags = frozenset().union(*(target.tags for target in group.targets))
    for number, term in enumerate(declared.score_terms):
        yield from _doubts_of_term(term, number, group, tags, f"{path}.score_terms[{number}]")
    models = {(each.provider.name, name) for each in group.targets for name in (each.model_ref, each.model)}
    for number, entry in enumerate(declared.evaluation_metadata):
        if (entry.provider, entry.model) not in models:
            hint = suggestion(f"{entry.provider}/{entry.model}", tuple(f"{one}/{two}" for one, two in sorted(models)))
            place = f"{path}.evaluation_metadata[{number}].model"
            yield Problem(place, f"no target of the group is '{entry.provider}/{entry.model}'{hint}")
    signal = declared.signals.prompt_features
    if signal.enabled and not (signal.features and signal.max_scan_bytes):
        which = "max_scan_bytes" if signal.features else "features"
        yield Problem(f"{path}.signals.prompt_features.{which}", "leaves nothing to look for")
    supports = {
        "require_tool_support_when_tools_present": [each.tools for each in group.targets],
        "require_forced_tool_choice_support": [each.forced_tool_choice for each in group.targets],
        "require_structured_output_support": [each.structured_outputs for each in group.targets],
    }
    for name, declarations in supports.items():
        if getattr(declared.hard_filters, name) and None in declarations and True not in declarations:
            yield Problem(f"{path}.hard_filters.{name}", "no target declares it in tool_support, so none will pass")


def _doubts_of_term(
    term: ScoreTerm, number: int, group: catalog.Group, tags: frozenset[str], path: str
) -> Iterator[Problem]:
    names = group.score.score_terms[number].names
    place = f"{path}.expression" if term.expression is not None else f"{path}.weights"
    if names and not any(SIGNALS[name] in group.score.enabled_signals for name in names):
        yield Problem(place, "leans only on signals that are disabled, so it is the same for every target")
    elif names == {"complexity_score"}:
        yield Problem(place, "complexity_score alone is the same for every target")
    if (
        group.targets
        and term.require_tags
        and not any(each.tags.issuperset(term.require_tags) for each in group.targets)
    ):
        hints = "".join(suggestion(tag, tuple(sorted(tags))) for tag in term.require_tags if tag not in tags)
        yield Problem(f"{path}.require_tags", f"no target of the group has them all{hints}")
    for position, tag in enumerate(term.prefer_tags):
        if tag not in tags:
            hint = suggestion(tag, tuple(sorted(tags)))
            yield Problem(f"{path}.prefer_tags[{position}]", f"no target of the group has it{hint}")
    if "complexity" not in group.score.enabled_signals:
        for key in ("complexity_lte", "complexity_gte"):
            if getattr(term.when, key) is not None:
                yield Problem(f"{path}.when.{key}", "the signal complexity is disabled")
