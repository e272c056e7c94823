"""The whole pipeline, from sockets to the lake: all five stages under one planner."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import uvloop

from penstock.app.ingest import PipelineThread, Whole
from penstock.cli.ingest import line_of
from penstock.config import IngestSettings
from penstock.flow.channel import MEASURE_MS
from penstock.ingest.windows import Windows
from penstock.lake.catalog import Catalog
from penstock.metering.fleet import Fleet
from penstock.metering.load import LoadGenerator, LoadState, Target
from penstock.metering.pipeline import metering
from penstock.metering.shapes import Steady
from penstock.metering.tariff_files import Row, Sheet
from penstock.metering.tariff_space import TariffSpace
from penstock.spark.link import SparkLink
from penstock.spark.pipeline.runner import PipelineRunner
from tests.integration.spark.pipeline.fleet import space_of
from tests.integration.spark.topics.place import new_topic
from tests.waiting import until

LIMIT_S = 600.0
SMALL_WITHIN_MS = 5_000
LONG_AGO = "2020-01-01"
PRICE = Decimal("0.3")
MICRO = Decimal("0.000001")


@pytest.mark.slow
def test_a_read_only_store_makes_devices_wait_and_everything_drains(
    link: SparkLink, url: str, lake: Catalog, tmp_path: Path
) -> None:
    fleet = Fleet(devices=6, meters=5, seed=4)
    topic = new_topic()
    fill(url, topic, fleet)
    work = read_only_for_a_while(link, url, topic, lake, tmp_path / "data", fleet)
    check(lake, fleet, uvloop.run(asyncio.wait_for(work, LIMIT_S)))


async def read_only_for_a_while(
    link: SparkLink, url: str, topic: str, lake: Catalog, data: Path, fleet: Fleet
) -> LoadState:
    """Send, with a store in the middle of it that may not write its files."""
    async with whole_of(link, url, topic, lake) as (whole, thread):
        runner, windows = whole.runner, whole.edge.windows
        load = LoadGenerator(Target(*whole.edge.address), fleet, Steady(50))
        running = asyncio.ensure_future(load.run(seconds=10_000))
        try:
            await until(
                lambda: thread.ended.done() or not any(stage.warming for stage in runner.stages),
                "the first batches",
                300,
            )
            with read_only(data):
                load.arrivals.factor = 20.0
                await until(lambda: (runner.trouble or "").startswith("store:"), "trouble", 60)
                blocked_at = windows.ticks
                await until(lambda: smallest(windows), "small windows", 60)
                assert (windows.ticks - blocked_at) * MEASURE_MS <= SMALL_WITHIN_MS
                await until(lambda: whole.room == 0, "a full topic", 60)
                acked = whole.edge.core.counters.messages_acked
                load.end()  # what fell due so far its devices still have to send
                stood_at = windows.ticks
                await until(lambda: windows.ticks >= stood_at + 10, "a second of the planner", 60)
                assert smallest(windows)
                assert windows.status().bottleneck == "store"
                assert (
                    whole.edge.core.counters.messages_acked - acked
                    <= whole.edge.limits.batch_records_max
                )
                assert whole.behind <= 3 * 4_096 + whole.edge.limits.batch_records_max
                assert not running.done()
            state = await running
            assert (state.connects, state.resent) == (fleet.devices, 0)
            assert whole.edge.core.counters.frame_errors == 0
            await until(lambda: whole.behind == 0, "everything in the lake", 300)
            assert runner.trouble is None
        finally:
            running.cancel()
    return state


def test_without_tariffs_everything_waits_and_says_why_until_they_come(
    link: SparkLink, url: str, lake: Catalog
) -> None:
    fleet = Fleet(devices=3, meters=4, seed=5)
    work = priced_late(link, url, new_topic(), lake, fleet)
    check(lake, fleet, uvloop.run(asyncio.wait_for(work, LIMIT_S)))


async def priced_late(
    link: SparkLink, url: str, topic: str, lake: Catalog, fleet: Fleet
) -> LoadState:
    """Send to a pipeline whose tariffs come when it waits for them already."""
    async with whole_of(link, url, topic, lake) as (whole, _):
        load = LoadGenerator(Target(*whole.edge.address), fleet, Steady(50))
        running = asyncio.ensure_future(load.run(seconds=10_000))
        try:
            await until(
                lambda: (whole.runner.trouble or "").startswith("evaluate:"), "trouble", 300
            )
            told = line_of(whole.status())
            assert "there are no tariffs" in told
            assert f"has no space '{space_of(topic)}'" in told
            assert "load them with `penstock metering tariffs load`" in told
            await asyncio.to_thread(fill, url, topic, fleet, meters=False)
            half = f"space '{space_of(topic)}' at {url} has no meter with a tariff"
            await until(lambda: half in (whole.runner.trouble or ""), "trouble without meters")
            await asyncio.to_thread(fill, url, topic, fleet)
            load.end()
            state = await running
            await until(lambda: whole.behind == 0, "everything in the lake", 300)
            assert whole.runner.trouble is None
            assert f"priced with {space_of(topic)} at seq 2" in line_of(whole.status())
        finally:
            running.cancel()
    return state


@asynccontextmanager
async def whole_of(
    link: SparkLink, url: str, topic: str, lake: Catalog
) -> AsyncIterator[tuple[Whole, PipelineThread]]:
    """Edge and pipeline, running."""
    settings = IngestSettings(url=url, raw_topic=topic)
    pipeline = metering(url, topic, tariffs=space_of(topic))
    whole = Whole(settings, PipelineRunner(pipeline, lake, url, link=link))
    thread = PipelineThread(whole.runner)
    await whole.edge.start(port=0)
    thread.start()
    try:
        yield whole, thread
    finally:
        await thread.stop()
        await whole.edge.stop()


def smallest(windows: Windows) -> bool:
    return {stage.status().window for stage in windows.stages} == {1_024}


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Nobody can make a file in it, not even root, who may write where modes forbid it."""
    below = [directory, *(path for path in directory.rglob("*") if path.is_dir())]
    away = directory.with_name("away")
    for path in below:
        path.chmod(0o555)
        if shutil.which("chattr"):
            subprocess.run(["chattr", "+i", str(path)], check=False, capture_output=True)
    if can_write(directory):
        release(below)
        directory.rename(away)
        directory.write_text("not a directory")
    try:
        yield
    finally:
        if away.exists():
            directory.unlink()
            away.rename(directory)
        release(below)


