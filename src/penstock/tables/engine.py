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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from penstock.kernel.errors import Corrupt, Gone, Rejected, Unavailable
from penstock.lake.catalog import Catalog
from penstock.lake.feed import FeedFile
from penstock.lake.model import NewFile, TableInfo, TableVersion
from penstock.lake.scan import ChangeSpan
from penstock.lake.selection import FileRows
from penstock.protocol.requests import Record
from penstock.tables.core.frontier import Frontier, Position, TopicPosition
from penstock.tables.core.history import ReasonCode, RefreshProgress
from penstock.tables.core.model import Mode, TableDefinition
from penstock.tables.core.topics import TopicSource, schema_columns
from penstock.tables.delta.cost import Choice


class EngineAway(Unavailable):
    """The query engine cannot be reached; no table is at fault, and it may come back."""

    code = "engine_away"


class EngineLost(Unavailable):
    """The query engine ended during a refresh; it may come back, and end under it again."""

    code = "engine_lost"


class SourceRecreated(Gone):
    """A source was recreated: it is not the relation that the contents were made from."""

    code = "source_recreated"


class StateDisagrees(Corrupt):
    """A change takes rows from a table that does not hold them; nothing was committed.

    The table's next refresh runs the whole query.
    """

    code = "state_disagrees"


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
    has just made it. `feed` are the files of its change feed that lead from `since` to `position`,
    None if there is no such way. `from_seq` is the first
    record of a topic that the current contents reflect.
    """

    name: str
    position: Position
    since: Position | None = None
    version: TableVersion | None = None
    pending: bool = False
    _changes: Callable[[], ChangeSpan] | None = None
    topic: TopicRead | None = None
    feed: tuple[FeedFile, ...] | None = None
    from_seq: int = 1

    @property
    def moved(self) -> bool:
        """Whether it changed since the current contents were made."""
        return self.pending or self.since != self.position

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        if self.topic is not None:
            return schema_columns(self.topic.schema)
        return () if self.version is None else tuple(c.name for c in self.version.table.columns)

    def changes(self) -> ChangeSpan:
        """What the catalog says of its changes since then.

        Raises `Gone` if the lake no longer has them, `SourceRecreated` if it is a different table
        now.
        """
        if self._changes is None:
            raise Rejected(
                f"{self.name!r} is not a lake table that was read before: it has no changes to read"
            )
        return self._changes()


def _tell_nobody(_: RefreshProgress) -> None:
    return


def _is_read() -> bool:
    return True


def _no_state(_: str) -> TableVersion | None:
    return None


def _no_target(part: str, _: pa.Schema) -> TableInfo:
    raise Rejected(f"this task has no place to store {part or 'a state'!r} in")


@dataclass(frozen=True, slots=True)
class RefreshTask:
    """One table to refresh.

    `frontier` is what the current contents reflect: None if they must be rebuilt, for `reason`.
    `current` are the current contents, None if there are none. `target` returns the table to write
    files for, once the columns are known; file names must contain `token` (`lake.write(table, rows,
    token=task.token)`), otherwise the sweep may remove them. `tell` may be called with progress at
    any time, from any thread. `factors` are what the table's refreshes taught about their costs.
    `state` is what an earlier refresh stored beside the contents under a name, if it still belongs
    to them; `has_state` says whether any may. `state_target` returns the table to store something
    in under a name. `is_read` says whether anything follows the
    table's changes.
    """

    definition: TableDefinition
    inputs: Mapping[str, Input]
    current: TableVersion | None
    frontier: Frontier | None
    reason: ReasonCode
    target: Callable[[pa.Schema], TableInfo]
    token: str
    tell: Callable[[RefreshProgress], None] = _tell_nobody
    factors: Mapping[Mode, float] = field(default_factory=dict)
    state: Callable[[str], TableVersion | None] = _no_state
    state_target: Callable[[str, pa.Schema], TableInfo] = _no_target
    has_state: bool = False
    is_read: Callable[[], bool] = _is_read

    @property
    def must_be_full(self) -> bool:
        """Whether there are no contents that changes could be applied to."""
        return self.frontier is None or self.current is None


@dataclass(frozen=True, slots=True)
class Made:
    """The result of a refresh, for the shell to commit.

    With `replace` the files become the entire contents. Otherwise rows in `deletes` (positions in
    files of `task.current`) and `inlined_deletes` (row ids) are removed and the files added. If
    `changed` is False, contents stay as they are: only the table's frontier is committed. `feed`
    holds the rows that came and went, where the engine knows them. `choice` is how the mode was
    chosen, with what it cost. `states` are to be stored beside the contents, under the same rules;
    `keeps_state` says that what is stored then belongs to them.
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
    feed: FeedFile | None = None
    choice: Choice | None = None
    states: tuple[Made, ...] = ()
    keeps_state: bool = False


class Refresher(Protocol):
    """An engine in one process. Called from one thread at a time, except `interrupt`."""

    def refresh(self, task: RefreshTask) -> Made:
        """Refresh one table. Any exception is the failure, and is classified."""
        ...

    def query(self, sql: str, inputs: Mapping[str, TableVersion | TopicRead]) -> pa.Table:
        """Run a query on tables at the given versions, and on topics."""
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


@runtime_checkable
class Checks(Protocol):
    """An engine that can say of a query whether it takes it."""

    def check(self, query: str, inputs: Mapping[str, TableVersion | TopicRead | str]) -> None:
        """Raise `Rejected` if a query is invalid; nothing runs.

        An input may be a query itself, that of a table without contents. What the engine cannot
        tell now it does not refuse.
        """
        ...


class TopicHead(NamedTuple):
    """The position of a topic, and its first retained seq (0: it is empty)."""

    position: TopicPosition
    earliest_seq: int = 0

    @property
    def first_seq(self) -> int:
        """The first retained seq; 1 if it is empty and always was."""
        return max(1, self.earliest_seq)


class TopicPositions(Protocol):
    """Positions of topics; also given by name, because topic clients belong to a layer above."""

    def heads(self, sources: Collection[TopicSource]) -> Mapping[str, TopicHead]:
        """The head of each source, by name; one that does not exist is at epoch 0, seq 0."""
        ...

    def moved(self, sources: Collection[TopicSource], timeout_s: float) -> bool:
        """Wait until a source may have moved since its head was last asked for; False if not."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class TopicWriter(Protocol):
    """Writes the changes of tables to topics; from the same module as positions."""

    def head(self, url: str, topic: str) -> TopicHead:
        """Where a topic ends; raises `PublishRefused` if it cannot take changes."""
        ...

    def held(
        self, url: str, topic: str, after: TopicPosition, uuid: str, snapshot: int
    ) -> tuple[TopicPosition, int]:
        """How many parts of a table's snapshot stand behind a position, and where they end."""
        ...

    def write(self, url: str, topic: str, records: Sequence[Record], key: str) -> int:
        """Append records, all or none, once for each idempotency key; returns the last seq."""
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
            raise Rejected(f"cannot load {self.name!r}: {error}") from error
        return found

    def _parts(self) -> tuple[ModuleType, str]:
        module, colon, name = self.name.partition(":")
        if not (module and colon and name):
            raise Rejected(f"{self.name!r} is not a name such as 'package.module:function'")
        try:
            return importlib.import_module(module), name
        except ImportError as error:
            raise Rejected(f"cannot load {self.name!r}: {error}") from error
