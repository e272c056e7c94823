"""The warehouse of a server: stream tables (`client.tables`) and the lake (`client.lake`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.client import lake_calls
from penstock.client import table_calls as calls
from penstock.client.aio.runner import AsyncRunner
from penstock.client.aio.watch import AsyncTableWatch
from penstock.client.calls import arrow_table
from penstock.client.table_calls import Facts
from penstock.client.table_watching import TableWatchCore
from penstock.protocol import lake_answers

if TYPE_CHECKING:
    import pyarrow as pa

PAGE_ROWS: Final = 50_000


class AsyncTables:
    """Stream tables: inspect, read and refresh them. Answers are plain dicts."""

    def __init__(self, runner: AsyncRunner) -> None:
        self._runner = runner

    async def list(self, prefix: str = "", *, history: int | None = None) -> list[Facts]:
        """Tables by name, with how fresh each is and what it waits for.

        `history` asks for the last outcomes of each, as columns.
        """
        found: list[Facts] = []
        cursor: str | None = None
        while True:
            page = await self._runner.run(calls.list_tables(prefix, cursor=cursor, history=history))
            found += page["tables"]
            cursor = page.get("next_cursor")
            if cursor is None:
                return found

    async def put(self, name: str, query: str, **options: str) -> Facts:
        """Create a table, or replace its definition."""
        return await self._runner.run(calls.put(name, query, options))

    async def alter(self, name: str, **options: str) -> Facts:
        """Change schedule, mode, consistency, description or publish; contents stay."""
        return await self._runner.run(calls.change(name, "alter", options))

    async def drop(self, name: str, *, cascade: bool = False) -> Facts:
        """Drop a table with its contents, and with `cascade` all tables that read it."""
        return await self._runner.run(calls.drop(name, cascade=cascade))

    async def show(self, name: str) -> Facts:
        """All that is known of a table."""
        return await self._runner.run(calls.show(name))

    async def why(self, name: str) -> Facts:
        """Why a table waits."""
        return await self._runner.run(calls.show(name, "why"))

    async def explain(self, name: str) -> Facts:
        """How a table is brought up to date: operators, strategies, state and delta SQL."""
        return await self._runner.run(calls.show(name, "explain"))

    async def explain_query(self, query: str) -> Facts:
        """The same for a query that need not be a table's."""
        return await self._runner.run(calls.explain_query(query))

    async def history(self, name: str, *, limit: int = 100) -> Facts:
        """Refreshes of a table, the newest first."""
        return await self._runner.run(calls.show(name, "history", limit=limit))

    async def pause(self, name: str) -> Facts:
        """Stop refreshing a table."""
        return await self._runner.run(calls.change(name, "pause"))

    async def resume(self, name: str) -> Facts:
        """Refresh a table again."""
        return await self._runner.run(calls.change(name, "resume"))

    async def refresh(self, name: str, *, force: bool = False, wait_ms: int = 10_000) -> Facts:
        """Refresh a table and wait this long for it; `done` tells whether it finished."""
        return await self._runner.run(calls.refresh(name, force=force, wait_ms=wait_ms))

    def watch(self, name: str, *, after: str | None = None) -> AsyncTableWatch:
        """The rows of a table at a snapshot, then the changes behind it: no gap, no overlap.

        `after` is the `position` of an earlier watch: then only what changed behind it. If that
        cannot be told any more, a `TableReset` says why, and the rows follow again.
        """
        settings = self._runner.settings
        core = TableWatchCore(name, after, settings.reconnect, self._runner.random)
        return AsyncTableWatch(core, self._runner)

    async def health(self) -> Facts:
        """Whether tables are kept fresh: health, workers, permits, what runs."""
        return await self._runner.run(calls.warehouse())

    async def declare_topic(
        self, topic: str, schema: str, *, key: Sequence[str] = (), url: str | None = None
    ) -> Facts:
        """Declare the columns of a topic's records, so that tables can read it."""
        call = calls.put_source(topic, schema, key=key, url=url)
        return await self._runner.run(call)

    async def pages(
        self,
        name: str,
        *,
        snapshot: int | None = None,
        columns: Sequence[str] | None = None,
        page_rows: int = PAGE_ROWS,
    ) -> AsyncIterator[pa.Table]:
        """All rows of a table at one snapshot, page by page."""
        offset: int | None = 0
        while offset is not None:
            page = await self._runner.run(
                calls.rows(name, offset=offset, limit=page_rows, snapshot=snapshot, columns=columns)
            )
            yield arrow_table(page.body)
            snapshot, offset = page.snapshot, page.next_offset

    async def rows(self, name: str, **options: Any) -> pa.Table:
        """All rows of a table at one snapshot."""
        import pyarrow as pa

        return pa.concat_tables([page async for page in self.pages(name, **options)])


class AsyncLake:
    """What the lake of a server holds, if the server has a warehouse."""

    def __init__(self, runner: AsyncRunner) -> None:
        self._runner = runner

    async def show(self) -> lake_answers.LakeState:
        """The newest snapshot, and what that holds."""
        return await self._runner.run(lake_calls.show())

    async def snapshots(
        self, *, limit: int = 100, before: int | None = None
    ) -> lake_answers.LakeSnapshots:
        """Snapshots, the newest first; `before` is `next_before` of the page before."""
        return await self._runner.run(lake_calls.snapshots(limit, before))

    async def tables(self, *, snapshot: int | None = None) -> lake_answers.LakeTables:
        """The tables of a snapshot with their columns and sizes."""
        return await self._runner.run(lake_calls.tables(snapshot))

    async def table(self, name: str, *, snapshot: int | None = None) -> lake_answers.LakeTable:
        """One table at a snapshot."""
        return await self._runner.run(lake_calls.table(name, snapshot))

    async def files(self, name: str, *, snapshot: int | None = None) -> lake_answers.LakeFiles:
        """The data files of a table at a snapshot, the newest first."""
        return await self._runner.run(lake_calls.files(name, snapshot))

    async def query(self, text: str, *, snapshot: int | None = None) -> lake_answers.QueryResult:
        """Run a SELECT over one snapshot: 1000 rows and 10 s at most."""
        return await self._runner.run(lake_calls.query(text, snapshot))
