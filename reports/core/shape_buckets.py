"""The size classes of a request's shape: words that a report can group by."""

from typing import Final

INPUT_BOUNDS: Final = (1_000, 4_000, 16_000, 32_000, 64_000, 128_000, 256_000)
"""Estimated input tokens; a bucket holds what is at most its bound."""

OUTPUT_CAP_BOUNDS: Final = (1, 256, 1_024, 4_096, 16_384, 65_536)
"""The caller's cap on output tokens. 1 stands alone: it asks for a probe, not for an answer."""


def input_bucket(tokens: int) -> str:
    """`<=1000` to `>256000`."""
    return _bucket(tokens, INPUT_BOUNDS)


def output_cap_bucket(tokens: int | None) -> str:
    """`none`, or `<=1` to `>65536`."""
    return "none" if tokens is None else _bucket(tokens, OUTPUT_CAP_BOUNDS)


def complexity_bucket(score: float) -> str:
    """`simple`, `standard`, `complex`, with the bounds that routing has for them."""
    if score < 0.33:
        return "simple"
    return "standard" if score < 0.66 else "complex"


def _bucket(value: int, bounds: tuple[int, ...]) -> str:
    for bound in bounds:
        if value <= bound:
            return f"<={bound}"
    return f">{bounds[-1]}"
