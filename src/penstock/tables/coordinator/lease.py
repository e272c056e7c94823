"""The coordinator's lease: one holder at a time, and a thread that renews it.

The same transaction stores the coordinator's report if it has changed. An idle coordinator writes
nothing but its lease: in a SQLite file every write may block another tool.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any, Final, Self

from penstock.kernel.errors import Conflict
from penstock.lake.errors import CatalogAway
from penstock.tables import rows
from penstock.tables.coordinator.catalog_wait import CatalogWait
from penstock.tables.coordinator.report import CoordinatorReport
from penstock.tables.rows import COORDINATOR
from penstock.tables.store import FOREIGN_MS, TableStore

_LOG: Final = logging.getLogger("penstock.tables")
_LEASE: Final = "lease"
_LOOK_S: Final = 1.0
"""How often the keeper checks whether the report has changed."""


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
