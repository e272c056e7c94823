"""The one door to a directory of log files, so that a test can stand behind it with a worse disk.

Every call blocks, but for `begin_synced`. Errors are the operating system's own (`OSError`): the
store decides what they mean. `OsDisk` is the real one; `penstock.testing.FakeDisk` loses, tears and
reorders whatever was not synced.
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
_ZEROS: Final = mmap.mmap(-1, MIB)  # begins at a page
_NONE: Final = -1
_LOGGER: Final = logging.getLogger("penstock.log")
DIRECTORY_MODE: Final = 0o750
FILE_MODE: Final = 0o640
_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)  # Linux has it


class Flight(Protocol):
    """A write on its way to the disk."""

    @property
    def done_fd(self) -> int:
        """An eventfd that becomes readable soon after it is done; read it, then ask `is_done`."""
        ...

    def is_done(self) -> bool:
        """Whether `result` would not wait."""
        ...

    def result(self) -> int:
        """What `pwrite_synced` would return or raise; waits until it is known. Call it once."""
        ...


class DiskFile(Protocol):
    """One open file of a directory. Reads may come from any thread."""

    @property
    def size(self) -> int:
        """The size it was created or opened with; a segment never grows."""
        ...

    def pread(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes from `offset`; fewer only at the end of the file."""
        ...

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a buffer, without making a new one; returns how much was there."""
        ...

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        """Write and say how much was taken: it may be less than given."""
        ...

    def pwrite_synced(self, data: bytes, offset: int) -> int:
        """As `pwrite`, and return when these bytes, maybe only these, survive a loss of power."""
        ...

    def begin_synced(self, data: bytes, offset: int) -> Flight | None:
        """Start a `pwrite_synced` and return; None, with nothing done, if it has to be a call.

        What lies behind it, up to the end of its last page of `PAGE_BYTES`, becomes zeros; so
        another one that begins before it is done must not touch that page.
        """
        ...

    def fdatasync(self) -> None:
        """Return when everything written so far survives a loss of power."""
        ...


class Disk(Protocol):
    """One directory: files are made, found, renamed and removed here."""

    @property
    def path(self) -> str:
        """Where it is, for people."""
        ...

    def lock(self) -> Callable[[], None]:
        """Take the directory for this store alone and return the release.

        `BlockingIOError` that names the holder if somebody has it.
        """
        ...

    def names(self) -> list[str]:
        """The files, sorted by name."""
        ...

    def room_bytes(self) -> int | None:
        """How many more bytes there is room for; None if that is not known."""
        ...

    def create(self, name: str, size: int) -> DiskFile:
        """Make a file of `size` zero bytes whose blocks are really there; replaces a leftover."""
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
        """Return when creations, renames and removals survive a loss of power."""
        ...


class OsFile:
    """A file descriptor that closes when nobody holds it any more.

    A reader may still hold a segment that compaction has removed; closing it by count of holders
    means that its descriptor is never reused under the reader's hands.
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
        # One call instead of two: a thread that comes back from a call waits for the interpreter.
        # Beside a thread that never stops running, two calls took 1.2 to 1.7 times as long as one.
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
    """A write that an `AioWriter` has under way."""

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
    """A directory of the machine; made, and made durable, if it is not there.

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
        # Where there are no numbers of files, as on btrfs, none can be left.
        has_files = found.f_favail > 0 or found.f_files == 0
        return found.f_bavail * found.f_frsize if has_files else 0

    def create(self, name: str, size: int) -> OsFile:
        # Zeros are really written: on ext4 a sync into merely allocated blocks costs about half
        # as much again. In pieces with a sync each, so that a sync of the log never waits for
        # more than one piece. Past the page cache if that can be: memory that nobody will read
        # took a seventh of the processor of a loaded server.
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
        _fsync_directory(self._path)

    def _writer(self) -> AioWriter | None:
        if self._aio is None and self._has_aio:
            try:
                self._aio = AioWriter()
            except OSError as error:
                self._has_aio = False
                _LOGGER.info("%s is written by threads: %s", self._path, error)
        return self._aio


def make_directory(path: Path) -> None:
    """Make a directory and its parents; their names survive a loss of power on return.

    Records are nobody else's business: only its owner and their group may look into it.
    """
    missing = [p for p in (path, *path.parents) if not p.exists()]
    if path.parent in missing:
        path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    for made in reversed(missing):
        _fsync_directory(made.parent)


def keep_private(path: Path) -> None:
    """Shut a directory that an earlier version left open to everybody, if it is ours."""
    mode = path.stat().st_mode
    if mode & 0o777 & ~DIRECTORY_MODE:
        with contextlib.suppress(PermissionError):
            path.chmod(mode & DIRECTORY_MODE)


def open_private(path: str, flags: int) -> int:
    """Open a file; a new one is for its owner and their group. An `opener` for `open`."""
    return os.open(path, flags, FILE_MODE)


def take_lock(path: str, lock: Callable[[], Callable[[], None]]) -> Callable[[], None]:
    """Take a lock and return its release, or say who holds it."""
    try:
        return lock()
    except BlockingIOError as error:
        raise AlreadyOpen(
            f"expected {path} to be free, found it {error.strerror}", path=path
        ) from None


def lock_directory(path: Path) -> Callable[[], None]:
    """Hold a directory until released or until the process ends, however it ends.

    A second holder is refused, also in the same process, with the pid of the first.
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
    # Written over in place: cutting it to nothing first makes ext4 flush it, 20 ms of an open.
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


def _fsync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
