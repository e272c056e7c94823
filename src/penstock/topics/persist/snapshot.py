"""A partition as a file: the result of replaying its log up to an index, without the log.

A header, frames, an end. A frame holds a few entries that describe a part of the partition, so that
a large partition is loaded bit by bit. The end counts everything before it: a truncated file has no
end. Nothing that is only staged is in it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeVar

import msgspec
from crc32c import crc32c
from msgspec import Struct

from penstock.kernel.errors import Corrupt
from penstock.protocol.config import TopicConfig
from penstock.raft.members import Members
from penstock.topics.core.cold_row import ColdBlock, PackedRun, Tags, packed_run
from penstock.topics.core.entries import FeedMark
from penstock.topics.core.leases import JobLease
from penstock.topics.core.letters import Failure
from penstock.topics.core.partition import Partition
from penstock.topics.core.queue import Queue, QueueState
from penstock.topics.core.record_row import RecordRow
from penstock.topics.core.router import Router
from penstock.topics.core.space import KeptSpace, TopicSpace, parts_of, restore_part, state_of
from penstock.topics.core.topic import Topic
from penstock.topics.core.topic_state import Floors, Hole, KeyedAnswer, KeyedAnswers
from penstock.topics.persist.segments import Read, decode_run, encode_live, frame, read_frame

MAGIC: Final = b"PENSNAP\n"
VERSION: Final = 1
HEADER: Final = struct.Struct("<8sIIQI")  # magic, version, partition, index, checksum
_AT: Final = struct.Struct("<Q")  # offset of the end: the last bytes of the file
_T = TypeVar("_T")
_MANY: Final = 2_048
"""How many answers, leases or the like are in one entry."""


class SnapshotHeader(NamedTuple):
    """The partition of a snapshot, and the last log index in it."""

    partition: int
    index: int  # type: ignore[assignment]  # hides the method of a tuple


class KeptTopic(Struct, frozen=True, array_like=True, tag="T"):
    """The state of a topic; its records and answers follow.

    `base_seq` is that of its first slot.
    """

    topic: str
    config: TopicConfig
    epoch: int
    now_ms: int
    last_write_ms: int | None
    floors: Floors
    fed: list[FeedMark]
    base_seq: int
    reserved_seq: int
    holes: list[Hole] = []


class KeptCold(Struct, frozen=True, array_like=True, tag="C"):
    """The next slots of the topic are cold, with their location. No file: all were evicted."""

    file: str
    offset: int
    length: int
    first_seq: int
    last_seq: int
    run: PackedRun
    tags: list[str]
    tag_codes: bytes


class KeptBlock(Struct, frozen=True, array_like=True, tag="B"):
    """As `KeptCold`, in snapshots of earlier versions."""

    file: str
    offset: int
    length: int
    first_seq: int
    last_seq: int
    times: bytes
    sizes: bytes
    tags: list[str]
    tag_codes: bytes


class KeptRecords(Struct, frozen=True, array_like=True, tag="R"):
    """The next slots of the topic, including empty ones, and the records of the others.

    `topic` and `first_seq` are redundant unless an earlier part is unreadable.
    """

    times: bytes
    sizes: bytes
    batch: bytes
    topic: str = ""
    first_seq: int = 0


class KeptAnswers(Struct, frozen=True, array_like=True, tag="A"):
    """The next answers of the topic, oldest first."""

    answers: list[tuple[str, KeyedAnswer]]


class KeptQueue(Struct, frozen=True, array_like=True, tag="Q"):
    """A part of the topic's queue; the lists of several parts are concatenated."""

    fresh_seq: int
    dead_lettered: int
    leases: list[JobLease] = []
    delayed: list[tuple[int, int]] = []
    returned: list[int] = []
    deliveries: list[tuple[int, int]] = []
    failures: list[tuple[int, Failure]] = []


class KeptEnd(Struct, frozen=True, array_like=True, tag="E"):
    """The end of a topic."""


class KeptRouter(Struct, frozen=True, array_like=True, tag="U"):
    """A router with its position."""

    router: Router


