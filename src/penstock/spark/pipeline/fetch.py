"""The first step of a pipeline: records of the raw topic as batches of messages, each message once.

>>> seen = SeenMessages(horizon=2)
>>> [seen.is_new(seq, device, "1") for seq, device in enumerate("aabab", start=1)]
[True, False, True, False, False]
>>> seen.is_new(9, "a", "1")
True
"""

from __future__ import annotations

import binascii
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.spark.pipeline.cursors import Cursor
from penstock.spark.pipeline.definition import Payload, raw_schema
from penstock.spark.topics.http import PAGE_BYTES, TopicConnection
from penstock.spark.topics.pages import SCHEMA, SeqRange, check_continuity, in_range

_FORGOTTEN_MAX: Final = 2
"""Messages that are forgotten for each that comes."""


@dataclass(slots=True)
class FetchedBatch:
    """Some messages on their way: `count` records, less those that came before.

    `unread` has the records, by seq, whose data should be base64 and is not.
    """

    after: int
    upto: int
    messages: pa.Table
    count: int
    duplicates: int
    unread: dict[int, bytes] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """What its messages take."""
        return int(self.messages.nbytes)


def joined(parts: Sequence[FetchedBatch]) -> FetchedBatch:
    """Batches that follow one another, as one."""
    return FetchedBatch(
        parts[0].after,
        parts[-1].upto,
        pa.concat_tables([part.messages for part in parts]),
        sum(part.count for part in parts),
        sum(part.duplicates for part in parts),
        {seq: data for part in parts for seq, data in part.unread.items()},
    )


class Gathering:
    """The batch that gathers while another runs. One thread adds to it, another takes it.

    It also knows how much of what it gave out is not stored yet: a batch at work, one that waits
    for its commit and one that is committed all hold memory.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._parts: list[FetchedBatch] = []
        self._given_bytes = 0
        self.moves = 0
        """How often something made room here; see `wait_moved`."""

    @property
    def count(self) -> int:
        """How many records have gathered."""
        return sum(part.count for part in self._parts)

    @property
    def size_bytes(self) -> int:
        """What they take."""
        return sum(part.size_bytes for part in self._parts)

    @property
    def unstored_bytes(self) -> int:
        """What they take, and all batches before them that are not stored."""
        with self._changed:
            return self._given_bytes + self.size_bytes

    def add(self, part: FetchedBatch) -> None:
        """Add the records that follow those that are here."""
        with self._changed:
            self._parts.append(part)
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until something is here; False if nothing was in time."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._parts), timeout_s)

    def wait_taken(self, timeout_s: float) -> bool:
        """Wait until all of it was taken; False if it was not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._parts, timeout_s)

    def wait_moved(self, moves: int, timeout_s: float) -> bool:
        """Wait until a batch was taken or stored since `moves` was read; False if none was."""
        with self._changed:
            return self._changed.wait_for(lambda: self.moves != moves, timeout_s)

    def take(self) -> FetchedBatch | None:
        """All that has gathered, as one batch; None if that is nothing."""
        with self._changed:
            parts, self._parts = self._parts, []
            batch = joined(parts) if parts else None
            self._given_bytes += 0 if batch is None else batch.size_bytes
            self._move()
        return batch

    def stored(self, size_bytes: int) -> None:
        """A batch of this size, which was taken, is in the lake."""
        with self._changed:
            self._given_bytes -= size_bytes
            self._move()

    def _move(self) -> None:
        self.moves += 1
        self._changed.notify_all()


