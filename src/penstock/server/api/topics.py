"""Handlers of topics: create, show, list, delete, read, delete records, atomic writes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.protocol import answers, requests
from penstock.protocol.config import TYPES, TopicConfig
from penstock.protocol.errors import (
    BatchTooLarge,
    InvalidRequest,
    IsASpace,
    PayloadTooLarge,
    RecordsUnreadable,
    ReservedName,
    Throttled,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
    TopicsApart,
)
from penstock.protocol.limits import WAIT_MS_MAX, WRITES_MAX, TopicLimits
from penstock.protocol.own_topics import check_not_own
from penstock.protocol.routes import (
    ADMIN,
    ARROW,
    DELETE,
    FLAG,
    KEY,
    NUMBER,
    PAGES,
    READ,
    WRITE,
    Param,
)
from penstock.protocol.values import check_topic_name, parse_choice
from penstock.server.api.answers import data_body, encode, performance, spliced
from penstock.server.api.call import ROUTES, Call
from penstock.server.api.columns import (
    ColumnRequest,
    RecordColumns,
    arrow_stream,
    larger,
    load_arrow,
    page_facts,
    record_batch,
)
from penstock.server.api.queries import (
    arrow_compression,
    check_json,
    keyed,
    make_cursor,
    wants_arrow,
)
from penstock.server.http.message import Answer
from penstock.topics.core.batch import WriteRequest, parse_write
from penstock.topics.core.cold_row import NotLoaded
from penstock.topics.core.predicate import parse_predicate
from penstock.topics.core.read import DiffPage, ReadRequest
from penstock.topics.core.record import records_json
from penstock.topics.core.topic import AppendResult
from penstock.topics.engine.topic_views import SORTS, TopicQuery
from penstock.topics.engine.topic_views import show_topic as show_topic_state


@ROUTES.put(
    "/v0/topics/{name}",
    answer=answers.TopicPut,
    scope=ADMIN,
    named="topic",
    body=TopicConfig,
    body_optional=True,
    statuses=(200, 201),
    errors=(TopicExistsIncompatible, Throttled, ReservedName),
)
async def put_topic(call: Call) -> Answer:
    """Make a topic, or change the named keys of one."""
    check_not_own(call.name)
    changes = call.read_object(may_be_empty=True)
    call.check_config(changes)
    created, config = await call.context.engine.put_topic(call.name, changes)
    return call.answer(201 if created else 200, topic=call.name, created=created, config=config)


@ROUTES.get(
    "/v0/topics/{name}",
    answer=answers.TopicState,
    scope=READ,
    named="topic",
    query=(Param("touch", FLAG, "Count this as a use of the topic, which raises its priority."),),
    errors=(TopicNotFound,),
)
async def show_topic(call: Call) -> Answer:
    """How a topic stands."""
    touch = call.query.flag("touch", True)
    state = await show_topic_state(call.context.engine, call.name, touch=touch, shown=call.shown)
    return call.tell(state, "queue")


@ROUTES.get(
    "/v0/topics",
    answer=answers.TopicPage,
    scope=READ,
    query=(
        *PAGES,
        Param("touch", FLAG, "Count this as a use of the topic, which raises its priority."),
        Param(
            "sort",
            {"type": "string", "enum": list(SORTS)},
            "`name`; or one page by `rate`, by watchers `behind`, or by `bytes`, greatest first.",
        ),
        Param("type", {"type": "string", "enum": list(TYPES)}, "Only topics of this type."),
    ),
)
async def list_topics(call: Call) -> Answer:
    """Topics by name, or the first by another order."""
    query = call.query
    wanted = TopicQuery(
        query.text("prefix") or "",
        query.after(),
        query.page_size(),
        parse_choice("sort", query.text("sort") or SORTS[0], SORTS),
        query.text("type") and parse_choice("type", query.text("type"), TYPES),
    )
    rows, more = await call.context.topic_lists.page(
        wanted, touch=query.flag("touch", False), shown=call.shown
    )
    cursor = make_cursor(rows[-1].topic) if more else None
    return call.tell(answers.TopicPage(topics=rows, next_cursor=cursor), "next_cursor")


@ROUTES.delete(
    "/v0/topics/{name}",
    answer=answers.TopicDeletion,
    scope=DELETE,
    named="topic",
    query=(Param("if_empty", FLAG, "Refuse if it holds records."),),
    errors=(TopicNotEmpty,),
)
async def drop_topic(call: Call) -> Answer:
    """Remove a topic and the routers at its ends."""
    if_empty = call.query.flag("if_empty", False)
    known = _routers_in_reach(call)
    deleted, routers = await call.context.engine.routers.drop_topic(call.name, if_empty=if_empty)
    if call.is_bounded:
        routers = [router for router in routers if router in known]
    return call.answer(topic=call.name, deleted=deleted, routers_removed=sorted(routers))


@ROUTES.post(
    "/v0/topics/{name}/delete",
    answer=answers.RecordDeletion,
    scope=DELETE,
    named="topic",
    body=requests.DeleteBody,
    errors=(TopicNotFound,),
)
async def delete(call: Call) -> Answer:
    """Delete records by prefix, by tag, or by both."""
    body = call.read(requests.DeleteBody)
    deletion = await call.context.engine.delete(
        call.name,
        before_seq=body.before_seq,
        match=None if body.match is None else parse_predicate(body.match),
    )
    return call.answer(
        topic=call.name,
        deleted=deletion.deleted,
        earliest_seq=deletion.earliest_seq,
        head_seq=deletion.head_seq,
        count=deletion.count,
        bytes=deletion.size_bytes,
    )


@ROUTES.post(
    "/v0/topics/{name}/diff",
    answer=answers.Diff,
    scope=READ,
    named="topic",
    body=requests.DiffBody,
    body_optional=True,
    query=(
        Param(
            "from_ts",
            NUMBER,
            "Begin with the first record at or after this time; `from_seq` counts if it is later.",
        ),
    ),
    errors=(TopicNotFound, RecordsUnreadable),
    also=(ARROW,),
)
async def diff(call: Call) -> Answer:
    """Records after a cursor; waits for them if asked to. As Arrow if that is accepted.

    If a time is said as well, the later of the two counts.
    """
    engine = call.context.engine
    body = call.read(requests.DiffBody, may_be_empty=True)
    is_arrow = wants_arrow(call.request.headers)
    request = read_request(body, larger(engine.limits) if is_arrow else engine.limits)
    forwarding = call.context.forwarding
    if forwarding is not None and not await forwarding.catch_up(call.name, request):
        return _behind(call, request)
    from_ts = call.query.number("from_ts", -1 if body.from_ts is None else body.from_ts)
    if from_ts >= 0:
        before_seq = engine.topic(call.name).seq_before(from_ts)
        request = request._replace(from_seq=max(request.from_seq, before_seq))
    if is_arrow:
        return await _arrow(call, request)
    return Answer(200, _page(call, await _read(call, request), request))


@ROUTES.post(
    "/v0/write",
    answer=answers.WrittenMany,
    scope=WRITE,
    body=requests.AppendManyBody,
    headers=(
        Param(
            "Idempotency-Key",
            KEY,
            "For every write that names no `idempotency_key` itself: the same again lands once.",
        ),
    ),
    statuses=(200, 201),
    errors=(TopicNotFound, IsASpace, TopicsApart, PayloadTooLarge, TopicFull, Throttled),
)
async def write_many(call: Call) -> Answer:
    """Append to several topics of one partition in one commit."""
    check_json(call.request.headers)
    engine = call.context.engine
    writes = _parse_writes(call)
    answers = await engine.write_many(writes)
    shown = [_written(name, answer) for (name, _), answer in zip(writes, answers, strict=True)]
    created = any(answer.created for answer in answers)
    total_ms, spent = call.total_ms(), {}
    if not all(answer.deduped for answer in answers):
        fsync_ms = max(engine.fsync_ms(name) for name, _ in writes)
        spent = {"wal_append_ms": round(total_ms, 3), "fsync_ms": fsync_ms}
    return Answer(201 if created else 200, data_body({"writes": shown}, total_ms, **spent))


def read_request(body: requests.DiffBody, limits: TopicLimits) -> ReadRequest:
    """A read with the server's defaults and limits."""
    return ReadRequest(
        body.from_seq,
        min(body.limit or limits.read_records, limits.read_records_max),
        requests.node_names(body.node),
        body.include_tags,
        body.include_meta,
        min(body.wait_ms, WAIT_MS_MAX),
        min(body.max_batch_bytes or limits.read_bytes, limits.read_bytes_max),
        body.epoch,
        None if body.tag is None else parse_predicate(body.tag),
    )


