# Generated from ../aio/lake.py by tools/unasync.py: edit that, then `make generate`.
"""The lake of a server, for threads."""

from __future__ import annotations

from penstock.client import lake_calls as calls
from penstock.client.blocking.runner import Runner
from penstock.protocol import lake_answers


class Lake:
    """What the lake of a server holds, if the server has a warehouse."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def show(self) -> lake_answers.LakeState:
        """The newest snapshot, and what that holds."""
        return self._runner.run(calls.show())

    def snapshots(
        self, *, limit: int = 100, before: int | None = None
    ) -> lake_answers.LakeSnapshots:
        """Snapshots, the newest first; `before` is `next_before` of the page before."""
        return self._runner.run(calls.snapshots(limit, before))

    def tables(self, *, snapshot: int | None = None) -> lake_answers.LakeTables:
        """The tables of a snapshot with their columns and sizes."""
        return self._runner.run(calls.tables(snapshot))

    def table(self, name: str, *, snapshot: int | None = None) -> lake_answers.LakeTable:
        """One table at a snapshot."""
        return self._runner.run(calls.table(name, snapshot))

    def files(self, name: str, *, snapshot: int | None = None) -> lake_answers.LakeFiles:
        """The data files of a table at a snapshot, the newest first."""
        return self._runner.run(calls.files(name, snapshot))

    def query(self, text: str, *, snapshot: int | None = None) -> lake_answers.QueryResult:
        """Run a SELECT over one snapshot: 1000 rows and 10 s at most."""
        return self._runner.run(calls.query(text, snapshot))
