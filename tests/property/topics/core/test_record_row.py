"""RecordRow against a dictionary: whatever is put, emptied and read, in pages or one by one."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.topics.core.batch import Batch
from penstock.topics.core.cold_row import ColdBlock, SlotRun, Tags
from penstock.topics.core.record import RawRecord, make_record, size_of
from penstock.topics.core.record_row import HOT_SLOT_BYTES, RecordRow, Slot
from penstock.topics.persist.segments import read_spilled, spilled_bytes

SIZES = st.integers(1, 9)
SEQS = st.integers(0, 60)


class Page(NamedTuple):
    """What a page must be."""

    slots: list[Slot]
    passed: int


class Kept:
    """A file that has records because memory has no room."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, count: int, offset: int) -> bytes:
        return self._data[offset : offset + count]


def loaded(run: SlotRun) -> ColdBlock:
    """A block of a lasting file, in memory."""
    last_seq = run.first_seq + len(run.sizes) - 1
    tags = Tags.of(run.records)
    block = ColdBlock("file", 0, 0, first_seq=run.first_seq, last_seq=last_seq, tags=tags)
    block.records = list(run.records)
    return block


class RowMachine(RuleBasedStateMachine):
    """`live` has what is there; times are those of all seqs, live or not."""

    @initialize(head_seq=st.sampled_from([0, 0, 7]))
    def start(self, head_seq: int) -> None:
        self.row = RecordRow(head_seq)
        self.head_seq = head_seq
        self.now_ms = 0
        self.live: dict[int, Slot] = {}
        self.lasting: list[ColdBlock] = []

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=8), later_ms=st.integers(0, 3))
    def extend(self, sizes: list[int], later_ms: int) -> None:
        self.now_ms += later_ms
        records = [make_record(b"1" * size, tag=str(size)) for size in sizes]
        self.row.extend(Batch.of(records), self.now_ms)
        for record in records:
            self.head_seq += 1
            self.live[self.head_seq] = Slot(self.head_seq, self.now_ms, record)

    @rule(count=st.integers(0, 12), later_ms=st.integers(0, 3))
    def skip(self, count: int, later_ms: int) -> None:
        self.now_ms += later_ms
        self.row.skip_to(self.head_seq + count, self.now_ms)
        self.head_seq += count

    @rule(seq=SEQS)
    def remove(self, seq: int) -> None:
        assert self.row.remove(seq) is (self.live.pop(seq, None) is not None)

    @rule(size=SIZES, before_seq=SEQS)
    def remove_matching(self, size: int, before_seq: int) -> None:
        tag = str(size)
        self.row.remove_matching(lambda found: found == tag, before_seq)
        self.live = {
            seq: slot
            for seq, slot in self.live.items()
            if seq >= before_seq or slot.record.tag != tag
        }

    @rule(seq=SEQS)
    def drop_through(self, seq: int) -> None:
        self.row.drop_through(seq)
        self.live = {each: slot for each, slot in self.live.items() if each > seq}

    @rule()
    def restore(self) -> None:
        self.lasting = []
        self.row = RecordRow.restored(self.head_seq, list(self.live.values()))

    @rule(count=st.integers(0, 40), run=st.integers(1, 9))
    def seal(self, count: int, run: int) -> None:
        """The oldest hot slots go to a file; what was spilled before goes there too."""
        self.row.seal(self.lasting)
        self.lasting = []
        for each in list(self.row.runs(0, min(count, self.hot_count()), run)):
            self.row.seal([loaded(each)])

    @rule(slots_max=st.integers(1, 20), run=st.integers(1, 9))
    def spill(self, slots_max: int, run: int) -> None:
        """As `seal`, to a file of which a lasting one takes the place later, cut in another way."""
        if not self.hot_count():
            return
        self.lasting += [loaded(each) for each in list(self.row.runs(0, self.hot_count(), run))[:3]]
        first_seq, _, items = self.row.oldest_hot(slots_max, 30)
        data = spilled_bytes(first_seq, items)
        last_seq = first_seq + len(items) - 1
        file = Kept(data)
        block = ColdBlock("spill", 0, len(data), first_seq=first_seq, last_seq=last_seq, spill=file)
        block.records = read_spilled(block)
        block.tags = Tags.of(block.records)
        self.row.seal([block])

    def hot_count(self) -> int:
        return self.row.head_seq + 1 - self.row.base_seq - self.row.cold_count

    @rule(
        from_seq=SEQS,
        beyond=SEQS,
        limit=st.integers(1, 12),
        bytes_max=st.sampled_from([1, 3, 9, 20, 1_000]),
    )
    def read_a_page(self, from_seq: int, beyond: int, limit: int, bytes_max: int) -> None:
        from_seq = min(from_seq, self.head_seq)
        upto_seq = min(from_seq + beyond, self.head_seq)
        (seqs, times, records), passed = self.row.page(from_seq, upto_seq, limit, bytes_max)
        wanted = self.page(from_seq, upto_seq, limit, bytes_max)
        assert list(map(Slot, seqs, times, records)) == wanted.slots
        assert passed == wanted.passed

    @rule(from_seq=SEQS, limit=st.integers(1, 5), bytes_max=st.sampled_from([1, 9, 1_000]))
    def read_to_the_end(self, from_seq: int, limit: int, bytes_max: int) -> None:
        from_seq = at = min(from_seq, self.head_seq)
        got: list[int] = []
        while at < self.head_seq:
            (seqs, _, _), passed = self.row.page(at, self.head_seq, limit, bytes_max)
            assert passed > at, "a page always gets on"
            got += seqs
            at = passed
        assert got == [seq for seq in self.live if seq > from_seq]

    @rule(ts_ms=st.integers(0, 40))
    def look_for_a_time(self, ts_ms: int) -> None:
        older = [slot.seq for slot in self.live.values() if slot.ts_ms < ts_ms]
        assert self.row.last_before(ts_ms) == (older[-1] if older else None)
        cursor = self.row.seq_before(ts_ms)
        assert [seq for seq in self.live if seq > cursor] == [
            slot.seq for slot in self.live.values() if slot.ts_ms >= ts_ms
        ]

    @rule(first_seq=SEQS, last_seq=SEQS)
    def look_between(self, first_seq: int, last_seq: int) -> None:
        found = [seq for seq in self.live if first_seq <= seq <= last_seq]
        assert self.row.has_between(first_seq, last_seq) == bool(found)
        assert self.row.count_between(first_seq, last_seq) == len(found)

    @rule(bytes_max=st.integers(0, 60))
    def shed(self, bytes_max: int) -> None:
        seq, left = None, self.bytes_of(self.live.values())
        for slot in self.live.values():
            if left <= bytes_max:
                break
            left -= size_of(slot.record)
            seq = slot.seq
        assert self.row.seq_to_shed(bytes_max) == seq

    @rule(size=SIZES)
    def burst(self, size: int) -> None:
        for _ in range(60):
            self.extend([size] * 5, 0)

    @rule()
    def read_everything(self) -> None:
        """No invariant, for slots are placed when somebody looks: some of them late."""
        assert list(self.row.live(0, self.head_seq)) == list(self.live.values())
        for seq in range(self.head_seq + 2):
            assert self.row.slot(seq) == self.live.get(seq)

    @invariant()
    def the_counts_are_those_of_the_model(self) -> None:
        slots = self.row
        assert slots.head_seq == self.head_seq
        assert slots.earliest_seq == next(iter(self.live), self.head_seq + 1)
        assert slots.count == len(self.live)
        assert slots.size_bytes == self.bytes_of(self.live.values())
        cold_seq = slots.base_seq + slots.cold_count
        hot = [slot for slot in self.live.values() if slot.seq >= cold_seq]
        assert slots.hot_bytes == self.bytes_of(hot) + HOT_SLOT_BYTES * self.hot_count()

    def teardown(self) -> None:
        self.read_everything()

    # The model

    def page(self, from_seq: int, upto_seq: int, limit: int, bytes_max: int) -> Page:
        taken: list[Slot] = []
        room = bytes_max
        for seq in range(from_seq + 1, upto_seq + 1):
            slot = self.live.get(seq)
            if slot is None:
                continue
            room -= size_of(slot.record)
            if room < 0 and taken:
                return Page(taken, seq - 1)
            taken.append(slot)
            if len(taken) == limit:
                return Page(taken, seq)
        return Page(taken, max(from_seq, upto_seq))

    def bytes_of(self, slots: object) -> int:
        records: list[RawRecord] = [slot.record for slot in slots]  # type: ignore[attr-defined]
        return sum(map(size_of, records))


TestRow = RowMachine.TestCase
TestRow.settings = settings(max_examples=60, stateful_step_count=40)
