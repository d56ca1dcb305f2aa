"""The reports' pages: who sees them, how many statements they take, and that their figures are those of the rows."""

import csv
import dataclasses
import io
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from reports.catalogue import REPORTS
from reports.models import Exchange
from reports.rollups import roll
from reports.tables import Report, Table
from routing.models import Provider, ProviderModel
from tests.reports.rows import an_exchange, save
from tests.support.databases import serving_from

START = datetime(2025, 3, 25, 9, tzinfo=UTC)
LATER = datetime(2025, 4, 10, tzinfo=UTC)
PERIOD = "period=custom&from=2025-03-24&to=2025-04-02"
SUMS = tuple(slug for slug in REPORTS if slug != "odd")
STATEMENTS = {
    "usage": 18,
    "cost": 19,
    "savings": 12,
    "performance": 10,
    "decisions": 13,
    "reliability": 15,
    "odd": 15,
}
"""Of each page: two of them are the session and the user, one the names to filter by."""


@pytest.fixture(autouse=True)
def _database(sqlite_url: str, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """One of its own, as rollups begin transactions themselves."""
    with django_db_blocker.unblock(), serving_from(sqlite_url):
        yield


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("ada", password="x"))
    return client


def fill(count: int, **said: Any) -> list[Exchange]:
    """In turns over hours, groups, callers and targets; every fifth failed over, every seventh of unknown cost."""
    made = [
        an_exchange(
            START + timedelta(hours=9 * (number % 8)),
            group=("chat", "code")[number % 2],
            caller=f"caller-{number % 3}",
            provider=("paris", "oslo")[number % 2],
            target=("paris/m", "oslo/m")[number % 2],
            fell_back=number % 5 == 0,
            attempt_count=2 if number % 5 == 0 else 1,
            cost_microdollars=None if number % 7 == 0 else 1_000 * number,
            **said,
        )
        for number in range(count)
    ]
    save(made, detail=True)
    roll(now=LATER)
    return made


def report_of(client: Client, slug: str, query: str = PERIOD) -> Report:
    report: Report = client.get(f"/admin/reports/{slug}/?{query}").context["report"]
    return report


def table_of(report: Report, slug: str) -> dict[str, dict[str, Any]]:
    """Rows by their first value."""
    table: Table = next(table for table in report.tables() if table.slug == slug)
    names = [column.name for column in table.columns]
    return {str(row.values[0]): dict(zip(names[1:], row.values[1:], strict=True)) for row in table.rows}


def card(report: Report, title: str) -> Any:
    return next(card.value for card in report.cards if card.title == title)


@pytest.mark.parametrize("slug", REPORTS)
def test_a_page_takes_as_many_statements_whatever_the_volume(client: Client, slug: str) -> None:
    counts = []
    for count in (8, 120):
        fill(count)
        client.get(f"/admin/reports/{slug}/?{PERIOD}")  # the content types of rights are read once
        with CaptureQueriesContext(connection) as statements:
            assert client.get(f"/admin/reports/{slug}/?{PERIOD}").status_code == 200
        counts.append(len(statements))
    assert counts == [STATEMENTS[slug]] * 2


@pytest.mark.parametrize("slug", SUMS)
def test_pages_of_sums_read_no_exchange(client: Client, slug: str) -> None:
    fill(8)
    with CaptureQueriesContext(connection) as statements:
        client.get(f"/admin/reports/{slug}/?{PERIOD}")
    assert [
        each["sql"] for each in statements if re.search(r"reports_(exchange|attempt|candidate)\b", each["sql"])
    ] == []


