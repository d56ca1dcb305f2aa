"""The reports and the first page in a real browser: read on any screen, by anybody, and followed down to one exchange."""

import csv
import io
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import expect
from pytest_django import DjangoDbBlocker

from reports.rollups import roll
from tests.e2e.test_admin_browser import OPEN_EVERYTHING, TOO_WIDE, Person, _tab_to
from tests.reports.rows import an_exchange, save
from tests.support.browser import Chromium, Window, chromium, launched
from tests.support.people import an_admin
from tests.support.processes import ROOT, GatewayProcess

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

__all__ = ["chromium", "launched"]

DEAREST = "req_the_dearest_of_all"
REPORTS = ("usage", "cost", "savings", "performance", "decisions", "reliability", "odd")
PAGES = (
    "/admin/",
    *(f"/admin/reports/{slug}/" for slug in REPORTS),
    "/admin/reports/usage/?period=today",
    "/admin/reports/exchanges/",
    "/admin/reports/evidence/",
    f"/admin/reports/exchanges/{DEAREST}/",
    "/admin/reports/usage/?period=custom&from=2026-02-02&to=2026-02-01&zone=Mars",
    "/admin/reports/cost/?group=nobody-asks-for-this",
)


def some_traffic(now: datetime) -> list[Any]:
    """Over ten days, in two hours of each: two groups, three callers, three targets, all outcomes."""
    rng = random.Random(11)
    made = []
    for number in range(600):
        provider = rng.choice(("swift-chat", "swift-chat", "thrifty-chat", "sage-chat"))
        outcome = rng.choice(("success",) * 12 + ("upstream_failed", "client_cancelled", "refused", "aborted"))
        refused = outcome == "refused"
        fell_back = number % 17 == 0
        made.append(
            an_exchange(
                now - timedelta(days=rng.randrange(10), minutes=rng.uniform(1, 90)),
                group=rng.choice(("chat", "code-review")),
                caller=rng.choice(("search-team", "shop", "night-batch")),
                provider="" if refused else provider,
                model="" if refused else f"{provider.partition('-')[0]}-1",
                target="" if refused else f"{provider}/{provider.partition('-')[0]}-1",
                outcome=outcome,
                status=200 if outcome == "success" else 502,
                error_code="" if outcome == "success" else f"code_of_{outcome}",
                mode=rng.choice(("score", "score", "score", "pinned", "cold_start")),
                affinity=rng.choice(("affinity_hit", "affinity_miss", "affinity_expired")),
                cost_microdollars=None if number % 50 == 0 else int(rng.lognormvariate(8, 1)),
                duration_ms=rng.lognormvariate(6, 0.8),
                first_content_ms=rng.lognormvariate(5, 0.5),
                input_tokens=rng.randrange(9_000),
                output_tokens=rng.randrange(900),
                fell_back=fell_back,
                attempt_count=2 if fell_back else 1,
            )
        )
    made.append(
        an_exchange(
            now - timedelta(minutes=30), request_id=DEAREST, caller="shop", cost_microdollars=9_000_000,
            input_tokens=1_000_000, output_tokens=1_000_000, input_price=1_000_000, output_price=8_000_000,
            candidate_count=2, exclusion_count=1, fell_back=True, attempt_count=1, signals=["cost", "latency"],
        )
    )  # fmt: skip
    return made


@pytest.fixture(scope="module")
def busy_site(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, django_db_blocker: DjangoDbBlocker
) -> Iterator[GatewayProcess]:
    """Configured, with ten days of records that are summed up, and a user `admin`."""
    gateway = GatewayProcess(
        tmp_path_factory.mktemp("reports"),
        database=sqlite_template,
        configuration=(ROOT / "config.example.yaml").read_text(),
        unblock=django_db_blocker,
    )
    with gateway.open_database():
        an_admin()
        save(some_traffic(timezone.now()), detail=True)
        roll()
    yield gateway
    gateway.kill()


def window_of(site: GatewayProcess, chromium: Chromium, **how: Any) -> Window:
    window = chromium.window(site.url, **how)
    Person(window).log_in()
    return window


@pytest.mark.timeout(400)  # some sixty pages, each looked through by axe
@pytest.mark.parametrize(
    ("width", "dark"),
    [
        pytest.param(1280, False, id="desktop-light"),
        pytest.param(390, True, id="narrow-dark"),
        pytest.param(1280, True, id="desktop-dark", marks=pytest.mark.full),
        pytest.param(390, False, id="narrow-light", marks=pytest.mark.full),
    ],
)
def test_every_page_fits_its_screen_and_keeps_nobody_out(
    busy_site: GatewayProcess, chromium: Chromium, width: int, dark: bool
) -> None:
    window = window_of(busy_site, chromium, width=width, dark=dark)
    wrong: dict[str, Any] = {}
    for number, path in enumerate(PAGES):
        window.open(path)
        window.shot(f"reports-{width}-{'dark' if dark else 'light'}-{number:02}")
        window.page.evaluate(OPEN_EVERYTHING)
        found = (window.page.evaluate(TOO_WIDE), window.keeps_out())
        if found != (0, []):
            wrong[path] = found
    window.look("the last page")
    assert wrong == {}


