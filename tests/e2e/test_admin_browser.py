"""The admin in a real browser: setting a gateway up by clicking through it, and pages that anybody can use.

The gateway and the simulated provider are processes of their own; the browser knows nothing but the address.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Locator, Page, Response, expect
from pytest_django import DjangoDbBlocker

from tests.e2e.fleet import AT_ONCE
from tests.support.browser import Chromium, Window, chromium, launched
from tests.support.people import PASSWORD, an_admin
from tests.support.processes import NO_TLS, ROOT, GatewayProcess, SimulatorProcess

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

__all__ = ["chromium", "launched"]

KEY = "sk-literal-key-of-the-simulator"
TAKEN_UP_SECONDS = 2.0
"""What is saved, issued or revoked counts within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    gateway: GatewayProcess
    simulator: SimulatorProcess

    def ask(self, token: str, group: str = "chat") -> httpx.Response:
        return httpx.post(
            f"{self.gateway.url}/v1/chat/completions",
            headers={"authorization": f"Bearer {token}"},
            json={"model": group, "messages": [{"role": "user", "content": "Hello"}]},
            verify=NO_TLS,
            timeout=10,
        )

    def within_two_seconds(self, token: str, status: int) -> httpx.Response:
        by = time.monotonic() + TAKEN_UP_SECONDS
        while (answer := self.ask(token)).status_code != status and time.monotonic() < by:
            time.sleep(0.02)
        assert answer.status_code == status, answer.text
        return answer


@pytest.fixture(scope="module")
def empty_site(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, django_db_blocker: DjangoDbBlocker
) -> Iterator[Site]:
    """Nothing is configured; there is a user `admin`."""
    folder = tmp_path_factory.mktemp("admin")
    simulator = SimulatorProcess(folder / "simulator", **AT_ONCE | {"api_key": KEY})
    (folder / "gateway" / "data").mkdir(parents=True)
    shutil.copy(sqlite_template, folder / "gateway" / "data" / "pilotage.sqlite3")
    _create_admin(folder / "gateway" / "data")
    gateway = GatewayProcess(
        folder / "gateway", database=sqlite_template, configuration=None, unblock=django_db_blocker
    )
    gateway.until(gateway.ready, what="readiness")
    yield Site(gateway=gateway, simulator=simulator)
    gateway.kill()
    simulator.kill()


def _create_admin(data: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "manage.py",
            "createsuperuser",
            "--noinput",
            "--username",
            "admin",
            "--email",
            "a@example.com",
        ],
        cwd=ROOT,
        env={"PATH": "", "PILOTAGE_DATA_DIR": str(data), "DJANGO_SUPERUSER_PASSWORD": PASSWORD},
        check=True,
        capture_output=True,
    )


