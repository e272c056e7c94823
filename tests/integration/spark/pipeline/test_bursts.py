"""Bursts of five times what the pipeline can keep up with, from sockets to the lake."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import uvloop

from penstock.app.ingest import PipelineThread, Whole
from penstock.config import IngestSettings
from penstock.flow.planner import PlannerPolicy
from penstock.kernel.units import MIB
from penstock.lake.catalog import Catalog
from penstock.metering.fleet import Fleet
from penstock.metering.load import LoadGenerator, LoadState, Target
from penstock.metering.pipeline import metering
from penstock.metering.readings import READING_DTYPE
from penstock.metering.shapes import Shape, Steady, named_shape
from penstock.spark.link import SparkLink
from penstock.spark.pipeline.runner import PipelineRunner
from tests.integration.spark.pipeline.fleet import space_of
from tests.integration.spark.pipeline.test_whole import fill, rows
from tests.integration.spark.topics.place import new_topic
from tests.waiting import until

LIMIT_S = 600.0
SHAPES = ("square", "sawtooth", "random", "day")
SHAPE_MS = 1_000
WARM_UP = 3_000
"""Messages by which it is seen how many the pipeline takes in a second."""
BUDGET_BYTES = 17 * MIB
"""Less than the windows begin with would hold of these messages."""


@dataclass(frozen=True, slots=True)
class InTurn:
    """One shape after the other, each for a while, from a time on."""

    shapes: tuple[Shape, ...]
    from_ms: int

    def rate_per_s(self, at_ms: int) -> float:
        turn = (at_ms - self.from_ms) // SHAPE_MS
        return self.shapes[min(turn, len(self.shapes) - 1)].rate_per_s(at_ms - self.from_ms)


@pytest.mark.slow
def test_bursts_in_every_shape_keep_to_the_memory_and_every_byte_is_in_the_lake(
    link: SparkLink, url: str, lake: Catalog
) -> None:
    fleet = Fleet(devices=6, meters=30, seed=6)
    topic = new_topic()
    fill(url, topic, fleet)
    work = bursts(link, url, topic, lake, fleet)
    check_every_byte(lake, fleet, uvloop.run(asyncio.wait_for(work, LIMIT_S)))


async def bursts(link: SparkLink, url: str, topic: str, lake: Catalog, fleet: Fleet) -> list[int]:
    """See how much the pipeline takes, then send five times as much; what each device sent."""
    settings = IngestSettings(url=url, raw_topic=topic, window_bytes=BUDGET_BYTES)
    pipeline = metering(url, topic, tariffs=space_of(topic))
    whole = Whole(settings, PipelineRunner(pipeline, lake, url, link=link))
    thread = PipelineThread(whole.runner)
    memory = Memory(whole)
    load = LoadGenerator(Target(*await whole.edge.start(port=0)), fleet, Steady(WARM_UP))
    running = asyncio.ensure_future(load.run(seconds=10_000, on_progress=memory.look))
    thread.start()

    def goes_on() -> bool:
        for work in (thread.ended, running):
            assert not work.done(), work.result()
        return True

    def is_drained() -> bool:
        assert not thread.ended.done(), thread.ended.result()
        return load.state.acked == load.state.offered and whole.behind == 0

    try:
        await until(lambda: goes_on() and load.state.offered >= WARM_UP, "the warm-up")
        load.arrivals.factor = 0.0
        await until(lambda: goes_on() and whole.runner.stored_seq > 0, "a batch", 300)
        began_s, before = time.monotonic(), whole.runner.stored_seq
        await until(lambda: goes_on() and is_drained(), "the warm-up in the lake", 300)
        sustained = (whole.runner.stored_seq - before) / (time.monotonic() - began_s)
        load.arrivals.shape = InTurn(shapes(max(50.0, sustained)), load.state.elapsed_ms)
        load.arrivals.factor = 1.0
        end_ms = load.state.elapsed_ms + SHAPE_MS * len(SHAPES)
        await until(lambda: goes_on() and load.state.elapsed_ms >= end_ms, "every shape")
        load.end()
        state = await running
        await until(is_drained, "the rest", 300)
    except AssertionError as error:
        error.add_note(f"{load.state}\n{whole.status()}\n{stacks()}")
        raise
    finally:
        running.cancel()
        await thread.stop()
        await whole.edge.stop()
    assert state.acked == state.sent == state.offered > WARM_UP + 4 * sustained
    assert (state.connects, state.resent) == (fleet.devices, 0)
    assert whole.edge.core.counters.frame_errors == 0
    assert memory.edge_bytes > 0
    assert memory.windows_bytes > 0
    return state.sent_by_device


def stacks() -> str:
    """Where every thread is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return "\n".join(
        f"{names.get(number)}:\n{''.join(traceback.format_stack(frame))}"
        for number, frame in frames
    )


def shapes(sustained_per_s: float) -> tuple[Shape, ...]:
    return tuple(
        named_shape(name, low_per_s=sustained_per_s / 10, high_per_s=5 * sustained_per_s,
                    period_ms=SHAPE_MS, seed=6)
        for name in SHAPES
    )  # fmt: skip


class Memory:
    """Looks at what is held, all the time."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self.edge_bytes = 0
        self.windows_bytes = 0.0

    def look(self, _state: LoadState) -> None:
        whole, edge = self._whole, self._whole.edge
        held_bytes = edge.core.buffered_bytes + edge.core.held_bytes
        assert held_bytes <= edge.limits.buffered_bytes_max + edge.limits.held_bytes_max
        self.edge_bytes = max(self.edge_bytes, held_bytes)
        stages = edge.windows.stages
        windows_bytes = sum(s.status().window * s._meter.bytes_per_slot for s in stages)
        assert windows_bytes <= BUDGET_BYTES
        self.windows_bytes = max(self.windows_bytes, windows_bytes)
        # between topic and lake: what the stages may hold, and the write that was under way
        assert whole.behind <= self._most + edge.limits.batch_records_max

    @property
    def _most(self) -> int:
        """The windows may have become smaller than what came in before."""
        return 3 * PlannerPolicy(stages=("any",)).window_initial


def check_every_byte(lake: Catalog, fleet: Fleet, sent_by_device: list[int]) -> None:
    """The readings of the lake, put together again, are the bytes that devices sent."""
    found = rows(lake, "readings")
    order = pc.sort_indices(
        pa.table({
            "device": found["device"], "id": pc.cast(found["message_id"], pa.int64()),
            "row": found["row_no"],
        }),
        sort_keys=[("device", "ascending"), ("id", "ascending"), ("row", "ascending")],
    )  # fmt: skip
    found = found.take(order)
    packed = np.empty(found.num_rows, READING_DTYPE)
    packed["meter"] = pc.cast(found["meter"], pa.int64())
    packed["time_ms"] = pc.cast(found["time"], pa.int64()).to_numpy() // 1_000
    packed["energy"] = [
        int(energy.scaleb(fleet.scale)) for energy in found["energy_wh"].to_pylist()
    ]
    packed["quality"] = found["quality"]
    expected = [
        fleet.rows(device, number)
        for device, count in enumerate(sent_by_device)
        for number in range(count)
    ]
    assert packed.tobytes() == b"".join([each.tobytes() for each in expected])
    assert rows(lake, "charges").num_rows == found.num_rows
    assert rows(lake, "dead_letters").num_rows == 0
