"""The files of a data directory besides its log: snapshots, segments, the boot record.

A file gets its name only once all of it is on disk, so a named file is whole or damaged, never
partial.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeVar

import msgspec

from penstock.kernel.errors import Corrupt, Rejected
from penstock.log.disk import LOCK_NAME, make_directory, open_private, sync_directory
from penstock.log.store import Bounds
from penstock.log.stores.segment.format import PREPARING_SUFFIX
from penstock.topics.core.cold_row import ColdBlock, SlotRun
from penstock.topics.persist.segments import (
    BlockPlace,
    SegmentHead,
    SegmentWriter,
    read_block,
    read_segment,
)
from penstock.topics.persist.snapshot import SnapshotHeader, SnapshotReader, Summary, read_summary

LOG_DIR: Final = "log"
SNAPSHOT_DIR: Final = "snapshots"
COLD_DIR: Final = "cold"
LAYOUT_FILE: Final = "layout.json"
BOOT_FILE: Final = "boot.json"
OWNER_FILE: Final = "owner"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MAKING: Final = ".making"
_SNAPSHOT: Final = re.compile(r"(\d{5})-(\d{20})\.snapshot")
_SEGMENT: Final = re.compile(r"(\d{5})-(\d{20})-(\d+)-(\d+)(-[0-9a-f]{16})?\.segment")
_T = TypeVar("_T")


class File:
    """An open file, read by offset."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size_bytes = os.fstat(self._fd).st_size

    def read(self, count: int, offset: int) -> bytes:
        """Read `count` bytes from `offset`; fewer only at the end."""
        count = min(count, self.size_bytes - offset)  # corrupt input may contain any value
        if count <= 0:
            return b""
        data = os.pread(self._fd, count, offset)
        while len(data) < count:
            more = os.pread(self._fd, count - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FoundSnapshot(NamedTuple):
    """A snapshot by its name; it is validated when read."""

    partition: int
    index: int  # type: ignore[assignment]  # hides the method of a tuple
    path: Path


class DamagedSnapshot(NamedTuple):
    """A snapshot that cannot be used, and why."""

    path: Path
    reason: str


class SnapshotFiles:
    """The snapshots of a data directory. Every call blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def found(self, partition: int) -> list[FoundSnapshot]:
        """The snapshots of a partition, newest first."""
        return [each for each in self.all() if each.partition == partition]

    def all(self) -> list[FoundSnapshot]:
        """Every snapshot, newest first."""
        if not self.path.exists():
            return []
        found = [
            FoundSnapshot(int(match[1]), int(match[2]), path)
            for path in self.path.iterdir()
            if (match := _SNAPSHOT.fullmatch(path.name))
        ]
        return sorted(found, key=lambda each: each.index, reverse=True)

    def path_of(self, header: SnapshotHeader) -> Path:
        """The path of a snapshot."""
        return self.path / f"{header.partition:05d}-{header.index:020d}.snapshot"

    def choose(
        self, partition: int, bounds: Bounds
    ) -> tuple[FoundSnapshot | None, list[DamagedSnapshot]]:
        """The newest whole snapshot that the log continues, and the damaged ones.

        None to start empty. Raises `Corrupt` if the log does not start at the beginning, or ends
        before a snapshot of it.
        """
        damaged: list[DamagedSnapshot] = []
        found = self.found(partition)
        for each in found:
            if each.index > bounds.last_index:
                raise Corrupt(
                    f"the end of the log of partition {partition} is lost: it ends at index "
                    f"{bounds.last_index}, but {each.path.name} was made of it up to {each.index}",
                    partition=partition,
                    index=each.index,
                )
            if each.index < bounds.boundary_index:
                break  # the log does not reach back to it, nor to any older one
            try:
                verify_snapshot(each.path)
            except (Corrupt, OSError) as error:
                damaged.append(DamagedSnapshot(each.path, str(error)))
            else:
                return each, damaged
        if not bounds.boundary_index:
            return None, damaged
        reasons = "; ".join(f"{each.path.name}: {each.reason}" for each in damaged)
        raise Corrupt(
            f"the log of partition {partition} begins after index {bounds.boundary_index}, and no "
            "snapshot has what was before: "
            + (reasons or f"there are {len(found)} snapshots, all of them older"),
            partition=partition,
            boundary_index=bounds.boundary_index,
        )

    def incoming(self, partition: int, index: int) -> Path:
        """Where a snapshot of another member is put, whole, before it is used."""
        make_directory(self.path)
        return self.path / f"{partition:05d}-{index:020d}.incoming"

    def adopt(self, partition: int, index: int) -> Path:
        """Give an incoming snapshot, whose log is in place, its name."""
        path = self.path_of(SnapshotHeader(partition, index))
        self.incoming(partition, index).replace(path)
        sync_directory(self.path)
        return path

    def settle(self, partition: int, boundary_index: int) -> None:
        """After a crash: an incoming snapshot is used if the log continues it, else removed."""
        for path in self.path.glob(f"{partition:05d}-*.incoming"):
            index = int(path.stem.partition("-")[2])
            if index == boundary_index:
                self.adopt(partition, index)
            else:
                path.unlink()

    def keep(self, partition: int, indexes: Collection[int]) -> None:
        """Remove the snapshots of a partition except for some."""
        for each in self.found(partition):
            if each.index not in indexes:
                with contextlib.suppress(FileNotFoundError):
                    each.path.unlink()

    def sweep(self) -> None:
        """Remove unfinished files."""
        remove_unfinished(self.path)

    def files_named(self) -> set[str]:
        """The segments that any snapshot needs; raises `Corrupt` for an unreadable one."""
        named: set[str] = set()
        for each in self.all():
            named.update(summary_of(each.path).files)
        return named


def verify_snapshot(path: Path) -> tuple[SnapshotHeader, Summary]:
    """Read and check a whole snapshot; raises `Corrupt` with the reason."""
    with File(path) as file:
        reader = SnapshotReader(path.name, file.read)
        for _ in reader.payloads():
            pass
        match = _SNAPSHOT.fullmatch(path.name)
        named = (int(match[1]), int(match[2])) if match else None
        if named is not None and named != reader.header:
            raise Corrupt(f"{path.name}: its name does not agree with its header, {reader.header}")
        summary = read_summary(path.name, file.read, file.size_bytes)
        if summary != reader.summary:
            raise Corrupt(f"{path.name}: something follows the end of the snapshot")
        return reader.header, summary


def summary_of(path: Path) -> Summary:
    """The summary of a snapshot, from its end."""
    with File(path) as file:
        return read_summary(path.name, file.read, file.size_bytes)


class ColdFiles:
    """The segments of a data directory. Every call blocks; any thread may read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, head: SegmentHead, runs: Iterable[SlotRun]) -> list[ColdBlock]:
        """Write a segment; it is durable, and so is its name after `sync`."""
        make_directory(self.path)
        writer = SegmentWriter(name, head)

        def parts() -> Iterator[bytes]:
            yield writer.start()
            for run in runs:
                yield writer.block(run)
            yield writer.end()

        write_file(self.path / name, parts(), sync_directory=False)
        return writer.blocks

    def sync(self) -> None:
        """Make the names of the segments durable."""
        sync_directory(self.path)

    def read(self, block: ColdBlock) -> SlotRun:
        """The records of a block."""
        with File(self.path / block.file) as file:
            run = read_block(block.file, file.read, block.offset)
        if (run.first_seq, len(run.records)) != (
            block.first_seq,
            block.last_seq - block.first_seq + 1,
        ):
            raise Corrupt(
                f"{block.file} at {block.offset}: expected seqs {block.first_seq} to "
                f"{block.last_seq}, found {len(run.records)} from {run.first_seq} on"
            )
        return run

    def names(self) -> list[str]:
        """Every segment, by name."""
        if not self.path.exists():
            return []
        return sorted(path.name for path in self.path.iterdir() if self.is_name(path.name))

    @staticmethod
    def is_name(name: str) -> bool:
        """Whether a file of this name is a segment."""
        return _SEGMENT.fullmatch(name) is not None

    def open(self, name: str) -> tuple[SegmentHead, list[BlockPlace]]:
        """The topics and blocks of a segment."""
        with File(self.path / name) as file:
            return read_segment(name, file.read, file.size_bytes)

    def verify(self, name: str) -> int:
        """Read and check a whole segment; return its number of records."""
        with File(self.path / name) as file:
            _, places = read_segment(name, file.read, file.size_bytes)
            return sum(
                len(run.sizes) - run.sizes.count(0)
                for run in (read_block(name, file.read, place.offset) for place in places)
            )

    def sweep(self, wanted: set[str]) -> list[str]:
        """Remove every segment that is not wanted, and unfinished files."""
        remove_unfinished(self.path)
        gone = [name for name in self.names() if name not in wanted]
        for name in gone:
            with contextlib.suppress(FileNotFoundError):
                (self.path / name).unlink()
        return gone

    def missing(self, wanted: Iterable[str]) -> list[str]:
        """The wanted segments that do not exist."""
        return [name for name in wanted if not (self.path / name).is_file()]


