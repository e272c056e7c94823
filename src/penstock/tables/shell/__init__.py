"""Stream tables in the world: warehouse, coordinator, worker processes."""

from __future__ import annotations

from penstock.tables.shell.contents import Page
from penstock.tables.shell.coordinator import CoordinatorLoop
from penstock.tables.shell.looking import PoolStatus, Running, Why
from penstock.tables.shell.refresher import (
    EngineAway,
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
from penstock.tables.shell.warehouse import Answered, Warehouse

__all__ = [
    "Answered",
    "CoordinatorLoop",
    "EngineAway",
    "Factory",
    "Input",
    "Made",
    "Page",
    "PoolStatus",
    "RefreshTask",
    "Refresher",
    "Running",
    "SourceRecreated",
    "TopicHead",
    "TopicPositions",
    "TopicRead",
    "Warehouse",
    "WarehouseSettings",
    "Why",
]