@dataclass(slots=True)
class Person:
    """Somebody who clicks."""

    window: Window

    @property
    def page(self) -> Page:
        return self.window.page

    def log_in(self) -> None:
        self.page.goto(self.window.origin)
        self.window.look("the login")
        self.window.shot("login")
        self.page.get_by_label("Username").fill("admin")
        self.page.get_by_label("Password").fill(PASSWORD)
        with self.page.expect_navigation():
            self.page.get_by_role("button", name="Log in").click()
        self.window.look("the overview")
        expect(self.page.get_by_role("heading", name="Overview")).to_be_visible()

    def follow(self, name: str, *, within: str = "body") -> None:
        link = self.page.locator(within).get_by_text(name, exact=True).first  # icons are part of a link's own name
        with self.page.expect_navigation():
            link.click()
        self.window.look(name)

    def to(self, title: str) -> None:
        """By the sidebar."""
        self.follow(title, within="#nav-sidebar-apps")

    def add_a(self, part: str) -> None:
        """A row of a part of the page."""
        self.page.get_by_text(f"Add another {part}", exact=True).click()

    def unfold(self, title: str, *, within: str = "body") -> None:
        self.page.locator(within).locator("summary", has_text=title).first.click()

    def fill(self, **fields: str) -> None:
        for name, value in fields.items():
            self.page.locator(f"[name='{name.replace('__', '-')}']").fill(value)

    def switch(self, label: str) -> None:
        self.page.get_by_label(label, exact=True).click()

    def choose_model(self, row: str, name: str) -> None:
        """In the list that one searches by typing, whose every request is answered before the next thing is done."""

        def term(response: Response) -> str | None:
            asked = urlsplit(response.url)
            return parse_qs(asked.query).get("term", [""])[0] if asked.path == "/admin/autocomplete/" else None

        with self.page.expect_response(lambda response: term(response) == ""):
            field_row(self.page, f"{row}-provider_model").locator(".select2-selection").click()
        with self.page.expect_response(lambda response: term(response) == name):
            self.page.locator(".select2-search__field").last.fill(name)
        self.page.locator(".select2-results__option", has_text=name).click()

    def press(self, button: str = "Save") -> None:
        with self.page.expect_navigation():
            self.page.get_by_role("button", name=button, exact=True).click()
        self.window.look(f"after {button}")

    def reads(self, text: str) -> None:
        expect(self.page.get_by_text(text).first).to_be_visible()


def field_row(page: Page, name: str) -> Locator:
    """The part of the page that holds a field's label, input, help and errors."""
    return page.locator(".field-line", has=page.locator(f"[name='{name}']"))


@pytest.mark.timeout(300)  # some eighty pages
def test_a_newcomer_sets_a_gateway_up_by_clicking(empty_site: Site, chromium: Chromium) -> None:
    site = empty_site
    window = chromium.window(site.gateway.url)
    window.secrets.append(KEY)
    newcomer = Person(window)
    page = window.page
    newcomer.log_in()
    newcomer.reads("Five things, and the first request is answered.")
    window.shot("overview-empty")

    _adds_a_provider(newcomer, site)
    _adds_a_model(newcomer)
    _adds_a_group_with_mistakes(newcomer)
    _adds_a_caller(newcomer)
    token = _issues_a_token(newcomer)

    answer = site.within_two_seconds(token, 200)
    assert answer.json()["choices"][0]["message"]["content"]
    sent = dict(site.simulator.last()["headers"])
    assert sent["authorization"] == f"Bearer {KEY}"

    newcomer.to("Overview")
    assert page.locator("pre").inner_text().splitlines()[0] == (
        f'curl {site.gateway.url}/v1/chat/completions -H "Authorization: Bearer $TOKEN" \\'
    )
    window.shot("overview")

    _breaks_the_group_and_mends_it(newcomer, site, token)
    _goes_back_to_an_earlier_revision(newcomer)
    _revokes_the_token(newcomer, site, token)
    _finds_no_secret_on_any_page(newcomer, token)


def _adds_a_provider(newcomer: Person, site: Site) -> None:
    newcomer.follow("Add a provider")
    newcomer.fill(name="house", base_url=site.simulator.base_url)
    newcomer.page.get_by_label("Dialect").select_option(label="OpenAI Chat Completions")
    newcomer.unfold("Key typed in, for a provider on this machine")
    newcomer.fill(new_api_key=KEY)
    newcomer.window.shot("provider-form")
    newcomer.press()
    newcomer.reads("Published revision 1.")
    newcomer.reads("literal key")
    newcomer.window.shot("providers")


def _adds_a_model(newcomer: Person) -> None:
    newcomer.to("Overview")
    newcomer.follow("Add a model")
    expect(newcomer.page.locator("[name='provider']")).to_have_value(re.compile(r"\d+"))
    newcomer.fill(name="small", model="small-1", input_price_per_million_usd="0.25", output_price_per_million_usd="1")
    newcomer.unfold("What it can do")
    newcomer.fill(tool_support='{"openai_chat": ["tools"]}')
    newcomer.window.shot("model-form")
    newcomer.press()
    newcomer.reads("Published revision 2.")
    newcomer.reads("0.25 / 1")


