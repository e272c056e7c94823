"""A stream of jobs on a connection, opened again when it is lost."""

from __future__ import annotations

from collections import deque
from functools import partial
from math import inf
from time import monotonic
from typing import Final

import msgspec

from penstock.client.errors import (
    ClientError,
    NotPenstock,
    ServerUnavailable,
    Throttled,
    TimedOut,
)
from penstock.client.reconnecting import Reconnects, stream_error
from penstock.client.results import ClaimedJob
from penstock.client.shell.attempts import Underway
from penstock.client.shell.running import Runner
from penstock.client.shell.transport import Stream
from penstock.client.sse import Frame, FrameParser
from penstock.client.watching import SILENCE_HEARTBEATS
from penstock.client.wire import HttpRequest

HEARTBEAT_S: Final = 15.0
"""The server's, and fixed, on a work stream."""

_JOB: Final = msgspec.json.Decoder(ClaimedJob)


class WorkFlow:
    """Hands out jobs. Those of a lost connection that nobody has seen are not handed out.

    The server gives them to somebody else, or to us again, as soon as it notices.
    """

    def __init__(self, request: HttpRequest, runner: Runner) -> None:
        self.ended = False
        self._request = request
        self._runner = runner
        self._reconnects = Reconnects(runner.settings.reconnect, runner.random)
        self._underway = Underway(runner.transport)
        self._stream: Stream | None = None
        self._parser = FrameParser()
        self._frames: deque[Frame] = deque()
        self._heard_s = 0.0
        self._rest_until_s = 0.0

    @property
    def trouble(self) -> str | None:
        """Why there is no stream now, or None."""
        return self._reconnects.trouble

    async def next(self, deadline_s: float = inf) -> ClaimedJob | None:
        """The next job; None once it is closed, or if none came before the deadline."""
        while not self.ended:
            try:
                if self._frames:
                    job = self._job(self._frames.popleft())
                    if job is not None:
                        return job
                elif self._stream is not None:
                    if not await self._read(self._stream, deadline_s):
                        break
                elif not (await self._rest(deadline_s) and await self._open(deadline_s)):
                    break
            except ClientError as error:
                self._drop()
                if not self.ended:
                    self._lost(error)
        if self.ended:
            self._drop()  # what was not there yet when another thread called `close`
        return None

    def close(self) -> None:
        """End the stream; the server takes back the jobs that are not settled."""
        self.ended = True
        self._drop()

    async def _open(self, deadline_s: float) -> bool:
        """Open the stream; False if the deadline came first."""
        ask = partial(self._runner.open, self._request)
        stream = await self._underway.answer(ask, deadline_s, self._is_ended)
        if stream is None:
            return False
        self._stream = stream
        self._parser = FrameParser()
        self._heard_s = monotonic()
        if self.trouble is not None:
            self._reconnects.opened()
            self._runner.tell(None)
        return True

    async def _read(self, stream: Stream, deadline_s: float) -> bool:
        """Receive more frames; False if the deadline came first."""
        silent_until_s = self._heard_s + HEARTBEAT_S * SILENCE_HEARTBEATS
        try:
            data = await stream.read(max(0.001, min(silent_until_s, deadline_s) - monotonic()))
        except TimedOut:
            if deadline_s < silent_until_s:
                return False
            raise
        if not data:
            raise ServerUnavailable("expected the stream to go on, found it ended")
        self._heard_s = monotonic()
        self._frames.extend(self._parser.feed(data))
        if self._parser.works:
            self._reconnects.heard()
        return True

    def _job(self, frame: Frame) -> ClaimedJob | None:
        if frame.event == "error":
            raise stream_error(frame)
        if frame.event != "job":
            return None
        try:
            return _JOB.decode(frame.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotPenstock(f"expected a job frame, found {frame.data[:80]!r}") from error

    def _lost(self, error: ClientError) -> None:
        """Plan the next try; if there is none, the end of the stream is raised."""
        if not isinstance(error, Throttled | ServerUnavailable):
            self.ended = True
            raise error
        is_news = self.trouble is None
        now_s = monotonic()
        delay_ms = self._reconnects.failed(error, now_s * 1_000)
        if delay_ms is None:
            self.ended = True
            raise error
        self._rest_until_s = now_s + delay_ms / 1_000
        if is_news:
            self._runner.tell(error)

    async def _rest(self, deadline_s: float) -> bool:
        """Wait out a pause; False if the deadline comes first."""
        left_s = min(self._rest_until_s, deadline_s) - monotonic()
        if left_s > 0:
            await self._runner.transport.pause(left_s)
        return self._rest_until_s <= deadline_s

    def _is_ended(self) -> bool:
        return self.ended

    def _drop(self) -> None:
        self._underway.drop()
        self._frames.clear()
        if self._stream is not None:
            self._stream.close()
            self._stream = None
