"""What we write, DuckDB reads: every type, every table of a commit, with files skipped rightly."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from penstock.kernel.errors import Conflict
from penstock.lake.catalog import Catalog, open_catalog
from penstock.lake.expire import sweep
from penstock.lake.selection import FileRows
from penstock.lake.transaction import SNAPSHOT
from tests.integration.lake.agree import assert_same_changes, assert_same_tables, bag
from tests.integration.lake.duck import Duck

NEW_YEAR = datetime.fromisoformat("2024-01-01 00:00:00")
BEFORE_1970 = datetime.fromisoformat("1969-12-31 23:59:30")
TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "flag": (pa.bool_(), lambda i: i % 2 == 0),
    "i8": (pa.int8(), lambda i: i - 100),
    "i16": (pa.int16(), lambda i: i - 1_000),
    "i32": (pa.int32(), lambda i: -i),
    "i64": (pa.int64(), lambda i: i * 10**12),
    "u8": (pa.uint8(), lambda i: i),
    "u16": (pa.uint16(), lambda i: i * 600),
    "u32": (pa.uint32(), lambda i: 2**32 - 1 - i),
    "u64": (pa.uint64(), lambda i: 2**64 - 1 - i),
    "f32": (pa.float32(), lambda i: i / 8),
    "f64": (pa.float64(), lambda i: i / 10 - 3),
    "small": (pa.decimal128(7, 2), lambda i: Decimal(i) / 100),
    "medium": (pa.decimal128(16, 3), lambda i: Decimal(-i) / 1000),
    "large": (pa.decimal128(38, 4), lambda i: Decimal(i * 10**25) / 10000),
    "day": (pa.date32(), lambda i: date(1969, 12, 20) + timedelta(days=i)),
    "clock": (pa.time64("us"), lambda i: time(0, i % 60, 7, i)),
    "ts": (pa.timestamp("us"), lambda i: BEFORE_1970 + timedelta(seconds=i)),
    "tz": (
        pa.timestamp("us", "UTC"),
        lambda i: datetime(2024, 1, 1, tzinfo=UTC) + timedelta(milliseconds=i),
    ),
    "ts_s": (pa.timestamp("s"), lambda i: NEW_YEAR + timedelta(seconds=i)),
    "ts_ms": (pa.timestamp("ms"), lambda i: NEW_YEAR + timedelta(milliseconds=i)),
    "text": (pa.string(), lambda i: f"text {i:03} é\U0001f98a"),
    "bytes": (pa.binary(), lambda i: bytes([i % 256, 0, 255])),
    "id": (pa.uuid(), lambda i: UUID(int=i * 2**100)),
    "list": (pa.list_(pa.int32()), lambda i: [i, None] * (i % 3)),
    "record": (
        pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]),
        lambda i: {"x": i, "y": ["a", None]} if i % 4 else {"x": None, "y": None},
    ),
    "map": (pa.map_(pa.string(), pa.float64()), lambda i: [("a", i / 2), ("b", None)][: i % 3]),
}
ORDERED = [
    name for name in TYPES if name not in ("flag", "bytes", "list", "record", "map", "clock")
]


def typed_rows(first: int, count: int) -> pa.Table:
    """Rows of every type; every seventh row is NULL but for its number."""
    arrays: dict[str, Any] = {"n": pa.array(range(first, first + count), pa.int64())}
    for name, (kind, make) in TYPES.items():
        values = [None if i % 7 == 3 else make(i) for i in range(first, first + count)]
        if kind == pa.uuid():
            storage = pa.array([v and v.bytes for v in values], pa.binary(16))
            arrays[name] = pa.ExtensionArray.from_storage(kind, storage)
        else:
            arrays[name] = pa.array(values, kind)
    return pa.table(arrays)


def literal(value: Any) -> str:
    if isinstance(value, datetime):
        return f"'{value.isoformat(sep=' ')}'"
    if isinstance(value, date | time | UUID | str):
        return f"'{value}'"
    return str(value)


@pytest.fixture
def typed(catalog: Catalog) -> Catalog:
    """A table `t` of every type in four files of ten rows."""
    transaction = catalog.begin()
    table = transaction.create_table(catalog.schema("main"), "t", typed_rows(0, 1).schema)
    files = [catalog.write(table, typed_rows(first, 10)) for first in range(0, 40, 10)]
    transaction.add_files(table, files)
    catalog.commit(transaction)
    return catalog


def test_every_type_comes_back_as_it_was_written(typed: Catalog, duck: Duck) -> None:
    written = typed_rows(0, 40)
    assert bag(typed.scan("t")) == bag(written)
    theirs = duck.run("SELECT * FROM t ORDER BY n")
    assert theirs.column_names == written.column_names
    for mine, row in zip(written.to_pylist(), theirs.to_pylist(), strict=True):
        assert {**row, "id": row["id"] and UUID(str(row["id"]))} == mine


def test_a_filter_finds_all_rows_and_skips_the_other_files(typed: Catalog, duck: Duck) -> None:
    rows = typed_rows(0, 40).to_pylist()
    for name in ORDERED:
        wanted = rows[25][name]
        condition = f"{name} = {literal(wanted)}"
        expected = [row["n"] for row in rows if row[name] == wanted]
        found = duck.run(f"SELECT n FROM t WHERE {condition}").column("n").to_pylist()
        assert found == expected, name
        assert files_read(duck, condition) == 1, name


def test_no_filter_loses_a_row(typed: Catalog, duck: Duck) -> None:
    rows = typed_rows(0, 40).to_pylist()
    expected: dict[str, set[int]] = {}
    for name in TYPES:
        null = {row["n"] for row in rows if row[name] is None}
        expected[f"{name} IS NULL"] = null
        expected[f"{name} IS NOT NULL"] = set(range(40)) - null
    for name in ORDERED:
        held = [row for row in rows if row[name] is not None]
        for bound in (rows[12][name], rows[39][name]):
            below = {row["n"] for row in held if row[name] < bound}
            expected[f"{name} < {literal(bound)}"] = below
            expected[f"{name} >= {literal(bound)}"] = {row["n"] for row in held} - below
    found: dict[str, set[int]] = {condition: set() for condition in expected}
    # One statement, in which every branch skips files for itself.
    for row in duck.rows(
        " UNION ALL ".join(
            f"SELECT {place} AS place, n FROM t WHERE {condition}"
            for place, condition in enumerate(expected)
        )
    ):
        found[list(expected)[row["place"]]].add(row["n"])
    assert found == expected


def test_not_a_number_is_found_wherever_it_hides(catalog: Catalog, duck: Duck) -> None:
    schema = pa.schema([("x", pa.float64()), ("y", pa.float32())])
    transaction = catalog.begin()
    table = transaction.create_table(catalog.schema("main"), "t", schema)
    for values in ([1.0, math.nan], [2.0, 3.0], [math.nan], [None, -math.inf], [math.inf]):
        rows = pa.table({"x": pa.array(values, pa.float64()), "y": pa.array(values, pa.float32())})
        transaction.add_files(table, [catalog.write(table, rows)])
    catalog.commit(transaction)
    for name in ("x", "y"):
        assert duck.value(f"SELECT count(*) FROM t WHERE isnan({name})") == 2
        assert duck.value(f"SELECT count(*) FROM t WHERE {name} > 100") == 3
        assert duck.value(f"SELECT count(*) FROM t WHERE {name} = 'nan'") == 2
        assert duck.value(f"SELECT count(*) FROM t WHERE {name} < 0") == 1
        assert duck.value(f"SELECT count(*) FROM t WHERE {name} <= 2") == 3


def test_a_commit_of_many_tables_is_one_snapshot(catalog: Catalog, duck: Duck) -> None:
    transaction = catalog.begin()
    schema = transaction.create_schema("sales")
    for name in ("a", "b", 'odd "name", with dots.'):
        table = transaction.create_table(schema, name, pa.schema([("k", pa.int64())]))
        transaction.add_files(table, [catalog.write(table, pa.table({"k": [1, 2]}))])
    before = duck.value("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')")
    done = catalog.commit(transaction)
    assert done.snapshot is not None
    assert duck.value("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')") == before + 1
    assert_same_tables(catalog, duck)
    both = [catalog.table(f"sales.{name}") for name in ("a", "b")]
    transaction = catalog.begin()
    for table in both:
        transaction.replace_contents(table, [catalog.write(table, pa.table({"k": [3]}))])
    catalog.commit(transaction)
    assert duck.rows("SELECT * FROM sales.a UNION ALL SELECT * FROM sales.b") == [{"k": 3}] * 2
    assert_same_tables(catalog, duck)


def test_duckdb_sees_deletes_in_the_catalog_in_files_and_over_time(
    catalog: Catalog, duck: Duck
) -> None:
    table = numbers(catalog, "t", range(100), range(100, 200))
    assert duck.value("SELECT count(*) FROM t") == 200
    for first, inline_max in ((0, 64), (10, 0), (20, 0), (30, 64), (40, 0)):
        version = catalog.table_at("t")
        transaction = catalog.begin(at=version.snapshot)
        rows = [FileRows(file, np.arange(first, first + 5)) for file in version.files]
        transaction.delete_rows(table, rows, inline_max=inline_max)
        catalog.commit(transaction)
        assert duck.value("SELECT count(*) FROM t") == catalog.scan("t").num_rows
    assert catalog.scan("t").num_rows == 150
    assert_same_tables(catalog, duck)
    assert_same_changes(catalog, duck, "t")


def test_a_table_altered_by_us_reads_the_same_in_duckdb(catalog: Catalog, duck: Duck) -> None:
    table = numbers(catalog, "t", range(30))
    duck.run("INSERT INTO t VALUES (1000)")
    transaction = catalog.begin()
    table = transaction.rename_column(catalog.table("t"), "k", "key")
    table = transaction.add_column(table, pa.field("note", pa.string()), default="none")
    table = transaction.add_column(table, pa.field("more", pa.struct([("x", pa.int32())])))
    catalog.commit(transaction)
    assert_same_tables(catalog, duck)
    duck.run("INSERT INTO t VALUES (1001, 'new', {'x': 1})")
    duck.run("INSERT INTO t SELECT i, 'many', NULL FROM range(50) r(i)")
    transaction = catalog.begin()
    table = transaction.drop_column(catalog.table("t"), "note")
    table = transaction.rename_table(table, "renamed")
    transaction.comment(table, "what it is for")
    transaction.comment(table, "the key", column="key")
    catalog.commit(transaction)
    duck.run("INSERT INTO renamed VALUES (1002, {'x': 2})")
    assert_same_tables(catalog, duck)
    comment = "SELECT comment FROM duckdb_tables() WHERE table_name = 'renamed'"
    assert duck.value(comment) == catalog.table("renamed").comment == "what it is for"
    transaction = catalog.begin()
    transaction.drop_table(catalog.table("renamed"))
    catalog.commit(transaction)
    assert duck.rows("SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake'") == []
    assert_same_tables(catalog, duck)


def test_our_own_rows_commit_with_the_data_or_not_at_all(catalog: Catalog) -> None:
    catalog.migrate("test", 1, ["CREATE TABLE penstock_test (name TEXT PRIMARY KEY, at BIGINT)"])
    catalog.migrate("test", 1, ["CREATE TABLE penstock_test (this is not run again)"])
    table = numbers(catalog, "t", range(3))
    transaction = catalog.begin()
    transaction.add_files(table, [catalog.write(table, pa.table({"k": [9]}))])
    transaction.also("INSERT INTO penstock_test VALUES (?, ?)", ("frontier", SNAPSHOT))
    done = catalog.commit(transaction)
    assert done.snapshot is not None
    frontier = "SELECT at FROM penstock_test WHERE name = ?"
    assert catalog.query(frontier, ("frontier",)) == [(done.snapshot.id,)]
    transaction = catalog.begin()
    transaction.add_files(table, [catalog.write(table, pa.table({"k": [10]}))])
    transaction.also("UPDATE penstock_test SET at = ?", (SNAPSHOT,))
    transaction.expect(frontier, ("frontier",), 12345)
    with pytest.raises(Conflict, match="12345"):
        catalog.commit(transaction)
    transaction.expectations.clear()
    transaction.also("UPDATE penstock_test SET at = 1 WHERE name = 'nobody'", rows=1)
    with pytest.raises(Conflict, match="changed 0 rows, not 1"):
        catalog.commit(transaction)
    transaction.statements.clear()
    transaction.also("INSERT INTO penstock_test VALUES ('frontier', 1)")
    with pytest.raises(Conflict, match="do not fit their tables"):
        catalog.commit(transaction)
    assert catalog.latest() == done.snapshot
    assert catalog.query(frontier, ("frontier",)) == [(done.snapshot.id,)]


def numbers(catalog: Catalog, name: str, *files: range) -> Any:
    transaction = catalog.begin()
    schema = pa.schema([("k", pa.int64())])
    table = transaction.create_table(catalog.schema("main"), name, schema)
    transaction.add_files(table, [catalog.write(table, pa.table({"k": list(f)})) for f in files])
    catalog.commit(transaction)
    return catalog.table(name)


def files_read(duck: Duck, condition: str) -> int:
    plan = duck.rows(f"EXPLAIN ANALYZE SELECT * FROM t WHERE {condition}")[0]["explain_value"]
    return int(plan.split("Total Files Read: ")[1].split()[0])


def test_a_data_path_may_be_a_url(address: str, tmp_path: Path) -> None:
    with open_catalog(address, f"file://{tmp_path}/by-url") as catalog:
        table = numbers(catalog, "t", range(10), range(10, 20))
        version = catalog.table_at(table)
        assert all(
            file.path.startswith(f"file://{tmp_path}/by-url/main/t/") for file in version.files
        )
        transaction = catalog.begin()
        transaction.delete_rows(table, [FileRows(version.files[0], np.arange(5))], inline_max=0)
        catalog.commit(transaction)
        assert catalog.scan("t").num_rows == 15
        catalog.write(table, pa.table({"k": [1]}))
        assert len(sweep(catalog, grace_ms=-60_000)) == 1
        assert catalog.scan("t").num_rows == 15


def test_columns_with_marks_in_their_names(catalog: Catalog, duck: Duck) -> None:
    rows = pa.table({"ok?": [1, 2], "50%": [3, 4], 'a"?': [5, 6]})
    change = catalog.begin()
    table = change.create_table(catalog.schema("main"), "t", rows.schema)
    change.add_files(table, [catalog.write(table, rows)])
    catalog.commit(change)
    duck.run("INSERT INTO lake.main.t VALUES (7, 8, 9)")
    assert bag(catalog.scan("t")) == bag(
        pa.table({"ok?": [1, 2, 7], "50%": [3, 4, 8], 'a"?': [5, 6, 9]})
    )
