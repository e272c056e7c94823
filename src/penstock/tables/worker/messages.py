"""Messages between coordinator and worker: lines of JSON over a socket pair."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from typing import Any, Final

from penstock.kernel.errors import Corrupt
from penstock.tables.core.events import (
    Event,
    JobCancelled,
    JobFailed,
    JobSucceeded,
    Refreshed,
)
from penstock.tables.core.failures import FailureKind
from penstock.tables.core.frontier import Frontier, LakePosition
from penstock.tables.worker.outcomes import Cancelled, Ended, Failed, Succeeded

_CHUNK_BYTES: Final = 1 << 16


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
            raise Corrupt(f"expected the end of a job, found {other!r}")
