"""The end of the segment log: where blocks are written, synced and followed by new segments."""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from penstock.log.disk import Disk, Flight
from penstock.log.store import Damaged, DiskFull, ReadOnly, Starved, SyncFailed
from penstock.log.stores.segment import format as fmt
from penstock.log.stores.segment.catalog import SegmentCatalog
from penstock.log.stores.segment.files import Segment, SegmentFiles, write_all
from penstock.log.stores.segment.recovery import Fold
from penstock.log.stores.segment.staging import Staged

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STARVED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
UNSUPPORTED: Final = (errno.EOPNOTSUPP, errno.ENOSYS)
_LOGGER: Final = logging.getLogger("penstock.log")


class _Placed(NamedTuple):
    """Bytes with their location, the last block in them, and how to undo them."""

    data: bytes
    offset: int
    sequence: int
    undo: tuple[int, int, int]


class BlockWrite:
    """A block being written asynchronously; to be finished in the order they began."""

    __slots__ = ("_finish", "flight", "placed", "staged")

    def __init__(self, finish: OnFinish, staged: Staged, placed: _Placed, flight: Flight) -> None:
        self._finish = finish
        self.staged = staged
        self.placed = placed
        self.flight = flight

    @property
    def done_fd(self) -> int:
        """See `Flight`."""
        return self.flight.done_fd

    def is_done(self) -> bool:
        """Whether `finish` would return without waiting."""
        return self.flight.is_done()

    def finish(self) -> Mapping[int, Exception]:
        """What `write` would return."""
        return self._finish(self)


OnFinish = Callable[["BlockWrite"], Mapping[int, Exception]]


