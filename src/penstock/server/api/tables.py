"""Handlers of stream tables: each calls the warehouse in a thread and returns plain values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.protocol import answers, requests
from penstock.protocol.errors import (
    ChangedMeanwhile,
    InvalidRequest,
    NoContents,
    NotCoordinated,
    NoWarehouse,
    RelationNotFound,
    SnapshotExpired,
    SourceExists,
    SourceNotFound,
    TableCycle,
    TableExists,
    TableInUse,
    TableNotFound,
    Throttled,
    WarehouseAway,
)
from penstock.protocol.routes import ADMIN, ARROW, DELETE, READ, WRITE, Param
from penstock.server.api.answers import data_body
from penstock.server.api.call import Call
from penstock.server.api.queries import arrow_compression, make_cursor
from penstock.server.api.routes import FLAG, NUMBER, PAGES, ROUTES, TEXT
from penstock.server.api.table_pages import (
    OPTIONS,
    ROWS,
    ROWS_MAX,
    check_names,
    definition_of,
    flag_of,
    format_of,
    page_answer,
    texts_of,
    wait_of,
)
from penstock.server.api.tables_desk import TablesDesk
from penstock.server.http.message import Answer

if TYPE_CHECKING:
    from penstock.tables.warehouse import Answered, Warehouse

Rung = Callable[[float], Awaitable[None]]
LIMIT: Final = 100
LIMIT_MAX: Final = 1_000


@ROUTES.get(
    "/v0/tables",
    answer=answers.TableList,
    scope=READ,
    query=(*PAGES,),
    errors=(
        NoWarehouse,
        Throttled,
        WarehouseAway,
    ),
)
async def list_tables(call: Call) -> Answer:
    """Tables with how fresh each is and what it waits for."""
    query = call.query
    prefix, after, size = query.text("prefix") or "", query.after(), query.page_size()
    found = await desk(call).do(_statuses)
    names = sorted(name for name in found if name.startswith(prefix) and name > (after or ""))
    shown: dict[str, Any] = {"tables": [found[name] for name in names[:size]]}
    if len(names) > size:
        shown["next_cursor"] = make_cursor(names[size - 1])
    return call.answer(**shown)


@ROUTES.post(
    "/v0/tables",
    answer=answers.TableRow,
    scope=ADMIN,
    body=requests.NewTable,
    statuses=(201,),
    errors=(
        NoWarehouse,
        TableExists,
        ChangedMeanwhile,
        Throttled,
        WarehouseAway,
    ),
)
async def create_table(call: Call) -> Answer:
    """Create a table that is not there yet."""
    tables = desk(call)
    body = call.body()
    name = body.pop("name", None)
    if not isinstance(name, str):
        raise InvalidRequest(f"expected name to be text, found {name!r}")
    options = definition_of(body)

    def work(warehouse: Warehouse) -> dict[str, Any]:
        return _shown(warehouse, warehouse.create(name, **options).name)

    return _told(call, {**await tables.do(work), "created": True}, 201)


@ROUTES.put(
    "/v0/tables/{name}",
    answer=answers.TableRow,
    scope=ADMIN,
    named="table",
    body=requests.TableBody,
    statuses=(200, 201),
    errors=(
        NoWarehouse,
        TableCycle,
        ChangedMeanwhile,
        Throttled,
        WarehouseAway,
    ),
)
async def put_table(call: Call) -> Answer:
    """Create a table, or give it another definition."""
    tables, name = desk(call), call.name
    options = definition_of(call.body())

    def work(warehouse: Warehouse) -> tuple[bool, dict[str, Any]]:
        known = {table.name for table in warehouse.tables()}
        made = warehouse.create_or_replace(name, **options)
        return made.name not in known, _shown(warehouse, made.name)

    created, shown = await tables.do(work)
    return _told(call, {**shown, "created": created}, 201 if created else 200)


@ROUTES.get(
    "/v0/tables/{name}",
    answer=answers.TableRow,
    scope=READ,
    named="table",
    errors=(
        NoWarehouse,
        TableNotFound,
        Throttled,
        WarehouseAway,
    ),
)
async def show_table(call: Call) -> Answer:
    """All that is known of a table."""
    return _told(call, await desk(call).do(partial(_shown, name=call.name)))


@ROUTES.post(
    "/v0/tables/{name}/alter",
    answer=answers.TableRow,
    scope=ADMIN,
    named="table",
    body=requests.TableChange,
    errors=(
        NoWarehouse,
        TableNotFound,
        ChangedMeanwhile,
        Throttled,
        WarehouseAway,
    ),
)
async def alter_table(call: Call) -> Answer:
    """Change how a table is refreshed."""
    tables, name = desk(call), call.name
    options = texts_of(call.body(), OPTIONS)
    if not options:
        raise InvalidRequest("expected something to change, such as schedule, found nothing")

    def work(warehouse: Warehouse) -> dict[str, Any]:
        return _shown(warehouse, warehouse.alter(name, **options).name)

    return _told(call, await tables.do(work))


@ROUTES.delete(
    "/v0/tables/{name}",
    answer=answers.TablesDropped,
    scope=DELETE,
    named="table",
    query=(Param("cascade", FLAG, "Drop what reads it as well."),),
    errors=(
        NoWarehouse,
        TableNotFound,
        TableInUse,
        ChangedMeanwhile,
        Throttled,
        WarehouseAway,
    ),
)
async def drop_table(call: Call) -> Answer:
    """Drop a table with its contents."""
    cascade, name = call.query.flag("cascade", False), call.name
    gone = await desk(call).do(lambda warehouse: warehouse.drop(name, cascade=cascade))
    return call.answer(dropped=list(gone))


@ROUTES.post(
    "/v0/tables/{name}/refresh",
    answer=answers.TableRefresh,
    scope=WRITE,
    named="table",
    body=requests.RefreshBody,
    body_optional=True,
    statuses=(200, 202),
    errors=(
        NoWarehouse,
        TableNotFound,
        NotCoordinated,
        Throttled,
        WarehouseAway,
    ),
)
async def refresh_table(call: Call) -> Answer:
    """Have the coordinator refresh a table now; waits for it if asked to."""
    tables, name = desk(call), call.name
    body = call.body(may_be_empty=True)
    check_names(body, ("force", "wait_ms"))
    force, wait_ms = flag_of(body, "force", False), wait_of(body)
    async with _rung(tables) as rung:
        request_id = await tables.do(lambda warehouse: warehouse.ask(name, force=force))
        answered = await _wait(call, tables, lambda w: w.answer(request_id), wait_ms, rung)
    shown: dict[str, Any] = {"table": name.lower(), "request_id": request_id}
    if answered is None:
        return call.answer(202, **shown, done=False)
    return call.answer(**shown, done=True, ok=answered.ok, detail=answered.detail)


@ROUTES.post(
    "/v0/tables/{name}/pause",
    answer=answers.TableStatus,
    scope=ADMIN,
    named="table",
    errors=(
        NoWarehouse,
        TableNotFound,
        Throttled,
        WarehouseAway,
    ),
)
async def pause_table(call: Call) -> Answer:
    """Stop refreshing a table."""
    name = call.name
    return await _set_status(call, lambda warehouse: warehouse.pause(name))


@ROUTES.post(
    "/v0/tables/{name}/resume",
    answer=answers.TableStatus,
    scope=ADMIN,
    named="table",
    errors=(
        NoWarehouse,
        TableNotFound,
        Throttled,
        WarehouseAway,
    ),
)
async def resume_table(call: Call) -> Answer:
    """Refresh a table again that was paused, suspended or in error."""
    name = call.name
    return await _set_status(call, lambda warehouse: warehouse.resume(name))


@ROUTES.get(
    "/v0/tables/{name}/why",
    answer=answers.TableWhy,
    scope=READ,
    named="table",
    errors=(
        NoWarehouse,
        TableNotFound,
        Throttled,
        WarehouseAway,
    ),
)
async def why_table(call: Call) -> Answer:
    """Why a table waits."""
    name = call.name
    found = await desk(call).do(lambda warehouse: warehouse.why(name))
    return call.answer(**found._asdict())


@ROUTES.get(
    "/v0/tables/{name}/explain",
    answer=answers.TableExplained,
    scope=READ,
    named="table",
    errors=(
        NoWarehouse,
        TableNotFound,
        Throttled,
        WarehouseAway,
    ),
)
async def explain_table(call: Call) -> Answer:
    """A table's unit, inputs, mode and reason, and its last refresh."""
    name = call.name
    return call.answer(**await desk(call).do(lambda warehouse: warehouse.explain(name)))


