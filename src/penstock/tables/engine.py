"""The interface between refreshing and the engine that runs queries.

A `Refresher` reads its inputs at the given versions, writes Parquet files, and returns what to
commit. It never commits: the shell puts the results of all members of a unit into one transaction.
A member reads the result of an earlier member of its unit through the same `TableVersion` as
committed tables; those files are in storage, though no snapshot references them yet.

An engine is given by name, `package.module:function`, because it belongs to a layer above and every
worker process creates its own. It is called as `function(lake, options)`.
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
    """The query engine cannot be reached; no table is at fault, and it may come back."""

    code = "engine_away"


class SourceRecreated(Gone):
    """A source was recreated: it is not the relation that the contents were made from."""

    code = "source_recreated"


@dataclass(frozen=True, slots=True)
class TopicRead:
    """The part of a topic that a refresh reads: all retained records up to a seq, as rows.

    `earliest_seq` is the first retained record. `schema` are columns in Spark's syntax; with a
    `key` the last record for each key counts. The topic must have this epoch when it is read,
    otherwise `SourceRecreated`. A topic that does not exist has epoch 0 and is read as an empty
    relation, without a request to the server.
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
        """The number of records to read."""
        return max(0, self.upto_seq - max(1, self.earliest_seq) + 1) if self.epoch else 0


@dataclass(frozen=True, slots=True)
class Input:
    """One relation that a refresh reads, and up to which position.

    `since` is the position that the current contents reflect; None if they did not read it. A lake
    table has a `version`, a topic has `topic`. `pending` means that an earlier member of the unit
    has just made it.
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
        """Whether it changed since the current contents were made."""
        return self.pending or self.since != self.position

    def changes(self) -> ChangeRange:
        """Its inserts and deletes since then.

        Raises `Gone` if the lake no longer has them, `SourceRecreated` if it is a different table
        now.
        """
        if self._changes is None:
            raise Rejected(f"expected a lake table that was read before, found {self.name!r}")
        return self._changes()


def _tell_nobody(_: RefreshProgress) -> None:
    return


@dataclass(frozen=True, slots=True)
class RefreshTask:
    """One table to refresh.

    `frontier` is what the current contents reflect: None if they must be rebuilt, for `reason`.
    `current` are the current contents, None if there are none. `target` returns the table to write
    files for, once the columns are known; file names must contain `token` (`lake.write(table, rows,
    token=task.token)`), otherwise the sweep may remove them. `tell` may be called with progress at
    any time, from any thread.
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
        """Whether there are no contents that changes could be applied to."""
        return self.frontier is None or self.current is None


@dataclass(frozen=True, slots=True)
class Made:
    """The result of a refresh, for the shell to commit.

    With `replace` the files become the entire contents. Otherwise rows in `deletes` (positions in
    files of `task.current`) and `inlined_deletes` (row ids) are removed and the files added. If
    `changed` is False, contents stay as they are: only the table's frontier is committed.
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
    """An engine in one process. Called from one thread at a time, except `interrupt`."""

    def refresh(self, task: RefreshTask) -> Made:
        """Refresh one table. Any exception is the failure, and is classified."""
        ...

    def query(self, sql: str, inputs: Mapping[str, TableVersion]) -> pa.Table:
        """Run a query on tables at the given versions."""
        ...

    def interrupt(self) -> None:
        """Cancel the running refresh, which should raise soon; from any thread."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


@runtime_checkable
class Explains(Protocol):
    """An engine that can explain how it would refresh a table."""

    def explain(self, definition: TableDefinition) -> Mapping[str, Any]:
        """What is known about the next refresh: strategy, choice, reasons."""
        ...


class TopicHead(NamedTuple):
    """The position of a topic, and its first retained seq (0: it is empty)."""

    position: TopicPosition
    earliest_seq: int = 0


class TopicPositions(Protocol):
    """Positions of topics; also given by name, because topic clients belong to a layer above."""

    def heads(self, sources: Collection[TopicSource]) -> Mapping[str, TopicHead]:
        """The head of each source, by name; one that does not exist is at epoch 0, seq 0."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


@dataclass(frozen=True, slots=True)
class Factory:
    """Something that other processes can create too: a name and plain options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def refresher(self, lake: Catalog) -> Refresher:
        """Create an engine on a lake."""
        made: Refresher = self._load()(lake, dict(self.options))
        return made

    def topics(self, more: Mapping[str, Any] | None = None) -> TopicPositions:
        """Create a reader of topic positions; `more` are additional options."""
        made: TopicPositions = self._load()({**self.options, **(more or {})})
        return made

    def beside(self, name: str) -> Callable[..., Any] | None:
        """Another function of the same module, if it exists."""
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
