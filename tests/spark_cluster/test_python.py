"""A cluster whose Python has no Penstock: one line says so, and what to do."""

from __future__ import annotations

import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import Client
from penstock.lake.catalog import open_catalog
from penstock.spark.link import connect
from penstock.spark.probes import PenstockMissing, check_python
from tests.integration.spark.topics.place import topic_server, url_of
from tests.spark_cluster.cluster import Cluster, Connect
from tests.spark_cluster.place import Running, fill, penstock


@pytest.fixture(scope="module")
def bare(cluster: Cluster) -> Iterator[Connect]:
    """A Connect server with a Python that has all that is installed here, but for Penstock.

    Penstock is installed by a file that Python reads in its own environment only.
    """
    home = cluster.home / "python"
    venv.create(home, symlinks=True)
    (place,) = home.glob("lib/*/site-packages")
    (place / "rest.pth").write_text(sysconfig.get_path("purelib") + "\n")
    server = cluster.connect("bare", python=str(home / "bin" / "python"))
    yield server
    server.kill()


def test_an_executor_without_penstock_is_named_with_what_to_install(bare: Connect) -> None:
    with connect(bare.url) as spark, pytest.raises(PenstockMissing) as found:
        check_python(spark)
    text = found.value.message
    assert "ModuleNotFoundError: No module named 'penstock'" in text
    assert f"{bare.python} -m pip install 'penstock[spark]'" in text
    assert "PYSPARK_PYTHON" in text
    assert "\n" not in text


def test_executors_with_penstock_are_asked_once(server: Connect) -> None:
    with connect(server.url) as spark:
        check_python(spark)
        server_side = spark.range
        spark.range = None
        check_python(spark)
        spark.range = server_side


def test_the_pipeline_ends_with_one_line(bare: Connect, cluster: Cluster, tmp_path: Path) -> None:
    home = cluster.shared / tmp_path.name
    home.mkdir()
    (home / "penstock.toml").write_text("[ingest]\nport = 0\nstatus_port = 0\n")
    with topic_server() as server, Client(url_of(server)) as client:
        fill(client, url_of(server), 5)
        words = ("--url", url_of(server), "--spark", bare.url)
        with Running(home, "ingest", "run", *words) as running:
            assert running.ends() == 1
        last = running.said.splitlines()[-1]
        assert last.startswith("Error: the Python of Spark's executors cannot use Penstock")
        assert "No module named 'penstock'" in last
        assert "Traceback" not in running.said


def test_a_table_over_a_topic_says_it_in_one_line(
    bare: Connect, cluster: Cluster, tmp_path: Path
) -> None:
    home = cluster.shared / tmp_path.name
    home.mkdir()
    with topic_server() as server, Client(url_of(server)) as client:
        client.put_topic("readings")
        client.write("readings", [{"id": 1}])
        with open_catalog(f"sqlite:{home}/warehouse.sqlite"):
            pass
        words = ("readings", "--schema", "id BIGINT", "--url", url_of(server))
        assert penstock(home, "table", "source", "add", *words).returncode == 0
        query = "SELECT id FROM topics.readings"
        done = penstock(home, "table", "create", "t", query, "--wait", "--spark", bare.url)
    assert done.returncode == 1
    assert "Error: the Python of Spark's executors cannot use Penstock" in done.stderr
    assert len(done.stderr.splitlines()) == 1
