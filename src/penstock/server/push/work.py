"""A worker's stream: pushes jobs while the worker holds fewer than it requested.

A job that is sent counts as delivered. So few jobs are claimed at a time, and only while the stream
takes all of them, whatever their size. Jobs that a worker still holds when its stream ends are
released at once; those never sent to it count as not delivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from penstock.kernel.errors import PenstockError
from penstock.kernel.units import KIB
from penstock.protocol.errors import NotAcceptable, NotAQueue, Throttled, TopicNotFound
from penstock.protocol.limits import clamp_lease_ms
from penstock.protocol.routes import EVENT_STREAM, NAMED, NUMBER, READ, TEXT, WRITE, Param
from penstock.protocol.watchers import ReaderState
from penstock.raft.ready import NotLeader, NotServing
from penstock.server.api.call import ROUTES, Call
from penstock.server.api.queries import check_accepts_events
from penstock.server.api.queues import check_node, job_event
from penstock.server.push import sse
from penstock.server.push.readers import Identity, Reading, identity_of
from penstock.server.push.watching import named_by
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.topic import Topic
from penstock.topics.core.versions import REASONS
from penstock.topics.engine.queues import LeasedJob

RECHECK_S: Final = 0.25
STEP_BYTES: Final = 256 * KIB
"""The target size of one claim, estimated by the mean size of the queue's jobs."""
STEP_JOBS_MAX: Final = 32
"""The limit on jobs per claim, so that little is buffered if they are larger than the mean."""
HEARTBEAT_S: Final = 15.0
STREAM_ENDED: Final = "the worker's stream ended"
"""Why jobs that a worker still held were not finished."""
_LOGGER: Final = logging.getLogger("penstock.server")


@ROUTES.get(
    "/v0/topics/{name}/work",
    scope=READ | WRITE,
    named="topic",
    query=(
        Param("node", TEXT, "The worker's name.", required=True),
        Param("max", NUMBER, "Jobs at a time, 1 to 1000; 1 if not said."),
        Param("lease_ms", NUMBER, "How long each job is leased."),
        Param("token", TEXT, "The key, for browsers."),
    ),
    headers=(NAMED,),
    errors=(TopicNotFound, NotAcceptable, NotAQueue, Throttled),
    media=EVENT_STREAM,
    key_in_query=True,
)
def open_work(call: Call) -> None:
    """Jobs of a queue as an event stream."""
    check_accepts_events(call.request.headers)
    engine, query = call.context.engine, call.query
    node = check_node(query.text("node") or "", engine.limits)
    if engine.topic(call.name).config.type != "queue":
        raise NotAQueue(call.name)
    jobs_max = min(max(query.number("max", 1), 1), engine.limits.claim_max)
    lease_ms = query.number("lease_ms", -1)
    request = ClaimRequest(node, jobs_max, clamp_lease_ms(lease_ms) if lease_ms >= 0 else 0)
    if call.exchange.is_head:
        call.exchange.stream(sse.CONTENT_TYPE, sse.HEADERS).close()
        return
    with call.context.caps.opening(call.grant):
        WorkStream(call, request).start()


