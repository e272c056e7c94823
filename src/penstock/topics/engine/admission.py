"""Whether a write is accepted now: by the queue for the log, and by memory use.

Checked before anything is decided, so that a refused write changes nothing.
"""

from __future__ import annotations

import math

from penstock.flow.drain import Drain
from penstock.protocol.errors import Saturated, Throttled, TopicFull
from penstock.raft.journal import ReplicatedJournal
from penstock.topics.core.registry import Registry
from penstock.topics.engine.writers import PartitionWriter


class Admission:
    """Refuses writes for lack of space or time."""

    def __init__(
        self,
        registry: Registry,
        journal: ReplicatedJournal,
        *,
        hot_bytes_max: int,
        waiting_bytes_max: int,
        log_wait_ms_max: int,
    ) -> None:
        self.room_bytes = 0.0  # may wait for the log before a closer check
        self.refused = 0  # writes ever refused for lack of room or time
        self._registry = registry
        self._backlog = journal.backlog
        self._counters = journal.counters
        self._hot_bytes_max = hot_bytes_max
        self._waiting_bytes_max = waiting_bytes_max
        self._drain = Drain(log_wait_ms_max)
        self._finished_bytes = 0  # at the last sample
        self._set_room()

    @property
    def is_pressed(self) -> bool:
        """Whether `check` may have something to refuse."""
        is_full = self._registry.hot_bytes > self._registry.refuse_bytes
        return is_full or self._backlog.waiting > self.room_bytes

    def check(self, writer: PartitionWriter, *, disable: bool = False) -> None:
        """Refuse a write if there is no room or no time for it; `disable` lifts the time limit."""
        if self._registry.hot_bytes > self._registry.refuse_bytes:
            raise Throttled(
                f"{self._registry.hot_bytes} bytes of records are in memory, over the limit of "
                f"{self._hot_bytes_max}: the disk does not take them fast enough; try again later",
                limit="max_hot_bytes",
                max=self._hot_bytes_max,
            )
        waiting = self._backlog.waiting
        if waiting <= self.room_bytes:
            return
        drain, most = self._drain, self._waiting_bytes_max
        drain_ms = math.ceil(drain.estimate_ms(waiting))
        if waiting > drain.room and not disable:
            self._counters.submit_full += 1
            raise Saturated(
                f"{waiting} bytes wait for the log and need {drain_ms} ms, over the limit of "
                f"{drain.limit_ms:g} ms; try again in {drain_ms} ms",
                retry_after_ms=drain_ms,
            )
        if writer.waiting_bytes > most:
            self._counters.submit_full += 1
            raise Saturated(
                f"{writer.waiting_bytes} bytes wait for the log in this partition, over the limit "
                f"of {most}, which disable_backpressure does not lift; try again later",
                retry_after_ms=max(drain_ms, 1),
                limit="max_waiting_bytes",
            )

    def count(self, error: Exception) -> None:
        """Count a refused write, if the reason is lack of room or time."""
        if isinstance(error, Throttled | TopicFull):
            self.refused += 1

    def sample(self, span_ms: float) -> tuple[float, float]:
        """How long the queue for the log would take to be written, and how long it may take."""
        backlog, drain = self._backlog, self._drain
        finished, self._finished_bytes = backlog.finished - self._finished_bytes, backlog.finished
        drain.sample(backlog.waiting, finished, span_ms)
        self._set_room()
        drain_ms = drain.estimate_ms(backlog.waiting)
        if backlog.waiting <= drain.room:
            drain_ms = min(drain_ms, drain.limit_ms or drain_ms)
        return drain_ms, drain.limit_ms or math.inf

    def _set_room(self) -> None:
        self.room_bytes = min(self._drain.room, self._waiting_bytes_max)
