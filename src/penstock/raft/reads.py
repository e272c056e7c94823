"""Reads that wait until their leader knows that it still leads.

All reads between two `Ready`s share one round of heartbeats: a majority that answers a heartbeat
of that round followed this leader after the reads came in.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Waiting(NamedTuple):
    """A read: the member that asked, its own name for it, and the commit index at that time."""

    member: int
    context: int
    index: int  # type: ignore[assignment]  # hides a method of tuples that is not used here


class ReadRounds:
    """Collects reads into rounds and releases them when a round is confirmed."""

    def __init__(self) -> None:
        self.round = 0
        self.due: list[Waiting] = []  # for the next round
        self._rounds: deque[tuple[int, list[Waiting]]] = deque()

    def add(self, read: Waiting) -> None:
        """Take a read into the next round."""
        self.due.append(read)

    def start(self) -> int:
        """Begin a round for what was collected; its number."""
        self.round += 1
        self._rounds.append((self.round, self.due))
        self.due = []
        return self.round

    def confirmed(self, upto: int) -> list[Waiting]:
        """The reads of all rounds that a majority has answered."""
        released: list[Waiting] = []
        while self._rounds and self._rounds[0][0] <= upto:
            released += self._rounds.popleft()[1]
        return released

    def clear(self) -> list[Waiting]:
        """Drop everything that waits."""
        dropped, self.due = self.confirmed(self.round) + self.due, []
        return dropped
