"""What is looked at for the overview: the server, its queues, the warehouse; each once a second.

Each answer has one function that takes the context and returns the struct: `verdict_of`,
`waiting_of`, `parts_list`, `pipeline_of`, `pipeline_history`,
`graph_shown`. Handlers and live frames call it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from penstock.kernel.errors import PenstockError
from penstock.kernel.units import format_ms
from penstock.protocol.errors import NoWarehouse, PartNotFound
from penstock.protocol.lake_answers import Graph
from penstock.protocol.own_topics import part_topic
from penstock.protocol.part_answers import (
    AWAY_AFTER_MS,
    PartList,
    PartState,
    PipelineHistory,
    PipelineState,
    Verdict,
    Waiting,
    WaitingList,
)
from penstock.server.overview.cached import Cached
from penstock.server.overview.graph import flows_of, graph_of, look_at_graph
from penstock.server.overview.parts import SERVER, parts_of
from penstock.server.overview.pipeline import Ledger, chosen, pipeline_state
from penstock.server.overview.verdict import (
    Facts,
    PartFacts,
    PipelineFacts,
    ServerFacts,
    TableFacts,
    WarehouseFacts,
    verdict,
)
from penstock.server.overview.waiting import (
    EACH_MAX,
    WaitingJobs,
    longest_first,
    queues_with_jobs,
    waiting_ingest,
    waiting_queue,
    waiting_routers,
    waiting_table,
    waiting_topics,
    waiting_watchers,
)
from penstock.topics.engine.views import partitions_view

if TYPE_CHECKING:
    from penstock.server.api.call import Context
    from penstock.tables.core.freshness import Freshness
    from penstock.tables.core.health import TableHealth
    from penstock.tables.status import Running
    from penstock.tables.warehouse import Warehouse

WAREHOUSE_S: Final = 2.0
"""How long an answer waits for the warehouse; after that it goes without."""
QUEUES_SHARE: Final = 20
"""Looking over all queues may take a twentieth of the time at most."""
SLICE_NS: Final = 500_000
_TOPICS: Final = frozenset({"topic", "queue", "router", "watcher"})
"""The kinds of what waits that a key with prefixes may see, if its prefixes reach the name."""

T = TypeVar("T")
Reaches = Callable[[str], bool]


class TablesLook(NamedTuple):
    """The stream tables at a moment. `trouble` is why the warehouse did not answer."""

    at: int
    state: str = ""
    text: str = ""
    rows: tuple[TableHealth, ...] = ()
    fresh: tuple[Freshness, ...] = ()
    running: tuple[Running, ...] = ()
    trouble: str | None = None


@dataclass(slots=True)
class Looks:
    """Everything that is looked at once for all callers."""

    context: Context
    tables: Cached[TablesLook | None] = field(init=False)
    queues: Cached[list[WaitingJobs]] = field(init=False)
    graph: Cached[Graph | None] = field(init=False)
    parts: Cached[list[PartState]] = field(init=False)
    pipeline: Cached[PipelineState] = field(init=False)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    selecting: set[bytes] = field(default_factory=set)
    """The keys of which a query runs."""
    verdict: Cached[Verdict] = field(init=False)
    waiting: Cached[list[Waiting]] = field(init=False)

    _asked_ms: int = 0
    """Since when the warehouse owes an answer; 0 if it does not."""
    _answered: TablesLook | None = None
    """Its last one."""

    def __post_init__(self) -> None:
        clock = self.context.clock
        self.tables = Cached(self._look_at_tables, clock)
        self.queues = Cached(self._look_at_queues, clock, share=QUEUES_SHARE)
        self.graph = Cached(self._draw, clock)
        self.parts = Cached(self._look_at_parts, clock)
        self.pipeline = Cached(self._look_at_pipeline, clock)
        self.verdict = Cached(self._judge, clock)
        self.waiting = Cached(self._gather, clock)

    def now_ms(self) -> int:
        """The server's time."""
        return self.context.engine.clock.now_ms()

    def forget(self) -> None:
        """Look again at the parts: one was told to do something."""
        for each in (self.parts, self.pipeline, self.verdict, self.waiting):
            each.forget()

    async def tables_soon(self) -> TablesLook | None:
        """The tables, or that the warehouse does not answer: a short delay shows the last answer.

        None without a warehouse, and while it is being opened: that may take seconds.
        """
        clock = self.context.clock
        asked_ms = self._asked_ms = self._asked_ms or clock.monotonic_ms()
        try:
            found = await asyncio.wait_for(self.tables.get(), WAREHOUSE_S)
            self._asked_ms, self._answered = 0, found
            return found
        except TimeoutError:
            if self.context.tables is None or not self.context.tables.is_open:
                return None
            silent_ms = clock.monotonic_ms() - asked_ms
            if silent_ms < AWAY_AFTER_MS:
                return self._answered
            trouble = f"the warehouse has not answered for {format_ms(silent_ms)}"
            return TablesLook(self.now_ms(), trouble=trouble)
        except PenstockError as error:
            self._asked_ms = 0  # it answered, if only that it cannot
            return TablesLook(self.now_ms(), trouble=self.context.hide(error.message, 503))

    async def _look_at_tables(self) -> TablesLook | None:
        tables = self.context.tables
        return None if tables is None else await tables.look(look_at_tables)

    async def _look_at_queues(self) -> list[WaitingJobs]:
        """In slices: there may be very many."""
        now_ms = self.now_ms()
        found: list[WaitingJobs] = []
        for writer in self.context.engine.writers:
            looks = self._in_slices(queues_with_jobs(writer.partition, now_ms))
            found += [jobs async for jobs in looks if jobs is not None]
        return found

    async def _in_slices(self, steps: Iterator[T]) -> AsyncIterator[T]:
        """Take a few steps in each iteration of the event loop."""
        clock = self.context.clock
        until_ns = clock.monotonic_ns() + SLICE_NS
        for step in steps:
            yield step
            if clock.monotonic_ns() >= until_ns:
                await asyncio.sleep(0)
                until_ns = clock.monotonic_ns() + SLICE_NS

    async def _look_at_parts(self) -> list[PartState]:
        return parts_of(self.context)

    async def _look_at_pipeline(self) -> PipelineState:
        part = chosen(await self.parts.get())
        ledger = None if part is None else await self.ledger(part.part)
        return pipeline_state(part, ledger, self.now_ms())

    async def ledger(self, part: str) -> Ledger | None:
        """The reports of a part up to now; None if it has none."""
        topics = self.context.engine.registry.topics
        topic = topics.get(part_topic(part))
        if topic is None:
            self.ledgers.pop(part, None)
            return None
        if part not in self.ledgers:
            for gone in [each for each in self.ledgers if part_topic(each) not in topics]:
                del self.ledgers[gone]
        ledger = self.ledgers.setdefault(part, Ledger())
        async for _ in self._in_slices(ledger.catch_up(topic)):
            pass
        return ledger

    async def _draw(self) -> Graph | None:
        tables = self.context.tables
        if tables is None:
            return None
        structure = await tables.look(look_at_graph)
        look = await self.tables_soon() or TablesLook(self.now_ms())
        flows = flows_of(await self.parts.get())
        return graph_of(structure, look, flows, self._head_seq)

    def _head_seq(self, topic: str) -> int | None:
        found = self.context.engine.registry.topics.get(topic)
        return None if found is None else found.head_seq

    async def _judge(self) -> Verdict:
        look = await self.tables_soon()
        return verdict(
            Facts(
                at=self.now_ms(),
                server=server_facts(self.context),
                parts=tuple(map(part_facts, await self.parts.get())),
                pipeline=pipeline_facts(await self.pipeline.get()),
                warehouse=None if look is None or look.trouble else warehouse_facts(look),
                warehouse_away=None if look is None else look.trouble,
            )
        )

    async def _gather(self) -> list[Waiting]:
        look, jobs = await self.tables_soon(), await self.queues.get()
        pipeline = await self.pipeline.get()
        engine, now_ms = self.context.engine, self.now_ms()
        found = [*waiting_topics(engine, now_ms), *waiting_routers(engine)]
        if engine.watchers.slow:
            found += islice(waiting_watchers(list(self.context.streams), now_ms), EACH_MAX)
        found += [waiting_queue(each, now_ms) for each in jobs]
        found += waiting_ingest(pipeline)
        if look is not None:
            found += _waiting_tables(look)
        return longest_first(found)


