"""Requests about tables: their bodies, checked, and pages of rows as bytes.

>>> definition_of({"query": "SELECT 1 AS one", "scedule": "10s"})
Traceback (most recent call last):
...
penstock.protocol.errors.InvalidRequest: expected one of consistency, description, mode, query, \
schedule, status, found 'scedule' (did you mean 'schedule'?)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from penstock.protocol.errors import InvalidRequest
from penstock.protocol.routes import ARROW
from penstock.server.api.answers import encode
from penstock.server.api.queries import preferred
from penstock.server.http.message import Answer

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.tables.pages import TablePage

OPTIONS: Final = frozenset({"schedule", "mode", "consistency", "description"})
DEFINITION: Final = OPTIONS | {"query", "status"}
ROWS: Final = 1_000
ROWS_MAX: Final = 100_000
WAIT_MS_MAX: Final = 60_000
JSON: Final = "application/json"
CSV: Final = "text/csv"
_FORMATS: Final = {"json": JSON, "csv": CSV, "arrow": ARROW}


def definition_of(body: Mapping[str, Any]) -> dict[str, str]:
    """A table's query and options."""
    found = texts_of(body, DEFINITION)
    if "query" not in found:
        raise InvalidRequest("expected a query, found none")
    return found


def texts_of(body: Mapping[str, Any], known: Collection[str]) -> dict[str, str]:
    """The values of a body: strings under known names."""
    check_names(body, known)
    for name, value in body.items():
        if not isinstance(value, str):
            raise InvalidRequest(f"expected {name} to be text, found {value!r}")
    return dict(body)


def check_names(body: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse an unknown name, and suggest the nearest known one."""
    for name in body:
        if name not in known:
            near = get_close_matches(name, sorted(known), n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise InvalidRequest(
                f"expected one of {', '.join(sorted(known))}, found {name[:100]!r}{hint}"
            )


def flag_of(body: Mapping[str, Any], name: str, default: bool) -> bool:
    """A boolean of a body."""
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise InvalidRequest(f"expected {name} to be true or false, found {value!r}")
    return value


def wait_of(body: Mapping[str, Any]) -> int:
    """How long a request may wait, in milliseconds."""
    value = body.get("wait_ms", 0)
    if type(value) is not int or not 0 <= value <= WAIT_MS_MAX:
        raise InvalidRequest(f"expected wait_ms from 0 to {WAIT_MS_MAX}, found {value!r}")
    return value


def format_of(asked: str | None, accept: str) -> str:
    """The media type of a page: from the query, else from Accept, else JSON."""
    if asked is not None:
        if asked not in _FORMATS:
            raise InvalidRequest(f"expected format json, csv or arrow, found {asked[:100]!r}")
        return _FORMATS[asked]
    return preferred(accept, (ARROW, CSV, JSON)) or JSON


# pages of rows -----------------------------------------------------------------------------------


def page_answer(page: TablePage, kind: str, total_ms: float, compression: str | None) -> Answer:
    """A page in the requested format. Slow: do not call it on the event loop."""
    facts: dict[str, Any] = {
        "snapshot": page.snapshot,
        "offset": page.offset,
        "next_offset": page.next_offset,
        "rows_total": page.rows_total,
    }
    if kind == JSON:
        columns = [{"name": field.name, "type": str(field.type)} for field in page.rows.schema]
        shown = {
            "table": page.table,
            **facts,
            "columns": columns,
            "rows": _for_json(page.rows).to_pylist(),
            "performance": {"server_total_ms": round(total_ms, 3)},
        }
        return Answer(200, encode(shown))
    headers = tuple(
        (b"x-penstock-" + name.replace("_", "-").encode(), encode(value))
        for name, value in facts.items()
    )
    if kind == CSV:
        return Answer(200, csv_bytes(page.rows), b"text/csv; charset=utf-8", headers)
    return Answer(200, arrow_bytes(page.rows, compression), ARROW.encode(), headers)


def _for_json(rows: pa.Table) -> pa.Table:
    """Rows without nanoseconds, which Python's datetimes do not support."""
    import pyarrow as pa

    fields = [
        field.with_type(pa.timestamp("us", field.type.tz))
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns"
        else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields), safe=False)


def csv_bytes(rows: pa.Table) -> bytes:
    """Rows as CSV with a header; values that CSV cannot express are written as JSON text."""
    import pyarrow as pa
    from pyarrow import csv

    columns = [column if _is_plain(column.type) else _as_json(column) for column in rows.columns]
    sink = BytesIO()
    csv.write_csv(pa.table(columns, names=rows.column_names), sink)
    return sink.getvalue()


def arrow_bytes(rows: pa.Table, compression: str | None) -> bytes:
    """Rows as an Arrow stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _is_plain(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
    )


def _as_json(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    texts = [None if v is None else encode(v).decode().strip('"') for v in column.to_pylist()]
    return pa.array(texts, pa.string())