class LogTail:
    """Writes blocks at the end of the log. One caller at a time: the store has the lock.

    After a sync error, or an unknown one, nothing more is written (`read_only`). A block becomes
    visible to readers only when it is written, and synced if requested.
    """

    __deletable__ = ("segment",)  # by `close`; mypyc requires it

    def __init__(self, disk: Disk, files: SegmentFiles, catalog: SegmentCatalog) -> None:
        self._disk = disk
        self._files = files
        self._catalog = catalog
        self._store_id = b""
        self._chain = fmt.BlockChain(0)
        self._sealed = True
        self._damaged: Mapping[int, Damaged] = {}
        self.segment: Segment
        self.offset = fmt.SEGMENT_HEADER_BYTES
        self.air: deque[BlockWrite] = deque()  # writes in flight, in order
        self.unsynced = False
        self.read_only: ReadOnly | None = None
        self.full: DiskFull | Starved | None = None
        self.rotations = 0
        self.syncs = 0

    # At the start and at the end

    def start_empty(self, store_id: bytes) -> None:
        """Begin a new log."""
        self._store_id = store_id
        self._chain = fmt.BlockChain(fmt.seed_of(self._store_id))
        self.segment = self._catalog.segments[1] = self._files.make(1, self._store_id)

    def start_after(self, fold: Fold) -> None:
        """Continue where recovery ended the log."""
        assert fold.tail is not None
        assert fold.store_id is not None
        self._store_id, self._chain = fold.store_id, fold.chain
        self.segment = self._catalog.segments[fold.tail.number]
        self.offset = fold.tail.offset
        self._sealed = fold.sealed or not fold.report.blocks
        self._damaged = fold.damaged
        self._settle_end(fold)

    def _settle_end(self, fold: Fold) -> None:
        """End the log durably where recovery ended it: the rest can never come back.

        Later segments are removed first, newest first; until the zeros are written the next open
        cuts at the same place again.
        """
        kept = fold.unused[:1] if fold.report.cut is None else []
        self._files.drop(name for _, name in reversed(fold.unused[len(kept) :]))
        for number, _ in fold.unused:
            segment = self._catalog.segments.pop(number)
            if (number, segment.name) in kept:
                self._files.adopt(segment)
        tail, file = fold.tail, self.segment.file
        if tail is not None and tail.dirty:
            write_all(file, bytes(self.segment.size - tail.offset), tail.offset)
        # The previous process may have died before its sync, or after a failed one: the kernel then
        # shows bytes that it will never write. From here on everything found counts as durable, so
        # blocks that no later block proves synced are written again.
        if tail is not None and tail.unproven < tail.offset:
            write_all(file, file.pread(tail.offset - tail.unproven, tail.unproven), tail.unproven)
        self.segment.file.fdatasync()
        self._disk.fsync_dir()
        self._chain.synced_upto = self._chain.sequence

    def close(self) -> None:
        """Seal the log, unless nothing was written since the last seal; then drop the segment."""
        try:
            if self.read_only is None and not self._sealed:
                self._seal()
        finally:
            del self.segment

    def _seal(self) -> None:
        """Write a block that records that all before it was synced. There is always room for it."""
        try:
            if self.unsynced:
                self.sync()
            if self.is_at_start:
                seal = self._checkpoint()
            else:
                seal = self._chain.block(fmt.SEAL_BLOCK, 1, fmt.SEAL_RECORD)
            if self.offset + len(seal) <= self.segment.size:
                write_all(self.segment.file, seal, self.offset)
                self.segment.file.fdatasync()
        except (OSError, ReadOnly):
            return  # nothing acknowledged depends on the seal

    @property
    def is_at_start(self) -> bool:
        """Whether the segment has no block yet."""
        return self.offset == fmt.SEGMENT_HEADER_BYTES

    # Writing

    def begin(self, staged: Staged, finish: OnFinish) -> BlockWrite | None:
        """Start writing a block, if it fits into the segment and the disk accepts it."""
        chain, offset = self._chain, self.offset
        if self.air:  # concurrent writes must not share a page
            offset = -(-offset // fmt.PAGE_BYTES) * fmt.PAGE_BYTES
        end = offset + fmt.BLOCK_HEADER_BYTES + len(staged.body)
        if self.is_at_start or end + fmt.SEAL_BYTES > self.segment.size:
            return None
        undo = chain.sequence, chain.crc, self.offset
        block = chain.block(fmt.DATA_BLOCK, len(staged.table) // fmt.RECORD_BYTES, staged.body)
        flight = None
        try:
            flight = self.segment.file.begin_synced(block, offset)
        except OSError as error:
            _LOGGER.debug("a write cannot begin: its call will say why: %s", error)
        if flight is None:
            chain.sequence, chain.crc, _ = undo
            return None
        self.offset = end
        underway = BlockWrite(finish, staged, _Placed(block, offset, chain.sequence, undo), flight)
        self.air.append(underway)
        return underway

    def finish(self, write: BlockWrite) -> None:
        """Complete a write in flight, which must be the oldest, and show it; see `write`."""
        self._settle(write.placed, write.flight.result)
        self._show(write.staged, write.placed)

    def write(self, staged: Staged, *, sync: bool) -> None:
        """Write and sync a block, then show it.

        Raises `DiskFull` or `ReadOnly`; then nothing has changed, and the next block overwrites
        what was partially written. Raises `SyncFailed` if the block may be there after a restart.
        """
        table, body, chain = staged.table, staged.body, self._chain
        undo = chain.sequence, chain.crc, self.offset
        try:
            prefix = self._make_room(len(body) + fmt.BLOCK_HEADER_BYTES)
        except OSError as error:
            chain.sequence, chain.crc, _ = undo
            raise self._refuse(error) from error
        offset = self.offset
        undo = (*undo[:2], offset)
        block = chain.block(fmt.DATA_BLOCK, len(table) // fmt.RECORD_BYTES, body)
        data = prefix + block if prefix else block
        placed = _Placed(data, offset, chain.sequence, undo)
        # One call for both, unless earlier blocks are still to be synced: it syncs only its own
        # bytes.
        through = None
        if sync and not self.unsynced:
            through = partial(self.segment.file.pwrite_synced, data, offset)
        self._settle(placed, through, sync=sync)
        self.offset += len(data)
        self._show(staged, placed)

    def _settle(
        self, placed: _Placed, through: Callable[[], int] | None, *, sync: bool = True
    ) -> None:
        """Ensure that a block is written and synced; `through` does both at once.

        If that was partial, found no space or is not supported by the file system, a plain write
        repeats all of it.
        """
        if through is not None and self._is_through(through, placed):
            return
        try:
            write_all(self.segment.file, placed.data, placed.offset)
        except OSError as error:
            if len(self.air) > 1:  # later blocks continue from this one
                raise self._sync_failed(error) from error
            self._chain.sequence, self._chain.crc, self.offset = placed.undo
            refusal = self._refuse(error)
            if self._is_there(placed):
                raise SyncFailed(f"{refusal}; this group may or may not be durable") from error
            raise refusal from error
        self.unsynced = True
        if sync:
            self.sync(placed.sequence)

    def _is_through(self, through: Callable[[], int], placed: _Placed) -> bool:
        try:
            done = through()
        except OSError as error:
            if error.errno in FULL + UNSUPPORTED and self.read_only is None:
                return False
            raise self._sync_failed(error) from error
        if self.read_only is not None:  # an earlier one failed before this one
            raise SyncFailed(f"{self.read_only}; this group may or may not be durable")
        if done < len(placed.data):
            return False
        self.syncs += 1
        self._chain.synced_upto = placed.sequence
        return True

    def _is_there(self, placed: _Placed) -> bool:
        """Whether a block that was refused can be read: then the next open would find it.

        A call that writes and syncs may have written everything before it found no space.
        """
        try:
            return self.segment.file.pread(len(placed.data), placed.offset) == placed.data
        except OSError:
            return True

    def _show(self, staged: Staged, placed: _Placed) -> None:
        """Make a block visible to reads; it is the last part of what was written."""
        table, segment = staged.table, self.segment
        start = placed.offset + len(placed.data) - len(staged.body)
        self._sealed = False
        self.full = None
        show = self._catalog.show_mixed if staged.mixed else self._catalog.show
        show(table, staged.lasts, (segment, start, len(staged.body) - len(table)))
        if self.offset * 2 > segment.size:
            self._files.make_ahead(segment.number + 1, self._store_id)

    def _make_room(self, block_bytes: int) -> bytes:
        """Ensure that a block and a seal fit; return the checkpoint that begins a new segment."""
        block_bytes += fmt.SEAL_BYTES
        at_start = self.is_at_start
        if not at_start and self.offset + block_bytes <= self.segment.size:
            return b""
        checkpoint_bytes = fmt.BLOCK_HEADER_BYTES + fmt.checkpoint_bytes(len(self._catalog.lasts))
        needed = fmt.SEGMENT_HEADER_BYTES + checkpoint_bytes + block_bytes
        if not at_start or needed > self.segment.size:
            self._rotate(needed, replace=at_start)
        return self._checkpoint()

    def _checkpoint(self) -> bytes:
        states = [
            (number, bounds.boundary_index, bounds.boundary_term, bounds.last_index, *hard)
            for number, bounds, hard in self._catalog.states()
            # A checkpoint would declare a damaged partition whole, so it is left out.
            if number not in self._damaged
        ]
        return self._chain.block(fmt.CHECKPOINT_BLOCK, *fmt.checkpoint_body(states))

    def _rotate(self, bytes_min: int, *, replace: bool) -> None:
        """Continue in the next segment, or replace an empty one by a larger one.

        The previous one is synced first, so that any content of a later segment proves that all of
        the earlier ones were durable.
        """
        if replace:
            segment = self._files.make(self.segment.number, self._store_id, bytes_min)
        else:
            segment = self._files.next(self.segment.number + 1, self._store_id, bytes_min)
        if self.unsynced:
            try:
                self.sync()
            except SyncFailed as error:  # of earlier groups; this one is not written yet
                raise self.read_only or error from error
        with self._catalog.lock:
            self._catalog.segments[segment.number] = segment
        self.segment = segment
        self.offset = fmt.SEGMENT_HEADER_BYTES
        self.rotations += 1

    def sync(self, upto: int | None = None) -> None:
        """Make every written block durable, up to a number or all."""
        try:
            self.segment.file.fdatasync()
        except OSError as error:
            raise self._sync_failed(error) from error
        self.syncs += 1
        self._chain.synced_upto = self._chain.sequence if upto is None else upto
        self.unsynced = False

    def _sync_failed(self, error: OSError) -> SyncFailed:
        ended = self._end_writing(f"sync of {self.segment.name} failed: {error}")
        return SyncFailed(f"{ended}; this group may or may not be durable")

    def _refuse(self, error: OSError) -> ReadOnly:
        if error.errno in FULL:
            self.full = DiskFull(f"no space left for {self._disk.path}: {error}")
        elif error.errno in STARVED:
            self.full = Starved(f"no means left to write in {self._disk.path}: {error}")
        else:
            return self._end_writing(f"write in {self.segment.name} failed: {error}")
        return self.full

    def _end_writing(self, reason: str) -> ReadOnly:
        self.read_only = ReadOnly(f"{self._disk.path} takes no more writes: {reason}")
        return self.read_only
