"""A table that ends with an aggregate, kept as sums and counts: changes are added to them.

The state is a table of its own in the lake, one row for each group. The first differential refresh
after a full one fills it from the inputs' old rows; from then on a refresh reads the state of the
groups that changed, found by key in local copies of its files, and no input but the changes.

Where the keys are columns of the only input that changed, the stored groups are looked up before
the query runs, and one job sums up the changes, adds them and makes the rows. A small state is
handed over whole. Otherwise a first job says which groups change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.catalog import Catalog
from penstock.lake.columns import columns_of
from penstock.lake.locate import FoundRows, are_among, find_by
from penstock.lake.model import NewFile, TableVersion, held_rows
from penstock.lake.parquet import write_file
from penstock.lake.row_index import RowIndex
from penstock.spark.delta.changes import ChangedRanges, InputChange
from penstock.spark.delta.errors import MustBeFull
from penstock.spark.delta.handover import Handover
from penstock.spark.delta.near import NearRows
from penstock.spark.delta.weighted import weighted
from penstock.spark.lake.collect import arriving
from penstock.spark.lake.reading import read_table
from penstock.spark.lake.types import arrived_schema, is_writable, lake_schema
from penstock.spark.lake.views import ViewNames, bound_frame
from penstock.spark.lake.writing import WriteOptions, write_there
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode
from penstock.tables.delta.algebra import is_row_by_row
from penstock.tables.delta.stages import Kept
from penstock.tables.delta.state import IS, REREAD, ROWS, WAS, State
from penstock.tables.engine import Made, RefreshTask, StateDisagrees

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

_OLD, _DELTA, _KEYS = ("penstock_state_" + word for word in ("old", "delta", "keys"))


class _LookedUp(NamedTuple):
    """The stored rows of so many groups: of those that change, and maybe of others."""

    keys: int
    found: FoundRows


@dataclass(slots=True)
class StateRun:
    """One refresh by state. `rows_read` grows with what Spark reads for it.

    `ResultTooLarge` is raised where the changed groups, or a state to be filled, have more than
    `bytes_max` bytes; then `filled_there` makes the state. One of at most `rows_max` rows is small.
    """

    spark: SparkSession
    lake: Catalog
    index: RowIndex
    task: RefreshTask
    kept: Kept
    changes: Mapping[str, InputChange]
    handover: Handover
    near: Callable[[ViewNames], NearRows]
    bytes_max: int
    rows_max: int
    rows_read: int = 0
    whole: pa.Table | None = None
    """All groups as they were, if this refresh had to fill them."""

    @property
    def state(self) -> State:
        """How it follows the changes."""
        return self.kept.state

    @property
    def stored(self) -> TableVersion | None:
        """What an earlier refresh stored."""
        return self.task.state(self.kept.part)

    @property
    def groups(self) -> int:
        """How many groups are stored; those that are gone count."""
        if self.whole is not None:
            return int(self.whole.num_rows)
        return 0 if self.stored is None else held_rows(self.stored)

    def rows(self, sql: str, names: ViewNames, changed: Collection[str]) -> tuple[pa.Table, Made]:
        """The weighted rows by which the contents change, and what to store beside them."""
        whole = self.filled()
        looked = self._looked_up(whole, changed)
        before = looked.found.rows if looked else self._small(whole)
        if before is not None:
            views = views_of(self.spark, names, self.changes) | {_OLD: self._local(before)}
            stepped = self._run(self.state.step(_OLD, sql), views)
            is_same = looked is not None and looked.keys == stepped.num_rows
            found = looked.found if looked and is_same else self._found(whole, self._keys(stepped))
        else:
            added = self._run(sql, views_of(self.spark, names, self.changes))
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
        sql = self.kept.whole.full(names)
        views = {
            view: self.changes[name].new(self.spark) for view, (name, _) in names.views.items()
        }
        frame = bound_frame(self.spark, sql, views)
        table = self.task.state_target(self.kept.part, lake_schema(frame.schema))
        if not all(is_writable(column) for column in table.columns):
            return None
        made = write_there(self.lake.storage, table, frame, self.task.token, WriteOptions())
        return Made(table, Mode.DIFFERENTIAL, made.files, replace=True)

    def made_new(self) -> Made | None:
        """What to store where nothing changed: all groups, if this refresh had to fill them."""
        if self.whole is None:
            return None
        return self._stored(self.whole, FoundRows(self.whole.slice(0, 0), (), ()), None)

    def old(self, spark: SparkSession) -> DataFrame:
        """The query's rows of all groups as they were."""
        if self.whole is not None:
            held = self._local(self.whole)
        else:
            assert self.stored is not None
            held = read_table(spark, self.lake.storage, self.stored)
        return bound_frame(spark, self.state.result(_OLD), {_OLD: held})

    # reading -------------------------------------------------------------------------------------

    def filled(self) -> pa.Table | None:
        """All groups as they were, from the old rows of the inputs; None if they are stored."""
        if self.whole is None and self.stored is None:
            names = ViewNames()
            sql = self.kept.whole.full(names)
            rows = self._run(sql, views_of(self.spark, names, self.changes))
            self.whole = rows.cast(_arrived(rows))
        return self.whole

    def _keys(self, rows: pa.Table) -> pa.Table:
        return rows.select(list(self.state.keys))

    def _looked_up(self, whole: pa.Table | None, changed: Collection[str]) -> _LookedUp | None:
        """The stored rows of all groups that may change, if these can be told now."""
        keys = self._keys_here(changed)
        if keys is None:
            return None
        count = keys.num_rows if keys.num_columns else 1
        return _LookedUp(count, self._found(whole, keys))

    def _small(self, whole: pa.Table | None) -> pa.Table | None:
        """All stored rows, if they are few."""
        stored = self.stored
        if whole is None and stored is not None and held_rows(stored) <= self.rows_max:
            with told_if_lost():
                return self.lake.scan(stored.table, stored.snapshot)
        return whole if whole is not None and whole.num_rows <= self.rows_max else None

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
        stored = self.stored
        if whole is None and stored is not None:
            if not keys.num_columns:
                return self._only(stored)
            held = stored.table.arrow_schema
            wanted = keys.cast(pa.schema([held.field(name) for name in keys.column_names]))
            with told_if_lost():
                return find_by(self.lake.storage, self.index, stored, wanted)
        assert whole is not None
        if not keys.num_columns:
            return FoundRows(whole, (), ())
        wanted = keys.cast(whole.select(keys.column_names).schema)
        return FoundRows(whole.filter(pa.array(are_among(whole, wanted))), (), ())

    def _only(self, stored: TableVersion) -> FoundRows:
        """The one row of a state without keys."""
        with told_if_lost():
            rows = self.lake.scan(stored.table, stored.snapshot)
            return find_by(self.lake.storage, self.index, stored, rows)

    # running -------------------------------------------------------------------------------------

    def _reread(self, lost: pa.Table, changed: Collection[str]) -> list[pa.Table]:
        """Groups whose extreme left, from the rows as they are now."""
        if not lost.num_rows:
            return []
        names = ViewNames()
        ranges = ChangedRanges(self.changes, self.near(names), self._narrowed(lost))
        sql = self.state.reread(changed, names, _KEYS, ranges=ranges)
        if sql is None:
            return []
        views = views_of(self.spark, names, self.changes)
        keys = self._keys(lost)
        views[_KEYS] = (
            self._local(keys.cast(_arrived(keys))) if self.state.keys else self._one_row()
        )
        return [self._run(sql, views)]

    def _narrowed(self, lost: pa.Table) -> dict[tuple[str, str], pa.ChunkedArray]:
        """Of which columns of the changes only the values in groups to be read again matter."""
        source = self.state.key_source()
        if source is None or not is_row_by_row(self.state.root.aggregate.child):
            return {}
        relation, fields = source
        rows = self.changes[relation].rows
        if rows is None:
            return {}
        keys = zip(fields, self.state.keys, strict=True)
        return {
            (relation, field): lost.column(key).cast(rows.schema.field(field).type)
            for field, key in keys
        }

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
        return self.handover.frame(self.spark, rows, columns_of(rows.schema))

    # storing -------------------------------------------------------------------------------------

    def _stored(self, whole: pa.Table | None, found: FoundRows, new: pa.Table | None) -> Made:
        stored = self.stored
        if whole is None and stored is not None and new is not None:
            table, is_new, rows = stored.table, False, new
        else:
            assert whole is not None
            table, is_new = self.task.state_target(self.kept.part, whole.schema), True
            rows = whole
            if new is not None:
                keys = list(self.state.keys)
                gone = found.rows.select(keys)
                kept = whole.filter(pa.array(~are_among(whole, gone))) if keys else new.slice(0, 0)
                rows = pa.concat_tables([kept, new])
        files: tuple[NewFile, ...] = ()
        if rows.num_rows:
            storage = self.lake.storage
            files = (write_file(storage, table.path, table.columns, rows, token=self.task.token),)
        return Made(
            table, Mode.DIFFERENTIAL, files,
            replace=is_new, deletes=found.deletes, inlined_deletes=found.inlined_deletes,
        )  # fmt: skip


@contextmanager
def told_if_lost() -> Iterator[None]:
    """Raise `MustBeFull` where files of a state are missing or cannot be read."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise MustBeFull(ReasonCode.STATE_LOST, f"its state is lost: {error}") from error


def collected(frame: DataFrame, bytes_max: int) -> tuple[pa.Table, int]:
    """The rows of a query, and how many it read; raises `ResultTooLarge`."""
    arrivals = arriving(frame, bytes_max=bytes_max)
    rows = pa.concat_tables(list(arrivals.batches()))
    return rows, arrivals.rows_read or 0


def views_of(
    spark: SparkSession, names: ViewNames, changes: Mapping[str, InputChange]
) -> dict[str, DataFrame]:
    """The frames of the views that a text names."""
    made = dict(names.given)
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