async def verdict_of(context: Context, *, everything: bool = True) -> Verdict:
    """How things stand; without `everything`, as far as the server's own load goes."""
    if not everything:
        return verdict(Facts(at=context.looks.now_ms(), server=server_facts(context)))
    return await context.looks.verdict.get()


async def waiting_of(
    context: Context, reaches: Reaches | None = None, limit: int | None = None
) -> WaitingList:
    """What waits, at most `limit`; with `reaches`, only topics and queues that may be seen."""
    found = await context.looks.waiting.get()
    if reaches is not None:
        found = [each for each in found if each.kind in _TOPICS and reaches(each.name)]
    return WaitingList(at=context.looks.now_ms(), waiting=found[:limit], total=len(found))


async def parts_list(context: Context) -> PartList:
    """Every part that reports to this server, and the server itself first."""
    return PartList(at=context.looks.now_ms(), parts=await context.looks.parts.get())


async def graph_shown(context: Context) -> Graph:
    """What reads what, with the states of the tables; `NoWarehouse` if there is none."""
    found = await context.looks.graph.get()
    if found is None:
        raise NoWarehouse
    return found


async def pipeline_of(context: Context, part: str | None = None) -> PipelineState:
    """The ingest pipeline: that of a part, or the one that is most alive."""
    looks = context.looks
    if part is None:
        return await looks.pipeline.get()
    found = await _ingest_part(looks, part)
    return pipeline_state(found, await looks.ledger(found.part), looks.now_ms())


