"""The page about clusters is followed, with a cluster and a PostgreSQL that are started for it."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from penstock.spark.jvm.java import find_java
from tests.docs.story import Story
from tests.docs.test_pages import CLUSTER, follow
from tests.integration.lake.duck import Duck
from tests.integration.postgres import PROGRAMS, new_database, postgres_server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.skipif(not PROGRAMS, reason="needs PostgreSQL")
def test_the_page_about_clusters_can_be_followed_and_duckdb_reads_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_DAEMON_JAVA_OPTS", "-XX:TieredStopAtLevel=1")
    monkeypatch.setenv("JAVA_HOME", str(find_java().home))
    with postgres_server() as words:
        lake = new_database(words, "lake")
        instead = {
            "host=db.example dbname=lake user=penstock": lake,
            "/srv/lake": str(tmp_path / "lake"),
            "127.0.0.1:7077": f"127.0.0.1:{(master := free_port())}",
            "--port 7077": f"--port {master}",
            "127.0.0.1:15002": f"127.0.0.1:{(connect := free_port())}",
            "binding.port=15002": f"binding.port={connect}",
        }
        follow(CLUSTER, Story(tmp_path, Path(sys.executable).parent, instead))
        with Duck(f"postgres:{lake}") as duck:
            assert duck.rows("SELECT meter, kwh FROM lake.per_meter") == [{"meter": 1, "kwh": 2.5}]
