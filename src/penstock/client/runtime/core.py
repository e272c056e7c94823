"""A runtime without a connection: what happened goes in, what is to be done comes out.

Events wait in lanes, each strictly in order. The first of a lane runs its handler on the state as
it looks from here; its writes show at once, as a layer; its commit leaves when nothing it stands
on is open any more. A conflict takes the layer back and parks the event in its place. Events
behind the first may run ahead of its answer, but leave only after it, and run again if it must.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop
from typing import Final

from penstock.client.errors import ClientClosed, OutcomeUnknown
from penstock.client.runtime.committing import handler_error, make_commit
from penstock.client.runtime.derive import Derivation
from penstock.client.runtime.effects import Effect, Fail, Run, Tell, Transmit
from penstock.client.runtime.errors import BacklogFull
from penstock.client.runtime.events import Event, Intent, Ticket
from penstock.client.runtime.lanes import WAITING, Entry, Lane, State
from penstock.client.runtime.layers import Layer
from penstock.client.runtime.replica import Change, Touch, Version
from penstock.client.runtime.settling import Settling
from penstock.client.runtime.telemetry import Failure, Verdict, verdict_of
from penstock.client.runtime.transaction import Transaction
from penstock.commits.model import Origin
from penstock.protocol.errors import CallError

NUMBERS_MAX: Final = 128
"""Numbers between a session's oldest commit without an answer and its newest.

