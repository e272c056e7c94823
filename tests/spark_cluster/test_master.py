"""The driver here, the tasks on a standalone cluster: `spark://`, with settings from a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import Client
from penstock.lake.catalog import Catalog, open_catalog
from tests.integration.spark.one import CACHE
from tests.integration.spark.topics.place import topic_server, url_of
from tests.spark_cluster.cluster import SMALL, Cluster
from tests.spark_cluster.place import (
    Running,
    fill,
    penstock,
    until_rows,
    write,
)

MANY = 150_000
"""More rows than Penstock writes by itself: Spark's tasks do."""


@pytest.fixture
def home(cluster: Cluster, tmp_path: Path) -> Path:
    """A directory that the cluster shares, with settings in it."""
    made = cluster.shared / tmp_path.name
    made.mkdir()
    conf = {key: value for key, value in SMALL.items() if key.startswith("spark.executor.")}
    (made / "penstock.toml").write_text(
        f'[spark]\nmaster = "{cluster.master}"\ncores = 2\nmemory_mb = 768\n'
        f'cache_dir = "{CACHE}"\npython = "{sys.executable}"\n\n[spark.conf]\n'
        + "".join(f'{key} = "{value}"\n' for key, value in conf.items())
    )
    return made


@pytest.fixture
def lake(home: Path) -> Iterator[Catalog]:
    with open_catalog(f"sqlite:{home}/warehouse.sqlite") as opened:
        yield opened


def test_a_table_is_made_by_tasks_on_the_cluster(home: Path, lake: Catalog) -> None:
    write(lake, "raw", range(MANY))
    done = penstock(home, "table", "create", "t", "SELECT id, id % 7 AS k FROM raw", "--wait")
    assert done.returncode == 0, done.stderr
    found = lake.scan("t")
    assert found.num_rows == MANY
    assert sum(found.column("k").to_pylist()) == sum(number % 7 for number in range(MANY))


def test_a_master_that_nobody_serves_is_told_at_once(home: Path, lake: Catalog) -> None:
    write(lake, "raw", [1])
    away = ("--spark", "spark://127.0.0.1:1")
    done = penstock(home, "table", "create", "t", "SELECT id FROM raw", "--wait", *away)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "Error: no Spark master answers at spark://127.0.0.1:1: 127.0.0.1:1: "
    )
    assert "Traceback" not in done.stderr


def test_the_pipeline_runs_on_a_master(home: Path, lake: Catalog, cluster: Cluster) -> None:
    settings = home / "penstock.toml"
    settings.write_text(f"[ingest]\nport = 0\nstatus_port = 0\n\n{settings.read_text()}")
    with topic_server() as server, Client(url_of(server)) as client:
        fill(client, url_of(server), 50)
        words = ("--url", url_of(server), "--spark", cluster.master)
        with Running(home, "ingest", "run", *words) as running:
            until_rows(lake, "charges", 50, running)
