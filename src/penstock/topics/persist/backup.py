"""Backups of a data directory, idle or in use: created, checked, restored.

A backup is itself a data directory, with a list of its files and their checksums. The list is
written last: a directory without one is not a backup.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from penstock.kernel.errors import Corrupt, Rejected, Unavailable
from penstock.kernel.units import MIB
from penstock.log.disk import make_directory, open_private, sync_directory
from penstock.log.store import Append, InstallBoundary, LogStore, Operation, SetHardState
from penstock.log.stores import open_store
from penstock.topics.persist.data_dir import (
    COLD_DIR,
    LOG_DIR,
    SNAPSHOT_DIR,
    Boot,
    ColdFiles,
    FoundSnapshot,
    Layout,
    SnapshotFiles,
    check_end,
    check_log_is_there,
    decode_file,
    read_boot,
    read_layout,
    summary_of,
    verify_snapshot,
    write_boot,
    write_file,
    write_layout,
)

LIST_FILE: Final = "backup.json"
VERSION: Final = 1
_PIECE_BYTES: Final = MIB
_READ_ENTRIES: Final = 1_024
_READ_BYTES: Final = 4 * MIB
_SEGMENT_BYTES: Final = 4 * MIB
"""Log segments are preallocated: small ones keep the backup of a small log small."""
_RESTORING: Final = ".restoring"

OnProgress = Callable[[str, int, int], None]
"""The current step, the amount done, the total; in bytes or log entries."""


class Pin(NamedTuple):
    """The part of one partition that a backup copies: a snapshot, and its log up to an index."""

    partition: int
    snapshot: FoundSnapshot | None
    upto_index: int


class BackupFile(msgspec.Struct, frozen=True):
    """One file of a backup; its path is relative to the backup's directory."""

    path: str
    size_bytes: int
    checksum: int


class BackupList(msgspec.Struct, frozen=True):
    """The content of a backup. `indexes` are the last log indexes of the partitions."""

    version: int
    made_ms: int
    store: str
    partitions: int
    indexes: list[int]
    files: list[BackupFile]

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.size_bytes for file in self.files)


def silent(_what: str, _done: int, _total: int) -> None:
    """Ignores progress."""


def pin_newest(store: LogStore, snapshots: SnapshotFiles, partitions: int) -> list[Pin]:
    """The newest whole snapshots of an idle directory, and all of its log."""
    bounds = [store.bounds(number) for number in range(partitions)]
    return [
        Pin(number, snapshots.choose(number, bound)[0], bound.last_index)
        for number, bound in enumerate(bounds)
    ]


def back_up_directory(
    directory: Path,
    dest: Path,
    *,
    cold_dir: Path | None = None,
    now_ms: int,
    on_progress: OnProgress = silent,
) -> BackupList:
    """Copy a data directory that is not in use; its lock is held meanwhile."""
    layout = read_layout(directory)
    if layout is None:
        raise Rejected(f"{directory} is not a data directory: it has no layout.json")
    check_log_is_there(directory)
    store = open_store(layout.store, directory / LOG_DIR)
    try:
        snapshots = SnapshotFiles(directory / SNAPSHOT_DIR)
        boot = read_boot(directory)
        for number in range(layout.partitions):
            check_end(boot, number, store.bounds(number))
        pins = pin_newest(store, snapshots, layout.partitions)
        cold = ColdFiles(cold_dir or directory / COLD_DIR)
        return copy_data(store, pins, cold, dest, now_ms=now_ms, on_progress=on_progress)
    finally:
        store.close()


def copy_data(
    store: LogStore,
    pins: Sequence[Pin],
    cold: ColdFiles,
    dest: Path,
    *,
    now_ms: int,
    on_progress: OnProgress = silent,
) -> BackupList:
    """Back up what is pinned. The caller keeps the pinned files in place."""
    check_empty(dest)
    with _whole_or_nothing(dest):
        make_directory(dest)
        _copy_files(pins, cold, dest, on_progress)
        kind = store.status().kind
        _copy_log(store, kind, pins, dest, on_progress)
        write_layout(dest, Layout(1, kind, len(pins), mixes_epochs=True))
        indexes = [pin.upto_index for pin in pins]
        write_boot(dest, Boot(None, clean=True, indexes=indexes))
        files = list(_listed(dest, on_progress))
        made = BackupList(VERSION, now_ms, kind, len(pins), indexes, files)
        write_file(dest / LIST_FILE, [msgspec.json.format(msgspec.json.encode(made), indent=2)])
    return made


