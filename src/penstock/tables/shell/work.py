"""Refreshing one unit: read one snapshot, refresh member after member, commit all of it or nothing.

The commit holds data, frontiers, history and the job's outcome, and expects that the job is still
running under the worker's name and that the definitions are those it was made by. So whatever was
closed, cancelled or replaced meanwhile cannot land, and what landed is on record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from penstock.kernel.errors import Conflict, PenstockError, Rejected, Unknown
from penstock.lake.columns import columns_of, plain_schema
from penstock.lake.model import SchemaInfo, Snapshot, TableInfo, TableVersion
from penstock.lake.shell.catalog import Catalog
from penstock.lake.transaction import SNAPSHOT, Transaction
from penstock.tables import schema
from penstock.tables.errors import TableNotFound
from penstock.tables.events import Refreshed
from penstock.tables.failures import Failure, FailureKind, classify
from penstock.tables.frontier import Frontier, LakePosition, Position
from penstock.tables.history import Outcome, ReasonCode, RefreshRecord
from penstock.tables.jobs import JobStatus
from penstock.tables.model import TableDefinition
from penstock.tables.names import DEFAULT_SCHEMA, topic_of
from penstock.tables.shell.claim import Claimed, LockHeld
from penstock.tables.shell.pending import pending_changes, pending_version
from penstock.tables.shell.positions import Positions
from penstock.tables.shell.refresher import (
    Input,
    Made,
    Refresher,
    RefreshTask,
    SourceRecreated,
    TopicPositions,
)
from penstock.tables.shell.store import DEFINITION_IS, DROP_RESERVATION, Known, Store

PENDING: Final = LakePosition(-1)
"""Stands in a frontier for the snapshot that the commit makes."""

_FILLED = "replace(?, '[-1]', '[' || CAST(? AS TEXT) || ']')"
STORE_FRONTIER: Final = schema.STORE_FRONTIER.replace("(?, ?, ?, ?, ?)", f"(?, {_FILLED}, ?, ?, ?)")
INSERT_HISTORY: Final = schema.INSERT_HISTORY.replace(
    f"({', '.join('?' * len(schema.HISTORY_COLUMNS))})",
    f"({', '.join(_FILLED if c == 'frontier' else '?' for c in schema.HISTORY_COLUMNS)})",
)


class NotMadeYet(PenstockError):
    """A table reads one that has no contents yet; it is tried again until it has."""

    code = "not_made_yet"


@dataclass(frozen=True, slots=True)
class Succeeded:
    """Everything is committed."""

    refreshed: Mapping[str, Refreshed]


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing is visible; the failure is on record."""

    kind: FailureKind
    detail: str
    member: str | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Nothing is visible; somebody closed the job or changed a definition."""

    detail: str


Ended = Succeeded | Failed | Cancelled


@dataclass(slots=True)
class _Run:
    """One unit on its way: what was read and what was made so far."""

    snapshot: Snapshot
    transaction: Transaction
    known: dict[str, Known]
    streams: frozenset[str]
    positions: dict[str, Position]
    made: dict[str, Made] = field(default_factory=dict)
    versions: dict[str, TableVersion] = field(default_factory=dict)
    frontiers: dict[str, Frontier] = field(default_factory=dict)
    schemas: dict[str, SchemaInfo] = field(default_factory=dict)


class UnitWorker:
    """Refreshes units in one process, one at a time."""

    def __init__(
        self,
        store: Store,
        refresher: Refresher,
        *,
        topics: TopicPositions | None = None,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._lake: Catalog = store.lake
        self._refresher = refresher
        self._topics = topics
        self._now_ms = now_ms
        self._positions = Positions()

    def run(self, claimed: Claimed, *, stale: tuple[str, ...] = (), forced: bool = False) -> Ended:
        """Refresh a unit that was claimed. Whatever happens, its locks are given back."""
        at: str | None = None
        try:
            run = self._begin(claimed)
            for table in claimed.tables:
                at = table.name
                self._refresh(run, table, claimed, forced)
            at = None
            return self._commit(run, claimed, stale)
        except Exception as error:  # an engine may raise anything; it is classified
            return self._failed(claimed, error, at)

    # reading -------------------------------------------------------------------------------------

    def _begin(self, claimed: Claimed) -> _Run:
        sources = {source for table in claimed.tables for source in table.sources}
        lake_names = {name for name in sources if topic_of(name) is None}
        with self._lake.look() as reader:
            snapshot = reader.latest()
            self._positions.advance(reader)
            positions: dict[str, Position] = dict(self._positions.of_all(reader, lake_names))
            known = self._store.frontiers(reader)
            streams = reader.rows("SELECT name FROM penstock_tables")
        positions.update(self._topic_positions(sources - lake_names))
        transaction = self._lake.begin(at=snapshot)
        transaction.token = claimed.token
        transaction.author = "penstock"
        transaction.message = f"refresh {claimed.job.unit_key} (job {claimed.job.job_id})"
        return _Run(snapshot, transaction, known, frozenset(name for (name,) in streams), positions)

    def _topic_positions(self, sources: set[str]) -> dict[str, Position]:
        if not sources:
            return {}
        if self._topics is None:
            raise Rejected(
                f"expected topics to be configured for this warehouse, found none: "
                f"{', '.join(sorted(sources))}"
            )
        topics = {str(topic_of(source)): source for source in sources}
        found = self._topics.positions(list(topics))
        return {topics[topic]: position for topic, position in found.items()}

    def _input(self, run: _Run, source: str, before: Frontier | None) -> Input:
        since = None if before is None else before.get(source)
        if source in run.made:
            made, version = run.made[source], run.versions[source]
            position = self._position_after(run, source)
            after = since.snapshot if isinstance(since, LakePosition) else None
            changes = None if after is None else self._pending_changes(run, made, after)
            return Input(source, position, since, version, made.changed, changes)
        position_or_none = run.positions.get(source)
        if position_or_none is None:
            raise self._missing(run, source)
        if topic_of(source) is not None:
            return Input(source, position_or_none, since)
        version = self._lake.table_at(source, run.snapshot)
        changes = None
        if isinstance(since, LakePosition):
            changes = self._changes(version.table, since.snapshot, run.snapshot.id)
        return Input(source, position_or_none, since, version, False, changes)

    def _missing(self, run: _Run, source: str) -> PenstockError:
        if source in run.streams:
            return NotMadeYet(f"expected contents of {source!r}, found that it was never refreshed")
        return Rejected(f"expected a table or topic {source!r} in the lake, found none")

    def _changes(self, table: TableInfo, after: int, until: int) -> Callable[[], Any]:
        def read() -> Any:
            with self._lake.look() as reader:
                began = reader.rows(
                    "SELECT min(begin_snapshot) FROM ducklake_table WHERE table_id = ?", table.id
                )
            if began[0][0] is not None and began[0][0] > after:
                raise SourceRecreated(
                    f"expected the {table.qualified} of snapshot {after}, found one made later"
                )
            return self._lake.changes(table, after, until)

        return read

    def _pending_changes(self, run: _Run, made: Made, after: int) -> Callable[[], Any]:
        return lambda: pending_changes(self._lake, after, made, run.snapshot)

    # making --------------------------------------------------------------------------------------

    def _refresh(self, run: _Run, table: TableDefinition, claimed: Claimed, forced: bool) -> None:
        known = run.known.get(table.name)
        before = known.frontier if known else None
        current = self._current(run, table.name)
        task = RefreshTask(
            definition=table,
            inputs={source: self._input(run, source, before) for source in table.sources},
            current=current,
            frontier=before if current is not None else None,
            reason=_reason(current, before, forced),
            target=self._target(run, table.name, current),
            token=claimed.token,
        )
        made = self._refresher.refresh(task)
        if made.table.id < 0:  # a table that is made anew is news, even if it is empty
            made = replace(made, changed=True)
        if made.reason is ReasonCode.AS_CONFIGURED:
            made = replace(made, reason=task.reason)
        _note(run.transaction, made, created=made.table.id < 0)
        run.made[table.name] = made
        run.versions[table.name] = pending_version(current, made, run.snapshot)
        run.frontiers[table.name] = Frontier(
            {source: found.position for source, found in task.inputs.items()}
        )

    def _current(self, run: _Run, name: str) -> TableVersion | None:
        try:
            return self._lake.table_at(name, run.snapshot)
        except Rejected:
            return None

    def _target(
        self, run: _Run, name: str, current: TableVersion | None
    ) -> Callable[[pa.Schema], TableInfo]:
        """The table as it is if the columns fit, else one made anew in its place."""
        given: list[TableInfo] = []

        def target(columns: pa.Schema) -> TableInfo:
            if not given:
                given.append(self._fitting(run, name, current, columns))
            return given[0]

        return target

    def _fitting(
        self, run: _Run, name: str, current: TableVersion | None, columns: pa.Schema
    ) -> TableInfo:
        if current is not None:
            if plain_schema(columns_of(columns)).equals(current.table.arrow_schema):
                return current.table
            run.transaction.drop_table(current.table)
        home, _, plain = name.rpartition(".")
        return run.transaction.create_table(
            self._schema(run, home or DEFAULT_SCHEMA), plain, columns
        )

    def _schema(self, run: _Run, name: str) -> SchemaInfo:
        if name not in run.schemas:
            found = [s for s in self._lake.schemas(run.snapshot) if s.name.lower() == name]
            run.schemas[name] = found[0] if found else run.transaction.create_schema(name)
        return run.schemas[name]

    def _position_after(self, run: _Run, name: str) -> Position:
        """Where a member will be: at the commit's snapshot if it changed, else where it was."""
        known = run.known.get(name)
        if not run.made[name].changed and known is not None and known.position is not None:
            return known.position
        return PENDING

    # committing ----------------------------------------------------------------------------------

    def _commit(self, run: _Run, claimed: Claimed, stale: tuple[str, ...]) -> Ended:
        job, transaction, now_ms = claimed.job, run.transaction, self._now_ms()
        transaction.expect(schema.JOB_IS_RUNNING, (job.job_id, job.worker), 1)
        for table in claimed.tables:
            transaction.expect(DEFINITION_IS, (table.name,), table.query)
            self._note_outcome(run, claimed, table, stale, now_ms)
        transaction.also(schema.RELEASE_LOCKS, (job.worker,))
        transaction.also(
            schema.CLOSE_JOB, (JobStatus.SUCCEEDED.value, now_ms, None, None, job.job_id), rows=1
        )
        try:
            committed = self._lake.commit(transaction)
        except Conflict as error:
            return self._refused(claimed, error)
        except Unknown:
            return self._looked_up(claimed)
        snapshot = committed.snapshot.id if committed.snapshot is not None else None
        return Succeeded(
            {
                name: Refreshed(
                    _settled(frontier, snapshot),
                    _settle(self._position_after(run, name), snapshot),
                )
                for name, frontier in run.frontiers.items()
            }
        )

    def _note_outcome(
        self,
        run: _Run,
        claimed: Claimed,
        table: TableDefinition,
        stale: tuple[str, ...],
        now_ms: int,
    ) -> None:
        job, made, frontier = claimed.job, run.made[table.name], run.frontiers[table.name]
        position = self._position_after(run, table.name)
        at = SNAPSHOT if position == PENDING else position[0]
        began_ms = job.started_at_ms or now_ms
        text = frontier.to_json()
        run.transaction.also(STORE_FRONTIER, (table.name, text, SNAPSHOT, at, began_ms, job.job_id))
        record = RefreshRecord(
            table=table.name,
            unit_key=job.unit_key,
            job_id=job.job_id,
            outcome=Outcome.SUCCEEDED,
            configured=table.mode,
            executed=made.executed,
            reason=made.reason,
            reason_text=made.reason_text,
            started_at_ms=began_ms,
            finished_at_ms=max(now_ms, began_ms),
            rows_read=made.rows_read,
            delta_rows=made.delta_rows,
            rows_written=made.rows_written,
            timings_ms=made.timings_ms,
            frontier=frontier,
            stale=stale,
        )
        run.transaction.also(INSERT_HISTORY, _history_values(record, at))

    def _refused(self, claimed: Claimed, error: Conflict) -> Ended:
        """A commit that did not land: cancelled if the job or a definition is not what it was."""
        job = self._store.job(claimed.job.job_id)
        if job is None or job.status is not JobStatus.RUNNING:
            self._let_go(claimed)
            return Cancelled(f"closed while it ran: {job.outcome_detail if job else 'pruned'}")
        graph = self._store.definitions().graph
        for table in claimed.tables:
            found = graph.tables.get(table.name)
            if found is None or found.query != table.query:
                return self._cancelled(claimed, f"{table.name} was changed while it was refreshed")
        return self._failed(claimed, error, None)

    def _looked_up(self, claimed: Claimed) -> Ended:
        """Nobody could tell whether the commit landed; the job's row can."""
        job = self._store.job(claimed.job.job_id)
        if job is None or job.status is not JobStatus.SUCCEEDED:
            return self._failed(
                claimed, Conflict("expected the commit to land, found it lost"), None
            )
        return Succeeded(self._store_refreshed(claimed))

    def _store_refreshed(self, claimed: Claimed) -> dict[str, Refreshed]:
        with self._lake.look() as reader:
            known = self._store.frontiers(reader)
        return {
            name: Refreshed(known[name].frontier, known[name].position)
            for name in claimed.job.members
            if name in known
        }

    # failing -------------------------------------------------------------------------------------

    def _failed(self, claimed: Claimed, error: Exception, member: str | None) -> Ended:
        """Write down the failure and the job's end; nothing of the refresh is visible."""
        kind, detail = kind_of(error), detail_of(error)
        status = (
            JobStatus.PERMANENT_FAILED
            if kind is FailureKind.PERMANENT
            else JobStatus.RETRYABLE_FAILED
        )
        job, now_ms = claimed.job, self._now_ms()

        def work(cursor: Any) -> bool:
            run = self._store.execute
            retryable = int(kind is not FailureKind.PERMANENT)
            closed = run(
                cursor, schema.CLOSE_JOB, status.value, now_ms, detail, retryable, job.job_id
            )
            run(cursor, schema.RELEASE_LOCKS, job.worker)
            run(cursor, DROP_RESERVATION, claimed.token)
            if closed and kind is not FailureKind.COLLISION:
                for table in claimed.tables:
                    values = _history_values(_failure(claimed, table, detail, member, now_ms), None)
                    run(cursor, INSERT_HISTORY, *values)
            return bool(closed)

        if not self._lake.retrying(work):
            return Cancelled("closed while it ran")
        return Failed(kind, detail, member)

    def _cancelled(self, claimed: Claimed, detail: str) -> Ended:
        now_ms, job = self._now_ms(), claimed.job
        self._store.run(schema.CLOSE_JOB, JobStatus.CANCELLED.value, now_ms, detail, 1, job.job_id)
        self._let_go(claimed)
        return Cancelled(detail)

    def _let_go(self, claimed: Claimed) -> None:
        self._store.run(schema.RELEASE_LOCKS, claimed.job.worker)
        self._store.run(DROP_RESERVATION, claimed.token)