A server keeps the last answers of a session, 256 of them; what it has forgotten it cannot replay,
and refuses.
"""


class RuntimeCore(Settling):
    """The state of one runtime. Every method that tells it something returns what must be done.

    Effects are in order; `next_due_ms` says when to call `tick`. Times are monotonic milliseconds.
    """

    # What is so

    @property
    def next_due_ms(self) -> float | None:
        """When time alone lets something go on."""
        return self._alarms[0][0] if self._alarms else None

    @property
    def is_idle(self) -> bool:
        """Whether no handler is running, queued or parked."""
        return not any(entry.state in WAITING for entry in self.lanes.entries())

    @property
    def is_settled(self) -> bool:
        """Whether, beyond that, every commit has its outcome."""
        return next(iter(self.lanes), None) is None

    @property
    def committing(self) -> int:
        """Commits that are with the server."""
        return len(self._flying)

    # What happens

    def send(self, intent: Intent, now_ms: float) -> tuple[Ticket, list[Effect]]:
        """An event was sent: where its outcome will be, and what to do."""
        self._now_ms = now_ms
        return self._place(intent, None), self._go_on()

    def derive(
        self, name: str, function: Callable[[Transaction], None], now_ms: float
    ) -> list[Effect]:
        """Keep a derivation up to date from now on."""
        self._now_ms = now_ms
        self._derivations[name] = Derivation(name, function)
        self._arm(self._derivations[name])
        return self._go_on()

    def ran(self, entry: Entry, error: Exception | None, now_ms: float) -> list[Effect]:
        """A handler is over."""
        self._now_ms = now_ms
        transaction = entry.transaction
        if entry.state is State.RUNNING and transaction is not None:
            transaction.close()
            if any(before.state in WAITING for before in entry.lane.before(entry)):
                self._unwind(entry)  # one before it was taken back while this one was to run
            elif error is None:
                self._ran_well(entry, transaction)
            else:
                self._ran_badly(entry, transaction, error)
            self._stir(entry.lane)
        return self._go_on()

    def accepted(self, local_seq: int, seq: int, ts_ms: int | None, now_ms: float) -> list[Effect]:
        """The server has taken a commit."""
        self._now_ms = now_ms
        entry = self._flying.get(local_seq)
        if entry is not None:
            self._accept(entry, seq, ts_ms)
        return self._go_on()

    def refused(self, local_seq: int, error: CallError, now_ms: float) -> list[Effect]:
        """A commit was answered with an error, or not at all."""
        self._now_ms = now_ms
        entry = self._flying.get(local_seq)
        if entry is not None:
            match verdict_of(error):
                case Verdict.RETRY:
                    self._conflict(entry, error)
                case Verdict.PERMANENT:
                    self._refuse(entry, error, "permanent")
                case Verdict.RULE:
                    self._refuse(entry, error, "rule")
                case Verdict.RESEND:
                    self._lose(entry, error)
        return self._go_on()

    def advanced(self, changes: Iterable[Change], now_ms: float) -> list[Effect]:
        """The space has moved on by these commits."""
        self._now_ms = now_ms
        for change in changes:
            touched = self.replica.apply(change)
            if touched is None:
                continue
            own = self._merge(change) if change.session == self.session else None
            for entry in self._readers_of(touched):
                if _is_stale(entry, touched, own):
                    self._outdated(entry, touched)
            self._notice(touched, own)
            if own is not None:
                for derivation in self._derivations.values():
                    derivation.own.discard(own)
        self._stir_parked()
        return self._go_on()

    def listed(
        self, versions: Mapping[str, Version], head: int, epoch: int | None, now_ms: float
    ) -> list[Effect]:
        """All entities as of a commit, in place of all that was known."""
        self._now_ms = now_ms
        another = self.replica.live and epoch != self.replica.epoch
        self.replica.reset(versions, head, epoch)
        for layer in list(self.view.layers()):
            if layer.seq is not None and (another or layer.seq <= head):
                self._drop_layer(layer)
        for entry in [entry for entry in self._waiting if entry.state is State.READY]:
            if entry.state is State.READY:
                self._unwind(entry)
        for derivation in self._derivations.values():
            derivation.stale = True
            self._arm(derivation)
        for lane in self.lanes:
            self._stir(lane)
        return self._go_on()

    def tick(self, now_ms: float) -> list[Effect]:
        """Time has passed."""
        self._now_ms = now_ms
        while self._alarms and self._alarms[0][0] <= now_ms:
            self._stir(heappop(self._alarms)[2])
        return self._go_on()

    def close(self, now_ms: float) -> list[Effect]:
        """The runtime ends: what is not finished fails, and says so."""
        self._now_ms = now_ms
        self._derivations.clear()
        for entry in list(self.lanes.entries()):
            if entry.state is State.ENDED:
                continue
            text = f"expected event {entry.event.id!r} to end, found the runtime closed"
            sent = entry.state is State.FLYING
            self._fail(entry, OutcomeUnknown(text) if sent else ClientClosed(text))
        self._stirred.clear()
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
            self._effects += [Tell(ticket), Fail(Failure(error, event))]
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
        self._stir(entry.lane)
        return entry.ticket

    def _new_id(self) -> str:
        self._event_count += 1
        return f"{self.session}.{self._event_count}"

    # Driving

    def _go_on(self) -> list[Effect]:
        """Let every lane that was stirred go as far as it can."""
        while self._stirred or self._has_freed_one():
            lane = next(iter(self._stirred))
            del self._stirred[lane]
            if self.replica.live:
                self._drive(lane)
        effects, self._effects = self._effects, []
        return effects

    def _drive(self, lane: Lane) -> None:
        """Go through a lane from its head, as far as handlers may run and commits may leave."""
        for index, entry in enumerate(lane.entries[: self.limits.ahead_max]):
            if entry.state in WAITING:
                if self._may_run(entry, index):
                    self._run(entry)
                return
            if entry.state is State.READY and index == 0 and self._may_leave(entry):
                self._leave(entry)
            elif entry.state is State.FLYING:
                self._resend(entry)
            if entry.conflicts:
                return  # it holds those behind it until it is through

    def _may_run(self, entry: Entry, index: int) -> bool:
        if entry.state is State.PARKED:
            if self._now_ms < entry.not_before_ms:
                return False
            is_fresh = self.replica.seq >= entry.catch_up_seq
            return is_fresh or self._now_ms >= entry.catch_up_until_ms
        if entry.state is State.RUNNING:
            return False
        if entry.after is None:
            return True
        return index == 0 and self._is_sure(entry) and not self._waits_behind(entry, entry.after)

    def _run(self, entry: Entry) -> None:
        self._forget(entry)
        entry.state = State.RUNNING
        entry.transaction = Transaction(self.view, self._lane_of)
        if entry.derivation is not None:
            entry.derivation.stale = False
        self._effects.append(Run(entry))

    def _ran_well(self, entry: Entry, transaction: Transaction) -> None:
        entry.state = State.READY
        entry.after = None
        self._remember(entry, transaction)
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
            self._notice(self.view.push(entry.layer), entry.layer.id)
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
        # What it failed on may be taken back: only a run on what is certain is the end.
        entry.state = State.QUEUED
        entry.after = stands_on
        entry.clear_attempt()
        self._waiting[entry] = None

    def _is_sure(self, entry: Entry) -> bool:
        """Whether the event that sent this one, if any, has committed."""
        origin = entry.origin
        return origin is None or origin.ticket.committed is not None

    # Leaving

    def _may_leave(self, entry: Entry) -> bool:
        transaction = entry.transaction
        if transaction is None or not self._is_sure(entry):
            return False
        if self._waits_behind(entry, transaction.stands_on(), accepted=bool(transaction.writes)):
            return False
        if not self._has_numbers():
            self._outnumbered[entry.lane] = None
            return False
        return True

    def _waits_behind(self, entry: Entry, ids: Iterable[int], *, accepted: bool = False) -> bool:
        """Whether layers must go before, or be accepted; if so its lane is stirred when they do.

        It is enough to wait for the newest: most others are through by then.
        """
        layers = filter(None, map(self.view.layer, ids))
        open_ids = [each.id for each in layers if not accepted or each.seq is None]
        if not open_ids:
            return False
        self._wait_behind(max(open_ids), entry.lane)
        return True

    def _has_numbers(self) -> bool:
        """Whether the server keeps every number without an answer if one more is used."""
        oldest = next(iter(self._flying), None)  # they leave in the order of their numbers
        return oldest is None or self._local_seq - oldest < NUMBERS_MAX

    def _has_freed_one(self) -> bool:
        """Stir one of the lanes that wait for a number, if there is one for it."""
        if not self._outnumbered or not self._has_numbers():
            return False
        lane = next(iter(self._outnumbered))
        del self._outnumbered[lane]
        self._stir(lane)
        return True

    def _leave(self, entry: Entry) -> None:
        self._forget(entry)
        layer = entry.layer
        if layer is None:
            self._finish(entry, None, None)
            return
        self._local_seq += 1
        layer.local_seq = self._local_seq
        self._landing[layer.local_seq] = layer
        entry.commit = make_commit(entry, self.session, self.view, origin=self._origin(entry))
        entry.state = State.FLYING
        self._flying[layer.local_seq] = entry
        self._effects.append(Transmit(entry.commit))

    def _origin(self, entry: Entry) -> Origin | None:
        """What to ask of the server; it forgets, so that in time we are the only one who knows."""
        ref = entry.origin_ref
        if ref is None or self._local_seq - ref.local_seq >= NUMBERS_MAX:
            return None
        return ref

    def _resend(self, entry: Entry) -> None:
        if (
            entry.commit is not None
            and entry.resend_ms is not None
            and entry.resend_ms <= self._now_ms
        ):
            entry.resend_ms = None
            self._effects.append(Transmit(entry.commit))


def _is_stale(entry: Entry, touched: list[Touch], own: int | None) -> bool:
    transaction = entry.transaction
    return (
        entry.state is State.READY
        and transaction is not None
        and transaction.is_touched(touched, own)
    )
