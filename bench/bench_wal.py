"""The WAL scheduler against the bare disk: the same bytes in the same batches, in the same run."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter

from bench.report import Report
from penstock.log.shell import LocalLog, LogOptions, WalOptions, WalScheduler, run_completions
from penstock.log.shell import wal as wal_module
from penstock.log.shell.wal import Completion, OnWritten
from penstock.log.store import Append, Entry, Operation
from penstock.log.stores.segment import open_segment
from penstock.log.stores.segment.format import BLOCK_HEADER_BYTES, RECORD_BYTES
from penstock.log.stores.segment.store import SegmentStore

TITLE = "WAL: group commit over many partitions against bare write + fdatasync"
PAYLOAD = b"x" * 200
ROUND_S = 0.7
ROUNDS = 5
FILE_BYTES = 64 << 20
SWITCH_S = 0.00005  # a finished sync must not wait long for the GIL
COMPILED = Path("build/compiled").absolute()


def run(report: Report) -> None:
    switch = sys.getswitchinterval()
    try:
        saturated(report)
        compiled(report)
        lone(report)
        growth(report)
        writers(report)
        whole_log(report)
    finally:
        sys.setswitchinterval(switch)


def saturated(report: Report) -> None:
    rate, bare, ratio = median_round(64)
    report.row("bare: one thread, same bytes, same batches, fdatasync", bare, "records/s")
    report.row("64 writers over 64 partitions, synced", rate, "records/s", ratio=ratio,
               against="bare", goal="at least 0.7×", met=ratio >= 0.7)  # fmt: skip


def median_round(partitions: int) -> tuple[float, float, float]:
    """Ours and the bare limit in turns: the round with the middle ratio."""
    sys.setswitchinterval(SWITCH_S)
    rounds = []
    for _ in range(ROUNDS):
        rate, groups = once(partitions)
        bare = bare_rate(groups)
        rounds.append((rate / bare, rate, bare))
    ratio, rate, bare = sorted(rounds)[ROUNDS // 2]
    return rate, bare, ratio


def compiled(report: Report) -> None:
    """The same in another process, on what `make compiled` built; nothing if it was not built."""
    if not COMPILED.exists() or wal_module.__file__.endswith(".so"):
        return
    program = "from bench.bench_wal import *; print(*median_round(64))"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{COMPILED}{os.pathsep}."},
        capture_output=True,
        text=True,
        check=True,
    )
    rate, bare, ratio = map(float, found.stdout.split())
    report.row("bare, beside the compiled build", bare, "records/s")
    report.row("the same on the compiled build (mypyc)", rate, "records/s", ratio=ratio,
               against="bare", goal="at least 0.7×", met=ratio >= 0.7)  # fmt: skip


def lone(report: Report) -> None:
    """One writer that waits for each write, in turns with one bare write + fdatasync."""
    ours, bare = [], []
    block = bytes(BLOCK_HEADER_BYTES + RECORD_BYTES + len(PAYLOAD))
    with directory() as path, bare_file(path / "bare") as fd:
        store = open_segment(path / "log")
        wal = WalScheduler(store)
        wal.start()
        for index in range(1, 2_001):
            began = perf_counter()
            wal.write(Append(1, (Entry(index, 1, PAYLOAD),)))
            middle = perf_counter()
            os.pwrite(fd, block, index * len(block))
            os.fdatasync(fd)
            ours.append(middle - began)
            bare.append(perf_counter() - middle)
        wal.stop()
        store.close()
    ratio = statistics.median(ours) / statistics.median(bare)
    report.row("bare: one write + fdatasync", statistics.median(bare) * 1e6, "µs")
    report.row("a lone write", statistics.median(ours) * 1e6, "µs", ratio=ratio, against="bare",
               goal="within 1.3×", met=ratio <= 1.3)  # fmt: skip


def growth(report: Report) -> None:
    """One writer on each partition: more of them share each sync."""
    first = 0.0
    for partitions in (1, 4, 16, 64, 256, 1_024):
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


def whole_log(report: Report) -> None:
    """Executors and all: what a user of `LocalLog` gets."""
    with directory() as path:
        store = open_segment(path / "log")
        log = LocalLog(store, LogOptions(partitions=64))
        log.wait_ready()
        answers: SimpleQueue[int] = SimpleQueue()
        for partition in range(64):
            log.propose(partition, PAYLOAD, lambda _, p=partition: answers.put(p))  # type: ignore[misc]
        count, began = 0, perf_counter()
        while perf_counter() - began < ROUND_S * 2:
            partition = answers.get()
            count += 1
            log.propose(partition, PAYLOAD, lambda _, p=partition: answers.put(p))  # type: ignore[misc]
        rate = count / (perf_counter() - began)
        log.close()
    report.row("LocalLog: 64 writers over 64 partitions, through executors", rate, "records/s")


class Counted(SegmentStore):
    """The segment store, with the sizes of its groups."""

    groups: list[int]

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        self.groups.append(len(group))
        return super().write(group, sync=sync)


def once(partitions: int, per_partition: int = 1) -> tuple[float, list[int]]:
    """Writers that each wait for their write before the next; records a second, group sizes."""
    with directory() as path:
        store = open_segment(path / "log")
        store.__class__ = Counted
        assert isinstance(store, Counted)
        store.groups = []
        done: SimpleQueue[list[Completion]] = SimpleQueue()
        wal = WalScheduler(
            store, WalOptions(group_partitions_max=max(64, partitions)), deliver=done.put
        )
        last = [0] * partitions
        count = 0
        running = True

        def writer(partition: int) -> OnWritten:
            def again(error: Exception | None) -> None:
                nonlocal count
                if error is not None:
                    raise error
                count += 1
                if running:
                    last[partition] += 1
                    entry = Entry(last[partition], 1, PAYLOAD)
                    wal.submit(Append(partition, (entry,)), again)

            return again

        wal.start()
        for partition in range(partitions):
            for _ in range(per_partition):
                writer(partition)(None)
        count, began = 0, perf_counter()
        while perf_counter() - began < ROUND_S:
            run_completions(done.get())
        rate = count / (perf_counter() - began)
        running = False
        groups = list(store.groups)
        wal.stop()
        store.close()
    return rate, groups


def bare_rate(groups: Sequence[int]) -> float:
    with directory() as path, bare_file(path / "bare") as fd:
        count, offset, began = 0, 0, perf_counter()
        blob = bytes(BLOCK_HEADER_BYTES + max(groups) * (RECORD_BYTES + len(PAYLOAD)))
        for group in groups:
            size = BLOCK_HEADER_BYTES + group * (RECORD_BYTES + len(PAYLOAD))
            offset = offset + size if offset + 2 * size < FILE_BYTES else 0
            os.pwrite(fd, blob[:size], offset)
            os.fdatasync(fd)
            count += group
        return count / (perf_counter() - began)


@contextmanager
def directory() -> Iterator[Path]:
    """A directory on the disk of the project, not on a memory disk."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd() / "build"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def bare_file(path: Path) -> Iterator[int]:
    """A file prepared as a segment is: allocated, zeroed, synced."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, bytes(FILE_BYTES), 0)
        os.fsync(fd)
        yield fd
    finally:
        os.close(fd)
