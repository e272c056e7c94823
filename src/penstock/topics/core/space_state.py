"""A space in a snapshot: its entities with their history, its receipts, its session answers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from penstock.commits.entity import Entity
from penstock.commits.sessions import KeptAnswer
from penstock.commits.space import Space, trim

_T = TypeVar("_T")
_MANY: Final = 2_048
_BYTES: Final = 256 * 1_024
"""The most bytes of documents in a part, unless a single one is larger."""


class KeptEntity(NamedTuple):
    """An entity, possibly deleted, and the seqs of its writes."""

    name: str
    entity: Entity
    history: bytes


class KeptSpace(Struct, frozen=True, array_like=True, tag="S"):
    """A part of a space; the lists of several parts are concatenated."""

    entities: list[KeptEntity] = []
    receipts: list[tuple[str, int]] = []
    floors: list[tuple[str, int]] = []
    answers: list[KeptAnswer] = []


class SpaceState(NamedTuple):
    """A space as plain values: equal states behave identically."""

    entities: tuple[KeptEntity, ...]
    receipts: tuple[tuple[str, int], ...]
    floors: tuple[tuple[str, int], ...]
    answers: tuple[KeptAnswer, ...]


def state_of(space: Space, earliest_seq: int) -> SpaceState:
    """Everything that commits have made of a space; nothing may be staged."""
    return SpaceState(
        tuple(_entities(space, earliest_seq)),
        tuple(space.receipts.items()),
        tuple(sorted(space.sessions.floors())),
        tuple(space.sessions.kept()),
    )


def parts_of(state: SpaceState) -> Iterator[KeptSpace]:
    """A space, part by part."""
    yield KeptSpace()
    for entities in _sized(state.entities):
        yield KeptSpace(entities=entities)
    for receipts in _parts(state.receipts):
        yield KeptSpace(receipts=receipts)
    for floors in _parts(state.floors):
        yield KeptSpace(floors=floors)
    for answers in _parts(state.answers):
        yield KeptSpace(answers=answers)


def restore_part(space: Space, part: KeptSpace) -> None:
    """Add a part to a space."""
    space.restore(
        ((each.name, each.entity, array("q", each.history)) for each in part.entities),
        part.receipts,
    )
    space.sessions.restore(part.floors, part.answers)


def restored(space: Space, state: SpaceState) -> None:
    """Load all parts into a space."""
    for part in parts_of(state):
        restore_part(space, part)


def _entities(space: Space, earliest_seq: int) -> Iterator[KeptEntity]:
    for name in space.ids("", ""):
        history = array("q", space.histories[name])
        trim(history, earliest_seq)
        yield KeptEntity(name, space.entities[name], history.tobytes())


def _sized(entities: Iterable[KeptEntity]) -> Iterator[list[KeptEntity]]:
    here: list[KeptEntity] = []
    size_bytes = 0
    for each in entities:
        here.append(each)
        size_bytes += len(each.entity.document or b"") + len(each.history)
        if size_bytes >= _BYTES or len(here) >= _MANY:
            yield here
            here, size_bytes = [], 0
    if here:
        yield here


def _parts(items: tuple[_T, ...]) -> Iterator[list[_T]]:
    for start in range(0, len(items), _MANY):
        yield [*items[start : start + _MANY]]
