"""The page of the pipeline beside a part that reports itself, as ingest does."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from penstock.app.reporting import Reporter, report_of
from penstock.client import ClientSettings
from penstock.kernel.system import SystemClock
from penstock.protocol.part_answers import PartAnswer, PartCommand, PartReport
from tests.conformance.servers import ServerProcess
from tests.e2e.conftest import url_of
from tests.e2e.test_deeds import go_to
from tests.e2e.test_live import penstock
from tests.e2e.visiting import WIDTHS, ask, visiting
from tests.waiting import wait_until

PART = "ingest.a"


class Ingest:
    """What an ingest part tells of itself; it holds and releases `store` when told."""

    def __init__(self) -> None:
        self.held = False
        self.bottleneck: str | None = "store"

    def look(self, _missed: bool) -> dict[str, PartReport]:
        facts = {
            "stages": [
                self._stage("parse", 64, 16, rate_per_s=120.0, p50_ms=2.5, p99_ms=41.2),
                self._stage("store", 32, 31, rate_per_s=118.4, may_hold=True, held=self.held),
            ],
            "bottleneck": None if self.held else self.bottleneck,
            "budget_bytes": 4096,
            "edge": {"devices": 7, "messages_acked_total": 48_213},
            "drain_per_s": 100,
        }
        return {PART: report_of(SystemClock(), 1, facts=facts, behind=50)}

    def obey(self, command: PartCommand) -> PartAnswer:
        self.held = command.action == "hold"
        text = "store is held" if self.held else "store goes on"
        return PartAnswer(id=command.id, done=True, held=self.held, text=text)

    @staticmethod
    def _stage(name: str, window: int, occupied: int, **more: Any) -> dict[str, Any]:
        share = round(occupied / window, 4)
        return {"name": name, "window": window, "occupied": occupied, "occupancy": share, **more}


@contextmanager
def reporting(base: str, part: Ingest) -> Iterator[None]:
    """Let a part report and take commands, on a loop of its own."""
    loop = asyncio.new_event_loop()
    tasks: list[asyncio.Task[None]] = []
    began = threading.Event()

    async def report() -> None:
        reporter = Reporter(ClientSettings(base), part.look, say=print, obey=(PART, part.obey))
        tasks.append(asyncio.ensure_future(reporter.run()))
        began.set()
        with suppress(asyncio.CancelledError):
            await tasks[0]
        await reporter.end()

    thread = threading.Thread(target=loop.run_until_complete, args=(report(),))
    thread.start()
    began.wait()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(tasks[0].cancel)
        thread.join()
        loop.close()


@pytest.fixture
def server(tmp_path: Path, browser: Browser) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path).start()
    yield running
    running.close()


def stage(page: Page, name: str) -> str:
    return page.get_by_role("region", name=name, exact=True).inner_text()


def test_the_numbers_of_the_pipeline_are_those_of_its_twin_and_of_the_command_line(
    browser: Browser, server: ServerProcess
):
    base = url_of(server)
    with reporting(base, Ingest()):
        wait_until(lambda: ask(base, "/v0/pipeline")["stages"], "a report")
        with visiting(browser, base) as visit:
            page = visit.open("/pipeline")
            expect(page.locator("h1")).to_have_text("store is the bottleneck.")
            [told] = [
                part for part in json.loads(penstock(base, "status", "--json"))["parts"]
                if part["part"] == PART
            ]  # fmt: skip
            twin = visit.twin()["sections"]["pipeline"]
            for shown, said in zip(twin["stages"], told["facts"]["stages"], strict=True):
                for member in ("name", "window", "occupancy", "rate_per_s"):
                    assert shown[member] == said[member]
                text = stage(page, said["name"])
                assert f"{round(said['occupancy'] * 100)}%" in text
                assert f"of {said['window']} slots" in text
                assert f"{said['rate_per_s']:.0f}/s" in text
            assert "41.2\xa0ms" in stage(page, "parse")
            assert "– / –" in stage(page, "store"), "what is not known is not 0"
            head = page.locator(".titlebar").inner_text()
            assert "50 messages are durable and not in the lake yet: 500\xa0ms of work." in head
            assert "7 devices · 48.2\xa0k acknowledged" in head
            visit.check()


def test_a_stage_is_held_and_goes_on_by_keys_alone_and_every_page_says_so(
    browser: Browser, server: ServerProcess
):
    base = url_of(server)
    with reporting(base, Ingest()), visiting(browser, base) as visit:
        wait_until(lambda: ask(base, "/v0/pipeline")["stages"], "a report")
        page = visit.open("/pipeline")
        go_to(page, "Hold store")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("store is held by hand.")
        assert ask(base, "/v0/pipeline")["stages"][1]["held"]
        verdict = json.loads(penstock(base, "status", "--json"))["verdict"]
        assert verdict["sentence"] == "Store is held, and nothing is lost."
        overview = visit.context.new_page()
        overview.goto(base + "/")
        expect(overview.locator("h1")).to_have_text(verdict["sentence"])
        expect(overview.get_by_role("region", name="Waiting, and why")).to_contain_text(
            "held by hand; penstock ingest go store"
        )
        penstock(base, "ingest", "go", "store")
        expect(page.locator("h1")).to_have_text("store is the bottleneck.")
        expect(overview.locator("h1")).to_contain_text("The bottleneck is store.")
        visit.check()


def test_a_pipeline_that_works_is_whole_in_both_themes_and_every_width_and_by_keys(
    browser: Browser, server: ServerProcess
):
    base = url_of(server)
    with reporting(base, Ingest()), visiting(browser, base) as visit:
        wait_until(lambda: ask(base, "/v0/pipeline")["stages"], "a report")
        page = visit.open("/pipeline")
        expect(page.locator("h1")).to_have_text("store is the bottleneck.")
        assert visit.beyond_keys() == []
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            for width, height in WIDTHS.items():
                page.set_viewport_size({"width": width, "height": height})
                assert visit.sideways() == [], f"{theme}, {width} px"
                assert visit.barriers() == [], f"{theme}, {width} px"
        visit.check()


def test_a_pipeline_that_ended_says_so_without_a_reload(browser: Browser, server: ServerProcess):
    base = url_of(server)
    with visiting(browser, base) as visit:
        page = visit.open("/pipeline")
        expect(page.locator("h1")).to_have_text("No pipeline reports to this server.")
        with reporting(base, Ingest()):
            expect(page.locator("h1")).to_have_text("store is the bottleneck.")
        expect(page.locator("h1")).to_have_text("The pipeline has ended.")
        visit.check()
