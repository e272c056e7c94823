"""What a snapshot changed, as the text that DuckLake keeps and its conflict detection reads.

>>> made = Changes()
>>> made.add("created_table", 'main', 'a "b" c')
>>> made.add("inserted_into_table", 4)
>>> made.text()
'created_table:"main"."a ""b"" c",inserted_into_table:4'
>>> parse(made.text()) == made
True

A later commit is rebased over earlier ones unless it touches the same objects in a way that could
change its meaning. The rules are those of DuckDB's extension, plus a few stricter ones for rows
deleted inside the catalog while their file is being compacted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.kernel.errors import Conflict, Corrupt

ORDER: Final = (
    "dropped_schema",
    "dropped_table",
    "dropped_view",
    "dropped_scalar_macro",
    "dropped_table_macro",
    "created_schema",
    "created_table",
    "created_view",
    "created_scalar_macro",
    "created_table_macro",
    "inserted_into_table",
    "deleted_from_table",
    "altered_table",
    "altered_view",
    "inlined_insert",
    "inlined_delete",
    "inline_flush",
    "compacted_table",
    "merge_adjacent",
    "rewrite_delete",
)
"""Every kind of change, in the order used in a snapshot's list."""

_NAMED: Final = frozenset(kind for kind in ORDER if kind.startswith("created_"))
_SYNONYMS: Final = {"flushed_inlined": "inline_flush"}

Value = int | tuple[str, ...]
"""The id of a changed object, or the name of a created one (a schema, or schema and entry)."""


@dataclass(slots=True)
class Changes:
    """Changed objects by kind. Names are case-insensitive, as in DuckLake."""

    made: dict[str, set[Value]] = field(default_factory=dict)

    def add(self, kind: str, *what: int | str) -> None:
        """Record one change: a kind with an id, or with the names of schema and entry."""
        value: Value = what[0] if isinstance(what[0], int) else tuple(str(word) for word in what)
        self.made.setdefault(kind, set()).add(value)

    def ids(self, *kinds: str) -> set[int]:
        """The ids changed by any of these kinds."""
        return {value for kind in kinds for value in self.made.get(kind, ()) if _is_id(value)}  # type: ignore[misc]

    def names(self, *kinds: str) -> set[tuple[str, ...]]:
        """The lower-case names created by any of these kinds."""
        values = [value for kind in kinds for value in self.made.get(kind, ())]
        return {tuple(w.lower() for w in value) for value in values if isinstance(value, tuple)}

    def merge(self, other: Changes) -> None:
        """Add the changes of another snapshot."""
        for kind, values in other.made.items():
            self.made.setdefault(kind, set()).update(values)

    def text(self) -> str:
        """The list in DuckLake's format."""
        return ",".join(f"{kind}:{_value_text(value)}" for kind, value in self._listed())

    def _listed(self) -> Iterator[tuple[str, Value]]:
        for kind in ORDER:
            for value in sorted(self.made.get(kind, ()), key=str):
                yield kind, value

    def __bool__(self) -> bool:
        return any(self.made.values())


def parse(text: str | None) -> Changes:
    """Parse a change list. An unknown kind is an error: skipping it could hide a conflict."""
    changes = Changes()
    for entry in _entries(text or ""):
        kind, colon, value = entry.partition(":")
        kind = _SYNONYMS.get(kind.lower(), kind.lower())
        if not colon or kind not in ORDER:
            raise Corrupt(f"DuckLake 1.0 knows no change {entry!r}")
        if kind in _NAMED:
            changes.add(kind, *_names(value))
        elif value.isdecimal():
            changes.add(kind, int(value))
        else:
            raise Corrupt(f"no id after {kind}: in {value!r}")
    return changes


def parse_all(texts: Iterable[str | None]) -> Changes:
    """The combined changes of several snapshots."""
    changes = Changes()
    for text in texts:
        changes.merge(parse(text))
    return changes


def _is_id(value: Value) -> bool:
    return isinstance(value, int)


def _value_text(value: Value) -> str:
    if isinstance(value, int):
        return str(value)
    return ".".join('"' + word.replace('"', '""') + '"' for word in value)


def _entries(text: str) -> Iterator[str]:
    """Split at commas outside quotes."""
    start, quoted = 0, False
    for at, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            yield text[start:at]
            start = at + 1
    if text:
        yield text[start:]


def _names(value: str) -> list[str]:
    """The quoted names of `"schema"."entry"`."""
    names, at = [], 0
    while at < len(value):
        if value[at] != '"':
            raise Corrupt(f"names must be in double quotes: {value!r}")
        word, at = _quoted(value, at + 1)
        names.append(word)
        if at < len(value) and value[at] == ".":
            at += 1
    return names


def _quoted(value: str, at: int) -> tuple[str, int]:
    word: list[str] = []
    while at < len(value):
        if value[at] != '"':
            word.append(value[at])
            at += 1
        elif value[at : at + 2] == '""':
            word.append('"')
            at += 2
        else:
            return "".join(word), at + 1
    raise Corrupt(f"a quote is not closed: {value!r}")


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


def check_conflicts(
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
        f"another commit ({theirs}) changed what this one changes ({ours}, {what}) since the "
        "snapshot it started from: read again and commit again",
        ours=ours,
        theirs=theirs,
        what=what,
    )
