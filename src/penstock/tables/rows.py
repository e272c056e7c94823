"""All SQL of stream tables: the tables in the lake's catalog, the statements, and rows as objects.

The tables are in the lake's own database, so that a refresh commits its data, frontier, history and
job outcome in one transaction. Times are integer milliseconds since 1970; lists are JSON.

Statements use `?` and run on SQLite and PostgreSQL alike. A docstring below a statement names its
parameters in order where that is not obvious. `store` runs them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from penstock.tables.core.frontier import Frontier
from penstock.tables.core.history import ReasonCode, RefreshOutcome, RefreshRecord
from penstock.tables.core.jobs import JobStatus, RefreshJob
from penstock.tables.core.model import Consistency, Mode, Status, TableDefinition
from penstock.tables.core.schedule import parse_schedule
from penstock.tables.core.units import UnitKind

VERSION: Final = 4

CREATE: Final = (
    """CREATE TABLE IF NOT EXISTS penstock_tables (
        name TEXT PRIMARY KEY,
        query TEXT NOT NULL,
        sources TEXT NOT NULL,
        schedule TEXT NOT NULL,
        mode TEXT NOT NULL,
        consistency TEXT NOT NULL,
        status TEXT NOT NULL,
        status_detail TEXT,
        description TEXT NOT NULL,
        is_volatile INTEGER NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS penstock_frontiers (
        table_name TEXT PRIMARY KEY,
        frontier TEXT NOT NULL,
        snapshot BIGINT,
        fresh_at BIGINT NOT NULL,
        job_id BIGINT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS penstock_scheduler_jobs (
        job_id BIGINT PRIMARY KEY,
        graph_version BIGINT NOT NULL,
        unit_key TEXT NOT NULL,
        unit_kind TEXT NOT NULL,
        members TEXT NOT NULL,
        root TEXT NOT NULL,
        status TEXT NOT NULL,
        coordinator TEXT NOT NULL,
        worker TEXT,
        attempt_no INTEGER NOT NULL,
        enqueued_at BIGINT NOT NULL,
        started_at BIGINT,
        finished_at BIGINT,
        outcome_detail TEXT,
        retryable INTEGER)""",
    # for polling, for finding a unit's live job, for pruning
    """CREATE INDEX IF NOT EXISTS penstock_scheduler_jobs_polling
        ON penstock_scheduler_jobs (status, enqueued_at)""",
    """CREATE INDEX IF NOT EXISTS penstock_scheduler_jobs_unit
        ON penstock_scheduler_jobs (unit_key, status)""",
    """CREATE INDEX IF NOT EXISTS penstock_scheduler_jobs_finished
        ON penstock_scheduler_jobs (finished_at)""",
    """CREATE TABLE IF NOT EXISTS penstock_refresh_history (
        job_id BIGINT NOT NULL,
        table_name TEXT NOT NULL,
        unit_key TEXT NOT NULL,
        outcome TEXT NOT NULL,
        configured_mode TEXT NOT NULL,
        executed_mode TEXT,
        reason_code TEXT NOT NULL,
        reason_text TEXT NOT NULL,
        rows_read BIGINT NOT NULL,
        delta_rows BIGINT NOT NULL,
        rows_written BIGINT NOT NULL,
        started_at BIGINT NOT NULL,
        finished_at BIGINT NOT NULL,
        timings TEXT NOT NULL,
        frontier TEXT NOT NULL,
        snapshot BIGINT,
        stale TEXT NOT NULL,
        PRIMARY KEY (job_id, table_name))""",
    """CREATE INDEX IF NOT EXISTS penstock_refresh_history_table
        ON penstock_refresh_history (table_name, finished_at)""",
    """CREATE TABLE IF NOT EXISTS penstock_leases (
        name TEXT PRIMARY KEY,
        holder TEXT NOT NULL,
        fence BIGINT NOT NULL,
        expires_at BIGINT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS penstock_locks (
        table_name TEXT PRIMARY KEY,
        holder TEXT NOT NULL,
        taken_at BIGINT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS penstock_gates (
        relation TEXT PRIMARY KEY,
        closed_at BIGINT NOT NULL,
        detail TEXT NOT NULL)""",
    # the graph's version, the warehouse's name, whether it drains, how far positions are known
    """CREATE TABLE IF NOT EXISTS penstock_warehouse (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL)""",
    # topics that tables may read: columns, key, server address, as JSON
    """CREATE TABLE IF NOT EXISTS penstock_sources (
        name TEXT PRIMARY KEY,
        definition TEXT NOT NULL)""",
    # people's requests to the coordinator, and their outcomes
    """CREATE TABLE IF NOT EXISTS penstock_requests (
        request_id TEXT PRIMARY KEY,
        table_name TEXT NOT NULL,
        is_forced INTEGER NOT NULL,
        asked_at BIGINT NOT NULL,
        answered_at BIGINT,
        is_ok INTEGER,
        detail TEXT)""",
    """CREATE INDEX IF NOT EXISTS penstock_requests_open ON penstock_requests (answered_at)""",
    # which snapshot last changed a table, for snapshots whose changes may have expired
    """CREATE TABLE IF NOT EXISTS penstock_positions (
        table_id BIGINT PRIMARY KEY,
        snapshot BIGINT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS penstock_skips (
        skipped_at BIGINT NOT NULL,
        unit_key TEXT NOT NULL,
        members TEXT NOT NULL,
        reason TEXT NOT NULL,
        detail TEXT NOT NULL)""",
    """CREATE INDEX IF NOT EXISTS penstock_skips_at ON penstock_skips (skipped_at)""",
    # dry run: what would have been started together
    """CREATE TABLE IF NOT EXISTS penstock_would_dispatch (
        job_id BIGINT PRIMARY KEY,
        unit_key TEXT NOT NULL,
        alongside TEXT NOT NULL,
        at_ms BIGINT NOT NULL)""",
    # a coordinator's last report, for other processes
    """CREATE TABLE IF NOT EXISTS penstock_board (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL,
        said_at BIGINT NOT NULL)""",
    # how the mode of a refresh was chosen, as JSON: both estimates, the choice, what it cost
    """CREATE TABLE IF NOT EXISTS penstock_refresh_choices (
        job_id BIGINT NOT NULL,
        table_name TEXT NOT NULL,
        finished_at BIGINT NOT NULL,
        choice TEXT NOT NULL,
        PRIMARY KEY (job_id, table_name))""",
    """CREATE INDEX IF NOT EXISTS penstock_refresh_choices_table
        ON penstock_refresh_choices (table_name, finished_at)""",
    # tables whose changes go to a topic: which, how far they have come, and why they wait
    """CREATE TABLE IF NOT EXISTS penstock_publications (
        table_name TEXT PRIMARY KEY,
        topic TEXT NOT NULL,
        url TEXT NOT NULL,
        table_uuid TEXT,
        snapshot BIGINT NOT NULL,
        epoch BIGINT NOT NULL,
        seq BIGINT NOT NULL,
        published_at BIGINT,
        trouble TEXT)""",
    # processes on other machines, which cannot be looked up here
    """CREATE TABLE IF NOT EXISTS penstock_processes (
        name TEXT PRIMARY KEY,
        seen_at BIGINT NOT NULL)""",
)
"""Creates what does not exist yet. Idempotent."""

WAITERS: Final = """CREATE TABLE IF NOT EXISTS penstock_token_waiters (
    pool TEXT NOT NULL,
    holder TEXT NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (pool, holder))"""
"""Coordinators that found no permit. Stored with the permits, possibly in another database."""


JOB_COLUMNS: Final = (
    "job_id", "graph_version", "unit_key", "unit_kind", "members", "root", "status", "coordinator",
    "worker", "attempt_no", "enqueued_at", "started_at", "finished_at", "outcome_detail",
    "retryable",
)  # fmt: skip
TABLE_COLUMNS: Final = (
    "name", "query", "sources", "schedule", "mode", "consistency", "status", "description",
    "is_volatile",
)  # fmt: skip
HISTORY_COLUMNS: Final = (
    "job_id", "table_name", "unit_key", "outcome", "configured_mode", "executed_mode",
    "reason_code", "reason_text", "rows_read", "delta_rows", "rows_written", "started_at",
    "finished_at", "timings", "frontier", "snapshot", "stale",
)  # fmt: skip

_FILLED: Final = "replace(?, '[-1]', '[' || CAST(? AS TEXT) || ']')"
"""A frontier in which the snapshot that the commit makes, unknown before, replaces `[-1]`."""


def insert(table: str, columns: Sequence[str], **values: str) -> str:
    """An INSERT of one row; `values` are expressions for columns that need more than `?`."""
    marks = ", ".join(values.get(column, "?") for column in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"


# values of the warehouse -------------------------------------------------------------------------

GRAPH_VERSION: Final = "graph_version"
WAREHOUSE: Final = "warehouse"
DRAINING: Final = "draining"
COORDINATOR: Final = "coordinator"
POSITIONS_THROUGH: Final = "positions_through"
POSITIONS_FLOOR: Final = "positions_floor"
MADE: Final = "made:"
"""Prefix of the values that name the lake table of a stream table by its UUID."""
STATE: Final = "state:"
"""Prefix of the values that name the refresh which the stored state of a table belongs to."""
REBUILD: Final = "rebuild:"
"""Prefix of the values that say why the next refresh of a table has to run its whole query."""
RETAINED: Final = "retained:"
"""Prefix of the values that say from which seq on contents reflect each topic they are made of."""

SELECT_VALUE: Final = "SELECT value FROM penstock_warehouse WHERE name = ?"
SELECT_TWO_VALUES: Final = "SELECT name, value FROM penstock_warehouse WHERE name IN (?, ?)"
SET_VALUE: Final = """INSERT INTO penstock_warehouse (name, value) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value"""
RAISE_VALUE: Final = f"""{SET_VALUE}
    WHERE CAST(excluded.value AS BIGINT) > CAST(penstock_warehouse.value AS BIGINT)"""
"""name, value. A number only increases."""
DELETE_VALUE: Final = "DELETE FROM penstock_warehouse WHERE name = ?"

# definitions -------------------------------------------------------------------------------------

SELECT_TABLES_ONLY: Final = f"""SELECT {", ".join(TABLE_COLUMNS)}, p.topic, p.url
    FROM penstock_tables LEFT JOIN penstock_publications p ON p.table_name = name"""
SELECT_TABLES: Final = f"{SELECT_TABLES_ONLY} ORDER BY name"
SELECT_TABLE_NAMES: Final = "SELECT name FROM penstock_tables"
SELECT_STATUSES: Final = "SELECT name, status FROM penstock_tables"
SELECT_STATUS_DETAILS: Final = "SELECT name, status_detail FROM penstock_tables"
DEFINITION_IS: Final = "SELECT query FROM penstock_tables WHERE name = ?"
INSERT_TABLE: Final = insert("penstock_tables", TABLE_COLUMNS)
UPDATE_TABLE: Final = """UPDATE penstock_tables SET query = ?, sources = ?, schedule = ?, mode = ?,
    consistency = ?, status = ?, description = ?, is_volatile = ? WHERE name = ?"""
"""The values of `table_row`, its name last."""
STORE_PUBLICATION: Final = """INSERT INTO penstock_publications
    (table_name, topic, url, snapshot, epoch, seq) VALUES (?, ?, ?, -1, 0, 0)
    ON CONFLICT (table_name) DO UPDATE SET topic = excluded.topic, url = excluded.url,
    table_uuid = NULL, snapshot = -1, epoch = 0, seq = 0, published_at = NULL, trouble = NULL
    WHERE penstock_publications.topic <> excluded.topic
        OR penstock_publications.url <> excluded.url"""
"""table_name, topic, url. Another topic begins from nothing, the same goes on where it was."""
DELETE_PUBLICATION: Final = "DELETE FROM penstock_publications WHERE table_name = ?"
SELECT_PUBLICATIONS: Final = """SELECT table_name, topic, url, table_uuid, snapshot, epoch, seq,
    published_at, trouble FROM penstock_publications ORDER BY table_name"""
MARK_PUBLISHED: Final = """UPDATE penstock_publications SET table_uuid = ?, snapshot = ?, epoch = ?,
    seq = ?, published_at = ?, trouble = NULL
    WHERE table_name = ? AND topic = ? AND url = ? AND snapshot = ?"""
"""table_uuid, snapshot, epoch, seq, published_at, table_name, topic, url, the snapshot before."""
SET_TROUBLE: Final = """UPDATE penstock_publications SET trouble = ?
    WHERE table_name = ? AND topic = ? AND url = ?"""
DELETE_TABLE: Final = "DELETE FROM penstock_tables WHERE name = ?"
SET_STATUS: Final = "UPDATE penstock_tables SET status = ?, status_detail = NULL WHERE name = ?"
CLEAR_STATUS_DETAIL: Final = "UPDATE penstock_tables SET status_detail = NULL WHERE name = ?"
SET_STATUS_OF_QUERY: Final = """UPDATE penstock_tables SET status = ?, status_detail = ?
    WHERE name = ? AND query = ?"""
"""status, detail, name, query. The failure of one query says nothing about its replacement."""
STOP_TABLE: Final = f"{SET_STATUS_OF_QUERY} AND status IN ('ACTIVE', 'SUSPENDED', 'ERROR')"
"""The same for a refresh without a coordinator; a paused table stays paused."""
START_TABLE: Final = f"{SET_STATUS} AND status IN ('SUSPENDED', 'ERROR')"
"""status, name. A table that was just refreshed is active again."""

SELECT_SOURCES: Final = "SELECT name, definition FROM penstock_sources ORDER BY name"
SOURCE_IS: Final = "SELECT definition FROM penstock_sources WHERE name = ?"
STORE_SOURCE: Final = """INSERT INTO penstock_sources (name, definition) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET definition = excluded.definition"""
DELETE_SOURCE: Final = "DELETE FROM penstock_sources WHERE name = ?"

SELECT_GATES: Final = "SELECT relation FROM penstock_gates ORDER BY relation"
CLOSE_GATE: Final = """INSERT INTO penstock_gates (relation, closed_at, detail) VALUES (?, ?, ?)
    ON CONFLICT (relation) DO NOTHING"""
OPEN_GATE: Final = "DELETE FROM penstock_gates WHERE relation = ?"

# feeds of published and watched tables -----------------------------------------------------------

NEXT_FEED: Final = """SELECT until_snapshot, path, path_is_relative, row_count, size_bytes
    FROM penstock_lake_feeds WHERE table_id = ? AND after_snapshot >= 0 AND after_snapshot <= ?
    AND until_snapshot > ? ORDER BY until_snapshot LIMIT 1"""
"""table_id, a snapshot, the same again. The entry that leads on from it."""
LIST_FEED: Final = """INSERT INTO penstock_lake_feeds VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (table_id, after_snapshot) DO NOTHING"""
LISTED_FEED: Final = """SELECT until_snapshot, path, path_is_relative, row_count, size_bytes
    FROM penstock_lake_feeds WHERE table_id = ? AND after_snapshot = ?"""
UNLIST_FEED: Final = "DELETE FROM penstock_lake_feeds WHERE table_id = ? AND after_snapshot = ?"
TABLE_NUMBERS: Final = "SELECT DISTINCT table_id FROM ducklake_table WHERE table_uuid = ?"

# frontiers and positions -------------------------------------------------------------------------

SELECT_FRONTIERS: Final = """SELECT table_name, frontier, snapshot, fresh_at, job_id
    FROM penstock_frontiers"""
SELECT_FRONTIER_NAMES: Final = "SELECT table_name FROM penstock_frontiers"
SELECT_FRONTIER_SNAPSHOTS: Final = """SELECT table_name, snapshot FROM penstock_frontiers
    WHERE snapshot IS NOT NULL"""
SELECT_MANUAL_REFRESHES: Final = """SELECT table_name, job_id FROM penstock_frontiers
    WHERE job_id < 0"""
REFRESH_IS: Final = "SELECT job_id FROM penstock_frontiers WHERE table_name = ?"
STORE_FRONTIER: Final = f"""INSERT INTO penstock_frontiers
    (table_name, frontier, snapshot, fresh_at, job_id) VALUES (?, {_FILLED}, ?, ?, ?)
    ON CONFLICT (table_name) DO UPDATE SET frontier = excluded.frontier,
    snapshot = excluded.snapshot, fresh_at = excluded.fresh_at, job_id = excluded.job_id"""
"""table_name, frontier, the snapshot for `[-1]` in it, snapshot, fresh_at, job_id."""
DELETE_FRONTIER: Final = "DELETE FROM penstock_frontiers WHERE table_name = ?"

SELECT_POSITIONS: Final = "SELECT table_id, snapshot FROM penstock_positions"
RAISE_POSITION: Final = """INSERT INTO penstock_positions (table_id, snapshot) VALUES (?, ?)
    ON CONFLICT (table_id) DO UPDATE SET snapshot = excluded.snapshot
    WHERE excluded.snapshot > penstock_positions.snapshot"""
"""table_id, snapshot. A position only increases."""

# jobs --------------------------------------------------------------------------------------------

SELECT_JOBS: Final = f"SELECT {', '.join(JOB_COLUMNS)} FROM penstock_scheduler_jobs"
IS_LIVE: Final = "status IN ('QUEUED', 'RUNNING')"
INSERT_JOB: Final = insert("penstock_scheduler_jobs", JOB_COLUMNS)
CLAIM_JOB: Final = """UPDATE penstock_scheduler_jobs
    SET status = 'RUNNING', worker = ?, started_at = ?
    WHERE job_id = ? AND status = 'QUEUED'"""
"""worker, started_at, job_id. No row changed: another worker claimed it first."""
CLOSE_JOB: Final = f"""UPDATE penstock_scheduler_jobs
    SET status = ?, finished_at = ?, outcome_detail = ?, retryable = ?
    WHERE job_id = ? AND {IS_LIVE}"""
"""status, finished_at, outcome_detail, retryable, job_id. An ended job keeps its outcome."""
JOB_IS_RUNNING: Final = """SELECT count(*) FROM penstock_scheduler_jobs
    WHERE job_id = ? AND worker = ? AND status = 'RUNNING'"""
"""job_id, worker. A commit requires 1: a job closed by recovery can no longer commit."""
LAST_JOB_ID: Final = """SELECT max(n) FROM (SELECT max(job_id) AS n FROM penstock_scheduler_jobs
    UNION ALL SELECT max(job_id) FROM penstock_refresh_history
    UNION ALL SELECT max(job_id) FROM penstock_frontiers) t"""
"""Jobs are pruned, so history and frontiers count as well."""

RESERVE_FILES: Final = "INSERT INTO penstock_lake_writers VALUES (?, ?, ?)"
"""token, since, until. The sweep leaves files of a reserved token alone."""
DROP_RESERVATION: Final = "DELETE FROM penstock_lake_writers WHERE token = ?"
DROP_RESERVATIONS_LIKE: Final = "DELETE FROM penstock_lake_writers WHERE token LIKE ?"

INSERT_SKIP: Final = "INSERT INTO penstock_skips VALUES (?, ?, ?, ?, ?)"
INSERT_WOULD_DISPATCH: Final = "INSERT INTO penstock_would_dispatch VALUES (?, ?, ?, ?)"

# history -----------------------------------------------------------------------------------------

SELECT_HISTORY: Final = f"""SELECT {", ".join(HISTORY_COLUMNS)},
    (SELECT choice FROM penstock_refresh_choices c WHERE c.job_id = h.job_id
        AND c.table_name = h.table_name)
    FROM penstock_refresh_history h"""
"""The columns of a refresh, and how its mode was chosen if that is on record."""
NEWEST_FIRST: Final = "ORDER BY finished_at DESC, job_id DESC"
SELECT_LAST_OF_EACH: Final = f"""SELECT {", ".join(HISTORY_COLUMNS)} FROM (
    SELECT {", ".join(HISTORY_COLUMNS)}, row_number() OVER (
        PARTITION BY table_name {NEWEST_FIRST}) AS place
    FROM penstock_refresh_history) AS placed
    WHERE place <= ? ORDER BY table_name, place"""
"""How many of each table. Without the choice of mode, which is long."""
SELECT_ROW_COUNTS: Final = "SELECT table_id, record_count FROM ducklake_table_stats"
SELECT_OUTCOMES: Final = f"""SELECT outcome, reason_text FROM penstock_refresh_history
    WHERE table_name = ? {NEWEST_FIRST} LIMIT 100"""
LAST_REFRESHED_SNAPSHOT: Final = """SELECT max(snapshot) FROM penstock_refresh_history
    WHERE table_name = ?"""
FRONTIER_AT: Final = """SELECT frontier FROM penstock_refresh_history
    WHERE table_name = ? AND snapshot <= ? AND outcome = 'succeeded'
    ORDER BY snapshot DESC, finished_at, job_id LIMIT 1"""
"""table_name, snapshot. Later refreshes that changed no row have the same snapshot."""
INSERT_HISTORY: Final = insert("penstock_refresh_history", HISTORY_COLUMNS, frontier=_FILLED)
NOTE_COMMIT: Final = """UPDATE penstock_refresh_history
    SET timings = substr(timings, 1, length(timings) - 1) || ? WHERE job_id = ?"""
"""The values of `commit_note`. How long a commit took is known only after it committed."""
INSERT_CHOICE: Final = "INSERT INTO penstock_refresh_choices VALUES (?, ?, ?, ?)"
"""job_id, table_name, finished_at, choice."""
SELECT_CHOICES: Final = """SELECT choice FROM penstock_refresh_choices WHERE table_name = ?
    ORDER BY finished_at DESC, job_id DESC LIMIT 100"""
MENDED_BY_HAND: Final = """SELECT t.name FROM penstock_tables t
    JOIN penstock_frontiers f ON f.table_name = t.name AND f.job_id < 0
    JOIN penstock_refresh_history h ON h.table_name = t.name AND h.job_id = f.job_id
    WHERE t.status IN ('SUSPENDED', 'ERROR') AND NOT EXISTS (
        SELECT 1 FROM penstock_refresh_history later
        WHERE later.table_name = t.name AND later.finished_at > h.finished_at)"""
"""Stopped tables whose newest refresh was a manual one: it makes them active again."""

# leases, locks, processes ------------------------------------------------------------------------

LEASE_IS: Final = "SELECT holder, expires_at FROM penstock_leases WHERE name = 'coordinator'"
COORDINATOR_IS: Final = "SELECT holder FROM penstock_leases WHERE name = 'coordinator'"
TAKE_LEASE: Final = """INSERT INTO penstock_leases (name, holder, fence, expires_at)
    VALUES (?, ?, 1, ?)
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at,
    fence = penstock_leases.fence + CASE WHEN penstock_leases.holder = excluded.holder
        THEN 0 ELSE 1 END
    WHERE penstock_leases.expires_at <= ? OR penstock_leases.holder = excluded.holder"""
"""name, holder, expires_at, now. One row changed: the lease is ours. A new holder, a new fence."""
RENEW_LEASE: Final = "UPDATE penstock_leases SET expires_at = ? WHERE name = ? AND holder = ?"
"""expires_at, name, holder. No row changed: another coordinator has taken it."""
DELETE_LEASE: Final = "DELETE FROM penstock_leases WHERE name = ? AND holder = ?"

SELECT_LOCKS: Final = "SELECT table_name, holder FROM penstock_locks"
SELECT_LOCK_HOLDERS: Final = "SELECT DISTINCT holder FROM penstock_locks"
LOCK_IS: Final = "SELECT holder FROM penstock_locks WHERE table_name = ?"
TAKE_LOCK: Final = """INSERT INTO penstock_locks (table_name, holder, taken_at)
    VALUES (?, ?, ?) ON CONFLICT (table_name) DO NOTHING"""
"""table_name, holder, taken_at. No row changed: another process holds it."""
RELEASE_LOCKS: Final = "DELETE FROM penstock_locks WHERE holder = ?"

PROCESS_SEEN: Final = "SELECT seen_at FROM penstock_processes WHERE name = ?"
SEE_PROCESS: Final = """INSERT INTO penstock_processes (name, seen_at) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at"""

# requests and what a coordinator reports ---------------------------------------------------------

OPEN_REQUESTS: Final = """SELECT request_id, table_name, is_forced FROM penstock_requests
    WHERE answered_at IS NULL ORDER BY asked_at, request_id"""
INSERT_REQUEST: Final = """INSERT INTO penstock_requests
    (request_id, table_name, is_forced, asked_at) VALUES (?, ?, ?, ?)"""
ANSWER_REQUEST: Final = """UPDATE penstock_requests SET answered_at = ?, is_ok = ?, detail = ?
    WHERE request_id = ? AND answered_at IS NULL"""
ANSWER_IS: Final = """SELECT is_ok, detail FROM penstock_requests
    WHERE request_id = ? AND answered_at IS NOT NULL"""

REPORT_IS: Final = "SELECT value FROM penstock_board WHERE name = ?"
STORE_REPORT: Final = """INSERT INTO penstock_board (name, value, said_at) VALUES (?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value, said_at = excluded.said_at"""
DELETE_REPORT: Final = "DELETE FROM penstock_board WHERE name = ?"

# permits -----------------------------------------------------------------------------------------

SELECT_PERMITS: Final = """SELECT holder, count(*) FROM penstock_tokens
    WHERE pool = ? AND holder IS NOT NULL GROUP BY holder"""
COUNT_OTHER_WAITERS: Final = """SELECT count(*) FROM penstock_token_waiters
    WHERE pool = ? AND holder <> ? AND since > ?"""
DELETE_WAITER: Final = "DELETE FROM penstock_token_waiters WHERE pool = ? AND holder = ?"
INSERT_WAITER: Final = "INSERT INTO penstock_token_waiters VALUES (?, ?, ?)"

# pruning -----------------------------------------------------------------------------------------

OLD_JOBS: Final = f"penstock_scheduler_jobs WHERE finished_at <= ? AND NOT {IS_LIVE}"
OLD_REQUESTS: Final = "penstock_requests WHERE answered_at <= ?"
OLD_SKIPS: Final = "penstock_skips WHERE skipped_at <= ?"
OLD_WOULD_DISPATCH: Final = "penstock_would_dispatch WHERE at_ms <= ?"
OLD_PROCESSES: Final = "penstock_processes WHERE seen_at <= ?"
OLD_HISTORY: Final = "penstock_refresh_history WHERE finished_at <= ?"
OLD_CHOICES: Final = "penstock_refresh_choices WHERE finished_at <= ?"


def any_of(old: str) -> str:
    """Selects whether such rows exist, without blocking other writers."""
    return f"SELECT 1 FROM {old} LIMIT 1"


def delete_all(old: str) -> str:
    """Delete such rows."""
    return f"DELETE FROM {old}"


def by_name(select: str, column: str, count: int) -> str:
    """A SELECT of the rows with one of `count` names."""
    return f"{select} WHERE {column} IN ({', '.join('?' * count)})"


def job_row(job: RefreshJob) -> tuple[Any, ...]:
    """A job as a row of `JOB_COLUMNS`."""
    return (
        job.job_id,
        job.graph_version,
        job.unit_key,
        job.unit_kind.value,
        json.dumps(job.members),
        job.root,
        job.status.value,
        job.coordinator,
        job.worker,
        job.attempt_no,
        job.enqueued_at_ms,
        job.started_at_ms,
        job.finished_at_ms,
        job.outcome_detail,
        None if job.retryable is None else int(job.retryable),
    )


def job_from_row(row: Sequence[Any]) -> RefreshJob:
    """A job from a row of `JOB_COLUMNS`."""
    found = dict(zip(JOB_COLUMNS, row, strict=True))
    return RefreshJob(
        job_id=found["job_id"],
        graph_version=found["graph_version"],
        unit_key=found["unit_key"],
        unit_kind=UnitKind(found["unit_kind"]),
        members=tuple(json.loads(found["members"])),
        root=found["root"],
        status=JobStatus(found["status"]),
        coordinator=found["coordinator"],
        worker=found["worker"],
        attempt_no=found["attempt_no"],
        enqueued_at_ms=found["enqueued_at"],
        started_at_ms=found["started_at"],
        finished_at_ms=found["finished_at"],
        outcome_detail=found["outcome_detail"],
        retryable=None if found["retryable"] is None else bool(found["retryable"]),
    )


def table_row(table: TableDefinition) -> tuple[Any, ...]:
    """A definition as a row of `TABLE_COLUMNS`."""
    return (
        table.name,
        table.query,
        json.dumps(table.sources),
        table.schedule.text,
        table.mode.value,
        table.consistency.value,
        table.status.value,
        table.description,
        int(table.volatile),
    )


def table_from_row(row: Sequence[Any]) -> TableDefinition:
    """A definition from a row of `SELECT_TABLES`."""
    name, query, sources, schedule, mode, consistency, status, description, volatile, *to = row
    return TableDefinition(
        name=name,
        query=query,
        sources=tuple(json.loads(sources)),
        schedule=parse_schedule(schedule),
        mode=Mode(mode),
        consistency=Consistency(consistency),
        status=Status(status),
        description=description,
        volatile=bool(volatile),
        publish=to[0] or "",
        publish_url=to[1] or "",
    )


def history_row(record: RefreshRecord, snapshot: Any, pending: Any = -1) -> tuple[Any, ...]:
    """The values of `INSERT_HISTORY`; `pending` replaces `[-1]` in the frontier."""
    return (
        record.job_id,
        record.table,
        record.unit_key,
        record.outcome.value,
        record.configured.value,
        None if record.executed is None else record.executed.value,
        record.reason.value,
        record.reason_text,
        record.rows_read,
        record.delta_rows,
        record.rows_written,
        record.started_at_ms,
        record.finished_at_ms,
        json.dumps(dict(record.timings_ms)),
        record.frontier.to_json(),
        pending,
        snapshot,
        json.dumps(record.stale),
    )


def record_from_row(row: Sequence[Any]) -> RefreshRecord:
    """A refresh from a row of `SELECT_HISTORY`."""
    *values, choice = row
    found = dict(zip(HISTORY_COLUMNS, values, strict=True))
    return RefreshRecord(
        table=found["table_name"],
        unit_key=found["unit_key"],
        job_id=found["job_id"],
        outcome=RefreshOutcome(found["outcome"]),
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
        choice=None if choice is None else json.loads(choice),
    )


def commit_note(job_id: int, commit_ms: float) -> tuple[str, int]:
    """The values of `NOTE_COMMIT`. It appends to a JSON object of timings."""
    return f', "commit": {round(commit_ms, 3)}}}', job_id
