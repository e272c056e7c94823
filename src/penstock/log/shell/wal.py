"""The fair WAL scheduler: every blocking write, many partitions in one store call and one sync."""

from __future__ import annotations

from threading import Lock
from typing import Any

from penstock.kernel.clock import Clock
from penstock.kernel.shell import SystemClock
from penstock.log.queues import Group
from penstock.log.shell.groups import (
    GroupStore,
    OnWritten,
    Tell,
    WalOptions,
    Window,
    Write,
    call_store,
    encode,
    write,
)
from penstock.log.shell.workers import FairWorkers, WorkersStatus
from penstock.log.store import Operation


class WalScheduler:
    """Takes operations from any thread and answers each exactly once when it is durable or failed.

    Operations of one partition are written, and answered, in the order they were submitted. The
    commit window, set by the governor, only collects what is queued: a lone write never waits.
    Answers run on the worker's thread; one that raises harms no other. On an event loop use
    `LoopWal`.
    """

    def __init__(
        self, store: GroupStore, options: WalOptions | None = None, *, clock: Clock | None = None
    ) -> None:
        options = options or WalOptions()
        self._store = store
        self._group_bytes_max = options.group_bytes_max
        self._window = Window(clock or SystemClock())
        self._workers: FairWorkers[Write] = FairWorkers(
            "wal",
            self._write,
            workers=options.workers,
            group_partitions_max=options.group_partitions_max,
            batch_max=options.batch_max,
            limits=options.limits,
            hold_s=self._window.hold_s,
        )

    def start(self) -> None:
        """Begin to write; what was submitted before is written now."""
        self._workers.start()

    def submit(
        self,
        operation: Operation,
        on_written: OnWritten,
        *,
        sync: bool = True,
        finishing: bool = False,
    ) -> None:
        """Put an operation in line. Never blocks.

        `Backpressure` or `Stopped` if it is refused; then it never reaches the store. `finishing`
        is for what completes accepted work (a commit marker): the limits do not apply to it.
        """
        self._workers.submit((operation[0], operation, on_written, sync), finishing)

    def write(self, operation: Operation, *, sync: bool = True, finishing: bool = False) -> None:
        """Write an operation and wait until it is done; raises what `submit` or the store raise.

        The waiting thread does the work itself if nobody else has any, so that a lone writer pays
        for its write and its sync and for hardly anything else. Of several the first does, and the
        worker takes what the others bring meanwhile as one group.
        """
        group = self._workers.take_alone(operation[0], finishing)
        if group is not None:
            failed = self._write_alone(group, operation, sync)
        else:
            failed = self._wait(operation, sync, finishing)
        if failed is not None:
            raise failed

    def set_commit_window(self, window_ms: float) -> None:
        """How long a group may be held open under pressure; the governor's to set."""
        self._window.span_ms = window_ms

    def stop(self) -> None:
        """Refuse new operations, write all that were taken, end the threads."""
        self._workers.stop()

    def status(self) -> WorkersStatus:
        """A snapshot for people."""
        return self._workers.status()

    def depth_of(self, partition: int) -> int:
        """Operations of a partition in line or being written."""
        return self._workers.depth_of(partition)

    def _write_alone(self, group: Group[Any], operation: Operation, sync: bool) -> Exception | None:
        try:
            self._window.began()
            failed = call_store(self._store, [operation[0]], [operation], sync=sync)
            return failed.get(operation[0])
        finally:
            self._workers.finish_alone(group)

    def _wait(self, operation: Operation, sync: bool, finishing: bool) -> Exception | None:
        outcome: list[Exception | None] = []
        done = Lock()
        done.acquire()

        def written(error: Exception | None) -> None:
            outcome.append(error)
            done.release()

        self.submit(operation, written, sync=sync, finishing=finishing)
        done.acquire()
        return outcome[0]

    def _write(self, work: list[Write]) -> Tell:
        self._window.began()
        group = encode(work, self._store, self._group_bytes_max)
        return write(group, self._store, self._group_bytes_max)
