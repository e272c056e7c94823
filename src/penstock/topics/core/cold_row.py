"""Cold records: blocks of them in files, and the times and sizes of their slots, packed in memory.

A block is a run of seqs whose records are in a file and are loaded on demand. Memory keeps its
location in the file and its tags. Whether a record still exists is decided by the row, not by the
file.

A topic may have very many cold records, and arrays would need sixteen bytes for each. So their
times and sizes are packed in runs, a few bits for most: equal values as one, others as compressed
differences. Only one run is unpacked at a time, which is enough for sequential access.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from penstock.kernel.units import KIB
from penstock.topics.core.record import RawRecord

BLOCK_RECORDS_MAX: Final = 1_024
BLOCK_BYTES_MAX: Final = 256 * KIB
_NO_TAG: Final = 0
RUN_MAX: Final = 1_024
_SAME: Final = b"="
_SMALL: Final = b"i"  # 32-bit differences
_LARGE: Final = b"q"


class Tags(NamedTuple):
    """The tags of a block's records: each text once, and an index per record (0: no tag)."""

    texts: tuple[str, ...]
    codes: array[int]

    @classmethod
    def of(cls, records: Sequence[RawRecord | None]) -> Tags | None:
        """The tags of these records; None if no record has one."""
        known: dict[str, int] = {}
        codes = array("H")
        for record in records:
            tag = None if record is None else record.tag
            codes.append(_NO_TAG if tag is None else known.setdefault(tag, len(known) + 1))
        return cls(tuple(known), codes) if known else None

    def matching(self, matches: Callable[[str | None], bool]) -> list[int]:
        """The positions of the records whose tag matches, in order."""
        wanted = {code for code, text in enumerate(self.texts, 1) if matches(text)}
        if not wanted:
            return []
        return [place for place, code in enumerate(self.codes) if code in wanted]


class Spill(Protocol):
    """A file that holds records for which memory has no room."""

    def read(self, count: int, offset: int) -> bytes:
        """Read `count` bytes from `offset`."""
        ...


class ColdBlock:
    """A run of seqs whose records are in a file; `records` holds them while they are loaded.

    `touched` tells the cache of loaded blocks that this one was used since its last check. `spill`
    is the file itself where it has no name: it exists as long as one of its blocks does.
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
        self.records: list[RawRecord | None] | None = None
        self.pins = 0
        self.touched = False

    def __repr__(self) -> str:
        return f"Block({self.file}, seqs {self.first_seq} to {self.last_seq})"


class NotLoaded(Exception):
    """A requested record's block is not in memory: load it, then retry."""

    def __init__(self, block: ColdBlock) -> None:
        super().__init__(f"the records of {block} are not in memory")
        self.block = block


class SlotRun(NamedTuple):
    """Consecutive slots of a topic: times, sizes (0: empty slot), and a record or None for each."""

    first_seq: int
    times: array[int]
    sizes: array[int]
    records: list[RawRecord | None]


def pack(values: array[int]) -> bytes:
    """Encode ascending or repeating numbers compactly; see `unpack`."""
    numbers = np.frombuffer(values, np.int64)
    if len(numbers) and bool((numbers == numbers[0]).all()):
        return _SAME + len(numbers).to_bytes(4, "little") + numbers[:1].tobytes()
    steps = np.diff(numbers, prepend=np.int64(0))
    small = steps.astype(np.int32)
    if bool((small == steps).all()):
        return _SMALL + zlib.compress(small.tobytes(), 1)
    return _LARGE + zlib.compress(steps.tobytes(), 1)


def unpack(data: bytes, typecode: str) -> array[int]:
    """Decode numbers encoded by `pack`."""
    kind = data[:1]
    if kind == _SAME:
        return array(typecode, data[5:13]) * int.from_bytes(data[1:5], "little")
    steps = np.frombuffer(zlib.decompress(data[1:]), np.int32 if kind == _SMALL else np.int64)
    return array(typecode, np.cumsum(steps, dtype=np.int64).tobytes())


class PackedRun(NamedTuple):
    """Consecutive slots: how many are live, their bytes, and `pack`ed times and sizes."""

    first_seq: int
    last_seq: int
    first_ms: int
    last_ms: int
    live: int
    size_bytes: int
    times: bytes
    sizes: bytes


