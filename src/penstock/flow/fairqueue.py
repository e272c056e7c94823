"""Which key is next: keys in weighted bands, each key at most once, no band starved.

A key is anything that can be ready: a dirty topic, a partition, an execution unit. Marking it puts
it at the back of a band; popping takes the next one and holds it as *served* until `done`, so that
two workers never serve the same key at once.

>>> queue = FairQueue(weights=(1, 2))
>>> queue.mark("low", band=0, now_ms=0), queue.mark("high", band=1, now_ms=0)
(True, True)
>>> queue.mark("low", band=0, now_ms=5)     # already waiting: it keeps its place
False
>>> queue.pop()
'high'
>>> queue.mark("high", band=1, now_ms=6)    # marked while served: it will be served again
True
>>> queue.pop(), queue.pop()                # … but not by a second worker at the same time
('low', None)
>>> queue.done("high", now_ms=7), queue.done("low", now_ms=7)
(True, False)
>>> queue.pop()
'high'
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from enum import Enum
from heapq import heappop, heappush
from typing import Any, Final, Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

# An entry is a plain list [enqueued_at, band, key], one longer if it was moved: cheaper to create
# than an object, and this is the hot path. `band` doubles as its state: a band number while
# waiting, otherwise one of these.
_SERVED: Final = -1
_DEAD: Final = -2
_STAMP: Final = 0
_BAND: Final = 1
_KEY: Final = 2
_MOVED: Final = 3

_Entry = list[Any]


class Standing(Enum):
    """The state of a key."""

    ABSENT = "absent"
    WAITING = "waiting"
    SERVED = "served"
    SERVED_AND_MARKED = "served and marked again"


class Place(NamedTuple):
    """The result of `look`; `band` and `enqueued_ms` are set only while the key waits."""

    standing: Standing
    band: int | None = None
    enqueued_ms: int | None = None


class BandState(NamedTuple):
    """The state of one band, from `bands`."""

    weight: int
    depth: int
    paused: bool
    oldest_ms: int | None


class FairQueue(Generic[K]):
    """Keys in bands, drained by deficit weighted round robin, FIFO within a band.

    In each round a band with weight w gets up to w turns, the highest band first; every band with a
    waiting key gets at least one. All calls are O(1) amortised however many keys wait. Not
    thread-safe: callers that share it must hold a lock. Times are whole milliseconds and never
    decrease.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        if not weights or any(weight < 1 for weight in weights):
            raise ValueError(f"each band needs one weight of at least 1, not {weights!r}")
        self._weights: list[int] = list(weights)
        self._credits: list[int] = list(weights)
        self._fresh: list[deque[_Entry]] = [deque() for _ in weights]
        self._dead: list[int] = [0] * len(weights)  # dead entries still in `_fresh`
        self._moved: list[_Moved] = [_Moved() for _ in weights]
        self._entries: dict[K, _Entry] = {}
        self._again: dict[K, int] = {}
        self._all: int = (1 << len(weights)) - 1
        self._open: int = self._all  # bands that are not paused
        self._filled: int = 0  # bands with a waiting key
        self._credited: int = self._all  # bands with turns left in this round
        self.rounds: int = 0

    def mark(self, key: K, band: int, now_ms: int) -> bool:
        """Make a key ready.

        Returns False if it was already waiting: it keeps its place and its age.

        A mark on a key that is being served is remembered: the key goes to the back of the band
        when done.
        """
        entry = self._entries.get(key)
        if entry is not None:
            if entry[1] >= 0 or key in self._again:
                return False
            self._again[key] = band
            return True
        self._entries[key] = entry = [now_ms, band, key]
        self._fresh[band].append(entry)
        self._filled |= 1 << band
        return True

    def pop(self) -> K | None:
        """Take the next key and hold it as served until `done`; None if no open band has a key."""
        ready = self._filled & self._open
        turn = ready & self._credited
        if not turn:
            if not ready:
                return None
            self._credits[:] = self._weights
            self._credited = self._all
            self.rounds += 1
            turn = ready
        band = turn.bit_length() - 1
        left = self._credits[band] - 1
        self._credits[band] = left
        if not left:
            self._credited &= ~(1 << band)
        if self._dead[band] or self._moved[band].live:
            entry = self._pop_by_age(band)
        else:
            fresh = self._fresh[band]
            entry = fresh.popleft()
            if not fresh:
                self._filled &= ~(1 << band)
        entry[1] = -1
        key: K = entry[2]
        return key

    def done(self, key: K, now_ms: int) -> bool:
        """End the service of a popped key. True if it was marked meanwhile and waits again."""
        entry = self._entries.pop(key, None)
        if entry is None or entry[1] != -1:
            if entry is not None:
                self._entries[key] = entry
            raise KeyError(f"{key!r} is not being served")
        if self._again:
            band = self._again.pop(key, -1)
            if band >= 0:
                return self.mark(key, band, now_ms)
        return False

    def move(self, key: K, band: int) -> bool:
        """Move a waiting key to another band, placed there by age. Returns False if not waiting."""
        entry = self._entries.get(key)
        if entry is None or entry[_BAND] < 0:
            return False
        if entry[_BAND] == band:
            return True
        self._kill(entry)
        self._entries[key] = moved = [entry[_STAMP], band, key, True]
        self._moved[band].add(moved)
        self._filled |= 1 << band
        return True

    def discard(self, key: K) -> bool:
        """Forget a waiting key, or the mark on a served one. Returns False if there is neither."""
        entry = self._entries.get(key)
        if entry is None:
            return False
        if entry[_BAND] == _SERVED:
            return self._again.pop(key, None) is not None
        self._kill(entry)
        del self._entries[key]
        return True

    def pause(self, band: int) -> None:
        """Stop serving a band; its keys stay and keep their age."""
        self._open &= ~(1 << band)

    def release(self, band: int) -> None:
        """End a pause."""
        self._open |= 1 << band

    def look(self, key: K) -> Place:
        """Return the state of a key."""
        entry = self._entries.get(key)
        if entry is None:
            return Place(Standing.ABSENT)
        if entry[_BAND] == _SERVED:
            again = key in self._again
            return Place(Standing.SERVED_AND_MARKED if again else Standing.SERVED)
        return Place(Standing.WAITING, entry[_BAND], entry[_STAMP])

    def bands(self) -> list[BandState]:
        """Every band's weight, depth, pause and oldest enqueue time, lowest band first."""
        return [
            BandState(
                weight,
                self.depth(band),
                not self._open >> band & 1,
                self._oldest(band)[_STAMP] if self.depth(band) else None,
            )
            for band, weight in enumerate(self._weights)
        ]

    def depth(self, band: int) -> int:
        """How many keys wait in a band."""
        return len(self._fresh[band]) - self._dead[band] + self._moved[band].live

    def waiting(self, band: int) -> Iterator[K]:
        """The keys that wait in a band, in no particular order."""
        for entry in (*self._fresh[band], *self._moved[band]):
            if entry[_BAND] == band:
                yield entry[_KEY]

    def has_ready(self) -> bool:
        """Whether `pop` would return a key."""
        return bool(self._filled & self._open)

    def __len__(self) -> int:
        """How many keys are waiting."""
        return sum(self.depth(band) for band in range(len(self._weights)))

    def __bool__(self) -> bool:
        return self._filled != 0

    def _kill(self, entry: _Entry) -> None:
        band = entry[_BAND]
        entry[_BAND] = _DEAD
        if len(entry) > _MOVED:
            self._moved[band].live -= 1
        else:
            self._dead[band] += 1
        self._close_if_empty(band)

    def _close_if_empty(self, band: int) -> None:
        if not self.depth(band):
            self._filled &= ~(1 << band)
            self._fresh[band].clear()
            self._dead[band] = 0
            self._moved[band].clear()

    def _pop_by_age(self, band: int) -> _Entry:
        entry = self._oldest(band)
        if len(entry) > _MOVED:
            self._moved[band].drop_first()
        else:
            self._fresh[band].popleft()
        self._close_if_empty(band)
        return entry

    def _oldest(self, band: int) -> _Entry:
        """The first live entry of a non-empty band, after dropping the dead ones before it."""
        fresh = self._fresh[band]
        while fresh and fresh[0][_BAND] != band:
            fresh.popleft()
            self._dead[band] -= 1
        moved = self._moved[band].first(band)
        if moved is None:
            return fresh[0]
        return moved if not fresh or moved[_STAMP] <= fresh[0][_STAMP] else fresh[0]


