"""Weighted rows applied to a table: rows that go are located, rows that come are written.

Nothing is committed here. What a change takes from a table must be in it: if it is not, what is
stored and what is computed disagree, and the refresh fails.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.lake.catalog import Catalog
from penstock.lake.feed import FeedFile, write_feed
from penstock.lake.locate import Located, locate
from penstock.lake.model import NewFile, TableVersion
from penstock.lake.parquet import write_file
from penstock.lake.row_index import RowIndex
from penstock.lake.selection import FileRows
from penstock.spark.delta.weighted import repeated, unweighted, weights_of
from penstock.spark.lake.types import for_lake
from penstock.tables.delta.rules import WEIGHT
from penstock.tables.engine import StateDisagrees


@dataclass(frozen=True, slots=True)
class Applied:
    """What makes a table what it has to be: files to add, and rows to delete."""

    files: tuple[NewFile, ...]
    deletes: tuple[FileRows, ...]
    inlined_deletes: tuple[int, ...]
    came: int
    went: int
    feed: FeedFile | None = None


def apply_delta(
    lake: Catalog, index: RowIndex, current: TableVersion, delta: pa.Table, token: str
) -> Applied:
    """Apply consolidated weighted rows, in the columns of the table, to what it holds now."""
    if not delta.num_rows:
        return Applied((), (), (), 0, 0)
    weights = weights_of(delta)
    rows = unweighted(delta)
    leaving, coming = weights < 0, weights > 0
    gone = rows.filter(pa.array(leaving))
    counts = -weights[leaving]
    found = Located((), (), counts[:0])
    if gone.num_rows:
        found = locate(lake.storage, index, current, gone, counts)
        if found.missing.any():
            raise _disagree(current, gone, found)
    feed = write_feed(lake.storage, current.table, rows, delta.column(WEIGHT), token)
    files: tuple[NewFile, ...] = ()
    added = repeated(rows.filter(pa.array(coming)), weights[coming])
    if added.num_rows:
        table = current.table
        files = (write_file(lake.storage, table.path, table.columns, added, token=token),)
    return Applied(
        files, found.deletes, found.inlined_deletes, int(added.num_rows), int(counts.sum()), feed
    )


def in_lake_types(delta: pa.Table, current: TableVersion) -> pa.Table:
    """Weighted rows from Spark, in the types of the table's rows."""
    table = current.table
    made = for_lake(unweighted(delta), table.columns).cast(table.arrow_schema)
    return made.append_column(WEIGHT, delta.column(WEIGHT))


def _disagree(current: TableVersion, gone: pa.Table, found: Located) -> StateDisagrees:
    missing = found.missing > 0
    first = gone.filter(pa.array(missing)).slice(0, 1).to_pylist()[0]
    return StateDisagrees(
        f"internal error: the change takes {int(found.missing.sum())} rows from "
        f"{current.table.qualified} that it does not hold, such as {first}; nothing was "
        "committed, and the next refresh runs the whole query",
        table=current.table.qualified,
    )
