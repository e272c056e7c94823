"""Handlers of the lake: what it holds, and a SELECT over one snapshot of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.protocol import lake_answers, requests
from penstock.protocol.errors import (
    InvalidQuery,
    QueryTooLarge,
    QueryTooSlow,
    RelationNotFound,
    SnapshotExpired,
    Throttled,
)
from penstock.protocol.lake_answers import QUERY_MS_MAX, QUERY_ROWS_MAX
from penstock.protocol.routes import ARROW, NUMBER, READ, Param
from penstock.server.api.answers import encode
from penstock.server.api.call import ROUTES, Call
from penstock.server.api.queries import arrow_compression
from penstock.server.api.tables import CSV, JSON, arrow_bytes, csv_bytes, format_of
from penstock.server.api.warehouse import ERRORS, desk, row_limit
from penstock.server.http.message import Answer
from penstock.server.overview import lake
from penstock.server.overview.select import Selected, has_duckdb, select

if TYPE_CHECKING:
    from penstock.tables.warehouse import Warehouse

SNAPSHOT: Final = Param("snapshot", NUMBER, "As of this snapshot; the newest if not said.")
FORMAT: Final = Param(
    "format", {"enum": ["json", "csv", "arrow"]}, "Instead of what the Accept header asks for."
)
GRACE_S: Final = 5.0
"""How long a query may take beyond its limit, to be ended, before it is left to itself."""


@ROUTES.get("/v0/lake", answer=lake_answers.LakeState, scope=READ, errors=ERRORS)
async def lake_state(call: Call) -> Answer:
    """The lake: its newest snapshot, and what that holds."""
    return await _told(call, lake.lake_state)


@ROUTES.get(
    "/v0/lake/snapshots",
    answer=lake_answers.LakeSnapshots,
    scope=READ,
    query=(
        Param("limit", NUMBER, "Rows at most, 1 to 1000; 100 if not said."),
        Param("before", NUMBER, "`next_before` of the page before."),
    ),
    errors=ERRORS,
)
async def lake_snapshots(call: Call) -> Answer:
    """Snapshots, the newest first."""
    before = _number(call, "before")
    return await _told(call, partial(lake.lake_snapshots, limit=row_limit(call), before=before))


@ROUTES.get(
    "/v0/lake/tables",
    answer=lake_answers.LakeTables,
    scope=READ,
    query=(SNAPSHOT,),
    errors=(*ERRORS, SnapshotExpired),
)
async def lake_tables(call: Call) -> Answer:
    """The tables of a snapshot with their columns and sizes, by name."""
    return await _told(call, partial(lake.lake_tables, at=_number(call, "snapshot")))


@ROUTES.get(
    "/v0/lake/tables/{name}",
    answer=lake_answers.LakeTable,
    scope=READ,
    named="table",
    query=(SNAPSHOT,),
    errors=(*ERRORS, RelationNotFound, SnapshotExpired),
)
async def lake_table(call: Call) -> Answer:
    """One table at a snapshot."""
    return await _told(call, partial(lake.lake_table, name=call.name, at=_number(call, "snapshot")))


@ROUTES.get(
    "/v0/lake/tables/{name}/files",
    answer=lake_answers.LakeFiles,
    scope=READ,
    named="table",
    query=(SNAPSHOT,),
    errors=(*ERRORS, RelationNotFound, SnapshotExpired),
)
async def lake_files(call: Call) -> Answer:
    """The data files of a table at a snapshot, the newest first."""
    return await _told(call, partial(lake.lake_files, name=call.name, at=_number(call, "snapshot")))


@ROUTES.post(
    "/v0/query",
    answer=lake_answers.QueryResult,
    scope=READ,
    body=requests.QueryBody,
    query=(FORMAT,),
    errors=(
        *ERRORS, InvalidQuery, RelationNotFound, SnapshotExpired, QueryTooLarge, QueryTooSlow,
    ),
    also=(ARROW, CSV),
)  # fmt: skip
async def query_lake(call: Call) -> Answer:
    """Run a SELECT over one snapshot of the lake: 1000 rows and 10 s at most, one at a time."""
    tables, body = desk(call), call.read(requests.QueryBody)
    headers = call.request.headers
    kind = format_of(call.query.text("format"), headers.get("accept", ""))
    running, who = call.context.looks.selecting, call.grant.digest if call.grant else b""
    if who in running:
        raise Throttled("a query of this key is running: one at a time")
    running.add(who)
    duckdb = has_duckdb()

    def work(warehouse: Warehouse) -> Answer:
        try:
            found = select(warehouse, body.query, body.snapshot, duckdb=duckdb)
            command = lake.open_command(warehouse, found.snapshot)
            return _answer(found, kind, command, call.total_ms(), arrow_compression(headers))
        finally:
            running.discard(who)

    try:
        return await asyncio.wait_for(tables.do(work), QUERY_MS_MAX / 1_000 + GRACE_S)
    except TimeoutError as error:
        raise QueryTooSlow("the query takes too long and goes on for nothing: wait") from error


def _answer(
    found: Selected, kind: str, command: str, total_ms: float, compression: str | None
) -> Answer:
    """The rows in the requested format. Slow: not on the event loop."""
    truncated = found.rows.num_rows > QUERY_ROWS_MAX
    rows = found.rows.slice(0, QUERY_ROWS_MAX)
    facts: dict[str, Any] = {
        "snapshot": found.snapshot, "engine": found.engine, "truncated": truncated,
        "took_ms": round(total_ms, 3), "command": command,
    }  # fmt: skip
    if kind == JSON:
        from penstock.tables.changes import plain_rows

        columns = [{"name": each.name, "type": str(each.type)} for each in rows.schema]
        performance = {"server_total_ms": round(total_ms, 3)}
        shown = {**facts, "columns": columns, "rows": plain_rows(rows), "performance": performance}
        return Answer(200, encode(shown))
    named = ("snapshot", "engine", "truncated")
    told = tuple((b"x-penstock-" + name.encode(), encode(facts[name])) for name in named)
    if kind == CSV:
        return Answer(200, csv_bytes(rows), b"text/csv; charset=utf-8", told)
    return Answer(200, arrow_bytes(rows, compression), ARROW.encode(), told)


async def _told(call: Call, look: Callable[[Warehouse], Struct]) -> Answer:
    return call.tell(await desk(call).do(look))


def _number(call: Call, name: str) -> int | None:
    return call.query.number(name, 0) if call.query.text(name) is not None else None
