# Generated from ../aio/table_watch.py by tools/unasync.py: edit that, then `make generate`.
"""Watches of tables: their rows at a snapshot, then the changes behind it."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from types import TracebackType
from typing import Self

from penstock.client.blocking.runner import Runner
from penstock.client.blocking.watch import WatchFlow
from penstock.client.table_watching import TableWatchCore
from penstock.protocol.events import TableEvent


class TableWatch:
    """The events of a table as they happen. Iterate over it; leave its `with` to end it.

    Rows from offset 0 on replace everything that came before. Another thread may close it: the
    iteration then ends.
    """

    def __init__(self, core: TableWatchCore, runner: Runner) -> None:
        self._core = core
        self._flow: WatchFlow[TableEvent] = WatchFlow(core, runner)

    @property
    def position(self) -> str | None:
        """The watch's position after the events that were returned; None while rows are read.

        A program can save it and pass it to `watch` later, to continue from there.
        """
        return self._core.position

    @property
    def reconnects(self) -> int:
        """How often the connection was lost so far."""
        return self._core.reconnects

    @property
    def trouble(self) -> str | None:
        """Why there is no connection now; None while there is one."""
        return self._core.trouble

    def __iter__(self) -> Iterator[TableEvent]:
        return self

    def __next__(self) -> TableEvent:
        event = self._flow.next()
        if event is None:
            raise StopIteration
        return event

    def next_event(self, timeout_s: float) -> TableEvent | None:
        """The next event, or None if there is none in time or the watch has ended."""
        return self._flow.next(monotonic() + timeout_s)

    def close(self) -> None:
        """End the watch."""
        self._flow.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._flow.close()
