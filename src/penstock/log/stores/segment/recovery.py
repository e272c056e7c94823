"""Recovery as a fold over blocks: bytes of segments in, state of every partition out. No IO.

Zeros mark the end. A broken block is one of two things:

* *damage*, if any later whole block proves that it was synced: recovery stops and reports where;
* the *torn tail* of writes that were never synced, otherwise: the log ends before it.

Only the last synced blocks, which no later block covers, cannot be told from a torn tail; a cleanly
closed store ends in a seal and has no such blocks.

A fold that *isolates* continues after damage, with the next whole block. A partition is then whole
if something later proves it: an entry that follows its last one, or a matching checkpoint. Every
other partition may have lost entries in the gap: it is damaged, and its error reports where.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from crc32c import crc32c

from penstock.log.store import Damaged, UnknownFormat
from penstock.log.stores.segment import format as fmt
from penstock.log.stores.segment.index import (
    PartitionIndex,
    RecordRun,
    Rows,
    positions_of,
    rows_of,
    runs,
)

_UNPACK = fmt.BLOCK_HEADER.unpack_from
_HEAD: Final = fmt.BLOCK_HEADER_BYTES
_ROW: Final = fmt.RECORD_BYTES


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the log was cut because the rest was never synced."""

    file: str
    offset: int
    sequence: int
    found: str


@dataclass(slots=True)
class RecoveryReport:
    """The result of recovery, for people and for `status`."""

    segments: int = 0
    blocks: int = 0
    records: int = 0
    cut: Cut | None = None
    dropped: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Tail:
    """The last segment of the log, and where it ends."""

    number: int
    name: str
    offset: int
    unproven: int  # from here on no block proves that its predecessor was synced
    dirty: bool = False  # non-zero bytes follow the end


