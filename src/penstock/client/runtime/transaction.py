"""The transaction that a handler reads and writes through: records reads, collects writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import msgspec

from penstock.client.records import check_numbers
from penstock.client.runtime.events import Intent
from penstock.client.runtime.layers import View, with_writes
from penstock.client.runtime.replica import Touch
from penstock.commits.model import ABSENT, Path, any_meet, check_entity_id, parse_path, value_at
from penstock.kernel.errors import Rejected
from penstock.protocol.commits import CommitWrite
from penstock.protocol.errors import InvalidRequest


class Looked(NamedTuple):
    """A place that was read. Shallow: only whether something exists there, not its value."""

    entity: str
    pointer: str
    shallow: bool


class Transaction:
    """One run of a handler on the state as this client sees it.

    All writes take effect together or not at all. Everything that was read must be unchanged when
    they do, otherwise the handler runs again; read only what matters, by path where that is enough.
    Returned values are copies, and written values must be JSON.
    """

    __slots__ = ("_closed", "_lane_of", "_view", "reads", "sent", "writes")

    def __init__(self, view: View, lane_of: Callable[[str, Any], str]) -> None:
        self._view = view
        self._lane_of = lane_of
        self._closed = False
        self.reads: dict[Looked, tuple[Path, frozenset[int]]] = {}
        """Places that were read: as segments, with the unconfirmed layers visible in them."""
        self.writes: list[CommitWrite] = []
        self.sent: list[Intent] = []

    # Reading

    def get(self, entity: str, path: str = "", default: Any = None) -> Any:
        """The document, or the value at a path in it (`/limits/max`), or the default."""
        found = self._look(entity, path, shallow=False)
        return default if found is ABSENT else _copy(found)

    def exists(self, entity: str, path: str = "") -> bool:
        """Whether an entity exists, or a value at a path in it."""
        return self._look(entity, path, shallow=True) is not ABSENT

    def __getitem__(self, entity: str) -> Any:
        found = self._look(entity, "", shallow=False)
        if found is ABSENT:
            raise KeyError(f"there is no entity {entity!r}")
        return _copy(found)

    def __contains__(self, entity: str) -> bool:
        return self.exists(entity)

    # Writing

    def set(self, entity: str, doc: Any) -> None:
        """Replace the whole document."""
        self._write(CommitWrite(entity, set=_as_json(entity, doc)))

    def patch(self, entity: str, patch: Any) -> None:
        """Change a part of the document, as a JSON merge patch: None removes a key."""
        self._write(CommitWrite(entity, patch=_as_json(entity, patch)))

    def delete(self, entity: str) -> None:
        """Remove the entity."""
        self._write(CommitWrite(entity, delete=True))

    def update(self, entity: str, change: Callable[[Any], Any], default: Any = None) -> Any:
        """Set the document to the result of `change`; it gets `default` if there is no document."""
        doc = change(self.get(entity, default=default))
        self.set(entity, doc)
        return doc

    def __setitem__(self, entity: str, doc: Any) -> None:
        self.set(entity, doc)

    def __delitem__(self, entity: str) -> None:
        self.delete(entity)

    # Sending

    def send(
        self,
        type: str,  # noqa: A002  # the word for it
        data: Any = None,
        *,
        lane: str | None = None,
        id: str | None = None,  # noqa: A002
        retries: bool = True,
    ) -> None:
        """Send another event; it commits only if this run of this handler does.

        Its lane is that of its handler unless it is named.
        """
        self._check_open()
        named = self._lane_of(type, data)  # even if a lane is named: this checks the type
        lane = named if lane is None else lane
        self.sent.append(Intent(type=type, data=data, lane=lane, id=id, retries=retries))

    # For the runtime

    def close(self) -> None:
        """The handler has finished: refuse further changes."""
        self._closed = True

    def is_touched(self, touched: Iterable[Touch], layer: int | None = None) -> bool:
        """Whether a change may concern something that was read.

        A change by one of our own layers was seen before if the read went through that layer.
        """
        changed: dict[str, list[Path]] = {}
        for entity, paths in touched:
            changed.setdefault(entity, []).extend(paths)
        for looked, (path, pending) in self.reads.items():
            places = changed.get(looked.entity)
            if (
                places is not None
                and (layer is None or layer not in pending)
                and any_meet(path, places, shallow=looked.shallow)
            ):
                return True
        return False

    def stands_on(self) -> frozenset[int]:
        """The layers that were read before the server confirmed them."""
        return frozenset(each for _, pending in self.reads.values() for each in pending)

    def has_read(self, layer: int, entities: Collection[str]) -> bool:
        """Whether one of these entities was read through a layer."""
        return any(
            layer in pending and looked.entity in entities
            for looked, (_, pending) in self.reads.items()
        )

    def changes_nothing(self) -> bool:
        """Whether the writes leave everything as it is seen locally."""
        return all(
            with_writes(doc := self._view.doc(entity), entity, self.writes) == doc
            for entity in {write.entity for write in self.writes}
        )

    def _look(self, entity: str, pointer: str, *, shallow: bool) -> Any:
        self._check_open()
        check_entity_id(entity)
        path = parse_path(pointer)
        if not self._replaced(entity):
            looked = Looked(entity, pointer, shallow)
            if looked not in self.reads:
                self.reads[looked] = (path, self._view.pending(entity))
        doc = with_writes(self._view.doc(entity), entity, self.writes)
        return ABSENT if doc is ABSENT else value_at(doc, path, missing=ABSENT)

    def _replaced(self, entity: str) -> bool:
        """Whether this transaction replaced all of it, so that the old value does not matter."""
        return any(
            write.entity == entity and (write.delete or write.set is not msgspec.UNSET)
            for write in self.writes
        )

    def _write(self, write: CommitWrite) -> None:
        self._check_open()
        check_entity_id(write.entity)
        self.writes.append(write)

    def _check_open(self) -> None:
        if self._closed:
            raise Rejected(
                "the handler of this transaction is over; send an event to change something later"
            )


def _as_json(entity: str, value: Any) -> Any:
    """A value as JSON represents it, as a copy."""
    try:
        encoded = msgspec.json.encode(value)
        check_numbers(value, encoded)
        return msgspec.json.decode(encoded)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest(
            f"the document of entity {entity!r} cannot be encoded as JSON: {error}"
        ) from error


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_copy(each) for each in value]
    return value
