"""The tables that Penstock keeps in the lake's catalog, as SQL for SQLite and PostgreSQL alike.

They are in the lake's own database, so that a refresh commits its data, frontier, history and job
outcome in one transaction. Times are integer milliseconds since 1970; lists are JSON. `rows` has
the statements that read and write them.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 2

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
