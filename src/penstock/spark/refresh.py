"""Spark as the engine that refreshes stream tables: from a task to the files to commit.

Nothing it does is visible until what it made is committed, so it may be killed at any point. It is
made in every worker process, by name: `penstock.spark.refresh:make`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias
from uuid import uuid4

import numpy as np
import pyarrow as pa

from penstock.kernel.clock import Clock
from penstock.kernel.errors import PenstockError, Rejected
from penstock.kernel.system import SystemClock
from penstock.lake.catalog import Catalog
from penstock.lake.feed import WEIGHT_COLUMN, FeedFile, write_feed
from penstock.lake.model import TableVersion
from penstock.lake.row_index import RowIndex
from penstock.protocol.errors import NotDifferentiable
from penstock.spark.checking import QueryChecker
from penstock.spark.delta.agreement import disagreement
from penstock.spark.delta.by_tasks import difference_by_tasks, feed_by_tasks
from penstock.spark.delta.errors import MustBeFull
from penstock.spark.delta.key_types import with_spark_keys
from penstock.spark.delta.limits import DeltaLimits
from penstock.spark.delta.refresh import DifferentialRefresh
from penstock.spark.errors import SparkNotStarted, is_lost
from penstock.spark.jvm.cache import cache_dir
from penstock.spark.jvm.embedded import start_spark
from penstock.spark.jvm.keeper import JvmKeeper
from penstock.spark.lake.difference import RecentFiles
from penstock.spark.lake.object_store import check_session, check_store
from penstock.spark.lake.reading import read_table
from penstock.spark.lake.types import arrived_schema, is_writable
from penstock.spark.lake.views import ViewNames, bind, bound_frame
from penstock.spark.lake.writing import WriteOptions, WrittenFiles, write_table
from penstock.spark.link import SparkLink, interrupt, open_session, reason
from penstock.spark.options import SparkOptions, plain_options, spark_options
from penstock.spark.planning import planned
from penstock.spark.probes import check_python, check_shared, explained, once_a_spark
from penstock.spark.progress import QueryProgress, watching
from penstock.spark.query_errors import lost, said
from penstock.spark.topics.http import TopicRecreated
from penstock.spark.topics.source import declared_schema, read_topic
from penstock.tables.core.history import ReasonCode, RefreshProgress
from penstock.tables.core.model import Mode, TableDefinition
from penstock.tables.delta.compiler import compile_query
from penstock.tables.engine import (
    EngineAway,
    EngineLost,
    Factory,
    Input,
    Made,
    RefreshTask,
    SourceRecreated,
    TopicRead,
)

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

NAME: Final = "penstock.spark.refresh:make"
SESSION: Final = "session_id"
TAKES_OVER: Final = "takes_over"
OURS: Final = "is_ours"
"""Marks clients of a Spark whose tasks run on this machine, in a process that was started here."""
_NUMBERS: Final = count()
_PREFIX: Final = "penstock_{:08}_view"
"""How views begin: all equally long, so that places in a query can be told whatever its number."""

Source: TypeAlias = "TableVersion | TopicRead | pa.Table"
"""What a query reads: a lake table at a snapshot, a topic up to a seq, or rows that are here."""
Tell = Callable[[QueryProgress], None]


def make(lake: Catalog, options: Mapping[str, Any]) -> SparkEngine:
    """An engine on the Spark that the options name: those of `SparkOptions`, or none of them.

    With `remote` it is one client among others of a Spark that runs elsewhere; without, it starts
    one for itself. `session_id` is the number of its session; `takes_over` that of one whose
    owner died: what it runs still is ended first. `is_ours` says that a remote one was started on
    this machine, by the program that made the options.
    """
    given = dict(options)
    session_id, left = given.pop(SESSION, None), given.pop(TAKES_OVER, None)
    ours = bool(given.pop(OURS, False))
    if left is not None:
        with suppress(PenstockError):  # it may be gone with whatever it ran
            interrupt(given["remote"], left)
    return SparkEngine(lake, spark_options(given), session_id=session_id, is_ours=ours)


def check(lake: Catalog, options: Mapping[str, Any]) -> None:
    """Refuse a Spark elsewhere that could never work on this lake; one that is away may yet."""
    given = spark_options(options)
    if given.is_local or not lake.storage.is_local:
        return
    with suppress(SparkNotStarted), open_session(given) as spark:
        check_shared(spark, lake.storage)


def is_at_hand(options: Mapping[str, Any]) -> bool:
    """Whether an engine by these options has a Spark without starting one."""
    return spark_options(options).remote is not None


def host(options: Mapping[str, Any], tell: Callable[[str], None]) -> SparkHost:
    """What a coordinator keeps for the engines of its workers: one Spark, by the same options."""
    return SparkHost(spark_options(options), tell)


def check_data_path(options: Mapping[str, Any], data_path: str) -> None:
    """Refuse a data path that a Spark by these options could not use."""
    check_store(spark_options(options), data_path)


def preload() -> None:
    """Load what engines need, for a process that forks workers; opens nothing."""
    import pyspark.sql.connect.client.retries
    import pyspark.sql.connect.functions
    import pyspark.sql.connect.session
    import pyspark.sql.connect.shell.progress  # noqa: F401 - it is all about loading them


@contextmanager
def shared(options: SparkOptions) -> Iterator[Factory]:
    """A Spark for several processes, and the name under which each makes its engine on it.

    The Spark is started if it is ours, and ends with the block.
    """
    if options.remote is not None:
        yield Factory(NAME, plain_options(options))
        return
    with start_spark(options) as embedded:
        yield Factory(NAME, {"remote": embedded.url, OURS: options.is_local})


class SparkHost:
    """Keeps one Spark for a coordinator and all its workers. With `remote` it keeps none.

    Each worker gets the URL and the id of a session of its own, so that the worker that takes a
    dead one's place can end what that one left running.
    """

    def __init__(self, options: SparkOptions, tell: Callable[[str], None]) -> None:
        self._options = options
        self._keeper = None if options.remote is not None else JvmKeeper(options, tell=tell)

    @property
    def pid(self) -> int | None:
        """The JVM's process id, if this process started it and it is running."""
        return None if self._keeper is None else self._keeper.pid

    def generation(self) -> int | None:
        """The number of the JVM that serves now, or None. Starts one if needed; never waits."""
        if self._keeper is None:
            return 0
        return None if self._keeper.poll() is None else self._keeper.generation

    def trouble(self) -> str | None:
        """Why the last start failed, if it did."""
        return None if self._keeper is None else self._keeper.trouble

    def factory(self, instead_of: Factory | None = None) -> Factory:
        """How one worker makes its engine on this Spark."""
        options = plain_options(self._options)
        jvm = None if self._keeper is None else self._keeper.jvm
        if jvm is not None:
            # Without its settings: sessions have those from the start of the JVM, and what belongs
            # to a JVM they may not set.
            options = {"remote": jvm.url, OURS: self._options.is_local}
        options[SESSION] = str(uuid4())
        if instead_of is not None and instead_of.options.get("remote") == options["remote"]:
            options[TAKES_OVER] = instead_of.options[SESSION]
        return Factory(NAME, options)

    def close(self) -> None:
        """End the Spark, if it is ours."""
        if self._keeper is not None:
            self._keeper.stop()


