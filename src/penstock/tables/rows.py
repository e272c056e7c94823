"""Penstock's own rows in the catalog: definitions, frontiers, jobs, locks, lease, requests.

Reads are one consistent look; writes are one transaction each, or part of a lake transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from typing import Any, Final, NamedTuple
from uuid import uuid4

from penstock.lake.catalog import Catalog
from penstock.lake.database import Row, fetch
from penstock.lake.reader import Reader
from penstock.tables import ddl, processes, schema
from penstock.tables.core.frontier import Frontier, LakePosition
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.health import Lease
from penstock.tables.core.history import Outcome, ReasonCode, RefreshRecord
from penstock.tables.core.jobs import Job
from penstock.tables.core.model import Mode, Status
from penstock.tables.core.topics import TopicSource
from penstock.tables.positions import keep_positions

GRAPH_VERSION: Final = "graph_version"
WAREHOUSE: Final = "warehouse"
DRAINING: Final = "draining"
COORDINATOR: Final = "coordinator"
MANUAL: Final = "manual#"
"""How the name of a coordinator begins that is no coordinator but a person's refresh."""

FOREIGN_MS: Final = 30_000
"""After so long without a sign of life a process on another machine is taken for dead."""

MADE: Final = "made:"
"""How the name of a value begins that says which lake table is a stream table's: its UUID."""
SELECT_VALUE: Final = "SELECT value FROM penstock_warehouse WHERE name = ?"
SET_VALUE: Final = (
    "INSERT INTO penstock_warehouse (name, value) VALUES (?, ?) "
    "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
SHOW_LIFE: Final = (
    "INSERT INTO penstock_processes (name, seen_at) VALUES (?, ?) "
    "ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at"
)
DEFINITION_IS: Final = "SELECT query FROM penstock_tables WHERE name = ?"
SOURCE_IS: Final = "SELECT definition FROM penstock_sources WHERE name = ?"
DROP_RESERVATION: Final = "DELETE FROM penstock_lake_writers WHERE token = ?"
SELECT_HISTORY: Final = f"SELECT {', '.join(schema.HISTORY_COLUMNS)} FROM penstock_refresh_history"

_FAILURES_SEEN: Final = 100


class Known(NamedTuple):
    """What is stored of a table's contents."""

    frontier: Frontier
    position: LakePosition | None
    fresh_ms: int
    job_id: int


class Asked(NamedTuple):
    """A person's request that nobody has answered yet."""

    request_id: str
    table: str
    force: bool


@dataclass(frozen=True, slots=True)
class Definitions:
    """The tables there are, the topics declared, and the version of the graph they make."""

    version: int
    graph: StreamGraph
    details: dict[str, str]
    topics: dict[str, TopicSource]


@dataclass(frozen=True, slots=True)
class Sight:
    """What a coordinator sees of the catalog at one moment."""

    graph_version: int
    draining: bool
    statuses: dict[str, Status]
    gates: frozenset[str]
    locks: dict[str, str]
    asked: tuple[Asked, ...]
    by_hand: dict[str, int]


class Store:
    """The rows of one warehouse. Threads may share it."""

    def __init__(self, lake: Catalog) -> None:
        self.lake = lake
        lake.migrate("tables", ddl.VERSION, ddl.CREATE)
        if keep_positions not in lake.before_expiry:
            lake.before_expiry.append(keep_positions)
        self.warehouse = self._named()

    # looking -------------------------------------------------------------------------------------

    def definitions(self) -> Definitions:
        """The graph as it is now."""
        with self.lake.look() as reader:
            return read_definitions(reader)

    def frontiers(self, reader: Reader, names: Sequence[str] | None = None) -> dict[str, Known]:
        """What contents stand for, by table: of all, or of some."""
        question = "SELECT table_name, frontier, snapshot, fresh_at, job_id FROM penstock_frontiers"
        if names is not None:
            question += f" WHERE table_name IN ({', '.join('?' * len(names))})"
        rows = reader.rows(question, *(names or ()))
        return {
            name: Known(
                Frontier.from_json(text),
                None if snapshot is None else LakePosition(snapshot),
                fresh_at,
                job_id,
            )
            for name, text, snapshot, fresh_at, job_id in rows
        }

    def sight(self, reader: Reader) -> Sight:
        """Everything people may have changed."""
        rows = reader.rows
        return Sight(
            graph_version=_version(reader),
            draining=_value(reader, DRAINING) == "1",
            statuses={
                name: Status(status)
                for name, status in rows("SELECT name, status FROM penstock_tables")
            },
            gates=frozenset(name for (name,) in rows("SELECT relation FROM penstock_gates")),
            locks=dict(rows("SELECT table_name, holder FROM penstock_locks")),
            asked=tuple(
                Asked(request_id, table, bool(forced))
                for request_id, table, forced in rows(
                    "SELECT request_id, table_name, is_forced FROM penstock_requests "
                    "WHERE answered_at IS NULL ORDER BY asked_at, request_id"
                )
            ),
            by_hand=dict(
                rows("SELECT table_name, job_id FROM penstock_frontiers WHERE job_id < 0")
            ),
        )

    def lease(self) -> Lease | None:
        """Who coordinates, or did last."""
        found = self.lake.query(
            "SELECT holder, expires_at FROM penstock_leases WHERE name = ?", (COORDINATOR,)
        )
        return Lease(*found[0]) if found else None

    def job(self, job_id: int) -> Job | None:
        """One job by its id."""
        found = self.lake.query(f"{schema.SELECT_JOBS} WHERE job_id = ?", (job_id,))
        return schema.job_from_row(found[0]) if found else None

    def jobs(self, *, live_only: bool = False, limit: int | None = None) -> list[Job]:
        """Jobs, the newest first."""
        where = " WHERE status IN ('QUEUED', 'RUNNING')" if live_only else ""
        bound = "" if limit is None else f" LIMIT {int(limit)}"
        rows = self.lake.query(f"{schema.SELECT_JOBS}{where} ORDER BY enqueued_at DESC{bound}")
        return [schema.job_from_row(row) for row in rows]

    def history(self, table: str | None = None, *, limit: int = 100) -> list[RefreshRecord]:
        """Refreshes, the newest first."""
        where, values = ("", ()) if table is None else (" WHERE table_name = ?", (table,))
        rows = self.lake.query(
            f"{SELECT_HISTORY}{where} ORDER BY finished_at DESC, job_id DESC LIMIT {int(limit)}",
            values,
        )
        return [record_from_row(row) for row in rows]

    def failures(self, reader: Reader) -> dict[str, tuple[int, str]]:
        """How often each table failed since it was last made, and what it said the last time."""
        found = {}
        for (name,) in reader.rows("SELECT name FROM penstock_tables"):
            rows = reader.rows(
                "SELECT outcome, reason_text FROM penstock_refresh_history WHERE table_name = ? "
                f"ORDER BY finished_at DESC, job_id DESC LIMIT {_FAILURES_SEEN}",
                name,
            )
            texts = [text for _, text in takewhile(lambda row: row[0] == "failed", rows)]
            if texts:
                found[name] = len(texts), texts[0]
        return found

    def next_job_id(self) -> int:
        """A number that no job had before."""
        rows = self.lake.query(
            "SELECT max(n) FROM (SELECT max(job_id) AS n FROM penstock_scheduler_jobs "
            "UNION ALL SELECT max(job_id) FROM penstock_refresh_history "
            "UNION ALL SELECT max(job_id) FROM penstock_frontiers) t"
        )
        return max(0, int(rows[0][0] or 0)) + 1

    # processes -----------------------------------------------------------------------------------

    def is_alive(self, process: str, now_ms: int) -> bool:
        """Whether a process is there: looked up on this machine, by signs of life on others."""
        name = process.removeprefix(MANUAL)
        if processes.is_here(name):
            return processes.is_alive(name)
        plain = name.partition("#")[0]
        rows = self.lake.query("SELECT seen_at FROM penstock_processes WHERE name = ?", (plain,))
        return bool(rows) and rows[0][0] > now_ms - FOREIGN_MS

    def show_life(self, process: str, now_ms: int) -> None:
        """A sign of life for other machines. A SQLite catalog has none."""
        if self._is_shared:
            self.run(SHOW_LIFE, process, now_ms)

    def show_life_in(self, cursor: Any, process: str, now_ms: int) -> None:
        """The same inside a transaction."""
        if self._is_shared:
            self.execute(cursor, SHOW_LIFE, process, now_ms)

    @property
    def _is_shared(self) -> bool:
        return self.lake.database.kind != "sqlite"

    # changing ------------------------------------------------------------------------------------

    def run(self, sql: str, *parameters: Any) -> int:
        """One statement by itself; returns how many rows it changed."""

        def work(cursor: Any) -> int:
            return self.execute(cursor, sql, *parameters)

        changed: int = self.lake.retrying(work)
        return changed

    def execute(self, cursor: Any, sql: str, *parameters: Any) -> int:
        """One statement inside a transaction."""
        cursor.execute(self.lake.database.sql(sql), parameters)
        return int(cursor.rowcount)

    def fetch(self, cursor: Any, sql: str, *parameters: Any) -> list[Row]:
        """The rows of a question inside a transaction."""
        return fetch(self.lake.database, cursor, sql, parameters)

    def token(self, job_id: int) -> str:
        """The reservation under which a job writes files: the same for whoever asks."""
        raw = f"{self.warehouse}/{job_id}".encode()
        return blake2b(raw, digest_size=16).hexdigest()

    def _named(self) -> str:
        """The warehouse's own name, made once."""

        def work(cursor: Any) -> str:
            found = self.fetch(cursor, SELECT_VALUE, WAREHOUSE)
            if found:
                return str(found[0][0])
            name = uuid4().hex[:12]
            self.execute(cursor, SET_VALUE, WAREHOUSE, name)
            return name

        found = self.lake.query(SELECT_VALUE, (WAREHOUSE,))
        return str(found[0][0] if found else self.lake.retrying(work))


def read_definitions(reader: Reader) -> Definitions:
    """The graph in one look."""
    rows = reader.rows(schema.SELECT_TABLES)
    details = reader.rows("SELECT name, status_detail FROM penstock_tables")
    return Definitions(
        _version(reader),
        StreamGraph(schema.table_from_row(row) for row in rows),
        {name: detail for name, detail in details if detail},
        read_topic_sources(reader),
    )


def read_topic_sources(reader: Reader) -> dict[str, TopicSource]:
    """The topics that tables may read, by name."""
    rows = reader.rows("SELECT name, definition FROM penstock_sources ORDER BY name")
    return {name: TopicSource.from_json(text) for name, text in rows}


def read_sources_of(reader: Reader, names: Iterable[str]) -> dict[str, TopicSource]:
    """Some of the topics that tables may read; those that were not declared are left out."""
    wanted = set(names)
    known = read_topic_sources(reader) if wanted else {}
    return {name: source for name, source in known.items() if name in wanted}


def record_from_row(row: Sequence[Any]) -> RefreshRecord:
    """A refresh from a row of the history."""
    found = dict(zip(schema.HISTORY_COLUMNS, row, strict=True))
    return RefreshRecord(
        table=found["table_name"],
        unit_key=found["unit_key"],
        job_id=found["job_id"],
        outcome=Outcome(found["outcome"]),
        configured=Mode(found["configured_mode"]),
        executed=None if found["executed_mode"] is None else Mode(found["executed_mode"]),
        reason=ReasonCode(found["reason_code"]),
        reason_text=found["reason_text"],
        rows_read=found["rows_read"],
        delta_rows=found["delta_rows"],
        rows_written=found["rows_written"],
        started_at_ms=found["started_at"],
        finished_at_ms=found["finished_at"],
        timings_ms=tuple(json.loads(found["timings"]).items()),
        frontier=Frontier.from_json(found["frontier"]),
        snapshot=found["snapshot"],
        stale=tuple(json.loads(found["stale"])),
    )


def _version(reader: Reader) -> int:
    return int(_value(reader, GRAPH_VERSION) or 0)


def _value(reader: Reader, name: str) -> str | None:
    found = reader.rows(SELECT_VALUE, name)
    return str(found[0][0]) if found else None
