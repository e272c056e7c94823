"""Rows found by value in a table that DuckDB and Penstock wrote, and deleted from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.lake.catalog import Catalog
from penstock.lake.locate import locate
from penstock.lake.row_index import RowIndex
from penstock.testing import seeded
from tests.integration.lake.duck import Duck

COLUMNS = "id BIGINT, word VARCHAR, price DOUBLE, tags INTEGER[]"
ROWS = """SELECT i % 40 AS id, CASE WHEN i % 5 > 0 THEN 'w' || (i % 3) END AS word,
    (i % 4) / 3.0::DOUBLE AS price, CASE WHEN i % 2 = 0 THEN [i % 2, NULL] END AS tags
    FROM range({}, {}) r(i)"""


def fill(duck: Duck) -> None:
    """Files, rows in the catalog, delete files, deletes in the catalog, and a compaction."""
    duck.run("CALL lake.set_option('data_inlining_row_limit', 20)")
    duck.run(f"CREATE TABLE t ({COLUMNS})")
    duck.run(f"INSERT INTO t {ROWS.format(0, 300)}")
    duck.run(f"INSERT INTO t {ROWS.format(100, 500)}")
    duck.run("DELETE FROM t WHERE id = 7 AND word = 'w1'")
    duck.run("DELETE FROM t WHERE id BETWEEN 10 AND 19")
    duck.run(f"INSERT INTO t {ROWS.format(0, 10)}")
    duck.run("DELETE FROM t WHERE id = 2")


def bag_of(rows: pa.Table) -> Counter[str]:
    return Counter(repr(row) for row in rows.to_pylist())


def take_out(catalog: Catalog, index: RowIndex, wanted: list[tuple[dict[str, Any], int]]) -> Any:
    version = catalog.table_at("t")
    rows = pa.Table.from_pylist([row for row, _ in wanted], schema=version.table.arrow_schema)
    counts = np.array([count for _, count in wanted], np.int64)
    return locate(catalog.storage, index, version, rows, counts)


@pytest.mark.parametrize("kind", ["sqlite"])
def test_every_row_is_found_as_often_as_it_is_there(
    catalog: Catalog, duck: Duck, tmp_path: Path
) -> None:
    fill(duck)
    with seeded(19) as random:
        for _ in range(6):
            rows = catalog.scan("t")
            held = bag_of(rows)
            distinct = list({repr(row): row for row in rows.to_pylist()}.values())
            chosen = [(row, random.randint(1, held[repr(row)]))
                      for row in random.sample(distinct, 9)]  # fmt: skip
            found = take_out(catalog, RowIndex(tmp_path / "index"), chosen)
            assert not found.missing.any()
            change = catalog.begin()
            table = catalog.table("t")
            change.delete_rows(table, found.deletes)
            change.delete_inlined(table, found.inlined_deletes)
            catalog.commit(change)
            held.subtract({repr(row): count for row, count in chosen})
            assert bag_of(catalog.scan("t")) == +held
            assert bag_of(duck.run("SELECT * FROM t")) == +held


@pytest.mark.parametrize("kind", ["sqlite"])
def test_what_is_not_there_is_missing_and_counted(
    catalog: Catalog, duck: Duck, tmp_path: Path
) -> None:
    fill(duck)
    (row, *_) = catalog.scan("t").slice(0, 1).to_pylist()
    held = bag_of(catalog.scan("t"))[repr(row)]
    index = RowIndex(tmp_path / "index")
    found = take_out(catalog, index, [(row, held + 2), ({**row, "word": "other"}, 1)])
    assert found.missing.tolist() == [2, 1]


@pytest.mark.parametrize("kind", ["sqlite"])
def test_floats_that_differ_in_the_last_digits_are_the_same_row(
    catalog: Catalog, duck: Duck, tmp_path: Path
) -> None:
    duck.run("CREATE TABLE t (k BIGINT, total DOUBLE)")
    duck.run("INSERT INTO t VALUES (1, 0.3), (2, 1e300), (3, 'NaN'), (4, NULL), (5, 1.0)")
    index = RowIndex(tmp_path / "index")
    wanted = [{"k": 1, "total": 0.1 + 0.2}, {"k": 3, "total": float("nan")},
              {"k": 4, "total": None}, {"k": 5, "total": 2.0}]  # fmt: skip
    found = take_out(catalog, index, [(row, 1) for row in wanted])
    assert found.missing.tolist() == [0, 0, 0, 1], "2.0 is another number, not another last digit"
    assert found.close.tolist() == [1, 0, 0, 0]
    assert found.held.to_pylist() == [{"k": 1, "total": 0.3}], "as it is in the table"


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_row_with_other_last_digits_is_not_taken_for_one_that_stays(
    catalog: Catalog, duck: Duck, tmp_path: Path
) -> None:
    duck.run("CREATE TABLE t (k BIGINT, total DOUBLE)")
    duck.run("INSERT INTO t VALUES (1, 0.3), (1, 0.3000000001), (2, 0.5), (2, 0.7), (3, 1e-7)")
    near = {"k": 1, "total": 0.1 + 0.2}
    index = RowIndex(tmp_path / "index")
    found = take_out(catalog, index, [(near, 1)])
    assert found.missing.tolist() == [1], "it may be either"
    both = [(near, 1), ({"k": 1, "total": 0.3000000001}, 1)]
    assert take_out(catalog, index, both).missing.tolist() == [0, 0], "one exactly, so the other"
    every = [({"k": 2, "total": 0.5 + 1e-12}, 1), ({"k": 2, "total": 0.7 - 1e-12}, 1)]
    found = take_out(catalog, index, every)
    assert found.missing.tolist() == [0, 0], "no row of the key stays"
    assert sum(rows.count for rows in found.deletes) + len(found.inlined_deletes) == 2
    assert found.close.tolist() == [1, 1]
    assert bag_of(found.held) == bag_of(pa.table({"k": [2, 2], "total": [0.5, 0.7]}))
    duck.run("CREATE TABLE one AS SELECT 0.3::DOUBLE AS total")
    version = catalog.table_at("one")
    rows = pa.table({"total": [0.1 + 0.2]})
    assert not locate(catalog.storage, index, version, rows, np.array([1])).missing.any()


@pytest.mark.parametrize("kind", ["sqlite"])
def test_copies_are_used_again_and_make_room_for_others(
    catalog: Catalog, duck: Duck, tmp_path: Path
) -> None:
    duck.run("CREATE TABLE t AS SELECT i AS n, 'text ' || i AS s FROM range(200000) r(i)")
    version = catalog.table_at("t")
    (file,) = version.files
    home = tmp_path / "index"
    first = RowIndex(home).in_version(catalog.storage, version, file)
    assert first.place is not None
    catalog.storage.remove(file.path)
    again = RowIndex(home).in_version(catalog.storage, version, file)
    assert again.take(np.array([199_999, 3])).to_pylist() == [
        {"n": 199_999, "s": "text 199999"}, {"n": 3, "s": "text 3"},
    ]  # fmt: skip
    duck.run("CREATE TABLE u AS SELECT i AS n, 'text ' || i AS s FROM range(200000) r(i)")
    other = catalog.table_at("u")
    small = RowIndex(home, bytes_max=8 << 20)
    assert small.in_version(catalog.storage, other, other.files[0]).take(np.array([5])).num_rows
    assert not first.place.exists(), "the older copy had to go"
