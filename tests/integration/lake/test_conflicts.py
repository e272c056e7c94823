"""Writers side by side: DuckLake's rules hold between us and DuckDB, and no commit is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.kernel.errors import Conflict
from penstock.lake.catalog import Catalog, open_catalog
from penstock.lake.expire import sweep
from penstock.lake.selection import FileRows
from penstock.lake.transaction import LakeTransaction
from penstock.tables.coordinator.tokens import SqlTokenPool
from penstock.testing.clock import ManualClock
from tests.integration.lake.agree import assert_same_tables
from tests.integration.lake.duck import Duck, DuckError
from tests.integration.postgres import KINDS

SCHEMA = pa.schema([("k", pa.int64())])


def make_table(catalog: Catalog, name: str = "t", rows: int = 100) -> Any:
    transaction = catalog.begin()
    table = transaction.create_table(catalog.schema("main"), name, SCHEMA)
    transaction.add_files(table, [catalog.write(table, pa.table({"k": list(range(rows))}))])
    catalog.commit(transaction)
    return catalog.table(name)


def append(catalog: Catalog, transaction: LakeTransaction) -> None:
    table = catalog.table("t", transaction.base)
    transaction.add_files(table, [catalog.write(table, pa.table({"k": [1_000]}))])


def delete(catalog: Catalog, transaction: LakeTransaction, inline_max: int = 64) -> None:
    version = catalog.table_at("t", transaction.base)
    rows = [FileRows(version.files[0], np.arange(20, 25))]
    transaction.delete_rows(version.table, rows, inline_max=inline_max)


def delete_by_file(catalog: Catalog, transaction: LakeTransaction) -> None:
    delete(catalog, transaction, inline_max=0)


def replace(catalog: Catalog, transaction: LakeTransaction) -> None:
    table = catalog.table("t", transaction.base)
    transaction.replace_contents(table, [catalog.write(table, pa.table({"k": [7]}))])


def alter(catalog: Catalog, transaction: LakeTransaction) -> None:
    table = catalog.table("t", transaction.base)
    transaction.add_column(table, pa.field("extra", pa.string()))


def drop(catalog: Catalog, transaction: LakeTransaction) -> None:
    transaction.drop_table(catalog.table("t", transaction.base))


def create(catalog: Catalog, transaction: LakeTransaction) -> None:
    transaction.create_table(catalog.schema("main"), "made", SCHEMA)


OURS = (append, delete, delete_by_file, replace, alter, drop, create)
THEIRS = {
    "append": "INSERT INTO t SELECT i FROM range(500, 550) r(i)",
    "inline": "INSERT INTO t VALUES (500)",
    "delete": "DELETE FROM t WHERE k BETWEEN 30 AND 60",
    "delete inline": "DELETE FROM t WHERE k = 30",
    "alter": "ALTER TABLE t ADD COLUMN more INTEGER",
    "drop": "DROP TABLE t",
    "create": "CREATE TABLE made (k BIGINT)",
    "elsewhere": "INSERT INTO other VALUES (1)",
}
CLASHES = {
    ("append", "delete"), ("append", "delete inline"), ("append", "alter"), ("append", "drop"),
    *((mine, theirs) for mine in ("delete", "delete_by_file", "replace")
      for theirs in ("append", "inline", "delete", "delete inline", "alter", "drop")),
    ("alter", "alter"), ("alter", "drop"), ("drop", "drop"), ("create", "create"),
}  # fmt: skip


def test_a_commit_stands_beside_another_or_is_refused_by_the_rules(
    catalog: Catalog, duck: Duck
) -> None:
    make_table(catalog, "other")
    for mine in OURS:
        for name, statement in THEIRS.items():
            duck.run("DROP TABLE IF EXISTS t")
            duck.run("DROP TABLE IF EXISTS made")
            make_table(catalog)
            transaction = catalog.begin()
            mine(catalog, transaction)
            duck.run(statement)
            latest = catalog.latest().id
            if (mine.__name__, name) in CLASHES:
                with pytest.raises(Conflict, match=r"another commit|already"):
                    catalog.commit(transaction)
                assert catalog.latest().id == latest, (mine, name)
            else:
                done = catalog.commit(transaction)
                assert done.snapshot is not None
                assert done.snapshot.id == latest + 1, (mine, name)
        assert_same_tables(catalog, duck, newest=True)


# On SQLite a transaction of DuckDB that has read holds the file: nobody commits meanwhile.
@pytest.mark.parametrize("kind", KINDS[1:], indirect=True)
def test_duckdb_refuses_by_what_our_commits_say(catalog: Catalog, duck: Duck) -> None:
    table = make_table(catalog)
    for mine, statement in (
        (append, "DELETE FROM t WHERE k = 5"),
        (delete, "INSERT INTO t SELECT i FROM range(50) r(i)"),
        (delete, "DELETE FROM t WHERE k = 22"),
        (delete_by_file, "UPDATE t SET k = -1 WHERE k = 50"),
        (replace, "INSERT INTO t VALUES (1)"),
        (alter, "INSERT INTO t VALUES (1)"),
    ):
        duck.run("DROP TABLE t")
        table = make_table(catalog)
        duck.run("BEGIN")
        duck.run(statement)
        transaction = catalog.begin()
        mine(catalog, transaction)
        catalog.commit(transaction)
        with pytest.raises(DuckError, match="conflict"):
            duck.run("COMMIT")
    assert table.name == "t"
    assert_same_tables(catalog, duck, newest=True)


def test_two_appends_are_both_kept_with_row_ids_of_their_own(catalog: Catalog) -> None:
    make_table(catalog)
    first, second = catalog.begin(), catalog.begin()
    append(catalog, first)
    append(catalog, second)
    catalog.commit(first)
    catalog.commit(second)
    version = catalog.table_at("t")
    assert [file.row_id_start for file in version.files] == [0, 100, 101]
    assert catalog.scan("t").num_rows == 102


def test_threads_lose_and_double_nothing(catalog: Catalog) -> None:
    table = make_table(catalog, rows=1)
    catalog.migrate("test", 1, ["CREATE TABLE penstock_test (k BIGINT PRIMARY KEY)"])

    def work(worker: int) -> int:
        for step in range(6):
            key = worker * 100 + step + 1
            transaction = catalog.begin()
            transaction.add_files(table, [catalog.write(table, pa.table({"k": [key]}))])
            transaction.also("INSERT INTO penstock_test VALUES (?)", (key,))
            catalog.commit(transaction)
        return 6

    with ThreadPoolExecutor(6) as pool:
        total = sum(pool.map(work, range(6)))
    rows = catalog.scan("t").column("k").to_pylist()
    assert sorted(rows) == sorted(
        [0, *(key for (key,) in catalog.query("SELECT k FROM penstock_test"))]
    )
    assert len(rows) == total + 1 == len(set(rows))
    files = catalog.table_at("t").files
    starts = sorted(f.row_id_start for f in files if f.row_id_start is not None)
    assert starts == list(range(total + 1))
    assert [s.id for s in catalog.snapshots()] == list(range(catalog.latest().id + 1))


def append_many(address: str, worker: int, count: int) -> None:
    with open_catalog(address, create=False) as catalog:
        table = catalog.table("t")
        for step in range(count):
            transaction = catalog.begin()
            rows = pa.table({"k": [worker * 1_000 + step]})
            transaction.add_files(table, [catalog.write(table, rows)])
            catalog.commit(transaction)


def test_processes_and_duckdb_lose_and_double_nothing(
    catalog: Catalog, address: str, duck: Duck
) -> None:
    make_table(catalog, rows=1)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=append_many, args=(address, w, 8)) for w in (1, 2)]
    for worker in workers:
        worker.start()
    inserted = 0
    for step in range(8):
        try:
            duck.run(f"INSERT INTO t VALUES ({9_000 + step})")
            inserted += 1
        except DuckError as error:
            # Its own retries may run out; then nothing was written.
            if not any(word in str(error) for word in ("locked", "conflict", "could not")):
                raise
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    rows = catalog.scan("t").column("k").to_pylist()
    assert len(rows) == len(set(rows)) == 1 + 16 + inserted
    assert_same_tables(catalog, duck, newest=True)


def die_before_the_commit(address: str, told: Any) -> None:
    catalog = open_catalog(address, create=False)
    table = catalog.table("t")
    transaction = catalog.begin(reserve_ms=30_000)
    file = catalog.write(table, pa.table({"k": [66]}), token=transaction.token)
    transaction.add_files(table, [file])
    told.send(file.path)
    told.recv()  # never comes
    catalog.commit(transaction)


def test_a_writer_killed_before_its_commit_leaves_nothing_but_a_file_to_sweep(
    catalog: Catalog, address: str, duck: Duck
) -> None:
    make_table(catalog)
    before = catalog.latest()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    victim = context.Process(target=die_before_the_commit, args=(address, there))
    victim.start()
    path = Path(here.recv())
    os.kill(victim.pid or 0, signal.SIGKILL)
    victim.join(30)
    assert catalog.latest() == before
    assert duck.value("SELECT count(*) FROM t") == 100
    named = {file.path for file in catalog.table_at("t").files}
    clock = ManualClock(now_ms=catalog.clock.now_ms())
    catalog.clock = clock
    assert sweep(catalog, grace_ms=0) == []  # the reservation stands
    clock.advance(31_000)
    assert sweep(catalog, grace_ms=60_000) == []  # too young
    clock.advance(60_000)
    assert sweep(catalog, grace_ms=60_000) == [str(path)]
    assert not path.exists()
    assert all(Path(name).exists() for name in named)
    assert catalog.scan("t").num_rows == 100


def test_a_slow_writer_whose_reservation_ran_out_is_refused(catalog: Catalog) -> None:
    make_table(catalog)
    clock = ManualClock(now_ms=catalog.clock.now_ms())
    catalog.clock = clock
    kept = catalog.begin(reserve_ms=1_000)
    slow = catalog.begin(reserve_ms=1_000)
    for transaction in (kept, slow):
        table = catalog.table("t")
        rows = pa.table({"k": [1]})
        transaction.add_files(table, [catalog.write(table, rows, token=transaction.token)])
    assert kept.token is not None
    assert catalog.extend(kept.token, 1_000_000)
    clock.advance(100_000)
    assert len(sweep(catalog, grace_ms=0)) == 1
    with pytest.raises(Conflict, match="reservation"):
        catalog.commit(slow)
    catalog.commit(kept)
    assert catalog.scan("t").num_rows == 101


def test_permits_of_a_token_pool_live_in_the_same_database(catalog: Catalog) -> None:
    pool = SqlTokenPool(catalog.transact, "workers", 2, parameter=catalog.database.parameter)
    assert (pool.acquire("a"), pool.acquire("b"), pool.acquire("c")) == (True, True, False)
    assert pool.reconcile({"b"}) == {"a": 1}
