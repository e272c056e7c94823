"""What a runtime's core hands out: effects, to be carried out in order, and commit reports."""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

import msgspec

from penstock.client.errors import ChangedLocally
from penstock.client.runtime.events import Event, Ticket
from penstock.client.runtime.lanes import Entry
from penstock.protocol.commits import Commit
from penstock.protocol.errors import (
    CallError,
    CommitConflict,
    OutcomeUnknown,
    PreconditionFailed,
    ServerUnavailable,
    Throttled,
)

Outcome = Literal["accepted", "conflict", "changed_locally", "permanent", "rule", "unknown"]
Terminal = Literal["permanent", "rule", "convergence", "unknown"]


class CommitReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One commit and its outcome; passed to `on_commit`, and logged at debug.

    `terminal` is set where the event ends without an effect: `permanent` (a precondition failed),
    `rule` (the server refuses such a commit), `convergence` (conflicts until the time was up), or
    `unknown` (no answer until the time was up).
    """

    event_id: str | None
    event_type: str
    lane: str
    session: str
    local_seq: int
    outcome: Outcome
    retry_attempt: int
    """Conflicts of the event so far, including this one; 0 if there were none."""
    backoff_ms: float | None = None
    """How long the event waits before it runs again, if it does."""
    terminal: Terminal | None = None
    seq: int | None = None
    """Where it was accepted."""
    elapsed_ms: float = 0.0
    """Time since the event's first conflict."""
    error: str | None = None


class RuntimeFailure(msgspec.Struct, frozen=True):
    """A final failure, as passed to `on_error`. The event's handle has the same error.

    `event` is None if it does not concern one event: a derivation, or the feed of the replica.
    """

    error: Exception
    event: Event | None = None
    source: str = "event"


class CommitVerdict(Enum):
    """What to do after a commit was answered with an error, or got no answer."""

    RETRY = "run again on fresh state"
    PERMANENT = "never again"
    RULE = "refused, whatever the state"
    RESEND = "the same commit again"


def verdict_of(error: CallError) -> CommitVerdict:
    """Classify an error by what to do next."""
    if isinstance(error, CommitConflict | ChangedLocally):
        return CommitVerdict.RETRY
    if isinstance(error, PreconditionFailed):
        return CommitVerdict.PERMANENT
    if isinstance(error, ServerUnavailable | Throttled | OutcomeUnknown):
        return CommitVerdict.RESEND
    return CommitVerdict.RULE


class Run(NamedTuple):
    """Run the entry's handler on its transaction, then call `ran` with the result."""

    entry: Entry


class Transmit(NamedTuple):
    """Send this commit, byte for byte the same each time."""

    commit: Commit


class Tell(NamedTuple):
    """Call back those that wait for this outcome."""

    ticket: Ticket


class Report(NamedTuple):
    """Pass this to the commit callbacks."""

    report: CommitReport


class Fail(NamedTuple):
    """Pass this to the error callbacks."""

    failure: RuntimeFailure


Effect = Run | Transmit | Tell | Report | Fail
