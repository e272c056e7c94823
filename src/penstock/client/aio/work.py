"""The jobs of a queue as a stream, reopened when it is lost.

A task of its own reads the stream and extends the leases of held jobs, whatever the program does
meanwhile. So a job never stays unread until its lease expires unnoticed.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncIterator, Sequence
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from penstock.client import calls
from penstock.client.aio.runner import AsyncRunner
from penstock.client.errors import ClientClosed, Disconnected, LeaseLost, NotPenstock, TimedOut
from penstock.client.event_stream import Frame, FrameParser, Reconnects, stream_error
from penstock.client.leasing import Lease, Leases
from penstock.client.transports.aio import AsyncAttempt, AsyncConnection, AsyncSignal
from penstock.client.watching import SILENCE_HEARTBEATS
from penstock.protocol.answers import ClaimedJob
from penstock.protocol.errors import (
    CallError,
    OutcomeUnknown,
    ServerUnavailable,
    Throttled,
    UpgradePending,
)

T = TypeVar("T")

HEARTBEAT_S: Final = 15.0
"""How often the server sends something on a work stream; not configurable."""
EXTEND_SHARE: Final = 0.25
"""The share of a lease that an extend request may take, so that there is time for a retry."""
EXTEND_S_MIN: Final = 0.25

_JOB: Final = msgspec.json.Decoder(ClaimedJob)


class AsyncWork:
    """The jobs of a queue as they become ready. Leave its `async with` to end it.

    Several tasks may take jobs from it, and any task may close it.
    """

    def __init__(self, flow: AsyncWorkFlow, runner: AsyncRunner) -> None:
        self._flow = flow
        self._runner = runner
        weakref.finalize(self, flow.abandon)

    @property
    def topic(self) -> str:
        """The queue."""
        return self._flow.topic

    @property
    def node(self) -> str:
        """The node name under which jobs are held."""
        return self._flow.node

    @property
    def trouble(self) -> str | None:
        """Why there is no connection now; None while there is one."""
        return self._flow.trouble

    def __aiter__(self) -> AsyncIterator[AsyncJob]:
        return self

    async def __anext__(self) -> AsyncJob:
        lease = await self._flow.next()
        if lease is None:
            raise StopAsyncIteration
        return AsyncJob(self._runner, lease, self)

    async def next_job(self, timeout_s: float) -> AsyncJob | None:
        """The next job, or None if there is none in time or the stream has ended."""
        lease = await self._flow.next(monotonic() + timeout_s)
        return None if lease is None else AsyncJob(self._runner, lease, self)

    async def aclose(self) -> None:
        """End the stream; unsettled jobs return to the queue."""
        self._flow.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._flow.close()


class AsyncJob:
    """A leased job. As `async with`: acked at the end, nacked on an error, which is its reason.

    `LeaseLost` at the end means that the lease had been lost.
    """

    def __init__(self, runner: AsyncRunner, lease: Lease, work: AsyncWork) -> None:
        self._runner = runner
        self._lease = lease
        self._work = work  # keeps the stream open while the program has one of its jobs

    def __del__(self) -> None:
        self._lease.is_wanted = False  # neither acked nor nacked: the lease expires

    @property
    def topic(self) -> str:
        """The queue."""
        return self._work.topic

    @property
    def node(self) -> str:
        """The node name under which the job is held."""
        return self._work.node

    @property
    def claimed(self) -> ClaimedJob:
        """The job as it was claimed."""
        return self._lease.job

    @property
    def settled(self) -> bool:
        """Whether it was acked or nacked."""
        return self._lease.settled

    @property
    def lease_lost(self) -> bool:
        """Whether the server reported that the lease is lost."""
        return self._lease.lost

    @property
    def seq(self) -> int:
        """The job's seq in its queue."""
        return self.claimed.seq

    @property
    def tag(self) -> str | None:
        """The tag the job was written with."""
        return self.claimed.tag

    @property
    def deliveries(self) -> int:
        """How often the job was delivered, including this time."""
        return self.claimed.deliveries

    @property
    def deadline_ms(self) -> int:
        """When the lease ends, in the server's time, as of the claim."""
        return self.claimed.deadline_ms

    @property
    def data(self) -> Any:
        """The payload."""
        return self.claimed.data

    @property
    def meta(self) -> Any:
        """The meta object, or None."""
        return self.claimed.meta

    def data_as(self, kind: type[T]) -> T:
        """The payload as a type that msgspec knows."""
        return self.claimed.data_as(kind)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(topic={self.topic!r}, seq={self.seq}, data={self.data!r})"

    async def ack(self) -> bool:
        """Mark the job as done. False if the lease was lost: another worker may do it too."""
        self._lease.settled = True
        call = calls.ack(self.topic, self.node, [self.claimed])
        return (await self._runner.run(call)).acked == 1

    async def nack(self, delay_ms: int = 0, *, reason: str = "") -> bool:
        """Return the job to the queue, to be delivered again after a delay.

        `reason` is why it was not finished; a dead letter shows the last one. False if the lease
        was lost.
        """
        self._lease.settled = True
        jobs = [self.claimed]
        call = calls.nack(self.topic, self.node, jobs, delay_ms=delay_ms, reason=reason)
        return (await self._runner.run(call)).nacked == 1

    async def extend(self, lease_ms: int) -> bool:
        """Extend the lease to end this long from now. False if the lease was lost."""
        sent_s = monotonic()
        call = calls.extend(self.topic, self.node, [self.claimed], lease_ms=lease_ms)
        is_extended = (await self._runner.run(call)).extended == 1
        self._lease.lost = not is_extended
        if is_extended:
            self._lease.hold(lease_ms, sent_s + lease_ms / 1_000)
        return is_extended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if error is not None:
            try:
                await self.nack(reason=calls.error_reason(error))
            except UpgradePending:  # a cluster with older nodes cannot write reasons
                await self.nack()
        elif not await self.ack():
            raise LeaseLost(
                f"the lease of job {self.seq} of {self.topic!r} was lost before it was done: "
                "another worker may do it too",
                topic=self.topic,
                seq=self.seq,
            )


