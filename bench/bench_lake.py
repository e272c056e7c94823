"""Lake: a commit of the catalog on SQLite, against a bare transaction of such rows and DuckDB.

The three take turns, each on a catalog of its own in the same directory. The files are written
beforehand: a commit is the catalog's work alone. The bare transaction inserts as many rows of the
same widths in one synced transaction and looks at nothing; DuckDB registers the file with
`ducklake_add_data_files`, and inserts the same rows with INSERT, which also writes them.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from bench.report import Report
from penstock.lake.catalog import Catalog, open_catalog
from penstock.lake.model import NewFile, TableInfo

COMMITS = 150
ROWS = 1_000
GOAL_MS = 10
TINY = {"COMMITS": 3, "ROWS": 10}
BARE_TABLES = {
    "data_file": "(a PRIMARY KEY, b, c, d, e, f, g, h, i, j)",
    "stats": "(a, b, c, d, e, f, g, h, i)",
    "counters": "(a, b, c)",
    "snapshot": "(a PRIMARY KEY, b, c, d, e)",
    "changes": "(a PRIMARY KEY, b)",
}


def run(report: Report) -> None:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        measured(report, home)
    finally:
        shutil.rmtree(home)


def measured(report: Report, home: Path) -> None:
    (home / "ours").mkdir()
    catalog = open_catalog(f"sqlite:{home}/ours/catalog.sqlite")
    tables = [make(catalog, name) for name in ("a", "b")]
    files = [[catalog.write(table, rows()) for table in tables] for _ in range(COMMITS)]
    bare = Bare(home / "bare.sqlite")
    duck = Duck(home / "duck")
    taken: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], Any]) -> None:
        began = time.perf_counter_ns()
        work()
        taken.setdefault(name, []).append((time.perf_counter_ns() - began) / 1e6)

    for first, second in files:
        timed("one table", lambda f=first: append(catalog, tables[:1], [f]))
        timed("bare", bare.run)
        timed("two tables", lambda f=first, s=second: append(catalog, tables, [f, s]))
        timed("DuckDB registers", lambda f=first: duck.register(f.path))
        timed("DuckDB inserts", duck.insert)
        timed("look", lambda: catalog.table_at(tables[0]))
    catalog.close()
    duck.close()
    show(report, {name: median(values) for name, values in taken.items()})


def show(report: Report, medians: dict[str, float]) -> None:
    bare = medians["bare"]
    for name, title in (
        ("one table", "commit: a file for one table"),
        ("two tables", "commit: a file for each of two tables"),
    ):
        value = medians[name]
        report.row(
            title, value, "ms", ratio=value / bare, against="bare SQLite transaction",
            goal=f"under {GOAL_MS} ms", met=value < GOAL_MS,
        )  # fmt: skip
    report.row("bare SQLite transaction of the same rows", bare, "ms")
    for name, title in (
        ("DuckDB registers", "DuckDB: registers the same file"),
        ("DuckDB inserts", "DuckDB: inserts the same rows"),
    ):
        value = medians[name]
        against = "commit: a file for one table"
        report.row(title, value, "ms", ratio=value / medians["one table"], against=against)
    report.row("look: all files of a table at the newest snapshot", medians["look"], "ms")


def make(catalog: Catalog, name: str) -> TableInfo:
    transaction = catalog.begin()
    transaction.create_table(catalog.schema("main"), name, rows().schema)
    catalog.commit(transaction)
    return catalog.table(name)


def rows() -> pa.Table:
    return pa.table(
        {
            "k": pa.array(range(ROWS), pa.int64()),
            "name": pa.array([f"name {i}" for i in range(ROWS)]),
            "price": pa.array([i / 7 for i in range(ROWS)], pa.float64()),
            "day": pa.array(range(ROWS), pa.int32()).cast(pa.date32()),
        }
    )


def append(catalog: Catalog, tables: list[TableInfo], files: list[NewFile]) -> None:
    transaction = catalog.begin()
    for table, file in zip(tables, files, strict=True):
        transaction.add_files(table, [file])
    catalog.commit(transaction)


class Bare:
    """SQLite alone: the same numbers of rows of the same widths, in one synced transaction."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        for name, columns in BARE_TABLES.items():
            self._connection.execute(f"CREATE TABLE {name} {columns}")
        self._number = 0

    def run(self) -> None:
        self._number += 1
        number = self._number
        self._connection.execute("BEGIN IMMEDIATE")
        for name, values in (
            ("data_file", [(number, 1, number, "path.parquet", 1, "parquet", ROWS, 9, 9, 0)]),
            ("stats", [(number, 1, c, 9, ROWS, 0, "min", "max", 0) for c in range(1, 5)]),
            ("counters", [(number, number, number)]),
            ("snapshot", [(number, "2026-01-01 00:00:00+00", 1, 3, number)]),
            ("changes", [(number, "inserted_into_table:1")]),
        ):
            marks = ", ".join("?" * len(values[0]))
            self._connection.executemany(f"INSERT INTO {name} VALUES ({marks})", values)
        self._connection.execute("COMMIT")


class Duck:
    """DuckDB on a lake of its own with a SQLite catalog."""

    def __init__(self, home: Path) -> None:
        import duckdb

        home.mkdir()
        self._connection = duckdb.connect()
        for name in ("ducklake", "sqlite_scanner"):
            spec = find_spec(f"duckdb_extension_{name}")
            if spec is None or spec.origin is None:
                raise SystemExit(f"expected the package duckdb_extension_{name}, found none")
            for path in Path(spec.origin).parent.glob(f"extensions/*/{name}.duckdb_extension"):
                self._connection.execute(f"LOAD '{path}'")
        self._connection.execute(
            f"ATTACH 'ducklake:sqlite:{home}/catalog.sqlite' AS lake (DATA_PATH '{home}/data')"
        )
        self._connection.execute("USE lake")
        for name in ("registered", "inserted"):
            self._connection.execute(
                f"CREATE TABLE {name} (k BIGINT, name VARCHAR, price DOUBLE, day DATE)"
            )
        self._connection.register("given", rows())

    def register(self, path: str) -> None:
        self._connection.execute(f"CALL ducklake_add_data_files('lake', 'registered', '{path}')")

    def insert(self) -> None:
        self._connection.execute("INSERT INTO inserted SELECT * FROM given")

    def close(self) -> None:
        self._connection.close()
