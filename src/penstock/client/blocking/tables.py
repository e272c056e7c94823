# Generated from ../aio/tables.py by tools/unasync.py: edit that, then `make generate`.
"""The warehouse of a server: stream tables (`client.tables`) and the lake (`client.lake`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.client import lake_calls
from penstock.client import table_calls as calls
from penstock.client.blocking.runner import Runner
from penstock.client.blocking.watch import TableWatch
from penstock.client.calls import arrow_table
from penstock.client.table_calls import Facts
from penstock.client.table_watching import TableWatchCore
from penstock.protocol import lake_answers

if TYPE_CHECKING:
    import pyarrow as pa

PAGE_ROWS: Final = 50_000


class Tables:
    """Stream tables: inspect, read and refresh them. Answers are plain dicts."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def list(self, prefix: str = "", *, history: int | None = None) -> list[Facts]:
        """Tables by name, with how fresh each is and what it waits for.

        `history` asks for the last outcomes of each, as columns.
        """
        found: list[Facts] = []
        cursor: str | None = None
        while True:
            page = self._runner.run(calls.list_tables(prefix, cursor=cursor, history=history))
            found += page["tables"]
            cursor = page.get("next_cursor")
            if cursor is None:
                return found

    def put(self, name: str, query: str, **options: str) -> Facts:
        """Create a table, or replace its definition."""
        return self._runner.run(calls.put(name, query, options))

    def alter(self, name: str, **options: str) -> Facts:
        """Change schedule, mode, consistency, description or publish; contents stay."""
        return self._runner.run(calls.change(name, "alter", options))

    def drop(self, name: str, *, cascade: bool = False) -> Facts:
        """Drop a table with its contents, and with `cascade` all tables that read it."""
        return self._runner.run(calls.drop(name, cascade=cascade))

    def show(self, name: str) -> Facts:
        """All that is known of a table."""
        return self._runner.run(calls.show(name))

    def why(self, name: str) -> Facts:
        """Why a table waits."""
        return self._runner.run(calls.show(name, "why"))

    def explain(self, name: str) -> Facts:
        """How a table is brought up to date: operators, strategies, state and delta SQL."""
        return self._runner.run(calls.show(name, "explain"))

    def explain_query(self, query: str) -> Facts:
        """The same for a query that need not be a table's."""
        return self._runner.run(calls.explain_query(query))

    def history(self, name: str, *, limit: int = 100) -> Facts:
        """Refreshes of a table, the newest first."""
        return self._runner.run(calls.show(name, "history", limit=limit))

    def pause(self, name: str) -> Facts:
        """Stop refreshing a table."""
        return self._runner.run(calls.change(name, "pause"))

    def resume(self, name: str) -> Facts:
        """Refresh a table again."""
        return self._runner.run(calls.change(name, "resume"))

    def refresh(self, name: str, *, force: bool = False, wait_ms: int = 10_000) -> Facts:
        """Refresh a table and wait this long for it; `done` tells whether it finished."""
        return self._runner.run(calls.refresh(name, force=force, wait_ms=wait_ms))

    def watch(self, name: str, *, after: str | None = None) -> TableWatch:
        """The rows of a table at a snapshot, then the changes behind it: no gap, no overlap.

        `after` is the `position` of an earlier watch: then only what changed behind it. If that
        cannot be told any more, a `TableReset` says why, and the rows follow again.
        """
        settings = self._runner.settings
        core = TableWatchCore(name, after, settings.reconnect, self._runner.random)
        return TableWatch(core, self._runner)

    def health(self) -> Facts:
        """Whether tables are kept fresh: health, workers, permits, what runs."""
        return self._runner.run(calls.warehouse())

    def declare_topic(
        self, topic: str, schema: str, *, key: Sequence[str] = (), url: str | None = None
    ) -> Facts:
        """Declare the columns of a topic's records, so that tables can read it."""
        call = calls.put_source(topic, schema, key=key, url=url)
        return self._runner.run(call)

    def pages(
        self,
        name: str,
        *,
        snapshot: int | None = None,
        columns: Sequence[str] | None = None,
        page_rows: int = PAGE_ROWS,
    ) -> Iterator[pa.Table]:
        """All rows of a table at one snapshot, page by page."""
        offset: int | None = 0
        while offset is not None:
            page = self._runner.run(
                calls.rows(name, offset=offset, limit=page_rows, snapshot=snapshot, columns=columns)
            )
            yield arrow_table(page.body)
            snapshot, offset = page.snapshot, page.next_offset

    def rows(self, name: str, **options: Any) -> pa.Table:
        """All rows of a table at one snapshot."""
        import pyarrow as pa

        return pa.concat_tables(list(self.pages(name, **options)))


class Lake:
    """What the lake of a server holds, if the server has a warehouse."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def show(self) -> lake_answers.LakeState:
        """The newest snapshot, and what that holds."""
        return self._runner.run(lake_calls.show())

    def snapshots(
        self, *, limit: int = 100, before: int | None = None
    ) -> lake_answers.LakeSnapshots:
        """Snapshots, the newest first; `before` is `next_before` of the page before."""
        return self._runner.run(lake_calls.snapshots(limit, before))

    def tables(self, *, snapshot: int | None = None) -> lake_answers.LakeTables:
        """The tables of a snapshot with their columns and sizes."""
        return self._runner.run(lake_calls.tables(snapshot))

    def table(self, name: str, *, snapshot: int | None = None) -> lake_answers.LakeTable:
        """One table at a snapshot."""
        return self._runner.run(lake_calls.table(name, snapshot))

    def files(self, name: str, *, snapshot: int | None = None) -> lake_answers.LakeFiles:
        """The data files of a table at a snapshot, the newest first."""
        return self._runner.run(lake_calls.files(name, snapshot))

    def query(self, text: str, *, snapshot: int | None = None) -> lake_answers.QueryResult:
        """Run a SELECT over one snapshot: 1000 rows and 10 s at most."""
        return self._runner.run(lake_calls.query(text, snapshot))
