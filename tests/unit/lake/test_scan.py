"""Rows of a file by position: always the same rows, and no more is read than has to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from penstock.lake import parquet as lake_parquet
from penstock.lake.columns import columns_of
from penstock.lake.model import DataFile
from penstock.lake.parquet import write_file
from penstock.lake.scan import read_rows
from penstock.lake.selection import FileRows
from penstock.lake.storage import Storage

ROWS = 200_000
COLUMNS = columns_of(pa.schema([("n", pa.int64()), ("text", pa.string())]))


class Counted(Storage):
    """Storage that is not memory-mapped, and counts the bytes that are read."""

    def __init__(self, root: str) -> None:
        super().__init__(root, fs.LocalFileSystem())
        self.read_bytes = 0

    def open_input(self, path: str) -> Any:
        return pa.PythonFile(_Counting(path, self), mode="r")


class _Counting:
    def __init__(self, path: str, storage: Counted) -> None:
        self._file = Path(path).open("rb")  # noqa: SIM115 - closed by whoever reads
        self._storage = storage

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(size)
        self._storage.read_bytes += len(found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return kept(tmp_path_factory.mktemp("scan"))


def kept(directory: Path) -> tuple[Counted, DataFile, pa.Table]:
    """A file of rows that cannot be guessed, in storage that counts."""
    root = str(directory)
    numbers = np.random.default_rng(7).permutation(ROWS)
    rows = pa.table({"n": numbers, "text": [f"{n:x}" for n in numbers]})
    made = write_file(Storage(root), root, COLUMNS, rows)
    file = DataFile(1, made.path, ROWS, made.size_bytes, made.footer_bytes, begin=1)
    return Counted(root), file, rows


def read(storage, file, positions, columns=COLUMNS):
    storage.read_bytes = 0
    return read_rows(storage, FileRows(file, positions), columns, {})


@given(
    first=st.integers(0, ROWS - 1), span=st.integers(1, ROWS), share=st.floats(0.001, 1),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_rows_at_positions_are_those_of_the_whole_file(stored, first, span, share, seed):
    storage, file, rows = stored
    wanted = np.arange(first, min(first + span, ROWS))
    chosen = np.random.default_rng(seed).random(len(wanted)) < share
    chosen[0] = True
    positions = wanted[chosen]
    assert read(storage, file, positions).equals(rows.take(pa.array(positions)))


def test_positions_in_any_order_keep_their_order(stored):
    storage, file, rows = stored
    positions = np.array([900, 3, 500])
    assert read(storage, file, positions).equals(rows.take(pa.array(positions)))


def test_a_small_page_reads_a_small_part_of_a_row_group(tmp_path, monkeypatch):
    monkeypatch.setitem(lake_parquet._OPTIONS, "use_dictionary", False)
    monkeypatch.setitem(lake_parquet._OPTIONS, "data_page_size", 1 << 14)
    storage, file, rows = kept(tmp_path)
    positions = np.arange(100, 200)
    assert read(storage, file, positions).equals(rows.take(pa.array(positions)))
    assert storage.read_bytes < file.size_bytes / 5


def test_a_page_reads_only_the_row_groups_and_columns_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(lake_parquet._OPTIONS, "row_group_size", 10_000)
    storage, file, rows = kept(tmp_path)
    positions = np.arange(189_950, 190_050)  # across the border of two groups
    assert read(storage, file, positions).equals(rows.take(pa.array(positions)))
    assert storage.read_bytes < file.size_bytes / 3
    both = storage.read_bytes
    assert read(storage, file, positions, COLUMNS[:1]).equals(
        rows.take(pa.array(positions)).select(["n"])
    )
    assert storage.read_bytes < both
