"""The coordinator of a warehouse: waits for the lease, runs sessions, restarts after errors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any, Final, Self

from penstock.kernel.clock import Clock, SteadyClock
from penstock.kernel.system import SystemClock
from penstock.kernel.units import format_ms
from penstock.lake.catalog import Catalog
from penstock.lake.database import CatalogAway
from penstock.lake.expire import SNAPSHOTS_KEPT_MS, before, clean, expire, sweep
from penstock.tables import rows
from penstock.tables.coordinator.engines import EngineHost, host_of
from penstock.tables.coordinator.lease import (
    CatalogWait,
    CoordinatorLeaseLost,
    LeaseKeeper,
    give_up_lease,
    take_lease,
)
from penstock.tables.coordinator.session import CoordinatorSession, new_identity
from penstock.tables.coordinator.upkeep import forget_feeds, tidy
from penstock.tables.core.failures import FailurePolicy
from penstock.tables.settings import WarehouseSettings
from penstock.tables.store import FOREIGN_MS, TableStore

PRUNE_EVERY_MS: Final = 60_000
TIDY_EVERY_MS: Final = 10_000
AGAIN: Final = FailurePolicy(base_ms=1_000, cap_ms=10_000)
"""Delay before the next session, after consecutive sessions that failed to begin."""

_LOG: Final = logging.getLogger("penstock.tables")


class CoordinatorLoop:
    """Runs in the foreground with `run`, or in its own thread as a context manager."""

    def __init__(
        self,
        store: TableStore,
        settings: WarehouseSettings,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._store, self._settings = store, settings
        self._clock: Clock = SteadyClock(clock or SystemClock())
        self._random = random or Random()
        self._say = say or _LOG.info
        self._stop = threading.Event()
        self._session: CoordinatorSession | None = None
        self._mishaps = 0
        self._mishap: str | None = None
        self._left: str | None = None
        self._lease_ms = settings.lease_of(store.lake.database.kind)
        self._catalog = CatalogWait(self._say, self._clock, self._stop)
        self._thread = threading.Thread(target=self.run, name="penstock-coordinator", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join()

    def stop(self) -> None:
        """Stop once running jobs have ended, or shortly after; from any thread."""
        self._stop.set()
        session = self._session
        if session is not None:
            session.wake()

    def view(self) -> Mapping[str, Any] | None:
        """What its session last reported; None while it has none. From any thread."""
        session = self._session
        report = None if session is None else session.report()
        return None if report is None else report.values

    @property
    def trouble(self) -> str | None:
        """Why nothing is coordinated until the next attempt, such as an unreachable catalog."""
        return self._catalog.trouble or self._mishap

    def run(self) -> None:
        """Coordinate until `stop`. A second coordinator waits here for the first one's lease."""
        host = host_of(self._settings.runner, self._say)
        try:
            while not self._stop.is_set():
                self._one_session(new_identity(self._store.warehouse), host)
        finally:
            host.close()

    def _one_session(self, identity: str, host: EngineHost) -> None:
        """Wait for the lease and coordinate until it is lost or an error occurs."""
        try:
            if self._take(identity):
                self._coordinate(identity, host)
        except CoordinatorLeaseLost as error:
            self._say(error.message)
        except CatalogAway as error:
            self._catalog.away(error)
            self._catalog.pause()
        except Exception as error:  # the next session recovers from the rows, whatever it was
            self._mishaps += 1
            self._mishap = str(error) or type(error).__name__
            wait_ms = AGAIN.delay_ms(self._mishaps, self._random)
            _LOG.exception("the coordinator starts again")
            self._say(f"starting again in {format_ms(wait_ms)} after: {self._mishap}")
            self._stop.wait(wait_ms / 1_000)

    def _take(self, identity: str) -> bool:
        """Wait for the lease; False if stopped meanwhile."""
        waits = False
        while not self._stop.is_set():
            now_ms = self._clock.now_ms()
            taken = take_lease(
                self._store, identity, now_ms=now_ms, lease_ms=self._lease_ms, left=self._left
            )
            self._catalog.back()
            if taken:
                self._left = identity
                self._say(f"coordinating as {identity}")
                return True
            if not waits:
                lease = self._store.lease()
                holder = lease.holder if lease else "another coordinator"
                self._say(f"waiting for the lease of {holder}")
                waits = True
            self._stop.wait(min(1.0, self._settings.tick_ms / 1_000))
        return False

    def _coordinate(self, identity: str, host: EngineHost) -> None:
        try:
            session = CoordinatorSession(
                self._store, self._settings, identity, self._clock, self._random, host,
                self._catalog,
            )  # fmt: skip
            self._session = session
            keeper = LeaseKeeper(
                self._store,
                identity,
                lease_ms=self._lease_ms,
                now_ms=self._clock.now_ms,
                report=session.report,
                catalog=self._catalog,
            )
            ended = threading.Event()
            housekeeper = threading.Thread(target=self._keep_house, args=(ended,), daemon=True)
            try:
                with keeper:
                    housekeeper.start()
                    self._turns(session, keeper)
            finally:
                self._session = None
                ended.set()
                session.close()
                housekeeper.join()
        finally:
            with suppress(Exception):  # it expires by itself
                give_up_lease(self._store, identity)

    def _turns(self, session: CoordinatorSession, keeper: LeaseKeeper) -> None:
        session.begin()
        self._mishaps, self._mishap = 0, None
        while not self._stop.is_set():
            keeper.check()
            session.turn()
        give_up_ms = self._clock.now_ms() + self._settings.cancel_ms
        while not session.drain() and self._clock.now_ms() < give_up_ms:
            keeper.check()

    def _keep_house(self, ended: threading.Event) -> None:
        """Prune old rows, compact small files, and remove files of dead writers."""
        swept_ms, pruned_ms = self._clock.now_ms(), 0
        while not ended.is_set():
            try:
                now_ms = self._clock.now_ms()
                tidy(self._store, now_ms)
                if now_ms - pruned_ms >= PRUNE_EVERY_MS:
                    pruned_ms = now_ms
                    prune(self._store, self._settings, now_ms)
                    forget_feeds(self._store)
                if now_ms - swept_ms >= self._settings.sweep_every_ms:
                    swept_ms = now_ms
                    self._sweep()
            except CatalogAway as error:  # already reported
                _LOG.debug("housekeeping waits for the catalog: %s", error)
            except Exception as error:
                self._say(f"housekeeping will be tried again: {error}")
            pause_ms = min(TIDY_EVERY_MS, self._settings.sweep_every_ms)
            ended.wait(pause_ms / 1_000)

    def _sweep(self) -> None:
        """Expire old snapshots, and remove files that no snapshot references."""
        lake, grace_ms = self._store.lake, self._settings.sweep_grace_ms
        kept_ms = retention_ms(self._settings, lake)
        if kept_ms:
            gone = expire(lake, older_than=before(lake, kept_ms)).snapshots
            if gone:
                self._say(f"expired {len(gone)} snapshots older than {format_ms(kept_ms)}")
        clean(lake, older_than=before(lake, grace_ms))
        sweep(lake, grace_ms=grace_ms)


def retention_ms(settings: WarehouseSettings, lake: Catalog) -> int:
    """How long snapshots are kept; 0 keeps them for ever, the default in other tools' lakes."""
    if settings.snapshot_retention_ms is not None:
        return settings.snapshot_retention_ms
    return SNAPSHOTS_KEPT_MS if lake.is_ours() else 0


def prune(store: TableStore, settings: WarehouseSettings, now_ms: int) -> None:
    """Delete old jobs, requests, skips, history and processes."""
    jobs_ms = now_ms - settings.job_retention_ms
    old = {
        rows.OLD_JOBS: jobs_ms,
        rows.OLD_REQUESTS: jobs_ms,
        rows.OLD_SKIPS: jobs_ms,
        rows.OLD_WOULD_DISPATCH: jobs_ms,
        rows.OLD_PROCESSES: min(jobs_ms, now_ms - FOREIGN_MS),
        rows.OLD_HISTORY: now_ms - settings.history_retention_ms,
        rows.OLD_CHOICES: now_ms - settings.history_retention_ms,
    }
    for which, until_ms in old.items():
        # Checked first: even a transaction that finds nothing blocks other writers.
        if store.lake.query(rows.any_of(which), (until_ms,)):
            store.run(rows.delete_all(which), until_ms)
