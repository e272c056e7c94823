"""The memory store with a gate before each write, a list of its calls and errors on demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from penstock.log.shell import WalScheduler
from penstock.log.store import Append, Entry, Operation
from penstock.log.stores.memory import MemoryStore

DEADLINE_S = 60


class GatedStore(MemoryStore):
    """Counts calls and syncs; `gate` holds writes back; `fail` may raise or name bad partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.calls: list[list[Operation]] = []
        self.syncs: list[bool] = []
        self.inside = 0
        self.partitions_inside: set[int] = set()
        self.overlaps = 0
        self.fail: Callable[[Sequence[Operation]], Mapping[int, Exception]] = lambda _: {}
        self._count = threading.Lock()

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        mine = {operation.partition for operation in group}
        with self._count:
            self.calls.append(list(group))
            self.syncs.append(sync)
            self.overlaps += bool(mine & self.partitions_inside)
            self.partitions_inside |= mine
        self.entered.release()
        assert self.gate.wait(DEADLINE_S)
        try:
            failed = self.fail(group)
            good = [op for op in group if op.partition not in failed]
            with self._count:
                return {**failed, **super().write(good, sync=sync)}
        finally:
            with self._count:
                self.partitions_inside -= mine


def entry(partition: int, index: int, payload: bytes = b"x") -> Append:
    return Append(partition, (Entry(index, 1, payload),))


class Answers:
    """Collects completions from any thread and waits for a number of them."""

    def __init__(self) -> None:
        self.given: list[tuple[object, object]] = []
        self._changed = threading.Condition()

    def of(self, name: object) -> Callable[[object], None]:
        def take(answer: object) -> None:
            with self._changed:
                self.given.append((name, answer))
                self._changed.notify_all()

        return take

    def wait(self, count: int) -> list[tuple[object, object]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.given) >= count, DEADLINE_S), (
                f"expected {count} answers, found {len(self.given)}"
            )
            return list(self.given)


def hold(store: GatedStore, wal: WalScheduler, answers: Answers) -> None:
    """Occupy the worker with a write of partition 999 that waits at the gate."""
    store.gate.clear()
    wal.submit(entry(999, store.bounds(999).last_index + 1), answers.of("held"))
    assert store.entered.acquire(timeout=DEADLINE_S)


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again, until the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "expected a condition to come true, found it did not"
        time.sleep(0.001)
