"""Tokens as providers report them, read into disjoint classes; a report may come in pieces, the last of each class counts."""

from typing import Final, Literal

from gateway.dialects.neutral import Usage

LIMIT: Final = 1_000_000_000_000
"""No answer has more tokens: a larger number is a fault."""

ODD: Final = -1
"""Stands for a value that cannot be a count."""


def tokens(value: object) -> int | None:
    """A count of tokens, `None` when absent, `ODD` when it is none. A zero that was sent is a zero."""
    if value is None:
        return None
    if type(value) is int and 0 <= value <= LIMIT:
        return value
    return ODD


def read_chat(usage: Usage, reported: object) -> None:
    """Chat's `usage`: cached tokens are part of the prompt, reasoning tokens part of the completion."""
    if type(reported) is not dict or not reported:
        if reported is not None and reported != {}:
            usage.quality = "inconsistent"
        return
    odd = False
    prompt = tokens(reported.get("prompt_tokens"))
    output = tokens(reported.get("completion_tokens"))
    details = reported.get("prompt_tokens_details")
    cached = tokens(details.get("cached_tokens")) if type(details) is dict else None
    written = tokens(details.get("cache_write_tokens")) if type(details) is dict else None
    if prompt is not None:
        inner = (cached or 0) + (written or 0)
        if prompt == ODD or cached == ODD or written == ODD or inner > prompt:
            odd = True
            usage.input_tokens = usage.cache_read_tokens = usage.cache_write_tokens = None
        else:
            usage.input_tokens = prompt - inner
            usage.cache_read_tokens = cached
            usage.cache_write_tokens = written
    if output is not None:
        odd |= output == ODD
        usage.output_tokens = None if output == ODD else output
    details = reported.get("completion_tokens_details")
    reasoning = tokens(details.get("reasoning_tokens")) if type(details) is dict else None
    if reasoning is not None:
        outside = reasoning == ODD or (usage.output_tokens is not None and reasoning > usage.output_tokens)
        odd |= outside
        usage.reasoning_tokens = None if outside else reasoning
    total = tokens(reported.get("total_tokens"))
    if total is not None and prompt is not None and output is not None:
        odd |= total != prompt + output
    usage.quality = _quality(usage, odd)


def read_messages(usage: Usage, reported: object, *, final: bool) -> None:
    """Messages' `usage`, whose input classes are disjoint already.

    `final=False` for `message_start`, where `output_tokens` is a placeholder and is not read.
    """
    if type(reported) is not dict or not reported:
        if reported is not None and reported != {}:
            usage.quality = "inconsistent"
        return
    odd = False
    plain = tokens(reported.get("input_tokens"))
    if plain is not None:
        odd |= plain == ODD
        usage.input_tokens = None if plain == ODD else plain
    read = tokens(reported.get("cache_read_input_tokens"))
    if read is not None:
        odd |= read == ODD
        usage.cache_read_tokens = None if read == ODD else read
    odd |= _read_cache_writes(usage, reported)
    output = tokens(reported.get("output_tokens")) if final else None
    if output is not None:
        odd |= output == ODD
        usage.output_tokens = None if output == ODD else output
    usage.quality = _quality(usage, odd)


def _read_cache_writes(usage: Usage, reported: dict[str, object]) -> bool:
    """Splits what was written by lifetime. True: the numbers contradict each other."""
    total = tokens(reported.get("cache_creation_input_tokens"))
    by_life = reported.get("cache_creation")
    short = tokens(by_life.get("ephemeral_5m_input_tokens")) if type(by_life) is dict else None
    long = tokens(by_life.get("ephemeral_1h_input_tokens")) if type(by_life) is dict else None
    if total is None and short is None and long is None:
        return False
    if long is None:
        long = usage.cache_write_1h_tokens
    if short is None and total is not None and total != ODD:
        short = total - (long or 0)
    if (
        total == ODD
        or long == ODD
        or (short is not None and short < 0)
        or (total is not None and total != (short or 0) + (long or 0))
    ):
        usage.cache_write_tokens = usage.cache_write_1h_tokens = None
        return True
    if short is not None:
        usage.cache_write_tokens = short
    usage.cache_write_1h_tokens = long
    return False


def _quality(usage: Usage, odd: bool) -> Literal["reported", "inconsistent", "missing"]:
    if odd:
        return "inconsistent"
    return "missing" if usage.input_tokens is None or usage.output_tokens is None else "reported"
