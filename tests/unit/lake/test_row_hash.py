"""Numbers of rows: equal for equal rows, whatever chunk or file they lie in."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.locate import rows_match
from penstock.lake.row_codes import row_codes
from penstock.lake.row_hash import row_hashes

VALUES: dict[str, tuple[pa.DataType, list[object]]] = {
    "integer": (pa.int64(), [0, 1, -1, 2**63 - 1, None]),
    "small": (pa.int8(), [0, 1, -1, None]),
    "unsigned": (pa.uint64(), [0, 2**64 - 1, None]),
    "bool": (pa.bool_(), [True, False, None]),
    "text": (pa.string(), ["", "a", "b", "ab", "ba", "a\0", "\0a", "\0", "é", None]),
    "blob": (pa.binary(), [b"", b"\xff", b"\xff\0", None]),
    "decimal": (pa.decimal128(38, 2), [Decimal("0"), Decimal("-1.5"), Decimal(10) ** 30, None]),
    "date": (pa.date32(), [date(1970, 1, 1), date(2024, 1, 1), None]),
    "time": (pa.time64("us"), [0, 1, None]),
    "timestamp": (pa.timestamp("us", "UTC"), [0, 1, -1, None]),
    "list": (pa.list_(pa.int64()), [[], [1], [1, 2], [2, 1], [None], None]),
    "struct": (pa.struct([("a", pa.int64())]), [{"a": 1}, {"a": None}, {"a": 2}, None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("a", 2)], None]),
    "uuid": (pa.uuid(), [UUID(int=0).bytes, UUID(int=1).bytes, UUID(int=1 << 64).bytes, None]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_different_values_have_different_numbers(kind: str) -> None:
    type_, values = VALUES[kind]
    column = pa.array(values, getattr(type_, "storage_type", type_))
    if isinstance(type_, pa.BaseExtensionType):
        column = pa.ExtensionArray.from_storage(type_, column)
    twice = pa.table({"x": pa.chunked_array([column, column])})
    found = row_hashes(twice)
    assert len(set(found.tolist())) == len(values)
    assert (found[: len(values)] == found[len(values) :]).all()
    assert (row_hashes(twice.slice(1, 2)) == found[1:3]).all(), "as a slice"


def test_floats_are_equal_as_in_a_group_by() -> None:
    other_nan = np.frombuffer(np.uint64(0x7FF8000000000001).tobytes(), np.float64)[0]
    values = pa.array([0.0, -0.0, float("nan"), other_nan, None, 1.0], from_pandas=False)
    found = row_hashes(pa.table({"x": values})).tolist()
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert len(set(found)) == 4
    nested = row_hashes(pa.table({"x": [[0.0], [-0.0], [1.0]]})).tolist()
    assert nested[0] == nested[1] != nested[2]


@pytest.mark.parametrize("wrapped", [lambda v: v, lambda v: [v], lambda v: {"m": v}])
def test_the_entries_of_a_map_have_no_order(wrapped) -> None:  # type: ignore[no-untyped-def]
    """Spark sorts them where it groups, so a row may come back with others first."""
    kind = pa.map_(pa.string(), pa.int64())
    whole = {dict: lambda k: pa.struct([("m", k)]), list: pa.list_}
    maps = [[("b", 1), ("a", 2)], [("a", 2), ("b", 1)], [("a", 1), ("b", 2)]]
    one, other, third = map(wrapped, maps)
    if not isinstance(one[0] if isinstance(one, list) else one, tuple):
        kind = whole[type(one)](kind)
    rows = pa.table({"m": pa.array([one, other, third], kind)})
    found = row_hashes(rows)
    assert found[0] == found[1] != found[2]
    codes, _ = row_codes(rows, rows.slice(0, 0))
    assert codes[0] == codes[1] != codes[2]
    assert rows_match(rows.slice(0, 1), rows.slice(1, 1)).all()
    assert not rows_match(rows.slice(0, 1), rows.slice(2, 1)).any()


def test_the_column_counts() -> None:
    found = row_hashes(pa.table({"a": [1, 2], "b": [2, 1]}))
    assert found[0] != found[1]


@given(st.lists(st.text(max_size=30) | st.none(), max_size=50), st.integers(0, 10))
def test_a_text_has_its_number_wherever_it_stands(texts: list[str | None], at: int) -> None:
    rows = pa.table({"x": pa.array(texts, pa.string())})
    alone = [int(row_hashes(rows.slice(n, 1))[0]) for n in range(len(texts))]
    assert row_hashes(rows).tolist() == alone
    assert row_hashes(rows.slice(at)).tolist() == alone[at:]


def test_texts_longer_than_a_portion() -> None:
    long = "x" * 300_000
    rows = pa.table({"x": ["a", long, long + "y", "b", long]})
    found = row_hashes(rows).tolist()
    assert found[1] == found[4]
    assert len(set(found)) == 4
