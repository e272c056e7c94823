# Generated from ../aio/watch.py by tools/unasync.py: edit that, then `make generate`.
"""Watches of topics and of tables, across any number of connections.

`WatchCore` and `TableWatchCore` decide; this module carries out their steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from penstock.client import calls
from penstock.client.blocking.runner import Runner
from penstock.client.errors import TimedOut
from penstock.client.event_stream import Frame, FrameParser
from penstock.client.table_watching import TableWatchCore
from penstock.client.transports.blocking import Attempt, Connection
from penstock.client.watching import Create, Open, Pause, Position, Step, Stop, WatchCore
from penstock.client.wire import HttpRequest
from penstock.protocol.errors import CallError, ServerUnavailable
from penstock.protocol.events import TableEvent, WatchEvent

Event = TypeVar("Event")
Event_co = TypeVar("Event_co", covariant=True)
T = TypeVar("T")


class Events(Generic[Event]):
    """What watches of topics and of tables share."""

    def __init__(self, core: StreamCore[Event], runner: Runner) -> None:
        self._flow = WatchFlow(core, runner)

    @property
    def reconnects(self) -> int:
        """How often the connection was lost so far."""
        return self._flow.core.reconnects

    @property
    def trouble(self) -> str | None:
        """Why there is no connection now; None while there is one."""
        return self._flow.core.trouble

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        event = self._flow.next()
        if event is None:
            raise StopIteration
        return event

    def next_event(self, timeout_s: float) -> Event | None:
        """The next event, or None if there is none in time or the watch has ended."""
        return self._flow.next(monotonic() + timeout_s)

    def close(self) -> None:
        """End the watch."""
        self._flow.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._flow.close()


class Watch(Events[WatchEvent]):
    """The events of topics as they happen. Iterate over it; leave its `with` to end it.

    Another thread may close it: the iteration then ends.
    """

    def __init__(self, core: WatchCore, runner: Runner) -> None:
        super().__init__(core, runner)
        self._core = core

    @property
    def positions(self) -> Mapping[str, Position]:
        """The watch's position in each topic, after the events that were returned.

        A program can save them and pass them to `watch` later, to continue from there.
        """
        return dict(self._core.positions)


class TableWatch(Events[TableEvent]):
    """The events of a table as they happen. Iterate over it; leave its `with` to end it.

    Rows from offset 0 on replace everything that came before. Another thread may close it: the
    iteration then ends.
    """

    def __init__(self, core: TableWatchCore, runner: Runner) -> None:
        super().__init__(core, runner)
        self._core = core

    @property
    def position(self) -> str | None:
        """The watch's position after the events that were returned; None while rows are read.

        A program can save it and pass it to `watch` later, to continue from there.
        """
        return self._core.position


class StreamCore(Protocol[Event_co]):
    """Decides what a watch does: of topics, or of a table."""

    @property
    def silence_ms(self) -> float:
        """Silence after which the connection counts as dead."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why there is no stream now, or None."""
        ...

    @property
    def reconnects(self) -> int:
        """How often the stream was lost so far."""
        ...

    def next_step(self) -> Step:
        """What to do next."""
        ...

    def stream_request(self, step: Open, /) -> HttpRequest:
        """The request that opens the stream."""
        ...

    def created(self, answer: Mapping[str, Any], /) -> Iterable[Event_co]:
        """The session was created."""
        ...

    def opened(self) -> None:
        """The stream was opened."""
        ...

    def heard(self) -> None:
        """The stream works."""
        ...

    def frame(self, frame: Frame) -> Event_co | None:
        """A frame arrived."""
        ...

    def ended(self, now_ms: float, error: CallError | None = None) -> None:
        """The stream, or the try to open one, ended."""
        ...