def test_usage_and_cost_are_sums_of_the_rows(client: Client) -> None:
    rows = fill(120)
    usage, cost = report_of(client, "usage"), report_of(client, "cost")
    assert (card(usage, "Requests"), card(usage, "Input tokens"), card(usage, "Output tokens")) == (120, 1200, 600)
    by_caller = table_of(usage, "by-caller")
    for name in ("caller-0", "caller-1", "caller-2"):
        mine = [row for row in rows if row.caller == name]
        assert by_caller[name]["requests"] == len(mine)
        assert by_caller[name]["cost_usd"] == sum(row.cost_microdollars or 0 for row in mine)
    assert card(cost, "Cost") == sum(row.cost_microdollars or 0 for row in rows)
    assert card(cost, "Cost not known") == sum(row.cost_microdollars is None for row in rows)
    assert cost.notes == [
        "18 of 120 requests have no known cost, as a price is missing. They are in no sum of money: what is shown is less "
        "than what was spent. Enter the prices with the provider's models."
    ]
    over_time = table_of(cost, "cost-over-time")
    assert sum(row["paris/m"] + row["oslo/m"] for row in over_time.values()) == card(cost, "Cost")
    narrowed = report_of(client, "usage", f"{PERIOD}&caller=caller-1&group=code")
    expected = [row for row in rows if row.caller == "caller-1" and row.group == "code"]
    assert card(narrowed, "Requests") == len(expected)


def a_priced_model(provider: str, input: float | None, output: float | None) -> None:
    account, _ = Provider.objects.get_or_create(name=provider, base_url="http://127.0.0.1:9/v1", dialect="openai-chat")
    ProviderModel.objects.create(
        provider=account, name="m", model="m", input_price_per_million_usd=input, output_price_per_million_usd=output
    )


def test_savings_compare_the_same_requests_on_both_sides(client: Client) -> None:
    a_priced_model("paris", 1.0, 2.0)
    a_priced_model("dear", 10.0, 30.0)
    a_priced_model("odd", None, 30.0)
    known = {"input_tokens": 1_000, "output_tokens": 100}
    save(
        [
            an_exchange(START, provider="paris", cost_microdollars=1_200, **known),
            an_exchange(START, provider="oslo", cost_microdollars=300, **known),
            an_exchange(START, provider="rome", cost_microdollars=None, **known),
            an_exchange(START, provider="rome", cost_microdollars=999, **known),
        ]
    )
    roll(now=LATER)
    report = report_of(client, "savings")
    assert table_of(report, "by-group")["chat"] == {
        "requests": 2, "tokens": 2_200, "cost_usd": 1_500, "baseline": "paris/m", "baseline_usd": 2_400,
        "saved_usd": 900, "saved_share": 0.375,
    }  # fmt: skip
    assert (card(report, "Saved"), card(report, "Not compared")) == (900, 2)
    assert report.notes == [
        "2 requests are in neither side: of 1 the cost is not known, as a price is missing, and the rest was summed up "
        "together with these."
    ]
    dear = report_of(client, "savings", f"{PERIOD}&baseline=dear/m")
    assert (card(dear, "At the baseline"), card(dear, "Saved")) == (26_000, 24_500)
    assert table_of(dear, "at-every-price")["dear/m"] == {
        "cost_usd": 26_000, "saved_usd": 24_500, "saved_share": 24_500 / 26_000
    }  # fmt: skip
    unknown = report_of(client, "savings", f"{PERIOD}&baseline=odd/m")
    assert (card(unknown, "At the baseline"), card(unknown, "Saved")) == (None, None)
    assert unknown.notes[1:] == ["Without a baseline, and in no sum: chat; no prices are entered for odd/m."]


def test_a_baseline_without_a_price_that_the_tokens_need_is_unknown_and_not_cheap(client: Client) -> None:
    a_priced_model("paris", 1.0, 2.0)
    save([an_exchange(START, cache_write_5m_tokens=500, cost_microdollars=10)])
    roll(now=LATER)
    report = report_of(client, "savings")
    assert table_of(report, "by-group")["chat"]["baseline_usd"] is None
    assert table_of(report, "at-every-price")["paris/m"]["cost_usd"] is None


