"""The answers of routes about stream tables, their warehouse and the topics they read."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class TableRow(Struct, frozen=True, kw_only=True):
    """A table: its definition and, if requested, its status."""

    name: str
    query: str
    sources: list[str]
    schedule: str
    mode: str
    consistency: str
    status: str
    description: str | None = None
    publish: str | None = None
    publish_url: str | None = None
    created: bool | None = None
    behind: dict[str, int | None] | None = None
    """How many rows or records came to each input since the table read it; None if not known."""
    performance: dict[str, float] = {}


class OutcomeColumns(Struct, frozen=True, kw_only=True):
    """The last refreshes of a table as columns, oldest first."""

    finished: list[int]
    took_ms: list[int]
    outcome: list[str]
    """succeeded, failed or skipped."""
    mode: list[str | None]
    """The executed mode; None if it ended before."""
    reason: list[str]


class TableList(Struct, frozen=True, kw_only=True):
    """A page of tables; `next_cursor` is None on the last."""

    tables: list[dict[str, Any]]
    next_cursor: str | None = None
    performance: dict[str, float] = {}


class TablesDropped(Struct, frozen=True, kw_only=True):
    """The tables that were dropped."""

    dropped: list[str]
    performance: dict[str, float] = {}


class TableSwitched(Struct, frozen=True, kw_only=True):
    """A table and its status now."""

    table: str
    status: str
    performance: dict[str, float] = {}


class TableWhy(Struct, frozen=True, kw_only=True):
    """Why a table waits."""

    table: str
    unit_key: str
    reason: str
    text: str
    coordinated: bool
    performance: dict[str, float] = {}


class TableExplained(Struct, frozen=True, kw_only=True):
    """A table's unit, inputs, mode and reason, and its last refresh."""

    table: str
    query: str
    mode: str
    differential: dict[str, Any]
    unit: dict[str, Any]
    inputs: dict[str, Any]
    plan: dict[str, Any] | None = None
    last_refresh: dict[str, Any] | None = None
    performance: dict[str, float] = {}


class QueryExplained(Struct, frozen=True, kw_only=True):
    """Whether and how a query would be brought up to date from changes."""

    query: str
    differential: dict[str, Any]
    plan: dict[str, Any] | None = None
    performance: dict[str, float] = {}


class TableRefresh(Struct, frozen=True, kw_only=True):
    """A requested refresh; `ok` and `detail` once it is done."""

    table: str
    request_id: str
    done: bool
    ok: bool | None = None
    detail: str | None = None
    performance: dict[str, float] = {}


class RefreshList(Struct, frozen=True, kw_only=True):
    """Refreshes, the newest first."""

    refreshes: list[dict[str, Any]]
    performance: dict[str, float] = {}


class ColumnFacts(Struct, frozen=True, kw_only=True):
    """A column of a table."""

    name: str
    type: str


class RowPage(Struct, frozen=True, kw_only=True):
    """A page of the rows of a table at a snapshot."""

    table: str
    snapshot: int
    columns: list[ColumnFacts]
    rows: list[dict[str, Any]]
    offset: int
    rows_total: int
    next_offset: int | None = None
    performance: dict[str, float] = {}


class WarehouseState(Struct, frozen=True, kw_only=True):
    """Whether tables are kept fresh: health, workers, permits, what runs, closed gates."""

    state: str
    text: str
    workers: list[dict[str, Any]]
    running: list[dict[str, Any]]
    permits: dict[str, Any]
    permits_max: int
    gates: list[str]
    pool: dict[str, Any] | None = None
    performance: dict[str, float] = {}


class JobList(Struct, frozen=True, kw_only=True):
    """Started jobs, the newest first."""

    jobs: list[dict[str, Any]]
    performance: dict[str, float] = {}


class Drained(Struct, frozen=True, kw_only=True):
    """Whether the warehouse is draining, and whether no job is running."""

    draining: bool
    idle: bool
    performance: dict[str, float] = {}


class Gated(Struct, frozen=True, kw_only=True):
    """A relation that is closed or open, and all closed ones."""

    relation: str
    closed: bool
    gates: list[str]
    performance: dict[str, float] = {}


class SourceState(Struct, frozen=True, kw_only=True):
    """A topic that tables may read."""

    topic: str
    relation: str
    schema: str
    key: list[str]
    url: str
    created: bool | None = None
    performance: dict[str, float] = {}


class SourceList(Struct, frozen=True, kw_only=True):
    """Topics that tables may read."""

    sources: list[dict[str, Any]]
    performance: dict[str, float] = {}


class SourceDropped(Struct, frozen=True, kw_only=True):
    """Whether the topic was declared."""

    topic: str
    dropped: bool
    performance: dict[str, float] = {}
