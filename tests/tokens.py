"""Permits within this process: the model that the pool in a database is compared with."""

from __future__ import annotations

from collections.abc import Collection

from penstock.kernel.errors import Rejected
from penstock.tables.coordinator.tokens import SqlTokenPool


class TokenPool:
    """Permits of a pool. Not thread-safe."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise Rejected(f"a pool needs at least one permit, not {size}")
        self._size = size
        self._held: dict[str, int] = {}

    @property
    def free(self) -> int:
        """How many permits are left."""
        return self._size - sum(self._held.values())

    def acquire(self, holder: str, count: int = 1) -> bool:
        """Take all of the permits or none. Returns False if there are not enough."""
        if positive(count) > self.free:
            return False
        self._held[holder] = self._held.get(holder, 0) + count
        return True

    def release(self, holder: str, count: int = 1) -> None:
        """Return permits."""
        left = self._held.get(holder, 0) - positive(count)
        if left < 0:
            raise Rejected(f"{holder!r} cannot give back {count} permits: it holds {left + count}")
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


Permits = TokenPool | SqlTokenPool
"""Both have the same rules."""


def positive(count: int) -> int:
    """A number of permits that can be moved."""
    if count < 1:
        raise Rejected(f"at least one permit must be moved, not {count}")
    return count
