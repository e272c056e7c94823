"""A server of processes to be killed: each line on stdin forks a child that writes until it dies.

A line is `kind path seed`; the kind `flying` is the segment store with several writes in the air at
a time. The child answers on stdout: `pid N`, then before each group
`try P:LAST:BOUNDARY:TERM …` and after its acknowledgement `ack`. When the child is dead the parent
says `dead`. Forking keeps a start at milliseconds where a new interpreter would take hundreds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from random import Random

from penstock.log.store import (
    Append,
    Compact,
    LogEntry,
    LogStore,
    Operation,
    SetHardState,
    Underway,
)
from penstock.log.stores import open_store
from penstock.log.stores.rocksdb import RocksdbStore
from penstock.log.stores.segment import SegmentStore
from penstock.log.stores.sqlite import SqliteStore

PARTITIONS = 6
OPTIONS = {
    "segment": {"segment_bytes": 64 * 1024},
    "flying": {"segment_bytes": 256 * 1024},
    "sqlite": {"shards": 2},
    "rocksdb": {},
}
ENGINES = (RocksdbStore, SegmentStore, SqliteStore)  # imported before the first fork


def payload(partition: int, index: int) -> bytes:
    """What an entry must hold: its place says it."""
    return b"%d:%d;" % (partition, index) * (1 + (partition * 31 + index) % 97)


def main() -> None:
    for line in sys.stdin:
        kind, path, seed = line.split()
        child = os.fork()
        if not child:
            try:
                say(f"pid {os.getpid()}")
                flies = kind == "flying"
                store = open_store("segment" if flies else kind, path, **OPTIONS[kind])
                write_until_killed(store, Random(seed), flies)
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        say("dead")


def write_until_killed(store: LogStore, random: Random, flies: bool) -> None:
    stands = {
        p: (store.bounds(p).last_index, store.bounds(p).boundary_index, store.hard_state(p).term)
        for p in range(PARTITIONS)
    }
    while True:
        group: list[Operation] = []
        for partition in random.sample(range(PARTITIONS), random.randrange(1, PARTITIONS + 1)):
            last, boundary, term = stands[partition]
            count = random.randrange(1, 9)
            batch = [
                LogEntry(i, 1, payload(partition, i)) for i in range(last + 1, last + 1 + count)
            ]
            group.append(Append(partition, batch))
            last += count
            if random.random() < 0.1:
                term += 1
                group.append(SetHardState(partition, term, partition))
            if partition and last - boundary > 60:
                boundary = last - 20
                group.append(Compact(partition, boundary))
            stands[partition] = last, boundary, term
        say("try " + " ".join(f"{p}:{a}:{b}:{c}" for p, (a, b, c) in stands.items()))
        if fly(store, group) if flies else store.write(group, sync=random.random() < 0.7):
            os._exit(2)
        say("ack")
        if isinstance(store, SegmentStore) and random.random() < 0.1:
            store.reclaim()


def fly(store: LogStore, group: Sequence[Operation]) -> Mapping[int, Exception]:
    """Each partition's part by itself, as many in the air as can be; the others are calls."""
    failed: dict[int, Exception] = {}
    air: list[Underway] = []
    for partition in sorted({op.partition for op in group}):
        part = [op for op in group if op.partition == partition]
        underway = store.begin(part, sync=True)
        if underway is not None:
            air.append(underway)
            continue
        while air:
            failed.update(air.pop(0).finish())
        failed.update(store.write(part, sync=True))
    while air:
        failed.update(air.pop(0).finish())
    return failed


def say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


if __name__ == "__main__":
    main()
