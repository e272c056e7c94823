"""Housekeeping by the lease holder: after a dead predecessor, and of tables in many small files.

Compaction changes no rows. It runs beside refreshes, under the same locks: a table is either
refreshed or compacted. Its files are reserved under a prefix that every coordinator of the
warehouse knows, so that a successor can release what a dead coordinator reserved.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from penstock.kernel.errors import Conflict
from penstock.lake import feed
from penstock.lake.compact import CompactionPolicy, compact
from penstock.tables import processes, rows
from penstock.tables.coordinator.lease import LeasedBatch
from penstock.tables.coordinator.permits import PermitPool
from penstock.tables.core.frontier import LakePosition
from penstock.tables.core.jobs import RefreshJob, recover
from penstock.tables.processes import process_name
from penstock.tables.query.names import DEFAULT_SCHEMA, STATE_SCHEMA, state_table
from penstock.tables.store import MANUAL, TableStore

FILES_MAX: Final = 12
"""A table with this many files is compacted."""

WORN_ROWS_MIN: Final = 100_000
WORN_SHARE: Final = 0.01
"""A file of so many rows that lost this share of them is rewritten: every reader pays for them."""

_EVERYTHING: Final = (1 << 62) - 1
_POLICY: Final = CompactionPolicy(files_min=4, deleted_share_min=0.1)
_WORN_POLICY: Final = CompactionPolicy(files_min=4, deleted_share_min=WORN_SHARE)


def tidy(
    store: TableStore,
    now_ms: int,
    *,
    files_max: int = FILES_MAX,
    worn_rows_min: int = WORN_ROWS_MIN,
) -> list[str]:
    """Compact stream tables with many files, or with large ones that lost rows; returns names.

    Tables that are being refreshed are left alone.
    """
    with store.lake.look() as reader:
        worn = reader.tables_of_worn_files(worn_rows_min, WORN_SHARE)
        many = reader.tables_of_many_files(files_max) | worn
    if not many:
        return []
    known = store.definitions().graph.tables
    owners = {f"{STATE_SCHEMA}.{state_table(name)}": name for name in known}
    owners.update({name: name for name in known})
    found = {_name(table.schema.name, table.name): _WORN_POLICY if table.id in worn else _POLICY
             for table in store.lake.tables() if table.id in many}  # fmt: skip
    return [name for name in sorted(found.keys() & owners.keys())
            if _tidied(store, name, owners[name], found[name], now_ms)]  # fmt: skip


def _tidied(
    store: TableStore, name: str, owner: str, policy: CompactionPolicy, now_ms: int
) -> bool:
    holder = f"{process_name()}#upkeep"
    if store.run(rows.TAKE_LOCK, owner, holder, now_ms) != 1:
        return False
    try:
        return compact(store.lake, name, policy, owner=owner_of(store)).files_written > 0
    except Conflict:  # a writer without a lock, such as another tool; retried next time
        forget(store)
        return False
    finally:
        store.run(rows.RELEASE_LOCKS, holder)


def forget_feeds(store: TableStore) -> None:
    """Forget what tables changed once their readers and topics have it; the sweep removes files."""
    with store.lake.look() as reader:
        listed = {int(number) for (number,) in reader.rows(feed.SELECT_TABLES)}
        if not listed:
            return
        tables = reader.tables(reader.latest().id)
        frontiers = store.frontiers(reader)
        published = {row[0]: int(row[4]) for row in reader.rows(rows.SELECT_PUBLICATIONS)}
    readers = store.definitions().graph.readers
    names = {table.id: _name(table.schema.name, table.name) for table in tables}
    for number in listed:
        name = names.get(number)
        known = [frontiers[r].frontier.get(name) for r in readers.get(name or "", ())
                 if r in frontiers and name is not None]  # fmt: skip
        passed = [at.snapshot for at in known if isinstance(at, LakePosition)]
        if name in published:
            passed.append(published[name])
        until = min(passed) if passed else _EVERYTHING
        if store.lake.query(feed.ANY_UNTIL, (number, until)):
            store.run(feed.DELETE_UNTIL, number, until)


def forget(store: TableStore) -> None:
    """Release what upkeep has reserved. Only for the holder of the coordinator's lease."""
    store.run(rows.DROP_RESERVATIONS_LIKE, f"{owner_of(store)}%")


def owner_of(store: TableStore) -> str:
    """The prefix of reservations by a warehouse's upkeep."""
    return blake2b(f"{store.warehouse}/upkeep".encode(), digest_size=8).hexdigest()


def _name(home: str, table: str) -> str:
    return table if home == DEFAULT_SCHEMA else f"{home}.{table}"


def recover_catalog(batch: LeasedBatch, permits: PermitPool, identity: str, now_ms: int) -> None:
    """Close jobs, locks, reservations and permits of dead coordinators and workers."""
    store = batch.store
    found = store.jobs(live_only=True)
    live = {job.worker for job in found if job.worker and store.is_alive(job.worker, now_ms)}
    ours = [job for job in found if not (_is_manual(job) and job.worker in live)]
    recovery = recover(
        ours,
        coordinator=identity,
        live_workers=frozenset(name for name in live if name),
        now_ms=now_ms,
    )
    with batch():
        for job in recovery.closed:
            batch.close_job(job)
            if job.worker is not None:
                batch.run(rows.RELEASE_LOCKS, job.worker)
    for job in recovery.interrupt:
        _kill(job.worker)
    forget(store)
    drop_dead_locks(batch, (), now_ms)
    permits.recover(now_ms)


def drop_dead_locks(batch: LeasedBatch, ours: Collection[str], now_ms: int) -> None:
    """Release the locks of dead processes."""
    for (holder,) in batch.store.lake.query(rows.SELECT_LOCK_HOLDERS):
        if holder not in ours and not batch.store.is_alive(holder, now_ms):
            batch.run_alone(rows.RELEASE_LOCKS, holder)


def _is_manual(job: RefreshJob) -> bool:
    return job.coordinator.startswith(MANUAL)


def _kill(worker: str | None) -> None:
    """Kill a worker whose coordinator is dead; never a process that also does other work."""
    if (
        worker is not None
        and "#" not in worker
        and processes.is_here(worker)
        and processes.is_alive(worker)
    ):
        with suppress(ProcessLookupError):
            os.kill(processes.pid_of(worker), signal.SIGKILL)
