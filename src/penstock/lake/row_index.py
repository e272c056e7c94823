"""Local copies of data files in which rows are found without reading the file.

A data file never changes, so its rows are decoded once and memory-mapped from then on, with their
hashes sorted beside them where rows have to be found by value: a thousand rows of a million take a
fraction of a millisecond where reading the file takes a hundred. It is a cache: it may be deleted
at any time, and a copy that was made before the machine last started is not used, because it may
not have reached the disk whole.
"""

from __future__ import annotations

import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.lake.columns import Column
from penstock.lake.model import DataFile, TableVersion
from penstock.lake.row_hash import HASH_VERSION, Hashes, row_hashes
from penstock.lake.scan import Mappings, read_rows
from penstock.lake.selection import FileRows, Positions
from penstock.lake.storage import Storage

BATCH_ROWS: Final = 65_536
BYTES_MAX: Final = 4 << 30
"""How much local disk the copies may take; those that were used longest ago have to go."""

_OPEN_MAX: Final = 512
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_RUN: Final = uuid4().hex
_FLOATS: Final = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The places of rows in the order of their hashes."""

    hashes: Hashes
    places: npt.NDArray[np.uint32]

    def find(self, wanted: Hashes, each_max: int) -> tuple[Positions, Positions, bool]:
        """Which of the wanted hashes are there, and where; and whether there were more places.

        At most so many places are given for each. Hashes in ascending order are found several times
        as fast: what is near was just looked at.
        """
        low, high = self._range(wanted)
        counts = np.minimum(high - low, each_max)
        which = np.repeat(np.arange(len(wanted), dtype=np.int64), counts)
        begins = np.cumsum(counts) - counts
        within = np.arange(len(which), dtype=np.int64) - np.repeat(begins, counts)
        places = self.places[np.repeat(low, counts) + within].astype(np.int64)
        return which, places, bool(np.any(high - low > each_max))

    def _range(self, wanted: Hashes) -> tuple[Positions, Positions]:
        """Where the places of each hash begin and end; most have none or one."""
        low = np.searchsorted(self.hashes, wanted, side="left")
        high = low.copy()
        if not len(self.hashes):
            return low, high
        last = len(self.hashes) - 1
        high += self.hashes[np.minimum(low, last)] == wanted
        more = (high > low) & (high <= last)
        more[more] = self.hashes[high[more]] == wanted[more]
        high[more] = np.searchsorted(self.hashes, wanted[more], side="right")
        return low, high


@dataclass(slots=True)
class FileCopy:
    """The rows of a file, decoded, and what was made of their hashes so far."""

    rows: pa.Table
    place: Path | None = None
    _orders: dict[str, RowOrder] = field(default_factory=dict)

    def take(self, positions: Positions, names: Sequence[str] | None = None) -> pa.Table:
        """The rows at some positions, in that order; with names only these columns."""
        rows = self.rows if names is None else self.rows.select(list(names))
        is_ordered = bool(np.all(positions[1:] >= positions[:-1]))
        order = None if is_ordered else np.argsort(positions, kind="stable")
        ordered = positions if order is None else positions[order]
        pieces, begin = [], 0
        for batch in rows.to_batches():
            low, high = np.searchsorted(ordered, (begin, begin + batch.num_rows))
            if low < high:
                pieces.append(batch.take(pa.array(ordered[low:high] - begin)))
            begin += batch.num_rows
        found = pa.Table.from_batches(pieces, schema=rows.schema)
        if order is None:
            return found.combine_chunks()
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return found.take(pa.array(back))

    def order(self, names: Sequence[str] | None = None) -> RowOrder:
        """Places by the hashes of whole rows, or of some columns."""
        kind = "whole" if names is None else blake2b(repr(list(names)).encode()).hexdigest()[:16]
        if kind not in self._orders:
            self._orders[kind] = self._loaded(kind) or self._ordered(kind, names)
        return self._orders[kind]

    def _ordered(self, kind: str, names: Sequence[str] | None) -> RowOrder:
        made = order_of(self.rows if names is None else self.rows.select(list(names)))
        if self.place is not None:
            with suppress(OSError):  # no room
                _publish(self.place / f"{kind}-hashes.npy", _saver(made.hashes))
                _publish(self.place / f"{kind}-places.npy", _saver(made.places))
        return made

    def _loaded(self, kind: str) -> RowOrder | None:
        if self.place is None:
            return None
        try:
            hashes = np.load(self.place / f"{kind}-hashes.npy", mmap_mode="r")
            places = np.load(self.place / f"{kind}-places.npy", mmap_mode="r")
        except (OSError, ValueError):
            return None
        return RowOrder(hashes, places)


class RowIndex:
    """Copies of data files below a directory. For one thread; processes may share a directory."""

    def __init__(self, directory: Path, *, bytes_max: int = BYTES_MAX) -> None:
        self._root = directory
        self._directory = directory / _boot()
        self._bytes_max = bytes_max
        self._open: OrderedDict[str, FileCopy] = OrderedDict()
        self._is_checked = False
        self.rows_copied = 0
        """How many rows were decoded here so far."""
        self._unseen_max = 0
        """How many bytes may be added before the directory is looked at again."""

    def copy_of(
        self,
        storage: Storage,
        file: DataFile,
        columns: tuple[Column, ...],
        mappings: Mappings,
    ) -> FileCopy:
        """The rows of a file in some columns, ready to be found."""
        name = _name(file, columns, mappings)
        found = self._open.get(name) or _opened(self._directory / name)
        if found is None:
            found = self._kept(name, read_rows(storage, FileRows(file), columns, mappings))
            self.rows_copied += file.record_count
        self._open[name] = found
        self._open.move_to_end(name)
        if len(self._open) > _OPEN_MAX:
            self._open.popitem(last=False)
        return found

    def in_version(self, storage: Storage, version: TableVersion, file: DataFile) -> FileCopy:
        """The rows of a file of a table."""
        return self.copy_of(storage, file, version.table.columns, version.mappings)

    def _kept(self, name: str, rows: pa.Table) -> FileCopy:
        whole = FileCopy(_batched(rows))
        if rows.nbytes > self._bytes_max:
            return whole
        self._forget_other_boots()
        place = self._directory / name
        try:
            place.mkdir(parents=True, exist_ok=True)
            _publish(place / "rows.arrow", lambda path: _write_rows(path, whole.rows))
        except OSError:  # no room
            shutil.rmtree(place, ignore_errors=True)
            return whole
        self._unseen_max -= rows.nbytes
        if self._unseen_max < 0:
            self._make_room(name)
        return _opened(place) or whole

    def _forget_other_boots(self) -> None:
        if self._is_checked:
            return
        self._is_checked = True
        with suppress(OSError):
            for other in self._root.iterdir():
                if other != self._directory and other.is_dir():
                    shutil.rmtree(other, ignore_errors=True)

    def _make_room(self, newest: str) -> None:
        """Delete the copies that were used longest ago until the rest fits.

        A look at all of them takes a tenth of a second where there are thousands, so it is not
        taken for every new one. Other processes add to the directory too: each may use an eighth
        of the room that it found.
        """
        held = []
        with suppress(OSError):
            for place in self._directory.iterdir():
                with suppress(OSError):
                    size = sum(part.stat().st_size for part in place.iterdir())
                    held.append((place.stat().st_mtime_ns, size, place))
        total = sum(size for _, size, _ in held)
        for _, size, place in sorted(held):
            if total <= self._bytes_max:
                break
            if place.name != newest:
                shutil.rmtree(place, ignore_errors=True)
                total -= size
        self._unseen_max = (self._bytes_max - total) // 8


def order_of(rows: pa.Table) -> RowOrder:
    """The order of rows by their hashes."""
    hashes = row_hashes(rows)
    order = np.argsort(hashes, kind="stable")
    return RowOrder(hashes[order], order.astype(np.uint32))


def exact_columns(columns: Iterable[Column]) -> list[str]:
    """The names of columns that hold no floats, at any depth."""
    return [column.name for column in columns if not _has_floats(column)]


def _has_floats(column: Column) -> bool:
    return column.type in _FLOATS or any(_has_floats(child) for child in column.children)


def _batched(rows: pa.Table) -> pa.Table:
    batches = rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
    return pa.Table.from_batches(batches, schema=rows.schema)


def _name(file: DataFile, columns: tuple[Column, ...], mappings: Mappings) -> str:
    names = None if file.mapping_id is None else mappings[file.mapping_id]
    text = repr((HASH_VERSION, file.path, file.size_bytes, columns, names))
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _opened(place: Path) -> FileCopy | None:
    try:
        with pa.memory_map(str(place / "rows.arrow")) as source:
            rows = pa.ipc.open_file(source).read_all()
        os.utime(place)
    except (OSError, pa.ArrowInvalid):
        return None
    return FileCopy(rows, place)


def _publish(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file that appears whole or not at all."""
    draft = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        write(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _saver(values: npt.NDArray[np.generic]) -> Callable[[Path], None]:
    def save(path: Path) -> None:
        with path.open("wb") as sink:
            np.save(sink, values)

    return save


def _write_rows(path: Path, rows: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)


def _boot() -> str:
    """The name of this start of the machine; of this process where that is not known."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return _RUN
