"""A table that ends with an aggregate, kept as sums and counts: changes are added to them.

The state is a table of its own in the lake, one row for each group. The first differential refresh
after a full one fills it from the inputs' old rows; from then on a refresh reads the state of the
groups that changed, found by key in local copies of its files, and no input but the changes.

Where the keys are columns of the only input that changed, the stored groups are looked up before
the query runs, and one job sums up the changes, adds them and makes the rows. Otherwise a first job
says which groups change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.catalog import Catalog
from penstock.lake.columns import columns_of
from penstock.lake.locate import FoundRows, are_among, find_by
from penstock.lake.model import NewFile, TableVersion
from penstock.lake.parquet import write_file
from penstock.lake.row_index import RowIndex
from penstock.spark.delta.changes import InputChange
from penstock.spark.delta.errors import MustBeFull
from penstock.spark.delta.weighted import weighted
from penstock.spark.lake.collect import arriving
from penstock.spark.lake.reading import local_frame
from penstock.spark.lake.types import arrived_schema, is_writable, lake_schema
from penstock.spark.lake.views import ViewNames, bound_frame
from penstock.spark.lake.writing import WriteOptions, write_there
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode
from penstock.tables.delta.compiler import Compiled
from penstock.tables.delta.state import IS, REREAD, ROWS, WAS, State
from penstock.tables.engine import Made, RefreshTask, StateDisagrees

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

_OLD, _DELTA, _KEYS = ("penstock_state_" + word for word in ("old", "delta", "keys"))


_TYPES: Final[dict[tuple[str, ...], tuple[str, ...]]] = {}
_TYPES_MAX: Final = 1_024


@dataclass(slots=True)
class StateRun:
    """One refresh by state. `rows_read` grows with what Spark reads for it.

    `ResultTooLarge` is raised where the changed groups, or a state to be filled, have more than
    `bytes_max` bytes; then `filled_there` makes the state.
    """

    spark: SparkSession
    lake: Catalog
    index: RowIndex
    task: RefreshTask
    state: State
    changes: Mapping[str, InputChange]
    bytes_max: int
    rows_read: int = 0

    def rows(self, sql: str, names: ViewNames, changed: Collection[str]) -> tuple[pa.Table, Made]:
        """The weighted rows by which the contents change, and what to store beside them."""
        whole = self._filled() if self.task.state is None else None
        keys = self._keys_here(changed)
        if keys is not None:
            before = self._found(whole, keys).rows
            views = _views(self.spark, names, self.changes) | {_OLD: self._local(before)}
            stepped = self._run(self.state.step(_OLD, sql), views)
            found = self._found(whole, self._keys(stepped))
        else:
            added = self._run(sql, _views(self.spark, names, self.changes))
            found = self._found(whole, self._keys(added))
            views = {
                _OLD: self._local(found.rows),
                _DELTA: self._local(added.cast(_arrived(added))),
            }
            stepped = self._local_rows(self.state.step(_OLD, f"SELECT * FROM {_DELTA}"), views)
        held = found.rows.schema
        again = stepped.column(REREAD).to_numpy(zero_copy_only=False).astype(np.bool_)
        kept = stepped.filter(pa.array(~again))
        made = [kept, *self._reread(stepped.filter(pa.array(again)), changed)]
        merged = pa.concat_tables([part.select(held.names).cast(held) for part in made])
        _check(merged, self.task)
        if self.state.keys:
            merged = merged.filter(pc.greater(merged.column(ROWS), 0))
        parts = [self._shown(stepped, WAS, -1), *(self._shown(part, IS, 1) for part in made)]
        shown = pa.concat_tables(parts, promote_options="permissive")  # of what may be NULL inside
        return shown, self._stored(whole, found, merged)

    def filled_there(self) -> Made | None:
        """The state of the rows as they are now, filled by Spark's tasks; None if they cannot."""
        names = ViewNames()
        sql = self.state.full(names)
        views = {
            view: self.changes[name].new(self.spark) for view, (name, _) in names.views.items()
        }
        frame = bound_frame(self.spark, sql, views)
        target = self.task.state_target
        assert target is not None
        table = target(lake_schema(frame.schema))
        if not all(is_writable(column) for column in table.columns):
            return None
        made = write_there(self.lake.storage, table, frame, self.task.token, WriteOptions())
        return Made(table, Mode.DIFFERENTIAL, made.files, replace=True)

    # reading -------------------------------------------------------------------------------------

    def _filled(self) -> pa.Table:
        """The whole state, from the old rows of the inputs."""
        names = ViewNames()
        rows = self._run(self.state.full(names), _views(self.spark, names, self.changes))
        return rows.cast(_arrived(rows))

    def _keys(self, rows: pa.Table) -> pa.Table:
        return rows.select(list(self.state.keys))

    def _keys_here(self, changed: Collection[str]) -> pa.Table | None:
        """Keys among which are those of all groups that change; None if only the query knows."""
        if not self.state.keys:
            return pa.table({})
        source = self.state.key_source()
        if source is None or {*changed} != {source[0]}:
            return None
        rows = self.changes[source[0]].rows
        if rows is None or not {*source[1]} <= {*rows.column_names}:
            return None
        columns = [rows.column(name) for name in source[1]]
        if not all(_is_its_own_key(column.type) for column in columns):
            return None
        keys = pa.table(columns, names=list(self.state.keys))
        return keys.group_by(keys.column_names, use_threads=False).aggregate([])

    def _found(self, whole: pa.Table | None, keys: pa.Table) -> FoundRows:
        """The stored rows of the groups that changed."""
        stored = self.task.state
        if whole is None and stored is not None:
            if not keys.num_columns:
                return self._only(stored)
            held = stored.table.arrow_schema
            wanted = keys.cast(pa.schema([held.field(name) for name in keys.column_names]))
            try:
                return find_by(self.lake.storage, self.index, stored, wanted)
            except (OSError, pa.ArrowException) as error:
                raise MustBeFull(ReasonCode.STATE_LOST, f"its state is lost: {error}") from error
        assert whole is not None
        if not keys.num_columns:
            return FoundRows(whole, (), ())
        wanted = keys.cast(whole.select(keys.column_names).schema)
        return FoundRows(whole.filter(pa.array(are_among(whole, wanted))), (), ())

    def _only(self, stored: TableVersion) -> FoundRows:
        """The one row of a state without keys."""
        rows = self.lake.scan(stored.table, stored.snapshot)
        return find_by(self.lake.storage, self.index, stored, rows)

    # running -------------------------------------------------------------------------------------

    def _reread(self, lost: pa.Table, changed: Collection[str]) -> list[pa.Table]:
        """Groups whose extreme left, from the rows as they are now."""
        names = ViewNames()
        sql = self.state.reread(changed, names, _KEYS) if lost.num_rows else None
        if sql is None:
            return []
        views = _views(self.spark, names, self.changes)
        keys = self._keys(lost)
        views[_KEYS] = (
            self._local(keys.cast(_arrived(keys))) if self.state.keys else self._one_row()
        )
        return [self._run(sql, views)]

    def _one_row(self) -> DataFrame:
        return self.spark.createDataFrame(pa.table({"one": [1]}))

    def _shown(self, rows: pa.Table, which: str, weight: int) -> pa.Table:
        """The query's rows among those of the state, before or after."""
        names = self.state.root.columns
        there = rows.filter(rows.column(which))
        columns = [there.column(f"{which}{place}") for place in range(len(names))]
        return weighted(pa.table(columns, names=list(names)), weight)

    def _run(self, sql: str, views: Mapping[str, DataFrame]) -> pa.Table:
        rows, read = collected(bound_frame(self.spark, sql, views), self.bytes_max)
        self.rows_read += read
        return rows

    def _local_rows(self, sql: str, views: Mapping[str, DataFrame]) -> pa.Table:
        """A query over rows that are here; it reads nothing."""
        read = self.rows_read
        found = self._run(sql, views)
        self.rows_read = read
        return found

    def _local(self, rows: pa.Table) -> DataFrame:
        return local_frame(self.spark, rows, columns_of(rows.schema))

    # storing -------------------------------------------------------------------------------------

    def _stored(self, whole: pa.Table | None, found: FoundRows, new: pa.Table) -> Made:
        target = self.task.state_target
        assert target is not None
        if whole is None and self.task.state is not None:
            table, is_new = self.task.state.table, False
            rows = new
        else:
            assert whole is not None
            table, is_new = target(whole.schema), True
            keys = list(self.state.keys)
            kept = whole.slice(0, 0)
            if keys:
                kept = whole.filter(pa.array(~are_among(whole, found.rows.select(keys))))
            rows = pa.concat_tables([kept, new])
        files: tuple[NewFile, ...] = ()
        if rows.num_rows:
            storage = self.lake.storage
            files = (write_file(storage, table.path, table.columns, rows, token=self.task.token),)
        return Made(
            table, Mode.DIFFERENTIAL, files,
            replace=is_new, deletes=found.deletes, inlined_deletes=found.inlined_deletes,
        )  # fmt: skip


