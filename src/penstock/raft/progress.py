"""What a leader knows of one follower: how far it is, and what is on its way to it.

*probe*: the leader does not know where the logs agree and sends one message at a time. *replicate*:
it sends ahead, up to a window of messages and bytes. *snapshot*: it waits until a snapshot is in.
The window of bytes follows the round trip: an answer that takes long halves it, and a window that
was full and answered in time grows.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import msgspec

from penstock.kernel.units import KIB, MIB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a group. A tick is 100 ms."""

    election_ticks_min: int = 10
    election_ticks_max: int = 20
    message_bytes: int = MIB
    """Entries in one message; a larger entry goes alone."""
    inflight_messages: int = 256
    inflight_bytes: int = 8 * MIB
    inflight_bytes_min: int = 256 * KIB
    inflight_bytes_max: int = 32 * MIB
    round_trip_ticks: int = 2
    """An answer that takes longer halves the window of bytes."""
    uncommitted_bytes: int = 64 * MIB
    held_bytes: int = 64 * MIB
    """Applied entries that are kept in memory for followers."""
    saturated_ticks: int = 10
    """How long a follower whose log is full gets no entries."""
    near_bytes: int = MIB
    """A member at most this far behind may be promoted, or take over."""


class Stage(Enum):
    """What the leader sends to a follower."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One follower as its leader sees it."""

    def __init__(self, next_index: int, limits: Limits) -> None:
        self.match = 0
        self.next = next_index
        self.stage = Stage.PROBE
        self.heard = True  # since the last check of the quorum
        self.read_round = 0
        self.sent_commit = 0
        self.snapshot = 0  # the index of the snapshot on its way
        self.waiting = False  # for an answer to a probe
        self.fetching = False  # entries from the store
        self.paused_until = 0  # the tick at which a saturated follower gets entries again
        self.window_bytes = limits.inflight_bytes
        self._limits = limits
        self._flight: deque[tuple[int, int, int]] = deque()  # last index, bytes, tick
        self._bytes = 0
        self._was_full = False
        self._turn_index = 0

    @property
    def in_flight(self) -> tuple[int, int]:
        """Messages and bytes on their way."""
        return len(self._flight), self._bytes

    def may_send(self, tick: int) -> bool:
        """Whether entries may be sent now."""
        if self.waiting or self.fetching or tick < self.paused_until:
            return False
        if self.stage is Stage.SNAPSHOT:
            return False
        if self.stage is Stage.PROBE:
            return True
        if self._bytes >= self.window_bytes:
            self._was_full = True
            return False
        return len(self._flight) < self._limits.inflight_messages

    def sent(self, last_index: int, size: int, tick: int) -> None:
        """Entries up to `last_index` are on their way."""
        if self.stage is Stage.PROBE:
            self.waiting = True
            return
        self.next = last_index + 1
        self._flight.append((last_index, size, tick))
        self._bytes += size

    def confirmed(self, index: int, tick: int) -> bool:
        """The follower has synced all up to `index`; whether that is news."""
        self.waiting = False
        self._arrived(index, tick)
        if self.stage is Stage.SNAPSHOT and index >= self.snapshot:
            self.probe(index + 1)
        if index < self.match:
            return False
        if self.stage is Stage.PROBE:
            self.stage, self.next = Stage.REPLICATE, index + 1
        self.next = max(self.next, index + 1)
        is_news, self.match = index > self.match, index
        return is_news

    def refused(self, index: int, place: int) -> bool:
        """The follower lacks the entry at `index`; try after `place`. False: an old refusal."""
        if self.stage is Stage.REPLICATE:
            if index <= self.match:
                return False
            self.probe(self.match + 1)
            return True
        if self.stage is not Stage.PROBE or index != self.next - 1:
            return False
        self.next = max(min(index, place + 1), self.match + 1)
        self.waiting = False
        return True

    def probe(self, next_index: int) -> None:
        """Look again for the place where the logs agree, from here on."""
        self.stage, self.next = Stage.PROBE, max(next_index, self.match + 1)
        self.waiting, self.snapshot = False, 0
        self._flight.clear()
        self._bytes, self._was_full = 0, False

    def send_snapshot(self, index: int) -> None:
        """A snapshot is on its way."""
        self.probe(self.next)
        self.stage, self.snapshot = Stage.SNAPSHOT, index

    def saturated(self, index: int, tick: int) -> None:
        """The follower takes no entries for a while; it has synced all up to `index`."""
        self.match = max(self.match, index)
        self.probe(self.match + 1)
        self.paused_until = tick + self._limits.saturated_ticks

    def _arrived(self, index: int, tick: int) -> None:
        flight, slow = self._flight, False
        while flight and flight[0][0] <= index:
            _, size, sent_tick = flight.popleft()
            self._bytes -= size
            slow = slow or tick - sent_tick > self._limits.round_trip_ticks
        # At most one step for each window that was sent, or one late turn would count many times.
        if (slow or self._was_full) and index >= self._turn_index:
            self._adjust(slow)
            self._turn_index = self.next

    def _adjust(self, slow: bool) -> None:
        limits = self._limits
        if slow:
            self.window_bytes = max(limits.inflight_bytes_min, self.window_bytes // 2)
        else:
            grown = self.window_bytes + limits.inflight_bytes_min
            self.window_bytes = min(limits.inflight_bytes_max, grown)
        self._was_full = False
