"""From a Parquet footer to catalog data: counts, bounds, and the mapping of names to columns.

Pure: takes a footer that pyarrow has already read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import zip_longest
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from penstock.kernel.errors import Corrupt, Rejected
from penstock.lake.columns import FIELD_ID, Column, arrow_type, fields_of, flat
from penstock.lake.model import NameMap
from penstock.lake.stats import ColumnStats, sort_key

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - arithmetic on what has no zone
_BOUNDED: Final = (
    "boolean", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64", "decimal", "time", "date", "timestamp", "timestamptz", "timestamp_s",
    "timestamp_ms", "timestamp_ns", "varchar", "uuid",
)  # fmt: skip
_TEXT_CHARACTERS_MAX: Final = 1_000
_UNITS: Final = {"milliseconds": 1_000, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}


class WrongFields(Corrupt):
    """A file's columns differ from its table's: an internal error."""

    code = "wrong_fields"


def field_id(field: pa.Field) -> int | None:
    """The id a Parquet field carries."""
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def children_of(kind: pa.DataType) -> list[pa.Field]:
    """The child fields of a nested type as DuckLake sees them: a map has a key and a value."""
    if pa.types.is_struct(kind):
        return fields_of(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind.value_field]
    return []


def has_field_ids(schema: pa.Schema) -> bool:
    """Whether every field of a file, at every depth, carries an id."""
    return all(_has_ids(field) for field in schema)


def name_map(schema: pa.Schema, columns: Iterable[Column], path: str) -> tuple[NameMap, ...]:
    """Map the names in a file without field ids to the table's columns."""
    known = {column.name.lower(): column for column in columns}
    strangers = [field.name for field in schema if field.name.lower() not in known]
    if strangers:
        raise Rejected(f"{path!r} has columns that the table has not: {', '.join(strangers)}")
    return tuple(_map_entry(field, known[field.name.lower()], field.name) for field in schema)


def check_fields(schema: pa.Schema, columns: Sequence[Column], path: str) -> None:
    """Reject a file whose fields differ from its intended columns in name, id or type.

    Readers find a column by its field id, so a wrong id shows the values of another column. Fields
    below a list or a map may lack an id, because Spark writes none there: such a file is mapped by
    name.
    """
    for wanted, found in _wrong(list(schema), columns):
        raise WrongFields(
            f"internal error: expected {wanted} in {path!r}, found {found}; nothing was committed",
            path=path,
        )


def leaf_ids(schema: pa.Schema, names: tuple[NameMap, ...] | None) -> list[int | None]:
    """For every column chunk of a file, in order, the id of the lake's column."""
    if names is None:
        return [found for field in schema for found in _leaf_ids(field)]
    return [found for entry in names for found in _mapped_leaf_ids(entry)]


def file_stats(
    metadata: Any, ids: list[int | None], columns: tuple[Column, ...]
) -> tuple[ColumnStats, ...]:
    """The footer's statistics for each of a table's leaf columns."""
    known = {column.id: column for column, _ in flat(columns)}
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    made = []
    for index, number in enumerate(ids):
        if number in known and not known[number].is_nested:
            chunks = [group.column(index) for group in groups]
            physical = metadata.schema.column(index)
            made.append(_column_stats(known[number], physical, chunks))
    return tuple(made)


def bound_text(column: Column, physical: Any, raw: Any) -> str | None:
    """A bound in DuckDB's text format, or None where it is uncertain."""
    kind = column.type.partition("(")[0]
    if raw is None or kind not in _BOUNDED:
        return None
    try:
        text = _bound(kind, physical, raw)
    except (ValueError, OverflowError, struct.error):
        return None
    return text if len(text) <= _TEXT_CHARACTERS_MAX and "\0" not in text else None


def _column_stats(column: Column, physical: Any, chunks: list[Any]) -> ColumnStats:
    size = sum(chunk.total_compressed_size for chunk in chunks)
    stats = [chunk.statistics for chunk in chunks]
    if not all(entry is not None and entry.has_null_count for entry in stats):
        return ColumnStats(column.id, size)
    nulls = sum(entry.null_count for entry in stats)
    # Whether num_values includes nulls depends on the writer, so ask the chunk.
    values = sum(chunk.num_values for chunk in chunks) - nulls
    valued = [s for s, c in zip(stats, chunks, strict=True) if c.num_values > s.null_count]
    low, high = _bounds(column, physical, valued)
    return ColumnStats(column.id, size, values, nulls, low, high)


def _bounds(column: Column, physical: Any, stats: list[Any]) -> tuple[str | None, str | None]:
    if not stats or not all(entry.has_min_max for entry in stats):
        return None, None
    if not all(_is_exact(entry) for entry in stats):
        return None, None
    lows = [bound_text(column, physical, entry.min_raw) for entry in stats]
    highs = [bound_text(column, physical, entry.max_raw) for entry in stats]
    return _extreme(column, lows, min), _extreme(column, highs, max)


def _extreme(column: Column, texts: list[str | None], pick: Any) -> str | None:
    keys = [None if text is None else sort_key(column.type, text) for text in texts]
    if any(key is None for key in keys):
        return None
    return texts[keys.index(pick(keys))]


