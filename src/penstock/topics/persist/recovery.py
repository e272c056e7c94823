"""What a node takes in when it starts, and what it leaves when it ends well.

Each partition begins with its newest snapshot that is whole, then takes the log after it. After a
crash of the machine, seqs may have been given out whose records are lost: they are passed over, so
that none is given out again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from penstock.kernel.errors import Corrupt, Rejected
from penstock.log.journal import LocalJournal
from penstock.log.store import Bounds
from penstock.topics.core.codec import decode_entries
from penstock.topics.core.entries import Advanced, Skipped
from penstock.topics.core.partition import Change, Entry
from penstock.topics.core.registry import Registry
from penstock.topics.engine.writers import UNSYNCED_SEQS_MAX, PartitionWriter
from penstock.topics.persist.data_dir import (
    Boot,
    ColdFiles,
    File,
    FoundSnapshot,
    Layout,
    SnapshotFiles,
    check_end,
    read_boot,
    read_layout,
    summary_of,
    take_cold_dir,
    this_boot_id,
    write_boot,
    write_layout,
)
from penstock.topics.persist.snapshot import Restoring, SnapshotReader, decode_kept
from penstock.topics.persist.spill import HotLimit

_LOGGER: Final = logging.getLogger("penstock.topics")
_SLICE_S: Final = 0.02
_SNAPSHOT_UNIT_BYTES: Final = 1_024
"""So many bytes of a snapshot count as much as one entry of the log."""
LAYOUT_VERSION: Final = 1


class Recovery:
    """Takes in every partition on the loop, in slices, and tells how far it is."""

    def __init__(
        self,
        journal: LocalJournal,
        writers: Sequence[PartitionWriter],
        registry: Registry,
        *,
        directory: Path | None = None,
        snapshots: SnapshotFiles | None = None,
        cold: ColdFiles | None = None,
        hot: HotLimit | None = None,
    ) -> None:
        self._journal = journal
        self._writers = writers
        self._registry = registry
        self._directory = directory
        self._snapshots = snapshots
        self._cold = cold
        self._hot = hot
        self._total = 0
        self._done = 0
        self._began_s = 0.0
        self.indexes: dict[int, int] = {}  # the snapshot that each partition began with
        self.sizes: dict[int, int] = {}
        self.log_bytes = 0
        self.damaged_snapshots: list[str] = []  # passed over
        self.missing_segments: list[str] = []  # of cold records: reads of these fail
        self._boot: Boot | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether a file was missing or damaged; then nothing is removed."""
        return bool(self.damaged_snapshots or self.missing_segments)

    @property
    def progress(self) -> float:
        """How much of snapshots and log has been taken in, 0 to 1."""
        return min(self._done / self._total, 1.0) if self._total else 1.0

    async def run(self) -> None:
        """Take in everything."""
        self._check_directory()
        bounds = [self._journal.bounds(writer.number) for writer in self._writers]
        for writer, bound in zip(self._writers, bounds, strict=True):
            check_end(self._boot, writer.number, bound)
        self._total = 1 + sum(bound.last_index - bound.boundary_index for bound in bounds)
        chosen: list[FoundSnapshot | None] = []
        for writer, bound in zip(self._writers, bounds, strict=True):
            found = await self._choose(writer.number, bound)
            chosen.append(found)
            if found is not None:
                self.sizes[writer.number] = found.path.stat().st_size
                self.indexes[writer.number] = found.index
                self._total += self.sizes[writer.number] // _SNAPSHOT_UNIT_BYTES
                self._total -= max(found.index - bound.boundary_index, 0)
        was_enabled = gc.isenabled()
        gc.disable()  # what is taken in stays: looking through it again and again finds nothing
        try:
            for writer, bound, found in zip(self._writers, bounds, chosen, strict=True):
                await self._restore(writer, bound, found)
        finally:
            if was_enabled:
                gc.enable()
        for topic in self._registry.topics.values():
            topic.lose_unlogged()
        await self._sweep()
        self._done = self._total

    async def settle(self, boot_id: str | None) -> None:
        """After a crash of the machine, pass over seqs that may have been given out and lost.

        Leases that the log has, though they need not survive any more, are over.
        """
        for writer in self._writers:
            for queue in writer.partition.queues.values():
                if not queue.topic.config.leases_durable:
                    queue.forget_leases()
        if self._directory is None:
            return
        boot_id = boot_id or this_boot_id()
        last = self._boot
        is_new = last is None and not self._registry.topics
        has_lost = last is None or not (
            last.clean or (boot_id is not None and last.boot_id == boot_id)
        )
        if has_lost and not is_new:
            await self._skip()
        indexes = last.indexes if last is not None else []
        write_boot(self._directory, Boot(boot_id, clean=False, indexes=indexes))

    async def _skip(self) -> None:
        for writer in self._writers:
            entries: tuple[Entry, ...] = tuple(
                Skipped(name, topic.head_seq + UNSYNCED_SEQS_MAX)
                for name, topic in writer.partition.topics.items()
                if topic.config.durability in ("memory", "disk")
            )
            if entries:
                _LOGGER.warning(
                    "the machine crashed: %d topics of partition %d pass over %d seqs",
                    len(entries),
                    writer.number,
                    UNSYNCED_SEQS_MAX,
                )
                await writer.commit(Change(entries, entries), sync=True)

    def _check_directory(self) -> None:
        """Refuse a directory that was made for another store or number of partitions."""
        if self._directory is None:
            return
        kind = self._journal.store.status().kind
        made = Layout(LAYOUT_VERSION, kind, len(self._writers), mixes_epochs=True)
        found = read_layout(self._directory)
        if found is None:
            found = made
            write_layout(self._directory, made)
        if (found.version, found.store, found.partitions) != (
            made.version,
            made.store,
            made.partitions,
        ):
            raise Rejected(
                f"expected {self._directory} to be used as it was made, with store "
                f"{found.store!r}, {found.partitions} partitions and layout {found.version}, found "
                f"store {made.store!r}, {made.partitions} partitions and layout {made.version}"
            )
        if self._cold is not None and self._cold.path.parent != self._directory:
            take_cold_dir(self._cold.path, found)
        self._registry.identity = found.identity
        self._boot = read_boot(self._directory)

    async def _choose(self, number: int, bounds: Bounds) -> FoundSnapshot | None:
        """The snapshot that a partition begins with, or None to begin with nothing.

        One that is damaged is passed over, loudly: an older one and the log after it say the same.
        """
        if self._snapshots is None:
            return None
        choose = partial(self._snapshots.choose, number, bounds)
        loop = asyncio.get_running_loop()
        found, damaged = await loop.run_in_executor(None, choose)
        for path, reason in damaged:
            self.damaged_snapshots.append(str(path))
            _LOGGER.error(
                "snapshot %s is damaged (%s); %s is used in its place, and the log after it",
                path,
                reason,
                "the whole log" if found is None else found.path.name,
            )
        if found is not None and self._cold is not None:
            await loop.run_in_executor(None, self._look_for_segments, found)
        return found

    def _look_for_segments(self, found: FoundSnapshot) -> None:
        """Tell of cold segments that are gone; only reads of their records fail."""
        assert self._cold is not None
        for name in self._cold.missing(summary_of(found.path).files):
            self.missing_segments.append(name)
            _LOGGER.error(
                "cold segment %s is missing: reads of its records fail", self._cold.path / name
            )

    async def _restore(
        self, writer: PartitionWriter, bounds: Bounds, found: FoundSnapshot | None
    ) -> None:
        self._began_s = time.monotonic()
        index = bounds.boundary_index
        if found is not None:
            index = found.index
            await self._take_snapshot(writer, found)
        writer.executor.start()
        writer.index = bounds.last_index
        replay = writer.partition.apply_all
        before = self._done
        for entry in self._journal.entries(writer.number, index + 1):
            payload = entry.payload
            replay(decode_entries(payload))
            self.log_bytes += len(payload)
            self._done = before + entry.index - index
            if time.monotonic() - self._began_s > _SLICE_S:
                await self._breathe()
            if self._hot is not None and self._registry.hot_bytes > self._registry.hot_bytes_max:
                await self._hot.enforce()
        writer.executor.restored()

    async def _take_snapshot(self, writer: PartitionWriter, found: FoundSnapshot) -> None:
        before = self._done
        with File(found.path) as file:
            reader = SnapshotReader(found.path.name, file.read)
            restoring = Restoring(writer.partition)
            for payload in reader.payloads():
                restoring.take(decode_kept(reader.name, payload))
                self._done = before + reader.offset // _SNAPSHOT_UNIT_BYTES
                if (
                    self._hot is not None
                    and self._registry.hot_bytes > self._registry.hot_bytes_max
                ):
                    await self._hot.enforce()
                if time.monotonic() - self._began_s > _SLICE_S:
                    await self._breathe()

    async def _breathe(self) -> None:
        await asyncio.sleep(0)
        self._began_s = time.monotonic()

    async def _sweep(self) -> None:
        """Remove what the last life left half done. Nothing is removed while something is wrong."""
        if self._snapshots is None or self._cold is None or self.is_damaged:
            return
        snapshots, cold = self._snapshots, self._cold

        def sweep() -> None:
            snapshots.sweep()
            cold.sweep(snapshots.files_named())

        try:
            await asyncio.get_running_loop().run_in_executor(None, sweep)
        except (OSError, Corrupt) as error:
            _LOGGER.warning("leftovers could not be removed: %s", error)


async def close_clean(
    writers: Sequence[PartitionWriter],
    journal: LocalJournal,
    boot_id: str | None,
    directory: Path | None = None,
) -> None:
    """Log the heads that only memory knows, sync everything, and say that the end was clean."""
    for writer in writers:
        entries: list[Entry] = [
            Advanced(name, topic.head_seq)
            for name, topic in writer.partition.topics.items()
            if topic.config.durability == "ephemeral" and topic.reserved_seq != topic.head_seq
        ]
        change = Change(tuple(entries), tuple(entries))
        if entries:
            await writer.commit(change, sync=True)
        else:
            await writer.settled()
    if journal.unsynced or directory is not None:
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        journal.sync(done.set_result)
        error = await done
        if error is not None:
            raise error
    if directory is not None:
        indexes = [journal.bounds(writer.number).last_index for writer in writers]
        write_boot(directory, Boot(boot_id or this_boot_id(), clean=True, indexes=indexes))
