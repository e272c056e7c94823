"""The partition executor: the only access to a partition's log, one piece of work at a time.

It is between a partition's writer and the WAL and runs on the event loop's thread, without a lock,
thread or task. Work that arrives while it is idle runs at once. Work that arrives while it runs, or
after the partition has used up its slice of the loop's time, waits in four queues that are served 8
: 4 : 2 : 1, so that client work cannot starve heartbeats and no queue starves.

Pure: the loop's `call_soon` and the clock are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

from penstock.flow.fairqueue import FairQueue
from penstock.kernel.errors import Busy, PenstockError, Unavailable
from penstock.log.queues import Stopped
from penstock.protocol.errors import PartitionFailed

SLICE_NS: Final = 2_000_000
"""How long a partition may run before it yields to the rest of the loop."""
CLIENT_MAX: Final = 2_048


class WorkKind(IntEnum):
    """The classes of work, from the least to the most urgent."""

    MAINTENANCE = 0  # restore, drain barriers, snapshots, compaction
    CLIENT = 1  # a flush of the writer, which proposes its entry; confirmation of a read
    REPLICATION = 2  # entries, their answers, completions of writes, installed snapshots
    CONTROL = 3  # ticks, heartbeats, votes, transfers of leadership


WEIGHTS: Final = (1, 2, 4, 8)


class Phase(Enum):
    """The lifecycle phase of a partition."""

    NEW = "new"
    RESTORING = "restoring"
    SERVING = "serving"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class ClientQueueFull(Busy):
    """The partition's queue of client work is full; nothing was accepted."""

    code = "client_queue_full"


class RestoreInProgress(Unavailable):
    """The partition is still reading its log; nothing was accepted."""

    code = "restore_in_progress"


class ExecutorStatus(NamedTuple):
    """The published state of the executor: read at any time, never through the queues."""

    partition: int
    phase: Phase
    reason: str | None
    file: str | None
    offset: int | None
    queued: dict[str, int]
    served: int


Run = Callable[[], None]
OnDropped = Callable[[Exception], None]
_Item = tuple[Run, OnDropped | None]


class WorkQueues:
    """Waiting work in four classes; `take` serves them by weight."""

    def __init__(self) -> None:
        self._queues: tuple[deque[_Item], ...] = tuple(deque() for _ in WorkKind)
        self._ready: FairQueue[WorkKind] = FairQueue(WEIGHTS)
        self.waiting = 0

    def put(self, kind: WorkKind, item: _Item) -> None:
        """Queue work at the end of its class."""
        self._queues[kind].append(item)
        self._ready.mark(kind, kind, 0)
        self.waiting += 1

    def take(self) -> _Item:
        """The next piece of work. There must be some."""
        kind = self._ready.pop()
        assert kind is not None, "a class that has work is marked"
        queue = self._queues[kind]
        item = queue.popleft()
        self._ready.done(kind, 0)
        if queue:
            self._ready.mark(kind, kind, 0)
        self.waiting -= 1
        return item

    def clear(self) -> list[_Item]:
        """Drop everything; the caller must answer dropped work with an error."""
        dropped = []
        while self.waiting:
            dropped.append(self.take())
        return dropped

    def depth(self, kind: WorkKind) -> int:
        """How much work of a class is waiting."""
        return len(self._queues[kind])


