"""What changed of an input since the contents were made, as weighted rows, and the rows before.

First it is looked up how much changed, in the catalog; the rows are read once they are wanted. A
lake table's changes come from its snapshots, by whatever writer; a topic's from its range of
seqs. Few changed rows are read here and handed to Spark with the query; many are read by Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernel.errors import Gone, Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.changes import parse
from penstock.lake.columns import Column
from penstock.lake.feed import WEIGHT_COLUMN, FeedFile, FeedLost, read_feed
from penstock.lake.model import TableInfo, TableVersion, held_bytes, held_rows
from penstock.lake.reader import Reader
from penstock.lake.row_index import RowIndex
from penstock.lake.scan import ChangeRange, ChangeSpan, read_rows
from penstock.lake.selection import FileRows
from penstock.lake.storage import Storage
from penstock.spark.delta.by_tasks import fed_frame
from penstock.spark.delta.errors import MustBeFull
from penstock.spark.delta.handover import Handover
from penstock.spark.delta.limits import DeltaLimits
from penstock.spark.delta.near import NearRows
from penstock.spark.delta.weighted import consolidated, weighted, weights_of
from penstock.spark.lake.reading import read_deleted, read_inserted, read_table
from penstock.spark.topics.source import declared_schema, read_topic
from penstock.tables.core.frontier import LakePosition, TopicPosition
from penstock.tables.core.history import ReasonCode
from penstock.tables.delta.ranges import Range
from penstock.tables.delta.rules import WEIGHT
from penstock.tables.engine import Input, SourceRecreated, TopicRead
from penstock.tables.positions import CHANGES

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

_WEIGHT: Final = Column(WEIGHT_COLUMN.id, WEIGHT, "int64")

Frame = Callable[["SparkSession"], "DataFrame"]


@dataclass(frozen=True, slots=True)
class InputChange:
    """How one input changed: the rows it had and has, and the weighted rows between them.

    `count` is the number of weighted rows, by the catalog where they were not read yet: then
    `unread` reads them, and `old` are rows of the same columns.
    """

    name: str
    columns: tuple[str, ...]
    old: Frame
    new: Frame
    unread: Callable[[], InputChange] | None = None
    delta: Frame | None = None
    count: int = 0
    rows_read: int = 0
    rows_held: int = 0
    bytes_held: int = 0
    shape: str = ""
    """Its columns with their types, as a text that differs where they do."""
    rows: pa.Table | None = None
    """The weighted rows, if they were read here."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """The types of a lake table's columns."""
    held: TableVersion | None = None
    """A lake table with its old rows."""

    def read(self) -> InputChange:
        """The change with its rows; raises `MustBeFull` if it cannot be known any more."""
        return self if self.unread is None else self.unread()


def changed_inputs(changes: Mapping[str, InputChange]) -> set[str]:
    """The inputs of which some rows changed."""
    return {name for name, change in changes.items() if change.delta is not None}


class ChangedRanges:
    """What changes that are here say of the old rows that must be read."""

    def __init__(
        self,
        changes: Mapping[str, InputChange],
        near: NearRows | None = None,
        narrowed: Mapping[tuple[str, str], pa.ChunkedArray] | None = None,
    ) -> None:
        """`narrowed` are the only values that matter of some columns of the changes."""
        self._changes, self._near, self._narrowed = changes, near, narrowed or {}

    def kind(self, relation: str, field: str) -> str | None:
        """The type of a column of a lake table."""
        return self._changes[relation].kinds.get(field)

    def changed_range(self, relation: str, field: str) -> Range | None:
        """The least and greatest value among the changed rows of a relation."""
        kind, column = self.kind(relation, field), self._values(relation, field)
        if kind is None or column is None or not is_ordered_alike(column.type):
            return None
        found = pc.min_max(column).as_py()
        of = ((relation, field),)
        return Range(kind, found["min"], found["max"], column.null_count > 0, of)

    def near(self, relation: str, field: str, found: Range, fields: tuple[str, ...]) -> str | None:
        """A view of the old rows with values of a range, if they are looked up here."""
        if self._near is None:
            return None
        return self._near.view(relation, field, found, fields, self._values)

    def _values(self, relation: str, field: str) -> pa.ChunkedArray | None:
        """The values of a column of changes that are here."""
        narrowed = self._narrowed.get((relation, field))
        rows = self._changes[relation].rows
        if narrowed is not None or rows is None or field not in rows.column_names:
            return narrowed
        return rows.column(field)

    def leaving(self, relation: str) -> int | None:
        """How many rows of a relation leave."""
        rows = self._changes[relation].rows
        if rows is None:
            return None
        weights = weights_of(rows)
        return int(-weights[weights < 0].sum())


