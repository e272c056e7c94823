"""The WAL against the bare disk: the same bytes in the same batches, in the same run."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Generic, Protocol, Self, TypeVar

import uvloop

from bench.load import scratch
from bench.report import Report
from penstock.kernel.system import SystemClock
from penstock.log import wal as wal_module
from penstock.log.executor import PartitionExecutor, WorkKind
from penstock.log.store import Append, LogEntry, Operation, Underway
from penstock.log.stores.memory import MemoryStore
from penstock.log.stores.segment import open_segment
from penstock.log.stores.segment.format import BLOCK_HEADER_BYTES, RECORD_BYTES
from penstock.log.wal import GroupStore, OnWritten, Wal, WalOptions, answer_all
from penstock.raft.core import Core
from penstock.raft.group import Group, OnDone
from penstock.raft.members import Members
from penstock.raft.messages import Mark
from penstock.raft.ready import Restored

TITLE = "WAL: group commit over many partitions against bare write + fdatasync"
PAYLOAD = b"x" * 200
SLICES = 20
SLICE_RECORDS = 64 * 512
ROUND_RECORDS = 64 * 2_048
ROUND_S = 1.5
FILE_BYTES = 64 << 20
SWITCH_S = 0.00005  # a finished sync must not wait long for the GIL
COMPILED = Path("build/compiled").absolute()
LONE_WRITES = 2_000
FLUSHES = 20_000
FLUSH_ROUNDS = 9
GROWTH = (1, 4, 16, 64, 256, 1_024)
TINY = {
    "SLICES": 1,
    "SLICE_RECORDS": 64 * 8,
    "ROUND_RECORDS": 64 * 8,
    "ROUND_S": 0.05,
    "LONE_WRITES": 20,
    "FLUSHES": 100,
    "FLUSH_ROUNDS": 1,
    "GROWTH": (1, 64),
}


def run(report: Report) -> None:
    switch = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        saturated(report)
        compiled(report)
        load_alone(report)
        lone(report)
        growth(report)
        writers(report)
        executor(report)
        core_of_one(report)
    finally:
        sys.setswitchinterval(switch)


def saturated(report: Report) -> None:
    """Slices of a sixth of a second in turns, because the disk's speed drifts."""
    rate, bare, thread = in_turns(64)
    report.row("bare: one thread, same bytes, same batches, fdatasync", bare, "records/s")
    report.row("bare, on a thread that gets the batches and answers through queues", thread,
               "records/s", ratio=thread / bare, against="bare")  # fmt: skip
    report.row("64 writers over 64 partitions, synced", rate, "records/s", ratio=rate / bare,
               against="bare", goal="at least 0.7×", met=rate >= 0.7 * bare)  # fmt: skip
    report.row("64 writers, against bare on a thread", rate, "records/s", ratio=rate / thread,
               against="bare on a thread")  # fmt: skip


def in_turns(partitions: int) -> tuple[float, float, float]:
    """Records a second: ours, the bare limit, and that limit on a thread of its own."""
    count, seconds = 0, [0.0, 0.0, 0.0]
    with (
        directory() as path,
        Writers(Counted(path / "log"), partitions) as load,
        Bare(path / "bare") as bare,
    ):
        for _ in range(SLICES):
            load.store.groups.clear()
            seconds[0] += load.run(SLICE_RECORDS)
            groups = list(load.store.groups)
            seconds[1] += bare.write(groups)
            seconds[2] += bare.write_on_a_thread(groups)
            count += sum(groups)
    return count / seconds[0], count / seconds[1], count / seconds[2]


def compiled(report: Report) -> None:
    """The same in another process, on what `make compiled` built; nothing if it was not built."""
    if not COMPILED.exists() or wal_module.__file__.endswith(".so"):
        return
    program = (
        "import sys; from bench import bench_wal; "
        f"bench_wal.SLICES = {SLICES}; bench_wal.SLICE_RECORDS = {SLICE_RECORDS}; "
        "sys.setswitchinterval(bench_wal.SWITCH_S); print(*bench_wal.in_turns(64))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{COMPILED}{os.pathsep}."},
        capture_output=True,
        text=True,
        check=True,
    )
    rate, bare, _ = map(float, found.stdout.split())
    report.row("bare, beside the compiled build", bare, "records/s")
    report.row("the same on the compiled build (mypyc)", rate, "records/s", ratio=rate / bare,
               against="bare", goal="at least 0.7×", met=rate >= 0.7 * bare)  # fmt: skip


def load_alone(report: Report) -> None:
    """What the writers cost by themselves: the same on a store that does nothing."""
    with Writers(Nothing(), 64) as load:
        seconds = load.run(ROUND_RECORDS)
    report.row("64 writers on a store that does nothing", ROUND_RECORDS / seconds, "records/s")


