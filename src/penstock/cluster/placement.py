"""Which member should lead which partition, so that leaders are spread over the nodes.

Each partition has an order of members; its leader hands over to the first of them that is healthy
and has kept up. Partitions take turns by the clock, so that at most one moves in five seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from penstock.raft.members import Members

TURN_MS: Final = 5_000
SETTLED_MS: Final = 30_000
"""Nothing moves for this long after an election."""


def order_of(partition: int, members: Members, *, together: bool = False) -> tuple[int, ...]:
    """The members that should lead a partition, the best one first.

    >>> [order_of(number, Members((10, 20, 30)))[0] for number in range(4)]
    [10, 20, 30, 10]
    """
    voters = tuple(sorted(members.voters))
    start = 0 if together or not voters else partition % len(voters)
    return voters[start:] + voters[:start]


def transfer_to(
    partition: int,
    order: Collection[int],
    *,
    own: int,
    healthy: Collection[int],
    led_since_ms: int,
    now_ms: int,
    partitions: int,
) -> int:
    """The member that this leader should hand over to now; 0 if it should keep leading."""
    is_its_turn = now_ms // TURN_MS % partitions == partition
    if not is_its_turn or now_ms - led_since_ms < SETTLED_MS:
        return 0
    for member in order:
        if member == own:
            return 0
        if member in healthy:
            return member
    return 0
