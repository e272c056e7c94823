"""The whole pipeline, from sockets to the lake: all five stages under one planner."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import uvloop

from penstock.cli.ingest_run import PipelineThread, Whole
from penstock.config import IngestSettings
from penstock.ingest.fleet import Fleet
from penstock.ingest.shapes import Steady
from penstock.ingest.shell.load import Load, LoadState, Target
from penstock.lake.shell import Catalog
from penstock.spark.ingest.metering import create_tariff_tables, metering
from penstock.spark.ingest.runner import PipelineRunner
from penstock.spark.ingest.sparks import Sparks
from penstock.spark.ingest.tariffs import METERS, TARIFFS, Band, band_row
from tests.integration.ingest.place import until
from tests.integration.spark_ingest.fleet import add
from tests.integration.spark_topics.place import new_topic

LIMIT_S = 600.0
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
PRICE = Decimal("0.3")
MICRO = Decimal("0.000001")


def test_a_store_that_cannot_write_makes_devices_wait_and_everything_drains(
    sparks: Sparks, url: str, lake: Catalog, tmp_path: Path
) -> None:
    fleet = Fleet(devices=6, meters=5, seed=4)
    fill(lake, fleet)
    state = uvloop.run(asyncio.wait_for(blocked(sparks, url, lake, tmp_path, fleet), LIMIT_S))
    check(lake, fleet, state)


async def blocked(
    sparks: Sparks, url: str, lake: Catalog, tmp_path: Path, fleet: Fleet
) -> LoadState:
    """Send for a while, with a store that finds no place for its files in the middle of it."""
    settings = IngestSettings(url=url, raw_topic=new_topic())
    runner = PipelineRunner(metering(lake, settings.raw_topic), lake, url, sparks=sparks)
    whole = Whole(settings, runner)
    thread = PipelineThread(runner)
    load = Load(Target(*await whole.edge.start(port=0)), fleet, Steady(50))
    running = asyncio.ensure_future(load.run(seconds=10_000))
    thread.start()
    data, away = tmp_path / "data", tmp_path / "away"
    try:
        await until(lambda: runner.stored_seq > 0 or thread.ended.done(), "the first batch", 300)
        data.rename(away)
        data.write_text("not a directory")
        load.arrivals.factor = 20.0
        await until(lambda: whole.behind > 3_500, "more than the smallest windows hold", 60)
        load.end()  # what fell due so far its devices still have to send
        stages = whole.edge.windows.stages
        await until(
            lambda: {stage.status().window for stage in stages} == {1_024}, "small windows", 60
        )
        assert whole.edge.windows.status().bottleneck == "store"
        assert whole.room == 0
        assert whole.behind <= 3 * 4_096 + whole.edge.limits.batch_records_max
        data.unlink()
        away.rename(data)
        state = await running
        assert (state.connects, state.resent) == (fleet.devices, 0)
        assert whole.edge.core.counters.frame_errors == 0
        await until(lambda: whole.behind == 0, "everything in the lake", 300)
    finally:
        running.cancel()
        await thread.stop()
        await whole.edge.stop()
    return state


def fill(lake: Catalog, fleet: Fleet) -> None:
    """One price for every meter of the fleet, at all times."""
    create_tariff_tables(lake)
    band = band_row("flat", LONG_AGO, 0, Band(PRICE))
    add(lake, "tariffs", pa.Table.from_pylist([band], schema=TARIFFS))
    meters = [
        {"meter": str(number + 1), "tariff": "flat", "valid_from": LONG_AGO}
        for number in range(fleet.devices * fleet.meters)
    ]
    add(lake, "meters", pa.Table.from_pylist(meters, schema=METERS))


def check(lake: Catalog, fleet: Fleet, state: LoadState) -> None:
    """Every reading that was acknowledged is there once, with its price."""
    sent = [
        reading
        for device, count in enumerate(state.sent_by_device)
        for number in range(count)
        for reading in fleet.readings(device, number)
    ]
    assert state.acked == state.sent > 0
    charges = rows(lake, "charges")
    assert charges.num_rows == rows(lake, "readings").num_rows == len(sent)
    assert len(set(zip(*(charges[name].to_pylist() for name in ("meter", "time")), strict=True))) \
        == len(sent)  # fmt: skip
    assert pc.sum(charges["energy_wh"]).as_py() == sum(reading.energy_wh for reading in sent)
    assert pc.sum(charges["charge"]).as_py() == sum(
        (reading.energy_wh * PRICE / 1_000).quantize(MICRO, ROUND_HALF_UP) for reading in sent
    )
    assert rows(lake, "dead_letters").num_rows == 0


def rows(lake: Catalog, name: str) -> pa.Table:
    version = lake.table_at(name)
    return lake.scan(version.table, version.snapshot)
