"""What a topic knows besides its records: what it lost, and the answers to keyed writes.

Answers are kept for a window, so that a retry gets the original one. They are in the same entries
as the records they guard, so replay restores them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.protocol.config import TopicConfig
from penstock.topics.core.entries import FeedMark
from penstock.topics.core.record_row import Slot

HOLES_MAX: Final = 1_000
"""With more holes than this in a topic, the oldest are no longer reported."""


class Floors(NamedTuple):
    """The highest seq lost by each cause. All except `deleted` are reported to readers.

    `lost` records were only in memory and evicted by a restart. `source_trimmed` occurs only in
    snapshots from before holes had a position.
    """

    evicted: int = 0
    expired: int = 0
    deleted: int = 0
    source_trimmed: int = 0
    lost: int = 0

    @property
    def involuntary(self) -> int:
        """The highest seq that was lost without an explicit delete."""
        return max(self.evicted, self.expired, self.source_trimmed)


class Hole(NamedTuple):
    """Seqs in the middle of a topic that stand for those a router's source evicted too early."""

    first_seq: int
    last_seq: int


class KeyedAnswer(NamedTuple):
    """The answer to a keyed write: its seqs, and the head at that time."""

    first_seq: int
    last_seq: int
    at_ms: int


class KeyedAnswers:
    """The answers of one topic by key, oldest first.

    An answer is staged from the decision of its write until that is applied or abandoned. Meanwhile
    a second write with the same key gets the same seqs and waits for the same commit.
    """

    __slots__ = ("_kept", "_staged")

    def __init__(self, kept: dict[str, KeyedAnswer] | None = None) -> None:
        self._kept = kept or {}
        self._staged: dict[str, KeyedAnswer] = {}

    def find(self, key: str, now_ms: int, window_ms: int) -> KeyedAnswer | None:
        """The answer to a retry within its window; the last millisecond counts."""
        answer = self._staged.get(key) or self._kept.get(key)
        if answer is None or now_ms - answer.at_ms > window_ms:
            return None
        return answer

    def stage(self, key: str, answer: KeyedAnswer) -> None:
        """Record the answer of a write that was submitted to the log."""
        self._staged[key] = answer

    def abandon(self) -> None:
        """Forget the staged answers: their writes did not reach the log."""
        self._staged.clear()

    def apply(self, key: str, answer: KeyedAnswer, window_ms: int) -> None:
        """Keep the answer of a durable write; drop answers whose window is over."""
        if self._staged.get(key) == answer:
            del self._staged[key]
        self._kept.pop(key, None)  # keeps the order by time
        self._kept[key] = answer
        over = []
        for old, past in self._kept.items():
            if answer.at_ms - past.at_ms <= window_ms:
                break
            over.append(old)
        for old in over:
            del self._kept[old]

    def kept(self) -> dict[str, KeyedAnswer]:
        """Every applied answer still kept, oldest first."""
        return dict(self._kept)


class TopicSnapshot(NamedTuple):
    """A topic as plain values: equal states behave identically."""

    name: str
    config: TopicConfig
    epoch: int
    now_ms: int
    last_write_ms: int | None
    floors: Floors
    answers: tuple[tuple[str, KeyedAnswer], ...]
    fed: tuple[FeedMark, ...]
    holes: tuple[Hole, ...]
    head_seq: int
    reserved_seq: int
    live: tuple[Slot, ...]
