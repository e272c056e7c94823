"""Which messages of a device are durable already: exact, in a few words of memory for each device.

Message ids of a device only grow, and none may be sent that is `WINDOW` or more above the lowest
that is not yet acknowledged. So the highest durable id and one bit for each of the `WINDOW` ids
below it say all there is to know: what is lower was acknowledged long ago.

>>> seen = Seen()
>>> seen.add(10); seen.add(12)
>>> [seen.look(message_id).name for message_id in (9, 10, 11, 12, 13)]
['NEW', 'DURABLE', 'NEW', 'DURABLE', 'NEW']
>>> seen.add(10 + WINDOW)
>>> seen.look(10).name, seen.look(11).name
('STALE', 'NEW')
"""

from __future__ import annotations

from enum import Enum
from typing import Final

WINDOW: Final = 256
_MASK: Final = (1 << WINDOW) - 1


class Look(Enum):
    """What is known of a message id."""

    NEW = 1
    DURABLE = 2
    STALE = 3
    """Below the window: a device that keeps the rules had it acknowledged, or never used it."""


class Seen:
    """The durable ids of one device. Bit n of `bits` is the id `top - n`."""

    __slots__ = ("bits", "top")

    def __init__(self, top: int = 0, bits: int = 0) -> None:
        self.top = top
        self.bits = bits

    def look(self, message_id: int) -> Look:
        """Whether a message is durable."""
        below = self.top - message_id
        if below < 0:
            return Look.NEW
        if below >= WINDOW:
            return Look.STALE
        return Look.DURABLE if self.bits >> below & 1 else Look.NEW

    def add(self, message_id: int) -> None:
        """A message is durable now; one below the window is forgotten at once."""
        above = message_id - self.top
        if above > WINDOW:
            self.bits = 1
            self.top = message_id
        elif above > 0:
            self.bits = (self.bits << above | 1) & _MASK
            self.top = message_id
        elif above > -WINDOW:
            self.bits |= 1 << -above
