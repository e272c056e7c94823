"""Positions of lake tables: the snapshot that last changed each, from the lake's change log.

Every process must compute the same position for the same contents, otherwise tables would be
refreshed needlessly. So positions come from the list of changes that the lake keeps for each
snapshot, and for expired ones from `penstock_positions`, which coordinators write. If snapshots
expired that no process had read, any table may have changed in them: then no position is below the
first snapshot after the gap. That floor is stored too, so that all processes agree.
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
from penstock.tables import rows
from penstock.tables.core.frontier import LakePosition

CHANGES: Final = (
    "inserted_into_table",
    "deleted_from_table",
    "altered_table",
    "inlined_insert",
    "inlined_delete",
)
"""Kinds of change that affect readers. Compaction moves rows but changes none."""

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
        """The newest snapshot read."""
        return self._through

    @property
    def floor(self) -> int:
        """The snapshot below which changes are unknown; -1 if all are known."""
        return max(self._gap, self._stored_floor)

    def advance(self, reader: Reader) -> None:
        """Read the snapshots since the last call."""
        self._load(reader)
        for number, text in reader.changes_after(self._through):
            if number > self._through + 1:
                self._gap = number
            for table_id in parse(text).ids(*CHANGES):
                self._changed[table_id] = number
            self._through = number
        self._oldest = reader.oldest_changes()

    def of(self, reader: Reader, table: TableInfo) -> LakePosition:
        """The position of a table."""
        known = self._changed.get(table.id)
        if known is None:
            # Never filled, or filled before all retained changes.
            began, filled = reader.created_in(table.id), reader.last_filled_in(table.id)
            known = self._changed[table.id] = max(began or 0, filled or 0)
        return LakePosition(known)

    def changed_after(self, table_id: int, snapshot: int) -> bool:
        """Whether a table is known to have changed after a snapshot."""
        return self._changed.get(table_id, -1) > snapshot

    def of_all(self, reader: Reader, names: Iterable[str]) -> dict[str, LakePosition]:
        """Positions by table name; missing tables are left out."""
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
        """Store positions periodically, and when snapshots expired that are not stored."""
        news = self._through - self._stored
        is_due = now or news >= _CHECKPOINT_EVERY or self._oldest > self._stored + 1
        if not news or not is_due:
            return
        lake.retrying(lambda cursor: self.store(lake.database, cursor))

    def store(self, database: Database, cursor: Any) -> None:
        """Store positions; stored values only ever increase."""
        if self._changed:
            cursor.executemany(database.sql(rows.RAISE_POSITION), list(self._changed.items()))
        values = [
            (rows.POSITIONS_THROUGH, str(self._through)),
            (rows.POSITIONS_FLOOR, str(self.floor)),
        ]
        cursor.executemany(database.sql(rows.RAISE_VALUE), values)

    def _made(self, reader: Reader) -> dict[str, int]:
        """Positions of stream tables by their refreshes, if there is a gap in the changes."""
        if self.floor < 0:
            return {}
        return dict(reader.rows(rows.SELECT_FRONTIER_SNAPSHOTS))

    def _load(self, reader: Reader) -> None:
        """Load what was stored since the last call."""
        names = (rows.POSITIONS_THROUGH, rows.POSITIONS_FLOOR)
        stored: dict[str, str] = dict(reader.rows(rows.SELECT_TWO_VALUES, *names))
        through, floor = (int(stored.get(name, -1)) for name in names)
        if (through, floor) == (self._stored, self._stored_floor):
            return
        for table_id, number in reader.rows(rows.SELECT_POSITIONS):
            self._changed[table_id] = max(number, self._changed.get(table_id, -1))
        self._stored, self._stored_floor = through, floor
        self._through = max(through, self._through)
        if through >= self._gap - 1:
            self._gap = -1  # its writer either saw the missing snapshots or stored a floor


def keep_positions(reader: Reader) -> None:
    """Store the positions of tables in the transaction that expires snapshots."""
    positions = Positions()
    positions.advance(reader)
    positions.store(reader.database, reader.cursor)
