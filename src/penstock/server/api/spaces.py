"""Handlers of spaces: commits, and entities in their current or a past state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.protocol import answers
from penstock.protocol.errors import (
    EntityNotFound,
    InvalidRequest,
    NotASpace,
    PastGone,
    TopicNotFound,
)
from penstock.protocol.routes import READ, Param
from penstock.server.api.auth import Grant
from penstock.server.api.call import Call, Context
from penstock.server.api.queries import check_json
from penstock.server.api.routes import NUMBER, ROUTES, TEXT
from penstock.server.api.space_pages import (
    Row,
    accepted,
    entity_body,
    history_row,
    list_body,
    number,
    page_limit,
    parse_after,
    read_commit,
)
from penstock.server.http.message import Answer, Application, Exchange
from penstock.topics.engine.spaces import Accepted, PageRequest

_JSON: Final = "application/json"
Refuse = Callable[[Exchange, Exception, Grant | None], None]


class CommitDoor:
    """Accepts commits without a task for each: they are as frequent as writes."""

    def __init__(self, context: Context, application: Application, refuse: Refuse) -> None:
        self._context = context
        self._application = application
        self._refuse = refuse
        self._spaces = context.engine.spaces
        self._now_ns = context.clock.monotonic_ns

    def take(self, exchange: Exchange, name: str, grant: Grant | None, started_ns: int) -> None:
        """Answer a commit once it is in the log, or refused."""
        request = exchange.request
        try:
            if request.headers.get("content-type") != _JSON:
                check_json(request.headers)
            commit = read_commit(request.body)
            done = partial(self._done, exchange, grant, started_ns)
            self._spaces.commit(name, commit, done)
            if grant is None:
                exchange.expect_again(SameSpace(self, exchange, name))
        except Exception as error:
            self._refuse(exchange, error, grant)

    def take_again(self, same: SameSpace) -> None:
        """Take a commit with the same head as an earlier one, without looking at the head again."""
        exchange = same.exchange
        if self._context.draining:
            self._application(exchange)
            return
        same.started_ns = self._now_ns()
        try:
            self._spaces.commit(same.name, read_commit(exchange.request.body), same.done)
        except Exception as error:
            self._refuse(exchange, error, None)

    def _done(
        self,
        exchange: Exchange,
        grant: Grant | None,
        started_ns: int,
        outcome: Accepted | Exception,
    ) -> None:
        if isinstance(outcome, Exception):
            self._refuse(exchange, outcome, grant)
            return
        self.answer(exchange, started_ns, outcome)
        if grant is not None:
            self._context.caps.leave(grant)

    def answer(self, exchange: Exchange, started_ns: int, outcome: Accepted | Exception) -> None:
        """Answer with the outcome of a commit."""
        if isinstance(outcome, Exception):
            self._refuse(exchange, outcome, None)
            return
        total_ms = (self._now_ns() - started_ns) / 1e6
        body = accepted(outcome.seq, outcome.ts_ms, outcome.replayed, outcome.epoch, total_ms)
        exchange.reply_json(body)


class SameSpace:
    """Successive commits to one space on one connection, all with the same head."""

    __slots__ = ("_door", "exchange", "name", "started_ns")

    def __init__(self, door: CommitDoor, exchange: Exchange, name: str) -> None:
        self._door = door
        self.exchange = exchange
        self.name = name
        self.started_ns = 0

    def __call__(self, _exchange: Exchange) -> None:
        """Take the next commit."""
        self._door.take_again(self)

    def done(self, outcome: Accepted | Exception) -> None:
        """The commit is accepted, or refused."""
        self._door.answer(self.exchange, self.started_ns, outcome)


@ROUTES.get(
    "/v0/spaces/{name}/entities/{id}",
    answer=answers.EntityState,
    scope=READ,
    named="topic",
    query=(Param("at", NUMBER, "As it was at this seq of the space; as it is, if not said."),),
    errors=(
        EntityNotFound,
        NotASpace,
        PastGone,
    ),
)
async def show_entity(call: Call) -> Answer:
    """An entity, now or as it was."""
    found = await call.context.engine.spaces.entity(
        call.name, _entity_id(call), number(call.query, "at")
    )
    row = Row(found.entity, found.seq, found.document)
    return Answer(200, entity_body(row, found.head_seq, call.total_ms()))


@ROUTES.get(
    "/v0/spaces/{name}/entities",
    answer=answers.EntityPage,
    scope=READ,
    named="topic",
    query=(
        Param("prefix", TEXT, "Only ids that begin like this."),
        Param("limit", NUMBER, "Rows of a page, 1 to 1000; 100 if not said."),
        Param("after", TEXT, "`next` of the page before."),
        Param("at", NUMBER, "As it was at this seq of the space; as it is, if not said."),
    ),
    errors=(
        TopicNotFound,
        NotASpace,
        PastGone,
    ),
)
async def list_entities(call: Call) -> Answer:
    """Entities by id, all as of one seq."""
    query = call.query
    at_seq, after = number(query, "at"), ""
    cursor = query.text("after")
    if cursor:
        seq, after = parse_after(cursor)
        if at_seq is not None and at_seq != seq:
            raise InvalidRequest(f"expected at to be that of the cursor, {seq}, found {at_seq}")
        at_seq = seq
    request = PageRequest(query.text("prefix") or "", after, page_limit(query), at_seq)
    page = await call.context.engine.spaces.entities(call.name, request)
    rows = [Row(each.entity, each.seq, each.document) for each in page.entities]
    after_next = page.entities[-1].entity if page.more else None
    return Answer(200, list_body(rows, page.head_seq, after_next, call.total_ms()))


@ROUTES.get(
    "/v0/spaces/{name}/entities/{id}/history",
    answer=answers.EntityHistory,
    scope=READ,
    named="topic",
    query=(
        Param("after", NUMBER, "Only commits after this seq; `next` of the page before."),
        Param("limit", NUMBER, "Rows of a page, 1 to 1000; 100 if not said."),
    ),
    errors=(
        EntityNotFound,
        NotASpace,
    ),
)
async def entity_history(call: Call) -> Answer:
    """The commits that wrote an entity, oldest first."""
    entity, after_seq = _entity_id(call), number(call.query, "after")
    page = await call.context.engine.spaces.history(
        call.name, entity, after_seq or 0, page_limit(call.query)
    )
    return call.answer(
        entity=entity,
        commits=[history_row(entity, *row) for row in page.rows],
        head=page.head_seq,
        next=page.rows[-1].seq if page.more and page.rows else None,
        complete=page.complete,
    )


def _entity_id(call: Call) -> str:
    return call.request.path.split("/")[5]
