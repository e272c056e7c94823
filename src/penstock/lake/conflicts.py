"""DuckLake's conflict rules for two commits based on the same snapshot.

A later commit is rebased over earlier ones unless it touches the same objects in a way that could
change its meaning. The rules are those of DuckDB's extension, plus a few stricter ones for rows
deleted inside the catalog while their file is being compacted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from penstock.kernel.errors import Conflict
from penstock.lake.changes import Changes

_COMPACTED: Final = ("compacted_table", "merge_adjacent", "rewrite_delete")

RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "dropped_table": ("dropped_table",),
    "dropped_view": ("dropped_view",),
    "dropped_schema": ("dropped_schema",),
    "inserted_into_table": (
        "dropped_table", "altered_table", "deleted_from_table", "inlined_delete",
    ),
    "inlined_insert": (
        "dropped_table", "altered_table", "deleted_from_table", "inlined_delete",
    ),
    "deleted_from_table": (
        "dropped_table", "altered_table", *_COMPACTED, "inserted_into_table", "inlined_insert",
        "inlined_delete",
    ),
    "inlined_delete": (
        "dropped_table", "altered_table", "inlined_delete", "inline_flush", *_COMPACTED,
        "inserted_into_table", "inlined_insert", "deleted_from_table",
    ),
    "inline_flush": ("dropped_table", "inlined_delete", "inline_flush"),
    **dict.fromkeys(
        _COMPACTED,
        ("dropped_table", "altered_table", "deleted_from_table", "inlined_delete", *_COMPACTED),
    ),
    "altered_table": ("dropped_table", "altered_table"),
    "altered_view": ("dropped_view", "altered_view"),
}  # fmt: skip
"""For each of our changes, the changes by others to the same object that conflict with it."""


def check(
    ours: Changes,
    theirs: Changes,
    *,
    schema_ids: Mapping[str, int],
    our_files: Collection[int] = (),
    their_files: Collection[int] = (),
) -> None:
    """Raise `Conflict` if one of our changes is incompatible with theirs.

    `schema_ids` maps the names of the schemas we create in to their ids. `our_files` are the data
    files we delete from or end, `their_files` those that others deleted from or ended meanwhile:
    two deletes conflict only within a file.
    """
    for kind, against in RULES.items():
        for other in against:
            both = ours.ids(kind) & theirs.ids(other)
            if both:
                raise _conflict(kind, f"id {min(both)}", other)
    _check_names(ours, theirs, schema_ids)
    both = set(our_files) & set(their_files)
    if both:
        raise _conflict("deleted_from_table", f"data file {min(both)}", "deleted_from_table")


def _check_names(ours: Changes, theirs: Changes, schema_ids: Mapping[str, int]) -> None:
    for kinds in (
        ("created_schema",),
        ("created_table", "created_view"),
        ("created_scalar_macro",),
        ("created_table_macro",),
    ):
        both = ours.names(*kinds) & theirs.names(*kinds)
        if both:
            raise _conflict(kinds[0], ".".join(min(both)), kinds[0])
    made = ("created_table", "created_view", "created_scalar_macro", "created_table_macro")
    dropped = theirs.ids("dropped_schema")
    for name in ours.names(*made):
        if schema_ids.get(name[0]) in dropped:
            raise _conflict("created_table", ".".join(name), "dropped_schema")
    filled = {name[0] for name in theirs.names(*made)}
    for schema, number in schema_ids.items():
        if number in ours.ids("dropped_schema") and schema.lower() in filled:
            raise _conflict("dropped_schema", schema, "created_table")


def _conflict(ours: str, what: str, theirs: str) -> Conflict:
    return Conflict(
        f"expected nobody else to change what this commit changes ({ours}, {what}) since the "
        f"snapshot it started from, found {theirs}",
        ours=ours,
        theirs=theirs,
        what=what,
    )
