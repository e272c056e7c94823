"""Columns of a lake table: DuckLake's type names, Arrow types, and the field ids that link them.

A column is found in a Parquet file by its field id, never by its name, so a renamed column keeps
its data. Nested types are columns below columns, each with its own id.

>>> [c.type for c in columns_of(pa.schema([("a", pa.int32()), ("b", pa.list_(pa.string()))]))]
['int32', 'list']
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from penstock.kernel.errors import Rejected

FIELD_ID: Final = b"PARQUET:field_id"
ROW_ID_FIELD: Final = 2147483540
"""The field id of `_ducklake_internal_row_id`, in files that store row ids explicitly."""
SNAPSHOT_FIELD: Final = 2147483539
"""The field id of `_ducklake_internal_snapshot_id`, in files with rows of several snapshots."""

_SCALARS: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    # DuckDB stores 128-bit integers as doubles in Parquet, so the lost digits cannot be read back.
    "int128": pa.float64(),
    "uint128": pa.float64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "time": pa.time64("us"),
    "timetz": pa.time64("us"),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "timestamp_s": pa.timestamp("s"),
    "timestamp_ms": pa.timestamp("ms"),
    "timestamp_ns": pa.timestamp("ns"),
    "interval": pa.month_day_nano_interval(),
    "varchar": pa.string(),
    "json": pa.string(),
    "blob": pa.binary(),
    "uuid": pa.uuid(),
}
_NAMES: Final[dict[pa.DataType, str]] = {
    arrow: name
    for name, arrow in _SCALARS.items()
    if name not in ("int128", "uint128", "timetz", "json")
} | {
    pa.large_string(): "varchar",
    pa.string_view(): "varchar",
    pa.large_binary(): "blob",
    pa.binary_view(): "blob",
    pa.date64(): "date",
    pa.time32("s"): "time",
    pa.time32("ms"): "time",
    pa.time64("ns"): "time",
    pa.float16(): "float32",
}
_TAKEN: Final = frozenset({"row_id", "begin_snapshot", "end_snapshot"})
"""Column names that the catalog adds to inlined rows."""

_DECIMAL: Final = re.compile(r"decimal\((\d+), ?(\d+)\)")
_DECIMAL_DIGITS_MAX: Final = 38


@dataclass(frozen=True, slots=True)
class Column:
    """A column at one snapshot. `children` are those of a struct, list or map.

    `initial_default` is the text of the value in files older than the column; `default` is what an
    INSERT without a value writes, kept for tools that support it.
    """

    id: int
    name: str
    type: str
    nulls_allowed: bool = True
    children: tuple[Column, ...] = ()
    initial_default: str | None = None
    default: str | None = None
    default_type: str = "literal"

    @property
    def is_nested(self) -> bool:
        """Whether values are composed of the children's values."""
        return self.type in ("struct", "list", "map")


def arrow_type(column: Column) -> pa.DataType:
    """The Arrow type of a column's values, with the field ids of its children."""
    if column.type == "struct":
        return pa.struct([arrow_field(child) for child in column.children])
    if column.type == "list":
        return pa.list_(arrow_field(column.children[0]))
    if column.type == "map":
        key, value = column.children
        return pa.map_(arrow_field(replace(key, nulls_allowed=False)), arrow_field(value))
    if column.type in _SCALARS:
        return _SCALARS[column.type]
    if found := _DECIMAL.fullmatch(column.type):
        return pa.decimal128(int(found[1]), int(found[2]))
    raise Rejected(
        f"column {column.name!r} cannot be read here: Arrow has no type for {column.type}",
        column=column.name,
    )


def arrow_field(column: Column) -> pa.Field:
    """A column as an Arrow field that writes its id to Parquet."""
    metadata = {FIELD_ID: str(column.id).encode()}
    return pa.field(column.name, arrow_type(column), column.nulls_allowed, metadata)


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """Columns as the schema of their Parquet files."""
    return pa.schema([arrow_field(column) for column in columns])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """A type without field ids, as in rows returned to callers."""
    if pa.types.is_struct(kind):
        return pa.struct(
            [pa.field(f.name, plain_type(f.type), f.nullable) for f in fields_of(kind)]
        )
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_list(kind):
        inner = kind.value_field
        return pa.list_(pa.field(inner.name, plain_type(inner.type), inner.nullable))
    return kind


