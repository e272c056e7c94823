"""Forwarding: copies, filters, hops, full and trimmed ends, exactly once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.protocol.config import TopicConfig
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.batch import Batch
from penstock.topics.core.entries import Appended, FeedMark
from penstock.topics.core.predicate import parse_predicate
from penstock.topics.core.record import RawRecord, Routed, hops_of, make_record
from penstock.topics.core.router import (
    HOLE_SEQS_MAX,
    STEP_BYTES_MAX,
    Router,
    RouterConfig,
    decide_step,
    take_copies,
    traced_meta,
)
from penstock.topics.core.topic import Topic
from penstock.topics.core.topic_state import Hole

LIMITS = TopicLimits()


def make_topic(name: str, *records: RawRecord, **config: Any) -> Topic:
    topic = Topic(name, TopicConfig(**config), epoch=4, now_ms=0)
    if records:
        entry = topic.decide_append(Batch.of(records), 0)
        assert isinstance(entry, Appended)
        topic.apply(entry)
    return topic


def make_router(source_seq: int = 0, **options: Any) -> Router:
    return Router(RouterConfig("r", "s", "d", **options), 4, source_seq)


def run(router: Router, source: Topic, dest: Topic) -> Appended | None:
    entry = decide_step(router, source, dest, 9, LIMITS).entry
    if entry is not None:
        dest.apply(entry)
    return entry


def routed(record: RawRecord, *, hops: int) -> RawRecord:
    return Routed(record.data, record.tag, record.node, record.meta, hops=hops)


def live(topic: Topic) -> list[RawRecord]:
    return [slot.record for slot in topic.live(0, topic.head_seq)]


def test_copies_keep_everything_but_seq_and_time() -> None:
    record = make_record(b'{"a": 1}', b'{"m":1}', "t", "n")
    source, dest = make_topic("s", record), make_topic("d", make_record(b"0"))
    entry = run(make_router(), source, dest)
    assert entry is not None
    assert entry.feed == FeedMark("r", 4, 1)
    assert live(dest)[1] == routed(record, hops=1)
    assert [slot.ts_ms for slot in dest.live(1, 2)] == [9]


def test_node_and_tag_are_dropped_on_request_and_the_filter_sees_the_tag() -> None:
    source = make_topic("s", *[make_record(b"1", tag=tag, node="n") for tag in ("a1", "b", "a2")])
    dest = make_topic("d")
    options = {"preserve_node": False, "preserve_tag": False, "filter": parse_predicate("a*")}
    run(make_router(**options), source, dest)
    assert [(record.tag, record.node) for record in live(dest)] == [(None, None)] * 2


def test_a_router_begins_where_it_stands_and_rests_at_the_head() -> None:
    source, dest = make_topic("s", *[make_record(b"1")] * 3), make_topic("d")
    assert decide_step(make_router(3), source, dest, 0, LIMITS) == (None, False, False)
    assert len(take_copies(make_router(1), source, 0, LIMITS).records) == 2


def test_records_that_are_all_passed_over_still_move_the_place() -> None:
    source, dest = make_topic("s", make_record(b"1", tag="x")), make_topic("d")
    entry = run(make_router(filter=parse_predicate("y")), source, dest)
    assert entry is not None
    assert (entry.batch.records, entry.feed, dest.head_seq) == ([], FeedMark("r", 4, 1), 0)
    assert dest.last_write_ms is None


def test_deleted_and_expired_records_are_not_forwarded() -> None:
    source, dest = make_topic("s", make_record(b"1", tag="x"), make_record(b"2")), make_topic("d")
    source.apply(source.decide_delete(0, match=parse_predicate("x")))
    run(make_router(), source, dest)
    assert [bytes(record.data) for record in live(dest)] == [b"2"]


def test_a_record_that_came_through_eight_routers_goes_no_further() -> None:
    record = make_record(b"1")
    source = make_topic("s", routed(record, hops=8), routed(record, hops=7))
    dest = make_topic("d")
    run(make_router(), source, dest)
    assert [hops_of(record) for record in live(dest)] == [8]


def test_one_step_takes_at_most_1024_seqs() -> None:
    source, dest = make_topic("s", *[make_record(b"1")] * 1_500), make_topic("d")
    first = decide_step(make_router(), source, dest, 0, LIMITS)
    assert first.entry is not None
    assert (len(first.entry.batch), first.more) == (1_024, True)


def test_a_full_destination_takes_what_fits_and_then_holds_the_place() -> None:
    source = make_topic("s", *[make_record(b"%d" % number) for number in range(5)])
    dest = make_topic("d", cap_records=3, discard="reject")
    first = decide_step(make_router(), source, dest, 0, LIMITS)
    assert first.entry is not None
    assert (len(first.entry.batch), first.entry.feed, first.more) == (3, FeedMark("r", 4, 3), True)
    dest.apply(first.entry)
    assert decide_step(make_router(3), source, dest, 0, LIMITS) == (None, True, True)
    dest.apply(dest.decide_delete(0, before_seq=3))
    run(make_router(3), source, dest)
    assert [bytes(record.data) for record in live(dest)] == [b"2", b"3", b"4"]


def test_what_the_source_lost_first_is_a_told_hole_in_the_destination() -> None:
    source = make_topic("s", *[make_record(b"1")] * 10, cap_records=3)
    dest = make_topic("d", make_record(b"0"))
    entry = run(make_router(2), source, dest)
    assert entry is not None
    assert (entry.feed, entry.first_seq) == (FeedMark("r", 4, 10, trimmed=5), 7)
    assert (dest.holes, dest.head_seq) == ([Hole(2, 6)], 9)
    assert [slot.seq for slot in dest.live(0, 9)] == [1, 7, 8, 9], "what it had stays"


def test_the_same_copies_are_appended_once() -> None:
    source, dest = make_topic("s", make_record(b"1")), make_topic("d")
    entry = run(make_router(), source, dest)
    assert entry is not None
    dest.apply(entry)
    assert decide_step(make_router(), source, dest, 0, LIMITS).entry is None
    assert dest.head_seq == 1


def test_exactly_once_copies_say_where_they_come_from() -> None:
    source, dest = make_topic("s", make_record(b"1", b'{"m": 1}')), make_topic("d")
    run(make_router(guarantee="exactly_once"), source, dest)
    meta = bytes(live(dest)[0].meta or b"")
    assert meta.startswith(b'{"m": 1,')
    assert json.loads(meta)["_topics_router"] == {
        "idempotency_key": "r:4:1",
        "router": "r",
        "source_topic": "s",
        "source_topic_id": 4,
        "source_epoch": 4,
        "source_seq": 1,
    }


def test_a_meta_without_room_is_kept_whole_beside_the_trace() -> None:
    config = make_router().config
    full = json.dumps({f"k{number}": 0 for number in range(64)}).encode()
    traced = json.loads(traced_meta(config, 4, 1, full, LIMITS))
    assert traced["_topics_original_meta"] == json.loads(full)
    again = json.loads(traced_meta(config, 4, 2, json.dumps(traced).encode(), LIMITS))
    assert again["_topics_original_meta"] == traced
    assert again["_topics_router"]["source_seq"] == 2


@pytest.mark.parametrize(
    "meta", [b'{"k":"_topics_router"}', b'{"k":{"_topics_router":1}}', b'{"k":"\\""}']
)
def test_a_meta_that_only_speaks_of_routers_stays_where_it_is(meta: bytes) -> None:
    traced = json.loads(traced_meta(make_router().config, 4, 1, meta, LIMITS))
    assert traced.pop("_topics_router")["source_seq"] == 1
    assert traced == json.loads(meta)


def test_a_trace_is_known_however_its_key_is_spelt() -> None:
    spelt = b'{"\\u005ftopics_router":1}'
    traced = json.loads(traced_meta(make_router().config, 4, 1, spelt, LIMITS))
    assert traced["_topics_original_meta"] == {"_topics_router": 1}
    assert traced["_topics_router"]["source_seq"] == 1


def test_a_delete_in_the_source_does_not_reach_the_copies() -> None:
    source, dest = make_topic("s", make_record(b"1", tag="x"), make_record(b"2")), make_topic("d")
    run(make_router(), source, dest)
    source.apply(source.decide_delete(0, before_seq=9))
    assert decide_step(make_router(2), source, dest, 0, LIMITS).entry is None
    assert [bytes(record.data) for record in live(dest)] == [b"1", b"2"]


def test_what_a_source_deleted_on_request_leaves_no_hole_in_the_destination() -> None:
    source = make_topic("s", *[make_record(b"1")] * 5)
    dest = make_topic("d")
    source.apply(source.decide_delete(0, before_seq=4))
    entry = run(make_router(), source, dest)
    assert entry is not None
    assert (entry.feed, entry.first_seq) == (FeedMark("r", 4, 5), 1)
    assert dest.floors.involuntary == 0


def test_a_router_ahead_of_its_source_waits_for_it() -> None:
    source, dest = make_topic("s", make_record(b"1")), make_topic("d")
    assert decide_step(make_router(5), source, dest, 0, LIMITS) == (None, False, False)
    assert dest.fed == {}


def test_a_meta_with_a_number_of_any_length_can_be_traced() -> None:
    meta = b'{"n":%b}' % (b"9" * 5_000)
    traced = traced_meta(make_router().config, 4, 1, meta, LIMITS)
    assert traced.startswith(b'{"n":9999')
    assert b'"_topics_router":{' in traced


def test_what_a_restart_took_from_memory_leaves_the_destination_as_it_is() -> None:
    source = make_topic("s", durability="ephemeral")
    source.lose_unlogged(1_024)
    dest = make_topic("d", make_record(b"0"))
    entry = run(make_router(), source, dest)
    assert entry is not None
    assert (entry.feed, entry.batch.count) == (FeedMark("r", 4, 1_024), 0)
    assert [bytes(record.data) for record in live(dest)] == [b"0"]
    assert not dest.holes


def test_a_hole_goes_no_further_than_one_router() -> None:
    source = make_topic("s", *[make_record(b"1")] * 5, cap_records=2)
    middle, end = make_topic("d"), make_topic("e")
    run(make_router(), source, middle)
    assert middle.holes == [Hole(1, 3)]
    run(make_router(), middle, end)
    assert (end.holes, end.head_seq) == ([], 2)


def test_a_hole_is_never_larger_than_memory_bears() -> None:
    source, dest = make_topic("s", make_record(b"1")), make_topic("d", make_record(b"0"))
    source.floors = source.floors._replace(evicted=10**12)
    entry = decide_step(make_router(), source, dest, 9, LIMITS).entry
    assert entry is not None
    assert entry.feed == FeedMark("r", 4, 10**12, trimmed=HOLE_SEQS_MAX)


def test_a_step_has_no_more_bytes_than_one_entry_of_the_log_should() -> None:
    large = make_record(b'"%b"' % (b"x" * (STEP_BYTES_MAX // 4)))
    source, dest = make_topic("s", *[large] * 7), make_topic("d")
    taken = take_copies(make_router(), source, 0, LIMITS)
    assert (len(taken.records), taken.seqs, taken.upto_seq) == (3, [1, 2, 3], 3)
    assert decide_step(make_router(), source, dest, 0, LIMITS).more
    alone = make_record(b'"%b"' % (b"x" * STEP_BYTES_MAX))
    source = make_topic("s", alone, large)
    assert take_copies(make_router(), source, 0, LIMITS).upto_seq == 1
