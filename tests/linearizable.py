"""Whether a history of operations on one register could have happened one after the other.

The search of Wing and Gong: of the operations that nothing else must precede, one is done next, if
the register then would have answered as it did. Places of the search that were seen are not
searched again. An operation whose answer is not known may have happened at any time after its call,
or never.

>>> linearizable([Op(0, 1, WRITE, None, 1), Op(2, 3, READ, None, 1)])
True
>>> linearizable([Op(0, 1, WRITE, None, 1), Op(2, 3, READ, None, None)])
False
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import inf
from typing import Final, NamedTuple

READ: Final = "read"
"""It answered with `after`."""
WRITE: Final = "write"
"""It found `before`, as it wanted, and left `after`."""
REFUSED: Final = "refused"
"""It wanted `before` and found something else."""


class Op(NamedTuple):
    """An operation: when it was called and answered, and what it did. `inf`: not answered."""

    called: float
    answered: float
    kind: str
    before: Hashable
    after: Hashable


def linearizable(history: Iterable[Op], value: Hashable = None) -> bool:
    """Whether there is an order of a history that explains every answer."""
    ops = sorted(history, key=lambda op: op.called)
    needed = sum(op.answered != inf for op in ops)
    seen: set[tuple[int, frozenset[int], Hashable]] = set()
    stack: list[tuple[int, frozenset[int], Hashable, int]] = [(0, frozenset(), value, 0)]
    while stack:
        first, ahead, value, done = stack.pop()
        if done == needed:
            return True
        for number in _next(ops, first, ahead):
            op = ops[number]
            if not _explains(op, value):
                continue
            after = op.after if op.kind == WRITE else value
            place = (*_passed(first, ahead | {number}), after)
            if place not in seen:
                seen.add(place)
                stack.append((*place, done + (op.answered != inf)))
    return False


def _next(ops: list[Op], first: int, ahead: frozenset[int]) -> list[int]:
    """The operations that may be done next: called before any other that is left was answered."""
    found: list[int] = []
    earliest = inf
    for number in range(first, len(ops)):
        op = ops[number]
        if op.called > earliest:
            break
        if number not in ahead:
            found.append(number)
            earliest = min(earliest, op.answered)
    return [number for number in found if ops[number].called <= earliest]


def _passed(first: int, ahead: frozenset[int]) -> tuple[int, frozenset[int]]:
    """The same place, with everything before `first` done."""
    while first in ahead:
        ahead -= {first}
        first += 1
    return first, ahead


def _explains(op: Op, value: Hashable) -> bool:
    if op.kind == READ:
        return op.after == value
    return (op.before == value) == (op.kind == WRITE)
