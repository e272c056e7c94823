"""Entries for tests of the log."""

from __future__ import annotations

from penstock.log.store import Append, LogEntry

DEADLINE_S = 30


def entry(partition: int, index: int, payload: bytes = b"x") -> Append:
    return Append(partition, (LogEntry(index, 1, payload),))