class KeptEpoch(Struct, frozen=True, array_like=True, tag="N"):
    """The last epoch assigned to a topic, the latest time of an entry, the last term, the members.

    A snapshot of an earlier version has no time: that of its topics counts.
    """

    epoch: int
    now_ms: int = 0
    term: int = 0
    members: Members = Members(())


Kept = (
    KeptTopic
    | KeptCold
    | KeptBlock
    | KeptRecords
    | KeptAnswers
    | KeptQueue
    | KeptSpace
    | KeptEnd
    | KeptRouter
    | KeptEpoch
)


class Summary(Struct, frozen=True):
    """The end of a snapshot: counts of its content. `files` are the segments it needs."""

    frames: int
    topics: int
    records: int
    cold_records: int
    files: list[str]


def encode_snapshot(partition: Partition, header: SnapshotHeader) -> Iterator[bytes]:
    """Encode a snapshot, piece by piece. Nothing may be staged meanwhile."""
    yield _header(header)
    frames = records = cold = 0
    end_at = HEADER.size
    files: set[str] = set()
    for entries in _framed(partition, files):
        data = frame(_ENCODER.encode(entries))
        yield data
        frames += 1
        end_at += len(data)
    for topic in partition.topics.values():
        slots = topic.row
        cold += slots.cold.count
        records += slots.count - slots.cold.count
    summary = Summary(frames, len(partition.topics), records, cold, sorted(files))
    yield frame(b"")
    yield frame(_SUMMARY_ENCODER.encode(summary)) + _AT.pack(end_at)


class SnapshotReader:
    """Reads a snapshot front to back; raises `Corrupt` where it is damaged."""

    def __init__(self, name: str, read: Read) -> None:
        self.name = name
        self._read = read
        self.header = _read_header(name, read(HEADER.size, 0))
        self.offset = HEADER.size
        self.frames = 0
        self.summary: Summary | None = None  # known once all frames were read

    def payloads(self) -> Iterator[bytes]:
        """The payload of each frame, checked. `offset` is the progress."""
        while True:
            payload, self.offset = read_frame(self.name, self._read, self.offset)
            if not payload:
                break
            self.frames += 1
            yield payload
        payload, self.offset = read_frame(self.name, self._read, self.offset)
        try:
            self.summary = _SUMMARY_DECODER.decode(payload)
        except msgspec.DecodeError as error:
            raise Corrupt(f"{self.name}: malformed end of a snapshot: {error}") from error
        if self.summary.frames != self.frames:
            raise Corrupt(
                f"{self.name}: expected {self.summary.frames} frames, found {self.frames}"
            )


def read_summary(name: str, read: Read, size_bytes: int) -> Summary:
    """The summary of a snapshot, without reading all of it."""
    data = read(_AT.size, size_bytes - _AT.size) if size_bytes > HEADER.size + _AT.size else b""
    if len(data) != _AT.size:
        raise Corrupt(f"{name} has only {size_bytes} bytes, too few for a snapshot", file=name)
    payload, offset = read_frame(name, read, *_AT.unpack(data))
    if payload:
        raise Corrupt(f"{name} was cut short: it does not end as a snapshot does", file=name)
    payload, _ = read_frame(name, read, offset)
    try:
        return _SUMMARY_DECODER.decode(payload)
    except msgspec.DecodeError as error:
        raise Corrupt(f"{name}: malformed end of a snapshot: {error}") from error


def decode_kept(name: str, payload: bytes) -> list[Kept]:
    """The entries of a frame."""
    try:
        return _DECODER.decode(payload)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"{name}: malformed frame: {error}") from error


