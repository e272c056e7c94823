"""The fair WAL scheduler: every write to the log, and the only place that forms group commits.

Runs on the event loop's thread, which does everything except wait for the disk. While a group is
being written, the loop answers the previous one and encodes the next. Where the store can start a
write and return (`Store.begin`), and that is not slower, no other thread is involved; otherwise a
thread makes the call. Groups, their order and their answers are the same either way.

A group is formed in three steps: partition writers *join*; when `GroupWindow` closes, each writer
submits its entry; and the submitted entries become one call of the store with one sync.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from queue import SimpleQueue
from typing import Final, NamedTuple, Protocol

from penstock.flow.governor import COMMIT_WINDOW_MS_MIN, hold_ms
from penstock.flow.latency_window import LatencyWindow
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Rejected
from penstock.kernel.units import MIB
from penstock.log.queues import (
    Backpressure,
    Group,
    PartitionQueues,
    QueueLimits,
    SchedulerStatus,
    Stopped,
)
from penstock.log.store import Operation, Underway
from penstock.log.stores.rules import payload_bytes
from penstock.log.write_path import PathChooser

OnWritten = Callable[[Exception | None], None]
Write = tuple[int, Operation, OnWritten, bool]  # partition, operation, callback, sync

IN_FLIGHT_MAX: Final = 2
GROUP_WRITES: Final = 32
"""A group of this many writes is not held open: it costs about as much as one of a single write,
and the next one fills while it is written.
"""
HOLD_NS_MAX: Final = 1_000_000
QUIET_NS: Final = 150_000
BUSY_FROM: Final = 0.5
BUSY_FULL: Final = 0.75
ROUND_NS_A_WATCHER: Final = 3_500
"""How long a group stays open per watcher of a round: about half the cost of serving it."""
ROUND_NS_MAX: Final = 4_000_000
FSYNC_BUCKETS_US: Final = (50, 100, 250, 500, 1_000, 5_000, 10_000, 50_000, 100_000)

_LOGGER: Final = logging.getLogger("penstock.log")
_AHEAD_MIN: Final = 32
_GROUPS_A_TURN: Final = 8
_NO_FD: Final = -1
_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class WalOptions:
    """Sizes of groups and queues."""

    group_partitions_max: int = 64
    batch_max: int = 256
    group_bytes_max: int = 8 * MIB
    limits: QueueLimits = field(default_factory=QueueLimits)

    def __post_init__(self) -> None:
        if min(self.group_partitions_max, self.batch_max, self.group_bytes_max) < 1:
            raise Rejected(f"sizes of a WAL must be at least 1: {self}")


@dataclass(slots=True)
class WalCounters:
    """Counts since the log was opened."""

    frames: int = 0
    batches: int = 0
    fsyncs: int = 0
    bytes_written: int = 0
    fsync_us_total: int = 0
    last_fsync_us: int = 0
    fsync_buckets: list[int] = field(default_factory=lambda: [0] * (len(FSYNC_BUCKETS_US) + 1))
    submit_full: int = 0
    queue_depth_peak: int = 0
    failures: int = 0
    last_failure: str | None = None
    commit_ns: LatencyWindow = field(default_factory=LatencyWindow)
    """From the submission of an operation to its answer; of the present second."""
    fsync_ns: LatencyWindow = field(default_factory=LatencyWindow)
    """Of each sync; of the present second."""

    def count(self, operations: int, calls: int, syncs: int, took_ns: int) -> None:
        """Count a group with its store calls and syncs."""
        self.batches += calls
        self.frames += operations
        if syncs:
            took_us = took_ns // (1_000 * calls)
            self.fsyncs += syncs
            self.fsync_us_total += took_us * syncs
            self.last_fsync_us = took_us
            self.fsync_buckets[bisect_left(FSYNC_BUCKETS_US, took_us)] += syncs
            self.fsync_ns.record(took_ns // calls)


class GroupStore(Protocol):
    """The part of a `Store` that the WAL needs."""

    def stage(self, group: Sequence[Operation], bytes_max: int, /) -> Sequence[Operation] | None:
        """See `Store.stage`."""
        ...

    def write(self, group: Sequence[Operation], /, *, sync: bool) -> Mapping[int, Exception]:
        """See `Store.write`."""
        ...

    def begin(self, group: Sequence[Operation], /, *, sync: bool) -> Underway | None:
        """See `Store.begin`."""
        ...


class Joining(Protocol):
    """A partition writer that has entries for the next group."""

    def flush(self) -> None:
        """Submit them with `Wal.submit`."""
        ...


class GroupWindow:
    """How long the open group waits for more writes. Pure.

    A group costs the kernel and the loop about as much for one write as for fifty. While there is
    time to spare that does not matter, and waiting writes start at once. There are three reasons to
    wait:

    - the loop is busy: until the group is large enough, no more writes arrive, or a millisecond is
      over; a lone write never waits;
    - very many watchers are being written to, one batch after another: every group that is written
      meanwhile makes that round longer. With a few groups in a round, a thousand watchers have
      their records sooner (`bench delivery`); here even a lone write waits;
    - the governor widened the commit window: queued writes are collected; a lone write never waits.
    """

    def __init__(self, clock: Clock) -> None:
        self._now_ns = clock.monotonic_ns
        self.commit_ms = COMMIT_WINDOW_MS_MIN
        self.round_ns = 0
        self._busy_ns = 0
        self._seen = 0
        self._opened_ns = 0
        self._grew_ns = 0
        self._last_began_ns = -(10**12)

    def set_busy(self, share: float) -> None:
        """Set the recent share of its time that the loop was busy."""
        wanted = (share - BUSY_FROM) / (BUSY_FULL - BUSY_FROM)
        self._busy_ns = int(HOLD_NS_MAX * min(max(wanted, 0.0), 1.0))

    def set_round(self, watchers: int) -> None:
        """Set how many watchers are being written to in a round; 0 when it is over."""
        self.round_ns = min(ROUND_NS_A_WATCHER * watchers, ROUND_NS_MAX)

    def open(self) -> None:
        """Note that the first writer of a group joined."""
        self._seen = 1
        self._opened_ns = self._grew_ns = self._now_ns()

    def stays_open(self, writes: int) -> bool:
        """Whether writers wait before they submit; `writes` is the number so far."""
        if not (self._busy_ns or self.round_ns) or writes >= GROUP_WRITES:
            return False
        now_ns = self._now_ns()
        open_ns = now_ns - self._opened_ns
        if open_ns < self.round_ns:
            return True
        if writes > self._seen:
            self._seen, self._grew_ns = writes, now_ns
        return writes > 1 and open_ns < self._busy_ns and now_ns - self._grew_ns < QUIET_NS

    def began(self) -> None:
        """Note that a group is being written."""
        self._last_began_ns = self._now_ns()

    def hold_s(self, queued: int) -> float:
        """How long to hold back submitted entries, by the governor's commit window."""
        if queued <= 1 or self.commit_ms <= COMMIT_WINDOW_MS_MIN:
            return 0.0
        since_ms = (self._now_ns() - self._last_began_ns) / 1e6
        return hold_ms(self.commit_ms, queued=queued, since_last_ms=since_ms) / 1e3