def read_list(directory: Path) -> BackupList:
    """The list of a backup; refuses a directory that is not a backup."""
    found = decode_file(directory / LIST_FILE, BackupList, "a list of files")
    if found is None:
        raise Rejected(f"{directory} is not a backup: it has no {LIST_FILE}")
    if found.version != VERSION:
        raise Rejected(
            f"the backup is of version {found.version}, and this Penstock reads version {VERSION}"
        )
    return found


def check_listed(directory: Path, file: BackupFile) -> None:
    """Refuse a file of a backup that differs from its list."""
    with _reading(directory / file.path):
        _check_sum(directory / file.path, file, _sum(_pieces(directory / file.path)))


def restore(source: Path, directory: Path, *, on_progress: OnProgress = silent) -> BackupList:
    """Create a data directory from a backup, checking every byte; refuses a non-empty target."""
    listed = read_list(source)
    check_empty(directory)
    directory = directory.resolve()
    draft = directory.with_name(directory.name + _RESTORING)
    with _whole_or_nothing(draft):
        shutil.rmtree(draft, ignore_errors=True)
        _copy_listed(listed, source, draft, on_progress)
        # Readers may have seen more of the old directory than the backup has, so this one gets a
        # new identity.
        write_layout(draft, Layout(1, listed.store, listed.partitions, mixes_epochs=True))
        if directory.exists():
            directory.rmdir()
        draft.rename(directory)
        sync_directory(directory.parent)
    return listed


