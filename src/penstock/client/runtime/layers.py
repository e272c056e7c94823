"""Writes that show locally before the server has confirmed them, and can be taken back.

A layer is the writes of one commit. What a reader sees is the replica with every layer on top, in
the order they were made, until it is known in which they were accepted. A layer goes when its
commit is refused, or when the replica has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.client.runtime.replica import Replica, Touch
from penstock.commits.model import ABSENT, Write, apply_write, touches


class Layer:
    """The writes of one run of a handler.

    `local_seq` is the number of its commit, None until it leaves; `seq` is where that was
    accepted, None before.
    """

    __slots__ = ("entities", "id", "local_seq", "seq", "writes")

    def __init__(self, id: int, writes: tuple[Write, ...]) -> None:  # noqa: A002
        self.id = id
        self.writes = writes
        self.entities = frozenset(write.entity for write in writes)
        self.local_seq: int | None = None
        self.seq: int | None = None


class View:
    """What a reader of this client sees: confirmed state under its own writes."""

    __slots__ = ("_layers", "_stacks", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._layers: dict[int, Layer] = {}
        self._stacks: dict[str, list[Layer]] = {}
        """The layers that write an entity, the topmost last; those with a seq by their seq."""

    def push(self, layer: Layer) -> list[Touch]:
        """Let writes show; what they touch."""
        found = self._touched(layer)
        self._layers[layer.id] = layer
        for entity in layer.entities:
            self._stacks.setdefault(entity, []).append(layer)
        return found

    def land(self, layer: Layer, seq: int) -> list[str]:
        """A layer was accepted: where it moved past another, as they landed in another order."""
        layer.seq = seq
        if layer.id not in self._layers:
            return []
        return [entity for entity in layer.entities if _moved(self._stacks[entity], layer, seq)]

    def merge(self, layer: Layer) -> list[str]:
        """The replica has a layer now: where there were others under it, which come after it."""
        if layer.id not in self._layers:
            return []
        found = [entity for entity in layer.entities if self._stacks[entity][0] is not layer]
        self.pop(layer)
        return found

    def pop(self, layer: Layer) -> bool:
        """Take a layer away: reverted, or merged into the replica. False if it was gone."""
        if self._layers.pop(layer.id, None) is None:
            return False
        for entity in layer.entities:
            stack = self._stacks[entity]
            stack.remove(layer)
            if not stack:
                del self._stacks[entity]
        return True

    def layer(self, id: int) -> Layer | None:  # noqa: A002
        """A layer that is not confirmed here yet."""
        return self._layers.get(id)

    def layers(self) -> Iterable[Layer]:
        """All layers, the oldest first."""
        return self._layers.values()

    def doc(self, entity: str) -> Any:
        """The document as it looks from here, or ABSENT. Not a copy."""
        doc = self.replica.doc(entity)
        for layer in self._stacks.get(entity, ()):
            doc = with_writes(doc, entity, layer.writes)
        return doc

    def pending(self, entity: str) -> frozenset[int]:
        """The layers that write an entity."""
        return frozenset(layer.id for layer in self._stacks.get(entity, ()))

    def names(self) -> set[str]:
        """The entities as they look from here."""
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


def with_writes(doc: Any, entity: str, writes: Iterable[Write]) -> Any:
    """A document after those of the writes that are to it."""
    for write in writes:
        if write.entity == entity:
            doc = apply_write(doc, write)
    return doc


def _moved(stack: list[Layer], layer: Layer, seq: int) -> bool:
    """Put a layer where its seq belongs among those that have one; whether it was not there."""
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
