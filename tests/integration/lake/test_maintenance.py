"""Compaction, expiry, cleaning: fewer files and snapshots, and never another row."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.kernel.errors import Conflict, Gone
from penstock.lake.catalog import Catalog, open_catalog
from penstock.lake.compact import CompactionPolicy, compact
from penstock.lake.expire import STEP_FILES, clean, expire, sweep
from penstock.lake.selection import FileRows
from tests.integration.lake.agree import assert_same_changes, assert_same_tables, bag
from tests.integration.lake.duck import Duck

EAGER = CompactionPolicy(files_min=2, deleted_share_min=0.1)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def add(catalog: Catalog, *keys: int) -> None:
    table = catalog.table("t")
    extra = {c.name: pa.nulls(len(keys), pa.string()) for c in table.columns[2:]}
    rows = pa.table({"k": list(keys), table.columns[1].name: [f"v{k}" for k in keys], **extra})
    transaction = catalog.begin()
    transaction.add_files(table, [catalog.write(table, rows)])
    catalog.commit(transaction)


def delete(catalog: Catalog, file: int, *positions: int, inline_max: int = 64) -> None:
    version = catalog.table_at("t")
    transaction = catalog.begin(at=version.snapshot)
    rows = [FileRows(version.files[file], np.array(positions))]
    transaction.delete_rows(version.table, rows, inline_max=inline_max)
    catalog.commit(transaction)


@pytest.fixture
def used(catalog: Catalog) -> Catalog:
    """A table with a past: small files, deletes of both kinds, a change of columns."""
    transaction = catalog.begin()
    transaction.create_table(catalog.schema("main"), "t", SCHEMA)
    catalog.commit(transaction)
    for first in range(0, 40, 10):
        add(catalog, *range(first, first + 10))
    delete(catalog, 0, 1, 2)
    delete(catalog, 0, 3, 4, inline_max=0)
    delete(catalog, 1, 9, inline_max=0)
    add(catalog, 100)
    transaction = catalog.begin()
    table = transaction.rename_column(catalog.table("t"), "v", "w")
    transaction.add_column(table, pa.field("late", pa.string()), default="d")
    catalog.commit(transaction)
    add(catalog, 200)
    add(catalog, 201, 202)
    return catalog


def test_compaction_leaves_every_snapshot_and_every_change_as_it_was(
    used: Catalog, duck: Duck
) -> None:
    last = used.latest().id
    before = {at: bag(used.scan("t", at)) for at in range(1, last + 1)}
    done = compact(used, "t", EAGER)
    assert (done.files_rewritten, done.rows_dropped) == (2, 5)
    assert done.files_merged >= 4
    assert len(used.table_at("t").files) < 7
    assert {at: bag(used.scan("t", at)) for at in range(1, last + 1)} == before
    assert used.changes("t", last).is_empty
    assert_same_tables(used, duck)
    delete(used, 0, 0)
    add(used, 300)
    add(used, 301)
    compact(used, "t", EAGER)
    duck.run("DELETE FROM t WHERE k = 202")
    duck.run("UPDATE t SET w = 'new' WHERE k = 30")
    assert_same_tables(used, duck)
    for after in range(1, used.latest().id):
        found = used.changes("t", after)
        gained = bag(found.read_inserted(used.storage))
        gained.subtract(bag(found.read_deleted(used.storage)))
        assert sum(gained.values()) == used.scan("t").num_rows - used.scan("t", after).num_rows


def test_merging_alone_agrees_with_duckdbs_changes(catalog: Catalog, duck: Duck) -> None:
    transaction = catalog.begin()
    transaction.create_table(catalog.schema("main"), "t", SCHEMA)
    catalog.commit(transaction)
    for first in range(0, 30, 5):
        add(catalog, *range(first, first + 5))
    compact(catalog, "t", EAGER)
    delete(catalog, 0, 7, 22, inline_max=0)
    delete(catalog, 0, 8, inline_max=0)
    assert len(catalog.table_at("t").files) == 1
    assert_same_tables(catalog, duck)
    assert_same_changes(catalog, duck, "t")


def test_on_sqlite_a_merged_file_stands_in_rows_that_were_there_before(tmp_path: Path) -> None:
    """DuckDB looks for the last row of a table first, and then reads no further."""
    address = f"sqlite:{tmp_path / 'catalog'}"
    with open_catalog(address, str(tmp_path / "data")) as catalog:
        transaction = catalog.begin()
        transaction.create_table(catalog.schema("main"), "t", SCHEMA)
        catalog.commit(transaction)
        for key in range(4):
            add(catalog, key)
        places = ("ducklake_data_file", "ducklake_file_column_stats")
        before = [catalog.query(f"SELECT max(rowid) FROM {place}")[0][0] for place in places]
        rows = bag(catalog.scan("t"))
        assert compact(catalog, "t", EAGER).files_merged == 4
        after = [catalog.query(f"SELECT max(rowid) FROM {place}")[0][0] for place in places]
        assert all(last <= there for last, there in zip(after, before, strict=True))
        stats = (
            "SELECT column_id, value_count, min_value, max_value FROM ducklake_file_column_stats"
        )
        assert sorted(catalog.query(stats)) == [(1, 4, "0", "3"), (2, 4, "v0", "v3")]
        assert bag(catalog.scan("t")) == rows


def test_a_compaction_that_met_a_delete_is_refused_and_harms_nothing(used: Catalog) -> None:
    rows = bag(used.scan("t"))
    version = used.table_at("t")
    transaction = used.begin(at=version.snapshot)
    transaction.delete_rows(version.table, [FileRows(version.files[2], np.array([0]))])
    compact(used, "t", EAGER)
    with pytest.raises(Conflict, match=r"rewrite_delete|merge_adjacent"):
        used.commit(transaction)
    assert bag(used.scan("t")) == rows


def test_expired_snapshots_take_their_files_with_them_and_nothing_else(
    used: Catalog, duck: Duck
) -> None:
    compact(used, "t", EAGER)
    rows, last = bag(used.scan("t")), used.latest().id
    files = {file.path for file in used.table_at("t").files}
    future = datetime(2100, 1, 1, tzinfo=UTC)
    gone = expire(used, older_than=future)
    assert gone.snapshots == tuple(range(last))
    assert gone.files_scheduled > 0
    removed = clean(used, older_than=future)
    assert removed
    assert not any(Path(path).exists() for path in removed)
    assert not files & set(removed)
    assert all(Path(path).exists() for path in files)
    assert sweep(used, grace_ms=-1_000_000) == []
    stored = {str(path) for path in Path(used.data_path).rglob("*.parquet")}
    assert stored == files | deletes_of(used)
    assert bag(used.scan("t")) == rows
    with pytest.raises(Gone, match="expired"):
        used.scan("t", 1)
    with pytest.raises(Gone, match="expired"):
        used.changes("t", 1)
    assert_same_tables(used, duck)
    duck.run("INSERT INTO t VALUES (500, 'x', 'y')")
    add(used, 501)
    assert_same_tables(used, duck)


def test_many_snapshots_expire_a_few_at_a_time_and_only_old_ones(
    used: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("penstock.lake.expire"), "STEP_SNAPSHOTS", 2)
    found = used.snapshots()
    assert len(found) > 5, "several steps"
    gone = expire(used, older_than=found[-2].time)
    assert gone.snapshots == tuple(each.id for each in found if each.time < found[-2].time)
    assert [each.id for each in used.snapshots()] == [each.id for each in found[-2:]]


def test_an_hour_of_merged_files_is_forgotten_a_few_at_a_time_and_only_what_is_due(
    used: Catalog, duck: Duck, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, due = "ducklake_files_scheduled_for_deletion", datetime(2020, 1, 1, tzinfo=UTC)
    count = 50_000 if used.database.kind == "sqlite" else 5_000
    when = "2019-12-31 00:00:00+00"
    rows = [(10**6 + n, f"main/t/{n}.parquet", True, when) for n in range(count)]
    late = (10**6, "main/t/late.parquet", True, "2020-01-02 00:00:00+00")
    insert = used.database.sql(f"INSERT INTO {table} VALUES (?, ?, ?, ?)")
    used.retrying(lambda cursor: cursor.executemany(insert, [*rows, late]))
    retrying, left = Catalog.retrying, [len(rows) + 1]

    def counted(self: Catalog, work: Any, *, synced: bool = True) -> Any:
        found = retrying(self, work, synced=synced)
        left.append(self.query(f"SELECT count(*) FROM {table}")[0][0])
        return found

    monkeypatch.setattr(Catalog, "retrying", counted)
    assert len(clean(used, older_than=due)) == len(rows)
    assert max(before - after for before, after in pairwise(left)) <= STEP_FILES
    assert used.query(f"SELECT data_file_id, path FROM {table}") == [late[:2]]
    if used.database.kind == "sqlite":
        plan = used.query(f"EXPLAIN QUERY PLAN DELETE FROM {table} WHERE data_file_id = 1")
        assert "USING INDEX" in plan[0][-1], "or a commit waits for a scan of it for each file"
    duck.run("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    assert used.query(f"SELECT count(*) FROM {table}") == [(0,)]
    assert_same_tables(used, duck)


def test_an_expired_table_leaves_no_trace(used: Catalog, duck: Duck) -> None:
    duck.run("INSERT INTO t VALUES (600, 'x', 'y')")
    transaction = used.begin()
    transaction.drop_table(used.table("t"))
    used.commit(transaction)
    future = datetime(2100, 1, 1, tzinfo=UTC)
    expire(used, older_than=future)
    clean(used, older_than=future)
    assert list(Path(used.data_path).rglob("*.parquet")) == []
    for name in ("ducklake_table", "ducklake_column", "ducklake_data_file", "ducklake_delete_file",
                 "ducklake_file_column_stats", "ducklake_table_stats",
                 "ducklake_inlined_data_tables", "ducklake_schema_versions"):  # fmt: skip
        assert used.query(f"SELECT count(*) FROM {name}") == [(0,)], name
    duck.run("CREATE TABLE t AS SELECT 1 AS k, 'again' AS v")
    assert_same_tables(used, duck)


def test_duckdb_expires_and_cleans_what_we_made(used: Catalog, duck: Duck) -> None:
    compact(used, "t", EAGER)
    rows = bag(used.scan("t"))
    duck.run("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
    duck.run("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    assert bag(used.scan("t")) == rows == bag(duck.run("SELECT * FROM t"))
    stored = {str(path) for path in Path(used.data_path).rglob("*.parquet")}
    assert stored == {file.path for file in used.table_at("t").files} | deletes_of(used)


def deletes_of(catalog: Catalog) -> set[str]:
    return {delete.path for file in catalog.table_at("t").files for delete in file.deletes}
