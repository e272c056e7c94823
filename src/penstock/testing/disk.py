"""A disk in memory that is as bad as a real one may be, and the same for the same seed.

Whatever was not synced may be lost, torn at sectors of 512 bytes or reach the platter in another
order; names that were not synced may be lost too. It has the shape of `penstock.log.disk.Disk`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import pairwise
from random import Random
from typing import Any, Final, TypeVar

SECTOR_BYTES: Final = 512
T = TypeVar("T")


class PowerLoss(Exception):
    """The machine went dark in the middle of an operation; see `FakeDisk.after_power_loss`."""


class InlineExecutor(Executor):
    """Runs background work at once, in the caller's thread, so that a run can be replayed."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run it; only a power loss comes out here, all else waits in the future."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except PowerLoss:
            raise
        except Exception as error:
            future.set_exception(error)
        return future


class FakeDisk:
    """One directory. The attributes set faults; each holds until it is set back.

    `lose_power_after`: so many more changes, then `PowerLoss` for ever.
    `space_bytes`: so many more bytes may be written or allocated, then the disk is full.
    `sync_error_after`: so many more syncs succeed, then one fails and drops what it should have
    kept, as Linux does.
    `create_error`: no file can be made, for this reason (an `errno`).
    `read_error`: every read fails.
    `short_writes`: the chance that a write takes only a part.
    """

    def __init__(self, random: Random, path: str = "fake") -> None:
        self.path = path
        self.lose_power_after: int | None = None
        self.space_bytes: int | None = None
        self.sync_error_after: int | None = None
        self.create_error: int | None = None
        self.read_error = False
        self.short_writes = 0.0
        self._random = random
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._name_changes: list[tuple[str, str | None, _Inode | None]] = []
        self._held = False
        self._dark = False

    # The interface of `Disk`

    def lock(self) -> Callable[[], None]:
        """One holder at a time."""
        if self._held:
            raise BlockingIOError(errno.EWOULDBLOCK, f"held by process {os.getpid()}")
        self._held = True

        def release() -> None:
            self._held = False

        return release

    def room_bytes(self) -> int | None:
        """Not known."""
        return None

    def names(self) -> list[str]:
        """The files, sorted by name."""
        return sorted(self._names)

    def create(self, name: str, size: int) -> FakeFile:
        """A file of zeros; not synced."""
        self._step()
        if self.create_error is not None:
            raise OSError(self.create_error, os.strerror(self.create_error), name)
        if self._take_space(size) < size:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        inode = _Inode()
        inode.write(bytes(size), 0)
        self._change(name, inode)
        return FakeFile(self, inode)

    def open(self, name: str) -> FakeFile:
        """Open an existing file."""
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        return FakeFile(self, self._names[name])

    def rename(self, old: str, new: str) -> None:
        """Both names change, durable after `fsync_dir`."""
        self._step()
        inode = self._names.pop(old)
        self._names[new] = inode
        self._name_changes.append((new, old, inode))

    def unlink(self, name: str) -> None:
        """Remove a name, durable after `fsync_dir`; its space comes back."""
        self._step()
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        if self.space_bytes is not None:
            self.space_bytes += len(self._names[name].seen)
        self._change(name, None)

    def fsync_dir(self) -> None:
        """Names as they are now survive."""
        self._step()
        self._durable_names = dict(self._names)
        self._name_changes.clear()

    # What happens to it

    def after_kill(self) -> FakeDisk:
        """The disk as the next process finds it: all written, nothing more durable than it was."""
        self._held = False
        return self

    def after_power_loss(self, random: Random) -> FakeDisk:
        """The disk as the next boot finds it; this one is dark from now on."""
        self._dark = True
        found = FakeDisk(random, self.path)
        names = dict(self._durable_names)
        keep = random.choice((0.0, 0.5, 1.0))
        for name, old, inode in self._name_changes:
            if random.random() >= keep:
                continue
            if old is not None and names.get(old) is inode:
                del names[old]
            if inode is None:
                names.pop(name, None)
            else:
                names[name] = inode
        settled: dict[int, _Inode] = {}
        for name, inode in names.items():
            if id(inode) not in settled:
                settled[id(inode)] = inode.after_power_loss(random)
            found._names[name] = settled[id(inode)]
        found._durable_names = dict(found._names)
        return found

    def flip(self, name: str, offset: int, bits: int) -> None:
        """Damage one byte, durably."""
        inode = self._names[name]
        inode.seen[offset] ^= bits
        inode.durable[offset] ^= bits

    def content(self, name: str) -> bytes:
        """What a file holds, for a test to look at."""
        return bytes(self._names[name].seen)

    def _change(self, name: str, inode: _Inode | None) -> None:
        if inode is None:
            del self._names[name]
        else:
            self._names[name] = inode
        self._name_changes.append((name, None, inode))

    def _step(self) -> None:
        if self.lose_power_after is not None:
            if self.lose_power_after <= 0:
                self._dark = True
            self.lose_power_after -= 1
        if self._dark:
            raise PowerLoss

    def _take_space(self, wanted: int) -> int:
        if self.space_bytes is None:
            return wanted
        taken = min(wanted, self.space_bytes)
        self.space_bytes -= taken
        return taken


