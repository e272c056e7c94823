"""A worker dies, the Connect server dies and comes back: work waits, says so, and goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.app.tables import Warehouse
from penstock.client import Client
from penstock.kernel.errors import Rejected
from penstock.spark.lake.object_store import check_session
from penstock.spark.link import connect
from tests.integration.spark.topics.place import topic_server, url_of
from tests.spark_cluster.cluster import PATIENCE_S, Cluster, Connect
from tests.spark_cluster.place import Running, fill, until_rows, write
from tests.waiting import wait_until


def test_tables_and_pipeline_go_on_when_the_connect_server_is_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    home = cluster.shared / tmp_path.name
    home.mkdir()
    (home / "penstock.toml").write_text("[ingest]\nport = 0\nstatus_port = 0\n")
    third = cluster.worker("worker-3")
    third.said("Successfully registered with master")
    frail = cluster.connect("frail", conf={"spark.cores.max": "3"})  # one on each worker
    port = int(frail.url.rpartition(":")[2])
    spark = ("--spark", frail.url)
    catalog = f"sqlite:{home}/warehouse.sqlite"
    with (
        topic_server() as server,
        Client(url_of(server)) as client,
        Warehouse.open(catalog, runner_options={"remote": frail.url}) as warehouse,
    ):
        lake = warehouse.lake
        write(lake, "raw", range(3))
        fill(client, url_of(server), 4)
        for name in ("a", "b"):
            warehouse.create(name, "SELECT id FROM raw", schedule="50ms")
        with (
            Running(home, "table", "run", *spark) as tables,
            Running(home, "ingest", "run", "--url", url_of(server), *spark) as pipeline,
        ):
            for name, count in (("a", 3), ("b", 3), ("charges", 4)):
                until_rows(lake, name, count, pipeline if name == "charges" else tables)
            third.kill()
            write(lake, "raw", range(1))
            until_rows(lake, "a", 4, tables)
            until_rows(lake, "b", 4, tables)
            frail.kill()
            write(lake, "raw", range(1))
            fill(client, url_of(server), 3, after=4)
            until(lambda: warehouse.why("a").reason.value == "engine_away", "a reason for people")
            until(lambda: "waits: " in pipeline.said, "a line for people")
            until(lambda: tries(warehouse) >= 5, "a while")
            cluster.connect("frail-again", port=port)
            for name, count in (("a", 5), ("b", 5), ("charges", 7)):
                until_rows(lake, name, count, pipeline if name == "charges" else tables)
            until(lambda: "goes on" in pipeline.said, "the other line")
        outcomes = {record.outcome.value for record in warehouse.history()}
        statuses = {job.status.value for job in warehouse.jobs(limit=1_000)}
    assert outcomes == {"succeeded"}
    assert statuses == {"SUCCEEDED", "CANCELLED"}
    assert "Traceback" not in tables.said + pipeline.said
    assert pipeline.said.count("waits: ") == 1


def test_a_lake_on_s3_is_refused_by_a_server_without_the_jars(server: Connect) -> None:
    with connect(server.url) as spark, pytest.raises(Rejected, match="hadoop:hadoop-aws"):
        check_session(spark, "s3://bucket/lake/")


def tries(warehouse: Warehouse) -> int:
    jobs = warehouse.jobs(limit=1_000)
    return sum("no Spark answers at" in (job.outcome_detail or "") for job in jobs)


def until(condition: Callable[[], object], what: str) -> None:
    wait_until(condition, what, patience_s=PATIENCE_S)
