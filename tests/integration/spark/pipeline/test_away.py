"""The catalog goes away under a running pipeline: it waits, says so once, and goes on."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random

import pytest

from penstock.client import Client
from penstock.lake.catalog import open_catalog
from penstock.metering.pipeline import metering
from penstock.spark.link import SparkLink
from penstock.spark.pipeline.runner import PipelineRunner, RunnerOptions
from tests.integration.lake.duck import Duck
from tests.integration.postgres import PROGRAMS, new_database, postgres_server
from tests.integration.spark.pipeline.fleet import Fleet, fill_tariffs, space_of
from tests.integration.spark.pipeline.test_metering import Running, until
from tests.integration.tables.test_coordinator import stopped


class Counting(PipelineRunner):
    """Counts how often it tried in vain."""

    tries = 0

    def tell_trouble(self, what: str, error: Exception) -> None:
        self.tries += 1
        super().tell_trouble(what, error)


@pytest.mark.skipif(not PROGRAMS, reason="needs PostgreSQL")
def test_a_pipeline_waits_for_its_catalog_in_one_line_and_stores_everything_once(
    link: SparkLink,
    client: Client,
    url: str,
    topic: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill_tariffs(url, topic)
    fleet = Fleet(client, topic, Random(3))
    head = fleet.send(50)
    options = RunnerOptions(retry_base_ms=10, retry_cap_ms=50, failures_max=3)
    caplog.set_level(logging.INFO)
    with postgres_server() as words:
        address = f"postgres:{new_database(words, 'lake')}"
        with open_catalog(address, str(tmp_path / "data")) as lake:
            pipeline = metering(url, topic, tariffs=space_of(topic))
            runner = Counting(pipeline, lake, url, link=link, options=options)
            running = Running(runner)
            try:
                until(lambda: runner.stored_seq == head or running.is_over, "the first batch")
                with stopped(words):
                    head = fleet.send(50)
                    until(lambda: runner.tries > 5 or running.is_over, "more tries than may fail")
                until(lambda: runner.stored_seq == head or running.is_over, "the rest")
            finally:
                runner.stop()
                running.join()
            assert running.error is None
            with Duck(address) as duck:
                fleet.check(lake, duck)
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1
    assert "the catalog on PostgreSQL cannot be reached" in told[0].getMessage()
    assert "\n" not in told[0].getMessage()
    assert any("goes on" in record.getMessage() for record in caplog.records)
