"""The input positions that a table's contents reflect, and whether any input has moved since.

A lake table's position is the snapshot that last changed it; a topic's is an epoch and a seq.

>>> made_of = Frontier({"orders": LakePosition(7), "topics.meters": TopicPosition(1, 40)})
>>> made_of.moved({"orders": LakePosition(9), "topics.meters": TopicPosition(1, 40)})
('orders',)
>>> Frontier.from_json(made_of.to_json()) == made_of
True
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from penstock.kernel.errors import Corrupt


class BadFrontier(Corrupt):
    """A stored frontier is malformed."""

    code = "bad_frontier"


class LakePosition(NamedTuple):
    """The lake snapshot that last changed a table. Later changes have larger ids."""

    snapshot: int


class TopicPosition(NamedTuple):
    """A position in a topic. A deleted and recreated topic has a different epoch."""

    epoch: int
    seq: int


Position = LakePosition | TopicPosition


class Order(StrEnum):
    """How two frontiers compare."""

    SAME = "same"
    BEFORE = "before"
    AFTER = "after"
    APART = "apart"


class Frontier(Mapping[str, Position]):
    """A position for each input of a table. Immutable."""

    __slots__ = ("_positions",)

    def __init__(self, positions: Mapping[str, Position] | None = None) -> None:
        self._positions = dict(sorted((positions or {}).items()))

    def __getitem__(self, source: str) -> Position:
        return self._positions[source]

    def __iter__(self) -> Iterator[str]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def __hash__(self) -> int:
        return hash(tuple(self._positions.items()))

    def __repr__(self) -> str:
        return f"Frontier({self._positions!r})"

    def moved(self, now: Mapping[str, Position]) -> tuple[str, ...]:
        """The inputs whose position changed. An input without a known position has not moved."""
        return tuple(source for source, at in self._positions.items() if now.get(source, at) != at)

    def compare(self, other: Frontier) -> Order:
        """Whether inputs are equal, only advanced, only went back, or are not comparable."""
        if self._positions.keys() != other._positions.keys():
            return Order.APART
        steps = {_step(at, other[source]) for source, at in self._positions.items()}
        steps.discard(Order.SAME)
        if len(steps) > 1:
            return Order.APART
        return steps.pop() if steps else Order.SAME

    def to_json(self) -> str:
        """As text; equal frontiers give equal text."""
        return json.dumps(
            {source: list(at) for source, at in self._positions.items()}, separators=(",", ":")
        )

    @classmethod
    def from_json(cls, text: str) -> Frontier:
        """Parse the output of `to_json`, or raise `BadFrontier`."""
        try:
            stored = json.loads(text)
            return cls({source: _position(numbers) for source, numbers in stored.items()})
        except (ValueError, TypeError, AttributeError) as error:
            raise BadFrontier(f"not a stored frontier: {text[:200]!r} ({error})") from None


def later(known: Position | None, seen: Position) -> Position:
    """The later of two positions of one relation; `known` if they are not comparable."""
    return seen if known is None or _step(known, seen) is Order.BEFORE else known


def _step(one: Position, other: Position) -> Order:
    if one == other:
        return Order.SAME
    if isinstance(one, TopicPosition) and isinstance(other, TopicPosition):
        if one.epoch != other.epoch:  # a different topic of the same name: neither before nor after
            return Order.APART
        return Order.BEFORE if one.seq < other.seq else Order.AFTER
    if isinstance(one, LakePosition) and isinstance(other, LakePosition):
        return Order.BEFORE if one.snapshot < other.snapshot else Order.AFTER
    return Order.APART


def _position(numbers: Any) -> Position:
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise ValueError("positions are lists of whole numbers")
    match numbers:
        case [snapshot]:
            return LakePosition(snapshot)
        case [epoch, seq]:
            return TopicPosition(epoch, seq)
    raise ValueError("a position has one number or two")
