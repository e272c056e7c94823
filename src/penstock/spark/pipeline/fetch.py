"""The first step of a pipeline: records of the raw topic as batches of messages, each message once.

>>> seen = Seen(horizon=2)
>>> [seen.is_new(seq, device, "1") for seq, device in enumerate("aabab", start=1)]
[True, False, True, False, False]
>>> seen.is_new(9, "a", "1")
True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.spark.pipeline.cursors import Cursor
from penstock.spark.pipeline.definition import RAW
from penstock.spark.pipeline.space import Basis
from penstock.spark.topics.http import TopicConnection
from penstock.spark.topics.pages import SCHEMA, SeqRange, check_continuity, in_range

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame


@dataclass(slots=True)
class Batch:
    """Some messages on their way. `frame` is what the last stage made of them.

    `basis` is what they were evaluated with beside their rows.
    """

    after: int
    upto: int
    messages: pa.Table
    count: int
    duplicates: int
    frame: DataFrame | None = None
    basis: Basis | None = None

    @property
    def size_bytes(self) -> int:
        """What its messages take."""
        return int(self.messages.nbytes)


class FetchOptions(Protocol):
    """How long to wait for a batch, and how large it may be."""

    @property
    def wait_ms(self) -> int:
        """How long to wait for the first message of a batch."""
        ...

    @property
    def linger_ms(self) -> int:
        """How long to wait for more, once the first message is here."""
        ...

    @property
    def batch_bytes_max(self) -> int:
        """A batch ends with the page that brings it to this size."""
        ...


class Fetcher:
    """Takes batch after batch from a topic, from a pipeline's cursor on. For one thread.

    `wait` waits for so many seconds and returns whether the run is over meanwhile.
    """

    def __init__(
        self,
        connection: TopicConnection,
        cursor: Cursor,
        horizon: int,
        options: FetchOptions,
        wait: Callable[[float], bool],
    ) -> None:
        self.at = cursor.seq
        self.head_seq = cursor.seq
        """The topic's head when it was last looked at."""
        self._connection = connection
        self._epoch = cursor.epoch
        self._options = options
        self._wait = wait
        self._seen = self._seen_before(horizon)

    def take(self, most: int) -> Batch | None:
        """Up to so many records; None if there was none in time."""
        after = self.at
        records, self.at = self._records(most)
        if self.at == after:
            return None
        messages = messages_of(records)
        is_new = self._seen.first_of_each(messages)
        count = messages.num_rows
        if not is_new.all():
            messages = messages.filter(pa.array(is_new))
        return Batch(after, self.at, messages, count, count - messages.num_rows)

    def _records(self, most: int) -> tuple[pa.Table, int]:
        """Waits a while for the first record, and a little for more."""
        options, connection = self._options, self._connection
        wanted = SeqRange(self.at, self.at + most, self._epoch)
        batches: list[pa.RecordBatch] = []
        wait_ms = options.wait_ms
        upto = self.at
        while upto < wanted.upto:
            page = connection.page(upto, wanted.upto - upto, wanted.epoch, wait_ms=wait_ms)
            self.head_seq = page.head_seq
            check_continuity(connection.address, page, upto, wanted)
            batches += [in_range(batch, wanted) for batch in page.rows.to_batches()]
            moved, upto = page.next_seq > upto, min(page.next_seq, wanted.upto)
            if not moved or (page.next_seq >= page.head_seq and wait_ms == 0):
                break
            if sum(batch.nbytes for batch in batches) >= options.batch_bytes_max:
                break
            if page.next_seq >= page.head_seq:
                if self._wait(options.linger_ms / 1_000):
                    break
                wait_ms = 0
        return pa.Table.from_batches(batches, schema=SCHEMA), upto

    def _seen_before(self, horizon: int) -> Seen:
        """The messages before the cursor, as far back as duplicates are looked for."""
        seen = Seen(horizon)
        at, upto = max(0, self.at - horizon), self.at
        while at < upto:
            page = self._connection.page(at, upto - at, self._epoch)
            wanted = SeqRange(at, upto, self._epoch)
            parts = [in_range(batch, wanted) for batch in page.rows.to_batches()]
            seen.first_of_each(messages_of(pa.Table.from_batches(parts, schema=SCHEMA)))
            if page.next_seq <= at:
                break
            at = page.next_seq
        return seen


class Seen:
    """The messages of the last `horizon` records of a topic.

    A record counts as seen whether or not it was a duplicate itself, so the verdict on a record
    depends on the records of the topic alone, and is the same in every process at any time.
    """

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._last: dict[tuple[str, str], int] = {}

    def is_new(self, seq: int, device: str | None, message_id: str | None) -> bool:
        """Take note of a record; whether its message is the first of its kind. In order of seq."""
        if device is None or message_id is None:
            return True
        key = (device, message_id)
        before = self._last.pop(key, None)
        self._last[key] = seq
        if len(self._last) > 2 * self._horizon + 1_024:
            self._forget(seq)
        return before is None or seq - before > self._horizon

    def first_of_each(self, messages: pa.Table) -> NDArray[np.bool_]:
        """Which messages of a batch are new; they have `_seq`, `device` and `message_id`."""
        columns = (messages.column(name).to_pylist() for name in ("_seq", "device", "message_id"))
        return np.fromiter((self.is_new(*row) for row in zip(*columns, strict=True)), np.bool_)

    def _forget(self, seq: int) -> None:
        """The oldest come first, as a key that comes again goes to the end."""
        old = 0
        for last in self._last.values():
            if seq - last <= self._horizon:
                break
            old += 1
        for key in list(islice(self._last, old)):
            del self._last[key]


def messages_of(records: pa.Table) -> pa.Table:
    """Records of a topic as messages of `RAW`."""
    columns: list[Any] = [
        records.column("seq"), records.column("node"), records.column("tag"),
        records.column("ts"), pc.cast(records.column("data"), pa.string()),
    ]  # fmt: skip
    return pa.table(columns, schema=RAW)
