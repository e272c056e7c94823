"""The only access to a directory of log files, so that a test can substitute a faulty disk.

Every call blocks, except for `begin_synced`. Errors are those of the operating system (`OSError`):
the store decides what they mean. `OsDisk` is the real one; `penstock.testing.FakeDisk` loses, tears
and reorders unsynced data.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from penstock.kernel.units import MIB
from penstock.log.aio import PAGE_BYTES, AioPiece, AioWriter, open_direct
from penstock.log.store import AlreadyOpen

LOCK_NAME: Final = "LOCK"
_ZEROS: Final = mmap.mmap(-1, MIB)  # page-aligned
_NONE: Final = -1
_LOGGER: Final = logging.getLogger("penstock.log")
DIRECTORY_MODE: Final = 0o750
FILE_MODE: Final = 0o640
_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)  # Linux only


class Flight(Protocol):
    """A write in flight."""

    @property
    def done_fd(self) -> int:
        """An eventfd that becomes readable soon after completion; read it, then check `is_done`."""
        ...

    def is_done(self) -> bool:
        """Whether `result` would return without waiting."""
        ...

    def result(self) -> int:
        """What `pwrite_synced` would return or raise; waits for completion. Call it once."""
        ...


class DiskFile(Protocol):
    """One open file of a directory. Any thread may read."""

    @property
    def size(self) -> int:
        """The size at creation or opening; a segment never grows."""
        ...

    def pread(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes from `offset`; fewer only at the end of the file."""
        ...

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a buffer, without allocating; return the number of bytes read."""
        ...

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        """Write and return how many bytes were written: possibly fewer than given."""
        ...

    def pwrite_synced(self, data: bytes, offset: int) -> int:
        """As `pwrite`, and return when these bytes, possibly only these, survive a power loss."""
        ...

    def begin_synced(self, data: bytes, offset: int) -> Flight | None:
        """Start a `pwrite_synced` and return; None, with nothing done, if it has to be a call.

        The rest of its last page of `PAGE_BYTES` becomes zeros, so another write that begins before
        it is done must not touch that page.
        """
        ...

    def fdatasync(self) -> None:
        """Return when everything written so far survives a power loss."""
        ...


class Disk(Protocol):
    """One directory, where files are created, opened, renamed and removed."""

    @property
    def path(self) -> str:
        """The path, for people."""
        ...

    def lock(self) -> Callable[[], None]:
        """Lock the directory for this store and return the release.

        Raises `BlockingIOError` with the holder's name if it is locked.
        """
        ...

    def names(self) -> list[str]:
        """The files, sorted by name."""
        ...

    def room_bytes(self) -> int | None:
        """The free space in bytes; None if not known."""
        ...

    def create(self, name: str, size: int) -> DiskFile:
        """Create a file of `size` zero bytes with allocated blocks; replaces a leftover."""
        ...

    def open(self, name: str) -> DiskFile:
        """Open an existing file."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file its final name; durable after `fsync_dir`."""
        ...

    def unlink(self, name: str) -> None:
        """Remove a name; durable after `fsync_dir`. Open files stay readable."""
        ...

    def fsync_dir(self) -> None:
        """Return when creations, renames and removals survive a power loss."""
        ...


class OsFile:
    """A file descriptor that is closed with its last reference.

    A reader may still use a segment that compaction has removed; closing by reference count means
    that its descriptor is never reused while in use.
    """

    __slots__ = ("_direct", "_fd", "_tail", "_tail_end", "_writer", "size")

    def __init__(self, fd: int, writer: Callable[[], AioWriter | None] = lambda: None) -> None:
        self._fd = fd
        self._writer = writer
        self._direct: int | None = None
        self._tail = b""  # the written part of the last page, if that ends at `_tail_end`
        self._tail_end = -1
        self.size = os.fstat(fd).st_size

    def pread(self, count: int, offset: int) -> bytes:
        data = os.pread(self._fd, count, offset)
        while len(data) < count:
            more = os.pread(self._fd, count - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        done = 0
        while done < len(buffer):
            count = os.preadv(self._fd, [buffer[done:]], offset + done)
            if not count:
                break
            done += count
        return done

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        self._tail_end = -1
        return os.pwrite(self._fd, data, offset)

    def pwrite_synced(self, data: bytes, offset: int) -> int:
        self._tail_end = -1
        if not _DSYNC:
            count = os.pwrite(self._fd, data, offset)
            os.fdatasync(self._fd)
            return count
        # One call instead of two: after each call a thread waits for the interpreter. Next to a
        # thread that never stops running, two calls took 1.2 to 1.7 times as long as one.
        return os.pwritev(self._fd, (data,), offset, _DSYNC)

    def begin_synced(self, data: bytes, offset: int) -> OsFlight | None:
        end = offset + len(data)
        writer = self._writer()
        if writer is None or end > self.size - PAGE_BYTES:
            return None
        if self._direct is None:
            self._direct = _open_direct(self._fd)
        if self._direct == _NONE:
            return None
        page = offset % PAGE_BYTES
        before = self._tail if offset == self._tail_end else self.pread(page, offset - page)
        piece = writer.begin(self._direct, before, data, offset - page)
        if piece is None:
            return None
        self._tail_end = end
        rest = end % PAGE_BYTES
        self._tail = data[len(data) - rest :] if rest <= len(data) else before + data
        return OsFlight(writer, piece, page, len(data))

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._fd)
        if self._direct is not None and self._direct != _NONE:
            os.close(self._direct)


