"""The steps that turn existing tables into the wanted ones: a plan, as data.

>>> from penstock.tables.core.model import define
>>> old = {"a": define("a", "SELECT * FROM raw"), "gone": define("gone", "SELECT * FROM a")}
>>> new = {"a": define("a", "select *  from raw", schedule="5s"), "b": define("b", "SELECT 1 AS x")}
>>> plan = plan_tables(new, old)
>>> [table.name for table in plan.create], plan.alter[0].changes, plan.drop
(['b'], ('schedule',), ('gone',))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.protocol.errors import TableInUse
from penstock.tables.core.graph import StreamGraph, check_modes
from penstock.tables.core.model import Status, TableDefinition
from penstock.tables.core.topics import TopicSource
from penstock.tables.query.sources import normal_query

_ALTERABLE: Final = ("schedule", "mode", "consistency", "description")


@dataclass(frozen=True, slots=True)
class TableChange:
    """A table that stays, with the names of its changed properties."""

    table: TableDefinition
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TablePlan:
    """Steps in the order they run: drop, declare, replace, create, alter.

    `declare` are topics that are new or have different columns. A replaced table is rebuilt, an
    altered one keeps its contents. `drop` lists readers before their inputs; `create` and `replace`
    list inputs first.
    """

    create: tuple[TableDefinition, ...]
    replace: tuple[TableChange, ...]
    alter: tuple[TableChange, ...]
    drop: tuple[str, ...]
    unchanged: tuple[str, ...]
    graph: StreamGraph
    declare: tuple[TopicSource, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.create or self.replace or self.alter or self.drop or self.declare)

    def lines(self) -> list[str]:
        """One line per step, for people."""
        return [
            *(f"- drop {name}" for name in self.drop),
            *(f"+ declare {source.name}" for source in self.declare),
            *(f"~ replace {step.table.name} ({', '.join(step.changes)})" for step in self.replace),
            *(f"+ create {table.name}" for table in self.create),
            *(f"~ alter {step.table.name} ({', '.join(step.changes)})" for step in self.alter),
        ]


def plan_tables(
    wanted: Mapping[str, TableDefinition],
    existing: Mapping[str, TableDefinition],
    *,
    prune: bool = True,
) -> TablePlan:
    """Compare wanted and existing tables; without `prune`, unwanted tables stay.

    Rejects, before any step: a cycle, an IMMEDIATE table with nothing to follow, and dropping a
    table that a wanted one reads.
    """
    kept = {} if prune else {name: t for name, t in existing.items() if name not in wanted}
    graph = StreamGraph({**kept, **wanted}.values())
    check_modes(graph)
    create, replace, alter, unchanged = [], [], [], sorted(kept)
    for name in graph.order:
        table, before = graph.tables[name], existing.get(name)
        if name in kept:
            continue
        changes = () if before is None else _changes(before, table)
        if before is None:
            create.append(table)
        elif "query" in changes:
            replace.append(TableChange(table, changes))
        elif changes:
            alter.append(TableChange(table, changes))
        else:
            unchanged.append(name)
    old = StreamGraph(existing.values())
    drop = tuple(name for name in reversed(old.order) if name not in graph.tables)
    for name in drop:
        if graph.readers.get(name):
            raise TableInUse(name, graph.readers[name])
    return TablePlan(
        tuple(create), tuple(replace), tuple(alter), drop, tuple(sorted(unchanged)), graph
    )


def _changes(before: TableDefinition, table: TableDefinition) -> tuple[str, ...]:
    changes = [name for name in _ALTERABLE if getattr(before, name) != getattr(table, name)]
    # SUSPENDED and ERROR are what became of an active table, not a configured status.
    if (before.status is Status.PAUSED) != (table.status is Status.PAUSED):
        changes.append("status")
    if before.query != table.query and normal_query(before.query) != normal_query(table.query):
        changes.append("query")
    return tuple(changes)
