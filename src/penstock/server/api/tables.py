"""Handlers of stream tables, and pages of their rows as JSON, CSV or Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, structs

from penstock.protocol import requests, table_answers
from penstock.protocol.errors import (
    ChangedMeanwhile,
    InvalidRequest,
    NoContents,
    NotCoordinated,
    SnapshotExpired,
    TableCycle,
    TableExists,
    TableInUse,
    TableNotFound,
)
from penstock.protocol.routes import (
    ADMIN,
    ARROW,
    DELETE,
    FLAG,
    NUMBER,
    PAGES,
    READ,
    TEXT,
    WRITE,
    Param,
)
from penstock.server.api.answers import data_body, encode
from penstock.server.api.call import ROUTES, Call
from penstock.server.api.queries import arrow_compression, make_cursor, preferred
from penstock.server.api.warehouse import (
    ERRORS,
    desk,
    history,
    notified,
    row_limit,
    wait_for,
)
from penstock.server.http.message import Answer
from penstock.topics.engine.engine import Engine

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.tables.core.history import RefreshRecord
    from penstock.tables.core.topics import TopicSource
    from penstock.tables.pages import TablePage
    from penstock.tables.warehouse import Warehouse


ROWS: Final = 1_000
ROWS_MAX: Final = 100_000
OUTCOMES_MAX: Final = 40
_EXPLAINED: Final = ("unit", "inputs", "last_refresh", "next_refresh", "differential")
"""What the state of a table tells of its explanation."""
JSON: Final = "application/json"
CSV: Final = "text/csv"
_FORMATS: Final = {"json": JSON, "csv": CSV, "arrow": ARROW}


@ROUTES.get(
    "/v0/tables",
    answer=table_answers.TableList,
    scope=READ,
    query=(
        *PAGES,
        Param("history", NUMBER, f"The last outcomes of each, {OUTCOMES_MAX} at most."),
    ),
    errors=ERRORS,
)
async def list_tables(call: Call) -> Answer:
    """Tables with how fresh each is and what it waits for."""
    query = call.query
    prefix, after, size = query.text("prefix") or "", query.after(), query.page_size()
    outcomes = min(query.number("history", 0), OUTCOMES_MAX)
    found = await desk(call).do(partial(_statuses, outcomes=outcomes))
    names = sorted(name for name in found if name.startswith(prefix) and name > (after or ""))
    shown: dict[str, Any] = {"tables": [found[name] for name in names[:size]]}
    if len(names) > size:
        shown["next_cursor"] = make_cursor(names[size - 1])
    return call.answer(**shown)


@ROUTES.post(
    "/v0/tables",
    answer=table_answers.TableRow,
    scope=ADMIN,
    body=requests.NewTableBody,
    statuses=(201,),
    errors=(*ERRORS, TableExists, ChangedMeanwhile),
)
async def create_table(call: Call) -> Answer:
    """Create a table that is not there yet."""
    tables = desk(call)
    options = _given(call.read(requests.NewTableBody), tables.place.url)
    name = options.pop("name")

    def work(warehouse: Warehouse) -> dict[str, Any]:
        return _shown(warehouse, warehouse.create(name, **options).name)

    return _told(call, {**await tables.do(work), "created": True}, 201)


@ROUTES.put(
    "/v0/tables/{name}",
    answer=table_answers.TableRow,
    scope=ADMIN,
    named="table",
    body=requests.TableBody,
    statuses=(200, 201),
    errors=(*ERRORS, TableCycle, ChangedMeanwhile),
)
async def put_table(call: Call) -> Answer:
    """Create a table, or give it another definition."""
    tables, name = desk(call), call.name
    options = _given(call.read(requests.TableBody), tables.place.url)

    def work(warehouse: Warehouse) -> tuple[bool, dict[str, Any]]:
        known = {table.name for table in warehouse.tables()}
        made = warehouse.create_or_replace(name, **options)
        return made.name not in known, _shown(warehouse, made.name)

    created, shown = await tables.do(work)
    return _told(call, {**shown, "created": created}, 201 if created else 200)


@ROUTES.get(
    "/v0/tables/{name}",
    answer=table_answers.TableRow,
    scope=READ,
    named="table",
    errors=(*ERRORS, TableNotFound),
)
async def show_table(call: Call) -> Answer:
    """All that is known of a table."""
    tables, name = desk(call), call.name

    def work(warehouse: Warehouse) -> tuple[dict[str, Any], list[TopicSource]]:
        return _shown(warehouse, name), warehouse.topics()

    shown, topics = await tables.look(work)
    heads = _heads(call.context.engine, [each for each in topics if each.url == tables.place.url])
    return _told(call, {**shown, "behind": _behind(shown, heads)})


@ROUTES.post(
    "/v0/tables/{name}/alter",
    answer=table_answers.TableRow,
    scope=ADMIN,
    named="table",
    body=requests.TableOptions,
    errors=(*ERRORS, TableNotFound, ChangedMeanwhile),
)
async def alter_table(call: Call) -> Answer:
    """Change how a table is refreshed."""
    tables, name = desk(call), call.name
    options = _given(call.read(requests.TableOptions), tables.place.url)
    if not options:
        raise InvalidRequest("there is nothing to change: name an option, such as schedule")

    def work(warehouse: Warehouse) -> dict[str, Any]:
        return _shown(warehouse, warehouse.alter(name, **options).name)

    return _told(call, await tables.do(work))


@ROUTES.delete(
    "/v0/tables/{name}",
    answer=table_answers.TablesDropped,
    scope=DELETE,
    named="table",
    query=(Param("cascade", FLAG, "Drop what reads it as well."),),
    errors=(*ERRORS, TableNotFound, TableInUse, ChangedMeanwhile),
)
async def drop_table(call: Call) -> Answer:
    """Drop a table with its contents."""
    cascade, name = call.query.flag("cascade", False), call.name
    gone = await desk(call).do(lambda warehouse: warehouse.drop(name, cascade=cascade))
    return call.answer(dropped=list(gone))


@ROUTES.post(
    "/v0/tables/{name}/refresh",
    answer=table_answers.TableRefresh,
    scope=WRITE,
    named="table",
    body=requests.RefreshBody,
    body_optional=True,
    statuses=(200, 202),
    errors=(*ERRORS, TableNotFound, NotCoordinated),
)
async def refresh_table(call: Call) -> Answer:
    """Have the coordinator refresh a table now; waits for it if asked to."""
    tables, name = desk(call), call.name
    body = call.read(requests.RefreshBody, may_be_empty=True)
    async with notified(tables) as news:
        request_id = await tables.do(lambda warehouse: warehouse.ask(name, force=body.force))
        answered = await wait_for(call, tables, lambda w: w.answer(request_id), body.wait_ms, news)
    shown: dict[str, Any] = {"table": name.lower(), "request_id": request_id}
    if answered is None:
        return call.answer(202, **shown, done=False)
    return call.answer(**shown, done=True, ok=answered.ok, detail=answered.detail)


@ROUTES.post(
    "/v0/tables/{name}/pause",
    answer=table_answers.TableSwitched,
    scope=ADMIN,
    named="table",
    errors=(*ERRORS, TableNotFound),
)
async def pause_table(call: Call) -> Answer:
    """Stop refreshing a table."""
    name = call.name
    return await _set_status(call, lambda warehouse: warehouse.pause(name))


@ROUTES.post(
    "/v0/tables/{name}/resume",
    answer=table_answers.TableSwitched,
    scope=ADMIN,
    named="table",
    errors=(*ERRORS, TableNotFound),
)
async def resume_table(call: Call) -> Answer:
    """Refresh a table again that was paused, suspended or in error."""
    name = call.name
    return await _set_status(call, lambda warehouse: warehouse.resume(name))


@ROUTES.get(
    "/v0/tables/{name}/why",
    answer=table_answers.TableWhy,
    scope=READ,
    named="table",
    errors=(*ERRORS, TableNotFound),
)
async def why_table(call: Call) -> Answer:
    """Why a table waits."""
    name = call.name
    found = await desk(call).look(lambda warehouse: warehouse.why(name))
    return call.answer(**found._asdict())


@ROUTES.get(
    "/v0/tables/{name}/explain",
    answer=table_answers.TableExplained,
    scope=READ,
    named="table",
    errors=(*ERRORS, TableNotFound),
)
async def explain_table(call: Call) -> Answer:
    """A table's unit, inputs, mode and reason, and its last refresh."""
    name = call.name
    return call.answer(**await desk(call).do(lambda warehouse: warehouse.explain(name)))


