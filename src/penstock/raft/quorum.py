"""Majorities: how far a group has come, and how an election stands.

>>> committed_index([7, 5, 3])
5
>>> election({1, 2, 3}, {1: True})
<Tally.OPEN: 'open'>
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum


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
