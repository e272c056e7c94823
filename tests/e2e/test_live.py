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

from penstock.server.live.stream import PAGES_MAX
from tests.conformance.servers import ServerProcess
from tests.e2e.conftest import fill, url_of
from tests.e2e.visiting import ask, visiting
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


def test_how_late_pushes_are_is_said_on_the_page_of_the_topic_that_has_them(
    browser: Browser, server: ServerProcess
):
    base, name = url_of(server), "write to watcher, p99"
    follow = [sys.executable, "-m", "penstock", "topic", "follow", "meters", "--url", base]
    watcher = subprocess.Popen(follow, stdout=subprocess.DEVNULL)
    try:
        with visiting(browser, base) as visit:
            wait_until(lambda: ask(base, "/v0/topics/meters?touch=false")["watchers"], "a watcher")
            page = visit.open("/topics/meters")
            nothing = stat(page, name)

            def is_told() -> bool:
                write(base, "meters", 1)
                write(base, "other", 1)
                return stat(page, name) != nothing

            wait_until(is_told, "how late the watcher was")
            assert re.fullmatch(r"(< 1|[\d.,]+)\s(ms|s)", stat(page, name))
            history = ask(base, "/topics/meters?format=json")["sections"]["history"]
            assert any(value is not None for value in history["push_p99_ms"])
            page = visit.open("/topics/other")
            write(base, "other", 1)
            told = ask(base, "/topics/other?format=json")["sections"]["history"]
            assert set(told["push_p99_ms"]) <= {None}
            assert stat(page, name) == nothing, "nothing is pushed there"
            visit.check()
    finally:
        watcher.kill()
        watcher.wait()


def test_what_pages_say_is_what_the_command_line_says(browser: Browser, server: ServerProcess):
    base = url_of(server)
    with visiting(browser, base) as visit:
        page = visit.open("/queues/jobs")
        told = json.loads(penstock(base, "queue", "show", "jobs", "--json"))
        for name in ("ready", "leased", "delayed", "dead"):
            assert stat(page, name) == str(told[name]), name
        page = visit.open("/topics/meters")
        told = json.loads(penstock(base, "topic", "show", "meters", "--json"))
        assert stat(page, "head") == str(told["head_seq"])
        assert f"{told['count']} records" in page.locator(".stats").inner_text()
        page = visit.open("/entities/prices/flat")
        told = json.loads(penstock(base, "entity", "get", "prices", "flat", "--json"))
        assert f"seq {told['seq']} " in page.locator(".titlebar").inner_text()
        for field, value in told["doc"].items():
            assert page.get_by_label(field).input_value() == str(value)
        page = visit.open("/")
        told = json.loads(penstock(base, "status", "--json"))["verdict"]
        expect(page.locator("h1")).to_have_text(told["sentence"])
        visit.check()


def rows(page: Page) -> list[tuple[bool, int]]:
    """The live tail, newest first: records with their seqs, and gaps with their counts."""
    found = page.locator(".tail tbody tr").evaluate_all(
        "rows => rows.map((row) => [row.classList.contains('gap'), row.innerText])"
    )
    return [(gap, int(re.search(r"[0-9][0-9,]*", text)[0].replace(",", ""))) for gap, text in found]


def check_account(shown: list[tuple[bool, int]]) -> None:
    """None twice, none missing: every seq is shown, or counted in a gap.

    A gap before the first record counts newer ones.
    """
    first = next(place for place, (is_gap, _) in enumerate(shown) if not is_gap)
    expected = shown[first][1]
    for is_gap, number in shown[first:]:
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


def test_records_of_the_past_are_those_of_the_tag_that_is_chosen_then(
    browser: Browser, filled: str
):
    with visiting(browser, filled) as visit:
        page = visit.open("/topics/meters?from=2")
        tags = page.locator(".tail tbody .tag")
        expect(page.locator(".tail tbody tr").first).to_contain_text("meter 1,")
        expect(tags.nth(1)).to_have_text("m2")
        page.get_by_label("Only this tag").fill("m3")
        page.keyboard.press("Tab")
        expect(tags.first).to_have_text("m3")
        assert set(tags.all_inner_texts()) == {"m3"}
        page.get_by_label("From a seq or a time").fill("")
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="Hold")).to_be_visible()
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
            tab.wait_for_selector(".shell main h1")
            tabs.append(tab)
        last = write(base, "meters", 4)
        wait_until(lambda: stat(tabs[2], "head") == f"{last:,}", "a frame in the third tab")
        streams = ask(base, "/v0/metrics")["sse_connections"]
        assert streams == 1
        tabs[0].close()  # the one that leads
        last = write(base, "meters", 4)
        wait_until(lambda: stat(tabs[2], "head") == f"{last:,}", "a frame from the next that leads")


