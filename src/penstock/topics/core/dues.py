"""Dates by which time changes something: which topics of a partition have one, and when.

A date may be too early, never too late. So what is looked at by date is checked again, and the
result is the same as that of looking at everything.

>>> dues = Dues()
>>> dues.note("a", 10); dues.note("b", 20); dues.note("a", 15)
>>> list(dues.upto(10)), dues.take(20), dues.take(20)
(['a'], ['a', 'b'], [])
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TypeVar

_T = TypeVar("_T")


class Dues:
    """The earliest date of each topic that has one."""

    def __init__(self) -> None:
        self._dates: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []  # some are stale: an earlier date has replaced them

    def note(self, name: str, due_ms: int | None) -> None:
        """Something of a topic is due at this time or later; an earlier date remains."""
        if due_ms is None:
            return
        known_ms = self._dates.get(name)
        if known_ms is None or due_ms < known_ms:
            self._dates[name] = due_ms
            heappush(self._heap, (due_ms, name))

    def upto(self, now_ms: int) -> Iterator[str]:
        """The topics whose date has come, in any order. Changes nothing."""
        for due_ms, name in heap_before(self._heap, now_ms + 1):
            if self._dates.get(name) == due_ms:
                yield name

    def take(self, now_ms: int) -> list[str]:
        """The topics whose date has come; each has no date until it is noted again."""
        taken = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, name = heappop(self._heap)
            if self._dates.get(name) == due_ms:
                del self._dates[name]
                taken.append(name)
        return taken


def heap_before(heap: list[tuple[int, _T]], before_ms: int) -> Iterator[tuple[int, _T]]:
    """Everything before a time in a heap, in any order; the heap is left as it is."""
    places = [0]
    while places:
        place = places.pop()
        if place < len(heap) and heap[place][0] < before_ms:
            yield heap[place]
            places += (2 * place + 1, 2 * place + 2)
