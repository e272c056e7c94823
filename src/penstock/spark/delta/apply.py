"""Weighted rows applied to a table: rows that go are located, rows that come are written.

Nothing is committed here. What a change takes from a table must be in it: if it is not, what is
stored and what is computed disagree, and the refresh fails. Where a row that goes has other last
digits than the one that is held, readers are told of the one that is held: they have been given it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.lake.catalog import Catalog
from penstock.lake.feed import FeedFile, write_feed
from penstock.lake.locate import Located, locate
from penstock.lake.model import NewFile, TableInfo, TableVersion
from penstock.lake.parquet import write_file
from penstock.lake.row_index import RowIndex, exact_columns
from penstock.lake.selection import FileRows
from penstock.lake.storage import Storage
from penstock.spark.delta.weighted import (
    consolidated,
    repeated,
    unweighted,
    weighted,
    weights_of,
)
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
    if len(exact_columns(current.table.columns)) < len(current.table.columns):
        delta, found = _as_held(lake, index, current, delta)
        written = _write(lake.storage, current.table, delta, token)
    else:
        with ThreadPoolExecutor(1) as pool:  # writing and syncing leave the processor to the search
            writing = pool.submit(_write, lake.storage, current.table, delta, token)
            found = _found(lake, index, current, delta)
            written = writing.result()
    weights, (feed, files) = weights_of(delta), written
    came, went = (int(part.sum()) for part in (weights[weights > 0], -weights[weights < 0]))
    return Applied(files, found.deletes, found.inlined_deletes, came, went, feed)


def _as_held(
    lake: Catalog, index: RowIndex, current: TableVersion, delta: pa.Table
) -> tuple[pa.Table, Located]:
    """A change with floats, whose rows that go are those that the table holds, and where they lie.

    A row that goes and comes does not change: what was found may have to be looked up again.
    """
    found = _found(lake, index, current, delta)
    if not found.held.num_rows:
        return delta, found
    weights = weights_of(delta)
    weights[np.flatnonzero(weights < 0)] += found.close
    kept = unweighted(delta).append_column(WEIGHT, pa.array(weights))
    held = weighted(found.held, -1).cast(kept.schema)
    delta = consolidated(pa.concat_tables([kept, held]))
    return delta, _found(lake, index, current, delta)


def _found(lake: Catalog, index: RowIndex, current: TableVersion, delta: pa.Table) -> Located:
    """Where the rows lie that a change takes; raises `StateDisagrees` if some are not there."""
    weights = weights_of(delta)
    leaving = weights < 0
    gone = unweighted(delta).filter(pa.array(leaving))
    found = locate(lake.storage, index, current, gone, -weights[leaving])
    if found.missing.any():
        raise _disagree(current, gone, found)
    return found


def _write(
    storage: Storage, table: TableInfo, delta: pa.Table, token: str
) -> tuple[FeedFile | None, tuple[NewFile, ...]]:
    """The feed, and the rows that come as a file of the table."""
    if not delta.num_rows:
        return None, ()
    rows, weights = unweighted(delta), weights_of(delta)
    feed = write_feed(storage, table, rows, delta.column(WEIGHT), token)
    coming = weights > 0
    added = repeated(rows.filter(pa.array(coming)), weights[coming])
    if not added.num_rows:
        return feed, ()
    return feed, (write_file(storage, table.path, table.columns, added, token=token),)


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
