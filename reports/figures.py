"""Figures as people read them, with their unit."""

from datetime import datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

from reports.tables import Card, Kind, Value

NOTHING = "–"


def shown(value: Value, kind: Kind, zone: ZoneInfo | None = None) -> str:
    """`None` is a dash, and of money the word: a price that is not known is not free."""
    if value is None:
        return "unknown" if kind in ("usd", "price") else NOTHING
    if isinstance(value, datetime):
        return moment(value, zone)
    if isinstance(value, str):
        return value
    match kind:
        case "count":
            return f"{value:,.0f}"
        case "number":
            return f"{value:,.3f}".rstrip("0").rstrip(".")
        case "usd":
            return dollars(value)
        case "price":
            return f"{dollars(value)} per million"
        case "ms":
            return milliseconds(value)
        case "share":
            return percent(value)
        case "bytes":
            return size(value)
        case _:
            return str(value)


def moment(value: datetime, zone: ZoneInfo | None) -> str:
    """With the zone's abbreviation, as the admin writes it."""
    return f"{value.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def dollars(microdollars: float) -> str:
    """Two digits from a dollar on; below, as many as it takes to tell it from nothing."""
    sign, amount = ("-" if microdollars < 0 else ""), abs(microdollars) / 1e6
    digits = 2 if amount >= 1 or amount == 0 else 4 if amount >= 0.01 else 6
    return f"{sign}${amount:,.{digits}f}"


def exact_dollars(microdollars: int) -> str:
    """For machines: a decimal without grouping."""
    return f"{Decimal(microdollars).scaleb(-6):f}"


def milliseconds(value: float) -> str:
    if value >= 60_000:
        minutes, seconds = divmod(round(value / 1000), 60)
        return f"{minutes:,} min {seconds} s"
    if value >= 1_000:
        return f"{value / 1000:,.2f} s" if value < 10_000 else f"{value / 1000:,.1f} s"
    return f"{value:.0f} ms" if value >= 10 or value == 0 else f"{value:.1f} ms"


def percent(share: float) -> str:
    """One digit, and never 100 or 0 for what is only nearly so."""
    if 0 < abs(share) < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{share:.1%}".replace("%", " %")


def size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit has no bound")


def change(card: Card) -> str:
    """How the figure compares with the period before, in words."""
    now, before = card.value, card.before
    if not isinstance(now, int | float) or not isinstance(before, int | float):
        return ""
    if now == before:
        return f"as before: {shown(before, card.kind)}"
    way = "up" if now > before else "down"
    if card.kind == "share":
        return f"{way} {abs(now - before) * 100:.1f} points from {shown(before, card.kind)}"
    if before == 0:
        return f"{way} from {shown(before, card.kind)}"
    step = abs(now - before) / abs(before)
    by = f"{1 + step:,.1f} times" if step >= 9 and now > before else f"{step:.0%}".replace("%", " %")
    return f"{by} {shown(before, card.kind)}" if "times" in by else f"{way} {by} from {shown(before, card.kind)}"


def verdict(card: Card) -> str:
    """`better`, `worse` or empty."""
    now, before = card.value, card.before
    if not card.good or not isinstance(now, int | float) or not isinstance(before, int | float) or now == before:
        return ""
    return "better" if (now > before) == (card.good == "more") else "worse"
