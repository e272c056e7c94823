"""A fair queue whose keys rise in priority while they wait, so that no key starves.

>>> queue = AgeingQueue(lambda topic: Urgency(priority=0))
>>> queue.mark("t", now_ms=0)
True
>>> queue.place("t", now_ms=0).band
1
>>> for now_ms in range(0, 7_501, 50):
...     _ = queue.tick(now_ms)
>>> queue.place("t", now_ms=7_500).band       # 0 + 100 a second reaches 750
4
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from penstock.flow.fairqueue import BandState, FairQueue, Standing
from penstock.flow.priority import (
    AGEING_MS_MAX,
    TICK_MS,
    TOPIC_BANDS,
    Bands,
    Urgency,
    ageing,
    base_priority,
    ms_until,
)

K = TypeVar("K", bound=Hashable)

_LOWEST: Final = 0


@dataclass(frozen=True, slots=True)
class WaitingPlace:
    """A key's position and why it has not been served yet."""

    standing: Standing
    band: int | None
    waited_ms: int
    effective_priority: int
    reason: str


class AgeingQueue(Generic[K]):
    """`FairQueue` with bands by effective priority, an ageing tick and deferral.

    `urgency_of` is called when a key is marked and when it may be due to change band; its result is
    never cached. `tick` is due every 50 ms. Its cost is proportional to the keys that were marked
    since the last tick or may change band now, not to all waiting keys.
    """

    def __init__(self, urgency_of: Callable[[K], Urgency], *, bands: Bands = TOPIC_BANDS) -> None:
        self._urgency_of = urgency_of
        self._cut = bands
        self._queue: FairQueue[K] = FairQueue(bands.weights)
        self._young: list[K] = []  # marked since the last tick
        self._older: list[K] = []  # marked in the tick before
        self._due: dict[int, list[K]] = {}  # tick number -> keys to check then
        self._watched: dict[K, int] = {}  # key -> the only tick number that counts for it
        self._deferring = False

    def mark(self, key: K, now_ms: int) -> bool:
        """Make a key ready in the band of its effective priority.

        Returns False if it was already waiting: it keeps its place and keeps ageing.
        """
        urgency = self._urgency_of(key)
        band = self._cut.of(base_priority(urgency, now_ms), 0, lowered=urgency.lowered)
        if self._queue.mark(key, band, now_ms):
            self._young.append(key)
            return True
        return False

    def pop(self) -> K | None:
        """Take the next key and hold it as served until `done`."""
        return self._queue.pop()

    def done(self, key: K, now_ms: int) -> bool:
        """End a service. Returns True if the key was marked meanwhile and waits again."""
        if self._queue.done(key, now_ms):
            self._young.append(key)
            return True
        return False

    def discard(self, key: K) -> bool:
        """Forget a waiting key."""
        return self._queue.discard(key)

    def reconsider(self, key: K, now_ms: int) -> None:
        """Move a key to its current band after its priority changed or it was consumed."""
        place = self._queue.look(key)
        if place.band is None or place.enqueued_ms is None:
            self._watched.pop(key, None)
            return
        urgency = self._urgency_of(key)
        if self._deferring and place.band == _LOWEST and base_priority(urgency, now_ms) < 0:
            return  # `resume` checks it
        waited_ms = now_ms - place.enqueued_ms
        priority = base_priority(urgency, now_ms) + ageing(waited_ms)
        band = self._cut.of(priority, waited_ms, lowered=urgency.lowered)
        if band != place.band:
            self._queue.move(key, band)
        if band < self._cut.top:
            climb_ms = ms_until(self._cut.next_floor(band, lowered=urgency.lowered), priority)
            self._watch(key, now_ms, climb_ms, waited_ms)

    def tick(self, now_ms: int) -> int:
        """Move keys up as they age. Returns how many were checked."""
        number = now_ms // TICK_MS
        looked = self._older
        self._older, self._young = self._young, []
        for past in [due for due in self._due if due <= number]:
            looked += [key for key in self._due.pop(past) if self._watched.get(key) == past]
        for key in looked:
            self.reconsider(key, now_ms)
        return len(looked)

    def defer(self) -> None:
        """Stop serving keys of negative effective priority. They stay queued and keep ageing."""
        self._deferring = True
        self._queue.pause(_LOWEST)

    def resume(self, now_ms: int) -> None:
        """End a deferral: each key enters the band it has aged into."""
        self._deferring = False
        for key in list(self._queue.waiting(_LOWEST)):
            self.reconsider(key, now_ms)
        self._queue.release(_LOWEST)

    @property
    def deferring(self) -> bool:
        """Whether keys of negative effective priority are held back."""
        return self._deferring

    def place(self, key: K, now_ms: int) -> WaitingPlace:
        """Describe a key's position and why it has not been served yet."""
        place = self._queue.look(key)
        waited_ms = now_ms - place.enqueued_ms if place.enqueued_ms is not None else 0
        priority = base_priority(self._urgency_of(key), now_ms) + ageing(waited_ms)
        return WaitingPlace(
            place.standing,
            place.band,
            waited_ms,
            priority,
            self._reason(place.standing, place.band),
        )

    def bands(self) -> list[BandState]:
        """Every band's weight, depth, pause and oldest key, lowest first."""
        return self._queue.bands()

    def has_ready(self) -> bool:
        """Whether `pop` would return a key."""
        return self._queue.has_ready()

    def __len__(self) -> int:
        """How many keys are waiting."""
        return len(self._queue)

    def _watch(self, key: K, now_ms: int, climb_ms: int, waited_ms: int) -> None:
        """Check the key again when ageing may have lifted it over the next floor.

        Rounds down to a tick: recency may delay a key, but the full ageing time must not be
        exceeded.
        """
        at_ms = now_ms + min(climb_ms, AGEING_MS_MAX - TICK_MS - waited_ms)
        number = max(now_ms // TICK_MS + 1, at_ms // TICK_MS)
        if self._watched.get(key) != number:
            self._watched[key] = number
            self._due.setdefault(number, []).append(key)

    def _reason(self, standing: Standing, band: int | None) -> str:
        if band is None:
            return standing.value
        if band == _LOWEST and self._deferring:
            return "deferred by the governor until pressure falls"
        ahead = sum(state.depth for state in self._queue.bands()[band:]) - 1
        return f"waiting in band {band} with at most {ahead} keys of its band or higher before it"
