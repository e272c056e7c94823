"""The refresh whose cost follows the change: one Spark job for what changed, applied to the table.

Every input is read as it was when the contents were made, and its changes are handed to Spark
beside it, so that the rows which a batch deleted are never filtered out of large files. The result
is the consolidated change of the table's rows; it is applied here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.kernel.clock import Clock
from penstock.kernel.errors import Rejected
from penstock.kernel.system import SystemClock
from penstock.lake.catalog import Catalog
from penstock.lake.columns import columns_of, plain_schema
from penstock.lake.model import TableVersion
from penstock.lake.row_index import RowIndex
from penstock.protocol.errors import NotDifferentiable
from penstock.spark.delta.agreement import check_agreement
from penstock.spark.delta.apply import Applied, apply_delta, in_lake_types
from penstock.spark.delta.by_tasks import apply_by_tasks
from penstock.spark.delta.changes import ChangedRanges, ChangeReader, InputChange, held_rows
from penstock.spark.delta.errors import MustBeFull
from penstock.spark.delta.limits import DeltaLimits
from penstock.spark.delta.state import StateRun, bound_state, collected
from penstock.spark.delta.weighted import consolidated, unweighted
from penstock.spark.lake.collect import ResultTooLarge, arriving
from penstock.spark.lake.types import arrived_schema, is_writable, lake_schema
from penstock.spark.lake.views import ViewNames, bound_frame
from penstock.spark.query_errors import one_line
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode
from penstock.tables.delta.compiler import Compiled, compile_query
from penstock.tables.delta.cost import Choice, Workload, choose
from penstock.tables.delta.refusal import Cause
from penstock.tables.delta.rules import WEIGHT
from penstock.tables.engine import Made, RefreshTask

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

Timings = tuple[tuple[str, float], ...]


class DifferentialRefresh:
    """Brings a table up to date from what changed in its inputs."""

    mode = Mode.DIFFERENTIAL

    def __init__(
        self,
        lake: Catalog,
        index: RowIndex,
        *,
        limits: DeltaLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._lake, self._index = lake, index
        self._limits = limits or DeltaLimits()
        self._reader = ChangeReader(lake, index, self._limits)
        self._clock: Clock = clock or SystemClock()

    def refresh(self, spark: SparkSession, task: RefreshTask) -> Made:
        """Run the delta query and write what it changes; raises `MustBeFull` if it cannot."""
        from pyspark import errors

        try:
            return self._refresh(spark, task)
        except errors.AnalysisException as error:
            said = f"Spark does not take the compiled changes: {one_line(error)}"
            raise MustBeFull(ReasonCode.COMPILER_DISAGREES, said) from error
        except (
            errors.ArithmeticException,
            errors.ArrayIndexOutOfBoundsException,
            errors.DateTimeException,
            errors.NumberFormatException,
            errors.SparkRuntimeException,
        ) as error:
            # If it is the query that fails on these rows, its own error is the one to be told.
            said = f"the changes fail where the whole query may not: {one_line(error)}"
            raise MustBeFull(ReasonCode.COMPILER_DISAGREES, said) from error

    def _refresh(self, spark: SparkSession, task: RefreshTask) -> Made:
        current = _contents(task)
        began = self._clock.monotonic_ns()
        changes = {name: self._reader.read(spark, found) for name, found in task.inputs.items()}
        read = self._clock.monotonic_ns()
        compiled = compiled_query(task, changes)
        changed = _changed(changes)
        names = ViewNames()
        if changed:
            check_agreement(spark, compiled, changes)
        _check_width(compiled, current)
        state = bound_state(spark, compiled, changes) if changed else None
        small = self._are_small(changes)
        sql = None
        if changed:
            ranges = ChangedRanges(changes)
            sql = (state or compiled).delta(changed, names, broadcast=small, ranges=ranges)
        if sql is None:
            made = self._made(current, changes, None, 0, (("changes", _ms(began, read)),))
            return replace(made, keeps_state=task.state is not None)
        choice = chosen(task, current, changes, sql, names)
        run = None
        if state is not None:
            bytes_max = self._limits.collect_bytes_max
            run = StateRun(spark, self._lake, self._index, task, state, changes, bytes_max)
        try:
            rows, stored, scanned = self._here(spark, run, sql, names, changes)
        except ResultTooLarge:
            ran = self._clock.monotonic_ns()
            applied = self._there(spark, compiled, task, current, changes)
            stored = None if run is None else run.filled_there()
            scanned = choice.workload.delta_read_rows
        else:
            ran = self._clock.monotonic_ns()
            delta = consolidated(in_lake_types(_named(rows, current), current))
            applied = apply_delta(self._lake, self._index, current, delta, task.token)
        done = self._clock.monotonic_ns()
        timings = (
            ("changes", _ms(began, read)),
            ("run", _ms(read, ran)),
            ("apply", _ms(ran, done)),
        )
        made = self._made(current, changes, applied, scanned, timings)
        if run is None or task.state is not None:  # nothing is learned from filling a state
            choice = replace(choice, measured_ms=_ms(began, done))
        return replace(made, choice=choice, state=stored, keeps_state=stored is not None)

    def _here(
        self,
        spark: SparkSession,
        run: StateRun | None,
        sql: str,
        names: ViewNames,
        changes: Mapping[str, InputChange],
    ) -> tuple[pa.Table, Made | None, int]:
        """The change of the table's rows, what to store beside them, and how much was read.

        Raises `ResultTooLarge`.
        """
        if run is None:
            frame = delta_frame(spark, sql, names, changes)
            rows, scanned = collected(frame, self._limits.collect_bytes_max)
            return rows, None, scanned
        rows, stored = run.rows(sql, names, _changed(changes))
        return rows, stored, run.rows_read

    def _there(
        self,
        spark: SparkSession,
        compiled: Compiled,
        task: RefreshTask,
        current: TableVersion,
        changes: Mapping[str, InputChange],
    ) -> Applied:
        """A change that is too large for this process, applied by Spark's tasks."""
        names = ViewNames()
        changed, small = _changed(changes), self._are_small(changes)
        sql = compiled.delta(changed, names, broadcast=small, ranges=ChangedRanges(changes))
        assert sql is not None
        frame = delta_frame(spark, sql, names, changes)
        if all(is_writable(column) for column in current.table.columns):
            _check_types(lake_schema(frame.schema[:-1]), current)
            return apply_by_tasks(spark, self._lake, current, frame, task.token)
        # Only Arrow writes some of these types, so the rows come here however many they are.
        arrived = pa.concat_tables(list(arriving(frame, bytes_max=None).batches()))
        delta = consolidated(in_lake_types(_named(arrived, current), current))
        return apply_delta(self._lake, self._index, current, delta, task.token)

    def _are_small(self, changes: Mapping[str, InputChange]) -> bool:
        """Whether the changes of all inputs may be broadcast."""
        return all(c.count <= self._limits.here_rows_max for c in changes.values())

    def _made(
        self,
        current: TableVersion,
        changes: Mapping[str, InputChange],
        applied: Applied | None,
        scanned: int,
        timings: Timings,
    ) -> Made:
        read = scanned + sum(change.rows_read for change in changes.values())
        if applied is None:
            return Made(
                current.table, self.mode, replace=False, changed=False, rows_read=read,
                timings_ms=timings,
            )  # fmt: skip
        size = applied.came + applied.went
        return Made(
            current.table, self.mode, applied.files,
            replace=False,
            deletes=applied.deletes,
            inlined_deletes=applied.inlined_deletes,
            changed=size > 0,
            rows_read=read,
            delta_rows=size,
            rows_written=applied.came,
            timings_ms=timings,
            feed=applied.feed,
        )  # fmt: skip