class AsyncWorkFlow:
    """Hands out jobs. Jobs of a lost connection that were not handed out yet are dropped.

    The server gives them to another worker, or to this one again, as soon as it detects the loss.
    """

    def __init__(
        self,
        runner: AsyncRunner,
        topic: str,
        node: str,
        *,
        count: int,
        lease_ms: int | None,
        extends: bool,
    ) -> None:
        self.ended = False
        self.topic = topic
        self.node = node
        self._runner = runner
        self._request = calls.work_request(topic, node, count=count, lease_ms=lease_ms)
        self._lease_ms = lease_ms
        self._extends = extends
        self._reconnects = Reconnects(runner.settings.reconnect, runner.random)
        self._begin()

    def _begin(self) -> None:
        """Reset to the initial state."""
        self._pid = os.getpid()
        self._lock = threading.Lock()  # for state shared by the reader and the program
        self._news = AsyncSignal()
        self._leases = Leases(extends=self._extends)
        self._reader: AsyncAttempt[None] | None = None
        self._failure: CallError | None = None
        self._stream: AsyncConnection | None = None
        self._parser = FrameParser()
        self._heard_s = 0.0
        self._rest_until_s = 0.0

    @property
    def trouble(self) -> str | None:
        """Why there is no stream now, or None."""
        return self._reconnects.trouble

    async def next(self, deadline_s: float = inf) -> Lease | None:
        """The next job; None once it is closed, or if none came before the deadline."""
        while not self.ended:
            if self._pid != os.getpid():
                self._begin()  # in a forked child, which has neither the thread nor the stream
            seen = self._news.count
            if self._failure is not None:
                self.ended = True
                raise self._failure
            with self._lock:
                lease = self._leases.take(monotonic())
            if lease is not None:
                return lease
            await self._see_to_the_reader()
            left_s = deadline_s - monotonic()
            if left_s <= 0:
                break
            await self._news.changed(seen, left_s)
        return None

    def close(self) -> None:
        """End the stream; the server takes back unsettled jobs."""
        self.ended = True
        if self._pid == os.getpid():
            if self._reader is not None:
                self._reader.drop()
            self._drop()
            self._news.tell()

    def abandon(self) -> None:
        """The program dropped the stream without closing it; called from any thread."""
        if self._reader is not None and self._pid == os.getpid():
            self._reader.call(self.close)

    async def _see_to_the_reader(self) -> None:
        """Ensure that a reader runs. A reader whose loop has ended counts as a lost connection."""
        is_over = self._reader is not None and await self._reader.over(0.0)
        if self._reader is not None and is_over and not self.ended and self._failure is None:
            try:
                self._reader.result()
            except Disconnected:
                self._begin()
        with self._lock:  # of several callers that find none, only one starts it
            if self._reader is None and not self.ended:
                self._reader = AsyncAttempt(self._read_on)

    async def _read_on(self) -> None:
        """Read the stream, reopen it and extend leases, until the end."""
        try:
            while not self.ended:
                try:
                    await self._step()
                except CallError as error:
                    self._drop()
                    if not self.ended:
                        self._lost(error)
        except CallError as error:
            self._failure = error
        finally:
            self._drop()
            self._news.tell()

    async def _step(self) -> None:
        now_s = monotonic()
        with self._lock:
            due = self._leases.due(now_s)
        if due:
            await self._extend(due)
        elif self._stream is not None:
            await self._read(self._stream)
        elif self._rest_until_s > now_s:
            await self._rest(now_s)
        else:
            await self._open()

    async def _rest(self, now_s: float) -> None:
        """Wait before the next try, until a lease is due for extension."""
        seen = self._news.count
        if self.ended:
            return
        wake_s = self._wake_s(self._rest_until_s)
        await self._news.changed(seen, wake_s - now_s)
        if wake_s == self._rest_until_s:
            self._rest_until_s = 0.0

    async def _open(self) -> None:
        with self._lock:
            self._leases.opened(monotonic())
        stream = await self._runner.open(self._request)
        with self._lock:
            self._stream = stream
        if self.ended:
            self._drop()  # `close` was called before there was anything to close
            return
        self._parser = FrameParser()
        self._heard_s = monotonic()
        if self.trouble is not None:
            self._reconnects.opened()
            self._runner.tell(None)

    async def _read(self, stream: AsyncConnection) -> None:
        """Receive more frames, until a lease is due for extension."""
        silent_until_s = self._heard_s + HEARTBEAT_S * SILENCE_HEARTBEATS
        try:
            data = await stream.read(max(0.001, self._wake_s(silent_until_s) - monotonic()))
        except TimedOut:
            if monotonic() < silent_until_s:
                return
            raise
        if not data:
            raise ServerUnavailable("the server ended the stream")
        self._heard_s = monotonic()
        frames = list(self._parser.feed(data))
        if self._parser.works:
            self._reconnects.heard()
        jobs = [job for job in map(_job, frames) if job is not None]
        if not jobs:
            return
        lease_ms = await self._learned_lease_ms()
        with self._lock:
            for job in jobs:
                self._leases.received(job, lease_ms, self._heard_s)
        self._news.tell()

    async def _learned_lease_ms(self) -> int:
        """How long leases last: as requested, else as the queue is configured."""
        if self._lease_ms is None:
            state = await self._runner.run(calls.get_topic(self.topic, touch=False))
            self._lease_ms = state.config.lease_ms
        return self._lease_ms

    async def _extend(self, due: Sequence[Lease]) -> None:
        sent_s = monotonic()
        lease_ms = due[0].lease_ms
        limit_s = max(EXTEND_S_MIN, EXTEND_SHARE * lease_ms / 1_000)
        limit_s = min(self._runner.settings.timeout_s, limit_s)
        jobs = [lease.job for lease in due]
        call = calls.extend(self.topic, self.node, jobs, lease_ms=lease_ms)
        try:
            answer = await self._runner.within(limit_s).run(call)
        except ClientClosed:
            raise
        except (Throttled, ServerUnavailable, OutcomeUnknown):
            with self._lock:
                self._leases.failed(due, monotonic())
        except CallError:
            with self._lock:
                self._leases.refused(due)
        else:
            with self._lock:
                self._leases.extended(due, answer, sent_s)
        self._news.tell()

    def _wake_s(self, until_s: float) -> float:
        with self._lock:
            return min(until_s, self._leases.next_due_s())

    def _lost(self, error: CallError) -> None:
        """Plan the next try; if there is none, raise the stream's final error."""
        if not isinstance(error, Throttled | ServerUnavailable):
            raise error
        is_news = self.trouble is None
        now_s = monotonic()
        delay_ms = self._reconnects.failed(error, now_s * 1_000)
        if delay_ms is None:
            raise error
        self._rest_until_s = now_s + delay_ms / 1_000
        if is_news:
            self._runner.tell(error)

    def _drop(self) -> None:
        with self._lock:
            stream, self._stream = self._stream, None
            self._leases.stream_lost()
        if stream is not None:
            stream.close()


def _job(frame: Frame) -> ClaimedJob | None:
    if frame.event == "error":
        raise stream_error(frame)
    if frame.event != "job":
        return None
    try:
        return _JOB.decode(frame.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotPenstock(f"the server sent a malformed job frame: {frame.data[:80]!r}") from error