def segment_partition(name: str) -> int:
    """The partition of a cold segment; 0 if its name does not say."""
    number = name.partition("-")[0]
    return int(number) if number.isdecimal() else 0


def segment_name(partition: int, index: int, now_ms: int, number: int, *, member: int = 0) -> str:
    """The name of a segment, from the first snapshot that names it and its time.

    A second attempt at the same snapshot writes other files and never overwrites one in use. In a
    cluster it carries the id of the member that made it: others make segments of the same index.
    """
    made_by = f"-{member:016x}" if member else ""
    return f"{partition:05d}-{index:020d}-{now_ms}-{number}{made_by}.segment"


class Boot(msgspec.Struct, frozen=True):
    """How a run of the node began and ended: the boot of the machine, and whether cleanly.

    `indexes` are the ends of the partitions' logs at the last clean shutdown: a log that ends
    before them has lost entries.
    """

    boot_id: str | None
    clean: bool
    indexes: list[int] = []


class Layout(msgspec.Struct, frozen=True):
    """How a data directory was created, and a unique identity.

    Epochs shown to readers are mixed with the identity, except in directories of earlier versions,
    whose readers know the plain ones.
    """

    version: int
    store: str
    partitions: int
    id: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))
    mixes_epochs: bool = False

    @property
    def identity(self) -> int:
        """The offset added to epochs shown to readers: the sum fits a JSON number."""
        return int(self.id, 16) >> 12 if self.mixes_epochs else 0


