"""The events of a watch, of topics or of a table: pushed over SSE, returned by the client.

`EVENTS` has the struct of an event's data by the name of the event. Over a WebSocket the same data
comes with an `op`.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from penstock.protocol.answers import StoredRecord


class Records(Struct, frozen=True, kw_only=True):
    """New records of a topic, in order. `to_seq` is the reader's cursor after them."""

    topic: str
    records: list[StoredRecord]
    from_seq: int
    to_seq: int
    head_seq: int
    epoch: int | None = None


class Tombstone(Struct, frozen=True, kw_only=True):
    """Records removed before they could be delivered: by cap, by age, or with their topic."""

    topic: str
    reason: str
    gap_from: int
    gap_to: int
    earliest_seq: int
    head_seq: int
    epoch: int | None = None


class CaughtUp(Struct, frozen=True, kw_only=True):
    """Every record of the topic was delivered."""

    topic: str
    head_seq: int
    epoch: int | None = None


class TopicDeleted(Struct, frozen=True, kw_only=True):
    """The topic is gone; the watch continues with the others."""

    topic: str
    head_seq: int = 0
    reason: str = "deleted"


class LeftOut(Struct, frozen=True, kw_only=True):
    """Topics of a prefix that exceed the limit of one watch; they join when there is room.

    A few of them are named, all are counted.
    """

    topics: list[str]
    count: int
    message: str = ""

    @property
    def topic(self) -> str:
        """The first topic."""
        return self.topics[0] if self.topics else ""


class TableRows(Struct, frozen=True, kw_only=True):
    """Rows of a watched table at a snapshot. From offset 0 on they replace all that came before."""

    table: str
    snapshot: int
    rows: list[dict[str, Any]]
    offset: int
    rows_total: int


class RowChange(Struct, frozen=True, kw_only=True):
    """A row that came (weight 1) or went (-1). An update is a pair under one key."""

    weight: int
    row: dict[str, Any]
    key: dict[str, Any] | None = None


class TableChanges(Struct, frozen=True, kw_only=True):
    """What one commit changed in a watched table, since snapshot `after`.

    The server sends it in parts; the client returns it whole. `frontier` are the positions of the
    table's inputs that it stands for.
    """

    table: str
    after: int
    snapshot: int
    changes: list[RowChange]
    frontier: dict[str, list[int]] | None = None
    part: int = 0
    parts: int = 1


class TableReset(Struct, frozen=True, kw_only=True):
    """The changes of a watched table cannot be told: its rows follow again."""

    table: str
    reason: str
    message: str


class TableCaughtUp(Struct, frozen=True, kw_only=True):
    """A watcher has all of a table up to a snapshot."""

    table: str
    snapshot: int


TableEvent = TableRows | TableChanges | TableReset | TableCaughtUp

TABLE_EVENTS: Final[dict[str, type[TableEvent]]] = {
    "rows": TableRows,
    "changes": TableChanges,
    "reset": TableReset,
    "caught-up": TableCaughtUp,
}

WatchEvent = Records | Tombstone | CaughtUp | TopicDeleted | LeftOut

EVENTS: Final[dict[str, type[WatchEvent]]] = {
    "record": Records,
    "tombstone": Tombstone,
    "caught-up": CaughtUp,
    "topic-deleted": TopicDeleted,
    "left-out": LeftOut,
}
