"""A file's footer against the columns it was written for."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from penstock.kernel.errors import Corrupt
from penstock.lake.columns import FIELD_ID, arrow_schema, columns_of
from penstock.lake.footer import WrongFields, check_fields

COLUMNS = columns_of(
    pa.schema(
        [
            ("a", pa.int64()),
            ("b", pa.string()),
            ("s", pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.float64())]))])),
            ("l", pa.list_(pa.struct([("q", pa.date32())]))),
            ("m", pa.map_(pa.string(), pa.decimal128(12, 2))),
        ]
    )
)
FILE = arrow_schema(COLUMNS)


def marked(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({FIELD_ID: str(number)})


def test_the_tables_own_columns_are_let_in() -> None:
    check_fields(FILE, COLUMNS, "f")


def test_what_is_below_a_list_or_a_map_may_lack_its_id_and_has_any_name() -> None:
    file = FILE.set(3, FILE.field("l").with_type(pa.list_(pa.field("item", pa.struct(
        [FILE.field("l").type.value_type.field("q")])))))  # fmt: skip
    file = file.set(4, file.field("m").with_type(pa.map_(pa.string(), pa.decimal128(12, 2))))
    check_fields(file, COLUMNS, "f")


def swapped(file: pa.Schema) -> pa.Schema:
    one, other = file.field(0), file.field(1)
    return file.set(0, marked(one, 2)).set(1, marked(other, 1))


def renamed(file: pa.Schema) -> pa.Schema:
    return file.set(1, file.field(1).with_name("c"))


def retyped(file: pa.Schema) -> pa.Schema:
    return file.set(0, file.field(0).with_type(pa.int32()))


def without_id(file: pa.Schema) -> pa.Schema:
    return file.set(0, file.field(0).remove_metadata())


def missing(file: pa.Schema) -> pa.Schema:
    return file.remove(4)


def further(file: pa.Schema) -> pa.Schema:
    return file.append(pa.field("n", pa.int64(), metadata={FIELD_ID: "99"}))


def swapped_below(file: pa.Schema) -> pa.Schema:
    inner = file.field("s").type
    below = pa.struct([inner.field(0), marked(inner.field(1), 77)])
    return file.set(2, file.field("s").with_type(below))


def retyped_below_a_map(file: pa.Schema) -> pa.Schema:
    return file.set(4, file.field("m").with_type(pa.map_(pa.string(), pa.decimal128(12, 3))))


def wrong_id_below_a_list(file: pa.Schema) -> pa.Schema:
    inner = file.field("l").type.value_type
    element = pa.struct([marked(inner.field("q"), 1)])
    return file.set(3, file.field("l").with_type(pa.list_(element)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (swapped, "expected column 'a' (field id 1, int64) in 'f', found column 'a' (field id 2"),
        (renamed, "expected column 'b' (field id 2, string) in 'f', found column 'c'"),
        (retyped, "found column 'a' (field id 1, int32)"),
        (without_id, "found column 'a' (no field id, int64)"),
        (missing, "expected column 'm' (field id 10, map) in 'f', found no such column"),
        (further, "expected no more columns in 'f', found column 'n' (field id 99, int64)"),
        (swapped_below, "expected column 's.y' (field id 5, struct)"),
        (retyped_below_a_map, "found column 'm.value' (field id 12, decimal128(12, 3))"),
        (wrong_id_below_a_list, "found column 'l.element.q' (field id 1, date32[day])"),
    ],
)
def test_any_other_file_is_an_internal_error(
    change: Callable[[pa.Schema], pa.Schema], said: str
) -> None:
    with pytest.raises(WrongFields, match=r"^internal error: .*; nothing was committed$") as caught:
        check_fields(change(FILE), COLUMNS, "f")
    assert said in caught.value.message
    assert isinstance(caught.value, Corrupt)
