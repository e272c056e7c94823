"""Types of the lake, of Spark, and of the Arrow between them.

Most are the same thing. Where Spark has no such type a wider one stands for it: unsigned integers
become the next larger signed ones, a UUID its text, nanoseconds microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pyarrow as pa

from penstock.kernel.errors import Rejected
from penstock.lake.columns import Column, arrow_type, fields_of, plain_type
from penstock.spark.errors import UnsharedType

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

FIELD_ID: Final = "parquet.field.id"
"""Under this key a field's metadata holds the id that is written to Parquet."""

_DECIMAL: Final = re.compile(r"decimal\((\d+), ?(\d+)\)")

_ARROW: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.int16(),
    "uint16": pa.int32(),
    "uint32": pa.int64(),
    "uint64": pa.decimal128(20, 0),
    "int128": pa.float64(),
    "uint128": pa.float64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timetz": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamp_s": pa.timestamp("us"),
    "timestamp_ms": pa.timestamp("us"),
    "timestamp_ns": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "varchar": pa.string(),
    "json": pa.string(),
    "uuid": pa.string(),
    "blob": pa.binary(),
}
"""How the lake's values travel between Python and Spark."""

_CONVERTED: Final = ("uuid", "timestamp_ns")
"""Types that Spark reads from Parquet as something else, for an expression to finish."""

_WRITTEN: Final = (
    "boolean", "int8", "int16", "int32", "int64", "float32", "float64", "decimal", "date",
    "timestamp", "timestamptz", "varchar", "json", "blob", "struct", "list", "map",
)  # fmt: skip
"""Types that Spark writes to Parquet exactly as the lake has them."""


def travel_type(column: Column) -> pa.DataType:
    """The Arrow type of a column's values on their way to Spark and back."""
    if column.type == "struct":
        return pa.struct([(child.name, travel_type(child)) for child in column.children])
    if column.type == "list":
        return pa.list_(travel_type(column.children[0]))
    if column.type == "map":
        key, value = column.children
        return pa.map_(travel_type(key), travel_type(value))
    if found := _DECIMAL.fullmatch(column.type):
        return pa.decimal128(int(found[1]), int(found[2]))
    if column.type in _ARROW:
        return _ARROW[column.type]
    raise UnsharedType(
        f"column {column.name!r} cannot be read by Spark, which has no type for {column.type}",
        column=column.name,
    )


