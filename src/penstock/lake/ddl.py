"""The tables of a DuckLake 1.0 catalog and Penstock's own, as SQL for either database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.kernel.errors import Rejected
from penstock.lake.columns import Column

VERSION: Final = "1.0"
"""The version of the DuckLake format that this package writes and reads."""

_TABLES: Final = {
    "ducklake_metadata": "key TEXT! NOT NULL, value TEXT! NOT NULL, scope TEXT!, scope_id BIGINT",
    "ducklake_snapshot": "snapshot_id BIGINT PRIMARY KEY, snapshot_time TIME!, "
    "schema_version BIGINT, next_catalog_id BIGINT, next_file_id BIGINT",
    "ducklake_snapshot_changes": "snapshot_id BIGINT PRIMARY KEY, changes_made TEXT!, "
    "author TEXT!, commit_message TEXT!, commit_extra_info TEXT!",
    "ducklake_schema": "schema_id BIGINT PRIMARY KEY, schema_uuid UUID!, begin_snapshot BIGINT, "
    "end_snapshot BIGINT, schema_name TEXT!, path TEXT!, path_is_relative BOOL!",
    "ducklake_table": "table_id BIGINT, table_uuid UUID!, begin_snapshot BIGINT, "
    "end_snapshot BIGINT, schema_id BIGINT, table_name TEXT!, path TEXT!, path_is_relative BOOL!",
    "ducklake_view": "view_id BIGINT, view_uuid UUID!, begin_snapshot BIGINT, end_snapshot BIGINT, "
    "schema_id BIGINT, view_name TEXT!, dialect TEXT!, sql TEXT!, column_aliases TEXT!",
    "ducklake_tag": "object_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT, key TEXT!, "
    "value TEXT!",
    "ducklake_column_tag": "table_id BIGINT, column_id BIGINT, begin_snapshot BIGINT, "
    "end_snapshot BIGINT, key TEXT!, value TEXT!",
    "ducklake_data_file": "data_file_id BIGINT PRIMARY KEY, table_id BIGINT, "
    "begin_snapshot BIGINT, end_snapshot BIGINT, file_order BIGINT, path TEXT!, "
    "path_is_relative BOOL!, file_format TEXT!, record_count BIGINT, file_size_bytes BIGINT, "
    "footer_size BIGINT, row_id_start BIGINT, partition_id BIGINT, encryption_key TEXT!, "
    "mapping_id BIGINT, partial_max BIGINT",
    "ducklake_file_column_stats": "data_file_id BIGINT, table_id BIGINT, column_id BIGINT, "
    "column_size_bytes BIGINT, value_count BIGINT, null_count BIGINT, min_value TEXT!, "
    "max_value TEXT!, contains_nan BOOL!, extra_stats TEXT!",
    "ducklake_file_variant_stats": "data_file_id BIGINT, table_id BIGINT, column_id BIGINT, "
    "variant_path TEXT!, shredded_type TEXT!, column_size_bytes BIGINT, value_count BIGINT, "
    "null_count BIGINT, min_value TEXT!, max_value TEXT!, contains_nan BOOL!, extra_stats TEXT!",
    "ducklake_delete_file": "delete_file_id BIGINT PRIMARY KEY, table_id BIGINT, "
    "begin_snapshot BIGINT, end_snapshot BIGINT, data_file_id BIGINT, path TEXT!, "
    "path_is_relative BOOL!, format TEXT!, delete_count BIGINT, file_size_bytes BIGINT, "
    "footer_size BIGINT, encryption_key TEXT!, partial_max BIGINT",
    "ducklake_column": "column_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT, "
    "table_id BIGINT, column_order BIGINT, column_name TEXT!, column_type TEXT!, "
    "initial_default TEXT!, default_value TEXT!, nulls_allowed BOOL!, parent_column BIGINT, "
    "default_value_type TEXT!, default_value_dialect TEXT!",
    "ducklake_table_stats": "table_id BIGINT, record_count BIGINT, next_row_id BIGINT, "
    "file_size_bytes BIGINT",
    "ducklake_table_column_stats": "table_id BIGINT, column_id BIGINT, contains_null BOOL!, "
    "contains_nan BOOL!, min_value TEXT!, max_value TEXT!, extra_stats TEXT!",
    "ducklake_partition_info": "partition_id BIGINT, table_id BIGINT, begin_snapshot BIGINT, "
    "end_snapshot BIGINT",
    "ducklake_partition_column": "partition_id BIGINT, table_id BIGINT, "
    "partition_key_index BIGINT, column_id BIGINT, transform TEXT!",
    "ducklake_file_partition_value": "data_file_id BIGINT, table_id BIGINT, "
    "partition_key_index BIGINT, partition_value TEXT!",
    "ducklake_files_scheduled_for_deletion": "data_file_id BIGINT, path TEXT!, "
    "path_is_relative BOOL!, schedule_start TIME!",
    "ducklake_inlined_data_tables": "table_id BIGINT, table_name TEXT!, schema_version BIGINT",
    "ducklake_column_mapping": "mapping_id BIGINT, table_id BIGINT, type TEXT!",
    "ducklake_name_mapping": "mapping_id BIGINT, column_id BIGINT, source_name TEXT!, "
    "target_field_id BIGINT, parent_column BIGINT, is_partition BOOL!",
    "ducklake_schema_versions": "begin_snapshot BIGINT, schema_version BIGINT, table_id BIGINT",
    "ducklake_macro": "schema_id BIGINT, macro_id BIGINT, macro_name TEXT!, "
    "begin_snapshot BIGINT, end_snapshot BIGINT",
    "ducklake_macro_impl": "macro_id BIGINT, impl_id BIGINT, dialect TEXT!, sql TEXT!, type TEXT!",
    "ducklake_macro_parameters": "macro_id BIGINT, impl_id BIGINT, column_id BIGINT, "
    "parameter_name TEXT!, parameter_type TEXT!, default_value TEXT!, default_value_type TEXT!",
    "ducklake_sort_info": "sort_id BIGINT, table_id BIGINT, begin_snapshot BIGINT, "
    "end_snapshot BIGINT",
    "ducklake_sort_expression": "sort_id BIGINT, table_id BIGINT, sort_key_index BIGINT, "
    "expression TEXT!, dialect TEXT!, sort_direction TEXT!, null_order TEXT!",
}

# SQLite type names as DuckDB's scanner writes them: BIGINT where the format says BOOLEAN.
_TYPES: Final = {
    "sqlite": {"TEXT!": "VARCHAR", "TIME!": "VARCHAR", "UUID!": "VARCHAR", "BOOL!": "BIGINT"},
    "postgres": {"TEXT!": "VARCHAR", "TIME!": "TIMESTAMPTZ", "UUID!": "UUID", "BOOL!": "BOOLEAN"},
}

_SQLITE_INTEGERS: Final = (
    "boolean", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
)  # fmt: skip
_POSTGRES_INLINED: Final = {
    "boolean": "BOOLEAN", "int8": "SMALLINT", "int16": "SMALLINT", "int32": "INTEGER",
    "int64": "BIGINT", "uint8": "INTEGER", "uint16": "INTEGER", "uint32": "BIGINT",
    "float32": "REAL", "float64": "DOUBLE PRECISION", "time": "TIME", "timetz": "TIMETZ",
    "interval": "INTERVAL", "varchar": "BYTEA", "json": "BYTEA", "blob": "BYTEA", "uuid": "UUID",
}  # fmt: skip

COLUMNS_MAX: Final = {"sqlite": 1_997, "postgres": 1_597}
"""Maximum columns per table: the database's limit minus the three added to inlined rows."""

