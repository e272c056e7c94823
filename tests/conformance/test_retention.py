"""2 Retention: caps, age and refusal."""

from __future__ import annotations

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.wire import at, at_once, done, payloads, records, seqs, until


@row("2 cap_records")
def test_a_cap_keeps_the_last_seqs(api, topic):
    api.make(topic, cap_records=3)
    api.write(topic, *range(10))
    state = api.state(topic)
    assert (state["head_seq"], state["earliest_seq"], state["count"]) == (10, 8, 3)
    assert payloads(api.diff(topic, 7)) == [7, 8, 9]


@row("2 cap_records")
def test_deleted_seqs_count_towards_the_cap(api, topic):
    api.make(topic, cap_records=3)
    body = {"records": [{"data": n, "tag": "x" if n in (1, 2) else "y"} for n in range(3)]}
    done(api.post(at(topic), body))
    done(api.post(at(topic, "delete"), {"match": "x"}))
    assert api.state(topic)["count"] == 1
    api.write(topic, 3)
    assert seqs(api.diff(topic, 1)) == [4], "the window is of seqs, not of live records"


@row("2 cap_bytes")
def test_a_cap_of_bytes_evicts_the_oldest_until_it_fits(api, topic):
    api.make(topic, cap_bytes=30)
    for _ in range(5):
        api.write(topic, "x" * 8)
    state = api.state(topic)
    assert (state["bytes"], state["count"], state["earliest_seq"]) == (30, 3, 3)
    api.write(topic, "y" * 18)
    state = api.state(topic)
    assert (state["bytes"], state["count"], state["earliest_seq"]) == (30, 2, 5)


@row("2 cap_bytes")
def test_meta_counts_towards_the_bytes_and_tag_and_node_do_not(api, topic):
    body = {"records": [{"data": "abc", "meta": {"k": "v"}, "tag": "t" * 50, "node": "n" * 50}]}
    done(api.post(at(topic), body))
    assert api.state(topic)["bytes"] == 5 + 9


@row("2 ttl", "2 retention timing")
def test_records_expire(api, topic):
    api.make(topic, ttl_ms=40)
    api.write(topic, 1, 2)
    state = until(
        lambda: (found := api.state(topic))["count"] == 0 and found, "expiry in the state"
    )
    assert (state["bytes"], state["head_seq"], state["earliest_seq"]) == (0, 2, 3)
    api.write(topic, 3)
    assert api.state(topic)["next_seq"] == 4


@row("2 ttl", "2 retention timing")
def test_expiry_shows_in_a_diff_and_in_the_list_without_any_other_call(api, topic, name):
    other = name()
    for each in (topic, other):
        api.make(each, ttl_ms=40)
        api.write(each, 1)
    until(lambda: not api.diff(topic, 0)["records"], "expiry in a diff")
    until(
        lambda: done(api.get("/v0/topics", prefix=other))["topics"][0]["count"] == 0,
        "expiry in the list",
    )


@row("2 ttl", "2 retention timing")
def test_an_expired_job_is_not_handed_out(api, topic):
    api.make(topic, type="queue", ttl_ms=40)
    api.write(topic, 1)
    until(lambda: api.state(topic)["count"] == 0, "expiry")
    assert api.claim(topic) == []


@row("2 ttl")
def test_a_record_within_its_time_is_there(api, topic):
    api.make(topic, ttl_ms=600_000)
    api.write(topic, 1)
    assert payloads(api.diff(topic)) == [1]


@row("2 retention timing")
def test_a_cap_that_is_set_later_applies_at_the_next_look(api, topic):
    api.write(topic, *range(5))
    api.make(topic, cap_records=2)
    assert api.state(topic)["count"] == 2
    page = api.diff(topic)
    assert (payloads(page), page["tombstone"]["reason"]) == ([3, 4], "cap")


@row("2 reject")
def test_a_full_topic_refuses_and_appends_nothing(api, topic):
    api.make(topic, cap_records=2, discard="reject")
    api.write(topic, 1, 2)
    detail = {"topic": topic, "cap_records": 2, "cap_bytes": 0, "head_seq": 2, "earliest_seq": 1}
    expect.refusal(api.post(at(topic), records(3)), 422, "topic_full", detail)
    assert payloads(api.diff(topic)) == [1, 2]
    assert api.state(topic)["next_seq"] == 3


@row("2 reject")
def test_a_topic_full_of_bytes_refuses_too(api, topic):
    api.make(topic, cap_bytes=20, discard="reject")
    api.write(topic, "x" * 10)
    detail = {"topic": topic, "cap_records": 0, "cap_bytes": 20, "head_seq": 1, "earliest_seq": 1}
    expect.refusal(api.post(at(topic), records("y" * 10)), 422, "topic_full", detail)
    assert api.write(topic, "y" * 6)["first_seq"] == 2


@row("2 reject")
def test_a_batch_that_does_not_fit_is_refused_whole(api, topic):
    api.make(topic, cap_records=3, discard="reject")
    api.write(topic, 1, 2)
    expect.refusal(api.post(at(topic), records(3, 4)), 422, "topic_full")
    assert api.write(topic, 3)["first_seq"] == 3


@row("2 reject")
@pytest.mark.parametrize(
    ("config", "data"), [({"cap_records": 2}, [1, 2, 3]), ({"cap_bytes": 10}, ["x" * 9])]
)
def test_a_write_that_could_never_fit_is_400(api, topic, config, data):
    api.make(topic, discard="reject", **config)
    expect.refusal(api.post(at(topic), records(*data)), 400, "record_too_large")
    assert api.state(topic)["head_seq"] == 0


@row("2 reject")
def test_deleting_makes_room(api, topic):
    api.make(topic, cap_records=2, discard="reject")
    api.write(topic, 1, 2)
    done(api.post(at(topic, "delete"), {"before_seq": 2}))
    assert api.write(topic, 3)["first_seq"] == 3
    expect.refusal(api.post(at(topic), records(4)), 422, "topic_full")


@row("2 reject", "2 ttl")
def test_expiry_makes_room(api, topic):
    api.make(topic, cap_records=1, discard="reject", ttl_ms=40)
    api.write(topic, 1)
    until(lambda: api.post(at(topic), records(2)).status == 200, "room by expiry")


@row("2 reject", "1.2 write create")
def test_a_creating_write_that_could_never_fit_is_refused(api, topic):
    config = {"cap_records": 1, "discard": "reject"}
    answer = api.post(at(topic), records(1, 2, config=config))
    expect.refusal(answer, 400, "record_too_large")


@row("2 reject")
def test_writers_at_the_same_time_never_overfill_a_topic(api, topic):
    api.make(topic, cap_records=5, discard="reject")
    answers = at_once([lambda: api.post(at(topic), records("x"))] * 16)
    assert sorted(answer.status for answer in answers) == [200] * 5 + [422] * 11
    state = api.state(topic)
    assert (state["count"], state["head_seq"]) == (5, 5)


@row("2 reject")
def test_a_rejecting_queue_keeps_jobs_whatever_was_acked_behind_them(api, topic):
    api.make(topic, type="queue", cap_records=2, discard="reject")
    api.write(topic, "slow", "quick")
    api.claim(topic, max=2)
    done(api.post(at(topic, "ack"), {"node": "n1", "seqs": [2]}))
    api.write(topic, "next")
    assert payloads(api.diff(topic)) == ["slow", "next"]
