"""Predicates: both spellings, what they match, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocol.errors import InvalidRequest
from penstock.topics.core.predicate import parse_predicate


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ("x", ["tag", "Eq", "x"]),
        ("", ["tag", "Eq", ""]),
        ("x*", ["tag", "Glob", "x*"]),
        ("*", ["tag", "Glob", "*"]),
        (["tag", "Eq", "a*b"], ["tag", "Eq", "a*b"]),
        (["tag", "Glob", "p*"], ["tag", "Glob", "p*"]),
    ],
)
def test_every_spelling_comes_back_in_three_parts(value: Any, form: list[str]) -> None:
    predicate = parse_predicate(value)
    assert predicate.serialised() == form
    assert parse_predicate(form) == predicate


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        [],
        ["tag", "Eq"],
        ["tag", "Eq", 5],
        ["node", "Eq", "x"],
        ["tag", "Like", "x"],
        ["tag", "Glob", "x"],
        ["tag", "Glob", ""],
        ["tag", "Glob", "a*b*"],
        ["tag", "Glob", "**"],
        "a*b",
        {"tag": "x"},
    ],
)
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse_predicate(value)


def test_a_prefix_is_literal_and_a_record_without_a_tag_never_matches() -> None:
    chat = parse_predicate("chat-42:*")
    assert chat.matches("chat-42:")
    assert chat.matches("chat-42:7")
    assert not chat.matches("chat-420:7")
    assert not chat.matches(None)
    assert not parse_predicate("").matches(None)
    assert parse_predicate("a.c").matches("a.c")
    assert not parse_predicate("a.c").matches("abc")
