"""The cluster's permits: rows in the catalog, or in a database that several warehouses share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final

from penstock.kernel.errors import Rejected
from penstock.lake.database import CatalogLocked, Database, WriteConflict, fetch, open_database
from penstock.tables import processes, rows
from penstock.tables.coordinator.tokens import SqlTokenPool
from penstock.tables.rows import WAITERS
from penstock.tables.settings import WarehouseSettings
from penstock.tables.store import TableStore

WAITER_MS: Final = 5_000
"""A coordinator that has not asked for this long no longer counts as waiting."""


class PermitPool:
    """One coordinator's view of the pool.

    `transact` yields the cursor of the coordinator's own transaction, if the pool is in the
    catalog. A pool elsewhere has its own transactions; permits that a crash leaves there are
    recovered at the next start.
    """

    def __init__(
        self,
        store: TableStore,
        settings: WarehouseSettings,
        holder: str,
        transact: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._store = store
        self._holder = holder
        self._name = settings.pool_name
        self._elsewhere = None if settings.pool is None else open_database(settings.pool)
        self._database: Database = self._elsewhere or store.lake.database
        self._transact = transact if self._elsewhere is None else self._own
        self._waits = False
        with self._transact() as cursor:
            cursor.execute(WAITERS)
        self._pool = SqlTokenPool(
            self._transact,
            self._name,
            settings.max_workers,
            parameter=self._database.parameter,
        )

    @property
    def is_shared(self) -> bool:
        """Whether other warehouses may hold permits of the pool."""
        return self._elsewhere is not None

    def ask(self, now_ms: int) -> bool:
        """Take a permit if one is free; otherwise register as waiting."""
        won = self._pool.acquire(self._holder)
        if self.is_shared and (not won or self._waits):
            self._note(waits=not won, now_ms=now_ms)
        self._waits = not won
        return won

    def give_back(self, count: int = 1) -> None:
        """Return permits."""
        self._pool.release(self._holder, count)

    def held(self) -> dict[str, int]:
        """The number of permits held by each coordinator."""
        return self._pool.held()

    def is_contended(self, now_ms: int) -> bool:
        """Whether another coordinator is waiting."""
        with self._transact() as cursor:
            values = (self._name, self._holder, now_ms - WAITER_MS)
            ((others,),) = fetch(self._database, cursor, rows.COUNT_OTHER_WAITERS, values)
        return bool(others)

    def recover(self, now_ms: int) -> dict[str, int]:
        """Take back the permits of dead coordinators: of this warehouse, and of dead processes.

        Only the holder of the warehouse's lease may call it, after closing all their jobs.
        """
        ours = f"@{self._store.warehouse}"
        found = {}
        for holder, count in self.held().items():
            if holder != self._holder and (holder.endswith(ours) or self._is_dead(holder)):
                # Only the permits seen here: a live holder may have taken another one since.
                with suppress(Rejected):  # another coordinator just took them back
                    self._pool.release(holder, count)
                    found[holder] = count
        return found

    def _is_dead(self, holder: str) -> bool:
        return processes.is_here(holder) and not processes.is_alive(holder)

    def _note(self, *, waits: bool, now_ms: int) -> None:
        sql = self._database.sql
        with self._transact() as cursor:
            cursor.execute(sql(rows.DELETE_WAITER), (self._name, self._holder))
            if waits:
                cursor.execute(sql(rows.INSERT_WAITER), (self._name, self._holder, now_ms))

    @contextmanager
    def _own(self) -> Iterator[Any]:
        try:
            with self._database.write() as cursor:
                yield cursor
        except WriteConflict as error:
            raise CatalogLocked(
                f"the pool of permits is locked by other writers: {error}"
            ) from error

    def close(self) -> None:
        """Return all permits, and close what was opened here."""
        held = self.held().get(self._holder, 0)
        if held:
            self.give_back(held)
        if self._elsewhere is not None:
            self._note(waits=False, now_ms=0)
            self._elsewhere.close()
