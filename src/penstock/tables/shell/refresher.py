"""The seam between refreshing and the engine that runs queries: what it is given, what it returns.

A `Refresher` reads its inputs at the versions it is handed, writes Parquet files, and returns what
to commit. It never commits: the shell puts what all members of a unit made into one transaction. A
member reads what an earlier member of its unit made through the same `TableVersion` that stands for
committed tables; its files lie in storage though no snapshot names them yet.

An engine is handed in by name, `package.module:function`, since it lies in a layer above and since
every worker process makes its own. The function is called as `function(lake, options)`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from penstock.kernel.errors import Gone, Rejected
from penstock.lake.model import NewFile, TableInfo, TableVersion
from penstock.lake.selection import FileRows
from penstock.lake.shell.catalog import Catalog
from penstock.lake.shell.ranges import ChangeRange
from penstock.tables.frontier import Frontier, Position, TopicPosition
from penstock.tables.history import ReasonCode
from penstock.tables.model import Mode, TableDefinition


class SourceRecreated(Gone):
    """A source is another relation than the one that contents were made from."""

    code = "source_recreated"


@dataclass(frozen=True, slots=True)
class Input:
    """One relation that a refresh reads, and up to where.

    `since` is where the present contents read it; None if they did not. `version` is None for a
    topic. `pending` says that an earlier member of the unit has just made it.
    """

    name: str
    position: Position
    since: Position | None = None
    version: TableVersion | None = None
    pending: bool = False
    _changes: Callable[[], ChangeRange] | None = None

    @property
    def moved(self) -> bool:
        """Whether it changed since the present contents were made."""
        return self.pending or self.since != self.position

    def changes(self) -> ChangeRange:
        """What it gained and lost since then.

        `Gone` if the lake no longer knows, `SourceRecreated` if it is another table now.
        """
        if self._changes is None:
            raise Rejected(f"expected a lake table that was read before, found {self.name!r}")
        return self._changes()


@dataclass(frozen=True, slots=True)
class RefreshTask:
    """One table to bring up to date.

    `frontier` is what the present contents stand for: None if they must be made anew, for `reason`.
    `current` are the present contents, None if there never were any. `target` gives the table to
    write files for, once the columns are known; `token` must be part of the files' names
    (`lake.write(table, rows, token=task.token)`), or the sweep may take them.
    """

    definition: TableDefinition
    inputs: Mapping[str, Input]
    current: TableVersion | None
    frontier: Frontier | None
    reason: ReasonCode
    target: Callable[[pa.Schema], TableInfo]
    token: str

    @property
    def must_be_full(self) -> bool:
        """Whether there is nothing that a change could be applied to."""
        return self.frontier is None or self.current is None


@dataclass(frozen=True, slots=True)
class Made:
    """What a refresh made, for the shell to commit.

    With `replace` the files are all there is afterwards. Without, rows in `deletes` (positions in
    files of `task.current`) and `inlined_deletes` (row ids) go and the files come. `changed` False
    says that the contents are what they were: nothing is committed for the table but its frontier.
    """

    table: TableInfo
    executed: Mode
    files: tuple[NewFile, ...] = ()
    replace: bool = True
    deletes: tuple[FileRows, ...] = ()
    inlined_deletes: tuple[int, ...] = ()
    changed: bool = True
    reason: ReasonCode = ReasonCode.AS_CONFIGURED
    reason_text: str = ""
    rows_read: int = 0
    delta_rows: int = 0
    rows_written: int = 0
    timings_ms: tuple[tuple[str, float], ...] = ()


class Refresher(Protocol):
    """An engine in one process. Called from one thread at a time, but for `interrupt`."""

    def refresh(self, task: RefreshTask) -> Made:
        """Bring one table up to date. Whatever it raises is the failure, and is classified."""
        ...

    def query(self, sql: str, inputs: Mapping[str, TableVersion]) -> pa.Table:
        """Answer a question over tables as they are in the versions given."""
        ...

    def interrupt(self) -> None:
        """Give up what runs; from any thread. The refresh under way should raise soon."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


@runtime_checkable
class Explains(Protocol):
    """An engine that can say how it would refresh a table."""

    def explain(self, definition: TableDefinition) -> Mapping[str, Any]:
        """What is known of the next refresh: strategy, choice, reasons."""
        ...


class TopicPositions(Protocol):
    """Where topics stand; handed in by name too, for topics lie beside tables."""

    def positions(self, topics: Collection[str]) -> Mapping[str, TopicPosition]:
        """The head of each topic that exists."""
        ...


@dataclass(frozen=True, slots=True)
class Factory:
    """Something that other processes can make too: a name and plain options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def refresher(self, lake: Catalog) -> Refresher:
        """Make an engine on a lake."""
        made: Refresher = self._load()(lake, dict(self.options))
        return made

    def topics(self) -> TopicPositions:
        """Make something that knows where topics stand."""
        made: TopicPositions = self._load()(dict(self.options))
        return made

    def _load(self) -> Callable[..., Any]:
        module, colon, name = self.name.partition(":")
        if not (module and colon and name):
            raise Rejected(
                f"expected a name such as 'package.module:function', found {self.name!r}"
            )
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise Rejected(f"expected to load {self.name!r}, found: {error}") from error
        return found
