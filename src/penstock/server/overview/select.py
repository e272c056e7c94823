"""A SELECT over tables of the lake at one snapshot, by DuckDB or by the warehouse's engine.

Nothing but a SELECT gets through: the text is parsed, every relation in it must be a table of the
lake or defined in the query itself, and functions that read files or settings are refused. DuckDB
then gets the rows as Arrow tables, and can open no file, load no extension and change no setting.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.kernel.units import MIB, format_bytes, format_ms
from penstock.protocol.errors import InvalidQuery, QueryTooLarge, QueryTooSlow, RelationNotFound
from penstock.protocol.lake_answers import QUERY_MS_MAX, QUERY_ROWS_MAX, QUERY_TEXT_MAX

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.tables.warehouse import Warehouse

SCAN_BYTES_MAX: Final = 256 * MIB
"""The files of the tables that a query reads: they are read as a whole."""
MEMORY_BYTES_MAX: Final = 512 * MIB
_HIDDEN: Final = ("read_", "duckdb_", "pragma_", "sniff_", "parquet_", "getenv", "getvariable",
                  "current_setting", "query", "query_table", "glob", "which_secret")  # fmt: skip
"""How functions begin that reach beyond the rows of tables."""


class Selected(NamedTuple):
    """The rows of a query, one more than are shown if there are more."""

    rows: pa.Table
    snapshot: int
    engine: str


class CheckedQuery(NamedTuple):
    """What a query reads: relations as queries name them, and every name that it has."""

    relations: tuple[str, ...]
    names: frozenset[str]
    whole: bool
    """Whether it may need every column."""


def has_duckdb() -> bool:
    """Whether DuckDB is installed."""
    return importlib.util.find_spec("duckdb") is not None


def select(warehouse: Warehouse, text: str, at: int | None, *, duckdb: bool) -> Selected:
    """Run a query. Takes long: not on the event loop."""
    checked = check_select(text, "duckdb" if duckdb else "spark")
    if duckdb:
        return _by_duckdb(warehouse, text, checked, at)
    if at is not None and at != warehouse.lake.latest().id:
        raise InvalidQuery("without DuckDB only the newest snapshot can be queried: install duckdb")
    limited = f"SELECT * FROM ({text}) AS penstock_limited LIMIT {QUERY_ROWS_MAX + 1}"
    return Selected(warehouse.query(limited), warehouse.lake.latest().id, "engine")


def check_select(text: str, dialect: str) -> CheckedQuery:
    """Refuse everything but one SELECT over named relations.

    >>> check_select("SELECT day, sum(kwh) FROM readings GROUP BY day", "duckdb").relations
    ('readings',)
    >>> check_select("SELECT * FROM read_csv('/etc/passwd')", "duckdb")
    Traceback (most recent call last):
    ...
    penstock.protocol.errors.InvalidQuery: only tables of the lake can be read, not read_csv(...)
    """
    import sqlglot
    from sqlglot import exp

    if len(text) > QUERY_TEXT_MAX:
        raise InvalidQuery(f"the query is longer than {format_bytes(QUERY_TEXT_MAX)}")
    try:
        found = [each for each in sqlglot.parse(text, read=dialect) if each is not None]
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise InvalidQuery(f"the query cannot be read: {str(error)[:500]}") from error
    if len(found) != 1 or not isinstance(found[0], exp.Query):
        raise InvalidQuery("only one SELECT can be run here")
    nodes = list(found[0].walk())
    _check_nodes(nodes)
    inside = {cte.alias.lower() for cte in nodes if isinstance(cte, exp.CTE)}
    relations = [_relation(node) for node in nodes if isinstance(node, exp.Table)]
    names = frozenset(node.name.lower() for node in nodes if isinstance(node, exp.Identifier))
    wanted = dict.fromkeys(name for name in relations if name not in inside)
    return CheckedQuery(tuple(wanted), names, any(isinstance(node, exp.Star) for node in nodes))


def _check_nodes(nodes: list[Any]) -> None:
    from sqlglot import exp

    refused = (exp.Into, exp.Command, exp.Lock, exp.DDL, exp.DML, exp.Set, exp.Pragma, exp.Copy,
               exp.Attach, exp.Detach, exp.Parameter, exp.SessionParameter)  # fmt: skip
    for node in nodes:
        if isinstance(node, refused) and not isinstance(node, exp.Query):
            raise InvalidQuery(f"only a SELECT can be run here, without {node.key.upper()}")
        if isinstance(node, exp.Func):
            name = (node.name if isinstance(node, exp.Anonymous) else node.sql_name()).lower()
            if name.startswith(_HIDDEN):
                raise InvalidQuery(f"only tables of the lake can be read, not {name}(...)")


def _relation(table: Any) -> str:
    """The name of a relation as queries use it; functions and files have none."""
    from sqlglot import exp

    from penstock.tables.query.names import relation_name

    if not isinstance(table.this, exp.Identifier) or table.args.get("catalog") is not None:
        shown = table.sql(dialect="duckdb").partition("(")[0]
        raise InvalidQuery(f"only tables of the lake can be read, not {shown[:100]}(...)")
    db = table.args.get("db")
    return relation_name([*([] if db is None else [db.name]), table.name])


# DuckDB ------------------------------------------------------------------------------------------


def _by_duckdb(warehouse: Warehouse, text: str, checked: CheckedQuery, at: int | None) -> Selected:
    import duckdb

    until_s = time.monotonic() + QUERY_MS_MAX / 1_000
    snapshot = warehouse.lake.snapshot(at)
    with duckdb.connect(":memory:", config=_closed()) as connection:
        for number, (name, rows) in enumerate(_read(warehouse, checked, snapshot.id, until_s)):
            _show(connection, name, f"penstock_rows_{number}", rows)
        connection.execute("SET lock_configuration = true")
        with _interrupted(connection, until_s - time.monotonic()) as is_late:
            try:
                limited = f"SELECT * FROM ({text}\n) LIMIT {QUERY_ROWS_MAX + 1}"
                found = connection.execute(limited).to_arrow_table()
            except duckdb.InterruptException as error:
                raise _too_slow() from error
            except duckdb.Error as error:
                if is_late():
                    raise _too_slow() from error
                raise InvalidQuery(str(error)[:1_000]) from error
    return Selected(found, snapshot.id, "duckdb")


def _closed() -> dict[str, Any]:
    """The settings of a DuckDB that reaches nothing but the rows that it is handed."""
    return {
        "enable_external_access": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",
        "memory_limit": f"{MEMORY_BYTES_MAX // MIB}MiB",
        "threads": "1",
    }


def _read(
    warehouse: Warehouse, checked: CheckedQuery, at: int, until_s: float
) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each table that a query reads, with the columns that it may need."""
    from penstock.lake.scan import scan

    lake, known = warehouse.lake, warehouse.lake_names(at)
    room = SCAN_BYTES_MAX
    for name in checked.relations:
        if name not in known:
            near = f": there are {', '.join(sorted(known)[:20])}" if known else ""
            raise RelationNotFound(f"the lake has no table {name!r} at snapshot {at}{near}")
        version = lake.table_at(known[name], at)
        room -= sum(file.size_bytes for file in version.files)
        if room < 0:
            raise QueryTooLarge(
                f"the tables of the query have more than {format_bytes(SCAN_BYTES_MAX)} of files: "
                "open the snapshot in DuckDB instead, see GET /v0/lake"
            )
        columns = [column.name for column in version.table.columns]
        wanted = [each for each in columns if checked.whole or each.lower() in checked.names]
        yield name, scan(lake.storage, version, wanted or columns[:1])
        if time.monotonic() > until_s:
            raise _too_slow()


def _show(connection: Any, name: str, held: str, rows: pa.Table) -> None:
    schema, _, table = f"main.{name}".rpartition(".") if "." not in name else name.rpartition(".")
    connection.register(held, rows)
    connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    connection.execute(f'CREATE VIEW "{schema}"."{table}" AS SELECT * FROM {held}')


@contextmanager
def _interrupted(connection: Any, after_s: float) -> Iterator[Any]:
    """Interrupt a connection after a time, unless this context ends before."""
    late = threading.Event()

    def interrupt() -> None:
        late.set()
        connection.interrupt()

    timer = threading.Timer(max(0.0, after_s), interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield late.is_set
    finally:
        timer.cancel()


def _too_slow() -> QueryTooSlow:
    return QueryTooSlow(f"the query takes longer than {format_ms(QUERY_MS_MAX)}: ask for less")