def test_more_pages_than_a_stream_takes_leave_the_tab_that_leads_live(
    browser: Browser, server: ServerProcess
):
    base = url_of(server)
    with visiting(browser, base) as visit:
        page = visit.open("/topics/meters")
        with page.expect_request(lambda request: request.url.count("on=") == PAGES_MAX):
            page.evaluate("""() => {
                const channel = new BroadcastChannel("penstock");
                for (let n = 0; n < 20; n++) {
                    channel.postMessage({ here: `tab-${n}`, on: `/topics/t${n}`, hidden: false });
                }
            }""")
        last = write(base, "meters", 4)
        wait_until(lambda: stat(page, "head") == f"{last:,}", "a frame")
        expect(page.locator(".banner")).to_have_count(0)
        visit.check()


MUTE = """() => {
    window.__post = BroadcastChannel.prototype.postMessage;
    BroadcastChannel.prototype.postMessage = () => {};
}"""
AWAKE = """() => {
    BroadcastChannel.prototype.postMessage = window.__post;
    document.dispatchEvent(new Event("visibilitychange", { bubbles: true }));
}"""


@pytest.mark.slow
def test_a_tab_that_says_nothing_leads_no_more(browser: Browser, server: ServerProcess):
    """As on a phone, which suspends what cannot be seen."""
    base = url_of(server)
    with visiting(browser, base) as visit:
        first = visit.open("/topics/other")
        expect(first.locator(".live")).to_have_text("live")
        second = visit.context.new_page()
        second.goto(base + "/topics/meters")
        last = write(base, "meters", 4)
        wait_until(lambda: stat(second, "head") == f"{last:,}", "a frame by the first tab")
        first.evaluate(MUTE)
        last = write(base, "meters", 4)
        wait_until(lambda: stat(second, "head") == f"{last:,}", "a frame without the first tab")
        expect(second.locator(".live")).to_have_text("live")
        first.evaluate(AWAKE)
        last = write(base, "other", 4)
        wait_until(lambda: stat(first, "head") == f"{last:,}", "the first tab follows")
        last = write(base, "meters", 4)
        wait_until(lambda: stat(second, "head") == f"{last:,}", "the second still leads")
        wait_until(lambda: ask(base, "/v0/metrics")["sse_connections"] == 1, "one stream of both")


SOURCES = """
    window.__sources = [];
    window.EventSource = class extends EventSource {
      constructor(url) { super(url); window.__sources.push(this); }
    };
"""


def test_a_stream_that_broke_goes_on_where_it_was(browser: Browser, server: ServerProcess):
    base = url_of(server)
    with visiting(browser, base) as visit:
        visit.context.add_init_script(SOURCES)
        page = visit.open("/topics/meters")
        last = write(base, "meters", 4)
        wait_until(lambda: stat(page, "head") == f"{last:,}", "a frame")
        page.evaluate("() => window.__sources.at(-1).dispatchEvent(new Event('error'))")
        last = write(base, "meters", 40)
        wait_until(lambda: stat(page, "head") == f"{last:,}", "what was missed")
        streams = page.evaluate("() => window.__sources.map((source) => source.url)")
        assert "after=" in streams[-1], "nothing was asked twice"
        assert "after=" not in streams[0]
        last = write(base, "meters", 4)
        wait_until(lambda: rows(page)[0] == (False, last), "the newest record")
        check_account(rows(page))
        visit.check()


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
        expect(page.locator(".banner")).to_have_count(0)
        last = write(base, "meters", 2)
        wait_until(lambda: stat(page, "head") == f"{last:,}", "a frame of the new server")
        assert page.evaluate("() => window.__same"), "it was not loaded again"
        assert visit.reports() == []


NEWER = "import penstock; penstock.__version__ = '99.0'; from penstock.cli import main; main()"


def test_a_newer_server_says_so_and_the_page_is_loaded_again_when_asked(
    browser: Browser, server: ServerProcess
):
    base = url_of(server)
    server.stay()
    with visiting(browser, base) as visit:
        page = visit.open("/topics/meters")
        visit.is_away = True
        server.kill()
        server.command = ("-c", NEWER, "serve")
        server.start()
        banner = page.locator(".banner", has_text="The server is now penstock 99.0")
        expect(banner).to_be_visible()
        visit.is_away = False
        banner.get_by_role("button", name="Reload").click()
        expect(page.locator(".side .foot")).to_contain_text("penstock 99.0")
        expect(banner).to_have_count(0)
        visit.check()
