"""Rounds of a pipeline whose driver, or whose JVM, is killed at random moments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from penstock.client import Client
from penstock.lake.shell import Catalog, open_catalog
from penstock.spark.ingest.cursors import Cursor, cursor_of
from penstock.spark.ingest.metering import metering
from penstock.spark.ingest.runner import PipelineRunner
from penstock.spark.ingest.sparks import Sparks
from penstock.spark.options import SparkOptions
from tests.integration.lake.duck import Duck
from tests.integration.spark_ingest.fleet import Fleet, fill_tariffs, space_of

ROOT = Path(__file__).parents[3]
DRIVER = "tests.integration.spark_ingest.driver"
DEADLINE_S = 400
MESSAGES = 60


def wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def kill_drivers(
    directory: Path,
    client: Client,
    url: str,
    topic: str,
    spark_url: str,
    random: Random,
    kills: int,
) -> None:
    """Kill -9 the driver's process again and again, at a random moment after it did something."""
    address = f"sqlite:{directory}/catalog.sqlite"
    fleet = Fleet(client, topic, random)
    with open_catalog(address, str(directory / "data")) as lake:
        fill_tariffs(url, topic)
        for _ in range(kills):
            before = cursor_of(lake, "metering")
            fleet.send(MESSAGES)
            with (directory / "driver.log").open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", DRIVER, address, url, topic, spark_url],
                    stdout=log, stderr=log, cwd=ROOT,
                )  # fmt: skip
            wait(partial(has_begun, process, lake, before), "the driver to begin")
            fleet.send(MESSAGES)
            try:
                process.wait(random.uniform(0, 4))
            except subprocess.TimeoutExpired:
                process.kill()
            assert process.wait() == -signal.SIGKILL, (directory / "driver.log").read_text()[
                -3_000:
            ]
        finish(directory, url, topic, spark_url, fleet, address)


def has_begun(process: subprocess.Popen[bytes], lake: Catalog, before: Cursor | None) -> bool:
    """Whether a driver has taken the pipeline over, or has ended."""
    return process.poll() is not None or cursor_of(lake, "metering") != before


def kill_jvms(
    directory: Path, client: Client, url: str, topic: str, options: SparkOptions, random: Random,
    kills: int,
) -> None:  # fmt: skip
    """Kill -9 Spark's JVM under a driver that stays."""
    address = f"sqlite:{directory}/catalog.sqlite"
    fleet = Fleet(client, topic, random)
    sparks = Sparks(options)
    with open_catalog(address, str(directory / "data")) as lake:
        fill_tariffs(url, topic)
        runner = PipelineRunner(
            metering(url, topic, tariffs=space_of(topic)), lake, url, sparks=sparks
        )
        thread = threading.Thread(target=runner.run, daemon=True)
        thread.start()
        for _ in range(kills):
            stored = runner.stored_seq
            head = fleet.send(MESSAGES)
            wait(lambda old=stored: runner.stored_seq > old, "a batch")
            head = fleet.send(MESSAGES)
            time.sleep(random.uniform(0, 1))
            pid = sparks.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        head = fleet.send(MESSAGES)
        wait(lambda: runner.stored_seq == head or not thread.is_alive(), "the rest")
        assert thread.is_alive(), runner.trouble
        runner.stop()
        thread.join(DEADLINE_S)
        sparks.close()
        with Duck(address) as duck:
            fleet.check(lake, duck)


def finish(
    directory: Path, url: str, topic: str, spark_url: str, fleet: Fleet, address: str
) -> None:
    """Run to the end without a kill, and look."""
    head = fleet.send(1)
    with open_catalog(address) as lake:
        sparks = Sparks(SparkOptions(remote=spark_url))
        PipelineRunner(metering(url, topic, tariffs=space_of(topic)), lake, url, sparks=sparks).run(
            head
        )
        sparks.close()
        with Duck(address) as duck:
            fleet.check(lake, duck)
