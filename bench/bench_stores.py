"""Stores: synced groups over 64 partitions, 200-byte entries, against write + fdatasync alone.

The bare limit is one thread writing the same bytes into a file of zeros and syncing after each. A
bare write and a write of the store take turns, because the disk's speed drifts; the ratio is that
of the medians.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.report import Report
from penstock.log.disk import OsDisk
from penstock.log.store import Append, LogEntry, Operation
from penstock.log.stores import open_store
from penstock.log.stores.segment import format as fmt

PARTITIONS = 64
PAYLOAD_BYTES = 200
SLICES = 12
SLICE_GROUPS = 250
FILE_BYTES = 64 << 20
GOAL = 0.85
TINY = {"SLICES": 1, "SLICE_GROUPS": 3, "PARTITIONS": 4}


def run(report: Report) -> None:
    for kind in ("segment", "rocksdb", "sqlite"):
        measured(report, kind, kind)
    measured(report, "segment", "segment, staged ahead", staged=True)
    measured(report, "segment", "segment, 1 entry a group", partitions=1)


def measured(
    report: Report,
    kind: str,
    name: str,
    *,
    staged: bool = False,
    partitions: int | None = None,
) -> None:
    """One store against the bare limit, slice by slice."""
    partitions = partitions or PARTITIONS
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        store = open_store(kind, home / "store")
        bare = Bare(home / "bare", partitions)
        limits: list[float] = []
        taken: list[float] = []
        for turn in range(SLICES):
            for made in slice_of(turn, partitions):
                group = store.stage(made, 1 << 30) if staged else made
                limits.append(timed(bare.write))
                taken.append(timed(lambda group=group: store.write(group, sync=True)))
        store.close()
    finally:
        shutil.rmtree(home)
    ratio = median(limits) / median(taken)
    rate = partitions / median(taken)
    goal = staged or partitions == 1
    report.row(
        name,
        rate,
        "records/s",
        ratio=ratio,
        against="write + fdatasync",
        goal=f"at least {GOAL} of the bare limit" if goal else None,
        met=ratio >= GOAL if goal else None,
    )


def slice_of(turn: int, partitions: int) -> list[list[Operation]]:
    first = turn * SLICE_GROUPS + 1
    return [
        [Append(p, [LogEntry(index, 1, os.urandom(PAYLOAD_BYTES))]) for p in range(partitions)]
        for index in range(first, first + SLICE_GROUPS)
    ]


class Bare:
    """The same number of bytes, nothing else."""

    def __init__(self, path: Path, partitions: int) -> None:
        self._file = OsDisk(path).create("bare", FILE_BYTES)
        record = fmt.RECORD_BYTES + PAYLOAD_BYTES
        self._data = os.urandom(fmt.BLOCK_HEADER_BYTES + partitions * record)
        self._offset = 0

    def write(self) -> None:
        if self._offset + len(self._data) > FILE_BYTES:
            self._offset = 0
        self._file.pwrite(self._data, self._offset)
        self._file.fdatasync()
        self._offset += len(self._data)


def timed(write: Callable[[], object]) -> float:
    start = time.perf_counter()
    if write():
        raise AssertionError("a write failed")
    return time.perf_counter() - start
