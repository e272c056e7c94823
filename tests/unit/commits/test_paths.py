"""Places in documents: pointers, what a patch touches, and what meets what."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.commits.model import (
    ABSENT,
    meet,
    merge_patch,
    overlaps,
    parse_path,
    touched,
    touches,
    value_at,
)
from penstock.protocol.commits import CommitWrite
from penstock.protocol.errors import InvalidRequest

DOCUMENT = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "m~n": 8, "o": {"01": 2}}


@pytest.mark.parametrize(
    ("pointer", "path", "value"),
    [
        ("", (), DOCUMENT),
        ("/foo", ("foo",), ["bar", "baz"]),
        ("/foo/0", ("foo", "0"), "bar"),
        ("/foo/2", ("foo", "2"), "missing"),
        ("/foo/01", ("foo", "01"), "missing"),
        ("/foo/-", ("foo", "-"), "missing"),
        ("/o/01", ("o", "01"), 2),
        ("/", ("",), 0),
        ("/a~1b", ("a/b",), 1),
        ("/m~0n", ("m~n",), 8),
        ("/~01", ("~1",), "missing"),
        ("/a~1b/x", ("a/b", "x"), "missing"),
    ],
)
def test_a_pointer_names_a_place(pointer: str, path: tuple[str, ...], value: Any) -> None:
    assert parse_path(pointer) == path
    assert value_at(DOCUMENT, path, "missing") == value


@pytest.mark.parametrize("pointer", ["a", "a/b", "/~", "/~2", "/a~", "#/a"])
def test_what_is_no_pointer_is_refused(pointer: str) -> None:
    with pytest.raises(InvalidRequest, match="JSON pointer"):
        parse_path(pointer)


@pytest.mark.parametrize(
    ("document", "patch", "places"),
    [
        ({"a": 1}, {"a": 2}, {("a",)}),
        ({"a": 1}, {"b": 2}, {("b",)}),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, {("a", "b")}),
        ({"a": {"b": 1}}, {"a": {"b": None, "c": 1}}, {("a", "b"), ("a", "c")}),
        ({"a": [1]}, {"a": {"b": 2}}, {("a",)}),
        ({}, {"a": {"b": 2}}, {("a",)}),
        ({"a": {}}, {"a": {}}, {("a",)}),
        ({"a": 1}, {}, {()}),
        ({"a": 1}, 5, {()}),
        ([1], {"a": 1}, {()}),
        (None, {"a": 1}, {()}),
    ],
)
def test_the_places_that_a_patch_touches(
    document: Any, patch: Any, places: set[tuple[str, ...]]
) -> None:
    assert set(touched(document, patch)) == places


@pytest.mark.parametrize(
    ("read", "write", "deep", "shallow"),
    [
        ("", "", True, True),
        ("/a", "", True, True),
        ("", "/a", True, False),
        ("/a", "/a", True, True),
        ("/a/b", "/a", True, True),
        ("/a", "/a/b", True, False),
        ("/a", "/ab", False, False),
        ("/a/b", "/a/c", False, False),
    ],
)
def test_what_a_write_may_change_for_a_reader(
    read: str, write: str, deep: bool, shallow: bool
) -> None:
    assert meet(parse_path(read), parse_path(write)) is deep
    assert meet(parse_path(read), parse_path(write), shallow=True) is shallow


def test_a_whole_document_and_a_new_one_overlap_with_everything() -> None:
    for write in (
        CommitWrite("e", set=1),
        CommitWrite("e", delete=True),
        CommitWrite("e", patch=1),
    ):
        assert overlaps(write, "/x/y", document={"a": 1}, shallow=True)
    assert touches(ABSENT, CommitWrite("e", patch={"a": 1})) == ((),)
    assert not overlaps(CommitWrite("e", patch={"a": 1}), "/b", document={})


@pytest.mark.parametrize(
    ("document", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_does_what_its_standard_says(document: Any, patch: Any, result: Any) -> None:
    before = repr((document, patch))
    assert merge_patch(document, patch) == result
    assert repr((document, patch)) == before
