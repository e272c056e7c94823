"""Where lake tables stand: the snapshot that last changed each, from the lake's own notes.

Every process must give the same answer for the same contents, or tables would be refreshed for
nothing. So the answer comes from the list of changes that the lake keeps for each snapshot, and for
what expired from `penstock_positions`, which coordinators write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from penstock.kernel.errors import Rejected
from penstock.lake.changes import parse
from penstock.lake.model import TableInfo
from penstock.lake.shell.catalog import Catalog
from penstock.lake.shell.reader import Reader
from penstock.tables.frontier import LakePosition

_CHANGES: Final = (
    "inserted_into_table",
    "deleted_from_table",
    "altered_table",
    "inlined_insert",
    "inlined_delete",
)
"""Kinds of change that readers must know of. Compaction moves rows and changes none."""

_THROUGH: Final = "positions_through"
_CHECKPOINT_EVERY: Final = 500


class Positions:
    """Follows the lake in one process; reads each snapshot's changes once. For one thread."""

    def __init__(self) -> None:
        self._changed: dict[int, int] = {}
        self._through: int | None = None
        self._stored = -1

    @property
    def through(self) -> int:
        """The newest snapshot that was looked at."""
        return -1 if self._through is None else self._through

    def advance(self, reader: Reader) -> None:
        """Take in the snapshots since the last look."""
        if self._through is None:
            self._load(reader)
        rows = reader.rows(
            "SELECT snapshot_id, changes_made FROM ducklake_snapshot_changes "
            "WHERE snapshot_id > ? ORDER BY snapshot_id",
            self.through,
        )
        for number, text in rows:
            for table_id in parse(text).ids(*_CHANGES):
                self._changed[table_id] = number
            self._through = number

    def of(self, reader: Reader, table: TableInfo) -> LakePosition:
        """Where a table stands."""
        known = self._changed.get(table.id)
        if known is None:
            # Made and never filled, or filled before everything that is kept.
            ((began, filled),) = reader.rows(
                "SELECT (SELECT min(begin_snapshot) FROM ducklake_table WHERE table_id = ?), "
                "(SELECT max(begin_snapshot) FROM ducklake_data_file WHERE table_id = ?)",
                table.id,
                table.id,
            )
            known = self._changed[table.id] = max(began or 0, filled or 0)
        return LakePosition(known)

    def of_all(self, reader: Reader, names: Iterable[str]) -> dict[str, LakePosition]:
        """Where tables stand by name; those that do not exist are left out."""
        latest = reader.latest()
        found = {}
        for name in names:
            try:
                table = reader.table(name, latest)
            except Rejected:
                continue
            found[name] = self.of(reader, table)
        return found

    def checkpoint(self, lake: Catalog, *, now: bool = False) -> None:
        """Store what is known, from time to time, so that expiry takes nothing away."""
        if self.through - self._stored < (1 if now else _CHECKPOINT_EVERY):
            return
        sql = lake.database.sql
        known, through = list(self._changed.items()), self.through

        def work(cursor: Any) -> None:
            cursor.executemany(
                sql(
                    "INSERT INTO penstock_positions (table_id, snapshot) VALUES (?, ?) "
                    "ON CONFLICT (table_id) DO UPDATE SET snapshot = excluded.snapshot"
                ),
                known,
            )
            cursor.execute(
                sql(
                    "INSERT INTO penstock_warehouse (name, value) VALUES (?, ?) "
                    "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
                ),
                (_THROUGH, str(through)),
            )

        if known:
            lake.retrying(work)
        self._stored = through

    def _load(self, reader: Reader) -> None:
        found = reader.rows("SELECT value FROM penstock_warehouse WHERE name = ?", _THROUGH)
        self._through = self._stored = int(found[0][0]) if found else -1
        rows = reader.rows("SELECT table_id, snapshot FROM penstock_positions")
        self._changed.update(dict(rows))
