"""Changes to definitions: checked against the graph, then one transaction, all or nothing.

Each change bumps the graph's version and expects the version it was checked against, so two
concurrent changes cannot together create a cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from penstock.kernel.errors import Conflict, Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.columns import unread_type
from penstock.lake.feed import DELETE_TABLE as DELETE_FEEDS
from penstock.lake.model import TableInfo, TableVersion
from penstock.lake.transaction import LakeTransaction
from penstock.protocol.errors import (
    SourceExists,
    SourceNotFound,
    TableCycle,
    TableExists,
    TableInUse,
)
from penstock.tables import rows
from penstock.tables.core.graph import StreamGraph, check_modes, check_publishing
from penstock.tables.core.model import Status, TableDefinition
from penstock.tables.core.topics import TopicSource
from penstock.tables.core.units import ExecutionUnitGraph
from penstock.tables.delta.modes import check_differential
from penstock.tables.engine import TopicRead
from penstock.tables.plan import Folder, TablePlan, parse_folder, plan_tables
from penstock.tables.query.names import STATE_SCHEMA, is_state_of, topic_of, topic_source
from penstock.tables.query.relations import NameCheck, Relations
from penstock.tables.query.resolve import RelationShape
from penstock.tables.rows import GRAPH_VERSION, MADE, SELECT_VALUE, SET_VALUE
from penstock.tables.store import Definitions, TableStore

_TRIES_MAX = 20
_CHECKED_MAX = 50
"""The engine checks the queries of no more tables that are made at once: it takes a while."""
UNFILLED_MAX = 8
"""So many tables without contents may be below one whose query the engine checks."""
T = TypeVar("T")


class Definer:
    """Creates, replaces, alters and drops a warehouse's tables, and declares its topics."""

    def __init__(
        self,
        store: TableStore,
        check_topic: Callable[[TableDefinition], None] = lambda _: None,
        check_query: Callable[[TableDefinition, Definitions], None] = lambda *_: None,
    ) -> None:
        self._store = store
        self._check_topic = check_topic
        self._check_query = check_query

    def put(self, table: TableDefinition, *, may_exist: bool) -> StreamGraph:
        """Create a table, or with `may_exist` replace an existing one."""
        return _again(lambda: self._put(table, may_exist))

    def _put(self, table: TableDefinition, may_exist: bool) -> StreamGraph:
        found = self._store.definitions()
        before = found.graph.tables.get(table.name)
        if before is not None and not may_exist:
            raise TableExists(f"there is a stream table {table.name!r} already")
        graph = found.graph.with_table(table)
        lake = self._check(graph, [table] if before is None else [], found)
        self._check_published(before, table)
        known = {**lake, **topic_shapes(found)}
        NameCheck(graph, known, {table.name}, self._store.lake.columns_max).check(table.name)
        check_differential([table], Relations(known, graph, {table.name}))
        self._check_query(table, replace(found, graph=graph))
        transaction = self._begin(found.version)
        self._store_table(transaction, before, table)
        return self._commit(transaction, graph)

    def alter(self, name: str, wanted: TableDefinition) -> StreamGraph:
        """Change how a table is refreshed; its query and contents stay."""
        return _again(lambda: self._alter(name, wanted))

    def _alter(self, name: str, wanted: TableDefinition) -> StreamGraph:
        found = self._store.definitions()
        before = found.graph.table(name)
        table = replace(wanted, status=before.status)
        graph = found.graph.with_table(table)
        lake = self._check(graph, [], found)
        self._check_published(before, table)
        check_differential([table], Relations({**lake, **topic_shapes(found)}, graph))
        transaction = self._begin(found.version)
        self._store_table(transaction, before, table)
        return self._commit(transaction, graph)

    def drop(self, name: str, *, cascade: bool) -> tuple[str, ...]:
        """Drop a table, and with `cascade` all its readers; returns the dropped names."""
        return _again(lambda: self._drop(name, cascade))

    def _drop(self, name: str, cascade: bool) -> tuple[str, ...]:
        found = self._store.definitions()
        graph = found.graph.without(name, cascade=cascade)
        gone = tuple(n for n in reversed(found.graph.order) if n not in graph.tables)
        check_modes(graph)
        transaction = self._begin(found.version)
        self._drop_tables(transaction, gone)
        self._commit(transaction, graph)
        return gone

    def plan(self, folder: Path, *, prune: bool, url: str | None) -> TablePlan:
        """What applying a folder would do; raises if that is impossible."""
        return self._planned(self._store.definitions(), read_folder(folder, url), prune)

    def apply(self, folder: Path, *, prune: bool, url: str | None) -> TablePlan:
        """Make the tables match a folder, in one transaction."""
        wanted = read_folder(folder, url)
        return _again(lambda: self._apply(wanted, prune))

    def _apply(self, wanted: Folder, prune: bool) -> TablePlan:
        found = self._store.definitions()
        existing = found.graph.tables
        plan = self._planned(found, wanted, prune)
        if plan.empty:
            return plan
        transaction = self._begin(found.version)
        self._drop_tables(transaction, plan.drop)
        for source in plan.declare:
            self._store_source(transaction, found, source)
        for table in plan.create:
            self._store_table(transaction, None, table)
        for change in (*plan.replace, *plan.alter):
            before, table = existing[change.table.name], change.table
            if "query" not in change.changes:  # its layout may differ
                table = replace(table, query=before.query)
            self._store_table(transaction, before, _kept_status(before, table))
        self._commit(transaction, plan.graph)
        return plan

    def _planned(self, found: Definitions, wanted: Folder, prune: bool) -> TablePlan:
        plan = plan_tables(wanted.tables, found.graph.tables, prune=prune)
        news = [s for name, s in sorted(wanted.topics.items()) if found.topics.get(name) != s]
        changed = [step.table for step in (*plan.replace, *plan.alter)]
        with_news = replace(found, topics={**found.topics, **wanted.topics})
        lake = self._check(plan.graph, plan.create, with_news)
        plan = replace(plan, declare=tuple(news))
        for table in (*plan.create, *changed):
            self._check_published(found.graph.tables.get(table.name), table)
        topics = topic_shapes(with_news)
        _check_plan(plan, found, lake, topics, self._store.lake.columns_max)
        made = [*plan.create, *changed]
        shapes = Relations({**lake, **topics}, plan.graph, {table.name for table in made})
        check_differential(made, shapes)
        steps = [*plan.create, *(s.table for s in plan.replace if "query" in s.changes)]
        for table in steps if len(steps) <= _CHECKED_MAX else ():
            self._check_query(table, replace(with_news, graph=plan.graph))
        return plan

    # topics --------------------------------------------------------------------------------------

    def declare(self, source: TopicSource, *, may_exist: bool) -> None:
        """Declare a topic, or with `may_exist` redeclare it.

        Tables that read it keep their contents until their next refresh, which rebuilds them.
        """
        _again(lambda: self._declare(source, may_exist))

    def _declare(self, source: TopicSource, may_exist: bool) -> None:
        found = self._store.definitions()
        before = found.topics.get(source.name)
        if before is not None and not may_exist:
            raise SourceExists(f"topic {source.topic!r} is declared already")
        if before == source:
            return
        transaction = self._begin(found.version)
        self._store_source(transaction, found, source)
        self._store.lake.commit(transaction)

    def forget(self, topic: str) -> None:
        """Remove a topic's declaration; refused while a table reads it."""
        _again(lambda: self._forget(topic))

    def _forget(self, topic: str) -> None:
        found = self._store.definitions()
        name = topic_source(topic)
        if name not in found.topics:
            raise SourceNotFound(topic)
        readers = found.graph.readers.get(name, ())
        if readers:
            raise TableInUse(name, readers)
        transaction = self._begin(found.version)
        transaction.also(rows.DELETE_SOURCE, (name,))
        self._store.lake.commit(transaction)

    def _store_source(
        self, transaction: LakeTransaction, found: Definitions, source: TopicSource
    ) -> None:
        transaction.also(rows.STORE_SOURCE, (source.name, source.to_json()))
        if source.name in found.topics:
            for reader in found.graph.readers.get(source.name, ()):
                transaction.also(rows.DELETE_FRONTIER, (reader,))

    # steps ---------------------------------------------------------------------------------------

    def _check(
        self,
        graph: StreamGraph,
        created: Iterable[TableDefinition],
        found: Definitions,
    ) -> dict[str, RelationShape]:
        """Reject impossible definitions; returns the columns of every lake table."""
        check_modes(graph)
        check_publishing(graph, {name: source.url for name, source in found.topics.items()})
        ExecutionUnitGraph(graph)
        lake = lake_shapes(self._store.lake.tables())
        for table in created:
            if table.name in lake:
                raise TableExists(
                    f"the lake has a table {table.name!r} already, which is not a stream table: "
                    "choose another name, or drop that table"
                )
        return lake

    def _check_published(self, before: TableDefinition | None, table: TableDefinition) -> None:
        """Check the topic that changes are to be written to, unless they already are."""
        known = None if before is None else (before.publish, before.publish_url)
        if table.publish and known != (table.publish, table.publish_url):
            self._check_topic(table)

    def _begin(self, version: int) -> LakeTransaction:
        transaction = self._store.lake.begin()
        value = None if version == 0 else str(version)
        transaction.expect(SELECT_VALUE, (GRAPH_VERSION,), value)
        transaction.also(SET_VALUE, (GRAPH_VERSION, str(version + 1)))
        return transaction

    def _store_table(
        self, transaction: LakeTransaction, before: TableDefinition | None, table: TableDefinition
    ) -> None:
        if table.publish:
            to = (table.name, table.publish, table.publish_url)
            transaction.also(rows.STORE_PUBLICATION, to)
        else:
            transaction.also(rows.DELETE_PUBLICATION, (table.name,))
        if before is None:
            transaction.also(rows.INSERT_TABLE, rows.table_row(table))
            return
        name, *values = rows.table_row(table)
        transaction.also(rows.UPDATE_TABLE, (*values, name))
        if before.query != table.query:
            # The contents stay readable until the first refresh, but no longer reflect any
            # position.
            transaction.also(rows.DELETE_FRONTIER, (name,))
            transaction.also(rows.CLEAR_STATUS_DETAIL, (name,))
            _drop_states(transaction, self._store.lake.tables(transaction.base), name)

    def _drop_tables(self, transaction: LakeTransaction, names: Iterable[str]) -> None:
        tables = self._store.lake.tables(transaction.base)
        infos = {_plain(info.schema.name, info.name): info for info in tables}
        for name in names:
            _drop_states(transaction, tables, name)
            if name in infos and self._is_ours(name, infos[name]):
                transaction.drop_table(infos[name])
                transaction.also(DELETE_FEEDS, (infos[name].id,))
            transaction.also(rows.DELETE_TABLE, (name,))
            transaction.also(rows.DELETE_PUBLICATION, (name,))
            transaction.also(rows.DELETE_FRONTIER, (name,))
            transaction.also(rows.DELETE_VALUE, (f"{MADE}{name}",))
            transaction.also(rows.DELETE_VALUE, (f"{rows.REBUILD}{name}",))
            transaction.also(rows.DELETE_VALUE, (f"{rows.STATE}{name}",))
            transaction.also(rows.DELETE_VALUE, (f"{rows.RETAINED}{name}",))

    def _is_ours(self, name: str, info: TableInfo) -> bool:
        """Whether refreshes created a lake table; otherwise it is another tool's and stays."""
        lake = self._store.lake
        made = lake.query(SELECT_VALUE, (f"{MADE}{name}",))
        if made:
            return bool(made[0][0] == info.uuid)
        return bool(lake.query(rows.REFRESH_IS, (name,)))

    def _commit(self, transaction: LakeTransaction, graph: StreamGraph) -> StreamGraph:
        self._store.lake.commit(transaction)
        return graph


