"""The segment files of a store: created ahead of need, read, removed oldest first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future

from crc32c import crc32c

from penstock.kernel.errors import Unavailable
from penstock.log.disk import Disk, DiskFile
from penstock.log.store import Damaged
from penstock.log.stores.segment import format as fmt


class Segment:
    """One segment file and how much of it is live."""

    __slots__ = ("file", "live_bytes", "live_entries", "name", "number", "size")

    def __init__(self, number: int, file: DiskFile) -> None:
        self.number = number
        self.name = fmt.segment_name(number)
        self.file = file
        self.size = file.size
        self.live_entries = 0
        self.live_bytes = 0


class SegmentFiles:
    """Creates and removes segment files on a background executor.

    One worker is enough and keeps the order: removals must reach the disk oldest first, or a crash
    could leave a gap that looks like a lost file.
    """

    def __init__(self, disk: Disk, background: Executor, segment_bytes: int) -> None:
        self._disk = disk
        self._background = background
        self._segment_bytes = segment_bytes
        self._ahead: Future[Segment] | None = None
        self._removing: Future[None] | None = None
        self._doomed: list[str] = []

    def found(self) -> Iterator[tuple[int, str, DiskFile]]:
        """Open every segment, oldest first; remove unfinished files."""
        for name in self._disk.names():
            number = fmt.segment_number(name)
            if number is not None:
                yield number, name, self._disk.open(name)
            elif name.endswith(fmt.PREPARING_SUFFIX):
                self._disk.unlink(name)

    def make(self, number: int, store_id: bytes, bytes_min: int = 0) -> Segment:
        """Create a segment, durable under its name. Replaces an unused one of that number."""
        name = fmt.segment_name(number)
        preparing = name + fmt.PREPARING_SUFFIX
        try:
            size_bytes = max(self._segment_bytes, bytes_min)
            file = self._disk.create(preparing, size_bytes)
            write_all(file, fmt.encode_segment_header(store_id, number, size_bytes))
            file.fdatasync()
            self._disk.rename(preparing, name)
            self._disk.fsync_dir()
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.unlink(preparing)
            raise
        return Segment(number, file)

    def make_ahead(self, number: int, store_id: bytes) -> None:
        """Start creating the next segment, unless that is in progress. Never waits."""
        if self._ahead is None:
            self._ahead = self._background.submit(self.make, number, store_id)

    def adopt(self, segment: Segment) -> None:
        """Use an empty segment found at open as the one created ahead."""
        self._ahead = Future()
        self._ahead.set_result(segment)

    def next(self, number: int, store_id: bytes, bytes_min: int) -> Segment:
        """The next segment: the one created ahead if valid and large enough, else a new one."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            with contextlib.suppress(OSError):
                segment = ahead.result()
                if segment.size >= bytes_min:
                    return segment
        return self.make(number, store_id, bytes_min)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, oldest first, in the background; failures are retried next time."""
        self._doomed.extend(names)
        if self._doomed and (self._removing is None or self._removing.done()):
            self._removing = self._background.submit(self._remove_doomed)

    def drop(self, names: Iterable[str]) -> None:
        """Remove files now; on return the removal is durable."""
        for name in names:
            self._disk.unlink(name)
            self._disk.fsync_dir()

    def settle(self) -> None:
        """Wait for the background work."""
        for work in (self._ahead, self._removing):
            if work is not None:
                work.exception()

    def _remove_doomed(self) -> None:
        with contextlib.suppress(OSError):
            while self._doomed:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(self._doomed[0])
                self._disk.fsync_dir()
                del self._doomed[0]


def write_all(file: DiskFile, data: bytes, offset: int = 0) -> None:
    """Write all of it, retrying after partial writes."""
    done = file.pwrite(data, offset)
    while done < len(data):
        done += file.pwrite(memoryview(data)[done:], offset + done)


def read_payloads(
    segments: Mapping[int, Segment], positions: list[int], metas: list[int]
) -> list[bytes]:
    """Read payloads and verify their checksums; adjacent ones with one call."""
    payloads: list[bytes] = []
    at = 0
    while at < len(positions):
        end, stop = positions[at], at
        while stop < len(positions) and positions[stop] == end:
            end += metas[stop] & fmt.LENGTH_MASK
            stop += 1
        segment = segments[positions[at] >> fmt.POSITION_SHIFT]
        data = _pread(segment, positions[at], end - positions[at])
        for position, meta in zip(positions[at:stop], metas[at:stop], strict=True):
            start = position - positions[at]
            payload = data[start : start + (meta & fmt.LENGTH_MASK)]
            _check_payload(segment, position, meta, payload)
            payloads.append(payload)
        at = stop
    return payloads


def _pread(segment: Segment, position: int, count: int) -> bytes:
    try:
        return segment.file.pread(count, position & fmt.OFFSET_MASK)
    except OSError as error:
        raise Unavailable(f"cannot read {segment.name}: {error}", file=segment.name) from error


def _check_payload(segment: Segment, position: int, meta: int, payload: bytes) -> None:
    if len(payload) != meta & fmt.LENGTH_MASK or crc32c(payload) != meta >> 32:
        offset = position & fmt.OFFSET_MASK
        raise Damaged(
            f"{segment.name} at offset {offset}: expected {meta & fmt.LENGTH_MASK} bytes with "
            f"checksum {meta >> 32:#010x}, found {len(payload)} with {crc32c(payload):#010x}",
            file=segment.name,
            offset=offset,
        )