def read_boot(directory: Path) -> Boot | None:
    """How the last run ended; None if missing or unreadable."""
    try:
        return check_boot(directory)
    except Corrupt:
        return None


def check_boot(directory: Path) -> Boot | None:
    """How the last run ended; None if missing, `Corrupt` if unreadable."""
    return decode_file(directory / BOOT_FILE, Boot, "a record of the last start")


def check_end(boot: Boot | None, number: int, bounds: Bounds) -> None:
    """Refuse a partition's log that has lost its end since the last clean shutdown."""
    ends = boot.indexes if boot is not None else []
    if number < len(ends) and bounds.last_index < ends[number]:
        raise Corrupt(
            f"the end of the log of partition {number} is lost: it ends at index "
            f"{bounds.last_index}, but at the last clean shutdown it ended at {ends[number]}",
            partition=number,
            index=ends[number],
        )


def write_boot(directory: Path, boot: Boot) -> None:
    """Record how this run began, or that it ends."""
    write_file(directory / BOOT_FILE, [msgspec.json.encode(boot)])


def read_layout(directory: Path) -> Layout | None:
    """How a data directory was created; None if it was not created yet."""
    return decode_file(directory / LAYOUT_FILE, Layout, "a layout")


def write_layout(directory: Path, layout: Layout) -> None:
    """Record how a data directory is created."""
    write_file(directory / LAYOUT_FILE, [msgspec.json.encode(layout)])


def decode_file(path: Path, kind: type[_T], what: str) -> _T | None:
    """Decode a small JSON file; None if it is missing, `Corrupt` if it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{path} is not {what}: {error}", file=str(path)) from error


def check_log_is_there(directory: Path) -> None:
    """Refuse a data directory whose log is missing: it would start empty.

    The layout is written after the first file of the log is durable.
    """
    log = directory / LOG_DIR
    if not has_log(directory) and (directory / LAYOUT_FILE).exists():
        raise Corrupt(f"the log of the data directory is gone: {log} has no files", file=str(log))


def has_log(directory: Path) -> bool:
    """Whether a data directory has any file of a log."""
    log = directory / LOG_DIR
    names = [path.name for path in log.iterdir()] if log.is_dir() else []
    return any(name != LOCK_NAME and not name.endswith(PREPARING_SUFFIX) for name in names)


def take_cold_dir(cold: Path, layout: Layout) -> None:
    """Claim a separate directory of segments for this data directory.

    No snapshot here names the segments of another data directory: they would be removed.
    """
    path = cold / OWNER_FILE
    try:
        owner = path.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        write_file(path, [layout.id.encode()])
        return
    if owner != layout.id:
        raise Rejected(
            f"the cold directory {cold} belongs to data directory {owner}, not to this one, "
            f"{layout.id}"
        )


def this_boot_id() -> str | None:
    """The id of this boot of the machine; None where it is not available."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None


def write_file(path: Path, parts: Iterable[bytes], *, sync_directory: bool = True) -> int:
    """Write a file whole or not at all; it survives a power loss on return."""
    make_directory(path.parent)
    making = path.with_name(path.name + _MAKING)
    size_bytes = 0
    with open(making, "wb", buffering=1 << 20, opener=open_private) as file:
        for part in parts:
            file.write(part)
            size_bytes += len(part)
        file.flush()
        os.fsync(file.fileno())
    making.rename(path)
    if sync_directory:
        sync_directory_of(path)
    return size_bytes


def sync_directory_of(path: Path) -> None:
    """Make the name of a file durable."""
    sync_directory(path.parent)


def remove_unfinished(path: Path) -> None:
    """Remove the files of a directory that never got their final names."""
    if path.exists():
        for each in path.iterdir():
            if each.name.endswith(_MAKING):
                with contextlib.suppress(FileNotFoundError):
                    each.unlink()
