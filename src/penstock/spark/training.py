"""A few small jobs of the kind that refreshes are made of, for a JVM to load its classes by."""

from __future__ import annotations

import tempfile
from typing import Final

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
