"""Handlers of queues: a look, claims and what ends them, dead letters.

A worker's stream is in `push.work`.
"""

from __future__ import annotations

from penstock.protocol import answers, requests
from penstock.protocol.errors import (
    BatchTooLarge,
    InvalidRequest,
    NoDeadLetters,
    NotAQueue,
    TopicFull,
    TopicNotFound,
    UpgradePending,
)
from penstock.protocol.limits import DELAY_MS_MAX, TopicLimits, clamp_lease_ms
from penstock.protocol.queues import REASON_BYTES_MAX, Discarded, QueueState, Redriven
from penstock.protocol.routes import DELETE, READ, WRITE
from penstock.protocol.values import check_text
from penstock.server.api.answers import encode, performance, spliced
from penstock.server.api.call import ROUTES, Call
from penstock.server.http.message import Answer
from penstock.topics.core.leases import ClaimRequest, Settle, lease_token, parse_token
from penstock.topics.engine.letters import Choice
from penstock.topics.engine.queue_views import show_queue
from penstock.topics.engine.queues import ClaimResult, LeasedJob


@ROUTES.get(
    "/v0/queues/{name}",
    answer=QueueState,
    scope=READ,
    named="topic",
    errors=(TopicNotFound, NotAQueue),
)
async def look_at_queue(call: Call) -> Answer:
    """A queue: its jobs by state, its workers with their leases, its dead letters."""
    return call.tell(await show_queue(call.context.engine, call.name, shown=call.shown))


@ROUTES.post(
    "/v0/queues/{name}/redrive",
    answer=Redriven,
    scope=WRITE,
    named="topic",
    body=requests.RedriveBody,
    errors=(TopicNotFound, NotAQueue, NoDeadLetters, TopicFull, UpgradePending),
)
async def redrive(call: Call) -> Answer:
    """Make dead letters of a queue jobs again, all in one commit."""
    body = call.read(requests.RedriveBody)
    letters = call.context.engine.letters
    choice = _letters(call, body)
    if body.to is not None:
        call.check_write(body.to)
    moved = await letters.redrive(call.name, choice, body.to)
    if moved.seqs:
        count = len(moved.seqs)
        letters_are = "dead letter is a job" if count == 1 else "dead letters are jobs"
        text = f"{count} {letters_are} of {moved.topic} again."
        facts = {"moved": count, "to": moved.topic}
        call.context.events.happened("redriven", "info", text, name=call.name, **facts)
    return call.tell(
        Redriven(
            queue=call.name,
            to=moved.topic,
            moved=len(moved.seqs),
            skipped=moved.skipped,
            more=moved.more,
        )
    )


@ROUTES.post(
    "/v0/queues/{name}/discard",
    answer=Discarded,
    scope=DELETE,
    named="topic",
    body=requests.LettersBody,
    errors=(TopicNotFound, NotAQueue, NoDeadLetters, UpgradePending),
)
async def discard(call: Call) -> Answer:
    """Delete dead letters of a queue."""
    choice = _letters(call, call.read(requests.LettersBody))
    gone = await call.context.engine.letters.discard(call.name, choice)
    return call.tell(
        Discarded(queue=call.name, discarded=len(gone.seqs), skipped=gone.skipped, more=gone.more)
    )


@ROUTES.post(
    "/v0/topics/{name}/claim",
    answer=answers.Claims,
    scope=READ | WRITE,
    named="topic",
    body=requests.ClaimBody,
    errors=(TopicNotFound, NotAQueue),
)
async def claim(call: Call) -> Answer:
    """Lease jobs of a queue."""
    if not call.request.body:
        raise InvalidRequest("the body is empty: send a JSON object with a node")
    body = call.read(requests.ClaimBody)
    engine = call.context.engine
    if engine.topic(call.name).config.type != "queue":
        raise NotAQueue(call.name)
    request = claim_request(body, engine.limits)
    claims = await engine.queues.claim(call.name, request)
    if call.exchange.may_be_gone and claims.jobs:
        # The answer may not arrive: a worker that is gone must not hold jobs, and one that has
        # only stopped sending gets none.
        seqs, fences = zip(*((job.lease.seq, job.lease.fence) for job in claims.jobs), strict=True)
        settle = Settle(request.node, seqs, fences)
        back = await engine.queues.nack(call.name, settle, 0, unseen=True)
        claims = ClaimResult([], back.counts)
    fields = {
        "topic": call.name,
        "claimed": None,
        "count": len(claims.jobs),
        "ready": claims.counts.ready,
        "performance": performance(call.total_ms()),
    }
    return Answer(200, spliced(fields, "claimed", b",".join(map(job_json, claims.jobs))))


@ROUTES.post(
    "/v0/topics/{name}/ack",
    answer=answers.Acked,
    scope=WRITE,
    named="topic",
    body=requests.AckBody,
    errors=(TopicNotFound, NotAQueue),
)
async def ack(call: Call) -> Answer:
    """Finish jobs."""
    engine = call.context.engine
    settle = settlement(call.read(requests.AckBody), engine.limits)
    settled = await engine.queues.ack(call.name, settle)
    return call.answer(
        topic=call.name,
        acked=len(settled.seqs),
        skipped=settled.skipped,
        ready=settled.counts.ready,
        in_flight=settled.counts.in_flight,
    )


