"""The warehouse as the server uses it: opened lazily, called in threads, never on the loop.

The server never runs a query: it has no engine. It leaves refreshes to a coordinator.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.kernel.errors import Busy, Conflict, Gone, Unavailable
from penstock.protocol.errors import ChangedMeanwhile, SnapshotExpired, WarehouseAway

if TYPE_CHECKING:
    from penstock.tables.warehouse import Warehouse

T = TypeVar("T")
THREADS: Final = 4
WAITING_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class WarehousePlace:
    """Where the warehouse is, and the address under which topics of this server are read."""

    catalog: str
    data_path: str | None = None
    url: str = "http://127.0.0.1:4000"


class TablesDesk:
    """Runs calls to the warehouse in a few threads."""

    def __init__(self, place: WarehousePlace, open_warehouse: Callable[[], Warehouse]) -> None:
        self.place = place
        self._open_warehouse = open_warehouse
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-tables")
        self._opening = threading.Lock()
        self._warehouse: Warehouse | None = None
        self._waiting = 0

    async def do(self, work: Callable[[Warehouse], T]) -> T:
        """Run a call on the warehouse; `Busy` if too many others are waiting."""
        if self._waiting >= WAITING_MAX:
            raise Busy(
                f"expected at most {WAITING_MAX} requests for tables at a time, found more",
                retry_after_ms=1_000,
            )
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, self._do, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Close the warehouse, after the calls in progress."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._warehouse is not None:
            self._warehouse.close()
            self._warehouse = None

    def _do(self, work: Callable[[Warehouse], T]) -> T:
        try:
            return work(self._open())
        except Gone as error:
            raise SnapshotExpired(error.message) from error
        except (Conflict, Unavailable) as error:
            if hasattr(error, "status"):
                raise
            kind = ChangedMeanwhile if isinstance(error, Conflict) else WarehouseAway
            raise kind(error.message) from error

    def _open(self) -> Warehouse:
        with self._opening:
            if self._warehouse is None:
                try:
                    self._warehouse = self._open_warehouse()
                except Exception as error:
                    raise WarehouseAway(
                        f"expected to open the warehouse of tables, found: {error}"
                    ) from error
            return self._warehouse