@ROUTES.get(
    "/v0/tables/{name}/history",
    answer=table_answers.RefreshList,
    scope=READ,
    named="table",
    query=(Param("limit", NUMBER, "Rows at most, 1 to 1000; 100 if not said."),),
    errors=(*ERRORS, TableNotFound),
)
async def table_history(call: Call) -> Answer:
    """Refreshes of a table, the newest first."""
    limit, name = row_limit(call), call.name

    def work(warehouse: Warehouse) -> list[dict[str, Any]]:
        return history(warehouse, warehouse.table(name).name, limit)

    return call.answer(refreshes=await desk(call).look(work))


@ROUTES.get(
    "/v0/tables/{name}/rows",
    answer=table_answers.RowPage,
    scope=READ,
    named="table",
    query=(
        Param("limit", NUMBER, "Rows of a page; 1000 if not said, at most 100000."),
        Param("offset", NUMBER, "Rows to leave out; `next_offset` of the page before."),
        Param("snapshot", NUMBER, "As of this snapshot of the lake; the newest if not said."),
        Param("columns", TEXT, "Only these columns, joined by commas."),
        Param(
            "format",
            {"enum": ["json", "csv", "arrow"]},
            "Instead of what the Accept header asks for.",
        ),
    ),
    errors=(*ERRORS, TableNotFound, NoContents, SnapshotExpired),
    also=(ARROW, "text/csv"),
)
async def table_rows(call: Call) -> Answer:
    """Rows of a table, as JSON, CSV or Arrow, now or at a snapshot."""
    tables, query, name = desk(call), call.query, call.name
    headers = call.request.headers
    kind = format_of(query.text("format"), headers.get("accept", ""))
    limit = min(query.number("limit", ROWS), ROWS_MAX)
    offset = query.number("offset", 0)
    at = query.number("snapshot", 0) if query.text("snapshot") is not None else None
    wanted = query.text("columns")
    columns = None if not wanted else [part.strip() for part in wanted.split(",")]
    compression = arrow_compression(headers)

    def work(warehouse: Warehouse) -> Answer:
        page = warehouse.rows(name, at=at, offset=offset, limit=limit, columns=columns)
        return page_answer(page, kind, call.total_ms(), compression)

    return await tables.do(work)


