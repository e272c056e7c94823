"""2 Dual watermark: what a cursor has lost, and why."""

from __future__ import annotations

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.wire import at, done, payloads, seqs, until


def _expired(api, topic):
    """Wait until every record of a topic has expired."""
    until(lambda: api.state(topic)["count"] == 0, "expiry")


@row("2 floors", "2 tombstone reasons", "1.2 diff")
def test_a_cursor_below_the_cap_gets_a_tombstone_and_the_rest(api, topic):
    api.make(topic, cap_records=2)
    api.write(topic, *range(5))
    page = expect.success(api.post(at(topic, "diff")), expect.DIFF)
    assert page["tombstone"] == {
        "gap_from": 1,
        "gap_to": 3,
        "reason": "cap",
        "missed_estimate": 3,
        "earliest_seq": 4,
        "head_seq": 5,
    }
    assert (seqs(page), page["next_from_seq"], page["caught_up"]) == ([4, 5], 5, True)
    assert page["earliest_seq"] == 4


@row("2 floors")
@pytest.mark.parametrize(
    ("from_seq", "gap"), [(1, (2, 3, 2)), (2, (3, 3, 1)), (3, None), (4, None)]
)
def test_the_gap_begins_where_the_cursor_stands(api, topic, from_seq, gap):
    api.make(topic, cap_records=2)
    api.write(topic, *range(5))
    tombstone = api.diff(topic, from_seq)["tombstone"]
    if gap is None:
        assert tombstone is None
    else:
        found = tombstone["gap_from"], tombstone["gap_to"], tombstone["missed_estimate"]
        assert found == gap


@row("2 tombstone reasons", "2 ttl")
def test_a_cursor_below_expired_records_is_told_ttl(api, topic):
    api.make(topic, ttl_ms=30)
    api.write(topic, 1, 2)
    _expired(api, topic)
    page = api.diff(topic)
    assert page["tombstone"] == {
        "gap_from": 1,
        "gap_to": 2,
        "reason": "ttl",
        "missed_estimate": 2,
        "earliest_seq": 3,
        "head_seq": 2,
    }
    assert (page["records"], page["earliest_seq"], page["next_from_seq"]) == ([], 3, 2)
    assert page["caught_up"] is True


@row("2 tombstone reasons")
def test_a_cursor_below_both_floors_is_told_mixed_and_above_one_of_them_the_other(api, topic):
    api.make(topic, cap_records=2, ttl_ms=30)
    api.write(topic, 1, 2, 3)
    _expired(api, topic)
    assert api.diff(topic, 0)["tombstone"]["reason"] == "mixed"
    assert api.diff(topic, 1)["tombstone"]["reason"] == "ttl"


@row("2 floors", "2 delete is silent")
def test_the_tombstone_names_the_involuntary_floor_only(api, topic):
    api.make(topic, cap_records=3)
    api.write(topic, *range(6))
    done(api.post(at(topic, "delete"), {"before_seq": 6}))
    page = api.diff(topic)
    assert page["tombstone"]["gap_to"] == 3
    assert page["tombstone"]["earliest_seq"] == 4
    assert page["earliest_seq"] == 6
    assert seqs(page) == [6]
    assert api.diff(topic, 3)["tombstone"] is None


@row("2 floors")
def test_deleting_everything_makes_the_earliest_seq_the_next_one(api, topic):
    api.write(topic, 1, 2)
    done(api.post(at(topic, "delete"), {"before_seq": 3}))
    state = api.state(topic)
    assert (state["earliest_seq"], state["head_seq"], state["next_seq"]) == (3, 2, 3)
    page = api.diff(topic)
    assert (page["tombstone"], page["next_from_seq"], page["caught_up"]) == (None, 2, True)


@row("2 recreated")
def test_a_cursor_beyond_the_head_is_told_that_the_topic_was_recreated(api, topic):
    api.write(topic, "a", "b", "c")
    page = api.diff(topic, 10)
    assert page["tombstone"] == {
        "gap_from": 1,
        "gap_to": 3,
        "reason": "recreated",
        "missed_estimate": 3,
        "earliest_seq": 1,
        "head_seq": 3,
    }
    assert (payloads(page), page["next_from_seq"]) == (["a", "b", "c"], 3)


@row("2 recreated")
def test_a_cursor_beyond_the_head_of_an_empty_topic(api, topic):
    api.make(topic)
    tombstone = api.diff(topic, 5)["tombstone"]
    assert (tombstone["gap_from"], tombstone["gap_to"]) == (1, 0)
    assert (tombstone["reason"], tombstone["missed_estimate"]) == ("recreated", 1)


@row("2 recreated")
def test_an_epoch_tells_a_recreated_topic_that_has_grown_past_the_cursor(api, topic):
    api.write(topic, "old", "old")
    old = api.diff(topic)
    assert "epoch" in old, "a server that cannot tell epochs misses records here"
    assert api.diff(topic, 2, epoch=old["epoch"])["tombstone"] is None
    api.delete(at(topic))
    api.write(topic, "new", "new", "new")
    page = api.diff(topic, old["next_from_seq"], epoch=old["epoch"])
    assert page["tombstone"]["reason"] == "recreated"
    assert payloads(page) == ["new", "new", "new"]
    assert page["epoch"] != old["epoch"]


@row("2 tombstone reasons", "2 router source_trim", "2 router backpressure")
def test_what_a_source_trimmed_before_it_was_forwarded_is_told_in_the_dest(api, topic, name):
    dest = name()
    api.make(topic, cap_records=2)
    api.make(dest, cap_records=1, discard="reject")
    api.route(name(), topic, dest)
    api.write(topic, "first")
    assert payloads(api.diff(dest)) == ["first"]
    for number in range(5):
        api.write(topic, number)
    assert payloads(api.diff(dest)) == ["first"], "a full dest holds the router"
    api.make(dest, cap_records=0)
    page = until(lambda: (found := api.diff(dest, 1)) and found["records"] and found, "forwarding")
    assert payloads(page) == [3, 4]
    tombstone = page["tombstone"]
    assert (tombstone["reason"], tombstone["gap_from"]) == ("source_trim", 2)
    assert tombstone["gap_to"] == tombstone["earliest_seq"] - 1
    assert tombstone["missed_estimate"] == tombstone["gap_to"] - tombstone["gap_from"] + 1
    assert seqs(page)[0] > tombstone["gap_to"]


@row("2 router source_trim")
def test_a_trimmed_source_takes_nothing_from_its_dest(api, topic, name):
    dest = name()
    api.make(topic, cap_records=2)
    api.route(name(), topic, dest)
    api.write(dest, "own")
    api.write(topic, *range(5))
    first = api.diff(dest)
    assert payloads(first) == ["own"]
    assert first.get("tombstone") is None
    second = api.diff(dest, first["next_from_seq"])
    assert payloads(second) == [3, 4]
    tombstone = second["tombstone"]
    assert (tombstone["reason"], tombstone["missed_estimate"]) == ("source_trim", 3)
    assert (tombstone["gap_from"], tombstone["gap_to"]) == (2, 4)
