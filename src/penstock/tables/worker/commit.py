"""Commits a unit's refresh: all of it in one transaction, or only the failure.

The commit requires that the job is still running under the worker's name, that the worker still
holds its locks, that no other process refreshed a member meanwhile, and that the definitions have
not changed. So a job that was closed, cancelled, overtaken or replaced cannot commit, and
everything that committed is recorded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.kernel.errors import Conflict, Unknown
from penstock.lake.catalog import Catalog
from penstock.lake.commit import CommitResult
from penstock.lake.database import CatalogLocked
from penstock.lake.transaction import SNAPSHOT, LakeTransaction
from penstock.tables import rows
from penstock.tables.core.events import Refreshed
from penstock.tables.core.failures import FailureKind
from penstock.tables.core.frontier import Frontier, LakePosition, Position
from penstock.tables.core.history import ReasonCode, RefreshOutcome, RefreshRecord
from penstock.tables.core.jobs import JobStatus
from penstock.tables.core.model import TableDefinition
from penstock.tables.engine import StateDisagrees
from penstock.tables.store import TableStore
from penstock.tables.worker.claim import ClaimedUnit
from penstock.tables.worker.inputs import PENDING, UnitRun
from penstock.tables.worker.outcomes import (
    Cancelled,
    Ended,
    Failed,
    Succeeded,
    detail_of,
    kind_of,
)

_STATUS_OF: Final = {
    FailureKind.PERMANENT: JobStatus.PERMANENT_FAILED,
    FailureKind.AWAY: JobStatus.CANCELLED,
    FailureKind.LOST: JobStatus.CANCELLED,
}
LOCKED_S: Final = 300.0
"""How long a refresh with finished files waits for a locked catalog."""


class UnitCommitter:
    """Commits units and records failures."""

    def __init__(self, store: TableStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._lake: Catalog = store.lake
        self._now_ms = now_ms

    # committing ----------------------------------------------------------------------------------

    def commit(self, run: UnitRun, claimed: ClaimedUnit, stale: tuple[str, ...]) -> Ended:
        """Commit the results of every member, with frontiers, history and the job's outcome."""
        job, transaction, now_ms = claimed.job, run.transaction, self._now_ms()
        transaction.expect(rows.JOB_IS_RUNNING, (job.job_id, job.worker), 1)
        for table in claimed.tables:
            known = run.known.get(table.name)
            transaction.expect(rows.LOCK_IS, (table.name,), job.worker)
            transaction.expect(rows.REFRESH_IS, (table.name,), known.job_id if known else None)
            transaction.expect(rows.DEFINITION_IS, (table.name,), table.query)
            self._note_outcome(run, claimed, table, stale, now_ms)
        for name, source in run.sources.items():
            transaction.expect(rows.SOURCE_IS, (name,), source.to_json())
        transaction.also(rows.RELEASE_LOCKS, (job.worker,))
        transaction.also(
            rows.CLOSE_JOB, (JobStatus.SUCCEEDED.value, now_ms, None, None, job.job_id), rows=1
        )
        began = time.perf_counter()
        try:
            committed = self._committed(transaction)
        except Conflict as error:
            return self._refused(run, claimed, error)
        except Unknown:
            return self._looked_up(claimed)
        snapshot = committed.snapshot.id if committed.snapshot is not None else None
        return Succeeded(
            {
                name: Refreshed(
                    _settled(frontier, snapshot), _settle(run.position_after(name), snapshot)
                )
                for name, frontier in run.frontiers.items()
            },
            (time.perf_counter() - began) * 1_000,
        )

    def _committed(self, transaction: LakeTransaction) -> CommitResult:
        """Commit. Finished work is worth waiting for writers that hold the catalog for long."""
        until_s = time.monotonic() + LOCKED_S
        while True:
            try:
                return self._lake.commit(transaction)
            except CatalogLocked:
                if time.monotonic() > until_s:
                    raise

    def _note_outcome(
        self,
        run: UnitRun,
        claimed: ClaimedUnit,
        table: TableDefinition,
        stale: tuple[str, ...],
        now_ms: int,
    ) -> None:
        job, made, frontier = claimed.job, run.made[table.name], run.frontiers[table.name]
        position = run.position_after(table.name)
        at = SNAPSHOT if position == PENDING else position[0]
        began_ms = job.started_at_ms or now_ms
        text = frontier.to_json()
        run.transaction.also(
            rows.STORE_FRONTIER, (table.name, text, SNAPSHOT, at, began_ms, job.job_id)
        )
        record = RefreshRecord(
            table=table.name,
            unit_key=job.unit_key,
            job_id=job.job_id,
            outcome=RefreshOutcome.SUCCEEDED,
            configured=table.mode,
            executed=made.executed,
            reason=made.reason,
            reason_text=made.reason_text,
            started_at_ms=began_ms,
            finished_at_ms=max(now_ms, began_ms),
            rows_read=made.rows_read,
            delta_rows=made.delta_rows,
            rows_written=made.rows_written,
            timings_ms=made.timings_ms,
            frontier=frontier,
            stale=stale,
        )
        run.transaction.also(rows.SET_VALUE, (f"{rows.MADE}{table.name}", made.table.uuid))
        if made.keeps_state:
            run.transaction.also(rows.SET_VALUE, (f"{rows.STATE}{table.name}", str(job.job_id)))
        retained = {name: run.heads[name].first_seq for name in table.sources if name in run.heads}
        if retained != run.retained.get(table.name, {}):
            stored = (f"{rows.RETAINED}{table.name}", json.dumps(retained))
            run.transaction.also(rows.SET_VALUE, stored)
        if table.name in run.rebuild:
            run.transaction.also(rows.DELETE_VALUE, (f"{rows.REBUILD}{table.name}",))
        run.transaction.also(rows.INSERT_HISTORY, rows.history_row(record, at, SNAPSHOT))
        if made.choice is not None:
            choice = json.dumps(made.choice.as_dict())
            values = (job.job_id, table.name, record.finished_at_ms, choice)
            run.transaction.also(rows.INSERT_CHOICE, values)

    def _refused(self, run: UnitRun, claimed: ClaimedUnit, error: Conflict) -> Ended:
        """Handle a refused commit: cancelled if the job or a definition changed, else failed."""
        job = self._store.job(claimed.job.job_id)
        if job is None or job.status is not JobStatus.RUNNING:
            self._let_go(claimed)
            return Cancelled(f"closed while it ran: {job.outcome_detail if job else 'pruned'}")
        found = self._store.definitions()
        for table in claimed.tables:
            now = found.graph.tables.get(table.name)
            if now is None or now.query != table.query:
                return self.cancelled(claimed, f"{table.name} was changed while it was refreshed")
        for name, source in run.sources.items():
            if found.topics.get(name) != source:
                return self.cancelled(claimed, f"{name} was declared again while it was read")
        overtaken = self._overtaken(run, claimed)
        if overtaken is not None:
            return self.cancelled(claimed, overtaken)
        return self.failed(claimed, error, None)

    def _overtaken(self, run: UnitRun, claimed: ClaimedUnit) -> str | None:
        """How another process interfered with a member despite its lock; None if none did."""
        with self._lake.look() as reader:
            locks: dict[str, str] = dict(reader.rows(rows.SELECT_LOCKS))
            now = self._store.frontiers(reader, claimed.job.members)
        for name in claimed.job.members:
            if locks.get(name) != claimed.job.worker:
                return f"the lock of {name} was taken away while it was refreshed"
            if (now[name].job_id if name in now else None) != (
                run.known[name].job_id if name in run.known else None
            ):
                return f"{name} was refreshed by another process meanwhile"
        return None

    def _looked_up(self, claimed: ClaimedUnit) -> Ended:
        """The commit's outcome is unknown; read it from the job's row."""
        job = self._store.job(claimed.job.job_id)
        if job is None or job.status is not JobStatus.SUCCEEDED:
            lost = Conflict("the commit did not land")
            return self.failed(claimed, lost, None)
        with self._lake.look() as reader:
            known = self._store.frontiers(reader)
        return Succeeded(
            {
                name: Refreshed(known[name].frontier, known[name].position)
                for name in claimed.job.members
                if name in known
            }
        )

    # failing -------------------------------------------------------------------------------------

    def failed(self, claimed: ClaimedUnit, error: Exception, member: str | None) -> Ended:
        """Record the failure and the job's end; the refresh has no visible effect."""
        kind, detail = kind_of(error), detail_of(error)
        status = _STATUS_OF.get(kind, JobStatus.RETRYABLE_FAILED)
        job, now_ms = claimed.job, self._now_ms()

        def work(cursor: Any) -> bool:
            run = self._store.execute
            retryable = int(kind is not FailureKind.PERMANENT)
            closed = run(
                cursor, rows.CLOSE_JOB, status.value, now_ms, detail, retryable, job.job_id
            )
            run(cursor, rows.RELEASE_LOCKS, job.worker)
            run(cursor, rows.DROP_RESERVATION, claimed.token)
            if isinstance(error, StateDisagrees) and member is not None:
                reason = ReasonCode.STATE_DISAGREES.value
                run(cursor, rows.SET_VALUE, f"{rows.REBUILD}{member}", reason)
            if closed and not kind.blameless:
                for table in claimed.tables:
                    failure = _failure(claimed, table, error, member, now_ms)
                    run(cursor, rows.INSERT_HISTORY, *rows.history_row(failure, None))
            return bool(closed)

        if not self._lake.retrying(work):
            return Cancelled("closed while it ran")
        return Failed(kind, detail, member)

    def cancelled(self, claimed: ClaimedUnit, detail: str) -> Ended:
        """Close the job and let go of its tables; nothing has failed."""
        now_ms, job = self._now_ms(), claimed.job
        self._store.run(rows.CLOSE_JOB, JobStatus.CANCELLED.value, now_ms, detail, 1, job.job_id)
        self._let_go(claimed)
        return Cancelled(detail)

    def _let_go(self, claimed: ClaimedUnit) -> None:
        self._store.run(rows.RELEASE_LOCKS, claimed.job.worker)
        self._store.run(rows.DROP_RESERVATION, claimed.token)


def _settled(frontier: Frontier, snapshot: int | None) -> Frontier:
    return Frontier({source: _settle(at, snapshot) for source, at in frontier.items()})


def _settle(position: Position, snapshot: int | None) -> Position:
    return LakePosition(snapshot) if position == PENDING and snapshot is not None else position


def _failure(
    claimed: ClaimedUnit, table: TableDefinition, error: Exception, member: str | None, now_ms: int
) -> RefreshRecord:
    job, detail = claimed.job, detail_of(error)
    began_ms = job.started_at_ms or now_ms
    own = member is None or member == table.name
    disagrees = own and isinstance(error, StateDisagrees)
    return RefreshRecord(
        table=table.name,
        unit_key=job.unit_key,
        job_id=job.job_id,
        outcome=RefreshOutcome.FAILED,
        configured=table.mode,
        executed=None,
        reason=ReasonCode.STATE_DISAGREES if disagrees else ReasonCode.AS_CONFIGURED,
        reason_text=detail if own else f"left as it was, because {member} failed: {detail}",
        started_at_ms=began_ms,
        finished_at_ms=max(now_ms, began_ms),
    )
