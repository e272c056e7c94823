"""Stream tables in the world: warehouse, coordinator, worker processes."""

from __future__ import annotations

from penstock.tables.shell.coordinator import CoordinatorLoop
from penstock.tables.shell.refresher import (
    Factory,
    Input,
    Made,
    Refresher,
    RefreshTask,
    SourceRecreated,
    TopicHead,
    TopicPositions,
    TopicRead,
)
from penstock.tables.shell.settings import WarehouseSettings
from penstock.tables.shell.warehouse import Answered, PoolStatus, Warehouse, Why

__all__ = [
    "Answered",
    "CoordinatorLoop",
    "Factory",
    "Input",
    "Made",
    "PoolStatus",
    "RefreshTask",
    "Refresher",
    "SourceRecreated",
    "TopicHead",
    "TopicPositions",
    "TopicRead",
    "Warehouse",
    "WarehouseSettings",
    "Why",
]
