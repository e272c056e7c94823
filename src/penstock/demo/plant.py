"""All of Penstock on one machine: server, ingest on Spark, stream tables, and a fleet of meters.

Five kinds of processes: the topic server, a JVM with Spark, the pipeline, the coordinator with its
workers, and this one, which plays the devices. Each can be killed; the data stays.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.request import urlopen

from penstock.client import AsyncClient, ClientSettings
from penstock.demo.part import DemoServer, Part
from penstock.demo.story import (
    BURST,
    FLEET,
    LOAD,
    SCHEDULE,
    TABLES,
    change_tariff,
    prepare_lake,
    prepare_tariffs,
)
from penstock.kernel.errors import PenstockError, Unavailable
from penstock.lake.catalog import open_catalog
from penstock.metering.load import Load, Target
from penstock.metering.tariffs import SPACE
from penstock.protocol.errors import CallError, NotCoordinated
from penstock.tables.processes import pid_of
from penstock.tables.warehouse import Answered, Warehouse

if TYPE_CHECKING:
    from penstock.spark.jvm.embedded import EmbeddedSpark
    from penstock.tables.core.health import TableStatus

START_S: Final = 180.0
SETTLE_S: Final = 240.0
LOOK_S: Final = 0.25
FOREVER_S: Final = 10.0**9
_ROWS: Final = (
    "SELECT t.table_name, s.record_count FROM ducklake_table t "
    "JOIN ducklake_table_stats s ON s.table_id = t.table_id WHERE t.end_snapshot IS NULL"
)

Say = Callable[[str], None]


@dataclass(slots=True)
class Moment:
    """What can be seen of it at one time; None is what did not answer."""

    at_s: float = 0.0
    offered: int = 0
    acked: int = 0
    ingest: dict[str, Any] | None = None
    scheduler: dict[str, Any] | None = None
    rows: dict[str, int] = field(default_factory=dict)
    tables: list[TableStatus] = field(default_factory=list)
    workers: tuple[int, ...] = ()


class Plant:
    """Started, watched, pestered, ended."""

    def __init__(self, directory: Path, say: Say) -> None:
        self.directory = directory
        self.say = say
        self.catalog = f"sqlite:{directory / 'lake.sqlite'}"
        self.server = DemoServer(directory)
        self.ingest = Part("ingest", directory, [])
        self.tables = Part("tables", directory, [])
        self.acked: dict[str, set[int]] = {FLEET.name(n): set() for n in range(FLEET.devices)}
        self.is_paused = False
        self.is_bursting = False
        self.load: Load | None = None
        self._spark: EmbeddedSpark | None = None
        self._warehouse: Warehouse | None = None
        self._client: AsyncClient | None = None
        self._loading: asyncio.Task[Any] | None = None
        self._priced_seq = 0
        self._changes = 0
        self._prices: dict[int, dict[str, Any]] = {}
        self._status_url = ""
        self._began_s = 0.0

    # Life

    async def start(self) -> None:
        """Start everything, in the order in which one stands on the other."""
        self.say("the topic server starts")
        await self.server.start()
        self._client = AsyncClient(ClientSettings(self.server.url))
        self.say("meters get tariffs and districts; Spark starts (some seconds)")
        await asyncio.to_thread(self._prepare)
        assert self._spark is not None
        place = ("--catalog", self.catalog, "--spark", self._spark.url)
        sign = self.directory / "edge-address"
        self.ingest.arguments = ["ingest", "run", *place, "--url", self.server.url, "--no-live"]
        self.ingest.own = {
            "PENSTOCK_INGEST_PORT": "0",
            "PENSTOCK_INGEST_STATUS_PORT": "0",
            "PENSTOCK_INGEST_PORT_FILE": str(sign),
        }
        self.ingest.start()
        edge, status = (await self.ingest.started(sign, START_S)).split()
        self._status_url = f"http://{status}"
        host, _, port = edge.rpartition(":")
        self._start_fleet(Target(host, int(port)))
        self.say("meters send; the pipeline stores its first batch")
        await self._until(self._has_readings, START_S, "the first readings in the lake")
        self.say("stream tables are created and kept fresh by a coordinator and its workers")
        await asyncio.to_thread(self._create_tables)
        self.tables.arguments = ["table", *place, "run", "--max-concurrent-refreshes", "2"]
        self.tables.start()

    def _prepare(self) -> None:
        from penstock.spark.jvm.embedded import start_spark
        from penstock.spark.options import Archive, SparkOptions

        with open_catalog(self.catalog) as lake:
            prepare_lake(lake, FLEET)
        self._priced_seq = prepare_tariffs(self.server.url, FLEET)
        self._spark = start_spark(SparkOptions(archive=Archive.BUILD), self.say)
        self._warehouse = Warehouse.open(self.catalog)

    def _create_tables(self) -> None:
        assert self._warehouse is not None
        for name, query in TABLES.items():
            self._warehouse.create(name, query, schedule=SCHEDULE)

    def _start_fleet(self, target: Target) -> None:
        self.load = load = Load(target, FLEET, LOAD)
        for device in load.devices:
            device.on_acked = self.acked[device.name].update
        self._began_s = time.monotonic()
        self._loading = asyncio.ensure_future(load.run(seconds=FOREVER_S, on_progress=_ignore))

    async def settle(self) -> None:
        """End the load; return when all of it is acknowledged, stored, and in every table."""
        assert self.load is not None
        assert self._loading is not None
        self.say("the load ends; what was sent is stored and the tables catch up")
        if self.is_paused:
            self.pause()
        self.load.end()
        async with asyncio.timeout(SETTLE_S):
            await self._loading
        await self._until(self._is_stored, SETTLE_S, "every message in the lake")
        await self._note_prices()
        for name in TABLES:
            await self._refresh(name)

    async def end(self) -> None:
        """End everything in good order."""
        if self._loading is not None and not self._loading.done():
            self._loading.cancel()
            with suppress(asyncio.CancelledError, PenstockError):
                await self._loading
        await asyncio.gather(self.tables.end(), self.ingest.end())
        if self._client is not None:
            await self._client.aclose()
        await self.server.end()
        await asyncio.to_thread(self.end_now)

    def end_now(self) -> None:
        """See that nothing is left, from wherever that is called."""
        for part in (self.tables, self.ingest, self.server):
            part.end_now()
        if self._spark is not None:
            self._spark.stop(5)
        if self._warehouse is not None:
            self._warehouse.close()
            self._warehouse = None

    # What a visitor can do

    def burst(self) -> None:
        """Five times the load, or back to the usual one."""
        assert self.load is not None
        self.is_bursting = not self.is_bursting
        self.load.arrivals.factor = BURST if self.is_bursting else 1.0
        self.say(f"load times {BURST:g}" if self.is_bursting else "the load is the usual one")

    def pause(self) -> None:
        """Hold the store stage, or let it go on."""
        self.ingest.signal(signal.SIGUSR1)
        self.is_paused = not self.is_paused
        self.say(
            "store is held: windows before it shrink, devices wait"
            if self.is_paused
            else "store goes on: everything drains"
        )

    async def change_tariff(self) -> None:
        """Make a tariff dearer while readings come in."""
        self._changes += 1
        seq = await asyncio.to_thread(change_tariff, self.server.url, self._changes)
        self.say(f"the flat tariff is dearer since seq {seq}: batches from now on are priced so")

    async def kill_worker(self) -> None:
        """SIGKILL a worker of the tables."""
        workers = (await self.look()).workers
        if not workers:
            self.say("no worker to kill yet")
            return
        with suppress(ProcessLookupError):
            os.kill(workers[0], signal.SIGKILL)
        self.say(f"worker {workers[0]} is killed: its unit runs again")

    async def kill_server(self) -> None:
        """SIGKILL the topic server and start it again."""
        self.say("the topic server is killed with SIGKILL and started again")
        await self.server.kill()
        await self.server.start()
        self.say("the topic server listens again: edge and pipeline go on where they were")

    # Looking

    async def look(self) -> Moment:
        """Everything at once; nobody is waited for longer than a second or so."""
        for part in (self.ingest, self.tables):
            part.check()
        load = self.load
        ingest, scheduler, lake = await asyncio.gather(
            asyncio.to_thread(self._ingest_status),
            self._scheduler(),
            asyncio.to_thread(self._lake_status),
        )
        rows, tables, workers = lake
        return Moment(
            time.monotonic() - self._began_s if load else 0.0,
            load.state.offered if load else 0,
            sum(map(len, self.acked.values())),
            ingest,
            scheduler,
            rows,
            tables,
            workers,
        )

    def claim(self) -> dict[str, Any]:
        """What must be in the lake: of each device how many messages, and the sum of its energy."""
        devices = {}
        for number in range(FLEET.devices):
            count = len(self.acked[FLEET.name(number)])
            energy = sum(int(FLEET.rows(number, n)["energy"].sum()) for n in range(count))
            devices[FLEET.name(number)] = count, f"{Decimal(energy).scaleb(-FLEET.scale):.3f}"
        return {
            "devices": devices, "meters": FLEET.meters, "tables": TABLES, "prices": self._prices,
        }  # fmt: skip

    async def _note_prices(self) -> None:
        """Keep the tariffs and meters of every seq that a batch may have been priced with."""
        assert self._client is not None
        head = (await self._client.get_topic(SPACE)).head_seq
        for seq in range(self._priced_seq, head + 1):
            found = self._client.list_entities(SPACE, at_seq=seq)
            self._prices[seq] = {state.entity: state.doc async for state in found}

    def _ingest_status(self) -> dict[str, Any] | None:
        if not self._status_url:
            return None
        try:
            with urlopen(f"{self._status_url}/status", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return None
        return found

    async def _scheduler(self) -> dict[str, Any] | None:
        assert self._client is not None
        try:
            found: dict[str, Any] = await self._client.within(0.5).scheduler()
        except CallError:
            return None
        return found

    def _lake_status(self) -> tuple[dict[str, int], list[TableStatus], tuple[int, ...]]:
        warehouse = self._warehouse
        if warehouse is None:
            return {}, [], ()
        rows = {str(name): int(count) for name, count in warehouse.lake.query(_ROWS)}
        status = warehouse.status()
        pids = tuple(pid_of(each["worker"]) for each in warehouse.pool().workers)
        return rows, status, pids

    async def _has_readings(self) -> bool:
        return (await self.look()).rows.get("readings", 0) > 0

    async def _is_stored(self) -> bool:
        found = (await self.look()).ingest
        return found is not None and found["pipeline"]["behind"] == 0

    async def _refresh(self, name: str) -> None:
        """Ask for a table once more: one that has everything already says so at once."""
        warehouse = self._warehouse
        assert warehouse is not None
        asked: list[str] = []
        answers: list[Answered] = []

        async def answered() -> bool:
            if not asked:
                with suppress(NotCoordinated):  # the coordinator is not there yet
                    asked.append(await asyncio.to_thread(warehouse.ask, name))
                self.tables.check()
            if asked:
                found = await asyncio.to_thread(warehouse.answer, asked[0])
                answers.extend([found] if found else [])
            return bool(answers)

        await self._until(answered, SETTLE_S, f"an answer about {name}")
        if not answers[0].ok:
            raise Unavailable(f"expected {name} to be refreshed, found: {answers[0].detail}")

    async def _until(self, condition: Callable[[], Any], within_s: float, what: str) -> None:
        until_s = time.monotonic() + within_s
        while not await condition():
            if time.monotonic() > until_s:
                raise Unavailable(f"expected {what} within {within_s:g} s, found them missing")
            if self._loading is not None and self._loading.done():
                self._loading.result()
            await asyncio.sleep(LOOK_S)


def _ignore(_state: object) -> None:
    """Progress is looked at when it is wanted; asking for it keeps the counts up to date."""
