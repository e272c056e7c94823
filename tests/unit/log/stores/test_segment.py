"""What only the segment store does: files, rotation, damage, giving space back."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from penstock.kernel.errors import Corrupt, Rejected
from penstock.log.store import (
    Append,
    Compact,
    Damaged,
    DiskFull,
    HardState,
    LogEntry,
    NotContiguous,
    Operation,
    SetHardState,
    SyncFailed,
    Underway,
    UnknownFormat,
)
from penstock.log.stores.segment import SegmentOptions, SegmentStore, open_segment
from penstock.log.stores.segment import format as fmt
from penstock.testing import FakeDisk, InlineExecutor
from tests.waiting import wait_until


def options(**more: object) -> SegmentOptions:
    known = {"segment_bytes": 4096, "background": InlineExecutor(), "entropy": Random(7).randbytes}
    return SegmentOptions(**(known | more))  # type: ignore[arg-type]


def fresh(**more: object) -> tuple[FakeDisk, SegmentStore]:
    disk = FakeDisk(Random(1))
    return disk, SegmentStore(disk, options(**more))


def append(partition: int, first: int, count: int = 1, size: int = 100) -> Append:
    payload = bytes([partition]) * size
    return Append(partition, [LogEntry(i, 1, payload) for i in range(first, first + count)])


def write(store: SegmentStore, *group: Operation, sync: bool = True) -> None:
    assert store.write(group, sync=sync) == {}


def stage(store: SegmentStore, group: Sequence[Operation]) -> Sequence[Operation]:
    staged = store.stage(group, 1 << 20)
    assert staged is not None
    return staged


def begin(store: SegmentStore, *group: Operation) -> Underway:
    """A write that is under way; the disk of these tests takes not every one."""
    for _ in range(100):
        underway = store.begin(group, sync=True)
        if underway is not None:
            return underway
    raise AssertionError("expected a write to begin, found that it has to be a call")


def segments(disk: FakeDisk) -> list[str]:
    return [name for name in disk.names() if fmt.segment_number(name)]


def test_the_next_segment_is_made_when_the_current_one_is_half_full() -> None:
    disk, store = fresh()
    write(store, append(1, 1, count=10))
    assert len(segments(disk)) == 1
    write(store, append(1, 11, count=10))
    assert len(segments(disk)) == 2


def test_a_group_larger_than_a_segment_gets_a_segment_of_its_size() -> None:
    disk, store = fresh()
    write(store, append(1, 1, size=50_000))
    write(store, append(1, 2, size=10), append(2, 1, size=90_000))
    store.close()
    store = SegmentStore(disk, options())
    assert len(store.read(1, 1, max_entries=9, max_bytes=1 << 20)) == 2
    assert len(store.read(2, 1, max_entries=9, max_bytes=1 << 20)[0].payload) == 90_000


def test_a_group_is_one_write_and_one_sync() -> None:
    disk, store = fresh()
    write(store, append(1, 1))
    before = store.status().syncs
    write(store, *(append(p, 1) for p in range(2, 20)))
    assert store.status().syncs == before + 1
    assert len(segments(disk)) == 2


def test_segments_are_removed_when_all_their_entries_are_compacted() -> None:
    disk, store = fresh()
    for index in range(1, 400):
        write(store, append(1, index))
        if index % 10 == 0:
            write(store, Compact(1, index))
    assert len(segments(disk)) <= 4
    assert store.status().bytes_on_disk <= 3 * 4096


def test_hard_state_outlives_the_segment_it_was_written_in() -> None:
    disk, store = fresh()
    write(store, SetHardState(9, 5, 3))
    for index in range(1, 400):
        write(store, append(1, index), Compact(1, max(index - 1, 0)))
    assert fmt.segment_name(1) not in disk.names()
    store.close()
    assert SegmentStore(disk, options()).hard_state(9) == HardState(5, 3)


def test_a_partition_that_never_compacts_does_not_pin_old_segments() -> None:
    disk, store = fresh()
    for index in range(1, 300):
        group = [append(1, index), Compact(1, index)]
        if index % 20 == 1:
            group.append(append(2, index // 20 + 1))
        write(store, *group)
    pinned = len(segments(disk))
    freed = store.reclaim()
    assert freed > 0
    assert len(segments(disk)) < pinned / 2
    expected = [LogEntry(i, 1, b"\2" * 100) for i in range(1, 16)]
    assert store.read(2, 1, max_entries=99, max_bytes=1 << 20) == expected
    store.close()
    store = SegmentStore(disk, options())
    assert store.read(2, 1, max_entries=99, max_bytes=1 << 20) == expected
    assert [store.term_at(2, i) for i in range(1, 16)] == [1] * 15


def test_a_reclaim_with_nothing_to_do_does_nothing() -> None:
    _, store = fresh()
    write(store, append(1, 1, count=20))
    assert store.reclaim() == 0


@pytest.mark.parametrize("offset", [8, fmt.SEGMENT_HEADER_BYTES + 8])
def test_another_format_version_is_named(offset: int) -> None:
    disk, store = fresh()
    write(store, append(1, 1))
    store.close()
    name = segments(disk)[0]
    if offset > fmt.SEGMENT_HEADER_BYTES:
        rewrite_block_version(disk, name, 9)
    else:
        rewrite_header_version(disk, name, 9)
    with pytest.raises(UnknownFormat, match="expected a format version up to 2, found 9"):
        SegmentStore(disk, options())


def test_a_version_that_a_damaged_byte_made_is_damage() -> None:
    disk, store = fresh()
    write(store, append(1, 1))
    store.close()
    disk.flip(segments(disk)[0], 8, fmt.VERSION ^ 9)
    with pytest.raises(Damaged, match="expected header checksum"):
        SegmentStore(disk, options())


def rewrite_header_version(disk: FakeDisk, name: str, version: int) -> None:
    """Change the version of a segment and make its checksum right again."""
    data = bytearray(disk.content(name))
    data[8] = version
    checked = fmt.SEGMENT_HEADER.size - 4
    data[checked : checked + 4] = fmt.crc32c(bytes(data[:checked])).to_bytes(4, "little")
    disk.open(name).pwrite(bytes(data), 0)


def rewrite_block_version(disk: FakeDisk, name: str, version: int) -> None:
    """Change the version of the first block and make its checksum right again."""
    data = bytearray(disk.content(name))
    start = fmt.SEGMENT_HEADER_BYTES
    head = fmt.BlockHead(*fmt.BLOCK_HEADER.unpack_from(data, start))
    data[start + 8] = version
    end = start + fmt.BLOCK_HEADER_BYTES + head.body_bytes
    seed = fmt.seed_of(fmt.check_segment_header(name, data))
    crc = fmt.crc32c(bytes(data[start + 4 : end]), seed)
    data[start : start + 4] = crc.to_bytes(4, "little")
    disk.open(name).pwrite(bytes(data), 0)


def test_damage_in_the_middle_is_named_and_nothing_is_opened() -> None:
    disk, store = fresh()
    write(store, append(1, 1))
    offset = len(disk.content(segments(disk)[0]).rstrip(b"\0"))
    write(store, append(1, 2))
    write(store, append(1, 3))
    disk.flip(segments(disk)[0], offset + 60, 4)
    with pytest.raises(Damaged) as damaged:
        SegmentStore(disk.after_kill(), options())
    assert damaged.value.detail["file"] == segments(disk)[0]
    assert damaged.value.detail["offset"] == offset
    assert "block 3 was synced" in str(damaged.value)
    with pytest.raises(Damaged):
        SegmentStore(disk, options())


def test_a_torn_tail_is_cut_and_reported() -> None:
    disk, store = fresh()
    write(store, append(1, 1))
    offset = len(disk.content(segments(disk)[0]).rstrip(b"\0"))
    write(store, append(1, 2), sync=False)
    disk.flip(segments(disk)[0], offset + 60, 4)
    store = SegmentStore(disk.after_kill(), options())
    cut = store.recovery.cut
    assert cut is not None
    assert (cut.file, cut.offset) == (segments(disk)[0], offset)
    assert store.bounds(1).last_index == 1
    assert not any(disk.content(segments(disk)[0])[offset:])
    write(store, append(1, 2))
    store.close()
    store = SegmentStore(disk, options())
    assert store.recovery.cut is None
    assert store.bounds(1).last_index == 2


@pytest.mark.parametrize("kept", [0, 63, 64, 5_000, 4 * 65_536 - 1])
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_segment_that_was_cut_short_is_damage(tmp_path: Path, kept: int, is_closed: bool) -> None:
    store = open_segment(tmp_path, segment_bytes=4 * 65_536)
    for index in range(1, 41):
        write(store, append(1, index))
    if is_closed:
        store.close()
    copy = tmp_path / "copy"
    copy.mkdir()
    name = fmt.segment_name(1)
    (copy / name).write_bytes((tmp_path / name).read_bytes()[:kept])
    with pytest.raises(Damaged) as damaged:
        open_segment(copy, segment_bytes=4 * 65_536)
    assert damaged.value.detail["file"] == name
    assert damaged.value.detail["offset"] == (kept if kept >= 64 else 0)
    assert (copy / name).stat().st_size == kept, "nothing was written to it"


def test_a_segment_of_another_size_than_is_made_now_is_whole(tmp_path: Path) -> None:
    for segment_bytes in (65_536, 262_144, 65_536):
        store = open_segment(tmp_path, segment_bytes=segment_bytes)
        first = store.bounds(1).last_index + 1
        write(store, append(1, first, count=3, size=100_000))
        store.close()
    store = open_segment(tmp_path)
    assert store.bounds(1).last_index == 9


def test_a_segment_that_does_not_say_its_size_is_read_as_ever(tmp_path: Path) -> None:
    store = open_segment(tmp_path, segment_bytes=65_536)
    write(store, append(1, 1, count=3))
    store.close()
    path = tmp_path / fmt.segment_name(1)
    data = bytearray(path.read_bytes())
    data[fmt.SEGMENT_HEADER.size : fmt.SEGMENT_HEADER_BYTES] = bytes(24)
    path.write_bytes(data)
    store = open_segment(tmp_path)
    assert store.bounds(1).last_index == 3
    store.close()
    data[fmt.SEGMENT_HEADER.size + 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged, match="checksum of the segment's size"):
        open_segment(tmp_path)


def test_a_missing_segment_is_named() -> None:
    disk, store = fresh()
    for index in range(1, 100):
        write(store, append(1, index))
    store.close()
    disk.unlink(segments(disk)[1])
    with pytest.raises(Damaged, match=fmt.segment_name(2)):
        SegmentStore(disk, options())


def test_missing_oldest_segments_are_missed_by_their_entries() -> None:
    disk, store = fresh()
    for index in range(1, 100):
        write(store, append(1, index))
    store.close()
    disk.unlink(segments(disk)[0])
    with pytest.raises(Corrupt, match="entry 1 is in no segment"):
        SegmentStore(disk, options())


def test_a_segment_of_another_store_is_refused() -> None:
    disk, store = fresh()
    for index in range(1, 60):
        write(store, append(1, index))
    store.close()
    other = FakeDisk(Random(2))
    stranger = SegmentStore(other, options(entropy=Random(8).randbytes))
    for index in range(1, 60):
        write(stranger, append(1, index))
    name = segments(disk)[1]
    disk.open(name).pwrite(other.content(name), 0)
    with pytest.raises(Damaged, match="expected store id"):
        SegmentStore(disk, options())


def test_a_staged_group_is_what_it_was_made_from() -> None:
    _, store = fresh()
    group = [append(p, 1, count=3) for p in range(5)]
    staged = stage(store, group)
    assert list(staged) == group
    assert store.partitions() == [], "nothing has changed yet"
    assert store.write(staged, sync=True) == {}
    assert all(store.bounds(p).last_index == 3 for p in range(5))
    store.write(stage(store, [append(1, 4), append(1, 5), Compact(1, 4)]), sync=True)
    assert store.bounds(1)[:3] == (4, 1, 5)


def test_what_cannot_be_is_left_out_when_a_group_is_staged_and_named_when_it_is_written() -> None:
    _, store = fresh()
    write(store, append(3, 1))
    group = [append(2, 9), append(3, 2)]
    staged = stage(store, group)
    assert list(staged) == group
    failed = store.write(staged, sync=True)
    assert [type(failed[2])] == [NotContiguous]
    assert (store.bounds(2).last_index, store.bounds(3).last_index) == (0, 2)


def test_a_term_that_is_too_large_is_refused_alone_and_in_company() -> None:
    _, store = fresh()
    for partitions in ([1], [1, 2], [1, 2, 3]):
        group = [Append(p, [LogEntry(1, 1 << 63, b"x")]) for p in partitions]
        failed = store.write([*group, append(9, store.bounds(9).last_index + 1)], sync=True)
        assert {p: type(error) for p, error in failed.items()} == dict.fromkeys(
            partitions, Rejected
        )
    assert store.bounds(9).last_index == 3


def test_groups_of_other_partitions_may_be_written_between_staging_and_writing() -> None:
    disk, store = fresh()
    staged = stage(store, [append(1, 1), append(2, 1)])
    write(store, append(3, 1))
    assert store.write(staged, sync=True) == {}
    store.close()
    store = SegmentStore(disk, options())
    assert [store.bounds(p).last_index for p in (1, 2, 3)] == [1, 1, 1]


def test_a_group_with_more_bytes_than_wanted_is_not_staged() -> None:
    _, store = fresh()
    assert store.stage([append(1, 1, size=100), append(2, 1, size=101)], 200) is None
    assert store.stage([append(1, 1, size=100), append(2, 1, size=100)], 200) is not None


def test_writes_under_way_are_seen_when_finished_and_found_when_opened_again() -> None:
    disk, store = fresh(segment_bytes=65_536)
    write(store, append(0, 1))
    air = [begin(store, append(partition, 1)) for partition in (1, 2, 3)]
    assert [store.bounds(partition).last_index for partition in (1, 2, 3)] == [0, 0, 0]
    for number, underway in enumerate(air, 1):
        assert underway.is_done()
        assert underway.finish() == {}
        assert store.bounds(number).last_index == 1
    write(store, append(0, 2))
    store.close()
    store = SegmentStore(disk, options())
    assert store.recovery.cut is None
    for partition, last in enumerate((2, 1, 1, 1)):
        found = store.read(partition, 1, max_entries=9, max_bytes=1 << 20)
        assert found == list(append(partition, 1, count=last).entries)


def test_writes_under_way_begin_at_pages_of_their_own() -> None:
    disk, store = fresh(segment_bytes=65_536)
    write(store, append(0, 1))
    name = segments(disk)[0]
    first_end = len(disk.content(name).rstrip(b"\0"))
    air = [begin(store, append(partition, 1)) for partition in (1, 2)]
    starts = [disk.content(name).index(bytes([p]) * 100) for p in (1, 2)]
    assert starts[0] == first_end + fmt.BLOCK_HEADER_BYTES, "alone it begins where the log ends"
    assert starts[1] == fmt.PAGE_BYTES + fmt.BLOCK_HEADER_BYTES
    assert [underway.finish() for underway in air] == [{}, {}]


def test_writes_under_way_are_finished_in_the_order_they_began() -> None:
    _, store = fresh(segment_bytes=65_536)
    write(store, append(0, 1))
    first, second = begin(store, append(1, 1)), begin(store, append(2, 1))
    with pytest.raises(Rejected, match="in the order they began"):
        second.finish()
    assert (first.finish(), second.finish()) == ({}, {})


def test_what_has_to_be_a_call_does_not_begin() -> None:
    disk, store = fresh(segment_bytes=65_536)
    group = [append(1, 1)]

    def begins(sync: bool = True) -> bool:
        return any(store.begin(group, sync=sync) is not None for _ in range(50))

    assert not begins(), "a segment begins with a checkpoint"
    write(store, append(0, 1))
    assert not begins(sync=False), "without a sync there is nothing to wait for"
    write(store, append(0, 2), sync=False)
    assert not begins(), "what was not synced has to be synced too"
    write(store, append(0, 3))
    group = [append(1, 1, size=80_000)]
    assert not begins(), "a new segment is needed"
    group = [append(1, 7)]
    assert not begins(), "nothing of it can be written"
    disk.sync_error_after = 0
    assert store.write([append(0, 4)], sync=True)
    group = [append(1, 1)]
    assert not begins(), "the store takes no more writes"
    store.close()
    assert not begins(), "the store is closed"


def test_a_thread_that_wants_to_write_gets_its_turn_when_all_have_landed() -> None:
    _, store = fresh(segment_bytes=65_536)
    write(store, append(0, 1))
    underway = begin(store, append(1, 1))
    thread = threading.Thread(target=write, args=(store, append(2, 1)))
    thread.start()
    wait_until(lambda: all(store.begin([append(3, 1)], sync=True) is None for _ in range(50)))
    assert underway.finish() == {}
    thread.join(60)
    assert not thread.is_alive()
    assert [store.bounds(partition).last_index for partition in range(4)] == [1, 1, 1, 0]


def test_after_a_write_under_way_that_failed_those_behind_it_fail_too() -> None:
    disk, store = fresh(segment_bytes=65_536)
    write(store, append(0, 1))
    disk.sync_error_after = 0
    air = [begin(store, append(partition, 1)) for partition in (1, 2)]
    assert [type(underway.finish()[n]) for n, underway in enumerate(air, 1)] == [SyncFailed] * 2
    assert "Input/output error" in str(store.status().read_only_reason)
    assert store.partitions() == [0]
    store = SegmentStore(disk.after_kill(), options())
    assert store.bounds(0).last_index == 1


def test_a_store_that_is_closed_with_writes_under_way_has_them() -> None:
    disk, store = fresh(segment_bytes=65_536)
    write(store, append(0, 1))
    air = [begin(store, append(partition, 1)) for partition in (1, 2)]
    store.close()
    with pytest.raises(Rejected, match="in the order they began"):
        air[0].finish()
    store = SegmentStore(disk, options())
    assert store.recovery.cut is None
    assert [store.bounds(partition).last_index for partition in (0, 1, 2)] == [1, 1, 1]


def test_whatever_lies_in_a_gap_between_blocks_harms_nobody() -> None:
    disk, store = fresh(segment_bytes=65_536)
    write(store, append(0, 1))
    air = [begin(store, append(partition, 1)) for partition in (1, 2)]
    assert [underway.finish() for underway in air] == [{}, {}]
    store.close()
    disk.flip(segments(disk)[0], fmt.PAGE_BYTES - 1, 1)
    store = SegmentStore(disk, options())
    assert store.recovery.cut is None
    assert [store.bounds(partition).last_index for partition in (0, 1, 2)] == [1, 1, 1]


def test_damage_after_a_gap_is_named() -> None:
    disk, store = fresh(segment_bytes=65_536)
    write(store, append(0, 1))
    air = [begin(store, append(partition, 1)) for partition in (1, 2)]
    assert [underway.finish() for underway in air] == [{}, {}]
    store.close()
    disk.flip(segments(disk)[0], fmt.PAGE_BYTES + 60, 1)
    with pytest.raises(Damaged, match="block 4 was synced"):
        SegmentStore(disk, options())


def test_a_log_of_the_first_format_is_read_and_goes_on_in_the_second() -> None:
    disk, store = fresh(segment_bytes=65_536)
    write(store, append(1, 1, count=3))
    write(store, append(1, 4))
    as_first_format(disk, segments(disk)[0])
    store = SegmentStore(disk.after_kill(), options())
    assert store.recovery.cut is None
    write(store, append(1, 5))
    store.close()
    store = SegmentStore(disk, options())
    found = store.read(1, 1, max_entries=9, max_bytes=1 << 20)
    assert found == list(append(1, 1, count=5).entries)


def as_first_format(disk: FakeDisk, name: str) -> None:
    """Rewrite a segment without gaps as the first format had it, with checksums that are right."""
    data = bytearray(disk.content(name))
    seed = fmt.seed_of(fmt.check_segment_header(name, data))
    data[8] = 1
    checked = fmt.SEGMENT_HEADER.size - 4
    data[checked : checked + 4] = fmt.crc32c(bytes(data[:checked])).to_bytes(4, "little")
    offset, before = fmt.SEGMENT_HEADER_BYTES, bytes(4)
    while any(data[offset : offset + 4]):
        head = fmt.BlockHead(*fmt.BLOCK_HEADER.unpack_from(data, offset))
        end = offset + fmt.BLOCK_HEADER_BYTES + head.body_bytes
        data[offset + 8] = 1
        data[offset + fmt.BLOCK_HEADER_BYTES - 4 : offset + fmt.BLOCK_HEADER_BYTES] = before
        before = fmt.crc32c(bytes(data[offset + 4 : end]), seed).to_bytes(4, "little")
        data[offset : offset + 4] = before
        offset = end
    disk.open(name).pwrite(bytes(data), 0)


def test_threads_may_write_at_a_time_if_they_share_no_partition(tmp_path: Path) -> None:
    store = open_segment(tmp_path, segment_bytes=65_536)

    def work(partition: int) -> None:
        for index in range(1, 200):
            write(store, append(partition, index), sync=index % 50 == 0)

    threads = [threading.Thread(target=work, args=(p,)) for p in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    store = open_segment(tmp_path, segment_bytes=65_536)
    for partition in range(4):
        found = store.read(partition, 1, max_entries=1_000, max_bytes=1 << 30)
        assert found == list(append(partition, 1, count=199).entries)
    store.close()


def test_reads_go_on_while_segments_are_compacted_away(tmp_path: Path) -> None:
    store = open_segment(tmp_path, segment_bytes=65_536)
    write(store, append(1, 1, count=50))
    stop = threading.Event()
    wrong: list[object] = []

    def look() -> None:
        while not stop.is_set():
            try:
                first = store.bounds(1).boundary_index + 1
                found = store.read(1, first, max_entries=20, max_bytes=1 << 20)
            except Exception as error:
                if "was compacted" not in str(error):
                    wrong.append(error)
                continue
            wrong.extend(entry for entry in found if entry.payload != b"\1" * 100)

    reader = threading.Thread(target=look)
    reader.start()
    for index in range(51, 3_000):
        write(store, append(1, index), Compact(1, index - 40), sync=index % 20 == 0)
    stop.set()
    reader.join()
    store.close()
    assert wrong == []


@pytest.mark.parametrize("wrong", [{"segment_bytes": 10}, {"reclaim_below": 1.0}])
def test_options_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(Rejected):
        SegmentOptions(**wrong)  # type: ignore[arg-type]


def test_older_segments_stay_while_the_current_one_has_no_checkpoint() -> None:
    disk, store = fresh()
    write(store, SetHardState(0, 3, 1), append(0, 1, count=20))
    write(store, Compact(0, 20))  # nothing of the only segment is wanted now
    assert len(segments(disk)) == 2, "the next one is made"
    disk.space_bytes = 0
    assert isinstance(store.write([append(0, 21, size=1_900)], sync=True)[0], DiskFull)
    assert store.reclaim() == 0
    disk = disk.after_power_loss(Random(2))
    again = SegmentStore(disk, options())
    assert (again.bounds(0).last_index, again.hard_state(0)) == (20, HardState(3, 1))
    write(again, append(0, 21, size=1_900))
    again.reclaim()
    assert segments(disk)[0] != fmt.segment_name(1), "with a checkpoint they may go"


def test_a_store_whose_last_sync_fails_says_so_and_lets_go() -> None:
    disk, store = fresh()
    write(store, append(1, 1))
    write(store, append(1, 2), sync=False)
    disk.sync_error_after = 0
    with pytest.raises(SyncFailed):
        store.close()
    disk.sync_error_after = None
    again = SegmentStore(disk, options())
    assert again.bounds(1).last_index in (1, 2)
    store.close()


def test_segments_that_were_begun_are_counted() -> None:
    _, store = fresh()
    assert store.status().rotations == 0
    for index in range(1, 100):
        write(store, append(1, index))
    assert store.status().rotations == store.status().bytes_on_disk // 4096 - 1 > 2
