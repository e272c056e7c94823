"""Writes that show locally before the server has confirmed them, and can be taken back.

A layer is the writes of one commit. What a reader sees is the replica with every layer on top, in
the order they were made. A layer goes when its commit is refused, or when the replica has it.
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

    __slots__ = ("_layers", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._layers: dict[int, Layer] = {}

    def push(self, layer: Layer) -> list[Touch]:
        """Let writes show; what they touch."""
        found = self._touched(layer)
        self._layers[layer.id] = layer
        return found

    def pop(self, layer: Layer) -> bool:
        """Take a layer away: reverted, or merged into the replica. False if it was gone."""
        return self._layers.pop(layer.id, None) is not None

    def layer(self, id: int) -> Layer | None:  # noqa: A002
        """A layer that is not confirmed here yet."""
        return self._layers.get(id)

    def layers(self) -> Iterable[Layer]:
        """All layers, the oldest first."""
        return self._layers.values()

    def doc(self, entity: str) -> Any:
        """The document as it looks from here, or ABSENT. Not a copy."""
        doc = self.replica.doc(entity)
        for layer in self._layers.values():
            if entity in layer.entities:
                doc = with_writes(doc, entity, layer.writes)
        return doc

    def pending(self, entity: str) -> frozenset[int]:
        """The layers that write an entity."""
        if not self._layers:
            return _NONE
        return frozenset(layer.id for layer in self._layers.values() if entity in layer.entities)

    def names(self) -> set[str]:
        """The entities as they look from here."""
        found = set(self.replica.names())
        for entity in {entity for layer in self._layers.values() for entity in layer.entities}:
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


_NONE: frozenset[int] = frozenset()
