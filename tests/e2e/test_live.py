"""Pages that live: values move, records come, the server goes and comes back."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conformance.servers import ServerProcess
from tests.e2e.conftest import fill, url_of
from tests.e2e.visiting import PATIENCE_MS, ask, visiting
from tests.waiting import wait_until


@pytest.fixture
def server(tmp_path: Path, browser: Browser) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path).start()
    fill(url_of(running))
    yield running
    running.close()


def penstock(base: str, *arguments: str) -> str:
    """What the command line says of the same server."""
    command = [sys.executable, "-m", "penstock", *arguments, "--url", base]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def write(base: str, topic: str, count: int) -> int:
    """Write records; the seq of the last."""
    body = {"records": [{"data": {"n": n}} for n in range(count)]}
    return int(ask(base, f"/v0/topics/{topic}", body)["last_seq"])


def stat(page: Page, name: str) -> str:
    """One of the big numbers at the top of a page."""
    text = page.locator(".stats > *", has_text=name).first.locator("dd").first.inner_text()
    return text.split("\n")[0]


def test_numbers_move_and_equal_the_twin_and_the_command_line(browser: Browser, filled: str):
    with visiting(browser, filled) as visit:
        page = visit.open("/topics/meters")
        for count in (1, 5):
            last = write(filled, "meters", count)
            wait_until(lambda last=last: stat(page, "head") == f"{last:,}", "the new head")
        twin = ask(filled, "/topics/meters?format=json")["sections"]["topic"]
        told = json.loads(penstock(filled, "topic", "show", "meters", "--json"))
        assert stat(page, "head") == f"{twin['head_seq']:,}" == f"{told['head_seq']:,}"
        visit.check()


def rows(page: Page) -> list[tuple[bool, int]]:
    """The live tail, newest first: records with their seqs, and gaps with their counts."""
    found = page.locator(".tail tbody tr").evaluate_all(
        "rows => rows.map((row) => [row.classList.contains('gap'), row.innerText])"
    )
    return [(gap, int(re.search(r"[0-9][0-9,]*", text)[0].replace(",", ""))) for gap, text in found]


def check_account(shown: list[tuple[bool, int]]) -> None:
    """None twice, none missing: every seq is shown, or counted in a gap."""
    expected = next(number for is_gap, number in shown if not is_gap)
    for is_gap, number in shown:
        if is_gap:
            expected -= number
        else:
            assert number == expected, shown
            expected -= 1


def test_hold_keeps_rows_still_and_going_on_shows_none_twice_and_none_missing(
    browser: Browser, filled: str
):
    with visiting(browser, filled) as visit:
        page = visit.open("/topics/meters")
        write(filled, "meters", 3)
        page.get_by_role("button", name="Hold").click()
        before = rows(page)
        for _ in range(20):
            last = write(filled, "meters", 500)
        expect(page.get_by_role("button", name=re.compile(r"Go on \(.* new\)"))).to_be_visible()
        assert rows(page) == before
        page.get_by_role("button", name="Go on").click()
        wait_until(lambda: rows(page)[0] == (False, last), "the newest record")
        check_account(rows(page))
        visit.check()


def test_what_is_published_on_the_page_is_read_by_the_command_line(browser: Browser, filled: str):
    with visiting(browser, filled) as visit:
        page = visit.open("/topics/other")
        page.get_by_role("button", name="Publish").click()
        dialog = page.get_by_role("dialog")
        dialog.locator("textarea").first.fill('{"from": "page"}')
        dialog.get_by_role("button", name="Publish").click()
        wait_until(
            lambda: '"page"' in penstock(filled, "topic", "read", "other", "--json"),
            "the record",
        )
        visit.check()


def test_eight_tabs_live_on_one_stream(browser: Browser, server: ServerProcess):
    base = url_of(server)
    paths = ["/", "/topics", "/topics/meters", "/queues/jobs", "/pipeline", "/tables", "/lake"]
    paths.append("/cluster")
    with visiting(browser, base) as visit:
        visit.open(paths[0])
        tabs = [visit.page]
        for path in paths[1:]:
            tab = visit.context.new_page()
            tab.goto(base + path)
            tab.wait_for_selector("main h1")
            tabs.append(tab)
        last = write(base, "meters", 4)
        wait_until(lambda: stat(tabs[2], "head") == f"{last:,}", "a frame in the third tab")
        streams = ask(base, "/v0/metrics")["sse_connections"]
        assert streams == 1
        tabs[0].close()  # the one that leads
        last = write(base, "meters", 4)
        wait_until(lambda: stat(tabs[2], "head") == f"{last:,}", "a frame from the next that leads")


def test_a_killed_server_is_seen_and_its_return_needs_no_reload(
    browser: Browser, server: ServerProcess
):
    base = url_of(server)
    server.stay()
    with visiting(browser, base) as visit:
        page = visit.open("/topics/meters")
        page.evaluate("() => { window.__same = true; }")
        visit.is_away = True
        server.kill()
        expect(page.locator(".banner")).to_contain_text("does not answer")
        expect(page.locator("main")).to_have_class(re.compile("stale"))
        server.start()
        expect(page.locator(".banner")).to_have_count(0, timeout=PATIENCE_MS)
        last = write(base, "meters", 2)
        wait_until(lambda: stat(page, "head") == f"{last:,}", "a frame of the new server")
        assert page.evaluate("() => window.__same"), "it was not loaded again"
        assert visit.reports() == []
