"""The refresh whose cost follows the change: one Spark job for what changed, applied to the table.

Every input is read as it was when the contents were made, and its changes are handed to Spark
beside it, so that the rows which a batch deleted are never filtered out of large files. The result
is the consolidated change of the table's rows; it is applied here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.kernel.clock import Clock
from penstock.kernel.errors import Rejected
from penstock.kernel.system import SystemClock
from penstock.lake.catalog import Catalog
from penstock.lake.columns import columns_of, plain_schema
from penstock.lake.model import TableVersion, held_rows
from penstock.lake.row_index import RowIndex
from penstock.protocol.errors import NotDifferentiable
from penstock.spark.delta.agreement import check_agreement, check_columns
from penstock.spark.delta.apply import Applied, apply_delta, in_lake_types
from penstock.spark.delta.by_tasks import apply_by_tasks
from penstock.spark.delta.changes import ChangedRanges, ChangeReader, InputChange, changed_inputs
from penstock.spark.delta.errors import MustBeFull
from penstock.spark.delta.handover import Handover
from penstock.spark.delta.key_types import with_keys_of
from penstock.spark.delta.limits import DeltaLimits
from penstock.spark.delta.settings import settings_of
from penstock.spark.delta.stages import StagesRun, bound_stages
from penstock.spark.delta.state import collected
from penstock.spark.delta.weighted import consolidated, unweighted
from penstock.spark.lake.collect import ResultTooLarge, arriving
from penstock.spark.lake.types import arrived_schema, is_writable, lake_schema
from penstock.spark.lake.views import ViewNames, bound_frame
from penstock.spark.query_errors import one_line
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode
from penstock.tables.delta.compiler import Compiled, compile_query
from penstock.tables.delta.cost import Choice, Held, choose, workload
from penstock.tables.delta.refusal import Cause
from penstock.tables.delta.rules import WEIGHT
from penstock.tables.delta.stages import Staged
from penstock.tables.engine import Made, RefreshTask
from penstock.tables.query.names import STATE_SCHEMA

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
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
        self._unkept: set[str] = set()

    def refresh(self, spark: SparkSession, task: RefreshTask) -> Made:
        """Run the delta query and write what it changes; raises `MustBeFull` if it cannot."""
        from pyspark import errors

        try:
            try:
                return self._refresh(spark, task)
            except errors.ArithmeticException:
                # A variance of very large numbers, maybe: then groups are read again instead.
                if task.definition.query in self._unkept:
                    raise
                self._unkept.add(task.definition.query)
                return self._refresh(spark, task)
        except errors.PySparkException as error:
            why = _why_full(task, error)
            if why is None:
                raise
            raise why from error

    def _refresh(self, spark: SparkSession, task: RefreshTask) -> Made:
        current = _contents(task)
        storage, least = self._lake.storage, self._limits.file_from_rows
        with Handover(storage, current.table.path, task.token, least) as handover:
            return self._brought(spark, task, current, handover)

    def _brought(
        self, spark: SparkSession, task: RefreshTask, current: TableVersion, handover: Handover
    ) -> Made:
        check_columns(self._lake, task.definition.query, task.inputs)
        began, copied = self._clock.monotonic_ns(), self._index.rows_copied
        looked = {
            name: self._reader.look(spark, found, handover) for name, found in task.inputs.items()
        }
        compiled = compiled_query(task, looked)
        _check_width(compiled, current)
        counted = {name for name, look in looked.items() if look.count}
        plan, choice = Staged((), compiled, None), None
        if counted:
            check_agreement(spark, compiled, looked)
            compiled = with_keys_of(spark, compiled, looked)
            plan = self._plan(spark, compiled, looked)
            choice = chosen(task, current, looked, plan.reads(counted))
        chose = self._clock.monotonic_ns()
        changes = {name: look.read() for name, look in looked.items()}
        read = self._clock.monotonic_ns()
        if choice is None or not changed_inputs(changes):
            made = self._made(current, changes, None, 0, (("changes", _ms(began, read)),))
            return replace(made, keeps_state=task.has_state)
        held = sum(each.rows_held for each in changes.values())
        run = StagesRun(spark, self._lake, self._index, task, changes, self._limits, handover)
        try:
            rows = self._here(spark, run, plan)
        except ResultTooLarge:
            ran = self._clock.monotonic_ns()
            applied: Applied | None = self._there(spark, compiled, task, current, changes)
            states = _filled_there(run, plan)
            scanned = choice.workload.delta_read_rows
        else:
            ran = self._clock.monotonic_ns()
            applied = None if rows is None else self._applied(current, rows, task)
            states, scanned = tuple(run.made), run.rows_read
        done = self._clock.monotonic_ns()
        timings = (
            ("choice", _ms(began, chose)),
            ("changes", _ms(chose, read)),
            ("run", _ms(read, ran)),
            ("apply", _ms(ran, done)),
        )
        made = self._made(current, changes, applied, scanned, timings)
        paid_once = run.has_filled or 2 * (self._index.rows_copied - copied) > held
        choice = replace(choice, measured_ms=_ms(began, done), paid_once=paid_once)
        keeps = states is not None and any(plan.kept)
        return replace(made, choice=choice, states=states or (), keeps_state=keeps)

    def _plan(
        self, spark: SparkSession, compiled: Compiled, changes: Mapping[str, InputChange]
    ) -> Staged:
        """What is kept of a query; nothing once its sums did not fit into what they are kept in.

        Nothing either in a session where an overflow is no error: the query's own sum may be NULL.
        """
        if compiled.query in self._unkept or not settings_of(spark).is_ansi:
            return Staged((), compiled, None)
        return bound_stages(spark, compiled, changes)

    def _here(self, spark: SparkSession, run: StagesRun, plan: Staged) -> pa.Table | None:
        """The change of the table's rows, if there may be one; raises `ResultTooLarge`."""
        small = self._are_small(run.changes)
        run.run(plan.stages, broadcast=small)
        if plan.root is not None:
            return run.root(plan.root, broadcast=small)
        names, changed = ViewNames(), changed_inputs(run.changes)
        ranges = ChangedRanges(run.changes, run.near(names))
        sql = plan.rest.delta(changed, names, broadcast=small, ranges=ranges, consolidate=not small)
        if sql is None:
            return None
        frame = delta_frame(spark, sql, names, run.changes)
        rows, read = collected(frame, self._limits.collect_bytes_max)
        run.rows_read += read
        return rows

    def _applied(self, current: TableVersion, rows: pa.Table, task: RefreshTask) -> Applied:
        delta = consolidated(in_lake_types(_named(rows, current), current))
        return apply_delta(self._lake, self._index, current, delta, task.token)

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
        changed, small = changed_inputs(changes), self._are_small(changes)
        sql = compiled.delta(changed, names, broadcast=small, ranges=ChangedRanges(changes))
        assert sql is not None
        frame = delta_frame(spark, sql, names, changes)
        if all(is_writable(column) for column in current.table.columns):
            _check_types(lake_schema(frame.schema[:-1]), current)
            return apply_by_tasks(spark, self._lake, current, frame, task.token)
        # Only Arrow writes some of these types, so the rows come here however many they are.
        arrived = pa.concat_tables(list(arriving(frame, bytes_max=None).batches()))
        return self._applied(current, arrived, task)

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
    reads: Mapping[str, int],
) -> Choice:
    """The choice to apply the changes; raises `MustBeFull` if the whole query is cheaper.

    `reads` says how often the changes make it read the old rows of each input. A state that has to
    be filled first does not count: it is paid once, for all refreshes after.
    """
    inputs = {name: Held(c.rows_held, c.bytes_held, c.count) for name, c in changes.items()}
    facts = workload(inputs, reads, held_rows(current))
    only = Mode.DIFFERENTIAL if task.definition.mode is Mode.DIFFERENTIAL else None
    choice = choose(facts, task.factors, only=only)
    if choice.mode is Mode.FULL:
        raise MustBeFull(
            ReasonCode.FULL_IS_CHEAPER,
            f"{facts.delta_rows:,} changed rows would take about "
            f"{choice.differential_ms:,.0f} ms, the whole query {choice.full_ms:,.0f} ms",
            choice,
        )
    return choice


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
    views = dict(names.given)
    for view, (relation, is_delta) in names.views.items():
        change = changes[relation]
        make = change.delta if is_delta else change.old
        if make is None:
            raise Rejected(f"there are no changes of {relation!r}")
        views[view] = make(spark)
    return bound_frame(spark, sql, views)


