"""Texts of changes: written and read as DuckDB does."""

from __future__ import annotations

import pytest

from penstock.kernel.errors import Corrupt
from penstock.lake.changes import ORDER, Changes, parse, parse_all

FROM_DUCKDB = (
    'created_schema:"main"',
    'created_table:"main"."w",inserted_into_table:1,inlined_insert:6',
    "inserted_into_table:1,inlined_insert:6,inlined_delete:1,inlined_delete:6",
    "deleted_from_table:2,inline_flush:2",
    'created_table:"main"."this ""table"", has: marks"',
    "merge_adjacent:1",
    "rewrite_delete:1",
    "dropped_schema:2",
)


@pytest.mark.parametrize("text", FROM_DUCKDB)
def test_a_text_of_duckdb_is_written_back_as_it_was(text: str) -> None:
    assert parse(text).text() == text


def test_names_with_quotes_commas_and_dots_come_back() -> None:
    changes = Changes()
    for name in ('a"b', "c,d", "e.f", "", "g:1"):
        changes.add("created_table", "main", name)
        changes.add("created_schema", name)
    assert parse(changes.text()) == changes


def test_names_are_compared_without_case() -> None:
    assert parse('created_table:"Main"."T"').names("created_table") == {("main", "t")}


def test_changes_of_several_snapshots_add_up_and_no_text_is_no_change() -> None:
    found = parse_all(["inserted_into_table:1", None, "", "inserted_into_table:2,altered_table:1"])
    assert found.ids("inserted_into_table", "altered_table") == {1, 2}
    assert not parse(None)


@pytest.mark.parametrize(
    "text",
    [
        "exploded:1",
        "inserted_into_table",
        "altered_table:x",
        "created_table:main",
        'created_schema:"a',
    ],
)
def test_a_text_of_no_known_form_is_corrupt_and_said_so(text: str) -> None:
    with pytest.raises(
        Corrupt, match=r"no id after|in double quotes|is not closed|knows no change"
    ):
        parse(text)


def test_every_kind_is_listed_once() -> None:
    assert len(set(ORDER)) == len(ORDER)
