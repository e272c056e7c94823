"""Watches, jobs and pages as programs iterate over them: one face for asyncio, one for threads."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from time import monotonic
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from penstock.client import calls
from penstock.client.aio.runner import Runner
from penstock.client.aio.watch_flow import WatchFlow
from penstock.client.aio.work_flow import WorkFlow
from penstock.client.calls import Call
from penstock.client.errors import LeaseLost
from penstock.client.leasing import Lease
from penstock.client.transports.ports import finish
from penstock.client.watching import Position, WatchEvent
from penstock.protocol.answers import Acked, ClaimedJob, Extended, Nacked

P = TypeVar("P")
T = TypeVar("T")


class _WatchView:
    """What both faces of a watch tell about it."""

    def __init__(self, flow: WatchFlow) -> None:
        self._flow = flow

    @property
    def positions(self) -> Mapping[str, Position]:
        """Where the watch stands in each topic, after the events that were handed out.

        Kept by a program and given to `watch` later, it goes on from there.
        """
        return dict(self._flow.core.positions)

    @property
    def reconnects(self) -> int:
        """How often the connection was lost so far."""
        return self._flow.core.reconnects

    @property
    def trouble(self) -> str | None:
        """Why there is no connection now; None while there is one."""
        return self._flow.core.trouble


class AsyncWatch(_WatchView):
    """The events of topics as they happen. Iterate over it; leave its `async with` to end it."""

    def __aiter__(self) -> AsyncIterator[WatchEvent]:
        return self

    async def __anext__(self) -> WatchEvent:
        event = await self._flow.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next_event(self, timeout_s: float) -> WatchEvent | None:
        """The next event, or None if there is none in time or the watch has ended."""
        return await self._flow.next(monotonic() + timeout_s)

    async def aclose(self) -> None:
        """End the watch."""
        self._flow.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._flow.close()


class Watch(_WatchView):
    """The events of topics as they happen. Iterate over it; leave its `with` to end it.

    Another thread may `close` it: the iteration then ends.
    """

    def __iter__(self) -> Iterator[WatchEvent]:
        return self

    def __next__(self) -> WatchEvent:
        event = finish(self._flow.next())
        if event is None:
            raise StopIteration
        return event

    def next_event(self, timeout_s: float) -> WatchEvent | None:
        """The next event, or None if there is none in time or the watch has ended."""
        return finish(self._flow.next(monotonic() + timeout_s))

    def close(self) -> None:
        """End the watch."""
        self._flow.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._flow.close()


class _JobView:
    """What both faces of a job tell about it."""

    def __init__(self, runner: Runner, lease: Lease, work: _WorkView) -> None:
        self._runner = runner
        self._lease = lease
        self._work = work  # the stream goes on for as long as the program has a job of it

    def __del__(self) -> None:
        self._lease.is_wanted = False  # let go of without a word: the lease runs out

    @property
    def topic(self) -> str:
        """The queue."""
        return self._work.topic

    @property
    def node(self) -> str:
        """The name under which the job is held."""
        return self._work.node

    @property
    def claimed(self) -> ClaimedJob:
        """The job as it was claimed."""
        return self._lease.job

    @property
    def settled(self) -> bool:
        """Whether it was acknowledged or given back."""
        return self._lease.settled

    @property
    def lease_lost(self) -> bool:
        """Whether the server said that the job is no longer ours."""
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
        """How often the job was handed out, this time included."""
        return self.claimed.deliveries

    @property
    def deadline_ms(self) -> int:
        """When the lease ends, in the server's time, as it was claimed."""
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

    def _ack(self) -> Call[Acked]:
        self._lease.settled = True
        return calls.ack(self.topic, self.node, [self.claimed])

    def _nack(self, delay_ms: int) -> Call[Nacked]:
        self._lease.settled = True
        return calls.nack(self.topic, self.node, [self.claimed], delay_ms=delay_ms)

    def _extend(self, lease_ms: int) -> Call[Extended]:
        return calls.extend(self.topic, self.node, [self.claimed], lease_ms=lease_ms)

    def _is_extended(self, answer: Extended, lease_ms: int, sent_s: float) -> bool:
        is_extended = answer.extended == 1
        self._lease.lost = not is_extended
        if is_extended:
            self._lease.hold(lease_ms, sent_s + lease_ms / 1_000)
        return is_extended

    def _check(self, is_done: bool) -> None:
        if not is_done:
            raise LeaseLost(
                f"the lease of job {self.seq} of {self.topic!r} was lost before it was done: "
                "another worker may do it too",
                topic=self.topic,
                seq=self.seq,
            )


