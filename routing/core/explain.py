"""A Decision as plain data for people and records, and the choice worked out again from that data alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from routing.core.catalog import ScorePolicy, ScoreTerm, TargetId
from routing.core.decide import mean_by_share
from routing.core.decision import Candidate, Decision, Exclusion, NoTarget, TermColumn
from routing.core.expressions import NAMES, compile_expression
from routing.core.plan import PREFERRED_TAG
from routing.core.scores import NEUTRAL, higher_is_better, lower_is_better, relative_cost
from routing.core.strategies import Blend, by_weight, drawn_index, listed

PlainData = dict[str, Any]
"""What JSON can hold: strings, finite numbers, booleans, `None`, lists and mappings of these."""


def explain(decision: Decision) -> PlainData:
    """Everything the decision was made from. Holds no prompt text, address, header or credential.

    `candidates` come in the order of the group's list; `order` names them as they will be tried.
    """
    policy = decision.policy
    terms = decision.terms
    return {
        "strategy": decision.strategy,
        "mode": decision.mode,
        "revision": decision.revision,
        "order": [candidate.target.id for candidate in decision.candidates],
        "tie_break": decision.tie_break,
        "propensity": decision.propensity,
        "drawn": decision.drawn,
        "affinity": decision.affinity,
        "pinned": decision.pinned,
        "flags": list(decision.flags),
        "observations": decision.observations,
        "mean_output_tokens": decision.mean_output_tokens,
        "settings": None if policy is None else _settings(policy),
        "terms": [_term(term) for term in terms],
        "candidates": [
            _candidate(each, terms) for each in sorted(decision.candidates, key=lambda each: each.target.position)
        ],
        "exclusions": [_exclusion(each) for each in decision.exclusions],
        "no_target": None if decision.no_target is None else _no_target(decision.no_target),
    }


def recompute(data: Mapping[str, Any]) -> TargetId | None:
    """The winner, worked out from the explanation without its order: from raw values to scores, terms, blend, choice.

    `None`: nobody was left.
    """
    candidates: Sequence[Mapping[str, Any]] = data["candidates"]
    if not candidates:
        return None
    panic = "panic" in data["flags"]
    excluded = {each["target"] for each in data["exclusions"]}
    survivors = [each for each in candidates if panic or each["target"] not in excluded]
    known = {each["target"] for each in survivors}
    if data["affinity"] == "affinity_hit" and data["pinned"] in known:
        return str(data["pinned"])
    probe = _longest_due(data["exclusions"], {each["target"]: each for each in candidates}, survivors)
    if probe is not None:
        return probe
    return str(survivors[_winner(data, survivors)]["target"])


# The choice again.


def _longest_due(
    exclusions: Sequence[Mapping[str, Any]],
    candidates: Mapping[str, Mapping[str, Any]],
    survivors: Sequence[Mapping[str, Any]],
) -> TargetId | None:
    positive = any(each["configured_weight"] > 0 for each in survivors)
    due = [
        each
        for each in exclusions
        if each["probe_overdue_s"] is not None
        and each["target"] in candidates
        and (candidates[each["target"]]["configured_weight"] > 0 or not positive)
    ]
    longest = max(due, key=lambda each: float(each["probe_overdue_s"]), default=None)
    return None if longest is None else str(longest["target"])


def _winner(data: Mapping[str, Any], survivors: Sequence[Mapping[str, Any]]) -> int:
    """Index into the survivors."""
    weights = [float(each["configured_weight"]) for each in survivors]
    settings = data["settings"]
    if settings is None:
        if data["drawn"] is not None:
            return drawn_index(weights if any(weights) else [1.0] * len(weights), data["drawn"])
        return listed(weights).order[0]
    if data["observations"] < settings["min_observations"]:
        return by_weight(weights).order[0]
    scores = _scores(survivors, settings["normalization"])
    dynamics = mean_by_share([_term_column(place, term, scores, survivors) for place, term in enumerate(data["terms"])])
    blend = Blend(
        weights, adjustment=settings["adjustment"], contrast=settings["contrast"], near_tie=settings["near_tie"]
    )
    return blend.rank(dynamics, [int(each["in_flight"]) for each in survivors]).order[0]


_RELATIVE: Final[dict[str, Callable[..., list[float]]]] = {
    "cost_score": relative_cost,
    "latency_score": lower_is_better,
    "ttfb_score": lower_is_better,
    "throughput_score": higher_is_better,
}
"""How a score follows from the raw values of all candidates. The others each stand on their own."""


def _scores(survivors: Sequence[Mapping[str, Any]], normalization: str) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for name in NAMES:
        if name not in survivors[0]["scores"]:
            continue
        entries = [each["scores"][name] for each in survivors]
        relative = _RELATIVE.get("cost_score" if name == "budget_score" else name)
        raws = [entry["raw"] for entry in entries]
        if relative is None or all(raw is None for raw in raws):
            columns[name] = [entry["value"] for entry in entries]
        elif name == "budget_score":
            columns[name] = [1.0 - value for value in relative(raws, normalization)]
        else:
            columns[name] = relative(raws, normalization)
    return columns


def _term_column(
    place: int, term: Mapping[str, Any], scores: Mapping[str, Sequence[float]], survivors: Sequence[Mapping[str, Any]]
) -> TermColumn:
    name, text = term["name"], term["expression"]
    recorded = [each["terms"][place] for each in survivors]
    preferred = [int(value["preferred_tags"]) for value in recorded]
    flags = [value["flag"] for value in recorded]
    if text is None:
        return TermColumn(name, term["share"], [float(value["value"]) for value in recorded], preferred, flags)
    evaluate = compile_expression(text).evaluate
    values = []
    for row, (flag, tags) in enumerate(zip(flags, preferred, strict=True)):
        vector = tuple(scores[name][row] if name in scores else NEUTRAL for name in NAMES)
        value = evaluate(vector) if flag is None else 0.0
        values.append(value + PREFERRED_TAG * tags if term["prefer_tags"] else value)
    return TermColumn(name, term["share"], values, preferred, flags)


# The parts.


def _settings(policy: ScorePolicy) -> PlainData:
    return {
        "min_observations": policy.min_observations,
        "normalization": policy.normalization,
        "adjustment": policy.adjustment,
        "contrast": policy.contrast,
        "near_tie": policy.near_tie,
        "prior_strength": policy.prior_strength,
        "enabled_signals": sorted(policy.enabled_signals),
        "when_all_excluded": policy.thresholds.when_all_excluded,
    }


def _term(term: ScoreTerm) -> PlainData:
    return {
        "name": term.name,
        "share": term.share,
        "expression": _exact(term),
        "weights": dict(term.weights),
        "require_tags": sorted(term.require_tags),
        "prefer_tags": sorted(term.prefer_tags),
    }


def _exact(term: ScoreTerm) -> str | None:
    """An expression that gives the very same numbers. `None`: the term has none of its own.

    What is shown of a `weights` map is rounded, so it is written out again in full.
    """
    if term.expression is None or not term.source:
        return None
    if term.weights and compile_expression(term.source).weights != term.weights:
        return " + ".join(f"{term.weights[name]!r} * {name}" for name in NAMES if name in term.weights)
    return term.source


def _candidate(candidate: Candidate, terms: Sequence[ScoreTerm]) -> PlainData:
    target = candidate.target
    values = {each.name: each.value for each in candidate.scores}
    scores: PlainData = {
        each.name: {"raw": each.raw, "value": each.value, "flag": each.flag} for each in candidate.scores
    }
    return {
        "target": target.id,
        "provider": target.provider.name,
        "model": target.model_ref,
        "position": target.position,
        "configured_weight": target.weight,
        "weight": candidate.weight,
        "dynamic": candidate.dynamic,
        "contrasted": candidate.contrasted,
        "final": candidate.final,
        "confidence": candidate.confidence,
        "observations": candidate.observations,
        "in_flight": candidate.in_flight,
        "overdue": candidate.overdue,
        "in_band": candidate.in_band,
        "scores": scores,
        "terms": [
            {
                "name": value.name,
                "value": value.value,
                "share": value.share,
                "preferred_tags": value.preferred_tags,
                "flag": value.flag,
                "contributions": {
                    name: weight * values[name] for name, weight in term.weights.items() if name in values
                },
            }
            for value, term in zip(candidate.terms, terms, strict=False)
        ],
    }


def _exclusion(exclusion: Exclusion) -> PlainData:
    return {
        "target": exclusion.target,
        "stage": exclusion.stage,
        "reason": exclusion.reason,
        "detail": exclusion.detail,
        "wait_s": exclusion.wait_s,
        "probe_overdue_s": exclusion.probe_overdue_s,
    }


def _no_target(nobody: NoTarget) -> PlainData:
    return {
        "status": nobody.status,
        "code": nobody.code,
        "message": nobody.message,
        "param": nobody.param,
        "retry_after_s": nobody.retry_after_s,
    }
