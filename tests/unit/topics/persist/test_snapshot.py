"""A snapshot as bytes: what is in it, and how damage to it is found."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec
import pytest

from penstock.kernel.errors import Corrupt
from penstock.protocol.config import TopicConfig
from penstock.topics.core.batch import Batch, WriteRequest
from penstock.topics.core.leases import ClaimRequest
from penstock.topics.core.partition import DecidedChange, Partition
from penstock.topics.core.read import find_tombstone
from penstock.topics.core.record import make_record
from penstock.topics.core.topic import AppendResult
from penstock.topics.core.topic_state import Floors
from penstock.topics.persist.snapshot import (
    KeptBlock,
    KeptEnd,
    KeptRecords,
    KeptTopic,
    Restoring,
    SnapshotHeader,
    SnapshotReader,
    decode_kept,
    encode_snapshot,
    read_summary,
)

HEADER = SnapshotHeader(4, 99)


def committed(partition: Partition, change: DecidedChange | AppendResult) -> None:
    assert isinstance(change, DecidedChange)
    partition.stage(change)
    partition.apply_all(change.entries)


def filled(records: int = 10, topics: int = 2) -> Partition:
    partition = Partition()
    committed(partition, partition.decide_config("q", {"type": "queue"}, 1))
    for name in ("q", *(f"t{number}" for number in range(topics))):
        batch = Batch.of([make_record(b"%d" % number) for number in range(records)])
        committed(partition, partition.decide_write(name, WriteRequest(batch, "key"), 5))
    return partition


def reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda count, offset: data[offset : offset + count]


def encoded(partition: Partition) -> bytes:
    return b"".join(encode_snapshot(partition, HEADER))


def restored(data: bytes) -> Partition:
    partition = Partition()
    restoring = Restoring(partition)
    for payload in SnapshotReader("name", reader(data)).payloads():
        restoring.take(decode_kept("name", payload))
    return partition


def test_a_snapshot_says_what_it_is_of_and_what_it_holds() -> None:
    data = encoded(filled())
    assert SnapshotReader("name", reader(data)).header == HEADER
    summary = read_summary("name", reader(data), len(data))
    assert (summary.topics, summary.records, summary.cold_records) == (3, 30, 0)
    assert summary.files == []


def test_a_snapshot_from_before_cold_slots_were_packed_is_read() -> None:
    times, sizes = array("q", [5, 5, 9]), array("Q", [3, 0, 4])
    partition = Partition()
    topic = KeptTopic("t", TopicConfig(), 1, 9, 9, Floors(), [], 7, 0)
    place = ("f.segment", 40, 99, 7, 9, times.tobytes(), sizes.tobytes())
    block = KeptBlock(*place, ["x"], array("H", [1, 0, 0]).tobytes())
    payload = msgspec.msgpack.encode([topic, block, KeptEnd()])
    Restoring(partition).take(decode_kept("name", payload))
    slots = partition.topics["t"].row
    assert (slots.base_seq, slots.head_seq, slots.cold_count) == (7, 9, 3)
    assert (slots.count, slots.size_bytes) == (2, 7)
    assert list(slots.live_seqs(0, 9)) == [7, 9]
    slots.remove_matching(lambda tag: tag == "x", 10)
    assert list(slots.live_seqs(0, 9)) == [9]


def test_an_empty_partition_has_a_snapshot_too() -> None:
    assert restored(encoded(Partition())).state() == Partition().state()


def test_large_topics_come_in_many_frames_and_small_ones_share_one() -> None:
    large = SnapshotReader("name", reader(encoded(filled(20_000, 1))))
    assert len(list(large.payloads())) > 10
    small = SnapshotReader("name", reader(encoded(filled(1, 50))))
    assert len(list(small.payloads())) < 10


def test_a_queue_with_very_many_leases_comes_back() -> None:
    partition = filled(5_000, 0)
    queue = partition.queue("q")
    for start in range(0, 5_000, 1_000):
        claimed = queue.decide_claim([ClaimRequest("n", 1_000)], 10, start)
        committed(partition, DecidedChange((claimed,), ()))
    again = restored(encoded(partition))
    assert again.queue("q").state() == queue.state()
    assert again.queue("q").counts(10) == queue.counts(10)
    assert again.queue("q").counts(10**9).ready == 5_000


def test_leases_on_jobs_that_had_left_are_forgotten_after_a_restart() -> None:
    partition = filled(10, 0)
    claimed = partition.queue("q").decide_claim([ClaimRequest("n", 4, 10**6)], 10, 0)
    committed(partition, DecidedChange((claimed,), ()))
    committed(partition, partition.decide_delete("q", 11, before_seq=3))
    again = restored(encoded(partition))
    assert again.queue("q").counts(12) == (6, 2, 0)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.3, 0.7, 0.99])
def test_a_changed_byte_is_found_wherever_it_is(share: float) -> None:
    data = encoded(filled(1_000))
    at = int(len(data) * share)
    spoilt = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    with pytest.raises(Corrupt, match="name"):
        restored(spoilt)


@pytest.mark.parametrize("kept", [0, 10, 28, 200, -1, -9])
def test_a_snapshot_that_was_cut_short_is_refused(kept: int) -> None:
    short = encoded(filled())[:kept]
    with pytest.raises(Corrupt, match="name"):
        read_summary("name", reader(short), len(short))


def test_records_before_their_topic_are_refused() -> None:
    with pytest.raises(Corrupt, match="before the topic itself"):
        Restoring(Partition()).take([KeptRecords(b"", b"", b"")])


def test_a_snapshot_from_before_holes_had_a_place_still_tells_what_a_source_trimmed() -> None:
    partition = filled(records=3, topics=1)
    older = Partition()
    restoring = Restoring(older)
    for payload in SnapshotReader("name", reader(encoded(partition))).payloads():
        entries = msgspec.msgpack.decode(payload)
        for entry in entries:
            if entry[0] == "T":
                entry[6], entry[10:] = [0, 0, 0, 2], []
        restoring.take(decode_kept("name", msgspec.msgpack.encode(entries)))
    topic = older.topic("t0")
    tombstone = find_tombstone(topic, topic.at(0), 0)
    assert tombstone is not None
    assert (tombstone.gap_to, tombstone.reason) == (2, "source_trim")