def kind_of(error: Exception) -> FailureKind:
    """What an error means for its table, by its class or one of those it is made from."""
    if isinstance(error, NotMadeYet | LockHeld):
        return FailureKind.COLLISION
    condition = _called(error, "getCondition", "getErrorClass")
    sql_state = _called(error, "getSqlState")
    for parent in type(error).__mro__:
        kind = classify(Failure(parent.__name__, condition, sql_state))
        if kind is not FailureKind.RETRYABLE:
            return kind
    return FailureKind.RETRYABLE


def detail_of(error: Exception) -> str:
    """An error as one line of bounded length."""
    text = error.message if isinstance(error, PenstockError) else str(error)
    first = " ".join(text.split())[:1_000]
    return first if isinstance(error, PenstockError) else f"{type(error).__name__}: {first}"


def _called(error: Exception, *names: str) -> str | None:
    """What an error of Spark says of itself."""
    for name in names:
        method = getattr(error, name, None)
        if callable(method):
            found = method()
            if found is not None:
                return str(found)
    return None


def _reason(current: TableVersion | None, before: Frontier | None, forced: bool) -> ReasonCode:
    if current is None:
        return ReasonCode.FIRST_LOAD
    if before is None:
        return ReasonCode.QUERY_CHANGED
    return ReasonCode.REQUESTED if forced else ReasonCode.AS_CONFIGURED


