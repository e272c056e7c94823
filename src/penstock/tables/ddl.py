"""Tables of the shell beside those of the core: requests, positions, skips, what is shown."""

from __future__ import annotations

from typing import Final

from penstock.tables import schema

VERSION: Final = 2

CREATE: Final = (
    *schema.CREATE,
    # the graph's version, the warehouse's name, whether it drains, how far positions are known
    """CREATE TABLE IF NOT EXISTS penstock_warehouse (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL)""",
    # topics that tables may read: columns, key, address of the server, as JSON
    """CREATE TABLE IF NOT EXISTS penstock_sources (
        name TEXT PRIMARY KEY,
        definition TEXT NOT NULL)""",
    # what people want of the coordinator, and what became of it
    """CREATE TABLE IF NOT EXISTS penstock_requests (
        request_id TEXT PRIMARY KEY,
        table_name TEXT NOT NULL,
        is_forced INTEGER NOT NULL,
        asked_at BIGINT NOT NULL,
        answered_at BIGINT,
        is_ok INTEGER,
        detail TEXT)""",
    """CREATE INDEX IF NOT EXISTS penstock_requests_open ON penstock_requests (answered_at)""",
    # which snapshot last changed a table, for snapshots whose changes may be expired
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
    # what a coordinator last said of itself, for people in other processes
    """CREATE TABLE IF NOT EXISTS penstock_board (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL,
        said_at BIGINT NOT NULL)""",
    # processes on other machines, where nobody can look whether they run
    """CREATE TABLE IF NOT EXISTS penstock_processes (
        name TEXT PRIMARY KEY,
        seen_at BIGINT NOT NULL)""",
)
"""Makes everything that is not there yet; each can be run again without harm."""

WAITERS: Final = """CREATE TABLE IF NOT EXISTS penstock_token_waiters (
    pool TEXT NOT NULL,
    holder TEXT NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (pool, holder))"""
"""Beside the permits, which may lie in another database: who had to go without."""
