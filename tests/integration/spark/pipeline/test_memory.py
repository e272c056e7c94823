"""Large messages in front of a store that is held: what is read ahead is bounded in bytes."""

from __future__ import annotations

from typing import Any

from penstock.client import Client
from penstock.lake.catalog import Catalog
from penstock.spark.link import SparkLink
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline.runner import IN_FLIGHT, PipelineRunner, RunnerOptions
from tests.integration.spark.pipeline.test_metering import Running, until

MESSAGES = 40
MESSAGE_BYTES = 100_000
BATCH_BYTES = 4 * MESSAGE_BYTES


def same(rows: Any) -> Any:
    return rows.select("_seq", "payload")


def test_batches_that_are_not_stored_have_a_limit_in_bytes_all_together(
    link: SparkLink, client: Client, url: str, topic: str, lake: Catalog
) -> None:
    payloads = ["x" * MESSAGE_BYTES] * MESSAGES
    head = client.write(topic, payloads, return_seqs=False).last_seq
    pipeline = Pipeline(topic, same, same, "t")
    options = RunnerOptions(batch_bytes_max=BATCH_BYTES)
    runner = PipelineRunner(pipeline, lake, url, link=link, options=options)
    runner.hold()
    store, running = runner.job_stages.store, Running(runner)
    full = IN_FLIGHT * BATCH_BYTES // MESSAGE_BYTES
    until(lambda: full <= store.occupied <= full + 1 or running.is_over, "messages in flight")
    refusals = store.refusals
    until(lambda: store.refusals >= refusals + 3 or running.is_over, "the others to wait")
    assert not running.is_over, running.error
    assert full <= store.occupied <= full + 1
    runner.release()
    until(lambda: runner.stored_seq == head or running.is_over, "everything in the lake")
    runner.stop()
    running.join()
    assert running.error is None
    assert lake.scan("t").num_rows == MESSAGES
