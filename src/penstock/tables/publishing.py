"""The changes of a table as records of a topic, in parts that are the same whenever they are made.

Each record has a row, its weight (1: it came, -1: it went), the snapshot and the frontier. Rows of
one key follow each other, the one that goes first, so that an update is a pair. A record with `op`
`reset` says that what came before no longer counts, and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.protocol.requests import Record
from penstock.tables.changes import ResetNeeded, TableChange, ordered, plain_rows
from penstock.tables.delta.keys import key_columns
from penstock.tables.delta.modes import differentiation
from penstock.tables.query.relations import Relations
from penstock.tables.store import Definitions

PART_RECORDS: Final = 500
"""Records of one write, which lands as a whole or not at all."""
TAG_BYTES_MAX: Final = 256

_encode: Final = msgspec.json.Encoder().encode


class Publication(NamedTuple):
    """A table, the topic that its changes go to, and how far they have come.

    `snapshot` -1: nothing was published yet. `epoch` and `seq` are where the topic ended then.
    """

    table: str
    topic: str
    url: str
    uuid: str | None
    snapshot: int
    epoch: int
    seq: int
    published_ms: int | None
    trouble: str | None


class WatchedChange(NamedTuple):
    """What a commit changed, as watchers are told: rows with weight 1 or -1, in order."""

    after: int
    snapshot: int
    frontier: Mapping[str, Any] | None
    changes: list[dict[str, Any]]

    @classmethod
    def of(
        cls, change: TableChange, key: tuple[int, ...] | None, frontier: Mapping[str, Any] | None
    ) -> WatchedChange:
        """The change in the order of its key, if there is one."""
        names = key_names(change, key)
        places = ordered(change, names)
        weights = np.sign(change.weights)[places.to_numpy()]
        found = plain_rows(change.rows.take(places))
        told: list[dict[str, Any]] = [
            {"weight": int(weight), "row": row} for weight, row in zip(weights, found, strict=True)
        ]
        for each in told if names is not None else ():
            each["key"] = {name: each["row"][name] for name in names or ()}
        return cls(change.after, change.snapshot, frontier, told)


class PublishedParts:
    """What one snapshot writes to a topic, part by part."""

    def __init__(
        self,
        table: str,
        change: TableChange,
        *,
        key: tuple[int, ...] | None = None,
        frontier: Mapping[str, Any] | None = None,
        reset: ResetNeeded | None = None,
        is_complete: bool = True,
    ) -> None:
        self._table, self._change, self._frontier = table, change, frontier
        self._key = key_names(change, key)
        self._order = ordered(change, self._key)
        self._reset, self._is_complete = reset, is_complete
        self._head = 0 if reset is None else 1
        self.count = self._head + -(-len(self._order) // PART_RECORDS)

    @property
    def uuid(self) -> str:
        """Which table it is of: a table that is recreated has another."""
        return self._change.table.uuid

    @property
    def snapshot(self) -> int:
        """The snapshot that the parts lead to."""
        return self._change.snapshot

    def part(self, number: int) -> list[Record]:
        """The records of one part."""
        if number < self._head:
            return [self._reset_record(number)]
        begin = (number - self._head) * PART_RECORDS
        places = self._order.slice(begin, PART_RECORDS)
        weights = np.sign(self._change.weights)[places.to_numpy()]
        found = plain_rows(self._change.rows.take(places))
        return [
            self._record(row, int(weight), number)
            for row, weight in zip(found, weights, strict=True)
        ]

    def idempotency_key(self, number: int) -> str:
        """The same for the same part, whichever coordinator writes it."""
        return f"{self.uuid}:{self.snapshot}:{number}"

    def _record(self, row: dict[str, Any], weight: int, number: int) -> Record:
        data: dict[str, Any] = {
            "row": row,
            "weight": weight,
            "snapshot": self.snapshot,
            "frontier": self._frontier,
        }
        tag = None
        if self._key is not None:
            data["key"] = {name: row[name] for name in self._key}
            tag = key_tag([row[name] for name in self._key])
        return Record(msgspec.Raw(_encode(data)), tag=tag, meta=self._meta(number))

    def _reset_record(self, number: int) -> Record:
        assert self._reset is not None
        data = {
            "op": "reset",
            "reason": self._reset.reason,
            "message": self._reset.text,
            "complete": self._is_complete,
            "snapshot": self.snapshot,
            "frontier": self._frontier,
        }
        return Record(msgspec.Raw(_encode(data)), meta=self._meta(number))

    def _meta(self, number: int) -> dict[str, Any]:
        return {
            "table": self._table,
            "uuid": self.uuid,
            "snapshot": self.snapshot,
            "part": number,
            "parts": self.count,
        }


def key_names(change: TableChange, key: tuple[int, ...] | None) -> tuple[str, ...] | None:
    """The columns of a key; None if there is none, or if it is of other columns."""
    names = change.rows.column_names
    if key is None or not all(place < len(names) for place in key):
        return None
    return tuple(names[place] for place in key)


def key_tag(values: Sequence[Any]) -> str | None:
    """The values of a key as a tag, if they are short enough for one.

    >>> key_tag(["Berlin", 7])
    '["Berlin",7]'
    """
    text = _encode(list(values))
    return text.decode() if len(text) <= TAG_BYTES_MAX else None


def table_key(found: Definitions, relations: Relations, name: str) -> tuple[int, ...] | None:
    """The places of the columns that identify a row of a table; None if its query does not say."""
    known: dict[str, tuple[str, ...] | None] = {
        relation: source.key or None for relation, source in found.topics.items()
    }
    places: dict[str, tuple[int, ...] | None] = {}
    for above in (*found.graph.upstream(name), name):
        query = found.graph.tables[above].query
        compiled = differentiation(query, relations.read_by(query)).compiled
        places[above] = None if compiled is None else key_columns(compiled, known)
        at = places[above]
        if compiled is not None and at is not None:
            known[above] = tuple(compiled.columns[place] for place in at)
    return places[name]


def no_rows(change: TableChange) -> TableChange:
    """The same snapshot without its rows."""
    empty = change.rows.slice(0, 0)
    return change._replace(rows=empty, weights=np.zeros(0, np.int64))


def all_rows(change: TableChange, rows: pa.Table) -> TableChange:
    """All rows of a table as a change from nothing."""
    return change._replace(after=-1, rows=rows, weights=np.ones(rows.num_rows, np.int64))
