"""A report as CSV, JSON or a page for the printer, in pieces: nothing is put together as a whole before it is sent."""

import csv
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse
from django.template.loader import render_to_string

from reports.figures import exact_dollars
from reports.tables import Column, Report, Row, Table, Value

Format = Literal["csv", "json", "html"]
FORMATS: Final[dict[Format, str]] = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "html": "text/html; charset=utf-8",
}
_STARTS_A_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""As the first character of a cell, for one spreadsheet or another."""


def file_name(slug: str, period: str, format: Format) -> str:
    """`period`: days, as in `2026-11-01_2026-11-30`."""
    return f"pilotage-{slug}-{period}.{format}"


def neutral(text: str) -> str:
    """As a cell that no spreadsheet computes: what would begin a formula gets an apostrophe before it."""
    return f"'{text}" if text.lstrip(" ").startswith(_STARTS_A_FORMULA) or text.startswith(_STARTS_A_FORMULA) else text


def cell(value: Value, column: Column) -> str:
    """Of CSV. Money in dollars, times in milliseconds, shares from 0 to 1; what is unknown is empty."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        return neutral(value)
    if column.kind in ("usd", "price"):
        return exact_dollars(round(value))
    return f"{value:.6g}" if isinstance(value, float) and not value.is_integer() else f"{value:.0f}"


def as_csv(report: Report, *, only: str = "") -> Iterator[str]:
    """One table is a plain file; all tables follow each other, each below a line with its name, with a blank line between.

    `only`: a table's slug.
    """
    tables = [table for table in report.tables() if only in ("", table.slug)]
    for place, table in enumerate(tables):
        if not only:
            yield from csv_lines([["", ""]] if place else [])
            yield from csv_lines([[table.slug, f"{report.title}: {table.title}", report.period]])
        yield from csv_lines(csv_rows(table))


def csv_rows(table: Table) -> Iterator[Sequence[str]]:
    yield [neutral(column.name) for column in table.columns]
    for row in table.rows:
        yield [cell(value, column) for value, column in zip(row.values, table.columns, strict=True)]


def csv_lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    line = _Line()
    writer = csv.writer(line)
    for row in rows:
        writer.writerow(row)
        yield line.text


def as_json(report: Report, *, only: str = "") -> Iterator[str]:
    """Money is in whole micro-dollars: a column of dollars ends in `_microdollars`."""
    head = {"report": report.slug, "title": report.title, "period": report.period, "notes": list(report.notes)}
    yield json.dumps(head, ensure_ascii=False)[:-1] + ', "figures": {'
    cards = [(json.dumps(card.title), json.dumps(_card(card.value, card.before, card.kind))) for card in report.cards]
    yield ", ".join(f"{name}: {figures}" for name, figures in cards) + '}, "tables": {'
    chosen = [table for table in report.tables() if only in ("", table.slug)]
    for place, table in enumerate(chosen):
        yield f"{', ' if place else ''}{json.dumps(table.slug)}: ["
        names = [json_name(column) for column in table.columns]
        for number, row in enumerate(table.rows):
            entry = dict(zip(names, (_plain(value) for value in row.values), strict=True))
            yield f"{', ' if number else ''}{json.dumps(entry, ensure_ascii=False)}"
        yield "]"
    yield "}}\n"


def rows_as_csv(columns: Sequence[Column], rows: Iterable[Row | None], more: str) -> Iterator[str]:
    """A long list as it is read. `None` among the rows: there are more than these, which the last line then says."""
    yield from csv_lines([[neutral(column.name) for column in columns]])
    for row in rows:
        values = [more] if row is None else [cell(*each) for each in zip(row.values, columns, strict=True)]
        yield from csv_lines([values])


def rows_as_json(columns: Sequence[Column], rows: Iterable[Row | None], more: str) -> Iterator[str]:
    """`{"rows": [...], "left_out": null}`; `left_out` says why there are not all."""
    names = [json_name(column) for column in columns]
    left_out = None
    yield '{"rows": ['
    for number, row in enumerate(rows):
        if row is None:
            left_out = more
            continue
        entry = dict(zip(names, (_plain(value) for value in row.values), strict=True))
        yield f"{', ' if number else ''}{json.dumps(entry, ensure_ascii=False)}"
    yield f'], "left_out": {json.dumps(left_out)}}}\n'


def json_name(column: Column) -> str:
    if column.kind not in ("usd", "price"):
        return column.name
    return f"{column.name.removesuffix('_usd').removesuffix('_microdollars')}_microdollars"


def as_html(report: Report, **context: Any) -> Iterator[str]:
    """A page of its own, for the printer or a mail: no script, no file beside it."""
    yield render_to_string("reports/print_head.html", {"report": report, **context})
    for section in report.sections if not report.nothing else ():
        yield render_to_string("reports/print_section.html", {"section": section, **context})
    yield "</main></body></html>\n"


def streamed(
    request: HttpRequest, pieces: Iterator[str], format: Format, *, name: str, inline: bool = False
) -> StreamingHttpResponse:
    """`inline`: shown by the browser, not saved."""
    chunks: Iterator[str] | AsyncIterator[str]
    chunks = _asynchronously(pieces) if isinstance(request, ASGIRequest) else pieces
    answer = StreamingHttpResponse(chunks, content_type=FORMATS[format])
    answer["Content-Disposition"] = f'{"inline" if inline else "attachment"}; filename="{name}"'
    answer["Cache-Control"] = "private, no-store"
    return answer


async def _asynchronously(pieces: Iterator[str]) -> AsyncIterator[str]:
    """Each piece is made in the request's own thread, where its database connection is."""

    def following() -> str | None:
        return next(pieces, None)

    while (piece := await sync_to_async(following)()) is not None:
        yield piece


class _Line:
    """What `csv` writes to."""

    text = ""

    def write(self, text: str) -> int:
        self.text = text
        return len(text)


def _card(value: Value, before: Value, kind: str) -> dict[str, Any]:
    unit = {"usd": "microdollars", "ms": "milliseconds", "share": "share"}.get(kind, "count")
    return {"value": _plain(value), "before": _plain(before), "unit": unit}


def _plain(value: Value) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return round(value, 6) if isinstance(value, float) else value
