"""How the events of a runtime end: accepted, parked for another try, failed, taken back.

This half of the core holds the state; `RuntimeCore` lets things happen to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from heapq import heappush
from random import Random
from typing import Any

from penstock.client.runtime.committing import convergence_error, unknown_error
from penstock.client.runtime.derive import Derivation
from penstock.client.runtime.effects import Effect, Fail, Report, Tell
from penstock.client.runtime.errors import ChangedLocally, OriginFailed, Superseded
from penstock.client.runtime.events import Committed, Event
from penstock.client.runtime.lanes import Entry, Lane, Lanes, State
from penstock.client.runtime.layers import Layer, View
from penstock.client.runtime.policy import CommitBackpressure, RuntimeLimits
from penstock.client.runtime.replica import Change, Replica, Touch
from penstock.client.runtime.telemetry import CommitReport, Failure, Outcome, Terminal
from penstock.client.runtime.transaction import Transaction
from penstock.commits.model import Origin
from penstock.commits.paths import ROOT
from penstock.protocol.errors import CallError, Forbidden, Unauthorized


class Settling:
    """The state of a runtime, and what each end of a commit does to it."""

    def __init__(
        self,
        session: str,
        *,
        random: Random,
        lane_of: Callable[[str, Any], str],
        policy: CommitBackpressure | None = None,
        limits: RuntimeLimits | None = None,
    ) -> None:
        self.session = session
        self.policy = policy or CommitBackpressure()
        self.limits = limits or RuntimeLimits()
        self.replica = Replica()
        self.view = View(self.replica)
        self.lanes = Lanes(self.limits)
        self._random = random
        self._lane_of = lane_of
        self._flying: dict[int, Entry] = {}
        self._waiting: dict[Entry, None] = {}
        """Entries that a change of state may set going: ready, parked, or patient."""
        self._readers: dict[str, dict[Entry, None]] = {}
        """Ready entries, by the entities that they have read."""
        self._behind: dict[int, dict[Lane, None]] = {}
        """Lanes that wait for a layer to be accepted or to go, by its id."""
        self._outnumbered: dict[Lane, None] = {}
        """Lanes that wait until numbers are free."""
        self._derivations: dict[str, Derivation] = {}
        self._alarms: list[tuple[float, int, Lane]] = []
        self._alarm_count = 0
        self._stirred: dict[Lane, None] = {}
        self._effects: list[Effect] = []
        self._local_seq = 0
        self._event_count = 0
        self._layer_count = 0
        self._landing: dict[int, Layer] = {}
        """Layers whose commits have left, by number, until the replica has them."""
        self._now_ms = 0.0

    # Outcomes

    def _accept(self, entry: Entry, seq: int, ts_ms: int | None) -> None:
        layer = entry.layer
        if layer is not None:
            moved = self.view.land(layer, seq)
            self._wake_behind(layer)
            if seq <= self.replica.seq and self._drop_layer(layer):
                self._taken_back(layer)  # a listing had it: it lay over what came after it
            elif moved:
                self._taken_back(layer, moved)
        self._report(entry, "accepted", seq=seq)
        self._finish(entry, seq, ts_ms)

    def _finish(self, entry: Entry, seq: int | None, ts_ms: int | None) -> None:
        attempts = entry.conflicts + 1
        self._end(
            entry,
            Committed(event_id=entry.event.id, seq=seq, ts_ms=ts_ms, attempts=attempts),
        )
        local_seq = entry.local_seq
        ref = entry.origin_ref if local_seq is None else Origin(self.session, local_seq)
        for child in entry.children:
            child.origin_ref = ref
            child.origin = None  # settled: and a chain of events is not kept for its last one
            self._stir(child.lane)
        entry.children = []

    def _conflict(self, entry: Entry, error: CallError) -> None:
        """Take the layer back and park the entry in its place, or end it if its time is over."""
        self._unwind_behind(entry)
        entry.conflicts += 1
        if entry.conflicts == 1:
            entry.first_conflict_ms = self._now_ms
        entry.last_error = error
        current = error.detail.get("current")
        entry.catch_up_seq = current if isinstance(current, int) else 0
        delay_ms = self._delay_ms(entry)
        outcome: Outcome = "changed_locally" if isinstance(error, ChangedLocally) else "conflict"
        if delay_ms is None:
            self._report(entry, outcome, terminal="convergence", error=str(error))
            self._fail(entry, convergence_error(entry, error, self.policy, self._now_ms))
            return
        self._report(entry, outcome, backoff_ms=delay_ms, error=str(error))
        self._revert(entry, None)
        entry.state = State.PARKED
        entry.not_before_ms = self._now_ms + delay_ms
        entry.catch_up_until_ms = self._now_ms + max(delay_ms, self.policy.cap_ms)
        self._waiting[entry] = None
        self._alarm(entry.not_before_ms, entry.lane)
        if entry.catch_up_seq > self.replica.seq:
            self._alarm(entry.catch_up_until_ms, entry.lane)
        self._stir(entry.lane)

    def _delay_ms(self, entry: Entry) -> float | None:
        elapsed_ms = self._now_ms - entry.first_conflict_ms
        if entry.derivation is not None:
            if entry.catch_up_seq > self.replica.seq:
                return 0.0  # what it waits for will come by itself
            return self.policy.nominal_ms(entry.conflicts)
        if not entry.retries:
            return None
        return self.policy.next_ms(entry.conflicts, elapsed_ms=elapsed_ms, random=self._random)

    def _refuse(self, entry: Entry, error: CallError, terminal: Terminal) -> None:
        if entry.seen_seq is not None:
            self._accept(entry, entry.seen_seq, None)  # an earlier try was taken
            return
        outcome: Outcome = "permanent" if terminal == "permanent" else "rule"
        self._report(entry, outcome, terminal=terminal, error=str(error))
        says_nothing = isinstance(error, Unauthorized | Forbidden)  # about an earlier try
        self._fail(entry, unknown_error(entry, error) if says_nothing else error)

    def _lose(self, entry: Entry, error: CallError) -> None:
        """No answer: send the same commit again, unless we have seen that it is in the space."""
        if entry.seen_seq is not None:
            self._accept(entry, entry.seen_seq, None)
            return
        entry.lost += 1
        entry.doubtful = entry.doubtful or error.maybe_done
        entry.last_error = error
        if entry.lost == 1:
            entry.away_since_ms = self._now_ms
        delay_ms = self.limits.away.next_ms(
            entry.lost, elapsed_ms=self._now_ms - entry.away_since_ms, random=self._random
        )
        if delay_ms is None:
            self._report(entry, "unknown", terminal="unknown", error=str(error))
            self._fail(entry, unknown_error(entry, error))
            return
        delay_ms = max(delay_ms, float(getattr(error, "retry_after_ms", None) or 0))
        entry.resend_ms = self._now_ms + delay_ms
        self._alarm(entry.resend_ms, entry.lane)

    def _fail(self, entry: Entry, error: Exception) -> None:
        """The end without an effect."""
        self._revert(entry, error)
        self._end(entry, error)

    def _end(self, entry: Entry, outcome: Committed | Exception) -> None:
        """It is over: its lane goes on, and whoever waits is told."""
        if entry.local_seq is not None:
            self._flying.pop(entry.local_seq, None)
        self._forget(entry)
        entry.state = State.ENDED
        self.lanes.remove(entry)
        self._stir(entry.lane)
        if entry.derivation is not None:
            if isinstance(outcome, Exception):
                source = f"derive {entry.derivation.name}"
                self._effects.append(Fail(Failure(outcome, None, source)))
            self._rearm(entry.derivation)
            return
        entry.ticket.settle(outcome)
        self._effects.append(Tell(entry.ticket))
        if isinstance(outcome, Exception) and not isinstance(outcome, Superseded):
            self._effects.append(Fail(Failure(outcome, entry.event)))

    def _arm(self, derivation: Derivation) -> None:
        """Let a stale derivation have one entry in its lane."""
        lane = self.lanes.lane(derivation.name, "derive")
        if derivation.stale and not lane.entries:
            event = Event(id="", type=f"derive {derivation.name}", lane=lane.key)
            self.lanes.add(Entry(event, lane, derivation=derivation))
        self._stir(lane)

    def _rearm(self, derivation: Derivation) -> None:
        if derivation.stale:
            self._arm(derivation)

    # Taking back

    def _revert(self, entry: Entry, failure: Exception | None) -> None:
        """Undo what one run did here; `failure` if there will be no other."""
        children, entry.children = entry.children, []
        for child in reversed(children):
            self._drop(child, failure)
        self._forget(entry)
        layer = entry.layer
        if layer is not None and layer.local_seq is not None:
            self._flying.pop(layer.local_seq, None)
        entry.clear_attempt()
        if layer is None:
            return
        if entry.derivation is not None:
            entry.derivation.own.discard(layer.id)
        if self._drop_layer(layer):
            self._taken_back(layer)

    def _drop_layer(self, layer: Layer) -> bool:
        if layer.local_seq is not None:
            self._landing.pop(layer.local_seq, None)
        self._wake_behind(layer)
        return self.view.pop(layer)

    def _taken_back(self, layer: Layer, entities: Collection[str] | None = None) -> None:
        """Whoever has read the layer has read what never was, or not in this order."""
        entities = layer.entities if entities is None else entities
        touched = [Touch(entity, (ROOT,)) for entity in entities]
        for other in self._readers_of(touched):
            transaction = other.transaction
            if transaction is not None and transaction.has_read(layer.id, entities):
                self._outdated(other, touched)
        self._notice(touched, None)

    def _drop(self, child: Entry, failure: Exception | None) -> None:
        """An event whose origin's run does not count."""
        if child.state is State.ENDED:
            return
        text = f"event {child.event.id!r}: the event that sent it "
        if failure is None:
            error: CallError = Superseded(text + "ran again, and sent others")
        else:
            error = OriginFailed(text + f"did not commit ({failure})")
            error.__cause__ = failure
        self._revert(child, failure)
        self._end(child, error)

    def _unwind(self, entry: Entry) -> None:
        """Let an entry that ran ahead run again when its turn comes; this is not a conflict."""
        self._unwind_behind(entry)
        self._revert(entry, None)
        entry.state = State.QUEUED
        self._stir(entry.lane)

    def _unwind_behind(self, entry: Entry) -> None:
        """Nobody may have run before one that comes earlier in its lane.

        Else that one could read what they wrote, and each would wait for the other.
        """
        for behind in reversed(entry.lane.behind(entry)):
            if behind.state is State.READY:
                self._revert(behind, None)
                behind.state = State.QUEUED

    def _outdated(self, entry: Entry, touched: list[Touch]) -> None:
        """What a ready entry has read is not so any more."""
        if entry not in self._waiting or entry.state is not State.READY:
            return  # it was unwound with another
        if not entry.is_first:
            self._unwind(entry)
            return
        names = ", ".join(sorted({touch.entity for touch in touched}))
        error = ChangedLocally(f"expected what was read to stay, found a change of {names}")
        self._conflict(entry, error)

    # Noticing

    def _merge(self, change: Change) -> int | None:
        """A commit of ours is in the replica; which layer it was."""
        layer = self._landing.pop(change.local_seq, None)
        if layer is not None:
            self._wake_behind(layer)
            if moved := self.view.merge(layer):
                self._taken_back(layer, moved)
        entry = self._flying.get(change.local_seq)
        if entry is not None:
            entry.seen_seq = change.seq
            if entry.resend_ms is not None:
                self._accept(entry, change.seq, None)
        return None if layer is None else layer.id

    def _notice(self, touched: list[Touch], layer: int | None) -> None:
        for derivation in self._derivations.values():
            if derivation.notice(touched, layer):
                self._arm(derivation)

    def _readers_of(self, touched: Iterable[Touch]) -> list[Entry]:
        """Ready entries that have read something of what was touched."""
        names = sorted({touch.entity for touch in touched})  # so that a seed replays a run
        return list({entry: None for name in names for entry in self._readers.get(name, ())})

    def _remember(self, entry: Entry, transaction: Transaction) -> None:
        """An entry is ready: from now on it must hear of changes of what it has read."""
        self._waiting[entry] = None
        for looked in transaction.reads:
            self._readers.setdefault(looked.entity, {})[entry] = None

    def _forget(self, entry: Entry) -> None:
        """An entry does not wait any more, or is about to lose what it has read."""
        self._waiting.pop(entry, None)
        for looked in entry.transaction.reads if entry.transaction is not None else ():
            readers = self._readers.get(looked.entity)
            if readers is not None:
                readers.pop(entry, None)
                if not readers:
                    del self._readers[looked.entity]

    def _stir(self, lane: Lane) -> None:
        self._stirred[lane] = None

    def _stir_parked(self) -> None:
        for entry in self._waiting:
            if entry.state is State.PARKED:
                self._stirred[entry.lane] = None

    def _wait_behind(self, layer: int, lane: Lane) -> None:
        """Look at a lane again when a layer was accepted, or has gone."""
        self._behind.setdefault(layer, {})[lane] = None

    def _wake_behind(self, layer: Layer) -> None:
        self._stirred.update(self._behind.pop(layer.id, ()))

    def _alarm(self, due_ms: float, lane: Lane) -> None:
        self._alarm_count += 1
        heappush(self._alarms, (due_ms, self._alarm_count, lane))

    def _report(self, entry: Entry, outcome: Outcome, **facts: Any) -> None:
        elapsed_ms = self._now_ms - entry.first_conflict_ms if entry.conflicts else 0.0
        report = CommitReport(
            event_id=entry.event.id or None,
            event_type=entry.event.type,
            lane=entry.event.lane,
            session=self.session,
            local_seq=entry.local_seq or 0,
            outcome=outcome,
            retry_attempt=entry.conflicts,
            elapsed_ms=elapsed_ms,
            **facts,
        )
        self._effects.append(Report(report))
