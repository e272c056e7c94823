"""Errors that an event can end with beside those of the server."""

from __future__ import annotations

from typing import Any

from penstock.kernel.errors import Busy, Conflict, Rejected
from penstock.protocol.errors import CallError


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
