"""A warehouse of stream tables: define them, look at them, have them refreshed.

>>> import tempfile
>>> home = tempfile.mkdtemp()
>>> with Warehouse.open(f"sqlite:{home}/lake.sqlite") as warehouse:
...     _ = warehouse.create("daily", "SELECT day, count(*) AS n FROM orders GROUP BY day")
...     [(row.table, row.reason.value) for row in warehouse.status()]
[('daily', 'ready')]
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Self
from uuid import uuid4

import pyarrow as pa

from penstock.kernel.clock import Clock
from penstock.kernel.errors import Busy, Rejected, Unavailable
from penstock.kernel.shell import SystemClock
from penstock.lake.shell.catalog import Catalog, open_catalog
from penstock.lake.shell.expire import sweep
from penstock.tables.dispatch import Coordinator
from penstock.tables.errors import SourceNotFound
from penstock.tables.events import Tick
from penstock.tables.frontier import Frontier
from penstock.tables.health import Health, HealthState, Pool, TableStatus, health, table_rows
from penstock.tables.history import RefreshRecord
from penstock.tables.jobs import Job
from penstock.tables.model import Mode, Status, TableDefinition, define
from penstock.tables.names import lake_name, relation_name, topic_of, topic_source
from penstock.tables.plan import TablePlan
from penstock.tables.shell.alive import process_name
from penstock.tables.shell.coordinator import CoordinatorLoop
from penstock.tables.shell.definitions import Definer
from penstock.tables.shell.manual import refresh_here
from penstock.tables.shell.refresher import Explains, Factory, Refresher
from penstock.tables.shell.settings import SPARK, WarehouseSettings
from penstock.tables.shell.store import COORDINATOR, DRAINING, SET_VALUE, Store
from penstock.tables.shell.watching import Watcher, memory_of
from penstock.tables.slots import ParallelMode
from penstock.tables.sources import read_sources
from penstock.tables.topics import TopicSource, declare_topic
from penstock.tables.units import ExecutionUnitGraph
from penstock.tables.verdict import Reason

UNFIT_MS: Final = 10_000
"""How long a request waits before it is asked whether workers can start at all."""


class Answered(NamedTuple):
    """What became of a refresh that a person asked for."""

    ok: bool
    detail: str


class Why(NamedTuple):
    """Why a table waits, and who says so: the coordinator, or this process by the same rules."""

    table: str
    unit_key: str
    reason: Reason
    text: str
    coordinated: bool


class PoolStatus(NamedTuple):
    """The coordinator's work, its workers, and who holds the cluster's permits."""

    pool: Pool | None
    workers: tuple[Mapping[str, Any], ...]
    unfit: str | None
    permits: Mapping[str, int]
    permits_max: int


class Warehouse:
    """Stream tables on a lake. Threads may share it, but for `query` and refreshes made here."""

    def __init__(
        self, settings: WarehouseSettings, *, make: bool = True, clock: Clock | None = None
    ) -> None:
        self.settings = settings
        self._clock: Clock = clock or SystemClock()
        self.lake: Catalog = open_catalog(
            settings.catalog, settings.data_path, create=make, clock=clock
        )
        self._store = Store(self.lake)
        self._definer = Definer(self._store)
        self._made: Refresher | None = None

    @classmethod
    def open(
        cls,
        catalog: str,
        data_path: str | None = None,
        *,
        runner: str = SPARK,
        runner_options: Mapping[str, Any] | None = None,
        make: bool = True,
        **settings: Any,
    ) -> Self:
        """Open a warehouse, or with `make` make one where there is none.

        `runner` names the engine; it is loaded when something has to be run. Other options are
        those of `WarehouseSettings`.
        """
        if isinstance(settings.get("parallel_refresh_mode"), str):
            settings["parallel_refresh_mode"] = ParallelMode(settings["parallel_refresh_mode"])
        factory = Factory(runner, dict(runner_options or {}))
        return cls(WarehouseSettings(catalog, data_path, factory, **settings), make=make)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the engine and of the catalog."""
        if self._made is not None:
            self._made.close()
        self.lake.close()

    # definitions ---------------------------------------------------------------------------------

    def create(self, name: str, query: str, **options: str) -> TableDefinition:
        """Create a table; its contents are made by its first refresh.

        `options` are schedule, mode, consistency, status and description, as people write them.
        """
        table = define(name, query, **options)
        self._definer.put(table, may_exist=False)
        return table

    def create_or_replace(self, name: str, query: str, **options: str) -> TableDefinition:
        """Create a table or give it another definition; another query makes its contents anew."""
        table = define(name, query, **options)
        self._definer.put(table, may_exist=True)
        return table

    def alter(self, name: str, **options: str) -> TableDefinition:
        """Change schedule, mode, consistency or description; contents stay."""
        unknown = set(options) - {"schedule", "mode", "consistency", "description"}
        if unknown:
            raise Rejected(
                "expected schedule, mode, consistency or description, "
                f"found {', '.join(sorted(unknown))}"
            )
        before = self.table(name)
        kept = {
            "schedule": before.schedule.text,
            "mode": before.mode.value,
            "consistency": before.consistency.value,
            "description": before.description,
        }
        if options.get("mode", "").upper() == Mode.IMMEDIATE.value and "schedule" not in options:
            kept["schedule"] = "calculated"
        table = define(before.name, before.query, **{**kept, **options})
        self._definer.alter(before.name, replace(table, volatile=before.volatile))
        return table

    def drop(self, name: str, *, cascade: bool = False) -> tuple[str, ...]:
        """Drop a table with its contents, and with `cascade` all that read it."""
        return self._definer.drop(lake_name(name), cascade=cascade)

    def plan(self, folder: str | Path, *, prune: bool = True) -> TablePlan:
        """What `apply` would do."""
        return self._definer.plan(Path(folder), prune=prune)

    def apply(self, folder: str | Path, *, prune: bool = True) -> TablePlan:
        """Make the tables of a folder of `.sql` files the tables there are."""
        return self._definer.apply(Path(folder), prune=prune)

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
        """Say which columns a topic's records have, so that tables can read `topics.<topic>`.

        `schema` is as in CREATE TABLE: `id BIGINT, amount DOUBLE`. Without `key` every record is a
        row; with key columns the last record for each key is its row.
        """
        source = declare_topic(topic, schema, key=key, url=url)
        self._definer.declare(source, may_exist=replace)
        return source

    def forget_topic(self, topic: str) -> None:
        """Take a declaration back; refused while a table reads the topic."""
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
        """Stop refreshing a table; those that read it go on with its last good data."""
        self._set_status(name, Status.PAUSED)

    def resume(self, name: str) -> None:
        """Refresh a table again that was paused, suspended or in error; it is due at once."""
        self._set_status(name, Status.ACTIVE)

    def gate(self, relation: str, detail: str = "") -> None:
        """Close a source: nothing that reads it is refreshed until it is opened."""
        self._store.run(
            "INSERT INTO penstock_gates (relation, closed_at, detail) VALUES (?, ?, ?) "
            "ON CONFLICT (relation) DO NOTHING",
            relation_name(relation.split(".")),
            self._clock.now_ms(),
            detail,
        )

    def ungate(self, relation: str) -> None:
        """Open a source again."""
        name = relation_name(relation.split("."))
        self._store.run("DELETE FROM penstock_gates WHERE relation = ?", name)

    def gates(self) -> tuple[str, ...]:
        """The sources that are closed."""
        rows = self.lake.query("SELECT relation FROM penstock_gates ORDER BY relation")
        return tuple(str(name) for (name,) in rows)

    def drain(self, *, wait_ms: int | None = None) -> bool:
        """Start nothing new; returns whether nothing runs any more, having waited so long."""
        self._store.run(SET_VALUE, DRAINING, "1")
        return self._until(lambda: not self._store.jobs(live_only=True), wait_ms or 0)

    def undrain(self) -> None:
        """Start refreshes again."""
        self._store.run(SET_VALUE, DRAINING, "0")

    def refresh(
        self, name: str, *, force: bool = False, wait_ms: int | None = 600_000, here: bool = False
    ) -> Answered:
        """Refresh a table now: through the coordinator if one runs, else in this process.

        Where nothing it reads has changed it is not refreshed, unless forced. With `wait_ms` None
        a coordinator's answer is not waited for. `here` does it in this process in any case; the
        locks are the same.
        """
        table = self.table(name).name
        if here or not self._is_coordinated():
            return Answered(*refresh_here(self._store, self.settings, self._engine(), table, force))
        request_id = uuid4().hex
        self._store.run(
            "INSERT INTO penstock_requests (request_id, table_name, is_forced, asked_at) "
            "VALUES (?, ?, ?, ?)",
            request_id, table, int(force), self._clock.now_ms(),
        )  # fmt: skip
        if wait_ms is None:
            return Answered(True, "asked for")
        return self._answer(table, request_id, wait_ms)

    def _answer(self, table: str, request_id: str, wait_ms: int) -> Answered:
        found: list[Answered] = []

        def answered() -> bool:
            rows = self.lake.query(
                "SELECT is_ok, detail FROM penstock_requests "
                "WHERE request_id = ? AND answered_at IS NOT NULL",
                (request_id,),
            )
            found.extend(Answered(bool(ok), str(detail)) for ok, detail in rows)
            return bool(found)

        patience_ms = min(wait_ms, UNFIT_MS)
        if not self._until(answered, patience_ms):
            board = self._board()
            if board is not None and board["unfit"]:
                raise Unavailable(f"expected workers to start, found: {board['unfit']}")
        if not self._until(answered, wait_ms - patience_ms):
            raise Busy(f"expected {table} to be refreshed within {wait_ms} ms, found it waiting")
        return found[0]

    def coordinator(
        self, *, say: Callable[[str], None] | None = None, random: Random | None = None
    ) -> CoordinatorLoop:
        """A coordinator: `run()` it in the foreground, or use it as a context in a thread."""
        return CoordinatorLoop(
            self._store, self.settings, clock=self._clock, say=say, random=random
        )

    def sweep(self, *, grace_ms: int = 3_600_000) -> list[str]:
        """Remove files that no snapshot names; returns their paths."""
        return sweep(self.lake, grace_ms=grace_ms)

    # looking -------------------------------------------------------------------------------------

    def status(self) -> list[TableStatus]:
        """Every table: whether it is fresh, and what it waits for."""
        board = self._board()
        if board is not None and self._is_coordinated():
            rows = [_status_row(row) for row in board["tables"]]
            graph = self._store.definitions().graph
            if {row.table for row in rows} == set(graph.tables):
                return rows
        core = self._replica()
        return table_rows(core, self._clock.now_ms())

    def details(self) -> dict[str, str]:
        """Why tables were suspended or are in error."""
        return self._store.definitions().details

    def why(self, name: str) -> Why:
        """Why a table waits."""
        table = self.table(name).name
        coordinated = self._is_coordinated()
        row = next(row for row in self.status() if row.table == table)
        note = "" if coordinated else "; no coordinator is running"
        text = row.waiting_for + note
        detail = self.details().get(table)
        if detail and row.status is not Status.ACTIVE:
            text += f": {detail}"
        return Why(table, row.unit_key, row.reason, text, coordinated)

    def history(self, name: str | None = None, *, limit: int = 100) -> list[RefreshRecord]:
        """Refreshes, the newest first."""
        table = None if name is None else lake_name(name)
        return self._store.history(table, limit=limit)

    def jobs(self, *, live_only: bool = False, limit: int | None = 100) -> list[Job]:
        """Jobs, the newest first."""
        return self._store.jobs(live_only=live_only, limit=limit)

    def pool(self) -> PoolStatus:
        """The coordinator's work as it last told, its workers, and the permits."""
        board = self._board()
        rows = self.lake.query(
            "SELECT holder, count(*) FROM penstock_tokens WHERE pool = ? AND holder IS NOT NULL "
            "GROUP BY holder",
            (self.settings.pool_name,),
        ) if self.settings.pool is None and self._has_tokens() else []  # fmt: skip
        return PoolStatus(
            _pool(board["pool"]) if board else None,
            tuple(board["workers"]) if board else (),
            board["unfit"] if board else None,
            {str(holder): int(count) for holder, count in rows},
            self.settings.max_workers,
        )

    def health(self) -> Health:
        """One word and one sentence: ok, degraded, draining, saturated, stalled, not running."""
        board = self._board()
        found = health(
            _pool(board["pool"]) if board else None,
            lease=self._store.lease(),
            now_ms=self._clock.now_ms(),
        )
        if board and board["unfit"] and found.state is not HealthState.NOT_RUNNING:
            return Health(HealthState.STALLED, f"workers cannot start: {board['unfit']}")
        return found

    def explain(self, name: str) -> dict[str, Any]:
        """What is known of a table: its unit, inputs, last refresh, and the engine's own words."""
        definitions = self._store.definitions()
        table = definitions.graph.table(lake_name(name))
        unit = ExecutionUnitGraph(definitions.graph).unit_of(table.name)
        with self.lake.look() as reader:
            known = self._store.frontiers(reader).get(table.name)
        last = self.history(table.name, limit=1)
        found: dict[str, Any] = {
            "table": table.name,
            "query": table.query,
            "mode": table.mode.value,
            "unit": {"key": unit.key, "kind": unit.kind.value, "members": list(unit.members)},
            "inputs": dict.fromkeys(table.sources),
            "last_refresh": None,
        }
        if known is not None:
            found["inputs"] |= {source: list(at) for source, at in known.frontier.items()}
        if last:
            found["last_refresh"] = {
                "outcome": last[0].outcome.value,
                "executed": last[0].executed.value if last[0].executed else None,
                "reason": last[0].reason.value,
                "reason_text": last[0].reason_text,
                "took_ms": last[0].took_ms,
                "rows_written": last[0].rows_written,
            }
        if self._made is not None and isinstance(self._made, Explains):
            found["engine"] = dict(self._made.explain(table))
        return found

    def query(self, text: str) -> pa.Table:
        """The rows of a table (its name alone, read here), or of a SELECT (run by the engine)."""
        if " " not in text.strip():
            return self.lake.scan(text.strip())
        sources = read_sources(text)
        topics = [name for name in sources if topic_of(name) is not None]
        if topics:
            raise Rejected(f"expected lake tables in a query, found {', '.join(topics)}")
        at = self.lake.latest()
        return self._engine().query(text, {n: self.lake.table_at(n, at) for n in sources})

    # inside --------------------------------------------------------------------------------------

    def _engine(self) -> Refresher:
        if self._made is None:
            self._made = self.settings.runner.refresher(self.lake)
        return self._made

    def _set_status(self, name: str, status: Status) -> None:
        table = self.table(name).name
        self._store.run(
            "UPDATE penstock_tables SET status = ?, status_detail = NULL WHERE name = ?",
            status.value,
            table,
        )

    def _is_coordinated(self) -> bool:
        lease, now_ms = self._store.lease(), self._clock.now_ms()
        if lease is None or lease.expires_ms <= now_ms:
            return False
        return self._store.is_alive(lease.holder, now_ms)

    def _board(self) -> dict[str, Any] | None:
        rows = self.lake.query("SELECT value FROM penstock_board WHERE name = ?", (COORDINATOR,))
        return json.loads(rows[0][0]) if rows else None

    def _has_tokens(self) -> bool:
        with self.lake.look() as reader:
            return "penstock_tokens" in self.lake.database.tables(reader.cursor)

    def _replica(self) -> Coordinator:
        """A core that knows what a coordinator would, and is asked but never obeyed."""
        with self.lake.look() as reader:
            memory = memory_of(self._store.frontiers(reader))
        core = Coordinator(process_name(), self.settings.dispatch, Random(0), memory=memory)
        for event in [*Watcher(self._store, core).look(frozenset()), Tick()]:
            core.step(event, self._clock.now_ms())
        return core

    def _until(self, condition: Callable[[], bool], wait_ms: int) -> bool:
        """Wait for something in the catalog."""
        until_ms = self._clock.monotonic_ms() + wait_ms
        pause = threading.Event()
        while not condition():
            if self._clock.monotonic_ms() >= until_ms:
                return False
            pause.wait(0.02)
        return True


def _status_row(row: Mapping[str, Any]) -> TableStatus:
    return TableStatus(
        **{
            **row,
            "status": Status(row["status"]),
            "mode": Mode(row["mode"]),
            "reason": Reason(row["reason"]),
            "frontier": Frontier.from_json(row["frontier"]) if row["frontier"] else None,
        }
    )


def _pool(found: Mapping[str, Any]) -> Pool:
    stopped: Iterable[tuple[str, str]] = found["stopped"]
    return Pool(
        **{
            **found,
            "parallel_refresh_mode": ParallelMode(found["parallel_refresh_mode"]),
            "stopped": tuple((table, Status(status)) for table, status in stopped),
        }
    )
