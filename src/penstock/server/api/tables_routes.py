"""The routes of stream tables: a table and its rows, the warehouse they are in, topics they read.

They answer 404 `no_warehouse` on a server that was told of none.
"""

from __future__ import annotations

from typing import Final

from penstock.server.api.auth import ADMIN, DELETE, READ, WRITE
from penstock.server.api.routing import Param, Route
from penstock.server.api.schemas import FLAG, TEXT, U64, Schema

TABLE_NAME: Final[Schema] = {
    "type": "string",
    "pattern": r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$",
    "maxLength": 120,
}

_TABLE: Final = "/v0/tables/{name}"
_SOURCE: Final = "/v0/sources/{name}"
_WAREHOUSE: Final = "/v0/warehouse"
_LIMIT: Final = Param("limit", U64, "Rows at most, 1 to 1000; 100 if not said.")

TABLE_ROUTES: Final = (
    Route(
        "GET", "/v0/tables", "list_tables", "Tables with how fresh each is and what it waits for.",
        "TableList", READ, errors=(404, 429),
        query=(
            Param("prefix", TEXT, "Only names that begin like this."),
            Param("page_size", U64, "Rows of a page, 1 to 1000; 100 if not said."),
            Param("cursor", TEXT, "`next_cursor` of the page before."),
        ),
    ),
    Route(
        "POST", "/v0/tables", "create_table", "Create a table that is not there yet.", "Table",
        ADMIN, body="NewTable", statuses=(201,), errors=(404, 409, 429),
    ),
    Route(
        "PUT", _TABLE, "put_table", "Create a table, or give it another definition.", "Table",
        ADMIN, "table", "TableBody", statuses=(200, 201), errors=(404, 409, 429),
    ),
    Route(
        "GET", _TABLE, "show_table", "All that is known of a table.", "Table", READ, "table",
        errors=(404, 429),
    ),
    Route(
        "DELETE", _TABLE, "drop_table", "Drop a table with its contents.", "TablesDropped", DELETE,
        "table", query=(Param("cascade", FLAG, "Drop what reads it as well."),),
        errors=(404, 409, 429),
    ),
    Route(
        "POST", f"{_TABLE}/alter", "alter_table", "Change how a table is refreshed.", "Table",
        ADMIN, "table", "TableChange", errors=(404, 409, 429),
    ),
    Route(
        "POST", f"{_TABLE}/refresh", "refresh_table",
        "Have the coordinator refresh a table now; waits for it if asked to.", "TableRefresh",
        WRITE, "table", "RefreshBody", True, statuses=(200, 202), errors=(404, 429, 503),
    ),
    Route(
        "POST", f"{_TABLE}/pause", "pause_table", "Stop refreshing a table.", "TableStatus", ADMIN,
        "table", errors=(404, 429),
    ),
    Route(
        "POST", f"{_TABLE}/resume", "resume_table",
        "Refresh a table again that was paused, suspended or in error.", "TableStatus", ADMIN,
        "table", errors=(404, 429),
    ),
    Route(
        "GET", f"{_TABLE}/why", "why_table", "Why a table waits.", "TableWhy", READ, "table",
        errors=(404, 429),
    ),
    Route(
        "GET", f"{_TABLE}/explain", "explain_table",
        "A table's unit, inputs, mode and reason, and its last refresh.", "TableExplained", READ,
        "table", errors=(404, 429),
    ),
    Route(
        "GET", f"{_TABLE}/history", "table_history", "Refreshes of a table, the newest first.",
        "Refreshes", READ, "table", query=(_LIMIT,), errors=(404, 429),
    ),
    Route(
        "GET", f"{_TABLE}/rows", "table_rows",
        "Rows of a table, as JSON, CSV or Arrow, now or at a snapshot.", "Rows", READ, "table",
        query=(
            Param("limit", U64, "Rows of a page; 1000 if not said, at most 100000."),
            Param("offset", U64, "Rows to leave out; `next_offset` of the page before."),
            Param("snapshot", U64, "As of this snapshot of the lake; the newest if not said."),
            Param("columns", TEXT, "Only these columns, joined by commas."),
            Param("format", {"enum": ["json", "csv", "arrow"]},
                  "Instead of what the Accept header asks for."),
        ),
        errors=(404, 409, 410, 429),
    ),
    Route(
        "GET", _WAREHOUSE, "show_warehouse",
        "Whether tables are kept fresh: health, workers, permits, what runs, closed gates.",
        "Warehouse", READ, errors=(404, 429),
    ),
    Route(
        "GET", f"{_WAREHOUSE}/jobs", "warehouse_jobs", "What was started, the newest first.",
        "Jobs", READ, errors=(404, 429),
        query=(_LIMIT, Param("live", FLAG, "Only jobs that are queued or running.")),
    ),
    Route(
        "GET", f"{_WAREHOUSE}/history", "warehouse_history",
        "Refreshes of all tables, the newest first.", "Refreshes", READ, query=(_LIMIT,),
        errors=(404, 429),
    ),
    Route(
        "POST", f"{_WAREHOUSE}/drain", "drain_warehouse",
        "Start nothing new and let what runs end; or go on.", "Drained", ADMIN, body="DrainBody",
        body_optional=True, errors=(404, 429),
    ),
    Route(
        "POST", f"{_WAREHOUSE}/gate", "gate_relation",
        "Close a relation, so that nothing that reads it is refreshed; or open it.", "Gated",
        ADMIN, body="GateBody", errors=(404, 429),
    ),
    Route(
        "GET", "/v0/sources", "list_sources", "Topics that tables may read.", "SourceList", READ,
        errors=(404, 429),
    ),
    Route(
        "PUT", _SOURCE, "put_source", "Say which columns the records of a topic have.", "Source",
        ADMIN, "source", "SourceBody", statuses=(200, 201), errors=(404, 409, 429),
    ),
    Route(
        "GET", _SOURCE, "show_source", "A topic that tables may read.", "Source", READ, "source",
        errors=(404, 429),
    ),
    Route(
        "DELETE", _SOURCE, "drop_source", "Let no table read a topic any more.", "SourceDropped",
        DELETE, "source", errors=(404, 409, 429),
    ),
)  # fmt: skip
"""Every route about tables."""
