"""Threads that serve partitions fairly: the engine under the WAL and the read scheduler."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.log.queues import Admission, Group, PartitionQueues, QueueLimits

W = TypeVar("W", bound=tuple[Any, ...])

_FOR_EVER_S: Final = -1.0
_LOGGER: Final = logging.getLogger("penstock.log")


class Hold(NamedTuple):
    """Keep a group open: until `missing` more are queued, for at most `span_s`."""

    span_s: float
    missing: int


GO: Final = Hold(0.0, 0)


def _nothing() -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class WorkersStatus:
    """What a person wants to know of a scheduler."""

    running: bool
    workers: int
    queued: int
    in_line: int
    depth: int
    groups: int
    served: int
    refusals: int


class FairWorkers(Generic[W]):
    """Takes work from any thread without blocking and serves it in groups on its own threads.

    A piece of work is a tuple that begins with its partition. `serve` does a group, calls
    `finished` and returns a call that answers every piece of it. `hold` is told how much is
    queued and may ask to keep the group open: until so many more came, at most so many seconds.

    Submitters hand over through a deque and share no lock with the workers, so a submitter runs
    while a worker takes a group.
    """

    def __init__(
        self,
        name: str,
        serve: Callable[[list[W]], Callable[[], None]],
        *,
        workers: int,
        group_partitions_max: int,
        batch_max: int,
        limits: QueueLimits,
        hold: Callable[[int], Hold] = lambda _queued: GO,
    ) -> None:
        self._name = name
        self._serve = serve
        self._hold = hold
        self._group_partitions_max = group_partitions_max
        self._batch_max = batch_max
        self._direct_max = min(group_partitions_max, batch_max)
        self._admission = Admission(limits)
        self._admit = self._admission.admit
        self._submitting = threading.Lock()
        self._inbox: deque[W] = deque()
        self._queues: PartitionQueues[W] = PartitionQueues()
        self._taking = threading.Lock()
        self._all_over = threading.Condition(self._taking)  # told only while stopping
        self._asleep: deque[threading.Lock] = deque()
        self._wake_at = 1  # a worker that holds a group open wants so many more before it is woken
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(workers)
        ]
        self._started = False
        self._groups = 0
        self._served = 0

    def start(self) -> None:
        """Begin to serve; what was submitted before is served now."""
        self._started = True
        for thread in self._threads:
            thread.start()

    def submit(self, work: W, finishing: bool = False) -> None:
        """Hand work over, or raise `Backpressure` or `Stopped`. Never blocks."""
        with self._submitting:
            self._admit(work[0], finishing)
            self._inbox.append(work)
        if self._asleep and len(self._inbox) >= self._wake_at:
            self._wake()

    def take_alone(self, partition: int, finishing: bool = False) -> Group[Any] | None:
        """Take a partition for the calling thread, if there is no other work at all.

        It saves a lone writer two switches between threads. None if there is other work or the
        end is near: then `submit`. `Backpressure` if all depths together are at their limit.
        Whoever gets a group must call `finish_alone`.
        """
        if not self._started or self._inbox or not self._queues.idle:
            return None
        with self._submitting, self._taking:
            if self._admission.stopping or self._inbox or not self._queues.idle:
                return None
            self._admit(partition, finishing)
            return self._queues.take_direct(((partition,),))  # type: ignore[arg-type]

    def finish_alone(self, group: Group[Any]) -> None:
        """What was taken alone is done, well or badly."""
        self.finished(group.work)
        self._finish(group)

    def stop(self) -> None:
        """Refuse new work, serve everything taken, end the threads. May be called twice."""
        with self._submitting:
            self._admission.stopping = True
        if not self._started:
            self.start()
        self._wake_all()
        for thread in self._threads:
            thread.join()
        with self._all_over:
            self._all_over.wait_for(lambda: self._queues.idle)

    def status(self) -> WorkersStatus:
        """A snapshot; never waits for a worker."""
        return WorkersStatus(
            running=self._started and not self._admission.stopping,
            workers=len(self._threads),
            queued=self._queues.queued + len(self._inbox),
            in_line=self._queues.ready,
            depth=self._admission.depth,
            groups=self._groups,
            served=self._served,
            refusals=self._admission.refusals,
        )

    def depth_of(self, partition: int) -> int:
        """What is taken and not finished of one partition."""
        return self._admission.depth_of(partition)

    def finished(self, work: list[W]) -> None:
        """Free the depth of served work, so that whoever gets an answer may submit again."""
        with self._taking:
            self._admission.finished(work)

    def _work(self) -> None:
        """Serve group after group, and answer each when the next is in hand.

        So whoever hears an answer runs while this thread waits for the disk again, and not before
        that, when both would want the interpreter.
        """
        tell: Callable[[], None] = _nothing
        served: Group[W] | None = None
        while True:
            group, hold = self._next()
            if served is not None:
                self._tell(tell)
                self._finish(served)
                served = None
                if not group.work:
                    continue  # what was finished may be ready again
            if group.work:
                tell, served = self._call(group), group
            elif hold.span_s:
                self._wake_at = max(1, hold.missing)
                self._lie_down(hold.span_s)
                self._wake_at = 1
            elif self._admission.stopping and not self._inbox and not self._queues.queued:
                self._wake_all()
                return
            else:
                self._lie_down(_FOR_EVER_S)

    def _next(self) -> tuple[Group[W], Hold]:
        """The next group; an empty one if nothing is ready or a group is held open."""
        stopping = self._admission.stopping
        with self._taking:
            hold = GO if stopping else self._hold(self._queues.queued + len(self._inbox))
            return (Group((), []) if hold.span_s else self._take()), hold

    def _call(self, group: Group[W]) -> Callable[[], None]:
        try:
            return self._serve(group.work)
        except Exception:
            _LOGGER.exception("%s: a group of %d pieces failed", self._name, len(group.work))
            return _nothing

    def _tell(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception:  # an event loop that was closed, for one
            _LOGGER.exception("%s: the answers of a group could not be given", self._name)

    def _finish(self, group: Group[W]) -> None:
        with self._taking:
            self._queues.finish(group)
            self._groups += 1
            self._served += len(group.work)
            more = self._queues.has_ready
            if self._admission.stopping:
                self._all_over.notify_all()
        if more and self._asleep:
            self._wake()

    def _take(self) -> Group[W]:
        inbox = self._inbox
        count = len(inbox)
        if count <= self._direct_max and not self._queues.queued:
            return self._queues.take_direct([inbox.popleft() for _ in range(count)])
        put = self._queues.put
        for _ in range(count):
            put(inbox.popleft())
        return self._queues.take(self._group_partitions_max, self._batch_max)

    def _lie_down(self, span_s: float) -> None:
        """Wait until woken. Looks once more after lying down, so that no wake-up is missed."""
        gate = threading.Lock()
        gate.acquire()
        self._asleep.append(gate)
        needed = (
            len(self._inbox) >= self._wake_at
            or self._admission.stopping
            or (span_s == _FOR_EVER_S and self._queues.has_ready)
        )
        if needed or not gate.acquire(timeout=span_s):
            self._rise(gate)

    def _rise(self, gate: threading.Lock) -> None:
        """Get up unasked. Whoever called this one meanwhile meant any worker."""
        try:
            self._asleep.remove(gate)
        except ValueError:
            self._wake()

    def _wake(self) -> None:
        try:
            self._asleep.popleft().release()
        except IndexError:
            return

    def _wake_all(self) -> None:
        while self._asleep:
            self._wake()