@contextlib.contextmanager
def _whole_or_nothing(made: Path) -> Iterator[None]:
    """Create a directory whole or not at all; a disk error is reported."""
    try:
        yield
    except BaseException as error:
        shutil.rmtree(made, ignore_errors=True)
        if isinstance(error, OSError):
            raise Unavailable(f"cannot write {made}: {error}") from error
        raise


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Report a read error with the name of the file read, not of the file being written."""
    try:
        yield
    except FileNotFoundError:
        raise Corrupt(f"{path} is missing", file=str(path)) from None
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}") from error


def _copy_listed(listed: BackupList, source: Path, draft: Path, on_progress: OnProgress) -> None:
    """Copy the files of a backup, checking every byte."""
    make_directory(draft)
    done = 0
    for file in listed.files:
        path = source / file.path
        target = draft / file.path
        make_directory(target.parent)
        _check_sum(path, file, _copy(path, target))
        done += file.size_bytes
        on_progress("restoring", done, listed.size_bytes)
    for made in {draft, *(path for path in draft.rglob("*") if path.is_dir())}:
        sync_directory(made)


def check_empty(directory: Path) -> None:
    """Refuse a directory that is not empty."""
    if directory.exists():
        if not directory.is_dir():
            raise Rejected(f"{directory} is a file: name a directory")
        if any(directory.iterdir()):
            raise Rejected(f"{directory} is not empty: name a new directory")


def _copy_files(pins: Sequence[Pin], cold: ColdFiles, dest: Path, on_progress: OnProgress) -> None:
    """Copy snapshots and the segments they need, and check the copies."""
    taken = [pin.snapshot for pin in pins if pin.snapshot is not None]
    segments = sorted({name for found in taken for name in _segments_of(found)})
    total = sum(_size(found.path) for found in taken)
    total += sum(_size(cold.path / name) for name in segments)
    done = 0
    for found in taken:
        target = dest / SNAPSHOT_DIR / found.path.name
        make_directory(target.parent)
        done += _copy(found.path, target)[0]
        verify_snapshot(target)
        on_progress("snapshots and segments", done, total)
    copies = ColdFiles(dest / COLD_DIR)
    for name in segments:
        make_directory(copies.path)
        done += _copy(cold.path / name, copies.path / name)[0]
        copies.verify(name)
        on_progress("snapshots and segments", done, total)
    for directory in (dest / SNAPSHOT_DIR, copies.path):
        if directory.exists():
            sync_directory(directory)


def _segments_of(found: FoundSnapshot) -> list[str]:
    with _reading(found.path):
        return summary_of(found.path).files


def _size(path: Path) -> int:
    with _reading(path):
        return path.stat().st_size


def _copy_log(
    store: LogStore, kind: str, pins: Sequence[Pin], dest: Path, on_progress: OnProgress
) -> None:
    """Write the pinned entries of each partition into a new log."""
    options = {"segment_bytes": _SEGMENT_BYTES} if kind == "segment" else {}
    copy = open_store(kind, dest / LOG_DIR, **options)
    try:
        total = sum(_log_length(pin, store) for pin in pins)
        done = 0
        for pin in pins:
            for operation, entries in _log_of(pin, store):
                failed = copy.write([operation], sync=False)
                if failed:
                    raise failed[pin.partition]
                done += entries
                on_progress("log", done, total)
        for pin in pins:
            failed = copy.write([_hard_state(pin.partition, store)], sync=True)
            if failed:
                raise failed[pin.partition]
    finally:
        copy.close()


def _log_length(pin: Pin, store: LogStore) -> int:
    return pin.upto_index - _start(pin, store)


def _start(pin: Pin, store: LogStore) -> int:
    """The index after which the copied log begins."""
    boundary = store.bounds(pin.partition).boundary_index
    index = pin.snapshot.index if pin.snapshot else 0
    if index < boundary:
        raise Corrupt(
            f"the snapshot of partition {pin.partition} is at index {index}, but its log begins "
            f"after {boundary}"
        )
    return index


def _log_of(pin: Pin, store: LogStore) -> Iterator[tuple[Operation, int]]:
    """The sources of a partition's copied log, with the number of entries from each."""
    index = _start(pin, store)
    if index:
        yield InstallBoundary(pin.partition, index, store.term_at(pin.partition, index)), 0
    while index < pin.upto_index:
        entries = store.read(
            pin.partition, index + 1, max_entries=_READ_ENTRIES, max_bytes=_READ_BYTES
        )
        entries = entries[: pin.upto_index - index]
        if not entries:
            raise Corrupt(f"the log ends before index {index + 1}")
        yield Append(pin.partition, entries), len(entries)
        index = entries[-1].index


def _hard_state(partition: int, store: LogStore) -> Operation:
    term, vote = store.hard_state(partition)
    return SetHardState(partition, max(term, 1), vote)


def _check_sum(path: Path, file: BackupFile, found: tuple[int, int]) -> None:
    if found != (file.size_bytes, file.checksum):
        raise Corrupt(
            f"{path}: expected {file.size_bytes} bytes with checksum {file.checksum:#010x}, "
            f"found {found[0]} with {found[1]:#010x}",
            file=str(path),
        )


def _listed(dest: Path, on_progress: OnProgress) -> Iterator[BackupFile]:
    paths = sorted(
        path for path in dest.rglob("*") if path.is_file() and path.name not in ("LOCK", LIST_FILE)
    )
    total = sum(path.stat().st_size for path in paths)
    done = 0
    for path in paths:
        size_bytes, checksum = _sum(_pieces(path))
        done += size_bytes
        on_progress("checksums", done, total)
        yield BackupFile(str(path.relative_to(dest)), size_bytes, checksum)


def _copy(source: Path, target: Path) -> tuple[int, int]:
    """Copy a file durably; return its size and checksum as read."""
    with open(target, "wb", opener=open_private) as file:

        def kept() -> Iterator[bytes]:
            for piece in _pieces(source):
                file.write(piece)
                yield piece

        found = _sum(kept())
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(OSError):
        shutil.copymode(source, target)
    return found


def _pieces(path: Path) -> Iterator[bytes]:
    with _reading(path), path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _sum(pieces: Iterable[bytes]) -> tuple[int, int]:
    size_bytes = checksum = 0
    for piece in pieces:
        size_bytes += len(piece)
        checksum = crc32c(piece, checksum)
    return size_bytes, checksum
