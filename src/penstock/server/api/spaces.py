"""Handlers of spaces: commits, and entities in their current or a past state.

>>> parse_after("120:meter-7")
(120, 'meter-7')
>>> accepted(7, 1_000, False, 1, 0.25).decode()[:48]
'{"seq":7,"ts":1000,"replayed":false,"epoch":1,"p'
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from penstock.commits.model import parse_commit
from penstock.commits.space import writes_of
from penstock.protocol import answers
from penstock.protocol.commits import Commit
from penstock.protocol.errors import (
    EntityNotFound,
    InvalidRequest,
    NotASpace,
    PastGone,
    TopicNotFound,
)
from penstock.protocol.limits import PAGE_SIZE, PAGE_SIZE_MAX
from penstock.protocol.routes import NUMBER, PAGES, READ, TEXT, Param
from penstock.server.api.answers import encode
from penstock.server.api.auth import Grant
from penstock.server.api.call import ROUTES, Call, Context
from penstock.server.api.queries import Query, check_json, make_cursor
from penstock.server.http.message import Answer, Application, Exchange
from penstock.topics.core.record import DEPTH_MAX, check_depth
from penstock.topics.engine.spaces import Accepted, EntityList, EntityView, PageRequest

_ACCEPTED: Final = (
    b'{"seq":%d,"ts":%d,"replayed":%b,"epoch":%d,"performance":{"server_total_ms":%.3f}}'
)
_ROW: Final = b'{"entity":"%b","seq":%d,"doc":%b}'
_ENTITY: Final = (
    b'{"entity":"%b","seq":%d,"doc":%b,"head":%d,"performance":{"server_total_ms":%.3f}}'
)
_LIST: Final = b'{"entities":[%b],"head":%d,"next":%b,"performance":{"server_total_ms":%.3f}}'
_SMALL_BYTES: Final = 2 * DEPTH_MAX  # JSON up to this length cannot be nested too deeply


def read_commit(body: bytes) -> Commit:
    """The commit in a body, or `InvalidRequest`."""
    if len(body) > _SMALL_BYTES:
        check_depth(body)
    return parse_commit(body)


def accepted(seq: int, ts_ms: int, replayed: bool, epoch: int, total_ms: float) -> bytes:
    """The answer to a commit that took effect, now or at an earlier try."""
    return _ACCEPTED % (seq, ts_ms, b"true" if replayed else b"false", epoch, total_ms)


def entity_body(found: EntityView, total_ms: float) -> bytes:
    """The answer with one entity."""
    return _ENTITY % (
        found.entity.encode(), found.seq, found.document, found.head_seq, total_ms,
    )  # fmt: skip


def list_body(page: EntityList, total_ms: float) -> bytes:
    """The answer with a page of entities."""
    parts = [_ROW % (row.entity.encode(), row.seq, row.document) for row in page.entities]
    cursor = encode(f"{page.head_seq}:{page.entities[-1].entity}") if page.more else b"null"
    return _LIST % (b",".join(parts), page.head_seq, cursor, total_ms)


def history_row(entity: str, seq: int, ts_ms: int, commit: Commit) -> dict[str, Any]:
    """A commit in the history of an entity, with its effect on that entity."""
    row: dict[str, Any] = {
        "seq": seq,
        "ts": ts_ms,
        "session": commit.session,
        "local_seq": commit.local_seq,
    }
    if commit.event_id is not None:
        row["event_id"] = commit.event_id
    row["writes"] = [msgspec.to_builtins(write) for write in writes_of(commit, entity)]
    return row


def number(query: Query, name: str) -> int | None:
    """A whole number of the query, or None if absent; anything else is refused.

    A misread seq must not count as absent: the answer would show another state.
    """
    text = query.text(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidRequest(f"{name} must be a whole number from 0 on, not {text!r}")
    return int(text)


def page_limit(query: Query, name: str = "limit") -> int:
    """How many rows a page has."""
    limit = number(query, name)
    if limit is None:
        return PAGE_SIZE
    if not 1 <= limit <= PAGE_SIZE_MAX:
        raise InvalidRequest(f"{name} must be 1 to {PAGE_SIZE_MAX}, not {limit}")
    return limit


def parse_after(cursor: str) -> tuple[int, str]:
    """The seq and the id in the cursor of a page."""
    seq, colon, entity = cursor.partition(":")
    if not colon or not entity or not (seq.isascii() and seq.isdigit() and len(seq) < 20):
        raise InvalidRequest(f"after must be next of the page before, not {cursor!r}")
    return int(seq), entity


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


@ROUTES.get("/v0/spaces", answer=answers.SpacePage, scope=READ, query=PAGES)
async def list_spaces(call: Call) -> Answer:
    """Spaces by name, with how many entities they have and when they were last changed."""
    query = call.query
    request = PageRequest(query.text("prefix") or "", query.after() or "", query.page_size())
    page = await call.context.engine.spaces.spaces(request, call.shown)
    rows = [
        answers.SpaceRow(space=name, entities=entities, seq=seq, last_commit=last_ms)
        for name, entities, seq, last_ms in page.spaces
    ]
    cursor = make_cursor(rows[-1].space) if page.more else None
    found = answers.SpacePage(spaces=rows, count=page.total, next_cursor=cursor)
    return call.tell(found, "next_cursor")


@ROUTES.get(
    "/v0/spaces/{name}/entities/{id}",
    answer=answers.EntityState,
    scope=READ,
    named="topic",
    query=(Param("at", NUMBER, "As it was at this seq of the space; as it is, if not said."),),
    errors=(EntityNotFound, NotASpace, PastGone),
)
async def show_entity(call: Call) -> Answer:
    """An entity, now or as it was."""
    found = await call.context.engine.spaces.entity(
        call.name, _entity_id(call), number(call.query, "at")
    )
    return Answer(200, entity_body(found, call.total_ms()))


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
    errors=(TopicNotFound, NotASpace, PastGone),
)
async def list_entities(call: Call) -> Answer:
    """Entities by id, all as of one seq."""
    query = call.query
    at_seq, after = number(query, "at"), ""
    cursor = query.text("after")
    if cursor:
        seq, after = parse_after(cursor)
        if at_seq is not None and at_seq != seq:
            raise InvalidRequest(f"at must be that of the cursor, {seq}, not {at_seq}")
        at_seq = seq
    request = PageRequest(query.text("prefix") or "", after, page_limit(query), at_seq)
    page = await call.context.engine.spaces.entities(call.name, request)
    return Answer(200, list_body(page, call.total_ms()))


@ROUTES.get(
    "/v0/spaces/{name}/entities/{id}/history",
    answer=answers.EntityHistory,
    scope=READ,
    named="topic",
    query=(
        Param("after", NUMBER, "Only commits after this seq; `next` of the page before."),
        Param("limit", NUMBER, "Rows of a page, 1 to 1000; 100 if not said."),
        Param("last", NUMBER, "The newest commits, 1 to 1000, with the document before them."),
    ),
    errors=(EntityNotFound, NotASpace),
)
async def entity_history(call: Call) -> Answer:
    """The commits that wrote an entity, oldest first."""
    entity, query = _entity_id(call), call.query
    newest = number(query, "last") is not None
    limit = page_limit(query, "last" if newest else "limit")
    spaces, after_seq = call.context.engine.spaces, number(query, "after") or 0
    page = await spaces.history(call.name, entity, after_seq, limit, newest=newest)
    base: dict[str, Any] = {} if page.base is None else {"base": msgspec.Raw(page.base)}
    return call.answer(
        entity=entity,
        commits=[history_row(entity, *row) for row in page.rows],
        head=page.head_seq,
        next=page.rows[-1].seq if page.more and page.rows else None,
        complete=page.complete,
        **base,
    )


def _entity_id(call: Call) -> str:
    return call.request.path.split("/")[5]
