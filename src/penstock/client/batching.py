"""Batches many small sends into few large writes, in order: the non-blocking part of a writer.

One batch is in flight at a time, so that records are written in the order they were sent. Each has
its own idempotency key: sent again after a lost answer, it is still written once.

>>> batches = Batcher(BatchLimits(records_max=2), make_key=lambda: "key")
>>> for n in range(3):
...     batches.add(b'{"data":%d}' % n)
>>> batches.due, batches.take().records
(True, [b'{"data":0}', b'{"data":1}'])
>>> batches.take() is None         # one at a time
True
>>> batches.done()
2
>>> batches.due, batches.take().records
(False, [b'{"data":2}'])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from penstock.kernel.errors import Rejected, without_traceback
from penstock.kernel.units import MIB
from penstock.protocol.errors import CallError, RecordTooLarge


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a batch gets, and how much may be queued before a sender waits."""

    records_max: int = 1_000
    batch_bytes_max: int = 4 * MIB
    waiting_bytes_max: int = 32 * MIB

    def __post_init__(self) -> None:
        for name in ("records_max", "batch_bytes_max", "waiting_bytes_max"):
            if getattr(self, name) < 1:
                raise Rejected(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Records that are written together, all or none."""

    records: list[bytes]
    size_bytes: int
    idempotency_key: str


class Batcher:
    """The queue of records that are not yet acknowledged."""

    __slots__ = (
        "_limits", "_make_key", "_under_way", "_waiting", "acked", "failure", "sent", "size_bytes",
        "waiting_bytes",
    )  # fmt: skip

    def __init__(self, limits: BatchLimits, make_key: Callable[[], str]) -> None:
        self._limits = limits
        self._make_key = make_key
        self._waiting: deque[bytes] = deque()
        self._under_way: WriteBatch | None = None
        self.failure: CallError | None = None
        self.size_bytes = 0
        """Bytes in memory: queued and in flight."""
        self.waiting_bytes = 0
        self.sent = 0
        """Records accepted since the start."""
        self.acked = 0
        """Records that the server acknowledged."""

    def has_room(self, record_bytes: int) -> bool:
        """Whether a record of that size can be accepted now; an empty queue accepts any."""
        return (
            not self.size_bytes or self.size_bytes + record_bytes <= self._limits.waiting_bytes_max
        )

    def add(self, record: bytes) -> None:
        """Accept a record. After a failure, raises it instead: order could not be kept."""
        if self.failure is not None:
            raise without_traceback(self.failure)
        if len(record) > self._limits.waiting_bytes_max:
            raise RecordTooLarge(
                f"the record has {len(record)} bytes; the writer holds at most "
                f"{self._limits.waiting_bytes_max}: raise waiting_bytes_max"
            )
        self._waiting.append(record)
        self.size_bytes += len(record)
        self.waiting_bytes += len(record)
        self.sent += 1

    @property
    def idle(self) -> bool:
        """Whether everything that was sent is acknowledged."""
        return not self._waiting and self._under_way is None

    @property
    def waiting(self) -> int:
        """Records that are not yet in a batch."""
        return len(self._waiting)

    @property
    def due(self) -> bool:
        """Whether the queued records fill a batch, so that lingering would gain nothing."""
        return (
            len(self._waiting) >= self._limits.records_max
            or self.waiting_bytes >= self._limits.batch_bytes_max
        )

    def take(self) -> WriteBatch | None:
        """The next batch, unless one is in flight, the queue is empty, or the writer failed."""
        if self._under_way is not None or not self._waiting or self.failure is not None:
            return None
        records: list[bytes] = []
        size_bytes = 0
        for record in islice(self._waiting, self._limits.records_max):
            if records and size_bytes + len(record) > self._limits.batch_bytes_max:
                break
            records.append(record)
            size_bytes += len(record)
        for _ in records:
            self._waiting.popleft()
        self.waiting_bytes -= size_bytes
        self._under_way = WriteBatch(records, size_bytes, self._make_key())
        return self._under_way

    def done(self) -> int:
        """The batch in flight is acknowledged; returns its number of records."""
        batch = self._under_way
        if batch is None:
            raise ValueError("no batch is in flight")
        self._under_way = None
        self.size_bytes -= batch.size_bytes
        self.acked += len(batch.records)
        return len(batch.records)

    def failed(self, error: CallError) -> None:
        """The batch in flight failed permanently: the writer ends here."""
        self.failure = error

    def unacked(self) -> list[bytes]:
        """The records not known to be written, in order, as JSON."""
        under_way = self._under_way.records if self._under_way else []
        return [*under_way, *self._waiting]


def as_failure(error: Exception) -> CallError:
    """The error a writer ends with, also if its cause is not a `CallError`."""
    if isinstance(error, CallError):
        return error
    failure = CallError(f"the writer ended with {error!r}")
    failure.__cause__ = error
    return failure
