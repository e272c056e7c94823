"""Cold records: immutable files of blocks, and what memory keeps of a block that it does not hold.

A segment is a run of records of one topic that changes no more: a header, blocks of records, an
index. Every part has a checksum. In memory a block has its place in the file and its tags; its
records come and go. Whether a record is still there is the topic's to say, not the file's.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec
from crc32c import crc32c
from msgspec import Struct

from penstock.kernel.errors import Corrupt
from penstock.kernel.units import KIB
from penstock.topics.core.batch import decode_records, encode_records
from penstock.topics.core.packed import Item, Packed
from penstock.topics.model import Record

MAGIC: Final = b"PENCOLD\n"
VERSION: Final = 1
BLOCK_RECORDS_MAX: Final = 1_024
BLOCK_BYTES_MAX: Final = 256 * KIB
FRAME: Final = struct.Struct("<II")  # length, checksum
HEADER: Final = struct.Struct("<8sI")  # magic, version; then one frame, then the blocks
_NO_TAG: Final = 0

Read = Callable[[int, int], bytes]
"""Bytes of a file: how many, from where. Fewer come only at its end."""


class Tags(NamedTuple):
    """The tags of a block's records: each text once, and for each record which one (0: none)."""

    texts: tuple[str, ...]
    codes: array[int]

    @classmethod
    def of(cls, records: Sequence[Record | None]) -> Tags | None:
        """The tags of these records; None if there are none at all."""
        known: dict[str, int] = {}
        codes = array("H")
        for record in records:
            tag = None if record is None else record.tag
            codes.append(_NO_TAG if tag is None else known.setdefault(tag, len(known) + 1))
        return cls(tuple(known), codes) if known else None

    def matching(self, matches: Callable[[str | None], bool]) -> list[int]:
        """The places of the records whose tag matches, in order."""
        wanted = {code for code, text in enumerate(self.texts, 1) if matches(text)}
        if not wanted:
            return []
        return [place for place, code in enumerate(self.codes) if code in wanted]


class Spill(Protocol):
    """A file that has records because memory has no room for them."""

    def read(self, count: int, offset: int) -> bytes:
        """So many bytes from there on."""
        ...


class Block:
    """A run of seqs whose records are in a file; `records` holds them while they are loaded.

    `touched` tells whoever keeps loaded blocks that this one was of use since it last asked.
    `spill` is the file itself, where that has no name: it is there as long as a block of it is.
    """

    __slots__ = (
        "file",
        "first_seq",
        "last_seq",
        "length",
        "offset",
        "pins",
        "records",
        "spill",
        "tags",
        "touched",
    )

    def __init__(
        self,
        file: str,
        offset: int,
        length: int,
        *,
        first_seq: int,
        last_seq: int,
        tags: Tags | None = None,
        spill: Spill | None = None,
    ) -> None:
        self.file = file
        self.offset = offset
        self.length = length
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.tags = tags
        self.spill = spill
        self.records: list[Record | None] | None = None
        self.pins = 0
        self.touched = False

    def __repr__(self) -> str:
        return f"Block({self.file}, seqs {self.first_seq} to {self.last_seq})"


class NotLoaded(Exception):
    """A record is wanted whose block is not in memory: load it, then ask again."""

    def __init__(self, block: Block) -> None:
        super().__init__(f"the records of {block} are not in memory")
        self.block = block


class Run(NamedTuple):
    """Consecutive slots of a topic: times, sizes (0: no record here), records or None for each."""

    first_seq: int
    times: array[int]
    sizes: array[int]
    records: list[Record | None]


class BlockPlace(Struct, frozen=True, array_like=True):
    """Where a block of a segment lies."""

    first_seq: int
    last_seq: int
    offset: int
    length: int


class SegmentHead(Struct, frozen=True, array_like=True):
    """Whose records a segment holds."""

    partition: int
    topic: str
    epoch: int


class _BlockBody(Struct, frozen=True, array_like=True):
    first_seq: int
    times: bytes
    sizes: bytes
    batch: bytes


class SegmentWriter:
    """Makes the bytes of one segment, piece by piece, and remembers where its blocks are."""

    def __init__(self, file: str, head: SegmentHead) -> None:
        self.file = file
        self.blocks: list[Block] = []
        self._head = head
        self.size_bytes = 0

    def start(self) -> bytes:
        """The first bytes."""
        return self._count(HEADER.pack(MAGIC, VERSION) + frame(_ENCODER.encode(self._head)))

    def block(self, run: Run) -> bytes:
        """The bytes of the next block."""
        data = frame(_ENCODER.encode(_body(run)))
        self.blocks.append(
            Block(
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
        """The index, and where it begins."""
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
    """Whose records a segment holds and where; `Corrupt` if it is not a whole segment."""
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
        raise Corrupt(f"{name}: expected the head and index of a segment, found {error}") from error


def read_block(file: str, read: Read, offset: int) -> Run:
    """The slots of one block, its checksum checked."""
    data, _ = read_frame(file, read, offset)
    try:
        body = _BODY_DECODER.decode(data)
        return decode_run(body.first_seq, body.times, body.sizes, body.batch)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"{file} at {offset}: expected a block, found {error}") from error


def spilled_bytes(first_seq: int, items: Sequence[Item]) -> bytes:
    """What slots keep, as it is: each request once, with the seq of its first record here."""
    pieces: list[tuple[int, bytes]] = []
    last: Item = None
    for seq, item in enumerate(items, first_seq):
        if item is None or (item is last and type(item) is Packed):
            continue
        last = item
        if type(item) is Packed:
            pieces += [(piece.first_seq, piece.body) for piece in item.pieces()]
        elif type(item) is bytes:
            pieces.append((seq, item))
        else:
            pieces.append((seq, encode_records([item])))  # type: ignore[list-item]
    return frame(_ENCODER.encode(pieces))


def read_spilled(block: Block) -> list[Record | None]:
    """The records of a block that was spilled, each at its place."""
    assert block.spill is not None
    data, _ = read_frame(block.file, block.spill.read, block.offset)
    records: list[Record | None] = [None] * (block.last_seq + 1 - block.first_seq)
    for first_seq, body in _PIECES_DECODER.decode(data):
        for place, record in enumerate(decode_records(body), first_seq - block.first_seq):
            if 0 <= place < len(records):
                records[place] = record
    return records


def frame(payload: bytes) -> bytes:
    """A payload with its length and checksum before it."""
    return FRAME.pack(len(payload), crc32c(payload)) + payload


def read_frame(name: str, read: Read, offset: int) -> tuple[bytes, int]:
    """The payload of the frame at an offset, and where the next one begins; or `Corrupt`."""
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


def encode_live(records: Sequence[Record | None]) -> bytes:
    """The records of a run that are there; b"" if none is."""
    live = [record for record in records if record is not None]
    return encode_records(live) if live else b""


def decode_run(first_seq: int, times: bytes, sizes: bytes, batch: bytes) -> Run:
    """The run that was encoded to these bytes."""
    run_sizes = array("Q", sizes)
    records: list[Record | None] = []
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
    return Run(first_seq, run_times, run_sizes, records)


def _body(run: Run) -> _BlockBody:
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
