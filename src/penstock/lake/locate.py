"""Where the rows lie that a change takes from a table.

Each row is looked up by its hash in the indexed copies of the table's files, and compared as a
whole. Floats may come out of the same query with other last digits, because sums of them depend on
the order. A row that is not found exactly is therefore looked up by its other columns, and taken
only if no row with these columns stays: then it cannot be mistaken for another. Where some would
stay it is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.model import DataFile, TableVersion
from penstock.lake.row_hash import Hashes, row_hashes, with_sorted_maps
from penstock.lake.row_index import FileCopy, RowIndex, exact_columns
from penstock.lake.scan import file_history, read_deletes
from penstock.lake.selection import FileRows, Positions, live, others
from penstock.lake.storage import Storage

CANDIDATES_MAX: Final = 4_096
"""Places that are looked at for one row in one file, beside as many as are wanted of it."""
CLOSE: Final = 1e-6
"""How far apart floats of one row may be, as a share of the larger one (or of 1)."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Located:
    """Rows by where they lie. `missing` says of each wanted row how often it was not found.

    `close` says of each how often a row was taken for it whose floats are only close; `held` are
    these rows as the table has them.
    """

    deletes: tuple[FileRows, ...]
    inlined_deletes: tuple[int, ...]
    missing: Positions
    close: Positions
    held: pa.Table


@dataclass(frozen=True, slots=True)
class _Part:
    """A file of the table, or the rows that are in the catalog, and what is gone of it."""

    rows: FileCopy
    gone: Positions

    def are_there(self, positions: Positions, *taken: Positions) -> Mask:
        """Which of some positions are neither gone nor taken."""
        if not len(positions):
            return np.zeros(0, np.bool_)
        held = np.ones(self.rows.rows.num_rows, np.bool_)
        for away in (self.gone, *taken):
            held[away] = False
        there: Mask = held[positions]
        return there


@dataclass(slots=True)
class _Claims:
    """What was found so far: places in each part of the table, and what is still wanted."""

    wanted: pa.Table
    left: Positions
    taken: dict[int, Positions]

    def claim(self, part: int, which: Positions, positions: Positions) -> None:
        """Take places for wanted rows, no more than are wanted of each."""
        order = np.argsort(which, kind="stable")
        which, positions = which[order], positions[order]
        begins = np.searchsorted(which, which, side="left")
        keep = np.arange(len(which)) - begins < self.left[which]
        np.subtract.at(self.left, which[keep], 1)
        before = self.taken.get(part, np.zeros(0, np.int64))
        self.taken[part] = np.concatenate([before, positions[keep]])