@ROUTES.get(
    "/v0/tables/{name}/history",
    answer=answers.Refreshes,
    scope=READ,
    named="table",
    query=(Param("limit", NUMBER, "Rows at most, 1 to 1000; 100 if not said."),),
    errors=(
        NoWarehouse,
        TableNotFound,
        Throttled,
        WarehouseAway,
    ),
)
async def table_history(call: Call) -> Answer:
    """Refreshes of a table, the newest first."""
    limit, name = _limit(call), call.name

    def work(warehouse: Warehouse) -> list[dict[str, Any]]:
        return _history(warehouse, warehouse.table(name).name, limit)

    return call.answer(refreshes=await desk(call).do(work))


@ROUTES.get(
    "/v0/tables/{name}/rows",
    answer=answers.Rows,
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
    errors=(
        NoWarehouse,
        TableNotFound,
        NoContents,
        SnapshotExpired,
        Throttled,
        WarehouseAway,
    ),
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


@ROUTES.get(
    "/v0/warehouse",
    answer=answers.WarehouseState,
    scope=READ,
    errors=(
        NoWarehouse,
        Throttled,
        WarehouseAway,
    ),
)
async def show_warehouse(call: Call) -> Answer:
    """Whether tables are kept fresh: health, workers, permits, what runs, closed gates."""
    return call.answer(**await desk(call).do(_warehouse))


@ROUTES.get(
    "/v0/warehouse/jobs",
    answer=answers.Jobs,
    scope=READ,
    query=(
        Param("limit", NUMBER, "Rows at most, 1 to 1000; 100 if not said."),
        Param("live", FLAG, "Only jobs that are queued or running."),
    ),
    errors=(
        NoWarehouse,
        Throttled,
        WarehouseAway,
    ),
)
async def warehouse_jobs(call: Call) -> Answer:
    """What was started, the newest first."""
    limit, live = _limit(call), call.query.flag("live", False)

    def work(warehouse: Warehouse) -> list[dict[str, Any]]:
        from penstock.tables.plain import job_facts

        return [job_facts(job) for job in warehouse.jobs(live_only=live, limit=limit)]

    return call.answer(jobs=await desk(call).do(work))


@ROUTES.get(
    "/v0/warehouse/history",
    answer=answers.Refreshes,
    scope=READ,
    query=(Param("limit", NUMBER, "Rows at most, 1 to 1000; 100 if not said."),),
    errors=(
        NoWarehouse,
        Throttled,
        WarehouseAway,
    ),
)
async def warehouse_history(call: Call) -> Answer:
    """Refreshes of all tables, the newest first."""
    limit = _limit(call)
    return call.answer(refreshes=await desk(call).do(lambda w: _history(w, None, limit)))


@ROUTES.post(
    "/v0/warehouse/drain",
    answer=answers.Drained,
    scope=ADMIN,
    body=requests.DrainBody,
    body_optional=True,
    errors=(
        NoWarehouse,
        Throttled,
        WarehouseAway,
    ),
)
async def drain_warehouse(call: Call) -> Answer:
    """Start nothing new and let what runs end; or go on."""
    tables = desk(call)
    body = call.body(may_be_empty=True)
    check_names(body, ("draining", "wait_ms"))
    draining, wait_ms = flag_of(body, "draining", True), wait_of(body)
    if not draining:
        await tables.do(lambda warehouse: warehouse.undrain())
        return call.answer(draining=False, idle=False)
    async with _rung(tables) as rung:
        await tables.do(lambda warehouse: warehouse.drain())
        idle = await _wait(
            call, tables, lambda w: not w.jobs(live_only=True) or None, wait_ms, rung
        )
    return call.answer(draining=True, idle=bool(idle))


@ROUTES.post(
    "/v0/warehouse/gate",
    answer=answers.Gated,
    scope=ADMIN,
    body=requests.GateBody,
    errors=(
        NoWarehouse,
        RelationNotFound,
        Throttled,
        WarehouseAway,
    ),
)
async def gate_relation(call: Call) -> Answer:
    """Close a relation, so that nothing that reads it is refreshed; or open it."""
    tables = desk(call)
    body = call.body()
    check_names(body, ("relation", "closed", "detail"))
    relation, detail = body.get("relation"), body.get("detail", "")
    if not isinstance(relation, str) or not relation or not isinstance(detail, str):
        raise InvalidRequest("expected relation and detail to be texts, found something else")
    closed = flag_of(body, "closed", True)

    def work(warehouse: Warehouse) -> list[str]:
        if closed:
            warehouse.gate(relation, detail)
        else:
            warehouse.ungate(relation)
        return list(warehouse.gates())

    return call.answer(relation=relation, closed=closed, gates=await tables.do(work))


@ROUTES.get(
    "/v0/sources",
    answer=answers.SourceList,
    scope=READ,
    errors=(
        NoWarehouse,
        Throttled,
        WarehouseAway,
    ),
)
async def list_sources(call: Call) -> Answer:
    """Topics that tables may read."""

    def work(warehouse: Warehouse) -> list[dict[str, Any]]:
        from penstock.tables.plain import source_facts

        return [source_facts(source) for source in warehouse.topics()]

    return call.answer(sources=await desk(call).do(work))


@ROUTES.put(
    "/v0/sources/{name}",
    answer=answers.Source,
    scope=ADMIN,
    named="source",
    body=requests.SourceBody,
    statuses=(200, 201),
    errors=(
        NoWarehouse,
        SourceExists,
        ChangedMeanwhile,
        Throttled,
        WarehouseAway,
    ),
)
async def put_source(call: Call) -> Answer:
    """Say which columns the records of a topic have."""
    tables, name = desk(call), call.name
    body = call.body()
    check_names(body, ("schema", "key", "url"))
    schema, key, url = body.get("schema"), body.get("key", []), body.get("url", tables.place.url)
    keys = [key] if isinstance(key, str) else key
    if not isinstance(schema, str) or not isinstance(url, str):
        raise InvalidRequest("expected schema and url to be texts, found something else")
    if not isinstance(keys, list) or not all(isinstance(part, str) for part in keys):
        raise InvalidRequest(f"expected key to name columns, found {key!r}")

    def work(warehouse: Warehouse) -> tuple[bool, dict[str, Any]]:
        from penstock.tables.plain import source_facts

        known = {source.topic for source in warehouse.topics()}
        columns = ",".join(keys)
        made = warehouse.declare_topic(name, schema, key=columns, url=url, replace=True)
        return made.topic not in known, source_facts(made)

    created, shown = await tables.do(work)
    return call.answer(201 if created else 200, **shown, created=created)


@ROUTES.get(
    "/v0/sources/{name}",
    answer=answers.Source,
    scope=READ,
    named="source",
    errors=(
        NoWarehouse,
        SourceNotFound,
        Throttled,
        WarehouseAway,
    ),
)
async def show_source(call: Call) -> Answer:
    """A topic that tables may read."""
    name = call.name

    def work(warehouse: Warehouse) -> dict[str, Any]:
        from penstock.tables.plain import source_facts

        return source_facts(warehouse.topic(name))

    return call.answer(**await desk(call).do(work))


@ROUTES.delete(
    "/v0/sources/{name}",
    answer=answers.SourceDropped,
    scope=DELETE,
    named="source",
    errors=(
        NoWarehouse,
        SourceNotFound,
        TableInUse,
        Throttled,
        WarehouseAway,
    ),
)
async def drop_source(call: Call) -> Answer:
    """Let no table read a topic any more."""
    name = call.name
    await desk(call).do(lambda warehouse: warehouse.forget_topic(name))
    return call.answer(topic=name, dropped=True)


HANDLERS: Final[dict[str, Callable[[Call], Any]]] = {
    function.__name__: function
    for function in (
        list_tables, create_table, put_table, show_table, alter_table, drop_table, refresh_table,
        pause_table, resume_table, why_table, explain_table, table_history, table_rows,
        show_warehouse, warehouse_jobs, warehouse_history, drain_warehouse, gate_relation,
        list_sources, put_source, show_source, drop_source,
    )
}  # fmt: skip


def desk(call: Call) -> TablesDesk:
    """The warehouse, for a key without prefixes: a table may read any topic."""
    call.check_unbounded()
    if call.context.tables is None:
        raise NoWarehouse
    return call.context.tables


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


@asynccontextmanager
async def _rung(tables: TablesDesk) -> AsyncIterator[Rung]:
    """An awaitable that ends when the coordinator may have news, or when it is time to poll."""
    notifier = await tables.do(lambda warehouse: warehouse.notifier())
    loop, heard = asyncio.get_running_loop(), asyncio.Event()

    def take() -> None:
        loop.remove_reader(notifier)
        heard.set()

    async def wait(timeout_s: float) -> None:
        if notifier.is_open:
            loop.add_reader(notifier, take)
        with suppress(TimeoutError):
            await asyncio.wait_for(heard.wait(), min(timeout_s, notifier.patience_s))
        if notifier.is_open:
            loop.remove_reader(notifier)
        heard.clear()
        notifier.receive()

    try:
        yield wait
    finally:
        notifier.close()


async def _wait(
    call: Call,
    tables: TablesDesk,
    ask: Callable[[Warehouse], Any],
    wait_ms: int,
    rung: Rung,
) -> Answered | Any:
    """Poll until there is an answer; give up if the client disconnects or the server stops."""
    found = await tables.do(ask)
    if found is not None or not wait_ms:
        return found
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_ms / 1_000
    with call.parked():
        while found is None and loop.time() < until_s:
            await rung(until_s - loop.time())
            found = await tables.do(ask)
        return found


def _limit(call: Call) -> int:
    return min(max(call.query.number("limit", LIMIT), 1), LIMIT_MAX)


def _statuses(warehouse: Warehouse) -> dict[str, dict[str, Any]]:
    from penstock.tables.plain import definition_facts, status_facts

    rows = {row.table: row for row in warehouse.status()}
    return {
        table.name: {**definition_facts(table), **status_facts(rows[table.name])}
        for table in warehouse.tables()
        if table.name in rows
    }


def _shown(warehouse: Warehouse, name: str) -> dict[str, Any]:
    from penstock.tables.plain import definition_facts

    table = warehouse.table(name)
    explained = warehouse.explain(table.name)
    return {
        **definition_facts(table),
        **{key: explained[key] for key in ("unit", "inputs", "last_refresh", "differential")},
        "why": warehouse.why(table.name).text,
        "status_detail": warehouse.details().get(table.name),
    }


def _history(warehouse: Warehouse, table: str | None, limit: int) -> list[dict[str, Any]]:
    from penstock.tables.plain import record_facts

    return [record_facts(record) for record in warehouse.history(table, limit=limit)]


def _warehouse(warehouse: Warehouse) -> dict[str, Any]:
    health, pool = warehouse.health(), warehouse.pool()
    return {
        "state": health.state.value,
        "text": health.text,
        "workers": [dict(worker) for worker in pool.workers],
        "running": [
            {**job._asdict(), "progress": job.progress.plain() if job.progress else None}
            for job in pool.running
        ],
        "unfit": pool.unfit,
        "topics_trouble": pool.topics_trouble,
        "permits": dict(pool.permits),
        "permits_max": pool.permits_max,
        "gates": list(warehouse.gates()),
        "pool": asdict(pool.pool) if pool.pool else None,
    }
