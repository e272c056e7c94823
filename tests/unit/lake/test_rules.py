"""The rules of conflict, on texts alone."""

from __future__ import annotations

import pytest

from penstock.kernel.errors import Conflict
from penstock.lake.changes import check_conflicts, parse

SCHEMAS = {"main": 0, "s2": 2}


def clash(ours: str, theirs: str, **more: set[int]) -> bool:
    try:
        check_conflicts(parse(ours), parse(theirs), schema_ids=SCHEMAS, **more)
    except Conflict:
        return True
    return False


def test_a_conflict_says_what_both_commits_change() -> None:
    with pytest.raises(
        Conflict, match=r"another commit .altered_table. .*inserted_into_table, id 1"
    ):
        check_conflicts(parse("inserted_into_table:1"), parse("altered_table:1"), schema_ids={})


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("inserted_into_table:1", "inserted_into_table:1"),
        ("inserted_into_table:1", "inlined_insert:1"),
        ("inserted_into_table:1", "merge_adjacent:1"),
        ("inserted_into_table:1", "deleted_from_table:2,altered_table:2,dropped_table:3"),
        ("altered_table:1", "inserted_into_table:1"),
        ("merge_adjacent:1", "inserted_into_table:1"),
        ("deleted_from_table:1", "deleted_from_table:1"),
        ('created_table:"main"."a"', 'created_table:"main"."b"'),
        ('created_table:"s2"."a"', 'created_table:"main"."a"'),
        ("dropped_schema:2", 'created_table:"main"."a"'),
    ],
)
def test_changes_that_stand_side_by_side(ours: str, theirs: str) -> None:
    assert not clash(ours, theirs)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("inserted_into_table:1", "deleted_from_table:1"),
        ("inserted_into_table:1", "inlined_delete:1"),
        ("inlined_insert:1", "altered_table:1"),
        ("deleted_from_table:1", "inserted_into_table:1"),
        ("deleted_from_table:1", "merge_adjacent:1"),
        ("inlined_delete:1", "inline_flush:1"),
        ("inlined_delete:1", "merge_adjacent:1"),
        ("merge_adjacent:1", "inlined_delete:1"),
        ("rewrite_delete:1", "rewrite_delete:1"),
        ("altered_table:1", "altered_table:1"),
        ("dropped_table:1", "dropped_table:1"),
        ('created_table:"main"."A"', 'created_view:"main"."a"'),
        ('created_schema:"x"', 'created_schema:"X"'),
        ('created_table:"s2"."a"', "dropped_schema:2"),
        ("dropped_schema:2", 'created_table:"s2"."a"'),
    ],
)
def test_changes_that_do_not(ours: str, theirs: str) -> None:
    assert clash(ours, theirs)


def test_two_deletes_meet_only_in_a_file() -> None:
    text = "deleted_from_table:1"
    assert not clash(text, text, our_files={1}, their_files={2})
    assert clash(text, text, our_files={1, 3}, their_files={3})
