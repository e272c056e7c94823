"""The rows that one step of a coordinator changes: one transaction, which also checks the lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from penstock.tables import rows
from penstock.tables.coordinator.catalog_wait import CatalogWait
from penstock.tables.coordinator.lease import CoordinatorLeaseLost
from penstock.tables.core.jobs import Job
from penstock.tables.store import TableStore


class LeasedBatch:
    """Begins its transaction with the first row that changes, so an idle step writes nothing.

    For one thread. What a failed transaction leaves undone, its caller's state may count as done:
    end the session after an error.
    """

    def __init__(self, store: TableStore, identity: str, catalog: CatalogWait) -> None:
        self.store, self._identity, self._catalog = store, identity, catalog
        self._stack = ExitStack()
        self._cursor: Any = None
        self._written = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Everything that is run inside is one transaction."""
        with ExitStack() as self._stack:
            try:
                yield
            finally:
                self._cursor = None

    def open(self) -> Any:
        """The cursor of the transaction; refused if another coordinator has the lease."""
        if self._cursor is None:
            # A loss of power may undo these rows: the next session starts from what is left.
            begin = partial(self.store.lake.transact, synced=False)
            cursor = self._catalog.unlocked(lambda: self._stack.enter_context(begin()))
            self._written = True
            found = self.store.fetch(cursor, rows.COORDINATOR_IS)
            if not found or found[0][0] != self._identity:
                holder = found[0][0] if found else "no coordinator"
                raise CoordinatorLeaseLost(f"lost the lease: {holder} holds it")
            self._cursor = cursor
        return self._cursor

    def run(self, sql: str, *parameters: Any) -> int:
        """One statement of the transaction; returns how many rows it changed."""
        return self.store.execute(self.open(), sql, *parameters)

    def run_alone(self, sql: str, *parameters: Any) -> int:
        """One statement in a transaction of its own, however long others hold the catalog."""
        return self._catalog.unlocked(lambda: self.store.run(sql, *parameters))

    def close_job(self, job: Job) -> None:
        """Store how a job ended, and let the sweep have its files."""
        retryable = None if job.retryable is None else int(job.retryable)
        values = (job.status.value, job.finished_at_ms, job.outcome_detail, retryable, job.job_id)
        self.run(rows.CLOSE_JOB, *values)
        self.run(rows.DROP_RESERVATION, self.store.token(job.job_id))

    @contextmanager
    def transact(self) -> Iterator[Any]:
        """The transaction under way, or one of its own: for permits."""
        if self._cursor is not None:
            yield self._cursor
        else:
            with self.store.lake.transact() as cursor:
                yield cursor

    def take_written(self) -> bool:
        """Whether anything was written since the last call."""
        written, self._written = self._written, False
        return written