@ROUTES.post(
    "/v0/topics/{name}/nack",
    answer=answers.Nacked,
    scope=WRITE,
    named="topic",
    body=requests.NackBody,
    errors=(TopicNotFound, NotAQueue, UpgradePending),
)
async def nack(call: Call) -> Answer:
    """Give jobs back."""
    engine = call.context.engine
    body = call.read(requests.NackBody)
    delay_ms = min(body.delay_ms, DELAY_MS_MAX)
    check_text("reason", body.reason, REASON_BYTES_MAX)
    settle = settlement(body, engine.limits)
    settled = await engine.queues.nack(call.name, settle, delay_ms, reason=body.reason)
    return call.answer(
        topic=call.name,
        nacked=len(settled.seqs),
        skipped=settled.skipped,
        ready=settled.counts.ready,
        in_flight=settled.counts.in_flight,
    )


@ROUTES.post(
    "/v0/topics/{name}/extend",
    answer=answers.Extended,
    scope=WRITE,
    named="topic",
    body=requests.ExtendBody,
    errors=(TopicNotFound, NotAQueue),
)
async def extend(call: Call) -> Answer:
    """Let leases end later."""
    engine = call.context.engine
    body = call.read(requests.ExtendBody)
    lease_ms = clamp_lease_ms(body.lease_ms)
    settled = await engine.queues.extend(call.name, settlement(body, engine.limits), lease_ms)
    return call.answer(
        topic=call.name,
        extended=len(settled.seqs),
        skipped=settled.skipped,
        deadlines={str(seq): settled.deadline_ms for seq in settled.seqs},
    )


def _letters(call: Call, body: requests.LettersBody) -> Choice:
    """Which letters a request is about, of a topic that its key reaches."""
    ways = (body.seqs is not None) + (body.reason is not None) + body.all
    if ways != 1:
        raise InvalidRequest("say which letters: by seqs, by reason, or all of them")
    if body.reason is not None:
        check_text("reason", body.reason, REASON_BYTES_MAX)
    dest = call.context.engine.topic(call.name).config.dead_letter
    if dest is not None:
        call.check_topic(dest)
    seqs = None if body.seqs is None else tuple(body.seqs)
    _check_count(seqs or (), call.context.engine.limits)
    return Choice(seqs, body.reason)


def _check_count(seqs: tuple[int, ...], limits: TopicLimits) -> None:
    if len(seqs) > limits.seqs_max:
        raise BatchTooLarge(
            f"{len(seqs)} seqs are too many for one request: send at most {limits.seqs_max}",
            seqs=len(seqs),
            max=limits.seqs_max,
        )


def check_node(node: str, limits: TopicLimits) -> str:
    """The name of a worker: any text, but required."""
    if not node:
        raise InvalidRequest("node is missing: say which worker claims or holds the jobs")
    check_text("node", node, limits.node_bytes_max)
    return node


def claim_request(body: requests.ClaimBody, limits: TopicLimits) -> ClaimRequest:
    """A claim with the server's defaults and limits."""
    return ClaimRequest(
        check_node(body.node, limits),
        min(body.max or 1, limits.claim_max),
        0 if body.lease_ms is None else clamp_lease_ms(body.lease_ms),
    )


def settlement(body: requests.AckBody, limits: TopicLimits) -> Settle:
    """The jobs of an ack, nack or extend: tokens are checked first, then the node, then lengths."""
    fences = None if body.lease_ids is None else tuple(map(parse_token, body.lease_ids))
    node, seqs = check_node(body.node, limits), tuple(body.seqs)
    _check_count(seqs, limits)
    if fences is not None and len(fences) != len(seqs):
        raise InvalidRequest(
            f"lease_ids must be as many as seqs: {len(fences)} for {len(seqs)}; "
            'use "" where there is no lease id'
        )
    return Settle(node, seqs, fences)


def job_json(job: LeasedJob) -> bytes:
    """A job as a worker gets it: its lease and the record, with payloads as written."""
    return b"{%b}" % _members(job)


def job_event(topic: str, job: LeasedJob) -> bytes:
    """The data of a job event."""
    return b'{"topic":"%b",%b}' % (topic.encode(), _members(job))


def _members(job: LeasedJob) -> bytes:
    lease, slot = job
    record = slot.record
    tag = b"" if record.tag is None else b',"$tag":%b' % encode(record.tag)
    meta = b"" if record.meta is None else b',"meta":%b' % bytes(record.meta)
    return b'"$seq":%d,"lease_id":"%b","deadline":%d,"$ts":%d%b,"deliveries":%d,"data":%b%b' % (
        slot.seq,
        lease_token(lease.fence).encode(),
        lease.deadline_ms,
        slot.ts_ms,
        tag,
        lease.deliveries,
        bytes(record.data),
        meta,
    )