def _adds_a_group_with_mistakes(newcomer: Person) -> None:
    page = newcomer.page
    newcomer.to("Overview")
    newcomer.follow("Add a model group")
    newcomer.fill(name="chat")
    newcomer.choose_model("targets-0", "house/small")
    newcomer.fill(targets__0__tags="fast, cheap")
    newcomer.add_a("Score term")
    newcomer.fill(
        score_terms__0__name="quick",
        score_terms__0__expression="0.5 * cost_score + 0.5 * latencey_score",
        score_terms__0__when='{"stream": true, "stream": false}',
    )
    newcomer.unfold("Targets must have")
    newcomer.switch("Declared tool support")
    newcomer.press()
    newcomer.window.shot("group-twice")
    twice = field_row(page, "score_terms-0-when").get_by_text('The key "stream" is given twice.')
    expect(twice).to_be_in_viewport()

    newcomer.fill(score_terms__0__when="")
    newcomer.press()
    newcomer.window.shot("group-error")
    message = "unknown score 'latencey_score' at 26; did you mean 'latency_score'?"
    wrong = field_row(page, "score_terms-0-expression")
    expect(wrong.get_by_text(message)).to_be_visible()
    expect(wrong.locator("textarea")).to_be_visible()
    expect(wrong.locator("textarea")).to_have_value("0.5 * cost_score + 0.5 * latencey_score")
    assert page.get_by_text(message).count() == 1

    newcomer.fill(score_terms__0__expression="0.5 * cost_score + 0.5 * latency_score")
    newcomer.press()
    newcomer.reads("Published revision 3.")
    newcomer.reads("house/small 1")
    newcomer.window.shot("groups")


def _adds_a_caller(newcomer: Person) -> None:
    newcomer.to("Overview")
    newcomer.follow("Add a caller")
    newcomer.fill(name="first-app", project="demo")
    newcomer.switch("chat")
    newcomer.window.shot("caller-form")
    newcomer.press()
    newcomer.reads("first-app")


def _issues_a_token(newcomer: Person) -> str:
    page = newcomer.page
    newcomer.to("Overview")
    newcomer.follow("Issue a token")
    newcomer.window.shot("token-form")
    newcomer.press("Issue token")
    newcomer.reads("It is shown this once: copy it now.")
    token = page.get_by_label("Token", exact=True).input_value()
    assert re.fullmatch(r"plt_[0-9A-Za-z]{38}", token)
    newcomer.window.shot("token-shown")
    newcomer.window.secrets.append(token)
    page.reload()
    newcomer.window.look("the token's page, loaded again")
    newcomer.reads(token[:12])
    newcomer.window.shot("token")
    newcomer.to("Tokens")
    assert page.locator("#result_list tbody").count() == 1, "loading the page again issued another token"
    return token


def _breaks_the_group_and_mends_it(newcomer: Person, site: Site, token: str) -> None:
    page = newcomer.page
    newcomer.to("Provider models")
    newcomer.follow("small", within="#result_list")
    newcomer.unfold("What it can do")
    newcomer.fill(tool_support='{"openai_chat": []}')
    newcomer.press()
    newcomer.reads("Not published: 1 problem in the stored configuration. The last revision goes on serving.")
    newcomer.window.shot("pending")
    problem = "models.chat.routing_policy.dynamic_score.hard_filters.require_tool_support_when_tools_present"
    for place in ("Overview", "Model groups"):
        newcomer.to(place)
        expect(page.get_by_role("alert").get_by_text(problem)).to_be_visible()
    assert site.ask(token).status_code == 200

    newcomer.to("Model groups")
    newcomer.follow("chat", within="#result_list")
    newcomer.window.shot("group-pending")
    newcomer.unfold("Targets must have")
    newcomer.switch("Declared tool support")
    newcomer.press()
    newcomer.reads("Published revision 4.")
    for place in ("Overview", "Model groups"):
        newcomer.to(place)
        expect(page.get_by_text("Not published")).to_have_count(0)
    assert site.ask(token).status_code == 200


