"""Segments and blocks as bytes, and slots whose oldest records are in them."""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from collections.abc import Callable

import pytest

from penstock.kernel.errors import Corrupt, Rejected
from penstock.protocol.config import TopicConfig
from penstock.topics.core.batch import Batch
from penstock.topics.core.cold_row import ColdBlock, NotLoaded, SlotRun, Tags
from penstock.topics.core.entries import Appended
from penstock.topics.core.record import RawRecord, Routed, make_record
from penstock.topics.core.record_row import RecordRow
from penstock.topics.core.topic import Topic
from penstock.topics.persist.segments import (
    SealOptions,
    SegmentHead,
    SegmentWriter,
    read_block,
    read_segment,
    segments_to_seal,
)

HEAD = SegmentHead(7, "t", 3)


def run_of(first_seq: int, *records: RawRecord | None) -> SlotRun:
    times = array("q", range(first_seq, first_seq + len(records)))
    sizes = array("Q", [0 if record is None else len(record.data) for record in records])
    return SlotRun(first_seq, times, sizes, list(records))


def numbered(first: int, count: int) -> list[RawRecord]:
    return [make_record(b"%d" % n, tag=f"t{n % 2}" if n % 3 else None) for n in range(count)]


def segment_of(*runs: SlotRun) -> tuple[bytes, list[ColdBlock]]:
    writer = SegmentWriter("file", HEAD)
    data = [writer.start(), *(writer.block(run) for run in runs), writer.end()]
    return b"".join(data), writer.blocks


def reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda count, offset: data[offset : offset + count]


def read_all(data: bytes) -> list[SlotRun]:
    _, places = read_segment("file", reader(data), len(data))
    return [read_block("file", reader(data), place.offset) for place in places]


def sealed_slots(count: int = 10) -> tuple[RecordRow, bytes]:
    """RecordRow of which all but the last three are in blocks of up to four."""
    slots = RecordRow()
    slots.extend(Batch.of(numbered(0, count)), 5)
    runs = list(slots.runs(0, count - 3, 4))
    data, blocks = segment_of(*runs)
    assert slots.seal(blocks) == count - 3
    return slots, data


def test_a_block_comes_back_with_its_holes_times_and_sizes() -> None:
    routed = Routed(make_record(b'{"a": "b c"}').data, "tag", "node", None, hops=2)
    run = run_of(5, make_record(b"1", b'{"k":1}', "x", "n"), None, routed, None)
    data, blocks = segment_of(run, run_of(9, None, None), run_of(11, make_record(b"null")))
    head, places = read_segment("file", reader(data), len(data))
    assert head == HEAD
    assert [(place.first_seq, place.last_seq) for place in places] == [(5, 8), (9, 10), (11, 11)]
    assert read_block("file", reader(data), places[0].offset) == run
    assert read_block("file", reader(data), places[1].offset).records == [None, None]
    assert [block.offset for block in blocks] == [place.offset for place in places]


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_a_changed_byte_is_found_wherever_it_is(share: float) -> None:
    data, _ = segment_of(run_of(1, *numbered(0, 50)), run_of(51, *numbered(0, 50)))
    at = int(len(data) * share)
    spoilt = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    with pytest.raises(Corrupt, match="file"):
        read_all(spoilt)


@pytest.mark.parametrize("kept", [0, 5, 40, 200, -1])
def test_a_segment_that_was_cut_short_is_refused(kept: int) -> None:
    data, _ = segment_of(run_of(1, *numbered(0, 50)))
    short = data[:kept]
    with pytest.raises(Corrupt, match="expected"):
        read_segment("file", reader(short), len(short))


def test_tags_are_kept_once_each_and_found_by_place() -> None:
    records = [make_record(b"1", tag=tag) for tag in ("a", None, "b", "a")]
    tags = Tags.of([*records, None])
    assert tags is not None
    assert tags.texts == ("a", "b")
    assert tags.matching(lambda tag: tag == "a") == [0, 3]
    assert tags.matching(lambda tag: tag == "c") == []
    assert Tags.of([make_record(b"1"), None]) is None


def test_a_cold_record_is_there_but_must_be_loaded() -> None:
    slots, data = sealed_slots()
    assert slots.cold_count == 7
    assert [slots.has(seq) for seq in (0, 1, 7, 10, 11)] == [False, True, True, True, False]
    assert list(slots.live_seqs(0, 10)) == list(range(1, 11))
    with pytest.raises(NotLoaded) as missing:
        slots.get(5)
    block = missing.value.block
    assert (block.first_seq, block.last_seq) == (5, 7)
    block.records = read_block("file", reader(data), block.offset).records
    record = slots.get(5)
    assert record is not None
    assert bytes(record.data) == b"4"
    assert block.touched
    assert slots.get(8) is not None


