"""Answers to keyed writes, kept for a window, so that a retry gets the original answer.

The answers are in the same entries as the records they guard, so replay restores them.
"""

from __future__ import annotations

from typing import NamedTuple


class Answer(NamedTuple):
    """The answer to a keyed write: its seqs, and the head at that time."""

    first_seq: int
    last_seq: int
    at_ms: int


class Answers:
    """The answers of one topic by key, oldest first.

    An answer is staged from the decision of its write until that is applied or abandoned. Meanwhile
    a second write with the same key gets the same seqs and waits for the same commit.
    """

    __slots__ = ("_kept", "_staged")

    def __init__(self, kept: dict[str, Answer] | None = None) -> None:
        self._kept = kept or {}
        self._staged: dict[str, Answer] = {}

    def find(self, key: str, now_ms: int, window_ms: int) -> Answer | None:
        """The answer to a retry within its window; the last millisecond counts."""
        answer = self._staged.get(key) or self._kept.get(key)
        if answer is None or now_ms - answer.at_ms > window_ms:
            return None
        return answer

    def stage(self, key: str, answer: Answer) -> None:
        """Record the answer of a write that was submitted to the log."""
        self._staged[key] = answer

    def abandon(self) -> None:
        """Forget the staged answers: their writes did not reach the log."""
        self._staged.clear()

    def apply(self, key: str, answer: Answer, window_ms: int) -> None:
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

    def kept(self) -> dict[str, Answer]:
        """Every applied answer still kept, oldest first."""
        return dict(self._kept)
