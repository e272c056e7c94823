"""The memory store: nothing survives the process. For tests and disposable data."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.log.store import (
    Append,
    Bounds,
    Compact,
    HardState,
    InstallBoundary,
    LogEntry,
    Operation,
    SetHardState,
    StoreClosed,
    StoreStatus,
    Sync,
    Truncate,
)
from penstock.log.stores import rules


def open_memory(_path: str | Path | None = None) -> MemoryStore:
    """A new, empty store; the path is ignored."""
    return MemoryStore()


class _Partition:
    __slots__ = ("boundary", "boundary_term", "entries", "hard")

    def __init__(self) -> None:
        self.boundary = 0
        self.boundary_term = 0
        self.entries: list[LogEntry] = []
        self.hard = HardState()

    @property
    def bounds(self) -> Bounds:
        last_term = self.entries[-1].term if self.entries else self.boundary_term
        last = self.boundary + len(self.entries)
        return Bounds(self.boundary, self.boundary_term, last, last_term)

    def apply(self, op: Operation) -> None:
        match op:
            case Append(_, entries):
                self.entries.extend(LogEntry(*entry) for entry in entries)
            case SetHardState(_, term, vote):
                self.hard = HardState(term, vote)
            case Truncate(_, from_index):
                del self.entries[from_index - self.boundary - 1 :]
            case Compact(_, upto_index):
                if upto_index > self.boundary:
                    count = upto_index - self.boundary
                    self.boundary_term = self.entries[count - 1].term
                    self.boundary = upto_index
                    del self.entries[:count]
            case InstallBoundary(_, index, term):
                self.entries.clear()
                self.boundary, self.boundary_term = index, term


class MemoryStore:
    """Every partition as a list. Each call holds one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[int, _Partition] = {}
        self._closed = False
        self._syncs = 0

    def stage(self, group: Sequence[Operation], bytes_max: int) -> Sequence[Operation] | None:
        """Only checks the size: this store prepares nothing."""
        return group if rules.payload_bytes(group) <= bytes_max else None

    def begin(self, group: Sequence[Operation], *, sync: bool) -> None:
        """None: every write here is a call."""

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        """Apply a group; `sync` is only counted."""
        with self._lock:
            self._check_open()
            failed = rules.refusals(group, lambda partition: self._at(partition).bounds)
            for op in group:
                if op.partition not in failed and type(op) is not Sync:
                    self._partitions.setdefault(op.partition, _Partition()).apply(op)
            self._syncs += sync
            return failed

    def read(
        self, partition: int, first_index: int, *, max_entries: int, max_bytes: int
    ) -> list[LogEntry]:
        """Entries from an index on; see `Store.read`."""
        with self._lock:
            self._check_open()
            held = self._at(partition)
            rules.check_read(partition, first_index, held.boundary)
            slot = first_index - held.boundary - 1
            return rules.within(held.entries[slot : slot + max(max_entries, 1)], max_bytes)

    def term_at(self, partition: int, index: int) -> int:
        """The term of an entry or of the boundary."""
        with self._lock:
            self._check_open()
            held = self._at(partition)
            rules.check_term_at(partition, index, held.bounds)
            if index == held.boundary:
                return held.boundary_term
            return held.entries[index - held.boundary - 1].term

    def bounds(self, partition: int) -> Bounds:
        """Boundary and last entry."""
        with self._lock:
            self._check_open()
            return self._at(partition).bounds

    def hard_state(self, partition: int) -> HardState:
        """Term and vote."""
        with self._lock:
            self._check_open()
            return self._at(partition).hard

    def partitions(self) -> list[int]:
        """Every partition ever written, in order."""
        with self._lock:
            self._check_open()
            return sorted(self._partitions)

    def damaged(self) -> Mapping[int, Exception]:
        """Empty: damage is detected on read."""
        return {}

    def reclaim(self) -> int:
        """Returns 0: the space of compacted entries is reused."""
        return 0

    def status(self) -> StoreStatus:
        """A snapshot for people."""
        with self._lock:
            entries = sum(len(held.entries) for held in self._partitions.values())
            return StoreStatus("memory", None, len(self._partitions), entries, 0, self._syncs, None)

    def close(self) -> None:
        """Discard everything."""
        with self._lock:
            self._closed = True
            self._partitions = {}

    def _at(self, partition: int) -> _Partition:
        return self._partitions.get(partition) or _Partition()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the memory store is closed")
