"""Handlers of queues: claim, ack, nack and extend; a worker's stream is in `push.work`."""

from __future__ import annotations

from penstock.protocol import answers, requests
from penstock.protocol.errors import InvalidRequest, NotAQueue, TopicNotFound
from penstock.protocol.routes import READ, WRITE
from penstock.server.api.answers import performance, spliced
from penstock.server.api.call import Call
from penstock.server.api.jobs import job_json
from penstock.server.api.routes import ROUTES
from penstock.server.http.message import Answer
from penstock.topics.core.leases import (
    Settle,
    parse_claim,
    parse_delay_ms,
    parse_lease_ms,
    parse_node,
    parse_settle,
)


@ROUTES.post(
    "/v0/topics/{name}/claim",
    answer=answers.Claims,
    scope=READ | WRITE,
    named="topic",
    body=requests.Claim,
    errors=(
        TopicNotFound,
        NotAQueue,
    ),
)
async def claim(call: Call) -> Answer:
    """Lease jobs of a queue."""
    if not call.request.body:
        raise InvalidRequest("expected a JSON object with a node, found an empty body")
    body = call.body()
    engine = call.context.engine
    request = parse_claim({**body, "node": "not looked at yet"}, engine.limits)
    if engine.topic(call.name).config.type != "queue":
        raise NotAQueue(call.name)
    request = request._replace(node=parse_node(body, engine.limits))
    claims = await engine.queues.claim(call.name, request)
    if call.exchange.is_gone and claims.jobs:  # the answer cannot be delivered
        seqs, fences = zip(*((job.lease.seq, job.lease.fence) for job in claims.jobs), strict=True)
        await engine.queues.nack(call.name, Settle(request.node, seqs, fences), 0, unseen=True)
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
    body=requests.Ack,
    errors=(
        TopicNotFound,
        NotAQueue,
    ),
)
async def ack(call: Call) -> Answer:
    """Finish jobs."""
    engine = call.context.engine
    settle = parse_settle(call.body(), engine.limits)
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
    body=requests.Nack,
    errors=(
        TopicNotFound,
        NotAQueue,
    ),
)
async def nack(call: Call) -> Answer:
    """Give jobs back."""
    engine = call.context.engine
    body = call.body()
    settle = parse_settle(body, engine.limits)
    settled = await engine.queues.nack(call.name, settle, parse_delay_ms(body))
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
    body=requests.Extend,
    errors=(
        TopicNotFound,
        NotAQueue,
    ),
)
async def extend(call: Call) -> Answer:
    """Let leases end later."""
    engine = call.context.engine
    body = call.body()
    settle = parse_settle(body, engine.limits)
    settled = await engine.queues.extend(call.name, settle, parse_lease_ms(body))
    return call.answer(
        topic=call.name,
        extended=len(settled.seqs),
        skipped=settled.skipped,
        deadlines={str(seq): settled.deadline_ms for seq in settled.seqs},
    )
