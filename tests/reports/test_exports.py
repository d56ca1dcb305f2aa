"""Reports as files: cells that no spreadsheet computes, figures for machines, and what is left out is said."""

import asyncio
import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.test import RequestFactory

from reports import exports
from reports.figures import change, shown, verdict
from reports.tables import Card, Chart, Column, Report, Row, Section, Series, Table

AT = datetime(2025, 3, 25, 9, tzinfo=UTC)
TABLE = Table(
    slug="by-caller",
    title="By caller",
    columns=[
        Column(name="caller", title="Caller"),
        Column(name="requests", title="Requests", kind="count"),
        Column(name="cost_usd", title="Cost", kind="usd"),
        Column(name="share", title="Share", kind="share"),
        Column(name="first", title="First", kind="time"),
    ],
    rows=[
        Row(values=["=HYPERLINK(1)", 1_234, 2_800, 0.25, AT]),
        Row(values=['a "quoted", name', 0, None, None, None]),
    ],
)
REPORT = Report(
    slug="usage",
    title="Usage",
    lead="Requests.",
    period="2025-03-24 to 2025-04-02, UTC",
    cards=[Card(title="Cost", value=2_800, kind="usd", before=None)],
    sections=[
        Section(
            title="By caller",
            tables=[TABLE, Table(slug="empty", title="Empty", columns=[Column(name="a", title="A")], rows=[])],
            chart=Chart(
                shape="stacked",
                title="Chart",
                labels=["a", "b"],
                kind="count",
                series=[Series(name="<s>", values=[1, 2])],
            ),
        )
    ],
    notes=["A note & more."],
)


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "  @x", "＝1", "-", "=cmd|' /C calc'!A0"],
)
def test_what_would_begin_a_formula_is_text_in_every_spreadsheet(text: str) -> None:
    assert exports.neutral(text) == "'" + text


@pytest.mark.parametrize("text", ["", "a", "a=b", "team-1", "1-2", " a", "swift-chat/swift-1", "(none)", "'=1"])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert exports.neutral(text) == text


def read(text: Iterator[str]) -> list[list[str]]:
    return list(csv.reader(io.StringIO("".join(text), newline="")))


def test_one_table_is_a_plain_file_with_figures_for_machines() -> None:
    assert read(exports.as_csv(REPORT, only="by-caller")) == [
        ["caller", "requests", "cost_usd", "share", "first"],
        ["'=HYPERLINK(1)", "1234", "0.002800", "0.25", "2025-03-25T09:00:00+00:00"],
        ['a "quoted", name', "0", "", "", ""],
    ]


def test_all_tables_follow_each_other_below_their_names() -> None:
    rows = read(exports.as_csv(REPORT))
    assert [row[0] for row in rows if row] == [
        "by-caller",
        "caller",
        "'=HYPERLINK(1)",
        'a "quoted", name',
        "",
        "empty",
        "a",
    ]
    assert rows[0] == ["by-caller", "Usage: By caller", "2025-03-24 to 2025-04-02, UTC"]


def test_negative_figures_stay_figures() -> None:
    assert exports.cell(-2_800, Column(name="saved_usd", title="Saved", kind="usd")) == "-0.002800"
    assert exports.cell(-0.5, Column(name="share", title="Share", kind="share")) == "-0.5"


def test_json_says_the_same_with_money_in_whole_microdollars() -> None:
    assert json.loads("".join(exports.as_json(REPORT))) == {
        "report": "usage",
        "title": "Usage",
        "period": "2025-03-24 to 2025-04-02, UTC",
        "notes": ["A note & more."],
        "figures": {"Cost": {"value": 2_800, "before": None, "unit": "microdollars"}},
        "tables": {
            "by-caller": [
                {
                    "caller": "=HYPERLINK(1)",
                    "requests": 1_234,
                    "cost_microdollars": 2_800,
                    "share": 0.25,
                    "first": "2025-03-25T09:00:00+00:00",
                },
                {"caller": 'a "quoted", name', "requests": 0, "cost_microdollars": None, "share": None, "first": None},
            ],
            "empty": [],
        },
    }