def _is_exact(entry: Any) -> bool:
    """Whether a bound is exact. Writers flag truncated bounds; most never truncate or flag."""
    flags = (getattr(entry, "is_min_value_exact", None), getattr(entry, "is_max_value_exact", None))
    return all(flag is not False for flag in flags)


def _bound(kind: str, physical: Any, raw: Any) -> str:
    if kind == "boolean":
        return "1" if raw else "0"
    if kind in ("float32", "float64"):
        return repr(float(raw))  # 32-bit floats too: exact at any precision it is compared in
    if kind == "decimal":
        return _decimal_text(physical, raw)
    if kind == "date":
        return (date(1970, 1, 1) + timedelta(days=raw)).isoformat()
    if kind == "time" or kind.startswith("timestamp"):
        return _clock_text(kind, physical, raw)
    if kind == "uuid":
        return str(UUID(bytes=bytes(raw)))
    if kind == "varchar":
        return raw.decode() if isinstance(raw, bytes) else str(raw)
    return str(_unsigned(physical, raw) if kind.startswith("uint") else int(raw))


def _decimal_text(physical: Any, raw: Any) -> str:
    whole = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)
    return str(Decimal(whole).scaleb(-physical.scale)) if physical.scale else str(whole)


def _unsigned(physical: Any, raw: int) -> int:
    """Parquet stores unsigned integers as signed ones."""
    bits = 64 if physical.physical_type == "INT64" else 32
    return raw % (1 << bits)


def _clock_text(kind: str, physical: Any, raw: int) -> str:
    logical = str(physical.logical_type)
    units = next((count for word, count in _UNITS.items() if word in logical), None)
    if units is None or physical.physical_type == "INT96":
        raise ValueError(logical)
    seconds, rest = divmod(int(raw), units)
    fraction = f"{rest * (1_000_000_000 // units):09d}".rstrip("0")
    moment = _EPOCH + timedelta(seconds=seconds)
    text = moment.strftime("%H:%M:%S" if kind == "time" else "%Y-%m-%d %H:%M:%S")
    text = text if kind == "time" else f"{moment.year:04d}{text[text.index('-') :]}"
    text += f".{fraction}" if fraction else ""
    return f"{text}+00" if kind == "timestamptz" else text


def _wrong(
    fields: Sequence[pa.Field], columns: Sequence[Column], above: str = "", *, unnamed: bool = False
) -> Iterator[tuple[str, str]]:
    """The differences between fields and columns: what was expected, and what was found."""
    for field, column in zip_longest(fields, columns):
        if field is None:
            yield _said(above, column.name, column.id, arrow_type(column)), "no such column"
            continue
        if column is None:
            yield "no more columns", _said(above, field.name, field_id(field), field.type)
            continue
        # Writers choose their own names for fields below a list or a map.
        name, number = field.name, field_id(field)
        if unnamed:
            name, number = column.name, column.id if number is None else number
        found = _said(above, name, number, field.type)
        wanted = _said(above, column.name, column.id, arrow_type(column))
        if found != wanted:
            yield wanted, found
        inner, is_struct = children_of(field.type), column.type == "struct"
        yield from _wrong(inner, column.children, f"{above}{column.name}.", unnamed=not is_struct)


def _said(above: str, name: str, number: int | None, kind: pa.DataType) -> str:
    """A field for an error message. Nested types show only their kind; fields come separately."""
    word = str(kind).partition("<")[0] if pa.types.is_nested(kind) else str(kind)
    mark = "no field id" if number is None else f"field id {number}"
    return f"column {above + name!r} ({mark}, {word})"


def _has_ids(field: pa.Field) -> bool:
    return field_id(field) is not None and all(_has_ids(c) for c in children_of(field.type))


def _leaf_ids(field: pa.Field) -> Iterator[int | None]:
    children = children_of(field.type)
    if not children:
        yield field_id(field)
    for child in children:
        yield from _leaf_ids(child)


def _mapped_leaf_ids(entry: NameMap) -> Iterator[int | None]:
    if not entry.children:
        yield entry.field_id
    for child in entry.children:
        yield from _mapped_leaf_ids(child)


def _map_entry(field: pa.Field, column: Column, source: str) -> NameMap:
    children = children_of(field.type)
    if bool(children) != column.is_nested:
        raise Rejected(f"column {column.name!r} is {column.type}, but {field.type} in the file")
    below: list[NameMap] = []
    if column.type == "struct":
        known: Mapping[str, Column] = {child.name.lower(): child for child in column.children}
        strangers = [child.name for child in children if child.name.lower() not in known]
        if strangers:
            raise Rejected(
                f"the file has fields of {column.name!r} that the table has not: "
                f"{', '.join(strangers)}"
            )
        below = [_map_entry(c, known[c.name.lower()], c.name) for c in children]
    elif children:
        # DuckDB's names for the fields below a list or a map in a file.
        sources = ["list"] if column.type == "list" else ["key", "value"]
        pairs = zip(children, column.children, sources, strict=True)
        below = [_map_entry(child, inner, name) for child, inner, name in pairs]
    return NameMap(source, column.id, tuple(below))
