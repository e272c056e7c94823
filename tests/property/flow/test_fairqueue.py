"""The fair queue against a plain model: lists, searched from the front."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.flow.fairqueue import FairQueue, Standing

WEIGHTS = (1, 1, 2, 4, 8)
BANDS = st.integers(0, 4)
KEYS = st.integers(0, 12)


class FairQueueMachine(RuleBasedStateMachine):
    """Every rule of the queue restated with sorted lists and counters."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue(WEIGHTS)
        self.now_ms = 0
        self.order = 0
        # key -> [band, enqueued_ms, arrival in that band, was moved]
        self.waiting: dict[int, tuple[int, int, int, bool]] = {}
        self.served: dict[int, int | None] = {}
        self.paused: set[int] = set()
        self.credits = list(WEIGHTS)

    @rule(key=KEYS, band=BANDS, pass_ms=st.integers(0, 3))
    def mark(self, key: int, band: int, pass_ms: int) -> None:
        self.now_ms += pass_ms
        fresh = key not in self.waiting and self.served.get(key) is None
        assert self.queue.mark(key, band, self.now_ms) is fresh
        if key in self.served:
            if self.served[key] is None:
                self.served[key] = band
        elif fresh:
            self._enter(key, band, self.now_ms, moved=False)

    @rule()
    def pop(self) -> None:
        ready = {band for band, *_ in self.waiting.values()} - self.paused
        if not ready:
            assert self.queue.pop() is None
            return
        if not any(self.credits[band] for band in ready):
            self.credits = list(WEIGHTS)
        band = max(band for band in ready if self.credits[band])
        self.credits[band] -= 1
        in_band = [key for key in self.waiting if self.waiting[key][0] == band]
        key = min(
            in_band, key=lambda k: (self.waiting[k][1], not self.waiting[k][3], self.waiting[k][2])
        )
        assert self.queue.pop() == key
        del self.waiting[key]
        self.served[key] = None

    @precondition(lambda self: self.served)
    @rule(data=st.data(), pass_ms=st.integers(0, 3))
    def done(self, data: st.DataObject, pass_ms: int) -> None:
        self.now_ms += pass_ms
        key = data.draw(st.sampled_from(sorted(self.served)))
        band = self.served.pop(key)
        assert self.queue.done(key, self.now_ms) is (band is not None)
        if band is not None:
            self._enter(key, band, self.now_ms, moved=False)

    @rule(key=KEYS, band=BANDS)
    def move(self, key: int, band: int) -> None:
        assert self.queue.move(key, band) is (key in self.waiting)
        if key in self.waiting and self.waiting[key][0] != band:
            self._enter(key, band, self.waiting[key][1], moved=True)

    @rule(key=KEYS)
    def discard(self, key: int) -> None:
        known = key in self.waiting or self.served.get(key) is not None
        assert self.queue.discard(key) is known
        self.waiting.pop(key, None)
        if key in self.served:
            self.served[key] = None

    @rule(band=BANDS)
    def pause_or_release(self, band: int) -> None:
        if band in self.paused:
            self.queue.release(band)
        else:
            self.queue.pause(band)
        self.paused ^= {band}

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.queue) == len(self.waiting)
        for band, state in enumerate(self.queue.bands()):
            stamps = [stamp for b, stamp, *_ in self.waiting.values() if b == band]
            assert state == (
                WEIGHTS[band],
                len(stamps),
                band in self.paused,
                min(stamps, default=None),
            )
            assert sorted(self.queue.waiting(band)) == sorted(
                key for key in self.waiting if self.waiting[key][0] == band
            )

    @invariant()
    def places_agree(self) -> None:
        for key in range(13):
            place = self.queue.look(key)
            if key in self.waiting:
                assert place == (Standing.WAITING, *self.waiting[key][:2])
            elif key in self.served:
                again = self.served[key] is not None
                assert place.standing is (Standing.SERVED_AND_MARKED if again else Standing.SERVED)
            else:
                assert place.standing is Standing.ABSENT

    def _enter(self, key: int, band: int, stamp_ms: int, *, moved: bool) -> None:
        self.order += 1
        self.waiting[key] = (band, stamp_ms, self.order, moved)


TestFairQueue = FairQueueMachine.TestCase