class _Moved:
    """The keys moved into a band, in order of age: one bucket per millisecond.

    The heap holds timestamps, not keys, so its size is bounded by the time span of the waiting
    keys.
    """

    def __init__(self) -> None:
        self.live: int = 0
        self._heap: list[int] = []
        self._buckets: dict[int, deque[_Entry]] = {}

    def add(self, entry: _Entry) -> None:
        stamp: int = entry[_STAMP]
        bucket = self._buckets.get(stamp)
        if bucket is None:
            self._buckets[stamp] = bucket = deque()
            heappush(self._heap, stamp)
        bucket.append(entry)
        self.live += 1

    def first(self, band: int) -> _Entry | None:
        """The oldest live entry, after dropping dead ones before it."""
        while self._heap:
            bucket = self._buckets[self._heap[0]]
            while bucket and bucket[0][_BAND] != band:
                bucket.popleft()
            if bucket:
                return bucket[0]
            del self._buckets[heappop(self._heap)]
        return None

    def drop_first(self) -> None:
        self._buckets[self._heap[0]].popleft()
        self.live -= 1

    def clear(self) -> None:
        self._heap.clear()
        self._buckets.clear()

    def __iter__(self) -> Iterator[_Entry]:
        for bucket in self._buckets.values():
            yield from bucket
