"""A journal on a loop of its own, for tests that are plain functions."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Self

from penstock.kernel.system import SystemClock
from penstock.log.journal import LocalJournal
from penstock.log.reads import ReadRange
from penstock.log.store import Compact, LogStore
from tests.unit.log.entries import DEADLINE_S

Answer = asyncio.Future[None]


class LoopJournal:
    """A `LocalJournal`, with calls that wait."""

    def __init__(self, store: LogStore, partitions: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.store = store
        try:
            self.journal = LocalJournal(
                store, partitions=partitions, loop=self.loop, clock=SystemClock()
            )
            self.journal.start()
        except BaseException:
            self.loop.close()
            raise

    def submit(self, partition: int, payload: bytes, *, sync: bool = True) -> Answer:
        """Append, and return what will tell how it went."""
        future: Answer = self.loop.create_future()
        self.journal.append(partition, payload, partial(resolve, future), sync=sync)
        return future

    def append(self, partition: int, payload: bytes) -> None:
        """Append, and wait until it is durable; go on where the log ends if it is not."""
        try:
            self.wait(self.submit(partition, payload))
        except Exception:
            self.journal.resume(partition)
            raise

    def compact(self, partition: int, upto_index: int) -> None:
        future: Answer = self.loop.create_future()
        self.journal.submit(Compact(partition, upto_index), partial(resolve, future))
        self.wait(future)

    def sync(self) -> None:
        future: Answer = self.loop.create_future()
        self.journal.sync(partial(resolve, future))
        self.wait(future)

    def payloads(self, partition: int, first_index: int = 1) -> list[bytes]:
        """Everything in a partition's log, through the read scheduler."""
        found: list[bytes] = []
        while True:
            wanted = ReadRange(first_index + len(found), 256, 1 << 20)
            entries = self.loop.run_until_complete(self.journal.read(partition, wanted))
            if not entries:
                return found
            found += [entry.payload for entry in entries]

    def wait(self, answer: Answer) -> None:
        self.loop.run_until_complete(asyncio.wait_for(answer, DEADLINE_S))

    def close(self) -> None:
        """Write and answer everything, then close the store."""
        self.journal.stop_timed_syncs()
        self.loop.run_until_complete(self.journal.stop())
        self.loop.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def resolve(future: Answer, error: Exception | None) -> None:
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
