"""What is known of a request before a target is chosen: numbers and flags, never text."""

import msgspec

from routing.core.document import Complexity, Dialect, Feature, Modality

BYTES_PER_TOKEN = 4.0
"""Taken for every target until it has shown its own ratio."""


class ReasoningWish(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The caller asked the model to think. Neither given: adaptive, the model decides."""

    effort: str | None = None
    budget_tokens: int | None = None


class RequestShape(msgspec.Struct, frozen=True, kw_only=True):
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
