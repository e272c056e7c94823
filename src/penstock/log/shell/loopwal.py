"""The fair WAL scheduler of an event loop: the loop's thread does all but wait for the disk.

While a group is on its way to the disk, the loop answers the one before and encodes the next. Where
the store can start a write and go on (`Store.begin`) there is no other thread at all; else a thread
makes the call. The groups, their order and their answers are the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from penstock.kernel.clock import Clock
from penstock.kernel.shell import SystemClock
from penstock.log.queues import Admission, Group, PartitionQueues
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

_AHEAD_MIN: Final = 32
_NO_FD: Final = -1


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
        self._window = Window(clock or SystemClock())
        self._admission = Admission(options.limits)
        self._queues: PartitionQueues[Write] = PartitionQueues()
        self._inbox: list[Write] = []
        self._ahead: tuple[Group[Write], Encoded] | None = None
        self._ahead_at = _AHEAD_MIN
        self._writing: tuple[Group[Write], Encoded] | None = None
        self._underway: Underway | None = None
        self._done_fd = _NO_FD
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wal")
        self._called = True  # until `start`
        self._running = False
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
        self._admission.admit(partition, finishing)
        self._inbox.append((partition, operation, on_written, sync))
        self._taken += 1
        if len(self._inbox) >= self._ahead_at:
            if self._writing is None:
                self._go()
            elif self._ahead is None:
                self._encode_ahead()
        elif self._writing is None and not self._called:
            self._called = True
            self._loop.call_soon(self._go)  # with all that comes in this turn of the loop

    def set_commit_window(self, window_ms: float) -> None:
        """How long a group may be held open under pressure; the governor's to set."""
        self._window.span_ms = window_ms

    async def stop(self) -> None:
        """Refuse new operations, and return when all that were taken are written and answered."""
        self._admission.stopping = True
        self._running = True
        if self._drained is None:
            self._drained = self._loop.create_future()
            self._go()
        await asyncio.shield(self._drained)
        if self._done_fd != _NO_FD:
            self._loop.remove_reader(self._done_fd)
            self._done_fd = _NO_FD
        self._thread.shutdown()

    def status(self) -> WorkersStatus:
        """A snapshot for people."""
        return WorkersStatus(
            running=self._running and not self._admission.stopping,
            workers=1,
            queued=self._queues.queued + len(self._inbox),
            in_line=self._queues.ready,
            depth=self._taken - self._served,
            groups=self._groups,
            served=self._served,
            refusals=self._admission.refusals,
        )

    def depth_of(self, partition: int) -> int:
        """Operations of a partition in line or being written."""
        return self._admission.depth_of(partition)

    def _go(self) -> None:
        """Write the next group, if none is being written and there is one."""
        self._called = False
        if self._writing is not None:
            return
        if self._ahead is not None:
            group, encoded = self._ahead
            self._ahead = None
            self._write(group, encoded)
            return
        queued = self._queues.queued + len(self._inbox)
        hold_s = 0.0 if self._admission.stopping else self._window.hold_s(queued)
        if hold_s:
            self._called = True
            self._loop.call_later(hold_s, self._go)
            return
        group = self._take()
        if group.work:
            self._write(group, encode(group.work, self._store, self._group_bytes_max))
        elif self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _take(self) -> Group[Write]:
        arrived, self._inbox = self._inbox, []
        if len(arrived) <= self._direct_max and not self._queues.queued:
            return self._queues.take_direct(arrived)
        for piece in arrived:
            self._queues.put(piece)
        return self._queues.take(self._group_partitions_max, self._batch_max)

    def _encode_ahead(self) -> None:
        """Have the next group ready when the disk is.

        Only if everything in line fits into that group: a line that is too long is handed out in
        turns, when it is its turn.
        """
        if self._queues.queued or len(self._inbox) > self._direct_max:
            return
        if self._window.hold_s(len(self._inbox)):
            return
        group = self._take()
        if group.work:
            self._ahead = group, encode(group.work, self._store, self._group_bytes_max)

    def _write(self, group: Group[Write], encoded: Encoded) -> None:
        self._writing = group, encoded
        self._window.began()
        try:
            staged = encoded.staged
            underway = self._store.begin(staged, sync=encoded.sync) if staged is not None else None
        except Exception as error:
            failed = all_failed(encoded.partitions, error)
            self._loop.call_soon(self._written, partial(_answer, encoded, failed))
            return
        if underway is None:
            self._thread.submit(self._call, encoded)
            return
        self._underway = underway
        if self._done_fd != underway.done_fd:
            self._done_fd = underway.done_fd
            self._loop.add_reader(self._done_fd, self._landed)

    def _call(self, encoded: Encoded) -> None:
        tell = write(encoded, self._store, self._group_bytes_max)
        self._loop.call_soon_threadsafe(self._written, tell)

    def _landed(self) -> None:
        underway, self._underway = self._underway, None
        if underway is None or self._writing is None:
            return
        encoded = self._writing[1]
        try:
            failed = underway.finish()
        except Exception as error:
            failed = all_failed(encoded.partitions, error)
        self._written(partial(_answer, encoded, failed))

    def _written(self, tell: Tell) -> None:
        """A group is done: let the disk go on with the next one, then answer this one."""
        if self._writing is None:
            return
        group, self._writing = self._writing[0], None
        self._admission.finished(group.work)
        self._queues.finish(group)
        self._groups += 1
        self._served += len(group.work)
        # Two halves: one is written while the other is answered and encoded.
        self._ahead_at = max(_AHEAD_MIN, (self._taken - self._served) // 2)
        self._go()
        tell()
        if self._writing is None and not self._called:
            self._go()


def _answer(encoded: Encoded, failed: Mapping[int, Exception]) -> None:
    answer(encoded.tell, encoded.partitions, failed)
