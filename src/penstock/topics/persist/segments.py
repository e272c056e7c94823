"""Segments: immutable files of cold records of one topic, and which records go into one.

A segment is a header, blocks of records and an index; every part has a checksum. A block in a spill
file keeps its records as received.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from crc32c import crc32c
from msgspec import Struct

from penstock.kernel.errors import Corrupt, Rejected
from penstock.kernel.units import MIB
from penstock.topics.core.batch import Item, PackedRecords, decode_records, encode_records
from penstock.topics.core.cold_row import BLOCK_BYTES_MAX, ColdBlock, SlotRun, Tags
from penstock.topics.core.record import RawRecord
from penstock.topics.core.record_row import HOT_SLOT_BYTES
from penstock.topics.core.topic import Topic

MAGIC: Final = b"PENCOLD\n"
VERSION: Final = 1
FRAME: Final = struct.Struct("<II")  # length, checksum
HEADER: Final = struct.Struct("<8sI")  # magic, version; then one frame, then the blocks

Read = Callable[[int, int], bytes]
"""Read a file: count, then offset. Returns fewer bytes only at the end."""


class BlockPlace(Struct, frozen=True, array_like=True):
    """The location of a block in a segment."""

    first_seq: int
    last_seq: int
    offset: int
    length: int


class SegmentHead(Struct, frozen=True, array_like=True):
    """The topic of a segment's records."""

    partition: int
    topic: str
    epoch: int


class _BlockBody(Struct, frozen=True, array_like=True):
    first_seq: int
    times: bytes
    sizes: bytes
    batch: bytes


class SegmentWriter:
    """Encodes one segment, piece by piece, and records the location of its blocks."""

    def __init__(self, file: str, head: SegmentHead) -> None:
        self.file = file
        self.blocks: list[ColdBlock] = []
        self._head = head
        self.size_bytes = 0

    def start(self) -> bytes:
        """The first bytes."""
        return self._count(HEADER.pack(MAGIC, VERSION) + frame(_ENCODER.encode(self._head)))

    def block(self, run: SlotRun) -> bytes:
        """The bytes of the next block."""
        data = frame(_ENCODER.encode(_body(run)))
        self.blocks.append(
            ColdBlock(
                self.file,
                self.size_bytes,
                len(data),
                first_seq=run.first_seq,
                last_seq=run.first_seq + len(run.records) - 1,
                tags=Tags.of(run.records),
            )
        )
        return self._count(data)

    def end(self) -> bytes:
        """The index, and its offset."""
        at = self.size_bytes
        places = [
            BlockPlace(block.first_seq, block.last_seq, block.offset, block.length)
            for block in self.blocks
        ]
        return self._count(frame(_ENCODER.encode(places)) + _AT.pack(at))

    def _count(self, data: bytes) -> bytes:
        self.size_bytes += len(data)
        return data


def read_segment(name: str, read: Read, size_bytes: int) -> tuple[SegmentHead, list[BlockPlace]]:
    """The head and the blocks of a segment; `Corrupt` if it is not whole."""
    magic, version = HEADER.unpack(_exactly(name, read, HEADER.size, 0))
    if magic != MAGIC or version != VERSION:
        raise Corrupt(
            f"{name}: expected a segment of version {VERSION}, found {magic!r} of {version}"
        )
    head_data, _ = read_frame(name, read, HEADER.size)
    (at,) = _AT.unpack(_exactly(name, read, _AT.size, size_bytes - _AT.size))
    index_data, _ = read_frame(name, read, at)
    try:
        return _HEAD_DECODER.decode(head_data), _INDEX_DECODER.decode(index_data)
    except msgspec.DecodeError as error:
        raise Corrupt(f"{name}: malformed head or index of a segment: {error}") from error


def read_block(file: str, read: Read, offset: int) -> SlotRun:
    """The slots of one block, with its checksum verified."""
    data, _ = read_frame(file, read, offset)
    try:
        body = _BODY_DECODER.decode(data)
        return decode_run(body.first_seq, body.times, body.sizes, body.batch)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"{file} at offset {offset}: malformed block: {error}") from error


def spilled_bytes(first_seq: int, items: Sequence[Item]) -> bytes:
    """The content of slots, unchanged: each request once, with the seq of its first record here."""
    pieces: list[tuple[int, bytes]] = []
    last: Item = None
    for seq, item in enumerate(items, first_seq):
        if item is None or (item is last and type(item) is PackedRecords):
            continue
        last = item
        if type(item) is PackedRecords:
            pieces += [(piece.first_seq, piece.body) for piece in item.pieces()]
        elif type(item) is bytes:
            pieces.append((seq, item))
        else:
            pieces.append((seq, encode_records([item])))  # type: ignore[list-item]
    return frame(_ENCODER.encode(pieces))


def read_spilled(block: ColdBlock) -> list[RawRecord | None]:
    """The records of a spilled block, by position."""
    assert block.spill is not None
    data, _ = read_frame(block.file, block.spill.read, block.offset)
    records: list[RawRecord | None] = [None] * (block.last_seq + 1 - block.first_seq)
    for first_seq, body in _PIECES_DECODER.decode(data):
        for place, record in enumerate(decode_records(body), first_seq - block.first_seq):
            if 0 <= place < len(records):
                records[place] = record
    return records


def frame(payload: bytes) -> bytes:
    """A payload preceded by its length and checksum."""
    return FRAME.pack(len(payload), crc32c(payload)) + payload


