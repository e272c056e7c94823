"""From what a file holds to what the table has now: columns renamed, added, converted.

A file's shape is a tree of names and column ids, as the catalog or a footer tells it. The usual
file needs none of this: Spark finds its columns by field id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from penstock.lake.columns import Column
from penstock.lake.footer import children_of, field_id
from penstock.lake.model import NameMap
from penstock.lake.values import read_default
from penstock.spark.lake.types import FIELD_ID, is_converted, spark_type, stored_type

if TYPE_CHECKING:
    from pyspark.sql.connect.column import Column as Expression
    from pyspark.sql.types import DataType, StructType

Shape = tuple[NameMap, ...]


def needs_shape(columns: Iterable[Column]) -> bool:
    """Whether files may lack a column that has a value in them all the same."""
    return any(c.initial_default is not None or needs_shape(c.children) for c in columns)


def shape_of(schema: pa.Schema) -> Shape:
    """The shape of a file whose fields carry ids, from its footer."""
    return tuple(entry for field in schema if (entry := _entry(field)) is not None)


def read_schema(columns: Iterable[Column], shape: Shape | None) -> StructType:
    """What to ask of Parquet: by field id without a shape, else by the file's own names."""
    from pyspark.sql.types import StructField, StructType

    if shape is None:
        return StructType(
            [StructField(c.name, _stored(c, None), True, {FIELD_ID: c.id}) for c in columns]
        )
    known = {entry.field_id: entry for entry in shape}
    held = [(c, known[c.id]) for c in columns if c.id in known]
    return StructType([StructField(e.source, _stored(c, e.children), True) for c, e in held])


def projection(columns: Sequence[Column], shape: Shape | None) -> list[Expression] | None:
    """Expressions that make the table's columns of the file's, or None if they are the same."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - its usual name

    if shape is None:
        if not any(is_converted(column) for column in columns):
            return None
        return [_made(F.col(quoted(c.name)), c, None).alias(c.name) for c in columns]
    known = {entry.field_id: entry for entry in shape}
    made = []
    for column in columns:
        entry = known.get(column.id)
        if entry is None:
            made.append(_default(column).alias(column.name))
        else:
            expression = F.col(quoted(entry.source))
            made.append(_made(expression, column, entry.children).alias(column.name))
    return made


def quoted(name: str) -> str:
    """A name as Spark takes it whatever is in it.

    >>> quoted("a.b`c")
    '`a.b``c`'
    """
    return "`" + name.replace("`", "``") + "`"


def _entry(field: pa.Field) -> NameMap | None:
    number = field_id(field)
    if number is None:
        return None
    inner = [_entry(child) for child in children_of(field.type)]
    return NameMap(field.name, number, tuple(entry for entry in inner if entry is not None))


def _below(column: Column, shape: Shape | None) -> list[tuple[Column, str | None, Shape | None]]:
    """A column's children, each with its name in the file (None: not there) and its own shape."""
    if shape is None:
        return [(child, child.name, None) for child in column.children]
    if column.type != "struct":
        return [(c, c.name, e.children) for c, e in zip(column.children, shape, strict=True)]
    known = {entry.field_id: entry for entry in shape}
    found = [(child, known.get(child.id)) for child in column.children]
    return [(c, e.source, e.children) if e else (c, None, ()) for c, e in found]


def _stored(column: Column, shape: Shape | None) -> DataType:
    from pyspark.sql import types as spark

    if not column.is_nested:
        return stored_type(column.type, spark_type(column))
    below = _below(column, shape)
    if column.type == "struct":
        return spark.StructType(
            [
                spark.StructField(name, _stored(child, inner), True, _metadata(child, shape))
                for child, name, inner in below
                if name is not None
            ]
        )
    kinds = [_stored(child, inner) for child, _, inner in below]
    return spark.ArrayType(kinds[0]) if column.type == "list" else spark.MapType(*kinds)


def _metadata(column: Column, shape: Shape | None) -> dict[str, Any] | None:
    return {FIELD_ID: column.id} if shape is None else None


def _is_plain(column: Column, shape: Shape | None) -> bool:
    """Whether what is read is what is wanted, names and all."""
    return not is_converted(column) and all(
        name == child.name and (inner is None or _is_plain(child, inner))
        for child, name, inner in _below(column, shape)
    )


def _made(value: Expression, column: Column, shape: Shape | None) -> Expression:
    from pyspark.sql.connect import functions as F  # noqa: N812

    if _is_plain(column, shape):
        return value
    below = _below(column, shape)
    match column.type:
        case "struct":
            parts = [
                (_default(c) if name is None else _made(value.getField(name), c, inner)).alias(
                    c.name
                )
                for c, name, inner in below
            ]
            return F.when(value.isNotNull(), F.struct(*parts))
        case "list":
            ((child, _, inner),) = below
            return F.transform(value, lambda item: _made(item, child, inner))
        case "map":
            (key, _, key_shape), (item, _, item_shape) = below
            keys = F.transform(F.map_keys(value), lambda k: _made(k, key, key_shape))
            items = F.transform(F.map_values(value), lambda v: _made(v, item, item_shape))
            return F.map_from_arrays(keys, items)
        case "uuid":
            parts_of = "^(.{8})(.{4})(.{4})(.{4})(.{12})$"
            return F.regexp_replace(F.lower(F.hex(value)), parts_of, "$1-$2-$3-$4-$5")
        case "timestamp_ns":
            micros = value.cast("decimal(38,0)") / 1_000
            return F.timestamp_micros(micros.cast("bigint")).cast("timestamp_ntz")
    return value


def _default(column: Column) -> Expression:
    """What stands for a column in files that are older than it."""
    from pyspark.sql.connect import functions as F  # noqa: N812

    kind = spark_type(column)
    value = read_default(column)
    if value is None:
        return F.lit(None).cast(kind)
    return _literal(column, value).cast(kind)


def _literal(column: Column, value: Any) -> Expression:
    from pyspark.sql.connect import functions as F  # noqa: N812

    if value is None:
        return F.lit(None)
    if column.type == "struct":
        parts = [_literal(c, value.get(c.name)).alias(c.name) for c in column.children]
        return F.struct(*parts)
    if column.type == "list":
        return F.array(*[_literal(column.children[0], item) for item in value])
    if column.type == "map":
        key, item = column.children
        pairs = [(_literal(key, k), _literal(item, v)) for k, v in value]
        return F.create_map(*[part for pair in pairs for part in pair])
    return _scalar_literal(column, value)


def _scalar_literal(column: Column, value: Any) -> Expression:
    """Moments are counts of units here, UUIDs bytes: say them as Spark understands them."""
    from pyspark.sql.connect import functions as F  # noqa: N812

    units = {"timestamp_s": 1_000_000, "timestamp_ms": 1_000, "timestamp": 1, "timestamptz": 1}
    if column.type in units:
        return F.timestamp_micros(F.lit(value * units[column.type]))
    if column.type == "timestamp_ns":
        return F.timestamp_micros(F.lit(int(value / 1_000)))
    if column.type == "uint64":
        return F.lit(Decimal(value))
    if column.type in ("time", "timetz"):
        return F.lit(value.isoformat())
    return F.lit(str(UUID(bytes=value)) if column.type == "uuid" else value)
