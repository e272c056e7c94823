"""A log on this machine: store, schedulers and one executor for each partition, as one thing.

>>> log = LocalLog.open("memory", partitions=4)
>>> log.append(log.partition_of("meters/7"), b"first").result()
1
>>> [entry.payload for entry in log.read(log.partition_of("meters/7"), first_index=1).result()]
[b'first']
>>> log.close()
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from penstock.kernel.errors import PenstockError, Rejected, Unknown
from penstock.kernel.ids import partition_of
from penstock.kernel.units import MIB
from penstock.log.executor import ExecutorLimits, PartitionFailed, Phase, Status, Work
from penstock.log.reads import ReadRange
from penstock.log.shell.executor import OnRestored, PartitionExecutor, Runner, RunSoon
from penstock.log.shell.groups import WalOptions
from penstock.log.shell.reads import ReadOptions, ReadScheduler
from penstock.log.shell.wal import WalScheduler
from penstock.log.shell.workers import WorkersStatus
from penstock.log.solo import Compaction, OnCommitted, Proposal, SoloOwner, Written
from penstock.log.store import Bounds, Entry, HardState, Operation, Store, StoreStatus
from penstock.log.stores import open_store

_LOGGER: Final = logging.getLogger("penstock.log")


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Sizes of a local log."""

    partitions: int = 64
    wal: WalOptions = field(default_factory=WalOptions)
    reads: ReadOptions = field(default_factory=ReadOptions)
    executor: ExecutorLimits = field(default_factory=ExecutorLimits)

    def __post_init__(self) -> None:
        if not 1 <= self.partitions <= 65_536:
            raise Rejected(f"expected 1 to 65536 partitions, found {self.partitions}")


@dataclass(frozen=True, slots=True)
class LogStatus:
    """Everything a person wants to know of a log, in one snapshot."""

    store: StoreStatus
    wal: WorkersStatus
    reads: WorkersStatus
    partitions: list[Status]


