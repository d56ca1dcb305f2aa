"""What an exchange costs: tokens by class times the prices of its admission, in whole numbers.

A price is micro-dollars per million tokens, so tokens times price are pico-dollars, exactly. They are added up over the
classes and rounded once, to the micro-dollar, half to even: from there on every sum is a sum of whole numbers, and the
rows of a day always add up to the day.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from reports.core.record import EndRecord, IntentRecord

LIMIT: Final = 1_000_000_000_000
"""No exchange has more tokens, no million tokens cost more micro-dollars: a larger number is a fault."""

Quality = Literal["reported", "estimated", "inconsistent", "none"]
"""`none`: no provider accepted anything, so there is nothing to count. `inconsistent`: numbers that contradict each other
or cannot be; what was unusable is estimated."""

TokenClass = Literal["input", "cache_read", "cache_write_5m", "cache_write_1h", "output"]
CLASSES: Final[tuple[TokenClass, ...]] = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "output")


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """By class, disjoint; `reasoning` is part of `output`. `None`: the provider did not say."""

    input: int | None = None
    cache_read: int | None = None
    cache_write_5m: int | None = None
    cache_write_1h: int | None = None
    output: int | None = None
    reasoning: int | None = None

    @property
    def all_input(self) -> int | None:
        if self.input is None:
            return None
        return self.input + (self.cache_read or 0) + (self.cache_write_5m or 0) + (self.cache_write_1h or 0)


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Micro-dollars per million tokens. `None`: unknown; 0: known to be free."""

    input: int | None = None
    cache_read: int | None = None
    cache_write_5m: int | None = None
    cache_write_1h: int | None = None
    output: int | None = None


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    tokens: Tokens
    quality: Quality
    prices: Prices
    microdollars: int | None
    """`None`: a price that it needs is unknown."""
    flags: tuple[str, ...] = ()
    """`no_input_price` and the like for each class whose price is needed and unknown; `cache_read_at_input_price`."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the arithmetic."""

    token_class: TokenClass
    tokens: int
    price: int | None
    picodollars: int | None


def bill(end: EndRecord) -> Bill:
    """Never raises, whatever the numbers."""
    prices = Prices(
        input=_price(end.input_price),
        cache_read=_price(end.cached_input_price),
        cache_write_5m=_price(end.cache_write_price),
        cache_write_1h=_price(end.cache_write_1h_price),
        output=_price(end.output_price),
    )
    if not _is_billed(end):
        return Bill(tokens=Tokens(), quality="none", prices=prices, microdollars=0)
    tokens, quality = _usage(end)
    microdollars, flags = cost(tokens, prices)
    return Bill(tokens=tokens, quality=quality, prices=prices, microdollars=microdollars, flags=flags)


def bill_aborted(intent: IntentRecord) -> Bill:
    """For an exchange whose process died: its input is taken as read, of its output nothing is known."""
    tokens = Tokens(input=min(max(intent.input_tokens_estimated, 0), LIMIT))
    prices = Prices(input=_price(intent.input_price))
    microdollars, flags = cost(tokens, prices)
    return Bill(tokens=tokens, quality="estimated", prices=prices, microdollars=microdollars, flags=flags)


def cost(tokens: Tokens, prices: Prices) -> tuple[int | None, tuple[str, ...]]:
    """Micro-dollars and flags. A class without tokens does not need its price."""
    flags = []
    total = 0
    for line in arithmetic(tokens, prices):
        if line.picodollars is None:
            flags.append(f"no_{line.token_class}_price")
        else:
            total += line.picodollars
    unknown = bool(flags)
    if tokens.cache_read and prices.cache_read is None and prices.input is not None:
        flags.append("cache_read_at_input_price")
    return None if unknown else half_even(total), tuple(flags)


def arithmetic(tokens: Tokens, prices: Prices) -> Sequence[Line]:
    """A line for each class that has tokens.

    Input read from a cache whose price is unknown counts at the input price, which is at least what it costs. What is
    written to a cache costs more than input, so without its own price the cost is unknown.
    """
    lines = []
    for name in CLASSES:
        count: int | None = getattr(tokens, name)
        if not count:
            continue
        price: int | None = getattr(prices, name)
        if price is None and name == "cache_read":
            price = prices.input
        lines.append(
            Line(token_class=name, tokens=count, price=price, picodollars=None if price is None else count * price)
        )
    return lines


def half_even(picodollars: int) -> int:
    """Micro-dollars; a half goes to the even neighbour."""
    whole, rest = divmod(picodollars, 1_000_000)
    if rest > 500_000 or (rest == 500_000 and whole % 2):
        whole += 1
    return whole


def _is_billed(end: EndRecord) -> bool:
    """Whether a provider has accepted the request, and with it will ask for money.

    It has when it reported or delivered anything (an estimate of what was delivered is among the record's counts), or when
    its answer began well and was not taken back: the client left, or the answer had no content.
    """
    if end.endpoint == "count_tokens" or not end.attempts:
        return False
    counts = (
        end.input_tokens,
        end.cache_read_tokens,
        end.cache_write_tokens,
        end.cache_write_1h_tokens,
        end.output_tokens,
    )
    if any(count is not None for count in counts) or end.usage_quality == "inconsistent":
        return True
    status = end.attempts[-1].status
    accepted = status is not None and 200 <= status < 300
    return accepted and end.outcome in ("success", "upstream_truncated", "client_cancelled")


def _usage(end: EndRecord) -> tuple[Tokens, Quality]:
    """Every class usable: what is missing or cannot be is estimated, and a zero that was reported stays zero."""
    read, read_odd = _count(end.cache_read_tokens)
    short, short_odd = _count(end.cache_write_tokens)
    long, long_odd = _count(end.cache_write_1h_tokens)
    input, input_odd = _count(end.input_tokens)
    output, output_odd = _count(end.output_tokens)
    reasoning, reasoning_odd = _count(end.reasoning_tokens)
    if reasoning is not None and output is not None and reasoning > output:
        reasoning, reasoning_odd = None, True
    odd = read_odd or short_odd or long_odd or input_odd or output_odd or reasoning_odd
    missing = input is None or output is None
    if input is None:
        estimated = min(max(end.input_tokens_estimated, 0), LIMIT)
        input = max(0, estimated - (read or 0) - (short or 0) - (long or 0))
    tokens = Tokens(
        input=input,
        cache_read=read,
        cache_write_5m=short,
        cache_write_1h=long,
        output=0 if output is None else output,  # had there been any, the record would have an estimate
        reasoning=reasoning,
    )
    if odd or end.usage_quality == "inconsistent":
        return tokens, "inconsistent"
    return tokens, "estimated" if missing or end.usage_quality != "reported" else "reported"


def _count(value: int | None) -> tuple[int | None, bool]:
    """The count, and whether it could not be one."""
    if value is None or 0 <= value <= LIMIT:
        return value, False
    return None, True


def _price(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= LIMIT else None
