"""A warehouse of stream tables: define them, inspect them, refresh them.

>>> import tempfile
>>> from penstock import Warehouse
>>> home = tempfile.mkdtemp()
>>> with Warehouse.open(f"sqlite:{home}/lake.sqlite") as warehouse:
...     _ = warehouse.declare_topic("orders", "id BIGINT, day DATE")
...     query = "SELECT day, count(*) AS n FROM topics.orders GROUP BY day"
...     _ = warehouse.create("daily", query)
...     [(row.table, row.reason.value) for row in warehouse.status()]
[('daily', 'no_coordinator')]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import RLock
from typing import Any, Final, NamedTuple, Self
from uuid import uuid4

import pyarrow as pa

from penstock.kernel.clock import Clock
from penstock.kernel.errors import Busy, Rejected, Unavailable
from penstock.kernel.system import SystemClock
from penstock.lake.catalog import Catalog, open_catalog
from penstock.lake.database import CatalogAway
from penstock.lake.expire import sweep
from penstock.protocol.errors import (
    NoContents,
    NotCoordinated,
    PublishRefused,
    RelationNotFound,
    SourceNotFound,
    TableNotFound,
)
from penstock.tables import rows
from penstock.tables.changes import (
    ResetNeeded,
    TableStep,
    Unchanged,
    current_table,
    frontier_at,
    next_step,
    read_step,
)
from penstock.tables.coordinator.loop import CoordinatorLoop
from penstock.tables.core.capacity import ParallelMode
from penstock.tables.core.health import CoordinatorHealth, TableHealth
from penstock.tables.core.history import RefreshProgress, RefreshRecord
from penstock.tables.core.jobs import RefreshJob
from penstock.tables.core.model import Mode, Status, TableDefinition, define
from penstock.tables.core.topics import TopicSource, declare_topic
from penstock.tables.definitions import Definer, inputs_of, lake_shapes, stored_relations
from penstock.tables.engine import Checks, Explains, Factory, Refresher
from penstock.tables.manual import refresh_here
from penstock.tables.notify import NotifierCall, notify_address
from penstock.tables.pages import TablePage, final_order, read_page
from penstock.tables.plan import TablePlan
from penstock.tables.publishing import WatchedChange, table_key
from penstock.tables.query.names import (
    STATE_SCHEMA,
    did_you_mean,
    lake_name,
    listed,
    not_there,
    relation_name,
    topic_of,
    topic_source,
)
from penstock.tables.query.resolve import nearest_relation, resolve
from penstock.tables.query.sources import read_sources
from penstock.tables.settings import WarehouseSettings
from penstock.tables.status import PoolStatus, StatusReader, Why
from penstock.tables.store import Definitions, TableStore
from penstock.tables.verify import Verified, verify

ALTERABLE: Final = frozenset(
    {"schedule", "mode", "consistency", "description", "publish", "publish_url"}
)
UNFIT_MS: Final = 10_000
"""How long a request waits before checking whether workers can start at all."""


class Answered(NamedTuple):
    """The outcome of a requested refresh."""

    ok: bool
    detail: str


class Warehouse:
    """Stream tables on a lake. Thread-safe, except `query` and refreshes run here."""

    def __init__(
        self, settings: WarehouseSettings, *, make: bool = True, clock: Clock | None = None
    ) -> None:
        self.settings = settings
        self._clock: Clock = clock or SystemClock()
        _check_place(settings)
        self.lake: Catalog = open_catalog(
            settings.catalog,
            settings.data_path,
            create=make,
            clock=clock,
            timeout_ms=settings.catalog_timeout_ms,
        )
        self._store = TableStore(self.lake)
        self._definer = Definer(self._store, self._check_topic, self._check_query)
        self._status = StatusReader(self._store, settings, self._clock)
        self._made: Refresher | None = None
        self._in_use = RLock()

    @classmethod
    def open(
        cls,
        catalog: str,
        data_path: str | None = None,
        *,
        runner: str,
        runner_options: Mapping[str, Any] | None = None,
        make: bool = True,
        **settings: Any,
    ) -> Self:
        """Open a warehouse; with `make`, create it if it does not exist.

        `runner` names the engine, which is loaded on first use. Other options are those of
        `WarehouseSettings`.
        """
        if isinstance(settings.get("parallel_refresh_mode"), str):
            settings["parallel_refresh_mode"] = ParallelMode(settings["parallel_refresh_mode"])
        factory = Factory(runner, dict(runner_options or {}))
        return cls(WarehouseSettings(catalog, factory, data_path, **settings), make=make)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the engine and the catalog."""
        if self._made is not None:
            self._made.close()
        self.lake.close()

    # definitions ---------------------------------------------------------------------------------

    def create(self, name: str, query: str, **options: str) -> TableDefinition:
        """Create a table; its first refresh fills it.

        `options` are schedule, mode, consistency, status, description, publish and publish_url, as
        text. The topic that changes are published to must exist.
        """
        table = define(name, query, **options)
        self._definer.put(table, may_exist=False)
        self._notify()
        return table

    def create_or_replace(self, name: str, query: str, **options: str) -> TableDefinition:
        """Create a table or replace its definition; a new query rebuilds its contents."""
        table = define(name, query, **options)
        self._definer.put(table, may_exist=True)
        self._notify()
        return table

    def alter(self, name: str, **options: str) -> TableDefinition:
        """Change schedule, mode, consistency, description or publish; contents stay.

        An empty `publish` ends publishing.
        """
        unknown = set(options) - ALTERABLE
        if unknown:
            raise Rejected(
                f"cannot alter {', '.join(sorted(unknown))}: only schedule, mode, consistency, "
                "description, publish and publish_url can be altered"
            )
        before = self.table(name)
        kept = {
            "schedule": before.schedule.text,
            "mode": before.mode.value,
            "consistency": before.consistency.value,
            "description": before.description,
            "publish": before.publish,
            "publish_url": before.publish_url,
        }
        if options.get("mode", "").upper() == Mode.IMMEDIATE.value and "schedule" not in options:
            kept["schedule"] = "calculated"
        table = define(before.name, before.query, **{**kept, **options})
        self._definer.alter(before.name, replace(table, volatile=before.volatile))
        self._notify()
        return table

    def drop(self, name: str, *, cascade: bool = False) -> tuple[str, ...]:
        """Drop a table with its contents, and with `cascade` all its readers."""
        return self._definer.drop(lake_name(name), cascade=cascade)

    def plan(self, folder: str | Path, *, prune: bool = True, url: str | None = None) -> TablePlan:
        """What `apply` would do."""
        return self._definer.plan(Path(folder), prune=prune, url=url)

    def apply(self, folder: str | Path, *, prune: bool = True, url: str | None = None) -> TablePlan:
        """Make the tables match a folder of `.sql` files.

        Topics declared in the folder are on the server at `url`, unless a file has its own.
        """
        return self._definer.apply(Path(folder), prune=prune, url=url)

    def table(self, name: str) -> TableDefinition:
        """One definition."""
        return self._store.definitions().graph.table(lake_name(name))

    def tables(self) -> list[TableDefinition]:
        """All definitions, in topological order."""
        graph = self._store.definitions().graph
        return [graph.tables[name] for name in graph.order]

    # topics --------------------------------------------------------------------------------------

    def declare_topic(
        self,
        topic: str,
        schema: str,
        *,
        key: str | Iterable[str] = (),
        url: str | None = None,
        replace: bool = False,
    ) -> TopicSource:
        """Declare the columns of a topic's records, so that tables can read `topics.<topic>`.

        `schema` is as in CREATE TABLE: `id BIGINT, amount DOUBLE`. Without `key` every record is a
        row; with key columns the last record for each key is its row.
        """
        source = declare_topic(topic, schema, key=key, url=url)
        self._definer.declare(source, may_exist=replace)
        return source

    def forget_topic(self, topic: str) -> None:
        """Remove a topic's declaration; refused while a table reads it."""
        self._definer.forget(topic)

    def topics(self) -> list[TopicSource]:
        """The topics that tables may read."""
        return list(self._store.definitions().topics.values())

    def topic(self, topic: str) -> TopicSource:
        """One declaration."""
        try:
            return self._store.definitions().topics[topic_source(topic)]
        except KeyError:
            raise SourceNotFound(topic) from None

    # control -------------------------------------------------------------------------------------

    def pause(self, name: str) -> None:
        """Stop refreshing a table; its readers continue with its last good data."""
        self._set_status(name, Status.PAUSED)

    def resume(self, name: str) -> None:
        """Resume a table that was paused, suspended or in error; it is due at once."""
        self._set_status(name, Status.ACTIVE)

    def gate(self, relation: str, detail: str = "") -> None:
        """Gate a source: nothing that reads it is refreshed until `ungate`."""
        name = relation_name(relation.split("."))
        self._check_relation(name)
        self._store.run(rows.CLOSE_GATE, name, self._clock.now_ms(), detail)
        self._notify()

    def ungate(self, relation: str) -> None:
        """Open a gated source. Idempotent."""
        name = relation_name(relation.split("."))
        if not self._store.run(rows.OPEN_GATE, name):
            self._check_relation(name)
        self._notify()

    def gates(self) -> tuple[str, ...]:
        """The gated sources."""
        return tuple(str(name) for (name,) in self.lake.query(rows.SELECT_GATES))

    def drain(self, *, wait_ms: int | None = None) -> bool:
        """Start nothing new; wait up to `wait_ms` and return whether nothing is running."""
        self._store.run(rows.SET_VALUE, rows.DRAINING, "1")
        with self.notifier() as call:
            call.notify()
            return self._until(call, lambda: not self.jobs(live_only=True), wait_ms or 0)

    def undrain(self) -> None:
        """Start refreshes again."""
        self._store.run(rows.SET_VALUE, rows.DRAINING, "0")
        self._notify()

    def refresh(
        self,
        name: str,
        *,
        force: bool = False,
        wait_ms: int | None = 600_000,
        here: bool = False,
        tell: Callable[[RefreshProgress], None] | None = None,
    ) -> Answered:
        """Refresh a table now: through the coordinator if one runs, otherwise in this process.

        If none of its inputs changed it is not refreshed, unless forced. With `wait_ms` None it
        does not wait for the coordinator's answer. `here` always refreshes in this process, under
        the same locks. `tell` receives the progress of a refresh in this process.
        """
        table = self.table(name).name
        if here or not self._status.is_coordinated():
            with self._in_use:
                return Answered(
                    *refresh_here(self._store, self.settings, self._engine(), table, force, tell)
                )
        with self.notifier() as call:
            request_id = self._ask(table, force=force)
            call.notify()
            if wait_ms is None:
                return Answered(True, "asked for")
            return self._await(call, table, request_id, wait_ms)

    def ask(self, name: str, *, force: bool = False) -> str:
        """Request a refresh from the coordinator without waiting; returns the id for `answer`."""
        table = self.table(name).name
        if not self._status.is_coordinated():
            raise NotCoordinated(
                f"no coordinator is running to refresh {table}: start one with `penstock table run`"
            )
        request_id = self._ask(table, force=force)
        self._notify()
        return request_id

    def _ask(self, table: str, *, force: bool) -> str:
        request_id = uuid4().hex
        now_ms = self._clock.now_ms()
        self._store.run(rows.INSERT_REQUEST, request_id, table, int(force), now_ms)
        return request_id

    def notifier(self) -> NotifierCall:
        """A connection to the coordinator, for notifications both ways; the caller closes it."""
        return NotifierCall(notify_address(self._store))

    def answer(self, request_id: str) -> Answered | None:
        """The outcome of a requested refresh; None while there is none."""
        found = self.lake.query(rows.ANSWER_IS, (request_id,))
        return Answered(bool(found[0][0]), str(found[0][1])) if found else None

    def _await(self, call: NotifierCall, table: str, request_id: str, wait_ms: int) -> Answered:
        found: list[Answered] = []

        def answered() -> bool:
            answer = self.answer(request_id)
            found.extend([answer] if answer else [])
            return bool(found)

        patience_ms = min(wait_ms, UNFIT_MS)
        if not self._until(call, answered, patience_ms):
            report = self._status.report()
            if report is not None and report["unfit"]:
                raise Unavailable(f"workers cannot start: {report['unfit']}")
        if not self._until(call, answered, wait_ms - patience_ms):
            raise Busy(f"{table} was not refreshed within {wait_ms} ms; the request still stands")
        return found[0]

    def coordinator(
        self, *, say: Callable[[str], None] | None = None, random: Random | None = None
    ) -> CoordinatorLoop:
        """A coordinator: `run()` it in the foreground, or use it as a context in a thread."""
        return CoordinatorLoop(
            self._store, self.settings, clock=self._clock, say=say, random=random
        )

    def sweep(self, *, grace_ms: int = 3_600_000) -> list[str]:
        """Remove files that no snapshot references; returns their paths."""
        return sweep(self.lake, grace_ms=grace_ms)

    # looking -------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The warehouse's time."""
        return self._clock.now_ms()

    def together(self) -> AbstractContextManager[None]:
        """What this thread asks of the tables' states within is as of one time, and read once."""
        return self._status.together()

    def status(self) -> list[TableHealth]:
        """Every table: whether it is fresh, and what it waits for."""
        return self._status.status()

    def definitions(self) -> Definitions:
        """Every definition, with the version of their graph."""
        return self._store.definitions()

    def row_counts(self) -> dict[str, int]:
        """How many rows each table of the lake has, by the names that queries use."""
        with self.lake.look() as reader:
            counts: dict[int, int | None] = dict(reader.rows(rows.SELECT_ROW_COUNTS))
            found = reader.tables(reader.latest().id)
        return {
            relation_name([table.schema.name, table.name]): int(counts.get(table.id) or 0)
            for table in found
            if table.schema.name != STATE_SCHEMA
        }

    def lake_names(self, at: int) -> dict[str, str]:
        """The tables of the lake at a snapshot: names that queries use, and full names."""
        return {
            relation_name([table.schema.name, table.name]): f"{table.schema.name}.{table.name}"
            for table in self.lake.tables(at)
            if table.schema.name != STATE_SCHEMA
        }

    def outcomes(self, limit: int) -> dict[str, list[RefreshRecord]]:
        """The last refreshes of each table, newest first."""
        return self._store.outcomes(limit)

    def details(self) -> dict[str, str]:
        """Why tables are suspended or in error."""
        return dict(self._store.definitions().details)

    def why(self, name: str) -> Why:
        """Why a table waits."""
        return self._status.why(self.table(name).name)

    def history(self, name: str | None = None, *, limit: int = 100) -> list[RefreshRecord]:
        """Refreshes, newest first."""
        table = None if name is None else lake_name(name)
        return self._store.history(table, limit=limit)

    def jobs(
        self, *, live_only: bool = False, limit: int | None = 100, since_ms: int = 0
    ) -> list[RefreshJob]:
        """Jobs, newest first; those that ended after a time, and all that have not ended."""
        return self._status.jobs(live_only=live_only, limit=limit, since_ms=since_ms)

    def pool(self) -> PoolStatus:
        """The coordinator's work as last reported, its workers, and the permits."""
        return self._status.pool()

    def health(self) -> CoordinatorHealth:
        """One word and one sentence: ok, degraded, draining, saturated, stalled, not running."""
        return self._status.health()

    def explain(self, name: str) -> dict[str, Any]:
        """What is known about a table: unit, inputs, last refresh, and the engine's explanation."""
        table = self.table(name)
        found = self._status.explain(table)
        if self._made is not None and isinstance(self._made, Explains):
            found["engine"] = dict(self._made.explain(table))
        return found

    def explain_query(self, query: str) -> dict[str, Any]:
        """Whether and how a query would be brought up to date; it need not be a table's."""
        return self._status.explain_query(query)

    # reading -------------------------------------------------------------------------------------

    def rows(
        self,
        name: str,
        *,
        at: int | None = None,
        offset: int = 0,
        limit: int = 1_000,
        columns: Sequence[str] | None = None,
    ) -> TablePage:
        """Rows of a lake table, read in this process; at the newest snapshot by default.

        Rows of a stream table follow the ORDER BY at the end of its query.
        """
        plain = relation_name(name.split("."))
        snapshot = self.lake.snapshot(at)
        defined = self._store.definitions().graph.tables.get(plain)
        try:
            version = self.lake.table_at(plain, snapshot.id)
        except Rejected:
            if defined is not None:
                raise NoContents(plain, snapshot.id) from None
            raise TableNotFound(plain, nearest_relation(plain, self._relations())) from None
        names = [column.name for column in version.table.columns]
        order = () if defined is None else final_order(defined.query, names)
        return read_page(
            self.lake, version, offset=offset, limit=limit, columns=columns, order=order
        )

    def watched(self, name: str) -> tuple[str, str, int]:
        """Where a watch of a table begins: its name, which table it is, and the newest snapshot."""
        plain = relation_name(name.split("."))
        defined = plain in self._store.definitions().graph.tables
        table, snapshot = current_table(self.lake, plain, defined=defined)
        return plain, table.uuid, snapshot

    def next_change(
        self, name: str, uuid: str, after: int, *, rows_max: int
    ) -> WatchedChange | ResetNeeded | Unchanged:
        """What the next commit after a snapshot changed in a table."""
        found = next_step(self.lake, name, uuid, after)
        if not isinstance(found, TableStep):
            return found
        change = read_step(self.lake, found, rows_max)
        if isinstance(change, ResetNeeded):
            return change
        known = self._store.definitions()
        key = None
        if name in known.graph.tables:
            key = table_key(known, stored_relations(self.lake, known), name)
        return WatchedChange.of(change, key, frontier_at(self.lake, name, change.snapshot))

    def query(self, text: str) -> pa.Table:
        """The rows of a table (just its name, read here), or of a SELECT (run by the engine)."""
        if len(text.split()) < 2:
            return self.rows(text.strip(), limit=sys.maxsize).rows
        sources = read_sources(text)
        topics = [name for name in sources if topic_of(name) is not None]
        if topics:
            raise Rejected(
                f"a query cannot read topics ({', '.join(topics)}): create a table of it, and "
                "query that"
            )
        at = self.lake.latest()
        known = lake_shapes(self.lake.tables(at))
        for name in sources:
            if name not in known and name in self._store.definitions().graph.tables:
                raise NoContents(name, at.id)
        resolve(text, known)
        with self._in_use:
            return self._engine().query(text, {n: self.lake.table_at(n, at) for n in sources})

    def verify(self, name: str) -> Verified:
        """Run the query of a table at its frontier, and compare its rows with the contents.

        Raises `Gone` if the lake no longer has what the contents were made from.
        """
        key = self.settings.topics_api_key
        with self._in_use:
            return verify(self._store, self._engine(), self.table(name), key)

    def check_engine(self) -> None:
        """Reject an engine that could never work on this lake, if its module can tell."""
        runner = self.settings.runner
        check = runner.beside("check")
        if check is not None:
            check(self.lake, dict(runner.options))

    # inside --------------------------------------------------------------------------------------

    def _engine(self) -> Refresher:
        if self._made is None:
            self._made = self.settings.runner.refresher(self.lake)
        return self._made

    def _check_query(self, table: TableDefinition, known: Definitions) -> None:
        """Let the engine reject a query, if there is one at hand and it is idle."""
        if self._made is None:
            at_hand = self.settings.runner.beside("is_at_hand")
            if at_hand is None or not at_hand(self.settings.runner.options):
                return
        if not self._in_use.acquire(blocking=False):
            return
        try:
            engine = self._engine()
            if not isinstance(engine, Checks):
                return
            try:
                self._checked(engine, table, known, refreshed=False)
            except Rejected:
                if not any(name in known.graph.tables for name in table.sources):
                    raise
                self._checked(engine, table, known, refreshed=True)
        finally:
            self._in_use.release()

    def _checked(
        self, engine: Checks, table: TableDefinition, known: Definitions, *, refreshed: bool
    ) -> None:
        inputs = inputs_of(self._store, table, known, refreshed=refreshed)
        if inputs is not None:
            engine.check(table.query, inputs)

    def _relations(self) -> list[str]:
        """All relations that a query could name."""
        found = self._store.definitions()
        lake = lake_shapes(self.lake.tables())
        return [*lake, *found.topics, *found.graph.tables, *found.graph.sources]

    def _check_relation(self, name: str) -> None:
        known = self._relations()
        if name not in known:
            near = did_you_mean(nearest_relation(name, known))
            there = f"there are {listed(sorted(known))}" if known else None
            raise RelationNotFound(
                not_there(f"no table or declared topic {name!r}", near, there), relation=name
            )

    def _set_status(self, name: str, status: Status) -> None:
        table = self.table(name).name
        self._store.run(rows.SET_STATUS, status.value, table)
        self._notify()

    def _check_topic(self, table: TableDefinition) -> None:
        """Reject a topic that cannot take the changes of a table."""
        writer = self.settings.topic_writer()
        if writer is None:
            raise PublishRefused("this warehouse was opened without topics: pass `topics`")
        try:
            writer.head(table.publish_url, table.publish)
        finally:
            writer.close()

    def _notify(self) -> None:
        """Make a coordinator on this machine read the changes immediately.

        The changes are committed, so a catalog that is away now is not their failure.
        """
        with suppress(CatalogAway), self.notifier() as call:
            call.notify()

    def _until(self, call: NotifierCall, condition: Callable[[], bool], wait_ms: int) -> bool:
        """Wait for a condition on the catalog, which the coordinator notifies about."""
        until_ms = self._clock.monotonic_ms() + wait_ms
        while not condition():
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return False
            call.wait(left_ms / 1_000)
        return True


def _check_place(settings: WarehouseSettings) -> None:
    """Let the engine reject a remote data path that it could not use."""
    if settings.data_path is not None and "://" in settings.data_path:
        check = settings.runner.beside("check_data_path")
        if check is not None:
            check(settings.runner.options, settings.data_path)
