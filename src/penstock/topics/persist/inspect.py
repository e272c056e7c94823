"""Reads a data directory without a server, and without changing a byte of it.

The log of a segment store is read into memory, newest file first, so that a server may keep writing
it; its last writes may then be missing, but nothing is torn. Other stores are copied and opened as
copies, which requires an idle directory.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from penstock.kernel.errors import Corrupt, PenstockError, Rejected
from penstock.kernel.units import MIB
from penstock.log.disk import LOCK_NAME, lock_directory
from penstock.log.store import LogStore
from penstock.log.stores import open_store
from penstock.log.stores.segment import SegmentStore
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.codec import decode_entries
from penstock.topics.core.cold_row import ColdBlock, NotLoaded, SlotRun
from penstock.topics.core.partition import Partition
from penstock.topics.core.record import Found, records_json
from penstock.topics.core.record_row import Slot
from penstock.topics.core.registry import Registry, partition_of
from penstock.topics.core.topic import Topic
from penstock.topics.persist.backup import (
    LIST_FILE,
    BackupFile,
    OnProgress,
    check_listed,
    read_list,
    silent,
)
from penstock.topics.persist.data_dir import (
    BOOT_FILE,
    COLD_DIR,
    LAYOUT_FILE,
    LOG_DIR,
    SNAPSHOT_DIR,
    ColdFiles,
    FoundSnapshot,
    Layout,
    SnapshotFiles,
    check_boot,
    check_end,
    check_log_is_there,
    read_boot,
    read_layout,
    verify_snapshot,
)
from penstock.topics.persist.snapshot_worker import restore

_READ_ENTRIES: Final = 1_024
_TRIES: Final = 5
_T = TypeVar("_T")


class Inspection:
    """The content of a data directory."""

    def __init__(
        self,
        directory: Path,
        layout: Layout,
        store: LogStore,
        *,
        cold_dir: Path | None = None,
        on_progress: OnProgress = silent,
    ) -> None:
        self.directory = directory
        self.layout = layout
        self._store = store
        self._snapshots = SnapshotFiles(directory / SNAPSHOT_DIR)
        self._cold = ColdFiles(cold_dir or directory / COLD_DIR)
        self._on_progress = on_progress

    def overview(self) -> dict[str, Any]:
        """How the directory was created, and its files."""
        boot = read_boot(self.directory)
        snapshots = self._snapshots.all()
        return {
            "directory": str(self.directory),
            "store": self.layout.store,
            "partitions": self.layout.partitions,
            "ended_clean": None if boot is None else boot.clean,
            "log_entries": sum(row["entries"] for row in self.log()),
            "snapshots": len(snapshots),
            "snapshot_bytes": sum(each.path.stat().st_size for each in snapshots),
            "segments": len(self._cold.names()),
            "segment_bytes": sum(
                (self._cold.path / name).stat().st_size for name in self._cold.names()
            ),
        }

    def log(self) -> list[dict[str, Any]]:
        """Where the log of each partition begins and ends, and the snapshots."""
        rows = []
        for number in range(self.layout.partitions):
            bounds = self._store.bounds(number)
            rows.append(
                {
                    "partition": number,
                    "boundary_index": bounds.boundary_index,
                    "last_index": bounds.last_index,
                    "entries": bounds.last_index - bounds.boundary_index,
                    "snapshots": [each.index for each in self._snapshots.found(number)],
                }
            )
        return rows

    def topics(self) -> list[dict[str, Any]]:
        """Every topic after replay, by name."""
        rows = []
        for number in range(self.layout.partitions):
            self._on_progress("partitions", number, self.layout.partitions)
            partition = self.partition(number)
            rows += [_topic_row(topic, number) for topic in partition.topics.values()]
        self._on_progress("partitions", self.layout.partitions, self.layout.partitions)
        return sorted(rows, key=lambda row: str(row["topic"]))

    def spaces(self) -> list[dict[str, Any]]:
        """Every space after replay, by name: its numbers of entities, sessions and receipts."""
        rows: list[dict[str, Any]] = []
        for number in range(self.layout.partitions):
            for name, space in self.partition(number).spaces.items():
                head = {"space": name, "partition": number, "head_seq": space.topic.head_seq}
                rows.append({**head, **space.core.counts()._asdict()})
        return sorted(rows, key=lambda row: str(row["space"]))

    def record(self, topic: str, seq: int) -> dict[str, Any]:
        """One record, hot or cold; `Rejected` if it does not exist, `Corrupt` if it is lost."""
        return _looked(self.directory / LOG_DIR, lambda: self._record(topic, seq))

    def _record(self, topic: str, seq: int) -> dict[str, Any]:
        partition = self.partition(partition_of(topic, self.layout.partitions))
        found = partition.topics.get(topic)
        if found is None:
            raise Rejected(f"there is no topic {topic!r}")
        try:
            slot, place = found.slot(seq), "memory"
        except NotLoaded as missing:
            block = missing.block
            block.records = self._cold_run(block).records
            slot, place = found.slot(seq), block.file
        if slot is None:
            raise Rejected(
                f"topic {topic!r} has no record {seq}: its records are {found.earliest_seq} to "
                f"{found.head_seq}, of which {found.count} are left"
            )
        return {"topic": topic, "from": place, "record": json.loads(_shown(slot))}

    def _cold_run(self, block: ColdBlock) -> SlotRun:
        try:
            return self._cold.read(block)
        except FileNotFoundError:
            path = self._cold.path / block.file
            raise Corrupt(f"{path} is missing", file=str(path)) from None

    def entity(self, space: str, entity: str) -> dict[str, Any]:
        """One entity after replay; `Rejected` if it does not exist."""
        partition = self.partition(partition_of(space, self.layout.partitions))
        found = partition.space(space).core.entities.get(entity)
        if found is None or found.document is None:
            raise Rejected(f"space {space!r} has no entity {entity!r}")
        return {"entity": entity, "seq": found.seq, "doc": json.loads(found.document)}

    def verify(self) -> list[dict[str, Any]]:
        """Read every byte in use; one row for each item checked."""
        files = (self.directory / name for name in (LAYOUT_FILE, BOOT_FILE))
        segments = (self._cold.path / name for name in self._cold.names())
        return [
            *self._verified("file", files, self._verify_file),
            *self._verified("listed file", self._listed(), self._verify_listed),
            *self._verified("snapshot", self._snapshots.all(), self._verify_snapshot),
            *self._verified("segment", segments, self._verify_segment),
            *self._verified("partition", range(self.layout.partitions), self._verify_partition),
        ]

    def partition(self, number: int) -> Partition:
        """A partition from its newest snapshot and its log; `Corrupt` if either is damaged."""
        for _ in range(_TRIES):
            try:
                return self._replayed(number)
            except FileNotFoundError:
                continue  # a running server has replaced it by a newer snapshot
        raise Rejected(
            f"the files in {self.directory} keep changing: try again, or stop the server"
        )

    def _replayed(self, number: int) -> Partition:
        partition = Partition(Registry(TopicLimits(topics_max=0, routers_max=0)))
        bounds = self._store.bounds(number)
        check_end(read_boot(self.directory), number, bounds)
        index = 0
        found, _ = self._snapshots.choose(number, bounds)
        if found is not None:
            restore(partition, found.path)
            index = found.index
        while entries := self._store.read(
            number, index + 1, max_entries=_READ_ENTRIES, max_bytes=4 * MIB
        ):
            for entry in entries:
                partition.apply_all(decode_entries(entry.payload))
            index = entries[-1].index
        for topic in partition.topics.values():
            topic.lose_unlogged()
        return partition

    def _verified(
        self, kind: str, things: Any, look: Callable[[Any], tuple[str, str]]
    ) -> Iterator[dict[str, Any]]:
        things = list(things)
        for place, thing in enumerate(things):
            self._on_progress(f"{kind}s", place, len(things))
            name = str(getattr(thing, "path", thing))
            try:
                name, found = look(thing)
                yield {"kind": kind, "name": name, "ok": True, "found": found}
            except (PenstockError, OSError) as error:
                yield {"kind": kind, "name": name, "ok": False, "found": str(error)}
        self._on_progress(f"{kind}s", len(things), len(things))

    def _verify_file(self, path: Path) -> tuple[str, str]:
        if path.name == LAYOUT_FILE:
            layout = read_layout(self.directory) or self.layout
            return path.name, f"{layout.partitions} partitions of store {layout.store!r}"
        boot = check_boot(self.directory)
        if boot is None:
            return path.name, "not there yet"
        return path.name, "a clean end" if boot.clean else "no clean end, or a server that runs"

    def _listed(self) -> list[BackupFile]:
        """The files of a backup from its list; none for a data directory."""
        return read_list(self.directory).files if (self.directory / LIST_FILE).exists() else []

    def _verify_listed(self, file: BackupFile) -> tuple[str, str]:
        check_listed(self.directory, file)
        return file.path, f"{file.size_bytes} bytes, as its list says"

    def _verify_snapshot(self, found: FoundSnapshot) -> tuple[str, str]:
        _, summary = verify_snapshot(found.path)
        missing = self._cold.missing(summary.files)
        if missing:
            raise Corrupt(f"{found.path.name}: segment {missing[0]} is missing")
        said = f"{summary.topics} topics, {summary.records} records"
        if summary.files:
            said += f", {summary.cold_records} more in {len(summary.files)} segments"
        return found.path.name, said

    def _verify_segment(self, path: Path) -> tuple[str, str]:
        records = self._cold.verify(path.name)
        head, _ = self._cold.open(path.name)
        return path.name, f"{records} records of topic {head.topic!r}"

    def _verify_partition(self, number: int) -> tuple[str, str]:
        partition = self.partition(number)
        bounds = self._store.bounds(number)
        entries = bounds.last_index - bounds.boundary_index
        said = f"{len(partition.topics)} topics, after {entries} entries of the log"
        return str(number), said

    def unneeded(self) -> list[str]:
        """Segments that no snapshot names: the next start removes them unless files are damaged."""
        named = self._snapshots.files_named()
        return [name for name in self._cold.names() if name not in named]


@contextmanager
def inspect_directory(
    directory: Path, *, cold_dir: Path | None = None, on_progress: OnProgress = silent
) -> Iterator[Inspection]:
    """Open a data directory for inspection; nothing in it is changed."""
    layout = read_layout(directory)
    if layout is None:
        raise Rejected(f"{directory} is not a data directory: it has no layout.json")
    check_log_is_there(directory)
    with opened_log(layout, directory / LOG_DIR) as store:
        yield Inspection(directory, layout, store, cold_dir=cold_dir, on_progress=on_progress)


@contextmanager
def opened_log(layout: Layout, log: Path) -> Iterator[LogStore]:
    """The current log of a data directory; nothing in the directory is changed."""
    if layout.store == "segment":
        store: LogStore = _read_segments(log)
        try:
            yield store
        finally:
            store.close()
        return
    with tempfile.TemporaryDirectory() as copy:
        try:
            release = lock_directory(log)
        except PenstockError as error:
            raise Rejected(
                f"a {layout.store} log cannot be read while a server writes it: stop the server of "
                f"{log} first ({error})"
            ) from error
        try:
            target = Path(copy) / LOG_DIR
            shutil.copytree(log, target, ignore=shutil.ignore_patterns(LOCK_NAME))
        finally:
            release()
        store = open_store(layout.store, target)
        try:
            yield store
        finally:
            store.close()


def _read_segments(log: Path) -> LogStore:
    """The current log."""
    return _looked(log, lambda: SegmentStore(MemoryDisk(log)))


def _looked(log: Path, look: Callable[[], _T]) -> _T:
    """Run `look`; with a concurrent writer, apparent damage may be a torn read, so retry."""
    for _ in range(_TRIES - 1):
        try:
            return look()
        except Corrupt:
            if not is_locked(log):
                raise
    return look()


def is_locked(log: Path) -> bool:
    """Whether a server uses a log."""
    if not (log / LOCK_NAME).exists():
        return False
    with (log / LOCK_NAME).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class MemoryDisk:
    """A copy of a directory's files in memory, where all writes go.

    Files are read newest first, so that a file that is written meanwhile has at least what the
    later ones continue; if some vanish meanwhile, all are read again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = _read_all(path)

    @property
    def path(self) -> str:
        return str(self._path)

    def lock(self) -> Callable[[], None]:
        return lambda: None

    def room_bytes(self) -> int | None:
        """Not known."""
        return None

    def names(self) -> list[str]:
        return sorted(self._files)

    def create(self, name: str, size: int) -> MemoryFile:
        self._files[name] = bytearray(size)
        return MemoryFile(self._files[name])

    def open(self, name: str) -> MemoryFile:
        return MemoryFile(self._files[name])

    def rename(self, old: str, new: str) -> None:
        self._files[new] = self._files.pop(old)

    def unlink(self, name: str) -> None:
        del self._files[name]

    def fsync_dir(self) -> None:
        pass


