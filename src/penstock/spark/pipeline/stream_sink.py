"""The lake as a sink of Structured Streaming: each micro-batch is one snapshot, exactly once.

```
sink = LakeSink("sqlite:lake.sqlite", "clicks", checkpoint="/data/clicks")
rows.writeStream.foreachBatch(sink).option("checkpointLocation", sink.checkpoint).start()
```

Spark repeats a micro-batch under the same number if it cannot know that it was done. So the commit
of a batch also moves a cursor to its number, and a batch that the cursor has passed is not written
again. The cursor belongs to the query's id, which Spark keeps in the checkpoint: a query that
begins with a new checkpoint numbers its batches from zero again, and has a cursor of its own.

Spark calls a sink in a Python process beside its driver, so the catalog and the lake's files must
be in reach from there. The files are written by the tasks of the micro-batch, as in a pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa

from penstock.kernel.errors import Conflict, Rejected
from penstock.lake.catalog import Catalog, open_catalog
from penstock.lake.model import joined
from penstock.lake.storage import Storage
from penstock.spark.lake.types import lake_schema
from penstock.spark.pipeline.chain import job_reports
from penstock.spark.pipeline.cursors import Cursor, Moved, TakenOver, cursor_of, move, take_over
from penstock.spark.pipeline.store import (
    RESERVE_MS,
    add_written,
    check_unchanged,
    find_tables,
    taken_columns,
)
from penstock.spark.pipeline.task import TargetTable, TaskReport, TaskWork

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.types import StructType

    from penstock.lake.model import TableInfo

_STREAM: Final = "(structured streaming)"
"""What stands in the place of a topic in the cursor of a query."""
_EPOCH: Final = 1

Targets = tuple[tuple[str, tuple[str, ...] | None], ...]


@dataclass(frozen=True, slots=True)
class LakeSink:
    """Adds the micro-batches of a query to tables of the lake; for `foreachBatch`.

    `target` is a table that takes every column of the rows, or several tables with the columns that
    each takes; they change in one snapshot, and are created by the first batch. `checkpoint` is the
    query's `checkpointLocation`. `data_path` is where a new lake keeps its files.
    """

    catalog: str
    target: str | Mapping[str, Sequence[str]]
    checkpoint: str
    data_path: str | None = None
    targets: Targets = field(init=False, repr=False)

    def __post_init__(self) -> None:
        target = self.target
        made: Targets = ((target, None),) if isinstance(target, str) else tuple(
            (name, tuple(columns)) for name, columns in target.items()
        )  # fmt: skip
        if not made or not all(name for name, _ in made):
            raise Rejected(f"a sink needs a table to write to, not {target!r}")
        object.__setattr__(self, "targets", made)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Add a micro-batch, unless it is there already. Spark calls this."""
        _writer(self).add(rows, batch_id)


_WRITERS: Final[dict[tuple[str, str, Targets], _StreamWriter]] = {}
"""The writer of each query in this process, which Spark keeps for all of its batches."""


def _writer(sink: LakeSink) -> _StreamWriter:
    key = sink.catalog, sink.checkpoint, sink.targets
    if key not in _WRITERS:
        name = f"stream {query_id(sink.checkpoint)}"
        _WRITERS[key] = _StreamWriter(
            open_catalog(sink.catalog, sink.data_path), name, sink.targets
        )
    return _WRITERS[key]


def query_id(checkpoint: str) -> str:
    """The id of the query that a checkpoint belongs to."""
    path = joined(checkpoint.removeprefix("file:"), "metadata")
    try:
        with Storage(checkpoint.removeprefix("file:")).open_input(path) as file:
            return str(json.loads(file.read())["id"])
    except (OSError, ValueError, KeyError) as error:
        raise Rejected(
            f"the checkpoint of this query is not at {checkpoint}: give the sink the same path as "
            f"the option checkpointLocation ({error})"
        ) from error


class _StreamWriter:
    """The batches of one query. For one thread."""

    def __init__(self, lake: Catalog, name: str, targets: Targets) -> None:
        self.lake = lake
        self._targets = targets
        self._cursor = take_over(lake, name, _STREAM, _EPOCH, uuid4().hex)
        self._schema: StructType | None = None
        self._tables: tuple[TableInfo, ...] = ()
        self._work: tuple[TargetTable, ...] = ()

    def add(self, rows: DataFrame, batch_id: int) -> None:
        done = self._found().seq
        if batch_id == done - 1:
            return  # Spark did not hear that it was committed
        if batch_id != done:
            raise Rejected(
                f"the lake has {done} batches of this query, and Spark goes on with batch number "
                f"{batch_id}: this lake or this checkpoint is an older copy; begin with a new "
                "checkpoint"
            )
        self._describe(rows)
        token = self.lake.reserve(RESERVE_MS)
        work = TaskWork(self.lake.storage.root, token, self._work)
        self._commit(job_reports(rows, work), batch_id, token)

    def _found(self) -> Cursor:
        found = cursor_of(self.lake, self._cursor.name)
        if found is None or found.holder != self._cursor.holder:
            raise TakenOver("another process has begun to run this query")
        return found

    def _describe(self, rows: DataFrame) -> None:
        """Ask Spark for the columns once: they are the same in every batch of a query."""
        if self._schema is None:
            found = rows.schema
            schema = lake_schema(found)
            if "_reason" in schema.names:
                raise Rejected(
                    "a sink does not keep dead letters: store the rows that have a _reason by a "
                    "query of their own, and drop the column"
                )
            names = [taken_columns(schema.names, each, "the query") for _, each in self._targets]
            wanted = {
                name: pa.schema([schema.field(each) for each in listed])
                for (name, _), listed in zip(self._targets, names, strict=True)
            }
            tables = find_tables(self.lake, wanted, self._cursor.name)
            self._tables = tuple(tables[name] for name, _ in self._targets)
            self._work = tuple(
                TargetTable(table.path, table.columns, tuple(listed))
                for table, listed in zip(self._tables, names, strict=True)
            )
            self._schema = found
        rows._cached_schema = self._schema

    def _commit(self, reports: list[TaskReport], batch_id: int, token: str) -> None:
        lake = self.lake
        transaction = lake.begin()
        transaction.token = token
        check_unchanged(lake, transaction, self._tables)
        add_written(lake, transaction, self._tables, self._work, reports)
        rows_in = sum(report.rows_in for report in reports)
        rows = sum(report.rows for report in reports)
        moved = Moved(batch_id, batch_id + 1, rows_in, 0, rows, 0)
        move(transaction, self._cursor, moved, lake.clock.now_ms())
        transaction.author = "penstock"
        transaction.message = f"{self._cursor.name}: batch {batch_id}"
        try:
            lake.commit(transaction)
        except Conflict:
            self._found()  # says so if it is not ours any more
            raise