def _drop_states(transaction: LakeTransaction, tables: Iterable[TableInfo], name: str) -> None:
    """Drop all that refreshes of a table stored beside its contents."""
    for info in tables:
        if info.schema.name == STATE_SCHEMA and is_state_of(info.name, name):
            transaction.drop_table(info)


def _again(change: Callable[[], T]) -> T:
    """Make a change; on a conflict with a concurrent one, check it again and retry."""
    for _ in range(_TRIES_MAX):
        try:
            return change()
        except (SourceExists, TableCycle, TableExists, TableInUse):
            raise  # a retry will not resolve these
        except Conflict:
            continue
    return change()


def read_folder(folder: Path, url: str | None = None) -> Folder:
    """The tables that the `.sql` files of a folder define, and the topics they declare."""
    if not folder.is_dir():
        raise Rejected(f"there is no folder {str(folder)!r}")
    files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.sql")}
    if not files:
        raise Rejected(f"there are no .sql files in {str(folder)!r}")
    return parse_folder(files, url=url)


def lake_shapes(tables: Iterable[TableInfo]) -> dict[str, RelationShape]:
    """The columns of lake tables, by their names in queries."""
    return {_plain(info.schema.name, info.name): _shape(info) for info in tables}


def _shape(info: TableInfo) -> RelationShape:
    columns = (*info.columns, *info.unheld)
    kinds = {column.name.lower(): unread_type(column) for column in columns}
    return RelationShape(
        tuple(column.name for column in columns),
        unreadable={name: kind for name, kind in kinds.items() if kind is not None},
    )


