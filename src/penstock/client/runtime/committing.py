"""Commits made from what a handler did, and the errors that an event can end with."""

from __future__ import annotations

from penstock.client.errors import OutcomeUnknown
from penstock.client.runtime.errors import CommitConvergenceError, HandlerFailed
from penstock.client.runtime.events import Event
from penstock.client.runtime.lanes import Entry
from penstock.client.runtime.layers import View
from penstock.client.runtime.policy import CommitBackpressure
from penstock.client.runtime.transaction import Transaction
from penstock.commits.model import Commit, Origin, PendingRead, Precondition, Read
from penstock.protocol.errors import CallError


def make_commit(entry: Entry, session: str, view: View, *, origin: Origin | None) -> Commit:
    """The commit of a run, on the state as it is now.

    Nothing that was read has changed up to the replica's seq, or the entry would not be ready: so
    that is the age of every read. Reads that went through layers which the replica has not seen
    name the commits of these.
    """
    transaction, layer = entry.transaction, entry.layer
    if transaction is None or layer is None or layer.local_seq is None:
        raise ValueError(f"expected an entry that ran and has a number, found {entry!r}")
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
            Read(looked.entity, seq, looked.pointer, looked.shallow) for looked in transaction.reads
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


def convergence_error(
    entry: Entry, cause: Exception, policy: CommitBackpressure, now_ms: float
) -> CommitConvergenceError:
    """Conflicts until time was over."""
    elapsed_ms = now_ms - entry.first_conflict_ms
    limit = f"within {policy.window_ms:g} ms" if entry.retries else "at the first try"
    return CommitConvergenceError(
        f"expected event {entry.event.id!r} of type {entry.event.type!r} to commit {limit}, found "
        f"a conflict after {entry.conflicts} attempts in {elapsed_ms:.0f} ms ({cause})",
        attempts=entry.conflicts,
        elapsed_ms=elapsed_ms,
        cause=cause,
        event_id=entry.event.id,
    )


def handler_error(event: Event, cause: Exception) -> HandlerFailed:
    """A handler raised."""
    error = HandlerFailed(
        f"expected the handler of {event.type!r} to end well, found "
        f"{type(cause).__name__}: {cause} (event {event.id!r})",
        event_id=event.id,
        event_type=event.type,
    )
    error.__cause__ = cause
    return error


def unknown_error(entry: Entry, error: CallError) -> CallError:
    """No answer until time was over. If nothing was sent that may have been taken, just that."""
    if not entry.doubtful:
        return error
    unknown = OutcomeUnknown(
        f"expected an answer to the commit of event {entry.event.id!r}, found none after "
        f"{entry.lost} tries: it may or may not have been taken; sending an event with this id "
        f"finds out ({error})",
        event_id=entry.event.id,
    )
    unknown.__cause__ = error
    return unknown
