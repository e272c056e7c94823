"""Each stage is slowed in turn while messages wait, and the status names it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from penstock.client import Client
from penstock.ingest.windows import Windows
from penstock.lake.catalog import Catalog
from penstock.spark.link import SparkLink
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline.runner import PipelineRunner
from penstock.spark.pipeline.store import Store
from tests.integration.spark.pipeline.test_metering import Running, until

STEPS = "_seq BIGINT, payload STRING"
SLOW_S = 1.5


def slowly(rows: Any) -> Any:
    """A step that takes its time inside Spark's Python workers."""

    def wait(batches: Any) -> Any:
        import time

        for batch in batches:
            time.sleep(1.5)
            yield batch.select(["_seq", "payload"])

    return rows.select("_seq", "payload").mapInArrow(wait, STEPS)


def quickly(rows: Any) -> Any:
    return rows.select("_seq", "payload")


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["parse", "evaluate", "store"])
def test_the_stage_that_is_slow_is_the_one_that_is_named(
    link: SparkLink,
    client: Client,
    url: str,
    topic: str,
    lake: Catalog,
    slow: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = {"parse": quickly, "evaluate": quickly} | ({slow: slowly} if slow != "store" else {})
    if slow == "store":
        commit = Store.commit

        def late(self: Store, *given: Any, **named: Any) -> Any:
            time.sleep(SLOW_S)
            return commit(self, *given, **named)

        monkeypatch.setattr(Store, "commit", late)
    pipeline = Pipeline(topic, steps["parse"], steps["evaluate"], "t")
    runner = PipelineRunner(pipeline, lake, url, link=link)
    windows = Windows(runner.stages)
    head = client.write(topic, [{"n": n} for n in range(8_000)], return_seqs=False).last_seq
    running = Running(runner, head)
    began = time.monotonic()
    named: list[str | None] = []

    def look() -> bool:
        windows.tick(int((time.monotonic() - began) * 1_000))
        if runner.stored_seq:  # before that nothing has passed any stage
            named.append(windows.status().bottleneck)
        return named[-3:] == [slow] * 3 or running.is_over

    until(look, f"{slow} to be named")
    assert not running.is_over, (running.error, named)
    latencies = {stage.name: stage.status().p50_ns or 0 for stage in runner.stages}
    assert max(latencies, key=latencies.__getitem__) == slow, latencies
    runner.stop()
    running.join()
    assert running.error is None