def topic_shapes(found: Definitions) -> dict[str, RelationShape]:
    """The columns of the declared topics."""
    return {
        name: RelationShape(tuple(column.name for column in source.columns))
        for name, source in found.topics.items()
    }


def inputs_of(
    store: TableStore, table: TableDefinition, known: Definitions, *, refreshed: bool
) -> dict[str, TableVersion | TopicRead | str] | None:
    """What the query of a table reads; a table without contents is its query.

    With `refreshed` every stream table is: its next refresh may add columns. None if there are more
    than `UNFILLED_MAX` of these.
    """
    found: dict[str, TableVersion | TopicRead | str] = {}
    with store.lake.look() as reader:
        at = reader.latest()
        filled = set() if refreshed else set(store.frontiers(reader))
    before = store.definitions().graph.tables
    filled -= {n for n, found in known.graph.tables.items() if before.get(n, found) != found}
    wanted = list(table.sources)
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        if name in known.topics:
            source = known.topics[name]
            # An epoch of 0 is that of an empty topic: only its columns matter.
            topic = topic_of(name) or name
            found[name] = TopicRead(source.url, topic, source.schema, 0, 0, source.key)
        elif name in known.graph.tables and name not in filled:
            found[name] = known.graph.tables[name].query
            if sum(isinstance(each, str) for each in found.values()) > UNFILLED_MAX:
                return None
            wanted += known.graph.tables[name].sources
        else:
            found[name] = store.lake.table_at(name, at)
    return found