async def pipeline_history(
    context: Context, part: str | None = None, since_ms: int = 0
) -> PipelineHistory:
    """The pipeline second by second, after a time."""
    looks = context.looks
    found = chosen(await looks.parts.get()) if part is None else await _ingest_part(looks, part)
    ledger = None if found is None else await looks.ledger(found.part)
    return (ledger or Ledger()).history(since_ms)


async def _ingest_part(looks: Looks, part: str) -> PartState:
    found = chosen(await looks.parts.get(), part)
    if found is None:
        raise PartNotFound(part)
    return found


def part_facts(part: PartState) -> PartFacts:
    """A part as the verdict needs it; troubles of ingest are told of with its pipeline."""
    told = part.kind == SERVER or (part.kind == "ingest" and part.state == "failing")
    state = "ok" if told else part.state
    return PartFacts(part.part, part.kind, state, part.text, part.age_ms or 0)


def pipeline_facts(pipeline: PipelineState) -> PipelineFacts | None:
    """The pipeline as the verdict needs it; what it was before it went away is not told."""
    if pipeline.state in ("none", "away", "ended"):
        return None
    held = tuple(stage.name for stage in pipeline.stages if stage.held)
    return PipelineFacts(
        pipeline.bottleneck, pipeline.behind, pipeline.behind_ms, held, pipeline.trouble
    )


def server_facts(context: Context) -> ServerFacts:
    """The server itself, from counters."""
    engine = context.engine
    rung, partitions = engine.turns.rung, partitions_view(engine)
    reason = engine.journal.store.status().read_only_reason
    return ServerFacts(
        rung=rung.level.name.lower(),
        pressure=rung.pressure,
        coalesce_ms=rung.coalesce_ms,
        commit_window_ms=rung.commit_window_ms,
        refusing=rung.refusing,
        retry_after_ms=rung.retry_after_ms,
        read_only=None if reason is None else context.hide(reason, 503),
        replay_progress=1.0 if engine.ready else engine.replay_progress,
        draining=context.draining,
        partitions=partitions["total"],
        failed=context.failed_partitions(),
        watchers_stuck=engine.watchers.slow,
    )


def look_at_tables(warehouse: Warehouse) -> TablesLook:
    """The tables now. Reads the catalog: not on the event loop."""
    from penstock.tables.core.freshness import freshness

    health, rows = warehouse.health(), tuple(warehouse.status())
    now_ms = warehouse.now_ms()
    fresh = tuple(freshness(row, now_ms) for row in rows)
    running = warehouse.pool().running
    return TablesLook(now_ms, health.state.value, health.text, rows, fresh, running)


def warehouse_facts(look: TablesLook) -> WarehouseFacts:
    """The tables as the verdict needs them."""
    tables = tuple(
        TableFacts(row.table, fresh.state, row.waiting_for, fresh.stale_by_ms)
        for row, fresh in zip(look.rows, look.fresh, strict=True)
    )
    return WarehouseFacts(look.state, look.text, tables)


def _waiting_tables(look: TablesLook) -> Iterator[Waiting]:
    for row, fresh in zip(look.rows, look.fresh, strict=True):
        waits = waiting_table(row, fresh, look.at)
        if waits is not None:
            yield waits
