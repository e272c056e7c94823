"""Writes that are visible locally before the server confirms them, and can be rolled back.

A layer is the writes of one commit. A reader sees the replica with every layer on top, in the order
they were made, until the order of acceptance is known. A layer is removed when its commit is
refused, or when the replica has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.client.runtime.replica import Replica, Touch
from penstock.commits.model import ABSENT, apply_write, touches
from penstock.protocol.commits import CommitWrite


class Layer:
    """The writes of one run of a handler.

    `local_seq` is the number of its commit, None until it is sent; `seq` is where it was accepted,
    None before.
    """

    __slots__ = ("entities", "id", "local_seq", "seq", "writes")

    def __init__(self, id: int, writes: tuple[CommitWrite, ...]) -> None:  # noqa: A002
        self.id = id
        self.writes = writes
        self.entities = frozenset(write.entity for write in writes)
        self.local_seq: int | None = None
        self.seq: int | None = None


class View:
    """The state as this client sees it: confirmed state under its own writes."""

    __slots__ = ("_layers", "_stacks", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._layers: dict[int, Layer] = {}
        self._stacks: dict[str, list[Layer]] = {}
        """The layers that write an entity, topmost last; those with a seq are ordered by it."""

    def push(self, layer: Layer) -> list[Touch]:
        """Make writes visible; returns what they touch."""
        found = self._touched(layer)
        self._layers[layer.id] = layer
        for entity in layer.entities:
            self._stacks.setdefault(entity, []).append(layer)
        return found

    def land(self, layer: Layer, seq: int) -> list[str]:
        """A layer was accepted; returns the entities where it moved past another."""
        layer.seq = seq
        if layer.id not in self._layers:
            return []
        return [entity for entity in layer.entities if _moved(self._stacks[entity], layer, seq)]

    def merge(self, layer: Layer) -> list[str]:
        """The replica now has a layer; returns the entities with other layers below it."""
        if layer.id not in self._layers:
            return []
        found = [entity for entity in layer.entities if self._stacks[entity][0] is not layer]
        self.pop(layer)
        return found

    def pop(self, layer: Layer) -> bool:
        """Remove a layer: reverted, or merged into the replica. False if it was already removed."""
        if self._layers.pop(layer.id, None) is None:
            return False
        for entity in layer.entities:
            stack = self._stacks[entity]
            stack.remove(layer)
            if not stack:
                del self._stacks[entity]
        return True

    def layer(self, id: int) -> Layer | None:  # noqa: A002
        """A layer that the replica does not have yet; None if it was removed."""
        return self._layers.get(id)

    def layers(self) -> Iterable[Layer]:
        """All layers, oldest first."""
        return self._layers.values()

    def doc(self, entity: str) -> Any:
        """The document as seen locally, or ABSENT. Not a copy."""
        doc = self.replica.doc(entity)
        for layer in self._stacks.get(entity, ()):
            doc = with_writes(doc, entity, layer.writes)
        return doc

    def pending(self, entity: str) -> frozenset[int]:
        """The ids of the layers that write an entity."""
        return frozenset(layer.id for layer in self._stacks.get(entity, ()))

    def names(self) -> set[str]:
        """The entities as seen locally."""
        found = set(self.replica.names())
        for entity in self._stacks:
            if self.doc(entity) is ABSENT:
                found.discard(entity)
            else:
                found.add(entity)
        return found

    def _touched(self, layer: Layer) -> list[Touch]:
        docs: dict[str, Any] = {}
        found = []
        for write in layer.writes:
            doc = docs.get(write.entity)
            if write.entity not in docs:
                doc = self.doc(write.entity)
            found.append(Touch(write.entity, touches(doc, write)))
            docs[write.entity] = apply_write(doc, write)
        return found


def with_writes(doc: Any, entity: str, writes: Iterable[CommitWrite]) -> Any:
    """A document after the writes that concern it."""
    for write in writes:
        if write.entity == entity:
            doc = apply_write(doc, write)
    return doc


def _moved(stack: list[Layer], layer: Layer, seq: int) -> bool:
    """Move a layer to its position by seq; returns whether it moved."""
    index = stack.index(layer)
    place = index
    for other, each in enumerate(stack):
        if each is layer or each.seq is None:
            continue
        if other < index and each.seq > seq:
            place = other
            break
        if other > index and each.seq < seq:
            place = other
    if place == index:
        return False
    stack.insert(place, stack.pop(index))
    return True