class Fold:
    """Takes segments in order, one call each, and accumulates their state."""

    def __init__(self, *, isolates: bool = False) -> None:
        self.partitions: dict[int, PartitionIndex] = {}
        self.damaged: dict[int, Damaged] = {}
        self._unproven: dict[int, Damaged] = {}  # by the gap that may have contained its entries
        self._isolates = isolates
        self._gap: Damaged | None = None  # the last one
        self.report = RecoveryReport()
        self.store_id: bytes | None = None
        self.chain = fmt.BlockChain(0)
        self.tail: _Tail | None = None
        self.sealed = False
        self.unused: list[tuple[int, str]] = []
        self._suspect: Cut | None = None
        self._copied: dict[int, dict[int, int]] = {}

    def segment(self, number: int, name: str, data: memoryview) -> None:
        """Process the whole content of the next segment."""
        self._check_header(number, name, data)
        self.report.segments += 1
        if self._suspect is None and self._is_empty(data):
            self._take_unused(number, name)
            return
        walk = _Walk(self.chain, name, data, first=self.tail is None and number > 1)
        if walk.blocks and not walk.starts_with_checkpoint:
            raise self._contradiction(name, "a checkpoint as first block", "another block")
        if walk.blocks:
            if self.unused:
                raise self._contradiction(name, f"{self.unused[0][1]} to be used first", "it empty")
            self._take_walk(number, name, walk)
        elif self.tail is None:
            if number > 1:
                raise self._contradiction(name, "a whole checkpoint", walk.found)
            self.tail = _Tail(number, name, walk.end, walk.end)
        else:
            self.unused.append((number, name))
        while (resumed := self._look_past_the_end(name, data, walk)) is not None:
            walk = resumed
            self._take_walk(number, name, walk)

    def _take_walk(self, number: int, name: str, walk: _Walk) -> None:
        self._suspect = None  # it continues exactly where the log before it ended
        self._fold(number, name, walk, first=self.tail is None)
        self.tail = _Tail(number, name, walk.end, walk.unproven)
        self.sealed = walk.last_kind != fmt.DATA_BLOCK

    def finish(self) -> None:
        """Check that every entry has its position; settle where the log is cut."""
        for partition, index in self.partitions.items():
            try:
                self._check_complete(partition, index)
            except Damaged as error:
                if not self._isolates:
                    raise
                self.damaged.setdefault(partition, error)
        for partition, gap in self._unproven.items():
            self.damaged.setdefault(partition, gap)
        for partition in self.damaged:  # its entries are not readable: some may be missing
            known, empty = self.partitions[partition], PartitionIndex()
            empty.install(known.last_index, known.bounds.last_term if known.entries else 0)
            empty.term, empty.vote = known.term, known.vote
            self.partitions[partition] = empty
        if self._suspect is not None and self.tail is not None:
            if self.tail.dirty or self.unused:
                self.report.cut = self._suspect
            if self.report.cut:
                self.report.dropped = [name for _, name in self.unused]

    def _check_header(self, number: int, name: str, data: memoryview) -> None:
        store_id = fmt.check_segment_header(name, data)
        fmt.check_allocated(name, data)
        if self.store_id is None:
            self.store_id = store_id
            self.chain.seed = fmt.seed_of(store_id)
        elif store_id != self.store_id:
            raise Damaged(
                f"{name}: expected store id {self.store_id.hex()}, found {store_id.hex()}",
                file=name,
                offset=0,
            )
        previous = self.unused[-1][0] if self.unused else self.tail.number if self.tail else None
        if previous is not None and number != previous + 1:
            raise Damaged(
                f"{fmt.segment_name(previous + 1)} is missing: {name} follows segment {previous}",
                file=fmt.segment_name(previous + 1),
                offset=0,
            )

    def _is_empty(self, data: memoryview) -> bool:
        start = fmt.SEGMENT_HEADER_BYTES
        return not any(data[start : start + _HEAD]) and not _any_set(data, start)

    def _take_unused(self, number: int, name: str) -> None:
        if self.tail is None:
            if number > 1:
                raise self._contradiction(name, "a whole checkpoint", "zeros")
            start = fmt.SEGMENT_HEADER_BYTES
            self.tail = _Tail(number, name, start, start)
        else:
            self.unused.append((number, name))

    def _look_past_the_end(self, name: str, data: memoryview, walk: _Walk) -> _Walk | None:
        """Check after the last whole block: zeros, or a suspect that later blocks may disprove.

        Returns what follows damage, if the fold continues after it.
        """
        if self._suspect is None:
            if not _any_set(data, walk.end):
                return None
            self._suspect = Cut(name, walk.end, self.chain.sequence + 1, walk.found)
            if self.tail is not None and self.tail.name == name:
                self.tail.dirty = True
        suspect = self._suspect
        witness = _witness(data, walk.end, self.chain.seed, suspect.sequence)
        if witness is not None:
            offset, sequence = witness
            damage = Damaged(
                f"{suspect.file} at offset {suspect.offset} is damaged: block {suspect.sequence} "
                f"was synced, as block {sequence} in {name} at {offset} says; instead there is "
                f"{suspect.found}",
                file=suspect.file,
                offset=suspect.offset,
                sequence=suspect.sequence,
            )
            if not self._isolates or self.tail is None:
                raise damage
            return self._resume(name, data, walk, damage)
        return None

    def _resume(self, name: str, data: memoryview, walk: _Walk, damage: Damaged) -> _Walk:
        """Continue with the next whole block after damage."""
        chain = self.chain
        offset, head = _next_whole(data, walk.end, chain.seed, chain.sequence + 1)
        self.unused = []
        if self._take_damaged_block(name, data, walk.end, head):
            return _Walk(chain, name, data, first=False, start=offset)
        self._gap = damage
        for partition in self.partitions:
            if partition not in self.damaged:
                self._unproven.setdefault(partition, damage)
        chain.sequence, chain.crc, chain.synced_upto = (
            head.sequence - 1,
            head.previous_crc,
            head.synced_upto,
        )
        return _Walk(chain, name, data, first=False, start=offset)

    def _take_damaged_block(
        self, name: str, data: memoryview, offset: int, following: fmt.BlockHead
    ) -> bool:
        """Process a block in which only payloads are damaged: other partitions lost nothing.

        Returns False, with nothing changed, if the damage is elsewhere or that is not certain.
        """
        chain = self.chain
        head = fmt.BlockHead(*_UNPACK(data, offset))
        end = offset + _HEAD + head.body_bytes
        table = end - head.records * _ROW
        links = head.sequence == chain.sequence + 1 and head.previous_crc == chain.crc
        links = links and following.sequence == head.sequence + 1
        links = links and following.previous_crc == head.crc and head.magic == fmt.BLOCK_MAGIC
        if (
            not links
            or head.kind != fmt.DATA_BLOCK
            or not offset + _HEAD <= table < end <= len(data)
        ):
            return False
        rows = rows_of([data[table:end]])
        broken = self._broken_payloads(name, rows, data[:table], offset + _HEAD)
        if not broken:
            return False
        for partition, error in broken.items():
            self.damaged.setdefault(partition, error)
            self.partitions.setdefault(partition, PartitionIndex())
        assert self.tail is not None
        start = np.array([offset + _HEAD + (self.tail.number << fmt.POSITION_SHIFT)], np.uint64)
        positions = positions_of(rows, start, np.array([len(rows)], np.int64))
        for run in runs(rows, positions):
            self._apply(name, run)
        chain.sequence, chain.crc = head.sequence, head.crc
        return True

    def _broken_payloads(
        self, name: str, rows: Rows, data: memoryview, at: int
    ) -> dict[int, Damaged]:
        """The damage by partition; empty if the records are inconsistent."""
        broken: dict[int, Damaged] = {}
        lasts = {number: index.last_index for number, index in self.partitions.items()}
        for index, _term, meta, partition, kind in rows.tolist():
            if not fmt.ENTRY <= kind <= fmt.SEAL:
                return {}
            if kind > fmt.COPY:
                continue
            length = meta & fmt.LENGTH_MASK
            if kind == fmt.ENTRY and partition not in self.damaged:
                if index != lasts.get(partition, 0) + 1:
                    return {}
                lasts[partition] = index
            if crc32c(data[at : at + length]) != meta >> 32:
                broken.setdefault(
                    partition,
                    Damaged(
                        f"{name} at offset {at}: entry {index} of partition {partition} does not "
                        "match its checksum",
                        file=name,
                        offset=at,
                        index=index,
                    ),
                )
            at += length
        return broken if at == len(data) else {}

    def _lost(self, partition: int) -> bool:
        """Whether a partition does not continue where it ended, because of a gap."""
        if partition in self.damaged:
            return True
        error = self._unproven.pop(partition, None)
        if error is None and partition not in self.partitions:
            error = self._gap  # it began in the gap
        if error is None:
            return False
        self.damaged[partition] = error
        self.partitions.setdefault(partition, PartitionIndex())
        return True

    def _fold(self, number: int, name: str, walk: _Walk, *, first: bool) -> None:
        self.report.blocks += len(walk.starts)
        rows = rows_of(walk.tables)
        self.report.records += len(rows)
        skipped = int(walk.starts_with_checkpoint)
        if skipped:
            checkpoint = walk.counts[0]
            self._checkpoint(name, rows[:checkpoint], first=first)
            rows = rows[checkpoint:]
        if len(rows):
            starts = np.array(walk.starts[skipped:], np.uint64)
            starts += np.uint64(number << fmt.POSITION_SHIFT)
            counts = np.array(walk.counts[skipped:], np.int64)
            for run in runs(rows, positions_of(rows, starts, counts)):
                self._apply(name, run)

    def _checkpoint(self, name: str, rows: Rows, *, first: bool) -> None:
        """The state of every partition: adopted from the oldest segment, else compared."""
        stated: dict[int, list[tuple[int, int, int]]] = {}
        for index, term, meta, partition, kind in rows.tolist():
            if kind != fmt.SEAL:
                stated.setdefault(partition, []).append((index, term, meta))
        for partition, ((boundary, boundary_term, last), (vote, term, _)) in stated.items():
            if first:
                taken = self.partitions[partition] = PartitionIndex()
                taken.install(boundary, boundary_term)
                taken.term, taken.vote = term, vote
                if last > boundary:
                    nowhere = np.zeros(last - boundary, np.uint64)
                    taken.extend(nowhere, nowhere, nowhere)
                continue
            known = self.partitions.get(partition, PartitionIndex())
            found = (known.boundary_index, known.boundary_term, known.last_index)
            if (*found, known.term, known.vote) == (boundary, boundary_term, last, term, vote):
                self._unproven.pop(partition, None)
            elif not self._lost(partition):
                raise self._contradiction(
                    name,
                    f"partition {partition} at {(boundary, boundary_term, last, term, vote)}",
                    f"{(*found, known.term, known.vote)}",
                )

    def _apply(self, name: str, run: RecordRun) -> None:
        if (self.damaged or self._gap is not None) and self._is_lost_at(run):
            return
        state = self.partitions.get(run.partition)
        if state is None:
            state = self.partitions[run.partition] = PartitionIndex()
        if run.kind == fmt.ENTRY:
            self._unproven.pop(run.partition, None)
            if run.first != state.last_index + 1:
                raise self._contradiction(
                    name, f"partition {run.partition} index {state.last_index + 1}", f"{run.first}"
                )
            state.extend(run.positions, run.metas, run.terms)
        elif run.kind == fmt.COPY:
            state.place(run.first, run.positions, run.metas)
            copied = self._copied.setdefault(run.partition, {})
            copied.update(enumerate(run.terms.tolist(), run.first))
        else:
            self._apply_one(name, run.partition, state, (run.kind, run.first, run.term))

    def _is_lost_at(self, run: RecordRun) -> bool:
        """Whether records after a gap belong to a partition that lost some in it."""
        if run.partition in self.damaged:
            return True
        known = self.partitions.get(run.partition)
        last = known.last_index if known is not None else 0
        count = len(run.positions)
        continues = {
            fmt.ENTRY: run.first == last + 1,
            fmt.COPY: run.first + count - 1 <= last,
            fmt.COMPACT: run.first <= last,
        }.get(run.kind, True)
        return not continues and self._lost(run.partition)

    def _apply_one(
        self, name: str, number: int, state: PartitionIndex, record: tuple[int, int, int]
    ) -> None:
        kind, index, term = record
        if kind == fmt.TRUNCATE:
            state.truncate(index)
            copied = self._copied.get(number, {})
            for gone in [i for i in copied if i >= index]:
                del copied[gone]
        elif kind == fmt.COMPACT:
            state.compact(index, term)
        elif kind == fmt.BOUNDARY:
            state.install(index, term)
            self._copied.pop(number, None)
        elif kind == fmt.HARD_STATE:
            state.term, state.vote = term, index
        elif kind != fmt.SEAL:
            raise self._contradiction(name, "a known kind of record", f"{kind:#x}")

    def _settle_terms(self, partition: int, state: PartitionIndex) -> None:
        """Give copied entries, whose first segment is gone, the terms of their copies."""
        copied = self._copied.pop(partition, None)
        if not copied:
            return
        terms = np.array(state.terms(state.base, len(state.positions)), np.uint64)
        for index, term in copied.items():
            if state.base <= index <= state.last_index:
                terms[index - state.base] = term
        starts = [0, *(np.flatnonzero(terms[1:] != terms[:-1]) + 1).tolist()] if len(terms) else []
        state.run_starts = [state.base + start for start in starts]
        state.run_terms = terms[starts].tolist() if starts else []
        state.tail_term = state.run_terms[-1] if starts else -1

    def _check_complete(self, partition: int, state: PartitionIndex) -> None:
        self._settle_terms(partition, state)
        slot = state.boundary_index + 1 - state.base
        live = np.frombuffer(state.positions, np.uint64)[slot:]
        if len(live) and not live.all():
            missing = state.boundary_index + 1 + int(np.flatnonzero(live == 0)[0])
            raise Damaged(
                f"partition {partition}: entry {missing} is in no segment",
                partition=partition,
                index=missing,
            )

    def _contradiction(self, name: str, expected: str, found: str) -> Damaged:
        return Damaged(f"{name}: expected {expected}, found {found}", file=name, offset=0)


