"""Queues per partition with fair scheduling, shared by the WAL and the read scheduler.

`PartitionQueues` keeps the order within each partition, and never takes a partition twice at a
time. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.flow.fairqueue import FairQueue
from penstock.kernel.errors import Busy, Rejected, Unavailable

W = TypeVar("W", bound=tuple[Any, ...])

_PARTITION: Final = itemgetter(0)


class Backpressure(Busy):
    """Too much is queued, for the partition or in total; nothing was accepted."""

    code = "backpressure"

    def __init__(self, partition: int, depth: int, limit: int, *, overall: bool = False) -> None:
        where = "all partitions together" if overall else f"partition {partition}"
        super().__init__(
            f"{where} has {depth} operations queued, of {limit}; nothing was taken, try again",
            partition=partition,
            depth=depth,
            limit=limit,
        )
        self.partition = partition
        self.depth = depth


class Stopped(Unavailable):
    """The scheduler or the partition is stopping or stopped; nothing was accepted."""

    code = "stopped"


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Queue limits. Depths include work in progress."""

    depth_max: int = 4_096
    total_max: int | None = None

    def __post_init__(self) -> None:
        if self.depth_max < 1 or (self.total_max is not None and self.total_max < 1):
            raise Rejected(f"queue limits must be at least 1: {self}")


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """The state of a scheduler, for people."""

    running: bool
    queued: int
    ready: int
    depth: int
    groups: int
    served: int
    refusals: int


class Group(NamedTuple, Generic[W]):
    """The next work of some partitions, in order within each; no other group has work of theirs."""

    partitions: Collection[int]
    work: list[W]


class PartitionQueues(Generic[W]):
    """One queue per partition; a fair line of the partitions that have work.

    A piece of work is a tuple that begins with its partition. The line holds each partition at most
    once and has no limit, so none can be stranded. A partition that was taken is out of the line
    until `finish`.
    """

    def __init__(self) -> None:
        self._queues: dict[int, deque[W]] = {}
        self._ready: FairQueue[int] = FairQueue((1,))
        self._busy: set[int] = set()
        self.queued = 0

    def put(self, work: W) -> None:
        """Add work to the end of its partition's queue."""
        partition = work[0]
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = deque()
        if not queue and partition not in self._busy:
            self._ready.mark(partition, 0, 0)
        queue.append(work)
        self.queued += 1

    def take(self, partitions_max: int, each_max: int) -> Group[W]:
        """The next partitions in line, with up to `each_max` pieces of work of each."""
        partitions: list[int] = []
        taken: list[W] = []
        while len(partitions) < partitions_max:
            partition = self._ready.pop()
            if partition is None:
                break
            self._ready.done(partition, 0)  # from here `_busy` guards it
            partitions.append(partition)
            queue = self._queues[partition]
            if len(queue) <= each_max:
                taken.extend(queue)
                queue.clear()
            else:
                taken.extend(queue.popleft() for _ in range(each_max))
        self._busy.update(partitions)
        self.queued -= len(taken)
        return Group(partitions, taken)

    def take_direct(self, arrived: list[W]) -> Group[W]:
        """Take work that just arrived and fits into one group, bypassing the line.

        Only if nothing is queued: then no other work competes, and the queues would only cost time.
        Work of partitions in progress is queued.
        """
        busy = self._busy
        taken = arrived
        partitions = set(map(_PARTITION, taken))
        if not busy.isdisjoint(partitions):
            partitions -= busy
            for work in taken:
                if work[0] in busy:
                    self.put(work)
            taken = [work for work in taken if work[0] in partitions]
        busy |= partitions
        return Group(partitions, taken)

    def finish(self, group: Group[W]) -> None:
        """Allow the partitions of a taken group to be taken again."""
        self._busy.difference_update(group.partitions)
        if self.queued:
            for partition in group.partitions:
                if self._queues.get(partition):
                    self._ready.mark(partition, 0, 0)

    def depth_of(self, partition: int) -> int:
        """How many pieces of work of a partition are queued."""
        return len(self._queues.get(partition, ()))

    @property
    def has_ready(self) -> bool:
        """Whether `take` would find a partition."""
        return self._ready.has_ready()

    @property
    def ready(self) -> int:
        """How many partitions are in line."""
        return len(self._ready)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or in progress."""
        return not self.queued and not self._busy