def chosen(
    task: RefreshTask,
    current: TableVersion,
    changes: Mapping[str, InputChange],
    sql: str,
    names: ViewNames,
) -> Choice:
    """The choice to apply the changes; raises `MustBeFull` if the whole query is cheaper.

    A state that has to be filled first does not count: it is paid once, for all refreshes after.
    """
    held = {name: change.rows_held for name, change in changes.items()}
    olds = [(view, held[name]) for view, (name, is_delta) in names.views.items() if not is_delta]
    workload = Workload(
        full_rows=sum(held.values()),
        result_rows=held_rows(current),
        delta_rows=sum(change.count for change in changes.values()),
        delta_read_rows=sum(rows * _mentions(sql, view) for view, rows in olds),
    )
    only = Mode.DIFFERENTIAL if task.definition.mode is Mode.DIFFERENTIAL else None
    choice = choose(workload, task.factors, only=only)
    if choice.mode is Mode.FULL:
        raise MustBeFull(
            ReasonCode.FULL_IS_CHEAPER,
            f"{workload.delta_rows:,} changed rows would take about "
            f"{choice.differential_ms:,.0f} ms, the whole query {choice.full_ms:,.0f} ms",
            choice,
        )
    return choice


def _mentions(sql: str, view: str) -> int:
    return len(re.findall(rf"\b{re.escape(view)}\b", sql))