class OsFlight:
    """A write in flight in an `AioWriter`."""

    __slots__ = ("_asked", "_before", "_piece", "_writer", "done_fd")

    def __init__(self, writer: AioWriter, piece: AioPiece, before: int, asked: int) -> None:
        self._writer = writer
        self._piece = piece
        self._before = before
        self._asked = asked
        self.done_fd = writer.done_fd

    def is_done(self) -> bool:
        return self._writer.is_done(self._piece)

    def result(self) -> int:
        return min(max(self._writer.result(self._piece) - self._before, 0), self._asked)


class OsDisk:
    """A directory of the file system; created durably if missing.

    `on_held` is called as soon as the directory is locked, before anything in it is read.
    """

    def __init__(self, path: str | Path, *, on_held: Callable[[], None] = lambda: None) -> None:
        self._path = Path(path)
        self._on_held = on_held
        self._aio: AioWriter | None = None
        self._has_aio = True
        make_directory(self._path)

    @property
    def path(self) -> str:
        return str(self._path)

    def lock(self) -> Callable[[], None]:
        keep_private(self._path)
        release = _flock(self._path)
        try:
            self._on_held()
        except BaseException:
            release()
            raise
        return release

    def names(self) -> list[str]:
        return sorted(path.name for path in self._path.iterdir())

    def room_bytes(self) -> int | None:
        try:
            found = os.statvfs(self._path)
        except OSError:
            return None
        # File systems without inode counts, such as btrfs, report 0: that does not mean full.
        has_files = found.f_favail > 0 or found.f_files == 0
        return found.f_bavail * found.f_frsize if has_files else 0

    def create(self, name: str, size: int) -> OsFile:
        # Zeros are really written: on ext4 a sync into merely allocated blocks costs about half as
        # much again. They are written in pieces with a sync each, so that a sync of the log never
        # waits for more than one piece, and past the page cache if possible: caching pages that are
        # never read took a seventh of the processor of a loaded server.
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        fd = os.open(self._path / name, flags, FILE_MODE)
        file = OsFile(fd, self._writer)
        if size:
            os.posix_fallocate(fd, 0, size)
        direct = _open_direct(fd)
        try:
            for offset in range(0, size, len(_ZEROS)):
                piece = memoryview(_ZEROS)[: size - offset]
                if direct != _NONE and len(piece) % PAGE_BYTES == 0:
                    _write_all(direct, piece, offset)
                else:
                    _write_all(fd, piece, offset)
                    os.fdatasync(fd)
        finally:
            if direct != _NONE:
                os.close(direct)
        file.size = size
        return file

    def open(self, name: str) -> OsFile:
        return OsFile(os.open(self._path / name, os.O_RDWR | os.O_CLOEXEC), self._writer)

    def rename(self, old: str, new: str) -> None:
        (self._path / old).rename(self._path / new)

    def unlink(self, name: str) -> None:
        (self._path / name).unlink()

    def fsync_dir(self) -> None:
        sync_directory(self._path)

    def _writer(self) -> AioWriter | None:
        if self._aio is None and self._has_aio:
            try:
                self._aio = AioWriter()
            except OSError as error:
                self._has_aio = False
                _LOGGER.info("%s is written by threads: %s", self._path, error)
        return self._aio


def make_directory(path: Path) -> None:
    """Create a directory and its parents; their names survive a power loss on return.

    Records are private: only the owner and their group have access.
    """
    missing = [p for p in (path, *path.parents) if not p.exists()]
    if path.parent in missing:
        path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    for made in reversed(missing):
        sync_directory(made.parent)


def keep_private(path: Path) -> None:
    """Restrict a directory that an earlier version left open to all users, if we own it."""
    mode = path.stat().st_mode
    if mode & 0o777 & ~DIRECTORY_MODE:
        with contextlib.suppress(PermissionError):
            path.chmod(mode & DIRECTORY_MODE)


def open_private(path: str, flags: int) -> int:
    """Open a file; a new one is accessible to its owner and group. An `opener` for `open`."""
    return os.open(path, flags, FILE_MODE)


def take_lock(path: str, lock: Callable[[], Callable[[], None]]) -> Callable[[], None]:
    """Take a lock and return its release, or raise with the holder."""
    try:
        return lock()
    except BlockingIOError as error:
        raise AlreadyOpen(f"{path} is already open: it is {error.strerror}", path=path) from None


def lock_directory(path: Path) -> Callable[[], None]:
    """Lock a directory until released or until the process ends, in whatever way.

    A second holder is refused, even in the same process, with the pid of the first.
    """
    keep_private(path)
    return take_lock(str(path), lambda: _flock(path))


def _flock(path: Path) -> Callable[[], None]:
    fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise BlockingIOError(error.errno, f"held by process {pid}") from None
    # Overwritten in place: truncating it first makes ext4 flush it, 20 ms per open.
    os.pwrite(fd, f"{os.getpid():<10}\n".encode(), 0)

    def release() -> None:
        os.close(fd)

    return release


def _open_direct(fd: int) -> int:
    try:
        return open_direct(fd)
    except OSError as error:
        _LOGGER.debug("a file cannot be written past the page cache: %s", error)
        return _NONE


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count


def sync_directory(path: Path) -> None:
    """Make creations, renames and removals in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
