"""The application: authenticates, routes and answers; plain writes take a fast path.

A handler answers at once, or later in its own task, or takes over the exchange as a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Final

from penstock.kernel.errors import PenstockError, Unknown
from penstock.protocol import answers, requests
from penstock.protocol.commits import Commit
from penstock.protocol.errors import (
    CallError,
    CommitConflict,
    CommitProtocol,
    IsASpace,
    NotASpace,
    OutcomeUnknown,
    PreconditionFailed,
    RecordTooLarge,
    RefusedByRule,
    ReservedName,
    ShuttingDown,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotFound,
)
from penstock.protocol.routes import ADMIN, FLAG, IDEMPOTENCY_KEY, WRITE, Param, Route
from penstock.raft.ready import NotLeader
from penstock.server.api import (
    cluster,
    history,
    lake,
    overview,
    probes,
    queues,
    readers,
    routers,
    session,
    spaces,
    tables,
    topics,
    warehouse,
)
from penstock.server.api.answers import Flags, Numbers, Spent, written, written_new
from penstock.server.api.auth import Grant, query_token
from penstock.server.api.call import ROUTES, Call, Context, check_access
from penstock.server.api.forwarding import Forwarding
from penstock.server.api.queries import Query, check_json, key_of, keyed
from penstock.server.http.message import USUAL, Answer, Exchange, Request
from penstock.server.http.origins import preflight
from penstock.server.live import stream as live
from penstock.server.live.site import SiteDoor
from penstock.server.push import sse, watch, websocket, work
from penstock.server.push import tables as table_watch
from penstock.server.push.pusher import Pusher
from penstock.topics.core.batch import parse_write
from penstock.topics.core.topic import AppendResult

_V0: Final = "/v0/"
_TOPICS: Final = "/v0/topics/"
_JSON: Final = "application/json"
_PATHS_MAX: Final = 10_000

HANDLERS: Final = (
    topics, routers, queues, work, watch, websocket, spaces, tables, table_watch, warehouse,
    probes, overview, history, live, lake, session, readers, cluster,
)  # fmt: skip
"""The modules whose handlers are in the route table."""

WRITE_ROUTE: Final = ROUTES.add(
    Route(
        "POST",
        "/v0/topics/{name}",
        "write",
        "Append records, all of them or none.",
        answer=answers.Written,
        scopes=WRITE,
        named="topic",
        body=requests.AppendBody,
        query=(Param("return_seqs", FLAG, "List every seq."),),
        headers=(IDEMPOTENCY_KEY,),
        statuses=(200, 201),
        errors=(
            TopicNotFound,
            IsASpace,
            TopicExistsIncompatible,
            TopicFull,
            RecordTooLarge,
            ReservedName,
        ),
    )
)
COMMIT_ROUTE: Final = ROUTES.add(
    Route(
        "POST",
        "/v0/spaces/{name}/commits",
        "commit",
        "Change entities of a space at once, if nothing that was read has changed.",
        answer=answers.CommitAccepted,
        scopes=WRITE,
        named="topic",
        body=Commit,
        errors=(CommitConflict, CommitProtocol, NotASpace, PreconditionFailed, RefusedByRule),
    )
)
"""These two have no handler: they are so frequent that the application answers them itself."""


class TopicApplication:
    """Answers every request of the topic protocol."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._engine = context.engine
        self._limits = context.engine.limits
        self._topics = context.engine.registry.topics
        self._counters = context.engine.journal.counters
        self._now_ns = context.clock.monotonic_ns
        self._written_paths: dict[str, str] = {}
        self._is_plain = False
        self._commits = spaces.CommitDoor(context, self, self._refuse)
        if context.cluster is not None:
            context.forwarding = Forwarding(context.engine, context.cluster)
        self._forwarding = context.forwarding
        self._site: SiteDoor | None = None
        if context.site is not None:
            self._site = SiteDoor(
                context, context.site, lambda request: self._identify(request, None)
            )

    def open(self) -> None:
        """The engine is ready: serve data routes from now on."""
        self._is_plain = self.context.auth.keys is None
        self.context.sampler.start()
        self._engine.journal.on_leader.append(self._on_leader)

    def _on_leader(self, partition: int, _leader: int, _term: int) -> None:
        """End the watches that only another node can serve now."""
        topics = self._forwarding.left_behind(partition) if self._forwarding is not None else []
        for stream in list(self.context.streams) if topics else ():
            if isinstance(stream, Pusher) and any(map(stream.watches, topics)):
                stream.end(sse.MOVED)

    def drain(self) -> None:
        """Accept nothing new, end every stream, and answer the calls that wait for data."""
        self.context.draining = True
        self._is_plain = False
        self.context.sampler.stop()
        for stream in list(self.context.streams):
            stream.end()
        for task in list(self.context.parked):
            task.cancel()

    async def settle(self, span_s: float) -> None:
        """Wait until the requests in progress are done, at most for the given time."""
        if self.context.tasks:
            await asyncio.wait(self.context.tasks, timeout=span_s)

    def __call__(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        request = exchange.request
        if self._is_plain and request.method == "POST" and request.sender is USUAL:
            path = request.path
            name = self._written_paths.get(path) or self._learn(path)
            if name is not None:
                self._write(exchange, name, None)
                return
        self._dispatch(exchange)

    # The fast path: a write

    def _learn(self, path: str) -> str | None:
        """The topic that a POST to a path writes to; cached, because most paths repeat."""
        if not path.startswith(_TOPICS) or path.find("/", 11) >= 0 or len(path) == 11:
            return None
        if len(self._written_paths) >= _PATHS_MAX:
            self._written_paths.clear()
        name = self._written_paths[path] = path[11:]
        return name

    def _write(self, exchange: Exchange, name: str, grant: Grant | None) -> None:
        started_ns = self._now_ns()
        request = exchange.request
        try:
            headers = request.headers
            if headers.get("content-type") != _JSON:
                check_json(headers)
            write = parse_write(request.body, self._limits)
            if write.key is None and "idempotency-key" in headers:
                write = keyed(write, headers, self._limits)
            if grant is not None and write.config is not None and name not in self._topics:
                if write.may_create:
                    grant.check(ADMIN)
                grant.check_config(write.config)
            return_seqs = not request.query or Query(request.query).flag("return_seqs", True)
            self._engine.write(
                name, write, partial(self._written, exchange, name, started_ns, return_seqs, grant)
            )
            if grant is None and not request.query and "idempotency-key" not in headers:
                exchange.expect_again(SameWrite(self, exchange, name))
        except Exception as error:
            self._refuse(exchange, error, grant)

    def write_again(self, same: SameWrite) -> None:
        """Take a write with the same head as an earlier one, without looking at the head again."""
        exchange = same.exchange
        if not self._is_plain:
            self(exchange)
            return
        same.started_ns = self._now_ns()
        try:
            write = parse_write(exchange.request.body, self._limits)
            self._engine.write(same.name, write, same.written)
        except Exception as error:
            self._refuse(exchange, error, None)

    def written_again(self, same: SameWrite, outcome: AppendResult | Exception) -> None:
        """Answer such a write."""
        self._written(same.exchange, same.name, same.started_ns, True, None, outcome)

    def _written(
        self,
        exchange: Exchange,
        name: str,
        started_ns: int,
        return_seqs: bool,
        grant: Grant | None,
        outcome: AppendResult | Exception,
    ) -> None:
        if isinstance(outcome, Exception):
            self._refuse(exchange, outcome, grant)
            return
        first_seq, last_seq, count, head_seq, deduped, created = outcome
        topic = self._topics.get(name)
        is_synced = topic is not None and topic.config.durability == "fsync"
        fsync_ms = self._counters.last_fsync_us / 1e3 if is_synced else 0.0
        total_ms = (self._now_ns() - started_ns) / 1e6
        if return_seqs and not created and not deduped:
            body = written_new(name.encode(), first_seq, last_seq, head_seq, total_ms, fsync_ms)
            exchange.reply_json(body)
        else:
            body = written(
                name.encode(),
                Numbers(first_seq, last_seq, head_seq, count),
                Flags(created, deduped, return_seqs),
                Spent(total_ms, total_ms, fsync_ms),
            )
            if created:
                exchange.reply(201, body)
            else:
                exchange.reply_json(body)
        if grant is not None:
            self.context.caps.leave(grant)

    # The general path: everything

    def _dispatch(self, exchange: Exchange) -> None:
        entered: Grant | None = None
        try:
            started_ns = self._now_ns()
            request = exchange.request
            asked = preflight(request.method, request.headers, request.sender)
            if asked is not None:
                self._finish(exchange, asked, None)
                return
            page = self._page(request)
            if page is not None:
                self._answer(exchange, page, None)
                return
            route, name, grant = self._admit(request)
            if grant is not None and not route.is_stream:
                self.context.caps.enter(grant)
                entered = grant
            if self._forwarding is not None:
                elsewhere = self._forwarding.before(exchange, route, name)
                if elsewhere is not None:
                    self._answer(exchange, elsewhere, entered)
                    return
                to_confirm = self._forwarding.must_confirm(exchange, route, name)
                if to_confirm:
                    call = Call(self.context, exchange, name, grant, started_ns)
                    self._answer(exchange, self._confirmed(to_confirm, route, call), entered)
                    return
            if route is WRITE_ROUTE:
                self._write(exchange, name, grant)
                return
            if route is COMMIT_ROUTE:
                self._commits.take(exchange, name, grant, started_ns)
                return
            handler = route.handler
            assert handler is not None, "only the two routes above have none"
            result = handler(Call(self.context, exchange, name, grant, started_ns))
            self._answer(exchange, result, entered)
        except Exception as error:
            self._refuse(exchange, error, entered)

    async def _confirmed(self, partitions: list[int], route: Route, call: Call) -> Answer | None:
        """Handle a read once this node is certain to show everything answered before it."""
        assert self._forwarding is not None
        assert route.handler is not None
        await self._forwarding.confirm(partitions)
        result: Answer | Awaitable[Answer | None] | None = route.handler(call)
        return await result if isinstance(result, Awaitable) else result

    def _page(self, request: Request) -> Answer | Awaitable[Answer] | None:
        """A page or an asset of the dashboard; None if the request is for `/v0`."""
        if self._site is None or request.path.startswith(_V0):
            return None
        request.sender.check(changes=False)
        return self._site.answer(request)

    def _answer(
        self,
        exchange: Exchange,
        result: Answer | Awaitable[Answer | None] | None,
        entered: Grant | None,
    ) -> None:
        """Answer with what a handler returned, now or when it is ready."""
        if result is None or isinstance(result, Answer):
            self._finish(exchange, result, entered)
        else:
            self.context.spawn(self._later(exchange, result, entered))

    def _admit(self, request: Request) -> tuple[Route, str, Grant | None]:
        """Find the route of a request and the grant of its key; refuse a sender without access."""
        context = self.context
        grant = None
        request.sender.check(changes=False)
        try:
            route, name = ROUTES.find(request.method, request.path)
        except PenstockError:
            self._identify(request, None)
            raise
        request.sender.check(changes=route.changes)
        if route.guard == "key" or (route.guard == "probe" and context.probe_auth):
            grant = self._identify(request, route)
        check_access(context, route, name, grant)
        return route, name, grant

    def _identify(self, request: Request, route: Route | None) -> Grant | None:
        in_query = route is not None and route.key_in_query
        key = query_token(request.query) if in_query else None
        return self.context.auth.grant_of(request.headers, request.sender, key)

    async def _later(
        self, exchange: Exchange, result: Awaitable[Answer | None], entered: Grant | None
    ) -> None:
        try:
            self._finish(exchange, await result, entered)
        except asyncio.CancelledError:
            self._refuse(exchange, ShuttingDown(), entered)
        except Exception as error:
            self._refuse(exchange, error, entered)

    def _finish(self, exchange: Exchange, answer: Answer | None, entered: Grant | None) -> None:
        if answer is not None:
            is_plain = answer.status == 200 and answer.content_type == b"application/json"
            if is_plain and not answer.headers:
                exchange.reply_json(answer.body)
            else:
                exchange.reply(
                    answer.status,
                    answer.body,
                    content_type=answer.content_type,
                    headers=answer.headers,
                )
        if entered is not None:
            self.context.caps.leave(entered)

    def _refuse(self, exchange: Exchange, error: Exception, entered: Grant | None) -> None:
        """Answer with an error; log an unexpected one in full."""
        if isinstance(error, NotLeader) and self._forwarding is not None:
            route, name = ROUTES.find(exchange.request.method, exchange.request.path)
            topic = name if route.named == "topic" else ""
            elsewhere = self._forwarding.after(exchange, error, topic)
            if elsewhere is not None:
                self._answer(exchange, elsewhere, entered)
                return
        request = exchange.request
        self.context.tell(f"{request.method} {request.path}", error)
        if isinstance(error, Unknown) and not isinstance(error, CallError):
            # The key is what the client needs to find out.
            key = key_of(request.body, request.headers)
            error = OutcomeUnknown(error.message, idempotency_key=key)
        self._finish(exchange, self.context.hide.answer(error), entered)


class SameWrite:
    """Successive writes to one topic on one connection, all with the same head.

    The transport passes in the same exchange each time, once it has been answered.
    """

    __slots__ = ("_app", "exchange", "name", "started_ns")

    def __init__(self, app: TopicApplication, exchange: Exchange, name: str) -> None:
        self._app = app
        self.exchange = exchange
        self.name = name
        self.started_ns = 0

    def __call__(self, _exchange: Exchange) -> None:
        """Take the next write."""
        self._app.write_again(self)

    def written(self, outcome: AppendResult | Exception) -> None:
        """The write is committed, or refused."""
        self._app.written_again(self, outcome)