def compiled_query(task: RefreshTask, changes: Mapping[str, InputChange]) -> Compiled:
    """The query, differentiated; raises `MustBeFull` if that is not possible."""
    columns = {name: change.columns for name, change in changes.items()}
    try:
        return compile_query(task.definition.query, columns)
    except NotDifferentiable as error:
        is_volatile = error.detail.get("cause") == Cause.VOLATILE
        reason = ReasonCode.VOLATILE if is_volatile else ReasonCode.NOT_DIFFERENTIABLE
        raise MustBeFull(reason, error.message) from error


def delta_frame(
    spark: SparkSession, sql: str, names: ViewNames, changes: Mapping[str, InputChange]
) -> DataFrame:
    """A query over old rows and changes as a DataFrame; nothing runs yet."""
    views = {}
    for view, (relation, is_delta) in names.views.items():
        change = changes[relation]
        make = change.delta if is_delta else change.old
        if make is None:
            raise Rejected(f"expected changes of {relation!r}, found none")
        views[view] = make(spark)
    return bound_frame(spark, sql, views)


def _changed(changes: Mapping[str, InputChange]) -> set[str]:
    return {name for name, change in changes.items() if change.delta is not None}


def _contents(task: RefreshTask) -> TableVersion:
    if task.current is None or task.frontier is None:
        raise MustBeFull(task.reason)
    return task.current


def _check_width(compiled: Compiled, current: TableVersion) -> None:
    """The change must have the table's columns; a new column of a source may be part of `*`."""
    if len(compiled.columns) != len(current.table.columns):
        raise MustBeFull(
            ReasonCode.QUERY_CHANGED,
            f"its result has {len(compiled.columns)} columns, its contents have "
            f"{len(current.table.columns)}",
        )


def _named(rows: pa.Table, current: TableVersion) -> pa.Table:
    """A change under the names of the table's columns; raises `MustBeFull` on other types.

    Spark names expressions without an alias in its own way, so columns correspond by position.
    """
    named = rows.rename_columns([*(c.name for c in current.table.columns), WEIGHT])
    _check_types(arrived_schema(unweighted(named).schema), current)
    return named


def _check_types(found: pa.Schema, current: TableVersion) -> None:
    wanted = current.table.arrow_schema
    named = pa.schema(
        [field.with_name(name) for field, name in zip(found, wanted.names, strict=True)]
    )
    if not plain_schema(columns_of(named)).equals(wanted):
        raise MustBeFull(ReasonCode.QUERY_CHANGED, "its columns have other types than its contents")


def _ms(begin_ns: int, end_ns: int) -> float:
    return (end_ns - begin_ns) / 1e6