class FakeFile:
    """An open file of a `FakeDisk`; stays readable when its name is gone."""

    def __init__(self, disk: FakeDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode

    @property
    def size(self) -> int:
        """How long it is."""
        return len(self._inode.seen)

    def pread(self, count: int, offset: int) -> bytes:
        """Bytes as last written, durable or not."""
        self._check_read()
        return bytes(self._inode.seen[offset : offset + count])

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """As `pread`, into a buffer."""
        self._check_read()
        data = self._inode.seen[offset : offset + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        """Remember a write; part of it if the disk is full, in a mood, or going dark."""
        disk = self._disk
        count = len(data)
        if count > 1 and disk._random.random() < disk.short_writes:
            count = disk._random.randrange(1, count)
        count = disk._take_space(count)
        if data and not count:
            raise OSError(errno.ENOSPC, "No space left on device")
        try:
            disk._step()
        except PowerLoss:
            self._inode.write(bytes(data[:count]), offset)
            raise
        self._inode.write(bytes(data[:count]), offset)
        return count

    def pwrite_synced(self, data: bytes, offset: int) -> int:
        """Write, and make just that survive; what was pending before stays pending."""
        count = self.pwrite(data, offset)
        return FakeFlight(self, count).result()

    def begin_synced(self, data: bytes, offset: int) -> FakeFlight | None:
        """Write whole sectors now; they survive once the result is asked for, not before.

        Sometimes None, as a real disk cannot always do this.
        """
        start = offset - offset % SECTOR_BYTES
        before = bytes(self._inode.seen[start:offset])
        behind = bytes(-(offset + len(data)) % SECTOR_BYTES)
        sectors = before + data + behind
        if self._disk._random.random() < 0.3 or start + len(sectors) > self.size:
            return None
        count = self.pwrite(sectors, start) - len(before)
        return FakeFlight(self, min(max(count, 0), len(data)))

    def fdatasync(self) -> None:
        """All that was written survives, or an error after which nobody knows."""
        self._disk._step()
        self._maybe_fail_sync()
        self._inode.sync()

    def _maybe_fail_sync(self) -> None:
        disk = self._disk
        if disk.sync_error_after is not None:
            disk.sync_error_after -= 1
            if disk.sync_error_after < 0:
                disk.sync_error_after = None
                self._inode.forget(disk._random)
                raise OSError(errno.EIO, "Input/output error")

    def _check_read(self) -> None:
        if self._disk._dark:
            raise PowerLoss
        if self._disk.read_error:
            raise OSError(errno.EIO, "Input/output error")


class FakeFlight:
    """A write that is on its way until somebody asks how it went."""

    done_fd = -1  # nobody waits for it

    def __init__(self, file: FakeFile, count: int) -> None:
        self._file = file
        self._count = count
        self._write = file._inode.pending[-1] if file._inode.pending else None

    def is_done(self) -> bool:
        """It is, for whoever asks."""
        return True

    def result(self) -> int:
        """The end of `pwrite_synced`."""
        self._file._disk._step()
        self._file._maybe_fail_sync()
        self._file._inode.sync_one(self._write)
        return self._count


class _Inode:
    """Bytes as seen by processes, bytes on the platter, and the writes between the two."""

    __slots__ = ("durable", "pending", "seen")

    def __init__(self) -> None:
        self.seen = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes]] = []

    def write(self, data: bytes, offset: int) -> None:
        _put(self.seen, data, offset)
        self.pending.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.pending:
            _put(self.durable, data, offset)
        self.pending.clear()

    def sync_one(self, write: tuple[int, bytes] | None) -> None:
        """One write is on the platter; what lay under it is gone, durable or pending.

        Unless a sync that failed has settled its fate before.
        """
        at = next((at for at, each in enumerate(self.pending) if each is write), None)
        if at is None:
            return
        offset, data = self.pending.pop(at)
        _put(self.durable, data, offset)
        for place, (start, older) in enumerate(self.pending[:at]):
            first, end = max(start, offset), min(start + len(older), offset + len(data))
            if first < end:
                new = data[first - offset : end - offset]
                self.pending[place] = (start, older[: first - start] + new + older[end - start :])

    def forget(self, random: Random) -> None:
        """A failed sync: some sectors are there, the rest counts as clean and is never tried."""
        for offset, data in self._surviving(random):
            _put(self.durable, data, offset)
        self.pending.clear()

    def after_power_loss(self, random: Random) -> _Inode:
        found = _Inode()
        found.durable = bytearray(self.durable)
        for offset, data in self._surviving(random):
            _put(found.durable, data, offset)
        found.seen = bytearray(found.durable)
        return found

    def _surviving(self, random: Random) -> list[tuple[int, bytes]]:
        """Some of the sectors of the pending writes, maybe in another order."""
        keep = random.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        whole = random.random() < 0.3
        pieces: list[tuple[int, bytes]] = []
        for offset, data in self.pending:
            if whole or len(data) > 64 * SECTOR_BYTES:
                if random.random() < keep:
                    pieces.append((offset, data))
                continue
            pieces.extend(piece for piece in _sectors(offset, data) if random.random() < keep)
        if random.random() < 0.5:
            random.shuffle(pieces)
        return pieces


def _sectors(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    first = SECTOR_BYTES - offset % SECTOR_BYTES
    cuts = [0, *range(first, len(data), SECTOR_BYTES), len(data)]
    return [(offset + a, data[a:b]) for a, b in pairwise(cuts)]


def _put(target: bytearray, data: bytes, offset: int) -> None:
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data