def _given(body: requests.TableOptions, url: str) -> dict[str, str]:
    """The options that the request names; a topic to publish to is one of this server."""
    found = {name: value for name, value in structs.asdict(body).items() if value is not UNSET}
    return {**found, "publish_url": url} if found.get("publish") else found


def _told(call: Call, fields: dict[str, Any], status: int = 200) -> Answer:
    """A data answer that may have a field `status`."""
    return Answer(status, data_body(fields, call.total_ms()))


async def _set_status(call: Call, change: Callable[[Warehouse], None]) -> Answer:
    name = call.name

    def work(warehouse: Warehouse) -> tuple[str, str]:
        change(warehouse)
        table = warehouse.table(name)
        return table.name, table.status.value

    table, status = await desk(call).do(work)
    return _told(call, {"table": table, "status": status})


def _statuses(warehouse: Warehouse, outcomes: int) -> dict[str, dict[str, Any]]:
    """Every table: definition, freshness, progress of a running refresh, and last outcomes."""
    from penstock.server.overview.looks import look_at_tables
    from penstock.tables.status import definition_facts, status_facts

    look = look_at_tables(warehouse)
    rows = {row.table: (row, fresh) for row, fresh in zip(look.rows, look.fresh, strict=True)}
    running = {job.unit_key: job.progress for job in look.running}
    past = warehouse.outcomes(outcomes) if outcomes else {}
    found = {}
    for table in warehouse.tables():
        if table.name not in rows:
            continue
        row, fresh = rows[table.name]
        progress = running.get(row.unit_key)
        found[table.name] = {
            **definition_facts(table),
            **status_facts(row),
            "state": fresh.state,
            "stale_by_ms": fresh.stale_by_ms,
            "progress": None if progress is None else progress.plain(),
        }
        if outcomes:
            found[table.name]["outcomes"] = _columns(past.get(table.name, []))
    return found


def _columns(records: list[RefreshRecord]) -> table_answers.OutcomeColumns:
    """Refreshes as columns, oldest first."""
    records = records[::-1]
    return table_answers.OutcomeColumns(
        finished=[record.finished_at_ms for record in records],
        took_ms=[record.took_ms for record in records],
        outcome=[record.outcome.value for record in records],
        mode=[record.executed.value if record.executed else None for record in records],
        reason=[record.reason.value for record in records],
    )


def _shown(warehouse: Warehouse, name: str) -> dict[str, Any]:
    from penstock.tables.status import definition_facts

    table = warehouse.table(name)
    explained = warehouse.explain(table.name)
    return {
        **definition_facts(table),
        **{key: explained[key] for key in _EXPLAINED},
        "why": warehouse.why(table.name).text,
        "status_detail": warehouse.details().get(table.name),
    }


def _heads(engine: Engine, topics: Iterable[TopicSource]) -> dict[str, int]:
    """The heads of topics of this server, by the names that queries give them."""
    known = engine.registry.topics
    return {each.name: known[each.topic].head_seq for each in topics if each.topic in known}


def _behind(shown: dict[str, Any], heads: Mapping[str, int]) -> dict[str, int | None]:
    """How many rows or records came to each input since the table read it; None if not known."""
    coming = shown["next_refresh"]["inputs"]
    found: dict[str, int | None] = {}
    for name, seen in shown["inputs"].items():
        found[name] = coming.get(name, {}).get("changed_rows")
        if seen is not None and name in heads:
            found[name] = max(0, heads[name] - int(seen[-1]))
    return found


def format_of(asked: str | None, accept: str) -> str:
    """The media type of a page: from the query, else from Accept, else JSON."""
    if asked is not None:
        if asked not in _FORMATS:
            raise InvalidRequest(f"format must be json, csv or arrow, not {asked[:100]!r}")
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
        from penstock.tables.changes import plain_rows

        columns = [{"name": field.name, "type": str(field.type)} for field in page.rows.schema]
        shown = {
            "table": page.table,
            **facts,
            "columns": columns,
            "rows": plain_rows(page.rows),
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
