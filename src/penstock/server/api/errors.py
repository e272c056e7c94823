"""What the HTTP layer itself refuses, and how any error becomes an answer.

>>> answer = error_answer(NotFound("/v0/nothing"))
>>> answer.status, answer.body
(404, b'{"error":{"code":"not_found","message":"expected a known path, found /v0/nothing"}}')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

from penstock.kernel.errors import Busy, Conflict, PenstockError, Rejected, Unavailable
from penstock.log.executor import RestoreInProgress
from penstock.log.queues import Stopped
from penstock.log.store import Closed
from penstock.server.http.message import Answer, error_body

_RETRY_MS: Final = 1_000
Hide = Callable[[str, int], str]
"""What of an error's text a client may see, for an answer of a status."""


class NotFound(Rejected):
    """There is no such path, or no such watch session."""

    code = "not_found"
    status: ClassVar[int] = 404

    def __init__(self, what: str, expected: str = "a known path") -> None:
        super().__init__(f"expected {expected}, found {what}")


class MethodNotAllowed(Rejected):
    """The path is there, the method is not."""

    code = "method_not_allowed"
    status: ClassVar[int] = 405

    def __init__(self, method: str, allowed: Iterable[str]) -> None:
        methods = set(allowed)
        if "GET" in methods:
            methods.add("HEAD")
        self.allow = ", ".join(sorted(methods))
        super().__init__(f"expected one of {self.allow}, found {method}")


class NotAcceptable(Rejected):
    """The client does not take what this path gives."""

    code = "not_acceptable"
    status: ClassVar[int] = 406


class UnsupportedMediaType(Rejected):
    """The body is not declared to be JSON."""

    code = "unsupported_media_type"
    status: ClassVar[int] = 415


class NotReady(Unavailable):
    """The log is still being replayed."""

    code = "not_ready"
    status: ClassVar[int] = 503

    def __init__(self, progress: float) -> None:
        super().__init__(
            f"expected a replayed log, found {progress:.0%} of it done",
            replay_progress=round(progress, 4),
        )


class NotWritable(Unavailable):
    """The log takes no writes: the disk is full, or failed. Reads go on."""

    code = "not_ready"
    status: ClassVar[int] = 503

    def __init__(self, reason: str) -> None:
        super().__init__(f"expected a log that takes writes, found that {reason}", reason=reason)


class ShuttingDown(Unavailable):
    """The server ends: it takes nothing new."""

    code = "shutting_down"
    status: ClassVar[int] = 503

    def __init__(self) -> None:
        super().__init__("expected a running server, found one that is shutting down")


def as_it_is(text: str, _status: int) -> str:
    """A text in which nothing is hidden."""
    return text


def error_answer(error: Exception, hide: Hide = as_it_is) -> Answer:
    """The answer that tells of an error. What nobody expected is told without its text.

    `hide` takes out of the text what is not for clients.
    """
    status, code, message, detail = describe(error)
    message = hide(message, status)
    headers: list[tuple[bytes, bytes]] = []
    if status in (429, 503):
        headers.append((b"retry-after", b"%d" % retry_after_s(error)))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return Answer(status, error_body(code, message, detail), headers=tuple(headers))


def describe(error: Exception) -> tuple[int, str, str, dict[str, Any]]:
    """The status, code, text and detail of an error, all from the contract's list."""
    if not isinstance(error, PenstockError):
        return 500, "internal", "something failed that should not; the server's log tells", {}
    status = getattr(error, "status", None)
    detail = error.detail
    if status is not None:
        if isinstance(error, Busy) and status == 429 and "limit" not in detail:
            detail = {**detail, "retry_after_ms": error.retry_after_ms or _RETRY_MS}
        return status, error.code, error.message, detail
    if isinstance(error, Busy):
        return (
            429,
            "throttled",
            error.message,
            {"retry_after_ms": error.retry_after_ms or _RETRY_MS},
        )
    if isinstance(error, RestoreInProgress):
        return 503, "not_ready", error.message, {}
    if isinstance(error, Stopped | Closed):
        return 503, "shutting_down", error.message, {}
    if isinstance(error, Rejected | Conflict):
        return 400, "invalid_request", error.message, {}
    return 500, "internal", error.message, {}


def retry_after_s(error: Exception) -> int:
    """Whole seconds after which it is worth another try: at least one."""
    wait_ms = error.retry_after_ms if isinstance(error, Busy) else None
    return max(1, -(-(wait_ms or _RETRY_MS) // 1_000))