def _routers_in_reach(call: Call) -> set[str]:
    """The routers at a topic's ends whose other end the caller may access as well."""
    routers = call.context.engine.registry.routers
    found = (*routers.fed_by(call.name), *routers.feeders_of(call.name))
    return {each.config.name for each in found if call.reaches_router(each.config)}


async def _read(call: Call, request: ReadRequest) -> DiffPage:
    """A read that may wait; it ends early if the client disconnects or the server stops."""
    if not request.wait_ms:
        return await call.context.engine.diff(call.name, request)
    with call.parked():
        return await call.context.engine.diff(call.name, request)


def _behind(call: Call, request: ReadRequest) -> Answer:
    """An empty page: this node does not have what the cursor has seen on another one yet."""
    topic = call.context.engine.registry.topics.get(call.name)
    return call.answer(
        topic=call.name,
        records=[],
        next_from_seq=request.from_seq,
        head_seq=topic.head_seq if topic is not None else 0,
        earliest_seq=1
        if topic is None
        else topic.at(call.context.engine.clock.now_ms()).earliest_seq,
        caught_up=False,
        lag=0,
        behind=True,
    )


def _page(call: Call, found: DiffPage, request: ReadRequest) -> bytes:
    facts = page_facts(call.name, found)
    topic = facts.pop("topic")
    records = records_json(
        found.found, include_tags=request.include_tags, include_meta=request.include_meta
    )
    spent = performance(call.total_ms(), records_scanned=found.records_scanned)
    if found.cold_segments_read:
        spent["cold_segments_read"] = found.cold_segments_read
    fields = {"topic": topic, "records": None, **facts, "performance": spent}
    return spliced(fields, "records", records)