def test_what_needs_no_record_loads_none() -> None:
    slots, _ = sealed_slots()
    assert slots.remove(2)
    assert not slots.remove(2)
    slots.remove_matching(lambda tag: tag == "t1", 10)
    assert list(slots.live_seqs(0, 10)) == [1, 3, 4, 5, 7, 9, 10]
    assert slots.last_before(6) == 10
    slots.drop_through(3)
    assert slots.earliest_seq == 4
    assert slots.count == 5
    slots.drop_through(9)
    assert (slots.cold_count, slots.cold.blocks) == (0, [])
    assert [slot.seq for slot in slots.live(0, 10)] == [10]


def test_a_file_is_needed_while_one_of_its_records_is_left() -> None:
    slots, _ = sealed_slots()
    assert slots.cold.files() == {"file"}
    slots.drop_through(6)
    assert slots.cold.files() == {"file"}
    slots.remove(7)
    assert slots.cold.files() == set()


def test_blocks_that_were_lost_before_they_were_sealed_are_passed_over() -> None:
    slots = RecordRow()
    slots.extend(Batch.of(numbered(0, 10)), 5)
    _, blocks = segment_of(*slots.runs(0, 8, 2))
    slots.drop_through(5)
    assert slots.seal(blocks) > 0
    assert slots.cold.blocks[0].first_seq <= 6
    assert slots.cold_count == 9 - slots.base_seq
    assert slots.seal(blocks) == 0
    assert slots.seal([ColdBlock("file", 0, 0, first_seq=50, last_seq=60)]) == 0
    assert [seq for seq in range(12) if slots.has(seq)] == [6, 7, 8, 9, 10]


def test_a_cold_record_takes_a_fraction_of_the_memory_of_a_hot_one() -> None:
    def grown(slots: RecordRow, count: int) -> None:
        for number in range(count):
            slots.extend(Batch.of([make_record(b'{"number":%d,"unit":"kWh"}' % number)]), number)

    tracemalloc.start()
    try:
        slots = RecordRow()
        grown(slots, 10_000)
        hot_bytes = tracemalloc.get_traced_memory()[0]
        blocks = segment_of(*slots.runs(0))[1]
        assert slots.seal(blocks) == 10_000
        gc.collect()
        cold_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert cold_bytes * 5 < hot_bytes, (cold_bytes, hot_bytes)


def topic_of(count: int, durability: str = "disk") -> Topic:
    topic = Topic("t", TopicConfig(durability=durability), epoch=1, now_ms=0)
    topic.apply(Appended("t", 1, 100, Batch.of(numbered(0, count))))
    return topic


def seqs_to_seal(topic: Topic, options: SealOptions, now_ms: int = 100) -> list[tuple[int, int]]:
    return [
        (runs[0].first_seq, runs[-1].first_seq + len(runs[-1].sizes) - 1)
        for runs in segments_to_seal(topic, options, now_ms)
    ]


def test_whole_segments_behind_the_hot_part_are_sealed() -> None:
    options = SealOptions(segment_records_max=10, hot_segments=2)
    assert seqs_to_seal(topic_of(20), options) == []
    assert seqs_to_seal(topic_of(29), options) == []
    assert seqs_to_seal(topic_of(45), options) == [(1, 10), (11, 20)]


def test_a_segment_that_is_not_full_is_sealed_when_it_is_old() -> None:
    options = SealOptions(segment_records_max=10, hot_segments=2, segment_age_ms_max=50)
    assert seqs_to_seal(topic_of(25), options, 150) == []
    assert seqs_to_seal(topic_of(25), options, 151) == [(1, 5)]


def test_the_hot_part_may_be_bounded_by_bytes() -> None:
    options = SealOptions(segment_records_max=10, hot_segments=2, hot_bytes_max=10)
    assert seqs_to_seal(topic_of(20), options) == [(1, 10)]
    options = SealOptions(segment_records_max=10, segment_bytes_max=4, hot_segments=0)
    assert all(last - first < 10 for first, last in seqs_to_seal(topic_of(40), options))


def test_records_that_only_memory_has_are_not_sealed() -> None:
    options = SealOptions(segment_records_max=1, hot_segments=0)
    assert seqs_to_seal(topic_of(5, "ephemeral"), options) == []


@pytest.mark.parametrize("wrong", [{"segment_records_max": 0}, {"hot_segments": -1}])
def test_wrong_sizes_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Rejected, match="must"):
        SealOptions(**wrong)