def _goes_back_to_an_earlier_revision(newcomer: Person) -> None:
    page = newcomer.page
    newcomer.to("Revisions")
    newcomer.window.shot("revisions")
    newcomer.follow("4", within="#result_list")
    newcomer.reads("This revision is served.")
    assert page.locator(".pilotage-changes li").all_inner_texts() == [
        "- models.chat.routing_policy.dynamic_score.hard_filters.require_tool_support_when_tools_present: true",
        '~ providers.house.models.small.tool_support.openai_chat: ["tools"] -> []',
    ]
    newcomer.window.shot("revision-served")
    newcomer.to("Revisions")
    newcomer.follow("3", within="#result_list")
    newcomer.window.shot("revision")
    newcomer.press("Publish again")
    newcomer.reads("Published revision 5.")
    newcomer.reads("Revision 3 again")
    newcomer.to("Provider models")
    newcomer.follow("small", within="#result_list")
    newcomer.unfold("What it can do")
    expect(page.locator("[name='tool_support']")).to_have_value('{"openai_chat": ["tools"]}')


def _revokes_the_token(newcomer: Person, site: Site, token: str) -> None:
    newcomer.to("Tokens")
    newcomer.follow(token[:12], within="#result_list")
    newcomer.switch("Revoke this token")
    newcomer.press()
    newcomer.reads("revoked")
    answer = site.within_two_seconds(token, 401)
    assert answer.json()["error"]["code"] == "invalid_api_key"
    newcomer.window.shot("tokens")


def _finds_no_secret_on_any_page(newcomer: Person, token: str) -> None:
    """Neither the provider's key nor the token, whatever of the admin is looked at."""
    window = newcomer.window
    seen: set[str] = set()
    waiting = ["/admin/"]
    while waiting:
        path = waiting.pop()
        seen.add(path)
        answer = window.page.request.get(window.origin + path)
        text = answer.text()
        assert answer.status == 200, path
        assert KEY not in text, path
        assert token not in text, path
        found = re.findall(r'href="(/admin/[^"?#]*)"', text)
        waiting += [link for link in found if link not in seen and link not in waiting and "logout" not in link]
    assert len(seen) > 30, seen


@pytest.fixture(scope="module")
def full_site(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, django_db_blocker: DjangoDbBlocker
) -> Iterator[GatewayProcess]:
    """Configured with everything that there is, and a user `admin`."""
    folder = tmp_path_factory.mktemp("full")
    gateway = GatewayProcess(
        folder,
        database=sqlite_template,
        configuration=(ROOT / "config.example.yaml").read_text(),
        unblock=django_db_blocker,
    )
    with gateway.open_database():
        an_admin()
    yield gateway
    gateway.kill()


FORMS = (
    "/admin/routing/provider/add/",
    "/admin/routing/modelgroup/add/",
    "/admin/routing/provider/1/change/",
    "/admin/routing/providermodel/1/change/",
    "/admin/routing/modelgroup/1/change/",
    "/admin/accounts/caller/1/change/",
    "/admin/accounts/token/add/",
)
OTHER_PAGES = (
    "/admin/",
    "/admin/routing/provider/",
    "/admin/routing/providermodel/",
    "/admin/routing/modelgroup/",
    "/admin/accounts/caller/",
    "/admin/accounts/token/",
    "/admin/gateway/revision/",
    "/admin/gateway/revision/1/change/",
)