def test_from_the_first_page_down_to_one_exchange_and_its_revision(
    busy_site: GatewayProcess, chromium: Chromium
) -> None:
    window = window_of(busy_site, chromium)
    page, person = window.page, Person(window)
    for heading in ("Is it healthy?", "What does it cost?", "Where does traffic go?", "What changed?"):
        expect(page.get_by_role("heading", name=heading)).to_be_visible()
    person.follow("All of cost")
    person.follow("shop", within=".reports-table")
    assert "caller=shop" in page.url
    expect(page.get_by_label("Caller", exact=True)).to_have_value("shop")
    page.get_by_label("Period", exact=True).select_option("30d")
    person.press("Show")
    assert ("period=30d" in page.url, "caller=shop" in page.url) == (True, True)
    person.to("Expensive and odd")
    person.follow(DEAREST, within=".reports-table")
    expect(page.get_by_role("heading", name=DEAREST)).to_be_visible()
    for said in ("Complete", "context_exceeded", "Total $9.00", "oslo/m"):
        person.reads(said)
    person.follow("revision 1")
    person.reads("This revision is served.")
    person.to("Overview")
    page.get_by_label("Exchange, by its").fill(DEAREST)
    person.press("Find")
    expect(page.get_by_role("heading", name=DEAREST)).to_be_visible()


def test_a_table_is_saved_as_a_file_and_a_report_is_printed(busy_site: GatewayProcess, chromium: Chromium) -> None:
    window = window_of(busy_site, chromium, accept_downloads=True)
    window.open("/admin/reports/usage/?period=30d")
    with window.page.expect_download() as saved:
        window.page.get_by_label("CSV of By caller").click()
    with open(saved.value.path(), newline="") as file:
        rows = list(csv.DictReader(io.StringIO(file.read())))
    assert {row["caller"] for row in rows} == {"search-team", "shop", "night-batch"}
    assert sum(int(row["requests"]) for row in rows) == 601
    assert saved.value.suggested_filename.startswith("pilotage-usage-by-caller-20")
    aborted = [each for each in window.troubles if "format=csv" in each and each.endswith("net::ERR_ABORTED")]
    assert window.troubles == aborted  # so a download looks like to the page that it leaves as it was
    window.troubles.clear()
    window.open("/admin/reports/usage/?period=30d&format=html")
    assert window.keeps_out() == []
    window.page.emulate_media(media="print")
    window.shot("reports-print")
    expect(window.page.get_by_role("heading", name="By caller")).to_be_visible()


def test_filters_and_tables_are_reached_without_a_mouse(busy_site: GatewayProcess, chromium: Chromium) -> None:
    window = window_of(busy_site, chromium)
    window.open("/admin/reports/usage/")
    page = window.page
    for name in ("period", "from", "to", "zone", "group", "caller", "project", "provider", "model"):
        _tab_to(page, f"document.activeElement.name === '{name}'")
    page.keyboard.type("swift-1")
    _tab_to(page, "document.activeElement.innerText === 'Show'")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert "model=swift-1" in page.url
    _tab_to(page, "document.activeElement.matches('summary')")
    page.keyboard.press("Enter")
    expect(page.get_by_role("group", name="Requests by model group")).to_be_visible()
    _tab_to(page, "document.activeElement.getAttribute('aria-label') === 'By model group'")
    _tab_to(page, "document.activeElement.getAttribute('aria-label') === 'CSV of By model group'")


def test_a_day_that_is_filled_in_makes_the_period_ones_own(busy_site: GatewayProcess, chromium: Chromium) -> None:
    window = window_of(busy_site, chromium)
    window.open("/admin/reports/usage/")
    page = window.page
    page.get_by_label("From", exact=True).fill("2026-01-01")
    expect(page.get_by_label("Period", exact=True)).to_have_value("custom")
    Person(window).press("Show")
    Person(window).reads("A period from – to needs both days.")
    expect(page.get_by_label("From", exact=True)).to_have_value("2026-01-01")
    page.get_by_label("To", exact=True).fill("2026-01-03")
    Person(window).press("Show")
    Person(window).reads("Nothing to show")
