"""Stream tables: a warehouse with its engine, and the coordinator that keeps its tables fresh."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final, Self

from penstock.app.reporting import ReporterThread, node_name, report_of
from penstock.client import ClientSettings
from penstock.config import TablesSettings
from penstock.kernel.clock import Clock
from penstock.kernel.system import SystemClock
from penstock.lake.database import open_database
from penstock.protocol.part_answers import LostWorker, PartReport
from penstock.tables import warehouse
from penstock.tables.coordinator.loop import CoordinatorLoop
from penstock.tables.engine import Factory
from penstock.tables.processes import pid_of

SPARK: Final = "penstock.spark.refresh:make"
"""The default engine. A name, because each worker creates its own engine."""
TOPICS: Final = "penstock.client.heads:make"
"""Provides the heads of topics."""
LOST_KEPT: Final = 8
"""How many workers that died are reported."""


class Warehouse(warehouse.Warehouse):
    """A warehouse of stream tables whose engine is Spark by default."""

    @classmethod
    def open(
        cls, catalog: str, data_path: str | None = None, *, runner: str = SPARK, **options: Any
    ) -> Self:
        """Open a warehouse, or with `make` create one if there is none.

        `runner` names the engine; it is loaded when something has to be run. Other options are
        those of `WarehouseSettings`.
        """
        options.setdefault("topics", Factory(TOPICS))
        return super().open(catalog, data_path, runner=runner, **options)


def open_warehouse(
    settings: TablesSettings,
    runner: str = SPARK,
    runner_options: Mapping[str, Any] | None = None,
    *,
    make: bool = True,
) -> Warehouse:
    """Open the configured warehouse; with `make`, create it if there is none."""
    if settings.pool:
        open_database(settings.pool).close()  # fails early if its driver is missing
    return Warehouse.open(
        settings.catalog,
        settings.data_path or None,
        runner=runner,
        runner_options=runner_options,
        make=make,
        topics_api_key=settings.api_key or None,
        parallel_refresh_mode=settings.parallel,
        max_concurrent_refreshes=settings.max_concurrent_refreshes,
        max_workers=settings.max_workers,
        pool=settings.pool or None,
        snapshot_retention_ms=settings.snapshot_retention_ms,
    )


def run_tables(
    tables: warehouse.Warehouse, settings: TablesSettings, *, say: Callable[[str], None]
) -> None:
    """Keep tables fresh until SIGINT or SIGTERM; the server is told how they are once a second."""
    tables.check_engine()
    loop = tables.coordinator(say=say)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.stop())
    if not settings.url:
        loop.run()
        return
    server = ClientSettings(settings.url, settings.api_key or None)
    with ReporterThread(server, TablesLook(loop, node_name(settings.node)), say=say):
        loop.run()


class TablesLook:
    """The reports of a coordinator and its workers, each a part of its own."""

    def __init__(self, loop: CoordinatorLoop, node: str, clock: Clock | None = None) -> None:
        self._loop, self._node = loop, node
        self._clock: Clock = clock or SystemClock()
        self._since_ms = self._clock.now_ms()
        self._places: dict[str, int] = {}
        self._began_ms: dict[str, int] = {}
        self._works_on: dict[str, str | None] = {}
        """The workers, and the unit that each had as of the last report."""
        self._lost: deque[LostWorker] = deque(maxlen=LOST_KEPT)

    def __call__(self, _missed: bool) -> dict[str, PartReport]:
        """The reports now."""
        view, trouble = self._loop.view(), self._loop.trouble
        workers = [] if view is None else list(view["workers"])
        running = {} if view is None else {job["job_id"]: job for job in view["running"]}
        if view is None:
            self._works_on = {}  # whose workers they were, ends them
        else:
            self._miss(workers, running)
        self._give_places([str(each["worker"]) for each in workers])
        facts: dict[str, Any] = {"lost": list(self._lost)}
        if view is not None:
            facts |= {"pool": view["pool"], "unfit": view["unfit"]}
        state, text = _words(view, trouble)
        found = {f"tables.{self._node}": self._report(state, text, facts)}
        for each in workers:
            name, job = str(each["worker"]), running.get(each["job_id"])
            part = f"worker.{self._node}-{self._places[name]}"
            words = "refreshes " + job["unit_key"] if job else "idle" if each["ready"] else "starts"
            found[part] = report_of(
                self._clock, self._began_ms[name], text=words, pid=pid_of(name),
                facts={**each, "job": job},
            )  # fmt: skip
        return found

    def _report(self, state: str, text: str, facts: Mapping[str, Any]) -> PartReport:
        return report_of(self._clock, self._since_ms, state=state, text=text, facts=facts)

    def _miss(self, workers: list[Mapping[str, Any]], running: Mapping[int, Any]) -> None:
        """Note the workers that are gone while their coordinator goes on: they died."""
        working = {str(each["worker"]): running.get(each["job_id"]) for each in workers}
        for name in self._works_on.keys() - working.keys():
            part = f"worker.{self._node}-{self._places[name]}"
            unit = self._works_on[name]
            self._lost.append(
                LostWorker(part=part, pid=pid_of(name), unit=unit, at=self._clock.now_ms())
            )
        self._works_on = {name: job and job["unit_key"] for name, job in working.items()}

    def _give_places(self, names: list[str]) -> None:
        """A number for each worker; one that replaces another gets its number.

        So the list of parts does not grow with every worker that ever was.
        """
        self._places = {name: at for name, at in self._places.items() if name in names}
        self._began_ms = {name: at for name, at in self._began_ms.items() if name in names}
        free = (number for number in count(1) if number not in self._places.values())
        for name in names:
            if name not in self._places:
                self._places[name] = next(free)
                self._began_ms[name] = self._clock.now_ms()


def _words(view: Mapping[str, Any] | None, trouble: str | None) -> tuple[str, str]:
    """A coordinator in one word and one sentence."""
    if trouble is not None:
        return "failing", trouble
    if view is None:
        return "waiting", "waits for the lease of another coordinator, or starts"
    if view["unfit"]:
        return "failing", f"workers cannot start: {view['unfit']}"
    pool = view["pool"]
    return "ok", f"{pool['running']} running, {pool['ready']} ready"
