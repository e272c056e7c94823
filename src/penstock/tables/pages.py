"""Read a table page by page in this process, without an engine.

At one snapshot the rows of a table have a fixed order: inlined rows, then file after file. So a
page is identified by snapshot, offset and limit, and files before it are not opened. With a sort
order, the sort columns are read completely, and of the others only the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.columns import Column, column_named, plain_schema
from penstock.lake.model import DataFile, TableVersion
from penstock.lake.scan import file_history, read_rows
from penstock.lake.selection import FileRows, live
from penstock.tables.query.ordering import SortKey, sorted_places


class TablePage(NamedTuple):
    """Some rows of a table at a snapshot; `rows_total` is the total number of rows."""

    table: str
    snapshot: int
    rows: pa.Table
    offset: int
    rows_total: int

    @property
    def next_offset(self) -> int | None:
        """The offset of the next page; None if this is the last."""
        after = self.offset + self.rows.num_rows
        return after if after < self.rows_total else None


def read_page(
    lake: Catalog,
    version: TableVersion,
    *,
    offset: int = 0,
    limit: int,
    columns: Sequence[str] | None = None,
    order: Sequence[SortKey] = (),
) -> TablePage:
    """At most `limit` rows from an offset: sorted by the keys, or in stored order."""
    if offset < 0 or limit < 0:
        raise Rejected(f"expected offset and limit from 0 on, found {offset} and {limit}")
    wanted = _wanted(version.table.columns, columns)
    inlined = version.inlined.rows.select([column.name for column in wanted])
    stored = list(_stored(lake, version))
    total = inlined.num_rows + sum(rows.count for rows in stored)
    if order:
        keys = read_page(lake, version, limit=total, columns=[key.column for key in order]).rows
        places = sorted_places(keys, order)[offset : offset + limit]
        table = _picked(lake, version, wanted, stored, places)
        return TablePage(version.table.name, version.snapshot.id, table, offset, total)
    pieces = [inlined.slice(offset, limit)]
    skip = max(0, offset - inlined.num_rows)
    left = limit - pieces[0].num_rows
    for rows in stored:
        if left <= 0:
            break
        if skip >= rows.count:
            skip -= rows.count
            continue
        piece = read_rows(lake.storage, _part(rows, skip, left), wanted, version.mappings)
        pieces.append(piece)
        skip, left = 0, left - piece.num_rows
    table = pa.concat_tables([piece.cast(plain_schema(wanted)) for piece in pieces])
    return TablePage(version.table.name, version.snapshot.id, table, offset, total)


def _picked(
    lake: Catalog,
    version: TableVersion,
    wanted: tuple[Column, ...],
    stored: Sequence[FileRows],
    places: np.ndarray[Any, np.dtype[np.int64]],
) -> pa.Table:
    """The rows at the given places, in that order; each file is opened at most once."""
    by_place = np.argsort(places)
    sought = places[by_place]
    inlined = version.inlined.rows.select([column.name for column in wanted])
    end = inlined.num_rows
    pieces = [inlined.take(pa.array(sought[sought < end]))]
    for rows in stored:
        begin, end = end, end + rows.count
        here = sought[(sought >= begin) & (sought < end)] - begin
        if len(here):
            picked = FileRows(rows.file, here if rows.positions is None else rows.positions[here])
            pieces.append(read_rows(lake.storage, picked, wanted, version.mappings))
    table = pa.concat_tables([piece.cast(plain_schema(wanted)) for piece in pieces])
    return table.take(pa.array(np.argsort(by_place)))


def _wanted(columns: tuple[Column, ...], names: Iterable[str] | None) -> tuple[Column, ...]:
    return columns if names is None else tuple(column_named(columns, name) for name in names)


def _stored(lake: Catalog, version: TableVersion) -> Iterator[FileRows]:
    at = version.snapshot.id
    for file in version.files:
        if _is_whole(file, at):
            yield FileRows(file)
        else:
            yield live(file_history(lake.storage, file, upto=at), at)


def _is_whole(file: DataFile, at: int) -> bool:
    """Whether every row of a file is visible at a snapshot, so that no file needs to be opened."""
    late = file.partial_max is not None and file.partial_max > at
    return not (late or file.inlined_deletes or any(d.begin <= at for d in file.deletes))


def _part(rows: FileRows, skip: int, limit: int) -> FileRows:
    if skip == 0 and rows.count <= limit:
        return rows
    if rows.positions is not None:
        return FileRows(rows.file, rows.positions[skip : skip + limit])
    until = min(rows.count, skip + limit)
    return FileRows(rows.file, np.arange(skip, until, dtype=np.int64))