def stored_relations(lake: Catalog, found: Definitions) -> Relations:
    """Every relation that a query can read, as it is stored now."""
    return Relations({**lake_shapes(lake.tables()), **topic_shapes(found)}, found.graph)


def _check_plan(
    plan: TablePlan,
    found: Definitions,
    lake: dict[str, RelationShape],
    topics: dict[str, RelationShape],
    columns_max: int,
) -> None:
    """Reject tables that name something missing: new ones, and those a change would break."""
    made = [*plan.create, *(step.table for step in plan.replace)]
    changed = {table.name for table in made}
    moved = changed | {source.name for source in plan.declare}
    now = NameCheck(found.graph, {**lake, **topic_shapes(found)}, (), columns_max)
    then = NameCheck(plan.graph, {**lake, **topics}, changed, columns_max)
    for name in plan.graph.order:
        if name not in changed:
            if not moved & set(plan.graph.inputs[name]):
                continue
            try:
                now.check(name)
            except Rejected:
                continue  # already broken before this change, so it does not block it
        try:
            then.check(name)
        except Rejected as error:
            raise type(error)(f"{name}: {error.message}", **error.detail) from None


def _kept_status(before: TableDefinition, table: TableDefinition) -> TableDefinition:
    """A file says active or paused; SUSPENDED or ERROR stays while the query is the same."""
    stopped = before.status in (Status.SUSPENDED, Status.ERROR)
    if stopped and table.status is Status.ACTIVE and before.query == table.query:
        return replace(table, status=before.status)
    return table


def _plain(schema_name: str, name: str) -> str:
    lowered = schema_name.lower()
    return name.lower() if lowered == "main" else f"{lowered}.{name.lower()}"