class FullRefresh:
    """Runs the whole query and makes the contents its result.

    Where little differs only that is written, so that downstream has only that to read.
    """

    mode = Mode.FULL

    def __init__(
        self,
        lake: Catalog,
        *,
        write: WriteOptions | None = None,
        tell: Tell | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._lake = lake
        self._write = write or WriteOptions()
        self._tell = tell
        self._clock: Clock = clock or SystemClock()
        self._recent = RecentFiles()

    def refresh(self, spark: SparkSession, task: RefreshTask) -> Made:
        """Run the query and write its rows."""
        begun = self._clock.monotonic_ns()
        sources = {name: _source(found) for name, found in task.inputs.items()}
        frame = query_frame(spark, self._lake, task.definition.query, sources)
        if task.definition.mode is not Mode.FULL:
            frame = self._settled(spark, task, frame, sources)
        available = rows_of(sources)
        bound = self._clock.monotonic_ns()
        with watching(spark, self._teller(task, available), self._clock):
            written = write_table(
                self._lake.storage, task.target, frame, token=task.token,
                rows_expected=_expected(task.current, available, self._write),
                current=task.current, options=self._write, recent=self._recent,
            )  # fmt: skip
        took_ms = (self._clock.monotonic_ns() - bound) / 1e6
        timings = (
            ("bind", (bound - begun) / 1e6),
            ("run", written.ran_ms),
            ("compare", written.compared_ms),
            ("write", took_ms - written.ran_ms - written.compared_ms),
        )
        made = self._made(task, written, available, timings)
        return replace(made, feed=self._feed(spark, task, written))

    def _made(
        self,
        task: RefreshTask,
        written: WrittenFiles,
        available: int,
        timings: tuple[tuple[str, float], ...],
    ) -> Made:
        change = written.difference
        return Made(
            written.table, self.mode, written.files,
            replace=change is None,
            deletes=change.deletes if change else (),
            inlined_deletes=change.inlined_deletes if change else (),
            changed=written.changed,
            delta_rows=change.size if change else written.rows + _rows_before(task),
            rows_read=_rows_read(task, written, available),
            rows_written=written.rows, timings_ms=timings,
        )  # fmt: skip

    def _feed(
        self, spark: SparkSession, task: RefreshTask, written: WrittenFiles
    ) -> FeedFile | None:
        """What changed, for readers: compared here, or by Spark where everything was replaced.

        A table that was recreated has no feed: its readers are rebuilt as well.
        """
        table, change, token = written.table, written.difference, task.token
        if any(column.name.lower() == WEIGHT_COLUMN.name for column in table.columns):
            return None  # readers find the change in the lake's history
        if change is None:
            return self._feed_there(spark, task, written)
        if not change.size:
            return None
        schema = table.arrow_schema
        rows = pa.concat_tables([change.added.cast(schema), change.gone.cast(schema)])
        weights = np.repeat([1, -1], [change.added.num_rows, change.gone.num_rows])
        return write_feed(self._lake.storage, table, rows, pa.array(weights, pa.int64()), token)

    def _feed_there(
        self, spark: SparkSession, task: RefreshTask, written: WrittenFiles
    ) -> FeedFile | None:
        current = task.current
        if current is None or current.table != written.table or not task.is_read():
            return None
        if not all(is_writable(column) for column in current.table.columns):
            return None
        storage = self._lake.storage
        delta = difference_by_tasks(spark, storage, current, written.files)
        return feed_by_tasks(storage, current.table, delta, task.token)

    def _settled(
        self,
        spark: SparkSession,
        task: RefreshTask,
        frame: DataFrame,
        sources: Mapping[str, TableVersion | TopicRead],
    ) -> DataFrame:
        """The query, or where it leaves an order open the same with ties broken.

        Which of equal rows come first must not depend on who asks: changes are found by asking
        again for some of the rows.
        """
        columns = {name: source_columns(spark, source) for name, source in sources.items()}
        try:
            compiled = compile_query(task.definition.query, columns)
        except NotDifferentiable:
            return frame
        if not compiled.breaks_ties:
            return frame

        def source(name: str) -> DataFrame:
            return source_frame(spark, self._lake, sources[name])

        if disagreement(spark, compiled, source):
            return frame
        names = ViewNames()
        compiled = compile_query(task.definition.query, columns, frame.columns)
        sql = with_spark_keys(spark, compiled, source).full(names)
        views = {view: source(relation) for view, (relation, _) in names.views.items()}
        return bound_frame(spark, sql, views)

    def _teller(self, task: RefreshTask, available: int) -> Tell:
        def tell(seen: QueryProgress) -> None:
            task.tell(progress_of(seen, available))
            if self._tell is not None:
                self._tell(seen)

        return tell


class SparkEngine:
    """Refreshes tables and answers questions with Spark. Use it from one thread at a time.

    The next call replaces a lost session, or a lost JVM that it started.
    """

    def __init__(
        self,
        lake: Catalog,
        options: SparkOptions | None = None,
        *,
        session_id: str | None = None,
        is_ours: bool = False,
        write: WriteOptions | None = None,
        limits: DeltaLimits | None = None,
        tell: Tell | None = None,
    ) -> None:
        self._lake = lake
        # An engine's own JVM is not started again before it is asked for: its query may be what
        # ended the last one.
        self._link = SparkLink(options, session_id=session_id, is_ours=is_ours, restarts=False)
        self._check_shared = once_a_spark(lambda spark: check_shared(spark, lake.storage))
        self._link.require(self._check)
        self._full = FullRefresh(lake, write=write, tell=tell)
        copies = cache_dir(None if options is None else options.cache_dir) / "rows"
        self._differential = DifferentialRefresh(lake, RowIndex(copies), limits=limits)
        with suppress(SparkNotStarted) if self._link.is_remote else nullcontext():
            self._link.session()  # or the first use is told that it is away

    def refresh(self, task: RefreshTask) -> Made:
        """Bring one table up to date; nothing is committed."""
        with self._used(task.definition.query) as spark:
            return planned(spark, lambda: self._refreshed(spark, task))

    def _refreshed(self, spark: SparkSession, task: RefreshTask) -> Made:
        why = _why_full(task)
        began = time.perf_counter()
        if why is None:
            try:
                return self._differential.refresh(spark, task)
            except MustBeFull as found:
                why = found
        looked_ms = (time.perf_counter() - began) * 1_000
        made = self._full.refresh(spark, task)
        choice = why.choice
        if choice is not None:
            took_ms = sum(spent for _, spent in made.timings_ms)
            choice = replace(choice, measured_ms=took_ms)
            made = replace(made, timings_ms=(("choice", looked_ms), *made.timings_ms))
        return replace(made, reason=why.reason, reason_text=why.text, choice=choice)

    def query(self, sql: str, inputs: Mapping[str, TableVersion | TopicRead]) -> pa.Table:
        """Answer a question over tables as they are in the versions given, and over topics."""
        with self._used(sql) as spark:
            return planned(spark, lambda: self._answer(spark, sql, inputs))

    def _answer(
        self, spark: SparkSession, sql: str, inputs: Mapping[str, TableVersion | TopicRead]
    ) -> pa.Table:
        rows, _ = query_frame(spark, self._lake, sql, inputs)._to_table()
        return rows.cast(arrived_schema(rows.schema))

    def check(self, query: str, inputs: Mapping[str, TableVersion | TopicRead | str]) -> None:
        """Let Spark analyse a query; raise what it says against it."""
        try:
            spark = self._link.session()
        except PenstockError:
            return  # it may come back
        checker = QueryChecker(
            spark, self._lake, inputs, lambda found: source_frame(spark, self._lake, found)
        )
        checker.check(query, self._functions)

    def explain(self, definition: TableDefinition) -> Mapping[str, Any]:
        """How the next refresh would be done."""
        known = [Mode.FULL.value, Mode.DIFFERENTIAL.value]
        return {"engine": "spark", "modes": known, "query": bind(definition.query).query}

    def interrupt(self) -> None:
        """Cancel the running query; from any thread."""
        self._link.interrupt()

    def close(self) -> None:
        """Release the session, and end the Spark that was started for it."""
        self._link.close()

    @contextmanager
    def _used(self, query: str) -> Iterator[SparkSession]:
        """The session for a query; what Spark says against it becomes one line."""
        try:
            yield self._link.session()
        except Exception as error:
            if is_lost(error):
                self._raise_lost(error)
            told = self._told(error, query)
            if told is not error:
                raise told from error
            raise

    def _told(self, error: Exception, query: str) -> Exception:
        """A Spark error as one of Penstock's; other errors unchanged."""
        found = explained(error)
        if isinstance(found, PenstockError):
            return found
        told = said(error, query, bind(query, _PREFIX.format(0)), self._functions)
        return error if told is None else told

    def _raise_lost(self, error: Exception) -> NoReturn:
        """Discard a lost session or Spark and raise; the next call replaces them.

        A Spark that others run is away if it cannot be reached, and lost if it was there when the
        query began: then the query may be what ended it.
        """
        log = self._link.log
        self.close()
        if self._link.is_remote:
            if isinstance(error, SparkNotStarted):
                raise EngineAway(error.message) from error
            raise EngineLost(f"Spark was lost during the refresh: {reason(error)}") from error
        if isinstance(error, PenstockError):
            raise error
        raise lost(log) from error

    def _functions(self) -> list[str]:
        """The names of the functions that Spark has."""
        return [row[0] for row in self._link.session().sql("SHOW SYSTEM FUNCTIONS").collect()]

    def _check(self, spark: SparkSession) -> None:
        """Refuse a Spark that has no way to the lake's files."""
        check_session(spark, self._lake.data_path)
        if not self._link.is_ours:
            self._check_shared(spark)


def query_frame(
    spark: SparkSession, lake: Catalog, query: str, sources: Mapping[str, Source]
) -> DataFrame:
    """A query as a DataFrame, with its relations bound to the given sources; nothing runs yet."""
    bound = bind(query, _PREFIX.format(next(_NUMBERS)))
    absent = sorted(set(bound.views) - set(sources))
    if absent:
        raise Rejected(f"the query reads {', '.join(absent)}, for which no source was given")
    views = {view: source_frame(spark, lake, sources[name]) for name, view in bound.views.items()}
    return bound_frame(spark, bound.query, views)


def source_frame(spark: SparkSession, lake: Catalog, source: Source) -> DataFrame:
    """One source as a DataFrame."""
    if isinstance(source, pa.Table):
        made: DataFrame = spark.createDataFrame(source)
        return made
    if isinstance(source, TopicRead):
        return topic_frame(spark, source)
    return read_table(spark, lake.storage, source)


def topic_frame(spark: SparkSession, read: TopicRead) -> DataFrame:
    """A topic as a DataFrame. What it no longer holds is not there; that is on record elsewhere."""
    check_python(spark)
    try:
        return read_topic(
            spark, read.url, read.topic, read.schema, read.upto_seq if read.epoch else 0,
            key=read.key or None, api_key=read.api_key, epoch=read.epoch, lost="pass",
        )  # fmt: skip
    except TopicRecreated as error:
        raise SourceRecreated(error.message) from error


def rows_of(sources: Mapping[str, Source]) -> int:
    """How many rows the sources hold, by the catalog; deleted and expired ones count."""
    total = 0
    for source in sources.values():
        if isinstance(source, pa.Table):
            total += source.num_rows
        elif isinstance(source, TopicRead):
            total += source.records
        else:
            total += sum(file.record_count for file in source.files)
            total += source.inlined.rows.num_rows
    return total


def _rows_read(task: RefreshTask, written: WrittenFiles, available: int) -> int:
    """What was read: by Spark's own count of files where it has one, and the records of topics."""
    if written.rows_read is None:
        return available
    topics = (found.topic for found in task.inputs.values())
    return written.rows_read + sum(topic.records for topic in topics if topic is not None)


def progress_of(seen: QueryProgress, available: int) -> RefreshProgress:
    """What Spark says of a query, for people. Rows are a guess: Spark counts tasks and bytes."""
    return RefreshProgress(
        rows=round(available * seen.share),
        stages=seen.stages,
        stages_done=seen.stages_done,
        tasks=seen.tasks,
        tasks_done=seen.tasks_done,
        elapsed_ms=seen.elapsed_ms,
        left_ms=seen.left_ms,
    )


def _why_full(task: RefreshTask) -> MustBeFull | None:
    """Why a task is not even tried by its changes."""
    if task.definition.mode is Mode.FULL:
        return MustBeFull(ReasonCode.AS_CONFIGURED)
    if task.must_be_full or task.reason is ReasonCode.REQUESTED:
        return MustBeFull(task.reason)
    return None


def source_columns(spark: SparkSession, source: TableVersion | TopicRead) -> tuple[str, ...]:
    """The names of a source's columns."""
    if isinstance(source, TopicRead):
        return tuple(declared_schema(spark, source.schema).fieldNames())
    return tuple(column.name for column in source.table.columns)


def _source(found: Input) -> TableVersion | TopicRead:
    source = found.version or found.topic
    if source is None:
        raise Rejected(f"{found.name!r} is neither a lake table nor a topic")
    return source


def _rows_before(task: RefreshTask) -> int:
    return 0 if task.current is None else rows_of({"": task.current})


def _expected(current: TableVersion | None, available: int, limits: WriteOptions) -> int | None:
    """A guess at the rows of the result: as many as before, or few if there are few to read."""
    before = 0 if current is None else rows_of({"": current})
    if before:
        return before
    return None if available <= 10 * limits.collect_rows_max else available
