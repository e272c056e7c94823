"""Recovery: opening a segment store of a million entries, against reading and checking its files.

The bare loop reads each segment into one buffer and checks the checksum of every block; it finds
the blocks by their headers and keeps nothing. Both run on files that were just read.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from crc32c import crc32c

from bench.report import Report
from penstock.log.disk import OsDisk
from penstock.log.store import Append, LogEntry
from penstock.log.stores import open_store
from penstock.log.stores.segment import format as fmt

ENTRIES = 1_000_000
PARTITIONS = 64
PAYLOAD_BYTES = 200
ROUNDS = 7
GOAL = 1.5
TINY = {"ENTRIES": 6_400, "ROUNDS": 1}


def run(report: Report) -> None:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        fill(home)
        rounds = [(timed(lambda: check_blocks(home)), timed_open(home)) for _ in range(ROUNDS)]
        bare, taken = (min(times) for times in zip(*rounds, strict=True))
    finally:
        shutil.rmtree(home)
    report.row("read files, check blocks", bare * 1_000, "ms")
    report.row(
        "recover",
        taken * 1_000,
        "ms",
        ratio=taken / bare,
        against="read files, check blocks",
        goal=f"at most {GOAL} times the bare loop",
        met=taken / bare <= GOAL,
    )
    report.row("entries recovered", ENTRIES / taken, "entries/s")


def fill(home: Path) -> None:
    """A million entries in blocks of 64, one of each partition."""
    store = open_store("segment", home)
    payload = os.urandom(PAYLOAD_BYTES)
    for index in range(1, ENTRIES // PARTITIONS + 1):
        group = [Append(p, [LogEntry(index, 1, payload)]) for p in range(PARTITIONS)]
        if store.write(group, sync=False):
            raise AssertionError("a write failed")
    store.close()


def check_blocks(home: Path) -> None:
    disk = OsDisk(home)
    buffer = bytearray()
    for name in disk.names():
        if fmt.segment_number(name) is None:
            continue
        file = disk.open(name)
        if len(buffer) != file.size:
            buffer = bytearray(file.size)
        view = memoryview(buffer)
        file.pread_into(view, 0)
        seed = fmt.seed_of(fmt.check_segment_header(name, buffer))
        offset, size = fmt.SEGMENT_HEADER_BYTES, len(buffer)
        while offset + fmt.BLOCK_HEADER_BYTES <= size:
            crc, magic, _, _, _, body, _, _, _ = fmt.BLOCK_HEADER.unpack_from(view, offset)
            if magic != fmt.BLOCK_MAGIC:
                break
            end = offset + fmt.BLOCK_HEADER_BYTES + body
            if crc32c(view[offset + 4 : end], seed) != crc:
                raise AssertionError(f"{name} at {offset}: a checksum that does not match")
            offset = end


def timed_open(home: Path) -> float:
    start = time.perf_counter()
    store = open_store("segment", home)
    taken = time.perf_counter() - start
    store.close()
    return taken


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
