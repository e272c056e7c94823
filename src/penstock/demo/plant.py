"""The demonstration's processes: `penstock up` in a directory, and a fleet of meters in front.

Five kinds of processes: the topic server, a JVM with Spark, the pipeline, the coordinator with its
workers, and this one, which simulates the devices. Each can be killed; the data stays.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.app.tables import Warehouse
from penstock.app.up import INGEST, SERVER, Up, UpSettings, ingest_status
from penstock.app.up import TABLES as TABLES_PART
from penstock.client import AsyncClient, ClientSettings
from penstock.config import IngestSettings, Settings, TablesSettings, load_spark
from penstock.demo.pace import Fastest, Pace
from penstock.demo.story import (
    BURST,
    FLEET,
    LOAD,
    SCHEDULE,
    TABLES,
    USUAL_PER_S,
    change_tariff,
    prepare_lake,
    prepare_tariffs,
)
from penstock.kernel.errors import PenstockError, Unavailable
from penstock.lake.catalog import open_catalog
from penstock.metering.load import LoadGenerator, Target
from penstock.metering.tariffs import SPACE
from penstock.protocol.errors import CallError, NotCoordinated
from penstock.spark.options import Archive
from penstock.tables.processes import pid_of
from penstock.tables.warehouse import Answered

if TYPE_CHECKING:
    from penstock.tables.core.health import TableHealth

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
    """A snapshot of everything visible at one time; None for parts that did not answer."""

    at_s: float = 0.0
    offered: int = 0
    acked: int = 0
    ingest: dict[str, Any] | None = None
    scheduler: dict[str, Any] | None = None
    rows: dict[str, int] = field(default_factory=dict)
    fastest_per_s: int = 0
    """The most readings that were stored in a second so far."""
    tables: list[TableHealth] = field(default_factory=list)
    workers: tuple[int, ...] = ()


class Plant:
    """Starts, observes, disturbs and stops the demonstration."""

    def __init__(self, directory: Path, say: Say) -> None:
        self.directory = directory
        self.say = say
        self.catalog = f"sqlite:{directory / 'lake.sqlite'}"
        self.up = Up(_settings(directory, self.catalog), say=say, on_line=self._log)
        self.acked: dict[str, set[int]] = {FLEET.name(n): set() for n in range(FLEET.devices)}
        self.is_paused = False
        self.is_bursting = False
        self.load: LoadGenerator | None = None
        self.fastest = Fastest()
        self._pace = Pace(USUAL_PER_S)
        self._watching: asyncio.Task[None] | None = None
        self._warehouse: Warehouse | None = None
        self._client: AsyncClient | None = None
        self._loading: asyncio.Task[Any] | None = None
        self._priced_seq = 0
        self._changes = 0
        self._prices: dict[int, dict[str, Any]] = {}
        self._began_s = 0.0

    # Lifecycle

    async def start(self) -> None:
        """Start everything, then the fleet, and the tables once there is something to read."""
        self.say("server, Spark, ingest and tables start (some seconds)")
        await self.up.start()
        self._watching = asyncio.ensure_future(self.up.watch())
        self._client = AsyncClient(ClientSettings(self.up.server_url))
        self.say("meters get tariffs and districts")
        await asyncio.to_thread(self._prepare)
        assert self.up.edge is not None
        self._start_fleet(Target(*self.up.edge))
        self.say("meters send; the pipeline stores its first batch")
        await self._until(self._has_readings, START_S, "the first readings in the lake")
        self.say("stream tables are created, and kept fresh by a coordinator and its workers")
        await asyncio.to_thread(self._create_tables)

    def _prepare(self) -> None:
        with open_catalog(self.catalog) as lake:
            prepare_lake(lake, FLEET)
        self._priced_seq = prepare_tariffs(self.up.server_url, FLEET)
        self._warehouse = Warehouse.open(self.catalog)

    def _log(self, part: str, line: str) -> None:
        with (self.directory / f"{part}.log").open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")

    def _create_tables(self) -> None:
        assert self._warehouse is not None
        for name, query in TABLES.items():
            self._warehouse.create(name, query, schedule=SCHEDULE)

    def _start_fleet(self, target: Target) -> None:
        self.load = load = LoadGenerator(target, FLEET, LOAD)
        for device in load.devices:
            device.on_acked = self.acked[device.name].update
        self._began_s = time.monotonic()
        self._loading = asyncio.ensure_future(load.run(seconds=FOREVER_S, on_progress=_ignore))

    async def settle(self) -> None:
        """Stop the load; return when all of it is acknowledged, stored, and in every table."""
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
        """Stop everything gracefully."""
        if self._loading is not None and not self._loading.done():
            self._loading.cancel()
            with suppress(asyncio.CancelledError, PenstockError):
                await self._loading
        if self._client is not None:
            await self._client.aclose()
        await self.up.stop()
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError, PenstockError):
                await self._watching
        await asyncio.to_thread(self.end_now)

    def end_now(self) -> None:
        """Kill everything that is left; callable from any context."""
        self.up.kill()
        if self._warehouse is not None:
            self._warehouse.close()
            self._warehouse = None

    # Actions of a visitor

    def burst(self) -> None:
        """Five times the load, or back to the usual one."""
        assert self.load is not None
        self.is_bursting = not self.is_bursting
        self.load.arrivals.factor = self._pace.factor * (BURST if self.is_bursting else 1.0)
        self.say(f"load times {BURST:g}" if self.is_bursting else "the load is the usual one")

    def pause(self) -> None:
        """Pause the store stage, or resume it."""
        self.up.parts[INGEST].signal(signal.SIGUSR1)
        self.is_paused = not self.is_paused
        self.say(
            "store is held: windows before it shrink, devices wait"
            if self.is_paused
            else "store goes on: everything drains"
        )

    async def change_tariff(self) -> None:
        """Make a tariff more expensive while readings arrive."""
        self._changes += 1
        seq = await asyncio.to_thread(change_tariff, self.up.server_url, self._changes)
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
        await self.up.parts[SERVER].replace()
        self.say("the topic server listens again: edge and pipeline go on where they were")

    # Observing

    async def look(self) -> Moment:
        """Query all parts at once; waits for each at most about a second."""
        self._check()
        load = self.load
        ingest, scheduler, lake = await asyncio.gather(
            ingest_status(self.up.status_url),
            self._scheduler(),
            asyncio.to_thread(self._lake_status),
        )
        rows, tables, workers = lake
        moment = Moment(
            at_s=time.monotonic() - self._began_s if load else 0.0,
            offered=load.state.offered if load else 0,
            acked=sum(map(len, self.acked.values())),
            ingest=ingest,
            scheduler=scheduler,
            rows=rows,
            tables=tables,
            workers=workers,
        )
        moment.fastest_per_s = self.fastest.look(moment.at_s, rows.get("readings", 0))
        self._keep_pace(moment)
        return moment

    def _keep_pace(self, moment: Moment) -> None:
        """Send less if this machine does not store the usual load; a disturbance does not count."""
        if self.load is None or self.is_bursting or self.is_paused or moment.ingest is None:
            return
        before, factor = self._pace.factor, self._pace.look(moment.offered - moment.acked)
        if factor < before:
            self.load.arrivals.factor = factor
            usual = USUAL_PER_S * FLEET.meters
            self.say(
                f"{usual:,} readings a second are more than this machine stores: "
                f"meters send {usual * factor:,.0f}"
            )

    def _check(self) -> None:
        """Raise what ended `up`, if it has ended."""
        if self._watching is not None and self._watching.done():
            self._watching.result()

    def claim(self) -> dict[str, Any]:
        """What must be in the lake: each device's number of messages and sum of energy."""
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

    async def _scheduler(self) -> dict[str, Any] | None:
        assert self._client is not None
        try:
            found: dict[str, Any] = await self._client.within(0.5).scheduler()
        except CallError:
            return None
        return found

    def _lake_status(self) -> tuple[dict[str, int], list[TableHealth], tuple[int, ...]]:
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
        """Request a refresh of a table once more; one that is up to date returns at once."""
        warehouse = self._warehouse
        assert warehouse is not None
        asked: list[str] = []
        answers: list[Answered] = []

        async def answered() -> bool:
            if not asked:
                with suppress(NotCoordinated):  # the coordinator is not running yet
                    asked.append(await asyncio.to_thread(warehouse.ask, name))
                self._check()
            if asked:
                found = await asyncio.to_thread(warehouse.answer, asked[0])
                answers.extend([found] if found else [])
            return bool(answers)

        await self._until(answered, SETTLE_S, f"an answer about {name}")
        if not answers[0].ok:
            raise Unavailable(f"{name} could not be refreshed: {answers[0].detail}")

    async def _until(self, condition: Callable[[], Any], within_s: float, what: str) -> None:
        until_s = time.monotonic() + within_s
        while not await condition():
            if time.monotonic() > until_s:
                raise Unavailable(f"waited {within_s:g} s in vain for {what}")
            if self._loading is not None and self._loading.done():
                self._loading.result()
            await asyncio.sleep(LOOK_S)


def _ignore(_state: object) -> None:
    """Progress is read on demand; consuming it keeps the counts up to date."""


def _settings(directory: Path, catalog: str) -> UpSettings:
    """Everything in one directory, on free ports and with a Spark of its own.

    Of the visitor's settings only those count that say with which Java and memory Spark runs.
    """
    data = directory / "topics-data"
    return UpSettings(
        Settings(port=0, data_dir=data),
        IngestSettings(port=0, status_port=0),
        TablesSettings(catalog=catalog),
        replace(load_spark(), master="local", remote=None, archive=Archive.BUILD),
        directory=directory,
        own={
            SERVER: {"PENSTOCK_PORT": "0", "PENSTOCK_DATA_DIR": str(data)},
            INGEST: {"PENSTOCK_INGEST_PORT": "0", "PENSTOCK_INGEST_STATUS_PORT": "0"},
            TABLES_PART: {"PENSTOCK_TABLES_MAX_CONCURRENT_REFRESHES": "2"},
        },
    )
