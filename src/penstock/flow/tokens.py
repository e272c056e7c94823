"""Bounded permits with named holders, so that a crashed holder's permits can be reclaimed.

>>> pool = TokenPool(size=2)
>>> pool.acquire("a"), pool.acquire("b"), pool.acquire("c")
(True, True, False)
>>> pool.reconcile(live_holders={"b"})      # a died
{'a': 1}
>>> pool.acquire("c"), pool.free
(True, 0)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from penstock.kernel.errors import Rejected, Unavailable

_TABLE: Final = "penstock_tokens"
_TRIES_MAX: Final = 100


class Permits(Protocol):
    """The interface of both pools: all or nothing, and never more permits out than the pool has."""

    def acquire(self, holder: str, count: int = 1) -> bool:
        """Take all of the permits or none. Returns False if there are not enough."""
        ...

    def release(self, holder: str, count: int = 1) -> None:
        """Return permits. Returning more than held is an error and changes nothing."""
        ...

    def reconcile(self, live_holders: Collection[str]) -> dict[str, int]:
        """Reclaim the permits of holders that are not alive; return how many of each."""
        ...

    def held(self) -> dict[str, int]:
        """How many permits each holder has."""
        ...

    @property
    def free(self) -> int:
        """How many permits are left."""
        ...


class TokenPool:
    """Permits within this process. Not thread-safe: callers that share it must hold a lock."""

    def __init__(self, size: int) -> None:
        self._size = _checked(size)
        self._held: dict[str, int] = {}

    @property
    def free(self) -> int:
        """How many permits are left."""
        return self._size - sum(self._held.values())

    def acquire(self, holder: str, count: int = 1) -> bool:
        """Take all of the permits or none. Returns False if there are not enough."""
        if _positive(count) > self.free:
            return False
        self._held[holder] = self._held.get(holder, 0) + count
        return True

    def release(self, holder: str, count: int = 1) -> None:
        """Return permits."""
        left = self._held.get(holder, 0) - _positive(count)
        if left < 0:
            raise _not_held(holder, count, left + count)
        if left:
            self._held[holder] = left
        else:
            del self._held[holder]

    def reconcile(self, live_holders: Collection[str]) -> dict[str, int]:
        """Reclaim the permits of holders that are not alive; return how many of each."""
        leaked = {holder: n for holder, n in self._held.items() if holder not in live_holders}
        for holder in leaked:
            del self._held[holder]
        return leaked

    def held(self) -> dict[str, int]:
        """How many permits each holder has."""
        return dict(self._held)


class SqlTokenPool:
    """Permits shared between processes, one database row per permit, taken by compare-and-swap.

    `transact` opens a transaction and yields a DB-API cursor; it commits on exit and rolls back on
    an exception. `parameter` is the driver's placeholder. The rows are created on first use.
    Opening a pool with another size resizes it; surplus permits in use are removed when they are
    returned.
    """

    def __init__(
        self,
        transact: Callable[[], AbstractContextManager[Any]],
        name: str,
        size: int,
        *,
        parameter: str = "?",
    ) -> None:
        self._transact = transact
        self._name = name
        self._size = _checked(size)
        self._mark = parameter
        self._create()

    @property
    def free(self) -> int:
        """How many permits are left."""
        with self._transact() as cursor:
            self._run(cursor, "SELECT count(*) FROM {t} WHERE pool = {p} AND holder IS NULL")
            return int(cursor.fetchone()[0])

    def acquire(self, holder: str, count: int = 1) -> bool:
        """Take all of the permits or none. Returns False if there are not enough."""
        _positive(count)
        for _ in range(_TRIES_MAX):
            try:
                with self._transact() as cursor:
                    return self._swap(cursor, holder, count)
            except _LostRace:
                continue
        raise Unavailable(
            f"lost the race for a permit of {self._name!r} {_TRIES_MAX} times: try again later"
        )

    def release(self, holder: str, count: int = 1) -> None:
        """Return permits."""
        with self._transact() as cursor:
            slots = self._slots(cursor, "holder = {p}", holder)
            if len(slots) < _positive(count):
                raise _not_held(holder, count, len(slots))
            for slot, _ in slots[-count:]:
                self._run(
                    cursor,
                    "UPDATE {t} SET holder = NULL, version = version + 1 "
                    "WHERE pool = {p} AND slot = {p}",
                    slot,
                )
            self._shrink(cursor)

    def reconcile(self, live_holders: Collection[str]) -> dict[str, int]:
        """Reclaim the permits of holders that are not alive; return how many of each."""
        with self._transact() as cursor:
            leaked = {h: n for h, n in self._held(cursor).items() if h not in live_holders}
            for holder in leaked:
                self._run(
                    cursor,
                    "UPDATE {t} SET holder = NULL, version = version + 1 "
                    "WHERE pool = {p} AND holder = {p}",
                    holder,
                )
            self._shrink(cursor)
            return leaked

    def held(self) -> dict[str, int]:
        """How many permits each holder has."""
        with self._transact() as cursor:
            return self._held(cursor)

    def _create(self) -> None:
        with self._transact() as cursor:
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {_TABLE} (pool TEXT NOT NULL, slot INTEGER NOT NULL, "
                "holder TEXT, version INTEGER NOT NULL, PRIMARY KEY (pool, slot))"
            )
            for slot in range(self._size):
                self._run(
                    cursor,
                    "INSERT INTO {t} (pool, slot, holder, version) "
                    "VALUES ({p}, {p}, NULL, 0) ON CONFLICT DO NOTHING",
                    slot,
                )
            self._shrink(cursor)

    def _swap(self, cursor: Any, holder: str, count: int) -> bool:
        slots = self._slots(cursor, "holder IS NULL AND slot < {p}", self._size)[:count]
        if len(slots) < count:
            return False
        for slot, version in slots:
            cursor.execute(
                self._sql(
                    "UPDATE {t} SET holder = {p}, version = version + 1 "
                    "WHERE pool = {p} AND slot = {p} AND version = {p}"
                ),
                (holder, self._name, slot, version),
            )
            if cursor.rowcount != 1:
                raise _LostRace
        return True

    def _slots(self, cursor: Any, condition: str, value: object) -> list[tuple[int, int]]:
        self._run(
            cursor,
            f"SELECT slot, version FROM {{t}} WHERE pool = {{p}} AND {condition} ORDER BY slot",
            value,
        )
        return [(int(slot), int(version)) for slot, version in cursor.fetchall()]

    def _held(self, cursor: Any) -> dict[str, int]:
        self._run(
            cursor,
            "SELECT holder, count(*) FROM {t} WHERE pool = {p} "
            "AND holder IS NOT NULL GROUP BY holder ORDER BY holder",
        )
        return {str(holder): int(count) for holder, count in cursor.fetchall()}

    def _shrink(self, cursor: Any) -> None:
        """Delete rows beyond the size as soon as they have no holder."""
        self._run(
            cursor,
            "DELETE FROM {t} WHERE pool = {p} AND slot >= {p} AND holder IS NULL",
            self._size,
        )

    def _run(self, cursor: Any, sql: str, *values: object) -> None:
        cursor.execute(self._sql(sql), (self._name, *values))

    def _sql(self, sql: str) -> str:
        return sql.format(t=_TABLE, p=self._mark)


class _LostRace(Exception):
    """Another process changed a row between read and swap; rolls the transaction back."""


def _checked(size: int) -> int:
    if size < 1:
        raise Rejected(f"expected a pool of at least one permit, found {size}")
    return size


def _positive(count: int) -> int:
    if count < 1:
        raise Rejected(f"expected to move at least one permit, found {count}")
    return count


def _not_held(holder: str, count: int, held: int) -> Rejected:
    return Rejected(f"expected {holder!r} to hold at least {count} permits, found {held}")
