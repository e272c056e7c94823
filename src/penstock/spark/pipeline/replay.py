"""Dead letters, retried after a fix: those that succeed now move to their tables.

A replay is a job like that of a batch; only the rows that letters are about are stored. One commit
takes the letters out and puts their rows in, so each row is in one place at any time, and of two
concurrent replays one is refused. Letters that fail again stay, with the new reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.kernel.errors import Conflict, Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.model import NewFile, TableVersion
from penstock.spark.pipeline.chain import Chain, JobResult
from penstock.spark.pipeline.definition import DEAD_LETTERS, RAW, Pipeline, raw_schema
from penstock.spark.pipeline.fetch import FetchedBatch
from penstock.spark.pipeline.side_files import SideStore
from penstock.spark.pipeline.store import (
    LakeTables,
    Store,
    add_rows,
    checked_files,
    dead_letters,
)
from penstock.spark.pipeline.task import TaskWork, Wanted

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

COMMITS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of dead letters: how many were tried, rows stored, letters left of them."""

    letters: int
    rows: int
    dead: int


def replay(
    spark: SparkSession,
    lake: Catalog,
    pipeline: Pipeline,
    *,
    reason: str | None = None,
    letters_max: int = 50_000,
) -> Replayed:
    """Try the dead letters of a pipeline again, all or those whose reason begins with a text.

    They are evaluated again, with the current documents of a space.
    At most `letters_max` in one commit, the oldest first; call it again for the rest.
    """
    everything = _letters(lake, lake.table_at(pipeline.dead_letters))
    tried = everything.filter(_chosen(everything, pipeline.name, reason, letters_max))
    if not tried.num_rows:
        return Replayed(0, 0, 0)
    replayed = _Replay(lake, pipeline, tried)
    result = replayed.run(spark)
    for attempt in range(COMMITS_MAX):
        try:
            replayed.commit(result)
            break
        except Conflict:
            # The pipeline adds letters while it runs; look again at what there is.
            if attempt + 1 == COMMITS_MAX:
                raise
    return Replayed(tried.num_rows, result.rows, len(result.dead))


class _Replay:
    """One try of some letters."""

    def __init__(self, lake: Catalog, pipeline: Pipeline, letters: pa.Table) -> None:
        self._lake = lake
        self._pipeline = pipeline
        self._store = Store(lake, pipeline)
        self._token = self._store.reserve()
        self._batch = _batch(pipeline, letters)
        rows = frozenset(_pairs(letters))
        self._wanted = Wanted(rows, frozenset(seq for seq, row in rows if row is None))
        self._tables: LakeTables | None = None

    def run(self, spark: SparkSession) -> JobResult:
        """Parse and evaluate the letters' messages; tasks write the rows that succeed."""
        chain, side = Chain(spark, self._pipeline), SideStore(self._lake)
        try:
            begun = chain.begin(self._batch.messages)
            evaluate = self._pipeline.pinned().evaluate
            self._tables = self._store.tables(chain.schema(evaluate))
            work = TaskWork(
                self._lake.storage.root, self._token, self._tables.targets,
                steps=side.steps(chain.steps(evaluate)), only=self._wanted,
            )  # fmt: skip
            return chain.run(begun, evaluate, work)
        finally:
            self._pipeline.close()
            side.close()

    def commit(self, result: JobResult) -> None:
        """Put the letters' rows in and take the letters out."""
        lake, tables = self._lake, self._tables
        assert tables is not None, "a replay runs before it is committed"
        version = lake.table_at(self._pipeline.dead_letters)
        everything = _letters(lake, version)
        is_tried = self._is_tried(everything)
        transaction = lake.begin(at=version.snapshot)
        transaction.token = self._token
        transaction.end_files(version.table, version.files)
        if version.inlined.rows.num_rows:
            transaction.delete_inlined(version.table, version.inlined.row_ids)
        still = dead_letters(self._pipeline.name, result.dead, self._batch, lake.clock.now_ms())
        kept = everything.filter(pc.invert(is_tried))
        add_rows(lake, transaction, version.table, pa.concat_tables([kept, still]))
        found: list[tuple[int, NewFile]] = checked_files(
            lake.storage, tables.targets, result.reports
        )
        for number, file in found:
            transaction.add_files(tables.tables[number], [file])
        count = len(self._wanted.rows)
        transaction.author = "penstock"
        transaction.message = f"pipeline {self._pipeline.name}: {count} dead letters tried again"
        lake.commit(transaction)

    def _is_tried(self, letters: pa.Table) -> pa.Array:
        """Which letters are those that were tried; `Rejected` if another replay has some."""
        is_ours = pc.equal(letters["pipeline"], self._pipeline.name)
        exact = pa.array([pair in self._wanted.rows for pair in _pairs(letters)], pa.bool_())
        is_tried = pc.and_(is_ours, exact)
        found, count = pc.sum(is_tried).as_py() or 0, len(self._wanted.rows)
        if found != count:
            raise Rejected(
                f"{count} dead letters were tried, and {found} of them are left: another replay "
                "has taken the others"
            )
        return is_tried


def _letters(lake: Catalog, version: TableVersion) -> pa.Table:
    return lake.scan(version.table, version.snapshot).cast(DEAD_LETTERS)


def _pairs(letters: pa.Table) -> list[tuple[int, int | None]]:
    """The message and the row that each letter is about."""
    return list(zip(letters["seq"].to_pylist(), letters["row_no"].to_pylist(), strict=True))


def _chosen(letters: pa.Table, name: str, reason: str | None, letters_max: int) -> pa.Array:
    mask = pc.equal(letters["pipeline"], name)
    if reason is not None:
        mask = pc.and_(mask, pc.starts_with(letters["reason"], reason))
    chosen: NDArray[np.bool_] = mask.to_numpy()
    if chosen.sum() > letters_max:
        order = np.argsort(letters["seq"].to_numpy(), kind="stable")
        kept = order[chosen[order]][:letters_max]
        chosen = np.zeros(len(chosen), np.bool_)
        chosen[kept] = True
    return pa.array(chosen)


def _batch(pipeline: Pipeline, letters: pa.Table) -> FetchedBatch:
    """The messages that letters come from, each once."""
    _, first = np.unique(letters["seq"].to_numpy(), return_index=True)
    origin = letters.take(pa.array(first))
    names = ("seq", "device", "message_id", "received_at", "payload")
    messages = pa.table([origin[name] for name in names], names=RAW.names)
    messages = messages.cast(raw_schema(pipeline.payload))
    return FetchedBatch(0, 0, messages, messages.num_rows, 0)