class _EncodedGroup(NamedTuple):
    """A group encoded for the store, in columns; `staged` is None if it takes several calls."""

    group: Group[Write]
    partitions: Sequence[int]
    staged: Sequence[Operation] | None
    callbacks: Sequence[OnWritten]
    sync: bool


class _Outcome(NamedTuple):
    """The outcome of each operation of a group, and how many calls and syncs returned."""

    errors: Iterable[Exception | None]
    calls: int
    syncs: int


class LastGroup(NamedTuple):
    """The group that was completed last: its operations, its time in the store, and its end."""

    operations: int
    syncs: int
    took_ns: int
    ended_ns: int


class _WriterThread:
    """A thread that writes one group after another; it begins with the first.

    Handing it a group takes a sixth of what a `ThreadPoolExecutor` does with its futures, and with
    a hundred watchers the loop has no time to spare (`bench push`).
    """

    def __init__(self, write: Callable[[_EncodedGroup], None]) -> None:
        self._write = write
        self._groups: SimpleQueue[_EncodedGroup | None] = SimpleQueue()
        self._writer: threading.Thread | None = None

    def take(self, group: _EncodedGroup) -> None:
        """Write a group after those taken before."""
        if self._writer is None:
            self._writer = threading.Thread(target=self._run, name="wal", daemon=True)
            self._writer.start()
        self._groups.put(group)

    def stop(self) -> None:
        """Return when everything taken is written."""
        if self._writer is not None:
            self._groups.put(None)
            self._writer.join()

    def _run(self) -> None:
        while (group := self._groups.get()) is not None:
            self._write(group)


class _Moment(NamedTuple):
    """A point in time, and the processor time that the loop had used by then."""

    at_ns: int
    busy_ns: int


