"""Each row as one number, exactly: equal rows of two tables have equal numbers, others differ.

NULL equals NULL, floats are compared by their bits, and a map's entries have no order.
Arrays only, no IO.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.lake.row_hash import with_sorted_maps

Codes = npt.NDArray[np.int64]
Weights = npt.NDArray[np.int64]
_ROOM: Final = np.iinfo(np.int64).max // 2


def row_codes(one: pa.Table, other: pa.Table) -> tuple[Codes, Codes]:
    """A number for each row of two tables of one schema; equal rows have equal numbers."""
    count = one.num_rows + other.num_rows
    codes, size = np.zeros(count, np.int64), 1
    for left, right in zip(one.columns, other.columns, strict=True):
        found, kinds = _column_codes(pa.chunked_array([*left.chunks, *right.chunks], left.type))
        if kinds > _ROOM // size:
            values, codes = np.unique(codes, return_inverse=True)
            size = len(values)
        codes = codes * kinds + found
        size *= kinds
    return codes[: one.num_rows], codes[one.num_rows :]


def net(rows: pa.Table, weights: Weights) -> tuple[pa.Table, Weights]:
    """The same change with each row once, and without rows whose weights add up to nothing."""
    if not rows.num_rows:
        return rows, weights
    codes, _ = row_codes(rows, rows.slice(0, 0))
    _, first, places = np.unique(codes, return_index=True, return_inverse=True)
    sums = np.zeros(len(first), np.int64)
    np.add.at(sums, places, weights)
    kept = sums != 0
    return rows.take(pa.array(first[kept])), sums[kept]


def _column_codes(column: pa.ChunkedArray) -> tuple[Codes, int]:
    """A number below some bound for each value."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):  # a UUID is its bytes
        kind = kind.storage_type
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], kind)
    if pa.types.is_floating(kind):  # by their bits: NaN is NaN
        bits = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[kind.bit_width]
        column = pa.chunked_array([chunk.view(bits) for chunk in column.chunks], bits)
    if pa.types.is_nested(kind) or pa.types.is_interval(kind) or pa.types.is_null(kind):
        known: dict[str, int] = {}
        texts = (repr(value) for value in with_sorted_maps(column))
        found = np.fromiter((known.setdefault(t, len(known)) for t in texts), np.int64)
        return found, max(len(known), 1)
    coded: Any = column.combine_chunks()
    coded = coded.dictionary_encode(null_encoding="encode")
    parts = coded.chunks if isinstance(coded, pa.ChunkedArray) else [coded]
    indices = [part.indices.to_numpy(zero_copy_only=False).astype(np.int64) for part in parts]
    sizes = [len(part.dictionary) for part in parts]
    return np.concatenate([np.zeros(0, np.int64), *indices]), max([1, *sizes])
