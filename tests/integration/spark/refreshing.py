"""Refreshes of a table by Spark, committed to a lake."""

from __future__ import annotations

from typing import Any

from penstock.lake.catalog import Catalog
from penstock.lake.model import TableVersion
from penstock.lake.transaction import LakeTransaction
from penstock.spark.lake.writing import WriteOptions
from penstock.spark.refresh import FullRefresh
from penstock.tables.core.frontier import Frontier, LakePosition
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import define
from penstock.tables.engine import Input, Made, RefreshTask


def versions(lake: Catalog, query: str, at: int | None = None) -> dict[str, TableVersion]:
    return {name: lake.table_at(name, at) for name in define("t", query).sources}


def task_of(lake: Catalog, name: str, query: str, change: LakeTransaction) -> RefreshTask:
    """A table to bring up to date from what is there now."""
    inputs = {
        source: Input(source, LakePosition(version.snapshot.id), version=version)
        for source, version in versions(lake, query).items()
    }
    known = [table.name for table in lake.tables()]
    current = lake.table_at(name) if name in known else None
    return RefreshTask(
        definition=define(name, query),
        inputs=inputs,
        current=current,
        frontier=Frontier() if current else None,
        reason=ReasonCode.AS_CONFIGURED,
        target=lambda columns: (
            current.table if current else change.create_table(lake.schema("main"), name, columns)
        ),
        token=change.token or "",
    )


def note(change: LakeTransaction, made: Made) -> None:
    if made.replace and made.changed:
        change.replace_contents(made.table, made.files)
    elif made.changed:
        change.delete_rows(made.table, made.deletes)
        change.delete_inlined(made.table, made.inlined_deletes)
        change.add_files(made.table, made.files)


def refresh(spark: Any, lake: Catalog, name: str, query: str, **options: Any) -> Made:
    """Refresh a table, which is made where it is missing, and commit it."""
    change = lake.begin(reserve_ms=600_000)
    full = FullRefresh(lake, write=WriteOptions(**options))
    made = full.refresh(spark, task_of(lake, name, query, change))
    note(change, made)
    lake.commit(change)
    return made