def lone(report: Report) -> None:
    """One writer that waits for each write, in turns with one bare write + fdatasync."""
    ours, bare = [], []
    block = bytes(block_bytes(1))
    with (
        directory() as path,
        Bare(path / "bare") as limit,
        Writers(Counted(path / "log"), 1) as load,
    ):
        fd = limit.fd
        load.run(64)  # both ways of writing have been tried
        for number in range(LONE_WRITES):
            ours.append(load.run(1))
            began = perf_counter()
            os.pwrite(fd, block, number * len(block))
            os.fdatasync(fd)
            bare.append(perf_counter() - began)
    ratio = statistics.median(ours) / statistics.median(bare)
    report.row("bare: one write + fdatasync", statistics.median(bare) * 1e6, "µs")
    report.row("a lone write", statistics.median(ours) * 1e6, "µs", ratio=ratio, against="bare",
               goal="within 1.3×", met=ratio <= 1.3)  # fmt: skip


def growth(report: Report) -> None:
    """One writer on each partition: more of them share each sync."""
    first = 0.0
    for partitions in GROWTH:
        rate, groups = once(partitions)
        first = first or rate
        report.row(f"{partitions:,} partitions, one writer each", rate, "records/s",
                   ratio=rate / first, against="1 partition")  # fmt: skip
        report.row(f"{partitions:,} partitions: records in one sync", statistics.mean(groups), "")


def writers(report: Report) -> None:
    """More writers on 64 partitions must make larger groups, not more syncs."""
    syncs = {}
    for per_partition in (1, 4, 16):
        rate, groups = once(64, per_partition)
        syncs[per_partition] = rate / statistics.mean(groups)
        report.row(f"{64 * per_partition:,} writers on 64 partitions", rate, "records/s")
        report.row(f"{64 * per_partition:,} writers: syncs", syncs[per_partition], "1/s",
                   ratio=syncs[per_partition] / syncs[1], against="64 writers")  # fmt: skip


def executor(report: Report) -> None:
    """What a flush and its completion cost through the partition's executor, over a plain call."""
    soon: list[Callable[[], None]] = []
    through = PartitionExecutor(0, call_soon=soon.append, now_ns=SystemClock().monotonic_ns)
    through.start()
    through.restored()

    def flush() -> None:
        pass

    def plain() -> None:
        flush()
        flush()

    def executed() -> None:
        through.submit(WorkKind.CLIENT, flush)
        through.submit(WorkKind.REPLICATION, flush)
        if soon:  # its slice is used up: the loop has had its turn
            soon.pop()()

    each = [
        statistics.median(timed(call) for _ in range(FLUSH_ROUNDS)) for call in (executed, plain)
    ]
    added_us = each[0] - each[1]
    report.row("executor: a flush and its completion, over calling the WAL", added_us, "µs",
               goal="at most 4 µs", met=added_us <= 4)  # fmt: skip


def core_of_one(report: Report) -> None:
    """What a flush costs through the executor and the core of a group of one, without the WAL."""
    soon: list[Callable[[], None]] = []
    through = PartitionExecutor(0, call_soon=soon.append, now_ns=SystemClock().monotonic_ns)
    through.start()
    through.restored()
    outside, alone = Written(), Restored(mark=Mark(0, 0, Members((1,))))
    core = Core(1, alone, draw=lambda low, _high: low, began=lambda _term: b"began")
    group = Group(0, core, outside, outside, through, is_isolated=True)
    group.start()
    while not group.serves:
        outside.on_written(None)

    def propose() -> None:
        group.propose(b"." * 200, outside.done, sync=True)

    def flush() -> None:
        through.submit(WorkKind.CLIENT, propose)
        outside.on_written(None)
        while soon:
            soon.pop()()

    took_us = statistics.median(timed(flush) for _ in range(FLUSH_ROUNDS))
    report.row("executor and the core of a group of one: a flush", took_us, "µs",
               goal="at most 16 µs", met=took_us <= 16)  # fmt: skip


class Written:
    """Stands for the WAL and the state of a group: it keeps the last callback."""

    on_written: OnDone

    def write(self, _operation: Operation, on_written: OnDone, *, sync: bool) -> None:
        self.on_written = on_written

    def done(self, *_: object) -> None:
        pass

    post = read_log = noticed = lead = follow = apply_entry = last_index = done  # type: ignore[assignment]


def timed(call: Callable[[], None]) -> float:
    """Microseconds a call."""
    began = perf_counter()
    for _ in range(FLUSHES):
        call()
    return (perf_counter() - began) / FLUSHES * 1e6


