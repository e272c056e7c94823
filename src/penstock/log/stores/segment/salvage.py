"""Salvage of segments that recovery refuses: every entry with a valid checksum.

Blocks are searched for at every offset, so that damage affects only what it hit; from a damaged
block, entries with valid checksums are taken. No IO.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.kernel.errors import Corrupt
from penstock.log.stores.segment import format as fmt

_HEAD: Final = fmt.BLOCK_HEADER_BYTES
_KINDS: Final = range(fmt.ENTRY, fmt.STATE_HARD + 1)
_BLOCK_KINDS: Final = (fmt.DATA_BLOCK, fmt.CHECKPOINT_BLOCK, fmt.SEAL_BLOCK)


class LogDamage(NamedTuple):
    """A part of a segment that cannot be read."""

    file: str
    offset: int
    reason: str


@dataclass(slots=True)
class PartitionLog:
    """The entries found for one partition, and where its log should begin and end."""

    entries: dict[int, bytes] = field(default_factory=dict)
    boundary_index: int = 0
    last_index: int = 0


class LogSalvage:
    """Takes segments in order, one call each, and keeps what is readable."""

    def __init__(self) -> None:
        self.partitions: dict[int, PartitionLog] = {}
        self.damage: list[LogDamage] = []
        self.is_cut = False  # a segment was truncated, and what was lost is not known
        self._seed: int | None = None
        self._sequence = 0

    def learn(self, name: str, data: memoryview) -> None:
        """Take the store's id, the seed of every checksum, from an intact header."""
        if self._seed is None:
            try:
                self._seed = fmt.seed_of(fmt.check_segment_header(name, data))
            except Corrupt:
                return

    def segment(self, name: str, data: memoryview) -> None:
        """Process the readable part of the next segment."""
        for check in (fmt.check_segment_header, fmt.check_allocated):
            try:
                if check is fmt.check_segment_header or len(data) >= fmt.SEGMENT_HEADER_BYTES:
                    check(name, data)
            except Corrupt as error:
                self.damage.append(LogDamage(name, error.detail.get("offset", 0), error.message))
                self.is_cut = self.is_cut or check is fmt.check_allocated or not len(data)
        end = min(fmt.SEGMENT_HEADER_BYTES, len(data))
        for offset, head in fmt.find_heads(data, fmt.SEGMENT_HEADER_BYTES):
            if not _may_be(head, len(data) - offset - _HEAD):
                continue
            if offset < end or head.sequence <= self._sequence:
                continue  # inside another block, or left over from a failed write
            if self._sequence and head.sequence > self._sequence + 1:
                lost = f"blocks {self._sequence + 1} to {head.sequence - 1} cannot be read"
                self.damage.append(LogDamage(name, end, lost))
            end = self._take(name, data, offset, head)
            self._sequence = head.sequence

    def _take(self, name: str, data: memoryview, offset: int, head: fmt.BlockHead) -> int:
        """Take the intact records of a block; return where it ends."""
        end = offset + _HEAD + head.body_bytes
        whole = self._seed is not None and fmt.is_whole(data, offset, head, self._seed)
        at = offset + _HEAD
        table = end - head.records * fmt.RECORD_BYTES
        for place in range(table, end, fmt.RECORD_BYTES):
            index, _term, meta, partition, kind = fmt.RECORD.unpack_from(data, place)
            if kind not in _KINDS or (not whole and partition >= 1 << 16):
                self.damage.append(LogDamage(name, place, "a damaged table of records"))
                break  # the positions of later payloads are not known
            log = self.partitions.setdefault(partition, PartitionLog())
            if kind <= fmt.COPY:
                payload = data[at : at + (meta & fmt.LENGTH_MASK)]
                if crc32c(payload) == meta >> 32 and at + len(payload) <= table:
                    log.entries.setdefault(index, bytes(payload))
                else:
                    text = f"entry {index} of partition {partition} cannot be read"
                    self.damage.append(LogDamage(name, at, text))
                log.last_index = max(log.last_index, index)
                at += meta & fmt.LENGTH_MASK
            elif whole:
                _bound(log, kind, index, meta)
        return end


def _may_be(head: fmt.BlockHead, room: int) -> bool:
    """Whether this may be the header of a block with at most `room` bytes after it."""
    return (
        head.version in fmt.READABLE
        and head.kind in _BLOCK_KINDS
        and 0 < head.records * fmt.RECORD_BYTES <= head.body_bytes <= room
        and head.synced_upto < head.sequence
    )


def _bound(log: PartitionLog, kind: int, index: int, meta: int) -> None:
    """Process a record that bounds a log."""
    if kind in (fmt.COMPACT, fmt.BOUNDARY, fmt.STATE_BOUNDS):
        log.boundary_index = max(log.boundary_index, index)
        log.last_index = max(log.last_index, index)
    if kind == fmt.STATE_BOUNDS:
        log.last_index = max(log.last_index, meta)
