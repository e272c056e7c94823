"""Runs the statements of `rows`: definitions, frontiers, jobs, locks, lease, requests.

A read is one consistent view; a write is one transaction, or part of a lake transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import takewhile
from typing import Any, Final, NamedTuple
from uuid import uuid4

from penstock.lake.catalog import Catalog
from penstock.lake.database import Row, fetch
from penstock.lake.reader import Reader
from penstock.tables import processes, rows
from penstock.tables.core.frontier import Frontier, LakePosition
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.health import CoordinatorLease
from penstock.tables.core.history import RefreshRecord
from penstock.tables.core.jobs import RefreshJob
from penstock.tables.core.model import Status
from penstock.tables.core.topics import TopicSource
from penstock.tables.positions import keep_positions

MANUAL: Final = "manual#"
"""Prefix of the coordinator's name in a job of a refresh that ran without a coordinator."""

FOREIGN_MS: Final = 30_000
"""A process on another machine without a heartbeat for this long counts as dead."""


class Known(NamedTuple):
    """What is stored about a table's contents."""

    frontier: Frontier
    position: LakePosition | None
    fresh_ms: int
    job_id: int


class Asked(NamedTuple):
    """A person's request that is still unanswered."""

    request_id: str
    table: str
    force: bool


@dataclass(frozen=True, slots=True)
class Definitions:
    """The existing tables, the declared topics, and the version of their graph."""

    version: int
    graph: StreamGraph
    details: dict[str, str]
    topics: dict[str, TopicSource]


@dataclass(frozen=True, slots=True)
class CatalogView:
    """A coordinator's view of the catalog at one time."""

    graph_version: int
    draining: bool
    statuses: dict[str, Status]
    gates: frozenset[str]
    locks: dict[str, str]
    asked: tuple[Asked, ...]
    by_hand: dict[str, int]


