"""Threads that serve partitions fairly: the engine under the WAL and the read scheduler."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from penstock.log.queues import Admission, Group, PartitionQueues, QueueLimits

W = TypeVar("W", bound=tuple[Any, ...])

_FOR_EVER_S: Final = -1.0
_LOGGER: Final = logging.getLogger("penstock.log")


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

    A piece of work is a tuple that begins with its partition. `serve` does a group and returns a
    call that answers every piece of it. `hold_s` is told how much is queued and says how many
    seconds to wait for more.
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
        hold_s: Callable[[int], float] = lambda _queued: 0.0,
    ) -> None:
        self._name = name
        self._serve = serve
        self._hold_s = hold_s
        self._group_partitions_max = group_partitions_max
        self._batch_max = batch_max
        self._direct_max = min(group_partitions_max, batch_max)
        self._admission = Admission(limits)
        self._submitting = threading.Lock()
        self._inbox: list[W] = []
        self._queues: PartitionQueues[W] = PartitionQueues()
        self._taking = threading.Lock()
        self._all_over = threading.Condition(self._taking)  # told only while stopping
        self._asleep: deque[threading.Lock] = deque()
        self._holding = False  # a worker sleeps to let a group grow: do not wake it for that
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
            self._admission.admit(work[0], finishing)
            self._inbox.append(work)
        if self._asleep and not self._holding:
            self._wake()

    def take_alone(self, partition: int, finishing: bool = False) -> Group[Any] | None:
        """Take a partition for the calling thread, if there is no other work at all.

        It saves a lone writer two switches between threads. None if there is other work or the
        end is near: then `submit`. `Backpressure` if all depths together are at their limit.
        Whoever gets a group must call `finish_alone`.
        """
        if not self._started or self._inbox or not self._queues.idle:
            return None
        with self._taking, self._submitting:
            if self._admission.stopping or self._inbox or not self._queues.idle:
                return None
            self._admission.admit(partition, finishing)
            return self._queues.take_direct([(partition,)])  # type: ignore[list-item]

    def finish_alone(self, group: Group[Any]) -> None:
        """What was taken alone is done, well or badly."""
        self._free(group)
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

    def _work(self) -> None:
        while True:
            group, hold_s = self._next()
            if group.work:
                self._answer(group, self._call(group))
            elif hold_s:
                self._holding = True
                self._lie_down(hold_s)
                self._holding = False
            elif self._admission.stopping and self._is_over():
                self._wake_all()
                return
            else:
                self._lie_down(_FOR_EVER_S)

    def _next(self) -> tuple[Group[W], float]:
        """The next group; an empty one if nothing is ready or a group is held open."""
        stopping = self._admission.stopping
        with self._taking:
            hold_s = 0.0 if stopping else self._hold_s(self._queues.queued + len(self._inbox))
            return (Group((), []) if hold_s else self._take()), hold_s

    def _is_over(self) -> bool:
        with self._taking:
            return not self._inbox and not self._queues.queued

    def _call(self, group: Group[W]) -> Callable[[], None]:
        try:
            return self._serve(group.work)
        except Exception:
            _LOGGER.exception("%s: a group of %d pieces failed", self._name, len(group.work))
            return _nothing

    def _answer(self, group: Group[W], tell: Callable[[], None]) -> None:
        """Depth is free before the answers, so that one may submit again.

        Partitions are free after: another worker must not overtake these answers with its own.
        """
        self._free(group)
        try:
            tell()
        except Exception:
            _LOGGER.exception("%s: the answers of a group could not be given", self._name)
        self._finish(group)

    def _free(self, group: Group[W]) -> None:
        with self._taking:
            self._admission.finished(group.work)

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
        with self._submitting:
            arrived, self._inbox = self._inbox, []
        if len(arrived) <= self._direct_max and not self._queues.queued:
            return self._queues.take_direct(arrived)
        for work in arrived:
            self._queues.put(work)
        return self._queues.take(self._group_partitions_max, self._batch_max)

    def _lie_down(self, span_s: float) -> None:
        """Wait until woken. Looks once more after lying down, so that no wake-up is missed."""
        gate = threading.Lock()
        gate.acquire()
        self._asleep.append(gate)
        needed = self._admission.stopping or (
            span_s == _FOR_EVER_S and (self._inbox or self._queues.has_ready)
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
