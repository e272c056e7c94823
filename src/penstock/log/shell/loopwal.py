"""The fair WAL scheduler of an event loop: the loop's thread does all but wait for the disk.

While a group is on its way to the disk, the loop answers the one before and encodes the next. Where
the store can start a write and go on (`Store.begin`), and that is not the slower way, there is no
other thread at all; else a thread makes the call. The groups, their order and their answers are the
same.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from penstock.kernel.clock import Clock
from penstock.kernel.shell import SystemClock
from penstock.log.queues import Backpressure, Group, PartitionQueues, Stopped
from penstock.log.shell.groups import (
    Encoded,
    GroupStore,
    OnWritten,
    Tell,
    WalOptions,
    Window,
    Write,
    all_failed,
    answer,
    encode,
    write,
)
from penstock.log.shell.workers import WorkersStatus
from penstock.log.store import Operation, Underway
from penstock.log.ways import Ways

_LOGGER: Final = logging.getLogger("penstock.log")
FLIGHTS_MAX: Final = 2
_AHEAD_MIN: Final = 32
_GROUPS_A_TURN: Final = 8
_NO_FD: Final = -1
_NO_LIMIT: Final = 1 << 62


class _Next(NamedTuple):
    """A group and what it is for the store."""

    group: Group[Write]
    encoded: Encoded


class LoopWal:
    """Takes operations and answers each exactly once when it is durable or failed.

    For the loop's thread only. Operations of one partition are written, and answered, in the order
    they were submitted. The commit window, set by the governor, only collects what is queued: a
    lone write never waits. An answer that raises harms no other.
    """

    def __init__(
        self,
        store: GroupStore,
        options: WalOptions | None = None,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock | None = None,
    ) -> None:
        options = options or WalOptions()
        self._store = store
        self._loop = loop
        self._group_partitions_max = options.group_partitions_max
        self._batch_max = options.batch_max
        self._group_bytes_max = options.group_bytes_max
        self._direct_max = min(options.group_partitions_max, options.batch_max)
        clock = clock or SystemClock()
        self._now_ns = clock.monotonic_ns
        self._window = Window(clock)
        self._ways = Ways()
        self._limits = options.limits
        self._look_from = min(options.limits.depth_max, options.limits.total_max or _NO_LIMIT)
        self._queues: PartitionQueues[Write] = PartitionQueues()
        self._inbox: list[Write] = []
        self._ahead: _Next | None = None
        self._ahead_at = _AHEAD_MIN
        self._air: deque[tuple[_Next, Underway, int]] = deque()  # and when it began
        self._call: _Next | None = None  # what the thread writes; then nothing is in the air
        self._call_began_ns = 0
        self._landed_ns = 0
        self._done_fd = _NO_FD
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="wal")
        self._called = False
        self._held: asyncio.TimerHandle | None = None
        self._running = False
        self._stopping = False
        self._refusals = 0
        self._taken = 0
        self._groups = 0
        self._served = 0
        self._drained: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Begin to write; what was submitted before is written now."""
        self._running = True
        self._go()

    def submit(
        self,
        operation: Operation,
        on_written: OnWritten,
        *,
        sync: bool = True,
        finishing: bool = False,
    ) -> None:
        """Put an operation in line.

        `Backpressure` or `Stopped` if it is refused; then it never reaches the store. `finishing`
        is for what completes accepted work (a commit marker): the limits do not apply to it.
        """
        partition = operation[0]
        if self._stopping:
            raise Stopped("expected a running scheduler, found it stopping; nothing was taken")
        if self._taken - self._served >= self._look_from and not finishing:
            self._check_depth(partition)
        self._inbox.append((partition, operation, on_written, sync))
        self._taken += 1
        if len(self._inbox) >= self._ahead_at:
            if len(self._air) < FLIGHTS_MAX:
                self._go()
            elif self._ahead is None:
                self._ahead = self._prepare()
        elif not (self._air or self._called or self._held):
            self._called = True
            self._loop.call_soon(self._go)  # with all that comes in this turn of the loop

    def set_commit_window(self, window_ms: float) -> None:
        """How long a group may be held open under pressure; the governor's to set."""
        self._window.span_ms = window_ms

    async def stop(self) -> None:
        """Refuse new operations, and return when all that were taken are written and answered."""
        self._stopping = True
        self._running = True
        if self._drained is None:
            self._drained = self._loop.create_future()
            self._go()
        await asyncio.shield(self._drained)
        if self._held is not None:
            self._held.cancel()
        if self._done_fd != _NO_FD:
            self._loop.remove_reader(self._done_fd)
            self._done_fd = _NO_FD
        self._calls.shutdown()

    def status(self) -> WorkersStatus:
        """A snapshot for people."""
        return WorkersStatus(
            running=self._running and not self._stopping,
            workers=1,
            queued=self._queues.queued + len(self._inbox),
            in_line=self._queues.ready,
            depth=self._taken - self._served,
            groups=self._groups,
            served=self._served,
            refusals=self._refusals,
        )

    def written_by(self) -> str:
        """Who writes groups at present, for people: "disk" by itself, or a "thread"."""
        if self._done_fd == _NO_FD or self._ways.rests(self._now_ns()):
            return "thread"
        return "disk"

    def depth_of(self, partition: int) -> int:
        """Operations of a partition in line or being written."""
        self._put_in_line()
        taken = [self._call, self._ahead, *[flying for flying, _, _ in self._air]]
        counts = [each.encoded.partitions.count(partition) for each in taken if each is not None]
        return self._queues.depth_of(partition) + sum(counts)

    def _check_depth(self, partition: int) -> None:
        """Refuse what is too much; only looked at when all partitions together have so much."""
        depth, limits = self._taken - self._served, self._limits
        if limits.total_max is not None and depth >= limits.total_max:
            self._refusals += 1
            raise Backpressure(partition, depth, limits.total_max, overall=True)
        depth = self.depth_of(partition)
        if depth >= limits.depth_max:
            self._refusals += 1
            raise Backpressure(partition, depth, limits.depth_max)

    def _go(self) -> None:
        """Give the store what it can take now."""
        if not self._running:
            return
        self._called = False
        while self._call is None and len(self._air) < FLIGHTS_MAX:
            following = self._ahead or self._prepare()
            self._ahead = None
            if following is None or not self._launch(following):
                break
        if self._drained is not None and not self._drained.done() and self._taken == self._served:
            self._drained.set_result(None)

    def _prepare(self) -> _Next | None:
        """Take and encode the next group, if there is one and it is not to wait for more.

        While others are in the air it is worth to wait until it is as large as those.
        """
        queued = self._queues.queued + len(self._inbox)
        if self._air and queued < self._ahead_at:
            return None
        hold_s = 0.0 if self._stopping else self._window.hold_s(queued)
        if hold_s:
            self._held = self._held or self._loop.call_later(hold_s, self._let_go)
            return None
        group = self._take()
        if not group.work:
            return None
        return _Next(group, encode(group.work, self._store, self._group_bytes_max))

    def _let_go(self) -> None:
        self._held = None
        self._go()

    def _take(self) -> Group[Write]:
        if len(self._inbox) <= self._direct_max and not self._queues.queued:
            arrived, self._inbox = self._inbox, []
            return self._queues.take_direct(arrived)
        self._put_in_line()
        return self._queues.take(self._group_partitions_max, self._batch_max)

    def _put_in_line(self) -> None:
        arrived, self._inbox = self._inbox, []
        for piece in arrived:
            self._queues.put(piece)

    def _launch(self, following: _Next) -> bool:
        """Let the disk write a group, or the thread, or keep it until there is nothing else."""
        encoded = following.encoded
        underway = None
        now_ns = self._now_ns()
        try:
            if encoded.staged is not None and encoded.sync and self._ways.flies(now_ns):
                underway = self._store.begin(encoded.staged, sync=encoded.sync)
        except Exception:
            _LOGGER.debug("a group cannot begin: its call will say why", exc_info=True)
        if underway is None and self._air:
            self._ahead = following
            return False
        self._window.began()
        if underway is None:
            self._call = following
            self._call_began_ns = now_ns
            self._calls.submit(self._write, encoded)
            return False
        self._air.append((following, underway, now_ns))
        if self._done_fd != underway.done_fd:
            self._done_fd = underway.done_fd
            self._loop.add_reader(self._done_fd, self._landed)
        return True

    def _write(self, encoded: Encoded) -> None:
        tell = write(encoded, self._store, self._group_bytes_max)
        self._loop.call_soon_threadsafe(self._called_back, tell)

    def _called_back(self, tell: Tell) -> None:
        called, self._call = self._call, None
        if called is not None:
            if called.encoded.sync:
                now_ns = self._now_ns()
                self._ways.called(now_ns - self._call_began_ns, now_ns)
            self._written(called.group, tell)

    def _landed(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._done_fd)
        self._land()

    def _land(self) -> None:
        """Answer what the disk is done with, and what it is done with by then."""
        for _ in range(_GROUPS_A_TURN):
            if not self._air or not self._air[0][1].is_done():
                return
            (group, encoded), underway, began_ns = self._air.popleft()
            now_ns = self._now_ns()
            # Two in the air at a time take twice as long, and are not late.
            self._ways.flew(now_ns - max(began_ns, self._landed_ns), now_ns)
            self._landed_ns = now_ns
            try:
                failed = underway.finish()
            except Exception as error:
                failed = all_failed(encoded.partitions, error)
            self._written(group, partial(_answer, encoded, failed))
        if self._air:
            self._loop.call_soon(self._land)  # its eventfd may have been read

    def _written(self, group: Group[Write], tell: Tell) -> None:
        """A group is done: let the disk go on with the next one, then answer this one."""
        self._queues.finish(group)
        # As large as what is in the air, if all who wait write again: see `bench wal`.
        self._ahead_at = max(_AHEAD_MIN, (self._taken - self._served) // FLIGHTS_MAX)
        self._groups += 1
        self._served += len(group.work)
        self._go()
        tell()
        self._go()


def _answer(encoded: Encoded, failed: Mapping[int, Exception]) -> None:
    answer(encoded.tell, encoded.partitions, failed)