def collected(frame: DataFrame, bytes_max: int) -> tuple[pa.Table, int]:
    """The rows of a query, and how many it read; raises `ResultTooLarge`."""
    arrivals = arriving(frame, bytes_max=bytes_max)
    rows = pa.concat_tables(list(arrivals.batches()))
    return rows, arrivals.rows_read or 0


def bound_state(
    spark: SparkSession, compiled: Compiled, changes: Mapping[str, InputChange]
) -> State | None:
    """The state of a query that ends with an aggregate of sums and counts, if it can be kept.

    Types are Spark's: it is asked once for a query over columns of the same types.
    """
    root = compiled.root
    if root is None:
        return None
    key = (compiled.query, *(changes[name].shape for name in sorted(changes)))
    if key not in _TYPES:
        names = ViewNames()
        frame = bound_frame(spark, root.arguments_sql(names), _views(spark, names, changes))
        fields = [field for field in frame.schema.fields if field.name.startswith("a")]
        _TYPES[key] = tuple(field.dataType.simpleString() for field in fields)
        while len(_TYPES) > _TYPES_MAX:
            _TYPES.pop(next(iter(_TYPES)))
    return root.bind(_TYPES[key][: root.arguments])


def _views(
    spark: SparkSession, names: ViewNames, changes: Mapping[str, InputChange]
) -> dict[str, DataFrame]:
    made = {}
    for view, (relation, is_delta) in names.views.items():
        frame = changes[relation].delta if is_delta else changes[relation].old
        assert frame is not None
        made[view] = frame(spark)
    return made


def _is_its_own_key(kind: pa.DataType) -> bool:
    """Whether Spark groups values of a type as they are; of floats it makes one zero, one NaN."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)
        or pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_decimal(kind)
    )  # fmt: skip


def _arrived(rows: pa.Table) -> pa.Schema:
    return arrived_schema(rows.schema)


def _check(merged: pa.Table, task: RefreshTask) -> None:
    """A group cannot have fewer rows than none."""
    least = pc.min(merged.column(ROWS)).as_py()
    if least is not None and least < 0:
        raise StateDisagrees(
            f"internal error: the change takes more rows from a group of {task.definition.name} "
            "than it has; nothing was committed, and the next refresh runs the whole query",
            table=task.definition.name,
        )
