"""What is done on a page, the server has done: with keys alone, and only what a key may do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conformance.servers import ServerProcess
from tests.e2e.conftest import EVIL, fill, url_of
from tests.e2e.test_live import penstock
from tests.e2e.visiting import ask, visiting


@pytest.fixture
def server(tmp_path: Path, browser: Browser) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path).start()
    fill(url_of(running))
    yield running
    running.close()


def die(base: str, reason: str, count: int = 1) -> None:
    """Let jobs of the queue `jobs` die for a reason."""
    claimed = ask(base, "/v0/topics/jobs/claim", {"node": "n", "max": count})["claimed"]
    seqs = [job["$seq"] for job in claimed]
    assert len(seqs) == count
    ask(base, "/v0/topics/jobs/nack", {"node": "n", "seqs": seqs, "reason": reason})
    last = ask(base, "/v0/topics/jobs/claim", {"node": "n", "max": 1})["claimed"]
    ask(base, "/v0/topics/jobs/ack", {"node": "n", "seqs": [job["$seq"] for job in last]})


def told(base: str) -> Any:
    """The queue `jobs` as the command line shows it."""
    return json.loads(penstock(base, "queue", "show", "jobs", "--json"))


def letters(page: Page) -> Any:
    return page.get_by_role("region", name="Dead letters")


def go_to(page: Page, name: str, role: str = "button") -> None:
    """Press Tab until a thing has the focus, as a person without a mouse does."""
    wanted = page.get_by_role(role, name=name).last
    expect(wanted).to_be_visible()
    for _ in range(80):
        page.keyboard.press("Tab")
        if wanted.evaluate("(one) => one === document.activeElement"):
            return
    raise AssertionError(f"no Tab leads to {role} {name!r}")


def test_letters_go_back_by_keys_alone_and_the_command_line_sees_it(
    browser: Browser, server: ServerProcess
):
    base = url_of(server)
    die(base, "late", 2)
    with visiting(browser, base) as visit:
        page = visit.open("/queues/jobs")
        expect(letters(page)).to_contain_text("late")
        before = told(base)
        assert {each["reason"]: each["count"] for each in before["reasons"]} == {EVIL: 2, "late": 2}
        go_to(page, "late · 2")
        page.keyboard.press("Enter")
        expect(letters(page).locator("tbody tr")).to_have_count(2)
        assert "reason=late" in page.url
        go_to(page, f"Choose {before['letters'][0]['seq']}", "checkbox")
        page.keyboard.press("Space")
        go_to(page, "Replay 1")
        page.keyboard.press("Enter")
        go_to(page, "Replay 1 letter")
        assert told(base)["dead"] == 4, "nothing is done before it is confirmed"
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_contain_text("1 letter moved to jobs.")
        after = told(base)
        assert (after["dead"], after["ready"]) == (3, before["ready"] + 1)
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(letters(page).locator("tbody tr")).to_have_count(1)
        visit.check()


def test_discarding_asks_for_the_name_and_a_second_death_shows(
    browser: Browser, server: ServerProcess
):
    base = url_of(server)
    die(base, "late", 1)
    penstock(base, "queue", "redrive", "jobs", "--reason", "late")
    with visiting(browser, base) as visit:
        page = visit.open("/queues/jobs")
        die(base, "late again", 1)
        expect(letters(page)).to_contain_text("again · 1")
        letters(page).get_by_role("button", name="late again").click()
        letters(page).get_by_role("button", name="Discard 1").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Discard 1 letter").click(force=True)
        assert told(base)["dead"] == 3, "a button without the name does nothing"
        dialog.get_by_label("type jobs.dead to go on").fill("jobs.dead")
        dialog.get_by_role("button", name="Discard 1 letter").click()
        expect(dialog).to_contain_text("1 letter went.")
        assert told(base)["dead"] == 2
        visit.check()