def test_performance_tells_percentiles_of_what_reached_a_provider(client: Client) -> None:
    rows = [an_exchange(START, duration_ms=100.0 * number, first_content_ms=10.0 * number) for number in range(1, 101)]
    save([*rows, an_exchange(START, outcome="refused", provider="", model="", duration_ms=0.1)])
    roll(now=LATER)
    report = report_of(client, "performance")
    for title, value in (
        ("Duration p50", 5_000),
        ("Duration p95", 9_500),
        ("Duration p99", 9_900),
        ("First content p50", 500),
    ):
        assert card(report, title) == pytest.approx(value, rel=0.045), title
    assert table_of(report, "by-target")["paris/m"]["output_tokens_per_second"] == pytest.approx(500 / 505.0)


def test_decisions_and_reliability_count_what_happened(client: Client) -> None:
    rows = fill(120)
    save(
        [an_exchange(START, mode="cold_start", outcome="upstream_failed"), an_exchange(START, affinity="affinity_hit")]
    )
    roll(now=LATER)
    decisions, reliability = report_of(client, "decisions"), report_of(client, "reliability")
    modes = table_of(decisions, "modes")
    assert (modes["chat"]["score"], modes["chat"]["cold_start"], modes["code"]["score"]) == (61, 1, 60)
    shares = table_of(decisions, "share-over-time")
    assert sum(row["paris/m"] for row in shares.values()) == 62
    assert table_of(decisions, "exclusions")["rome/m"]["reason"] == "context_exceeded"
    assert table_of(decisions, "affinity")["chat"]["affinity_hit"] == 1
    assert table_of(decisions, "final-score")["paris/m"]["0.4-0.5"] == 120
    assert card(reliability, "Failed") == 1
    assert card(reliability, "With a fallback") == sum(row.fell_back for row in rows) / 122
    assert table_of(reliability, "fallback")["oslo/m"]["what"] == "server_error"
    assert table_of(reliability, "attempts")["paris/m"]["ok"] == 120


def test_odd_exchanges_lead_to_their_evidence(client: Client) -> None:
    rows = fill(40)
    page = client.get(f"/admin/reports/odd/?{PERIOD}")
    dearest = max(rows, key=lambda row: row.cost_microdollars or 0)
    tables = {table.slug: [row.values[0] for row in table.rows] for table in page.context["report"].tables()}
    assert tables["most-expensive"][0] == dearest.request_id
    assert sorted(tables["most-attempts"]) == sorted(row.request_id for row in rows if row.attempt_count == 2)
    assert len(tables["cost-unknown"]) == 6
    assert f'href="/admin/reports/exchanges/{dearest.request_id}/"' in page.content.decode()


def test_the_odd_are_looked_for_among_the_newest_and_the_page_says_so(client: Client, settings) -> None:
    settings.PILOTAGE = dataclasses.replace(settings.PILOTAGE, report_search_rows=100)
    save([an_exchange(START + timedelta(seconds=number), cost_microdollars=1_000 - number) for number in range(150)])
    roll(now=LATER)
    report = report_of(client, "odd")
    newest = Exchange.objects.order_by("-started_at")[100]
    most_expensive = next(iter(report.tables()[0].rows))
    assert most_expensive.values[0] == newest.request_id
    assert report.notes[0].startswith("The lists look at the last 100 exchanges, back to 2025-03-25 09:00:49 UTC")


def test_the_list_shows_and_exports_what_is_filtered(client: Client) -> None:
    rows = fill(60)
    page = client.get(f"/admin/reports/exchanges/?{PERIOD}&only=fell_back&caller=caller-0")
    expected = [row.request_id for row in rows if row.fell_back and row.caller == "caller-0"]
    assert sorted(row.values[0] for row in page.context["found"].rows) == sorted(expected)
    answer = client.get(f"/admin/reports/exchanges/?{PERIOD}&only=fell_back&caller=caller-0&format=csv")
    assert answer["Content-Disposition"] == 'attachment; filename="pilotage-exchanges-2025-03-24_2025-04-02.csv"'
    read = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))
    assert sorted(row["exchange"] for row in read) == sorted(expected)
    with CaptureQueriesContext(connection) as statements:
        client.get(f"/admin/reports/exchanges/?{PERIOD}&only=failed")
    assert len(statements) == 7


