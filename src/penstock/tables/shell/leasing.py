"""The coordinator's lease: one holder at a time, and a thread that says so again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from penstock.kernel.errors import Conflict
from penstock.tables import schema
from penstock.tables.shell.store import COORDINATOR, Store

SAY = (
    "INSERT INTO penstock_board (name, value, said_at) VALUES (?, ?, ?) "
    "ON CONFLICT (name) DO UPDATE SET value = excluded.value, said_at = excluded.said_at"
)


class LeaseLost(Conflict):
    """Another coordinator took over; this one must stop at once."""

    code = "lease_lost"


def take_lease(store: Store, identity: str, *, now_ms: int, lease_ms: int) -> bool:
    """Become the coordinator, if nobody is or whoever was is dead."""
    found = store.lease()
    if found is not None and found.expires_ms > now_ms and store.is_alive(found.holder, now_ms):
        return found.holder == identity

    def work(cursor: Any) -> int:
        if found is not None:  # only of the holder that was found dead, not of one that came since
            store.execute(
                cursor,
                "UPDATE penstock_leases SET expires_at = 0 WHERE name = ? AND holder = ?",
                COORDINATOR,
                found.holder,
            )
        values = (COORDINATOR, identity, now_ms + lease_ms, now_ms)
        return store.execute(cursor, schema.TAKE_LEASE, *values)

    return bool(store.lake.retrying(work) == 1)


def give_up_lease(store: Store, identity: str) -> None:
    """Let somebody else be the coordinator at once."""
    store.run("DELETE FROM penstock_leases WHERE name = ? AND holder = ?", COORDINATOR, identity)


class LeaseKeeper:
    """Renews a lease from a thread of its own, so that a long step does not lose it."""

    def __init__(
        self,
        store: Store,
        identity: str,
        *,
        lease_ms: int,
        now_ms: Callable[[], int],
        board: Callable[[], str | None],
    ) -> None:
        self._store, self._identity = store, identity
        self._lease_ms, self._now_ms, self._board = lease_ms, now_ms, board
        self._stop = threading.Event()
        self._lost: str | None = None
        self._thread = threading.Thread(target=self._keep, name="penstock-lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Raise `LeaseLost` if it is."""
        if self._lost is not None:
            raise LeaseLost(self._lost)

    def _keep(self) -> None:
        last_ms = self._now_ms()
        pause_s = min(1.0, self._lease_ms / 4_000)
        while not self._stop.wait(pause_s):
            now_ms = self._now_ms()
            try:
                if not self._renew(now_ms):
                    self._lost = "expected to hold the lease, found that another coordinator does"
                    return
                last_ms = now_ms
            except Exception as error:  # a database that is away may come back in time
                if now_ms - last_ms > self._lease_ms:
                    self._lost = f"expected to renew the lease, found: {error}"
                    return

    def _renew(self, now_ms: int) -> bool:
        board = self._board()

        def work(cursor: Any) -> bool:
            values = (now_ms + self._lease_ms, COORDINATOR, self._identity)
            if self._store.execute(cursor, schema.RENEW_LEASE, *values) != 1:
                return False
            if board is not None:
                self._store.execute(cursor, SAY, COORDINATOR, board, now_ms)
            return True

        self._store.show_life(self._identity.partition("#")[0], now_ms)
        return bool(self._store.lake.retrying(work))
