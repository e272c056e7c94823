"""A copy of the documents of a space, all as of one seq, brought up to its head when asked."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from penstock.client.space_calls import list_entities
from penstock.commits.model import ABSENT, apply_write
from penstock.protocol.commits import CommitWrite
from penstock.spark.topics.http import TopicAddress, TopicConnection

PAGE_ENTITIES: Final = 1_000
PAGE_RECORDS: Final = 10_000


class Basis(NamedTuple):
    """What a batch was evaluated with beside its rows: a space as it was at a seq of its epoch."""

    space: str
    epoch: int
    seq: int


class _Commit(msgspec.Struct):
    """What matters of the record of a commit."""

    writes: list[CommitWrite]


_COMMIT: Final = msgspec.json.Decoder(_Commit)


class SpaceCopy:
    """The documents by entity. For one thread at a time."""

    def __init__(self, address: TopicAddress) -> None:
        self.documents: dict[str, Any] = {}
        self.epoch = self.seq = 0
        self._changed: set[str] = set()
        self._topic = TopicConnection(address)

    @property
    def basis(self) -> Basis:
        """Which space it is a copy of, and as of when."""
        return Basis(self._topic.address.topic, self.epoch, self.seq)

    def catch_up(self) -> set[str]:
        """Take in every commit that was answered before this was called.

        What has changed since it was last here, also if it came to an error in between.
        """
        while True:
            if not self.epoch:
                self._load()
                break
            page = self._topic.page(self.seq, PAGE_RECORDS, self.epoch)
            if page.epoch != self.epoch or page.rows.num_rows != page.next_seq - self.seq:
                self.epoch = 0  # another space of that name, or commits have left the topic
                continue
            for data in page.rows.column("data").to_pylist():
                self._apply(_COMMIT.decode(data))
            self.seq = page.next_seq
            if page.next_seq >= page.head_seq:
                break
        changed, self._changed = self._changed, set()
        return changed

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._topic.close()

    def _apply(self, commit: _Commit) -> None:
        for write in commit.writes:
            self._changed.add(write.entity)
            made = apply_write(self.documents.get(write.entity, ABSENT), write)
            if made is ABSENT:
                self.documents.pop(write.entity, None)
            else:
                self.documents[write.entity] = made

    def _load(self) -> None:
        """Load everything again. Reads the epoch before and after: the space may be recreated."""
        while True:
            epoch = self._topic.state().epoch
            documents, seq = self._entities()
            if self._topic.state().epoch == epoch:
                break
        self._changed |= documents.keys() | self.documents.keys()
        self.documents, self.epoch, self.seq = documents, epoch, seq

    def _entities(self) -> tuple[dict[str, Any], int]:
        """Every document, and the seq as of which they all are."""
        documents: dict[str, Any] = {}
        space, after = self._topic.address.topic, None
        while True:
            found = self._topic.run(list_entities(space, after=after, limit=PAGE_ENTITIES))
            documents.update((row.entity, row.doc) for row in found.entities)
            after = found.next
            if after is None:
                return documents, found.head