class MemoryFile:
    """One file of a directory in memory."""

    def __init__(self, data: bytearray) -> None:
        self._data = data
        self.size = len(data)

    def pread(self, count: int, offset: int) -> bytes:
        return bytes(self._data[offset : offset + count])

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        data = self._data[offset : offset + len(buffer)]
        if data:  # else the buffer may be a read-only one
            buffer[: len(data)] = data
        return len(data)

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        self._data[offset : offset + len(data)] = data
        return len(data)

    pwrite_synced = pwrite

    def begin_synced(self, data: bytes, offset: int) -> None:
        pass

    def fdatasync(self) -> None:
        pass


def _read_all(path: Path) -> dict[str, bytearray]:
    if not path.is_dir():
        raise Rejected(f"there is no directory {path}")
    for _ in range(_TRIES):
        try:
            names = sorted((each.name for each in path.iterdir()), reverse=True)
            return {
                name: bytearray((path / name).read_bytes()) for name in names if name != LOCK_NAME
            }
        except FileNotFoundError:
            continue
    raise Rejected(f"the files in {path} keep changing: try again, or stop the server")


def _topic_row(topic: Topic, partition: int) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "partition": partition,
        "type": topic.config.type,
        "durability": topic.config.durability,
        "count": topic.count,
        "bytes": topic.size_bytes,
        "earliest_seq": topic.earliest_seq,
        "head_seq": topic.head_seq,
        "cold": topic.row.cold_count,
        "epoch": topic.epoch,
    }


def _shown(slot: Slot) -> bytes:
    return records_json(Found([slot.seq], [slot.ts_ms], [slot.record]), include_tags=True)
