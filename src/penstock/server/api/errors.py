"""How any error becomes an answer, without server paths in its text.

>>> from penstock.protocol.errors import NotFound
>>> answer = error_answer(NotFound("there is no route /v0/nothing"))
>>> answer.status, answer.body
(404, b'{"error":{"code":"not_found","message":"there is no route /v0/nothing"}}')

An error of a lower layer is one of the protocol's with the same outcome: what may have been done
is `outcome_unknown`, and an unexpected error says nothing certain either.

>>> describe(LogFailed("a sync failed before"))[:2], describe(Unknown("a sync failed"))[:2]
((503, 'not_ready'), (504, 'outcome_unknown'))

A log without room refuses for certain, and takes the same write once there is space.

>>> describe(LogFull("no space left"))
(429, 'throttled', 'no space left', {'limit': 'disk', 'retry_after_ms': 1000})

A client has no use for such paths, and they would describe the machine to it.

>>> hide = Hiding({"the data directory": ["/srv/data", "data"]})
>>> hide("no space left for /srv/data/log: [Errno 28] in '/srv/data/log/1.seg'", 500)
"no space left for the data directory: [Errno 28] in 'the data directory'"
>>> hide("cannot read /etc/shadow", 500), hide("there is no route /v0/a/b", 404)
('cannot read a file of the server', 'there is no route /v0/a/b')
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from penstock.kernel.errors import Busy, Conflict, PenstockError, Rejected, Unknown
from penstock.log.executor import RestoreInProgress
from penstock.log.queues import Stopped
from penstock.log.store import DiskFull, ReadOnly, StoreClosed
from penstock.protocol.errors import (
    CallError,
    ChangeInProgress,
    Internal,
    InvalidRequest,
    NoLeader,
    NotReady,
    OutcomeUnknown,
    ShuttingDown,
    Throttled,
)
from penstock.raft.group import ReadLost
from penstock.raft.ready import ChangeInProgress as GroupChanging
from penstock.raft.ready import NotLeader, NotServing
from penstock.server.http.message import Answer, error_body
from penstock.topics.engine.writers import LogFailed, LogFull

_RETRY_MS: Final = 1_000
_DISK: Final = (LogFull, DiskFull)
"""A limit of the server's own disk: their texts name its files, as those of failures do."""
Hide = Callable[[str, int], str]
"""Returns the part of an error's text that a client may see, given the answer's status."""

_BY_GROUP: Final[tuple[tuple[type[PenstockError], type[CallError]], ...]] = (
    (NotLeader, NoLeader), (NotServing, NoLeader), (ReadLost, NoLeader),
    (GroupChanging, ChangeInProgress), (Busy, Throttled), (RestoreInProgress, NotReady),
    (Stopped, ShuttingDown), (StoreClosed, ShuttingDown), (LogFull, Throttled),
    (DiskFull, Throttled), (LogFailed, NotReady), (ReadOnly, NotReady),
    (Unknown, OutcomeUnknown), (Rejected, InvalidRequest), (Conflict, InvalidRequest),
    (PenstockError, Internal),
)  # fmt: skip
"""Protocol errors for the errors of lower layers, which the protocol does not name."""


def as_it_is(text: str, _status: int) -> str:
    """A text with nothing hidden."""
    return text


def error_answer(error: Exception, hide: Hide = as_it_is) -> Answer:
    """The answer for an error; the text of an unexpected error is omitted.

    `hide` removes what clients must not see from the text.
    """
    status, code, message, detail = told(error, hide)
    headers = tuple(error.headers) if isinstance(error, CallError) else ()
    if status in (429, 503):
        headers += ((b"retry-after", b"%d" % retry_after_s(error)),)
    return Answer(status, error_body(code, message, detail), headers=headers)


def told(error: Exception, hide: Hide) -> tuple[int, str, str, dict[str, Any]]:
    """As `describe`, with what clients must not see removed from the text."""
    status, code, message, detail = describe(error)
    return status, code, hide(message, 500 if isinstance(error, _DISK) else status), detail


def describe(error: Exception) -> tuple[int, str, str, dict[str, Any]]:
    """The status, code, text and detail of an error, all from the protocol's table."""
    if not isinstance(error, PenstockError):
        return Internal.status, Internal.code, "the server failed; its log has the reason", {}
    detail = error.detail
    if isinstance(error, CallError) and error.status:
        if isinstance(error, Busy) and error.status == Throttled.status and "limit" not in detail:
            detail = {**detail, "retry_after_ms": error.retry_after_ms or _RETRY_MS}
        elif isinstance(error, NoLeader):
            detail = {**detail, "retry_after_ms": NoLeader.AGAIN_MS}
        return error.status, error.code, error.message, detail
    kind = next(kind for group, kind in _BY_GROUP if isinstance(error, group))
    detail = {}
    if isinstance(error, Busy):
        detail["retry_after_ms"] = error.retry_after_ms or _RETRY_MS
    if isinstance(error, _DISK):
        detail = {"limit": "disk", "retry_after_ms": _RETRY_MS}
    if kind is NoLeader:
        detail = {"retry_after_ms": NoLeader.AGAIN_MS}
    return kind.status, kind.code, error.message, detail


def retry_after_s(error: Exception) -> int:
    """Whole seconds before a retry is worthwhile: at least one."""
    wait_ms = error.retry_after_ms if isinstance(error, Busy) else None
    return max(1, -(-(wait_ms or _RETRY_MS) // 1_000))


_BELOW: Final = r"/[^\s'\",;:)\]]*"
_ANY_PATH: Final = re.compile(r"(?<![\w:/.])/[\w.@+-]+(?:/[\w.@+-]*)+")
"""An absolute path of at least two parts: the server's own errors contain no others."""


class Hiding:
    """Replaces the server's directories in error texts with descriptions."""

    def __init__(self, places: Mapping[str, Iterable[str]] | None = None) -> None:
        words = {
            root.rstrip("/"): word
            for word, roots in (places or {}).items()
            for root in roots
            if len(root.rstrip("/")) > 1
        }
        # Longest first: one directory may be inside another.
        self._words = dict(sorted(words.items(), key=lambda each: -len(each[0])))
        # A bare name, such as `data`, may be any word; a path below it cannot be.
        known = [
            re.escape(root) + (f"(?:{_BELOW})?(?![\\w.-])" if "/" in root else _BELOW)
            for root in self._words
        ]
        self._known = re.compile(rf"(?<![\w./-])(?:{'|'.join(known)})") if known else None

    def __call__(self, text: str, status: int) -> str:
        """A text as a client may see it. In a server error, every path is hidden."""
        if self._known is not None:
            text = self._known.sub(self._word, text)
        return _ANY_PATH.sub("a file of the server", text) if status >= 500 else text

    def _word(self, found: re.Match[str]) -> str:
        return next(word for root, word in self._words.items() if found[0].startswith(root))

    def answer(self, error: Exception) -> Answer:
        """The answer for an error, with paths hidden."""
        return error_answer(error, self)

    def text(self, error: Exception) -> str:
        """An error's text, where there is no status."""
        status, _, message, _ = describe(error)
        return self(message, max(status, 500))
