"""Whether a target can serve a request at all, and why not: the same for every strategy."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Final

from routing.core.catalog import HardFilters, Target, TargetId
from routing.core.decision import Exclusion, NoTarget, Stage
from routing.core.document import Dialect, Modality
from routing.core.shape import RequestShape
from routing.core.stats import TargetStats

LEAST_BYTES_PER_TOKEN: Final = 1.0
"""No target is taken to count more tokens than bytes; the observations keep their ratio above it too."""

MODALITIES: Final[tuple[Modality, ...]] = ("image", "file", "audio")

ELIGIBILITY_REASONS: Final = (
    "tool_only",
    "dialect",
    "tools",
    "forced_tool_choice",
    "modality_image",
    "modality_file",
    "modality_audio",
    "structured_output",
    "reasoning",
    "output_cap_not_honoured",
    "output_cap_exceeded",
    "signed_thinking",
    "request_bytes",
    "context_exceeded",
)
"""In the order of the checks: a target is excluded by the first that it fails."""

REASONS: Final = (
    *ELIGIBILITY_REASONS,
    "required_tags",
    "cooling_down",
    "denied",
    "at_capacity",
    "excluded_consecutive",
    "excluded_error_rate",
    "excluded_timeout_rate",
    "excluded_p95",
    "excluded_ttfb",
    "excluded_throughput",
)
"""Every reason for which this release excludes a target."""

API_NAMES: Final[dict[Dialect, str]] = {
    "openai-chat": "OpenAI Chat Completions",
    "openai-responses": "OpenAI Responses",
    "anthropic": "Anthropic Messages",
}

STAGES: Final[tuple[Stage, ...]] = (
    "eligibility",
    "hard_filter",
    "required_tags",
    "cool_down",
    "capacity",
    "health",
    "thresholds",
)


def needed_tokens(shape: RequestShape, bytes_per_token: float) -> float:
    """Estimated input tokens of the request at a target that has shown this many bytes per token."""
    return shape.text_bytes / max(bytes_per_token, LEAST_BYTES_PER_TOKEN) + shape.media_tokens


def signing_family(target: Target) -> str:
    """Targets of one family accept each other's signed thinking."""
    declared = target.reasoning.signing_family if target.reasoning is not None else None
    return declared or target.provider.name


def ineligible(
    target: Target, shape: RequestShape, *, bytes_per_token: float, family: str | None
) -> tuple[str, str] | None:
    """The reason and its detail for which the target cannot serve the request, or `None`.

    `family`: the signing family that a pinned conversation with signed thinking must stay in; `None`: any.
    """
    tools = shape.tool_count
    if target.tool_only and not tools:
        return "tool_only", "takes only requests with tools"
    dialect = target.provider.dialect
    if dialect != shape.dialect:
        return "dialect", f"speaks {dialect}, the request is {shape.dialect}"
    if tools and target.tools is False:
        return "tools", "declares that it takes no tools"
    if shape.forced_tool_choice and target.forced_tool_choice is False:
        return "forced_tool_choice", "declares that it takes no forced tool choice"
    if shape.media and not shape.media <= target.input_modalities:
        missing = [m for m in MODALITIES if m in shape.media and m not in target.input_modalities]
        if missing:
            return f"modality_{missing[0]}", f"does not declare {' and '.join(missing)} input"
    if shape.structured_output and target.structured_outputs is False:
        return "structured_output", "declares that it takes no response schema"
    if shape.reasoning is not None:
        detail = _reasoning(target, shape)
        if detail is not None:
            return "reasoning", detail
    cap = shape.output_cap
    if cap is not None:
        if target.honors_max_tokens is False:
            return "output_cap_not_honoured", "does not keep to a cap on output tokens"
        if target.max_output_tokens is not None and cap > target.max_output_tokens:
            return "output_cap_exceeded", f"the cap is {cap:,} tokens, it gives at most {target.max_output_tokens:,}"
    if shape.signed_thinking:
        if dialect != "anthropic":
            return "signed_thinking", "the history holds signed thinking, which only the anthropic dialect carries"
        if family is not None and signing_family(target) != family:
            return "signed_thinking", f"the history was signed by {family}, it is of {signing_family(target)}"
    if target.max_request_bytes is not None and shape.request_bytes > target.max_request_bytes:
        return "request_bytes", f"the request has {shape.request_bytes:,} bytes, it takes {target.max_request_bytes:,}"
    if target.context_tokens is not None:
        needed = ceil(needed_tokens(shape, bytes_per_token)) + shape.reserved_output
        if needed > target.context_tokens:
            return "context_exceeded", f"needs {needed:,} tokens, window is {target.context_tokens:,}"
    return None


def _reasoning(target: Target, shape: RequestShape) -> str | None:
    wish, can = shape.reasoning, target.reasoning
    if wish is None:
        return None
    if can is None:
        return "declares no reasoning"
    if wish.effort is not None and can.efforts and wish.effort not in can.efforts:
        return f"takes the efforts {', '.join(sorted(can.efforts))}, not the one asked for"
    budget = wish.budget_tokens
    if budget is not None:
        if can.min_budget_tokens is not None and budget < can.min_budget_tokens:
            return f"a budget of {budget:,} tokens is below its {can.min_budget_tokens:,}"
        if can.max_budget_tokens is not None and budget > can.max_budget_tokens:
            return f"a budget of {budget:,} tokens is above its {can.max_budget_tokens:,}"
    return None


