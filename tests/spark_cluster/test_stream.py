"""Structured Streaming on a cluster, from a topic into the lake: every record once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.errors.exceptions.connect import SparkException

from penstock.client import Client
from penstock.lake.catalog import open_catalog
from penstock.spark.pipeline.cursors import cursors
from penstock.spark.pipeline.stream_sink import LakeSink
from penstock.spark.topics.source import register
from tests.integration.lake.duck import Duck
from tests.integration.spark.topics.place import topic_server, url_of
from tests.spark_cluster.cluster import PATIENCE_S, Cluster
from tests.waiting import wait_until


def run(spark: Any, url: str, sink: LakeSink) -> None:
    """The query, for what is in the topic now."""
    read = spark.readStream.format("penstock").options(url=url, topic="numbers", max_rows="40")
    rows = read.load().selectExpr("seq", "from_json(data, 'n INT').n AS n")
    writer = rows.writeStream.foreachBatch(sink).trigger(availableNow=True)
    query = started(writer.option("checkpointLocation", sink.checkpoint))
    assert query.awaitTermination(PATIENCE_S)
    assert query.exception() is None


def started(writer: Any) -> Any:
    """The query, once Spark could start its Python process for sinks.

    Spark gives that process ten seconds to come up, which no setting changes, and importing pyspark
    takes longer where the machine is busy.
    """
    found: list[Any] = []

    def start() -> bool:
        try:
            found.append(writer.start())
        except SparkException as error:
            if "failed to connect back" not in str(error):
                raise
        return bool(found)

    wait_until(start, "a process for sinks", patience_s=PATIENCE_S)
    return found[0]


def forget_the_last_commit(checkpoint: Path) -> None:
    """As if Spark had died after the sink and before it could note that it was done."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def test_a_query_that_was_cut_off_goes_on_and_stores_nothing_twice(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    home = cluster.shared / tmp_path.name
    home.mkdir()
    address = f"sqlite:{home}/catalog.sqlite"
    sink = LakeSink(address, "rows", str(home / "checkpoint"))
    register(spark)
    with (
        topic_server() as server,
        Client(url_of(server)) as client,
        open_catalog(address, str(home / "data")) as lake,
    ):
        client.write("numbers", [{"n": n} for n in range(100)], create=True)
        run(spark, url_of(server), sink)
        assert cursors(lake)[0].seq == 3, "batches of 40, 40 and 20"
        forget_the_last_commit(home / "checkpoint")
        client.write("numbers", [{"n": n} for n in range(100, 130)])
        run(spark, url_of(server), sink)
        assert sorted(lake.scan("rows")["n"].to_pylist()) == list(range(130))
        with Duck(address) as duck:
            assert duck.value("SELECT count(DISTINCT seq) FROM rows WHERE n = seq - 1") == 130
