"""Charts as geometry: a template draws them as SVG that stretches, with its words beside it in HTML, where they stay readable.

Every chart stands next to a table of the same figures, so the drawing itself is one image with a name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Final

from reports.figures import shown
from reports.tables import Chart, Series

WIDTH: Final = 1000.0
HEIGHT: Final = 300.0
GAP: Final = 0.15
"""Of a bar's place is left free."""
MOST_LABELS: Final = 8
"""Below the chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of a bar. Numbers are in the drawing's own units, from its top left corner."""

    series: int
    x: float
    y: float
    width: float
    height: float
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    series: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    text: str
    place: float
    """In percent: of the height from the bottom, or of the width from the left."""
    edge: str = ""
    """`first` or `last` of the marks below, which must not stand out over the side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    title: str
    description: str
    blocks: Sequence[Block]
    lines: Sequence[Line]
    rungs: Sequence[Mark]
    """Values at the side."""
    marks: Sequence[Mark]
    """Labels below."""
    legend: Sequence[tuple[int, str]]
    width: float = WIDTH
    height: float = HEIGHT


def draw(chart: Chart) -> Drawing | None:
    """`None`: there is nothing to draw."""
    if not chart.labels or not any(value for each in chart.series for value in each.values):
        return None
    series = _shares(chart.series) if chart.shape == "shares" else chart.series
    kind = "share" if chart.shape == "shares" else chart.kind
    if chart.shape == "lines":
        top = max(value for each in series for value in each.values if value is not None)
    else:
        top = max(sum(each.values[place] or 0 for each in series) for place in range(len(chart.labels)))
    step = 0.25 if chart.shape == "shares" else _step(top)
    top = 1.0 if chart.shape == "shares" else step * max(1, -(-top // step))
    blocks = [] if chart.shape == "lines" else _blocks(chart, series, top)
    lines = [line for place, each in enumerate(series) for line in _lines(each, place, top)]
    rungs = []
    rung = 0.0
    while rung <= top * 1.0001:
        rungs.append(Mark(text=shown(rung, kind), place=100 * rung / top))
        rung += step
    return Drawing(
        title=chart.title,
        description=_description(chart),
        blocks=blocks,
        lines=lines if chart.shape == "lines" else (),
        rungs=rungs,
        marks=_marks(chart.labels),
        legend=[(place, each.name) for place, each in enumerate(chart.series)],
    )


def _shares(series: Sequence[Series]) -> list[Series]:
    count = max((len(each.values) for each in series), default=0)
    wholes = [sum(each.values[place] or 0 for each in series) for place in range(count)]
    return [
        Series(
            name=each.name,
            values=[(value or 0) / whole if whole else None for value, whole in zip(each.values, wholes, strict=True)],
        )
        for each in series
    ]


def _step(top: float) -> float:
    """1, 2 or 5 times a power of ten, so that there are three to five rungs or so."""
    rough = top / 4
    power = 10.0 ** floor(log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)


def _blocks(chart: Chart, series: Sequence[Series], top: float) -> list[Block]:
    place_width = WIDTH / len(chart.labels)
    blocks = []
    for place, label in enumerate(chart.labels):
        at = HEIGHT
        for number, (drawn, told) in enumerate(zip(series, chart.series, strict=True)):
            value = drawn.values[place]
            if not value:
                continue
            height = HEIGHT * value / top
            at -= height
            share = f" ({shown(value, 'share')})" if chart.shape == "shares" else ""
            blocks.append(
                Block(
                    series=number,
                    x=round(place_width * (place + GAP / 2), 2),
                    y=round(at, 2),
                    width=round(place_width * (1 - GAP), 2),
                    height=round(height, 2),
                    tip=f"{label}, {told.name}: {shown(told.values[place], chart.kind)}{share}",
                )
            )
    return blocks


def _lines(series: Series, number: int, top: float) -> list[Line]:
    """One path for all of it, broken where nothing is known. A point that stands alone is a short stroke."""
    width = WIDTH / len(series.values)
    steps: list[str] = []
    alone = False
    for place, value in enumerate((*series.values, None)):
        if value is None:
            if alone:
                steps.append(f"h{width * 0.4:.2f}")
            alone = False
            continue
        x, y = width * (place + 0.5), HEIGHT * (1 - value / top)
        begins = place == 0 or series.values[place - 1] is None
        steps.append(
            f"{'M' if begins else 'L'}{x - (width * 0.2 if begins and _alone(series, place) else 0):.2f} {y:.2f}"
        )
        alone = begins
    return [Line(series=number, path="".join(steps))] if steps else []


def _alone(series: Series, place: int) -> bool:
    return place + 1 >= len(series.values) or series.values[place + 1] is None


def _marks(labels: Sequence[str]) -> list[Mark]:
    every = -(-len(labels) // MOST_LABELS)
    shown_places = range(0, len(labels), every)
    return [
        Mark(
            text=labels[place],
            place=100 * (place + 0.5) / len(labels),
            edge="first" if place == 0 else "last" if place == len(labels) - 1 else "",
        )
        for place in shown_places
    ]


def _description(chart: Chart) -> str:
    parts = []
    for each in chart.series:
        known = [value for value in each.values if value is not None]
        if not known:
            continue
        if chart.shape == "lines":
            parts.append(f"{each.name} from {shown(min(known), chart.kind)} to {shown(max(known), chart.kind)}")
        else:
            parts.append(f"{each.name} {shown(sum(known), chart.kind)} in all")
    return f"From {chart.labels[0]} to {chart.labels[-1]}: {'; '.join(parts)}."
