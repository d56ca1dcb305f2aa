"""What is known of a request before a target is chosen: numbers and flags, never text."""

import msgspec

from routing.core.document import Complexity, Dialect, Feature, Modality

BYTES_PER_TOKEN = 4.0
"""Taken for every target until it has shown its own ratio."""

RESERVED_FOR_MESSAGES = 1_024
"""Output tokens set aside in the context window for a Messages request without a cap."""


class ReasoningWish(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The caller asked the model to think. Neither given: adaptive, the model decides."""

    effort: str | None = None
    budget_tokens: int | None = None


class RequestShape(msgspec.Struct, frozen=True):
    dialect: Dialect
    stream: bool = False
    text_bytes: int = 0
    """UTF-8 bytes of all text the model will read (system, messages, tool schemas, response schema), each once."""
    media_tokens: int = 0
    """Estimated tokens of images and other media."""
    request_bytes: int = 0
    """Bytes of the body as received."""
    tool_count: int = 0
    forced_tool_choice: bool = False
    image_count: int = 0
    media: frozenset[Modality] = frozenset()
    """Input modalities present besides text."""
    structured_output: bool = False
    reasoning: ReasoningWish | None = None
    output_cap: int | None = None
    """The caller's explicit cap on output tokens, > 0."""
    n: int = 1
    logprobs: bool = False
    signed_thinking: bool = False
    """Signed or redacted thinking blocks stand in the history."""
    hosted_tools: bool = False
    tool_loop: bool = False
    """The newest turn answers a tool call."""
    prompt_features: frozenset[Feature] = frozenset()
    conversation_key: bytes | None = None
    """SHA-256 over caller, group, dialect and the conversation's id or prefix. `None`: affinity cannot apply."""
    input_tokens: int = 0
    """`text_bytes` / 4, rounded up, plus `media_tokens`."""
    reserved_output: int = 0
    """The explicit cap, else 1,024 for Messages, else 0."""
    complexity_score: float = 0.0
    complexity: Complexity = "simple"


def complexity(
    *, input_tokens: int, tool_count: int, image_count: int, output_cap: int | None, prompt_features: int
) -> float:
    """Score in [0, 1] of how much a request asks of a model.

    Tokens above 800, 3,000 or 12,000 give 0.15, 0.30 or 0.50; each tool 0.08 up to 0.24; each image 0.10 up to 0.20;
    a cap above 4,096 tokens 0.15; each prompt feature found 0.05.
    """
    # Whole hundredths: 0.15 + 0.08 + 0.10 in floats is a hair below the bucket that it belongs to.
    if input_tokens > 12_000:
        hundredths = 50
    elif input_tokens > 3_000:
        hundredths = 30
    elif input_tokens > 800:
        hundredths = 15
    else:
        hundredths = 0
    hundredths += min(8 * tool_count, 24) + min(10 * image_count, 20) + 5 * prompt_features
    if output_cap is not None and output_cap > 4_096:
        hundredths += 15
    return min(hundredths, 100) / 100


def complexity_bucket(score: float) -> Complexity:
    if score < 0.33:
        return "simple"
    return "standard" if score < 0.66 else "complex"


def shape_with_complexity(
    *,
    dialect: Dialect,
    stream: bool = False,
    text_bytes: int = 0,
    media_tokens: int = 0,
    request_bytes: int = 0,
    tool_count: int = 0,
    forced_tool_choice: bool = False,
    image_count: int = 0,
    media: frozenset[Modality] = frozenset(),
    structured_output: bool = False,
    reasoning: ReasoningWish | None = None,
    output_cap: int | None = None,
    n: int = 1,
    logprobs: bool = False,
    signed_thinking: bool = False,
    hosted_tools: bool = False,
    tool_loop: bool = False,
    prompt_features: frozenset[Feature] = frozenset(),
    conversation_key: bytes | None = None,
) -> RequestShape:
    """A shape with what follows from its counts: the token estimate, the reserved output and the complexity."""
    input_tokens = -(-text_bytes // 4) + media_tokens
    score = complexity(
        input_tokens=input_tokens,
        tool_count=tool_count,
        image_count=image_count,
        output_cap=output_cap,
        prompt_features=len(prompt_features),
    )
    without_cap = RESERVED_FOR_MESSAGES if dialect == "anthropic" else 0
    return RequestShape(
        dialect,
        stream,
        text_bytes,
        media_tokens,
        request_bytes,
        tool_count,
        forced_tool_choice,
        image_count,
        media,
        structured_output,
        reasoning,
        output_cap,
        n,
        logprobs,
        signed_thinking,
        hosted_tools,
        tool_loop,
        prompt_features,
        conversation_key,
        input_tokens,
        without_cap if output_cap is None else output_cap,
        score,
        complexity_bucket(score),
    )
