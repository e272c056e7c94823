"""The coordinator's lease, the transactions that check it, and waiting for a catalog that is away.

One coordinator holds the lease at a time, and a thread renews it. The same transaction stores the
coordinator's report if it has changed. An idle coordinator writes nothing but its lease: in a
SQLite file every write may block another tool.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, Self, TypeVar

from penstock.flow.backoff import Backoff
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Conflict
from penstock.kernel.units import format_ms
from penstock.lake.database import CatalogAway, CatalogLocked
from penstock.tables import rows
from penstock.tables.coordinator.report import CoordinatorReport
from penstock.tables.core.jobs import RefreshJob
from penstock.tables.rows import COORDINATOR
from penstock.tables.store import FOREIGN_MS, TableStore

T = TypeVar("T")
LOOP: Final = "loop"
_RETRIES: Final = Backoff(base_ms=100, cap_ms=1_000, jitter=0.0, window_ms=math.inf)
"""Delay before the next attempt: first and maximum."""
_LOG: Final = logging.getLogger("penstock.tables")
_LEASE: Final = "lease"
_LOOK_S: Final = 1.0
"""How often the keeper checks whether the report has changed."""


class CatalogWait:
    """Tracks which parts of a coordinator are waiting for the catalog. Thread-safe."""

    def __init__(self, say: Callable[[str], None], clock: Clock, stop: threading.Event) -> None:
        self._say, self._clock, self._stop = say, clock, stop
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._since_ms: int | None = None
        self._failures = 0
        self.trouble: str | None = None
        """Why the catalog is unusable, or None."""

    def unlocked(self, attempt: Callable[[], T]) -> T:
        """Retry while other writers hold the catalog; a failed attempt changed nothing."""
        waited = False
        while True:
            try:
                found = attempt()
            except CatalogLocked as error:
                if self._stop.is_set():
                    raise
                waited = True
                self.away(error)
                self.pause()
            else:
                if waited:
                    self.back()
                return found

    def away(self, error: CatalogAway, who: str = LOOP) -> None:
        """The catalog is unusable for `who`; reported the first time."""
        with self._lock:
            self._waiting.add(who)
            self.trouble = error.message
            if self._since_ms is not None:
                return
            self._since_ms, self._failures = self._clock.monotonic_ms(), 0
        self._say(f"waiting for the catalog: {error.message}")

    def pause(self) -> None:
        """Wait briefly before the next attempt."""
        self._failures += 1
        self._stop.wait(_RETRIES.nominal_ms(self._failures) / 1_000)

    def forget(self, who: str) -> None:
        """A waiting part has ended. The others will notice whether the catalog is back."""
        with self._lock:
            self._waiting.discard(who)

    def back(self, who: str = LOOP) -> None:
        """One part can use the catalog again; reported once all can."""
        with self._lock:
            self._waiting.discard(who)
            if self._since_ms is None or self._waiting:
                return
            away_ms = self._clock.monotonic_ms() - self._since_ms
            self._since_ms = self.trouble = None
        self._say(f"the catalog is back after {format_ms(away_ms)}")


class CoordinatorLeaseLost(Conflict):
    """Another coordinator took over; this one must stop immediately."""

    code = "lease_lost"


def take_lease(
    store: TableStore, identity: str, *, now_ms: int, lease_ms: int, left: str | None = None
) -> bool:
    """Become the coordinator, if there is none or the previous one is dead.

    `left` is an earlier identity of the caller, which ended without giving up its lease.
    """
    found = store.lease()
    if found is not None and found.holder != left and found.expires_ms > now_ms:
        if found.holder == identity:
            return True
        if store.is_alive(found.holder, now_ms):
            return False

    def work(cursor: Any) -> bool:
        if found is not None:  # only the holder found dead, not a newer one
            store.execute(cursor, rows.RENEW_LEASE, 0, COORDINATOR, found.holder)
        values = (COORDINATOR, identity, now_ms + lease_ms, now_ms)
        if store.execute(cursor, rows.TAKE_LEASE, *values) != 1:
            return False
        store.execute(
            cursor, rows.DELETE_REPORT, COORDINATOR
        )  # the previous holder's report is stale
        return True

    return bool(store.lake.retrying(work))


def give_up_lease(store: TableStore, identity: str) -> None:
    """Release the lease, so that another coordinator can take over immediately."""
    store.run(rows.DELETE_LEASE, COORDINATOR, identity)


class LeaseKeeper:
    """Renews a lease from its own thread, so that a long step does not lose it.

    While the catalog is away, no other coordinator can take the lease, so time alone does not lose
    it. The catalog decides: this thread and every transaction of the holder check it there.
    """

    def __init__(
        self,
        store: TableStore,
        identity: str,
        *,
        lease_ms: int,
        now_ms: Callable[[], int],
        report: Callable[[], CoordinatorReport | None],
        catalog: CatalogWait | None = None,
    ) -> None:
        self._store, self._identity, self._catalog = store, identity, catalog
        self._lease_ms, self._now_ms, self._report = lease_ms, now_ms, report
        self._stored: CoordinatorReport | None = None
        self._seen_ms = 0
        self._stop = threading.Event()
        self._lost: str | None = None
        self._thread = threading.Thread(target=self._keep, name="penstock-lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._catalog is not None:
            self._catalog.forget(_LEASE)

    def check(self) -> None:
        """Raise `CoordinatorLeaseLost` if the lease is lost."""
        if self._lost is not None:
            raise CoordinatorLeaseLost(self._lost)

    def _keep(self) -> None:
        renewed_ms = self._now_ms()
        pause_s = min(_LOOK_S, self._lease_ms / 4_000)
        while not self._stop.wait(pause_s):
            now_ms, report = self._now_ms(), self._report()
            if now_ms - renewed_ms < self._lease_ms / 3 and not self._has_changed(report):
                continue
            try:
                if not self._renew(now_ms, report):
                    self._lost = "lost the lease: another coordinator holds it"
                    return
            except CatalogAway as error:  # it may come back
                if self._catalog is not None:
                    self._catalog.away(error, _LEASE)
                continue
            except Exception as error:
                _LOG.warning("the lease could not be renewed: %s", error)
                continue
            renewed_ms, self._stored = now_ms, report
            if self._catalog is not None:
                self._catalog.back(_LEASE)

    def _has_changed(self, report: CoordinatorReport | None) -> bool:
        return report is not None and report != self._stored

    def _renew(self, now_ms: int, report: CoordinatorReport | None) -> bool:
        store, run = self._store, self._store.execute
        with store.lake.transact(synced=False) as cursor:
            values = (now_ms + self._lease_ms, COORDINATOR, self._identity)
            if run(cursor, rows.RENEW_LEASE, *values) != 1:
                return False
            if report is not None and self._has_changed(report):
                text = json.dumps({**report.values, "late": report.late})
                run(cursor, rows.STORE_REPORT, COORDINATOR, text, now_ms)
            if now_ms - self._seen_ms >= FOREIGN_MS / 4:
                store.show_life_in(cursor, self._identity.partition("#")[0], now_ms)
                self._seen_ms = now_ms
        return True


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

    def close_job(self, job: RefreshJob) -> None:
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