class Fetcher:
    """Takes the records of a topic, from a pipeline's cursor on. For one thread."""

    def __init__(
        self, connection: TopicConnection, cursor: Cursor, horizon: int, payload: Payload = "json"
    ) -> None:
        self.at = cursor.seq
        self.head_seq = cursor.seq
        """The topic's head when it was last looked at."""
        self._connection = connection
        self._epoch = cursor.epoch
        self._payload = payload
        self._seen = self._seen_before(horizon)

    def take(self, most: int, wait_ms: int, bytes_max: int = PAGE_BYTES) -> FetchedBatch | None:
        """One page of at most so many records and bytes; None if there was none in time.

        A record that has more bytes than that comes alone.
        """
        wanted = SeqRange(self.at, self.at + most, self._epoch)
        page = self._connection.page(
            self.at, most, self._epoch, wait_ms=wait_ms, bytes_max=bytes_max
        )
        self.head_seq = page.head_seq
        check_continuity(self._connection.address, page, self.at, wanted)
        after, self.at = self.at, min(page.next_seq, wanted.upto)
        if self.at == after:
            return None
        found = [in_range(batch, wanted) for batch in page.rows.to_batches()]
        records = pa.Table.from_batches(found, schema=SCHEMA)
        is_new = self._seen.first_of_each(records)
        count = records.num_rows
        if not is_new.all():
            records = records.filter(pa.array(is_new))
        messages, unread = messages_of(records, self._payload)
        return FetchedBatch(after, self.at, messages, count, count - messages.num_rows, unread)

    def _seen_before(self, horizon: int) -> SeenMessages:
        """The messages before the cursor, as far back as duplicates are looked for."""
        seen = SeenMessages(horizon)
        at, upto = max(0, self.at - horizon), self.at
        while at < upto:
            page = self._connection.page(at, upto - at, self._epoch)
            wanted = SeqRange(at, upto, self._epoch)
            parts = [in_range(batch, wanted) for batch in page.rows.to_batches()]
            seen.first_of_each(pa.Table.from_batches(parts, schema=SCHEMA))
            if page.next_seq <= at:
                break
            at = page.next_seq
        return seen


class SeenMessages:
    """The messages of the last `horizon` records of a topic.

    A record counts as seen whether or not it was a duplicate itself, so the verdict on a record
    depends on the records of the topic alone, and is the same in every process at any time.
    """

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        # Ordered, to find the oldest in constant time: a dict walks over all that was deleted.
        self._last: OrderedDict[tuple[str, str], int] = OrderedDict()

    def is_new(self, seq: int, device: str | None, message_id: str | None) -> bool:
        """Take note of a record; whether its message is the first of its kind. In order of seq."""
        if device is None or message_id is None:
            return True
        key = (device, message_id)
        before = self._last.pop(key, None)
        self._last[key] = seq
        self._forget(seq)
        return before is None or seq - before > self._horizon

    def first_of_each(self, records: pa.Table) -> NDArray[np.bool_]:
        """Which records are new: the first of their device and message id."""
        columns = (records.column(name).to_pylist() for name in ("seq", "node", "tag"))
        return np.fromiter((self.is_new(*row) for row in zip(*columns, strict=True)), np.bool_)

    def _forget(self, seq: int) -> None:
        """The oldest come first, as a key that comes again goes to the end.

        Few at a time: a hundred thousand at once would hold up the batch that they came with.
        """
        for _ in range(_FORGOTTEN_MAX):
            if seq - next(iter(self._last.values())) <= self._horizon:
                return
            self._last.popitem(last=False)


def messages_of(records: pa.Table, payload: Payload = "json") -> tuple[pa.Table, dict[int, bytes]]:
    """Records of a topic as messages of `RAW`, and the data of those that should be base64."""
    data: Any = records.column("data")
    unread: dict[int, bytes] = {}
    if payload == "base64":
        texts = data.cast(pa.binary()).to_pylist()
        seqs = records.column("seq")
        data = pa.array([_decoded(text) for text in texts], pa.binary())
        if data.null_count:
            places = data.is_null().to_numpy(zero_copy_only=False).nonzero()[0].tolist()
            unread = {seqs[place].as_py(): texts[place] for place in places}
    columns = [records.column(name) for name in ("seq", "node", "tag", "ts")]
    return pa.table([*columns, data], schema=raw_schema(payload)), unread


def blank_messages(payload: Payload) -> pa.Table:
    """One message that says nothing, to warm Spark up with."""
    columns = [[0], [""], [""], [0], ["" if payload == "json" else b""]]
    return pa.table(columns, schema=raw_schema(payload))


def _decoded(text: bytes) -> bytes | None:
    """The bytes that a JSON string encodes; None if it is not a string of base64."""
    if text[:1] != b'"':
        return None
    try:
        return binascii.a2b_base64(memoryview(text)[1:-1], strict_mode=True)
    except binascii.Error:
        return None