class _Walk:
    """The run of whole blocks at the start of a segment that continues the chain."""

    __slots__ = (
        "counts",
        "end",
        "found",
        "last_kind",
        "name",
        "starts",
        "starts_with_checkpoint",
        "tables",
        "unproven",
    )

    def __init__(
        self,
        chain: fmt.BlockChain,
        name: str,
        data: memoryview,
        *,
        first: bool,
        start: int = fmt.SEGMENT_HEADER_BYTES,
    ) -> None:
        self.name = name
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.tables: list[memoryview] = []
        self.found = "zeros"
        self.starts_with_checkpoint = False
        self.last_kind = 0
        self.unproven = 0
        self.end = start
        self._run(chain, data, first)

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return len(self.starts)

    def _run(self, chain: fmt.BlockChain, view: memoryview, first: bool) -> None:
        offset, size, seed = self.end, len(view), chain.seed
        expected, previous, synced = chain.sequence + 1, chain.crc, chain.synced_upto
        last_kind = 0
        starts, counts, tables = self.starts, self.counts, self.tables
        while offset + _HEAD <= size:
            crc, magic, version, kind, count, body, sequence, synced_upto, before = _UNPACK(
                view, offset
            )
            if first:  # the oldest segment defines where its run begins
                expected, previous, first = sequence, before, False
            end = offset + _HEAD + body
            if magic != fmt.BLOCK_MAGIC or sequence != expected or before != previous:
                page = _after_gap(view, offset, expected, previous)
                if page is not None:
                    offset = page
                    continue
                self.found = _describe(magic, sequence, expected)
                break
            if end > size or count * _ROW > body or crc32c(view[offset + 4 : end], seed) != crc:
                self.found = "a checksum that does not match"
                break
            if version not in fmt.READABLE:
                raise UnknownFormat(
                    f"{self.name} at {offset}: expected a format version up to {fmt.VERSION}, "
                    f"found {version}",
                    expected=fmt.VERSION,
                    found=version,
                )
            if not starts:
                self.starts_with_checkpoint = kind == fmt.CHECKPOINT_BLOCK
            starts.append(offset + _HEAD)
            counts.append(count)
            tables.append(view[end - count * _ROW : end])
            last_kind = kind
            expected, previous, synced, offset = expected + 1, crc, synced_upto, end
        self.end = offset
        if starts:
            self.last_kind = last_kind
            unproven = min(expected - 1 - synced, len(starts))
            self.unproven = starts[len(starts) - unproven] - _HEAD if unproven else offset
            chain.sequence, chain.crc, chain.synced_upto = expected - 1, previous, synced