def _filled_there(run: StagesRun, plan: Staged) -> tuple[Made, ...] | None:
    """All that is kept, rebuilt by Spark's tasks; None if they cannot."""
    made = [run.state_run(kept).filled_there() for kept in plan.kept]
    found = tuple(each for each in made if each is not None)
    return found if len(found) == len(made) else None


def _why_full(task: RefreshTask, error: PySparkException) -> MustBeFull | None:
    """Why the whole query must run after an error of Spark; None if it would fail as well."""
    from pyspark import errors

    if _is_lost(task, error):
        return MustBeFull(ReasonCode.STATE_LOST, one_line(error))
    if isinstance(error, errors.AnalysisException):
        said = f"Spark does not take the compiled changes: {one_line(error)}"
        return MustBeFull(ReasonCode.COMPILER_DISAGREES, said)
    of_rows = (
        errors.ArithmeticException,
        errors.ArrayIndexOutOfBoundsException,
        errors.DateTimeException,
        errors.NumberFormatException,
        errors.SparkRuntimeException,
    )
    if isinstance(error, of_rows):
        # If it is the query that fails on these rows, its own error is the one to be told.
        said = f"the changes fail where the whole query may not: {one_line(error)}"
        return MustBeFull(ReasonCode.COMPILER_DISAGREES, said)
    return None


def _is_lost(task: RefreshTask, error: PySparkException) -> bool:
    """Whether Spark could not read a file that an earlier refresh left for this one."""
    if not str(error.getCondition()).startswith(("PATH_NOT_FOUND", "FAILED_READ_FILE")):
        return False
    feeds = [file.path for found in task.inputs.values() for file in found.feed or ()]
    text = str(error)
    return f"/{STATE_SCHEMA}/" in text or any(path in text for path in feeds)


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
