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
from tests.e2e.visiting import Visit, ask, visiting


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


def test_tab_leads_to_everything_on_the_page_of_a_queue(browser: Browser, server: ServerProcess):
    base = url_of(server)
    with visiting(browser, base) as visit:
        page = visit.open("/queues/jobs")
        letters(page).get_by_label("Choose all").check()
        expect(letters(page).get_by_role("button", name="Replay 2")).to_be_visible()
        page.evaluate("""() => {
            for (const one of document.querySelectorAll('main :is(button, a[href], input, select)'))
              if (one.checkVisibility()) one.dataset.untouched = '1';
            document.addEventListener('focusin', (event) => delete event.target.dataset.untouched);
            document.activeElement.blur();
        }""")
        untouched = page.locator("main [data-untouched]")
        for _ in range(150):
            page.keyboard.press("Tab")
            if not untouched.count():
                break
        assert untouched.evaluate_all("(all) => all.map((one) => one.outerHTML)") == []
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


KEYS = "root-key,reader-key:read"
ROOT = {"authorization": "Bearer root-key"}


@pytest.fixture
def keyed(tmp_path: Path, browser: Browser) -> Iterator[str]:
    """The address of a server with keys, and a queue with a dead letter."""
    running = ServerProcess(tmp_path, API_KEYS=KEYS).start()
    base = url_of(running)
    queue = {"type": "queue", "max_deliveries": 1, "dead_letter": "jobs.dead"}
    ask(base, "/v0/topics/jobs", {"records": [{"data": 1}, {"data": 2}], "config": queue}, **ROOT)
    ask(base, "/v0/topics/jobs/claim", {"node": "n"}, **ROOT)
    ask(base, "/v0/topics/jobs/nack", {"node": "n", "seqs": [1], "reason": "late"}, **ROOT)
    ask(base, "/v0/topics/jobs/claim", {"node": "n"}, **ROOT)
    yield base
    running.close()


def sign_in(visit: Visit, path: str, key: str) -> Page:
    """Sign in on a page, which then shows what it is about."""
    visit.is_away = True  # a page without a key is refused, as it should be
    visit.page.goto(visit.base + path)
    visit.page.get_by_label("key").fill(key)
    visit.page.get_by_role("button", name="Sign in").click()
    visit.page.wait_for_selector(".titlebar h1")
    visit.is_away = False
    return visit.page


def test_a_key_that_may_only_read_sees_no_deed_that_it_may_do(browser: Browser, keyed: str):
    with visiting(browser, keyed) as visit:
        page = sign_in(visit, "/queues/jobs", "reader-key")
        letters(page).get_by_role("button", name="late · 1").click()
        for name, scope in (("Replay 1", "write"), ("Discard 1", "delete"), ("Publish", "write")):
            deed = page.get_by_role("button", name=name).first
            expect(deed).to_have_attribute("aria-disabled", "true")
            expect(deed).to_have_attribute("title", f'Needs a key with the scope "{scope}"')
            deed.click(force=True)
        expect(page.get_by_role("dialog")).to_have_count(0)
        asked = [each for each in visit.requests if each.method != "GET"]
        assert [each.url.rpartition("/")[2] for each in asked] == ["session"]
        assert "key" not in page.evaluate("() => JSON.stringify({...localStorage})")
        visit.check()


def status_of(page: Page, path: str, method: str = "GET") -> int:
    """What a request of the page itself is answered with."""
    script = "async ([path, method]) => (await fetch(path, { method })).status"
    found: int = page.evaluate(script, [path, method])
    return found


def test_a_wrong_cookie_is_refused_and_signing_out_ends_the_session(browser: Browser, keyed: str):
    with visiting(browser, keyed) as visit:
        page = sign_in(visit, "/queues/jobs", "root-key")
        assert status_of(page, "/v0/queues/jobs") == 200
        (cookie,) = visit.context.cookies()
        assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (
            "penstock", True, "Strict",
        )  # fmt: skip
        visit.is_away = True
        visit.context.add_cookies([{**cookie, "value": "x" + cookie["value"][1:]}])
        for path, method in (("/v0/queues/jobs", "GET"), ("/v0/queues/jobs/redrive", "POST")):
            assert status_of(page, path, method) == 401
        visit.context.add_cookies([cookie])
        assert status_of(page, "/v0/session", "DELETE") == 200
        assert status_of(page, "/v0/queues/jobs") == 401
        # The stream of the page has ended with the session: it asks for a key by itself.
        expect(page.get_by_role("region", name="Sign in")).to_be_visible()


def test_a_change_that_meets_anothers_converges_on_the_page(
    browser: Browser, server: ServerProcess
):
    base = url_of(server)
    with visiting(browser, base) as visit:
        page = visit.open("/entities/prices/flat")
        page.get_by_label("cents_per_kwh").fill("99")
        other = {"entity": "flat", "patch": {"cents_per_kwh": 50, "name": "theirs"}}
        change = {"session": "other", "local_seq": 1, "writes": [other]}
        ask(base, "/v0/spaces/prices/commits", change)
        expect(page.get_by_text("Another wrote 50")).to_be_visible()
        visit.is_away = True  # the refusal that is meant to come is a 409
        page.get_by_role("button", name="Commit").click()
        expect(page.get_by_text("It landed in 2 tries")).to_be_visible()
        found = ask(base, "/v0/spaces/prices/entities/flat")
        assert found["doc"] == {"name": "theirs", "cents_per_kwh": 99}
        told = json.loads(penstock(base, "entity", "get", "prices", "flat", "--json"))
        assert told["doc"] == found["doc"]
        history = page.get_by_role("region", name="History")
        expect(history.locator("tbody tr").first).to_contain_text("99")


def test_the_newest_commits_of_an_entity_are_on_its_page(browser: Browser, server: ServerProcess):
    base = url_of(server)
    for number in range(1, 46):
        write = {"entity": "flat", "patch": {"cents_per_kwh": 1_000 + number}}
        change = {"session": "many", "local_seq": number, "writes": [write]}
        ask(base, "/v0/spaces/prices/commits", change)
    with visiting(browser, base) as visit:
        page = visit.open("/entities/prices/flat")
        rows = page.get_by_role("region", name="History").locator("tbody tr")
        expect(rows).to_have_count(40)
        expect(rows.first).to_contain_text("1045")
        expect(rows.last).to_contain_text("1006")
        expect(rows.last).to_contain_text("1005")  # as it was before
        visit.check()
