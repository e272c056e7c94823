"""The format of a segment file: layout and checksums. No IO.

A segment is a header and then blocks, followed by zeros. A block begins where the previous one
ends, or at the next page if that one was still being written: concurrent writes must not share a
page. The gap is ignored. One `write` creates one block: a header, the payloads, and last a table of
fixed-size records. The table comes last because its final byte is never zero: a truncated write can
then not look like a whole block just because the missing bytes were zeros.

segment header   magic 8 · version 1 · pad 3 · store id 16 · number 8 · crc 4 ·
                     allocated size 8 · crc of that 4 · pad
    block header     crc 4 · magic 4 · version 1 · kind 1 · pad 2 · records 4 · body length 4 ·
                     sequence 8 · synced up to 8 · crc of the block before 4
    record           index 8 · term 8 · length and crc of the payload 8 · partition 4 · kind 4

All numbers are little-endian. A block's crc covers everything after itself and is seeded with the
store's random id, so bytes of another store never look valid.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.log.store import Damaged, UnknownFormat

VERSION: Final = 2
READABLE: Final = (1, 2)  # version 1 had no gaps

SEGMENT_MAGIC: Final = b"PENSTSEG"
SEGMENT_HEADER: Final = struct.Struct("<8sBxxx16sQI")
SEGMENT_HEADER_BYTES: Final = 64
_ALLOCATED: Final = struct.Struct("<QI")  # right after the header's checksum

BLOCK_MAGIC: Final = b"\xf5PBK"
BLOCK_HEADER: Final = struct.Struct("<I4sBBxxIIQQI")
BLOCK_HEADER_BYTES: Final = BLOCK_HEADER.size
BLOCK_BYTES_MAX: Final = 1 << 30
PAGE_BYTES: Final = 4_096
_BLOCK_UNSEALED: Final = struct.Struct("<4sBBxxIIQQI")
_CRC: Final = struct.Struct("<I")

RECORD: Final = struct.Struct("<QQQII")
RECORD_BYTES: Final = RECORD.size
ENTRY_ROW: Final = struct.Struct("<QQIIII")  # the same bytes, with length and crc separate

DATA_BLOCK: Final = 1
CHECKPOINT_BLOCK: Final = 2
SEAL_BLOCK: Final = 3

# Record kinds. The high byte makes the last byte of every block non-zero.
_KIND: Final = 0xA5 << 24
ENTRY: Final = _KIND | 1  # index, term, payload
COPY: Final = _KIND | 2  # as ENTRY, for an existing entry: its new location
TRUNCATE: Final = _KIND | 3  # index: the first one removed
COMPACT: Final = _KIND | 4  # index: the last one removed
BOUNDARY: Final = _KIND | 5  # index, term
HARD_STATE: Final = _KIND | 6  # index: the vote; term
SEAL: Final = _KIND | 7  # nothing; carries "synced up to" for what came before
STATE_BOUNDS: Final = _KIND | 8  # checkpoint: boundary index and term; third field: last index
STATE_HARD: Final = _KIND | 9  # checkpoint: vote, term

LENGTH_MASK: Final = 0xFFFF_FFFF

POSITION_SHIFT: Final = 40  # a position is segment number << 40 | offset in the file
OFFSET_MASK: Final = (1 << POSITION_SHIFT) - 1

SEAL_RECORD: Final = RECORD.pack(0, 0, 0, 0, SEAL)
SEAL_BYTES: Final = BLOCK_HEADER_BYTES + RECORD_BYTES

_SUFFIX: Final = ".segment"
PREPARING_SUFFIX: Final = ".preparing"


class BlockHead(NamedTuple):
    """The fields of a block header, as unpacked."""

    crc: int
    magic: bytes
    version: int
    kind: int
    records: int
    body_bytes: int
    sequence: int
    synced_upto: int
    previous_crc: int


def segment_name(number: int) -> str:
    """The file name of a segment; names sort by number."""
    return f"{number:010d}{_SUFFIX}"


def segment_number(name: str) -> int | None:
    """The number in a segment's file name, or None for any other file."""
    stem = name.removesuffix(_SUFFIX)
    return int(stem) if stem != name and stem.isdigit() else None


def seed_of(store_id: bytes) -> int:
    """The initial value of every checksum of a store."""
    return crc32c(store_id)


def encode_segment_header(store_id: bytes, number: int, size_bytes: int) -> bytes:
    """The first bytes of a segment file with the given allocated size."""
    body = SEGMENT_HEADER.pack(SEGMENT_MAGIC, VERSION, store_id, number, 0)[:-4]
    size = _ALLOCATED.pack(size_bytes, 0)[:-4]
    header = body + _CRC.pack(crc32c(body)) + size + _CRC.pack(crc32c(size))
    return header.ljust(SEGMENT_HEADER_BYTES, b"\0")


