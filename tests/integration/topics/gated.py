"""A store that a test holds: writes wait at a gate, or fail when they are told to."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.log.store import DiskFull, LogStore, Operation
from penstock.log.stores import open_store


class GatedStore:
    """A memory store whose writes wait while the gate is shut. Everything else is the store's."""

    def __init__(self, store: LogStore | None = None) -> None:
        self.inner = store or open_store("memory", "")
        self.stage = self.inner.stage
        self.failures: deque[Exception] = deque()
        self.refuses: int | None = None  # a partition for which there is no space
        self.groups: list[tuple[int, bool]] = []
        self.synced: set[int] = set()  # partitions with a write that was synced
        self._open = threading.Event()
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        assert self._open.wait(30), "expected the test to open the gate again"
        self.groups.append((len(group), sync))
        if sync:
            self.synced.update(operation.partition for operation in group)
        if self.failures:
            raise self.failures.popleft()
        if self.refuses is not None and self.refuses in {each.partition for each in group}:
            raise DiskFull("no space is left")
        return self.inner.write(group, sync=sync)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
