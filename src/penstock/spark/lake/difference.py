"""What a new result has that a table has not, and the other way round: as few rows as can be.

Rows are compared as multisets. Each row gets one number, equal for equal rows, so that the rest is
arithmetic on arrays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.lake.columns import Column
from penstock.lake.model import TableVersion
from penstock.lake.row_codes import Codes, row_codes
from penstock.lake.scan import file_history, read_rows
from penstock.lake.selection import FileRows, live
from penstock.lake.storage import Storage


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows to take from a table, by where they lie, and rows to add to it."""

    deletes: tuple[FileRows, ...]
    inlined_deletes: tuple[int, ...]
    added: pa.Table
    gone: pa.Table

    @property
    def size(self) -> int:
        """How many rows come or go."""
        return int(self.gone.num_rows + self.added.num_rows)


class RecentFiles:
    """The rows of small files that were read or written here lately.

    A file never changes, so what was read of it once is right for as long as it is there. For one
    thread.
    """

    def __init__(self, bytes_max: int = 32 << 20, file_bytes_max: int = 1 << 20) -> None:
        self._bytes_max, self._file_bytes_max = bytes_max, file_bytes_max
        self._held: OrderedDict[tuple[str, tuple[Column, ...]], pa.Table] = OrderedDict()
        self._bytes = 0

    def read(self, storage: Storage, version: TableVersion, rows: FileRows) -> pa.Table:
        """Some rows of a file, in the columns of a version."""
        columns = version.table.columns
        if rows.file.size_bytes > self._file_bytes_max:
            return read_rows(storage, rows, columns, version.mappings)
        whole = self._held.get((rows.file.path, columns))
        if whole is None:
            whole = read_rows(storage, FileRows(rows.file), columns, version.mappings)
            self.put(rows.file.path, columns, whole)
        else:
            self._held.move_to_end((rows.file.path, columns))
        return whole if rows.positions is None else whole.take(pa.array(rows.positions))

    def put(self, path: str, columns: tuple[Column, ...], whole: pa.Table) -> None:
        """Remember all rows of a file; what was used longest ago has to make room."""
        key = (path, columns)
        if key in self._held or whole.nbytes > self._file_bytes_max:
            return
        self._held[key] = whole
        self._bytes += whole.nbytes
        while self._bytes > self._bytes_max:
            _, gone = self._held.popitem(last=False)
            self._bytes -= gone.nbytes


def difference(
    storage: Storage, current: TableVersion, rows: pa.Table, recent: RecentFiles | None = None
) -> Difference:
    """What makes a table hold just these rows, which have its columns."""
    known = recent or RecentFiles()
    held = [(entry, _positions(entry), known.read(storage, current, entry))
            for entry in _live(storage, current)]  # fmt: skip
    before = pa.concat_tables([current.inlined.rows, *(part for _, _, part in held)])
    wanted = rows.cast(before.schema)
    gone, added = unmatched(*row_codes(before, wanted))
    at = current.inlined.rows.num_rows
    inlined = tuple(current.inlined.row_ids[place] for place in np.flatnonzero(gone[:at]))
    deletes = []
    for entry, positions, part in held:
        lost = gone[at : at + part.num_rows]
        at += part.num_rows
        if lost.any():
            deletes.append(FileRows(entry.file, None if lost.all() else positions[lost]))
    return Difference(
        tuple(deletes),
        inlined,
        rows.take(pa.array(np.flatnonzero(added))),
        before.take(pa.array(np.flatnonzero(gone))),
    )


def unmatched(one: Codes, other: Codes) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which rows of either have no partner in the other; each row is partner of one at most."""
    values, dense = np.unique(np.concatenate([one, other]), return_inverse=True)
    left, right = dense[: len(one)], dense[len(one) :]
    excess = np.bincount(left, minlength=len(values)) - np.bincount(right, minlength=len(values))
    return _first(left, excess), _first(right, -excess)


def _first(codes: Codes, counts: Codes) -> npt.NDArray[np.bool_]:
    """Of each code, the first so many rows."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    chosen = np.zeros(len(codes), np.bool_)
    chosen[order] = np.arange(len(codes)) - starts < counts[ordered]
    return chosen


def _live(storage: Storage, version: TableVersion) -> Iterator[FileRows]:
    at = version.snapshot.id
    for file in version.files:
        yield live(file_history(storage, file, upto=at), at)


def _positions(rows: FileRows) -> Codes:
    if rows.positions is None:
        return np.arange(rows.file.record_count, dtype=np.int64)
    return rows.positions
