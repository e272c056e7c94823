"""Dead letters, retried after a fix: those that succeed now move to their tables.

One commit takes the letters out and puts their rows in, so each row is in one place at any time,
and of two concurrent replays one is refused. Letters that fail again stay, with the new reason.
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
from penstock.lake.model import TableVersion
from penstock.spark.pipeline.definition import (
    DEAD_LETTERS,
    RAW,
    Pipeline,
    evaluated_frame,
    parsed_frame,
)
from penstock.spark.pipeline.store import (
    RESERVE_MS,
    Store,
    collected,
    dead_letters,
    sort_rows,
)

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
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
    messages = _messages(tried)
    parsed = parsed_frame(pipeline, _raw(spark, pipeline, messages))
    try:
        found = sort_rows(collected(evaluated_frame(pipeline.pinned(), parsed), None))
    finally:
        pipeline.close()
    wanted = _Wanted(tried)
    good = found.good.filter(wanted.mask(found.good, "_seq", "_row"))
    dead = found.dead.filter(wanted.mask(found.dead, "_seq", "_row"))
    still = dead_letters(pipeline, dead, messages, lake.clock.now_ms())
    for attempt in range(COMMITS_MAX):
        try:
            _commit(lake, pipeline, wanted, good, still)
            break
        except Conflict:
            # The pipeline adds letters while it runs; look again at what there is.
            if attempt + 1 == COMMITS_MAX:
                raise
    return Replayed(tried.num_rows, good.num_rows, still.num_rows)


def _commit(
    lake: Catalog, pipeline: Pipeline, wanted: _Wanted, good: pa.Table, still: pa.Table
) -> None:
    version = lake.table_at(pipeline.dead_letters)
    everything = _letters(lake, version)
    is_ours = pc.equal(everything["pipeline"], pipeline.name)
    is_tried = pc.and_(is_ours, wanted.exactly(everything))
    found = pc.sum(is_tried).as_py() or 0
    if found != wanted.count:
        raise Rejected(
            f"expected the {wanted.count} dead letters that were tried, found {found}: another "
            "replay has taken the others"
        )
    transaction = lake.begin(at=version.snapshot, reserve_ms=RESERVE_MS)
    transaction.end_files(version.table, version.files)
    if version.inlined.rows.num_rows:
        transaction.delete_inlined(version.table, version.inlined.row_ids)
    store = Store(lake, pipeline)
    kept = everything.filter(pc.invert(is_tried))
    store.add_letters(transaction, pa.concat_tables([kept, still]))
    store.add_rows(transaction, good)
    transaction.author = "penstock"
    transaction.message = f"pipeline {pipeline.name}: {wanted.count} dead letters tried again"
    lake.commit(transaction)


def _letters(lake: Catalog, version: TableVersion) -> pa.Table:
    return lake.scan(version.table, version.snapshot).cast(DEAD_LETTERS)


class _Wanted:
    """Which rows of messages are looked for: those that letters are about."""

    def __init__(self, letters: pa.Table) -> None:
        pairs = zip(letters["seq"].to_pylist(), letters["row_no"].to_pylist(), strict=True)
        self._rows = set(pairs)
        self._whole = {seq for seq, row in self._rows if row is None}
        self.count = letters.num_rows

    def mask(self, rows: pa.Table, seq_name: str, row_name: str) -> pa.Array:
        """The rows that belong to a letter, or to a message that is one as a whole."""
        pairs = zip(rows[seq_name].to_pylist(), rows[row_name].to_pylist(), strict=True)
        found = [seq in self._whole or (seq, row) in self._rows for seq, row in pairs]
        return pa.array(found, pa.bool_())

    def exactly(self, letters: pa.Table) -> pa.Array:
        """The letters themselves."""
        pairs = zip(letters["seq"].to_pylist(), letters["row_no"].to_pylist(), strict=True)
        return pa.array([pair in self._rows for pair in pairs], pa.bool_())


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


def _messages(letters: pa.Table) -> pa.Table:
    """The messages that letters come from, each once; payloads are bytes."""
    _, first = np.unique(letters["seq"].to_numpy(), return_index=True)
    origin = letters.take(pa.array(first))
    names = ("seq", "device", "message_id", "received_at", "payload")
    return pa.table([origin[name] for name in names], names=RAW.names)


def _raw(spark: SparkSession, pipeline: Pipeline, messages: pa.Table) -> DataFrame:
    from pyspark.sql.connect import functions as F  # noqa: N812 - as everybody calls it

    frame: DataFrame = spark.createDataFrame(messages)
    if pipeline.payload == "json":
        frame = frame.withColumn("payload", F.decode("payload", "UTF-8"))
    return frame
