"""Commits: their numbers, those in flight, their delays, reports and final errors."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from penstock.client.errors import CommitConvergenceError, HandlerFailed, unanswered
from penstock.client.runtime.effects import CommitReport, Outcome
from penstock.client.runtime.events import Event
from penstock.client.runtime.lanes import Entry, Lane
from penstock.client.runtime.layers import Layer, View
from penstock.client.runtime.transaction import Transaction
from penstock.client.settings import CommitBackpressure
from penstock.protocol.commits import Commit, CommitRead, Origin, PendingRead, Precondition
from penstock.protocol.errors import CallError

NUMBERS_MAX: Final = 128
"""Numbers between a session's oldest unanswered commit and its newest.

A server keeps the last 4,096 answers of a session. It cannot replay a forgotten one, and refuses
the commit.
"""


class InFlight:
    """The commits of one session, numbered in order, until they are answered and in the replica."""

    __slots__ = ("_entries", "_layers", "_local_seq", "_outnumbered", "session")

    def __init__(self, session: str) -> None:
        self.session = session
        self._local_seq = 0
        self._entries: dict[int, Entry] = {}
        """Entries whose commits are in flight, by number, oldest first."""
        self._layers: dict[int, Layer] = {}
        """Layers whose commits were sent, by number, until the replica has them."""
        self._outnumbered: dict[Lane, None] = {}
        """Lanes that wait for a free number."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, local_seq: int) -> Entry | None:
        """The entry whose commit has a number."""
        return self._entries.get(local_seq)

    @property
    def has_number(self) -> bool:
        """Whether the server still keeps every unanswered number if one more is used."""
        oldest = next(iter(self._entries), None)
        return oldest is None or self._local_seq - oldest < NUMBERS_MAX

    def wait_for_number(self, lane: Lane) -> None:
        """Make `freed` return a lane as soon as there is a number for it."""
        self._outnumbered[lane] = None

    def freed(self) -> Lane | None:
        """A lane that waits for a number, if one is free."""
        if not self._outnumbered or not self.has_number:
            return None
        lane = next(iter(self._outnumbered))
        del self._outnumbered[lane]
        return lane

    def depart(self, entry: Entry, layer: Layer, view: View) -> Commit:
        """The commit of a ready entry, which is in flight from now on."""
        self._local_seq += 1
        layer.local_seq = self._local_seq
        self._layers[self._local_seq] = layer
        self._entries[self._local_seq] = entry
        return make_commit(entry, self.session, view, origin=self._origin(entry))

    def answered(self, local_seq: int | None) -> None:
        """A commit is no longer in flight."""
        if local_seq is not None:
            self._entries.pop(local_seq, None)

    def seen(self, local_seq: int | None) -> Layer | None:
        """A commit is in the replica, or its layer was removed; returns the layer once."""
        return None if local_seq is None else self._layers.pop(local_seq, None)

    def _origin(self, entry: Entry) -> Origin | None:
        """What to require of the server. It forgets, so after a while only the client knows."""
        ref = entry.origin_ref
        if ref is None or self._local_seq - ref.local_seq >= NUMBERS_MAX:
            return None
        return ref


def make_commit(entry: Entry, session: str, view: View, *, origin: Origin | None) -> Commit:
    """The commit of a run, on the current state.

    Nothing that was read has changed up to the replica's seq, otherwise the entry would not be
    ready: so that is the age of every read. Reads that went through layers which the replica does
    not have yet name their commits.
    """
    transaction, layer = entry.transaction, entry.layer
    if transaction is None or layer is None or layer.local_seq is None:
        raise ValueError(f"{entry!r} has not run, or has no number yet")
    seq = view.replica.seq
    preconditions = []
    event_id = entry.event.id or None
    if event_id is not None:
        preconditions.append(Precondition(receipt_absent=event_id))
    if origin is not None:
        preconditions.append(Precondition(origin_committed=origin))
    return Commit(
        session=session,
        local_seq=layer.local_seq,
        writes=layer.writes,
        reads=tuple(
            CommitRead(looked.entity, seq, looked.pointer, looked.shallow)
            for looked in transaction.reads
        ),
        pending_reads=_pending_reads(transaction, view),
        preconditions=tuple(preconditions),
        event_id=event_id,
    )


def _pending_reads(transaction: Transaction, view: View) -> tuple[PendingRead, ...]:
    found = set()
    for looked, (_, shown) in transaction.reads.items():
        for each in shown:
            layer = view.layer(each)
            if layer is not None and layer.local_seq is not None:
                found.add((layer.local_seq, looked.entity))
    return tuple(PendingRead(number, entity) for number, entity in sorted(found))


def conflict_delay_ms(
    entry: Entry, policy: CommitBackpressure, now_ms: float, random: Random, *, is_behind: bool
) -> float | None:
    """How long an entry waits after a conflict; None if its time is up.

    A derivation waits for as long as necessary, and not at all for a change that the replica does
    not have yet (`is_behind`), which arrives by itself.
    """
    if entry.derivation is not None:
        return 0.0 if is_behind else policy.nominal_ms(entry.conflicts)
    if not entry.retries:
        return None
    elapsed_ms = now_ms - entry.first_conflict_ms
    return policy.next_ms(entry.conflicts, elapsed_ms=elapsed_ms, random=random)


def commit_report(
    entry: Entry, session: str, outcome: Outcome, now_ms: float, **facts: Any
) -> CommitReport:
    """What happened to the commit of an entry."""
    return CommitReport(
        event_id=entry.event.id or None,
        event_type=entry.event.type,
        lane=entry.event.lane,
        session=session,
        local_seq=entry.local_seq or 0,
        outcome=outcome,
        retry_attempt=entry.conflicts,
        elapsed_ms=now_ms - entry.first_conflict_ms if entry.conflicts else 0.0,
        **facts,
    )


def convergence_error(
    entry: Entry, cause: Exception, policy: CommitBackpressure, now_ms: float
) -> CommitConvergenceError:
    """Conflicts until the time was up."""
    elapsed_ms = now_ms - entry.first_conflict_ms
    limit = f"within {policy.window_ms:g} ms" if entry.retries else "at the first try"
    return CommitConvergenceError(
        f"event {entry.event.id!r} of type {entry.event.type!r} did not commit {limit}: it met "
        f"{entry.conflicts} conflicts in {elapsed_ms:.0f} ms, the last one: {cause}",
        attempts=entry.conflicts,
        elapsed_ms=elapsed_ms,
        cause=cause,
        event_id=entry.event.id,
    )


def handler_error(event: Event, cause: Exception) -> HandlerFailed:
    """A handler raised."""
    error = HandlerFailed(
        f"the handler of {event.type!r} raised {type(cause).__name__}: {cause} "
        f"(event {event.id!r})",
        event_id=event.id,
        event_type=event.type,
    )
    error.__cause__ = cause
    return error


def unknown_error(entry: Entry, error: CallError) -> CallError:
    """No answer until the time was up. If no try can have taken effect, the last error itself."""
    if not entry.doubtful:
        return error
    return unanswered(
        f"no certain answer to the commit of event {entry.event.id!r}: it may or may "
        f"not have been taken; sending an event with this id finds out ({error})",
        cause=error,
        event_id=entry.event.id,
    )
