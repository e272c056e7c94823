"""What is done on a page, the server has done: with keys alone, and only what a key may do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

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
        assert visit.beyond_keys() == []
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


def test_a_change_whose_answer_was_lost_does_not_stop_the_next_one(
    browser: Browser, server: ServerProcess
):
    base = url_of(server)

    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    with visiting(browser, base) as visit:
        page = visit.open("/entities/prices/flat")
        page.get_by_label("cents_per_kwh").fill("71")
        visit.is_away = True  # it looks as if
        page.route("**/commits", lose, times=1)
        page.get_by_role("button", name="Commit").click()
        expect(page.get_by_text("The server does not answer.").first).to_be_visible()
        page.get_by_label("cents_per_kwh").fill("72")
        page.get_by_role("button", name="Commit").click()
        expect(page.get_by_text("It landed in")).to_be_visible()
        assert ask(base, "/v0/spaces/prices/entities/flat")["doc"]["cents_per_kwh"] == 72


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


def test_settings_that_lose_records_say_how_many_and_ask_for_the_name(
    browser: Browser, server: ServerProcess
):
    base = url_of(server)
    with visiting(browser, base) as visit:
        page = visit.open("/topics/meters")
        page.get_by_role("button", name="Change").click()
        dialog = page.get_by_role("dialog")
        change = dialog.get_by_role("button", name="Change")
        dialog.get_by_label("keep at most, in records").fill("100")
        expect(dialog.get_by_label("type meters to go on")).to_have_count(0)
        dialog.get_by_label("keep at most, in records").fill("10")
        expect(dialog).to_contain_text("The oldest 51 records go at once.")
        change.click(force=True)
        assert ask(base, "/v0/topics/meters")["count"] == 61, "nothing is done without the name"
        dialog.get_by_label("type meters to go on").fill("meters")
        change.click()
        expect(dialog).to_contain_text("Changed.")
        told = json.loads(penstock(base, "topic", "show", "meters", "--json"))
        assert (told["config"]["cap_records"], told["count"]) == (10, 10)
        visit.check()


def test_escape_closes_what_enter_has_opened(browser: Browser, server: ServerProcess):
    with visiting(browser, url_of(server)) as visit:
        page = visit.open("/topics/other")
        expect(page.locator(".tail tbody tr")).to_have_count(3)
        for key in ("j", "j", "k", "Enter"):
            page.keyboard.press(key)
        opened = page.get_by_role("region", name="Record 3", exact=True)
        expect(opened).to_be_visible()
        page.keyboard.press("Escape")
        expect(opened).to_have_count(0)
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("hold a live tail")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        visit.check()


@pytest.mark.parametrize(("typed", "path"), [("meters", "/topics/meters"), ("lak", "/lake")])
def test_go_to_leads_to_any_page_and_topic_by_keys(
    browser: Browser, filled: str, typed: str, path: str
):
    with visiting(browser, filled) as visit:
        page = visit.open("/")
        page.keyboard.press("Control+k")
        expect(page.get_by_role("combobox")).to_be_focused()
        page.keyboard.type(typed)
        expect(page.get_by_role("option", selected=True)).to_contain_text(typed, ignore_case=True)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{path}")
        visit.check()


def test_go_to_does_what_the_buttons_of_the_page_do(browser: Browser, filled: str):
    with visiting(browser, filled) as visit:
        page = visit.open("/topics/meters")
        page.keyboard.press("/")
        expect(page.get_by_role("combobox")).to_be_focused()
        page.keyboard.type("remove")
        expect(page.get_by_role("option")).to_have_count(1)
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_contain_text("This cannot be undone.")
        visit.check()
