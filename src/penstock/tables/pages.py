"""Read a table page by page in this process, without an engine.

At one snapshot the rows of a table have a fixed order: inlined rows, then file after file. So a
page is identified by snapshot, offset and limit, and files before it are not opened. With a sort
order, the sort columns are read completely, and of the others only the page.

Stored rows have no order; the final ORDER BY of a query is the order in which its rows are shown. A
sort key can only be applied if it is in the result: a column, its ordinal, or the exact expression
that a column is made from.

>>> final_order("SELECT k, count(*) AS n FROM t GROUP BY k ORDER BY count(*) DESC", ["k", "n"])
(SortKey(column='n', descending=True, nulls_first=False),)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.columns import Column, column_named, plain_schema
from penstock.lake.model import DataFile, TableVersion
from penstock.lake.scan import file_history, read_rows
from penstock.lake.selection import FileRows, live
from penstock.tables.query.sources import parse_query


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
        raise Rejected(f"offset and limit must be at least 0, not {offset} and {limit}")
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


class SortKey(NamedTuple):
    """One column to sort by, with Spark's rules: NaN is larger than every number."""

    column: str
    descending: bool
    nulls_first: bool


def final_order(query: str, columns: Sequence[str]) -> tuple[SortKey, ...]:
    """The keys of a query's last ORDER BY, as far as they are columns of its result."""
    return _final_order(query, tuple(columns))


@lru_cache(maxsize=256)
def _final_order(query: str, columns: tuple[str, ...]) -> tuple[SortKey, ...]:
    tree: exp.Expr = parse_query(query)
    while isinstance(tree, exp.Subquery | exp.Paren) and tree.args.get("order") is None:
        tree = tree.this
    order = tree.args.get("order")
    keys: list[SortKey] = []
    for ordered in order.expressions if order is not None else ():
        found = _columns_of(ordered.this, _select_of(tree), columns)
        if not found:
            break  # later keys only break ties of this one
        how = bool(ordered.args.get("desc")), bool(ordered.args.get("nulls_first"))
        keys += [SortKey(name, *how) for name in found]
    return tuple(keys)


def sorted_places(rows: pa.Table, keys: Iterable[SortKey]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The indices that sort the rows by the keys; the sort is stable."""
    columns: dict[str, Any] = {}
    for key in keys:
        values = rows.column(key.column)
        columns[f"{len(columns)}"] = (_ranks(values, key), "ascending")
        columns[f"{len(columns)}"] = (
            _sortable(values), "descending" if key.descending else "ascending",
        )  # fmt: skip
    columns["place"] = (pa.chunked_array([np.arange(rows.num_rows, dtype=np.int64)]), "ascending")
    table = pa.table({name: values for name, (values, _) in columns.items()})
    found = pc.sort_indices(table, sort_keys=[(name, how) for name, (_, how) in columns.items()])
    return np.asarray(found, dtype=np.int64)


def _select_of(tree: exp.Expr) -> exp.Expr:
    """The SELECT that names the columns: the first one of a UNION."""
    while isinstance(tree, exp.SetOperation | exp.Subquery | exp.Paren):
        tree = tree.this
    return tree


def _columns_of(wanted: exp.Expr, select: exp.Expr, columns: tuple[str, ...]) -> list[str]:
    """The result columns that an ORDER BY expression refers to."""
    if isinstance(wanted, exp.Var) and wanted.name.upper() == "ALL":
        return list(columns)
    if isinstance(wanted, exp.Literal) and not wanted.is_string and wanted.name.isdigit():
        return [columns[int(wanted.name) - 1]] if 0 < int(wanted.name) <= len(columns) else []
    spelled = {name.lower(): name for name in columns}
    is_name = isinstance(wanted, exp.Column) and len(wanted.parts) == 1
    if is_name and wanted.name.lower() in spelled:
        return [spelled[wanted.name.lower()]]
    text = _normal(wanted)
    for projection in select.expressions:
        name = projection.alias_or_name.lower()
        if _normal(projection.unalias()) == text and name in spelled:
            return [spelled[name]]
    has_star = any(
        isinstance(p, exp.Star) or isinstance(p.this, exp.Star) for p in select.expressions
    )
    if isinstance(wanted, exp.Column) and has_star and wanted.name.lower() in spelled:
        return [spelled[wanted.name.lower()]]
    return []


def _normal(expression: exp.Expr) -> str:
    return expression.sql(dialect="spark", comments=False).lower().replace("`", "")


def _ranks(values: pa.ChunkedArray, key: SortKey) -> pa.ChunkedArray:
    """Sort ranks of NULL and NaN, which Arrow itself always puts last."""
    nan, value = (1, 2) if key.descending else (2, 1)
    ranks = pa.chunked_array([np.full(len(values), value, dtype=np.int8)])
    if pa.types.is_floating(values.type):
        is_nan = pc.fill_null(pc.is_nan(values), False)
        ranks = pc.if_else(is_nan, pa.scalar(nan, pa.int8()), ranks)
    return pc.if_else(pc.is_null(values), pa.scalar(0 if key.nulls_first else 3, pa.int8()), ranks)


def _sortable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values that Arrow can sort: unchanged, or ranks for nested ones."""
    kind = values.type
    if not (pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType)):
        return values
    texts = [_comparable(value) for value in values.to_pylist()]
    places = {text: place for place, text in enumerate(sorted(set(texts)))}
    return pa.chunked_array([pa.array([places[text] for text in texts], pa.int64())])


def _comparable(value: Any) -> tuple[Any, ...]:
    """A value comparable with others of its type: NULL sorts first."""
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, *(_comparable(part) for part in value.values()))
    if isinstance(value, list):
        return (1, *(_comparable(part) for part in value))
    return (2, "") if value != value else (1, value)  # only NaN is not equal to itself
