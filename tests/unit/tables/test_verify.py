"""Rows that differ only in the last digits of their floats are no difference."""

from __future__ import annotations

import pyarrow as pa

from penstock.tables.verify import without_close_rows

SCHEMA = pa.schema([("k", pa.int64()), ("x", pa.float64())])
NAN = float("nan")


def test_floats_may_differ_in_their_last_digits() -> None:
    missing = [(1, 0.3), (2, 1.0), (3, None), (4, NAN), (5, 1.0), (5, 2.0)]
    surplus = [(1, 0.1 + 0.2), (2, 1.1), (3, None), (4, NAN), (5, 2.0 + 1e-12), (5, 1.0)]
    assert without_close_rows(missing, surplus, SCHEMA) == ([(2, 1.0)], [(2, 1.1)])


def test_a_row_too_many_is_one_however_close() -> None:
    kept = without_close_rows([(1, 0.3)], [(1, 0.3 + 1e-12), (1, 0.3)], SCHEMA)
    assert [len(side) for side in kept] == [1, 2]


def test_without_floats_all_rows_differ() -> None:
    schema = pa.schema([("k", pa.int64())])
    assert without_close_rows([(1,)], [(2,)], schema) == ([(1,)], [(2,)])
