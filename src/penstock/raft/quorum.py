"""Majorities: how far a group has come, how an election stands, and which reads are confirmed.

>>> committed_index([7, 5, 3])
5
>>> election({1, 2, 3}, {1: True})
<Tally.OPEN: 'open'>
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import NamedTuple


class Tally(Enum):
    """How an election stands."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"


def majority(voters: int) -> int:
    """How many of this many voters are a majority."""
    return voters // 2 + 1


def committed_index(matches: Sequence[int]) -> int:
    """The largest index that a majority of voters has; one match index for each voter."""
    return sorted(matches)[(len(matches) - 1) // 2]


def election(voters: Collection[int], votes: Mapping[int, bool]) -> Tally:
    """The result of an election; votes of members that are not voters do not count."""
    granted = refused = 0
    for voter in voters:
        vote = votes.get(voter)
        if vote is True:
            granted += 1
        elif vote is False:
            refused += 1
    needed = majority(len(voters))
    if granted >= needed:
        return Tally.WON
    return Tally.LOST if len(voters) - refused < needed else Tally.OPEN


class Waiting(NamedTuple):
    """A read: the member that asked, its own name for it, and the commit index at that time."""

    member: int
    context: int
    index: int  # type: ignore[assignment]  # hides a method of tuples that is not used here


class ReadRounds:
    """Collects reads into rounds and releases them when a round is confirmed.

    All reads between two `Ready`s share one round of heartbeats: a majority that answers a
    heartbeat of that round followed this leader after the reads came in.
    """

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