class TableStore:
    """The rows of one warehouse. Thread-safe."""

    def __init__(self, lake: Catalog) -> None:
        self.lake = lake
        lake.migrate("tables", rows.VERSION, rows.CREATE)
        if keep_positions not in lake.before_expiry:
            lake.before_expiry.append(keep_positions)
        self.warehouse = self._named()

    # looking -------------------------------------------------------------------------------------

    def definitions(self) -> Definitions:
        """The current graph."""
        with self.lake.look() as reader:
            return read_definitions(reader)

    def frontiers(self, reader: Reader, names: Sequence[str] | None = None) -> dict[str, Known]:
        """The stored contents of tables, by name: all, or some."""
        select = rows.SELECT_FRONTIERS
        if names is not None:
            select = rows.by_name(select, "table_name", len(names))
        return {
            name: Known(
                Frontier.from_json(text),
                None if snapshot is None else LakePosition(snapshot),
                fresh_at,
                job_id,
            )
            for name, text, snapshot, fresh_at, job_id in reader.rows(select, *(names or ()))
        }

    def view(self, reader: Reader) -> CatalogView:
        """Everything that people may have changed."""
        select = reader.rows
        return CatalogView(
            graph_version=_version(reader),
            draining=_value(reader, rows.DRAINING) == "1",
            statuses={name: Status(status) for name, status in select(rows.SELECT_STATUSES)},
            gates=frozenset(name for (name,) in select(rows.SELECT_GATES)),
            locks=dict(select(rows.SELECT_LOCKS)),
            asked=tuple(
                Asked(request_id, table, bool(forced))
                for request_id, table, forced in select(rows.OPEN_REQUESTS)
            ),
            by_hand=dict(select(rows.SELECT_MANUAL_REFRESHES)),
        )

    def lease(self) -> CoordinatorLease | None:
        """The current coordinator's lease, or the last one's."""
        found = self.lake.query(rows.LEASE_IS)
        return CoordinatorLease(*found[0]) if found else None

    def job(self, job_id: int) -> RefreshJob | None:
        """One job by its id."""
        found = self.lake.query(f"{rows.SELECT_JOBS} WHERE job_id = ?", (job_id,))
        return rows.job_from_row(found[0]) if found else None

    def jobs(
        self, *, live_only: bool = False, limit: int | None = None, since_ms: int = 0
    ) -> list[RefreshJob]:
        """Jobs, newest first; those that ended after a time, and all that have not ended."""
        where = f" WHERE {rows.IS_LIVE}" if live_only else ""
        if since_ms and not live_only:
            where = f" WHERE ({rows.IS_LIVE} OR finished_at > {int(since_ms)})"
        bound = "" if limit is None else f" LIMIT {int(limit)}"
        found = self.lake.query(f"{rows.SELECT_JOBS}{where} ORDER BY enqueued_at DESC{bound}")
        return [rows.job_from_row(row) for row in found]

    def history(self, table: str | None = None, *, limit: int = 100) -> list[RefreshRecord]:
        """Refreshes, newest first."""
        where, values = ("", ()) if table is None else (" WHERE table_name = ?", (table,))
        select = f"{rows.SELECT_HISTORY}{where} {rows.NEWEST_FIRST} LIMIT {int(limit)}"
        return [rows.record_from_row(row) for row in self.lake.query(select, values)]

    def outcomes(self, limit: int) -> dict[str, list[RefreshRecord]]:
        """The last refreshes of each table, newest first."""
        found: dict[str, list[RefreshRecord]] = {}
        for row in self.lake.query(rows.SELECT_LAST_OF_EACH, (limit,)):
            record = rows.record_from_row((*row, None))
            found.setdefault(record.table, []).append(record)
        return found

    def failures(self, reader: Reader) -> dict[str, tuple[int, str]]:
        """The failures of each table since its last success: their number and the last error."""
        found = {}
        for (name,) in reader.rows(rows.SELECT_TABLE_NAMES):
            outcomes = reader.rows(rows.SELECT_OUTCOMES, name)
            texts = [text for _, text in takewhile(lambda row: row[0] == "failed", outcomes)]
            if texts:
                found[name] = len(texts), texts[0]
        return found

    def next_job_id(self) -> int:
        """An id that no job had before."""
        ((last,),) = self.lake.query(rows.LAST_JOB_ID)
        return max(0, int(last or 0)) + 1

    # processes -----------------------------------------------------------------------------------

    def is_alive(self, process: str, now_ms: int) -> bool:
        """Whether a process is alive: looked up on this machine, by heartbeats on others."""
        name = process.removeprefix(MANUAL)
        if processes.is_here(name):
            return processes.is_alive(name)
        plain = name.partition("#")[0]
        seen = self.lake.query(rows.PROCESS_SEEN, (plain,))
        return bool(seen) and seen[0][0] > now_ms - FOREIGN_MS

    def show_life(self, process: str, now_ms: int) -> None:
        """A heartbeat for other machines. Not used in a SQLite catalog."""
        if self._is_shared:
            self.run(rows.SEE_PROCESS, process, now_ms)

    def show_life_in(self, cursor: Any, process: str, now_ms: int) -> None:
        """The same inside a transaction."""
        if self._is_shared:
            self.execute(cursor, rows.SEE_PROCESS, process, now_ms)

    @property
    def _is_shared(self) -> bool:
        return self.lake.database.kind != "sqlite"

    # changing ------------------------------------------------------------------------------------

    def run(self, sql: str, *parameters: Any) -> int:
        """Run one statement by itself; returns the number of changed rows."""

        def work(cursor: Any) -> int:
            return self.execute(cursor, sql, *parameters)

        changed: int = self.lake.retrying(work)
        return changed

    def execute(self, cursor: Any, sql: str, *parameters: Any) -> int:
        """Run one statement inside a transaction."""
        cursor.execute(self.lake.database.sql(sql), parameters)
        return int(cursor.rowcount)

    def fetch(self, cursor: Any, sql: str, *parameters: Any) -> list[Row]:
        """The rows of a query inside a transaction."""
        return fetch(self.lake.database, cursor, sql, parameters)

    def token(self, job_id: int) -> str:
        """The reservation for a job's files; deterministic, so every process computes the same."""
        raw = f"{self.warehouse}/{job_id}".encode()
        return blake2b(raw, digest_size=16).hexdigest()

    def _named(self) -> str:
        """The warehouse's own name, created once."""

        def work(cursor: Any) -> str:
            found = self.fetch(cursor, rows.SELECT_VALUE, rows.WAREHOUSE)
            if found:
                return str(found[0][0])
            name = uuid4().hex[:12]
            self.execute(cursor, rows.SET_VALUE, rows.WAREHOUSE, name)
            return name

        found = self.lake.query(rows.SELECT_VALUE, (rows.WAREHOUSE,))
        return str(found[0][0] if found else self.lake.retrying(work))


def read_definitions(reader: Reader) -> Definitions:
    """The graph in one consistent read."""
    stored = (rows.SELECT_TABLES, rows.SELECT_STATUS_DETAILS, rows.SELECT_SOURCES)
    return _definitions(_version(reader), *(tuple(map(tuple, reader.rows(s))) for s in stored))


@lru_cache(maxsize=4)
def _definitions(
    version: int, tables: tuple[Row, ...], details: tuple[Row, ...], sources: tuple[Row, ...]
) -> Definitions:
    """Definitions from their rows: every look reads them, and they seldom change.

    To parse those of ten tables takes five times as long as to read them.
    """
    return Definitions(
        version,
        StreamGraph(rows.table_from_row(row) for row in tables),
        {name: detail for name, detail in details if detail},
        {name: TopicSource.from_json(text) for name, text in sources},
    )


def read_topic_sources(reader: Reader) -> dict[str, TopicSource]:
    """The topics that tables may read, by name."""
    found = reader.rows(rows.SELECT_SOURCES)
    return {name: TopicSource.from_json(text) for name, text in found}


def read_sources_of(reader: Reader, names: Iterable[str]) -> dict[str, TopicSource]:
    """Some of the topics that tables may read; undeclared ones are left out."""
    wanted = set(names)
    known = read_topic_sources(reader) if wanted else {}
    return {name: source for name, source in known.items() if name in wanted}


def _version(reader: Reader) -> int:
    return int(_value(reader, rows.GRAPH_VERSION) or 0)


def _value(reader: Reader, name: str) -> str | None:
    found = reader.rows(rows.SELECT_VALUE, name)
    return str(found[0][0]) if found else None
