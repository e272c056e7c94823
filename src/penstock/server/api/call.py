"""One request on its way through the application: its grant, its route and its start time."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import FieldInfo, fields

from penstock.kernel.clock import Clock
from penstock.kernel.errors import PenstockError
from penstock.kernel.text import Seldom, and_others
from penstock.log.store import SyncFailed
from penstock.protocol.answers import FailedPartition
from penstock.protocol.decoding import S, decode, decode_object
from penstock.protocol.errors import Forbidden, Replaying, ShuttingDown
from penstock.protocol.routes import DELETE, WRITE, Route, RouteTable
from penstock.server.api.answers import data_body
from penstock.server.api.auth import Caps, Grant
from penstock.server.api.columns import ColumnRuns
from penstock.server.api.errors import Hiding, describe
from penstock.server.api.event_book import EventBook
from penstock.server.api.queries import Query, json_body
from penstock.server.api.sampler import Sampler
from penstock.server.api.sessions import Authenticator
from penstock.server.api.topic_series import TopicSeries
from penstock.server.http.message import Answer, Exchange, Request
from penstock.server.overview.looks import Looks
from penstock.server.overview.news import News
from penstock.server.push.shared import SharedWatches
from penstock.server.push.sse import SHUTDOWN, SIGNED_OUT, Farewell
from penstock.server.push.watching import WatcherSessions
from penstock.topics.core.router import RouterConfig
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.topic_views import TopicLists, everything
from penstock.topics.engine.views import partitions_view
from penstock.topics.engine.writers import LogUncertain

if TYPE_CHECKING:
    from penstock.server.api.forwarding import Cluster, Forwarding
    from penstock.server.api.warehouse import TablesDesk
    from penstock.server.live.hub import Hub
    from penstock.server.live.site import Site

ROUTES: Final = RouteTable()
"""Every route of the server: handlers register themselves, with their answer, scope and errors.

It is complete once `penstock.server.api.app`, which imports every handler, is imported.
"""
_LOGGER: Final = logging.getLogger("penstock.server")


class OpenStream(Protocol):
    """A push connection, as seen by what ends it."""

    def end(self, farewell: Farewell = SHUTDOWN) -> None:
        """Tell the client why its stream ends, and close."""


@dataclass(slots=True)
class Context:
    """State shared by all handlers."""

    engine: Engine
    clock: Clock
    caps: Caps
    sessions: WatcherSessions
    auth: Authenticator
    probe_auth: bool = False
    heartbeat_ms_min: int = 1_000
    watch_topics_max: int = 256
    backup_dir: Path | None = None
    find_tables: Callable[[], TablesDesk | None] = lambda: None
    """The warehouse, once there is one."""
    hide: Hiding = field(default_factory=Hiding)
    live: Hub | None = None
    """Keeps open pages of the dashboard fresh; None without a dashboard."""
    site: Site | None = None
    """Draws the pages of the dashboard."""
    cluster: Cluster | None = None
    """The other nodes; None on a node alone."""
    forwarding: Forwarding | None = None
    """Which node answers a request; None on a node alone."""
    is_tls: bool = False
    """Whether connections are encrypted by the server itself."""
    refusals: Seldom = field(default_factory=Seldom)
    """When a refusal was last logged."""
    draining: bool = False
    started_ms: int = 0
    streams: dict[OpenStream, bytes | None] = field(default_factory=dict)
    """Push connections, each with the session that it was opened by, if any."""
    tasks: set[Task[Any]] = field(default_factory=set)
    parked: dict[Task[Any], None] = field(default_factory=dict)
    reader_numbers: Iterator[int] = field(default_factory=lambda: count(1))
    """Numbers for streams, by which answers tell them apart."""
    columns: ColumnRuns = field(default_factory=ColumnRuns)
    shared: SharedWatches = field(init=False)
    looks: Looks = field(init=False)
    sampler: Sampler = field(init=False)
    topic_series: TopicSeries = field(init=False)
    topic_lists: TopicLists = field(init=False)
    events: EventBook = field(init=False)
    news: News = field(init=False)

    def __post_init__(self) -> None:
        self.looks = Looks(self)
        self.started_ms = self.clock.monotonic_ms()
        self.shared = SharedWatches(
            self.engine,
            lambda: self.clock.monotonic_ns() / 1e9,
            self.engine.turns.later,
        )
        self.topic_lists = TopicLists(self.engine)
        self.sampler = Sampler(self.engine, lambda: self.caps.streams)
        self.topic_series = TopicSeries(self.engine, self.clock)
        self.events = EventBook(self.engine)
        self.news = News(self)
        self.sampler.on_sample += [
            self.topic_series.sample,
            self.events.look,
            self.news.look,
            self._look_at_sessions,
        ]

    def failed_partitions(self) -> tuple[FailedPartition, ...]:
        """The partitions that are out of service: why, and which file is damaged where."""
        return tuple(
            FailedPartition(**each | {"reason": self.hide(each["reason"], 503)})
            for each in partitions_view(self.engine)["failed"]
        )

    @property
    def tables(self) -> TablesDesk | None:
        """The warehouse; None while there is none."""
        return self.find_tables()

    def tell(self, what: str, error: Exception) -> None:
        """Log a server-side failure: at most once a second, unless it was unexpected.

        The log reports its own refusals.
        """
        if describe(error)[0] not in (500, 504) or isinstance(error, LogUncertain | SyncFailed):
            return
        if not isinstance(error, PenstockError):
            _LOGGER.error("%s failed: %s", what, error, exc_info=error)
            return
        left_out = self.refusals.take(self.clock.monotonic_ms())
        if left_out is not None:
            _LOGGER.error("%s failed: %s%s", what, error, and_others(left_out))

    def end_sessions(self) -> None:
        """Close the streams of sessions that have ended by signing out, by time or by number."""
        ended = self.auth.ended_sessions()
        if ended:
            for stream, session in list(self.streams.items()):
                if session in ended:
                    stream.end(SIGNED_OUT)

    def _look_at_sessions(self, _now_ms: int) -> None:
        self.end_sessions()

    def spawn(self, work: Coroutine[Any, Any, None]) -> Task[None]:
        """Run a task that the server awaits before it stops."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