class WatchFlow(Generic[Event]):
    """Returns the events of a watch, one at a time, across any number of connections.

    Any wait may end early, by a deadline or by a cancellation, without losing received data.
    """

    def __init__(self, core: StreamCore[Event], runner: Runner) -> None:
        self.core = core
        self.ended = False
        self._runner = runner
        self._pending = _Pending()
        self._stream: Connection | None = None
        self._parser = FrameParser()
        self._frames: deque[Frame] = deque()
        self._events: deque[Event] = deque()
        self._heard_s = 0.0
        self._rest_until_s = 0.0

    def next(self, deadline_s: float = inf) -> Event | None:
        """The next event; None when it has `ended`, or if none came before the deadline."""
        while not self.ended:
            event = self._take()
            if event is not None:
                return event
            if self._stream is not None:
                if not self._frames and not self._read(self._stream, deadline_s):
                    break
            elif not self._step(deadline_s):
                break
        if self.ended:
            self._drop()  # a connection opened after another thread called `close`
        return None

    def close(self) -> None:
        """End the watch."""
        self.ended = True
        self._drop()

    def _take(self) -> Event | None:
        """The next received event. Cursors move here, when an event is returned."""
        while self._frames and not self._events:
            try:
                event = self.core.frame(self._frames.popleft())
            except CallError as error:
                self._lost(error)
                return None
            if event is not None:
                return event
        return self._events.popleft() if self._events else None

    def _read(self, stream: Connection, deadline_s: float) -> bool:
        """Receive more frames, or detect the end; False if the deadline came first."""
        silent_until_s = self._heard_s + self.core.silence_ms / 1_000
        now_s = monotonic()
        try:
            data = stream.read(max(0.001, min(silent_until_s, deadline_s) - now_s))
        except TimedOut as error:
            if deadline_s < silent_until_s:
                return False
            self._lost(error)
            return True
        except CallError as error:
            self._lost(error)
            return True
        self._heard_s = monotonic()
        if not data:
            self._lost(None)
            return True
        try:
            self._frames.extend(self._parser.feed(data))
        except CallError as error:
            self._lost(error)
            return True
        if self._parser.works:
            self.core.heard()
        return True

    def _step(self, deadline_s: float) -> bool:
        """Carry out the core's next step; False if the deadline comes first."""
        if not self._rest(deadline_s):
            return False
        step = self.core.next_step()
        try:
            match step:
                case Create():
                    return self._create(step, deadline_s)
                case Open():
                    return self._open(step, deadline_s)
                case Pause(delay_ms):
                    self._rest_until_s = monotonic() + delay_ms / 1_000
                case Stop(error):
                    self.close()
                    if error is not None:
                        raise error
        except CallError as error:
            if isinstance(step, Stop):
                raise
            self._lost(error)
        return True

    def _create(self, step: Create, deadline_s: float) -> bool:
        """Create a session; False if the deadline comes first."""
        call = calls.create_watch(step.body, lenient=step.lenient)
        answer = self._pending.answer(partial(self._runner.run, call), deadline_s, self._is_ended)
        if answer is None:
            return False
        self._events.extend(self.core.created(answer))
        return True

    def _open(self, step: Open, deadline_s: float) -> bool:
        """Open the stream of a session; False if the deadline comes first."""
        request = self.core.stream_request(step)
        stream = self._pending.answer(
            partial(self._runner.open, request), deadline_s, self._is_ended
        )
        if stream is None:
            return False
        self._stream = stream
        self._parser = FrameParser()
        self._heard_s = monotonic()
        if self.core.trouble is not None:
            self.core.opened()
            self._runner.tell(None)
        return True

    def _rest(self, deadline_s: float) -> bool:
        """Wait out a pause; False if the deadline comes first."""
        left_s = min(self._rest_until_s, deadline_s) - monotonic()
        if left_s > 0:
            self._runner.transport.pause(left_s)
        return self._rest_until_s <= deadline_s

    def _lost(self, error: CallError | None) -> None:
        self._drop()
        if self.ended:
            return
        error = error or ServerUnavailable("the server ended the stream")
        is_news = self.core.trouble is None
        self.core.ended(monotonic() * 1_000, error)
        if is_news and self.core.trouble is not None:
            self._runner.tell(error)

    def _is_ended(self) -> bool:
        return self.ended

    def _drop(self) -> None:
        self._pending.drop()
        self._frames.clear()
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class _Pending:
    """The single request of a watch in progress; it outlives the wait for it.

    A caller's deadline, or a cancelled wait, says nothing about the server: the request continues,
    and the next call waits for the same answer. If each call sent a new request, a caller with a
    deadline shorter than the server's response time would never get an answer, and data sent for
    the previous request would be lost.
    """

    def __init__(self) -> None:
        self._attempt: Attempt[Any] | None = None

    def answer(
        self,
        ask: Callable[[], T],
        deadline_s: float,
        is_ended: Callable[[], bool],
    ) -> T | None:
        """The answer; None if the deadline comes first: then call again for the same answer.

        Another thread may end the watch and `drop` this before there is anything to drop.
        """
        attempt: Attempt[T] | None = self._attempt
        if attempt is None:
            attempt = self._attempt = Attempt(ask)
            if is_ended():
                self.drop()
        if not attempt.over(deadline_s):
            return None
        self._attempt = None
        return attempt.result()

    def drop(self) -> None:
        """Abandon the answer."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.drop()