class AsyncJob(_JobView):
    """A job that is ours for a while. As `async with`: done at the end, given back on an error.

    `LeaseLost` at the end says that the job was not ours any more.
    """

    async def ack(self) -> bool:
        """The job is done. False if it was no longer ours: somebody else may do it too."""
        return (await self._runner.run(self._ack())).acked == 1

    async def nack(self, delay_ms: int = 0) -> bool:
        """Give the job back, to be handed out again after a delay. False if it was not ours."""
        return (await self._runner.run(self._nack(delay_ms))).nacked == 1

    async def extend(self, lease_ms: int) -> bool:
        """Let the lease end so long from now. False if the job is no longer ours."""
        sent_s = monotonic()
        answer = await self._runner.run(self._extend(lease_ms))
        return self._is_extended(answer, lease_ms, sent_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if not self.settled:
            if error is None:
                self._check(await self.ack())
            else:
                await self.nack()


class Job(_JobView):
    """A job that is ours for a while. As `with`: done at the end, given back on an error.

    `LeaseLost` at the end says that the job was not ours any more.
    """

    def ack(self) -> bool:
        """The job is done. False if it was no longer ours: somebody else may do it too."""
        return finish(self._runner.run(self._ack())).acked == 1

    def nack(self, delay_ms: int = 0) -> bool:
        """Give the job back, to be handed out again after a delay. False if it was not ours."""
        return finish(self._runner.run(self._nack(delay_ms))).nacked == 1

    def extend(self, lease_ms: int) -> bool:
        """Let the lease end so long from now. False if the job is no longer ours."""
        sent_s = monotonic()
        answer = finish(self._runner.run(self._extend(lease_ms)))
        return self._is_extended(answer, lease_ms, sent_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if not self.settled:
            if error is None:
                self._check(self.ack())
            else:
                self.nack()


class _WorkView:
    """What both faces of a stream of jobs tell about it."""

    def __init__(self, flow: WorkFlow, runner: Runner) -> None:
        self._flow = flow
        self._runner = runner
        weakref.finalize(self, flow.abandon)

    @property
    def topic(self) -> str:
        """The queue."""
        return self._flow.topic

    @property
    def node(self) -> str:
        """The name under which jobs are held."""
        return self._flow.node

    @property
    def trouble(self) -> str | None:
        """Why there is no connection now; None while there is one."""
        return self._flow.trouble


class AsyncWork(_WorkView):
    """The jobs of a queue as they become ready. Leave its `async with` to end it."""

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
        """End the stream; jobs that are not settled go back to the queue."""
        self._flow.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._flow.close()


class Work(_WorkView):
    """The jobs of a queue as they become ready. Leave its `with` to end it.

    Several threads may take jobs from it, and another one may `close` it.
    """

    def __iter__(self) -> Iterator[Job]:
        return self

    def __next__(self) -> Job:
        lease = finish(self._flow.next())
        if lease is None:
            raise StopIteration
        return Job(self._runner, lease, self)

    def next_job(self, timeout_s: float) -> Job | None:
        """The next job, or None if there is none in time or the stream has ended."""
        lease = finish(self._flow.next(monotonic() + timeout_s))
        return None if lease is None else Job(self._runner, lease, self)

    def close(self) -> None:
        """End the stream; jobs that are not settled go back to the queue."""
        self._flow.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._flow.close()


class Pages(Generic[P]):
    """Pages of a list or a topic, each asked for when it is wanted.

    `following` makes the call for the page after the given one, or None after the last. The same
    object serves `for` on a blocking client and `async for` on an async one.
    """

    def __init__(
        self, runner: Runner, first: Call[P], following: Callable[[P], Call[P] | None]
    ) -> None:
        self._runner = runner
        self._call: Call[P] | None = first
        self._following = following

    async def __aiter__(self) -> AsyncIterator[P]:
        while self._call is not None:
            yield await self._next(self._call)

    def __iter__(self) -> Iterator[P]:
        while self._call is not None:
            yield finish(self._next(self._call))

    async def _next(self, call: Call[P]) -> P:
        page = await self._runner.run(call)
        self._call = self._following(page)
        return page
