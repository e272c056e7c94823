"""Damage in the middle of a shared log: only partitions that may have lost entries are affected."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.store import Append, Damaged, LogEntry
from penstock.log.stores.segment import SegmentStore, open_segment
from penstock.log.stores.segment import format as fmt

PARTITIONS = 4
SEGMENT = fmt.segment_name(1)


def opened(path: Path, *, isolate: bool = True, segment_bytes: int = 65_536) -> SegmentStore:
    return open_segment(path, segment_bytes=segment_bytes, isolate_damage=isolate)


def payload(partition: int, index: int) -> bytes:
    return b"partition-%d-entry-%d." % (partition, index)


def append(store: SegmentStore, *partitions: int) -> None:
    """One group with the next entry of each partition."""
    group = []
    for partition in partitions:
        index = store.bounds(partition).last_index + 1
        group.append(Append(partition, (LogEntry(index, 1, payload(partition, index)),)))
    assert store.write(group, sync=True) == {}


def filled(path: Path, rounds: int = 3, segment_bytes: int = 65_536) -> None:
    store = opened(path, segment_bytes=segment_bytes)
    for _ in range(rounds):
        append(store, *range(PARTITIONS))
    store.close()


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def entries(store: SegmentStore, partition: int) -> list[bytes]:
    found = store.read(partition, 1, max_entries=1_000, max_bytes=1 << 20)
    return [entry.payload for entry in found]


def test_a_damaged_payload_takes_its_partition_alone_out_of_service(tmp_path: Path) -> None:
    filled(tmp_path)
    offset = (tmp_path / SEGMENT).read_bytes().find(payload(2, 2))
    flip(tmp_path / SEGMENT, offset + 3)
    with pytest.raises(Damaged):
        opened(tmp_path, isolate=False)
    for life in range(3):
        store = opened(tmp_path)
        assert [*store.damaged()] == [2]
        assert store.damaged()[2].detail["file"] == SEGMENT  # type: ignore[attr-defined]
        assert store.damaged()[2].detail["offset"] == offset  # type: ignore[attr-defined]
        with pytest.raises(Damaged, match="entry 2 of partition 2 does not match"):
            store.read(2, 1, max_entries=9, max_bytes=999)
        for partition in (0, 1, 3):
            wanted = [payload(partition, index) for index in range(1, 4 + life)]
            assert entries(store, partition) == wanted
        append(store, 0, 1, 3)
        assert store.partitions() == [0, 1, 2, 3]
        store.close()


def test_behind_a_gap_partitions_that_go_on_are_whole_and_the_others_are_damaged(
    tmp_path: Path,
) -> None:
    filled(tmp_path)
    store = opened(tmp_path)
    append(store, 0, 1)  # so these go on; nothing tells whether 2 and 3 lost anything
    store.close()
    data = (tmp_path / SEGMENT).read_bytes()
    block = data.find(payload(0, 2)) - fmt.BLOCK_HEADER_BYTES
    flip(tmp_path / SEGMENT, block + 5)  # its magic: what it held is not known
    store = opened(tmp_path)
    assert sorted(store.damaged()) == [0, 1, 2, 3], "none of them goes on after entry 1"
    store.close()


def test_a_gap_without_entries_of_a_partition_is_proven_harmless_by_what_follows(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path)
    append(store, *range(PARTITIONS))
    append(store, 1)
    append(store, 0, 2)
    append(store, 0)
    store.close()
    data = (tmp_path / SEGMENT).read_bytes()
    flip(tmp_path / SEGMENT, data.find(payload(1, 2)) - fmt.BLOCK_HEADER_BYTES + 5)
    for _ in range(2):
        store = opened(tmp_path)
        assert sorted(store.damaged()) == [1, 3], "3 may have lost entries: nothing follows"
        assert len(entries(store, 0)) >= 3
        append(store, 0, 2)
        store.close()


def test_a_checkpoint_proves_partitions_and_damage_is_still_there_after_rotations(
    tmp_path: Path,
) -> None:
    filled(tmp_path, rounds=40, segment_bytes=4_096)
    segments = sorted(tmp_path.glob("*.segment"))
    assert len(segments) > 3
    target = segments[1]
    data = target.read_bytes()
    index = next(n for n in range(1, 41) if data.find(payload(3, n)) >= 0) + 2
    flip(target, data.find(payload(3, index)))
    for life in range(3):
        store = opened(tmp_path, segment_bytes=4_096)
        assert [*store.damaged()] == [3]
        assert store.reclaim() == 0
        for _ in range(30):
            append(store, 0, 1, 2)
        assert [len(entries(store, each)) for each in (0, 1, 2)] == [70 + 30 * life] * 3
        store.close()
    assert target.exists(), "nothing of a damaged partition is given back"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_no_damage_makes_an_entry_disappear_unseen(
    tmp_path_factory: pytest.TempPathFactory, place: int, change: int
) -> None:
    path = tmp_path_factory.mktemp("log")
    filled(path, rounds=30, segment_bytes=4_096)
    segments = sorted(path.glob("*.segment"))[:-1]
    whole = sum(each.stat().st_size for each in segments)
    at = place % whole
    for segment in segments:
        size = segment.stat().st_size
        if at < size:
            data = bytearray(segment.read_bytes())
            data[at] ^= change
            segment.write_bytes(data)
            break
        at -= size
    try:
        store = opened(path, segment_bytes=4_096)
    except Damaged:
        return  # what cannot be isolated does not open
    for partition in range(PARTITIONS):
        if partition in store.damaged():
            continue
        wanted = [payload(partition, index) for index in range(1, 31)]
        with suppress(Damaged):  # seen when it is read
            assert entries(store, partition) == wanted
    store.close()
