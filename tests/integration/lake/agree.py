"""Our reader and DuckDB's, side by side: the same tables, rows, history and changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from penstock.lake.ddl import quoted
from penstock.lake.shell import Catalog
from tests.integration.lake.duck import Duck

Bag = Counter[str]


def bag(rows: pa.Table | list[dict[str, Any]]) -> Bag:
    """Rows as a multiset, whatever their order."""
    listed = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    return Counter(repr(sorted(row.items())) for row in listed)


def assert_same_tables(catalog: Catalog, duck: Duck) -> None:
    """Every table at every snapshot, and the changes between any two neighbours and over all."""
    for snapshot in catalog.snapshots():
        for table in catalog.tables(snapshot.id):
            name = f"{quoted(table.schema.name)}.{quoted(table.name)}"
            ours = catalog.scan(table, snapshot.id)
            theirs = duck.run(f"SELECT * FROM {name} AT (VERSION => {snapshot.id})")
            assert ours.column_names == theirs.column_names
            assert bag(ours) == bag(theirs), (table.name, snapshot.id)


def assert_same_changes(catalog: Catalog, duck: Duck, name: str) -> None:
    """Net changes between any two snapshots are those that DuckDB tells, added up."""
    latest = catalog.latest().id
    table = catalog.table(name)
    began = min(s.id for s in catalog.snapshots() if has_table(catalog, table.id, s.id))
    for after in range(began, latest + 1):
        for until in range(after, latest + 1):
            if not same_columns(catalog, table.id, after, until):
                continue
            found = catalog.changes(catalog.table(name, until), after, until)
            gained = bag(found.read_inserted(catalog.storage))
            gained.subtract(bag(found.read_deleted(catalog.storage)))
            assert nonzero(gained) == duck_changes(duck, name, after, until), (after, until)
            before, then = (bag(catalog.scan(name, at)) for at in (after, until))
            then.subtract(before)
            assert nonzero(gained) == nonzero(then), (after, until)


def duck_changes(duck: Duck, name: str, after: int, until: int) -> dict[str, int]:
    if after == until:
        return {}
    total: Bag = Counter()
    words = f"'lake', 'main', '{name}', {after + 1}, {until}"
    total.update(bag(duck.run(f"SELECT * FROM ducklake_table_insertions({words})")))
    total.subtract(bag(duck.run(f"SELECT * FROM ducklake_table_deletions({words})")))
    return nonzero(total)


def has_table(catalog: Catalog, number: int, at: int) -> bool:
    return any(table.id == number for table in catalog.tables(at))


def same_columns(catalog: Catalog, number: int, *at: int) -> bool:
    shapes = {
        tuple((c.id, c.name, c.type) for c in table.columns)
        for snapshot in at
        for table in catalog.tables(snapshot)
        if table.id == number
    }
    return len(shapes) == 1


def nonzero(total: Bag) -> dict[str, int]:
    return {row: count for row, count in total.items() if count}
