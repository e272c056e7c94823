"""Handlers of the warehouse and its sources, and the way to it: threads, news, waiting.

The server never runs a query: it has no engine. It leaves refreshes to a coordinator.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.kernel.errors import Busy, Conflict, Gone, Unavailable
from penstock.protocol import requests, table_answers
from penstock.protocol.errors import (
    CallError,
    ChangedMeanwhile,
    InvalidQuery,
    NoWarehouse,
    RelationNotFound,
    SnapshotExpired,
    SourceExists,
    SourceNotFound,
    TableInUse,
    Throttled,
    WarehouseAway,
)
from penstock.protocol.routes import (
    ADMIN,
    DELETE,
    FLAG,
    NUMBER,
    READ,
    Param,
)
from penstock.server.api.call import ROUTES, Call
from penstock.server.http.message import Answer

if TYPE_CHECKING:
    from penstock.tables.warehouse import Answered, Warehouse


T = TypeVar("T")
THREADS: Final = 4
WAITING_MAX: Final = 64
GATHER_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class WarehousePlace:
    """Where the warehouse is, and the address under which topics of this server are read."""

    catalog: str
    data_path: str | None = None
    url: str = "http://127.0.0.1:4000"


class TablesDesk:
    """Runs calls to the warehouse in a few threads."""

    def __init__(self, place: WarehousePlace, open_warehouse: Callable[[], Warehouse]) -> None:
        self.place = place
        self._open_warehouse = open_warehouse
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-tables")
        self._opening = threading.Lock()
        self._warehouse: Warehouse | None = None
        self._waiting = 0
        self._looks: list[tuple[Callable[[Warehouse], Any], asyncio.Future[Any]]] = []
        self.news: Any = None
        """What tells watchers of tables of new snapshots, once there is one."""

    @property
    def is_open(self) -> bool:
        """Whether the warehouse was opened: the first call does."""
        return self._warehouse is not None

    async def do(self, work: Callable[[Warehouse], T]) -> T:
        """Run a call on the warehouse; `Busy` if too many others are waiting."""
        with self._counted():
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, self._do, work)

    async def look(self, work: Callable[[Warehouse], T]) -> T:
        """Read a little of the catalog; `Busy` if too many others are waiting.

        What is asked for within a millisecond is read by one thread and told in one turn of the
        loop: for short reads, the way to a thread and back costs the loop more than the answer, and
        several threads hold it up for longer, as they share the interpreter's lock.
        """
        with self._counted():
            loop = asyncio.get_running_loop()
            future: asyncio.Future[T] = loop.create_future()
            if not self._looks:
                loop.call_later(GATHER_S, self._look)
            self._looks.append((work, future))
            try:
                return await future
            finally:
                future.cancel()

    def _look(self) -> None:
        looks, self._looks = self._looks, []
        works = [work for work, future in looks if not future.done()]
        futures = [future for _, future in looks if not future.done()]
        loop = asyncio.get_running_loop()
        asking = loop.run_in_executor(self._pool, self._do, partial(_all_of, works))
        asking.add_done_callback(partial(_hand_out, futures))

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._waiting >= WAITING_MAX:
            raise Busy(
                f"{WAITING_MAX} requests for tables are waiting already",
                retry_after_ms=1_000,
            )
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Close the warehouse, after the calls in progress."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._warehouse is not None:
            self._warehouse.close()
            self._warehouse = None

    def _do(self, work: Callable[[Warehouse], T]) -> T:
        try:
            return work(self._open())
        except (Gone, Conflict, Unavailable) as error:
            if (told := _told(error)) is error:
                raise
            raise told from error

    def _open(self) -> Warehouse:
        with self._opening:
            if self._warehouse is None:
                try:
                    self._warehouse = self._open_warehouse()
                except Exception as error:
                    raise WarehouseAway(
                        f"the warehouse of tables cannot be opened: {error}"
                    ) from error
            return self._warehouse


def _all_of(
    works: list[Callable[[Warehouse], Any]], warehouse: Warehouse
) -> list[tuple[Any, Exception | None]]:
    """The results of some works, or why they failed."""
    found: list[tuple[Any, Exception | None]] = []
    with warehouse.together():
        for work in works:
            try:
                found.append((work(warehouse), None))
            except Exception as error:
                found.append((None, _told(error)))
    return found


def _hand_out(
    futures: list[asyncio.Future[Any]], asked: asyncio.Future[list[tuple[Any, Exception | None]]]
) -> None:
    """Tell those that wait for some works."""
    if asked.cancelled():
        for future in futures:
            future.cancel()
        return
    failed = asked.exception()
    found = asked.result() if failed is None else [(None, failed)] * len(futures)
    for future, (result, error) in zip(futures, found, strict=True):
        if future.done():
            continue  # what asked for it is gone
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _told(error: Exception) -> Exception:
    """An error of the warehouse as callers are told of it."""
    if isinstance(error, Gone):
        return SnapshotExpired(error.message)
    if isinstance(error, CallError):
        return error
    if isinstance(error, Conflict):
        return ChangedMeanwhile(error.message)
    if isinstance(error, Unavailable):
        return WarehouseAway(error.message)
    return error


News = Callable[[float], Awaitable[None]]
ERRORS: Final = (NoWarehouse, Throttled, WarehouseAway)
"""What every route about tables may answer."""
LIMIT: Final = 100
LIMIT_MAX: Final = 1_000


@ROUTES.get(
    "/v0/warehouse",
    answer=table_answers.WarehouseState,
    scope=READ,
    errors=ERRORS,
)
async def show_warehouse(call: Call) -> Answer:
    """Whether tables are kept fresh: health, workers, permits, what runs, closed gates."""
    return call.answer(**await desk(call).look(_warehouse))


@ROUTES.get(
    "/v0/warehouse/jobs",
    answer=table_answers.JobList,
    scope=READ,
    query=(
        Param("limit", NUMBER, "Rows at most, 1 to 1000; 100 if not said."),
        Param("live", FLAG, "Only jobs that are queued or running."),
        Param("since_ms", NUMBER, "Only jobs that ended after this time, or have not ended."),
    ),
    errors=ERRORS,
)
async def warehouse_jobs(call: Call) -> Answer:
    """What was started, the newest first."""
    limit, live = row_limit(call), call.query.flag("live", False)
    since_ms = call.query.number("since_ms", 0)

    def work(warehouse: Warehouse) -> list[dict[str, Any]]:
        from penstock.tables.status import job_facts

        found = warehouse.jobs(live_only=live, limit=limit, since_ms=since_ms)
        return [job_facts(job) for job in found]

    return call.answer(jobs=await desk(call).look(work))


@ROUTES.get(
    "/v0/warehouse/history",
    answer=table_answers.RefreshList,
    scope=READ,
    query=(Param("limit", NUMBER, "Rows at most, 1 to 1000; 100 if not said."),),
    errors=ERRORS,
)
async def warehouse_history(call: Call) -> Answer:
    """Refreshes of all tables, the newest first."""
    limit = row_limit(call)
    return call.answer(refreshes=await desk(call).do(lambda w: history(w, None, limit)))


@ROUTES.post(
    "/v0/warehouse/explain",
    answer=table_answers.QueryExplained,
    scope=READ,
    body=requests.ExplainBody,
    errors=(*ERRORS, InvalidQuery),
)
async def explain_query(call: Call) -> Answer:
    """Whether and how a query would be brought up to date from changes, and by what SQL."""
    tables, query = desk(call), call.read(requests.ExplainBody).query
    return call.answer(**await tables.do(lambda warehouse: warehouse.explain_query(query)))


@ROUTES.post(
    "/v0/warehouse/drain",
    answer=table_answers.Drained,
    scope=ADMIN,
    body=requests.DrainBody,
    body_optional=True,
    errors=ERRORS,
)
async def drain_warehouse(call: Call) -> Answer:
    """Start nothing new and let what runs end; or go on."""
    tables = desk(call)
    body = call.read(requests.DrainBody, may_be_empty=True)
    if not body.draining:
        await tables.do(lambda warehouse: warehouse.undrain())
        return call.answer(draining=False, idle=False)
    async with notified(tables) as news:
        await tables.do(lambda warehouse: warehouse.drain())
        idle = await wait_for(
            call, tables, lambda w: not w.jobs(live_only=True) or None, body.wait_ms, news
        )
    return call.answer(draining=True, idle=bool(idle))


@ROUTES.post(
    "/v0/warehouse/gate",
    answer=table_answers.Gated,
    scope=ADMIN,
    body=requests.GateBody,
    errors=(*ERRORS, RelationNotFound),
)
async def gate_relation(call: Call) -> Answer:
    """Close a relation, so that nothing that reads it is refreshed; or open it."""
    tables = desk(call)
    body = call.read(requests.GateBody)

    def work(warehouse: Warehouse) -> list[str]:
        if body.closed:
            warehouse.gate(body.relation, body.detail)
        else:
            warehouse.ungate(body.relation)
        return list(warehouse.gates())

    return call.answer(relation=body.relation, closed=body.closed, gates=await tables.do(work))


@ROUTES.get(
    "/v0/sources",
    answer=table_answers.SourceList,
    scope=READ,
    errors=ERRORS,
)
async def list_sources(call: Call) -> Answer:
    """Topics that tables may read."""

    def work(warehouse: Warehouse) -> list[dict[str, Any]]:
        from penstock.tables.status import source_facts

        return [source_facts(source) for source in warehouse.topics()]

    return call.answer(sources=await desk(call).do(work))


@ROUTES.put(
    "/v0/sources/{name}",
    answer=table_answers.SourceState,
    scope=ADMIN,
    named="source",
    body=requests.SourceBody,
    statuses=(200, 201),
    errors=(*ERRORS, SourceExists, ChangedMeanwhile),
)
async def put_source(call: Call) -> Answer:
    """Say which columns the records of a topic have."""
    tables, name = desk(call), call.name
    body = call.read(requests.SourceBody)
    key = body.key if isinstance(body.key, str) else ",".join(body.key)
    url = tables.place.url if body.url is None else body.url

    def work(warehouse: Warehouse) -> tuple[bool, dict[str, Any]]:
        from penstock.tables.status import source_facts

        known = {source.topic for source in warehouse.topics()}
        made = warehouse.declare_topic(name, body.schema, key=key, url=url, replace=True)
        return made.topic not in known, source_facts(made)

    created, shown = await tables.do(work)
    return call.answer(201 if created else 200, **shown, created=created)


@ROUTES.get(
    "/v0/sources/{name}",
    answer=table_answers.SourceState,
    scope=READ,
    named="source",
    errors=(*ERRORS, SourceNotFound),
)
async def show_source(call: Call) -> Answer:
    """A topic that tables may read."""
    name = call.name

    def work(warehouse: Warehouse) -> dict[str, Any]:
        from penstock.tables.status import source_facts

        return source_facts(warehouse.topic(name))

    return call.answer(**await desk(call).do(work))


@ROUTES.delete(
    "/v0/sources/{name}",
    answer=table_answers.SourceDropped,
    scope=DELETE,
    named="source",
    errors=(*ERRORS, SourceNotFound, TableInUse),
)
async def drop_source(call: Call) -> Answer:
    """Let no table read a topic any more."""
    name = call.name
    await desk(call).do(lambda warehouse: warehouse.forget_topic(name))
    return call.answer(topic=name, dropped=True)


def desk(call: Call) -> TablesDesk:
    """The warehouse, for a key without prefixes: a table may read any topic."""
    call.check_unbounded()
    if call.context.tables is None:
        raise NoWarehouse
    return call.context.tables


def history(warehouse: Warehouse, table: str | None, limit: int) -> list[dict[str, Any]]:
    """Refreshes of one table, or of all, the newest first."""
    from penstock.tables.status import record_facts

    return [record_facts(record) for record in warehouse.history(table, limit=limit)]


def row_limit(call: Call) -> int:
    """How many rows a list has at most."""
    return min(max(call.query.number("limit", LIMIT), 1), LIMIT_MAX)


@asynccontextmanager
async def notified(tables: TablesDesk) -> AsyncIterator[News]:
    """An awaitable that ends when the coordinator may have news, or when it is time to poll."""
    notifier = await tables.do(lambda warehouse: warehouse.notifier())
    loop, heard = asyncio.get_running_loop(), asyncio.Event()

    def take() -> None:
        loop.remove_reader(notifier)
        heard.set()

    async def wait(timeout_s: float) -> None:
        if notifier.is_open:
            loop.add_reader(notifier, take)
        with suppress(TimeoutError):
            await asyncio.wait_for(heard.wait(), min(timeout_s, notifier.patience_s))
        if notifier.is_open:
            loop.remove_reader(notifier)
        heard.clear()
        notifier.receive()

    try:
        yield wait
    finally:
        notifier.close()


async def wait_for(
    call: Call,
    tables: TablesDesk,
    ask: Callable[[Warehouse], Any],
    wait_ms: int,
    news: News,
) -> Answered | Any:
    """Poll until there is an answer, or the client disconnects, or the server stops.

    It was asked for already. An error here would say that it was not, so a wait that fails ends
    without an answer.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_ms / 1_000
    with suppress(WarehouseAway, Busy, asyncio.CancelledError), call.parked():
        found = await tables.do(ask)
        while found is None and loop.time() < until_s:
            await news(until_s - loop.time())
            found = await tables.do(ask)
        return found
    return None


def _warehouse(warehouse: Warehouse) -> dict[str, Any]:
    health, pool = warehouse.health(), warehouse.pool()
    return {
        "state": health.state.value,
        "text": health.text,
        "workers": [dict(worker) for worker in pool.workers],
        "running": [
            {**job._asdict(), "progress": job.progress.plain() if job.progress else None}
            for job in pool.running
        ],
        "unfit": pool.unfit,
        "topics_trouble": pool.topics_trouble,
        "permits": dict(pool.permits),
        "permits_max": pool.permits_max,
        "gates": list(warehouse.gates()),
        "pool": asdict(pool.pool) if pool.pool else None,
    }
