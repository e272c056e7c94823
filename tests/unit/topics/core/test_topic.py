"""Log topics: appends, caps, age, deletes, floors."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.kernel.errors import Corrupt
from penstock.protocol.config import TopicConfig
from penstock.protocol.errors import InvalidRequest, RecordTooLarge, TopicFull
from penstock.topics.core.batch import Batch
from penstock.topics.core.entries import Advanced, Appended, FeedMark
from penstock.topics.core.predicate import parse_predicate
from penstock.topics.core.record import make_record
from penstock.topics.core.topic import AppendResult, Topic
from penstock.topics.core.topic_state import Floors


def make_topic(**config: Any) -> Topic:
    return Topic("t", TopicConfig(**config), epoch=1, now_ms=0)


def write(topic: Topic, *data: bytes, now_ms: int = 0, key: str | None = None) -> AppendResult:
    records = [make_record(each, tag=each.decode()) for each in data]
    entry = topic.decide_append(Batch.of(records), now_ms, key=key)
    if isinstance(entry, AppendResult):
        return entry
    written = topic.apply(entry)
    assert isinstance(written, AppendResult)
    return written


def batch_of(*data: bytes) -> Batch:
    return Batch.of([make_record(each) for each in data])


def seqs(topic: Topic) -> list[int]:
    return [slot.seq for slot in topic.live(0, topic.head_seq)]


def delete(topic: Topic, before_seq: int | None = None, match: str | None = None) -> int:
    predicate = parse_predicate(match) if match is not None else None
    deleted = topic.apply(topic.decide_delete(0, before_seq=before_seq, match=predicate))
    assert isinstance(deleted, int)
    return deleted


def test_a_batch_gets_a_contiguous_block_from_one_on() -> None:
    topic = make_topic()
    assert write(topic, b"1", b"2") == AppendResult(1, 2, 2, 2)
    assert write(topic, b"3", b"4", b"5") == AppendResult(3, 5, 3, 5)
    assert (topic.count, topic.size_bytes, topic.earliest_seq, topic.next_seq) == (5, 5, 1, 6)


def test_an_empty_topic_begins_one_past_its_head() -> None:
    topic = make_topic()
    assert (topic.head_seq, topic.earliest_seq, topic.next_seq) == (0, 1, 1)
    write(topic, b"1", b"2")
    delete(topic, before_seq=9)
    assert (topic.head_seq, topic.earliest_seq, topic.count, topic.size_bytes) == (2, 3, 0, 0)


def test_a_cap_on_records_keeps_the_last_seqs_and_deleted_ones_count() -> None:
    topic = make_topic(cap_records=3)
    write(topic, b"1", b"2", b"3")
    delete(topic, match="2")
    write(topic, b"4")
    assert seqs(topic) == [3, 4]
    assert topic.floors.evicted == 1


def test_a_batch_larger_than_a_cap_that_discards_keeps_its_end() -> None:
    topic = make_topic(cap_records=2)
    assert write(topic, *[b"1"] * 5).last_seq == 5
    assert seqs(topic) == [4, 5]


def test_a_cap_on_bytes_evicts_the_oldest_until_it_fits() -> None:
    topic = make_topic(cap_bytes=10)
    write(topic, b"1111", b"2222", b"33")
    assert seqs(topic) == [1, 2, 3]
    write(topic, b"4")
    assert seqs(topic) == [2, 3, 4]
    assert (topic.floors.evicted, topic.size_bytes) == (1, 7)


def test_a_full_topic_that_rejects_says_so_and_changes_nothing() -> None:
    topic = make_topic(cap_records=3, cap_bytes=100, discard="reject")
    write(topic, b"1", b"2")
    before = topic.state()
    with pytest.raises(TopicFull) as refused:
        write(topic, b"3", b"4")
    assert topic.state() == before
    assert (refused.value.code, refused.value.status) == ("topic_full", 422)
    assert refused.value.detail == {
        "topic": "t",
        "cap_records": 3,
        "cap_bytes": 100,
        "head_seq": 2,
        "earliest_seq": 1,
    }
    delete(topic, before_seq=2)
    assert write(topic, b"3", b"4").last_seq == 4


def test_a_write_over_the_whole_of_a_rejecting_cap_can_never_fit() -> None:
    with pytest.raises(RecordTooLarge):
        write(make_topic(cap_bytes=3, discard="reject"), b"1234")
    with pytest.raises(RecordTooLarge):
        write(make_topic(cap_records=1, discard="reject"), b"1", b"2")


def test_appends_on_their_way_have_their_seqs_and_their_room() -> None:
    topic = make_topic(cap_records=3, discard="reject")
    first = topic.decide_append(batch_of(b"1", b"1"), 0)
    assert isinstance(first, Appended)
    topic.stage(first)
    assert topic.head_seq == 0
    with pytest.raises(TopicFull):
        topic.decide_append(batch_of(b"2", b"2"), 0)
    second = topic.decide_append(batch_of(b"2"), 0)
    assert isinstance(second, Appended)
    assert second.first_seq == 3
    topic.stage(second)
    topic.apply(first)
    topic.apply(second)
    assert (topic.head_seq, topic.next_seq) == (3, 4)


def test_what_did_not_reach_the_log_leaves_no_gap() -> None:
    topic = make_topic()
    entry = topic.decide_append(batch_of(b"1"), 0, key="k")
    assert isinstance(entry, Appended)
    topic.stage(entry)
    topic.abandon()
    assert write(topic, b"1", key="k") == AppendResult(1, 1, 1, 1)


def test_an_entry_out_of_place_stops_the_topic() -> None:
    topic = make_topic()
    entry = topic.decide_append(batch_of(b"1"), 0)
    assert isinstance(entry, Appended)
    topic.apply(entry)
    with pytest.raises(Corrupt):
        topic.apply(entry)


def test_a_record_is_expired_only_when_older_than_its_age() -> None:
    topic = make_topic(ttl_ms=10)
    write(topic, b"1", now_ms=0)
    write(topic, b"2", now_ms=5)
    assert topic.at(10) == (Floors(), 1, 2, 2)
    assert topic.at(11) == (Floors(expired=1), 2, 1, 1)
    topic.pass_time(10)
    assert seqs(topic) == [1, 2]
    topic.pass_time(11)
    assert seqs(topic) == [2]
    assert topic.floors.expired == 1


def test_looking_at_a_topic_changes_nothing() -> None:
    topic = make_topic(ttl_ms=10)
    write(topic, b"1", b"2", now_ms=0)
    write(topic, b"3", now_ms=5)
    before = topic.state()
    assert topic.at(1_000) == (Floors(expired=3), 4, 0, 0)
    assert topic.at(12) == (Floors(expired=2), 3, 1, 1)
    assert (topic.aged_seq(12), topic.overdue_bytes(12), topic.due_ms) == (2, 2 + 2 * 64, 11)
    assert topic.state() == before
    assert topic.at(5) == (Floors(), 1, 3, 3)


def test_time_that_goes_back_brings_nothing_back_and_stamps_nothing_older() -> None:
    topic = make_topic(ttl_ms=10)
    write(topic, b"1", now_ms=0)
    topic.pass_time(20)
    assert seqs(topic) == []
    write(topic, b"2", now_ms=3)
    assert [slot.ts_ms for slot in topic.live(0, 2)] == [20]


def test_a_longer_age_or_a_wider_cap_brings_nothing_back() -> None:
    topic = make_topic(ttl_ms=10)
    write(topic, b"1", b"2", now_ms=0)
    write(topic, b"3", now_ms=8)
    topic.apply(topic.decide_configure({"ttl_ms": 0, "cap_records": 1}, 12))
    assert topic.floors == Floors(evicted=2, expired=2)
    topic.apply(topic.decide_configure({"cap_records": 0}, 12))
    assert seqs(topic) == [3]


def test_nothing_is_too_old_by_a_configuration_whose_successor_is_on_its_way() -> None:
    topic, again = make_topic(ttl_ms=10), make_topic(ttl_ms=10)
    append = topic.decide_append(batch_of(b"1"), 0)
    assert isinstance(append, Appended)
    topic.apply(append)
    longer = topic.decide_configure({"ttl_ms": 50}, 10)
    assert topic.at(20).count == 0
    topic.stage(longer)
    assert topic.at(20).count == 1
    topic.apply(longer)
    assert (seqs(topic), topic.at(50).count, topic.at(51).count) == ([1], 1, 0)
    again.apply(append)
    again.apply(longer)
    assert again.state() == topic.state()


def test_a_configuration_that_did_not_reach_the_log_holds_nothing_back() -> None:
    topic = make_topic(ttl_ms=10)
    write(topic, b"1", now_ms=0)
    topic.stage(topic.decide_configure({"ttl_ms": 50}, 10))
    topic.abandon()
    assert topic.at(20).count == 0


def test_a_capped_topic_keeps_no_slots_of_what_has_left() -> None:
    topic = make_topic(cap_records=10)
    for _ in range(1_000):
        write(topic, b"1", b"2", b"3")
    assert len(topic.row._items) == len(topic.row._times) <= 30


def test_a_new_cap_acts_at_once() -> None:
    topic = make_topic()
    write(topic, b"1", b"2", b"3")
    assert topic.apply(topic.decide_configure({"cap_records": 1}, 0)) == 2
    assert seqs(topic) == [3]


def test_a_deleted_record_that_also_aged_is_no_loss() -> None:
    topic = make_topic(ttl_ms=10)
    write(topic, b"1", b"2", now_ms=0)
    delete(topic, match="2")
    assert topic.at(11).floors.expired == 1
    topic.pass_time(11)
    assert (topic.floors.expired, topic.earliest_seq) == (1, 3)


def test_a_delete_by_seq_moves_the_prefix_and_spares_what_comes_later() -> None:
    topic = make_topic()
    write(topic, b"1", b"2", b"3")
    assert delete(topic, before_seq=3) == 2
    assert (topic.floors.deleted, topic.earliest_seq) == (2, 3)
    assert delete(topic, before_seq=1_000) == 1
    write(topic, b"4")
    assert seqs(topic) == [4]


def test_a_delete_by_tag_leaves_holes_and_skips_them_at_the_front() -> None:
    topic = make_topic()
    write(topic, b"1", b"2", b"1", b"3")
    assert delete(topic, match="1") == 2
    assert (seqs(topic), topic.earliest_seq, topic.floors.deleted) == ([2, 4], 2, 0)
    assert delete(topic, match="1") == 0


def test_a_delete_by_both_takes_what_meets_both_and_moves_no_prefix() -> None:
    topic = make_topic()
    write(topic, b"1", b"2", b"1")
    assert delete(topic, before_seq=3, match="1") == 1
    assert (seqs(topic), topic.floors.deleted) == ([2, 3], 0)


def test_a_delete_must_say_of_what() -> None:
    with pytest.raises(InvalidRequest):
        make_topic().decide_delete(0)


def test_a_delete_decided_behind_an_append_on_its_way_takes_it_too() -> None:
    topic = make_topic()
    append = topic.decide_append(batch_of(b"1"), 0)
    assert isinstance(append, Appended)
    topic.stage(append)
    removal = topic.decide_delete(0, before_seq=99)
    topic.apply(append)
    topic.apply(removal)
    write(topic, b"2")
    assert seqs(topic) == [2]


def test_seqs_that_only_memory_kept_are_not_used_again_and_count_as_lost() -> None:
    topic = make_topic(durability="ephemeral")
    topic.apply(Advanced("t", 40))
    topic.lose_unlogged()
    assert (topic.head_seq, topic.earliest_seq, topic.floors.evicted) == (40, 41, 40)
    assert write(topic, b"1").first_seq == 41
    topic.apply(Advanced("t", 12))
    topic.lose_unlogged()
    assert seqs(topic) == [41]


def test_a_restored_topic_is_the_one_the_snapshot_was_taken_of() -> None:
    topic = make_topic(cap_records=4)
    write(topic, b"1", b"2", b"3", b"2", b"5", key="k", now_ms=7)
    delete(topic, match="2")
    restored = Topic.restored(topic.state())
    assert restored.state() == topic.state()
    assert (restored.count, restored.size_bytes) == (topic.count, topic.size_bytes)
    assert write(restored, b"9", key="k", now_ms=8) == AppendResult(1, 5, 5, 5, deduped=True)
    assert write(restored, b"9").first_seq == 6


def test_a_rejecting_cap_is_full_only_beyond_its_last_record_and_byte() -> None:
    topic = make_topic(cap_records=2, discard="reject")
    write(topic, b"1", b"2")
    with pytest.raises(TopicFull):
        write(topic, b"3")
    topic = make_topic(cap_bytes=4, discard="reject")
    write(topic, b"12", b"34")
    with pytest.raises(TopicFull):
        write(topic, b"5")


def test_what_left_a_rejecting_topic_by_age_or_by_tag_makes_room() -> None:
    topic = make_topic(cap_records=2, discard="reject", ttl_ms=10)
    write(topic, b"1", b"2", now_ms=0)
    with pytest.raises(TopicFull):
        write(topic, b"3", now_ms=10)
    assert write(topic, b"3", b"4", now_ms=11).first_seq == 3
    delete(topic, match="3")
    assert write(topic, b"5", now_ms=11).first_seq == 5


def test_a_write_that_could_never_fit_is_told_so_even_by_a_full_topic() -> None:
    topic = make_topic(cap_records=2, discard="reject")
    write(topic, b"1", b"2")
    with pytest.raises(RecordTooLarge) as refused:
        write(topic, b"3", b"4", b"5")
    assert (refused.value.code, refused.value.status) == ("record_too_large", 400)


def test_a_cap_on_bytes_counts_data_and_meta_as_compact_json() -> None:
    topic = make_topic(cap_bytes=9)
    record = make_record(b"[ 1 ]", b"{ }")
    for _ in range(2):
        entry = topic.decide_append(Batch.of([record]), 0)
        assert isinstance(entry, Appended)
        topic.apply(entry)
    assert (seqs(topic), topic.size_bytes) == ([2], 5)


def test_a_record_larger_than_a_cap_that_discards_leaves_with_all_before_it() -> None:
    topic = make_topic(cap_bytes=3)
    write(topic, b"1", b"2222")
    assert (seqs(topic), topic.count, topic.floors.evicted, topic.earliest_seq) == ([], 0, 2, 3)


def test_a_delete_before_the_first_seq_deletes_nothing() -> None:
    topic = make_topic()
    write(topic, b"1", b"2")
    assert [delete(topic, before_seq=seq) for seq in (0, 1)] == [0, 0]
    assert (topic.floors.deleted, seqs(topic)) == (0, [1, 2])


def test_a_second_delete_does_not_take_the_first_back() -> None:
    topic = make_topic()
    write(topic, b"1", b"2", b"3")
    delete(topic, before_seq=3)
    assert delete(topic, before_seq=2) == 0
    assert (topic.floors.deleted, seqs(topic)) == (2, [3])


def test_a_delete_by_prefix_of_a_tag_is_literal_and_spares_records_without_one() -> None:
    topic = make_topic()
    tags = ["chat-42:a", "chat-420:a", None, "chat-42", "chat-42:b"]
    entry = topic.decide_append(Batch.of([make_record(b"1", tag=tag) for tag in tags]), 0)
    assert isinstance(entry, Appended)
    topic.apply(entry)
    assert delete(topic, match="chat-42:*") == 2
    assert seqs(topic) == [2, 3, 4]
    assert delete(topic, match="*") == 2
    assert seqs(topic) == [3]


def test_a_delete_by_tag_spares_records_that_come_later() -> None:
    topic = make_topic()
    write(topic, b"1")
    removal = topic.decide_delete(0, match=parse_predicate("1"))
    write(topic, b"1")
    assert topic.apply(removal) == 1
    assert seqs(topic) == [2]


def test_a_delete_is_silent_and_a_loss_behind_it_is_told_from_there_on() -> None:
    topic = make_topic(cap_records=3)
    write(topic, b"1", b"2", b"3")
    delete(topic, before_seq=3)
    assert topic.floors.involuntary == 0
    write(topic, b"4", b"5")
    assert (topic.floors.involuntary, topic.floors.deleted, seqs(topic)) == (2, 2, [3, 4, 5])


def test_a_deleted_front_run_is_skipped_also_when_the_run_was_made_from_behind() -> None:
    topic = make_topic()
    write(topic, b"1", b"2", b"3", b"4")
    for tag in ("3", "2"):
        delete(topic, match=tag)
    assert topic.earliest_seq == 1
    delete(topic, match="1")
    assert topic.earliest_seq == 4


def test_a_write_that_did_not_reach_the_log_leaves_no_trace() -> None:
    topic = make_topic(cap_records=3, discard="reject")
    write(topic, b"1", key="a")
    before = topic.state()
    entry = topic.decide_append(batch_of(b"2", b"3"), 0, key="b")
    assert isinstance(entry, Appended)
    topic.stage(entry)
    assert topic.next_seq == 4
    assert topic.state() == before
    topic.abandon()
    assert (topic.state(), topic.next_seq) == (before, 2)
    assert write(topic, b"2", b"3").first_seq == 2


def test_a_reader_of_a_time_gets_the_records_of_that_time_and_later() -> None:
    topic = make_topic()
    assert topic.seq_before(0) == 0
    for now_ms in (10, 20, 20, 30):
        write(topic, b"1", now_ms=now_ms)
    assert [topic.seq_before(ts_ms) for ts_ms in (0, 10, 11, 20, 21, 30, 31)] == [
        0,
        0,
        1,
        1,
        3,
        3,
        4,
    ]


def test_a_rejecting_topic_lets_nothing_go_to_make_room() -> None:
    topic = make_topic(cap_records=2, discard="reject")
    write(topic, b"1", b"2")
    topic.remove(2)
    write(topic, b"3")
    assert [bytes(slot.record.data) for slot in topic.live(0, 3)] == [b"1", b"3"]
    assert topic.floors == Floors()


def test_a_rejecting_cap_that_is_lowered_refuses_until_there_is_room() -> None:
    topic = make_topic(cap_records=3, discard="reject")
    write(topic, b"1", b"2", b"3")
    topic.apply(topic.decide_configure({"cap_records": 2, "cap_bytes": 2}, 0))
    assert topic.count == 3
    topic.remove(1)
    with pytest.raises(TopicFull):
        write(topic, b"4")
    topic.remove(3)
    write(topic, b"4")
    assert [slot.seq for slot in topic.live(0, 4)] == [2, 4]
    assert topic.floors == Floors()


def test_a_record_behind_a_hole_leaves_by_its_own_age_though_time_was_seen_to_pass_before() -> None:
    topic = make_topic(ttl_ms=10)
    write(topic, b"1", now_ms=5)
    entry = topic.decide_feed(FeedMark("r", 1, 9, trimmed=4), batch_of(b"2"), 5)
    assert entry is not None
    topic.stage(entry)
    assert topic.at(9).count == 1  # read while it is on its way
    topic.apply(entry)
    assert topic.seq_before(6) == 6
    topic.pass_time(16)
    assert (topic.count, topic.floors.expired) == (0, 6)
