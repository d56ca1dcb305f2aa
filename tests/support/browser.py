"""A real Chromium, and pages that remember everything that went wrong on them.

Playwright's event loop runs in the test's thread, so Django's models cannot be used there while a browser is open: such
tests talk to a gateway process and prepare its database before.
"""

import asyncio
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_MS = 15_000
"""For anything that a page shall show. Far more than it takes; a machine may be busy."""


@dataclass  # without slots: Playwright keeps its wrappers of bound methods on the object
class Window:
    """A page in a context of its own: no cookie and nothing cached of another's."""

    page: Page
    origin: str
    shots: Path | None
    """Where screenshots go. `None`: none are made."""
    secrets: list[str] = field(default_factory=list)
    """What no page's source may hold from now on."""
    troubles: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.troubles.append(f"script error: {error}"))
        self.page.on("requestfailed", self._failed)
        self.page.on("response", self._answered)

    def open(self, path: str) -> None:
        self.page.goto(self.origin + path)
        self.look(path)
        assert self.page.url == self.origin + path

    def look(self, where: str) -> None:
        """Fails when anything went wrong until now, or the page's source holds a secret."""
        self.page.wait_for_load_state("load")
        source = self.page.content()
        leaked = [secret for secret in self.secrets if secret in source]
        assert (self.troubles, leaked) == ([], []), f"at {where}, {self.page.url}"

    def keeps_out(self) -> list[tuple[str, str, list[str]]]:
        """What axe-core finds on the page that keeps people out, with the elements."""
        # Elements that are as they should be are not listed, which takes it as long again.
        found = Axe().run(self.page, options={"resultTypes": ["violations"]}).response["violations"]
        return [
            (each["id"], each["impact"], [node["html"][:160] for node in each["nodes"]][:5])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]

    def shot(self, name: str) -> None:
        if self.shots is not None:
            self.page.screenshot(path=self.shots / f"{name}.png", full_page=True)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"console {message.type}: {message.text}")

    def _failed(self, request: Request) -> None:
        if request.url.endswith("/icon.svg") and request.failure == "net::ERR_ABORTED":
            return  # the browser gives it up when the page is left
        self.troubles.append(f"failed: {request.method} {request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.troubles.append(f"answered {response.status}: {response.request.method} {response.url}")


@dataclass(slots=True)
class Chromium:
    browser: Browser
    shots: Path | None

    def window(self, origin: str, *, width: int = 1280, height: int = 900, dark: bool = False, **more: Any) -> Window:
        """`more`: what Playwright's contexts take, for example the `storage_state` of another window."""
        context = self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", **more
        )
        window = Window(page=context.new_page(), origin=origin, shots=self.shots)
        window.watch()
        return window


@dataclass(slots=True)
class Launched:
    browser: Browser
    loop: asyncio.AbstractEventLoop
    """Playwright's, which stands still in this thread between the calls of its pages."""


@pytest.fixture(scope="module")
def launched() -> Iterator[Launched]:
    """One browser for the tests of a file: to start one takes longer than most of them."""
    executable = shutil.which("chromium")
    if executable is None:
        missing = "no chromium: apt-get install -y --no-install-recommends chromium"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        try:
            yield Launched(browser=browser, loop=loop)
        finally:
            asyncio._set_running_loop(loop)
            browser.close()


@pytest.fixture
def chromium(launched: Launched) -> Iterator[Chromium]:
    """Its windows are closed with the test. While that runs, and only then, this thread has a running event loop.

    To look at the pages: `SCREENSHOTS=FOLDER pytest -m browser`.
    """
    asyncio._set_running_loop(launched.loop)
    shots = Path(os.environ["SCREENSHOTS"]) if os.environ.get("SCREENSHOTS") else None
    try:
        yield Chromium(browser=launched.browser, shots=shots)
        for context in launched.browser.contexts:
            context.close()
    finally:
        asyncio._set_running_loop(None)
