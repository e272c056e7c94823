"""Errors of the client beside those of the protocol, and decoding errors from answers.

A server's errors are in `penstock.protocol.errors`; the classes here are for failures on the way
to it, and for events of a runtime that cannot take effect. The group says what to do next, the
class and its `code` what happened.

>>> error = answer_error(404, b'{"error":{"code":"topic_not_found","message":"there is none"}}')
>>> type(error).__name__, error.status, str(error)
('TopicNotFound', 404, 'there is none')
>>> answer_error(502, b"<html>").code
'internal'
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from penstock.kernel.errors import Busy, Conflict, Rejected
from penstock.protocol.answers import ErrorAnswer, ErrorFacts
from penstock.protocol.errors import (
    CallError,
    Outcome,
    OutcomeUnknown,
    ServerUnavailable,
    error_of,
)


class LeaseLost(CallError, Conflict, code="lease_lost"):
    """The job's lease had ended before it was acked: another worker may do it, or has done it, too.

    `topic` and `seq` of `detail` say which.
    """


class Limited(CallError, Busy, code="limited"):
    """A limit of the client itself is reached; nothing was sent."""


class Unreachable(ServerUnavailable, code="unreachable"):
    """No connection could be opened; nothing was sent."""


class Untrusted(CallError, Rejected, code="untrusted"):
    """The client does not trust the server's certificate; nothing was sent."""


class Disconnected(ServerUnavailable, code="disconnected"):
    """The connection ended before the answer was complete.

    This is how reads end; a call that may have changed something ends with `OutcomeUnknown`.
    """

    outcome = Outcome.UNKNOWN


class TimedOut(ServerUnavailable, code="timed_out"):
    """The answer was not complete within the time allowed.

    This is how reads end; a call that may have changed something ends with `OutcomeUnknown`.
    """

    outcome = Outcome.UNKNOWN


class NotPenstock(CallError, Rejected, code="not_penstock"):
    """The answer does not follow the protocol: it is not from a Penstock server."""

    outcome = Outcome.UNKNOWN


class ClientClosed(CallError, Rejected, code="client_closed"):
    """The client, watch or writer is already closed."""


def unanswered(message: str, *, cause: CallError | None = None, **detail: Any) -> OutcomeUnknown:
    """The error of a request that was sent, and whose answer does not tell what became of it."""
    error = OutcomeUnknown(message, **detail)
    error.status = 0 if cause is None else cause.status
    error.retry_after_ms = None if cause is None else cause.retry_after_ms
    error.__cause__ = cause
    return error


_ENVELOPE: Final = msgspec.json.Decoder(ErrorAnswer)


def answer_error(
    status: int,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    server: str = "",
    now_ms: int | None = None,
) -> CallError:
    """The error in an answer, of the class that the server's code names.

    A Retry-After with a date counts from `now_ms`; without it, such a date is ignored. A server
    error of a proxy says nothing about what the server behind it did.
    """
    try:
        told = _ENVELOPE.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        outcome = Outcome.UNKNOWN.value if status >= 500 else None
        told = ErrorFacts(message=_not_an_envelope(status, body, server), outcome=outcome)
    if status < 400 and not told.code:
        return NotPenstock(told.message, status=status)
    error = error_of(status, told.code, told.message, told.detail)
    error.retry_after_ms = _retry_after_ms(error.detail, headers or {}, now_ms)
    if told.outcome == Outcome.UNKNOWN.value:
        error.outcome = Outcome.UNKNOWN
    return error


def _not_an_envelope(status: int, body: bytes, server: str) -> str:
    place = f" at {server}" if server else ""
    return f"what answered{place} is not a Penstock server: status {status} with {body[:80]!r}"


def _retry_after_ms(
    detail: Mapping[str, Any], headers: Mapping[str, str], now_ms: int | None
) -> int | None:
    """The delay that the server asks for: exact in the detail, else from the header."""
    exact = detail.get("retry_after_ms")
    if isinstance(exact, int | float) and exact >= 0:
        return int(exact)
    wish = headers.get("retry-after", "")
    if wish.isascii() and wish.isdigit():
        return int(wish) * 1_000
    at_ms = _date_ms(wish)
    return None if at_ms is None or now_ms is None else max(0, at_ms - now_ms)


def _date_ms(text: str) -> int | None:
    """The time of an HTTP date in any of its three forms; None for any other text."""
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if found.tzinfo is None:  # the oldest form does not state that it is GMT
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1_000)


class CommitConvergenceError(CallError, Conflict):
    """A committed write met conflicts until its time was up: nothing of it was applied.

    `attempts` is the number of tries, `elapsed_ms` the time since its first conflict, `cause` the
    last conflict.
    """

    code = "not_converged"

    def __init__(
        self, message: str, *, attempts: int, elapsed_ms: float, cause: Exception, **detail: Any
    ) -> None:
        super().__init__(message, attempts=attempts, elapsed_ms=elapsed_ms, **detail)
        self.attempts = attempts
        self.elapsed_ms = elapsed_ms
        self.cause = cause
        self.__cause__ = cause


class ChangedLocally(CallError, Conflict):
    """A value that a handler read changed before its commit was sent: it runs again."""

    code = "changed_locally"


class HandlerFailed(CallError, Rejected):
    """The handler of an event raised, and nothing was written; its error is the `__cause__`."""

    code = "handler_failed"


class BacklogFull(CallError, Busy):
    """Too many events of this lane and type are waiting: this one was refused and never ran."""

    code = "backlog_full"


class OriginFailed(CallError, Rejected):
    """The event that sent this one did not commit, so this one never will."""

    code = "origin_failed"


class Superseded(CallError, Conflict):
    """The handler that sent this event ran again: the event it sent then replaces this one."""

    code = "superseded"
