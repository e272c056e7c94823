"""The queue of a runtime: events in lanes, each lane strictly FIFO.

>>> lane = Lane("meters")
>>> for number in (1, 2):
...     lane.add(Entry(Event(id=str(number), type="read", lane="meters"), lane))
>>> [entry.event.id for entry in lane.entries], lane.count("read")
(['1', '2'], 2)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from penstock.client.errors import BacklogFull
from penstock.client.runtime.events import Event, Ticket
from penstock.client.settings import RuntimeLimits

if TYPE_CHECKING:
    from penstock.client.runtime.agenda import Derivation
    from penstock.client.runtime.layers import Layer
    from penstock.client.runtime.replica import Touch
    from penstock.client.runtime.transaction import Transaction
    from penstock.protocol.commits import Commit, Origin


class EntryState(Enum):
    """The state of an entry."""

    QUEUED = "queued"
    """Its handler has not run, or must run again."""
    RUNNING = "running"
    PARKED = "backing off"
    """It met a conflict, and waits for its back-off and for fresh state."""
    READY = "ready"
    """Its handler ran and its writes are visible; its commit waits to be sent."""
    FLYING = "committing"
    """Its commit is in flight."""
    ENDED = "ended"


class Entry:
    """One event in its lane; it keeps its place through every conflict until it ends."""

    __slots__ = (
        "after", "away_since_ms", "catch_up_seq", "catch_up_until_ms", "children", "commit",
        "conflicts", "derivation", "doubtful", "event", "first_conflict_ms", "has_callers_id",
        "lane", "last_error", "layer", "lost", "more", "not_before_ms", "origin", "origin_ref",
        "resend_ms", "retries", "seen_seq", "state", "ticket", "transaction",
    )  # fmt: skip

    def __init__(
        self,
        event: Event,
        lane: Lane,
        *,
        retries: bool = True,
        has_callers_id: bool = False,
        origin: Entry | None = None,
        derivation: Derivation | None = None,
    ) -> None:
        self.event = event
        self.lane = lane
        self.retries = retries
        self.has_callers_id = has_callers_id
        self.origin = origin
        self.origin_ref: Origin | None = None
        """The commit without which this one must not take effect."""
        self.derivation = derivation
        self.ticket = Ticket(event.id, event.type, event.lane)
        self.more: list[Any] = []
        """The data of events that were merged into this one, in the order they were sent."""
        self.state = EntryState.QUEUED
        self.children: list[Entry] = []
        self.conflicts = 0
        self.first_conflict_ms = 0.0
        self.last_error: Exception | None = None
        self.after: set[int] | None = None
        """Layers to wait for: it failed on top of them, and they may yet be rolled back."""
        self.not_before_ms = 0.0
        self.catch_up_seq = 0
        self.catch_up_until_ms = 0.0
        self.clear_attempt()

    def clear_attempt(self) -> None:
        """Clear the results of one run."""
        self.transaction: Transaction | None = None
        self.layer: Layer | None = None
        self.commit: Commit | None = None
        self.seen_seq: int | None = None
        self.lost = 0
        self.doubtful = False
        self.away_since_ms = 0.0
        self.resend_ms: float | None = None

    @property
    def local_seq(self) -> int | None:
        """The number of its commit, once that was sent."""
        return None if self.layer is None else self.layer.local_seq

    @property
    def is_first(self) -> bool:
        """Whether it is the first of its lane."""
        return self.lane.entries[0] is self

    def is_outdated(self, touched: list[Touch], own: int | None) -> bool:
        """Whether it is ready, and a change touches what it has read; not one of its own layer."""
        transaction = self.transaction
        return (
            self.state is EntryState.READY
            and transaction is not None
            and transaction.is_touched(touched, own)
        )

    def __repr__(self) -> str:
        return f"Entry({self.event.id!r}, {self.event.type!r}, {self.state.value})"


class Lane:
    """Events that must take effect in the order they were sent."""

    __slots__ = ("_counts", "entries", "key", "kind")

    def __init__(self, key: str, kind: str = "") -> None:
        self.key = key
        self.kind = kind
        self.entries: list[Entry] = []
        self._counts: Counter[str] = Counter()

    @property
    def place(self) -> tuple[str, str]:
        """Its key among all lanes."""
        return self.kind, self.key

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        self.entries.append(entry)
        self._counts[entry.event.type] += 1

    def remove(self, entry: Entry) -> None:
        """Remove an entry from any position."""
        self.entries.remove(entry)
        self._counts[entry.event.type] -= 1

    def count(self, kind: str) -> int:
        """Unfinished events of one type."""
        return self._counts[kind]

    def before(self, entry: Entry) -> Iterator[Entry]:
        """The entries before an entry, in order."""
        return takewhile(lambda other: other is not entry, self.entries)

    def behind(self, entry: Entry) -> list[Entry]:
        """The entries after an entry, in order."""
        return self.entries[self.entries.index(entry) + 1 :]

    def last(self, kind: str) -> Entry | None:
        """The last event of a type."""
        return next((entry for entry in reversed(self.entries) if entry.event.type == kind), None)


class Lanes:
    """Every non-empty lane, and the rules for merging events."""

    __slots__ = ("_by_id", "_lanes", "_limits")

    def __init__(self, limits: RuntimeLimits) -> None:
        self._limits = limits
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._by_id: dict[str, Entry] = {}

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def entries(self) -> Iterator[Entry]:
        """All unfinished entries."""
        return (entry for lane in self._lanes.values() for entry in lane.entries)

    def join(self, event: Event, *, callers_id: bool, origin: Entry | None) -> Ticket | None:
        """The ticket of a queued event that covers this one, or None.

        The same durable id is the same event. In a full lane an event without an explicit id is
        merged into the last of its type and origin whose handler is not running yet: the handler
        then runs for each of them, in order, in one transaction. An event that cannot join a full
        lane is refused.
        """
        if callers_id and (queued := self._by_id.get(event.id)) is not None:
            return queued.ticket
        lane = self._lanes.get(("", event.lane))
        if lane is None or lane.count(event.type) < self._limits.pending_max:
            return None
        last = lane.last(event.type)
        if not callers_id and last is not None and self._takes(last, origin):
            last.more.append(event.data)
            return last.ticket
        raise BacklogFull(
            f"{self._limits.pending_max} events of type {event.type!r} wait in lane "
            f"{event.lane!r} already; wait for some of them, or use more lanes",
            lane=event.lane,
            event_type=event.type,
        )

    def add(self, entry: Entry) -> None:
        """Append an entry to its lane."""
        entry.lane.add(entry)
        if entry.has_callers_id:
            self._by_id[entry.event.id] = entry

    def remove(self, entry: Entry) -> None:
        """Remove a finished entry, and its lane if that is now empty."""
        lane = entry.lane
        lane.remove(entry)
        if entry.has_callers_id:
            self._by_id.pop(entry.event.id, None)
        if not lane.entries:
            self._lanes.pop(lane.place, None)

    def lane(self, key: str, kind: str = "") -> Lane:
        """A lane, created if necessary. Derivations have lanes of another kind."""
        found = self._lanes.get((kind, key))
        if found is None:
            found = self._lanes[kind, key] = Lane(key, kind)
        return found

    def _takes(self, last: Entry, origin: Entry | None) -> bool:
        return (
            last.state in (EntryState.QUEUED, EntryState.PARKED)
            and not last.has_callers_id
            and last.origin is origin
            and len(last.more) < self._limits.coalesced_max
        )


WAITING: Final = frozenset({EntryState.QUEUED, EntryState.RUNNING, EntryState.PARKED})
"""States in which a handler still has to run."""
