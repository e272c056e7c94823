"""The shapes of requests and answers about tables, as JSON Schema."""

from __future__ import annotations

from typing import Final

from penstock.server.api.schemas import FLAG, TEXT, U64, Schema, listed, nullable, obj, ref

_OBJECT: Final[Schema] = {"type": "object"}
_INT: Final[Schema] = {"type": "integer"}
_WAIT: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 60_000}
_MODE: Final[Schema] = {"enum": ["full", "differential", "auto", "immediate"]}
_OPTIONS: Final[dict[str, Schema]] = {
    "schedule": TEXT,
    "mode": _MODE,
    "consistency": {"enum": ["atomic", "none"]},
    "description": TEXT,
}
_DEFINITION: Final[dict[str, Schema]] = {
    "query": TEXT,
    "status": {"enum": ["active", "paused"]},
    **_OPTIONS,
}


def _data(required: str, /, **properties: Schema) -> Schema:
    return obj(f"{required} performance".strip(), **properties, performance=ref("Performance"))


TABLE_COMPONENTS: Final[dict[str, Schema]] = {
    "TableBody": obj("query", **_DEFINITION),
    "NewTable": obj("name query", name=TEXT, **_DEFINITION),
    "TableChange": obj(**_OPTIONS) | {"minProperties": 1},
    "TableList": _data("tables", tables=listed(_OBJECT), next_cursor=TEXT),
    "Table": _data(
        "name query sources schedule mode consistency status",
        name=TEXT,
        query=TEXT,
        sources=listed(TEXT),
        schedule=TEXT,
        mode=TEXT,
        consistency=TEXT,
        status=TEXT,
        description=TEXT,
        created=FLAG,
    ),
    "TablesDropped": _data("dropped", dropped=listed(TEXT)),
    "TableStatus": _data("table status", table=TEXT, status=TEXT),
    "TableWhy": _data(
        "table unit_key reason text coordinated",
        table=TEXT,
        unit_key=TEXT,
        reason=TEXT,
        text=TEXT,
        coordinated=FLAG,
    ),
    "TableExplained": _data(
        "table query mode differential unit inputs last_refresh",
        table=TEXT,
        query=TEXT,
        mode=TEXT,
        differential=_OBJECT,
        unit=_OBJECT,
        inputs=_OBJECT,
        last_refresh=nullable(_OBJECT),
    ),
    "RefreshBody": obj(force=FLAG, wait_ms=_WAIT),
    "TableRefresh": _data(
        "table request_id done", table=TEXT, request_id=TEXT, done=FLAG, ok=FLAG, detail=TEXT
    ),
    "Refreshes": _data("refreshes", refreshes=listed(_OBJECT)),
    "Rows": _data(
        "table snapshot columns rows offset next_offset rows_total",
        table=TEXT,
        snapshot=U64,
        columns=listed(obj("name type", name=TEXT, type=TEXT)),
        rows=listed(_OBJECT),
        offset=U64,
        next_offset=nullable(U64),
        rows_total=U64,
    ),
    "Warehouse": _data(
        "state text workers running permits permits_max gates",
        state=TEXT,
        text=TEXT,
        workers=listed(_OBJECT),
        running=listed(_OBJECT),
        permits=_OBJECT,
        permits_max=_INT,
        gates=listed(TEXT),
        pool=nullable(_OBJECT),
    ),
    "Jobs": _data("jobs", jobs=listed(_OBJECT)),
    "DrainBody": obj(draining=FLAG, wait_ms=_WAIT),
    "Drained": _data("draining idle", draining=FLAG, idle=FLAG),
    "GateBody": obj("relation", relation=TEXT, closed=FLAG, detail=TEXT),
    "Gated": _data("relation closed gates", relation=TEXT, closed=FLAG, gates=listed(TEXT)),
    "SourceBody": obj("schema", schema=TEXT, key={"anyOf": [TEXT, listed(TEXT)]}, url=TEXT),
    "Source": _data(
        "topic relation schema key url",
        topic=TEXT,
        relation=TEXT,
        schema=TEXT,
        key=listed(TEXT),
        url=TEXT,
        created=FLAG,
    ),
    "SourceList": _data("sources", sources=listed(_OBJECT)),
    "SourceDropped": _data("topic dropped", topic=TEXT, dropped=FLAG),
}