def travel_schema(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema of rows on their way to Spark and back."""
    return pa.schema([(column.name, travel_type(column)) for column in columns])


def for_spark(rows: pa.Table, columns: Iterable[Column]) -> pa.Table:
    """Rows as the lake hands them out, in types that Spark takes."""
    schema = travel_schema(columns)
    arrays = [_travel(rows.column(field.name), field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def for_lake(rows: pa.Table, columns: Iterable[Column]) -> pa.Table:
    """Rows that came from Spark, in the names and order of the columns; their types must fit."""
    listed = tuple(columns)
    places = {name.lower(): index for index, name in enumerate(rows.column_names)}
    if sorted(places) != sorted(c.name.lower() for c in listed) or len(places) < rows.num_columns:
        raise Rejected(
            f"expected the columns {', '.join(c.name for c in listed)}, "
            f"found {', '.join(rows.column_names) or 'none'}"
        )
    arrays = []
    for column in listed:
        array = rows.column(places[column.name.lower()])
        wanted = travel_type(column)
        if _shape(array.type) != _shape(wanted):
            raise Rejected(
                f"column {column.name!r} takes {wanted}, not {array.type}",
                column=column.name,
            )
        arrays.append(_settled(array, column))
    return pa.Table.from_arrays(arrays, names=[column.name for column in listed])


def spark_type(column: Column) -> DataType:
    """The type a column has in Spark; fields of structs carry their ids."""
    from pyspark.sql import types as spark

    if column.type == "struct":
        return spark.StructType([spark_field(child) for child in column.children])
    if column.type == "list":
        return spark.ArrayType(spark_type(column.children[0]))
    if column.type == "map":
        key, value = column.children
        return spark.MapType(spark_type(key), spark_type(value))
    return _spark_scalar(travel_type(column))


def spark_field(column: Column) -> StructField:
    """A column as a field that is written to Parquet with its id."""
    from pyspark.sql.types import StructField

    return StructField(column.name, spark_type(column), True, {FIELD_ID: column.id})


def spark_schema(columns: Iterable[Column]) -> StructType:
    """Columns as Spark hands them out and writes them."""
    from pyspark.sql.types import StructType

    return StructType([spark_field(column) for column in columns])


def stored_type(kind: str, plain: DataType) -> DataType:
    """The type in which Spark can read a scalar of a lake's type from Parquet."""
    from pyspark.sql import types as spark

    if kind == "uuid":
        return spark.BinaryType()
    return spark.LongType() if kind == "timestamp_ns" else plain


def is_converted(column: Column) -> bool:
    """Whether a column, or one below it, needs an expression after it is read."""
    return column.type in _CONVERTED or any(is_converted(child) for child in column.children)


def is_writable(column: Column) -> bool:
    """Whether Spark writes this column to Parquet just as the lake has it."""
    kind = column.type.partition("(")[0]
    return kind in _WRITTEN and all(is_writable(child) for child in column.children)


def lake_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of a table that holds what a query gives."""
    return pa.schema([(f.name, lake_type(f.dataType, f.name)) for f in schema.fields])


def lake_type(kind: DataType, name: str) -> pa.DataType:
    """The Arrow type for one of Spark's, or `UnsharedType` with the column's name."""
    from pyspark.sql import types as spark

    match kind:
        case spark.StructType():
            return pa.struct([(f.name, lake_type(f.dataType, f"{name}.{f.name}")) for f in kind])
        case spark.ArrayType():
            return pa.list_(lake_type(kind.elementType, f"{name}[]"))
        case spark.MapType():
            key = lake_type(kind.keyType, f"{name} key")
            return pa.map_(key, lake_type(kind.valueType, f"{name} value"))
        case spark.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case spark.StringType() | spark.CharType() | spark.VarcharType():
            return pa.string()
    for arrow in _ARROW.values():
        if _spark_scalar(arrow) == kind:
            return arrow
    raise _not_held(name, kind.simpleString(), isinstance(kind, spark.NullType))


def arrived_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a table for rows that arrived from Spark: its types, and NULL allowed."""
    return pa.schema([(f.name, _arrived(f.type, f.name)) for f in schema])


def _arrived(kind: pa.DataType, name: str) -> pa.DataType:
    if pa.types.is_struct(kind):
        fields = fields_of(kind)
        return pa.struct([(f.name, _arrived(f.type, f"{name}.{f.name}")) for f in fields])
    if pa.types.is_map(kind):
        key = _arrived(kind.key_type, f"{name} key")
        return pa.map_(key, _arrived(kind.item_type, f"{name} value"))
    if pa.types.is_list(kind):
        return pa.list_(_arrived(kind.value_type, f"{name}[]"))
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_decimal(kind) or kind in _ARROW.values():
        return kind
    raise _not_held(name, str(kind), pa.types.is_null(kind))


def _not_held(name: str, found: str, is_null: bool) -> UnsharedType:
    hint = ": give it one, as in CAST(NULL AS STRING)" if is_null else ""
    return UnsharedType(
        f"column {name!r} cannot be kept in the lake, which has no type for {found}{hint}",
        column=name,
    )


def check_types(schema: StructType, columns: Iterable[Column]) -> None:
    """Refuse rows that are not the columns: other names, or types that do not fit."""
    listed = tuple(columns)
    found = {field.name.lower(): field for field in schema.fields}
    names = [column.name.lower() for column in listed]
    if sorted(found) != sorted(names) or len(schema.fields) != len(names):
        raise Rejected(
            f"expected the columns {', '.join(c.name for c in listed)}, "
            f"found {', '.join(schema.fieldNames()) or 'none'}"
        )
    for column in listed:
        held = found[column.name.lower()].dataType
        if _shape(lake_type(held, column.name)) != _shape(travel_type(column)):
            raise Rejected(
                f"expected {spark_type(column).simpleString()} in column {column.name!r}, "
                f"found {held.simpleString()}",
                column=column.name,
            )


def _shape(kind: pa.DataType) -> str:
    """A type by what counts: the names of fields in any case, and no nullability."""
    if pa.types.is_struct(kind):
        inner = (f"{kind.field(i).name.lower()}:{_shape(kind.field(i).type)}"
                 for i in range(kind.num_fields))  # fmt: skip
        return f"struct<{','.join(inner)}>"
    if pa.types.is_list(kind):
        return f"list<{_shape(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_shape(kind.key_type)},{_shape(kind.item_type)}>"
    if pa.types.is_time(kind):
        return "time"  # Spark hands them out in nanoseconds
    return str(kind)


def _spark_scalar(kind: pa.DataType) -> DataType:
    from pyspark.sql import types as spark

    if pa.types.is_decimal(kind):
        return spark.DecimalType(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return spark.TimestampType() if kind.tz else spark.TimestampNTZType()
    made: dict[pa.DataType, DataType] = {
        pa.bool_(): spark.BooleanType(), pa.int8(): spark.ByteType(),
        pa.int16(): spark.ShortType(), pa.int32(): spark.IntegerType(),
        pa.int64(): spark.LongType(), pa.float32(): spark.FloatType(),
        pa.float64(): spark.DoubleType(), pa.date32(): spark.DateType(),
        pa.time64("us"): spark.TimeType(6), pa.string(): spark.StringType(),
        pa.binary(): spark.BinaryType(),
    }  # fmt: skip
    return made[kind]


def _travel(array: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if array.type == kind:
        return array
    if not _has_uuid(array.type):
        return array.cast(kind, safe=False)  # not safe: nanoseconds are cut to microseconds
    values = [_plain(value, kind) for value in array.to_pylist()]
    return pa.chunked_array([pa.array(values, kind)])


def _settled(array: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """Values in the lake's own type where Arrow does not find the way from a text."""
    kind = plain_type(arrow_type(column))
    if not _has_uuid(kind):
        return array
    values = [_with_uuids(value, kind) for value in array.to_pylist()]
    return pa.chunked_array([pa.array(values, kind)])


def _with_uuids(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {f.name: _with_uuids(value[f.name], f.type) for f in fields_of(kind)}
    if pa.types.is_map(kind):
        return [(_with_uuids(k, kind.key_type), _with_uuids(v, kind.item_type)) for k, v in value]
    if pa.types.is_list(kind):
        return [_with_uuids(item, kind.value_type) for item in value]
    return UUID(value).bytes if kind == pa.uuid() else value


def _has_uuid(kind: pa.DataType) -> bool:
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return kind == pa.uuid() or any(_has_uuid(below) for below in inner)


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value with the texts of what Arrow cannot cast by itself."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {f.name: _plain(value[f.name], f.type) for f in fields_of(kind)}
    if pa.types.is_map(kind):
        return [(_plain(k, kind.key_type), _plain(v, kind.item_type)) for k, v in value]
    if pa.types.is_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    return str(value) if pa.types.is_string(kind) else value
