"""The page that describes the API, in a real browser."""

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import expect
from pytest_django import DjangoDbBlocker

from tests.reports.api.ground import happened
from tests.support.browser import Chromium, chromium, launched
from tests.support.databases import serving_from
from tests.support.people import PASSWORD, an_admin
from tests.support.processes import GatewayProcess, StartGateway

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

__all__ = ["chromium", "launched"]


@pytest.fixture
def gateway(
    tmp_path: Path, sqlite_template: Path, start_gateway: StartGateway, django_db_blocker: DjangoDbBlocker
) -> GatewayProcess:
    data = tmp_path / "site" / "data"
    data.mkdir(parents=True)
    shutil.copy(sqlite_template, data / "pilotage.sqlite3")
    with django_db_blocker.unblock(), serving_from(f"sqlite:///{data / 'pilotage.sqlite3'}"):
        happened()
        an_admin()
    gateway = start_gateway(None, name="site")
    gateway.until(gateway.ready, what="readiness")
    return gateway


def test_a_person_logs_in_reads_and_tries_a_request_with_nothing_from_elsewhere(
    gateway: GatewayProcess, chromium: Chromium
) -> None:
    window = chromium.window(gateway.url)
    page = window.page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{gateway.url}/api/docs/")
    assert page.url == f"{gateway.url}/admin/login/?next=/api/docs/"
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    with page.expect_navigation():
        page.get_by_role("button", name="Log in").click()
    window.look("the description")
    assert page.url == f"{gateway.url}/api/docs/"
    expect(page.get_by_role("heading", name="Pilotage")).to_be_visible()
    window.shot("api-docs")
    page.locator("#operations-exchanges-exchanges_list .opblock-summary-control").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table tbody .response-col_status").first).to_contain_text("200")
    expect(page.locator(".live-responses-table")).to_contain_text("req_rival_2")
    window.look("the answer")
    window.shot("api-docs-answer")
    elsewhere = [url for url in asked if not url.startswith((gateway.url, "data:"))]
    assert elsewhere == []