def check_access(context: Context, route: Route, name: str, grant: Grant | None) -> None:
    """Refuse a caller whose key does not allow a route, and data routes while there is none."""
    if grant is not None:
        grant.check(route.scopes)
        if route.named == "topic":
            grant.check_name(name)
            if route.scopes & (WRITE | DELETE):
                grant.check_change(name)
    if route.is_data:
        if context.draining:
            raise ShuttingDown
        if not context.engine.ready:
            raise Replaying(context.engine.replay_progress)


class Call:
    """A request with its route, grant and timing."""

    __slots__ = ("_query", "context", "exchange", "grant", "name", "request", "started_ns")

    def __init__(
        self, context: Context, exchange: Exchange, name: str, grant: Grant | None, started_ns: int
    ) -> None:
        self.context = context
        self.exchange = exchange
        self.request: Request = exchange.request
        self.name = name
        self.grant = grant
        self.started_ns = started_ns
        self._query: Query | None = None

    @property
    def query(self) -> Query:
        """The query, parsed on first access."""
        if self._query is None:
            self._query = Query(self.request.query)
        return self._query

    def total_ms(self) -> float:
        """How long the request has taken so far."""
        return (self.context.clock.monotonic_ns() - self.started_ns) / 1e6

    @contextmanager
    def parked(self) -> Iterator[None]:
        """Cancel this task, while it waits for data, if the client disconnects or the server stops.

        The client may have disconnected already: HTTP/2 reports requests and their ends in one
        read.
        """
        task = asyncio.current_task()
        assert task is not None
        if self.exchange.is_gone:
            task.cancel()
        self.context.parked[task] = None
        self.exchange.on_gone = task.cancel  # type: ignore[assignment]
        try:
            yield
        finally:
            del self.context.parked[task]
            self.exchange.on_gone = None

    @property
    def session(self) -> bytes | None:
        """The session by whose cookie the caller is known; None if it is known by a key."""
        if self.grant is None:
            return None
        found = self.context.auth.session_of(self.request.headers, self.request.sender)
        # The cookie of one key beside another key in the header says nothing about the caller.
        return found.digest if found is not None and found.grant is self.grant else None

    def read(self, kind: type[S], *, may_be_empty: bool = False) -> S:
        """The request's body as its struct."""
        request = self.request
        return decode(kind, json_body(request.body, request.headers, may_be_empty=may_be_empty))

    def read_object(self, *, may_be_empty: bool = False) -> dict[str, Any]:
        """The JSON object in the request's body, with only the keys that the caller named."""
        request = self.request
        return decode_object(json_body(request.body, request.headers, may_be_empty=may_be_empty))

    def answer(self, status: int = 200, **fields: Any) -> Answer:
        """A data answer with its performance."""
        return Answer(status, data_body(fields, self.total_ms()))

    def tell(self, answer: Struct, *optional: str, status: int = 200) -> Answer:
        """A data answer that is a struct, with its performance.

        Its `optional` members are left out if they are None.
        """
        fields = {each.encode_name: getattr(answer, each.name) for each in fields_of(type(answer))}
        for name in optional:
            if fields[name] is None:
                del fields[name]
        fields.pop("performance", None)
        return Answer(status, data_body(fields, self.total_ms()))

    @property
    def shown(self) -> Callable[[str], bool]:
        """Whether a name may be shown to the caller."""
        return self.reaches if self.is_bounded else everything

    @property
    def is_bounded(self) -> bool:
        """Whether the caller's key is restricted to prefixes."""
        return self.grant is not None and bool(self.grant.prefixes)

    def reaches(self, name: str) -> bool:
        """Whether the caller may access a name."""
        return self.grant is None or self.grant.reaches(name)

    def reaches_router(self, config: RouterConfig) -> bool:
        """Whether the caller may access both ends of a router."""
        return self.reaches(config.source) and self.reaches(config.dest)

    def check_topic(self, name: str) -> None:
        """Refuse a topic named in a body that the caller may not access."""
        if not self.reaches(name):
            raise Forbidden(f"topic {name!r} is outside of the API key's prefixes", topic=name)

    def check_write(self, name: str) -> None:
        """Refuse a topic named in a body that the caller may not write to."""
        self.check_topic(name)
        if self.grant is not None:
            self.grant.check_change(name)

    def check_scopes(self, scopes: int) -> None:
        """Refuse a call that needs more scopes than the caller has."""
        if self.grant is not None:
            self.grant.check(scopes)

    def check_config(self, config: dict[str, Any]) -> None:
        """Refuse a configuration that names a topic which the caller may not access."""
        if self.grant is not None:
            self.grant.check_config(config)

    def check_unbounded(self) -> None:
        """Refuse a call that concerns every topic if the caller is restricted to prefixes."""
        if self.is_bounded:
            raise Forbidden("this needs an API key for every topic; yours is held to prefixes")


@cache
def fields_of(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    """The fields of an answer, with their names on the wire."""
    return fields(kind)