def test_a_long_list_says_when_there_is_more() -> None:
    rows = [*TABLE.rows, None]
    assert read(exports.rows_as_csv(TABLE.columns, rows, "and more"))[-1] == ["and more"]
    document = json.loads("".join(exports.rows_as_json(TABLE.columns, rows, "and more")))
    assert (len(document["rows"]), document["left_out"]) == (2, "and more")
    assert json.loads("".join(exports.rows_as_json(TABLE.columns, [], "and more"))) == {"rows": [], "left_out": None}


def test_the_printed_page_stands_alone_and_escapes_names() -> None:
    page = "".join(exports.as_html(REPORT, zone=UTC))
    assert "<script" not in page
    assert "http" not in page
    assert "&lt;s&gt;" in page
    assert "A note &amp; more." in page
    assert "1,234" in page
    assert "@media print" in page


def test_under_an_asynchronous_server_pieces_go_out_as_they_are_made() -> None:
    made: list[str] = []

    def pieces() -> Iterator[str]:
        for piece in ("a", "b"):
            made.append(piece)
            yield piece

    async def receive() -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        answer = exports.streamed(ASGIRequest(scope, io.BytesIO()), pieces(), "csv", name="x.csv")
        parts = aiter(answer)
        assert (await anext(parts), made) == (b"a", ["a"])
        assert [part async for part in parts] == [b"b"]

    asyncio.run(receive())


def test_a_file_is_named_by_report_and_period_and_never_cached() -> None:
    name = exports.file_name("usage", f"{date(2025, 3, 24)}_{date(2025, 4, 2)}", "csv")
    answer = exports.streamed(RequestFactory().get("/"), iter(["a"]), "csv", name=name)
    assert answer["Content-Disposition"] == 'attachment; filename="pilotage-usage-2025-03-24_2025-04-02.csv"'
    assert (answer["Content-Type"], answer["Cache-Control"]) == ("text/csv; charset=utf-8", "private, no-store")


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "usd", "unknown"),
        (None, "ms", "–"),
        (0, "usd", "$0.00"),
        (1_234_567_890, "usd", "$1,234.57"),
        (12_345, "usd", "$0.0123"),
        (7, "usd", "$0.000007"),
        (-12_345, "usd", "-$0.0123"),
        (600_000, "price", "$0.6000 per million"),
        (0.25, "ms", "0.2 ms"),
        (999.4, "ms", "999 ms"),
        (1_234.0, "ms", "1.23 s"),
        (125_000.0, "ms", "2 min 5 s"),
        (0.9999, "share", "> 99.9 %"),
        (0.0001, "share", "< 0.1 %"),
        (1.0, "share", "100.0 %"),
        (1_234_567, "count", "1,234,567"),
        (1.5, "number", "1.5"),
        (1536, "bytes", "1.5 KiB"),
        ("x", "count", "x"),
    ],
)
def test_figures_are_written_for_people(value, kind, text) -> None:
    assert shown(value, kind) == text


@pytest.mark.parametrize(
    ("now", "before", "kind", "text"),
    [
        (110, 100, "count", "up 10 % from 100"),
        (50, 100, "count", "down 50 % from 100"),
        (5_000, 100, "count", "50.0 times 100"),
        (5, 0, "count", "up from 0"),
        (5, 5, "count", "as before: 5"),
        (0.5, 0.75, "share", "down 25.0 points from 75.0 %"),
        (5, None, "count", ""),
        (None, 5, "count", ""),
    ],
)
def test_a_change_is_told_in_words(now, before, kind, text) -> None:
    assert change(Card(title="x", value=now, kind=kind, before=before)) == text


def test_what_is_better_depends_on_the_figure() -> None:
    more = Card(title="x", value=2, kind="count", before=1, good="more")
    less = Card(title="x", value=2, kind="count", before=1, good="less")
    assert [verdict(more), verdict(less), verdict(Card(title="x", value=2, kind="count", before=1))] == [
        "better",
        "worse",
        "",
    ]