def test_a_place_that_is_none_is_told_and_nothing_is_lost(client: Client) -> None:
    page = client.get(f"/admin/reports/exchanges/?{PERIOD}&caller=caller-0&after=nowhere")
    assert page.status_code == 200
    text = page.content.decode()
    assert "The place in the list is not one that a page of it leads to" in text
    assert '<option value="caller-0" selected>' in text


def test_evidence_tells_everything_in_the_order_of_questions(client: Client) -> None:
    row = an_exchange(
        START, input_tokens=1_000, output_tokens=100, input_price=2_000_000, output_price=8_000_000,
        cost_microdollars=2_800, candidate_count=2, exclusion_count=1, duration_ms=100.0,
    )  # fmt: skip
    save([row], detail=True)
    found = client.get("/admin/reports/evidence/", {"id": f" {row.request_id} "}, follow=True)
    assert found.redirect_chain == [(f"/admin/reports/exchanges/{row.request_id}/", 302)]
    shown = found.context["shown"]
    assert shown.total == "$0.0028"
    assert [tuple(each.values) for each in shown.arithmetic.rows] == [
        ("input", 1_000, 2_000_000, "$0.002"),
        ("output", 100, 8_000_000, "$0.0008"),
    ]
    assert [each.values[0] for each in shown.candidates.rows] == ["paris/m", "oslo/m"]
    assert [each.values[2] for each in shown.exclusions.rows] == ["context_exceeded"]
    text = found.content.decode()
    assert "Complete: everything that was recorded is here." in text
    assert 'href="/admin/gateway/revision/1/change/"' in text
    document = client.get(f"/admin/reports/exchanges/{row.request_id}/?format=json").json()
    assert (document["completeness"], document["cost"]["microdollars"]) == ("complete", 2_800)


@pytest.mark.parametrize("id", ["req_none", "a/b", "<script>", "%00", "x" * 600])
def test_an_unknown_id_is_told_as_unknown(client: Client, id: str) -> None:
    answer = client.get("/admin/reports/evidence/", {"id": id}, follow=True)
    assert answer.status_code == 404
    assert "No trace of it." in answer.content.decode()
    assert "<script>" not in answer.content.decode().split("<body")[1].split("</form>")[0]


@pytest.mark.parametrize("slug", [*REPORTS, "exchanges"])
def test_nothing_yet_says_what_to_do(client: Client, slug: str) -> None:
    text = client.get(f"/admin/reports/{slug}/").content.decode()
    assert "Choose a longer period or fewer filters" in text


@pytest.mark.parametrize("slug", [*REPORTS, "exchanges"])
def test_a_wrong_filter_is_named_and_nothing_is_lost(client: Client, slug: str) -> None:
    query = "period=custom&from=2025-04-02&to=2025-03-01&caller=shop&zone=Mars"
    page = client.get(f"/admin/reports/{slug}/?{query}").content.decode()
    for said in ("It must not end before it begins.", "“Mars” is no time zone", 'value="2025-04-02"', 'value="Mars"'):
        assert said in page, said
    assert '<option value="shop" selected>' in page
    for format in ("csv", "json", "html"):
        refused = client.get(f"/admin/reports/{slug}/?{query}&format={format}")
        assert refused.status_code == 400
        assert refused.content.decode().splitlines() == [
            "zone: “Mars” is no time zone; one is called like Europe/Oslo or UTC.",
            "to: It must not end before it begins.",
        ]


