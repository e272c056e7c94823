"""Topics that memory alone keeps: their seqs are set aside in the log, never given out twice."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.topics.core.batch import Batch, WriteRequest
from penstock.topics.core.codec import decode_entries, encode_entries
from penstock.topics.core.entries import Advanced, Appended, Configured, Created, FeedMark, Skipped
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.partition import RESERVE_SEQS, DecidedChange, Entry, Partition
from penstock.topics.core.read import ReadRequest
from penstock.topics.core.record import make_record
from penstock.topics.core.topic import AppendResult
from penstock.topics.core.topic_state import Hole


class Node:
    """A partition and its log. A restart keeps the log and nothing else."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.partition = Partition()

    def run(self, change: DecidedChange | AppendResult) -> list[Any]:
        assert isinstance(change, DecidedChange)
        self.partition.stage(change)
        if change.to_log:
            self.log.append(encode_entries(change.to_log))
        return self.partition.apply_all(change.entries)

    def put(self, **body: Any) -> None:
        self.run(self.partition.decide_config("t", body, 0))

    def write(self, count: int = 1, **options: Any) -> AppendResult:
        batch = Batch.of([make_record(b"1")] * count)
        written = self.run(self.partition.decide_write("t", WriteRequest(batch, **options), 0))[-1]
        assert isinstance(written, AppendResult)
        return written

    def feed(self, feed: FeedMark, count: int = 1) -> None:
        entry = self.partition.topic("t").decide_feed(
            feed, Batch.of([make_record(b"1")] * count), 0
        )
        assert entry is not None
        self.run(self.partition.change_of(entry))

    def restart(self) -> None:
        self.partition = self.replayed()

    def replayed(self) -> Partition:
        partition = Partition()
        for payload in self.log:
            partition.apply_all(decode_entries(payload))
        for topic in partition.topics.values():
            topic.lose_unlogged()
        return partition

    def end_clean(self) -> None:
        entry = Advanced("t", self.partition.topic("t").head_seq)
        self.run(DecidedChange((entry,), (entry,)))

    @property
    def logged(self) -> list[type]:
        return [type(entry) for payload in self.log for entry in decode_entries(payload)]


@pytest.fixture
def node() -> Node:
    node = Node()
    node.put(durability="ephemeral")
    return node


def test_only_reservations_are_logged_and_one_serves_many_writes(node: Node) -> None:
    for _ in range(RESERVE_SEQS + 1):
        node.write()
    assert node.logged == [Created, Advanced]
    node.write()
    assert node.logged == [Created, Advanced, Advanced]
    assert node.partition.topic("t").count == RESERVE_SEQS + 2


def test_a_batch_larger_than_a_reservation_is_set_aside_whole(node: Node) -> None:
    node.write(RESERVE_SEQS * 3)
    node.restart()
    assert node.write().first_seq > RESERVE_SEQS * 3


def test_seqs_go_on_behind_everything_that_may_have_been_given_out(node: Node) -> None:
    given = 0
    for count in (1, 5, RESERVE_SEQS, 2, RESERVE_SEQS * 2):
        for _ in range(3):
            written = node.write(count)
            assert written.first_seq > given
            given = written.last_seq
        node.restart()
        assert node.partition.topic("t").head_seq >= given
        assert node.partition.topic("t").count == 0


def test_what_memory_lost_is_told_to_its_readers(node: Node) -> None:
    node.write(10)
    node.restart()
    page = node.partition.read("t", ReadRequest(from_seq=4), 0)
    head_seq = node.partition.topic("t").head_seq
    assert page.tombstone == (5, head_seq, "cap", head_seq - 4, head_seq + 1, head_seq)
    assert page.caught_up


def test_after_a_clean_end_seqs_go_on_exactly_where_they_were(node: Node) -> None:
    node.write(10)
    node.end_clean()
    node.restart()
    assert node.partition.topic("t").head_seq == 10
    assert node.write() == AppendResult(11, 11, 1, 11)


def test_a_restart_without_a_write_changes_nothing_more(node: Node) -> None:
    node.write(3)
    node.restart()
    head_seq = node.partition.topic("t").head_seq
    node.restart()
    assert node.partition.topic("t").head_seq == head_seq


def test_a_topic_that_was_never_written_begins_at_one(node: Node) -> None:
    node.restart()
    assert node.write().first_seq == 1


def test_a_write_on_its_way_sets_its_own_seqs_aside() -> None:
    node = Node()
    node.put(durability="ephemeral")
    changes = []
    for _ in range(3):
        change = node.partition.decide_write("t", WriteRequest(Batch.of([make_record(b"1")])), 0)
        assert isinstance(change, DecidedChange)
        node.partition.stage(change)
        changes.append(change)
    assert [change.to_log for change in changes] == [
        (Advanced("t", seq + RESERVE_SEQS),) for seq in (1, 2, 3)
    ]


def test_a_topic_that_becomes_durable_goes_on_behind_what_only_memory_has(node: Node) -> None:
    node.write(10)
    node.put(durability="disk")
    assert node.logged[-2:] == [Advanced, Configured]
    assert node.write(2).first_seq == 11
    node.restart()
    topic = node.partition.topic("t")
    assert (topic.head_seq, topic.earliest_seq, topic.floors.evicted) == (12, 11, 10)
    assert node.write().first_seq == 13


def test_a_topic_that_becomes_durable_and_gets_no_write_keeps_its_head(node: Node) -> None:
    node.write(10)
    node.put(durability="fsync")
    node.restart()
    assert node.write().first_seq == 11