def is_ordered_alike(kind: pa.DataType) -> bool:
    """Whether Spark compares values of a type as we do, and as the bounds of files do."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_string(kind)
        or pa.types.is_date(kind) or pa.types.is_decimal(kind)
    )  # fmt: skip


class ChangeReader:
    """Finds the changes of inputs. For one thread."""

    def __init__(self, lake: Catalog, index: RowIndex, limits: DeltaLimits | None = None) -> None:
        self._lake, self._index = lake, index
        self._limits = limits or DeltaLimits()

    def look(self, spark: SparkSession, found: Input, handover: Handover) -> InputChange:
        """How much an input changed; raises `MustBeFull` if that cannot be known any more.

        Its changes are handed to Spark by the handover, if they are read here.
        """
        if found.topic is not None:
            return self._topic(spark, found, found.topic)
        if found.version is None:
            raise Rejected(f"{found.name!r} is neither a lake table nor a topic")
        if not found.moved:
            return self._unchanged(found.name, found.version)
        if not isinstance(found.since, LakePosition):
            raise MustBeFull(ReasonCode.QUERY_CHANGED, f"{found.name} was not read before")
        return self._lake_table(found, found.version, found.since, handover)

    # lake tables ---------------------------------------------------------------------------------

    def _unchanged(self, name: str, version: TableVersion) -> InputChange:
        rows = self._held(version)
        return InputChange(
            name,
            _names(version),
            rows,
            rows,
            rows_held=held_rows(version),
            bytes_held=held_bytes(version),
            shape=repr(version.table.columns),
            kinds={column.name: column.type for column in version.table.columns},
            held=version,
        )

    def _held(self, version: TableVersion) -> Frame:
        return lambda spark: read_table(spark, self._lake.storage, version)

    def _lake_table(
        self, found: Input, version: TableVersion, since: LakePosition, handover: Handover
    ) -> InputChange:
        with _lost_as_full():
            span = None if found.feed is not None else found.changes()
        now = self._unchanged(found.name, version)
        count = sum(file.rows for file in found.feed or ()) if span is None else span.count
        if not count:
            return now
        return replace(
            now, count=count, unread=lambda: self._read(now, version, since, found, span, handover)
        )

    def _read(
        self,
        now: InputChange,
        version: TableVersion,
        since: LakePosition,
        found: Input,
        span: ChangeSpan | None,
        handover: Handover,
    ) -> InputChange:
        with _lost_as_full():
            old = old_version(self._lake, version, since.snapshot)
        before = replace(self._unchanged(found.name, old), new=now.new)
        feed = found.feed or ()
        changes = None if span is None else span.read(self._lake.storage)
        count = sum(file.rows for file in feed) if changes is None else changes.count
        if not count:
            return before
        read, rows = 0, None
        if count <= self._limits.here_rows_max:
            parts = self._fed(old.table, feed) if changes is None else self._rows(changes)
            rows, read = consolidated(pa.concat_tables(parts)), count
            count = rows.num_rows
            if not count:
                return replace(before, rows_read=read)
            columns = (*old.table.columns, _WEIGHT)
            if handover.is_file(rows, columns):
                read = 0  # Spark counts them
            delta = handed(handover, rows, columns)
        elif changes is None:
            delta = _fed_frame(self._lake.storage, old.table, feed)
        else:
            delta = _changed_frame(self._lake.storage, changes)
        return replace(before, delta=delta, count=count, rows_read=read, rows=rows)

    def _fed(self, table: TableInfo, feed: Sequence[FeedFile]) -> list[pa.Table]:
        try:
            found = [read_feed(self._lake.storage, table, file) for file in feed]
        except FeedLost as error:
            raise MustBeFull(ReasonCode.STATE_LOST, error.message) from error
        return [rows.append_column(WEIGHT, weights) for rows, weights in found]

    def _rows(self, changes: ChangeRange) -> list[pa.Table]:
        came = [changes.inlined_inserted, *(self._part(changes, f) for f in changes.inserted)]
        went = [changes.inlined_deleted, *(self._part(changes, f) for f in changes.deleted)]
        return [*(weighted(rows, 1) for rows in came), *(weighted(rows, -1) for rows in went)]

    def _part(self, changes: ChangeRange, rows: FileRows) -> pa.Table:
        """Rows of a file: those spread over a large one by its copy, others by reading."""
        columns, storage = changes.table.columns, self._lake.storage
        if rows.positions is None or not is_spread(rows, self._limits.copy_from_rows):
            return read_rows(storage, rows, columns, changes.mappings)
        copy = self._index.copy_of(storage, rows.file, columns, changes.mappings)
        return copy.take(rows.positions)

    # topics --------------------------------------------------------------------------------------

    def _topic(self, spark: SparkSession, found: Input, read: TopicRead) -> InputChange:
        since = found.since
        if not isinstance(since, TopicPosition):
            raise MustBeFull(ReasonCode.QUERY_CHANGED, f"{found.name} was not read before")
        first = max(1, read.earliest_seq)
        if first != found.from_seq:  # the records that left are to leave the contents
            raise MustBeFull(
                ReasonCode.HISTORY_EXPIRED,
                f"{found.name} holds records from seq {first} on; the contents were made from "
                f"seq {found.from_seq} on",
            )
        names = tuple(declared_schema(spark, read.schema).fieldNames())
        old: Frame = lambda spark: _records(spark, read, first - 1, since.seq)  # noqa: E731
        held = max(0, since.seq - first + 1)
        if not found.moved:
            return InputChange(found.name, names, old, old, rows_held=held, shape=read.schema)
        new: Frame = lambda spark: _records(spark, read, first - 1, read.upto_seq)  # noqa: E731
        delta: Frame = lambda spark: _topic_delta(spark, read, since.seq)  # noqa: E731
        count = read.upto_seq - since.seq
        return InputChange(
            found.name, names, old, new, None, delta, count, count, held, shape=read.schema
        )


@contextmanager
def _lost_as_full() -> Iterator[None]:
    """A source whose history is lost is read in full."""
    try:
        yield
    except SourceRecreated as error:
        raise MustBeFull(ReasonCode.SOURCE_RECREATED, error.message) from error
    except (Gone, Rejected) as error:  # rejected: the frontier is ahead of a restored lake
        raise MustBeFull(ReasonCode.HISTORY_EXPIRED, error.message) from error


def old_version(lake: Catalog, now: TableVersion, since: int) -> TableVersion:
    """A table with the rows it had at a snapshot, in the columns it has now.

    Of all snapshots with these rows the last is taken, which is after any compaction. Raises `Gone`
    if none of them is left, `SourceRecreated` if it was another table then.
    """
    table, until = now.table, now.snapshot.id
    with lake.look() as reader:
        created = None if table.id < 0 else reader.created_in(table.id)
        if created is None or created > since:
            raise SourceRecreated(f"{table.qualified} was recreated after snapshot {since}")
        last = _last_unchanged(reader, table.id, since, until)
        snapshot = reader.snapshot(last)
        files = reader.files(table, begun_by=last, not_ended_by=last)
        inlined = reader.inlined(table, begun_by=last, not_ended_by=last)
        return TableVersion(table, snapshot, tuple(files), inlined, reader.mappings(files))


def _last_unchanged(reader: Reader, table_id: int, since: int, until: int) -> int:
    """The last snapshot in which a table has the rows of an earlier one."""
    last = since
    for number, text in reader.changes_after(since, until):
        if number != last + 1:
            raise Gone(f"what snapshot {last + 1} changed has expired")
        if table_id in parse(text).ids(*CHANGES):
            break
        last = number
    return last


def is_spread(rows: FileRows, large_rows: int) -> bool:
    """Whether rows lie all over a large file, so that most of it would be read for them."""
    positions = rows.positions
    if positions is None or not len(positions) or rows.file.record_count <= large_rows:
        return False
    return int(positions[-1]) - int(positions[0]) > rows.file.record_count // 4


def _names(version: TableVersion) -> tuple[str, ...]:
    return tuple(column.name for column in version.table.columns)


def handed(handover: Handover, rows: pa.Table, columns: tuple[Column, ...]) -> Frame:
    """Rows that are here, for Spark. Joins are told to broadcast them."""
    return lambda spark: hinted(handover.frame(spark, rows, columns))


def hinted(frame: DataFrame) -> DataFrame:
    """A frame that joins are told to broadcast: Spark has no idea how small a change is."""
    return frame.hint("broadcast")


def _changed_frame(storage: Storage, changes: ChangeRange) -> Frame:
    """Many changed rows, read by Spark from the files they lie in."""

    def frame(spark: SparkSession) -> DataFrame:
        from pyspark.sql.connect import functions as F  # noqa: N812 - its usual name

        came = read_inserted(spark, storage, changes).withColumn(WEIGHT, F.lit(1).cast("bigint"))
        went = read_deleted(spark, storage, changes).withColumn(WEIGHT, F.lit(-1).cast("bigint"))
        return came.unionAll(went)

    return frame


def _fed_frame(storage: Storage, table: TableInfo, feed: Sequence[FeedFile]) -> Frame:
    """Many changed rows, read by Spark from the change feed."""

    def frame(spark: SparkSession) -> DataFrame:
        found = fed_frame(storage, table, feed, spark)
        return found.withColumnRenamed(WEIGHT_COLUMN.name, WEIGHT)

    return frame


def _records(spark: SparkSession, read: TopicRead, after: int, upto: int) -> DataFrame:
    with _lost_as_full():  # what was there when the refresh began may have left since
        return read_topic(
            spark, read.url, read.topic, read.schema, upto if read.epoch else 0,
            after if read.epoch else 0, read.key or None, read.api_key, epoch=read.epoch,
        )  # fmt: skip


def _topic_delta(spark: SparkSession, read: TopicRead, since: int) -> DataFrame:
    """Records after a seq with weight 1; of a keyed topic also what they replace, with -1."""
    from pyspark.sql.connect import functions as F  # noqa: N812

    one = F.lit(1).cast("bigint")
    came = _records(spark, read, since, read.upto_seq).withColumn(WEIGHT, one)
    if not read.key:
        return came
    touched = read_topic(
        spark, read.url, read.topic, read.schema, read.upto_seq, since,
        api_key=read.api_key, epoch=read.epoch,
    ).select(*read.key).distinct().hint("broadcast")  # fmt: skip
    before = _records(spark, read, max(1, read.earliest_seq) - 1, since)
    went = before.join(touched, list(read.key), "left_semi").withColumn(WEIGHT, -one)
    return came.unionAll(went.select(*came.columns))
