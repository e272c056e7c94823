"""Bring a stream table up to date with Spark: from its query and its inputs to what to commit.

A refresher does the work of one mode. Nothing it does is visible until its result is applied to a
transaction and the transaction is committed, so it may be killed at any point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import pyarrow as pa

from penstock.kernel.clock import Clock
from penstock.kernel.errors import Rejected
from penstock.kernel.shell import SystemClock
from penstock.lake.model import TableInfo, TableVersion
from penstock.lake.shell import Catalog
from penstock.lake.transaction import Transaction
from penstock.spark.progress import QueryProgress, watching
from penstock.spark.reading import read_table
from penstock.spark.types import lake_schema
from penstock.spark.views import bind
from penstock.spark.writing import WriteOptions, Written, write_table
from penstock.tables.failures import Failure
from penstock.tables.model import Mode

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

_NUMBERS: Final = count()

Source: TypeAlias = "TableVersion | pa.Table"
"""What a query reads: a lake table at a snapshot, or rows that are here."""


@dataclass(frozen=True, slots=True)
class RefreshWork:
    """One table to bring up to date: its query, its inputs at their positions, where to write.

    `rows_before` is how many rows the table has now, None if that is not known; `token` is the
    reservation of the transaction that will hold the result.
    """

    table: TableInfo
    query: str
    sources: Mapping[str, Source]
    token: str | None = None
    rows_before: int | None = None
    write: WriteOptions = field(default_factory=WriteOptions)


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh made. `apply` notes it in a transaction; until then nothing has changed."""

    table: TableInfo
    executed: Mode
    written: Written
    rows_read: int
    timings_ms: tuple[tuple[str, float], ...] = ()

    @property
    def rows_written(self) -> int:
        """How many rows the new files hold."""
        return self.written.rows

    def apply(self, transaction: Transaction) -> None:
        """Let the new files be all there is in the table."""
        transaction.replace_contents(self.table, self.written.files)


class Refresher(Protocol):
    """Brings tables up to date in one mode."""

    @property
    def mode(self) -> Mode:
        """The mode that its refreshes are recorded as."""
        ...

    def refresh(self, work: RefreshWork) -> Refreshed:
        """Run the query and write its rows; changes nothing that others can see."""
        ...


class FullRefresher:
    """Runs the whole query and replaces the contents."""

    mode = Mode.FULL

    def __init__(
        self,
        spark: SparkSession,
        catalog: Catalog,
        *,
        tell: Callable[[QueryProgress], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._spark = spark
        self._catalog = catalog
        self._tell = tell
        self._clock: Clock = clock or SystemClock()

    def refresh(self, work: RefreshWork) -> Refreshed:
        """Run the query and write its rows; changes nothing that others can see."""
        begun = self._clock.monotonic_ns()
        frame = query_frame(self._spark, self._catalog, work.query, work.sources)
        bound = self._clock.monotonic_ns()
        available = rows_of(work.sources)
        written = self._watched(
            lambda: write_table(
                self._catalog.storage, work.table, frame, token=work.token,
                rows_expected=_expected(work.rows_before, available, work.write),
                options=work.write,
            )
        )  # fmt: skip
        ended = self._clock.monotonic_ns()
        timings = (("bind", (bound - begun) / 1e6), ("run", (ended - bound) / 1e6))
        read = available if written.rows_read is None else written.rows_read
        return Refreshed(work.table, self.mode, written, read, timings)

    def _watched(self, run: Callable[[], Written]) -> Written:
        if self._tell is None:
            return run()
        with watching(self._spark, self._tell, self._clock):
            return run()


def refreshers(
    spark: SparkSession,
    catalog: Catalog,
    *,
    tell: Callable[[QueryProgress], None] | None = None,
) -> dict[Mode, Refresher]:
    """A refresher for each mode that can be executed."""
    return {Mode.FULL: FullRefresher(spark, catalog, tell=tell)}


def query_frame(
    spark: SparkSession, catalog: Catalog, query: str, sources: Mapping[str, Source]
) -> DataFrame:
    """A query as a DataFrame, with its relations bound to the given sources; nothing runs yet."""
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.plan import SQL, SubqueryAlias

    bound = bind(query, f"penstock_{next(_NUMBERS)}_view")
    absent = sorted(set(bound.views) - set(sources))
    if absent:
        raise Rejected(
            f"expected sources for all relations of the query, found none for {', '.join(absent)}"
        )
    # The views go with the query in one request.
    views = [
        SubqueryAlias(source_frame(spark, catalog, sources[name])._plan, view)
        for name, view in bound.views.items()
    ]
    return DataFrame(SQL(bound.query, [], {}, views), spark)


def query_schema(
    spark: SparkSession, catalog: Catalog, query: str, sources: Mapping[str, Source]
) -> pa.Schema:
    """The columns that a table of this query has; analysed by Spark, not run."""
    return lake_schema(query_frame(spark, catalog, query, sources).schema)


def source_frame(spark: SparkSession, catalog: Catalog, source: Source) -> DataFrame:
    """One source as a DataFrame."""
    if isinstance(source, pa.Table):
        made: DataFrame = spark.createDataFrame(source)
        return made
    return read_table(spark, catalog.storage, source)


def rows_of(sources: Mapping[str, Source]) -> int:
    """How many rows the sources hold, by the catalog; deleted ones count."""
    total = 0
    for source in sources.values():
        if isinstance(source, TableVersion):
            total += sum(file.record_count for file in source.files)
            source = source.inlined.rows  # noqa: PLW2901 - the rest of the same source
        total += source.num_rows
    return total


def failure_of(error: BaseException) -> Failure:
    """An error as data, for `classify` to say whether trying again can mend it."""
    condition = getattr(error, "getCondition", lambda: None)()
    state = getattr(error, "getSqlState", lambda: None)()
    return Failure(type(error).__name__, condition, state)


def _expected(before: int | None, available: int, limits: WriteOptions) -> int | None:
    """A guess at the rows of the result: as many as before, or few if there are few to read."""
    if before:
        return before
    return None if available <= 10 * limits.collect_rows_max else available
