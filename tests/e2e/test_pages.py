"""Every page in a real browser: both themes, three widths, nothing that should not be there."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.e2e.visiting import WIDTHS, ask, visiting

PATHS = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/meters",
    "queue": "/queues/jobs",
    "pipeline": "/pipeline",
    "tables": "/tables",
    "table": "/tables/nothing",
    "entities": "/entities",
    "entity": "/entities/prices/flat",
    "lake": "/lake",
    "cluster": "/cluster",
}


@pytest.mark.parametrize("name", PATHS)
def test_a_page_is_whole_in_both_themes_and_every_width(browser: Browser, filled: str, name: str):
    with visiting(browser, filled) as visit:
        page = visit.open(PATHS[name])
        assert visit.twin()["page"] == name
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            for width, height in WIDTHS.items():
                page.set_viewport_size({"width": width, "height": height})
                assert visit.sideways() == [], f"{theme}, {width} px"
                assert visit.barriers() == [], f"{theme}, {width} px"
        assert page.evaluate("() => window.__evil") is None, "data is never markup"
        visit.check()


@pytest.mark.parametrize("name", PATHS)
def test_tab_leads_to_everything_that_a_mouse_can_press(browser: Browser, filled: str, name: str):
    with visiting(browser, filled) as visit:
        visit.open(PATHS[name])
        assert visit.beyond_keys() == []
        visit.check()


@pytest.mark.parametrize("name", PATHS)
def test_a_page_without_javascript_says_less_but_not_nothing(
    browser: Browser, filled: str, name: str
):
    with visiting(browser, filled, width=390, java_script_enabled=False) as visit:
        page = visit.open(PATHS[name])
        assert page.locator("main h1").count() == 1
        assert len(page.locator("main").inner_text()) > 50
        assert page.locator("img[src=x]").count() == 0
        assert visit.troubles == []


TRANSFERRED = """() => [
    ...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource'),
].filter((each) => !each.name.includes('/v0/')).map((each) => each.transferSize)"""


@pytest.mark.parametrize("path", ["/", "/tables"])
def test_a_first_load_is_few_requests_and_bytes_and_a_second_one_almost_none(
    browser: Browser, filled: str, path: str
):
    """The tables page loads most: it lays its graph out in a worker of its own."""
    with visiting(browser, filled) as visit:
        page = visit.open(path)
        page.wait_for_load_state("load")
        loaded = [each for each in visit.requests if "/v0/" not in each.url and each.response()]
        assert len(loaded) <= 20
        assert sum(each.sizes()["responseBodySize"] for each in loaded) <= 200_000
        visit.open(path)
        page.wait_for_load_state("load")
        assert 0 < sum(page.evaluate(TRANSFERRED)) <= 15_000
        visit.check()


def test_a_twin_is_the_same_for_programs_and_in_the_page(browser: Browser, filled: str):
    with visiting(browser, filled) as visit:
        visit.open("/topics")
        shown = {
            row["topic"]: row["head_seq"] for row in visit.twin()["sections"]["topics"]["topics"]
        }
        told = ask(filled, "/topics?format=json")["sections"]["topics"]["topics"]
        assert shown == {row["topic"]: row["head_seq"] for row in told}
