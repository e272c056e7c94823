"""Two people and one document."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.javascript import Modules

BASE = {"price": "0.31", "from": "2020", "zones": ["a"]}
LEAVES = st.one_of(st.booleans(), st.integers(-3, 3), st.text("ab/~", max_size=2), st.just([1]))
DOCS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.one_of(LEAVES, st.dictionaries(st.sampled_from(["x", "y"]), LEAVES, max_size=2)),
    max_size=3,
)


@pytest.fixture(scope="module")
def js() -> Modules:
    return Modules("js/merge.js")


@given(before=DOCS, after=DOCS)
@settings(max_examples=100, deadline=None)
def test_a_patch_makes_the_one_of_the_other(
    js: Modules, before: dict[str, Any], after: dict[str, Any]
) -> None:
    patch = js.call("patchOf", before, after)
    assert js.call("patched", before, patch) == after
    same = json.dumps(before, sort_keys=True) == json.dumps(after, sort_keys=True)  # 1 is not true
    assert (patch == {}) == same


def test_others_changes_are_taken_and_mine_are_kept(js: Modules) -> None:
    mine, theirs = {**BASE, "price": "0.33"}, {**BASE, "price": "0.32", "from": "2026"}
    assert js.call("rebased", BASE, mine, theirs) == {**BASE, "price": "0.33", "from": "2026"}


def test_a_field_that_both_changed_is_marked(js: Modules) -> None:
    mine, theirs = {**BASE, "price": "0.33"}, {**BASE, "price": "0.32", "from": "2026"}
    assert js.call("changes", BASE, mine, theirs) == {
        "mine": ["price"], "theirs": ["price", "from"], "touching": ["price"],
    }  # fmt: skip


def test_the_same_change_by_both_is_not_marked(js: Modules) -> None:
    same = {**BASE, "price": "0.33"}
    assert js.call("changes", BASE, same, same)["touching"] == []


def test_a_member_that_i_removed_stays_removed(js: Modules) -> None:
    mine = {"price": "0.31", "from": "2020"}
    assert js.call("rebased", BASE, mine, {**BASE, "from": "2026"}) == {
        "price": "0.31", "from": "2026",
    }  # fmt: skip


def test_a_pointer_escapes_what_json_pointer_reserves(js: Modules) -> None:
    assert js.call("pointer", "a/b~c") == "/a~1b~0c"


def test_history_tells_the_document_before_and_after_each_commit(js: Modules) -> None:
    commits = [
        {"seq": 1, "writes": [{"set": {"a": 1}}]},
        {"seq": 2, "writes": [{"patch": {"a": 2, "b": 3}}]},
        {"seq": 3, "writes": [{"delete": True}]},
    ]
    told = js.call("versions", commits, None)
    assert [(one["before"], one["after"]) for one in told] == [
        (None, {"a": 1}), ({"a": 1}, {"a": 2, "b": 3}), ({"a": 2, "b": 3}, None),
    ]  # fmt: skip


def test_the_newest_commits_begin_with_the_document_before_them(js: Modules) -> None:
    commits = [{"seq": 8, "writes": [{"patch": {"a": 2}}]}]
    (told,) = js.call("versions", commits, {"a": 1, "b": 3})
    assert (told["before"], told["after"]) == ({"a": 1, "b": 3}, {"a": 2, "b": 3})


def test_what_is_not_known_of_a_document_is_not_made_up(js: Modules) -> None:
    commits = [
        {"seq": 8, "writes": [{"patch": {"a": 2}}]},
        {"seq": 9, "writes": [{"set": {"a": 3}}]},
    ]
    first, second = js.call("versions", commits)
    assert not {"before", "after"} & first.keys()
    assert second["after"] == {"a": 3}
