"""How much the fleet of a demonstration sends: the usual load, or what the machine can store of it.

>>> pace = Pace(usual_per_s=400, patience_s=5)
>>> pace.look(waiting=300), pace.look(waiting=2_100), pace.look(waiting=4_000)
(1.0, 0.5, 0.5)
>>> pace.look(waiting=100), pace.look(waiting=1_100)
(0.5, 0.25)
"""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 10.0
"""So many seconds of load may wait at the devices before there is less of it."""
FACTOR_MIN: Final = 1 / 16


class Pace:
    """Halves the load when too much of it waits, and again if that was not enough."""

    def __init__(self, usual_per_s: float, patience_s: float = PATIENCE_S) -> None:
        self.factor = 1.0
        self._waiting_max = usual_per_s * patience_s
        self._has_caught_up = True

    def look(self, waiting: int) -> float:
        """The share of the usual load to send, from how many messages wait at the devices."""
        is_behind = waiting > self._waiting_max * self.factor
        if is_behind and self._has_caught_up and self.factor > FACTOR_MIN:
            self.factor /= 2
        self._has_caught_up = not is_behind
        return self.factor


class Fastest:
    """The most that was stored in a second, seen by looking about once a second.

    >>> fastest = Fastest()
    >>> [fastest.look(at_s, stored) for at_s, stored in ((0, 0), (0.4, 90), (1.2, 240), (2, 250))]
    [0, 0, 200, 200]
    """

    def __init__(self) -> None:
        self.per_s = 0
        self._at_s, self._stored = 0.0, 0

    def look(self, at_s: float, stored: int) -> int:
        """How many are stored by now; looks less than half a second after another are passed."""
        span_s = at_s - self._at_s
        if span_s >= 0.5:
            self.per_s = max(self.per_s, round((stored - self._stored) / span_s))
            self._at_s, self._stored = at_s, stored
        return self.per_s
