"""Which reads of a partition one store call can serve.

Requests that start where the one before ends, or at the same entry, become one range; each still
gets exactly what its own limits allow.

>>> shared = coalesce([ReadRange(1, 10, 1_000), ReadRange(11, 5, 1_000), ReadRange(40, 1, 1_000)])
>>> [(merged.first_index, merged.max_entries, len(asked)) for merged, asked in shared]
[(1, 15, 2), (40, 1, 1)]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.log.store import Entry


class ReadRange(NamedTuple):
    """Entries from `first_index` on, at least one if there is one, within both limits."""

    first_index: int
    max_entries: int
    max_bytes: int

    @property
    def end_index(self) -> int:
        """The index after the last one wanted."""
        return self.first_index + self.max_entries


def coalesce(ranges: Sequence[ReadRange]) -> list[tuple[ReadRange, list[int]]]:
    """Merged ranges, each with the positions of the requests it serves, in order."""
    merged: list[tuple[ReadRange, list[int]]] = []
    for position, wanted in enumerate(ranges):
        if merged:
            last, served = merged[-1]
            same = wanted.first_index == last.first_index
            if same or wanted.first_index == last.end_index:
                entries = max(last.end_index, wanted.end_index) - last.first_index
                size = (
                    max(last.max_bytes, wanted.max_bytes)
                    if same
                    else (last.max_bytes + wanted.max_bytes)
                )
                served.append(position)
                merged[-1] = (ReadRange(last.first_index, entries, size), served)
                continue
        merged.append((wanted, [position]))
    return merged


def cut(entries: Sequence[Entry], wanted: ReadRange) -> list[Entry] | None:
    """What a request gets of a merged range; None if the range ended too early to tell."""
    if not entries:
        return []
    skip = wanted.first_index - entries[0].index
    if skip >= len(entries):
        return None
    taken: list[Entry] = []
    room = wanted.max_bytes
    for entry in entries[skip : skip + wanted.max_entries]:
        room -= len(entry.payload)
        if room < 0 and taken:
            return taken
        taken.append(entry)
    ended_early = len(taken) < wanted.max_entries and room > 0
    return None if ended_early and skip else taken
