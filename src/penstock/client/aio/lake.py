"""The lake of a server, from asyncio."""

from __future__ import annotations

from penstock.client import lake_calls as calls
from penstock.client.aio.runner import AsyncRunner
from penstock.protocol import lake_answers


class AsyncLake:
    """What the lake of a server holds, if the server has a warehouse."""

    def __init__(self, runner: AsyncRunner) -> None:
        self._runner = runner

    async def show(self) -> lake_answers.LakeState:
        """The newest snapshot, and what that holds."""
        return await self._runner.run(calls.show())

    async def snapshots(
        self, *, limit: int = 100, before: int | None = None
    ) -> lake_answers.LakeSnapshots:
        """Snapshots, the newest first; `before` is `next_before` of the page before."""
        return await self._runner.run(calls.snapshots(limit, before))

    async def tables(self, *, snapshot: int | None = None) -> lake_answers.LakeTables:
        """The tables of a snapshot with their columns and sizes."""
        return await self._runner.run(calls.tables(snapshot))

    async def table(self, name: str, *, snapshot: int | None = None) -> lake_answers.LakeTable:
        """One table at a snapshot."""
        return await self._runner.run(calls.table(name, snapshot))

    async def files(self, name: str, *, snapshot: int | None = None) -> lake_answers.LakeFiles:
        """The data files of a table at a snapshot, the newest first."""
        return await self._runner.run(calls.files(name, snapshot))

    async def query(self, text: str, *, snapshot: int | None = None) -> lake_answers.QueryResult:
        """Run a SELECT over one snapshot: 1000 rows and 10 s at most."""
        return await self._runner.run(calls.query(text, snapshot))
