"""Refresh one unit: read one snapshot, refresh member after member, commit all or nothing.

`inputs` resolves what is read, the engine makes contents, `commit` commits them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.columns import columns_of, plain_schema
from penstock.lake.feed import list_feed
from penstock.lake.model import SchemaInfo, TableInfo, TableVersion
from penstock.lake.reader import Reader
from penstock.lake.transaction import LakeTransaction
from penstock.tables import rows
from penstock.tables.core.frontier import Frontier, LakePosition
from penstock.tables.core.history import ReasonCode, RefreshProgress
from penstock.tables.core.model import Mode, TableDefinition
from penstock.tables.delta.modes import differentiation
from penstock.tables.engine import Made, Refresher, RefreshTask, TopicPositions
from penstock.tables.query.names import DEFAULT_SCHEMA, STATE_SCHEMA, state_table
from penstock.tables.store import TableStore
from penstock.tables.worker.claim import ClaimedUnit
from penstock.tables.worker.commit import UnitCommitter
from penstock.tables.worker.inputs import Inputs, UnitRun, evicted, recreated
from penstock.tables.worker.outcomes import Ended, GateClosed

Tell = Callable[[RefreshProgress], None]
Phases = tuple[tuple[str, float], ...]


class UnitWorker:
    """Refreshes units in one process, one at a time."""

    def __init__(
        self,
        store: TableStore,
        refresher: Refresher,
        *,
        topics: TopicPositions | None = None,
        api_key: str | None = None,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._lake: Catalog = store.lake
        self._refresher = refresher
        self._inputs = Inputs(store, topics, api_key)
        self._committer = UnitCommitter(store, now_ms)
        self._ours: set[tuple[str, str]] = set()

    def close(self) -> None:
        """Close what the worker opened; the caller owns the engine."""
        self._inputs.close()

    def run(
        self,
        claimed: ClaimedUnit,
        *,
        stale: tuple[str, ...] = (),
        forced: bool = False,
        waited_ms: int = 0,
        tell: Tell | None = None,
    ) -> Ended:
        """Refresh a claimed unit. Its locks are always released.

        `waited_ms` is how long it waited for a slot and a permit before it had a job.
        """
        at: str | None = None
        try:
            began = time.perf_counter()
            run = self._inputs.begin(claimed)
            waited_ms += max(0, (claimed.job.started_at_ms or 0) - claimed.job.enqueued_at_ms)
            phases: Phases = (("waiting", float(waited_ms)), ("claim", claimed.took_ms))
            for table in claimed.tables:
                at = table.name
                task = self._task(run, table, claimed, forced)
                phases += (("inputs", (time.perf_counter() - began) * 1_000),)
                task = replace(task, tell=_named(tell, table.name)) if tell else task
                self._refresh(run, task, phases)
                began, phases = time.perf_counter(), ()
            at = None
            return self._committer.commit(run, claimed, stale)
        except GateClosed as error:
            return self._committer.cancelled(claimed, error.message)
        except Exception as error:  # an engine may raise anything; it is classified
            return self._committer.failed(claimed, error, at)

    def _task(
        self, run: UnitRun, table: TableDefinition, claimed: ClaimedUnit, forced: bool
    ) -> RefreshTask:
        known = run.known.get(table.name)
        before = known.frontier if known else None
        current = self._current(run, table.name)
        if current is not None:
            self._check_ours(run, table.name, current.table)
        inputs = {
            source: self._inputs.of(run, table.name, source, before) for source in table.sources
        }
        rebuilt = ReasonCode.SOURCE_RECREATED if recreated(inputs) else run.rebuild.get(table.name)
        return RefreshTask(
            definition=table,
            inputs=inputs,
            current=current,
            frontier=before if current is not None and rebuilt is None else None,
            reason=_reason(current, before, rebuilt, forced=forced),
            target=self._target(run, table.name, current),
            token=claimed.token,
            factors=run.factors.get(table.name, {}),
            state=self._state(run, table.name),
            state_target=self._state_target(run, table.name),
            has_state=table.name in run.stateful,
            is_read=lambda: self._is_read(table.name),
        )

    def _is_read(self, name: str) -> bool:
        """Whether a table follows the changes of another, or a topic does."""
        graph = self._store.definitions().graph
        table = graph.tables.get(name)  # it may have been dropped since
        if table is not None and table.publish:
            return True
        readers = graph.readers.get(name, ())
        return any(graph.tables[reader].mode is not Mode.FULL for reader in readers)

    def _refresh(self, run: UnitRun, task: RefreshTask, phases: Phases) -> None:
        name = task.definition.name
        made = self._refresher.refresh(task)
        made = replace(made, timings_ms=(*phases, *made.timings_ms))
        if made.table.id < 0:  # a recreated table counts as changed, even if empty
            made = replace(made, changed=True)
        made = _explained(made, task, evicted(run, task.inputs))
        _note(run.transaction, made, created=made.table.id < 0)
        self._list_feed(run, name, made)
        for stored in made.states:
            _note(run.transaction, stored, created=stored.table.id < 0)
        run.made[name] = made
        run.before[name] = task.current
        run.frontiers[name] = Frontier(
            {source: found.position for source, found in task.inputs.items()}
        )

    def _list_feed(self, run: UnitRun, name: str, made: Made) -> None:
        """List what changed, for readers that know the position the table had before."""
        before = run.member_position(name)
        if made.feed is None or not made.changed or made.table.id < 0:
            return
        if isinstance(before, LakePosition) and name not in run.rebuild:
            list_feed(run.transaction, made.table, before.snapshot, made.feed)

    def _current(self, run: UnitRun, name: str) -> TableVersion | None:
        try:
            return self._lake.table_at(name, run.snapshot)
        except Rejected:
            return None

    def _state(self, run: UnitRun, name: str) -> Callable[[str], TableVersion | None]:
        """What is stored beside the contents of a table, if it belongs to them."""
        if name not in run.stateful:
            return lambda _: None
        return lambda part: self._current(run, _held_in(name, part))

    def _state_target(self, run: UnitRun, name: str) -> Callable[[str, pa.Schema], TableInfo]:
        """The table of what is stored beside the contents of another, made where it is missing."""
        given: dict[str, TableInfo] = {}

        def target(part: str, columns: pa.Schema) -> TableInfo:
            if part not in given:
                held = _held_in(name, part)
                given[part] = self._fitting(run, held, self._current(run, held), columns)
            return given[part]

        return target

    def _check_ours(self, run: UnitRun, name: str, table: TableInfo) -> None:
        """Reject a table that another tool created: a refresh would replace its rows."""
        if (name, table.uuid) in self._ours:
            return
        with self._lake.look() as reader:
            made = reader.rows(rows.SELECT_VALUE, f"{rows.MADE}{name}")
            ours = made[0][0] == table.uuid if made else _was_refreshed(reader, run, name, table)
        if not ours:
            raise Rejected(
                f"the lake's table {name!r} was not made by refreshes, which would replace its "
                "rows: rename it, or drop it and resume",
                table=name,
            )
        self._ours.add((name, table.uuid))

    def _target(
        self, run: UnitRun, name: str, current: TableVersion | None
    ) -> Callable[[pa.Schema], TableInfo]:
        """The existing table if its columns match, otherwise a new one in its place."""
        given: list[TableInfo] = []

        def target(columns: pa.Schema) -> TableInfo:
            if not given:
                given.append(self._fitting(run, name, current, columns))
            return given[0]

        return target

    def _fitting(
        self, run: UnitRun, name: str, current: TableVersion | None, columns: pa.Schema
    ) -> TableInfo:
        if current is not None:
            if plain_schema(columns_of(columns)).equals(current.table.arrow_schema):
                return current.table
            run.transaction.drop_table(current.table)
        home, _, plain = name.rpartition(".")
        return run.transaction.create_table(
            self._schema(run, home or DEFAULT_SCHEMA), plain, columns
        )

    def _schema(self, run: UnitRun, name: str) -> SchemaInfo:
        if name not in run.schemas:
            found = [s for s in self._lake.schemas(run.snapshot) if s.name.lower() == name]
            run.schemas[name] = found[0] if found else run.transaction.create_schema(name)
        return run.schemas[name]


def _held_in(name: str, part: str) -> str:
    return f"{STATE_SCHEMA}.{state_table(name, part)}"


def _was_refreshed(reader: Reader, run: UnitRun, name: str, table: TableInfo) -> bool:
    """Whether a refresh is recorded since a table began; for tables older than stored UUIDs."""
    began = reader.last_defined_in(table.id)
    ((last,),) = reader.rows(rows.LAST_REFRESHED_SNAPSHOT, name)
    known = run.known.get(name)
    at = -1 if known is None or known.position is None else known.position.snapshot
    return began is not None and max(at, -1 if last is None else last) >= began


def _named(tell: Tell, table: str) -> Tell:
    return lambda progress: tell(progress.of(table))


def _reason(
    current: TableVersion | None,
    before: Frontier | None,
    rebuilt: ReasonCode | None,
    *,
    forced: bool,
) -> ReasonCode:
    if current is None:
        return ReasonCode.FIRST_LOAD
    if before is None:
        return ReasonCode.QUERY_CHANGED
    if rebuilt is not None:
        return rebuilt
    return ReasonCode.REQUESTED if forced else ReasonCode.AS_CONFIGURED


def _explained(made: Made, task: RefreshTask, note: str) -> Made:
    """The result, with the reason for its mode.

    A reason that holds for any engine comes first: there were no contents to apply changes to, or a
    person forced it. Then the engine's reason; if it gave none, what the query implies.
    """
    reason, text = made.reason, made.reason_text
    if task.reason is not ReasonCode.AS_CONFIGURED:
        reason, text = task.reason, ""
    elif (
        reason is ReasonCode.AS_CONFIGURED
        and made.executed is Mode.FULL
        and task.definition.mode is not Mode.FULL
    ):
        columns = {name: read.columns for name, read in task.inputs.items()}
        found = differentiation(task.definition.query, columns)
        if not found.possible:
            reason, text = found.reason, found.text
    texts = [part for part in (text, note) if part]
    return replace(made, reason=reason, reason_text="; ".join(texts))


def _note(transaction: LakeTransaction, made: Made, *, created: bool) -> None:
    """Add one table's result to the unit's transaction."""
    if created:
        transaction.add_files(made.table, made.files)
    elif made.changed and made.replace:
        transaction.replace_contents(made.table, made.files)
    elif made.changed:
        transaction.delete_rows(made.table, made.deletes)
        transaction.delete_inlined(made.table, made.inlined_deletes)
        transaction.add_files(made.table, made.files)