class Counted:
    """The segment store, with the sizes of its groups."""

    def __init__(self, path: Path) -> None:
        self._store = open_segment(path)
        self.groups: list[int] = []
        self.stage = self._store.stage
        self.close = self._store.close

    def begin(self, group: Sequence[Operation], *, sync: bool) -> Underway | None:
        underway = self._store.begin(group, sync=sync)
        if underway is not None:
            self.groups.append(len(group))
        return underway

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        self.groups.append(len(group))
        return self._store.write(group, sync=sync)


class Nothing(MemoryStore):
    """Forgets everything at once."""

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        return {}


class ClosableStore(GroupStore, Protocol):
    """A store that the writers close in the end."""

    def close(self) -> None: ...


S = TypeVar("S", bound=ClosableStore)


class Writers(Generic[S]):
    """Writers on an event loop; each waits for its write before the next.

    What they write is made before the clock starts, as it is for the bare disk.
    """

    def __init__(self, store: S, partitions: int, per_partition: int = 1) -> None:
        self.store = store
        self._loop = uvloop.new_event_loop()
        options = WalOptions(group_partitions_max=max(64, partitions))
        self._wal = Wal(store, options, loop=self._loop, clock=SystemClock())
        self._partitions = range(partitions)
        self._each = per_partition
        self._last = 0
        self._writing = 0
        self._failed: Exception | None = None

    def __enter__(self) -> Self:
        self._wal.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._wal.stop())
        self._loop.close()
        self.store.close()

    def run(self, records: int) -> float:
        """Write so many records, as many to each partition; the seconds it took."""
        first, self._last = self._last + 1, self._last + records // len(self._partitions)
        indexes = range(first, self._last + 1)
        starts = [
            self._writer(iter([Append(n, (LogEntry(index, 1, PAYLOAD),)) for index in indexes]))
            for n in self._partitions
        ] * self._each
        self._writing = len(starts)
        began = perf_counter()
        self._loop.call_soon(answer_all, starts, repeat(None, len(starts)))
        self._loop.run_forever()
        if self._failed is not None:
            raise self._failed
        return perf_counter() - began

    def _writer(self, operations: Iterator[Operation]) -> OnWritten:
        submit = self._wal.submit

        def again(error: Exception | None) -> None:
            self._failed = self._failed or error
            operation = next(operations, None) if error is None else None
            if operation is not None:
                submit(operation, again)
                return
            self._writing -= 1
            if not self._writing:
                self._loop.stop()

        return again


def once(partitions: int, per_partition: int = 1) -> tuple[float, list[int]]:
    """Records a second and the sizes of groups."""
    records = min(ROUND_RECORDS, 8_192 * partitions)
    with (
        directory() as path,
        Writers(Counted(path / "log"), partitions, per_partition) as load,
    ):
        return records / load.run(records), list(load.store.groups)


class Bare:
    """A file prepared as a segment is (allocated, zeroed, synced), and nothing else."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.pwrite(self.fd, bytes(FILE_BYTES), 0)
        os.fsync(self.fd)
        self._offset = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def write(self, groups: Sequence[int]) -> float:
        """Write and sync batches of so many records; the seconds it took."""
        blob = bytes(block_bytes(max(groups)))
        began = perf_counter()
        for group in groups:
            self._write(blob[: block_bytes(group)])
        return perf_counter() - began

    def write_on_a_thread(self, groups: Sequence[int]) -> float:
        """The same on another thread, which always has the next batch in line."""
        blob = bytes(block_bytes(max(groups)))
        asked: SimpleQueue[bytes | None] = SimpleQueue()
        answered: SimpleQueue[None] = SimpleQueue()

        def work() -> None:
            while (data := asked.get()) is not None:
                self._write(data)
                answered.put(None)

        thread = Thread(target=work)
        thread.start()
        began = perf_counter()
        for group in groups[:2]:
            asked.put(blob[: block_bytes(group)])
        for group in groups[2:]:
            answered.get()
            asked.put(blob[: block_bytes(group)])
        for _ in groups[:2]:
            answered.get()
        seconds = perf_counter() - began
        asked.put(None)
        thread.join()
        return seconds

    def _write(self, data: bytes) -> None:
        if self._offset + len(data) > FILE_BYTES:
            self._offset = 0
        os.pwrite(self.fd, data, self._offset)
        os.fdatasync(self.fd)
        self._offset += len(data)


def block_bytes(records: int) -> int:
    """How long the block of a group is."""
    return BLOCK_HEADER_BYTES + records * (RECORD_BYTES + len(PAYLOAD))


@contextmanager
def directory() -> Iterator[Path]:
    """A directory on the disk of the project, not on a memory disk."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=scratch()))
    try:
        yield path
    finally:
        shutil.rmtree(path)
