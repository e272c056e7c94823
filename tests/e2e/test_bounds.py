"""What a page may cost: requests, bytes, memory, and what stays usable however much there is."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, CDPSession, Page, expect

from tests.conformance.servers import ServerProcess
from tests.e2e.conftest import url_of
from tests.e2e.test_live import check_account, rows
from tests.e2e.visiting import ask, visiting
from tests.waiting import wait_until

TABLES = 200
MAKE = """
import sys
from penstock.app.tables import Warehouse

count = int(sys.argv[2])
with Warehouse.open(f"sqlite:{sys.argv[1]}", None) as warehouse:
    warehouse.declare_topic("raw", "id INT, n INT")
    for n in range(count):
        source = "topics.raw" if n < 20 else f"t{n // 3}"
        warehouse.create(f"t{n}", f"SELECT id, n FROM {source} WHERE n > {n}", schedule="1h")
"""


def make_tables(directory: Path, count: int) -> None:
    """Tables over tables, made by another program than the server."""
    command = [sys.executable, "-c", MAKE, str(directory / "warehouse.sqlite"), str(count)]
    subprocess.run(command, check=True, timeout=120)


@pytest.fixture
def empty(tmp_path: Path, browser: Browser) -> Iterator[ServerProcess]:
    """A server that has nothing yet."""
    running = ServerProcess(tmp_path).start()
    yield running
    running.close()


@pytest.mark.slow
def test_a_page_of_no_tables_fills_by_itself_with_two_hundred(
    browser: Browser, empty: ServerProcess
):
    with visiting(browser, url_of(empty)) as visit:
        page = visit.open("/tables?all=1")
        expect(page.locator("h1")).to_contain_text("No table")
        make_tables(empty.directory, TABLES)
        expect(page.locator(".graph .node")).to_have_count(TABLES + 1)
        visit.check()


def test_no_topic_is_listed_twice_when_rows_move_up_into_those_that_are_live(
    browser: Browser, empty: ServerProcess
):
    base = url_of(empty)
    for n in range(120):
        ask(base, f"/v0/topics/t{n:03}", {"records": [{"data": n}]})
    with visiting(browser, base) as visit:
        page = visit.open("/topics?sort=name")
        names = page.get_by_role("region", name="Topics").locator("tbody tr td:first-child")
        expect(names).to_have_count(50)
        page.get_by_role("button", name="More").click()
        expect(names).to_have_count(120)
        remove = urllib.request.Request(f"{base}/v0/topics/t000", method="DELETE")
        urllib.request.urlopen(remove, timeout=30).close()
        expect(names.first).to_have_text("t001")
        assert names.all_inner_texts() == [f"t{n:03}" for n in range(1, 120)]
        visit.check()


@contextmanager
def flood(base: str, topic: str) -> Iterator[dict[str, int]]:
    """Very many records, by a writer that never waits; `last` is the newest seq."""
    found = {"last": 0}
    over = threading.Event()
    body = {"records": [{"data": {"n": n}} for n in range(1_000)]}

    def write() -> None:
        while not over.is_set():
            found["last"] = int(ask(base, f"/v0/topics/{topic}", body)["last_seq"])

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    yield found
    over.set()
    for writer in writers:
        writer.join()


def newest(page: Page) -> int:
    """The seq of the newest record that is shown."""
    return max(number for is_gap, number in rows(page) if not is_gap)


def test_hold_keeps_rows_still_in_a_flood_and_no_record_is_lost_of_sight(
    browser: Browser, empty: ServerProcess
):
    base = url_of(empty)
    config = {"durability": "memory", "cap_records": 200_000}
    ask(base, "/v0/topics/fast", {"records": [{"data": 0}], "config": config})
    with visiting(browser, base) as visit:
        page = visit.open("/topics/fast")
        with flood(base, "fast") as written:
            wait_until(lambda: any(is_gap for is_gap, _ in rows(page)), "a gap in the tail")
            page.get_by_role("button", name="Hold").click()
            held = rows(page)
            until = written["last"] + 50_000
            wait_until(lambda: written["last"] >= until, "50,000 more records")
            assert rows(page) == held
            go_on = page.get_by_role("button", name=re.compile(r"Go on \(.* new\)"))
            expect(go_on).to_be_visible()
            go_on.click()
            wait_until(lambda: newest(page) > until, "records of after the hold")
            check_account(rows(page))
        last = int(ask(base, "/v0/topics/fast?touch=false")["head_seq"])
        wait_until(lambda: (False, last) == rows(page)[0], "the last record")
        check_account(rows(page))
        visit.check()


SPEED = 60
SPEED_FURTHER = 120
"""Of the pages that were added later, so that each takes 40 s."""
HEAP_BYTES = 10 * 2**20


@pytest.fixture
def hurried(tmp_path: Path, browser: Browser, speed: int) -> Iterator[str]:
    """The address of a server whose hour is a minute, or less."""
    make_tables(tmp_path, 10)
    command = [sys.executable, "-m", "tests.e2e.hurried", str(tmp_path), str(speed)]
    process = subprocess.Popen(command)
    address = tmp_path / "url"
    wait_until(lambda: address.exists() and address.read_text(), "the server")
    yield address.read_text()
    process.kill()
    process.wait()


def heap_bytes(session: CDPSession) -> int:
    """What the page keeps in memory."""
    session.send("HeapProfiler.collectGarbage")
    return int(session.send("Runtime.getHeapUsage")["usedSize"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "speed"),
    [
        ("/", SPEED),
        ("/topics", SPEED),
        ("/topics/meters", SPEED),
        ("/queues/jobs", SPEED_FURTHER),
        ("/pipeline", SPEED_FURTHER),
        ("/tables", SPEED_FURTHER),
    ],
)
def test_a_page_that_is_open_for_an_hour_keeps_no_more_than_at_first(
    browser: Browser, hurried: str, path: str
):
    """It begins to count when the page has all the history that it keeps, or a quarter of it."""
    with visiting(browser, hurried) as visit:
        page = visit.open(path)
        session = visit.context.new_cdp_session(page)
        clock = page.evaluate("() => JSON.parse(document.getElementById('twin').textContent).at")

        def passed_min() -> float:
            """Its patience with a slow client is a second of its hour, too: it may hang up."""
            try:
                told: Any = ask(hurried, "/?format=json")
            except ConnectionError:
                return 0.0
            return float(told["at"] - clock) / 60_000

        wait_until(lambda: passed_min() >= 16, "16 minutes", 120)
        first = heap_bytes(session)
        wait_until(lambda: passed_min() >= 76, "an hour more", 120)
        assert heap_bytes(session) - first < HEAP_BYTES
        assert page.locator(".banner").count() == 0, "it followed to the end"
        visit.check()
