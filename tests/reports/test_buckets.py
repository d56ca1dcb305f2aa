"""Which buckets an exchange counts in."""

from collections import Counter
from typing import Any

import pytest

from reports.core.buckets import TENTHS, Bucket, DecisionGroup, count_decisions, tenth_of

PLAIN: dict[str, Any] = {
    "count": 3, "group": "chat", "target": "paris/m", "provider": "paris", "model": "m", "outcome": "success",
    "strategy": "", "mode": "", "tie_break": "", "affinity": "", "input_bucket": "", "output_cap_bucket": "",
    "complexity_bucket": "", "error_code": "", "error_detail": "", "signals": [], "matched_terms": [], "flags": [],
    "cost_flags": [],
}  # fmt: skip


def counted(**said: Any) -> dict[tuple[str, str], int]:
    counts: Counter[Bucket] = Counter()
    count_decisions(counts, DecisionGroup(**{**PLAIN, **said}))
    assert {(b.group, b.target, b.provider, b.model) for b in counts} <= {("chat", "paris/m", "paris", "m")}
    return {(bucket.dimension, bucket.bucket): count for bucket, count in counts.items()}


def test_every_name_counts_in_its_dimension():
    assert counted(
        strategy="weighted", mode="configured", tie_break="draw", affinity="affinity_hit", input_bucket="<=1000",
        output_cap_bucket="none", complexity_bucket="simple", signals=["a", "b"], matched_terms=["t"], flags=["panic"],
        cost_flags=["no_input_price"],
    ) == {
        ("strategy", "weighted"): 3, ("mode", "configured"): 3, ("tie_break", "draw"): 3, ("affinity", "affinity_hit"): 3,
        ("input_tokens", "<=1000"): 3, ("output_cap", "none"): 3, ("complexity", "simple"): 3, ("signal", "a"): 3,
        ("signal", "b"): 3, ("matched_term", "t"): 3, ("flag", "panic"): 3, ("cost_flag", "no_input_price"): 3,
    }  # fmt: skip


def test_a_name_that_is_empty_counts_nowhere():
    assert counted() == {}


def test_a_name_that_comes_twice_counts_once():
    assert counted(matched_terms=["t", "t"]) == {("matched_term", "t"): 3}


def test_a_refusal_is_told_from_a_failure():
    refused = counted(outcome="refused", error_code="invalid_token", error_detail="expired")
    assert refused == {("refusal", "invalid_token"): 3, ("refusal_detail", "expired"): 3}
    assert counted(outcome="upstream_failed", error_code="upstream_error") == {("error", "upstream_error"): 3}


@pytest.mark.parametrize(
    ("value", "tenth"),
    [(-0.2, "0.0-0.1"), (0.0, "0.0-0.1"), (0.0999, "0.0-0.1"), (0.5, "0.5-0.6"), (0.9999, "0.9-1.0"), (1.0, "0.9-1.0"),
     (1.2, "0.9-1.0")],
)  # fmt: skip
def test_a_score_belongs_to_a_tenth(value, tenth):
    assert TENTHS[tenth_of(value)] == tenth
