"""Threads that serve partitions fairly: the engine under the WAL and the read scheduler."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.log.queues import Admission, Group, PartitionQueues, QueueLimits

W = TypeVar("W", bound=tuple[Any, ...])

_FOR_EVER_S: Final = -1.0
_STAGE_MIN: Final = 32
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


Tell = Callable[[], None]


class FairWorkers(Generic[W]):
    """Takes work from any thread without blocking and serves it in groups on its own threads.

    A piece of work is a tuple that begins with its partition. `serve` does a group and returns a
    call that answers every piece of it. `hold` is told how much is queued and may ask to keep the
    group open: until so many more came, at most so many seconds.

    With `deliver`, which is for one worker, somebody else's thread runs the answers, in order; it
    then also does the books, and with `encode` what can be done ahead for the next group, while
    the worker waits for its device: see `_stage`. Else the worker does all that.
    """

    def __init__(
        self,
        name: str,
        serve: Callable[[list[W], Any], Tell],
        *,
        workers: int,
        group_partitions_max: int,
        batch_max: int,
        limits: QueueLimits,
        hold: Callable[[int], Hold] = lambda _queued: GO,
        encode: Callable[[list[W]], Any] = lambda _work: None,
        deliver: Callable[[Tell], object] | None = None,
    ) -> None:
        self._name = name
        self._serve = serve
        self._hold = hold
        self._encode = encode
        self._deliver = deliver
        self._group_partitions_max = group_partitions_max
        self._batch_max = batch_max
        self._direct_max = min(group_partitions_max, batch_max)
        self._admission = Admission(limits)
        self._submitting = threading.Lock()
        self._inbox: list[W] = []
        self._queues: PartitionQueues[W] = PartitionQueues()
        self._taking = threading.Lock()
        self._all_over = threading.Condition(self._taking)  # told only while stopping
        self._taken = 0
        self._delivered: deque[Group[W]] = deque()  # those still in the books
        self._ahead: tuple[Group[W], Any] | None = None
        self._staging = False
        self._stage_at = _STAGE_MIN
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
            self._admission.admit(work[0], finishing)
            self._inbox.append(work)
            self._taken += 1
            waiting = len(self._inbox)
        if self._asleep:
            if waiting >= self._wake_at:
                self._wake()
        elif waiting >= self._stage_at and self._deliver is not None and self._ahead is None:
            self._stage()

    def take_alone(self, partition: int, finishing: bool = False) -> Group[Any] | None:
        """Take a partition for the calling thread, if there is no other work at all.

        It saves a lone writer two switches between threads. None if there is other work or the
        end is near: then `submit`. `Backpressure` if all depths together are at their limit.
        Whoever gets a group must call `finish_alone`.
        """
        if self._delivered:
            self._settle()
        if not self._started or self._inbox or not self._queues.idle:
            return None
        with self._taking, self._submitting:
            if self._admission.stopping or self._inbox or not self._queues.idle:
                return None
            self._admission.admit(partition, finishing)
            self._taken += 1
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
            group, encoded, hold = self._next()
            if group.work:
                self._tell(self._call(group, encoded), group)
            elif hold.span_s:
                self._wake_at = max(1, hold.missing)
                self._lie_down(hold.span_s)
                self._wake_at = 1
            elif self._admission.stopping and self._is_over():
                self._wake_all()
                return
            else:
                self._lie_down(_FOR_EVER_S)

    def _next(self) -> tuple[Group[W], Any, Hold]:
        """The next group; an empty one if nothing is ready or a group is held open."""
        stopping = self._admission.stopping
        with self._taking:
            if self._ahead is not None:
                group, encoded = self._ahead
                self._ahead = None
                return group, encoded, GO
            self._close_books()
            hold = GO if stopping else self._hold(self._queues.queued + len(self._inbox))
            return (Group((), []) if hold.span_s else self._take()), None, hold

    def _is_over(self) -> bool:
        with self._taking:
            return not self._is_staged() and not self._inbox and not self._queues.queued

    def _call(self, group: Group[W], encoded: Any) -> Tell:
        try:
            return self._serve(group.work, encoded)
        except Exception:
            _LOGGER.exception("%s: a group of %d pieces failed", self._name, len(group.work))
            return _nothing

    def _tell(self, tell: Tell, group: Group[W]) -> None:
        """Answer, or have it done. Depth is free before, so that an answer may submit again.

        Partitions are free after: another worker must not overtake these answers with its own.
        """
        try:
            if self._deliver is None:
                self._free(group)
                tell()
            else:
                self._delivered.append(group)
                self._deliver(partial(self._told, tell))
        except Exception:  # an event loop that was closed, for one
            _LOGGER.exception("%s: the answers of a group could not be given", self._name)
        if self._deliver is None:
            self._finish(group)

    def _told(self, tell: Tell) -> None:
        """Give a group's answers, and encode what they brought."""
        self._settle()
        tell()
        self._stage()

    def _stage(self) -> None:
        """Encode the next group in the calling thread, so that the worker finds it ready to serve.

        Only while all workers are busy, and only if everything in line fits into that group: a
        line that is too long is handed out in turns, and by those who serve it.
        """
        if not self._inbox or self._asleep or self._is_staged():
            return
        with self._taking:
            if self._is_staged() or not self._fits_direct():
                return
            if self._hold(len(self._inbox)).span_s:
                return
            group = self._take()
            if not group.work:
                return
            self._staging = True
        encoded = None
        try:
            encoded = self._encode(group.work)
        finally:
            with self._taking:
                self._ahead = group, encoded
                self._staging = False
            if self._asleep:
                self._wake()

    def _settle(self) -> None:
        with self._taking:
            self._close_books()
            more = self._queues.has_ready
        if more and self._asleep:
            self._wake()

    def _free(self, group: Group[W]) -> None:
        with self._taking:
            self._admission.finished(group.work)

    def _finish(self, group: Group[W]) -> None:
        with self._taking:
            self._count_out(group)
            more = self._queues.has_ready
        if more and self._asleep:
            self._wake()

    # With `_taking` held

    def _close_books(self) -> None:
        """Free depth and partitions of what was delivered; by whoever needs it first."""
        while self._delivered:
            group = self._delivered.popleft()
            self._admission.finished(group.work)
            self._count_out(group)

    def _count_out(self, group: Group[W]) -> None:
        self._queues.finish(group)
        self._groups += 1
        self._served += len(group.work)
        # Two halves: one is written while the other is answered and encoded.
        self._stage_at = max(_STAGE_MIN, (self._taken - self._served) // 2)
        if self._admission.stopping:
            self._all_over.notify_all()

    def _is_staged(self) -> bool:
        return self._staging or self._ahead is not None

    def _fits_direct(self) -> bool:
        """Whether all that is in line fits into one group."""
        return not self._queues.queued and len(self._inbox) <= self._direct_max

    def _take(self) -> Group[W]:
        direct = self._fits_direct()
        with self._submitting:
            arrived, self._inbox = self._inbox, []
        if direct and len(arrived) <= self._direct_max:
            return self._queues.take_direct(arrived)
        for work in arrived:
            self._queues.put(work)
        return self._queues.take(self._group_partitions_max, self._batch_max)

    # Sleeping and waking

    def _lie_down(self, span_s: float) -> None:
        """Wait until woken. Looks once more after lying down, so that no wake-up is missed."""
        gate = threading.Lock()
        gate.acquire()
        self._asleep.append(gate)
        needed = (
            len(self._inbox) >= self._wake_at
            or self._admission.stopping
            or self._ahead is not None
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