class LocalLog:
    """Durable, ordered entries in many partitions, each a group of one.

    Calls come from any thread. `run_soon` lets an event loop run the partitions and give the
    answers; without it the log brings a thread of its own.
    """

    def __init__(
        self, store: Store, options: LogOptions | None = None, *, run_soon: RunSoon | None = None
    ) -> None:
        self._options = options or LogOptions()
        check_partitions(store, self._options.partitions)
        self._store = store
        self._closed = False
        self._runner: Runner | None = None
        if run_soon is None:
            self._runner = Runner("log")
            run_soon = self._runner.run_soon
        self._run_soon = run_soon
        self._reads = ReadScheduler(store, self._options.reads)
        self._wal = WalScheduler(store, self._options.wal)
        self._executors = [self._make(number) for number in range(self._options.partitions)]
        self._reads.start()
        self._wal.start()
        for executor in self._executors:
            executor.start()

    @classmethod
    def open(
        cls,
        kind: str = "segment",
        path: str | Path = "penstock-log",
        *,
        partitions: int = 64,
        **store_options: Any,
    ) -> LocalLog:
        """Open or create a log in a directory; `kind` is one of the stores."""
        store = open_store(kind, path, **store_options)
        try:
            log = cls(store, LogOptions(partitions=partitions))
        except BaseException:
            store.close()
            raise
        try:
            log.wait_ready()
        except BaseException:
            log.close()
            raise
        return log

    def partition_of(self, name: str) -> int:
        """The partition a name lives on, for ever the same for a number of partitions."""
        return partition_of(name, self._options.partitions)

    def propose(
        self, partition: int, payload: bytes, on_committed: OnCommitted, *, sync: bool = True
    ) -> None:
        """Append a payload; the answer is its index once it is durable, or an error.

        Raises at once, with nothing appended, if the partition takes no work now. The answer is
        given once, on a thread of the log: be quick there. An answer that raises harms no other.
        """
        if not isinstance(payload, bytes):
            raise Rejected(f"expected a payload of bytes, found {type(payload).__name__}")
        proposal = Proposal(payload, _Once(on_committed), sync)
        self._executor(partition).submit(Work.CLIENT, proposal)

    def append(self, partition: int, payload: bytes, *, sync: bool = True) -> Future[int]:
        """Append a payload; the future holds its index once it is durable."""
        future: Future[int] = Future()
        self.propose(partition, payload, _resolve(future), sync=sync)
        return future

    def read(
        self, partition: int, first_index: int, *, max_entries: int = 256, max_bytes: int = MIB
    ) -> Future[list[Entry]]:
        """Entries from an index on, at least one if there is one, within both limits."""
        self._executor(partition)
        future: Future[list[Entry]] = Future()
        wanted = ReadRange(first_index, max_entries, max_bytes)
        self._reads.submit(partition, wanted, _resolve(future))
        return future

    def compact(self, partition: int, upto_index: int) -> Future[int]:
        """Forget every entry up to and including an index; reads below it say `Compacted`.

        The future holds the index once that is durable. `reclaim` gives the space back.
        """
        future: Future[int] = Future()
        compaction = Compaction(upto_index, _Once(_resolve(future)))
        self._executor(partition).submit(Work.MAINTENANCE, compaction)
        return future

    def reclaim(self) -> int:
        """Give back space that compaction freed; returns how many bytes. May take a while."""
        return self._store.reclaim()

    def set_commit_window(self, window_ms: float) -> None:
        """How long a group may be held open under pressure; the governor's to set."""
        self._wal.set_commit_window(window_ms)

    def wait_ready(self, timeout_s: float | None = 60.0) -> None:
        """Wait until every partition serves; `PartitionFailed` with the reason if one cannot."""
        settled = [_future(executor.when_settled) for executor in self._executors]
        for executor, future in zip(self._executors, settled, strict=True):
            future.result(timeout_s)
            phase, reason = executor.status.phase, executor.status.reason
            if phase is Phase.FAILED:
                raise PartitionFailed(
                    f"partition {executor.status.partition} is out of service: {reason}"
                )

    def status(self) -> LogStatus:
        """A snapshot; never waits for work in line."""
        return LogStatus(
            self._store.status(),
            self._wal.status(),
            self._reads.status(),
            [executor.status for executor in self._executors],
        )

    def close(self) -> None:
        """Refuse new work, make everything taken durable, answer every waiter, close the store."""
        if self._closed:
            return
        self._closed = True
        for stopped in [_future(executor.stop) for executor in self._executors]:
            stopped.result()
        self._wal.stop()
        self._reads.stop()
        if self._runner is not None:
            self._runner.stop()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _executor(self, partition: int) -> PartitionExecutor:
        if not 0 <= partition < len(self._executors):
            raise Rejected(
                f"expected a partition from 0 to {len(self._executors) - 1}, found {partition}"
            )
        return self._executors[partition]

    def _make(self, partition: int) -> PartitionExecutor:
        owner = SoloOwner(
            partition,
            lambda operation, written, sync: self._write(operation, written, sync=sync),
            lambda: self._store.bounds(partition),
        )
        return PartitionExecutor(
            partition,
            owner,
            restore=lambda on_restored: self._restore(partition, on_restored),
            run_soon=self._run_soon,
            limits=self._options.executor,
        )

    def _restore(self, partition: int, on_restored: OnRestored) -> None:
        """The store read its files when it was opened: it knows where the partition stands."""
        found: tuple[Bounds, HardState] | Exception
        try:
            found = self._store.bounds(partition), self._store.hard_state(partition)
        except Exception as error:
            found = error
        on_restored(found)

    def _write(self, operation: Operation, written: Written, *, sync: bool) -> None:
        executor = self._executors[operation.partition]

        def answer(error: Exception | None) -> None:
            outcome = written if error is None else written._replace(error=error)
            try:
                executor.submit(Work.REPLICATION, outcome)
            except PenstockError as refused:
                _tell_unknown(written, refused)

        self._wal.submit(operation, answer, sync=sync)


def partitions_of(store: Store) -> int:
    """The number of partitions a log was made with; 0 for a new one."""
    known = store.partitions()
    return known[-1] + 1 if known else 0


def check_partitions(store: Store, partitions: int) -> None:
    """Refuse a number of partitions other than the one the log was made with.

    With another number names would live elsewhere and their entries would seem to be gone. Every
    partition leaves its term in the store before the first entry is taken, which tells the number;
    a log without entries may be one whose first start was cut short, and may still grow.
    """
    made_with = partitions_of(store)
    used = any(store.bounds(partition).last_index for partition in range(made_with))
    if made_with > partitions or (used and made_with != partitions):
        raise Rejected(
            f"expected {made_with} partitions, with which this log was made, found {partitions}",
            expected=made_with,
            found=partitions,
        )


class _Once:
    """Gives one answer, whatever the one who gets it does."""

    __slots__ = ("_call",)

    def __init__(self, call: OnCommitted) -> None:
        self._call: OnCommitted | None = call

    def __call__(self, answer: int | Exception) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        try:
            call(answer)
        except Exception:
            _LOGGER.exception("an answer to a proposal raised")


def _tell_unknown(written: Written, refused: PenstockError) -> None:
    """The partition failed while a write was under way: what it wrote may or may not be there."""
    unknown = Unknown(f"it may be durable, but {refused}")
    for proposal in written.proposals:
        proposal.on_committed(unknown)
    if written.compaction is not None:
        written.compaction.on_compacted(unknown)


def _resolve(future: Future[Any]) -> Callable[[Any], None]:
    """A callback that settles a future with a value or an error."""

    def settle(answer: Any) -> None:
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    return settle


def _future(call: Callable[[Callable[[], None]], None]) -> Future[None]:
    """A future for something that calls back when it is over."""
    future: Future[None] = Future()
    call(lambda: future.set_result(None))
    return future
