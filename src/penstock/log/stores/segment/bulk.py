"""Bulk handling of records: the same result as one by one, at a tenth of the cost. No IO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.log.stores.segment import format as fmt
from penstock.log.stores.segment.index import U64

RECORDS: Final = np.dtype(
    [("index", "<u8"), ("term", "<u8"), ("meta", "<u8"), ("partition", "<u4"), ("kind", "<u4")]
)
Rows = npt.NDArray[np.void]


class Run(NamedTuple):
    """Records of one partition and kind with consecutive indexes; only entries form longer runs."""

    partition: int
    kind: int
    first: int
    term: int
    positions: U64
    metas: U64
    terms: U64


def rows_of(tables: list[bytes] | list[memoryview]) -> Rows:
    """The records of several blocks, in order."""
    return np.frombuffer(b"".join(tables), RECORDS)


def positions_of(rows: Rows, starts: U64, counts: npt.NDArray[np.int64]) -> U64:
    """The position of each payload: back to back from the start of its block."""
    lengths = rows["meta"] & np.uint64(fmt.LENGTH_MASK)
    lengths[rows["kind"] > fmt.COPY] = 0
    before = np.cumsum(lengths, dtype=np.uint64) - lengths
    firsts = np.cumsum(counts) - counts
    positions: U64 = before + np.repeat(starts - before[firsts], counts)
    return positions


def runs(rows: Rows, positions: U64) -> Iterator[Run]:
    """Records by partition, in order within each, as runs that can be applied in one go."""
    order = _by_partition(rows["partition"])
    rows, positions = rows.take(order), positions.take(order)
    partition, kind, index = rows["partition"], rows["kind"], rows["index"]
    term, meta = rows["term"], rows["meta"]
    joined = (partition[1:] == partition[:-1]) & (kind[1:] == kind[:-1])
    joined &= (index[1:] == index[:-1] + np.uint64(1)) & (kind[1:] <= fmt.COPY)
    cuts = [0, *(np.flatnonzero(~joined) + 1).tolist(), len(rows)]
    starts = cuts[:-1]
    heads = zip(
        cuts[:-1],
        cuts[1:],
        partition[starts].tolist(),
        kind[starts].tolist(),
        index[starts].tolist(),
        term[starts].tolist(),
        strict=True,
    )
    for lo, hi, number, what, first, its_term in heads:
        yield Run(number, what, first, its_term, positions[lo:hi], meta[lo:hi], term[lo:hi])


def _by_partition(partition: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """A stable order by partition; 16-bit numbers use radix sort, many times faster."""
    if partition.max() < 1 << 16:
        return np.argsort(partition.astype(np.uint16), kind="stable")
    return np.argsort(partition, kind="stable")
