"""A runtime without a connection: events go in, effects come out.

Events wait in lanes, each strictly in order. The first of a lane runs its handler on the state as
seen locally; its writes are visible at once, as a layer; its commit is sent when nothing it depends
on is pending. A conflict rolls the layer back and parks the event in its place. Events behind the
first may run before its answer, but are sent only after it, and run again if it does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random
from typing import Any

from penstock.client.errors import (
    BacklogFull,
    ChangedLocally,
    ClientClosed,
    OriginFailed,
    Superseded,
    unanswered,
)
from penstock.client.retry import settles
from penstock.client.runtime.agenda import Agenda, Derivation, Derivations, Readers
from penstock.client.runtime.committing import (
    InFlight,
    commit_report,
    conflict_delay_ms,
    convergence_error,
    handler_error,
    unknown_error,
)
from penstock.client.runtime.effects import (
    CommitVerdict,
    Effect,
    Fail,
    Outcome,
    Report,
    Run,
    RuntimeFailure,
    Tell,
    Terminal,
    Transmit,
    verdict_of,
)
from penstock.client.runtime.events import Committed, Event, Intent, Ticket
from penstock.client.runtime.lanes import WAITING, Entry, EntryState, Lane, Lanes
from penstock.client.runtime.layers import Layer, View
from penstock.client.runtime.replica import Change, EntityVersion, Replica, Touch
from penstock.client.runtime.transaction import Transaction
from penstock.client.settings import CommitBackpressure, RuntimeLimits
from penstock.commits.model import ROOT
from penstock.protocol.commits import Origin
from penstock.protocol.errors import CallError
from penstock.protocol.errors import Outcome as CallOutcome


class RuntimeCore:
    """The state of one runtime. Every input method returns the effects to carry out.

    Effects are in order; `next_due_ms` says when to call `tick`. Times are monotonic milliseconds.
    """

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
        self._agenda = Agenda()
        self._readers = Readers()
        self._flights = InFlight(session)
        self._derivations = Derivations(self.lanes, self._agenda)
        self._effects: list[Effect] = []
        self._event_count = 0
        self._layer_count = 0
        self._now_ms = 0.0

    # State

    @property
    def next_due_ms(self) -> float | None:
        """When `tick` is due."""
        return self._agenda.next_due_ms

    @property
    def is_idle(self) -> bool:
        """Whether no handler is running, queued or parked."""
        return not any(entry.state in WAITING for entry in self.lanes.entries())

    @property
    def is_settled(self) -> bool:
        """Whether it is idle and every commit has its outcome."""
        return next(iter(self.lanes), None) is None

    @property
    def committing(self) -> int:
        """Commits in flight."""
        return len(self._flights)

    # Inputs

    def send(self, intent: Intent, now_ms: float) -> tuple[Ticket, list[Effect]]:
        """An event was sent; returns its ticket and the effects."""
        self._now_ms = now_ms
        return self._place(intent, None), self._go_on()

    def derive(
        self, name: str, function: Callable[[Transaction], None], now_ms: float
    ) -> list[Effect]:
        """Keep a derivation up to date from now on."""
        self._now_ms = now_ms
        self._derivations.add(Derivation(name, function))
        return self._go_on()

    def ran(self, entry: Entry, error: Exception | None, now_ms: float) -> list[Effect]:
        """A handler has finished."""
        self._now_ms = now_ms
        transaction = entry.transaction
        if entry.state is EntryState.RUNNING and transaction is not None:
            transaction.close()
            if any(before.state in WAITING for before in entry.lane.before(entry)):
                self._unwind(entry)  # an earlier one was rolled back before this one ran
            elif error is None:
                self._ran_well(entry, transaction)
            else:
                self._ran_badly(entry, transaction, error)
            self._agenda.stir(entry.lane)
        return self._go_on()

    def accepted(self, local_seq: int, seq: int, ts_ms: int | None, now_ms: float) -> list[Effect]:
        """The server accepted a commit."""
        self._now_ms = now_ms
        entry = self._flights.get(local_seq)
        if entry is not None:
            self._accept(entry, seq, ts_ms)
        return self._go_on()

    def refused(self, local_seq: int, error: CallError, now_ms: float) -> list[Effect]:
        """A commit was answered with an error, or got no answer."""
        self._now_ms = now_ms
        entry = self._flights.get(local_seq)
        if entry is not None:
            match verdict_of(error):
                case CommitVerdict.RETRY:
                    self._conflict(entry, error)
                case CommitVerdict.PERMANENT:
                    self._refuse(entry, error, "permanent")
                case CommitVerdict.RULE:
                    self._refuse(entry, error, "rule")
                case CommitVerdict.RESEND:
                    self._lose(entry, error)
        return self._go_on()

    def advanced(self, changes: Iterable[Change], now_ms: float) -> list[Effect]:
        """The space advanced by these commits."""
        self._now_ms = now_ms
        for change in changes:
            touched = self.replica.apply(change)
            if touched is None:
                continue
            own = self._merge(change) if change.session == self.session else None
            for entry in self._readers.of(touched):
                if entry.is_outdated(touched, own):
                    self._outdated(entry, touched)
            self._derivations.notice(touched, own)
            if own is not None:
                self._derivations.layer_gone(own)
        for entry in self._readers.in_state(EntryState.PARKED):
            self._agenda.stir(entry.lane)
        return self._go_on()

    def listed(
        self, versions: Mapping[str, EntityVersion], head: int, epoch: int | None, now_ms: float
    ) -> list[Effect]:
        """Replace all known state with a listing of all entities as of a commit."""
        self._now_ms = now_ms
        another = self.replica.live and epoch != self.replica.epoch
        self.replica.reset(versions, head, epoch)
        for layer in list(self.view.layers()):
            if layer.seq is not None and (another or layer.seq <= head):
                self._drop_layer(layer)
        for entry in self._readers.in_state(EntryState.READY):
            if entry.state is EntryState.READY:  # it may have been unwound with an earlier one
                self._unwind(entry)
        self._derivations.start_over()
        for lane in self.lanes:
            self._agenda.stir(lane)
        return self._go_on()

    def tick(self, now_ms: float) -> list[Effect]:
        """Time has passed."""
        self._now_ms = now_ms
        self._agenda.ring(now_ms)
        return self._go_on()

    def close(self, now_ms: float) -> list[Effect]:
        """The runtime ends: unfinished events fail."""
        self._now_ms = now_ms
        self._derivations.clear()
        for entry in list(self.lanes.entries()):
            if entry.state is EntryState.ENDED:
                continue
            text = f"the runtime was closed before event {entry.event.id!r} ended"
            sent = entry.state is EntryState.FLYING
            self._fail(entry, unanswered(text) if sent else ClientClosed(text))
        self._agenda.clear()
        return self._go_on()

    # Placing

    def _place(self, intent: Intent, origin: Entry | None, default_id: str = "") -> Ticket:
        lane = self._lane_of(intent.type, intent.data) if intent.lane is None else intent.lane
        event = Event(
            id=intent.id or default_id or self._new_id(),
            type=intent.type,
            data=intent.data,
            lane=lane,
        )
        callers_id = intent.id is not None
        try:
            ticket = self.lanes.join(event, callers_id=callers_id, origin=origin)
        except BacklogFull as error:
            ticket = Ticket(event.id, event.type, event.lane)
            ticket.settle(error)
            self._effects += [Tell(ticket), Fail(RuntimeFailure(error, event))]
        if ticket is not None:
            return ticket
        entry = Entry(
            event,
            self.lanes.lane(lane),
            retries=intent.retries,
            has_callers_id=callers_id,
            origin=origin,
        )
        self.lanes.add(entry)
        if origin is not None:
            origin.children.append(entry)
        self._agenda.stir(entry.lane)
        return entry.ticket

    def _new_id(self) -> str:
        self._event_count += 1
        return f"{self.session}.{self._event_count}"

    # Driving

    def _go_on(self) -> list[Effect]:
        """Advance every woken lane as far as possible."""
        while (lane := self._agenda.take() or self._flights.freed()) is not None:
            if self.replica.live:
                self._drive(lane)
        effects, self._effects = self._effects, []
        return effects

    def _drive(self, lane: Lane) -> None:
        """Process a lane from its head, as far as handlers may run and commits may be sent."""
        for index, entry in enumerate(lane.entries[: self.limits.ahead_max]):
            if entry.state in WAITING:
                if self._may_run(entry, index):
                    self._run(entry)
                return
            if entry.state is EntryState.READY and index == 0 and self._may_leave(entry):
                self._leave(entry)
            elif entry.state is EntryState.FLYING:
                self._resend(entry)
            if entry.conflicts:
                return  # it blocks those behind it until it completes

    def _may_run(self, entry: Entry, index: int) -> bool:
        if entry.state is EntryState.PARKED:
            if self._now_ms < entry.not_before_ms:
                return False
            is_fresh = self.replica.seq >= entry.catch_up_seq
            return is_fresh or self._now_ms >= entry.catch_up_until_ms
        if entry.state is EntryState.RUNNING:
            return False
        if entry.after is None:
            return True
        return index == 0 and self._is_sure(entry) and not self._waits_behind(entry, entry.after)

    def _run(self, entry: Entry) -> None:
        self._readers.remove(entry)
        entry.state = EntryState.RUNNING
        entry.transaction = Transaction(self.view, self._lane_of)
        if entry.derivation is not None:
            entry.derivation.stale = False
        self._effects.append(Run(entry))

    def _ran_well(self, entry: Entry, transaction: Transaction) -> None:
        entry.state = EntryState.READY
        entry.after = None
        self._readers.add_reads(entry, transaction)
        derivation = entry.derivation
        if derivation is not None:
            derivation.reads_of = transaction
            if transaction.changes_nothing():
                transaction.writes.clear()
        if transaction.writes:
            self._layer_count += 1
            entry.layer = Layer(self._layer_count, tuple(transaction.writes))
            if derivation is not None:
                derivation.own.add(entry.layer.id)
            self._derivations.notice(self.view.push(entry.layer), entry.layer.id)
        for number, intent in enumerate(transaction.sent, 1):
            self._place(intent, entry, f"{entry.event.id}/{number}")
        entry.ticket.children = tuple(child.ticket for child in entry.children)

    def _ran_badly(self, entry: Entry, transaction: Transaction, error: Exception) -> None:
        if entry.derivation is not None:
            entry.derivation.reads_of = transaction
            self._end(entry, error)
            return
        stands_on = {each for each in transaction.stands_on() if self.view.layer(each)}
        if entry.is_first and self._is_sure(entry) and not stands_on:
            self._end(entry, handler_error(entry.event, error))
            return
        # What it failed on may be rolled back: only a failure on confirmed state is final.
        entry.state = EntryState.QUEUED
        entry.after = stands_on
        entry.clear_attempt()
        self._readers.add(entry)

    def _is_sure(self, entry: Entry) -> bool:
        """Whether the event that sent this one, if any, has committed."""
        origin = entry.origin
        return origin is None or origin.ticket.committed is not None

    # Sending

    def _may_leave(self, entry: Entry) -> bool:
        transaction = entry.transaction
        if transaction is None or not self._is_sure(entry):
            return False
        if self._waits_behind(entry, transaction.stands_on(), accepted=bool(transaction.writes)):
            return False
        if not self._flights.has_number:
            self._flights.wait_for_number(entry.lane)
            return False
        return True

    def _waits_behind(self, entry: Entry, ids: Iterable[int], *, accepted: bool = False) -> bool:
        """Whether it must wait for other layers; if so, its lane is woken when they complete.

        It is enough to wait for the newest: most others have completed by then.
        """
        layers = filter(None, map(self.view.layer, ids))
        open_ids = [each.id for each in layers if not accepted or each.seq is None]
        if not open_ids:
            return False
        self._agenda.wait_behind(max(open_ids), entry.lane)
        return True

    def _leave(self, entry: Entry) -> None:
        self._readers.remove(entry)
        layer = entry.layer
        if layer is None:
            self._finish(entry, None, None)
            return
        entry.commit = self._flights.depart(entry, layer, self.view)
        entry.state = EntryState.FLYING
        self._effects.append(Transmit(entry.commit))

    def _resend(self, entry: Entry) -> None:
        if (
            entry.commit is not None
            and entry.resend_ms is not None
            and entry.resend_ms <= self._now_ms
        ):
            entry.resend_ms = None
            self._effects.append(Transmit(entry.commit))

    # Outcomes

    def _accept(self, entry: Entry, seq: int, ts_ms: int | None) -> None:
        layer = entry.layer
        if layer is not None:
            moved = self.view.land(layer, seq)
            self._agenda.layer_through(layer.id)
            if seq <= self.replica.seq and self._drop_layer(layer):
                self._taken_back(layer)  # a listing had it: it was on top of later commits
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
            child.origin = None  # settled; and the last event must not keep its chain alive
            self._agenda.stir(child.lane)
        entry.children = []

    def _conflict(self, entry: Entry, error: CallError) -> None:
        """Roll the layer back and park the entry in its place, or end it if its time is up."""
        self._unwind_behind(entry)
        entry.conflicts += 1
        if entry.conflicts == 1:
            entry.first_conflict_ms = self._now_ms
        entry.last_error = error
        current = error.detail.get("current")
        entry.catch_up_seq = current if isinstance(current, int) else 0
        is_behind = entry.catch_up_seq > self.replica.seq
        delay_ms = conflict_delay_ms(
            entry, self.policy, self._now_ms, self._random, is_behind=is_behind
        )
        outcome: Outcome = "changed_locally" if isinstance(error, ChangedLocally) else "conflict"
        if delay_ms is None:
            self._report(entry, outcome, terminal="convergence", error=str(error))
            self._fail(entry, convergence_error(entry, error, self.policy, self._now_ms))
            return
        self._report(entry, outcome, backoff_ms=delay_ms, error=str(error))
        self._revert(entry, None)
        entry.state = EntryState.PARKED
        entry.not_before_ms = self._now_ms + delay_ms
        entry.catch_up_until_ms = self._now_ms + max(delay_ms, self.policy.cap_ms)
        self._readers.add(entry)
        self._agenda.alarm(entry.not_before_ms, entry.lane)
        if is_behind:
            self._agenda.alarm(entry.catch_up_until_ms, entry.lane)
        self._agenda.stir(entry.lane)

    def _refuse(self, entry: Entry, error: CallError, terminal: Terminal) -> None:
        if entry.seen_seq is not None:
            self._accept(entry, entry.seen_seq, None)  # an earlier try was accepted
            return
        outcome: Outcome = "permanent" if terminal == "permanent" else "rule"
        self._report(entry, outcome, terminal=terminal, error=str(error))
        self._doubt(entry, error)
        self._fail(entry, error if settles(error) else unknown_error(entry, error))

    def _lose(self, entry: Entry, error: CallError) -> None:
        """No answer: send the same commit again, unless it is already in the space."""
        if entry.seen_seq is not None:
            self._accept(entry, entry.seen_seq, None)
            return
        entry.lost += 1
        self._doubt(entry, error)
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
        self._agenda.alarm(entry.resend_ms, entry.lane)

    def _doubt(self, entry: Entry, error: CallError) -> None:
        """Note that a try may have been taken, if its error says so."""
        entry.doubtful = entry.doubtful or error.outcome is CallOutcome.UNKNOWN

    def _fail(self, entry: Entry, error: Exception) -> None:
        """End without an effect."""
        self._revert(entry, error)
        self._end(entry, error)

    def _end(self, entry: Entry, outcome: Committed | Exception) -> None:
        """The entry is finished: advance its lane, and report the outcome."""
        self._flights.answered(entry.local_seq)
        self._readers.remove(entry)
        entry.state = EntryState.ENDED
        self.lanes.remove(entry)
        self._agenda.stir(entry.lane)
        if entry.derivation is not None:
            if isinstance(outcome, Exception):
                source = f"derive {entry.derivation.name}"
                self._effects.append(Fail(RuntimeFailure(outcome, None, source)))
            if entry.derivation.stale:
                self._derivations.arm(entry.derivation)
            return
        entry.ticket.settle(outcome)
        self._effects.append(Tell(entry.ticket))
        if isinstance(outcome, Exception) and not isinstance(outcome, Superseded):
            self._effects.append(Fail(RuntimeFailure(outcome, entry.event)))

    # Rolling back

    def _revert(self, entry: Entry, failure: Exception | None) -> None:
        """Undo the local effects of one run; with `failure` if it will not run again."""
        children, entry.children = entry.children, []
        for child in reversed(children):
            self._drop(child, failure)
        self._readers.remove(entry)
        layer = entry.layer
        self._flights.answered(entry.local_seq)
        entry.clear_attempt()
        if layer is None:
            return
        if entry.derivation is not None:
            entry.derivation.own.discard(layer.id)
        if self._drop_layer(layer):
            self._taken_back(layer)

    def _drop_layer(self, layer: Layer) -> bool:
        self._flights.seen(layer.local_seq)
        self._agenda.layer_through(layer.id)
        return self.view.pop(layer)

    def _taken_back(self, layer: Layer, entities: Collection[str] | None = None) -> None:
        """Entries that read the layer have read what never existed, or not in this order."""
        entities = layer.entities if entities is None else entities
        touched = [Touch(entity, (ROOT,)) for entity in entities]
        for other in self._readers.of(touched):
            transaction = other.transaction
            if transaction is not None and transaction.has_read(layer.id, entities):
                self._outdated(other, touched)
        self._derivations.notice(touched, None)

    def _drop(self, child: Entry, failure: Exception | None) -> None:
        """Drop an event whose origin's run was undone."""
        if child.state is EntryState.ENDED:
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
        """Make an entry that ran ahead run again in its turn; this is not a conflict."""
        self._unwind_behind(entry)
        self._revert(entry, None)
        entry.state = EntryState.QUEUED
        self._agenda.stir(entry.lane)

    def _unwind_behind(self, entry: Entry) -> None:
        """No entry may have run before an earlier one of its lane.

        Otherwise the earlier one could read what the later one wrote, and each would wait for the
        other.
        """
        for behind in reversed(entry.lane.behind(entry)):
            if behind.state is EntryState.READY:
                self._revert(behind, None)
                behind.state = EntryState.QUEUED

    def _outdated(self, entry: Entry, touched: list[Touch]) -> None:
        """What a ready entry has read has changed."""
        if entry not in self._readers or entry.state is not EntryState.READY:
            return  # it was unwound with another
        if not entry.is_first:
            self._unwind(entry)
            return
        names = ", ".join(sorted({touch.entity for touch in touched}))
        error = ChangedLocally(f"{names} changed after it was read")
        self._conflict(entry, error)

    # Replication

    def _merge(self, change: Change) -> int | None:
        """An own commit is in the replica; returns its layer."""
        layer = self._flights.seen(change.local_seq)
        if layer is not None:
            self._agenda.layer_through(layer.id)
            if moved := self.view.merge(layer):
                self._taken_back(layer, moved)
        entry = self._flights.get(change.local_seq)
        if entry is not None:
            entry.seen_seq = change.seq
            if entry.resend_ms is not None:
                self._accept(entry, change.seq, None)
        return None if layer is None else layer.id

    def _report(self, entry: Entry, outcome: Outcome, **facts: Any) -> None:
        report = commit_report(entry, self.session, outcome, self._now_ms, **facts)
        self._effects.append(Report(report))
