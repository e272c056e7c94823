"""Salvages a data directory that cannot be served: reports what is readable, and copies it.

Nothing in the directory is changed, not even its lock. Of each partition the newest whole snapshot
is used, then every log entry with a valid checksum. If no snapshot is whole, the valid frames of
the newest one are used, and the cold files, which name the topics of their records.
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.kernel.errors import Corrupt, PenstockError, Rejected, Unavailable
from penstock.kernel.units import MIB
from penstock.log.disk import make_directory, sync_directory
from penstock.log.store import InstallBoundary, Operation, SetHardState
from penstock.log.stores import open_store
from penstock.log.stores.segment import format as fmt
from penstock.log.stores.segment.salvage import LogSalvage, PartitionLog
from penstock.protocol.config import TopicConfig
from penstock.topics.core.codec import decode_entries
from penstock.topics.core.cold_row import ColdBlock, SlotRun
from penstock.topics.core.partition import Partition
from penstock.topics.core.topic import Topic
from penstock.topics.persist.backup import OnProgress, check_empty, silent
from penstock.topics.persist.data_dir import (
    COLD_DIR,
    LOG_DIR,
    SNAPSHOT_DIR,
    Boot,
    ColdFiles,
    File,
    FoundSnapshot,
    Layout,
    SnapshotFiles,
    read_boot,
    read_layout,
    segment_name,
    verify_snapshot,
    write_boot,
    write_file,
    write_layout,
)
from penstock.topics.persist.inspect import is_locked, opened_log
from penstock.topics.persist.rebuild import LostRecords, Rebuilding, joined
from penstock.topics.persist.segments import FRAME, SegmentHead, decode_run, read_block
from penstock.topics.persist.snapshot import (
    HEADER,
    KeptEpoch,
    KeptRecords,
    KeptRouter,
    KeptTopic,
    Restoring,
    SnapshotHeader,
    decode_kept,
    encode_snapshot,
)
from penstock.topics.persist.snapshot_worker import restore

_DRAFT: Final = ".salvaging"
_SEGMENT_BYTES: Final = 4 * MIB
_READ_ENTRIES: Final = 256
_FRAME_START: Final = re.compile(
    rb"(?:[\x90-\x9f]|\xdc..|\xdd....)(?:[\x90-\x9f]|\xdc..)\xa1[TBCRAQSEUN]", re.DOTALL
)
"""How the payload of a snapshot's frame begins: a list of lists that begin with a letter."""


_END_LOST: Final = "the end of the log is lost: topics may have had more records than are known"


class Damage(NamedTuple):
    """A file, or a part of one, that cannot be read."""

    file: str
    reason: str


class KeptTopicRow(NamedTuple):
    """A salvaged topic."""

    topic: str
    records: int
    earliest_seq: int
    head_seq: int


