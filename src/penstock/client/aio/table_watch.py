"""Watches of tables: their rows at a snapshot, then the changes behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import monotonic
from types import TracebackType
from typing import Self

from penstock.client.aio.runner import AsyncRunner
from penstock.client.aio.watch import AsyncWatchFlow
from penstock.client.table_watching import TableWatchCore
from penstock.protocol.events import TableEvent


class AsyncTableWatch:
    """The events of a table as they happen. Iterate over it; leave its `async with` to end it.

    Rows from offset 0 on replace everything that came before. Another task may close it: the
    iteration then ends.
    """

    def __init__(self, core: TableWatchCore, runner: AsyncRunner) -> None:
        self._core = core
        self._flow: AsyncWatchFlow[TableEvent] = AsyncWatchFlow(core, runner)

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

    def __aiter__(self) -> AsyncIterator[TableEvent]:
        return self

    async def __anext__(self) -> TableEvent:
        event = await self._flow.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next_event(self, timeout_s: float) -> TableEvent | None:
        """The next event, or None if there is none in time or the watch has ended."""
        return await self._flow.next(monotonic() + timeout_s)

    async def aclose(self) -> None:
        """End the watch."""
        self._flow.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._flow.close()