def test_a_topic_that_becomes_ephemeral_logs_no_more_records() -> None:
    node = Node()
    node.put()
    node.write(5)
    node.put(durability="ephemeral")
    node.write(5)
    assert node.logged == [Created, Appended, Configured, Advanced]
    node.restart()
    assert node.write().first_seq > 10


def test_there_and_back_again_never_gives_a_seq_twice() -> None:
    node, given = Node(), 0
    node.put()
    for durability in ("disk", "ephemeral", "memory", "ephemeral", "ephemeral", "fsync", "disk"):
        node.put(durability=durability)
        for count in (1, 7):
            written = node.write(count)
            assert written.first_seq > given
            given = written.last_seq
        node.restart()


def test_a_queue_in_memory_is_empty_after_a_restart_and_its_seqs_go_on() -> None:
    node = Node()
    node.put(type="queue", durability="ephemeral", leases_durable=True)
    node.write(3)
    node.run(node.partition.decide_claim("t", [ClaimRequest("n", 2)], 0, 0))
    acked, _ = node.partition.queue("t").decide_ack(Settle("n", (1,)), 0)
    node.run(node.partition.change_of(acked))
    assert node.partition.queue("t").counts(0) == (1, 1, 0)
    node.restart()
    assert node.partition.queue("t").counts(0) == (0, 0, 0)
    first_seq = node.write().first_seq
    claimed = node.partition.queue("t").decide_claim([ClaimRequest("n", 9)], 0, 0)
    assert [lease.seq for lease in claimed.leases] == [first_seq]


def test_a_name_that_is_dropped_and_made_again_begins_at_one_in_another_epoch(node: Node) -> None:
    node.write(10)
    epoch = node.partition.topic("t").epoch
    node.run(node.partition.decide_drop("t", 0))
    node.put(durability="ephemeral")
    node.restart()
    assert node.write().first_seq == 1
    assert node.partition.topic("t").epoch > epoch


def test_seqs_that_are_passed_over_after_a_crash_are_holes_and_stay_passed_over() -> None:
    node = Node()
    node.put()
    node.write(3)
    entry = Skipped("t", 10)
    node.run(DecidedChange((entry,), (entry,)))
    assert node.write(2).first_seq == 11
    for _ in range(2):
        page = node.partition.read("t", ReadRequest(), 0)
        assert [slot.seq for slot in page.records] == [1, 2, 3, 11, 12]
        assert page.tombstone is None
        node.restart()


def test_records_from_before_a_topic_was_ephemeral_survive_a_restart() -> None:
    logged: list[Entry] = []
    partition = Partition()

    def run(change: DecidedChange | AppendResult) -> None:
        assert isinstance(change, DecidedChange)
        partition.stage(change)
        partition.apply_all(change.entries)
        logged.extend(change.to_log)

    run(partition.decide_config("t", {"durability": "disk"}, 0))
    run(partition.decide_write("t", WriteRequest(Batch.of([make_record(b"1")])), 0))
    run(partition.decide_config("t", {"durability": "ephemeral"}, 0))
    run(partition.decide_write("t", WriteRequest(Batch.of([make_record(b"2")])), 0))
    again = Partition()
    again.apply_all(logged)
    again.topics["t"].lose_unlogged()
    diff = again.read("t", ReadRequest(), 0)
    assert [bytes(slot.record.data) for slot in diff.records] == [b"1"]
    assert diff.tombstone is None
    assert diff.head_seq >= 2


def test_a_hole_behind_records_that_only_memory_had_is_where_it_was_after_a_restart() -> None:
    node = Node()
    node.put()
    node.write(3)
    node.put(durability="ephemeral")
    node.write(2)
    node.feed(FeedMark("r", 1, 7, trimmed=4))
    assert node.partition.topic("t").holes == [Hole(6, 9)]
    node.restart()
    topic = node.partition.topic("t")
    assert (topic.holes, topic.fed["r"].source_seq) == ([Hole(6, 9)], 7)
    page = node.partition.read("t", ReadRequest(from_seq=3), 0)
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.gap_to) == (4, 9)


def test_records_that_only_memory_has_leave_without_a_word_to_the_log_however_configured() -> None:
    node = Node()
    node.put(durability="ephemeral", cap_bytes=10)
    node.write(10)
    node.put(priority=5)
    logged = len(node.log)
    for _ in range(20):
        node.write()
    assert len(node.log) == logged + 1  # more seqs were set aside, once
    assert node.partition.topic("t").earliest_seq == 21


def test_what_left_for_records_that_only_memory_had_stays_away_from_a_topic_made_durable() -> None:
    node = Node()
    node.put()
    node.write(5)
    node.put(durability="ephemeral")
    node.write(5)
    node.put(durability="disk", cap_bytes=10)
    live = node.partition.topic("t")
    assert not live.is_simple
    for count in (1, 1, 1, 4, 2):
        node.write(count)
        topic = node.replayed().topic("t")
        assert (topic.floors.evicted, topic.head_seq) == (live.floors.evicted, live.head_seq)
    assert live.earliest_seq == 10


def test_a_smaller_cap_takes_the_same_records_from_a_topic_made_durable_after_a_restart() -> None:
    node = Node()
    node.put(cap_bytes=100)
    node.write(5)
    node.put(durability="ephemeral")
    node.write(5)
    node.put(durability="disk")
    node.put(cap_bytes=8)
    assert node.partition.topic("t").earliest_seq == 3
    node.restart()
    assert node.partition.topic("t").earliest_seq == 3


def test_a_topic_that_its_first_write_made_knows_what_only_memory_has() -> None:
    node = Node()
    node.write(3, config={"durability": "ephemeral"})
    assert node.partition.topic("t").unlogged_seq == 3
