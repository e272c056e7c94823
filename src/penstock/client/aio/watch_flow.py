"""A watch on a connection: the steps of `WatchCore`, carried out."""

from __future__ import annotations

from collections import deque
from functools import partial
from math import inf
from time import monotonic

from penstock.client import calls
from penstock.client.aio.runner import Runner
from penstock.client.errors import TimedOut
from penstock.client.sse import Frame, FrameParser
from penstock.client.transports.attempts import Underway
from penstock.client.transports.ports import Stream
from penstock.client.watching import Create, Open, Pause, Stop, WatchCore, WatchEvent
from penstock.protocol.errors import CallError, ServerUnavailable


class WatchFlow:
    """Hands out the events of a watch, one at a time, across any number of connections.

    It may be cancelled at every wait: nothing that was received is lost by it.
    """

    def __init__(self, core: WatchCore, runner: Runner) -> None:
        self.core = core
        self.ended = False
        self._runner = runner
        self._underway = Underway(runner.transport)
        self._stream: Stream | None = None
        self._parser = FrameParser()
        self._frames: deque[Frame] = deque()
        self._events: deque[WatchEvent] = deque()
        self._heard_s = 0.0
        self._rest_until_s = 0.0

    async def next(self, deadline_s: float = inf) -> WatchEvent | None:
        """The next event; None when it has `ended`, or if none came before the deadline."""
        while not self.ended:
            event = self._take()
            if event is not None:
                return event
            if self._stream is not None:
                if not self._frames and not await self._read(self._stream, deadline_s):
                    break
            elif not await self._step(deadline_s):
                break
        if self.ended:
            self._drop()  # what was not there yet when another thread called `close`
        return None

    def close(self) -> None:
        """End the watch."""
        self.ended = True
        self._drop()

    def _take(self) -> WatchEvent | None:
        """The next event of what was received. Cursors move here, with what is handed out."""
        while self._frames and not self._events:
            try:
                event = self.core.frame(self._frames.popleft())
            except CallError as error:
                self._lost(error)
                return None
            if event is not None:
                return event
        return self._events.popleft() if self._events else None

    async def _read(self, stream: Stream, deadline_s: float) -> bool:
        """Receive more frames, or notice the end; False if the deadline came first."""
        silent_until_s = self._heard_s + self.core.silence_ms / 1_000
        now_s = monotonic()
        try:
            data = await stream.read(max(0.001, min(silent_until_s, deadline_s) - now_s))
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

    async def _step(self, deadline_s: float) -> bool:
        """Do what the core says; False if the deadline comes before its end."""
        if not await self._rest(deadline_s):
            return False
        step = self.core.next_step()
        try:
            match step:
                case Create():
                    return await self._create(step, deadline_s)
                case Open():
                    return await self._open(step, deadline_s)
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

    async def _create(self, step: Create, deadline_s: float) -> bool:
        """Make a session; False if the deadline comes first."""
        call = calls.create_watch(step.body, lenient=step.lenient)
        answer = await self._underway.answer(
            partial(self._runner.run, call), deadline_s, self._is_ended
        )
        if answer is None:
            return False
        self._events.extend(self.core.created(answer))
        return True

    async def _open(self, step: Open, deadline_s: float) -> bool:
        """Open the stream of a session; False if the deadline comes first."""
        request = calls.watch_request(step.wid)
        stream = await self._underway.answer(
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

    async def _rest(self, deadline_s: float) -> bool:
        """Wait out a pause; False if the deadline comes first."""
        left_s = min(self._rest_until_s, deadline_s) - monotonic()
        if left_s > 0:
            await self._runner.transport.pause(left_s)
        return self._rest_until_s <= deadline_s

    def _lost(self, error: CallError | None) -> None:
        self._drop()
        if self.ended:
            return
        error = error or ServerUnavailable("expected the stream to go on, found it ended")
        is_news = self.core.trouble is None
        self.core.ended(monotonic() * 1_000, error)
        if is_news and self.core.trouble is not None:
            self._runner.tell(error)

    def _is_ended(self) -> bool:
        return self.ended

    def _drop(self) -> None:
        self._underway.drop()
        self._frames.clear()
        if self._stream is not None:
            self._stream.close()
            self._stream = None