def _note(transaction: Transaction, made: Made, *, created: bool) -> None:
    """Put what was made of one table into the unit's transaction."""
    if created:
        transaction.add_files(made.table, made.files)
    elif made.changed and made.replace:
        transaction.replace_contents(made.table, made.files)
    elif made.changed:
        transaction.delete_rows(made.table, made.deletes)
        transaction.delete_inlined(made.table, made.inlined_deletes)
        transaction.add_files(made.table, made.files)


def _settled(frontier: Frontier, snapshot: int | None) -> Frontier:
    return Frontier({source: _settle(at, snapshot) for source, at in frontier.items()})


def _settle(position: Position, snapshot: int | None) -> Position:
    return LakePosition(snapshot) if position == PENDING and snapshot is not None else position


def _history_values(record: RefreshRecord, snapshot: Any) -> tuple[Any, ...]:
    values: list[Any] = []
    for column, value in zip(schema.HISTORY_COLUMNS, schema.history_row(record), strict=True):
        if column == "frontier":
            values += [value, SNAPSHOT if snapshot is SNAPSHOT else -1]
        else:
            values.append(snapshot if column == "snapshot" else value)
    return tuple(values)


def _failure(
    claimed: Claimed, table: TableDefinition, detail: str, member: str | None, now_ms: int
) -> RefreshRecord:
    job = claimed.job
    began_ms = job.started_at_ms or now_ms
    own = member is None or member == table.name
    return RefreshRecord(
        table=table.name,
        unit_key=job.unit_key,
        job_id=job.job_id,
        outcome=Outcome.FAILED,
        configured=table.mode,
        executed=None,
        reason=ReasonCode.AS_CONFIGURED,
        reason_text=detail if own else f"left as it was, because {member} failed: {detail}",
        started_at_ms=began_ms,
        finished_at_ms=max(now_ms, began_ms),
    )


__all__ = [
    "Cancelled", "Ended", "Failed", "NotMadeYet", "Succeeded", "TableNotFound", "UnitWorker",
    "detail_of", "kind_of",
]  # fmt: skip