def plain_schema(columns: Iterable[Column]) -> pa.Schema:
    """The schema of returned rows. Without field ids, tables can be compared and concatenated."""
    return pa.schema([(c.name, plain_type(arrow_type(c))) for c in columns])


def fields_of(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a struct type."""
    return [kind.field(i) for i in range(kind.num_fields)]


def columns_of(schema: pa.Schema, first_id: int = 1) -> tuple[Column, ...]:
    """New columns for an Arrow schema, with ids assigned in DuckDB's order."""
    ids = iter(range(first_id, 2**31))
    _check_names([field.name for field in schema], "a table")
    for field in schema:
        check_free(field.name)
    return tuple(_column_of(field, ids) for field in schema)


def check_free(name: str) -> None:
    """Reject a column name that the catalog reserves."""
    if name.lower() in _TAKEN:
        raise Rejected(
            f"column {name!r} needs another name: the lake uses {', '.join(sorted(_TAKEN))} itself",
            column=name,
        )


def duck_type(kind: pa.DataType) -> str:
    """DuckLake's name for an Arrow type without children."""
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    if pa.types.is_decimal(kind) and kind.precision <= _DECIMAL_DIGITS_MAX:
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_dictionary(kind):
        return duck_type(kind.value_type)
    raise Rejected(f"DuckLake has no type for {kind}")


def is_held(column: Column) -> bool:
    """Whether Penstock can read the column's values; other tools may add types that it cannot."""
    if column.is_nested:
        return all(is_held(child) for child in column.children)
    return column.type in _SCALARS or _DECIMAL.fullmatch(column.type) is not None


def unread_type(column: Column) -> str | None:
    """The type, its own or a child's, that engines cannot read; None if the column is readable."""
    if column.is_nested:
        return next((kind for child in column.children if (kind := unread_type(child))), None)
    return column.type.upper() if column.type == "interval" or not is_held(column) else None


def leaves(columns: Iterable[Column]) -> Iterator[Column]:
    """The columns that store values, and so have statistics; depth first."""
    for column in columns:
        if column.is_nested:
            yield from leaves(column.children)
        else:
            yield column


def flat(
    columns: Iterable[Column], parent: int | None = None
) -> Iterator[tuple[Column, int | None]]:
    """Every column with its parent's id, depth first."""
    for column in columns:
        yield column, parent
        yield from flat(column.children, column.id)


def last_id(columns: Iterable[Column]) -> int:
    """The largest id in use, or 0."""
    return max((column.id for column, _ in flat(columns)), default=0)


def column_named(columns: Iterable[Column], name: str) -> Column:
    """The top-level column of that name; DuckLake's names ignore case."""
    known = {column.name.lower(): column for column in columns}
    if name.lower() not in known:
        names = ", ".join(column.name for column in known.values())
        raise Rejected(f"there is no column {name!r}; columns are {names}")
    return known[name.lower()]


def _column_of(field: pa.Field, ids: Iterator[int]) -> Column:
    number = next(ids)
    kind = field.type
    if pa.types.is_struct(kind):
        _check_names([f.name for f in fields_of(kind)], f"column {field.name!r}")
        children = tuple(_column_of(child, ids) for child in fields_of(kind))
        return Column(number, field.name, "struct", field.nullable, children, default_type="")
    if pa.types.is_map(kind):
        pairs = (pa.field("key", kind.key_type), pa.field("value", kind.item_type))
        children = tuple(_column_of(child, ids) for child in pairs)
        return Column(number, field.name, "map", field.nullable, children, default_type="")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        children = (_column_of(pa.field("element", kind.value_type), ids),)
        return Column(number, field.name, "list", field.nullable, children, default_type="")
    return Column(number, field.name, duck_type(kind), field.nullable)


def _check_names(names: list[str], where: str) -> None:
    times = Counter(name.lower() for name in names)
    twice = sorted(name for name, count in times.items() if count > 1)
    if not names or twice or "" in names:
        found = (
            f"{', '.join(twice)} twice" if twice else "no column" if not names else "an empty name"
        )
        raise Rejected(f"{where} needs columns of different names, and has {found}")
