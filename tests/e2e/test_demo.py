"""A whole demo in a browser: every key of it is seen on the overview, and so is its end.

How long each took to be seen is printed (two seconds on a quiet machine); how long is not asserted.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.visiting import Visit, visiting
from tests.integration.demo.test_check import ANSI, LIMIT_S, Visitor, processes_in
from tests.waiting import wait_until

UNITS = {"": 1, "k": 1_000, "M": 1_000_000}
FASTER = 1.5
"""A burst is five times the load, of which a busy machine may store less."""


class Terminal:
    """A demo at a terminal that is read all the time, as it waits for one that is not."""

    def __init__(self, directory: Path) -> None:
        self.visitor = Visitor(directory)
        self._end: tuple[int, str] | None = None
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def said(self, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, ANSI.sub("", self.visitor.seen))

    def found(self, pattern: str) -> re.Match[str]:
        """Something that it says sooner or later."""
        wait_until(lambda: self.said(pattern) or not self._reader.is_alive(), pattern, LIMIT_S)
        match = self.said(pattern)
        assert match is not None, self.visitor.seen[-3_000:]
        return match

    def ended(self) -> tuple[int, str]:
        """The exit code, and all that was shown."""
        self._reader.join(LIMIT_S)
        assert self._end is not None, "it goes on"
        return self._end

    def close(self) -> None:
        process = self.visitor.process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)

    def _read(self) -> None:
        self._end = self.visitor.leave()


@contextmanager
def terminal(directory: Path) -> Iterator[Terminal]:
    made = Terminal(directory)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long it took until the page showed something."""
    began_s = time.monotonic()
    yield
    print(f"{what}: seen after {time.monotonic() - began_s:.1f} s")


def rate(page: Page, stage: str) -> float:
    """What a stage of the pipe says it takes a second."""
    cell = page.locator(".pipe .cell", has=page.locator(".nm", has_text=stage))
    found = re.match(r"([0-9.,]+)\s*([kM]?)", cell.locator(".val").inner_text())
    return 0.0 if found is None else float(found[1].replace(",", "")) * UNITS[found[2]]


def lately(page: Page, text: str) -> None:
    """An event of this text is on the page."""
    expect(page.locator(".event", has_text=re.compile(text)).first).to_be_visible()


def see_every_key(visit: Visit, demo: Terminal) -> None:
    page, strike = visit.page, demo.visitor.strike
    wait_until(lambda: rate(page, "accept") > 0, "the usual load", 120)
    usual = rate(page, "accept")
    strike("b")
    with timed("burst"):
        wait_until(lambda: rate(page, "accept") > FASTER * usual, "the burst", 120)
    most = rate(page, "accept")
    strike("b")
    with timed("the end of the burst"):
        wait_until(lambda: rate(page, "accept") < most / FASTER, "its end", 120)
    strike("p")
    with timed("hold"):
        expect(page.locator(".verdict")).to_contain_text(re.compile("[Ss]tore is held"))
    strike("p")
    with timed("going on"):
        expect(page.locator(".verdict")).not_to_contain_text(re.compile("[Ss]tore is held"))
    strike("t")
    seq = demo.found(r"dearer since seq (\d+)")[1]
    with timed("tariff"):
        lately(page, rf"works with the tariffs at seq {seq} ")
    strike("w")
    with timed("a killed worker"):
        lately(page, r"process \d+: another takes its place")
    with timed("another worker"):
        lately(page, r"works again, as process \d+")
    visit.is_away = True
    strike("s")
    with timed("a killed server"):
        expect(page.locator(".banner")).to_be_visible()
    with timed("its return"):
        expect(page.locator(".banner")).to_have_count(0)
    demo.found("listens again")
    wait_until(lambda: rate(page, "accept") > 0, "records, as before", 120)


@pytest.mark.slow
def test_every_key_of_the_demo_is_seen_and_the_last_sentence_agrees_with_the_proof(
    browser: Browser, tmp_path: Path
):
    with terminal(tmp_path) as demo:
        base = demo.found(r"dashboard: (http://[0-9.:]+)/")[1]
        demo.found("q end and prove")
        with visiting(browser, base) as visit:
            page = visit.open("/")
            before = page.locator("main").inner_text()
            wait_until(lambda: page.locator("main").inner_text() != before, "moving numbers")
            visit.check()
            see_every_key(visit, demo)
            demo.visitor.strike("q")
            sentences: list[str] = []

            def is_over() -> bool:
                sentences.append(page.locator("h1").inner_text())
                return page.locator(".banner").count() > 0

            wait_until(is_over, "the end", LIMIT_S)
            assert not visit.reports()
        code, said = demo.ended()
    assert code == 0, said[-3_000:]
    assert "all is right" in said
    last = sentences[-2]  # before the banner
    assert "lost" not in last or "othing" in last, last
    assert "fail" not in last, last
    assert "refused" not in last, last
    assert processes_in(tmp_path) == []
