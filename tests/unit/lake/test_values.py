"""Values in DuckDB's spelling, read back."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from penstock.kernel.errors import Corrupt
from penstock.lake.columns import Column
from penstock.lake.values import read_default, read_value

LIST = Column(1, "l", "list", children=(Column(2, "element", "varchar"),))
STRUCT = Column(
    1, "s", "struct", children=(Column(2, "it's", "varchar"), Column(3, "n", "int32"), LIST)
)
MAP = Column(1, "m", "map", children=(Column(2, "key", "varchar"), Column(3, "value", "float64")))


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        ("boolean", 1, True),
        ("boolean", "false", False),
        ("uint64", "18446744073709551615", 2**64 - 1),
        ("float64", "-inf", float("-inf")),
        ("decimal(10,2)", "1.25", Decimal("1.25")),
        ("decimal(10,2)", Decimal("1.25"), Decimal("1.25")),
        ("date", "2024-02-29", date(2024, 2, 29)),
        ("time", "12:34:56.789", time(12, 34, 56, 789_000)),
        ("timetz", "12:34:56+02", time(10, 34, 56)),
        ("timetz", time(1, tzinfo=timezone(timedelta(hours=2))), time(23)),
        ("timestamp", "1969-12-31 23:59:59.5", -500_000),
        ("timestamptz", "2024-01-01 00:00:00+00", 1_704_067_200_000_000),
        ("timestamptz", datetime(2024, 1, 1, tzinfo=UTC), 1_704_067_200_000_000),
        ("timestamp_s", "1970-01-01 00:01:00", 60),
        ("timestamp_ns", "1970-01-01 00:00:00.123456789", 123_456_789),
        ("interval", "1 year 2 months 3 days 04:05:06.7",
         pa.MonthDayNano([14, 3, 14_706_700_000_000])),
        ("interval", "-00:00:01", pa.MonthDayNano([0, 0, -1_000_000_000])),
        ("varchar", b"bytes of postgres", "bytes of postgres"),
        ("blob", memoryview(b"\x00\xff"), b"\x00\xff"),
        ("blob", "a\\x00\\xFFb", b"a\x00\xffb"),
        ("uuid", "6f1b3f8e-0b1e-4a52-8f3a-1f1e3b0c9d10",
         UUID("6f1b3f8e-0b1e-4a52-8f3a-1f1e3b0c9d10").bytes),
        ("int32", None, None),
    ],
)  # fmt: skip
def test_a_scalar_is_read(kind: str, given: Any, found: Any) -> None:
    assert read_value(Column(1, "c", kind), given) == found


@pytest.mark.parametrize(
    ("column", "text", "found"),
    [
        (LIST, "[]", []),
        (LIST, "['a,b', 'c]', '{d', it, NULL, 'NULL', '']",
         ["a,b", "c]", "{d", "it", None, "NULL", ""]),
        (STRUCT, "{'it\\'s': a\\b, 'n': NULL, 'l': [x]}", {"it's": "a\\b", "n": None, "l": ["x"]}),
        (STRUCT, "{'it\\'s': 'a\\'b', 'n': -1, 'l': NULL}", {"it's": "a'b", "n": -1, "l": None}),
        (MAP, "{'a=b'=1.5, c=NULL}", [("a=b", 1.5), ("c", None)]),
        (MAP, "{}", []),
    ],
)  # fmt: skip
def test_nested_texts_are_read(column: Column, text: str, found: Any) -> None:
    assert read_value(column, text) == found


@pytest.mark.parametrize(
    ("column", "text"),
    [(LIST, "[a"), (LIST, "[a] b"), (STRUCT, "{'other': 1}"), (MAP, "{a}"), (MAP, "[a=1]")],
)
def test_a_nested_text_that_is_broken_is_corrupt(column: Column, text: str) -> None:
    with pytest.raises(Corrupt, match="is not the text of a"):
        read_value(column, text)


def test_a_scalar_that_is_no_text_of_its_type_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="'x' is not the text of a int32"):
        read_value(Column(1, "c", "int32"), "x")


def test_a_default_is_what_older_rows_have() -> None:
    assert read_default(Column(1, "c", "int32", initial_default="7")) == 7
    assert read_default(Column(1, "c", "int32")) is None
