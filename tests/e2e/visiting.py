"""A browser on pages of a real server, and everything that must not happen in it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response

WIDTHS: Final = {1440: 900, 900: 800, 390: 844}
PATIENCE_MS: Final = 60_000
"""For everything that is waited for: a machine may be much slower than the one of the author."""
TABS_MAX: Final = 300
_REPORTS: Final = """
    window.__reports = [];
    document.addEventListener('securitypolicyviolation', (event) =>
      window.__reports.push(`${event.violatedDirective}: ${event.blockedURI}`));
"""
TWIN: Final = "() => JSON.parse(document.getElementById('twin').textContent)"


class Visit:
    """One tab. `troubles` collects what a person would see in the console, and requests abroad."""

    def __init__(self, context: BrowserContext, base: str, *, is_plain: bool = False) -> None:
        """`is_plain` says that it has no JavaScript."""
        self.context, self.base = context, base
        self._drawn = "main h1" if is_plain else ".shell main :is(h1, h2)"
        self.troubles: list[str] = []
        self.requests: list[Request] = []
        self.is_away = False
        """Whether the server is away on purpose: requests may fail then."""
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.add_init_script(_REPORTS)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("request", self._request)
        self.page.on("response", self._response)

    def open(self, path: str) -> Page:
        """Go to a page and wait until its modules have drawn it."""
        self.page.goto(self.base + path)
        self.page.wait_for_selector(self._drawn)
        return self.page

    def twin(self) -> Any:
        """The twin that came with the page."""
        return self.page.evaluate(TWIN)

    def reports(self) -> list[str]:
        """What the content security policy refused."""
        found: list[str] = self.page.evaluate("() => window.__reports")
        return found

    def check(self) -> None:
        """Nothing of what must not happen has happened."""
        assert not self.troubles, self.troubles
        found = self.reports()
        assert not found, found

    def sideways(self) -> list[str]:
        """The elements that make the page wider than its window."""
        found: list[str] = self.page.evaluate("""() => {
            const wide = document.documentElement.clientWidth;
            if (document.documentElement.scrollWidth <= wide) return [];
            return [...document.querySelectorAll('body *')]
              .filter((each) => each.getBoundingClientRect().right > wide + 1)
              .map((each) => each.tagName + '.' + each.className).slice(0, 8);
        }""")
        return found

    def beyond_keys(self) -> list[str]:
        """What a mouse can press, and Tab does not lead to."""
        self.page.evaluate("""() => {
            const pressed = ':is(button, a[href], input, select, textarea, .click):not(:disabled)';
            for (const one of document.querySelectorAll(pressed))
              if (one.checkVisibility()) one.dataset.untouched = '1';
            document.addEventListener('focusin', (event) => delete event.target.dataset.untouched);
            document.activeElement.blur();
        }""")
        untouched = self.page.locator("[data-untouched]")
        for _ in range(TABS_MAX):
            if not untouched.count():
                break
            self.page.keyboard.press("Tab")
        found: list[str] = untouched.evaluate_all("(all) => all.map((one) => one.outerHTML)")
        return found

    def barriers(self) -> list[str]:
        """What axe-core finds."""
        found = Axe().run(self.page).response["violations"]
        return [
            f"{each['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
            for each in found
            for node in each["nodes"][:3]
        ]

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not self.is_away:
            self.troubles.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        self.requests.append(request)
        url = urlsplit(request.url)
        if url.scheme not in ("data", "blob") and not request.url.startswith(self.base + "/"):
            self.troubles.append(f"a request abroad: {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 400 and not self.is_away:
            self.troubles.append(f"{response.status} for {response.url}")


@contextmanager
def visiting(
    browser: Browser, base: str, *, width: int = 1440, theme: str = "light", **more: Any
) -> Iterator[Visit]:
    """A browser of its own: no cookies, no cache."""
    size = {"width": width, "height": WIDTHS.get(width, 900)}
    context = browser.new_context(viewport=size, color_scheme=theme, **more)
    try:
        yield Visit(context, base, is_plain=more.get("java_script_enabled") is False)
    finally:
        context.close()


def ask(base: str, path: str, body: Any = None, **headers: str) -> Any:
    """What the server answers to a program."""
    data = None if body is None else json.dumps(body).encode()
    named = {"accept": "application/json", "content-type": "application/json", **headers}
    request = urllib.request.Request(base + path, data, named)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())
