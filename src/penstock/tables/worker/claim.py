"""Claim a job: checked, claimed, members locked, files reserved, in one transaction.

A manual refresh takes the same locks. A lock of a dead process is taken over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.kernel.errors import Busy, Conflict
from penstock.protocol.errors import TableNotFound
from penstock.tables import rows
from penstock.tables.core.jobs import JobStatus, RefreshJob, may_claim
from penstock.tables.core.model import TableDefinition
from penstock.tables.store import TableStore


class LockHeld(Busy):
    """Another process is refreshing a table; a retry may succeed once it has ended."""

    code = "lock_held"


class NotClaimed(Conflict):
    """A job must no longer run; its row says CANCELLED or has another outcome."""

    code = "not_claimed"


@dataclass(frozen=True, slots=True)
class ClaimedUnit:
    """A claimed job: its members are locked until it ends."""

    job: RefreshJob
    tables: tuple[TableDefinition, ...]
    token: str
    took_ms: float = 0.0


def claim(
    store: TableStore, job_id: int, worker: str, *, now_ms: int, reserve_ms: int
) -> ClaimedUnit:
    """Claim a queued job; raises `NotClaimed` or `LockHeld`."""

    def work(cursor: Any) -> ClaimedUnit | str:
        found = store.fetch(cursor, f"{rows.SELECT_JOBS} WHERE job_id = ?", job_id)
        if not found:
            return f"there is no job {job_id}"
        job = rows.job_from_row(found[0])
        why_not = may_claim(job, **_facts(store, cursor))
        if why_not is not None:
            if job.status is JobStatus.QUEUED:
                store.execute(
                    cursor, rows.CLOSE_JOB, JobStatus.CANCELLED.value, now_ms, why_not, 1, job_id
                )
            return why_not
        store.execute(cursor, rows.CLAIM_JOB, worker, now_ms, job_id)
        return _take(store, cursor, job.claimed(worker, now_ms), now_ms, reserve_ms)

    began = time.perf_counter()
    done: ClaimedUnit | str = _locking(store, work, now_ms)
    if isinstance(done, str):
        raise NotClaimed(done, job_id=job_id)
    return replace(done, took_ms=(time.perf_counter() - began) * 1_000)


def claim_for_person(
    store: TableStore, job: RefreshJob, worker: str, *, now_ms: int, reserve_ms: int
) -> ClaimedUnit:
    """Store a job that is already running, with its locks; `LockHeld` if one is taken."""
    running = job.claimed(worker, now_ms)

    def work(cursor: Any) -> ClaimedUnit:
        store.execute(cursor, rows.INSERT_JOB, *rows.job_row(running))
        return _take(store, cursor, running, now_ms, reserve_ms)

    done: ClaimedUnit = _locking(store, work, now_ms)
    return done


def _locking(store: TableStore, work: Any, now_ms: int) -> Any:
    """Run a claim; if a dead process holds a lock, release it and run the claim again."""
    for _ in range(3):
        try:
            # A claim only matters while its process lives: no need to wait for the disk.
            return store.lake.retrying(work, synced=False)
        except LockHeld as error:
            holder = str(error.detail["holder"])
            if store.is_alive(holder, now_ms):
                raise
            store.run(rows.RELEASE_LOCKS, holder)
    return store.lake.retrying(work)


def _facts(store: TableStore, cursor: Any) -> dict[str, Any]:
    version = store.fetch(cursor, rows.SELECT_VALUE, rows.GRAPH_VERSION)
    holder = store.fetch(cursor, rows.COORDINATOR_IS)
    return {
        "graph_version": int(version[0][0]) if version else 0,
        "coordinator": holder[0][0] if holder else None,
    }


def _take(
    store: TableStore, cursor: Any, job: RefreshJob, now_ms: int, reserve_ms: int
) -> ClaimedUnit:
    for table in job.members:
        if store.execute(cursor, rows.TAKE_LOCK, table, job.worker, now_ms) != 1:
            holder = store.fetch(cursor, rows.LOCK_IS, table)[0][0]
            raise LockHeld(
                f"{holder} holds the lock of {table}",
                table=table,
                holder=holder,
            )
    tables = _tables(store, cursor, job.members)
    token = store.token(job.job_id)
    store.execute(cursor, rows.RESERVE_FILES, token, now_ms, now_ms + reserve_ms)
    return ClaimedUnit(replace(job), tables, token)


def _tables(store: TableStore, cursor: Any, names: Sequence[str]) -> tuple[TableDefinition, ...]:
    select = rows.by_name(rows.SELECT_TABLES_ONLY, "name", len(names))
    known = {row[0]: row for row in store.fetch(cursor, select, *names)}
    for name in names:
        if name not in known:
            raise TableNotFound(name)
    return tuple(rows.table_from_row(known[name]) for name in names)
