"""The partition executor: one partition's state, touched by one piece of work at a time.

Pure: it orders work and says what to run next; the shell's runner runs it. Work comes in four
classes, served 8 : 4 : 2 : 1 while all are waiting, so that client work cannot starve heartbeats
and nothing starves at all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

from penstock.flow.fairqueue import FairQueue
from penstock.kernel.errors import Busy, Rejected, Unavailable
from penstock.log.queues import Stopped


class Work(IntEnum):
    """The classes of work, from the least to the most urgent."""

    MAINTENANCE = 0  # restore, drain barriers, compaction
    CLIENT = 1  # proposals, reads of state, leadership confirmation
    REPLICATION = 2  # appends, completions of appends and writes, snapshot install
    CONTROL = 3  # heartbeats, votes, leadership checks


WEIGHTS: Final = (1, 2, 4, 8)
_KINDS: Final = tuple(Work)


class Phase(Enum):
    """Where a partition is in its life."""

    NEW = "new"
    RESTORING = "restoring"
    SERVING = "serving"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class ClientQueueFull(Busy):
    """The partition has as much client work in line as it may; nothing was taken."""

    code = "client_queue_full"


class RestoreInProgress(Unavailable):
    """The partition is still reading its log; nothing was taken."""

    code = "restore_in_progress"


class PartitionFailed(Unavailable):
    """The partition could not be restored and serves nothing; the text says why."""

    code = "partition_failed"


class Status(NamedTuple):
    """The published snapshot: read by anyone, at any time, never through the queue."""

    partition: int
    phase: Phase
    reason: str | None
    queued: dict[str, int]
    served: int
    state: Any


class Turn(NamedTuple):
    """What to run next: one piece of work, or a run of client work handed over as one batch."""

    kind: Work
    items: list[Any]


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """How much client work may wait, and how much is handed over at once."""

    client_max: int = 2_048
    batch_max: int = 256

    def __post_init__(self) -> None:
        if min(self.client_max, self.batch_max) < 1:
            raise Rejected(f"expected limits of at least 1, found {self}")


class ExecutorCore:
    """Queues of one partition and who is next. Not thread-safe; its shell holds a lock."""

    def __init__(self, partition: int, limits: ExecutorLimits | None = None) -> None:
        self.partition = partition
        self.phase = Phase.NEW
        self.reason: str | None = None
        self._limits = limits or ExecutorLimits()
        self._queues: tuple[deque[Any], ...] = tuple(deque() for _ in Work)
        self._ready: FairQueue[Work] = FairQueue(WEIGHTS)  # asked only when several classes wait
        self.waiting = 0

    def submit(self, kind: Work, item: Any) -> None:
        """Put work in line, or say at once why not."""
        refused = self.refusal(kind)
        if refused is not None:
            raise refused
        self._queues[kind].append(item)
        self.waiting += 1

    def refusal(self, kind: Work) -> Exception | None:
        """Why work of a class would not be taken now; None if it would be."""
        if self.phase is Phase.SERVING and kind is not Work.CLIENT:
            return None
        if self.phase is Phase.FAILED:
            return PartitionFailed(f"partition {self.partition} is out of service: {self.reason}")
        if self.phase is Phase.STOPPED:
            return Stopped(f"partition {self.partition} is stopped")
        if self.phase is Phase.STOPPING and kind is not Work.REPLICATION:
            return Stopped(f"partition {self.partition} is stopping and takes no new work")
        if kind is not Work.CLIENT:
            return None
        if self.phase is not Phase.SERVING:
            return RestoreInProgress(f"partition {self.partition} is still reading its log")
        depth = len(self._queues[Work.CLIENT])
        if depth >= self._limits.client_max:
            return ClientQueueFull(
                f"expected fewer than {self._limits.client_max} client requests in line for "
                f"partition {self.partition}, found {depth}",
                partition=self.partition,
                depth=depth,
            )
        return None

    def next_turn(self) -> Turn | None:
        """Take the next work. Client work that nothing interrupts comes as one batch."""
        waiting = self.waiting
        if not waiting:
            return None
        for kind, queue in zip(_KINDS, self._queues, strict=True):
            if len(queue) == waiting:
                return self._take_all_of_one(kind, queue)
        return self._take_in_turn()

    def _take_all_of_one(self, kind: Work, queue: deque[Any]) -> Turn:
        """Nothing else waits, so there are no turns to keep."""
        count = min(len(queue), self._limits.batch_max) if kind is Work.CLIENT else 1
        self.waiting -= count
        return Turn(kind, [queue.popleft() for _ in range(count)])

    def _take_in_turn(self) -> Turn:
        for kind in Work:
            if self._queues[kind]:
                self._ready.mark(kind, kind, 0)
        while True:
            turn = self._ready.pop()
            assert turn is not None, "some class has work, and it was marked"
            self._ready.done(turn, 0)
            if self._queues[turn]:  # it may have been emptied while it waited alone
                self.waiting -= 1
                return Turn(turn, [self._queues[turn].popleft()])

    def drop_all(self) -> list[Turn]:
        """Empty the queues; what was in them must be answered with an error."""
        dropped = [Turn(kind, list(self._queues[kind])) for kind in Work if self._queues[kind]]
        for queue in self._queues:
            queue.clear()
        self.waiting = 0
        return dropped

    def depths(self) -> dict[str, int]:
        """How much work of each class is in line."""
        return {kind.name.lower(): len(self._queues[kind]) for kind in reversed(Work)}
