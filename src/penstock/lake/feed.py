"""The change feed of a table: what each commit changed, as weighted rows in a small file.

The lake can tell what changed between any two snapshots, but rows that were deleted have to be read
from the files they lay in. A writer that knows what it changes leaves the rows here, so that
readers of changes pay for the change only. Entries follow one another: each begins at the snapshot
that the one before ended with. Where a link is missing, such as after a change by another tool, the
lake's own history is read instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.kernel.errors import Gone
from penstock.lake.columns import Column
from penstock.lake.model import DataFile, TableInfo, relative_to, resolve
from penstock.lake.parquet import write_file
from penstock.lake.reader import Reader
from penstock.lake.scan import read_rows
from penstock.lake.selection import FileRows
from penstock.lake.storage import Storage
from penstock.lake.transaction import SNAPSHOT, LakeTransaction

WEIGHT_COLUMN: Final = Column(2147483400, "_penstock_weight", "int64", nulls_allowed=False)
"""How often a row came; negative if it went."""

_INSERT: Final = "INSERT INTO penstock_lake_feeds VALUES (?, ?, ?, ?, ?, ?, ?)"
_SELECT: Final = """SELECT after_snapshot, until_snapshot, path, path_is_relative, row_count,
    size_bytes FROM penstock_lake_feeds WHERE table_id = ? AND after_snapshot >= ?
    ORDER BY after_snapshot"""
DELETE_UNTIL: Final = "DELETE FROM penstock_lake_feeds WHERE table_id = ? AND until_snapshot <= ?"
ANY_UNTIL: Final = (
    "SELECT 1 FROM penstock_lake_feeds WHERE table_id = ? AND until_snapshot <= ? LIMIT 1"
)
DELETE_TABLE: Final = "DELETE FROM penstock_lake_feeds WHERE table_id = ?"
SELECT_TABLES: Final = "SELECT DISTINCT table_id FROM penstock_lake_feeds"


class FeedLost(Gone):
    """A file of a change feed is listed, but cannot be read."""

    code = "feed_lost"


@dataclass(frozen=True, slots=True)
class FeedFile:
    """Consolidated weighted rows in storage: a table's columns and `WEIGHT_COLUMN`."""

    path: str
    rows: int
    size_bytes: int


def write_feed(
    storage: Storage, table: TableInfo, rows: pa.Table, weights: pa.Array, token: str
) -> FeedFile:
    """Write rows of a table with their weights, for a transaction to list."""
    weighted = rows.append_column(WEIGHT_COLUMN.name, weights)
    columns = (*table.columns, WEIGHT_COLUMN)
    made = write_file(storage, table.path, columns, weighted, token=token)
    return FeedFile(made.path, made.record_count, made.size_bytes)


def read_feed(storage: Storage, table: TableInfo, feed: FeedFile) -> tuple[pa.Table, pa.Array]:
    """The rows of a feed file in the columns that the table has now, and their weights."""
    file = DataFile(0, feed.path, feed.rows, feed.size_bytes, 0, 0)
    try:
        found = read_rows(storage, FileRows(file), (*table.columns, WEIGHT_COLUMN), {})
    except (OSError, pa.ArrowException) as error:
        raise FeedLost(
            f"the feed of {table.qualified} at {feed.path!r} cannot be read: {error}"
        ) from error
    return found.drop_columns([WEIGHT_COLUMN.name]), found.column(WEIGHT_COLUMN.name)


def list_feed(transaction: LakeTransaction, table: TableInfo, after: int, feed: FeedFile) -> None:
    """List a feed file with the snapshot that the transaction makes."""
    path, is_relative = relative_to(transaction.data_path, feed.path)
    transaction.also(
        _INSERT,
        (table.id, after, SNAPSHOT, path, int(is_relative), feed.rows, feed.size_bytes),
    )


def feed_between(
    reader: Reader, table_id: int, after: int, until: int
) -> tuple[FeedFile, ...] | None:
    """The feed files that lead from one snapshot to another, or None if they do not."""
    found, at = [], after
    for begin, end, path, is_relative, rows, size in reader.rows(_SELECT, table_id, after):
        if begin != at or end > until:
            break
        found.append(FeedFile(resolve(reader.data_path, path, bool(is_relative)), rows, size))
        at = end
    return tuple(found) if at == until else None


def feed_paths(reader: Reader) -> list[str]:
    """Every listed feed file."""
    found = reader.rows("SELECT path, path_is_relative FROM penstock_lake_feeds")
    return [resolve(reader.data_path, path, bool(relative)) for path, relative in found]
