"""What a candidate is scored by: the estimates behind each score, and the scores relative to the best."""

from typing import Final

NAMES: Final = (
    "cost_score",
    "latency_score",
    "ttfb_score",
    "throughput_score",
    "reliability_score",
    "complexity_score",
    "eval_quality_score",
    "load_score",
    "stream_integrity_score",
    "budget_score",
)
"""In the order in which an expression takes them."""

SIGNALS: Final = {
    "cost_score": "cost",
    "latency_score": "observed_performance",
    "ttfb_score": "observed_performance",
    "throughput_score": "observed_performance",
    "reliability_score": "observed_performance",
    "complexity_score": "complexity",
    "eval_quality_score": "evaluation_metadata",
    "load_score": "observed_performance",
    "stream_integrity_score": "observed_performance",
    "budget_score": "cost",
}
"""The signal that each score comes from: a disabled signal makes its scores neutral."""

NOT_YET: Final = ("cache_score", "headroom_score")
"""Names of the design that this release does not compute."""
