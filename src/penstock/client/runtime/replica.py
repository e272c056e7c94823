"""The confirmed state of a space as far as this client has seen it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.commits.model import ABSENT, Path, apply_write, touches
from penstock.protocol.commits import CommitWrite


class Change(msgspec.Struct, frozen=True):
    """One commit, as recorded in the space's topic."""

    seq: int
    session: str
    local_seq: int
    writes: Sequence[CommitWrite]


class EntityVersion(NamedTuple):
    """A document, and the commit that last changed it."""

    doc: Any
    seq: int


class Touch(NamedTuple):
    """An entity that changed, and the paths in it that did."""

    entity: str
    paths: tuple[Path, ...]


class Replica:
    """Every entity of a space as of one commit, `seq`. Advances only by commits, in order."""

    __slots__ = ("_versions", "epoch", "live", "seq")

    def __init__(self) -> None:
        self.seq = 0
        self.epoch: int | None = None
        self.live = False
        """Whether there was a first listing: before it nothing may be read."""
        self._versions: dict[str, EntityVersion] = {}

    def reset(self, versions: Mapping[str, EntityVersion], head: int, epoch: int | None) -> None:
        """Replace the contents with a listing of all entities as of a commit."""
        self._versions = dict(versions)
        self.seq = head
        self.epoch = epoch
        self.live = True

    def continues(self, changes: Iterable[Change]) -> bool:
        """Whether commits continue from here without a gap: they are numbered consecutively."""
        seq = self.seq
        for change in changes:
            if change.seq > seq + 1:
                return False
            seq = max(seq, change.seq)
        return True

    def apply(self, change: Change) -> list[Touch] | None:
        """Apply the next commit; returns what it touched, or None if it was seen before."""
        if change.seq <= self.seq:
            return None
        found = [self._write(write, change.seq) for write in change.writes]
        self.seq = change.seq
        return found

    def doc(self, entity: str) -> Any:
        """The document, or ABSENT. Not a copy: do not change it."""
        version = self._versions.get(entity)
        return ABSENT if version is None else version.doc

    def version(self, entity: str) -> EntityVersion | None:
        """The document with its seq."""
        return self._versions.get(entity)

    def versions(self) -> Mapping[str, EntityVersion]:
        """Every entity with its seq."""
        return self._versions

    def names(self) -> Iterable[str]:
        """The existing entities."""
        return self._versions.keys()

    def __len__(self) -> int:
        return len(self._versions)

    def _write(self, write: CommitWrite, seq: int) -> Touch:
        before = self.doc(write.entity)
        touch = Touch(write.entity, touches(before, write))
        after = apply_write(before, write)
        if after is ABSENT:
            self._versions.pop(write.entity, None)
        else:
            self._versions[write.entity] = EntityVersion(after, seq)
        return touch