OPEN_EVERYTHING = "document.querySelectorAll('details').forEach(each => { each.open = true; })"
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
UNLABELLED = """
[...document.querySelectorAll('#content-main :is(input, select, textarea)')]
    .filter(each => each.type !== 'hidden' && !each.name.includes('__prefix__') && each.checkVisibility())
    .filter(each => !each.labels?.length && !each.ariaLabel && !each.placeholder && !each.getAttribute('aria-labelledby'))
    .map(each => each.name || each.outerHTML)
"""
HARD_TO_READ = """
(() => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgba = colour => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const behind = each => {
        for (; each; each = each.parentElement) {
            const colour = rgba(getComputedStyle(each).backgroundColor);
            if (colour[3] > 250) return colour;
        }
        return [255, 255, 255];
    };
    return [...document.querySelectorAll('[class*=pilotage-]')].filter(each => each.checkVisibility()).map(each => {
        const [a, b] = [light(rgba(getComputedStyle(each).color)), light(behind(each))].sort((a, b) => b - a);
        return [each.className, Math.round(10 * (a + 0.05) / (b + 0.05)) / 10];
    }).filter(([, contrast]) => contrast < 4.5);
})()
"""


def test_every_page_fits_a_narrow_screen_and_labels_its_fields(full_site: GatewayProcess, chromium: Chromium) -> None:
    window = chromium.window(full_site.url, width=390, height=800)
    Person(window).log_in()
    wrong: dict[str, Any] = {}
    for path in (*OTHER_PAGES, *FORMS):
        window.open(path)
        window.page.evaluate(OPEN_EVERYTHING)
        window.shot(f"narrow{path.replace('/', '-')}")
        found = (window.page.evaluate(TOO_WIDE), window.page.evaluate(UNLABELLED))
        if found != (0, []):
            wrong[path] = found
    assert wrong == {}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_what_the_admin_adds_to_its_theme_can_be_read(
    full_site: GatewayProcess, chromium: Chromium, dark: bool
) -> None:
    window = chromium.window(full_site.url, dark=dark)
    Person(window).log_in()
    wrong: dict[str, Any] = {}
    for path in ("/admin/", "/admin/gateway/revision/1/change/", "/admin/routing/modelgroup/1/change/"):
        window.open(path)
        window.page.evaluate(OPEN_EVERYTHING)
        window.shot(f"{'dark' if dark else 'light'}{path.replace('/', '-')}")
        assert window.page.evaluate("document.documentElement.classList.contains('dark')") is dark
        if found := window.page.evaluate(HARD_TO_READ):
            wrong[path] = found
    assert wrong == {}


def test_a_page_can_be_filled_in_without_a_mouse(full_site: GatewayProcess, chromium: Chromium) -> None:
    window = chromium.window(full_site.url)
    Person(window).log_in()
    window.open("/admin/routing/provider/add/")
    page = window.page
    for name in ("name", "base_url", "dialect"):
        _tab_to(page, f"document.activeElement.name === '{name}'")
    _tab_to(
        page, "document.activeElement.matches('summary') && document.activeElement.innerText.includes('Connection')"
    )
    page.keyboard.press("Enter")
    _tab_to(page, "document.activeElement.name === 'headers'")
    page.keyboard.type('{"x-team": "ml"}')
    expect(page.locator("[name='headers']")).to_have_value('{"x-team": "ml"}')


def _tab_to(page: Page, arrived: str) -> None:
    for _ in range(60):
        if page.evaluate(arrived):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"not reached by the keyboard: {arrived}")


def test_settings_that_mean_nothing_for_a_strategy_are_out_of_sight(
    full_site: GatewayProcess, chromium: Chromium
) -> None:
    window = chromium.window(full_site.url)
    Person(window).log_in()
    window.open("/admin/routing/modelgroup/add/")
    strategy, terms = window.page.get_by_label("Strategy"), window.page.get_by_text("Score terms", exact=True)
    expect(terms).to_be_visible()
    strategy.select_option("failover")
    expect(terms).to_be_hidden()
    expect(window.page.get_by_text("Failing targets", exact=True)).to_be_visible()
    strategy.select_option("dynamic_score")
    expect(terms).to_be_visible()