def check_allocated(name: str, data: bytes | bytearray | memoryview) -> None:
    """Refuse a segment that is shorter than its allocated size: a part of it was lost.

    A segment gets its name only once all of its bytes are on disk, so a crash cannot cause this.
    Segments of earlier versions do not record their size: they pass.
    """
    size_bytes, crc = _ALLOCATED.unpack_from(data, SEGMENT_HEADER.size)
    if not size_bytes and not crc:
        return
    if crc != crc32c(_ALLOCATED.pack(size_bytes, 0)[:-4]):
        raise Damaged(
            f"{name} at offset {SEGMENT_HEADER.size} is damaged: the checksum of the segment's "
            "size does not match",
            file=name,
            offset=SEGMENT_HEADER.size,
        )
    if len(data) < size_bytes:
        raise Damaged(
            f"{name} at offset {len(data)}: the file was cut short; it was made with {size_bytes} "
            "bytes",
            file=name,
            offset=len(data),
        )


def check_segment_header(name: str, data: bytes | bytearray | memoryview) -> bytes:
    """The store id in a segment's header; raises if the header is invalid."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise Damaged(
            f"{name} has {len(data)} bytes, less than the {SEGMENT_HEADER_BYTES} of a header",
            file=name,
            offset=0,
        )
    magic, version, store_id, number, crc = SEGMENT_HEADER.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise Damaged(
            f"{name}: expected a segment to start with {SEGMENT_MAGIC!r}, found {magic!r}",
            file=name,
            offset=0,
        )
    # The checksum first: a version that a damaged byte made is damage, not a newer format. Every
    # version keeps the layout of the header.
    wanted = crc32c(bytes(data[: SEGMENT_HEADER.size - 4]))
    if crc != wanted:
        raise Damaged(
            f"{name}: expected header checksum {wanted:#010x}, found {crc:#010x}",
            file=name,
            offset=0,
        )
    if version not in READABLE:
        raise UnknownFormat(
            f"{name}: expected a format version up to {VERSION}, found {version}",
            file=name,
            expected=VERSION,
            found=version,
        )
    if number != segment_number(name):
        raise Damaged(
            f"{name}: expected number {segment_number(name)} in the header, found {number}",
            file=name,
            offset=0,
        )
    return bytes(store_id)


def find_heads(data: memoryview, start: int) -> Iterator[tuple[int, BlockHead]]:
    """Everything from `start` on that may be the header of a block, with its offset.

    For damaged segments: a whole block is found at any offset.
    """
    text = bytes(data)  # a view cannot be searched
    at = text.find(BLOCK_MAGIC, start)
    while at >= 0:
        offset = at - 4
        if offset >= start and offset + BLOCK_HEADER_BYTES <= len(data):
            yield offset, BlockHead(*BLOCK_HEADER.unpack_from(data, offset))
        at = text.find(BLOCK_MAGIC, at + 1)


def is_whole(data: memoryview, offset: int, head: BlockHead, seed: int) -> bool:
    """Whether the block at an offset is there to its end, with the right checksum."""
    end = offset + BLOCK_HEADER_BYTES + head.body_bytes
    return end <= len(data) and crc32c(data[offset + 4 : end], seed) == head.crc


class BlockChain:
    """The end of the chain of blocks, which the next block's header must continue.

    Each block contains the checksum of the previous one, so a block left over from an earlier,
    failed attempt at the same place never continues a newer one.
    """

    __slots__ = ("crc", "seed", "sequence", "synced_upto")

    def __init__(self, seed: int, sequence: int = 0, crc: int = 0, synced_upto: int = 0) -> None:
        self.seed = seed
        self.sequence = sequence
        self.crc = crc
        self.synced_upto = synced_upto

    def block(self, kind: int, records: int, body: bytes) -> bytes:
        """Encode the next block and advance the chain."""
        self.sequence += 1
        head = _BLOCK_UNSEALED.pack(
            BLOCK_MAGIC,
            VERSION,
            kind,
            records,
            len(body),
            self.sequence,
            self.synced_upto,
            self.crc,
        )
        self.crc = crc32c(body, crc32c(head, self.seed))
        return b"".join((_CRC.pack(self.crc), head, body))


def checkpoint_body(states: Iterable[tuple[int, int, int, int, int, int]]) -> tuple[int, bytes]:
    """Records for (partition, boundary index and term, last index, term, vote) of each."""
    table = [SEAL_RECORD]
    for partition, boundary_index, boundary_term, last_index, term, vote in states:
        table.append(
            RECORD.pack(boundary_index, boundary_term, last_index, partition, STATE_BOUNDS)
        )
        table.append(RECORD.pack(vote, term, 0, partition, STATE_HARD))
    return len(table), b"".join(table)


def checkpoint_bytes(partitions: int) -> int:
    """The size of a checkpoint's body."""
    return RECORD_BYTES * (1 + 2 * partitions)
