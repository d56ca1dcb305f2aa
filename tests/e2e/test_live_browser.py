"""The live page in real browsers, beside real requests: it tells what the records tell, to whoever may see it, and lets go."""

import asyncio
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from django.contrib.auth.models import Permission, User
from playwright.sync_api import expect
from pytest_django import DjangoDbBlocker
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from reports.core.record import EndRecord
from tests.e2e.fleet import AT_ONCE
from tests.e2e.test_admin_browser import Person
from tests.support.browser import Chromium, Window, chromium, launched
from tests.support.load import clients
from tests.support.people import PASSWORD, a_user, an_admin
from tests.support.processes import NO_TLS, GatewayProcess, SimulatorProcess, descendants

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

__all__ = ["chromium", "launched"]

LIVE = "/admin/reports/live/"
SOCKET = "/admin/reports/live/socket"
TARGETS = {"g": ["sim/fast", "sim/slow"], "broken": ["nowhere/m", "sim/spare"]}


def configuration(base_url: str) -> str:
    def target(model: str, **more: Any) -> dict[str, Any]:
        return {"provider": "sim", "model": model, **more}

    policy = {"dynamic_score": {"score_terms": [{"name": "all", "expression": "reliability_score"}]}}
    dead = {"provider": "nowhere", "model": "m"}
    return json.dumps(
        {
            "version": 1,
            "providers": {
                "sim": {"base_url": base_url, "dialect": "openai-chat"},
                "nowhere": {"base_url": "http://127.0.0.1:9/v1", "dialect": "openai-chat"},
            },
            "models": {
                "g": {
                    "strategy": "dynamic_score",
                    "targets": [target("fast", weight=60), target("slow", weight=40)],
                    "routing_policy": policy,
                },
                "broken": {"strategy": "failover", "targets": [dead, target("spare")]},
            },
            "callers": {"tester": {"allow": ["*"]}},
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    gateway: GatewayProcess
    token: str

    def ask(self, *, per_second: float, seconds: float, model: str = "g") -> None:
        """Waits for all answers; each is 200."""
        address = urlsplit(self.gateway.url)

        async def asking() -> list[int]:
            async with clients((str(address.hostname), int(address.port or 0)), {"tester": self.token}) as crowd:
                asked = []
                started = time.monotonic()
                for number in range(round(per_second * seconds)):
                    await asyncio.sleep(started + number / per_second - time.monotonic())
                    asked.append(asyncio.ensure_future(crowd.ask("tester", model=model)))
                return [outcome.status for outcome in await asyncio.gather(*asked)]

        statuses: list[int] = []
        thread = threading.Thread(target=lambda: statuses.extend(asyncio.run(asking())))
        thread.start()
        thread.join()
        assert set(statuses) == {200}

    def ends(self) -> list[EndRecord]:
        return [record for record in self.gateway.records() if isinstance(record, EndRecord)]

    def sockets(self) -> int:
        """Of all processes of the gateway."""
        pids = [self.gateway.pid, *descendants(self.gateway.pid)]
        files = [path for pid in pids for path in Path(f"/proc/{pid}/fd").iterdir()]
        return sum(_target_of(path).startswith("socket:") for path in files)


def _target_of(path: Path) -> str:
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return ""


@pytest.fixture(scope="module", params=["uvicorn", "daphne"])
def site(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    sqlite_template: Path,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[Site]:
    """Two workers of uvicorn, or Daphne."""
    folder = tmp_path_factory.mktemp(f"live-{request.param}")
    simulator = SimulatorProcess(folder / "simulator", **AT_ONCE)
    gateway = GatewayProcess(
        folder / "gateway",
        database=sqlite_template,
        configuration=configuration(simulator.base_url),
        server=request.param,
        workers=2 if request.param == "uvicorn" else 1,
        caller="tester",
        unblock=django_db_blocker,
    )
    with gateway.open_database():
        an_admin()
    yield Site(gateway=gateway, token=gateway.known)
    gateway.kill()
    simulator.kill()


def watching(chromium: Chromium, site: Site, **how: Any) -> Window:
    """Logged in, with the live page before it, live."""
    window = chromium.window(site.gateway.url, **how)
    Person(window).log_in()
    window.open(LIVE)
    expect(window.page.locator("#live-state")).to_have_text("Live")
    return window


def figure(window: Window, name: str) -> int:
    return int(window.page.locator(f"[data-figure={name}]").inner_text().replace(",", ""))


def shown(window: Window, group: str) -> tuple[dict[str, int], dict[str, int]]:
    """Counts by outcome and by target."""
    section = window.page.locator(f"section[data-group={group}]")
    outcomes = {
        str(item.get_attribute("data-outcome")): int(item.get_attribute("data-count") or 0)
        for item in section.locator("li").all()
    }
    rows = section.locator("tbody tr").all()
    targets = {
        row.locator("th").inner_text(): int(row.locator("td").nth(2).inner_text().replace(",", "")) for row in rows
    }
    return outcomes, targets


def test_two_watchers_see_what_the_records_say_while_requests_run(chromium: Chromium, site: Site) -> None:
    workers = 2 if "uvicorn" in str(site.gateway.folder) else 1
    windows = [watching(chromium, site), watching(chromium, site, width=390, height=844, dark=True)]
    for window in windows:
        expect(window.page.locator("[data-figure=processes]")).to_have_text(str(workers))
    before = len(site.ends())
    began = [figure(window, "count") for window in windows]
    site.ask(per_second=50, seconds=4)
    site.ask(per_second=5, seconds=2, model="broken")
    for window in windows:
        window.page.wait_for_function("Number(document.querySelector('[data-figure=per_second]').textContent) > 5")
        window.shot(f"live-{window.page.viewport_size['width']}")  # type: ignore[index]  # it has one
    ends = site.ends()[before:]
    assert len(ends) == 210
    for window, at_first in zip(windows, began, strict=True):
        expect(window.page.locator("[data-figure=count]")).to_have_text(str(at_first + len(ends)))
        expect(window.page.locator("[data-figure=in_flight]")).to_have_text("0")
        for group in ("g", "broken"):
            of_group = [end for end in ends if end.group == group]
            assert shown(window, group) == (
                dict(Counter(end.outcome for end in of_group)),
                {name: sum(end.target == name for end in of_group) for name in TARGETS[group]},
            )
        section = window.page.locator("section[data-group=g] tbody tr")
        shares = [float(row.locator("td").nth(0).inner_text().rstrip(" %")) for row in section.all()]
        assert abs(sum(shares) - 100) < 0.2
        assert re.fullmatch(r"[01]\.\d{3}", section.first.locator("td").nth(3).inner_text())
        out = window.page.locator("section[data-group=broken] tr", has_text="nowhere/m").locator("td").last
        assert "failures" in out.inner_text()
        window.look("the live page")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_is_for_everybody_on_every_screen(chromium: Chromium, site: Site, width: int, dark: bool) -> None:
    site.ask(per_second=20, seconds=0.5)
    window = watching(chromium, site, width=width, dark=dark)
    site.ask(per_second=20, seconds=0.5)
    expect(window.page.locator("section[data-group=g]")).to_be_visible()
    assert window.keeps_out() == []
    assert window.page.evaluate("document.documentElement.scrollWidth") <= width
    pause = window.page.get_by_role("button", name="Pause")
    pause.focus()
    window.page.keyboard.press("Tab")
    first = window.page.locator("section[data-group]").first.get_attribute("data-group")  # others may be seen still
    assert window.page.evaluate("document.activeElement.getAttribute('aria-label')") == f"Targets of {first}"
    window.page.keyboard.press("Shift+Tab")
    window.page.keyboard.press("Enter")
    expect(window.page.locator("#live-state")).to_have_text("Paused")
    window.page.keyboard.press("Enter")
    expect(window.page.locator("#live-state")).to_have_text("Live")
    window.look("the live page")


def test_a_hundred_reconnects_leave_no_socket_behind(chromium: Chromium, site: Site) -> None:
    window = watching(chromium, site)
    before = site.sockets()
    closed = window.page.evaluate(
        """async (path) => {
            const once = () => new Promise((done, failed) => {
                const socket = new WebSocket(location.origin.replace("http", "ws") + path);
                socket.onmessage = () => { socket.send("shown"); socket.close(1000); };
                socket.onclose = (event) => done(event.code);
            });
            const codes = [];
            for (let turn = 0; turn < 100; turn += 1) codes.push(await once());
            return codes;
        }""",
        SOCKET,
    )
    assert Counter(closed) == {1000: 100}
    site.gateway.until(lambda: site.sockets() <= before, what="closed sockets")
    window.look("the live page")


def _status(url: str, **headers: str) -> int:
    """Of the handshake; 101 when the socket is opened."""
    try:
        with connect(url, additional_headers=headers, open_timeout=20):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


def _cookie(site: Site, name: str, *, staff: bool, right: bool) -> str:
    """Of a user who has logged in."""
    with site.gateway.open_database():
        user = a_user(name, is_staff=True)
        if right:
            user.user_permissions.add(Permission.objects.get(codename="view_dailyrollup"))
    with httpx.Client(base_url=site.gateway.url, verify=NO_TLS) as client:
        client.get("/admin/login/")
        form = {"username": name, "password": PASSWORD, "csrfmiddlewaretoken": client.cookies["pilotage_csrf"]}
        assert client.post("/admin/login/", data=form).status_code == 302
        cookie = client.cookies["pilotage_session"]
    with site.gateway.open_database():
        User.objects.filter(pk=user.pk).update(is_staff=staff)
    return cookie


def test_the_socket_is_for_staff_with_the_right_from_our_own_pages(site: Site) -> None:
    url = site.gateway.url.replace("http", "ws")
    answers = {}
    for name, staff, right in (("seer", True, True), ("clerk", True, False), ("visitor", False, True)):
        cookie = _cookie(site, name, staff=staff, right=right)
        answers[name] = _status(url + SOCKET, Origin=site.gateway.url, Cookie=f"pilotage_session={cookie}")
        if name == "seer":
            for origin in ("http://evil.example", "null"):
                answers[origin] = _status(url + SOCKET, Origin=origin, Cookie=f"pilotage_session={cookie}")
            answers["elsewhere"] = _status(
                url + "/admin/reports/live/other", Origin=site.gateway.url, Cookie=f"pilotage_session={cookie}"
            )
    answers["nobody"] = _status(url + SOCKET, Origin=site.gateway.url)
    assert answers.pop("seer") == 101
    assert answers.pop("elsewhere") != 101
    assert set(answers.values()) == {403}


def test_nobody_watching_leaves_nothing_to_write(site: Site) -> None:
    folder = site.gateway.data / "live"
    site.gateway.until(lambda: list(folder.glob("*.json")) == [], what="silence")
