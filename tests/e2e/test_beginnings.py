"""Pages with nothing in them: what they tell to do makes them fill by themselves."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.conformance.servers import ServerProcess
from tests.e2e.conftest import url_of
from tests.e2e.visiting import visiting

LASTING = ("penstock demo", "penstock up", "penstock table run", "penstock topic follow")
"""Commands that go on until Ctrl-C; tests of their own run them."""
PAGES = {
    "/": "The server runs. Nothing has been written yet.",
    "/topics": "No topic yet",
    "/topics/new": "There is no such topic",
    "/queues/new": "There is no such queue",
    "/entities": "There is no space yet.",
    "/tables": "No table is kept fresh here.",
}


@pytest.fixture
def empty(tmp_path: Path, browser: Browser) -> Iterator[ServerProcess]:
    """A server that has nothing yet."""
    running = ServerProcess(tmp_path).start()
    yield running
    running.close()


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES)
def test_the_commands_of_an_empty_page_fill_it(browser: Browser, empty: ServerProcess, path: str):
    base = url_of(empty)
    with visiting(browser, base) as visit:
        page = visit.open(path)
        nothing = page.get_by_role("heading", name=PAGES[path])
        expect(nothing).to_be_visible()
        told = [each.strip().removeprefix("$ ") for each in page.locator(".cmd").all_inner_texts()]
        lines = [line for line in told if not line.startswith(LASTING)]
        assert lines
        for line in lines:
            name, *words = shlex.split(line)
            assert name == "penstock"
            done = subprocess.run(
                [sys.executable, "-m", "penstock", *words],
                cwd=empty.directory, env={**os.environ, "PENSTOCK_URL": base},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{line}: {done.stderr}"
        expect(nothing).to_have_count(0)
        visit.check()
