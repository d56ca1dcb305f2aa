"""Decision buckets: what is counted of a day's decisions, under names that outlive the raw rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

DIMENSIONS: Mapping[str, str] = {
    "strategy": "how the group chose",
    "mode": "how this decision was made: configured, cold_start, score, pinned, probe, panic",
    "tie_break": "what made the first target the first",
    "affinity": "what became of the conversation's pin",
    "signal": "enabled signals, one count for each exchange that had it",
    "matched_term": "score terms whose condition held",
    "flag": "flags of the decision",
    "input_tokens": "estimated input tokens of the request",
    "output_cap": "the request's limit on output tokens",
    "complexity": "the request's complexity",
    "refusal": "error codes of refused requests: admission, limits, no target",
    "refusal_detail": "why a token was refused",
    "error": "error codes of exchanges that failed otherwise",
    "cost_flag": "what is to be known of a cost",
    "exclusion": "`stage/reason` by which a target was out: thresholds, health, filters, the cap on output tokens",
    "dynamic_score": "D of every scored candidate",
    "contrasted_score": "D' of every scored candidate",
    "final_score": "final score of every scored candidate",
    "chosen_final_score": "final score of the first target in the order of trying",
    "near_tie": "candidates within the band of the best",
    "attempt": "outcomes of upstream calls",
    "attempt_error": "error codes of upstream calls",
    "fallback": "outcome of the failed call, by the target that was left",
    "fallback_to": "the same, by the target that was tried next",
}
"""Beside these, `value.NAME` for each score: its value in [0, 1] of every candidate."""

VALUE_PREFIX = "value."
SCORES = (
    "cost_score",
    "latency_score",
    "throughput_score",
    "reliability_score",
    "ttfb_score",
    "complexity_score",
    "eval_quality_score",
    "load_score",
    "stream_integrity_score",
    "budget_score",
)
"""The single scores in the order of a candidate's digits. Rows have these digits: a new one comes at the end."""
DIGITS_OF = ("dynamic_score", "contrasted_score", "final_score", *(f"{VALUE_PREFIX}{name}" for name in SCORES))
"""The dimension that each digit of a candidate is counted in."""
TENTHS = tuple(f"{tenth / 10:.1f}-{(tenth + 1) / 10:.1f}" for tenth in range(10))
"""Of a score: from the first number to below the second. 1 itself belongs to the last."""


class Bucket(NamedTuple):
    group: str
    dimension: str
    bucket: str
    target: str = ""
    provider: str = ""
    model: str = ""


class DecisionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Exchanges that have all of this in common. What is left empty is not asked for."""

    count: int
    group: str
    target: str
    provider: str
    model: str
    outcome: str = ""
    strategy: str = ""
    mode: str = ""
    tie_break: str = ""
    affinity: str = ""
    input_bucket: str = ""
    output_cap_bucket: str = ""
    complexity_bucket: str = ""
    error_code: str = ""
    error_detail: str = ""
    signals: Sequence[str] = ()
    matched_terms: Sequence[str] = ()
    flags: Sequence[str] = ()
    cost_flags: Sequence[str] = ()


def tenth_of(value: float) -> int:
    """0 to 9; what is outside [0, 1] counts at its end."""
    return min(max(int(value * 10), 0), 9)


def digits_of(columns: Sequence[Sequence[float | None] | None], candidates: int) -> list[str]:
    """For each candidate the tenths of its scores, a digit each and a space for none, without the spaces at its end.

    `columns` has the scores of all candidates, in the order of `DIGITS_OF`; `None` for a score that there is not.
    """
    there = [value for column in columns if column is not None for value in column]
    try:
        digits = "".join([_DIGITS[int(value * 10)] for value in there])  # type: ignore[operator]  # none raises
    except (TypeError, IndexError):
        digits = "".join([" " if value is None else str(tenth_of(value)) for value in there])
    for place, column in enumerate(columns):
        if column is None:
            if len(digits) <= (at := place * candidates):
                break
            digits = digits[:at] + " " * candidates + digits[at:]
    return [digits[row::candidates].rstrip() for row in range(candidates)]


_DIGITS = "0123456789" + 90 * "9" + 100 * "0"
"""By a score's whole tenths, from -10 to below 10: negative ones count from the end."""


def count_digits(counts: Counter[Bucket], group: str, target: str, digits: str, *, each: int, first: bool) -> None:
    """Adds the scores of equally long candidates. `digits`: of one after the other, `each` of them for a candidate.
    `first`: they stood first in the order of trying."""
    for place, dimension in enumerate(DIGITS_OF[:each]):
        column = digits[place::each]
        for tenth, name in enumerate(TENTHS):
            if count := column.count(str(tenth)):
                counts[Bucket(group, dimension, name, target)] += count
                if first and dimension == "final_score":
                    counts[Bucket(group, "chosen_final_score", name, target)] += count


def count_decisions(counts: Counter[Bucket], decided: DecisionGroup) -> None:
    """Adds one group of equal exchanges. Names that are empty count nowhere."""
    named = (
        ("strategy", decided.strategy),
        ("mode", decided.mode),
        ("tie_break", decided.tie_break),
        ("affinity", decided.affinity),
        ("input_tokens", decided.input_bucket),
        ("output_cap", decided.output_cap_bucket),
        ("complexity", decided.complexity_bucket),
        ("refusal" if decided.outcome == "refused" else "error", decided.error_code),
        ("refusal_detail", decided.error_detail),
        *(("signal", name) for name in set(decided.signals)),
        *(("matched_term", name) for name in set(decided.matched_terms)),
        *(("flag", name) for name in set(decided.flags)),
        *(("cost_flag", name) for name in set(decided.cost_flags)),
    )
    for dimension, bucket in named:
        if bucket:
            counts[Bucket(decided.group, dimension, bucket, decided.target, decided.provider, decided.model)] += (
                decided.count
            )