def locate(
    storage: Storage, index: RowIndex, version: TableVersion, wanted: pa.Table, counts: Positions
) -> Located:
    """Find rows of a table: each of the wanted rows, which differ, so many times.

    `wanted` has the schema of the table's rows. The newest files are searched first: what changed
    lately changes again.
    """
    hashes = row_hashes(wanted)
    order = np.argsort(hashes)
    hashes = hashes[order]
    claims = _Claims(wanted.take(pa.array(order)), counts[order], {})
    parts: dict[int, _Part] = {}
    for number in _order(version):
        if not claims.left.any():
            break
        parts[number] = _part(storage, index, version, number)
        _search(claims, number, parts[number], hashes)
    exact = exact_columns(version.table.columns)
    pieces, left = [wanted.slice(0, 0)], claims.left.copy()
    if left.any() and len(exact) < len(version.table.columns):
        pieces += _claim_whole_keys(claims, parts, exact)
    deletes, inlined = _places(version, claims, parts)
    missing, close = np.empty_like(left), np.empty_like(left)
    missing[order], close[order] = claims.left, left - claims.left
    return Located(deletes, inlined, missing, close, pa.concat_tables(pieces))


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Whole rows that were found by some of their columns, and where they lie."""

    rows: pa.Table
    deletes: tuple[FileRows, ...]
    inlined_deletes: tuple[int, ...]


def find_by(
    storage: Storage, index: RowIndex, version: TableVersion, wanted: pa.Table
) -> FoundRows:
    """All rows of a table that have the values of a wanted row in its columns, which differ."""
    names = wanted.column_names
    hashes = row_hashes(wanted)
    by_hash = np.argsort(hashes)
    hashes, wanted = hashes[by_hash], wanted.take(pa.array(by_hash))
    claims = _Claims(wanted, np.zeros(wanted.num_rows, np.int64), {})
    parts: dict[int, _Part] = {}
    pieces = [version.table.arrow_schema.empty_table()]
    for number in _order(version):
        part = parts[number] = _part(storage, index, version, number)
        order = part.rows.order(names)
        which, positions, _ = order.find(hashes, len(order.places))
        here = part.are_there(positions)
        which, positions = which[here], positions[here]
        if not len(which):
            continue
        found = part.rows.take(positions)
        same = rows_match(found.select(names), wanted.take(pa.array(which)))
        claims.taken[number] = positions[same]
        pieces.append(found.filter(pa.array(same)))
    return FoundRows(pa.concat_tables(pieces), *_places(version, claims, parts))


def rows_with(
    storage: Storage,
    index: RowIndex,
    version: TableVersion,
    wanted: pa.Table,
    names: Sequence[str],
    rows_max: int,
) -> pa.Table | None:
    """Some columns of the rows of a table that have a wanted row's values; None if they are many.

    A row with other values may be among them, if its hash is the same.
    """
    hashes = np.sort(row_hashes(wanted))
    schema = pa.schema([version.table.arrow_schema.field(name) for name in names])
    pieces = [schema.empty_table()]
    for number in _order(version):
        part = _part(storage, index, version, number)
        order = part.rows.order(wanted.column_names)
        _, positions, _ = order.find(hashes, len(order.places))
        positions = np.sort(positions[part.are_there(positions)])
        rows_max -= len(positions)
        if rows_max < 0:
            return None
        if len(positions):
            pieces.append(part.rows.take(positions, names))
    return pa.concat_tables(pieces)


def are_among(rows: pa.Table, wanted: pa.Table) -> Mask:
    """Which rows are among the wanted ones, in the columns that these have."""
    names = wanted.column_names
    held = rows.select(names)
    copy = FileCopy(held)
    order = copy.order()
    which, positions, _ = order.find(row_hashes(wanted), len(order.places))
    same = rows_match(copy.take(positions), wanted.take(pa.array(which)))
    found = np.zeros(rows.num_rows, np.bool_)
    found[positions[same]] = True
    return found


def _order(version: TableVersion) -> list[int]:
    """The parts of a table as they are searched: 0 is the catalog, then come the files."""
    files = version.files
    newest = sorted(range(len(files)), key=lambda number: -files[number].begin)
    return [0, *(number + 1 for number in newest)]


def _part(storage: Storage, index: RowIndex, version: TableVersion, number: int) -> _Part:
    if number == 0:
        return _Part(FileCopy(version.inlined.rows), np.zeros(0, np.int64))
    file = version.files[number - 1]
    gone = gone_at(storage, file, version.snapshot.id)
    return _Part(index.in_version(storage, version, file), gone)


def gone_at(storage: Storage, file: DataFile, at: int) -> Positions:
    """The positions in a file that are not visible at a snapshot, in ascending order."""
    if file.partial_max is not None and file.partial_max > at:
        return others(live(file_history(storage, file, upto=at), at))
    positions, snapshots = read_deletes(storage, file, upto=at)
    then = snapshots <= at
    positions = positions if then.all() else positions[then]
    return positions if bool(np.all(np.diff(positions) > 0)) else np.unique(positions)


def _search(claims: _Claims, number: int, part: _Part, hashes: Hashes) -> None:
    order = part.rows.order()
    for each_max in (CANDIDATES_MAX + int(claims.left.max()), len(order.places)):
        is_open = np.flatnonzero(claims.left)
        which, positions, are_more = order.find(hashes[is_open], each_max)
        taken = claims.taken.get(number, np.zeros(0, np.int64))
        here = part.are_there(positions, taken)
        which, positions = is_open[which[here]], positions[here]
        if len(which):
            found = part.rows.take(positions)
            same = rows_match(found, claims.wanted.take(pa.array(which)))
            claims.claim(number, which[same], positions[same])
        if not are_more:
            return


def _claim_whole_keys(claims: _Claims, parts: dict[int, _Part], exact: list[str]) -> list[pa.Table]:
    """Take rows whose floats are only close, where all rows leave that share their other columns.

    Anything else could take the wrong row, so it stays missing. The answer is the rows taken.
    """
    wanted = np.flatnonzero(claims.left)
    keys, first, key_of = _keys(claims.wanted.take(pa.array(wanted)).select(exact))
    asked = np.bincount(key_of, claims.left[wanted], len(first)).astype(np.int64)
    held = [_of_keys(claims, number, part, exact, keys, wanted[first])
            for number, part in parts.items()]  # fmt: skip
    counts = sum((np.bincount(found.keys, minlength=len(first)) for found in held),
                 start=np.zeros(len(first), np.int64))  # fmt: skip
    whole = counts == asked
    for found in held:
        whole &= _all_close(found, claims.wanted, wanted, key_of)
    taken = []
    for number, found in zip(parts, held, strict=True):
        before, kept = claims.taken.get(number, np.zeros(0, np.int64)), whole[found.keys]
        claims.taken[number] = np.concatenate([before, found.positions[kept]])
        taken.append(found.rows.filter(pa.array(kept)))
    claims.left[wanted[whole[key_of]]] = 0
    return taken


class _OfKeys(NamedTuple):
    """Rows of one part of the table that share their exact columns with wanted rows."""

    rows: pa.Table
    positions: Positions
    keys: Positions


def _keys(rows: pa.Table) -> tuple[Hashes, Positions, Positions]:
    """The different hashes of rows, the first row of each, and for each row which it has."""
    hashes = row_hashes(rows) if rows.num_columns else np.zeros(rows.num_rows, np.uint64)
    keys, first, key_of = np.unique(hashes, return_index=True, return_inverse=True)
    return keys, first.astype(np.int64), key_of.astype(np.int64)


def _of_keys(
    claims: _Claims, number: int, part: _Part, exact: list[str], keys: Hashes, first: Positions
) -> _OfKeys:
    if exact:
        order = part.rows.order(exact)
        which, positions, _ = order.find(keys, len(order.places))
    else:  # there are only floats: every row may be meant
        positions = np.arange(part.rows.rows.num_rows, dtype=np.int64)
        which = np.zeros(len(positions), np.int64)
    taken = claims.taken.get(number, np.zeros(0, np.int64))
    here = part.are_there(positions, taken)
    which, positions = which[here], positions[here]
    rows = part.rows.take(positions)
    asked = claims.wanted.take(pa.array(first[which]))
    same = rows_match(rows.select(exact), asked.select(exact))
    return _OfKeys(rows.filter(pa.array(same)), positions[same], which[same])


def _all_close(
    found: _OfKeys, rows: pa.Table, wanted: Positions, key_of: Positions
) -> npt.NDArray[np.bool_]:
    """Of which keys each row found is close to a wanted one."""
    size = int(key_of.max()) + 1
    order = np.argsort(key_of, kind="stable")
    counts = np.bincount(key_of, minlength=size)
    begins = np.cumsum(counts) - counts
    each = counts[found.keys]
    place = np.repeat(np.arange(len(found.keys)), each)
    within = np.arange(len(place)) - np.repeat(np.cumsum(each) - each, each)
    other = wanted[order[np.repeat(begins[found.keys], each) + within]]
    pairs = zip(found.rows.columns, rows.columns, strict=True)
    near = np.ones(len(place), np.bool_)
    for left, right in pairs:
        if pa.types.is_floating(left.type):
            near &= _close(left.take(pa.array(place)), right.take(pa.array(other)))
    lonely = np.bincount(place[near], minlength=len(found.keys)) == 0
    close = np.ones(size, np.bool_)
    close[found.keys[lonely]] = False
    return close


def rows_match(one: pa.Table, other: pa.Table) -> Mask:
    """Which rows of two tables of one schema are equal, pair by pair."""
    same = np.ones(one.num_rows, np.bool_)
    for left, right in zip(one.columns, other.columns, strict=True):
        same &= _equal(left, right)
    return same


def _equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Mask:
    kind = left.type
    if isinstance(kind, pa.BaseExtensionType):
        left, right = (column.cast(kind.storage_type) for column in (left, right))
    if pa.types.is_nested(kind) or pa.types.is_interval(kind):
        pairs = zip(with_sorted_maps(left), with_sorted_maps(right), strict=True)
        return np.fromiter((_same(a, b) for a, b in pairs), np.bool_, len(left))
    found = pc.fill_null(pc.equal(left, right), False)
    found = pc.or_(found, pc.and_(left.is_null(), right.is_null()))
    if pa.types.is_floating(kind):
        nans = pc.and_(pc.is_nan(left), pc.is_nan(right))
        found = pc.or_(found, pc.fill_null(nans, False))
    return _mask(found)


def _same(one: Any, other: Any) -> bool:
    """Whether two nested values are equal; NaN equals NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)


def _close(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Mask:
    pairs = [column.cast(pa.float64()) for column in (left, right)]
    a, b = (pc.fill_null(column, 0.0).to_numpy() for column in pairs)
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= CLOSE * np.maximum(1.0, np.maximum(np.abs(a), np.abs(b)))
    both = _mask(pc.equal(left.is_null(), right.is_null()))
    close: Mask = (near & both) | _equal(left, right)
    return close


def _mask(found: pa.ChunkedArray) -> Mask:
    made: Mask = found.to_numpy().astype(np.bool_)
    return made


def _places(
    version: TableVersion, claims: _Claims, parts: dict[int, _Part]
) -> tuple[tuple[FileRows, ...], tuple[int, ...]]:
    """What was taken, of files by position and of the catalog by row id."""
    inlined: tuple[int, ...] = ()
    deletes = []
    for number, positions in claims.taken.items():
        if number == 0:
            inlined = tuple(version.inlined.row_ids[place] for place in np.sort(positions))
        elif len(positions):
            file = version.files[number - 1]
            is_whole = len(positions) + len(parts[number].gone) == file.record_count
            deletes.append(FileRows(file, None if is_whole else np.sort(positions)))
    return tuple(deletes), inlined