def release(directories: list[Path]) -> None:
    for path in directories:
        if shutil.which("chattr"):
            subprocess.run(["chattr", "-i", str(path)], check=False, capture_output=True)
        path.chmod(0o755)


def can_write(directory: Path) -> bool:
    try:
        (directory / "probe").touch()
    except OSError:
        return False
    (directory / "probe").unlink()
    return True


def fill(url: str, topic: str, fleet: Fleet, *, meters: bool = True) -> None:
    """One price for every meter of the fleet, at all times; the first of two commits has none."""
    flat = {"kind": "flat", "valid_from": LONG_AGO, "price_per_kwh": str(PRICE)}
    count = fleet.devices * fleet.meters if meters else 0
    assigned = [Row(str(number + 1), "flat", LONG_AGO) for number in range(count)]
    with TariffSpace(url, space_of(topic)) as there:
        there.load(Sheet({"flat": {"versions": [flat]}}, assigned))


def check(lake: Catalog, fleet: Fleet, state: LoadState) -> None:
    """Every reading that was acknowledged is there once, with its price."""
    sent = [
        reading
        for device, count in enumerate(state.sent_by_device)
        for number in range(count)
        for reading in fleet.readings(device, number)
    ]
    assert state.acked == state.sent > 0
    assert rows(lake, "dead_letters")["reason"].to_pylist() == []
    charges = rows(lake, "charges")
    assert charges.num_rows == rows(lake, "readings").num_rows == len(sent)
    assert len(set(zip(*(charges[name].to_pylist() for name in ("meter", "time")), strict=True))) \
        == len(sent)  # fmt: skip
    assert pc.sum(charges["energy_wh"]).as_py() == sum(reading.energy_wh for reading in sent)
    assert pc.sum(charges["charge"]).as_py() == sum(
        (reading.energy_wh * PRICE / 1_000).quantize(MICRO, ROUND_HALF_UP) for reading in sent
    )


def rows(lake: Catalog, name: str) -> pa.Table:
    version = lake.table_at(name)
    return lake.scan(version.table, version.snapshot)
