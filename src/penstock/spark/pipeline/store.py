"""The last stage: a batch's rows as files of the lake, and one commit that also moves the cursor.

A batch that is not large comes here in one job, is cut into its tables and written; a large one
is written by Spark's tasks. Files that no commit names do not count, so this may die anywhere.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernel.errors import Conflict, Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.model import NewFile, TableInfo
from penstock.lake.parquet import write_file
from penstock.lake.transaction import Transaction
from penstock.spark.lake.collect import TooLarge, arriving
from penstock.spark.lake.types import arrived_schema, for_lake, lake_schema
from penstock.spark.lake.writing import WriteOptions, write_table
from penstock.spark.pipeline.cursors import Cursor, Moved, TakenOver, cursor_of, move
from penstock.spark.pipeline.definition import DEAD_LETTERS, OWN, Pipeline
from penstock.spark.pipeline.space import Basis

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

RESERVE_MS: Final = 600_000
HERE_BYTES_MAX: Final = 64 << 20
"""Up to so many bytes of rows are written here rather than by tasks."""

_DEAD: Final = ("_seq", "_row", "_stage", "_reason")


@dataclass(frozen=True, slots=True)
class Stored:
    """What a batch left in the lake; no snapshot if it left nothing but a moved cursor."""

    snapshot: int | None
    rows: int
    dead: int


@dataclass(frozen=True, slots=True)
class Sorted:
    """Rows of a batch by where they go: good ones and those that are dead letters."""

    good: pa.Table
    dead: pa.Table


class Store:
    """Writes the batches of one pipeline. For one thread."""

    def __init__(
        self, lake: Catalog, pipeline: Pipeline, *, here_bytes_max: int = HERE_BYTES_MAX
    ) -> None:
        self._lake = lake
        self._pipeline = pipeline
        self._here_bytes_max = here_bytes_max

    def store(
        self,
        evaluated: DataFrame | None,
        messages: pa.Table,
        cursor: Cursor,
        moved: tuple[int, int, int, int],
        basis: Basis | None = None,
    ) -> Stored:
        """Write a batch and commit it. `moved`: after, upto, messages, duplicates.

        A batch of nothing but duplicates has no frame. `basis` is what it was evaluated with.

        `TakenOver` if the cursor is not where the batch began: another process moved it.
        """
        transaction = self._lake.begin(reserve_ms=RESERVE_MS)
        rows = dead = 0
        now_ms = self._lake.clock.now_ms()
        if evaluated is not None:
            rows, found = self._add_all(transaction, evaluated)
            letters = dead_letters(self._pipeline, found, messages, now_ms)
            self.add_letters(transaction, letters)
            dead = letters.num_rows
        move(transaction, cursor, Moved(*moved, rows, dead, basis), now_ms)
        transaction.author = "penstock"
        transaction.message = f"pipeline {self._pipeline.name}: up to seq {moved[1]}"
        try:
            done = self._lake.commit(transaction)
        except Conflict as error:
            now = cursor_of(self._lake, cursor.name)
            if now is None or (now.holder, now.seq) != (cursor.holder, moved[0]):
                raise TakenOver(
                    f"expected pipeline {cursor.name!r} at seq {moved[0]} and ours, found "
                    f"{now and now.seq} held by {now and now.holder!r}"
                ) from error
            raise
        return Stored(None if done.snapshot is None else done.snapshot.id, rows, dead)

    def _add_all(self, transaction: Transaction, evaluated: DataFrame) -> tuple[int, pa.Table]:
        """Write the good rows; how many they are, and the dead ones."""
        try:
            found = sort_rows(collected(evaluated, self._here_bytes_max))
            return self.add_rows(transaction, found.good), found.dead
        except TooLarge:
            found = sort_rows(collected(evaluated.where("_reason IS NOT NULL"), None))
            good = evaluated.where("_reason IS NULL")
            return self._add_by_tasks(transaction, good), found.dead

    def add_rows(self, transaction: Transaction, good: pa.Table) -> int:
        """Write good rows as files of every target."""
        for name, columns in self._pipeline.targets.items():
            part = good.select(_columns(good.column_names, columns))
            table = table_for(self._lake, transaction, name, arrived_schema(part.schema))
            self._add(transaction, table, for_lake(part, table.columns))
        return int(good.num_rows)

    def add_letters(self, transaction: Transaction, letters: pa.Table) -> None:
        """Write dead letters."""
        table = table_for(self._lake, transaction, self._pipeline.dead_letters, DEAD_LETTERS)
        self._add(transaction, table, letters)

    def _add(self, transaction: Transaction, table: TableInfo, rows: pa.Table) -> None:
        if rows.num_rows:
            storage, token = self._lake.storage, transaction.token
            file = write_file(storage, table.path, table.columns, rows, token=token)
            transaction.add_files(table, [file])

    def _add_by_tasks(self, transaction: Transaction, good: DataFrame) -> int:
        rows = 0
        for name, columns in self._pipeline.targets.items():
            part = good.select(*_columns(good.columns, columns))
            table = table_for(self._lake, transaction, name, lake_schema(part.schema))
            files: Sequence[NewFile] = write_table(
                self._lake.storage, table, part, token=transaction.token,
                rows_expected=1 << 62, options=WriteOptions(),
            ).files  # fmt: skip
            transaction.add_files(table, files)
            rows = sum(file.record_count for file in files)
        return rows


def collected(frame: DataFrame, bytes_max: int | None) -> pa.Table:
    """The rows of a frame, here; `TooLarge` if they are more than that."""
    return pa.concat_tables(list(arriving(frame, bytes_max=bytes_max).batches()))


def sort_rows(rows: pa.Table) -> Sorted:
    """Good rows and dead ones."""
    is_dead = pc.is_valid(rows.column("_reason"))
    return Sorted(rows.filter(pc.invert(is_dead)), rows.filter(is_dead).select(_DEAD))


def dead_letters(pipeline: Pipeline, dead: pa.Table, messages: pa.Table, now_ms: int) -> pa.Table:
    """Dead rows as dead letters, with the bytes of the messages that they come from."""
    if not dead.num_rows:
        return DEAD_LETTERS.empty_table()
    places = pc.index_in(dead.column("_seq"), value_set=messages.column("_seq").combine_chunks())
    if places.null_count:
        raise Rejected("expected _seq to be that of the message, found others")
    origin = messages.take(places)
    count = dead.num_rows
    columns = {
        "pipeline": pa.array([pipeline.name] * count),
        "seq": dead.column("_seq"),
        "row_no": dead.column("_row"),
        "stage": dead.column("_stage"),
        "reason": dead.column("_reason"),
        "device": origin.column("device"),
        "message_id": origin.column("message_id"),
        "received_at": origin.column("received_at"),
        "payload": pa.array(
            [original(pipeline, text) for text in origin.column("payload").to_pylist()],
            pa.binary(),
        ),
        "failed_at": pa.array([now_ms * 1_000] * count, pa.int64()).cast(
            DEAD_LETTERS.field("failed_at").type
        ),
    }
    return pa.table([columns[f.name].cast(f.type) for f in DEAD_LETTERS], schema=DEAD_LETTERS)


def original(pipeline: Pipeline, text: str | bytes) -> bytes:
    """The bytes that were sent; those of the record where it does not hold valid base64."""
    if isinstance(text, bytes):
        return text
    if pipeline.payload == "base64":
        try:
            return base64.b64decode(text[1:-1], validate=True)
        except (binascii.Error, ValueError):
            pass
    return text.encode()


def table_for(lake: Catalog, transaction: Transaction, name: str, schema: pa.Schema) -> TableInfo:
    """A table of the lake, made by this transaction if it is not there."""
    for operation in transaction.operations:
        made = getattr(operation, "table", None)
        if made is not None and made.id < 0 and made.qualified.endswith(f".{_plain(name)}"):
            return made  # type: ignore[no-any-return]
    namespace, _, plain = name.rpartition(".")
    for table in lake.tables(transaction.base):
        if table.name == plain and table.schema.name == (namespace or "main"):
            return table
    return transaction.create_table(lake.schema(namespace or "main"), plain, schema)


def _plain(name: str) -> str:
    return name.rpartition(".")[2]


def _columns(found: Sequence[str], wanted: Sequence[str] | None) -> list[str]:
    if wanted is None:
        return [name for name in found if name not in (*OWN, "_stage")]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise Rejected(
            f"expected evaluate to give the columns {', '.join(wanted)}, found no "
            f"{', '.join(missing)}"
        )
    return list(wanted)
