"""What is looked at for the overview: the server, its queues, the warehouse; each once a second.

Each answer has one function that takes the context and returns the struct: `verdict_of`,
`waiting_of`. Handlers and live frames call the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.kernel.errors import PenstockError
from penstock.protocol.part_answers import Verdict, Waiting, WaitingList
from penstock.server.overview.cached import Cached
from penstock.server.overview.verdict import (
    Facts,
    ServerFacts,
    TableFacts,
    WarehouseFacts,
    verdict,
)
from penstock.server.overview.waiting import (
    WaitingJobs,
    longest_first,
    queues_with_jobs,
    waiting_queue,
    waiting_routers,
    waiting_table,
    waiting_topics,
)
from penstock.topics.engine.views import partitions_view

if TYPE_CHECKING:
    from penstock.server.api.call import Context
    from penstock.tables.core.freshness import Freshness
    from penstock.tables.core.health import TableHealth
    from penstock.tables.status import Running
    from penstock.tables.warehouse import Warehouse

WAREHOUSE_S: Final = 2.0
"""How long an answer waits for the warehouse; after that it says that the warehouse is away."""
QUEUES_SHARE: Final = 20
"""Looking over all queues may take a twentieth of the time at most."""
SLICE_NS: Final = 500_000
_TOPICS: Final = frozenset({"topic", "queue", "router"})
"""The kinds of what waits that a key with prefixes may see, if its prefixes reach the name."""

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
    """Everything that is looked at once for all who ask."""

    context: Context
    tables: Cached[TablesLook | None] = field(init=False)
    queues: Cached[list[WaitingJobs]] = field(init=False)
    verdict: Cached[Verdict] = field(init=False)
    waiting: Cached[list[Waiting]] = field(init=False)

    def __post_init__(self) -> None:
        clock = self.context.clock
        self.tables = Cached(self._look_at_tables, clock)
        self.queues = Cached(self._look_at_queues, clock, share=QUEUES_SHARE)
        self.verdict = Cached(self._judge, clock)
        self.waiting = Cached(self._gather, clock)

    def now_ms(self) -> int:
        """The server's time."""
        return self.context.engine.clock.now_ms()

    async def tables_soon(self) -> TablesLook | None:
        """The tables, or that the warehouse does not answer.

        None without a warehouse, and while it is being opened: that may take seconds.
        """
        try:
            return await asyncio.wait_for(self.tables.get(), WAREHOUSE_S)
        except TimeoutError:
            if self.context.tables is None or not self.context.tables.is_open:
                return None
            trouble = f"the warehouse has not answered for {WAREHOUSE_S:g} s"
            return TablesLook(self.now_ms(), trouble=trouble)
        except PenstockError as error:
            return TablesLook(self.now_ms(), trouble=self.context.hide(error.message, 503))

    async def _look_at_tables(self) -> TablesLook | None:
        tables = self.context.tables
        return None if tables is None else await tables.do(look_at_tables)

    async def _look_at_queues(self) -> list[WaitingJobs]:
        """In slices: there may be very many."""
        engine, clock = self.context.engine, self.context.clock
        found: list[WaitingJobs] = []
        until_ns = clock.monotonic_ns() + SLICE_NS
        for writer in engine.writers:
            for jobs in queues_with_jobs(writer.partition, engine.clock.now_ms()):
                if jobs is not None:
                    found.append(jobs)
                if clock.monotonic_ns() >= until_ns:
                    await asyncio.sleep(0)
                    until_ns = clock.monotonic_ns() + SLICE_NS
        return found

    async def _judge(self) -> Verdict:
        look = await self.tables_soon()
        return verdict(
            Facts(
                at=self.now_ms(),
                server=server_facts(self.context),
                warehouse=None if look is None or look.trouble else warehouse_facts(look),
                warehouse_away=None if look is None else look.trouble,
            )
        )

    async def _gather(self) -> list[Waiting]:
        look, jobs = await self.tables_soon(), await self.queues.get()
        engine, now_ms = self.context.engine, self.now_ms()
        found = [*waiting_topics(engine, now_ms), *waiting_routers(engine)]
        found += [waiting_queue(each, now_ms) for each in jobs]
        if look is not None:
            found += _waiting_tables(look)
        return longest_first(found)


async def verdict_of(context: Context, *, everything: bool = True) -> Verdict:
    """How things stand; without `everything`, as far as the server's own load goes."""
    if not everything:
        return verdict(Facts(at=context.looks.now_ms(), server=server_facts(context)))
    return await context.looks.verdict.get()


async def waiting_of(context: Context, reaches: Reaches | None = None) -> WaitingList:
    """Everything that waits; with `reaches`, only topics and queues that may be seen."""
    found = await context.looks.waiting.get()
    if reaches is not None:
        found = [each for each in found if each.kind in _TOPICS and reaches(each.name)]
    return WaitingList(at=context.looks.now_ms(), waiting=found, total=len(found))


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
        partitions_failed=len(partitions["failed"]),
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
