"""Startup recovery of a node, and its clean shutdown.

Each partition loads its newest whole snapshot, then replays the log after it, as far as that is
committed. The first entry of a start, `Began`, ends what the last run had only in memory. After a
crash of the machine, assigned seqs may have lost their records: they are skipped, so that none is
assigned again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from penstock.kernel.clock import Clock
from penstock.kernel.errors import Corrupt, Rejected
from penstock.log.executor import WorkKind
from penstock.log.store import Bounds
from penstock.raft.journal import ReplicatedJournal, Start
from penstock.raft.messages import InstallSnapshot
from penstock.topics.core.codec import decode_entries
from penstock.topics.core.entries import Advanced
from penstock.topics.core.partition import DecidedChange, Entry
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
    verify_snapshot,
    write_boot,
    write_layout,
)
from penstock.topics.persist.snapshot import Restoring, SnapshotReader, decode_kept
from penstock.topics.persist.spill import HotLimit

_LOGGER: Final = logging.getLogger("penstock.topics")
_SLICE_S: Final = 0.02
_SNAPSHOT_UNIT_BYTES: Final = 1_024
"""This many bytes of a snapshot count as much progress as one entry of the log."""
LAYOUT_VERSION: Final = 1


class Recovery:
    """Restores every partition on the loop, in slices, and reports progress."""

    def __init__(
        self,
        journal: ReplicatedJournal,
        writers: Sequence[PartitionWriter],
        registry: Registry,
        *,
        directory: Path | None = None,
        snapshots: SnapshotFiles | None = None,
        cold: ColdFiles | None = None,
        hot: HotLimit | None = None,
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._writers = writers
        self._registry = registry
        self._directory = directory
        self._snapshots = snapshots
        self._cold = cold
        self._hot = hot
        self._clock = clock
        self.skipped_seqs = 0  # where this node begins to lead: the machine may have crashed
        self._total = 0
        self._done = 0
        self.indexes: dict[int, int] = {}  # the snapshot that each partition started from
        self.sizes: dict[int, int] = {}
        self.log_bytes = 0
        self.damaged_snapshots: list[str] = []  # skipped
        self.missing_segments: list[str] = []  # of cold records: reads of these fail
        self._boot: Boot | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether a file was missing or damaged; then nothing is removed."""
        failed = any(writer.is_out_of_service for writer in self._writers)
        return bool(self.damaged_snapshots or self.missing_segments or failed)

    @property
    def progress(self) -> float:
        """The share of snapshots and log restored, 0 to 1."""
        return min(self._done / self._total, 1.0) if self._total else 1.0

    async def run(self) -> None:
        """Restore everything. A partition that cannot be restored fails alone, and says why."""
        self._check_directory()
        self._total = 1
        starts: list[tuple[PartitionWriter, Bounds, FoundSnapshot | None]] = []
        for writer in self._writers:
            writer.executor.start()
            try:
                starts.append((writer, *await self._prepare(writer.number)))
            except Exception as error:
                writer.executor.fail(error)
        was_enabled = gc.isenabled()
        gc.disable()  # restored objects stay: scanning them repeatedly finds no garbage
        try:
            for writer, bounds, found in starts:
                try:
                    await self._restore(writer, bounds, found)
                except Exception as error:
                    writer.executor.fail(error)
            self._check_that_something_serves()
        finally:
            if was_enabled:
                gc.enable()
        await self._sweep()
        self._done = self._total

    def _check_that_something_serves(self) -> None:
        """Refuse to start if no partition could be restored.

        A node of a cluster starts all the same: what it has is applied once it is known to be
        committed, and the others go on without its damaged partitions.
        """
        if self._registry.is_replicated:
            return
        failed = [writer for writer in self._writers if writer.is_out_of_service]
        if failed and not self._registry.topics:
            error = failed[0].executor.error
            assert error is not None
            raise error

    async def _prepare(self, number: int) -> tuple[Bounds, FoundSnapshot | None]:
        """The bounds of a partition's log, and its initial snapshot."""
        damage = self._journal.store.damaged().get(number)
        if damage is not None:
            raise damage
        bounds = self._journal.bounds(number)
        check_end(self._boot, number, bounds)
        found = await self._choose(number, bounds)
        self._total += bounds.last_index - bounds.boundary_index
        if found is not None:
            self.sizes[number] = found.path.stat().st_size
            self.indexes[number] = found.index
            self._total += self.sizes[number] // _SNAPSHOT_UNIT_BYTES
            self._total -= max(found.index - bounds.boundary_index, 0)
        return bounds, found

    async def begin(self, boot_id: str | None) -> None:
        """Take part in the groups; a node alone leads them, with one sync for all."""
        boot_id = boot_id or this_boot_id()
        self.skipped_seqs = UNSYNCED_SEQS_MAX if self._has_crashed(boot_id) else 0
        if self.skipped_seqs:
            text = "the machine crashed: topics that do not wait for syncs skip %d seqs"
            _LOGGER.warning(text, self.skipped_seqs)
        for writer in self._writers:
            if not writer.is_out_of_service:
                number, members = writer.number, writer.partition.members
                start = Start(self.indexes.get(number, 0), writer.applied_index, members)
                try:
                    self._journal.open_group(number, writer, start)
                except Exception as error:
                    writer.executor.fail(error)
        await self._journal.begin()
        self.skipped_seqs = 0
        if self._directory is not None:
            indexes = self._boot.indexes if self._boot is not None else []
            write_boot(self._directory, Boot(boot_id, clean=False, indexes=indexes))

    async def install(self, writer: PartitionWriter, message: InstallSnapshot) -> Path | None:
        """Replace a partition's state by a snapshot of another member, which has been put in place.

        None if it is not needed any more. A crash leaves the old state or the new one.
        """
        assert self._snapshots is not None, "a node of a cluster has a data directory"
        number, index = writer.number, message.mark.index
        path, group = self._snapshots.incoming(number, index), self._journal.groups[number]
        loop = asyncio.get_running_loop()
        header, _ = await loop.run_in_executor(None, verify_snapshot, path)
        if header != (number, index):
            raise Corrupt(f"{path.name} is a snapshot of partition {header[0]} at {header[1]}")
        if not group.begin_install(message):
            group.take((message,))
            path.unlink()
            return None
        try:
            writer.executor.start()
            writer.partition.forget()
            found = FoundSnapshot(number, index, path)
            await self._restore(writer, Bounds(index, message.mark.term, index), found)
            await self._journal.install(number, message)
            return await loop.run_in_executor(None, self._snapshots.adopt, number, index)
        except Exception as error:
            writer.executor.fail(error)
            raise

    def _has_crashed(self, boot_id: str | None) -> bool:
        """Whether the machine may have stopped before everything acknowledged was synced."""
        last = self._boot
        if self._directory is None or (last is None and not self._registry.topics):
            return False
        return last is None or not (last.clean or (boot_id is not None and last.boot_id == boot_id))

    def _check_directory(self) -> None:
        """Refuse a directory that was created for another store or number of partitions."""
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
                f"{self._directory} was made with store {found.store!r}, {found.partitions} "
                f"partitions and layout {found.version}; it cannot be opened with store "
                f"{made.store!r}, {made.partitions} partitions and layout {made.version}"
            )
        if self._cold is not None and self._cold.path.parent != self._directory:
            take_cold_dir(self._cold.path, found)
        given = self._journal.options.identity
        self._registry.identity = found.identity if given is None else given
        self._boot = read_boot(self._directory)

    async def _choose(self, number: int, bounds: Bounds) -> FoundSnapshot | None:
        """The snapshot that a partition starts from, or None to start empty.

        A damaged one is skipped with an error in the log: an older one plus the log after it is
        equivalent.
        """
        if self._snapshots is None:
            return None
        choose = partial(self._snapshots.choose, number, bounds)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._snapshots.settle, number, bounds.boundary_index)
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
        """Report missing cold segments; only reads of their records fail."""
        assert self._cold is not None
        for name in self._cold.missing(summary_of(found.path).files):
            self.missing_segments.append(name)
            _LOGGER.error(
                "cold segment %s is missing: reads of its records fail", self._cold.path / name
            )

    async def _restore(
        self, writer: PartitionWriter, bounds: Bounds, found: FoundSnapshot | None
    ) -> None:
        """Restore a partition in slices: each is one piece of its executor's maintenance."""
        slices = self._slices(writer, bounds, found)
        while await writer.run(WorkKind.MAINTENANCE, partial(next, slices, False)):
            if self._hot is not None and self._is_over_hot_limit:
                await self._hot.enforce()
        writer.executor.restored()

    def _slices(
        self, writer: PartitionWriter, bounds: Bounds, found: FoundSnapshot | None
    ) -> Iterator[bool]:
        """Load the snapshot and the log after it; yields at the end of each time slice."""
        began_s = time.monotonic()
        for _ in self._steps(writer, bounds, found):
            if time.monotonic() - began_s > _SLICE_S or self._is_over_hot_limit:
                yield True
                began_s = time.monotonic()

    def _steps(
        self, writer: PartitionWriter, bounds: Bounds, found: FoundSnapshot | None
    ) -> Iterator[None]:
        index = bounds.boundary_index
        before = self._done
        if found is not None:
            index = found.index
            with File(found.path) as file:
                reader = SnapshotReader(found.path.name, file.read)
                restoring = Restoring(writer.partition)
                for payload in reader.payloads():
                    restoring.take(decode_kept(reader.name, payload))
                    self._done = before + reader.offset // _SNAPSHOT_UNIT_BYTES
                    yield
        writer.applied_index = index
        before = self._done
        replay = writer.partition.apply_all
        last_index = min(self._journal.committed(writer.number), bounds.last_index)
        for entry in self._journal.entries(writer.number, index + 1, last_index):
            replay(decode_entries(entry.payload))
            writer.applied_index = entry.index
            self.log_bytes += len(entry.payload)
            self._done = before + entry.index - index
            yield

    @property
    def _is_over_hot_limit(self) -> bool:
        registry = self._registry
        return self._hot is not None and registry.hot_bytes > registry.hot_bytes_max

    async def _sweep(self) -> None:
        """Remove unfinished work of the last run. Nothing is removed while something is damaged."""
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
    journal: ReplicatedJournal,
    boot_id: str | None,
    directory: Path | None = None,
) -> None:
    """Log heads that are only in memory, sync everything, and record a clean shutdown."""
    serving = [writer for writer in writers if not writer.is_out_of_service]
    for writer in serving:
        entries: list[Entry] = [
            Advanced(name, topic.head_seq)
            for name, topic in writer.partition.topics.items()
            if topic.config.durability == "ephemeral" and topic.reserved_seq != topic.head_seq
        ]
        change = DecidedChange(tuple(entries), tuple(entries))
        if not writer.leads:
            continue
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
        last = read_boot(directory)
        indexes = list(last.indexes if last is not None else [])
        indexes += [0] * (len(writers) - len(indexes))
        for writer in serving:  # the others ended where they were, whatever is left of them
            indexes[writer.number] = journal.bounds(writer.number).last_index
        write_boot(directory, Boot(boot_id or this_boot_id(), clean=True, indexes=indexes))
