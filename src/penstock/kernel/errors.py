"""Errors grouped by what the caller should do next.

Every error says what happened and what to do next. `code` is a stable identifier for programs,
`detail` holds facts that a program may need; the text is for people.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

E = TypeVar("E", bound=BaseException)


class PenstockError(Exception):
    """The root of every error Penstock raises on purpose."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class Rejected(PenstockError):
    """The request itself is wrong: fix it. A retry has the same result."""

    code = "rejected"


class Conflict(PenstockError):
    """The state has changed: read again, then decide again."""

    code = "conflict"


class Busy(PenstockError):
    """Nothing was changed because a limit is reached: retry the same request later.

    `retry_after_ms` is how long to wait, or None if not known.
    """

    code = "busy"

    def __init__(self, message: str, *, retry_after_ms: int | None = None, **detail: Any) -> None:
        super().__init__(message, **detail)
        self.retry_after_ms = retry_after_ms


class Gone(PenstockError):
    """The data existed and was removed, by a configured limit or by compaction."""

    code = "gone"


class Unavailable(PenstockError):
    """This node cannot do it now and nothing was changed: try another node, or retry later."""

    code = "unavailable"


class Unknown(PenstockError):
    """The outcome is not known: query by commit id before retrying."""

    code = "unknown"


class Corrupt(PenstockError):
    """Stored bytes differ from what was written: the node stops rather than guess."""

    code = "corrupt"


def without_traceback(error: E) -> E:
    """An error that is kept, to be raised once more.

    Each raise makes its traceback longer, and that keeps all that was on the stack: without this,
    every request that a node refuses for the same reason stays in memory for as long as the reason.
    """
    return error.with_traceback(None)