async def _arrow(call: Call, request: ReadRequest) -> Answer:
    """A page of columns; the columns of complete runs are cached for the next reader."""
    await load_arrow()
    is_filtered = bool(request.nodes) or request.tag is not None
    found = await _read(call, request if is_filtered else request._replace(limit=1))
    pieces: list[RecordColumns] | None = None
    if found.found.records and not is_filtered:
        wanted = ColumnRequest(found.found.seqs[0] - 1, request.limit, request.batch_bytes_max)
        try:
            topic = call.context.engine.topic(call.name)
            pieces, next_from_seq = call.context.columns.page(topic, wanted)
            found = found._replace(next_from_seq=next_from_seq, head_seq=topic.head_seq)
            topic.out_records += sum(piece.rows for piece in pieces) - 1  # one was read above
        except NotLoaded:  # cold records take the usual read path
            found = await _read(call, request)
    if pieces is None:
        pieces = [RecordColumns(record_batch(found.found))] if found.found.records else []
    facts = page_facts(call.name, found)
    headers = tuple(
        (b"x-penstock-" + name.replace("_", "-").encode(), encode(value))
        for name, value in facts.items()
        if name != "topic"
    )
    compression = arrow_compression(call.request.headers)
    stream = arrow_stream(call.name, found, pieces, request, compression=compression)
    return Answer(200, stream, ARROW.encode(), headers)


class _Target(msgspec.Struct):
    topic: str


class _Writes(msgspec.Struct):
    writes: list[msgspec.Raw]


_decode_writes: Final = msgspec.json.Decoder(_Writes).decode
_decode_target: Final = msgspec.json.Decoder(_Target).decode


def _parse_writes(call: Call) -> list[tuple[str, WriteRequest]]:
    """The writes of a body, each to a different topic; the caller may write to all of them."""
    engine = call.context.engine
    try:
        raws = _decode_writes(call.request.body).writes
        named = [(_decode_target(raw).topic, raw) for raw in raws]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"writes must be a list, each with its topic: {error}") from None
    if not named:
        raise InvalidRequest("there is no write in the request")
    if len(named) > WRITES_MAX:
        raise BatchTooLarge(
            f"{len(named)} writes are too many for one request: send at most {WRITES_MAX}"
        )
    limits, headers = engine.limits, call.request.headers
    writes = [
        (check_topic_name(name), keyed(parse_write(bytes(raw), limits), headers, limits))
        for name, raw in named
    ]
    for name, write in writes:
        call.check_write(name)
        if write.config is not None and name not in engine.registry.topics:
            if write.may_create:
                call.check_scopes(ADMIN)
            call.check_config(write.config)
    return writes


def _written(name: str, answer: AppendResult) -> dict[str, Any]:
    return {
        "topic": name,
        "first_seq": answer.first_seq,
        "last_seq": answer.last_seq,
        "head_seq": answer.head_seq,
        "count": answer.records,
        "created": answer.created,
        "deduped": answer.deduped,
    }
