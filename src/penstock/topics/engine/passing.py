"""Lets time pass in partitions that nothing is written to.

Records leave and leases end by the times of log entries. Readers look at topics as of now, so they
never wait for that; memory and the node's limit of bytes do. So where something is due and matters,
an entry says how late it is: at most one a second and partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from penstock.kernel.clock import Clock
from penstock.kernel.units import MIB
from penstock.topics.core.entries import Passed
from penstock.topics.core.partition import DecidedChange, Partition
from penstock.topics.core.registry import Registry
from penstock.topics.engine.writers import PartitionWriter

PASS_S: Final = 1.0
"""How often it is looked whether something is due."""
LEAVING_BYTES_MIN: Final = MIB
"""So much memory is worth an entry, even if no reader notices it."""


class Passing:
    """Proposes `Passed` to the partitions of a node."""

    def __init__(
        self,
        writers: Iterable[PartitionWriter],
        registry: Registry,
        is_noticed: Callable[[str], bool],
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`is_noticed` tells whether a topic has readers, workers or routers."""
        self._writers = writers
        self._registry = registry
        self._is_noticed = is_noticed
        self._clock = clock
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look once a second."""
        self._timer = self._loop.call_later(PASS_S, self._tick)

    def stop(self) -> None:
        """Propose nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(PASS_S, self._tick)
        self.look()

    def look(self) -> None:
        """Propose an entry to each partition where something is due that matters."""
        now_ms = self._clock.now_ms()
        is_short, self._registry.is_short = self._registry.is_short, False
        for writer in self._writers:
            if writer.is_held:  # or out of service, or another member leads
                continue  # looked at again in a second
            if self._matters(writer.partition, now_ms, is_short=is_short):
                entries = (Passed(now_ms),)
                writer.submit(DecidedChange(entries, entries), _ignore, sync=False)

    def _matters(self, partition: Partition, now_ms: int, *, is_short: bool) -> bool:
        size_bytes = 0
        for topic in partition.overdue(now_ms):
            if is_short or self._is_noticed(topic.name):
                return True
            size_bytes += topic.overdue_bytes(now_ms)
            if size_bytes >= LEAVING_BYTES_MIN:
                return True
        return False


def _ignore(_outcome: object) -> None:
    """If the log did not take it, the next second asks again."""