@dataclass(slots=True)
class Findings:
    """What is readable in a data directory, and what is not."""

    directory: str
    store: str = ""
    partitions: int = 0
    topics: list[KeptTopicRow] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    lost: list[LostRecords] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing or damaged."""
        return not (self.damage or self.lost or self.notes)

    @property
    def records_kept(self) -> int:
        """How many records can be read."""
        return sum(row.records for row in self.topics)

    @property
    def records_lost(self) -> int:
        """How many seqs are known to be lost."""
        return sum(each.last_seq - each.first_seq + 1 for each in self.lost)


def salvage(
    directory: Path,
    into: Path | None = None,
    *,
    cold_dir: Path | None = None,
    now_ms: int,
    on_progress: OnProgress = silent,
) -> Findings:
    """Report what is readable in a data directory; with `into`, create a new one from it."""
    if is_locked(directory / LOG_DIR):
        raise Rejected(f"a server is using {directory}: stop it first")
    if into is None:
        return _Salvage(directory, cold_dir, now_ms).run(None, on_progress)
    check_empty(into)
    into = into.resolve()
    if into.is_relative_to(directory.resolve()):
        raise Rejected(f"{into} is inside of {directory}: name a place outside of it")
    draft = into.with_name(into.name + _DRAFT)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        make_directory(draft)
        findings = _Salvage(directory, cold_dir, now_ms).run(draft, on_progress)
        if into.exists():
            into.rmdir()
        draft.rename(into)
        sync_directory(into.parent)
    except OSError as error:
        raise Unavailable(f"cannot write {into}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return findings


class _Salvage:
    def __init__(self, directory: Path, cold_dir: Path | None, now_ms: int) -> None:
        self._directory = directory
        self._snapshots = SnapshotFiles(directory / SNAPSHOT_DIR)
        self._cold = ColdFiles(cold_dir or directory / COLD_DIR)
        self._now_ms = now_ms
        self._logs: dict[int, PartitionLog] = {}
        self.findings = Findings(str(directory))

    def run(self, draft: Path | None, on_progress: OnProgress) -> Findings:
        findings = self.findings
        layout = self._layout()
        if layout is None or layout.store == "segment":
            self._read_segments(on_progress)
        else:
            self._read_store(layout)
        layout = layout or self._guessed()
        findings.store, findings.partitions = layout.store, layout.partitions
        ends = self._ends()
        indexes: list[int] = []
        for number in range(layout.partitions):
            on_progress("partitions", number, layout.partitions)
            log = self._logs.get(number, PartitionLog())
            log.last_index = max(log.last_index, *ends[number : number + 1], 0)
            rebuilt, index = self._rebuilt(number, log)
            self._check_cold(rebuilt)
            findings.lost += rebuilt.lost
            findings.notes += rebuilt.notes
            findings.topics += [_row(topic) for topic in rebuilt.partition.topics.values()]
            if draft is not None:
                index = max(index, 1)
                self._write(draft, number, index, rebuilt.partition)
            indexes.append(index)
        on_progress("partitions", layout.partitions, layout.partitions)
        if draft is not None:
            _finish(draft, Layout(1, layout.store, layout.partitions, mixes_epochs=True), indexes)
        findings.lost = joined(findings.lost)
        findings.topics.sort()
        return findings

    def _damaged(self, path: Path | str, reason: object) -> None:
        self.findings.damage.append(Damage(str(path), str(reason)))

    # Reading

    def _layout(self) -> Layout | None:
        try:
            layout = read_layout(self._directory)
        except Corrupt as error:
            self._damaged(self._directory / "layout.json", error)
            return None
        if layout is None:
            if not (self._directory / LOG_DIR).is_dir() and not self._snapshots.all():
                raise Rejected(f"{self._directory} is not a data directory: it has no layout.json")
            self._damaged(self._directory / "layout.json", "it is missing")
        return layout

    def _guessed(self) -> Layout:
        """The layout, derived from the partition numbers in names."""
        numbers = [*self._logs, *(found.partition for found in self._snapshots.all())]
        if not numbers:
            raise Corrupt(f"nothing that can be read was found in {self._directory}")
        self.findings.notes.append(
            f"the layout cannot be read: taken to have {max(numbers) + 1} partitions of the store "
            "'segment'"
        )
        return Layout(1, "segment", max(numbers) + 1)

    def _ends(self) -> list[int]:
        """Where the logs ended at the last clean shutdown."""
        boot = read_boot(self._directory)
        return boot.indexes if boot is not None else []

    def _read_segments(self, on_progress: OnProgress) -> None:
        log = self._directory / LOG_DIR
        found = sorted(log.glob("*.segment")) if log.is_dir() else []
        paths = [path for path in found if fmt.segment_number(path.name) is not None]
        if not paths:
            self._damaged(log, "it holds no file of the log")
        salvaged = LogSalvage()
        for path in paths:
            with File(path) as file:
                salvaged.learn(path.name, memoryview(file.read(fmt.SEGMENT_HEADER_BYTES, 0)))
        for place, path in enumerate(paths):
            on_progress("log", place, len(paths))
            try:
                salvaged.segment(path.name, memoryview(path.read_bytes()))
            except OSError as error:
                self._damaged(path, error)
        if salvaged.is_cut or not paths:
            self.findings.notes.append(_END_LOST)
        for file_name, offset, reason in salvaged.damage:
            self._damaged(log / file_name, f"at offset {offset}: {reason}")
        self._logs = salvaged.partitions

    def _read_store(self, layout: Layout) -> None:
        """The log of another store, as far as it can be read."""
        log = self._directory / LOG_DIR
        try:
            with opened_log(layout, log) as store:
                for number in range(layout.partitions):
                    bounds = store.bounds(number)
                    found = PartitionLog({}, bounds.boundary_index, bounds.last_index)
                    self._logs[number] = found
                    index = bounds.boundary_index
                    while index < bounds.last_index:
                        for entry in store.read(
                            number, index + 1, max_entries=_READ_ENTRIES, max_bytes=4 * MIB
                        ):
                            found.entries[entry.index] = entry.payload
                            index = entry.index
        except (PenstockError, OSError) as error:
            self._damaged(log, error)

    # Partitions

    def _rebuilt(self, number: int, log: PartitionLog) -> tuple[Rebuilding, int]:
        """A partition from its best snapshot and its log, and the last index in it."""
        rebuilding = Rebuilding()
        expected = self._begin(rebuilding, number, log) + 1
        why = ""
        for index in sorted(index for index in log.entries if index >= expected):
            if index > expected:
                why = self._miss(number, expected, index - 1)
            try:
                entries = decode_entries(log.entries[index])
            except Corrupt as error:
                why = f"log entry {index} of partition {number}"
                self._damaged(self._directory / LOG_DIR, f"{why}: {error}")
            else:
                rebuilding.replay(entries, why or "it was not in the log")
            expected = index + 1
        if expected <= log.last_index:
            self._miss(number, expected, log.last_index)
            rebuilding.notes.append(f"partition {number}: {_END_LOST}")
        for topic in rebuilding.partition.topics.values():
            topic.lose_unlogged()
        return rebuilding, max(expected - 1, log.last_index)

    def _miss(self, number: int, first: int, last: int) -> str:
        entries = f"log entry {first}" if first == last else f"log entries {first} to {last}"
        why = f"{entries} of partition {number} cannot be read"
        self._damaged(self._directory / LOG_DIR, why)
        return why

    def _begin(self, rebuilding: Rebuilding, number: int, log: PartitionLog) -> int:
        """Load the newest whole snapshot; return its log index."""
        damaged: list[FoundSnapshot] = []
        for found in self._snapshots.found(number):
            try:
                verify_snapshot(found.path)
                restore(rebuilding.partition, found.path)
            except (Corrupt, OSError) as error:
                damaged.append(found)
                self._damaged(found.path, error)
            else:
                return found.index
        if not log.boundary_index and (1 in log.entries or not damaged):
            return 0  # the log has everything
        pieces: dict[str, list[SlotRun]] = defaultdict(list)
        for found in damaged[:1]:
            self._take_frames(rebuilding, found.path, pieces)
        self._adopt_cold(rebuilding, number, pieces)
        why = "its snapshot cannot be read"
        for name, runs in pieces.items():
            topic = rebuilding.partition.topics.get(name)
            if topic is None:
                topic = rebuilding.make(name, TopicConfig(), self._now_ms)
            rebuilding.assemble(topic, [*_runs(topic, self._cold), *runs], why)
        return max([log.boundary_index, *(found.index for found in damaged[:1])])

    def _take_frames(
        self, rebuilding: Rebuilding, path: Path, pieces: dict[str, list[SlotRun]]
    ) -> None:
        """Load the valid frames of a damaged snapshot."""
        restoring, is_lost = Restoring(rebuilding.partition), False
        for payload in _frames(path):
            if payload is None:
                restoring.give_up()
                is_lost = True
                continue
            for entry in decode_kept(path.name, payload):
                if isinstance(entry, KeptTopic):
                    restoring.give_up()
                    is_lost = False
                if not is_lost or isinstance(entry, KeptRouter | KeptEpoch):
                    restoring.take([entry])
                elif isinstance(entry, KeptRecords) and entry.topic:
                    run = decode_run(entry.first_seq, entry.times, entry.sizes, entry.batch)
                    pieces[entry.topic].append(run)
        restoring.give_up()
        for topic in rebuilding.partition.topics.values():
            rebuilding.complete(topic)

    def _adopt_cold(
        self, rebuilding: Rebuilding, number: int, pieces: dict[str, list[SlotRun]]
    ) -> None:
        """Load the records of cold files that are not referenced any more."""
        topics = rebuilding.partition.topics
        named = {block.file for topic in topics.values() for block in topic.row.cold.blocks}
        for name in self._cold.names():
            if name in named:
                continue
            try:
                head, places = self._cold.open(name)
            except (Corrupt, OSError) as error:
                self._damaged(self._cold.path / name, error)
                continue
            known = topics.get(head.topic)
            if head.partition != number or (known is not None and known.epoch != head.epoch):
                continue
            if known is None:
                rebuilding.make(head.topic, TopicConfig(), self._now_ms, head.epoch)
            with File(self._cold.path / name) as file:
                for place in places:
                    try:
                        pieces[head.topic].append(read_block(name, file.read, place.offset))
                    except Corrupt as error:
                        self._damaged(self._cold.path / name, error)

    def _check_cold(self, rebuilding: Rebuilding) -> None:
        """Read every referenced block: what cannot be read is lost."""
        told: set[str] = set()
        for topic in rebuilding.partition.topics.values():
            for block in list(topic.row.cold.blocks):
                if not any(topic.row.cold.span(block.first_seq, block.last_seq)[1]):
                    continue
                try:
                    self._cold.read(block)
                except (Corrupt, OSError) as error:
                    missing = isinstance(error, FileNotFoundError)
                    reason = "it is missing" if missing else str(error)
                    if not missing or block.file not in told:
                        self._damaged(self._cold.path / block.file, reason)
                    told.add(block.file)
                    why = f"cold file {block.file} is {'missing' if missing else 'damaged'}"
                    rebuilding.lose_block(topic, block, why)

    # The new directory

    def _write(self, draft: Path, number: int, index: int, partition: Partition) -> None:
        """Write a partition as one snapshot with its cold files."""
        cold = ColdFiles(draft / COLD_DIR)
        count = 0
        for topic in partition.topics.values():
            by_file: dict[str, list[ColdBlock]] = defaultdict(list)
            for block in topic.row.cold.blocks:
                if any(topic.row.cold.span(block.first_seq, block.last_seq)[1]):
                    by_file[block.file].append(block)
            head = SegmentHead(number, topic.name, topic.epoch)
            for blocks in by_file.values():
                name = segment_name(number, index, self._now_ms, count)
                count += 1
                written = cold.write(name, head, (self._cold.read(block) for block in blocks))
                for block, place in zip(blocks, written, strict=True):
                    block.file, block.offset, block.length = name, place.offset, place.length
        if count:
            cold.sync()
        header = SnapshotHeader(number, index)
        path = SnapshotFiles(draft / SNAPSHOT_DIR).path_of(header)
        write_file(path, encode_snapshot(partition, header))


def _finish(draft: Path, layout: Layout, indexes: list[int]) -> None:
    """Write the log, which begins after the snapshots, and the layout."""
    options = {"segment_bytes": _SEGMENT_BYTES} if layout.store == "segment" else {}
    store = open_store(layout.store, draft / LOG_DIR, **options)
    try:
        for number, index in enumerate(indexes):
            group: list[Operation] = [InstallBoundary(number, index, 1), SetHardState(number, 1, 0)]
            for error in store.write(group, sync=True).values():
                raise error
    finally:
        store.close()
    write_layout(draft, layout)
    write_boot(draft, Boot(None, clean=True, indexes=indexes))


def _runs(topic: Topic, cold: ColdFiles) -> Iterator[SlotRun]:
    """All slots of a topic, with the readable records of cold ones."""
    slots = topic.row
    for block in slots.cold.blocks:
        times, sizes = slots.cold.span(block.first_seq, block.last_seq)
        first_seq = max(block.first_seq, slots.base_seq)
        try:
            records = cold.read(block).records[first_seq - block.first_seq :]
        except (Corrupt, OSError):
            continue
        kept = [record if size else None for record, size in zip(records, sizes, strict=True)]
        yield SlotRun(first_seq, times, sizes, kept)
    yield from slots.runs()


def _frames(path: Path) -> Iterator[bytes | None]:
    """The payloads of a snapshot's valid frames; None where some are lost."""
    data = path.read_bytes()

    def payload_at(offset: int) -> bytes | None:
        if offset + FRAME.size > len(data):
            return None
        length, crc = FRAME.unpack_from(data, offset)
        payload = data[offset + FRAME.size : offset + FRAME.size + length]
        return payload if len(payload) == length and crc32c(payload) == crc else None

    offset = HEADER.size
    while offset < len(data):
        payload = payload_at(offset)
        if payload == b"":
            return
        if payload is not None:
            yield payload
            offset += FRAME.size + len(payload)
            continue
        yield None
        offset += 1
        for match in _FRAME_START.finditer(data, offset + FRAME.size):
            if payload_at(match.start() - FRAME.size):
                offset = match.start() - FRAME.size
                break
        else:
            return


def _row(topic: Topic) -> KeptTopicRow:
    return KeptTopicRow(topic.name, topic.count, topic.earliest_seq, topic.head_seq)
