"""What the tab that leads asks the stream for, and which tabs it still counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.server.live.stream import PAGES_MAX
from tests.javascript import Modules


@pytest.fixture
def js() -> Modules:
    return Modules("js/reduce.js")


def tab(on: str, *, hidden: bool = False, heard: int = 0) -> dict[str, Any]:
    return {"on": on, "hidden": hidden, "heard": heard}


def given(js: Modules, tabs: dict[str, Any]) -> None:
    js.run(f"globalThis.tabs = new Map({json.dumps(list(tabs.items()))})")


def test_as_many_pages_are_asked_for_as_the_server_streams(js: Modules) -> None:
    assert js.value("PAGES_MAX") == PAGES_MAX
    given(js, {str(n): tab(f"/topics/t{n}") for n in range(PAGES_MAX + 4)})
    asked = js.value(f"subjects(tabs, '{PAGES_MAX + 2}')")
    assert len(asked) == PAGES_MAX
    assert asked[0] == f"/topics/t{PAGES_MAX + 2}", "its own comes first"


def test_what_can_be_seen_comes_before_what_is_hidden_and_each_page_once(js: Modules) -> None:
    tabs = {"a": tab("/a", hidden=True), "b": tab("/b"), "c": tab("/c", hidden=True)}
    given(js, {**tabs, "d": tab("/b"), "e": tab("/e")})
    assert js.value("subjects(tabs, 'c')") == ["/c", "/b", "/e", "/a"]


def test_a_tab_that_says_nothing_for_long_does_not_count(js: Modules) -> None:
    gone = js.value("GONE_MS")
    given(js, {"own": tab("/"), "old": tab("/old", heard=9), "new": tab("/new", heard=10)})
    assert js.value(f"[...present(tabs, 'own', {gone + 9}).keys()]") == ["own", "new"]


def test_a_tab_is_told_all_of_its_page_when_it_comes_and_when_it_shows_another(
    js: Modules,
) -> None:
    given(js, {"a": tab("/a")})
    says = [("a", "/a", False), ("a", "/x", True), ("b", "/a", True)]
    for name, on, is_new in says:
        assert js.value(f"heardOf(tabs, '{name}', {json.dumps(tab(on))}).isNew") == is_new
