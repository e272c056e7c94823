"""The rows changed by one step of a coordinator: one transaction, which also checks the lease."""

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
    """Begins its transaction with the first change, so an idle step writes nothing.

    For one thread. If a transaction fails, the caller's in-memory state may be ahead of the rows:
    end the session after an error.
    """

    def __init__(self, store: TableStore, identity: str, catalog: CatalogWait) -> None:
        self.store, self._identity, self._catalog = store, identity, catalog
        self._stack = ExitStack()
        self._cursor: Any = None
        self._written = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Run everything inside the context as one transaction."""
        with ExitStack() as self._stack:
            try:
                yield
            finally:
                self._cursor = None

    def open(self) -> Any:
        """The transaction's cursor; raises if another coordinator holds the lease."""
        if self._cursor is None:
            # A power loss may undo these rows: the next session starts from whatever is left.
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
        """Run one statement in the transaction; returns the number of changed rows."""
        return self.store.execute(self.open(), sql, *parameters)

    def run_alone(self, sql: str, *parameters: Any) -> int:
        """Run one statement in its own transaction, waiting as long as others hold the catalog."""
        return self._catalog.unlocked(lambda: self.store.run(sql, *parameters))

    def close_job(self, job: Job) -> None:
        """Store how a job ended, and release its files to the sweep."""
        retryable = None if job.retryable is None else int(job.retryable)
        values = (job.status.value, job.finished_at_ms, job.outcome_detail, retryable, job.job_id)
        self.run(rows.CLOSE_JOB, *values)
        self.run(rows.DROP_RESERVATION, self.store.token(job.job_id))

    @contextmanager
    def transact(self) -> Iterator[Any]:
        """The current transaction, or a new one: for permits."""
        if self._cursor is not None:
            yield self._cursor
        else:
            with self.store.lake.transact() as cursor:
                yield cursor

    def take_written(self) -> bool:
        """Whether anything was written since the last call."""
        written, self._written = self._written, False
        return written
