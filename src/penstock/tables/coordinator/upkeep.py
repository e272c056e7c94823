"""Tables that many small refreshes left in many files become few files again; no row changes.

It happens beside refreshes, under the same locks: a table is either refreshed or tidied up. The
files it writes are reserved under letters that every coordinator of the warehouse knows, so that
the next one can give back what one left that died.
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
"""From so many files on a table is tidied up."""

_POLICY: Final = CompactionPolicy(files_min=4, deleted_share_min=0.1)


def tidy(store: TableStore, now_ms: int, *, files_max: int = FILES_MAX) -> list[str]:
    """Compact stream tables of many files that nobody refreshes just now; returns their names."""
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
    except Conflict:  # somebody without a lock, such as another tool; the next time
        forget(store)
        return False
    finally:
        store.run(rows.RELEASE_LOCKS, holder)


def forget(store: TableStore) -> None:
    """Give back what upkeep has reserved. For whoever holds the coordinator's lease."""
    store.run(rows.DROP_RESERVATIONS_LIKE, f"{owner_of(store)}%")


def owner_of(store: TableStore) -> str:
    """The letters that reservations of a warehouse's upkeep begin with."""
    return blake2b(f"{store.warehouse}/upkeep".encode(), digest_size=8).hexdigest()


def _name(home: str, table: str) -> str:
    return table if home == DEFAULT_SCHEMA else f"{home}.{table}"
