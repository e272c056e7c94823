"""What a call can end with: the protocol's error codes on the kernel's groups of errors.

The group says what to do next, the class and its `code` say what happened, `status` is that of the
answer (0 if there was none) and `detail` holds the facts the server gave.

>>> error = error_of(404, b'{"error":{"code":"topic_not_found","message":"there is none"}}')
>>> type(error).__name__, error.status, str(error)
('TopicNotFound', 404, 'there is none')
>>> error_of(502, b"<html>").code
'internal'
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Final

import msgspec

from penstock.kernel.errors import (
    Busy,
    Conflict,
    Corrupt,
    Gone,
    PenstockError,
    Rejected,
    Unavailable,
    Unknown,
)


class ClientError(PenstockError):
    """The root of every error a call of the client ends with."""

    maybe_done: ClassVar[bool] = False
    """Whether the server may have done what was asked although the call failed."""

    def __init__(self, message: str, *, status: int = 0, **detail: Any) -> None:
        super().__init__(message, **detail)
        self.status = status


class InvalidRequest(ClientError, Rejected):
    """A field, a name or a predicate is not what the protocol allows."""

    code = "invalid_request"


class BatchTooLarge(ClientError, Rejected):
    """More records or seqs in one request than one request may have."""

    code = "batch_too_large"


class RecordTooLarge(ClientError, Rejected):
    """A record is over the limit, or a write could not fit even into an empty topic."""

    code = "record_too_large"


class Unauthorized(ClientError, Rejected):
    """The API key is missing or not known to the server."""

    code = "unauthorized"


class Forbidden(ClientError, Rejected):
    """The API key does not allow this."""

    code = "forbidden"


class ForeignOrigin(Forbidden):
    """The server takes changes from web pages of its own origin only."""

    code = "foreign_origin"


class ForeignHost(ClientError, Rejected):
    """A server without keys does not answer under this name: its `allowed_hosts` lack it."""

    code = "foreign_host"


class NotFound(ClientError, Rejected):
    """There is no such route, or no such watch session any more."""

    code = "not_found"


class TopicNotFound(ClientError, Rejected):
    """There is no topic of that name."""

    code = "topic_not_found"


class RouterNotFound(ClientError, Rejected):
    """There is no router of that name."""

    code = "router_not_found"


class MethodNotAllowed(ClientError, Rejected):
    """The route does not take this method."""

    code = "method_not_allowed"


class NotAcceptable(ClientError, Rejected):
    """The server cannot answer in the form that was asked for."""

    code = "not_acceptable"


class PayloadTooLarge(ClientError, Rejected):
    """The body is over the server's limit."""

    code = "payload_too_large"


class UnsupportedMediaType(ClientError, Rejected):
    """The body is not of a type that the route takes."""

    code = "unsupported_media_type"


class RouterCycle(ClientError, Conflict):
    """The router would feed a topic with its own records."""

    code = "router_cycle"


class TopicExistsIncompatible(ClientError, Conflict):
    """What exists cannot become what was asked for: its type, its feeder or its ends are fixed."""

    code = "topic_exists_incompatible"


class TopicNotEmpty(ClientError, Conflict):
    """The topic was to be deleted only if empty, and is not."""

    code = "topic_not_empty"


class NotAQueue(ClientError, Conflict):
    """The topic is a log: it has no claims."""

    code = "not_a_queue"


class LeaseLost(ClientError, Conflict):
    """The job was no longer ours when it was done: another worker may do it, or has done it, too.

    `topic` and `seq` of `detail` say which.
    """

    code = "lease_lost"


class NotASpace(ClientError, Conflict):
    """The topic is a log or a queue: it has no entities and takes no commits."""

    code = "not_a_space"


class IsASpace(ClientError, Conflict):
    """The topic is a space: its records are commits, and nothing else can be written to it."""

    code = "is_a_space"


class EntityNotFound(ClientError, Rejected):
    """The space has no entity of that id, or had none then. `detail["head"]` says as of when."""

    code = "entity_not_found"


class PastGone(ClientError, Gone):
    """What is needed to tell how it was then has left the space."""

    code = "gone"


class CommitConflict(ClientError, Conflict):
    """Something that the commit has read was written since: read again, then commit again."""

    code = "conflict"


class PreconditionFailed(ClientError, Rejected):
    """What the commit asked for is not so and never will be: it must not be tried again."""

    code = "precondition_failed"


class CommitProtocol(ClientError, Rejected):
    """A session used a number again for another commit, or one that is too old."""

    code = "protocol"


class RefusedByRule(ClientError, Rejected):
    """A rule of the server refuses the commit, whatever the state."""

    code = "refused"


class Limited(ClientError, Busy):
    """A limit is reached and nothing was changed. `retry_after_ms` is set if the server knows."""

    code = "limited"

    def __init__(
        self, message: str, *, status: int = 0, retry_after_ms: int | None = None, **detail: Any
    ) -> None:
        super().__init__(message, status=status, **detail)
        self.retry_after_ms = retry_after_ms


class Throttled(Limited):
    """A limit on topics, routers, sessions, connections, bytes or load is reached."""

    code = "throttled"


class TopicFull(Limited):
    """A cap with `discard: reject` is reached: nothing was appended."""

    code = "topic_full"


