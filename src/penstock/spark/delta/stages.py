"""Inner aggregates of a query, each brought up to date before what reads it.

Each is a `StateRun` of its own: its state is a table beside that of the aggregate which ends the
query, changed in the same commit. What stands above it reads its stored groups as old rows, and the
groups that changed as changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.lake.catalog import Catalog
from penstock.lake.columns import columns_of
from penstock.lake.row_index import RowIndex
from penstock.spark.delta.changes import (
    ChangedRanges,
    InputChange,
    changed_inputs,
    handed,
)
from penstock.spark.delta.handover import Handover
from penstock.spark.delta.limits import DeltaLimits
from penstock.spark.delta.near import NearRows
from penstock.spark.delta.state import StateRun, views_of
from penstock.spark.delta.weighted import consolidated
from penstock.spark.errors import UnsharedType
from penstock.spark.lake.types import arrived_schema, lake_schema
from penstock.spark.lake.views import ViewNames, bound_frame
from penstock.tables.delta.compiler import Compiled
from penstock.tables.delta.stages import Kept, Staged, staged
from penstock.tables.delta.state import Root
from penstock.tables.engine import Made, RefreshTask

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_KNOWN: Final[dict[tuple[str, ...], Staged]] = {}
_KNOWN_MAX: Final = 1_024


def bound_stages(
    spark: SparkSession, compiled: Compiled, changes: Mapping[str, InputChange]
) -> Staged:
    """The aggregates of a query that can be kept, by the types that Spark says they have.

    It is asked once for a query over columns of the same types.
    """
    key = (compiled.query, *(changes[name].shape for name in sorted(changes)))
    if key not in _KNOWN:
        _KNOWN[key] = staged(compiled, lambda root: _types(spark, root, changes))
        while len(_KNOWN) > _KNOWN_MAX:
            _KNOWN.pop(next(iter(_KNOWN)))
    return _KNOWN[key]


def _types(
    spark: SparkSession, root: Root, changes: Mapping[str, InputChange]
) -> tuple[str, ...] | None:
    """The types of the arguments of an aggregate; None if the lake cannot hold its keys or them."""
    names = ViewNames()
    schema = bound_frame(spark, root.arguments_sql(names), views_of(spark, names, changes)).schema
    try:
        lake_schema(schema)
    except UnsharedType:
        return None
    fields = [field for field in schema.fields if field.name.startswith("a")]
    return tuple(field.dataType.simpleString() for field in fields)


class StagesRun:
    """One refresh of the stages of a query. `changes` grows by what each makes of its inputs."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Catalog,
        index: RowIndex,
        task: RefreshTask,
        changes: Mapping[str, InputChange],
        limits: DeltaLimits,
        handover: Handover,
    ) -> None:
        self._spark, self._lake, self._index, self._task = spark, lake, index, task
        self._limits, self._handover = limits, handover
        self.changes = dict(changes)
        self.made: list[Made] = []
        self.rows_read = 0
        self.has_filled = False

    def run(self, stages: Sequence[Kept], *, broadcast: bool) -> None:
        """Bring the stages up to date, those first that others read."""
        for kept in stages:
            self.changes[kept.relation] = self._change(kept, broadcast=broadcast)

    def root(self, kept: Kept, *, broadcast: bool) -> pa.Table | None:
        """Bring the aggregate that ends the query up to date: the change of the table's rows."""
        return self._rows(self.state_run(kept), broadcast=broadcast)

    def state_run(self, kept: Kept) -> StateRun:
        """The refresh of one aggregate, over the changes so far."""
        return StateRun(
            self._spark, self._lake, self._index, self._task, kept, self.changes, self._handover,
            self.near,
            self._limits.collect_bytes_max, self._limits.state_rows_max,
        )  # fmt: skip

    def near(self, names: ViewNames) -> NearRows:
        """Looks up old rows for a text with these names."""
        changes = self.changes.items()
        held = {name: change.held for name, change in changes if change.held is not None}
        return NearRows(
            self._spark, self._lake.storage, self._index, self._handover, self._limits, names, held
        )

    def _change(self, kept: Kept, *, broadcast: bool) -> InputChange:
        run = self.state_run(kept)
        rows = self._rows(run, broadcast=broadcast)
        columns, held = kept.state.root.columns, run.groups
        unchanged = InputChange(kept.relation, columns, run.old, run.old, rows_held=held)
        if rows is None:
            return unchanged
        rows = consolidated(rows.cast(arrived_schema(rows.schema)))
        if not rows.num_rows:
            return unchanged
        delta = handed(self._handover, rows, columns_of(rows.schema))
        return replace(unchanged, delta=delta, count=rows.num_rows, rows=rows)

    def _rows(self, run: StateRun, *, broadcast: bool) -> pa.Table | None:
        """The change of an aggregate's rows; None if nothing that it reads has changed."""
        state, names = run.kept.state, ViewNames()
        run.filled()
        changed = changed_inputs(self.changes)
        ranges = ChangedRanges(self.changes, self.near(names))
        is_net = all(self.changes[name].rows is not None for name in changed)
        sql = state.delta(changed, names, broadcast=broadcast, ranges=ranges, is_net=is_net)
        rows, made = (None, run.made_new()) if sql is None else run.rows(sql, names, changed)
        self.rows_read += run.rows_read
        self.has_filled |= run.whole is not None
        self.made += [] if made is None else [made]
        return rows
