"""How work on a unit ended, and the messages about it: lines of JSON over a socket pair."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.kernel.errors import Corrupt, PenstockError
from penstock.kernel.text import shortened
from penstock.tables.core.events import (
    Event,
    JobCancelled,
    JobFailed,
    JobSucceeded,
    Refreshed,
)
from penstock.tables.core.failures import EngineFailure, FailureKind, classify
from penstock.tables.core.frontier import Frontier, LakePosition
from penstock.tables.worker.claim import LockHeld

_DETAIL_MAX: Final = 1_000
_CHUNK_BYTES: Final = 1 << 16


class NotMadeYet(PenstockError):
    """A table reads one that has no contents yet; it is retried until there are some."""

    code = "not_made_yet"


class SourceMissing(PenstockError):
    """A table reads one that is not in the lake; it is refreshed once that is back."""

    code = "source_missing"


class GateClosed(PenstockError):
    """A source was gated after the job was made; the job is cancelled."""

    code = "gate_closed"


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


class MessageLine:
    """One end of a connection; returns complete messages."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = b""
        self._sending = threading.Lock()
        self.is_open = True

    def fileno(self) -> int:
        """For selecting."""
        return self.connection.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message, from any thread; a disconnect is detected when reading."""
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._sending:
                self.connection.sendall(line)
        except OSError:
            return

    def receive(self) -> list[dict[str, Any]]:
        """The received messages; blocks if the socket does. EOF closes the connection."""
        try:
            chunk = self.connection.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            chunk = b""
        if not chunk:
            self.is_open = False
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close this end."""
        self.is_open = False
        self.connection.close()


def outcome_message(job_id: int, ended: Ended) -> dict[str, Any]:
    """A job's outcome, as a message."""
    match ended:
        case Succeeded(refreshed, commit_ms):
            made = {
                name: [found.frontier.to_json(), found.position[0] if found.position else None]
                for name, found in refreshed.items()
            }
            return {
                "job": job_id, "ended": "succeeded", "refreshed": made, "commit_ms": commit_ms,
            }  # fmt: skip
        case Failed(kind, detail, member):
            return {
                "job": job_id, "ended": "failed", "kind": kind.value, "detail": detail,
                "member": member,
            }  # fmt: skip
        case Cancelled(detail):
            return {"job": job_id, "ended": "cancelled", "detail": detail}


def outcome_event(job_id: int, ended: Ended) -> Event:
    """A job's outcome, as an event for the core."""
    match ended:
        case Succeeded(refreshed):
            return JobSucceeded(job_id, refreshed)
        case Failed(kind, detail, member):
            return JobFailed(job_id, kind, detail, member)
        case Cancelled(detail):
            return JobCancelled(job_id, detail)


def read_outcome(message: Mapping[str, Any]) -> Ended:
    """Parse the output of `outcome_message`."""
    match message["ended"]:
        case "succeeded":
            return Succeeded(
                {
                    name: Refreshed(
                        Frontier.from_json(text), None if at is None else LakePosition(at)
                    )
                    for name, (text, at) in message["refreshed"].items()
                },
                message["commit_ms"],
            )
        case "failed":
            kind = FailureKind(message["kind"])
            return Failed(kind, message["detail"], message["member"])
        case "cancelled":
            return Cancelled(message["detail"])
        case other:
            raise Corrupt(f"a worker sent an unknown outcome: {other!r}")
