"""The possible outcomes of a unit's refresh, and what an error means for the table at fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.kernel.errors import PenstockError
from penstock.kernel.text import shortened
from penstock.tables.core.events import Refreshed
from penstock.tables.core.failures import EngineFailure, FailureKind, classify
from penstock.tables.worker.claim import LockHeld

_DETAIL_MAX: Final = 1_000


class NotMadeYet(PenstockError):
    """A table reads one that has no contents yet; it is retried until there are some."""

    code = "not_made_yet"


class SourceMissing(PenstockError):
    """A table reads one that is not in the lake; it is refreshed once that is back."""

    code = "source_missing"


@dataclass(frozen=True, slots=True)
class Succeeded:
    """Everything is committed, which took `commit_ms`."""

    refreshed: Mapping[str, Refreshed]
    commit_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing is visible; the failure is recorded."""

    kind: FailureKind
    detail: str
    member: str | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Nothing is visible; the job was closed or a definition changed."""

    detail: str


Ended = Succeeded | Failed | Cancelled


def kind_of(error: Exception) -> FailureKind:
    """What an error means for its table, by its class or a base class."""
    if isinstance(error, NotMadeYet | SourceMissing | LockHeld):
        return FailureKind.COLLISION
    condition = _called(error, "getCondition")
    sql_state = _called(error, "getSqlState")
    for parent in type(error).__mro__:
        kind = classify(EngineFailure(parent.__name__, condition, sql_state))
        if kind is not FailureKind.RETRYABLE:
            return kind
    return FailureKind.RETRYABLE


def detail_of(error: Exception) -> str:
    """An error as one line of limited length."""
    text = error.message if isinstance(error, PenstockError) else str(error)
    line = shortened(text, _DETAIL_MAX)
    return line if isinstance(error, PenstockError) else f"{type(error).__name__}: {line}"


def _called(error: Exception, *names: str) -> str | None:
    """The first result of these methods of a Spark error, if it has any."""
    for name in names:
        method = getattr(error, name, None)
        if callable(method):
            found = method()
            if found is not None:
                return str(found)
    return None
