"""What a report is made of, as plain values: pages, exports and scheduled reports show the same one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

Kind = Literal["text", "exchange", "time", "count", "number", "usd", "price", "ms", "share", "bytes"]
"""How a value is written. `usd`: micro-dollars; `price`: micro-dollars per million tokens; `share`: 0 to 1; `ms`:
milliseconds; `exchange`: an `x-request-id`, which leads to its evidence; `number`: with up to three digits."""

Value = str | int | float | datetime | None
"""`None`: unknown, or nothing to say; never zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    """In CSV and JSON."""
    title: str
    kind: Kind = "text"
    bar: bool = False
    """A share that is drawn, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    values: Sequence[Value]
    narrow: str = ""
    """Query string of the filters that show this row alone; empty: there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    slug: str
    title: str
    columns: Sequence[Column]
    rows: Iterable[Row]
    note: str = ""
    empty: str = "Nothing in this period."
    under_chart: bool = False
    """The figures of the section's chart: folded away on the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    name: str
    values: Sequence[float | None]
    """One for each label of the chart. `None`: nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`stacked`: each label's values above one another. `shares`: the same, as parts of the whole. `lines`: side by side."""

    shape: Literal["stacked", "shares", "lines"]
    title: str
    labels: Sequence[str]
    series: Sequence[Series]
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    tables: Sequence[Table]
    chart: Chart | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One figure, beside what it was in the period before."""

    title: str
    value: Value
    kind: Kind
    before: Value = None
    note: str = ""
    good: Literal["more", "less", ""] = ""
    """What is better, if anything is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    slug: str
    title: str
    lead: str
    period: str
    """In words, with its zone."""
    cards: Sequence[Card]
    sections: Sequence[Section]
    notes: Sequence[str] = field(default_factory=tuple)
    """What a reader has to know of the figures as a whole."""
    nothing: str = ""
    """Why there is nothing to show, and what to do; the sections are then left out on the page."""

    def tables(self) -> Sequence[Table]:
        return [table for section in self.sections for table in section.tables]


TOP = 7
"""Series that a chart tells apart; the others are one."""
OTHERS = "all others"


def largest(totals: dict[str, float], most: int = TOP) -> list[str]:
    """Names by size; a tie goes by the alphabet."""
    return sorted(totals, key=lambda name: (-totals[name], name))[:most]
