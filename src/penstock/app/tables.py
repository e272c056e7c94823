"""Stream tables: a warehouse with its engine, and the coordinator that keeps its tables fresh."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.config import TablesSettings
from penstock.lake.database import open_database
from penstock.tables.warehouse import Warehouse

SPARK: Final = "penstock.spark.refresh:make"
"""The engine unless another one is named. A name, as workers make an engine each."""


def open_warehouse(
    settings: TablesSettings,
    runner: str = SPARK,
    runner_options: Mapping[str, Any] | None = None,
    *,
    make: bool = True,
) -> Warehouse:
    """Open the warehouse of settings; with `make`, make one where there is none."""
    if settings.pool:
        open_database(settings.pool).close()  # refuses one whose driver is missing
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


def run_tables(warehouse: Warehouse, *, say: Callable[[str], None]) -> None:
    """Keep tables fresh until SIGINT or SIGTERM."""
    warehouse.check_engine()
    loop = warehouse.coordinator(say=say)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.stop())
    loop.run()
