"""Columns: DuckLake's types, Arrow's, and the ids between them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.kernel.errors import Rejected
from penstock.lake.columns import (
    FIELD_ID,
    Column,
    arrow_schema,
    arrow_type,
    columns_of,
    flat,
    leaves,
    plain_schema,
)
from penstock.lake.ddl import inlined_table

NESTED = pa.schema(
    [
        ("a", pa.int32()),
        ("s", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.float64()))])),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("d", pa.decimal128(10, 2)),
    ]
)


def test_ids_are_given_depth_first_as_duckdb_does() -> None:
    found = [(c.id, c.name, c.type, parent) for c, parent in flat(columns_of(NESTED))]
    assert found == [
        (1, "a", "int32", None), (2, "s", "struct", None), (3, "x", "int32", 2),
        (4, "y", "list", 2), (5, "element", "float64", 4), (6, "m", "map", None),
        (7, "key", "varchar", 6), (8, "value", "int32", 6), (9, "d", "decimal(10,2)", None),
    ]  # fmt: skip
    assert [c.id for c in leaves(columns_of(NESTED))] == [1, 3, 5, 7, 8, 9]


def test_the_schema_of_a_file_carries_an_id_at_every_depth() -> None:
    schema = arrow_schema(columns_of(NESTED))
    assert schema.field("a").metadata == {FIELD_ID: b"1"}
    assert schema.field("s").type.field("y").type.value_field.metadata == {FIELD_ID: b"5"}
    assert schema.field("m").type.item_field.metadata == {FIELD_ID: b"8"}


def test_rows_are_handed_out_without_ids() -> None:
    inner = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.field("element", pa.float64())))])
    plain = NESTED.set(1, pa.field("s", inner))
    assert plain_schema(columns_of(NESTED)).equals(plain, check_metadata=True)


@pytest.mark.parametrize(
    "kind",
    [pa.bool_(), pa.int8(), pa.uint64(), pa.float32(), pa.string(), pa.binary(), pa.date32(),
     pa.time64("us"), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("s"),
     pa.timestamp("ms"), pa.timestamp("ns"), pa.decimal128(38, 10), pa.uuid(),
     pa.month_day_nano_interval()],
)  # fmt: skip
def test_a_type_comes_back(kind: pa.DataType) -> None:
    (column,) = columns_of(pa.schema([("c", kind)]))
    assert arrow_type(column) == kind


@pytest.mark.parametrize(
    ("kind", "name"),
    [(pa.large_string(), "varchar"), (pa.timestamp("ns", "Europe/Berlin"), "timestamptz"),
     (pa.dictionary(pa.int8(), pa.string()), "varchar"), (pa.time32("s"), "time")],
)  # fmt: skip
def test_types_with_a_close_relative_take_its_name(kind: pa.DataType, name: str) -> None:
    assert columns_of(pa.schema([("c", kind)]))[0].type == name


@pytest.mark.parametrize(
    "schema",
    [pa.schema([]), pa.schema([("a", pa.int8()), ("A", pa.int8())]), pa.schema([("", pa.int8())]),
     pa.schema([("n", pa.null())]), pa.schema([("d", pa.decimal256(50, 1))])],
)  # fmt: skip
def test_a_schema_that_ducklake_cannot_hold_is_refused(schema: pa.Schema) -> None:
    with pytest.raises(Rejected, match=r"needs columns of different names|no type for"):
        columns_of(schema)


def test_a_type_that_arrow_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(Rejected, match=r"'v'.*variant"):
        arrow_type(Column(1, "v", "variant"))


@pytest.mark.parametrize("name", ["row_id", "begin_snapshot", "end_snapshot", "ROW_ID"])
def test_names_that_rows_in_the_catalog_have_already_are_refused(name: str) -> None:
    with pytest.raises(Rejected, match=name):
        columns_of(pa.schema([("a", pa.int64()), (name, pa.int64())]))
    columns_of(pa.schema([("a", pa.struct([(name, pa.int64())]))]))


def test_names_of_postgres_own_columns_are_refused_there_only() -> None:
    columns = columns_of(pa.schema([("xmin", pa.float64()), ("XMAX", pa.float64())]))
    assert "xmin" in inlined_table("sqlite", "t", columns)
    with pytest.raises(Rejected, match="xmin"):
        inlined_table("postgres", "t", columns)
    assert "XMAX" in inlined_table("postgres", "t", columns[1:])
