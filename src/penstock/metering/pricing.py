"""Readings to charges, with the prices of a space of tariffs and meters.

A batch is priced with the space as it is at one seq, that of its head when the batch comes to be
evaluated, and each charge records which. Which of the prices counts for a reading depends on the
reading's time. A reading without a price becomes a dead letter.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.metering.price_book import Book, Books
from penstock.spark.checkpoint import checkpoint, release
from penstock.spark.pipeline.definition import Pinned
from penstock.spark.pipeline.space import Basis, SpaceCopy
from penstock.spark.topics.http import TopicAddress, TopicMissing

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

UNKNOWN_METER: Final = "unknown_meter: expected a tariff for this meter at this time, found none"


class Pricing:
    """Readings to charges, with the prices of a space. Threads may share it."""

    def __init__(self, address: TopicAddress) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._copy = SpaceCopy(address)
        self._books = Books()
        self._frames: tuple[object, Book, DataFrame, DataFrame] | None = None
        self._older: tuple[object, Book, DataFrame, DataFrame] | None = None
        """The frames before those: a batch may still go by them, but not by any before them."""

    def pin(self) -> Pinned:
        """Prices as they are now, with every change that the server has acknowledged."""
        with self._lock:
            try:
                changed = self._copy.catch_up()
            except TopicMissing as error:
                raise TopicMissing(
                    f"expected tariffs in the space {self._address.topic!r} at "
                    f"{self._address.url}, found no such space: load them with "
                    "`penstock metering tariffs load`"
                ) from error
            self._books.update(self._copy.documents, changed)
            book, basis = self._books.book, self._copy.basis
        return Pinned(partial(self._priced, book=book, basis=basis), basis)

    def close(self) -> None:
        """Close the connection; the next batch opens a new one."""
        with self._lock:
            self._copy.close()

    def _priced(self, readings: DataFrame, *, book: Book, basis: Basis) -> DataFrame:
        """Find each reading's price; one without is a row with a reason."""
        from pyspark.sql.connect import functions as F  # noqa: N812 - as everybody calls it

        spans, lists = self._book(readings.sparkSession, book)
        # By name, which Spark need not be asked about as for a frame's own columns.
        on = F.expr("meter = _meter AND time >= valid_from AND time < valid_to")
        priced = readings.join(F.broadcast(spans), on, "left").join(
            F.broadcast(lists), "list", "left"
        )
        priced = priced.withColumn(
            "price_per_kwh", F.expr(f"try_element_at(prices, {_place(_local(book.zones))})")
        )
        return priced.select(
            "_seq", "_row",
            F.expr(f"IF(list IS NULL, '{UNKNOWN_METER}', problem)").alias("_reason"),
            "device", "message_id", F.col("_row").alias("row_no"), "received_at",
            "meter", "time", "energy_wh", "quality", "tariff", "price_per_kwh",
            F.expr(
                "CAST(round(energy_wh * price_per_kwh * 0.001BD, 6) AS DECIMAL(24, 6))"
            ).alias("charge"),
            F.expr(f"{basis.epoch}L").alias("tariffs_epoch"),
            F.expr(f"{basis.seq}L").alias("tariffs_seq"),
        )  # fmt: skip

    def _book(self, spark: SparkSession, book: Book) -> tuple[DataFrame, DataFrame]:
        """The book inside Spark; sent there again only when it or the session is another."""
        with self._lock:
            known = self._frames
            if known is None or known[0] is not spark or known[1] is not book:
                spans = book.spans.rename_columns(
                    ["_meter" if name == "meter" else name for name in book.spans.column_names]
                )
                older, self._older = self._older, known
                known = self._frames = (
                    spark,
                    book,
                    _frame(spark, spans),
                    _frame(spark, book.lists),
                )
                if older is not None:
                    release(older[2])
                    release(older[3])
            return known[2], known[3]


def _local(zones: Sequence[str]) -> str:
    """A reading's time on the clocks of its tariff, in SQL.

    A zone that is a constant is looked up once for a job, one that is a column for each row.
    """
    if not zones:
        return "time"
    cases = " ".join(f"WHEN '{zone}' THEN from_utc_timestamp(time, '{zone}')" for zone in zones)
    return f"CASE zone {cases} ELSE time END"


def _place(local: str) -> str:
    """Where a price list has the price of a time, from 1 on; see `penstock.metering.hours.cell`."""
    return f"((month({local}) - 1) * 7 + weekday({local})) * 24 + hour({local}) + 1"


def _frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Rows held inside Spark, in one part: they are broadcast with every batch."""
    from penstock.lake.columns import columns_of
    from penstock.spark.lake.reading import local_frame

    frame = local_frame(spark, rows, columns_of(rows.schema))
    return checkpoint(frame.coalesce(1))
