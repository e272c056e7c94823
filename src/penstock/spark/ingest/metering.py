"""The pipeline that ships: meter messages to readings and what they cost.

>>> from penstock.spark.ingest.metering import metering       # doctest: +SKIP
>>> run(metering(lake, "ingest.raw"), …)                      # doctest: +SKIP

Prices are those of the tables `meters` and `tariffs` (see `tariffs`) as they are when a batch is
evaluated; which of them counts for a reading is a question of the reading's own time. A reading
of a meter that nobody assigned a tariff to becomes a dead letter.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa

from penstock.kernel.errors import Rejected
from penstock.lake import Transaction
from penstock.lake.shell import Catalog
from penstock.spark.ingest.held import held
from penstock.spark.ingest.meter_payloads import PARSED_DDL, parse_batches
from penstock.spark.ingest.pipeline import Pipeline
from penstock.spark.ingest.tariffs import METERS, TARIFFS, Book, make_book

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

READINGS: Final = (
    "meter", "time", "energy_wh", "quality", "device", "message_id", "row_no", "received_at",
)  # fmt: skip
CHARGES: Final = (
    "meter", "time", "energy_wh", "tariff", "price_per_kwh", "charge", "device", "message_id",
    "row_no",
)  # fmt: skip

UNKNOWN_METER: Final = "unknown_meter: expected a tariff for this meter at this time, found none"
NO_PRICE: Final = "no_price: expected a band of the tariff that covers this time, found none"


def metering(
    lake: Catalog,
    topic: str = "ingest.raw",
    *,
    name: str = "metering",
    zone: str = "UTC",
    horizon: int = 100_000,
) -> Pipeline:
    """The pipeline from a raw topic of meter messages to the tables `readings` and `charges`.

    `zone` is where the hours of tariffs are meant.
    """
    return Pipeline(
        topic,
        parse,
        Pricing(lake, zone=zone),
        {"readings": READINGS, "charges": CHARGES},
        name=name,
        payload="base64",
        horizon=horizon,
    )


def create_tariff_tables(lake: Catalog) -> None:
    """Make `meters` and `tariffs` where they are missing."""
    known = {table.name for table in lake.tables()}
    wanted: dict[str, pa.Schema] = {"meters": METERS, "tariffs": TARIFFS}
    missing = {name: schema for name, schema in wanted.items() if name not in known}
    if not missing:
        return
    transaction: Transaction = lake.begin()
    schema = lake.schema("main")
    for name, columns in missing.items():
        transaction.create_table(schema, name, columns)
    lake.commit(transaction)


def parse(raw: DataFrame) -> DataFrame:
    """Messages to readings; one that cannot be read is a row with a reason."""
    made: DataFrame = raw.mapInArrow(parse_batches, PARSED_DDL)
    return made


class Pricing:
    """Readings to charges, with the book of prices as the lake has it now. Threads may share it."""

    def __init__(self, lake: Catalog, *, zone: str = "UTC") -> None:
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise Rejected(
                f"expected a time zone such as 'Europe/Berlin', found {zone!r}"
            ) from error
        self._lake = lake
        self._zone = zone
        self._lock = threading.Lock()
        self._settled: tuple[tuple[int, ...], Book] | None = None
        self._frames: tuple[object, DataFrame, DataFrame] | None = None

    def __call__(self, readings: DataFrame) -> DataFrame:
        """Find each reading's price; a meter without one is a row with a reason."""
        from pyspark.sql.connect import functions as F  # noqa: N812 - as everybody calls it

        spans, versions = self._book(readings.sparkSession)
        # By name, which Spark need not be asked about as for a frame's own columns.
        on = F.expr("meter = _meter AND time >= valid_from AND time < valid_to")
        priced = readings.join(F.broadcast(spans), on, "left").join(
            F.broadcast(versions), "version", "left"
        )
        local = "time" if self._zone == "UTC" else f"from_utc_timestamp(time, '{self._zone}')"
        place = f"((month({local}) - 1) * 7 + weekday({local})) * 24 + hour({local}) + 1"
        priced = priced.withColumn("price_per_kwh", F.expr(f"try_element_at(prices, {place})"))
        return priced.select(
            "_seq", "_row",
            F.expr(
                f"CASE WHEN version IS NULL THEN '{UNKNOWN_METER}' "
                f"WHEN price_per_kwh IS NULL THEN '{NO_PRICE}' END"
            ).alias("_reason"),
            "device", "message_id", F.col("_row").alias("row_no"), "received_at",
            "meter", "time", "energy_wh", "quality", "tariff", "price_per_kwh",
            F.expr(
                "CAST(round(energy_wh * price_per_kwh * 0.001BD, 6) AS DECIMAL(24, 6))"
            ).alias("charge"),
        )  # fmt: skip

    def _book(self, spark: SparkSession) -> tuple[DataFrame, DataFrame]:
        """The book inside Spark; sent there again only when it or the session is another."""
        with self._lock:
            tables = [self._lake.table_at(name) for name in ("meters", "tariffs")]
            marks = tuple(
                mark for t in tables for mark in (len(t.files), *(f.id for f in t.files),
                t.inlined.rows.num_rows, sum(len(f.deletes) for f in t.files))
            )  # fmt: skip
            if self._settled is None or self._settled[0] != marks:
                meters, tariffs = (self._lake.scan(t.table, t.snapshot) for t in tables)
                self._settled = (marks, make_book(meters, tariffs))
                self._frames = None
            if self._frames is None or self._frames[0] is not spark:
                book = self._settled[1]
                spans = _frame(spark, book.spans).withColumnRenamed("meter", "_meter")
                self._frames = (spark, spans, _frame(spark, book.versions))
            return self._frames[1], self._frames[2]


def _frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Rows held inside Spark, in one part: they are broadcast with every batch."""
    from penstock.lake.columns import columns_of
    from penstock.spark.reading import local_frame

    frame = local_frame(spark, rows, columns_of(rows.schema))
    return held(frame.coalesce(1))
