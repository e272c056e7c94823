"""The embedded Spark: who may connect, what it says when it cannot start, and that it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock.lake.catalog import Catalog
from penstock.lake.expire import sweep
from penstock.spark.errors import SparkMissing, SparkNotStarted
from penstock.spark.jvm import cache
from penstock.spark.jvm import embedded as module
from penstock.spark.jvm.embedded import EmbeddedSpark, start_spark
from penstock.spark.jvm.java import Java
from penstock.spark.link import connect, interrupt, new_session, open_session
from penstock.spark.options import SparkOptions
from tests.integration.spark.one import CACHE
from tests.waiting import wait_until

DEADLINE_S = 120


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_sessions_share_a_spark_and_nothing_else(embedded: EmbeddedSpark, spark: Any) -> None:
    with connect(embedded.url) as other:
        other.sql("CREATE TEMPORARY VIEW mine AS SELECT 1 AS one")
        other.conf.set("spark.sql.shuffle.partitions", "7")
        assert other.sql("SELECT * FROM mine").collect()[0][0] == 1
        assert not spark.catalog.tableExists("mine")
        assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sql("SELECT 1").collect()[0][0] == 1


def test_a_remote_spark_gets_the_settings_that_the_lake_needs(embedded: EmbeddedSpark) -> None:
    options = SparkOptions(remote=embedded.url, conf={"spark.sql.ansi.enabled": "false"})
    with open_session(options) as spark:
        assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
        assert spark.conf.get("spark.sql.ansi.enabled") == "false"
    assert embedded.is_running


def test_nobody_connects_without_the_secret(embedded: EmbeddedSpark) -> None:
    bare = embedded.url.partition("/;")[0]
    with pytest.raises(SparkNotStarted, match="no Spark answers at"):
        new_session(f"{bare}/;token=wrong", retries_max=0)


def test_a_spark_that_is_not_there_is_told_soon() -> None:
    with pytest.raises(SparkNotStarted, match="no Spark answers at sc://localhost:1: "):
        new_session("sc://localhost:1", retries_max=1)


def test_somebody_else_can_stop_what_a_session_runs(embedded: EmbeddedSpark) -> None:
    session_id = str(uuid4())
    worker = new_session(embedded.url, session_id=session_id)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.sql("SELECT count(*) FROM range(0, 1000000000000, 1, 4)").collect()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + DEADLINE_S
    while thread.is_alive() and time.monotonic() < deadline:
        interrupt(embedded.url, session_id)
        thread.join(0.2)
    assert not thread.is_alive()
    assert len(failures) == 1
    interrupt(embedded.url, session_id)  # it is closed: there is nothing to stop
    worker.client.close()


@pytest.mark.slow
def test_a_killed_driver_takes_its_jvm_along_and_leaves_files_for_the_sweep(
    lake: Catalog, address: str
) -> None:
    command = [sys.executable, "-m", "tests.integration.spark.driver"]
    driver = subprocess.Popen(
        [*command, address, lake.data_path, str(CACHE)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert driver.stdout is not None
        pid, files = (int(word) for word in driver.stdout.readline().split())
        assert is_alive(pid)
    finally:
        driver.kill()
        driver.communicate()
    wait_until(lambda: not is_alive(pid))
    assert lake.tables() == []
    stored = [file.path for file in lake.storage.files(lake.data_path)]
    assert len([path for path in stored if path.endswith(".parquet")]) == files == 3
    assert sorted(sweep(lake, grace_ms=-1_000)) == sorted(stored)
    assert list(lake.storage.files(lake.data_path)) == []


def test_a_jvm_that_cannot_start_says_why() -> None:
    options = SparkOptions(cores=1, memory_mb=512, cache_dir=CACHE, conf={"spark.master": "moon"})
    with pytest.raises(SparkNotStarted, match="Master must"):
        start_spark(options)


def test_without_java_the_text_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SparkMissing, match="Spark needs Java 17 or newer"):
        start_spark(SparkOptions(java_home=tmp_path, cache_dir=CACHE))


def test_without_pyspark_the_text_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(SparkMissing, match=r"pip install 'penstock\[spark\]'"):
        start_spark(SparkOptions())


def test_the_jar_is_built_once_and_without_a_compiler_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = module.look_around(SparkOptions(cache_dir=CACHE))
    bare = Java(tmp_path, "17")
    assert cache.filesystem_jar(tmp_path / "none", bare, machine.jars_dir) is None
    assert "has no compiler" in caplog.text
    if machine.jar is not None:
        assert cache.filesystem_jar(CACHE, bare, machine.jars_dir) == machine.jar


def test_where_nothing_can_be_kept_no_archive_is_made_and_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    machine = replace(module.look_around(SparkOptions(cache_dir=CACHE)), cache=tmp_path / "file")
    assert module.build_archive(machine) is None
    assert "Spark starts more slowly here" in caplog.text
