"""Answers to keyed writes, kept for a window, so that a retry gets what the first try got.

The answers live in the same entries as the records they guard, so replay brings them back.
"""

from __future__ import annotations

from typing import NamedTuple


class Answer(NamedTuple):
    """What a keyed write was told: its seqs, and the head at that time."""

    first_seq: int
    last_seq: int
    at_ms: int


class Answers:
    """The answers of one topic by key, oldest first.

    An answer is staged from when its write is decided until that is applied or abandoned: a second
    write of the same key meanwhile gets the same seqs, and waits for the same commit.
    """

    __slots__ = ("_kept", "_staged")

    def __init__(self, kept: dict[str, Answer] | None = None) -> None:
        self._kept = kept or {}
        self._staged: dict[str, Answer] = {}

    def find(self, key: str, now_ms: int, window_ms: int) -> Answer | None:
        """The answer to a retry, while its window lasts; the last millisecond counts."""
        answer = self._staged.get(key) or self._kept.get(key)
        if answer is None or now_ms - answer.at_ms > window_ms:
            return None
        return answer

    def stage(self, key: str, answer: Answer) -> None:
        """The write that will get this answer is on its way to the log."""
        self._staged[key] = answer

    def abandon(self) -> None:
        """No write that was on its way has reached the log."""
        self._staged.clear()

    def apply(self, key: str, answer: Answer, window_ms: int) -> None:
        """Keep the answer of a write that is durable; drop those whose window is over."""
        if self._staged.get(key) == answer:
            del self._staged[key]
        self._kept.pop(key, None)  # so that the order stays that of time
        self._kept[key] = answer
        over = []
        for old, past in self._kept.items():
            if answer.at_ms - past.at_ms <= window_ms:
                break
            over.append(old)
        for old in over:
            del self._kept[old]

    def kept(self) -> dict[str, Answer]:
        """Every answer that was applied and not forgotten, oldest first."""
        return dict(self._kept)
