"""How any error becomes an answer.

>>> from penstock.protocol.errors import NotFound
>>> answer = error_answer(NotFound("expected a known path, found /v0/nothing"))
>>> answer.status, answer.body
(404, b'{"error":{"code":"not_found","message":"expected a known path, found /v0/nothing"}}')
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.kernel.errors import Busy, Conflict, PenstockError, Rejected
from penstock.log.executor import RestoreInProgress
from penstock.log.queues import Stopped
from penstock.log.store import Closed
from penstock.protocol.errors import (
    CallError,
    Internal,
    InvalidRequest,
    NotReady,
    ShuttingDown,
    Throttled,
)
from penstock.server.http.message import Answer, error_body

_RETRY_MS: Final = 1_000
Hide = Callable[[str, int], str]
"""What of an error's text a client may see, for an answer of a status."""

_BY_GROUP: Final[tuple[tuple[type[PenstockError], type[CallError]], ...]] = (
    (Busy, Throttled), (RestoreInProgress, NotReady), (Stopped, ShuttingDown),
    (Closed, ShuttingDown), (Rejected, InvalidRequest), (Conflict, InvalidRequest),
    (PenstockError, Internal),
)  # fmt: skip
"""What errors of lower layers, which the protocol does not name, are told as."""


def as_it_is(text: str, _status: int) -> str:
    """A text in which nothing is hidden."""
    return text


def error_answer(error: Exception, hide: Hide = as_it_is) -> Answer:
    """The answer that tells of an error; of an unexpected one, without its text.

    `hide` takes out of the text what is not for clients.
    """
    status, code, message, detail = describe(error)
    message = hide(message, status)
    headers = tuple(error.headers) if isinstance(error, CallError) else ()
    if status in (429, 503):
        headers += ((b"retry-after", b"%d" % retry_after_s(error)),)
    return Answer(status, error_body(code, message, detail), headers=headers)


def describe(error: Exception) -> tuple[int, str, str, dict[str, Any]]:
    """The status, code, text and detail of an error, all from the contract's list."""
    if not isinstance(error, PenstockError):
        return Internal.status, Internal.code, "the server failed; its log has the reason", {}
    detail = error.detail
    if isinstance(error, CallError) and error.status:
        if isinstance(error, Busy) and error.status == Throttled.status and "limit" not in detail:
            detail = {**detail, "retry_after_ms": error.retry_after_ms or _RETRY_MS}
        return error.status, error.code, error.message, detail
    kind = next(kind for group, kind in _BY_GROUP if isinstance(error, group))
    detail = {}
    if isinstance(error, Busy):
        detail["retry_after_ms"] = error.retry_after_ms or _RETRY_MS
    return kind.status, kind.code, error.message, detail


def retry_after_s(error: Exception) -> int:
    """Whole seconds after which it is worth another try: at least one."""
    wait_ms = error.retry_after_ms if isinstance(error, Busy) else None
    return max(1, -(-(wait_ms or _RETRY_MS) // 1_000))
