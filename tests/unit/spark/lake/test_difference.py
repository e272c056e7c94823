"""Differences of two bags of rows: as few as can be, and exactly what makes one the other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.catalog import open_catalog
from penstock.lake.row_codes import row_codes
from penstock.spark.lake.difference import RecentFiles, difference, unmatched

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("l", pa.list_(pa.int32())),
        ("n", pa.decimal128(9, 2)),
    ]
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.none() | st.integers(0, 2),
            "f": st.none() | st.sampled_from([0.5, float("nan")]),
            "s": st.none() | st.sampled_from(["", "a"]),
            "l": st.none() | st.lists(st.none() | st.integers(0, 1), max_size=2),
            "n": st.none() | st.decimals(0, 1, places=2),
        }
    ),
    max_size=30,
)


def bag(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(row) for row in rows)


@given(ROWS, ROWS)
def test_what_goes_and_what_comes_makes_one_bag_the_other(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    tables = [pa.Table.from_pylist(rows, SCHEMA) for rows in (one, other)]
    gone, added = unmatched(*row_codes(*tables))
    lists = [table.to_pylist() for table in tables]
    before, after = (bag(rows) for rows in lists)
    lost = bag([row for row, chosen in zip(lists[0], gone, strict=True) if chosen])
    won = bag([row for row, chosen in zip(lists[1], added, strict=True) if chosen])
    assert lost == before - after
    assert won == after - before


def test_many_columns_of_many_values_do_not_run_out_of_numbers() -> None:
    rows = pa.table({f"c{n}": [(i * 7 + n) % 1_000 for i in range(1_000)] for n in range(12)})
    gone, added = unmatched(*row_codes(rows, rows.slice(1)))
    assert gone.nonzero()[0].tolist() == [0]
    assert not added.any()


def test_a_small_file_is_read_once(tmp_path: Path) -> None:
    """The file is taken away after the first look: a second one would fail."""
    rows = pa.table({"n": [1, 2, 3, 3]})
    with open_catalog(f"sqlite:{tmp_path}/lake.sqlite") as lake:
        change = lake.begin()
        table = change.create_table(lake.schema("main"), "t", rows.schema)
        file = lake.write(table, rows)
        change.add_files(table, [file])
        lake.commit(change)
        current, recent = lake.table_at("t"), RecentFiles()
        assert difference(lake.storage, current, rows, recent).size == 0
        Path(file.path).unlink()
        found = difference(lake.storage, current, pa.table({"n": [3, 4]}), recent)
    assert found.added.to_pydict() == {"n": [4]}
    assert found.gone.num_rows == 3
    assert [list(entry.positions) for entry in found.deletes] == [[0, 1, 2]]


def test_files_that_were_not_used_for_longest_make_room() -> None:
    rows = pa.table({"n": range(100)})
    recent = RecentFiles(bytes_max=2 * rows.nbytes)
    for name in ("a", "b", "c"):
        recent.put(name, (), rows)
    assert [name for name, _ in recent._held] == ["b", "c"]


def test_a_large_file_is_not_kept() -> None:
    rows = pa.table({"n": range(100)})
    recent = RecentFiles(file_bytes_max=rows.nbytes - 1)
    recent.put("a", (), rows)
    assert not recent._held
