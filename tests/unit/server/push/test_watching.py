from __future__ import annotations

import json

import msgspec
import pytest

from penstock.protocol.decoding import decode
from penstock.protocol.errors import InvalidRequest
from penstock.protocol.limits import TopicLimits
from penstock.protocol.requests import WatchBody
from penstock.server.push.watching import (
    Follower,
    StartPlace,
    WatchDefaults,
    shape_of,
    watch_request,
)
from penstock.topics.core.predicate import parse_predicate
from penstock.topics.core.read import DiffPage, LostSeqs
from penstock.topics.core.record import Found, make_record
from penstock.topics.core.record_row import Slot
from penstock.topics.engine.watch import SharedPage, encode_records

LIMITS = TopicLimits()
DEFAULTS = WatchDefaults(256, 262_144)


NOTHING = Found((), (), ())


def watch(**body):
    encoded = msgspec.json.encode({"topics": {"t": {}}, **body})
    return watch_request(decode(WatchBody, encoded), LIMITS, DEFAULTS)


def page(follower, seqs, *, head_seq, upto=None, tombstone=None, earliest_seq=1, epoch=1):
    slots = [Slot(seq, 1_000 + seq, make_record(b"%d" % seq)) for seq in seqs]
    last = upto or (seqs[-1] if seqs else follower.cursor)
    found = Found(*(list(column) for column in zip(*slots, strict=True))) if slots else NOTHING
    diff = DiffPage(found, last, head_seq, earliest_seq, tombstone, epoch, len(seqs))
    return SharedPage(diff, encode_records(diff, follower.shape))


def follower(cursor=0, **more):
    return Follower("t", cursor, shape_of(watch(), None), **more)


def test_a_watch_has_defaults_and_clamps():
    found = watch()
    assert (found.limit, found.batch_bytes_max, found.heartbeat_ms) == (256, 262_144, 15_000)
    assert (found.include_tags, found.include_meta, found.include_data) == (False, True, True)
    large = watch(limit=5_000, max_batch_bytes=2**40, heartbeat_ms=10**9)
    assert (large.limit, large.batch_bytes_max) == (1_000, LIMITS.read_bytes_max)
    assert large.heartbeat_ms == 60_000
    small = watch(limit=0, max_batch_bytes=0, heartbeat_ms=0)
    assert (small.limit, small.batch_bytes_max) == (256, LIMITS.read_bytes)
    assert small.heartbeat_ms == 1_000


@pytest.mark.parametrize(
    "body",
    [
        {"topics": {}},
        {"topics": ["t"]},
        {"topics": {"t": 3}},
        {"topics": {"t": {"from_seq": -1}}},
        {"topics": {"t": {"tail": "yes"}}},
        {"topics": {str(number): {} for number in range(257)}},
        {"limit": "many"},
        {"include_meta": 1},
        {"consistency": "sometimes"},
        {"node": 7},
        {"prefixes": "a."},
        {"prefixes": [1]},
        {"prefixes": [str(number) for number in range(17)]},
        {"tag": "a*b"},
    ],
)
def test_a_watch_of_the_wrong_shape_is_refused(body):
    with pytest.raises(InvalidRequest):
        watch(**body)


def test_a_place_may_name_the_epoch_and_a_tag():
    place = {"from_seq": 4, "tail": False, "epoch": 9, "tag": "x*"}
    found = watch(topics={"t": place, "u": None})
    assert found.topics == {
        "t": StartPlace(4, False, 9, parse_predicate("x*")),
        "u": StartPlace(),
    }


def test_the_tag_of_a_topic_wins_over_that_of_the_watch():
    found = watch(tag="a")
    assert shape_of(found, None).request.tag == parse_predicate("a")
    assert shape_of(found, parse_predicate("b")).request.tag == parse_predicate("b")


def test_live_traffic_is_record_then_caught_up_again_and_again():
    each = follower()
    told = [event.kind for event in each.take(page(each, [1, 2], head_seq=2))]
    assert told == ["record", "caught-up"]
    assert each.take(page(each, [], head_seq=2)) == []
    told = [event.kind for event in each.take(page(each, [3], head_seq=3))]
    assert told == ["record", "caught-up"]


def test_a_hole_in_the_middle_moves_the_cursor_behind_it_though_older_records_are_there():
    each = follower(cursor=3)
    gone = LostSeqs(4, 6, "source_trim", 3, 7, 8)
    tombstone, record, _ = each.take(page(each, [7, 8], head_seq=8, tombstone=gone))
    assert (tombstone.kind, tombstone.cursor, each.cursor) == ("tombstone", 6, 8)
    assert json.loads(record.data)["from_seq"] == 6


def test_a_page_that_does_not_reach_the_head_is_not_caught_up():
    each = follower()
    assert [event.kind for event in each.take(page(each, [1], head_seq=5))] == ["record"]
    assert each.cursor == 1


def test_seqs_that_were_passed_over_move_the_cursor_without_a_record():
    each = follower()
    events = each.take(page(each, [], head_seq=4, upto=4))
    assert [event.kind for event in events] == ["caught-up"]
    assert each.cursor == 4


def test_a_record_event_tells_the_cursor_before_and_the_last_seq_looked_at():
    each = follower(cursor=2)
    (record, _) = each.take(page(each, [3], head_seq=6, upto=6))
    told = json.loads(record.data)
    assert (told["from_seq"], told["to_seq"], told["head_seq"]) == (2, 6, 6)


def test_a_tombstone_moves_the_cursor_before_the_records():
    each = follower(first_reason="from_seq_too_old")
    gap = LostSeqs(1, 4, "ttl", 4, 5, 6)
    told = each.take(page(each, [5, 6], head_seq=6, tombstone=gap, earliest_seq=5))
    assert [(event.kind, event.cursor) for event in told] == [
        ("tombstone", 4),
        ("record", 6),
        ("caught-up", 6),
    ]
    assert json.loads(told[0].data)["reason"] == "from_seq_too_old"
    assert json.loads(told[1].data)["from_seq"] == 4
    gap = LostSeqs(7, 8, "ttl", 2, 9, 9)
    told = each.take(page(each, [9], head_seq=9, tombstone=gap, earliest_seq=9))
    assert json.loads(told[0].data)["reason"] == "ttl"


def test_a_topic_made_anew_is_resumed_before_its_first_record():
    each = follower(cursor=9)
    each.fresh = False
    gap = LostSeqs(1, 2, "recreated", 2, 1, 2)
    told = each.take(page(each, [1, 2], head_seq=2, tombstone=gap, epoch=7))
    assert [(event.kind, event.cursor) for event in told[:2]] == [("tombstone", 0), ("record", 2)]
    assert each.epoch == 7


def test_watchers_at_the_same_place_share_the_bytes_of_a_record_event():
    one, other = follower(), follower()
    shared = page(one, [1], head_seq=1)
    assert one.take(shared)[0].data is other.take(shared)[0].data
