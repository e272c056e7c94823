"""Small jobs of the kind that refreshes and pipelines are made of: a JVM loads its classes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.connect.session import SparkSession

VERSION: Final = 2
"""Archives that were made by other jobs are made anew."""

_QUERIES: Final = (
    "SELECT id % 10 AS k, count(*) AS n, sum(id) AS s FROM r GROUP BY id % 10",
    "SELECT a.id, b.id AS other FROM r a LEFT JOIN r b ON a.id = b.id + 1 WHERE a.id > 5",
    "SELECT DISTINCT id % 7 AS d FROM r ORDER BY d LIMIT 3",
)


def train(url: str) -> None:
    """Run the jobs on a Spark that serves Spark Connect."""
    import pyarrow as pa

    from penstock.spark.session import connect

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
    """A batch on its way through a pipeline: parsed in Python and in SQL, evaluated, collected."""
    import pyarrow as pa
    from pyspark.sql.connect import functions as F  # noqa: N812 - as everybody calls it

    from penstock.spark.collect import arriving
    from penstock.spark.ingest.held import held

    messages = pa.table(
        {
            "_seq": pa.array(range(100), pa.int64()),
            "received_at": pa.array(range(100), pa.timestamp("us", tz="UTC")),
            "payload": [f'{{"x": {n}, "at": "2024-01-01"}}' for n in range(100)],
        }
    )
    raw = spark.createDataFrame(messages)
    ddl = "_seq BIGINT, received_at TIMESTAMP, payload STRING"
    parsed = raw.mapInArrow(_same, ddl).selectExpr(
        "*", "CAST(get_json_object(payload, '$.x') AS INT) AS x",
        "from_json(payload, 'at DATE').at AS at",
        "try_to_binary(payload, 'base64') AS bytes", "CAST(NULL AS STRING) AS _reason",
    )  # fmt: skip
    parsed = held(parsed)
    prices = spark.createDataFrame(pa.table({"x": list(range(50)), "price": [1.5] * 50}))
    good = parsed.where("_reason IS NULL").join(F.broadcast(prices), "x", "left")
    made = good.selectExpr("_seq", "x * price AS charge").withColumn("_stage", F.lit("evaluate"))
    bad = parsed.where("_reason IS NOT NULL").select("_seq", F.lit("parse").alias("_stage"))
    evaluated = held(made.unionByName(bad, allowMissingColumns=True))
    for _ in arriving(evaluated, bytes_max=None).batches():
        pass


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