class PartitionExecutor:
    """The serial owner of one partition: restores, serves, drains on stop, fails alone.

    Work that raises fails the partition, because its state can no longer be trusted: `on_failed` is
    called, waiting work is dropped, and every later submit raises the reason. Other partitions
    continue.
    """

    def __init__(
        self,
        partition: int,
        *,
        call_soon: Callable[[Run], object],
        now_ns: Callable[[], int],
        client_max: int = CLIENT_MAX,
    ) -> None:
        self.partition = partition
        self.phase = Phase.NEW
        self.error: Exception | None = None
        self.on_failed: Callable[[Exception], None] = _ignore
        self.served = 0
        self._call_soon = call_soon
        self._now_ns = now_ns
        self._client_max = client_max
        self._queues = WorkQueues()
        self._serving = False
        self._busy = False  # running, or scheduled to run
        self._ended_ns = 0
        self._used_ns = 0  # of the slice; idle time restores it

    def start(self) -> None:
        """Start to restore: maintenance is served, client work is refused."""
        self.phase, self._serving = Phase.RESTORING, False

    def restored(self) -> None:
        """Serve client work: the state is complete."""
        if self.phase is Phase.RESTORING:
            self.phase = Phase.SERVING
            self._serving = True

    def submit(self, kind: WorkKind, run: Run, on_dropped: OnDropped | None = None) -> None:
        """Run work now or in its turn, or raise at once and change nothing.

        `on_dropped` is called with the error if the partition fails before that.
        """
        if not self._busy and (self._serving or self._completes(kind)):
            now_ns = self._now_ns()
            used_ns = self._used_ns + self._ended_ns - now_ns
            if used_ns < SLICE_NS:
                self._busy = True
                self.served += 1
                try:
                    run()
                except Exception as error:
                    self.fail(error)
                self._ended_ns = self._now_ns()
                self._used_ns = max(used_ns, 0) + self._ended_ns - now_ns
                if self._queues.waiting:
                    self._run(self._used_ns)
                else:
                    self._busy = False
                return
        refused = self.refusal(kind)
        if refused is not None:
            raise refused
        self._queues.put(kind, (run, on_dropped))
        if not self._busy:
            self._busy = True
            self._call_soon(self._run)

    def refusal(self, kind: WorkKind) -> PenstockError | None:
        """Why work of a class would be refused now, or None."""
        phase = self.phase
        if phase is Phase.FAILED:
            return self.failure()
        if phase is Phase.STOPPED or (phase is Phase.STOPPING and kind is not WorkKind.REPLICATION):
            return Stopped(f"partition {self.partition} is stopping and takes no new work")
        if kind is not WorkKind.CLIENT:
            return None
        if phase is not Phase.SERVING:
            return RestoreInProgress(f"partition {self.partition} is still reading its log")
        depth = self._queues.depth(kind)
        if depth >= self._client_max:
            return ClientQueueFull(
                f"partition {self.partition} has {depth} client requests queued, of "
                f"{self._client_max}; nothing was taken, try again",
                partition=self.partition,
                depth=depth,
            )
        return None

    def fail(self, error: Exception) -> None:
        """Take the partition out of service, and report the reason from now on."""
        if self.phase is Phase.FAILED:
            return
        self.phase, self._serving, self.error = Phase.FAILED, False, error
        self.on_failed(error)
        failure = self.failure()
        for _, on_dropped in self._queues.clear():
            if on_dropped is not None:
                on_dropped(failure)

    def failure(self) -> PartitionFailed:
        """The error for callers of a failed partition."""
        status = self.status
        return PartitionFailed(
            f"partition {self.partition} is out of service: {status.reason}",
            partition=self.partition,
            **_place(self.error),
        )

    def stop(self) -> None:
        """Refuse new work; completions of accepted work are still handled."""
        if self.phase is not Phase.FAILED:
            self.phase, self._serving = Phase.STOPPING, False

    def stopped(self) -> None:
        """Finish stopping: all accepted work is answered."""
        if self.phase is not Phase.FAILED:
            self.phase = Phase.STOPPED

    @property
    def status(self) -> ExecutorStatus:
        """A snapshot for people and metrics."""
        place = _place(self.error)
        return ExecutorStatus(
            self.partition,
            self.phase,
            _text(self.error) if self.error is not None else None,
            place.get("file"),
            place.get("offset"),
            {kind.name.lower(): self._queues.depth(kind) for kind in reversed(WorkKind)},
            self.served,
        )

    def _completes(self, kind: WorkKind) -> bool:
        """Whether a stopping partition still waits for this kind."""
        return self.phase is Phase.STOPPING and kind is WorkKind.REPLICATION

    def _run(self, used_ns: int = 0) -> None:
        """Serve waiting work until the slice is used up; the rest follows other partitions."""
        queues = self._queues
        began_ns = self._now_ns() - used_ns
        while queues.waiting and self._now_ns() - began_ns < SLICE_NS:
            self.served += 1
            try:
                queues.take()[0]()
            except Exception as error:
                self.fail(error)
        self._ended_ns = self._now_ns()
        self._used_ns = self._ended_ns - began_ns
        self._busy = queues.waiting > 0
        if self._busy:
            self._call_soon(self._run)


def _ignore(_error: Exception) -> None:
    pass


def _text(error: Exception) -> str:
    return str(error) or repr(error)


def _place(error: Exception | None) -> dict[str, Any]:
    """The file and the offset named by an error, if any."""
    detail = error.detail if isinstance(error, PenstockError) else {}
    return {key: detail[key] for key in ("file", "offset") if key in detail}
