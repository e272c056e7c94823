"""The jobs that a JVM runs once so that the classes they load are archived: see `cache`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.spark.link import connect

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.connect.session import SparkSession

_QUERIES: Final = (
    "SELECT id % 10 AS k, count(*) AS n, sum(id) AS s FROM r GROUP BY id % 10",
    "SELECT a.id, b.id AS other FROM r a LEFT JOIN r b ON a.id = b.id + 1 WHERE a.id > 5",
    "SELECT DISTINCT id % 7 AS d FROM r ORDER BY d LIMIT 3",
)


def train(url: str) -> None:
    """Run small jobs like those of refreshes and pipelines, so that the JVM loads their classes."""
    import pyarrow as pa

    with connect(url) as spark, tempfile.TemporaryDirectory() as scratch:
        rows = pa.table({"id": list(range(1_000)), "t": [str(n) for n in range(1_000)]})
        spark.createDataFrame(rows).createOrReplaceTempView("r")
        for number, query in enumerate(_QUERIES):
            frame = spark.sql(query)
            frame.toArrow()
            path = f"{scratch}/{number}"
            frame.write.parquet(path)
            spark.read.parquet(path).toArrow()
        _batch(spark)


def _batch(spark: SparkSession) -> None:
    """A batch on its way through a pipeline: parsed in Python and in SQL, evaluated, reported."""
    import pyarrow as pa
    from pyspark.sql.connect import functions as F  # noqa: N812 - its usual name
    from pyspark.sql.connect.observation import Observation

    from penstock.spark.lake.collect import arriving

    messages = pa.table(
        {
            "_seq": pa.array(range(100), pa.int64()),
            "received_at": pa.array(range(100), pa.timestamp("us", tz="UTC")),
            "payload": [f'{{"x": {n}, "at": "2024-01-01"}}' for n in range(100)],
        }
    )
    raw = spark.createDataFrame(messages).coalesce(1)
    ddl = "_seq BIGINT, received_at TIMESTAMP, payload STRING"
    parsed = raw.mapInArrow(_same, ddl).selectExpr(
        "*", "CAST(get_json_object(payload, '$.x') AS INT) AS x",
        "from_json(payload, 'at DATE').at AS at",
        "try_to_binary(payload, 'base64') AS bytes", "CAST(NULL AS STRING) AS _reason",
    )  # fmt: skip
    bad = F.expr("collect_list(IF(_reason IS NULL, NULL, struct(_seq, _reason)))").alias("rows")
    good = parsed.observe(Observation(), bad).where("_reason IS NULL").drop("_reason")
    prices = spark.createDataFrame(pa.table({"x": list(range(50)), "price": [1.5] * 50}))
    made = good.join(F.broadcast(prices), "x", "left").selectExpr("_seq", "x * price AS charge")
    for _ in arriving(
        made.mapInArrow(_same, "_seq BIGINT, charge DOUBLE"), bytes_max=None
    ).batches():
        pass


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
