"""What sets a lane of a runtime going: time, a layer that is through, a change of what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from penstock.client.runtime.lanes import Entry, Lane, State
from penstock.client.runtime.replica import Touch
from penstock.client.runtime.transaction import Transaction


class Agenda:
    """Lanes to look at: now, at a certain time, or when a layer is through."""

    __slots__ = ("_alarm_count", "_alarms", "_behind", "_stirred")

    def __init__(self) -> None:
        self._stirred: dict[Lane, None] = {}
        self._alarms: list[tuple[float, int, Lane]] = []
        self._alarm_count = 0
        self._behind: dict[int, dict[Lane, None]] = {}
        """Lanes that wait for a layer to be accepted or to go, by its id."""

    @property
    def next_due_ms(self) -> float | None:
        """When time alone sets something going."""
        return self._alarms[0][0] if self._alarms else None

    def stir(self, lane: Lane) -> None:
        """Look at a lane soon."""
        self._stirred[lane] = None

    def alarm(self, due_ms: float, lane: Lane) -> None:
        """Look at a lane at that time."""
        self._alarm_count += 1
        heappush(self._alarms, (due_ms, self._alarm_count, lane))

    def wait_behind(self, layer_id: int, lane: Lane) -> None:
        """Look at a lane when a layer was accepted, or has gone."""
        self._behind.setdefault(layer_id, {})[lane] = None

    def layer_through(self, layer_id: int) -> None:
        """A layer was accepted, or has gone."""
        self._stirred.update(self._behind.pop(layer_id, ()))

    def ring(self, now_ms: float) -> None:
        """Time has passed."""
        while self._alarms and self._alarms[0][0] <= now_ms:
            self.stir(heappop(self._alarms)[2])

    def take(self) -> Lane | None:
        """The lane to look at next, in the order they were stirred."""
        lane = next(iter(self._stirred), None)
        if lane is not None:
            del self._stirred[lane]
        return lane

    def clear(self) -> None:
        """Look at none of them."""
        self._stirred.clear()


class Readers:
    """Entries that a change of state may set going (ready, parked or patient), and their reads."""

    __slots__ = ("_by_entity", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[Entry, None] = {}
        self._by_entity: dict[str, dict[Entry, None]] = {}
        """Ready entries, by the entities that they have read."""

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._waiting

    def in_state(self, state: State) -> list[Entry]:
        """Those that wait in a state."""
        return [entry for entry in self._waiting if entry.state is state]

    def add(self, entry: Entry) -> None:
        """An entry waits, whatever it has read."""
        self._waiting[entry] = None

    def add_reads(self, entry: Entry, transaction: Transaction) -> None:
        """An entry is ready: from now on it must hear of changes of what it has read."""
        self.add(entry)
        for looked in transaction.reads:
            self._by_entity.setdefault(looked.entity, {})[entry] = None

    def remove(self, entry: Entry) -> None:
        """An entry does not wait any more, or is about to lose what it has read."""
        self._waiting.pop(entry, None)
        for looked in entry.transaction.reads if entry.transaction is not None else ():
            readers = self._by_entity.get(looked.entity)
            if readers is not None:
                readers.pop(entry, None)
                if not readers:
                    del self._by_entity[looked.entity]

    def of(self, touched: Iterable[Touch]) -> list[Entry]:
        """Ready entries that have read something of what was touched."""
        names = sorted({touch.entity for touch in touched})  # so that a seed replays a run
        return list({entry: None for name in names for entry in self._by_entity.get(name, ())})


class Derivation:
    """A function of the state that writes its result back, whenever what it read has changed.

    Its output is a function of its inputs, so a conflict costs nothing: it waits for the state to
    catch up and runs again, for as long as it takes. It uses no retry budget.
    """

    __slots__ = ("function", "name", "own", "reads_of", "stale")

    def __init__(self, name: str, function: Callable[[Transaction], None]) -> None:
        self.name = name
        self.function = function
        self.stale = True
        """Whether it must run (again)."""
        self.reads_of: Transaction | None = None
        """Its last run: what that has read wakes it."""
        self.own: set[int] = set()
        """Layers of its own that are on their way: these do not wake it."""

    def notice(self, touched: Iterable[Touch], layer: int | None) -> bool:
        """Something changed; whether that makes it stale."""
        if self.stale:
            return False
        if layer is not None and layer in self.own:
            return False
        if self.reads_of is not None and not self.reads_of.is_touched(touched):
            return False
        self.stale = True
        return True
