"""Weighted rows: a table with a column of weights, negative for rows that go.

They are consolidated when no row stands there twice and no weight is zero.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.lake.row_codes import row_codes
from penstock.lake.row_hash import row_hashes
from penstock.tables.delta.rules import WEIGHT

_KIND: Final = pa.int64()

Weights = npt.NDArray[np.int64]


def weighted(rows: pa.Table, weight: int) -> pa.Table:
    """Rows that all have one weight."""
    return rows.append_column(WEIGHT, pa.array(np.full(rows.num_rows, weight, np.int64)))


def weights_of(rows: pa.Table) -> Weights:
    """The weights of weighted rows."""
    found: Weights = rows.column(WEIGHT).to_numpy().astype(np.int64)
    return found


def unweighted(rows: pa.Table) -> pa.Table:
    """Weighted rows without their weights."""
    return rows.drop_columns([WEIGHT])


def consolidated(rows: pa.Table) -> pa.Table:
    """The same change with each row once, and without rows whose weights add up to nothing."""
    if not rows.num_rows:
        return rows
    repeats = _repeats(unweighted(rows))
    if not repeats.any():
        weights = weights_of(rows)
        return rows if weights.all() else rows.filter(pa.array(weights != 0))
    alone = rows.filter(pa.array(~repeats & (weights_of(rows) != 0)))
    return pa.concat_tables([alone, _added_up(rows.filter(pa.array(repeats)))]).combine_chunks()


def _repeats(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows may be there more than once, by their hashes: rows that are equal have one."""
    hashes = row_hashes(rows)
    order = np.argsort(hashes)
    same = hashes[order[1:]] == hashes[order[:-1]]
    made = np.zeros(len(hashes), np.bool_)
    made[order[1:][same]] = True
    made[order[:-1][same]] = True
    return made


def _added_up(rows: pa.Table) -> pa.Table:
    plain = unweighted(rows)
    codes, _ = row_codes(plain, plain.slice(0, 0))
    _, first, places = np.unique(codes, return_index=True, return_inverse=True)
    sums = np.zeros(len(first), np.int64)
    np.add.at(sums, places, weights_of(rows))
    kept = sums != 0
    made = plain.take(pa.array(first[kept]))
    return made.append_column(WEIGHT, pa.array(sums[kept], _KIND))


def repeated(rows: pa.Table, counts: Weights) -> pa.Table:
    """Each row so many times."""
    if (counts == 1).all():
        return rows
    return rows.take(pa.array(np.repeat(np.arange(rows.num_rows), counts)))