@pytest.mark.parametrize("slug", REPORTS)
def test_every_report_is_exported_with_the_same_filters(client: Client, slug: str) -> None:
    fill(20)
    for format, kind in (("csv", "text/csv"), ("json", "application/json"), ("html", "text/html")):
        answer = client.get(f"/admin/reports/{slug}/?{PERIOD}&caller=caller-1&format={format}")
        body = answer.getvalue().decode()
        assert (answer.status_code, answer["Content-Type"].split(";")[0]) == (200, kind)
        assert f'filename="pilotage-{slug}-2025-03-24_2025-04-02.{format}"' in answer["Content-Disposition"]
        assert "2025-03-24 to 2025-04-02, UTC" in body
    wrong = client.get(f"/admin/reports/{slug}/?{PERIOD}&format=csv&table=none")
    assert (wrong.status_code, wrong.content.decode()) == (400, "table: “none” is no table of this report.\n")


def test_names_of_callers_cannot_write_into_a_page_or_compute_in_a_sheet(client: Client) -> None:
    save([an_exchange(START, caller='=1<img src=x onerror="a()">')])
    roll(now=LATER)
    page = client.get(f"/admin/reports/usage/?{PERIOD}").content.decode()
    assert "<img src=x" not in page
    sheet = client.get(f"/admin/reports/usage/?{PERIOD}&format=csv&table=by-caller").getvalue()
    assert sheet.decode().splitlines()[1].startswith("\"'=1<img")


def staff(*rights: str) -> Client:
    user = User.objects.create_user("clerk", password="x", is_staff=True)
    user.user_permissions.add(*Permission.objects.filter(codename__in=rights, content_type__app_label="reports"))
    client = Client()
    client.force_login(user)
    return client


PAGES = (*(f"/admin/reports/{slug}/" for slug in SUMS),)
RAW = ("/admin/reports/odd/", "/admin/reports/exchanges/", "/admin/reports/evidence/", "/admin/reports/exchanges/r/")


@pytest.mark.parametrize(
    ("rights", "sums", "raw"),
    [((), 403, 403), (("view_dailyrollup",), 200, 403), (("view_exchange",), 403, 200)],
    ids=["none", "sums", "exchanges"],
)
def test_staff_sees_what_its_rights_say(rights: tuple[str, ...], sums: int, raw: int) -> None:
    client = staff(*rights)
    found = {path: client.get(path).status_code for path in (*PAGES, *RAW)}
    found["/admin/reports/exchanges/r/"] = {404: 200}.get(found["/admin/reports/exchanges/r/"], 403)
    assert found == dict.fromkeys(PAGES, sums) | dict.fromkeys(RAW, raw)
    listed = re.findall(r'href="(/admin/reports/[a-z]+/)"', client.get("/admin/").content.decode())
    assert {path for path in listed if path in (*PAGES, *RAW[:2])} == {
        path for path, status in found.items() if status == 200 and path in (*PAGES, *RAW[:2])
    }


@pytest.mark.parametrize("path", [*PAGES, *RAW])
def test_others_are_asked_who_they_are(path: str) -> None:
    client = Client()
    assert client.get(path)["Location"] == f"/admin/login/?next={path}"
    client.force_login(User.objects.create_user("guest", password="x"))
    assert client.get(path).status_code == 302
    client.force_login(User.objects.create_superuser("ada", password="x"))
    assert client.post(path).status_code == 405


def test_the_first_page_says_how_things_stand(client: Client, settings, tmp_path) -> None:
    settings.PILOTAGE = dataclasses.replace(settings.PILOTAGE, data_dir=tmp_path)
    context = client.get("/admin/").context
    assert [(check.title, check.state) for check in context["checks"]] == [
        ("Configuration", "unknown"), ("Ingest", "unknown"), ("Worker", "unknown"), ("Spool", "good"),
        ("Records", "good"), ("Targets", "good"),
    ]  # fmt: skip
    assert (context["traffic"].any, context["attention"]) == (False, [])
