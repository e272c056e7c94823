"""The answers of routes about the lake: the graph of tables, what the lake holds, a query over it.

Times are milliseconds since 1970 by the server's clock.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

QUERY_ROWS_MAX: Final = 1_000
QUERY_MS_MAX: Final = 10_000
QUERY_BYTES_MAX: Final = 16 << 20
QUERY_TEXT_MAX: Final = 64 << 10


class GraphNode(Struct, frozen=True, kw_only=True):
    """A node of the graph.

    `kind` is topic, space, lake (a table that something else fills) or table (a stream table).
    `state` of a table is fresh, running, waiting, late, error, paused or away (nothing refreshes
    it); of all others it is `ok`.
    """

    id: str
    """As queries name it: `main.readings`, `topics.meters`, `spaces.tariffs`."""
    kind: str
    name: str
    state: str
    reason: str = ""
    text: str = ""
    fresh_ms: int | None = None
    """When its contents were last known to be up to date."""
    stale_by_ms: int | None = None
    mode: str | None = None
    schedule: str | None = None
    unit: str | None = None
    rows: int | None = None
    seq: int | None = None
    """The head of a topic or space."""
    progress: float | None = None
    """From 0 to 1 while it is refreshed, None if the engine cannot tell."""


class GraphEdge(Struct, frozen=True, kw_only=True):
    """What a table reads."""

    source: str
    target: str
    running: bool = False


class GraphUnit(Struct, frozen=True, kw_only=True):
    """Tables that change in one snapshot."""

    key: str
    kind: str
    members: list[str]
    state: str


class Graph(Struct, frozen=True, kw_only=True):
    """What reads what. The layout depends on `version` and the ids alone."""

    at: int
    version: int
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    units: list[GraphUnit]
    performance: dict[str, float] = {}


class LakeState(Struct, frozen=True, kw_only=True):
    """The lake: its newest snapshot, and what that holds."""

    kind: str
    """The database of the catalog."""
    data_path: str
    snapshot: int
    snapshot_at: int
    snapshots: int
    tables: int
    files: int
    bytes: int
    rows: int
    command: str
    """Opens the same snapshot in DuckDB."""
    performance: dict[str, float] = {}


class LakeSnapshot(Struct, frozen=True, kw_only=True):
    """One state of all tables; `changes` as DuckLake keeps them, `text` in words."""

    snapshot: int
    at: int
    schema_version: int
    changes: str | None = None
    text: str = ""
    author: str | None = None
    message: str | None = None


class LakeSnapshots(Struct, frozen=True, kw_only=True):
    """Snapshots, the newest first; `next_before` is None on the last page."""

    snapshots: list[LakeSnapshot]
    total: int
    next_before: int | None = None
    performance: dict[str, float] = {}


class LakeColumn(Struct, frozen=True, kw_only=True):
    """A column of a lake table."""

    name: str
    type: str
    nullable: bool = True


class LakeTable(Struct, frozen=True, kw_only=True):
    """A table at a snapshot; `refreshed` if it is a stream table."""

    name: str
    columns: list[LakeColumn]
    rows: int
    files: int
    bytes: int
    refreshed: bool = False
    comment: str | None = None
    snapshot: int | None = None
    performance: dict[str, float] = {}


class LakeTables(Struct, frozen=True, kw_only=True):
    """The tables of a snapshot, by name."""

    snapshot: int
    tables: list[LakeTable]
    performance: dict[str, float] = {}


class LakeFile(Struct, frozen=True, kw_only=True):
    """A data file of a table at a snapshot."""

    path: str
    rows: int
    deleted: int
    bytes: int
    since: int
    """The snapshot that added it."""


class LakeFiles(Struct, frozen=True, kw_only=True):
    """The data files of a table at a snapshot, the newest first."""

    table: str
    snapshot: int
    files: list[LakeFile]
    total: int
    inlined_rows: int = 0
    """Rows that stand in the catalog itself."""
    performance: dict[str, float] = {}


class QueryResult(Struct, frozen=True, kw_only=True):
    """The rows of a SELECT over one snapshot; `truncated` if there were more than 1,000."""

    snapshot: int
    engine: str
    columns: list[LakeColumn]
    rows: list[dict[str, Any]]
    truncated: bool
    took_ms: float
    command: str
    """Opens the same snapshot in DuckDB."""
    performance: dict[str, float] = {}
