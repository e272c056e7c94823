"""Our reader and DuckDB's, side by side: the same tables, rows, history and changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from penstock.lake.catalog import Catalog
from penstock.lake.ddl import quoted
from tests.integration.lake.duck import Duck

Bag = Counter[str]


def bag(rows: pa.Table | list[dict[str, Any]]) -> Bag:
    """Rows as a multiset, whatever their order."""
    listed = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    return Counter(repr(sorted(row.items())) for row in listed)


def assert_same_tables(catalog: Catalog, duck: Duck, *, newest: bool = False) -> None:
    """Every table at every snapshot, or at the newest alone."""
    for snapshot in catalog.snapshots()[-1 if newest else 0 :]:
        for table in catalog.tables(snapshot.id):
            name = f"{quoted(table.schema.name)}.{quoted(table.name)}"
            ours = catalog.scan(table, snapshot.id)
            theirs = duck.run(f"SELECT * FROM {name} AT (VERSION => {snapshot.id})")
            assert ours.column_names == theirs.column_names
            assert bag(ours) == bag(theirs), (table.name, snapshot.id)


def assert_same_changes(catalog: Catalog, duck: Duck, name: str) -> None:
    """Net changes are the difference of what is there, and those that DuckDB tells, added up.

    Between neighbours, and from the first snapshot to every second one.
    """
    number = catalog.table(name).id
    found = {s.id: shape(catalog, number, s.id) for s in catalog.snapshots()}
    shapes = {at: columns for at, columns in found.items() if columns}
    contents = {at: bag(catalog.scan(catalog.table(name, at), at)) for at in shapes}
    first, last = min(shapes), max(shapes)
    pairs = {(at - 1, at) for at in shapes} | {(first, at) for at in range(last, first, -2)}
    for after, until in sorted(pairs):
        if after not in shapes or shapes[after] != shapes[until]:
            continue
        changed = catalog.changes(catalog.table(name, until), after, until)
        gained = bag(changed.read_inserted(catalog.storage))
        gained.subtract(bag(changed.read_deleted(catalog.storage)))
        difference = contents[until].copy()
        difference.subtract(contents[after])
        assert nonzero(gained) == nonzero(difference), (after, until)
        assert nonzero(gained) == duck_changes(duck, name, after, until), (after, until)


def duck_changes(duck: Duck, name: str, after: int, until: int) -> dict[str, int]:
    if after == until:
        return {}
    total: Bag = Counter()
    words = f"'lake', 'main', '{name}', {after + 1}, {until}"
    total.update(bag(duck.run(f"SELECT * FROM ducklake_table_insertions({words})")))
    total.subtract(bag(duck.run(f"SELECT * FROM ducklake_table_deletions({words})")))
    return nonzero(total)


def shape(catalog: Catalog, number: int, at: int) -> list[tuple[int, str, str]]:
    """The columns of a table at a snapshot, or nothing if it is not there."""
    tables = [table for table in catalog.tables(at) if table.id == number]
    return [(c.id, c.name, c.type) for table in tables for c in table.columns]


def nonzero(total: Bag) -> dict[str, int]:
    return {row: count for row, count in total.items() if count}
