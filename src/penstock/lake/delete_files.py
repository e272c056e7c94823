"""Delete files: which positions of a data file are deleted, and by which snapshots.

A delete file never changes, and every refresh asks for those of the tables that it reads and of the
one that it changes: what was read or written last is kept in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from penstock.lake.model import DeleteFile
from penstock.lake.selection import Positions
from penstock.lake.storage import Storage

SNAPSHOTS: Final = "_ducklake_internal_snapshot_id"
"""The column of snapshots, where not all rows were deleted by one."""
KEPT_BYTES_MAX: Final = 64 << 20


class Deleted(NamedTuple):
    """Positions and the snapshot that deleted each; None where the catalog names the only one."""

    positions: Positions
    snapshots: Positions | None

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return self.positions.nbytes + (0 if self.snapshots is None else self.snapshots.nbytes)


class _Kept:
    """The contents of delete files by their paths, those used last. For any thread."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._found: OrderedDict[tuple[str, str], Deleted] = OrderedDict()
        self._lock = Lock()

    def get(self, key: tuple[str, str]) -> Deleted | None:
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
            return found

    def keep(self, key: tuple[str, str], deleted: Deleted) -> None:
        for array in deleted:
            if array is not None:
                array.flags.writeable = False
        with self._lock:
            before = self._found.pop(key, None)
            self._bytes -= 0 if before is None else before.size_bytes
            self._found[key] = deleted
            self._bytes += deleted.size_bytes
            while self._bytes > self._bytes_max:
                _, oldest = self._found.popitem(last=False)
                self._bytes -= oldest.size_bytes


_KEPT: Final = _Kept(KEPT_BYTES_MAX)


def read_delete_file(storage: Storage, delete: DeleteFile) -> tuple[Positions, Positions]:
    """The positions in a delete file and the snapshot that deleted each. Not to be written to."""
    key = (storage.root, delete.path)
    found = _KEPT.get(key)
    if found is None:
        found = _read(storage, delete.path)
        _KEPT.keep(key, found)
    if found.snapshots is not None:
        return found.positions, found.snapshots
    return found.positions, np.full(len(found.positions), delete.begin, np.int64)


def remember_deletes(
    storage: Storage, path: str, positions: Positions, snapshots: Positions | None
) -> None:
    """Keep what was written to a delete file: the next refresh asks for it."""
    _KEPT.keep((storage.root, path), Deleted(positions, snapshots))


def _read(storage: Storage, path: str) -> Deleted:
    with storage.open_input(path) as source:
        file = pq.ParquetFile(source)
        names = [name for name in ("pos", SNAPSHOTS) if name in file.schema_arrow.names]
        table = file.read(columns=names, use_threads=False)
    columns = [np.array(table.column(name).to_numpy(), np.int64) for name in names]
    return Deleted(columns[0], columns[1] if len(columns) > 1 else None)