class Wal:
    """Accepts operations and answers each exactly once, when it is durable or failed.

    For the loop's thread only. Operations of one partition are written, and answered, in the order
    in which they were submitted. A callback that raises does not affect others.
    """

    def __init__(
        self,
        store: GroupStore,
        options: WalOptions | None = None,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        busy_ns: Callable[[], int] = time.thread_time_ns,
        chooser: PathChooser | None = None,
    ) -> None:
        """`busy_ns` is the processor time that the loop's thread has used so far."""
        options = options or WalOptions()
        self._store = store
        self._loop = loop
        self._group_partitions_max = options.group_partitions_max
        self._batch_max = options.batch_max
        self._group_bytes_max = options.group_bytes_max
        self._direct_max = min(options.group_partitions_max, options.batch_max)
        self._now_ns = clock.monotonic_ns
        self._busy_ns = busy_ns
        self.window = GroupWindow(clock)
        self.counters = WalCounters()
        self.writes = 0  # in the open group; counted by the writers that add to it
        self._joined: list[Joining] = []
        self._chooser = chooser or PathChooser()
        self._limits = options.limits
        self._check_from = min(options.limits.depth_max, options.limits.total_max or _NO_LIMIT)
        self._queues: PartitionQueues[Write] = PartitionQueues()
        self._inbox: list[Write] = []
        self._ahead: _EncodedGroup | None = None
        self._ahead_at = _AHEAD_MIN
        self._in_flight: deque[tuple[_EncodedGroup, Underway, _Moment]] = deque()
        self._on_thread: _EncodedGroup | None = None  # while there is one, nothing is in flight
        self._thread_began = self._landed = _Moment(0, 0)
        self._done_fd = _NO_FD
        self._writer = _WriterThread(self._write)
        self._scheduled = False
        self._hold_timer: asyncio.TimerHandle | None = None
        self._running = False
        self._stopping = False
        self._refusals = 0
        self._taken = 0
        self._groups = 0
        self._last_group: tuple[int, int, int, int] | None = None
        self._served = 0
        self._drained: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Start writing, including operations submitted before."""
        self._running = True
        self._go()

    def join(self, writer: Joining) -> None:
        """Flush a writer when the open group is formed."""
        if not self._joined:
            self.window.open()
            self._loop.call_soon(self._form)
        self._joined.append(writer)

    def submit(
        self,
        operation: Operation,
        on_written: OnWritten,
        *,
        sync: bool = True,
        finishing: bool = False,
    ) -> None:
        """Queue an operation.

        Raises `Backpressure` or `Stopped` if it is refused; then it never reaches the store.
        `finishing` is for operations that complete accepted work (a commit marker): the limits do
        not apply to them.
        """
        partition = operation[0]
        if self._stopping:
            raise Stopped("the log is stopping and takes no new work")
        if self._taken - self._served >= self._check_from and not finishing:
            self._check_depth(partition)
        self._inbox.append((partition, operation, on_written, sync))
        self._taken += 1
        if len(self._inbox) >= self._ahead_at:
            if len(self._in_flight) < IN_FLIGHT_MAX:
                self._go()
            elif self._ahead is None:
                self._ahead = self._prepare()
        elif not (self._in_flight or self._scheduled or self._hold_timer):
            self._scheduled = True
            self._loop.call_soon(self._go)  # together with everything else of this loop iteration

    async def stop(self) -> None:
        """Refuse new operations; return when all accepted ones are written and answered."""
        self._stopping = True
        self._running = True
        if self._drained is None:
            self._drained = self._loop.create_future()
            self._go()
        await asyncio.shield(self._drained)
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        if self._done_fd != _NO_FD:
            self._loop.remove_reader(self._done_fd)
            self._done_fd = _NO_FD
        self._writer.stop()

    def status(self) -> SchedulerStatus:
        """A snapshot for people."""
        return SchedulerStatus(
            running=self._running and not self._stopping,
            queued=self._queues.queued + len(self._inbox),
            ready=self._queues.ready,
            depth=self._taken - self._served,
            groups=self._groups,
            served=self._served,
            refusals=self._refusals,
        )

    @property
    def last_group(self) -> LastGroup | None:
        """The group that was completed last; None before the first."""
        return None if self._last_group is None else LastGroup(*self._last_group)

    def written_by(self) -> str:
        """What writes groups at present, for people: the "disk" asynchronously, or a "thread"."""
        if self._done_fd == _NO_FD or self._chooser.avoids_async(self._now_ns()):
            return "thread"
        return "disk"

    def depth_of(self, partition: int) -> int:
        """Operations of a partition that are queued or being written."""
        self._enqueue()
        taken = [self._on_thread, self._ahead, *[flying for flying, _, _ in self._in_flight]]
        counts = [each.partitions.count(partition) for each in taken if each is not None]
        return self._queues.depth_of(partition) + sum(counts)

    def _check_depth(self, partition: int) -> None:
        """Refuse operations over the limit; checked only when all partitions together reach it."""
        depth, limits = self._taken - self._served, self._limits
        if limits.total_max is not None and depth >= limits.total_max:
            self._refusals += 1
            raise Backpressure(partition, depth, limits.total_max, overall=True)
        depth = self.depth_of(partition)
        if depth >= limits.depth_max:
            self._refusals += 1
            raise Backpressure(partition, depth, limits.depth_max)

    def _form(self) -> None:
        """Let the joined writers submit, unless the group stays open for more."""
        if self.window.stays_open(self.writes):
            self._loop.call_soon(self._form)
            return
        joined, self._joined = self._joined, []
        self.writes = 0
        self._scheduled = True  # their submissions start below, all at once
        for writer in joined:
            writer.flush()
        self._go()

    def _go(self) -> None:
        """Give the store what it can take now."""
        if not self._running:
            return
        self._scheduled = False
        while self._on_thread is None and len(self._in_flight) < IN_FLIGHT_MAX:
            following = self._ahead or self._prepare()
            self._ahead = None
            if following is None or not self._launch(following):
                break
        if self._drained is not None and not self._drained.done() and self._taken == self._served:
            self._drained.set_result(None)

    def _prepare(self) -> _EncodedGroup | None:
        """Take and encode the next group, if there is one that need not wait for more.

        While others are in flight it pays to wait until it is as large as those.
        """
        queued = self._queues.queued + len(self._inbox)
        if self._in_flight and queued < self._ahead_at:
            return None
        hold_s = 0.0 if self._stopping else self.window.hold_s(queued)
        if hold_s:
            self._hold_timer = self._hold_timer or self._loop.call_later(hold_s, self._release)
            return None
        group = self._take()
        return _encode(group, self._store, self._group_bytes_max) if group.work else None

    def _release(self) -> None:
        self._hold_timer = None
        self._go()

    def _take(self) -> Group[Write]:
        if len(self._inbox) <= self._direct_max and not self._queues.queued:
            arrived, self._inbox = self._inbox, []
            return self._queues.take_direct(arrived)
        self._enqueue()
        return self._queues.take(self._group_partitions_max, self._batch_max)

    def _enqueue(self) -> None:
        arrived, self._inbox = self._inbox, []
        for piece in arrived:
            self._queues.put(piece)

    def _launch(self, following: _EncodedGroup) -> bool:
        """Start a group on the disk or on the thread; keep it if groups in flight must end first.

        Returns True if another one may be started.
        """
        underway = None
        began = self._moment()
        try:
            staged = following.staged
            if staged is not None and following.sync and self._chooser.picks_async(began.at_ns):
                underway = self._store.begin(staged, sync=True)
        except Exception:
            _LOGGER.debug("a group cannot begin; its call will say why", exc_info=True)
        if underway is None and self._in_flight:
            self._ahead = following
            return False
        self.window.began()
        if underway is None:
            self._on_thread = following
            self._thread_began = began
            self._writer.take(following)
            return False
        self._in_flight.append((following, underway, began))
        if self._done_fd != underway.done_fd:
            self._done_fd = underway.done_fd
            self._loop.add_reader(self._done_fd, self._on_done_fd)
        return True

    def _write(self, following: _EncodedGroup) -> None:
        """Runs on the thread."""
        began_ns = self._now_ns()
        if following.staged is None:
            outcome = _write_parts(following.group.work, self._store, self._group_bytes_max)
        else:
            outcome = _write_whole(following, self._store)
        took_ns = self._now_ns() - began_ns
        with suppress(RuntimeError):  # the loop ended without `stop`: no caller waits for an answer
            self._loop.call_soon_threadsafe(self._thread_done, outcome, took_ns)

    def _thread_done(self, outcome: _Outcome, took_ns: int) -> None:
        written, self._on_thread = self._on_thread, None
        if written is not None:
            if written.sync:
                now = self._moment()
                self._chooser.thread_took(_idle_ns(self._thread_began, now), now.at_ns)
            self._finish(written, outcome, took_ns)

    def _moment(self) -> _Moment:
        return _Moment(self._now_ns(), self._busy_ns())

    def _on_done_fd(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._done_fd)
        self._land()

    def _land(self) -> None:
        """Answer the writes that have completed."""
        for _ in range(_GROUPS_A_TURN):
            if not self._in_flight or not self._in_flight[0][1].is_done():
                return
            written, underway, began = self._in_flight.popleft()
            now = self._moment()
            # Two in flight at a time take twice as long; that does not count as late.
            self._chooser.async_took(_idle_ns(max(began, self._landed), now), now.at_ns)
            self._landed = now
            try:
                outcome = _outcome(written.partitions, underway.finish(), sync=True)
            except Exception as error:
                outcome = _nothing_written(written.partitions, error)
            self._finish(written, outcome, self._now_ns() - began.at_ns)
        if self._in_flight:
            self._loop.call_soon(self._land)  # its eventfd may already have been read

    def _finish(self, written: _EncodedGroup, outcome: _Outcome, took_ns: int) -> None:
        """Complete a group: start the next one on the disk, then answer this one."""
        group = written.group
        self._queues.finish(group)
        # As large as the writes in flight, if every waiting writer writes again: see `bench wal`.
        self._ahead_at = max(_AHEAD_MIN, (self._taken - self._served) // IN_FLIGHT_MAX)
        self._groups += 1
        self._served += len(group.work)
        if outcome.calls:
            self.counters.count(len(group.work), outcome.calls, outcome.syncs, took_ns)
            # A bare tuple, named only where it is shown: it is made for every group.
            self._last_group = (len(group.work), outcome.syncs, took_ns, self._now_ns())
        self._go()
        answer_all(written.callbacks, outcome.errors)
        self._go()


def _idle_ns(began: _Moment, ended: _Moment) -> int:
    """For how long the loop had nothing to do in between: its own work delays both paths alike."""
    return max(0, ended.at_ns - began.at_ns - (ended.busy_ns - began.busy_ns))


def _encode(group: Group[Write], store: GroupStore, group_bytes_max: int) -> _EncodedGroup:
    partitions, operations, callbacks, syncs = zip(*group.work, strict=True)
    staged: Sequence[Operation] | None = operations
    try:
        staged = store.stage(operations, group_bytes_max)
    except Exception:
        _LOGGER.debug("a group cannot be staged; its write will say why", exc_info=True)
    return _EncodedGroup(group, partitions, staged, callbacks, True in syncs)


def _write_whole(group: _EncodedGroup, store: GroupStore) -> _Outcome:
    assert group.staged is not None, "what is not staged is written in parts"
    try:
        failed = store.write(group.staged, sync=group.sync)
    except Exception as error:
        return _nothing_written(group.partitions, error)
    return _outcome(group.partitions, failed, sync=group.sync)


def _write_parts(work: Sequence[Write], store: GroupStore, group_bytes_max: int) -> _Outcome:
    """Write a group of very many bytes in several store calls."""
    errors: list[Exception | None] = []
    calls = syncs = 0
    part: list[Write] = []
    room = group_bytes_max
    for piece in [*work, None]:
        size = payload_bytes([piece[1]]) if piece else 0
        if part and (piece is None or size > room):
            partitions, operations, callbacks, flags = zip(*part, strict=True)
            encoded = _EncodedGroup(
                Group((), part), partitions, operations, callbacks, sync=True in flags
            )
            outcome = _write_whole(encoded, store)
            errors.extend(outcome.errors)
            calls, syncs = calls + outcome.calls, syncs + outcome.syncs
            part, room = [], group_bytes_max
        if piece is not None:
            part.append(piece)
            room -= size
    return _Outcome(errors, calls, syncs)


def _outcome(partitions: Sequence[int], failed: Mapping[int, Exception], *, sync: bool) -> _Outcome:
    errors = [failed.get(each) for each in partitions] if failed else repeat(None, len(partitions))
    return _Outcome(errors, 1, int(sync))


def _nothing_written(partitions: Sequence[int], error: Exception) -> _Outcome:
    # The writers get the error and log it: there may be many per second.
    _LOGGER.debug("a group of %d operations failed: %s", len(partitions), error)
    return _Outcome(repeat(error, len(partitions)), 0, 0)


def answer_all(callbacks: Sequence[OnWritten], errors: Iterable[Exception | None]) -> None:
    """Call every callback, in order; one that raises is logged and does not affect others."""
    for on_written, error in zip(callbacks, errors, strict=True):
        try:
            on_written(error)
        except Exception:
            _LOGGER.exception("a completion callback raised")
