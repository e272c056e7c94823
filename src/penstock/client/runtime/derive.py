"""Values that follow from other values: worked out again whenever what they read has changed.

A derivation's output is a function of its inputs, so a conflict costs nothing: it waits for the
state to catch up and runs again, for as long as it takes. It uses no retry budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.client.runtime.replica import Touch
from penstock.client.runtime.transaction import Transaction


class Derivation:
    """A function of the state that writes its result back."""

    __slots__ = ("function", "name", "own", "reads_of", "stale")

    def __init__(self, name: str, function: Callable[[Transaction], None]) -> None:
        self.name = name
        self.function = function
        self.stale = True
        """Whether it must run (again)."""
        self.reads_of: Transaction | None = None
        """Its last run: what that has read wakes it."""
        self.own: set[int] = set()
        """Layers of its own that are on their way: these do not wake it."""

    def notice(self, touched: Iterable[Touch], layer: int | None) -> bool:
        """Something changed; whether that makes it stale."""
        if self.stale:
            return False
        if layer is not None and layer in self.own:
            return False
        if self.reads_of is not None and not self.reads_of.is_touched(touched):
            return False
        self.stale = True
        return True
