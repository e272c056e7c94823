"""Taking a job in hand: checked, claimed, members locked, files reserved, in one transaction.

A person's refresh takes the same locks. A lock whose holder is dead is taken away from it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.kernel.errors import Busy, Conflict
from penstock.protocol.errors import TableNotFound
from penstock.tables import schema
from penstock.tables.core.jobs import Job, JobStatus, may_claim
from penstock.tables.core.model import TableDefinition
from penstock.tables.rows import GRAPH_VERSION, SELECT_VALUE, Store

RESERVE = "INSERT INTO penstock_lake_writers VALUES (?, ?, ?)"


class LockHeld(Busy):
    """Someone else is refreshing a table; the same may work when they have ended."""

    code = "lock_held"


class NotClaimed(Conflict):
    """A job must not run any more; its row says CANCELLED, or whatever else became of it."""

    code = "not_claimed"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job in hand: its members are locked until it ends."""

    job: Job
    tables: tuple[TableDefinition, ...]
    token: str
    took_ms: float = 0.0


def claim(store: Store, job_id: int, worker: str, *, now_ms: int, reserve_ms: int) -> Claimed:
    """Claim a queued job, or `NotClaimed`, or `LockHeld`."""

    def work(cursor: Any) -> Claimed | str:
        found = store.fetch(cursor, f"{schema.SELECT_JOBS} WHERE job_id = ?", job_id)
        if not found:
            return f"expected job {job_id}, found none"
        job = schema.job_from_row(found[0])
        why_not = may_claim(job, **_facts(store, cursor))
        if why_not is not None:
            if job.status is JobStatus.QUEUED:
                store.execute(
                    cursor, schema.CLOSE_JOB, JobStatus.CANCELLED.value, now_ms, why_not, 1, job_id
                )
            return why_not
        store.execute(cursor, schema.CLAIM_JOB, worker, now_ms, job_id)
        return _take(store, cursor, job.claimed(worker, now_ms), now_ms, reserve_ms)

    began = time.perf_counter()
    done: Claimed | str = _locking(store, work, now_ms)
    if isinstance(done, str):
        raise NotClaimed(done, job_id=job_id)
    return replace(done, took_ms=(time.perf_counter() - began) * 1_000)


def claim_for_person(
    store: Store, job: Job, worker: str, *, now_ms: int, reserve_ms: int
) -> Claimed:
    """Store a job that is running already, with its locks; `LockHeld` if one is taken."""
    running = job.claimed(worker, now_ms)

    def work(cursor: Any) -> Claimed:
        store.execute(cursor, schema.INSERT_JOB, *schema.job_row(running))
        return _take(store, cursor, running, now_ms, reserve_ms)

    done: Claimed = _locking(store, work, now_ms)
    return done


def _locking(store: Store, work: Any, now_ms: int) -> Any:
    """Run a claim; where a dead process holds a lock, take it away and run the claim again."""
    for _ in range(3):
        try:
            # What a claim says matters while its process lives: no need to wait for the disk.
            return store.lake.retrying(work, synced=False)
        except LockHeld as error:
            holder = str(error.detail["holder"])
            if store.is_alive(holder, now_ms):
                raise
            store.run(schema.RELEASE_LOCKS, holder)
    return store.lake.retrying(work)


def _facts(store: Store, cursor: Any) -> dict[str, Any]:
    version = store.fetch(cursor, SELECT_VALUE, GRAPH_VERSION)
    holder = store.fetch(cursor, schema.COORDINATOR_IS)
    return {
        "graph_version": int(version[0][0]) if version else 0,
        "coordinator": holder[0][0] if holder else None,
    }


def _take(store: Store, cursor: Any, job: Job, now_ms: int, reserve_ms: int) -> Claimed:
    for table in job.members:
        if store.execute(cursor, schema.TAKE_LOCK, table, job.worker, now_ms) != 1:
            sql = "SELECT holder FROM penstock_locks WHERE table_name = ?"
            holder = store.fetch(cursor, sql, table)[0][0]
            raise LockHeld(
                f"expected the lock of {table}, found that {holder} holds it",
                table=table,
                holder=holder,
            )
    tables = _tables(store, cursor, job.members)
    token = store.token(job.job_id)
    store.execute(cursor, RESERVE, token, now_ms, now_ms + reserve_ms)
    return Claimed(replace(job), tables, token)


def _tables(store: Store, cursor: Any, names: Sequence[str]) -> tuple[TableDefinition, ...]:
    marks = ", ".join("?" * len(names))
    rows = store.fetch(cursor, f"{schema.SELECT_TABLES_ONLY} WHERE name IN ({marks})", *names)
    known = {row[0]: row for row in rows}
    for name in names:
        if name not in known:
            raise TableNotFound(name)
    return tuple(schema.table_from_row(known[name]) for name in names)
