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
from types import ModuleType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from penstock.kernel.errors import Gone, Rejected, Unavailable
from penstock.lake.catalog import Catalog
from penstock.lake.model import NewFile, TableInfo, TableVersion
from penstock.lake.ranges import ChangeRange
from penstock.lake.selection import FileRows
from penstock.tables.core.frontier import Frontier, Position, TopicPosition
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode, TableDefinition
from penstock.tables.core.progress import RefreshProgress
from penstock.tables.core.topics import TopicSource


class EngineAway(Unavailable):
    """What runs queries cannot be reached; no table is to blame, and it may come back."""

    code = "engine_away"


class SourceRecreated(Gone):
    """A source is another relation than the one that contents were made from."""

    code = "source_recreated"


@dataclass(frozen=True, slots=True)
class TopicRead:
    """What of a topic a refresh reads: every record it still holds up to a seq, as rows.

    `earliest_seq` is the first record it holds. `schema` are columns as Spark writes them; with a
    `key` the last record for each key counts. The topic must have this epoch when it is read, or
    `SourceRecreated`. A topic that does not exist has epoch 0 and is read as an empty relation,
    without asking anybody.
    """

    url: str
    topic: str
    schema: str
    upto_seq: int
    epoch: int
    key: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)
    earliest_seq: int = 1

    @property
    def records(self) -> int:
        """How many records there are to read."""
        return max(0, self.upto_seq - max(1, self.earliest_seq) + 1) if self.epoch else 0


@dataclass(frozen=True, slots=True)
class Input:
    """One relation that a refresh reads, and up to where.

    `since` is where the present contents read it; None if they did not. A lake table has a
    `version`, a topic has `topic`. `pending` says that an earlier member of the unit has just made
    it.
    """

    name: str
    position: Position
    since: Position | None = None
    version: TableVersion | None = None
    pending: bool = False
    _changes: Callable[[], ChangeRange] | None = None
    topic: TopicRead | None = None

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


def _tell_nobody(_: RefreshProgress) -> None:
    return


@dataclass(frozen=True, slots=True)
class RefreshTask:
    """One table to bring up to date.

    `frontier` is what the present contents stand for: None if they must be made anew, for `reason`.
    `current` are the present contents, None if there never were any. `target` gives the table to
    write files for, once the columns are known; `token` must be part of the files' names
    (`lake.write(table, rows, token=task.token)`), or the sweep may take them. `tell` may be told
    how far the work has come, as often as is known, from any thread.
    """

    definition: TableDefinition
    inputs: Mapping[str, Input]
    current: TableVersion | None
    frontier: Frontier | None
    reason: ReasonCode
    target: Callable[[pa.Schema], TableInfo]
    token: str
    tell: Callable[[RefreshProgress], None] = _tell_nobody

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


class TopicHead(NamedTuple):
    """Where a topic stands, and the first seq it still holds (0: it holds nothing)."""

    position: TopicPosition
    earliest_seq: int = 0


class TopicPositions(Protocol):
    """Where topics stand; handed in by name too, for clients of topics lie in a layer above."""

    def heads(self, sources: Collection[TopicSource]) -> Mapping[str, TopicHead]:
        """The head of each source, by its name; one that does not exist is at epoch 0, seq 0."""
        ...

    def close(self) -> None:
        """Let go of every connection."""
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

    def topics(self, more: Mapping[str, Any] | None = None) -> TopicPositions:
        """Make something that knows where topics stand; `more` are options beside its own."""
        made: TopicPositions = self._load()({**self.options, **(more or {})})
        return made

    def beside(self, name: str) -> Callable[..., Any] | None:
        """Another function of the same module, if there is one."""
        found: Callable[..., Any] | None = getattr(self._parts()[0], name, None)
        return found

    def _load(self) -> Callable[..., Any]:
        module, name = self._parts()
        try:
            found: Callable[..., Any] = getattr(module, name)
        except AttributeError as error:
            raise Rejected(f"expected to load {self.name!r}, found: {error}") from error
        return found

    def _parts(self) -> tuple[ModuleType, str]:
        module, colon, name = self.name.partition(":")
        if not (module and colon and name):
            raise Rejected(
                f"expected a name such as 'package.module:function', found {self.name!r}"
            )
        try:
            return importlib.import_module(module), name
        except ImportError as error:
            raise Rejected(f"expected to load {self.name!r}, found: {error}") from error