class WorkStream:
    """One worker: a task that claims jobs when there is room, and sends them."""

    def __init__(self, call: Call, request: ClaimRequest) -> None:
        self._call = call
        self._number = next(call.context.reader_numbers)
        self._since_ms = call.context.engine.clock.now_ms()
        self._name = named_by(call.request.headers) or request.node
        self._context = call.context
        self._engine = call.context.engine
        self._topic = call.name
        self._grant = call.grant
        self._request = request
        self._stream = call.exchange.stream(sse.CONTENT_TYPE, sse.HEADERS)
        self._news = asyncio.Event()
        self._stream.on_gone = self._stop
        self._stream.on_room = self._news.set
        self._held: dict[int, int] = {}  # seq -> fence
        self._unseen: list[int] = []  # of those, the jobs that the stream did not take
        self._ended = False
        self._epoch = call.context.engine.topic(call.name).epoch

    def start(self) -> None:
        """Begin to push."""
        self._context.streams[self] = self._call.session
        self._engine.watchers.listen(self._topic, self._on_turn)
        self._context.spawn(self._run())

    def end(self, farewell: sse.Farewell = sse.SHUTDOWN) -> None:
        """The server stops, or the session has ended."""
        self._say_goodbye(*farewell)

    def readings(self, _topic: Topic) -> Iterator[Reading]:
        """The worker itself: it has no place, it holds jobs."""
        held, most = len(self._held), self._request.jobs_max
        state: ReaderState = "slow" if not self._stream.has_room() else "ok"
        if state == "ok" and held >= most:
            state = "held"
        reason = f"it holds {held} of {most} jobs" if state == "ok" else ""
        yield Reading((self,), None, state, None, reason, None, held)

    def identity(self) -> Identity:
        """What is known of the worker."""
        return identity_of(self._call, "worker", self._number, self._name, self._since_ms)

    def _on_turn(self, _topic: str) -> None:
        self._news.set()

    def _stop(self) -> None:
        self._ended = True
        self._news.set()

    def _say_goodbye(self, code: int | str, text: str) -> None:
        if not self._ended:
            self._stop()
            try:
                self._stream.write(sse.work_error(code, text, self._topic))
            finally:
                self._stream.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        spoke_s = loop.time()
        try:
            self._stream.write(sse.RETRY)
            while not self._ended:
                self._news.clear()
                if await self._refill():
                    spoke_s = loop.time()
                elif loop.time() - spoke_s >= HEARTBEAT_S:
                    self._stream.write(sse.HEARTBEAT)
                    spoke_s = loop.time()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), RECHECK_S)
        except (TopicNotFound, NotAQueue):
            self._say_goodbye(409, "topic is no longer a queue")
        except (NotLeader, NotServing):
            self._say_goodbye(*sse.MOVED)
        except Exception:
            _LOGGER.exception("the stream of a worker on %r failed", self._topic)
            with suppress(Exception):
                self._say_goodbye("internal", "the server failed; its log tells")
        finally:
            await self._close()

    async def _refill(self) -> bool:
        """Claim and push jobs as long as there is room for them; whether there were any."""
        told = False
        while not self._ended:
            self._forget_settled()
            room = self._request.jobs_max - len(self._held)
            if room <= 0 or not self._stream.has_room():
                break
            request = self._request._replace(jobs_max=min(room, self._step()))
            claims = await self._engine.queues.claim(self._topic, request)
            for job in claims.jobs:
                self._held[job.slot.seq] = job.lease.fence
            if not claims.jobs:
                break
            if not self._push(claims.jobs):
                self._unseen = [job.slot.seq for job in claims.jobs]
                break
            told = True
        return told

    def _step(self) -> int:
        """How many jobs to claim at once."""
        topic = self._engine.topic(self._topic)
        job_bytes = topic.size_bytes // max(topic.count, 1)
        return min(max(STEP_BYTES // max(job_bytes, 1), 1), STEP_JOBS_MAX)

    def _push(self, jobs: list[LeasedJob]) -> bool:
        """Send jobs in one write, which only an ended stream refuses."""
        frames = [
            sse.frame(b"%d" % job.slot.seq, b"job", job_event(self._topic, job)) for job in jobs
        ]
        is_sent = not self._ended and self._stream.write(b"".join(frames))
        if is_sent:
            self._engine.watchers.pushed += len(jobs)
        return is_sent

    def _forget_settled(self) -> None:
        """Make room: forget jobs that are finished, released, or whose lease has expired."""
        topic = self._engine.topic(self._topic)
        queue = self._engine.writer(self._topic).partition.queues.get(self._topic)
        if queue is None or topic.epoch != self._epoch:
            self._held.clear()
            raise NotAQueue(self._topic)
        now_ms = self._engine.clock.now_ms()
        for seq, fence in list(self._held.items()):
            lease = queue.lease_of(seq, now_ms)
            if lease is None or lease.fence != fence:
                del self._held[seq]

    async def _give_back(self, seqs: list[int], *, unseen: bool = False) -> None:
        fences = tuple(self._held.pop(seq) for seq in seqs)
        settle = Settle(self._request.node, tuple(seqs), fences)
        try:
            says_why = not unseen and self._engine.registry.written.says(REASONS)
            queues, reason = self._engine.queues, STREAM_ENDED if says_why else ""
            await queues.nack(self._topic, settle, 0, unseen=unseen, reason=reason)
        except PenstockError as error:
            _LOGGER.info("jobs of %r wait for their leases to end: %s", self._topic, error)

    async def _close(self) -> None:
        self._engine.watchers.leave(self._topic, self._on_turn)
        self._context.streams.pop(self, None)
        self._context.caps.close_stream(self._grant)
        if self._unseen:
            await self._give_back(self._unseen, unseen=True)
        if self._held:
            await self._give_back(list(self._held))