def packed_run(first_seq: int, times: array[int], sizes: array[int]) -> PackedRun:
    """Slots in packed form."""
    return PackedRun(
        first_seq,
        first_seq + len(times) - 1,
        times[0],
        times[-1],
        len(sizes) - sizes.count(0),
        sum(sizes),
        pack(times),
        pack(sizes),
    )


class ColdRow:
    """The cold slots at the front of a topic, from `base_seq` to before `end_seq`.

    `blocks` has the location of their records, by first seq; the first may begin before `base_seq`.
    """

    __slots__ = (
        "_changed", "_firsts", "_open", "_runs", "_sizes", "_times", "base_seq", "blocks", "count",
        "earliest_seq", "end_seq", "size_bytes",
    )  # fmt: skip

    def __init__(self, end_seq: int) -> None:
        self.clear(end_seq)

    def clear(self, end_seq: int) -> None:
        """Remove all slots."""
        self.base_seq = self.end_seq = self.earliest_seq = end_seq
        self.count = self.size_bytes = 0
        self.blocks: list[ColdBlock] = []
        self._runs: list[PackedRun] = []
        self._firsts: list[int] = []
        self._open = -1  # the run whose times and sizes are unpacked
        self._changed = False
        self._times, self._sizes = array("q"), array("Q")

    def append(self, times: array[int], sizes: array[int]) -> None:
        """Append slots."""
        for start in range(0, len(times), RUN_MAX):
            stop = start + RUN_MAX
            self.append_packed(packed_run(self.end_seq, times[start:stop], sizes[start:stop]))

    def append_packed(self, run: PackedRun) -> None:
        """Append a packed run."""
        if not self._runs:
            self.base_seq = run.first_seq
        had_none = not self.count
        self._runs.append(run)
        self._firsts.append(run.first_seq)
        self.end_seq = run.last_seq + 1
        self.count += run.live
        self.size_bytes += run.size_bytes
        if had_none:
            self.earliest_seq = self._live_from(run.first_seq)

    def has(self, seq: int) -> bool:
        """Whether a seq has a live record."""
        return self.size_of(seq) > 0

    def size_of(self, seq: int) -> int:
        """The size of a seq's live record; 0 if there is none."""
        if not self.base_seq <= seq < self.end_seq:
            return 0
        first_seq = self._look(self._at(seq))  # must run before `_sizes` is read
        return self._sizes[seq - first_seq]

    def time_of(self, seq: int) -> int:
        """The time of a slot, which must be here."""
        first_seq = self._look(self._at(seq))
        return self._times[seq - first_seq]

    def span(self, first_seq: int, last_seq: int) -> tuple[array[int], array[int]]:
        """Times and sizes of the slots here within a range of seqs."""
        times, sizes = array("q"), array("Q")
        seq, last_seq = max(first_seq, self.base_seq), min(last_seq, self.end_seq - 1)
        while seq <= last_seq:
            more_times, more_sizes = self.run(seq, last_seq + 1)
            times += more_times
            sizes += more_sizes
            seq += len(more_times)
        return times, sizes

    def run(self, seq: int, stop_seq: int) -> tuple[array[int], array[int]]:
        """Times and sizes from a seq that is here to before `stop_seq`; maybe not all of them."""
        first_seq = self._look(self._at(seq))
        stop = min(stop_seq - first_seq, len(self._times))
        return self._times[seq - first_seq : stop], self._sizes[seq - first_seq : stop]

    def block_run(self, seq: int, stop_seq: int) -> tuple[array[int], array[int]]:
        """As `run`, within the block of `seq`."""
        return self.run(seq, min(stop_seq, self.block_at(seq).last_seq + 1))

    def packed(self, first_seq: int, last_seq: int) -> PackedRun:
        """Some of the slots that are here, in packed form."""
        first_seq = max(first_seq, self.base_seq)
        self._put_back()
        at = self._at(first_seq)
        found = self._runs[at]
        if (found.first_seq, found.last_seq) == (first_seq, last_seq):
            return found
        return packed_run(first_seq, *self.span(first_seq, last_seq))

    def record(self, seq: int) -> RawRecord | None:
        """The record of a live seq, or raise `NotLoaded`."""
        block = self.block_at(seq)
        return _loaded(block)[seq - block.first_seq]

    def records(self, seq: int, sizes: array[int]) -> list[RawRecord | None]:
        """The records of a run with these sizes, in one block, or raise `NotLoaded`."""
        empty = sizes.count(0)
        if empty == len(sizes):
            return [None] * empty
        block = self.block_at(seq)
        first = seq - block.first_seq
        records = _loaded(block)[first : first + len(sizes)]
        if not empty:
            return records
        return [record if size else None for record, size in zip(records, sizes, strict=True)]

    def matching(self, matches: Callable[[str | None], bool], before_seq: int) -> list[int]:
        """The seqs before a seq whose record's tag matches; some may be empty already."""
        return [
            block.first_seq + place
            for block in self.blocks
            if block.tags is not None
            for place in block.tags.matching(matches)
            if self.earliest_seq <= block.first_seq + place < before_seq
        ]

    def files(self) -> set[str]:
        """The permanent files that hold a live record."""
        return {
            block.file
            for block in self.blocks
            if block.spill is None
            and block.last_seq >= self.earliest_seq
            and self.count_between(block.first_seq, block.last_seq)
        }

    def block_at(self, seq: int) -> ColdBlock:
        """The block of a slot, which must be here."""
        number = bisect_right(self.blocks, seq, key=_first_seq) - 1
        while self.blocks[number].last_seq < seq:
            number -= 1  # a permanent block may begin inside a spilled one
        return self.blocks[number]

    def replace_spilled(self, settled: Sequence[ColdBlock]) -> None:
        """Replace spilled blocks by the blocks of permanent files that cover them."""
        lasting = [block for block in self.blocks if block.spill is None]
        known = {block.first_seq for block in lasting}
        lasting += [
            block
            for block in settled
            if block.first_seq not in known and block.last_seq >= self.base_seq
        ]
        lasting.sort(key=_first_seq)
        covered: list[tuple[int, int]] = []
        for block in lasting:
            if covered and covered[-1][1] + 1 >= block.first_seq:
                covered[-1] = (covered[-1][0], max(covered[-1][1], block.last_seq))
            else:
                covered.append((block.first_seq, block.last_seq))
        kept = lasting + [
            block
            for block in self.blocks
            if block.spill is not None and not self._is_covered(block, covered)
        ]
        self.blocks = sorted(kept, key=_first_seq)

    def _is_covered(self, block: ColdBlock, covered: Sequence[tuple[int, int]]) -> bool:
        first_seq = max(block.first_seq, self.base_seq)
        place = bisect_right(covered, first_seq, key=_start) - 1
        return place >= 0 and covered[place][1] >= block.last_seq

    def count_between(self, first_seq: int, last_seq: int) -> int:
        """How many live records are in a range of seqs."""
        first_seq, last_seq = max(first_seq, self.base_seq), min(last_seq, self.end_seq - 1)
        if first_seq <= self.base_seq and last_seq >= self.end_seq - 1:
            return self.count
        total, seq = 0, first_seq
        while seq <= last_seq:
            at = self._at(seq)
            run = self._runs[at]
            if seq == run.first_seq and run.last_seq <= last_seq and at != self._open:
                total += run.live
            else:
                _, sizes = self.run(seq, last_seq + 1)
                total += len(sizes) - sizes.count(0)
            seq = run.last_seq + 1
        return total

    def bytes_through(self, last_seq: int) -> int:
        """The size of the live records up to a seq."""
        seq, total, last_seq = self.earliest_seq, 0, min(last_seq, self.end_seq - 1)
        while seq <= last_seq:
            at = self._at(seq)
            run = self._runs[at]
            if run.last_seq <= last_seq and at != self._open:
                total += run.size_bytes  # nothing before the earliest seq is live
            else:
                total += sum(self.run(seq, last_seq + 1)[1])
            seq = run.last_seq + 1
        return total

    def live_seqs(self, first_seq: int, last_seq: int) -> Iterator[int]:
        """The seqs of the live records in a range, in order."""
        seq = max(first_seq, self.earliest_seq)
        while seq <= min(last_seq, self.end_seq - 1):
            _, sizes = self.run(seq, last_seq + 1)
            for place, size_bytes in enumerate(sizes):
                if size_bytes:
                    yield seq + place
            seq += len(sizes)

    def remove(self, seq: int) -> int:
        """Empty a slot; return the size it had."""
        size_bytes = self.size_of(seq)
        if size_bytes:
            self._sizes[seq - self._firsts[self._open]] = 0
            self._changed = True
            self.count -= 1
            self.size_bytes -= size_bytes
            if seq == self.earliest_seq:
                self.earliest_seq = self._live_from(seq + 1)
        return size_bytes

    def drop_through(self, seq: int) -> None:
        """Empty every slot up to a seq."""
        seq = min(seq, self.end_seq - 1)
        while self.earliest_seq <= seq:
            at = self._at(self.earliest_seq)
            if self._runs[at].last_seq > seq:
                for each in list(self.live_seqs(self.earliest_seq, seq)):
                    self.remove(each)
                return
            self._empty(at)
            self.earliest_seq = self._live_from(self._runs[at].last_seq + 1)

    def _empty(self, at: int) -> None:
        """Empty all slots of a run."""
        self._put_back()
        self._open = -1
        run = self._runs[at]
        self.count -= run.live
        self.size_bytes -= run.size_bytes
        nothing = pack(array("Q", bytes(8 * (run.last_seq + 1 - run.first_seq))))
        self._runs[at] = run._replace(live=0, size_bytes=0, sizes=nothing)

    def trim(self, base_seq: int) -> None:
        """Remove the slots before a seq, which must be empty."""
        self._put_back()
        self._open = -1
        gone = bisect_left(self._runs, base_seq, key=_last_seq)
        del self._runs[:gone], self._firsts[:gone]
        self.base_seq = max(self.base_seq, base_seq)
        gone = 0
        while gone < len(self.blocks) and self.blocks[gone].last_seq < base_seq:
            gone += 1
        del self.blocks[:gone]

    def last_before(self, ts_ms: int) -> int | None:
        """The last live seq older than a time, or None."""
        seq = self.seq_before(ts_ms)
        return self._live_upto(seq) if seq else None

    def _live_upto(self, seq: int) -> int | None:
        """The last live seq at or before a seq."""
        while seq >= self.earliest_seq:
            first_seq = self._look(self._at(seq))
            for place in range(seq - first_seq, -1, -1):
                if self._sizes[place]:
                    return first_seq + place
            seq = first_seq - 1
        return None

    def seq_before(self, ts_ms: int) -> int:
        """The last seq, live or not, from the first live one on that is older; 0 if none."""
        if not self.count:
            return 0
        at = bisect_left(self._runs, ts_ms, key=_first_ms) - 1
        if at < 0:
            return 0
        first_seq = self._look(at)
        seq = first_seq + bisect_left(self._times, ts_ms) - 1
        return seq if seq >= self.earliest_seq else 0

    def seq_to_shed(self, over: int) -> tuple[int | None, int]:
        """The last seq to evict to free `over` bytes, and how many bytes are still missing."""
        seq: int | None = None
        self._put_back()
        for at, run in enumerate(self._runs):
            if over <= 0:
                break
            if run.size_bytes < over:
                over -= run.size_bytes
                seq = run.last_seq
                continue
            first_seq = self._look(at)
            for place, size_bytes in enumerate(self._sizes):
                if size_bytes and over > 0:
                    over -= size_bytes
                    seq = first_seq + place
        return (None if seq is None else self._live_upto(seq)), over

    def _live_from(self, seq: int) -> int:
        """The first live seq at or after a seq, or the end."""
        while seq < self.end_seq:
            at = self._at(seq)
            if at != self._open and not self._runs[at].live:
                seq = self._runs[at].last_seq + 1
                continue
            _, sizes = self.run(seq, self.end_seq)
            for place, size_bytes in enumerate(sizes):
                if size_bytes:
                    return seq + place
            seq += len(sizes)
        return self.end_seq

    def _at(self, seq: int) -> int:
        return bisect_right(self._firsts, seq) - 1

    def _look(self, at: int) -> int:
        """Unpack a run; return its first seq."""
        if at != self._open:
            self._put_back()
            run = self._runs[at]
            self._times, self._sizes = unpack(run.times, "q"), unpack(run.sizes, "Q")
            self._open = at
        return self._firsts[at]

    def _put_back(self) -> None:
        """Pack the open run again if it changed."""
        if self._changed:
            first_seq = self._firsts[self._open]
            self._runs[self._open] = packed_run(first_seq, self._times, self._sizes)
            self._changed = False


def _first_ms(run: PackedRun) -> int:
    return run.first_ms


def _last_seq(run: PackedRun) -> int:
    return run.last_seq


def _first_seq(block: ColdBlock) -> int:
    return block.first_seq


def _start(span: tuple[int, int]) -> int:
    return span[0]


def _loaded(block: ColdBlock) -> list[RawRecord | None]:
    if block.records is None:
        raise NotLoaded(block)
    block.touched = True
    return block.records
