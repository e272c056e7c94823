"""Where lake tables stand: the snapshot that last changed each, from the lake's own notes.

Every process must give the same answer for the same contents, or tables would be refreshed for
nothing. So the answer comes from the list of changes that the lake keeps for each snapshot, and for
what expired from `penstock_positions`, which coordinators write. Where snapshots expired that
nobody saw, any table may have changed in them: none is then said to stand below the first snapshot
after the gap. That floor is on record too, so that it is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.changes import parse
from penstock.lake.database import Database
from penstock.lake.model import TableInfo
from penstock.lake.reader import Reader
from penstock.tables.core.frontier import LakePosition

_CHANGES: Final = (
    "inserted_into_table",
    "deleted_from_table",
    "altered_table",
    "inlined_insert",
    "inlined_delete",
)
"""Kinds of change that readers must know of. Compaction moves rows and changes none."""

_THROUGH: Final = "positions_through"
_FLOOR: Final = "positions_floor"
_CHECKPOINT_EVERY: Final = 500


class Positions:
    """Follows the lake in one process; reads each snapshot's changes once. For one thread."""

    def __init__(self) -> None:
        self._changed: dict[int, int] = {}
        self._through = -1
        self._oldest = 0
        self._gap = -1  # the first snapshot after one that this process missed
        self._stored = -1
        self._stored_floor = -1

    @property
    def through(self) -> int:
        """The newest snapshot that was looked at."""
        return self._through

    @property
    def floor(self) -> int:
        """The snapshot below which nobody knows what changed; -1 if all is known."""
        return max(self._gap, self._stored_floor)

    def advance(self, reader: Reader) -> None:
        """Take in the snapshots since the last look."""
        self._load(reader)
        rows = reader.rows(
            "SELECT snapshot_id, changes_made FROM ducklake_snapshot_changes "
            "WHERE snapshot_id > ? ORDER BY snapshot_id",
            self._through,
        )
        for number, text in rows:
            if number > self._through + 1:
                self._gap = number
            for table_id in parse(text).ids(*_CHANGES):
                self._changed[table_id] = number
            self._through = number
        ((oldest,),) = reader.rows("SELECT min(snapshot_id) FROM ducklake_snapshot_changes")
        self._oldest = oldest or 0

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
        made = self._made(reader)
        found = {}
        for name in names:
            try:
                table = reader.table(name, latest)
            except Rejected:
                continue
            at = self.of(reader, table)
            found[name] = max(at, LakePosition(made.get(name, self.floor)))
        return found

    def checkpoint(self, lake: Catalog, *, now: bool = False) -> None:
        """Store what is known, from time to time and when snapshots expired that are not stored."""
        news = self._through - self._stored
        is_due = now or news >= _CHECKPOINT_EVERY or self._oldest > self._stored + 1
        if not news or not is_due:
            return
        lake.retrying(lambda cursor: self.store(lake.database, cursor))

    def store(self, database: Database, cursor: Any) -> None:
        """Store what is known; what others stored goes up and never down."""
        if self._changed:
            cursor.executemany(database.sql(_STORE_POSITION), list(self._changed.items()))
        values = [(_THROUGH, str(self._through)), (_FLOOR, str(self.floor))]
        cursor.executemany(database.sql(_STORE_VALUE), values)

    def _made(self, reader: Reader) -> dict[str, int]:
        """Where stream tables stand by their refreshes, if changes alone do not tell."""
        if self.floor < 0:
            return {}
        rows = reader.rows(
            "SELECT table_name, snapshot FROM penstock_frontiers WHERE snapshot IS NOT NULL"
        )
        return dict(rows)

    def _load(self, reader: Reader) -> None:
        """Take over what was stored since the last look."""
        rows = reader.rows(
            "SELECT name, value FROM penstock_warehouse WHERE name IN (?, ?)", _THROUGH, _FLOOR
        )
        stored: dict[str, str] = dict(rows)
        through, floor = int(stored.get(_THROUGH, -1)), int(stored.get(_FLOOR, -1))
        if (through, floor) == (self._stored, self._stored_floor):
            return
        for table_id, number in reader.rows("SELECT table_id, snapshot FROM penstock_positions"):
            self._changed[table_id] = max(number, self._changed.get(table_id, -1))
        self._stored, self._stored_floor = through, floor
        self._through = max(through, self._through)
        if through >= self._gap - 1:
            self._gap = -1  # whoever stored it either saw what is missing here or has a floor


def keep_positions(reader: Reader) -> None:
    """Store where tables stand in the transaction in which snapshots expire."""
    positions = Positions()
    positions.advance(reader)
    positions.store(reader.database, reader.cursor)


_STORE_POSITION: Final = (
    "INSERT INTO penstock_positions (table_id, snapshot) VALUES (?, ?) "
    "ON CONFLICT (table_id) DO UPDATE SET snapshot = excluded.snapshot "
    "WHERE excluded.snapshot > penstock_positions.snapshot"
)
_STORE_VALUE: Final = (
    "INSERT INTO penstock_warehouse (name, value) VALUES (?, ?) "
    "ON CONFLICT (name) DO UPDATE SET value = excluded.value "
    "WHERE CAST(excluded.value AS BIGINT) > CAST(penstock_warehouse.value AS BIGINT)"
)
