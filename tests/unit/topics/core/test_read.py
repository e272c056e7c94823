"""Diff: pages, budgets, filters, tombstones, exact caught_up."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocol.config import TopicConfig
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.batch import Batch
from penstock.topics.core.entries import Appended, FeedMark
from penstock.topics.core.predicate import parse_predicate
from penstock.topics.core.read import DiffPage, LostSeqs, ReadRequest, find_tombstone, read
from penstock.topics.core.record import Found, RawRecord, make_record, records_json
from penstock.topics.core.topic import Topic
from penstock.topics.core.topic_state import Floors, Hole

LIMITS = TopicLimits()


def make_topic(count: int = 0, **config: Any) -> Topic:
    topic = Topic("t", TopicConfig(**config), epoch=3, now_ms=0)
    write(topic, *[make_record(b"%d" % (number % 10)) for number in range(count)])
    return topic


def write(topic: Topic, *records: RawRecord, now_ms: int = 0) -> None:
    if records:
        entry = topic.decide_append(Batch.of(records), now_ms)
        assert isinstance(entry, Appended)
        topic.apply(entry)


def diff(topic: Topic, from_seq: int = 0, *, now_ms: int = 0, **fields: Any) -> DiffPage:
    return read(topic, ReadRequest(from_seq, **fields), now_ms, LIMITS)


def seqs(page: DiffPage) -> list[int]:
    return [slot.seq for slot in page.records]


def test_a_page_ends_at_its_limit_and_the_next_goes_on_there() -> None:
    topic = make_topic(5)
    first = diff(topic, limit=3)
    assert (seqs(first), first.next_from_seq, first.caught_up, first.lag) == (
        [1, 2, 3],
        3,
        False,
        2,
    )
    second = diff(topic, first.next_from_seq, limit=3)
    assert (seqs(second), second.caught_up, second.lag) == ([4, 5], True, 0)


def test_an_empty_topic_is_caught_up_at_zero_and_lets_a_long_poll_wait() -> None:
    page = diff(make_topic())
    assert (page.next_from_seq, page.head_seq, page.earliest_seq) == (0, 0, 1)
    assert page.caught_up
    assert page.parks


def test_a_record_over_the_byte_budget_is_left_out_and_not_passed() -> None:
    topic = make_topic()
    write(topic, make_record(b"1111"), make_record(b"2222"), make_record(b"3"))
    page = diff(topic, batch_bytes_max=7)
    assert (seqs(page), page.next_from_seq) == ([1], 1)
    assert seqs(diff(topic, batch_bytes_max=8)) == [1, 2]


def test_at_least_one_record_comes_even_if_it_is_over_the_budget() -> None:
    page = diff(make_topic(2), batch_bytes_max=1)
    assert seqs(page) == [1]
    topic = make_topic()
    write(topic, make_record(b"123456"))
    assert seqs(diff(topic, batch_bytes_max=1)) == [1]


def test_a_nodes_own_records_are_passed_silently() -> None:
    topic = make_topic()
    write(topic, make_record(b"1", node="a"), make_record(b"2"), make_record(b"3", node="b"))
    page = diff(topic, nodes=frozenset({"a"}))
    assert (seqs(page), page.tombstone) == ([2, 3], None)
    page = diff(topic, nodes=frozenset({"a", "b"}))
    assert (seqs(page), page.next_from_seq, page.caught_up) == ([2], 3, True)
    assert seqs(diff(topic, nodes=frozenset({"A"}))) == [1, 2, 3], "names are compared byte by byte"


def test_a_topic_may_turn_the_node_filter_off() -> None:
    topic = make_topic(dedupe_node=False)
    write(topic, make_record(b"1", node="a"))
    assert seqs(diff(topic, nodes=frozenset({"a"}))) == [1]


def test_a_page_of_filtered_records_only_still_moves_the_cursor_to_the_head() -> None:
    topic = make_topic()
    write(topic, *[make_record(b"1", node="a")] * 3)
    page = diff(topic, nodes=frozenset({"a"}))
    assert (seqs(page), page.next_from_seq, page.caught_up, page.parks) == ([], 3, True, True)


def test_a_page_looks_at_a_limited_number_of_seqs() -> None:
    topic = make_topic()
    write(topic, *[make_record(b"1", node="a")] * 9, make_record(b"2"))
    limits = TopicLimits(filter_records_max=4)
    request = ReadRequest(nodes=frozenset({"a"}))
    pages = [read(topic, request, 0, limits)]
    while not pages[-1].caught_up:
        request = request._replace(from_seq=pages[-1].next_from_seq)
        pages.append(read(topic, request, 0, limits))
    assert [page.next_from_seq for page in pages] == [4, 8, 10]
    assert [seqs(page) for page in pages] == [[], [], [10]]


def test_a_deleted_prefix_is_silent() -> None:
    topic = make_topic(5)
    topic.apply(topic.decide_delete(0, before_seq=4))
    page = diff(topic)
    assert (seqs(page), page.tombstone, page.earliest_seq) == ([4, 5], None, 4)


def test_after_everything_is_deleted_a_reader_is_caught_up() -> None:
    topic = make_topic(5)
    topic.apply(topic.decide_delete(0, before_seq=9))
    page = diff(topic, 2)
    assert (seqs(page), page.next_from_seq, page.caught_up, page.tombstone) == ([], 5, True, None)


def test_holes_are_passed() -> None:
    topic = make_topic()
    write(topic, *[make_record(b"1", tag=tag) for tag in "abab"])
    topic.apply(topic.decide_delete(0, match=parse_predicate("b")))
    page = diff(topic)
    assert (seqs(page), page.next_from_seq) == ([1, 3], 4)


def test_a_cursor_below_the_cap_is_told_what_it_missed() -> None:
    page = diff(make_topic(10, cap_records=4), 2)
    assert page.tombstone == LostSeqs(3, 6, "cap", 4, 7, 10)
    assert seqs(page) == [7, 8, 9, 10]


def test_a_cursor_at_the_floor_has_missed_nothing() -> None:
    topic = make_topic(10, cap_records=4)
    assert diff(topic, 6).tombstone is None
    assert diff(topic, 5).tombstone == LostSeqs(6, 6, "cap", 1, 7, 10)


def test_the_tombstone_tells_the_involuntary_floor_and_reading_goes_on_at_the_earliest() -> None:
    topic = make_topic(10, cap_records=4)
    topic.apply(topic.decide_delete(0, before_seq=9))
    page = diff(topic)
    assert page.tombstone == LostSeqs(1, 6, "cap", 6, 7, 10)
    assert (page.earliest_seq, seqs(page)) == (9, [9, 10])


def test_the_reason_names_the_floors_that_the_gap_reaches() -> None:
    topic = make_topic(4, cap_records=3, ttl_ms=10)
    write(topic, make_record(b"5"), now_ms=5)  # the cap's floor is 2
    page = diff(topic, now_ms=11)  # the age's floor is 4
    assert page.tombstone == LostSeqs(1, 4, "mixed", 4, 5, 5)
    assert diff(topic, 2, now_ms=11).tombstone == LostSeqs(3, 4, "ttl", 2, 5, 5)


def test_what_a_source_trimmed_is_told_as_such() -> None:
    topic = make_topic(1)
    entry = topic.decide_feed(FeedMark("r", 1, 9, trimmed=4), Batch.of([make_record(b"1")]), 0)
    assert entry is not None
    topic.apply(entry)
    first = diff(topic)
    assert (seqs(first), first.tombstone, first.caught_up) == ([1], None, False)
    page = diff(topic, first.next_from_seq)
    assert page.tombstone == LostSeqs(2, 5, "source_trim", 4, 6, 6)
    assert seqs(page) == [6]
    assert diff(topic, 3).tombstone == LostSeqs(4, 5, "source_trim", 2, 6, 6)
    assert diff(topic, 5).tombstone is None


def test_a_hole_is_told_at_once_when_nothing_is_left_before_it() -> None:
    topic = make_topic(3)
    entry = topic.decide_feed(FeedMark("r", 1, 9, trimmed=4), Batch.of([make_record(b"1")]), 0)
    assert entry is not None
    topic.apply(entry)
    topic.apply(topic.decide_delete(0, before_seq=4))
    assert diff(topic).tombstone == LostSeqs(1, 7, "source_trim", 7, 8, 8)
    topic.apply(topic.decide_configure({"cap_records": 3}, 0))
    assert diff(topic).tombstone == LostSeqs(1, 7, "cap", 7, 8, 8)
    assert diff(topic, 6).tombstone == LostSeqs(7, 7, "source_trim", 1, 8, 8)


def test_several_holes_are_told_one_after_the_other() -> None:
    topic = make_topic(1)
    for router, trimmed, count in (("a", 2, 1), ("b", 3, 0), ("c", 1, 0), ("d", 1, 2)):
        entry = topic.decide_feed(
            FeedMark(router, 1, 9, trimmed), Batch.of([make_record(b"1")] * count), 0
        )
        assert entry is not None
        topic.apply(entry)
    assert topic.holes == [Hole(2, 3), Hole(5, 9)]
    cursor, told = 0, []
    while cursor < topic.head_seq:
        page = diff(topic, cursor)
        gone = page.tombstone
        told.append((seqs(page), gone and (gone.gap_from, gone.gap_to)))
        cursor = page.next_from_seq
    assert told == [([1], None), ([4], (2, 3)), ([10, 11], (5, 9))]


def test_a_cursor_beyond_the_head_stands_in_a_topic_that_is_gone() -> None:
    page = diff(make_topic(3), 8)
    assert page.tombstone == LostSeqs(1, 3, "recreated", 3, 1, 3)
    assert seqs(page) == [1, 2, 3]
    empty = diff(make_topic(), 1)
    assert empty.tombstone == LostSeqs(1, 0, "recreated", 1, 1, 0)
    assert (empty.next_from_seq, empty.caught_up, empty.parks) == (0, True, False)


def test_another_epoch_tells_a_new_topic_even_if_it_has_grown_past_the_cursor() -> None:
    topic = make_topic(3)
    assert diff(topic, 2, epoch=3).tombstone is None
    page = diff(topic, 2, epoch=2)
    assert page.tombstone is not None
    assert (page.tombstone.reason, seqs(page), page.epoch) == ("recreated", [1, 2, 3], 3)


def test_a_record_is_shown_compact_with_its_payload_untouched() -> None:
    record = make_record(b'{ "a" : 1.50 }', b'{"m": 1}', 'say "hi"', "nö")
    whole = records_json(Found([2], [7], [record]), include_tags=True)
    assert whole.decode() == (
        '{"$node":"nö","$seq":2,"$tag":"say \\"hi\\"","$ts":7,'
        '"data":{ "a" : 1.50 },"meta":{"m": 1}}'
    )
    bare = records_json(Found([2], [7], [record]), include_tags=False, include_meta=False)
    assert bare.decode() == '{"$node":"nö","$seq":2,"$ts":7,"data":{ "a" : 1.50 }}'
    plain = records_json(Found([1], [0], [make_record(b"null")]), include_tags=True)
    assert plain == b'{"$seq":1,"$ts":0,"data":null}'
    empty = make_record(b"1", None, "", "")
    both = records_json(Found([1, 2], [0, 0], [empty, make_record(b"2")]), include_tags=True)
    assert both == (b'{"$node":"","$seq":1,"$tag":"","$ts":0,"data":1},{"$seq":2,"$ts":0,"data":2}')
    assert records_json(Found([1], [0], [empty]), include_tags=False, include_data=False) == (
        b'{"$node":"","$seq":1,"$ts":0}'
    )


def test_age_comes_before_the_node_filter_so_that_a_loss_is_told_to_everyone() -> None:
    topic = make_topic(ttl_ms=10)
    write(topic, make_record(b"1", node="a"), now_ms=0)
    write(topic, make_record(b"2", node="a"), now_ms=5)
    page = diff(topic, nodes=frozenset({"a"}), now_ms=11)
    assert (seqs(page), page.tombstone) == ([], LostSeqs(1, 1, "ttl", 1, 2, 2))
    assert page.next_from_seq == 2


def test_nodes_that_look_alike_are_others() -> None:
    topic = make_topic()
    write(topic, make_record(b"1", node="\u00e9"), make_record(b"2", node="e\u0301"))
    assert seqs(diff(topic, nodes=frozenset({"\u00e9"}))) == [2]


@pytest.mark.parametrize(
    ("floors", "from_seq", "reason"),
    [
        (Floors(evicted=5), 0, "cap"),
        (Floors(expired=5), 0, "ttl"),
        (Floors(evicted=3, expired=5), 0, "mixed"),
        (Floors(evicted=5, expired=3), 0, "mixed"),
        (Floors(evicted=5, expired=3), 2, "mixed"),
        (Floors(evicted=5, expired=3), 3, "cap"),
        (Floors(evicted=3, expired=5), 3, "ttl"),
        (Floors(evicted=5, deleted=9), 0, "cap"),
    ],
)
def test_the_reason_is_that_of_the_floors_at_or_above_the_start_of_the_gap(
    floors: Floors, from_seq: int, reason: str
) -> None:
    topic = make_topic(9)
    topic.floors = floors
    found = find_tombstone(topic, topic.at(0), from_seq)
    assert found == LostSeqs(from_seq + 1, 5, reason, 5 - from_seq, 6, 9)


def test_a_deletion_above_an_involuntary_floor_does_not_make_the_gap_wider() -> None:
    topic = make_topic(9)
    topic.floors = Floors(deleted=9)
    assert find_tombstone(topic, topic.at(0), 0) is None
    topic.floors = Floors(evicted=2, deleted=9)
    assert find_tombstone(topic, topic.at(0), 2) is None


def test_a_cursor_at_the_head_of_the_same_topic_has_lost_nothing() -> None:
    topic = make_topic(3)
    assert diff(topic, 3, epoch=3).tombstone is None
    assert diff(topic, 4, epoch=3).tombstone is not None


def test_a_recreated_topic_is_read_from_its_earliest_record_on() -> None:
    topic = make_topic(6)
    topic.apply(topic.decide_delete(0, before_seq=4))
    page = diff(topic, 99)
    assert page.tombstone == LostSeqs(1, 6, "recreated", 6, 4, 6)
    assert seqs(page) == [4, 5, 6]


def test_a_reader_may_ask_for_one_tag_and_passes_all_others() -> None:
    topic = make_topic()
    write(topic, *[make_record(b"1", tag=tag) for tag in ("a1", "b", None, "a2", "c")])
    page = diff(topic, tag=parse_predicate("a*"))
    assert (seqs(page), page.next_from_seq, page.caught_up) == ([1, 4], 5, True)
    assert seqs(diff(topic, tag=parse_predicate(["tag", "Eq", "b"]))) == [2]
    limited = diff(topic, tag=parse_predicate("a*"), limit=1)
    assert (seqs(limited), limited.next_from_seq) == ([1], 1)


def test_the_byte_budget_counts_only_what_is_sent() -> None:
    topic = make_topic()
    write(topic, make_record(b"1" * 90, node="a"), make_record(b"22"), make_record(b"333"))
    page = diff(topic, nodes=frozenset({"a"}), batch_bytes_max=5)
    assert (seqs(page), page.next_from_seq) == ([2, 3], 3)
    page = diff(topic, nodes=frozenset({"a"}), batch_bytes_max=4)
    assert (seqs(page), page.next_from_seq) == ([2], 2)


def test_what_is_on_its_way_to_the_log_is_not_read() -> None:
    topic = make_topic(1)
    entry = topic.decide_append(Batch.of([make_record(b"2")]), 0)
    assert isinstance(entry, Appended)
    topic.stage(entry)
    page = diff(topic)
    assert (seqs(page), page.head_seq, page.caught_up) == ([1], 1, True)
    topic.apply(entry)
    assert seqs(diff(topic)) == [1, 2]


def leave_hole(topic: Topic, router: str, trimmed: int, count: int) -> None:
    entry = topic.decide_feed(
        FeedMark(router, 1, 9, trimmed), Batch.of([make_record(b"1")] * count), 0
    )
    assert entry is not None
    topic.apply(entry)


def test_holes_with_no_record_between_them_are_told_at_once() -> None:
    topic = make_topic(1)
    leave_hole(topic, "a", 2, 2)
    leave_hole(topic, "b", 3, 1)
    assert topic.holes == [Hole(2, 3), Hole(6, 8)]
    topic.apply(topic.decide_delete(0, before_seq=6))
    page = diff(topic)
    assert page.tombstone == LostSeqs(1, 8, "source_trim", 8, 9, 9)
    assert seqs(page) == [9]


@pytest.mark.parametrize(("written", "cap"), [(3, 1), (6, 3), (6, 2), (10, 3)])
def test_who_begins_at_a_time_before_all_that_is_left_is_told_of_all_that_left(written, cap):
    topic = make_topic(cap_records=cap)
    for number in range(written):
        topic.apply(topic.decide_append(Batch.of([make_record(b"1")]), 100 + number))
    assert topic.seq_before(50) == topic.seq_before(100 + written - cap) == 0
    gap = diff(topic, from_seq=topic.seq_before(50)).tombstone
    assert gap is not None
    assert (gap.gap_from, gap.gap_to, gap.missed_estimate) == (1, written - cap, written - cap)
    assert topic.seq_before(100 + written) == written
