"""What wakes a lane of a runtime: time, a completed layer, a change of data that was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from penstock.client.runtime.events import Event
from penstock.client.runtime.lanes import Entry, EntryState, Lane, Lanes
from penstock.client.runtime.replica import Touch
from penstock.client.runtime.transaction import Transaction


class Agenda:
    """Lanes to process: now, at a certain time, or when a layer completes."""

    __slots__ = ("_alarm_count", "_alarms", "_behind", "_stirred")

    def __init__(self) -> None:
        self._stirred: dict[Lane, None] = {}
        self._alarms: list[tuple[float, int, Lane]] = []
        self._alarm_count = 0
        self._behind: dict[int, dict[Lane, None]] = {}
        """Lanes that wait for a layer to be accepted or removed, by its id."""

    @property
    def next_due_ms(self) -> float | None:
        """When the next timer is due."""
        return self._alarms[0][0] if self._alarms else None

    def stir(self, lane: Lane) -> None:
        """Process a lane soon."""
        self._stirred[lane] = None

    def alarm(self, due_ms: float, lane: Lane) -> None:
        """Process a lane at that time."""
        self._alarm_count += 1
        heappush(self._alarms, (due_ms, self._alarm_count, lane))

    def wait_behind(self, layer_id: int, lane: Lane) -> None:
        """Process a lane when a layer is accepted or removed."""
        self._behind.setdefault(layer_id, {})[lane] = None

    def layer_through(self, layer_id: int) -> None:
        """A layer was accepted or removed."""
        self._stirred.update(self._behind.pop(layer_id, ()))

    def ring(self, now_ms: float) -> None:
        """Wake the lanes whose time has come."""
        while self._alarms and self._alarms[0][0] <= now_ms:
            self.stir(heappop(self._alarms)[2])

    def take(self) -> Lane | None:
        """The lane to process next, in the order they were woken."""
        lane = next(iter(self._stirred), None)
        if lane is not None:
            del self._stirred[lane]
        return lane

    def clear(self) -> None:
        """Process none of the woken lanes; timers that are set still ring, for empty lanes."""
        self._stirred.clear()


class Readers:
    """Entries that a change of state may wake, and their reads.

    They are ready, parked, or queued behind a layer.
    """

    __slots__ = ("_by_entity", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[Entry, None] = {}
        self._by_entity: dict[str, dict[Entry, None]] = {}
        """Ready entries, by the entities they have read."""

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._waiting

    def in_state(self, state: EntryState) -> list[Entry]:
        """The entries that wait in a state."""
        return [entry for entry in self._waiting if entry.state is state]

    def add(self, entry: Entry) -> None:
        """Add a waiting entry, without its reads."""
        self._waiting[entry] = None

    def add_reads(self, entry: Entry, transaction: Transaction) -> None:
        """An entry is ready: from now on changes of what it has read concern it."""
        self.add(entry)
        for looked in transaction.reads:
            self._by_entity.setdefault(looked.entity, {})[entry] = None

    def remove(self, entry: Entry) -> None:
        """An entry no longer waits, or is about to lose its reads."""
        self._waiting.pop(entry, None)
        for looked in entry.transaction.reads if entry.transaction is not None else ():
            readers = self._by_entity.get(looked.entity)
            if readers is not None:
                readers.pop(entry, None)
                if not readers:
                    del self._by_entity[looked.entity]

    def of(self, touched: Iterable[Touch]) -> list[Entry]:
        """Ready entries that have read some of the touched entities."""
        names = sorted({touch.entity for touch in touched})  # sorted, so that a seed replays a run
        return list({entry: None for name in names for entry in self._by_entity.get(name, ())})


class Derivation:
    """A function of the state that writes its result back whenever its inputs change.

    Its output depends only on its inputs, so a conflict is harmless: it waits for the state to
    catch up and runs again, for as long as necessary. It uses no retry budget.
    """

    __slots__ = ("function", "name", "own", "reads_of", "stale")

    def __init__(self, name: str, function: Callable[[Transaction], None]) -> None:
        self.name = name
        self.function = function
        self.stale = True
        """Whether it must run (again)."""
        self.reads_of: Transaction | None = None
        """Its last run, whose reads wake it."""
        self.own: set[int] = set()
        """Its own layers in flight, which do not wake it."""

    def notice(self, touched: Iterable[Touch], layer: int | None) -> bool:
        """Note a change; returns whether it makes the derivation stale."""
        if self.stale:
            return False
        if layer is not None and layer in self.own:
            return False
        if self.reads_of is not None and not self.reads_of.is_touched(touched):
            return False
        self.stale = True
        return True


class Derivations:
    """Every derivation of a runtime; a stale one has one entry, in a lane of its own."""

    __slots__ = ("_agenda", "_by_name", "_lanes")

    def __init__(self, lanes: Lanes, agenda: Agenda) -> None:
        self._by_name: dict[str, Derivation] = {}
        self._lanes = lanes
        self._agenda = agenda

    def add(self, derivation: Derivation) -> None:
        """Keep a derivation up to date from now on; one of the same name is replaced."""
        self._by_name[derivation.name] = derivation
        self.arm(derivation)

    def arm(self, derivation: Derivation) -> None:
        """Give a derivation an entry in its lane if it is stale, at most one."""
        lane = self._lanes.lane(derivation.name, "derive")
        if derivation.stale and not lane.entries:
            event = Event(id="", type=f"derive {derivation.name}", lane=lane.key)
            self._lanes.add(Entry(event, lane, derivation=derivation))
        self._agenda.stir(lane)

    def notice(self, touched: list[Touch], layer: int | None) -> None:
        """Entities changed, by a layer if that is known: what has read them must run again."""
        for derivation in self._by_name.values():
            if derivation.notice(touched, layer):
                self.arm(derivation)

    def start_over(self) -> None:
        """All state was replaced: each must run again."""
        for derivation in self._by_name.values():
            derivation.stale = True
            self.arm(derivation)

    def layer_gone(self, layer: int) -> None:
        """A layer is part of the replica now."""
        for derivation in self._by_name.values():
            derivation.own.discard(layer)

    def clear(self) -> None:
        """Keep none of them up to date any more."""
        self._by_name.clear()