class Restoring:
    """Rebuilds a partition from a snapshot, frame by frame."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._topic: Topic | None = None
        self._answers: dict[str, KeyedAnswer] = {}
        self._queue: QueueState | None = None
        self._space: TopicSpace | None = None
        self.records = 0

    def take(self, entries: Iterable[Kept]) -> None:
        """Load the next frame."""
        for entry in entries:
            match entry:
                case KeptRecords():
                    self._take_records(entry)
                case KeptTopic():
                    self._begin(entry)
                case KeptCold() | KeptBlock():
                    self._take_block(entry)
                case KeptAnswers():
                    self._answers.update(entry.answers)
                case KeptQueue() | KeptSpace():
                    self._take_part(entry)
                case KeptEnd():
                    self._end()
                case KeptRouter():
                    self._partition.routers.restore(entry.router)
                case KeptEpoch():
                    self._partition.adopt(entry.epoch, entry.now_ms)
                    self._partition.term = entry.term
                    self._partition.members = entry.members

    def _begin(self, entry: KeptTopic) -> None:
        topic = Topic(entry.topic, entry.config, epoch=entry.epoch, now_ms=entry.now_ms)
        topic.last_write_ms = entry.last_write_ms
        topic.floors = entry.floors
        topic.fed = {feed.router: feed for feed in entry.fed}
        topic.reserved_seq = entry.reserved_seq
        topic.holes = entry.holes
        topic.row = RecordRow(entry.base_seq - 1)
        self._topic, self._answers, self._queue, self._space = topic, {}, None, None

    def _take_records(self, entry: KeptRecords) -> None:
        slots = self._here().row
        times, sizes = array("q", entry.times), array("Q", entry.sizes)
        if sizes.count(0):
            run = decode_run(slots.head_seq + 1, entry.times, entry.sizes, entry.batch)
            slots.take_run(times, sizes, run.records)
        else:
            slots.take_packed(times, sizes, entry.batch)
        self.records += len(sizes)

    def _take_block(self, entry: KeptCold | KeptBlock) -> None:
        tags = Tags(tuple(entry.tags), array("H", entry.tag_codes)) if entry.tags else None
        block = ColdBlock(
            entry.file,
            entry.offset,
            entry.length,
            first_seq=entry.first_seq,
            last_seq=entry.last_seq,
            tags=tags,
        )
        slots = self._here().row
        if isinstance(entry, KeptCold):
            slots.take_block(block, entry.run)
        elif entry.times:
            times, sizes = array("q", entry.times), array("Q", entry.sizes)
            slots.take_block(block, packed_run(slots.head_seq + 1, times, sizes))

    def _take_part(self, entry: KeptQueue | KeptSpace) -> None:
        if isinstance(entry, KeptSpace):
            self._take_space(entry)
        else:
            self._take_queue(entry)

    def _take_queue(self, entry: KeptQueue) -> None:
        before = self._queue or QueueState(entry.fresh_seq, (), (), (), (), entry.dead_lettered)
        self._queue = before._replace(
            leases=(*before.leases, *entry.leases),
            delayed=(*before.delayed, *entry.delayed),
            returned=(*before.returned, *entry.returned),
            deliveries=(*before.deliveries, *entry.deliveries),
            failures=(*before.failures, *entry.failures),
        )

    def _take_space(self, entry: KeptSpace) -> None:
        if self._space is None:
            self._space = TopicSpace(self._here(), self._partition.limits)
        restore_part(self._space.core, entry)

    def give_up(self) -> None:
        """Finish a topic early: the rest of it is lost."""
        if self._topic is not None:
            self._end()

    def _end(self) -> None:
        topic = self._here()
        topic.answers = KeyedAnswers(self._answers)
        topic.row.settle()
        queue = None if self._queue is None else Queue.restored(topic, self._queue)
        self._partition.adopt(topic.epoch, topic.now_ms, topic, queue, self._space)
        self._topic = None

    def _here(self) -> Topic:
        if self._topic is None:
            raise Corrupt("a snapshot has the content of a topic before the topic itself")
        return self._topic


def _framed(partition: Partition, files: set[str]) -> Iterator[list[Kept]]:
    """The entries of a partition: small ones of many topics in one frame, large ones alone."""
    here: list[Kept] = [
        KeptEpoch(partition.epoch, partition.now_ms, partition.term, partition.members)
    ]
    weight = 0
    for entry in chain(_topics(partition, files), _routers(partition)):
        here.append(entry)
        weight += _weight(entry)
        if weight >= _MANY:
            yield here
            here, weight = [], 0
    yield here


def _weight(entry: Kept) -> int:
    match entry:
        case KeptRecords():
            return max(len(entry.times) // 8, len(entry.batch) // 128)
        case KeptAnswers():
            return len(entry.answers)
        case KeptCold():
            return 64
        case KeptQueue() | KeptSpace():
            return _MANY
    return 4


def _routers(partition: Partition) -> Iterator[Kept]:
    for router in partition.routers:
        if router.config.dest in partition.topics:
            yield KeptRouter(router)


def _topics(partition: Partition, files: set[str]) -> Iterator[Kept]:
    for topic in partition.topics.values():
        slots = topic.row
        yield KeptTopic(
            topic.name,
            topic.config,
            topic.epoch,
            topic.now_ms,
            topic.last_write_ms,
            topic.floors,
            list(topic.fed.values()),
            slots.base_seq,
            topic.reserved_seq,
            topic.holes,
        )
        yield from _blocks(slots, files)
        for run in slots.runs():
            batch = encode_live(run.records)
            times, sizes = run.times.tobytes(), run.sizes.tobytes()
            yield KeptRecords(times, sizes, batch, topic.name, run.first_seq)
        for answers in _parts(tuple(topic.answers.kept().items())):
            yield KeptAnswers(answers)
        queue = partition.queues.get(topic.name)
        if queue is not None:
            yield from _queue(queue.state())
        space = partition.spaces.get(topic.name)
        if space is not None:
            yield from parts_of(state_of(space.core, topic.earliest_seq))
        yield KeptEnd()


def _blocks(slots: RecordRow, files: set[str]) -> Iterator[Kept]:
    """The cold slots. A file without live records is not named any more."""
    runs = [
        (block, slots.cold.packed(block.first_seq, block.last_seq)) for block in slots.cold.blocks
    ]
    wanted = {block.file for block, run in runs if run.live}
    files |= wanted
    for block, run in runs:
        yield KeptCold(
            block.file if block.file in wanted else "",
            block.offset,
            block.length,
            block.first_seq,
            block.last_seq,
            run,
            list(block.tags.texts) if block.tags else [],
            block.tags.codes.tobytes() if block.tags else b"",
        )


def _queue(state: QueueState) -> Iterator[Kept]:
    fresh_seq, dead_lettered = state.fresh_seq, state.dead_lettered
    yield KeptQueue(fresh_seq, dead_lettered)
    for leases in _parts(state.leases):
        yield KeptQueue(fresh_seq, dead_lettered, leases=leases)
    for delayed in _parts(state.delayed):
        yield KeptQueue(fresh_seq, dead_lettered, delayed=delayed)
    for returned in _parts(state.returned):
        yield KeptQueue(fresh_seq, dead_lettered, returned=returned)
    for deliveries in _parts(state.deliveries):
        yield KeptQueue(fresh_seq, dead_lettered, deliveries=deliveries)
    for failures in _parts(state.failures):
        yield KeptQueue(fresh_seq, dead_lettered, failures=failures)


def _parts(items: Sequence[_T]) -> Iterator[list[_T]]:
    for start in range(0, len(items), _MANY):
        yield [*items[start : start + _MANY]]


def _header(header: SnapshotHeader) -> bytes:
    body = HEADER.pack(MAGIC, VERSION, header.partition, header.index, 0)[:-4]
    return body + struct.pack("<I", crc32c(body))


def _read_header(name: str, data: bytes) -> SnapshotHeader:
    if len(data) < HEADER.size:
        raise Corrupt(
            f"{name} has {len(data)} bytes, less than the {HEADER.size} of a header",
            file=name,
            offset=0,
        )
    magic, version, partition, index, crc = HEADER.unpack(data)
    if magic != MAGIC:
        raise Corrupt(f"{name} is not a snapshot: it begins with {magic!r}", file=name, offset=0)
    if version != VERSION:
        raise Corrupt(
            f"{name}: expected a snapshot of version {VERSION}, found {version}", file=name
        )
    if crc != crc32c(data[:-4]):
        raise Corrupt(
            f"{name}: expected header checksum {crc32c(data[:-4]):#010x}, found {crc:#010x}",
            file=name,
            offset=0,
        )
    return SnapshotHeader(partition, index)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[Kept])
_SUMMARY_ENCODER: Final = msgspec.msgpack.Encoder()
_SUMMARY_DECODER: Final = msgspec.msgpack.Decoder(Summary)
