"""The pages of tables beside a real warehouse and a coordinator; DuckDB is the engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conformance.servers import ServerProcess
from tests.e2e.conftest import EVIL, url_of
from tests.e2e.test_live import stat
from tests.e2e.visiting import WIDTHS, ask, visiting
from tests.integration.tables.place import Place
from tests.waiting import wait_until


@pytest.fixture
def place(tmp_path: Path, browser: Browser) -> Iterator[Place]:
    """A warehouse beside the data of a server, with a table over another one."""
    made = Place(f"sqlite:{tmp_path}/warehouse.sqlite", tmp_path / "place")
    made.write("raw", [1, 2])
    made.warehouse.create("ids", "SELECT id FROM raw", schedule="on demand")
    made.warehouse.create("sums", "SELECT sum(id) AS total FROM ids", schedule="on demand")
    yield made
    made.close()


@pytest.fixture
def server(place: Place, tmp_path: Path) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path).start()
    yield running
    running.close()


def told_by_command(place: Place) -> Any:
    """The table `ids` as the command line shows it."""
    command = [sys.executable, "-m", "penstock", "table", "--catalog", place.address]
    options = ["--data-path", place.data_path, "show", "ids", "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def of(page: Page, name: str) -> str:
    """The text of a card."""
    return page.get_by_role("region", name=name, exact=True).inner_text()


@pytest.mark.slow
def test_refreshing_pausing_and_resuming_on_a_page_is_seen_by_the_command_line(
    browser: Browser, place: Place, server: ServerProcess
):
    base = url_of(server)
    with visiting(browser, base) as visit:
        page = visit.open("/tables/ids")
        expect(page.locator("main")).to_contain_text("no coordinator is running")
        with place.warehouse.coordinator():
            expect(page.locator("main")).not_to_contain_text("no coordinator is running")
            page.get_by_role("button", name="Refresh now").click()
            expect(page.locator("main")).to_contain_text("Refreshed.")
            wait_until(lambda: "2 at snapshot" in of(page, "Rows"), "the rows")
            assert told_by_command(place)["last_refresh"]["outcome"] == "succeeded"
            assert ask(base, "/v0/tables/ids")["behind"] == {"raw": 0}
            place.write("raw", [3, 4, 5])
            behind = page.get_by_role("region", name="Frontier against heads").locator("td").last
            expect(behind).to_have_text("3")
            page.get_by_role("button", name="Pause").click()
            expect(page.get_by_role("button", name="Resume")).to_be_visible()
            assert told_by_command(place)["status"] == "PAUSED"
            page.get_by_role("button", name="Resume").click()
            expect(page.get_by_role("button", name="Pause")).to_be_visible()
            page.get_by_role("button", name="Refresh now").click()
            wait_until(lambda: "5 at snapshot" in of(page, "Rows"), "the new rows")
            expect(behind).to_have_text("0")
            assert visit.barriers() == []
        visit.check()


def reasons_of(base: str) -> dict[str, str]:
    """Why each table waits, as the server says it."""
    nodes = ask(base, "/v0/graph")["nodes"]
    return {node["name"]: node["reason"] for node in nodes if node["kind"] == "table"}


def reasons_by_command(place: Place) -> dict[str, str]:
    """The same as the command line lists it."""
    command = [sys.executable, "-m", "penstock", "table", "--catalog", place.address]
    options = ["--data-path", place.data_path, "status", "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    return {row["table"]: row["reason"] for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.slow
def test_the_numbers_of_tables_and_lake_are_those_of_their_twins_and_of_the_command_line(
    browser: Browser, place: Place, server: ServerProcess
):
    base = url_of(server)
    with visiting(browser, base) as visit:
        with place.warehouse.coordinator():
            for name in ("ids", "sums"):
                place.warehouse.refresh(name)
            page = visit.open("/tables?as=list")
            rows = page.get_by_role("region", name="Tables").locator("tbody tr")
            expect(rows).to_have_count(2)
            wait_until(lambda: reasons_by_command(place) == reasons_of(base), "the reasons to rest")
            for node in ask(base, "/v0/graph")["nodes"]:
                if node["kind"] == "table":
                    row = rows.filter(has_text=node["name"])
                    expect(row).to_contain_text("fresh")
                    expect(row).to_contain_text(node["text"])
        page = visit.open("/lake")
        lake, tables = (ask(base, path) for path in ("/v0/lake", "/v0/lake/tables"))
        for name in ("snapshot", "rows", "files"):
            assert stat(page, name) == str(lake[name]), name
        shown = page.get_by_role("region", name="Tables", exact=True).locator("tbody tr")
        assert shown.locator("td:nth-child(1)").all_inner_texts() == [
            table["name"] for table in tables["tables"]
        ]
        assert shown.locator("td:nth-child(3)").all_inner_texts() == [
            str(table["rows"]) for table in tables["tables"]
        ]
        expect(page.get_by_role("region", name="Snapshots")).to_contain_text("rows into sums")
        visit.check()


def test_the_graph_is_walked_with_keys_and_a_table_opens_beside_it(
    browser: Browser, place: Place, server: ServerProcess
):
    with visiting(browser, url_of(server)) as visit:
        page = visit.open("/tables?as=graph")
        expect(page.locator(".graph .node")).to_have_count(3)
        for key in ("j", "j", "j", "Enter"):
            page.keyboard.press(key)
        beside = page.get_by_role("region", name="sums", exact=True)
        expect(beside).to_contain_text("SELECT sum(id) AS total FROM ids")
        assert "table=sums" in page.url
        expect(page.locator(".node[aria-pressed=true]")).to_contain_text("sums")
        page.keyboard.press("Escape")
        expect(beside).to_have_count(0)
        visit.check()


def test_names_are_completed_in_a_select_with_keys(
    browser: Browser, place: Place, server: ServerProcess
):
    with visiting(browser, url_of(server)) as visit:
        page = visit.open("/lake")
        page.get_by_label("SELECT").focus()
        page.keyboard.type("SELECT count(*) FROM ra")
        fits = page.get_by_role("group", name="Names that fit").get_by_role("button")
        expect(fits).to_have_text(["raw"])
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_label("SELECT")).to_have_value("SELECT count(*) FROM raw")
        page.keyboard.press("Control+Enter")
        answer = page.get_by_role("region", name="Rows of the answer")
        expect(answer.locator("td")).to_have_text(["2"])
        visit.check()


def test_the_rows_of_a_table_come_as_csv(browser: Browser, place: Place, server: ServerProcess):
    with place.warehouse.coordinator(), visiting(browser, url_of(server)) as visit:
        place.warehouse.refresh("ids")
        page = visit.open("/tables/ids")
        with page.expect_download() as loading:
            page.get_by_role("link", name="CSV").click()
        assert loading.value.suggested_filename == "ids.csv"
        assert sorted(Path(loading.value.path()).read_text().split()) == ['"id"', "1", "2"]
        visit.check()


def test_a_select_on_the_lake_is_what_the_command_line_answers(
    browser: Browser, place: Place, server: ServerProcess
):
    base = url_of(server)
    with visiting(browser, base) as visit:
        page = visit.open("/lake")
        page.get_by_label("SELECT").fill("SELECT count(*) AS n, max(id) AS top FROM raw")
        page.keyboard.press("Control+Enter")
        answer = page.get_by_role("region", name="Rows of the answer")
        expect(answer.locator("td")).to_have_text(["2", "2"])
        told = ask(base, "/v0/query", {"query": "SELECT count(*) AS n, max(id) AS top FROM raw"})
        assert told["rows"] == [{"n": 2, "top": 2}]
        visit.check()


FILLED = ("/tables?as=graph", "/tables?as=list&table=table:bad", "/tables/bad", "/lake", "/")


@pytest.mark.slow
def test_names_queries_and_errors_stay_text_and_filled_pages_are_whole_in_every_width(
    browser: Browser, place: Place, server: ServerProcess
):
    """Both themes, three widths, with a table that fails and another that is fresh."""
    query = f"SELECT CAST(concat('{EVIL}', id) AS INT) AS n FROM raw"
    place.warehouse.create("bad", query, schedule="on demand")
    base = url_of(server)
    with place.warehouse.coordinator(), visiting(browser, base) as visit:
        place.warehouse.refresh("ids")
        ask(base, "/v0/tables/bad/refresh", {"wait_ms": 10_000})
        wait_until(
            lambda: EVIL in json.dumps(ask(base, "/v0/tables/bad/history?limit=1")),
            "the error of a refresh",
        )
        for path in FILLED:
            page = visit.open(path)
            if "bad" in path:
                expect(page.locator("main")).to_contain_text(EVIL)
            for theme in ("light", "dark"):
                page.emulate_media(color_scheme=theme)
                for width, height in WIDTHS.items():
                    page.set_viewport_size({"width": width, "height": height})
                    assert visit.sideways() == [], f"{path}, {theme}, {width} px"
                    assert visit.barriers() == [], f"{path}, {theme}, {width} px"
            assert page.evaluate("() => window.__evil") is None, "data is never markup"
        visit.check()
