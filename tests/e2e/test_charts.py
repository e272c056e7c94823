"""What was before a page was opened is on it: the server remembers, not the page."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.test_live import write
from tests.e2e.visiting import ask, visiting
from tests.waiting import wait_until

COLUMNS = {
    "/topics/meters": {"in", "out", "push_p99_ms"},
    "/queues/jobs": {"in", "out", "ready", "leased"},
}


def points(base: str, name: str) -> Any:
    return ask(base, f"/v0/topics/{name}/history")


@pytest.mark.parametrize("path", COLUMNS)
def test_a_chart_begins_before_its_page_was_opened(browser: Browser, filled: str, path: str):
    name = path.rpartition("/")[2]
    write(filled, name, 3)
    wait_until(lambda: len(points(filled, name)["t"]) >= 2, "points of a page that nobody has")
    with visiting(browser, filled) as visit:
        page = visit.open(path)
        shown = visit.twin()["sections"]["history"]
        assert set(shown) - {"t", "step"} == COLUMNS[path]
        assert len(shown["t"]) >= 2
        told = points(filled, name)
        first = told["t"].index(shown["t"][0])
        for column in COLUMNS[path]:
            assert told[column][first:][: len(shown["t"])] == shown[column]
        for label, step in (("15 min", "1s"), ("24 h", "1m")):
            wanted = f"{name}/history?step={step}"
            with page.expect_response(lambda answer, wanted=wanted: wanted in answer.url):
                page.get_by_role("group", name="Time shown").get_by_text(label).click()
        expect(page.locator(".chart canvas").first).to_be_visible()
        assert "range=24h" in page.url
        visit.check()
