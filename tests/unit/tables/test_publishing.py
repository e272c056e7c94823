"""The records of a change: weights, pairs, parts that are the same whenever they are made."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from penstock.lake.columns import columns_of
from penstock.lake.model import SchemaInfo, TableInfo
from penstock.tables.changes import Lost, ResetNeeded, TableChange
from penstock.tables.publishing import PART_RECORDS, PublishedParts, WatchedChange, key_tag


def change(rows: pa.Table, weights: list[int]) -> TableChange:
    table = TableInfo(1, "u-1", SchemaInfo(0, "main", "/"), "t", "/t/", columns_of(rows.schema))
    return TableChange(table, 3, 7, rows, np.array(weights, np.int64))


def told(parts: PublishedParts) -> list[dict[str, Any]]:
    records = [record for number in range(parts.count) for record in parts.part(number)]
    return [msgspec.json.decode(record.data) for record in records]


def test_an_update_is_a_pair_under_one_key_and_a_weight_of_two_is_two_records() -> None:
    rows = pa.table({"n": [5, 1, 4, 9], "k": ["b", "a", "b", "c"]})
    parts = PublishedParts(
        "t", change(rows, [1, 2, -1, 1]), key=(1,), frontier={"topics.x": [1, 40]}
    )
    found = told(parts)
    assert [(data["weight"], data["row"]["k"], data["row"]["n"]) for data in found] == [
        (1, "a", 1), (1, "a", 1), (-1, "b", 4), (1, "b", 5), (1, "c", 9),
    ]  # fmt: skip
    assert found[2]["key"] == found[3]["key"] == {"k": "b"}
    assert {data["snapshot"] for data in found} == {7}
    assert found[0]["frontier"] == {"topics.x": [1, 40]}
    record = parts.part(0)[2]
    assert record.tag == '["b"]'
    assert record.meta == {"table": "t", "uuid": "u-1", "snapshot": 7, "part": 0, "parts": 1}


def test_parts_have_keys_of_their_own_and_a_reset_comes_first() -> None:
    rows = pa.table({"n": np.arange(2 * PART_RECORDS + 1)})
    reset = ResetNeeded(Lost.EXPIRED, "gone")
    parts = PublishedParts("t", change(rows, [1] * rows.num_rows), reset=reset)
    assert parts.count == 4
    assert [len(parts.part(n)) for n in range(4)] == [1, PART_RECORDS, PART_RECORDS, 1]
    assert told(parts)[0]["reason"] == "history_expired"
    assert len({parts.idempotency_key(n) for n in range(4)}) == 4
    again = PublishedParts("t", change(rows, [1] * rows.num_rows), reset=reset)
    assert [again.part(n) for n in range(4)] == [parts.part(n) for n in range(4)]


def test_rows_that_go_come_first_where_there_is_no_key() -> None:
    rows = pa.table({"n": [1, 2, 3]})
    found = WatchedChange.of(change(rows, [1, -1, 1]), None, None)
    assert [each["weight"] for each in found.changes] == [-1, 1, 1]
    assert "key" not in found.changes[0]
    one = WatchedChange.of(change(rows, [1, -1, 1]), (), None)
    assert one.changes[0]["key"] == {}


@pytest.mark.parametrize("key", [(5,), None])
def test_a_key_of_other_columns_is_none(key: tuple[int, ...] | None) -> None:
    parts = PublishedParts("t", change(pa.table({"n": [1]}), [1]), key=key)
    assert "key" not in told(parts)[0]


def test_values_are_those_of_the_rows_over_http() -> None:
    rows = pa.table(
        {
            "d": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
            "t": pa.array([1767322800_000_000_000], pa.timestamp("ns")),
            "l": pa.array([[1, None]]),
        }
    )
    (data,) = told(PublishedParts("t", change(rows, [-1]), key=(2,)))
    assert data["row"] == {"d": "1.50", "t": "2026-01-02T03:00:00", "l": [1, None]}


def test_a_long_key_has_no_tag() -> None:
    assert key_tag(["x" * 255]) is None
