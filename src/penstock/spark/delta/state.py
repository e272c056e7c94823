"""A table that ends with an aggregate, kept as sums and counts: changes are added to them.

The state is a table of its own in the lake, one row for each group. The first differential refresh
after a full one fills it from the inputs' old rows; from then on a refresh reads the state of the
groups that changed, found by key in local copies of its files, and no input but the changes.
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
from penstock.tables.delta.rules import WEIGHT
from penstock.tables.delta.state import REREAD, ROWS, State
from penstock.tables.engine import Made, RefreshTask, StateDisagrees

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

_OLD, _DELTA, _KEYS, _BOTH = ("penstock_state_" + word for word in ("old", "delta", "keys", "both"))


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
        added = self._collected(sql, names)
        whole = self._filled() if self.task.state is None else None
        keys = added.select(list(self.state.keys))
        found = self._found(whole, keys)
        merged = self._merged(found.rows, added)
        merged = self._reread(merged, changed, found.rows.schema)
        _check(merged, self.task)
        if self.state.keys:
            merged = merged.filter(pc.greater(merged.column(ROWS), 0))
        visible = self._visible(found.rows, merged)
        return visible, self._stored(whole, found, merged)

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
        rows = self._collected(self.state.full(names), names)
        return rows.cast(_arrived(rows))

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

    def _merged(self, old: pa.Table, added: pa.Table) -> pa.Table:
        views = {_OLD: self._local(old), _DELTA: self._local(added.cast(_arrived(added)))}
        return self._local_rows(self.state.merged(_OLD, _DELTA), views)

    def _reread(self, merged: pa.Table, changed: Collection[str], schema: pa.Schema) -> pa.Table:
        """Groups whose extreme left, from the rows as they are now."""
        again = merged.column(REREAD).to_numpy().astype(np.bool_)
        merged = merged.drop_columns([REREAD]).cast(schema)
        if not again.any():
            return merged
        names = ViewNames()
        keys = merged.filter(pa.array(again)).select(list(self.state.keys))
        sql = self.state.reread(changed, names, _KEYS)
        if sql is None:
            return merged
        views = _views(self.spark, names, self.changes)
        views[_KEYS] = self._local(keys) if keys.num_columns else self._one_row()
        found = self._run(sql, views).cast(schema)
        return pa.concat_tables([merged.filter(pa.array(~again)), found])

    def _one_row(self) -> DataFrame:
        return self.spark.createDataFrame(pa.table({"one": [1]}))

    def _visible(self, old: pa.Table, new: pa.Table) -> pa.Table:
        both = pa.concat_tables([weighted(old, -1), weighted(new, 1)])
        view = self._local(both.drop_columns([WEIGHT]), both.column(WEIGHT))
        return self._local_rows(self.state.rows(_BOTH, weighted=True), {_BOTH: view})

    def _collected(self, sql: str, names: ViewNames) -> pa.Table:
        return self._run(sql, _views(self.spark, names, self.changes))

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

    def _local(self, rows: pa.Table, weights: pa.ChunkedArray | None = None) -> DataFrame:
        columns = columns_of(rows.schema)
        if weights is None:
            return local_frame(self.spark, rows, columns)
        rows = rows.append_column(WEIGHT, weights)
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