_POSTGRES_OWN: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})

_INDEXES: Final = (
    ("ducklake_data_file", "table_id"),
    ("ducklake_delete_file", "table_id"),
    ("ducklake_file_column_stats", "data_file_id"),
    ("ducklake_column", "table_id"),
    ("ducklake_table_column_stats", "table_id"),
    ("ducklake_table_stats", "table_id"),
    ("ducklake_files_scheduled_for_deletion", "data_file_id"),
)

_OWN: Final = (
    "CREATE TABLE IF NOT EXISTS penstock_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    (
        "CREATE TABLE IF NOT EXISTS penstock_lake_writers (token TEXT PRIMARY KEY, "
        "began_at_ms BIGINT NOT NULL, expires_at_ms BIGINT NOT NULL)"
    ),
    (
        "CREATE TABLE IF NOT EXISTS penstock_lake_feeds (table_id BIGINT NOT NULL, "
        "after_snapshot BIGINT NOT NULL, until_snapshot BIGINT NOT NULL, path TEXT NOT NULL, "
        "path_is_relative INTEGER NOT NULL, row_count BIGINT NOT NULL, "
        "size_bytes BIGINT NOT NULL, PRIMARY KEY (table_id, after_snapshot))"
    ),
)


def lake_tables(kind: str) -> Iterator[str]:
    """The statements that create an empty catalog."""
    for name, body in _TABLES.items():
        yield f"CREATE TABLE {name} ({typed(kind, body)})"


def indexes() -> Iterator[str]:
    """Extra indexes, not part of DuckLake, that keep commits and reads cheap as files accrue."""
    for table, column in _INDEXES:
        short = table.removeprefix("ducklake_")
        yield f"CREATE INDEX IF NOT EXISTS penstock_{short}_{column} ON {table} ({column})"


def own_tables() -> Iterator[str]:
    """The statements that create this package's own tables. Idempotent."""
    yield from _OWN


def inlined_delete_table(table_id: int) -> str:
    """The catalog table that stores deleted positions of data files, instead of a delete file."""
    return (
        f"CREATE TABLE IF NOT EXISTS ducklake_inlined_delete_{table_id} "
        "(file_id BIGINT, row_id BIGINT, begin_snapshot BIGINT)"
    )


def inlined_table(kind: str, name: str, columns: Iterable[Column]) -> str:
    """The catalog table in which DuckDB stores small inserts, for one set of columns."""
    columns = tuple(columns)
    check_width(len(columns), COLUMNS_MAX[kind])
    taken = [c.name for c in columns if kind == "postgres" and c.name in _POSTGRES_OWN]
    if taken:
        raise Rejected(
            f"column {taken[0]!r} cannot be kept on PostgreSQL, which has one of that name in "
            "every table: rename it",
            column=taken[0],
        )
    fixed = "row_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT"
    held = [f"{quoted(column.name)} {_inlined_type(kind, column.type)}" for column in columns]
    return f"CREATE TABLE IF NOT EXISTS {name} ({', '.join((fixed, *held))})"


def check_width(columns: int, most: int) -> None:
    """Reject a table with more columns than its catalog supports."""
    if columns > most:
        raise Rejected(
            f"a table of {columns:,} columns is too wide: this catalog takes at most {most:,}",
            columns=columns,
            columns_max=most,
        )


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _inlined_type(kind: str, duck: str) -> str:
    if kind == "sqlite":
        return {"blob": "BLOB"}.get(duck, "BIGINT" if duck in _SQLITE_INTEGERS else "VARCHAR")
    if duck.startswith("decimal"):
        return duck.replace("decimal", "NUMERIC")
    return _POSTGRES_INLINED.get(duck, "VARCHAR")


def typed(kind: str, body: str) -> str:
    """Column definitions with the database's names for the placeholder types."""
    for mark, name in _TYPES[kind].items():
        body = body.replace(mark, name)
    return body