def read_frame(name: str, read: Read, offset: int) -> tuple[bytes, int]:
    """The payload of the frame at an offset, and the next offset; or `Corrupt`."""
    length, crc = FRAME.unpack(_exactly(name, read, FRAME.size, offset))
    payload = read(length, offset + FRAME.size)
    if len(payload) != length or crc32c(payload) != crc:
        raise Corrupt(
            f"{name} at offset {offset}: expected {length} bytes with checksum {crc:#010x}, "
            f"found {len(payload)} with {crc32c(payload):#010x}",
            file=name,
            offset=offset,
        )
    return payload, offset + FRAME.size + length


def encode_live(records: Sequence[RawRecord | None]) -> bytes:
    """The non-empty records of a run; b"" if there are none."""
    live = [record for record in records if record is not None]
    return encode_records(live) if live else b""


def decode_run(first_seq: int, times: bytes, sizes: bytes, batch: bytes) -> SlotRun:
    """The run that was encoded to these bytes."""
    run_sizes = array("Q", sizes)
    records: list[RawRecord | None] = []
    if batch:
        live = decode_records(batch)
        if len(live) == len(run_sizes):
            records.extend(live)
        else:
            following = iter(live)
            records.extend(next(following) if size else None for size in run_sizes)
    else:
        records.extend([None] * len(run_sizes))
    run_times = array("q", times)
    if not len(run_times) == len(run_sizes) == len(records):
        raise ValueError(f"{len(run_times)} times and {len(run_sizes)} sizes")
    return SlotRun(first_seq, run_times, run_sizes, records)


def _body(run: SlotRun) -> _BlockBody:
    return _BlockBody(
        run.first_seq, run.times.tobytes(), run.sizes.tobytes(), encode_live(run.records)
    )


def _exactly(name: str, read: Read, count: int, offset: int) -> bytes:
    data = read(count, offset) if offset >= 0 else b""
    if len(data) != count:
        raise Corrupt(
            f"{name} at offset {offset}: expected {count} bytes, found {len(data)}",
            file=name,
            offset=offset,
        )
    return data


_AT: Final = struct.Struct("<Q")
_ENCODER: Final = msgspec.msgpack.Encoder()
_HEAD_DECODER: Final = msgspec.msgpack.Decoder(SegmentHead)
_INDEX_DECODER: Final = msgspec.msgpack.Decoder(list[BlockPlace])
_PIECES_DECODER: Final = msgspec.msgpack.Decoder(list[tuple[int, bytes]])
_BODY_DECODER: Final = msgspec.msgpack.Decoder(_BlockBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealOptions:
    """When records become cold.

    The last `hot_segments` times `segment_records_max` records of a topic stay hot, or fewer if
    they exceed `hot_bytes_max` bytes (0: no limit). From the records before those, a segment is
    made when it is full, or when its first record is older than `segment_age_ms_max`. If the hot
    records of all topics of a partition exceed `node_bytes_max` (0: no limit), the topics with the
    most bytes keep less.
    """

    segment_records_max: int = 10_000
    segment_bytes_max: int = 64 * MIB
    segment_age_ms_max: int = 3_600_000
    hot_segments: int = 4
    hot_bytes_max: int = 0
    node_bytes_max: int = 0

    def __post_init__(self) -> None:
        if min(self.segment_records_max, self.segment_bytes_max, self.segment_age_ms_max) < 1:
            raise Rejected(f"segments must have at least one record, byte and millisecond: {self}")
        if min(self.hot_segments, self.hot_bytes_max, self.node_bytes_max) < 0:
            raise Rejected(f"limits of hot records must not be negative: {self}")


def share_of_each(topics: Iterable[Topic], bytes_max: int) -> int:
    """How much each topic may keep so that all together stay within `bytes_max`; 0 if they do."""
    sizes = sorted(topic.row.hot_bytes for topic in topics)
    left = bytes_max
    if sum(sizes) <= bytes_max:
        return 0
    for place, size_bytes in enumerate(sizes):
        share = left // (len(sizes) - place)
        if size_bytes > share:
            return max(share, 1)
        left -= size_bytes
    return 0


def segments_to_seal(
    topic: Topic, options: SealOptions, now_ms: int, share_bytes: int = 0
) -> Iterator[list[SlotRun]]:
    """The next segments of a topic, oldest first, each as the runs of its blocks.

    Records that are only in memory are never included. A topic above its share seals the excess,
    even if that is less than a segment.
    """
    if topic.config.durability == "ephemeral":
        return
    slots = topic.row
    is_over = bool(share_bytes) and slots.hot_bytes > share_bytes
    caps = [cap for cap in (options.hot_bytes_max, share_bytes if is_over else 0) if cap]
    hot_slots = options.hot_segments * options.segment_records_max
    if is_over:
        hot_slots = min(hot_slots, max(1, share_bytes // HOT_SLOT_BYTES))
    end = slots.hot_from(hot_slots, min(caps, default=0))
    segment: list[SlotRun] = []
    records = size_bytes = 0
    for run in slots.runs(0, end, options.segment_records_max):
        run_bytes = sum(run.sizes)
        is_full = records + len(run.sizes) > options.segment_records_max
        if segment and (is_full or size_bytes + run_bytes > options.segment_bytes_max):
            yield segment
            segment, records, size_bytes = [], 0, 0
        segment.append(run)
        records += len(run.sizes)
        size_bytes += run_bytes
    if not segment:
        return
    is_full = records >= options.segment_records_max or size_bytes >= options.segment_bytes_max
    is_full = is_full or (is_over and size_bytes >= BLOCK_BYTES_MAX)
    if is_full or segment[0].times[0] < now_ms - options.segment_age_ms_max:
        yield segment
