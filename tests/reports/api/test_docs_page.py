"""The page that describes the API, in a real browser."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect
from pytest_django import DjangoDbBlocker

from tests.reports.api.ground import happened
from tests.support.browser import Chromium, chromium, launched
from tests.support.databases import serving_from
from tests.support.processes import ROOT, GatewayProcess, StartGateway

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

__all__ = ["chromium", "launched"]

PASSWORD = "a-password-for-this-test"


@pytest.fixture
def gateway(
    tmp_path: Path, sqlite_template: Path, start_gateway: StartGateway, django_db_blocker: DjangoDbBlocker
) -> GatewayProcess:
    data = tmp_path / "site" / "data"
    data.mkdir(parents=True)
    shutil.copy(sqlite_template, data / "pilotage.sqlite3")
    with django_db_blocker.unblock(), serving_from(f"sqlite:///{data / 'pilotage.sqlite3'}"):
        happened()
    subprocess.run(
        [sys.executable, "manage.py", "createsuperuser", "--noinput", "--username=admin", "--email=a@example.com"],
        cwd=ROOT,
        env={"PATH": "", "PILOTAGE_DATA_DIR": str(data), "DJANGO_SUPERUSER_PASSWORD": PASSWORD},
        check=True,
        capture_output=True,
    )
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
