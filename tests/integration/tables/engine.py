"""A real engine for tests: DuckDB runs the query over Arrow, Penstock writes Parquet.

It refreshes in full, and applies only the difference when `options["delta"]` says so, as downstream
tables are to see. With `options["faults"]` a directory says what goes wrong: a file named after a
table holds `retryable`, `permanent`, `away`, `lost` or `slow <ms>`; `hold` waits until the file is
gone.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.model import TableVersion
from penstock.lake.scan import file_history, read_rows, scan
from penstock.lake.selection import FileRows, live
from penstock.tables.core.history import RefreshProgress
from penstock.tables.core.model import Mode
from penstock.tables.engine import EngineAway, EngineLost, Input, Made, RefreshTask, TopicRead
from tests.integration.tables.topic_rows import topic_rows

WRONG_QUERY = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException)


class DuckEngine:
    def __init__(self, lake: Catalog, options: Mapping[str, Any]) -> None:
        self._lake = lake
        self._faults = Path(options["faults"]) if "faults" in options else None
        self._delta = bool(options.get("delta"))
        self._interrupted = threading.Event()

    def refresh(self, task: RefreshTask) -> Made:
        self._interrupted.clear()
        inputs = {name: self._rows(found) for name, found in task.inputs.items()}
        task.tell(
            RefreshProgress(rows=sum(map(len, inputs.values())), stages=1, tasks=4, tasks_done=1)
        )
        self._misbehave(task.definition.name)
        rows = self._run(task.definition.query, inputs)
        read = sum(len(table) for table in inputs.values())
        table = task.target(rows.schema)
        if task.current is not None and table.id == task.current.table.id:
            before = scan(self._lake.storage, task.current)
            if bag(before) == bag(rows):
                return Made(table, Mode.FULL, changed=False, rows_read=read)
            if self._delta:
                return self._difference(task, rows, read)
        files = (self._lake.write(table, rows, token=task.token),)
        return Made(table, Mode.FULL, files, rows_read=read, rows_written=len(rows))

    def _rows(self, found: Input) -> pa.Table:
        if found.topic is not None:
            return topic_rows(found.topic)
        assert found.version is not None
        return scan(self._lake.storage, found.version)

    def _difference(self, task: RefreshTask, rows: pa.Table, read: int) -> Made:
        assert task.current is not None
        table, missing = task.current.table, Counter(tuples(rows))
        deletes = []
        for file in task.current.files:
            story = file_history(self._lake.storage, file, upto=task.current.snapshot.id)
            selected = live(story, task.current.snapshot.id)
            found = read_rows(self._lake.storage, selected, table.columns, task.current.mappings)
            at = np.arange(file.record_count) if selected.positions is None else selected.positions
            gone = []
            for position, row in zip(at, tuples(found), strict=True):
                if missing[row]:
                    missing[row] -= 1
                else:
                    gone.append(position)
            deletes.append(FileRows(file, np.array(gone, np.int64)))
        new = list((missing).elements())
        columns = [[row[at] for row in new] for at in range(len(rows.schema))]
        added = pa.table(
            [pa.array(c, f.type) for c, f in zip(columns, rows.schema, strict=True)],
            names=rows.schema.names,
        )
        files = (self._lake.write(table, added, token=task.token),) if new else ()
        return Made(
            table, Mode.FULL, files, replace=False, deletes=tuple(d for d in deletes if d.count),
            rows_read=read, rows_written=len(new),
        )  # fmt: skip

    def query(self, sql: str, inputs: Mapping[str, TableVersion | TopicRead]) -> pa.Table:
        versions = {n: v for n, v in inputs.items() if isinstance(v, TableVersion)}
        return self._run(sql, {n: scan(self._lake.storage, v) for n, v in versions.items()})

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        return

    def _run(self, sql: str, inputs: Mapping[str, pa.Table]) -> pa.Table:
        with duckdb.connect() as connection:
            connection.execute("SET threads = 1")
            for name, table in inputs.items():
                home, _, plain = name.rpartition(".")
                connection.register(f"input_{plain}", table)
                if home:
                    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {home}")
                connection.execute(
                    f'CREATE VIEW {home or "main"}."{plain}" AS SELECT * FROM "input_{plain}"'
                )
            try:
                return connection.execute(sql).to_arrow_table()
            except WRONG_QUERY as error:
                raise Rejected(str(error)) from error

    def _misbehave(self, table: str) -> None:
        if self._faults is None:
            return
        file = self._faults / table
        text = file.read_text() if file.exists() else ""
        word, _, number = text.partition(" ")
        match word:
            case "away":
                raise EngineAway("no engine is there")
            case "lost":
                raise EngineLost("the engine ended during the refresh")
            case "retryable":
                raise OSError(f"{table} could not be read")
            case "permanent":
                raise Rejected(f"the query of {table} is wrong")
            case "slow":
                self._pause(int(number) / 1_000)
            case "hold":
                (self._faults / f"{table}.held").touch()
                while file.exists():
                    self._pause(0.01)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._interrupted.wait(0.005):
                raise InterruptedError("told to give up")


def make(lake: Catalog, options: Mapping[str, Any]) -> DuckEngine:
    return DuckEngine(lake, options)


def tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def bag(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuples(table))
