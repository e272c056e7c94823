"""Reconnecting a lost stream: how long to wait, when to give up, what the last error was."""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from penstock.client.errors import NotPenstock
from penstock.client.sse import Frame
from penstock.flow.backoff import Backoff
from penstock.protocol.errors import CallError, NotAQueue, ServerUnavailable, ShuttingDown


class Reconnects:
    """Counts consecutive failures; the back-off's window begins with the first of them.

    The server's `retry:` hint is not used: it is the same for all clients, and would bring all
    clients of a restarted server back at the same moment.
    """

    __slots__ = ("_backoff", "_failures", "_random", "_since_ms", "count", "trouble")

    def __init__(self, backoff: Backoff, random: Random) -> None:
        self._backoff = backoff
        self._random = random
        self._failures = 0
        self._since_ms = 0.0
        self.count = 0
        """Failures since the start."""
        self.trouble: str | None = None
        """Why there is no stream now."""

    def opened(self) -> None:
        """A stream is open; whether it works shows when data arrives."""
        self.trouble = None

    def heard(self) -> None:
        """Data arrived, at least a heartbeat, and no error: the stream works."""
        self._failures = 0

    def failed(self, error: CallError, now_ms: float) -> float | None:
        """The delay before the next try, or None to give up."""
        if not self._failures:
            self._since_ms = now_ms
        self._failures += 1
        self.count += 1
        self.trouble = error.message
        delay_ms = self._backoff.next_ms(
            self._failures, elapsed_ms=now_ms - self._since_ms, random=self._random
        )
        if delay_ms is None:
            return None
        return max(delay_ms, float(getattr(error, "retry_after_ms", None) or 0))


class _Failure(msgspec.Struct):
    code: str | int = ""
    message: str = ""
    error: str = ""
    topic: str = ""


_FAILURE: Final = msgspec.json.Decoder(_Failure)


def stream_error(frame: Frame) -> CallError:
    """The error in an error frame; the server closes the stream after it."""
    try:
        failure = _FAILURE.decode(frame.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotPenstock(f"expected an error frame, found {frame.data[:80]!r}") from error
    text = failure.message or failure.error or f"the stream ended with {failure.code}"
    if failure.code == "server_shutting_down":
        return ShuttingDown(text)
    if failure.code == 409:
        return NotAQueue.told(text, {"topic": failure.topic})
    return ServerUnavailable(text)
