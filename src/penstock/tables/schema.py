"""The tables that Penstock keeps beside the lake's own, as SQL for SQLite and PostgreSQL alike.

They live in the lake's catalog database, so that a refresh commits its data, frontier, history and
job outcome in one transaction. Times are whole milliseconds since 1970; lists are JSON.

Statements use `?`; `for_postgres` gives the same with `%s`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from penstock.tables.core.history import RefreshRecord
from penstock.tables.core.jobs import Job, JobStatus
from penstock.tables.core.model import Consistency, Mode, Status, TableDefinition
from penstock.tables.core.schedule import parse_schedule
from penstock.tables.core.units import UnitKind

SCHEMA_VERSION: Final = 1

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
)
"""Makes everything that is not there yet; each can be run again without harm."""

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


def insert(table: str, columns: Sequence[str]) -> str:
    """An INSERT of one row."""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


INSERT_JOB: Final = insert("penstock_scheduler_jobs", JOB_COLUMNS)
INSERT_TABLE: Final = insert("penstock_tables", TABLE_COLUMNS)
INSERT_HISTORY: Final = insert("penstock_refresh_history", HISTORY_COLUMNS)
SELECT_JOBS: Final = f"SELECT {', '.join(JOB_COLUMNS)} FROM penstock_scheduler_jobs"
SELECT_TABLES_ONLY: Final = f"SELECT {', '.join(TABLE_COLUMNS)} FROM penstock_tables"
SELECT_TABLES: Final = f"{SELECT_TABLES_ONLY} ORDER BY name"

CLAIM_JOB: Final = """UPDATE penstock_scheduler_jobs
    SET status = 'RUNNING', worker = ?, started_at = ?
    WHERE job_id = ? AND status = 'QUEUED'"""
"""worker, started_at, job_id. One row changed, or someone else was faster."""

CLOSE_JOB: Final = """UPDATE penstock_scheduler_jobs
    SET status = ?, finished_at = ?, outcome_detail = ?, retryable = ?
    WHERE job_id = ? AND status IN ('QUEUED', 'RUNNING')"""
"""status, finished_at, outcome_detail, retryable, job_id. A job that ended stays as it ended."""

JOB_IS_RUNNING: Final = """SELECT count(*) FROM penstock_scheduler_jobs
    WHERE job_id = ? AND worker = ? AND status = 'RUNNING'"""
"""job_id, worker. What a commit must find to be 1: a job closed by recovery cannot land."""

COORDINATOR_IS: Final = "SELECT holder FROM penstock_leases WHERE name = 'coordinator'"

STORE_FRONTIER: Final = """INSERT INTO penstock_frontiers
    (table_name, frontier, snapshot, fresh_at, job_id) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (table_name) DO UPDATE SET frontier = excluded.frontier,
    snapshot = excluded.snapshot, fresh_at = excluded.fresh_at, job_id = excluded.job_id"""

PRUNE_JOBS: Final = """DELETE FROM penstock_scheduler_jobs
    WHERE finished_at <= ? AND status NOT IN ('QUEUED', 'RUNNING')"""
"""The moment before which jobs that ended are forgotten."""

TAKE_LEASE: Final = """INSERT INTO penstock_leases (name, holder, fence, expires_at)
    VALUES (?, ?, 1, ?)
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at,
    fence = penstock_leases.fence + CASE WHEN penstock_leases.holder = excluded.holder
        THEN 0 ELSE 1 END
    WHERE penstock_leases.expires_at <= ? OR penstock_leases.holder = excluded.holder"""
"""name, holder, expires_at, now. One row changed: the lease is ours. A new holder, a new fence."""

RENEW_LEASE: Final = "UPDATE penstock_leases SET expires_at = ? WHERE name = ? AND holder = ?"
"""expires_at, name, holder. No row changed: somebody else held it meanwhile."""

TAKE_LOCK: Final = """INSERT INTO penstock_locks (table_name, holder, taken_at)
    VALUES (?, ?, ?) ON CONFLICT (table_name) DO NOTHING"""
"""table_name, holder, taken_at. No row changed: someone else holds it."""

RELEASE_LOCKS: Final = "DELETE FROM penstock_locks WHERE holder = ?"


def for_postgres(sql: str) -> str:
    """The same statement with psycopg's placeholders. None of them has a `?` or `%` in a text."""
    return sql.replace("?", "%s")


def job_row(job: Job) -> tuple[Any, ...]:
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


def job_from_row(row: Sequence[Any]) -> Job:
    """A job from a row of `JOB_COLUMNS`."""
    found = dict(zip(JOB_COLUMNS, row, strict=True))
    return Job(
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
    """A definition from a row of `TABLE_COLUMNS`."""
    name, query, sources, schedule, mode, consistency, status, description, volatile = row
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
    )


def history_row(record: RefreshRecord) -> tuple[Any, ...]:
    """A refresh as a row of `HISTORY_COLUMNS`."""
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
        record.snapshot,
        json.dumps(record.stale),
    )
