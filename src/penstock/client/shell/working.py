"""A stream of jobs on a connection, opened again when it is lost."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import Final

import msgspec

from penstock.client.errors import ClientError, NotPenstock, ServerUnavailable, Throttled
from penstock.client.reconnecting import Reconnects, stream_error
from penstock.client.results import ClaimedJob
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
        self._stream: Stream | None = None
        self._parser = FrameParser()
        self._frames: deque[Frame] = deque()

    async def next(self) -> ClaimedJob | None:
        """The next job; None once it is closed."""
        while not self.ended:
            try:
                if self._frames:
                    job = self._job(self._frames.popleft())
                    if job is not None:
                        return job
                elif self._stream is None:
                    self._stream = await self._runner.open(self._request)
                    self._parser = FrameParser()
                else:
                    await self._read(self._stream)
            except ClientError as error:
                self._drop()
                if not self.ended:
                    await self._pause(error)
        return None

    def close(self) -> None:
        """End the stream; the server takes back the jobs that are not settled."""
        self.ended = True
        self._drop()

    async def _read(self, stream: Stream) -> None:
        data = await stream.read(HEARTBEAT_S * SILENCE_HEARTBEATS)
        if not data:
            raise ServerUnavailable("expected the stream to go on, found it ended")
        self._frames.extend(self._parser.feed(data))

    def _job(self, frame: Frame) -> ClaimedJob | None:
        self._reconnects.heard()
        if frame.event == "error":
            raise stream_error(frame)
        if frame.event != "job":
            return None
        try:
            return _JOB.decode(frame.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotPenstock(f"expected a job frame, found {frame.data[:80]!r}") from error

    async def _pause(self, error: ClientError) -> None:
        if not isinstance(error, Throttled | ServerUnavailable):
            self.ended = True
            raise error
        delay_ms = self._reconnects.failed(error, monotonic() * 1_000)
        if delay_ms is None:
            self.ended = True
            raise error
        await self._runner.transport.pause(delay_ms / 1_000)

    def _drop(self) -> None:
        self._frames.clear()
        if self._stream is not None:
            self._stream.close()
            self._stream = None
