"""Where an executor has a disk of its own: nothing is half committed, and a start is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Client
from penstock.lake.catalog import Catalog, open_catalog
from penstock.spark.errors import FilesNotShared
from penstock.spark.jvm.command import SESSION_CONF
from penstock.spark.lake.task_files import FilesDiffer
from penstock.spark.link import connect
from penstock.spark.pipeline.cursors import cursor_of
from penstock.spark.pipeline.definition import Pipeline
from penstock.spark.probes import check_shared
from penstock.spark.refresh import make
from tests.integration.spark.pipeline.test_store import messages, stored
from tests.integration.spark.refreshing import refresh
from tests.integration.spark.topics.place import topic_server, url_of
from tests.spark_cluster.cluster import HAS_NAMESPACES, Cluster, Connect, on_both_executors
from tests.spark_cluster.place import fill, penstock

pytestmark = pytest.mark.skipif(not HAS_NAMESPACES, reason="needs the right to unshare mounts")
QUERY = "SELECT id, id % 7 AS k FROM range(0, 1001, 1, 4)"


@pytest.fixture
def spark(server: Connect) -> Iterator[Any]:
    with connect(server.url, conf=SESSION_CONF) as session:
        yield session


def lake_at(parent: Path, tmp_path: Path) -> Catalog:
    """A lake whose catalog is here and whose files are in a directory of the cluster."""
    home = parent / tmp_path.name
    home.mkdir()
    return open_catalog(f"sqlite:{tmp_path}/catalog.sqlite", str(home / "data"))


@pytest.fixture
def apart(cluster: Cluster, tmp_path: Path) -> Iterator[Catalog]:
    with lake_at(cluster.private, tmp_path) as lake:
        yield lake


@pytest.fixture
def shared(cluster: Cluster, tmp_path: Path) -> Iterator[Catalog]:
    with lake_at(cluster.shared, tmp_path) as lake:
        yield lake


def left(lake: Catalog) -> list[Path]:
    return [path for path in Path(lake.data_path).rglob("*") if path.is_file()]


def test_a_refresh_whose_files_are_not_all_here_commits_nothing(spark: Any, apart: Catalog) -> None:
    with pytest.raises(FilesDiffer, match=r"wrote 1001 rows, but the [123] files of .* hold \d+:"):
        refresh(spark, apart, "made", QUERY, collect_rows_max=-1)
    assert [table.name for table in apart.tables()] == []
    assert left(apart) == []


def test_a_refresh_on_shared_storage_is_whole(spark: Any, shared: Catalog) -> None:
    refresh(spark, shared, "made", QUERY, collect_rows_max=-1, small_bytes=1)
    assert sorted(shared.scan("made")["id"].to_pylist()) == list(range(1_001))
    names = [path.name for path in left(shared)]
    assert len(names) == 4
    assert all(name.startswith("part-") for name in names), names


def test_a_batch_whose_files_are_not_all_here_moves_no_cursor(spark: Any, apart: Catalog) -> None:
    pipeline = Pipeline("raw", lambda rows: rows, on_both_executors, "readings")
    with pytest.raises(FilesDiffer):
        stored(spark, apart, pipeline, messages(400))
    now = cursor_of(apart, pipeline.name)
    assert now is not None
    assert (now.seq, now.rows_stored) == (0, 0)
    assert apart.scan("readings").num_rows == 0


def test_the_probe_passes_on_shared_storage_and_leaves_nothing(spark: Any, shared: Catalog) -> None:
    check_shared(spark, shared.storage)
    assert left(shared) == []


def test_the_probe_refuses_a_disk_of_an_executors_own(spark: Any, apart: Catalog) -> None:
    with pytest.raises(FilesNotShared, match="a file that an executor wrote is not here"):
        check_shared(spark, apart.storage)
    assert left(apart) == []


def test_an_engine_on_it_is_refused_when_it_is_made(server: Connect, apart: Catalog) -> None:
    with pytest.raises(FilesNotShared, match="does not share the lake's files"):
        make(apart, {"remote": server.url})


@pytest.fixture
def home(cluster: Cluster, tmp_path: Path) -> Path:
    made = cluster.private / f"{tmp_path.name}-home"
    made.mkdir()
    return made


def one_line(said: str) -> str:
    (line,) = said.strip().splitlines()
    return line


def test_commands_refuse_it_at_their_start_in_one_line(server: Connect, home: Path) -> None:
    assert penstock(home, "table", "create", "t", QUERY).returncode == 0
    ran = penstock(home, "table", "run", "--spark", server.url)
    assert ran.returncode == 1
    assert one_line(ran.stderr).startswith("Error: this Spark does not share the lake's files at")
    asked = penstock(home, "table", "refresh", "t", "--spark", server.url)
    assert asked.returncode == 1
    assert "does not share the lake's files" in asked.stderr


def test_ingest_refuses_it_at_its_start(server: Connect, home: Path) -> None:
    with topic_server() as topics, Client(url_of(topics)) as client:
        fill(client, url_of(topics), 1)
        ran = penstock(
            home, "ingest", "run", "--spark", server.url, "--url", url_of(topics), "--port", "0"
        )
    assert ran.returncode == 1
    assert one_line(ran.stdout + ran.stderr).startswith("Error: this Spark does not share the lake")
    with open_catalog(f"sqlite:{home}/warehouse.sqlite") as lake:
        assert [table.name for table in lake.tables()] == []
