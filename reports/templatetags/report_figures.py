"""How the reports' templates write figures and draw charts."""

from zoneinfo import ZoneInfo

from django import template

from reports import charts, figures
from reports.tables import Card, Chart, Kind, Value

register = template.Library()


@register.simple_tag
def figure(value: Value, kind: Kind, zone: ZoneInfo | None = None) -> str:
    return figures.shown(value, kind, zone)


@register.filter
def change(card: Card) -> str:
    return figures.change(card)


@register.filter
def verdict(card: Card) -> str:
    return figures.verdict(card)


@register.filter
def is_number(kind: Kind) -> bool:
    return kind not in ("text", "exchange", "time")


@register.filter
def bar_width(share: Value) -> float:
    """Percent of the bar's place."""
    return round(100 * min(max(share, 0.0), 1.0), 1) if isinstance(share, int | float) else 0.0


@register.filter
def drawing(chart: Chart) -> charts.Drawing | None:
    return charts.draw(chart)


@register.filter
def pairs(row: object, columns: object) -> object:
    """Values of a row with their columns."""
    return zip(getattr(row, "values", ()), columns, strict=True)  # type: ignore[call-overload]
