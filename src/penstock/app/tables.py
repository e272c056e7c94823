"""Stream tables: a warehouse with its engine, and the coordinator that keeps its tables fresh."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

from penstock.config import TablesSettings
from penstock.lake.database import open_database
from penstock.tables import warehouse
from penstock.tables.engine import Factory

SPARK: Final = "penstock.spark.refresh:make"
"""The default engine. A name, because each worker creates its own engine."""
TOPICS: Final = "penstock.client.heads:make"
"""Provides the heads of topics."""


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


def run_tables(tables: warehouse.Warehouse, *, say: Callable[[str], None]) -> None:
    """Keep tables fresh until SIGINT or SIGTERM."""
    tables.check_engine()
    loop = tables.coordinator(say=say)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.stop())
    loop.run()
