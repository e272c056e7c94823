"""All five stages of one running ingest, each slowed in its turn from outside, and its status."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock.app.ingest import PipelineThread, Whole
from penstock.cli.ingest import line_of
from penstock.client.raw_topic import ServerTopic
from penstock.config import IngestSettings
from penstock.ingest.frames import Frame, FrameReader
from penstock.ingest.raw_topic import Landed
from penstock.lake.catalog import Catalog
from penstock.metering.fleet import Fleet
from penstock.metering.load import LoadGenerator, LoadState, Target
from penstock.metering.shapes import Steady
from penstock.spark.link import SparkLink
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline.runner import PipelineRunner
from penstock.spark.pipeline.store import Store
from tests.integration.spark.topics.place import new_topic
from tests.waiting import until

LIMIT_S = 600.0
PATIENCE_S = 120.0
PER_S = 2_000
TICKS = 10
"""For a second the same stage is named."""
STEPS = "_seq BIGINT, payload BINARY"


class Slowness:
    """What makes one stage slow, while that stage is set."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self.stage = ""
        feed, append, commit = FrameReader.feed, ServerTopic.append, Store.commit

        def read_slowly(reader: FrameReader, data: bytes) -> list[Frame]:
            frames = feed(reader, data)
            if self.stage == "accept":
                time.sleep(0.002 * len(frames))  # on the thread of the edge
            return frames

        async def append_slowly(topic: ServerTopic, body: bytes, key: str) -> Landed:
            if self.stage == "reassemble":
                await asyncio.sleep(body.count(b'"node"') / 200)
            return await append(topic, body, key)

        def commit_slowly(store: Store, *given: Any, **named: Any) -> Any:
            if self.stage == "store":
                time.sleep(1.5)
            return commit(store, *given, **named)

        monkeypatch.setattr(FrameReader, "feed", read_slowly)
        monkeypatch.setattr(ServerTopic, "append", append_slowly)
        monkeypatch.setattr(Store, "commit", commit_slowly)

    def slow(self, stage: str) -> None:
        """Make a stage slow, and no other one; none if it has no name."""
        for each in self._directory.glob("slow-*"):
            each.unlink()
        self.stage = stage
        if stage:
            (self._directory / f"slow-{stage}").touch()

    def step(self, stage: str) -> Callable[[Any], Any]:
        """A step whose Python workers take their time while its file is there."""
        path = str(self._directory / f"slow-{stage}")

        def wait(batches: Any) -> Any:
            import time
            from pathlib import Path

            for batch in batches:
                if Path(path).exists():
                    time.sleep(1.5)
                yield batch.select(["_seq", "payload"])

        return lambda rows: rows.select("_seq", "payload").mapInArrow(wait, STEPS)


@pytest.mark.slow
def test_whichever_of_the_five_stages_is_slow_is_named_and_all_is_stored_once(
    link: SparkLink, url: str, lake: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowness = Slowness(tmp_path, monkeypatch)
    topic = new_topic()
    steps = slowness.step("parse"), slowness.step("evaluate")
    runner = PipelineRunner(Pipeline(topic, *steps, "t", payload="base64"), lake, url, link=link)
    work = slow_in_turn(IngestSettings(url=url, raw_topic=topic), runner, slowness)
    state = uvloop.run(asyncio.wait_for(work, LIMIT_S))
    stored = lake.scan("t", columns=["payload"]).num_rows
    assert stored == state.acked == state.sent > 0


async def slow_in_turn(
    settings: IngestSettings, runner: PipelineRunner, slowness: Slowness
) -> LoadState:
    """Every stage once, from the last to the first, with a rest after each of them."""
    whole = Whole(settings, runner)
    async with running(whole) as load:
        sending = asyncio.ensure_future(load.run(seconds=LIMIT_S))
        try:
            await until(lambda: whole.runner.stored_seq > 0, "the first batch", PATIENCE_S)
            for stage in ("store", "evaluate", "parse", "reassemble", "accept"):
                slowness.slow(stage)
                load.arrivals.factor = 1.0
                await Named(whole, stage).for_a_while()
                slowness.slow("")
                load.arrivals.factor = 0.0
                await until(lambda: is_drained(whole, load), f"the rest of {stage}", PATIENCE_S)
            load.end()
            return await sending
        finally:
            sending.cancel()


class Named:
    """The stage that the status names, looked at once for every tick of the planner."""

    def __init__(self, whole: Whole, stage: str) -> None:
        self._whole, self._stage = whole, stage
        self._ticks = self._last = whole.edge.windows.ticks
        self._named: list[str | None] = []

    async def for_a_while(self) -> None:
        """Until it is the stage, and stays it."""
        await until(self._look, lambda: f"{self._stage} to be named, not {self._named}", PATIENCE_S)
        assert f"bottleneck: {self._stage}" in line_of(self._whole.status())

    def _look(self) -> bool:
        ticks = self._whole.edge.windows.ticks
        if ticks > self._last:
            self._last = ticks
            self._named.append(self._whole.status()["bottleneck"])
        return self._named[-TICKS:] == [self._stage] * TICKS


@asynccontextmanager
async def running(whole: Whole) -> AsyncIterator[LoadGenerator]:
    """Edge and pipeline, and devices that are about to send."""
    thread = PipelineThread(whole.runner)
    target = Target(*await whole.edge.start(port=0))
    thread.start()
    try:
        yield LoadGenerator(target, Fleet(devices=8, meters=1, seed=8), Steady(PER_S))
    finally:
        await thread.stop()
        await whole.edge.stop()


def is_drained(whole: Whole, load: LoadGenerator) -> bool:
    return whole.behind == 0 and load.state.sent == load.state.offered
