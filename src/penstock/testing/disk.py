"""An in-memory disk with the faults of a real one, reproducible from a seed.

Unsynced data may be lost, torn at sectors of 512 bytes or reach the platter in another order;
unsynced names may be lost too. It has the interface of `penstock.log.disk.Disk`.
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
    """The machine lost power in the middle of an operation; see `FakeDisk.after_power_loss`."""


class InlineExecutor(Executor):
    """Runs background work at once, in the caller's thread, so that a run can be replayed."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run it; only a power loss is raised here, any other error is in the future."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except PowerLoss:
            raise
        except Exception as error:
            future.set_exception(error)
        return future


class FakeDisk:
    """One directory. The attributes inject faults; each applies until it is reset.

    `lose_power_after`: this many more changes, then `PowerLoss` on every operation. `space_bytes`:
    this many more bytes may be written or allocated, then the disk is full. `sync_error_after`:
    this many more syncs succeed, then one fails and drops the data it should have kept, as on
    Linux. `create_error`: creating a file fails with this `errno`. `read_error`: every read fails.
    `short_writes`: the probability that a write is partial. `begins`: writes may begin without
    being waited for; an event loop cannot wait for them here, because no descriptor says when one
    is done.
    """

    def __init__(self, random: Random, path: str = "fake") -> None:
        self.path = path
        self.lose_power_after: int | None = None
        self.space_bytes: int | None = None
        self.sync_error_after: int | None = None
        self.create_error: int | None = None
        self.read_error = False
        self.short_writes = 0.0
        self.begins = True
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
        """Create a file of zeros; not synced."""
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
        """Change a name, durable after `fsync_dir`."""
        self._step()
        inode = self._names.pop(old)
        self._names[new] = inode
        self._name_changes.append((new, old, inode))

    def unlink(self, name: str) -> None:
        """Remove a name, durable after `fsync_dir`; its space is freed."""
        self._step()
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        if self.space_bytes is not None:
            self.space_bytes += len(self._names[name].seen)
        self._change(name, None)

    def fsync_dir(self) -> None:
        """Make the current names durable."""
        self._step()
        self._durable_names = dict(self._names)
        self._name_changes.clear()

    # Crashes and damage

    def after_kill(self) -> FakeDisk:
        """The disk as the next process finds it: everything written, nothing more durable."""
        self._held = False
        return self

    def after_power_loss(self, random: Random) -> FakeDisk:
        """The disk as the next boot finds it; this one fails every operation from now on."""
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
        """The content of a file, for a test to inspect."""
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
    """An open file of a `FakeDisk`; still readable after its name is removed."""

    def __init__(self, disk: FakeDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode

    @property
    def size(self) -> int:
        """The size in bytes."""
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
        """Record a write; only part of it on a full disk, a short write or a power loss."""
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
        """Write and make only that durable; earlier pending writes stay pending."""
        count = self.pwrite(data, offset)
        return FakeFlight(self, count).result()

    def begin_synced(self, data: bytes, offset: int) -> FakeFlight | None:
        """Write whole sectors now; they become durable when the result is requested, not before.

        Sometimes returns None, because a real disk cannot always do this.
        """
        start = offset - offset % SECTOR_BYTES
        before = bytes(self._inode.seen[start:offset])
        behind = bytes(-(offset + len(data)) % SECTOR_BYTES)
        sectors = before + data + behind
        if not self._disk.begins or self._disk._random.random() < 0.3:
            return None
        if start + len(sectors) > self.size:
            return None
        count = self.pwrite(sectors, start) - len(before)
        return FakeFlight(self, min(max(count, 0), len(data)))

    def fdatasync(self) -> None:
        """Make everything written durable; after an error the state is undefined."""
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
    """A write that stays in flight until its result is requested."""

    done_fd = -1  # without a descriptor to wait on

    def __init__(self, file: FakeFile, count: int) -> None:
        self._file = file
        self._count = count
        self._write = file._inode.pending[-1] if file._inode.pending else None

    def is_done(self) -> bool:
        """Always true: the result can be requested at any time."""
        return True

    def result(self) -> int:
        """Complete as `pwrite_synced` does."""
        self._file._disk._step()
        self._file._maybe_fail_sync()
        self._file._inode.sync_one(self._write)
        return self._count


class _Inode:
    """The bytes processes see, the bytes on the platter, and the pending writes between them."""

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
        """Put one write on the platter and drop what it overwrote, durable or pending.

        Except where a failed sync has already decided its outcome.
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
        """A failed sync: some sectors are written, the rest count as clean and are not retried."""
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
        """A random part of the sectors of the pending writes, possibly reordered."""
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
