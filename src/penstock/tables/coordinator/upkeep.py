"""Compacts tables that many small refreshes left in many files; changes no rows.

It runs beside refreshes, under the same locks: a table is either refreshed or compacted. Its files
are reserved under a prefix that every coordinator of the warehouse knows, so that a successor can
release what a dead coordinator reserved.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from penstock.kernel.errors import Conflict
from penstock.lake.compact import compact
from penstock.lake.merging import CompactionPolicy
from penstock.tables import rows
from penstock.tables.names import DEFAULT_SCHEMA
from penstock.tables.processes import process_name
from penstock.tables.store import TableStore

FILES_MAX: Final = 12
"""A table with this many files is compacted."""

_POLICY: Final = CompactionPolicy(files_min=4, deleted_share_min=0.1)


def tidy(store: TableStore, now_ms: int, *, files_max: int = FILES_MAX) -> list[str]:
    """Compact stream tables with many files that are not being refreshed; returns their names."""
    with store.lake.look() as reader:
        many = reader.tables_of_many_files(files_max)
    if not many:
        return []
    known = store.definitions().graph.tables
    found = {_name(table.schema.name, table.name) for table in store.lake.tables()
             if table.id in many}  # fmt: skip
    return [name for name in sorted(found & set(known)) if _tidied(store, name, now_ms)]


def _tidied(store: TableStore, name: str, now_ms: int) -> bool:
    holder = f"{process_name()}#upkeep"
    if store.run(rows.TAKE_LOCK, name, holder, now_ms) != 1:
        return False
    try:
        return compact(store.lake, name, _POLICY, owner=owner_of(store)).files_written > 0
    except Conflict:  # a writer without a lock, such as another tool; retried next time
        forget(store)
        return False
    finally:
        store.run(rows.RELEASE_LOCKS, holder)


def forget(store: TableStore) -> None:
    """Release what upkeep has reserved. Only for the holder of the coordinator's lease."""
    store.run(rows.DROP_RESERVATIONS_LIKE, f"{owner_of(store)}%")


def owner_of(store: TableStore) -> str:
    """The prefix of reservations by a warehouse's upkeep."""
    return blake2b(f"{store.warehouse}/upkeep".encode(), digest_size=8).hexdigest()


def _name(home: str, table: str) -> str:
    return table if home == DEFAULT_SCHEMA else f"{home}.{table}"
