"""Which buckets an exchange counts in."""

from collections import Counter
from typing import Any

import pytest

from reports.core.buckets import (
    DIGITS_OF,
    SCORES,
    TENTHS,
    Bucket,
    DecisionGroup,
    count_decisions,
    count_digits,
    digits_of,
    tenth_of,
)
from routing.core.scores import SIGNALS

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
    assert digits_of([[value]], 1) == [tenth[2]]


def test_every_score_that_routing_has_is_counted():
    assert set(SCORES) == set(SIGNALS)


def test_a_candidate_has_a_digit_for_each_score_up_to_its_last():
    columns = [[0.93, 0.4], None, [1.0, None], [0.0, None], None]
    assert digits_of(columns, 2) == ["9 90", "4"]
    assert digits_of([None, None], 2) == ["", ""]


def test_digits_of_many_candidates_count_in_the_dimension_of_their_place():
    counts: Counter[Bucket] = Counter()
    count_digits(counts, "chat", "paris/m", "9 90" + "94 0", each=4, first=False)
    count_digits(counts, "chat", "paris/m", "775", each=3, first=True)
    assert DIGITS_OF[:4] == ("dynamic_score", "contrasted_score", "final_score", "value.cost_score")
    assert {(b.dimension, b.bucket): count for b, count in counts.items()} == {
        ("dynamic_score", "0.9-1.0"): 2, ("dynamic_score", "0.7-0.8"): 1, ("contrasted_score", "0.4-0.5"): 1,
        ("contrasted_score", "0.7-0.8"): 1, ("final_score", "0.9-1.0"): 1, ("final_score", "0.5-0.6"): 1,
        ("chosen_final_score", "0.5-0.6"): 1, ("value.cost_score", "0.0-0.1"): 2,
    }  # fmt: skip
