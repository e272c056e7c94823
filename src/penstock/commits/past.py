"""An entity as of an earlier seq, from the commits that wrote it, newest first."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Any

from msgspec import UNSET

from penstock.commits.model import ABSENT, Commit, Write, apply_write
from penstock.commits.space import writes_of


class Past:
    """Collects the writes that made a document, back to the one that hides all earlier ones."""

    def __init__(self, entity: str) -> None:
        self._entity = entity
        self._writes: list[Write] = []
        self.is_whole = False  # nothing older is needed

    def take(self, commit: Commit) -> None:
        """Add the next older commit."""
        for write in reversed(writes_of(commit, self._entity)):
            self._writes.append(write)
            if write.delete or write.set is not UNSET:
                self.is_whole = True
                return

    def document(self) -> Any:
        """The document that these writes produce, or `ABSENT`."""
        document: Any = ABSENT
        for write in reversed(self._writes):
            document = apply_write(document, write)
        return document


def seqs_upto(history: array[int], at_seq: int) -> list[int]:
    """The seqs of an entity's writes up to the given one, newest first."""
    return list(reversed(history[: bisect_right(history, at_seq)]))