class ServerUnavailable(ClientError, Unavailable):
    """The server cannot do it now; nothing was changed."""

    code = "unavailable"

    def __init__(
        self, message: str, *, status: int = 0, retry_after_ms: int | None = None, **detail: Any
    ) -> None:
        super().__init__(message, status=status, **detail)
        self.retry_after_ms = retry_after_ms


class NotReady(ServerUnavailable):
    """The server is still reading its log."""

    code = "not_ready"


class ShuttingDown(ServerUnavailable):
    """The server is about to end."""

    code = "shutting_down"


class Unreachable(ServerUnavailable):
    """No connection could be made; nothing was sent."""

    code = "unreachable"


class Untrusted(ClientError, Rejected):
    """The server's certificate is not one that the client trusts; nothing was sent."""

    code = "untrusted"


class Disconnected(ServerUnavailable):
    """The connection ended before the answer was complete."""

    code = "disconnected"
    maybe_done = True


class TimedOut(ServerUnavailable):
    """The answer was not complete within the time allowed."""

    code = "timed_out"
    maybe_done = True


class Internal(ServerUnavailable):
    """The server, or something in front of it, failed while working on the request."""

    code = "internal"
    maybe_done = True


class RecordsUnreadable(ClientError, Corrupt):
    """A file of the records that were asked for is missing or damaged; all others can be read.

    `detail` has `first_seq` and `last_seq`; a reader that goes on after these passes over them.
    """

    code = "records_unreadable"


class NotPenstock(ClientError, Rejected):
    """Something answered that does not speak the protocol."""

    code = "not_penstock"
    maybe_done = True


class ClientClosed(ClientError, Rejected):
    """The client, watch or writer was closed before."""

    code = "client_closed"


class OutcomeUnknown(ClientError, Unknown):
    """The request may or may not have been done, and tries are used up.

    Send the same write with `idempotency_key` to find out: it is done at most once.
    """

    code = "outcome_unknown"

    def __init__(
        self, message: str, *, status: int = 0, idempotency_key: str | None = None, **detail: Any
    ) -> None:
        super().__init__(message, status=status, **detail)
        self.idempotency_key = idempotency_key


_BY_CODE: Final[dict[str, type[ClientError]]] = {
    kind.code: kind
    for kind in (
        InvalidRequest, BatchTooLarge, RecordTooLarge, Unauthorized, Forbidden, ForeignOrigin,
        ForeignHost, NotFound, TopicNotFound, RouterNotFound, MethodNotAllowed, NotAcceptable,
        PayloadTooLarge, UnsupportedMediaType, RouterCycle, TopicExistsIncompatible, TopicNotEmpty,
        NotAQueue, NotASpace, IsASpace, EntityNotFound, PastGone, CommitConflict,
        PreconditionFailed, CommitProtocol, RefusedByRule, Throttled, TopicFull,
        NotReady, ShuttingDown, Internal, RecordsUnreadable,
    )
}  # fmt: skip
_BY_STATUS: Final[dict[int, type[ClientError]]] = {
    400: InvalidRequest, 401: Unauthorized, 403: Forbidden, 404: NotFound, 405: MethodNotAllowed,
    406: NotAcceptable, 413: PayloadTooLarge, 415: UnsupportedMediaType, 422: TopicFull,
    421: ForeignHost, 429: Throttled, 503: ServerUnavailable,
}  # fmt: skip


class _Error(msgspec.Struct):
    code: str = ""
    message: str = ""
    detail: dict[str, Any] | None = None


class _Envelope(msgspec.Struct):
    error: _Error


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


def error_of(
    status: int,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    server: str = "",
    now_ms: int | None = None,
) -> ClientError:
    """The error that an answer tells, from its code or, where there is none, its status.

    A wish to wait until a date counts from `now_ms`; without it, there is no such wish.
    """
    try:
        error = _ENVELOPE.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = _Error(message=_not_an_envelope(status, body, server))
    kind = _BY_CODE.get(error.code) or _by_status(status)
    detail = error.detail or {}
    made = kind(error.message or error.code or f"the server answered {status}", status=status)
    made.detail = detail
    if isinstance(made, Limited | ServerUnavailable):
        made.retry_after_ms = _retry_after_ms(detail, headers or {}, now_ms)
    return made


def _by_status(status: int) -> type[ClientError]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status >= 500:
        return Internal
    return InvalidRequest if status >= 400 else NotPenstock


def _not_an_envelope(status: int, body: bytes, server: str) -> str:
    place = f" at {server}" if server else ""
    return f"expected a Penstock server{place}, found an answer {status} with {body[:80]!r}"


def _retry_after_ms(
    detail: Mapping[str, Any], headers: Mapping[str, str], now_ms: int | None
) -> int | None:
    """The server's wish: exact where the detail has it, else the header's seconds or date."""
    exact = detail.get("retry_after_ms")
    if isinstance(exact, int | float) and exact >= 0:
        return int(exact)
    wish = headers.get("retry-after", "")
    if wish.isascii() and wish.isdigit():
        return int(wish) * 1_000
    at_ms = _date_ms(wish)
    return None if at_ms is None or now_ms is None else max(0, at_ms - now_ms)


def _date_ms(text: str) -> int | None:
    """The time of an HTTP date in any of its three forms, or None if it is none."""
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if found.tzinfo is None:  # the oldest form does not say that it is GMT
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1_000)
