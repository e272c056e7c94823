"""A Connect server is killed and started again: how soon do table and pipeline go on?

`python -m tests.soak.away --rounds 5`. By turns, a plain client that tries again and again to run
one job with a Python function is the limit, and a coordinator and a pipeline with work waiting are
what is measured. Times are from "Spark Connect server started" in the server's log.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock.app.tables import Warehouse
from penstock.client import Client
from penstock.kernel.errors import PenstockError
from penstock.lake.catalog import Catalog
from penstock.spark.link import connect
from tests.integration.spark.topics.place import topic_server, url_of
from tests.spark_cluster.cluster import PATIENCE_S, Cluster
from tests.spark_cluster.place import Running, fill, rows, until_rows, write
from tests.waiting import wait_until


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=3)
    count = asked.parse_args().rounds
    with ExitStack() as stack:
        base = Path(tempfile.mkdtemp(prefix="penstock-away-"))
        cluster = stack.enter_context(Cluster(base))
        took = measured(stack, cluster, count)
    for what, each in took.items():
        print(f"{what}: median {statistics.median(each):.1f} s, all {sorted(each)}")


def measured(stack: ExitStack, cluster: Cluster, count: int) -> dict[str, list[float]]:
    """Seconds after each return of the server."""
    took: dict[str, list[float]] = {"a plain client's first job": [], "table": [], "pipeline": []}
    server = stack.enter_context(topic_server())
    client = stack.enter_context(Client(url_of(server)))
    url, home = url_of(server), cluster.shared
    spark = cluster.connect()
    port = int(spark.url.rpartition(":")[2])
    warehouse = stack.enter_context(Warehouse.open(f"sqlite:{home}/warehouse.sqlite"))
    lake = warehouse.lake
    write(lake, "raw", range(1))
    warehouse.create("a", "SELECT id FROM raw", schedule="50ms")
    fill(client, url, 1)
    (home / "penstock.toml").write_text("[ingest]\nport = 0\nstatus_port = 0\n")
    for round_ in range(1, count + 1):
        spark.kill()
        spark = cluster.connect(f"plain-{round_}", port=port)
        began = time.monotonic()
        wait_until(lambda at=spark.url: answers(at), "an answer", patience_s=PATIENCE_S)
        took["a plain client's first job"].append(round(time.monotonic() - began, 1))
        words = ("--spark", spark.url)
        with (
            Running(home, "table", "run", *words) as tables,
            Running(home, "ingest", "run", "--url", url, *words) as pipeline,
        ):
            until_rows(lake, "a", 2 * round_ - 1, tables)
            until_rows(lake, "charges", 2 * round_ - 1, pipeline)
            spark.kill()
            write(lake, "raw", range(2))
            fill(client, url, 2, after=2 * round_ - 1)
            wait_until(lambda: "waits: " in pipeline.said, "a line", patience_s=PATIENCE_S)
            time.sleep(5)  # as long as somebody needs to start it again
            spark = cluster.connect(f"again-{round_}", port=port)
            began = time.monotonic()
            for name, at_s in reached(lake, 2 * round_ + 1):
                took[name].append(round(at_s - began, 1))
                print(f"round {round_}: {name} after {at_s - began:.1f} s", flush=True)
    return took


def reached(lake: Catalog, count: int) -> Iterator[tuple[str, float]]:
    """Table and pipeline, each with the time at which it was seen to have all its rows."""
    open_ = {"table": "a", "pipeline": "charges"}

    def met() -> list[str]:
        return [name for name, table in open_.items() if rows(lake, table) == count]

    while open_:
        wait_until(met, patience_s=PATIENCE_S)
        for name in met():
            del open_[name]
            yield name, time.monotonic()


def answers(url: str) -> bool:
    """Whether one job with a Python function runs through."""

    def passed(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    try:
        with connect(url) as spark:
            return len(spark.range(2).mapInArrow(passed, "id bigint").collect()) == 2
    except PenstockError:
        return False


if __name__ == "__main__":
    main()
