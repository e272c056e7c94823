"""Texts that two programs must read alike, and bounds that must hold, for any input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lake.changes import ORDER, Changes, parse
from penstock.lake.columns import columns_of
from penstock.lake.parquet import write_file
from penstock.lake.selection import NEVER, FileHistory, live, net_changes
from penstock.lake.stats import sort_key
from penstock.lake.storage import Storage
from tests.unit.lake.test_selection import file

NAMES = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=6)
NAMED = [kind for kind in ORDER if kind.startswith("created_") and kind != "created_schema"]
NUMBERED = [kind for kind in ORDER if not kind.startswith("created_")]
ENTRIES = st.one_of(
    st.tuples(st.sampled_from(NUMBERED), st.tuples(st.integers(0, 10**6))),
    st.tuples(st.sampled_from(NAMED), st.tuples(NAMES, NAMES)),
    st.tuples(st.just("created_schema"), st.tuples(NAMES)),
)


@given(st.lists(ENTRIES, max_size=8))
def test_any_changes_come_back_from_their_text(entries: list[tuple[str, tuple[Any, ...]]]) -> None:
    changes = Changes()
    for kind, what in entries:
        changes.add(kind, *what)
    assert parse(changes.text()) == changes


VALUES = {
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float64": (pa.float64(), st.floats(allow_nan=False)),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "text": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=8)),
    "decimal": (pa.decimal128(12, 3), st.decimals(-(10**8), 10**8, places=3, allow_nan=False)),
    "day": (pa.date32(), st.dates()),
    "moment": (pa.timestamp("us"), st.datetimes()),
    "clock": (pa.time64("us"), st.times()),
    "flag": (pa.bool_(), st.booleans()),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | made for name, (_, made) in VALUES.items()}),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40)  # every example writes and syncs two files
@given(left=ROWS, right=ROWS)
def test_the_bounds_of_a_file_hold_for_every_value(
    tmp_path_factory: Any, left: list[dict[str, Any]], right: list[dict[str, Any]]
) -> None:
    directory: Path = tmp_path_factory.getbasetemp()
    storage, columns = Storage(str(directory)), columns_of(SCHEMA)
    files = [
        write_file(storage, f"{directory}/", columns, pa.Table.from_pylist(rows, SCHEMA))
        for rows in (left, right)
    ]
    known = [{entry.column_id: entry for entry in made.stats} for made in files]
    for column in columns:
        for rows, stats in zip((left, right), known, strict=True):
            entry = stats[column.id]
            values = [row[column.name] for row in rows if row[column.name] is not None]
            assert (entry.value_count, entry.null_count) == (len(values), len(rows) - len(values))
            exact = pa.array(values, SCHEMA.field(column.name).type).to_pylist()
            assert_bounds(column.type, entry.min, entry.max, exact)
    for made in files:
        Path(made.path).unlink()


def assert_bounds(kind: str, low: str | None, high: str | None, values: list[Any]) -> None:
    """A bound may be missing; one that is there is not above (below) any value."""
    for value in values:
        text = str(int(value)) if kind == "boolean" else str(value)
        if kind.startswith("time") and "." in text:
            text = text.rstrip("0")
        key = sort_key(kind, text)
        if low is not None:
            assert sort_key(kind, low) <= key
        if high is not None:
            assert sort_key(kind, high) >= key


EVENTS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=8)


@given(rows=EVENTS, after=st.integers(0, 10), length=st.integers(0, 10))
def test_net_changes_are_the_difference_of_what_was_there(
    rows: list[tuple[int, int]], after: int, length: int
) -> None:
    begins = np.array([begin for begin, _ in rows])
    ends = np.array([begin + lived if lived < 9 else NEVER for begin, lived in rows])
    story = FileHistory(file(1, len(rows), begin=1), begins, ends)
    until = after + length
    before, then = (rows_of(story, at) for at in (after, until))
    inserted, deleted = net_changes([story], after, until)
    assert {p for f in inserted for p in places(f)} == then - before
    assert {p for f in deleted for p in places(f)} == before - then


def rows_of(story: FileHistory, at: int) -> set[int]:
    return places(live(story, at))


def places(rows: Any) -> set[int]:
    every = range(rows.file.record_count)
    return set(every if rows.positions is None else rows.positions.tolist())