def undeclared(target: Target, shape: RequestShape, filters: HardFilters) -> tuple[str, str] | None:
    """The reason for which the policy's hard filters remove a target that has passed `ineligible`, or `None`.

    Only the filters that tighten the baseline are looked at; the others state what it guarantees anyway.
    """
    if filters.require_tool_support_when_tools_present and shape.tool_count and target.tools is None:
        return "tools", "does not declare tool support, which the policy requires"
    if filters.require_forced_tool_choice_support and shape.forced_tool_choice and target.forced_tool_choice is None:
        return "forced_tool_choice", "does not declare forced tool choice, which the policy requires"
    if filters.require_structured_output_support and shape.structured_output and target.structured_outputs is None:
        return "structured_output", "does not declare response schemas, which the policy requires"
    return None


def nobody_left(
    name: str,
    targets: Sequence[Target],
    shape: RequestShape,
    exclusions: Sequence[Exclusion],
    *,
    stats: Mapping[TargetId, TargetStats],
    lacking: Iterable[str] = (),
) -> NoTarget:
    """What to answer when every target of group `name` is excluded.

    The latest stage that any target reached decides, and within eligibility the latest check: what stopped the target
    that came furthest is what the caller, or time, has to change.
    `lacking`: the required tags that targets lack, in words.
    """
    reasons = {exclusion.reason for exclusion in exclusions}
    stage = max((exclusion.stage for exclusion in exclusions), key=STAGES.index, default="eligibility")
    if stage in ("health", "thresholds"):
        return NoTarget(
            status=503, code="no_healthy_target", message=f"No target of model '{name}' is healthy at the moment."
        )
    if stage == "capacity":
        return NoTarget(
            status=503,
            code="at_capacity",
            message=f"Every target of model '{name}' is busy with as many requests as it may take.",
            retry_after_s=1.0,
        )
    if stage == "cool_down":
        wait = min(exclusion.wait_s or 0.0 for exclusion in exclusions if exclusion.stage == "cool_down")
        return NoTarget(
            status=429,
            code="rate_limited",
            message=f"Every target of model '{name}' that can serve this request is rate limited by its provider.",
            retry_after_s=wait,
        )
    if stage == "eligibility" and "context_exceeded" in reasons:
        stopped = {exclusion.target for exclusion in exclusions if exclusion.reason == "context_exceeded"}
        largest = max((t for t in targets if t.id in stopped), key=lambda t: t.context_tokens or 0)
        window, needed = largest.context_tokens, ceil(needed_tokens(shape, stats[largest.id].bytes_per_token))
        return NoTarget(
            status=400,
            code="context_length_exceeded",
            message=f"The maximum context length of model '{name}' is {window} tokens, and this request needs about "
            f"{needed + shape.reserved_output}: {needed} of input and {shape.reserved_output} set aside for the output.",
            param="messages",
        )
    if stage == "eligibility" and "request_bytes" in reasons:
        stopped = {exclusion.target for exclusion in exclusions if exclusion.reason == "request_bytes"}
        most = max(t.max_request_bytes or 0 for t in targets if t.id in stopped)
        return NoTarget(
            status=413,
            code="request_too_large",
            message=f"The request has {shape.request_bytes} bytes; model '{name}' takes at most {most}.",
        )
    missing = list(_missing(targets, shape, exclusions, lacking))
    return NoTarget(
        status=400,
        code="no_eligible_target",
        message=f"No target of model '{name}' can serve this request. Missing: {'; '.join(missing) or 'a target'}.",
    )


def _missing(
    targets: Sequence[Target], shape: RequestShape, exclusions: Sequence[Exclusion], lacking: Iterable[str]
) -> Iterable[str]:
    """What the targets lack, in the callers' words, each once, in the order of the checks. Names no target."""
    reasons = {exclusion.reason for exclusion in exclusions}
    for reason in REASONS:
        if reason not in reasons:
            continue
        if reason == "dialect":
            yield f"the {API_NAMES[shape.dialect]} API"
        elif reason == "required_tags":
            yield from lacking
        elif reason == "output_cap_exceeded":
            stopped = {exclusion.target for exclusion in exclusions if exclusion.reason == reason}
            largest = max((t.max_output_tokens or 0 for t in targets if t.id in stopped), default=0)
            yield f"an output of {shape.output_cap} tokens (at most {largest})"
        elif reason in WORDS:
            yield WORDS[reason]


WORDS: Final = {
    "tool_only": "tools in the request, without which this model is not served",
    "tools": "tool calls",
    "forced_tool_choice": "forced tool choice",
    "modality_image": "image input",
    "modality_file": "file input",
    "modality_audio": "audio input",
    "structured_output": "structured output",
    "reasoning": "the reasoning asked for",
    "output_cap_not_honoured": "a cap on output tokens that is kept",
    "signed_thinking": "the signing family of the thinking in the history",
    "request_bytes": "room for a body of this size",
    "context_exceeded": "a context window of this size",
}
"""What a request lacks when this reason stops it, for the caller."""
