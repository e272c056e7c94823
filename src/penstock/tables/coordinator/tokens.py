"""Bounded permits with named holders, so that a crashed holder's permits can be reclaimed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any, Final

from penstock.kernel.errors import Rejected, Unavailable

_TABLE: Final = "penstock_tokens"
_TRIES_MAX: Final = 100


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
        raise Rejected(f"a pool needs at least one permit, not {size}")
    return size


def _positive(count: int) -> int:
    if count < 1:
        raise Rejected(f"at least one permit must be moved, not {count}")
    return count


def _not_held(holder: str, count: int, held: int) -> Rejected:
    return Rejected(f"{holder!r} cannot give back {count} permits: it holds {held}")