def _after_gap(view: memoryview, offset: int, expected: int, previous: int) -> int | None:
    """The start of the next page, if the expected block begins there.

    The bytes before it are ignored: zeros, or the rest of a failed write.
    """
    page = -(-offset // fmt.PAGE_BYTES) * fmt.PAGE_BYTES
    if page == offset or page + _HEAD > len(view):
        return None
    head = fmt.BlockHead(*_UNPACK(view, page))
    continues = head.sequence == expected and head.previous_crc == previous
    return page if head.magic == fmt.BLOCK_MAGIC and continues else None


def _describe(magic: bytes, sequence: int, expected: int) -> str:
    if magic == b"\0\0\0\0":
        return "zeros"
    if magic != fmt.BLOCK_MAGIC:
        return f"{magic!r} where a block should start"
    return f"block {sequence}" if sequence != expected else "a block that continues another one"


def _witness(data: memoryview, start: int, seed: int, sequence: int) -> tuple[int, int] | None:
    """A whole block at or after `start`, at any offset, that proves `sequence` was synced."""
    for offset, head in fmt.find_heads(data, start):
        speaks = sequence <= head.synced_upto < head.sequence
        if speaks and fmt.is_whole(data, offset, head, seed):
            return offset, head.sequence
    return None


def _next_whole(
    data: memoryview, start: int, seed: int, sequence: int
) -> tuple[int, fmt.BlockHead]:
    """The first whole block at or after `start` that comes after `sequence`. There must be one."""
    for offset, head in fmt.find_heads(data, start):
        if sequence < head.sequence and fmt.is_whole(data, offset, head, seed):
            return offset, head
    raise AssertionError("the witness of the damage is a whole block itself")


def _any_set(data: memoryview, start: int) -> bool:
    """Whether any byte from `start` on is not zero."""
    aligned = min(-(-start // 8) * 8, len(data))
    if any(data[start:aligned]):
        return True
    whole = (len(data) - aligned) // 8
    words = np.frombuffer(data, np.uint64, whole, aligned) if whole else np.zeros(0, np.uint64)
    return bool(words.any()) or any(data[aligned + whole * 8 :])
