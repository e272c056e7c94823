"""1.6 Queues: claim, ack, nack, extend."""

from __future__ import annotations

import functools
import re

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.streams import EventStream
from tests.conformance.wire import at, at_once, done, until

SETTLE = {"topic", "skipped", "ready", "in_flight", "performance"}
OPS = ["ack", "nack", "extend"]


@pytest.fixture
def queue(api, topic):
    """A queue with three jobs."""
    api.make(topic, type="queue")
    api.write(topic, "a", "b", "c")
    return topic


def settle(api, op, queue, *seqs, node="n1", **fields):
    if op == "extend":
        fields.setdefault("lease_ms", 60_000)
    return api.post(at(queue, op), {"node": node, "seqs": list(seqs), **fields})


def claimed_seqs(jobs):
    return [job["$seq"] for job in jobs]


@row("1.6 claim")
def test_a_claim_hands_out_a_job(api, topic):
    api.make(topic, type="queue")
    body = {"records": [{"data": {"a": 1}, "tag": "t", "node": "w", "meta": {"m": 1}}, {"data": 2}]}
    done(api.post(at(topic), body))
    answer = expect.success(api.post(at(topic, "claim"), {"node": "n1"}), expect.CLAIM)
    assert (answer["topic"], answer["count"], answer["ready"]) == (topic, 1, 1)
    [job] = answer["claimed"]
    expect.keys(job, expect.CLAIMED | {"$tag", "meta"})
    assert (job["$seq"], job["$tag"], job["data"]) == (1, "t", {"a": 1})
    assert (job["meta"], job["deliveries"]) == ({"m": 1}, 1)
    assert re.fullmatch(r"lease_[0-9a-f]+", job["lease_id"])
    assert expect.recent_ms(job["$ts"])
    assert job["deadline"] - job["$ts"] >= 30_000
    [bare] = done(api.post(at(topic, "claim"), {"node": "n1"}))["claimed"]
    expect.keys(bare, expect.CLAIMED)


@row("1.6 claim")
def test_a_claim_of_an_empty_queue_is_empty(api, topic):
    api.make(topic, type="queue")
    answer = expect.success(api.post(at(topic, "claim"), {"node": "n1"}), expect.CLAIM)
    assert (answer["claimed"], answer["count"], answer["ready"]) == ([], 0, 0)


@row("1.6 claim max")
@pytest.mark.parametrize(("fields", "count"), [({}, 1), ({"max": 0}, 1), ({"max": 2}, 2)])
def test_how_many_jobs_a_claim_hands_out(api, queue, fields, count):
    assert len(api.claim(queue, **fields)) == count


@row("1.6 claim max")
def test_a_claim_hands_out_at_most_1000(api, topic):
    api.make(topic, type="queue")
    api.write(topic, *[0] * 1001)
    assert len(api.claim(topic, max=5000)) == 1000


@row("1.6 claim lease_ms")
@pytest.mark.parametrize(
    ("asked", "given"), [(0, 100), (1, 100), (5_000, 5_000), (10**12, 86_400_000)]
)
def test_a_lease_is_clamped(api, queue, asked, given):
    [short] = api.claim(queue, lease_ms=asked)
    [plain] = api.claim(queue, lease_ms=20_000)
    assert abs((short["deadline"] - plain["deadline"]) - (given - 20_000)) < 10_000


@row("1.6 claim lease_ms", "1.1 lease_ms")
def test_the_lease_of_the_topic_is_the_default(api, queue):
    api.make(queue, lease_ms=3_600_000)
    [job] = api.claim(queue)
    [other] = api.claim(queue, lease_ms=1_000)
    assert job["deadline"] - other["deadline"] > 3_000_000


@row("1.6 claim node")
@pytest.mark.parametrize("body", [b"", b"{}", b'{"node":""}', b'{"node":5}', b'{"node":null}'])
def test_a_claim_needs_a_node(api, queue, body):
    expect.refusal(api.post(at(queue, "claim"), body), 400, "invalid_request")


@row("1.6 claim node", "1.6 check order claim")
@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}])
def test_an_empty_claim_is_400_whatever_it_is_declared_to_be(api, queue, topic, headers):
    for name in (queue, "no-such-" + topic):
        answer = api.post(at(name, "claim"), None, headers)
        expect.refusal(answer, 400, "invalid_request")


@row("1.6 claim node")
def test_a_node_has_at_most_128_bytes(api, queue):
    assert len(api.claim(queue, node="n" * 128)) == 1
    for node in ("n" * 129, "é" * 65):
        answer = api.post(at(queue, "claim"), {"node": node})
        expect.refusal(answer, 400, "invalid_request")


@row("1.6 common errors", "1.6 check order claim")
@pytest.mark.parametrize("body", [{"node": "n1"}, {}, {"node": ""}])
def test_claim_looks_for_the_queue_before_it_looks_at_the_node(api, topic, body):
    answer = api.post(at(topic, "claim"), body)
    expect.refusal(answer, 404, "topic_not_found", {"topic": topic})
    api.make(topic)
    answer = api.post(at(topic, "claim"), body)
    expect.refusal(answer, 409, "not_a_queue", {"topic": topic})


@row("1.6 check order claim")
def test_claim_reads_its_json_first(api, topic):
    expect.refusal(api.post(at(topic, "claim"), b"{"), 400, "invalid_request")


@row("1.6 common errors")
@pytest.mark.parametrize("op", OPS)
def test_settling_in_what_is_no_queue(api, topic, op):
    answer = settle(api, op, topic, 1)
    expect.refusal(answer, 404, "topic_not_found", {"topic": topic})
    api.make(topic)
    answer = settle(api, op, topic, 1)
    expect.refusal(answer, 409, "not_a_queue", {"topic": topic})


@row("1.6 check order ack", "1.6 lease_ids")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "change",
    [
        {"node": None},
        {"node": ""},
        {"node": "n" * 129},
        {"seqs": "1"},
        {"seqs": ["1"]},
        {"seqs": [-1]},
        {"lease_ids": ["lease_1", "lease_2"]},
        {"lease_ids": []},
        {"lease_ids": ["ticket_1"]},
        {"lease_ids": ["lease_"]},
        {"lease_ids": ["lease_xyz"]},
        {"lease_ids": ["lease_12 34"]},
        {"lease_ids": [5]},
        {"lease_ids": "lease_1"},
    ],
)
def test_settling_checks_its_body_before_it_looks_for_the_queue(api, topic, op, change):
    body = {"node": "n1", "seqs": [1], "lease_ms": 1000, **change}
    body = {key: value for key, value in body.items() if value is not None}
    expect.refusal(api.post(at(topic, op), body), 400, "invalid_request")


@row("1.6 seqs", "1.6 check order ack")
@pytest.mark.parametrize("op", OPS)
def test_settling_takes_at_most_1000_seqs(api, topic, queue, op):
    many = list(range(1, 1002))
    answer = settle(api, op, "no-such-" + topic, *many)
    expect.refusal(answer, 400, "batch_too_large", {"seqs": 1001, "max": 1000})
    answer = settle(api, op, topic, *many, node="")
    expect.refusal(answer, 400, "invalid_request")
    answer = settle(api, op, topic, *many, lease_ids=["bad"] * 1001)
    expect.refusal(answer, 400, "invalid_request")
    body = done(settle(api, op, queue, *many[:1000]))
    assert len(body["skipped"]) == 1000


@row("1.6 ack")
def test_an_acknowledged_job_is_gone(api, queue):
    api.claim(queue, max=2)
    body = expect.success(settle(api, "ack", queue, 1), SETTLE | {"acked"})
    assert (body["topic"], body["acked"], body["skipped"]) == (queue, 1, [])
    assert (body["ready"], body["in_flight"]) == (1, 1)
    state = api.state(queue)
    assert (state["count"], state["queue"]["in_flight"]) == (2, 1)
    assert [record["$seq"] for record in api.diff(queue)["records"]] == [2, 3]


@row("1.6 ack")
def test_what_is_not_held_is_skipped(api, queue):
    api.claim(queue, max=1)
    body = done(settle(api, "ack", queue, 1, 2, 99))
    assert (body["acked"], body["skipped"]) == (1, [2, 99])
    body = done(settle(api, "ack", queue, 1))
    assert (body["acked"], body["skipped"]) == (0, [1])


@row("1.6 ack")
@pytest.mark.parametrize("op", OPS)
def test_a_job_is_held_by_the_node_that_claimed_it(api, queue, op):
    api.claim(queue, node="n1")
    assert done(settle(api, op, queue, 1, node="n2"))["skipped"] == [1]
    assert done(settle(api, op, queue, 1, node="n1"))["skipped"] == []


@row("1.6 nack", "2 claim order")
def test_a_job_that_is_given_back_comes_first(api, queue):
    api.claim(queue, max=2)
    body = expect.success(settle(api, "nack", queue, 2), SETTLE | {"nacked"})
    assert (body["nacked"], body["skipped"]) == (1, [])
    assert (body["ready"], body["in_flight"]) == (2, 1)
    first, second = api.claim(queue, node="n2", max=2)
    assert (first["$seq"], first["deliveries"]) == (2, 2)
    assert (second["$seq"], second["deliveries"]) == (3, 1)


@row("2 claim order")
def test_jobs_that_are_given_back_come_in_the_order_of_their_seqs(api, topic):
    api.make(topic, type="queue")
    api.write(topic, *range(5))
    api.claim(topic, max=4)
    for seq in (3, 1, 2):
        done(settle(api, "nack", topic, seq))
    assert claimed_seqs(api.claim(topic, max=10)) == [1, 2, 3, 5]


@row("1.6 nack", "2 ready")
def test_a_delayed_job_is_neither_ready_nor_in_flight_until_it_is_due(api, queue):
    api.claim(queue, max=3)
    body = done(settle(api, "nack", queue, 1, delay_ms=86_400_000))
    assert (body["nacked"], body["ready"], body["in_flight"]) == (1, 0, 2)
    assert api.claim(queue) == []
    done(settle(api, "nack", queue, 2, delay_ms=30))
    [job] = until(lambda: api.claim(queue, node="n2"), "the delayed job")
    assert (job["$seq"], job["deliveries"]) == (2, 2)
    assert api.state(queue)["queue"] == {"ready": 0, "in_flight": 2, "dead_lettered": 0}


@row("1.6 nack")
def test_a_delay_is_clamped_and_must_be_a_number(api, queue):
    api.claim(queue)
    assert done(settle(api, "nack", queue, 1, delay_ms=2**60))["nacked"] == 1
    answer = settle(api, "nack", queue, 1, delay_ms="soon")
    expect.refusal(answer, 400, "invalid_request")


@row("1.6 extend")
def test_extending_sets_the_deadline(api, queue):
    [job] = api.claim(queue, lease_ms=20_000)
    answer = settle(api, "extend", queue, 1, 2, lease_ms=600_000)
    wanted = {"topic", "extended", "skipped", "deadlines", "performance"}
    body = expect.success(answer, wanted)
    assert (body["extended"], body["skipped"], list(body["deadlines"])) == (1, [2], ["1"])
    longer = body["deadlines"]["1"]
    assert 500_000 < longer - job["deadline"] < 600_000
    shorter = done(settle(api, "extend", queue, 1, lease_ms=1_000))["deadlines"]["1"]
    assert shorter < job["deadline"], "it is set, not added"


@row("1.6 extend")
def test_extending_is_clamped_and_needs_a_lease_ms(api, queue):
    [job] = api.claim(queue, lease_ms=1_000)
    deadline = done(settle(api, "extend", queue, 1, lease_ms=10**12))["deadlines"]["1"]
    assert 86_300_000 < deadline - job["deadline"] < 86_500_000
    answer = api.post(at(queue, "extend"), {"node": "n1", "seqs": [1]})
    expect.refusal(answer, 400, "invalid_request")


@row("1.6 extend", "2 lease expiry")
def test_an_extended_lease_outlives_its_first_deadline(api, queue):
    api.claim(queue, lease_ms=100)
    api.claim(queue, max=2)
    body = done(settle(api, "extend", queue, 1, lease_ms=86_400_000))
    if body["extended"] == 0:
        pytest.fail("the lease of 100 ms ran out before it could be extended")
    api.make(other := queue + "-clock", type="queue")
    api.write(other, 1)
    api.claim(other, lease_ms=100)
    until(lambda: api.claim(other), "a lease that was claimed later has run out")
    assert api.claim(queue, node="n2") == []


@row("1.6 lease_ids")
@pytest.mark.parametrize("op", OPS)
def test_a_fence_lets_the_holder_through(api, queue, op):
    jobs = api.claim(queue, max=2)
    body = done(settle(api, op, queue, 1, 2, lease_ids=[jobs[0]["lease_id"], ""]))
    assert body["skipped"] == []


@row("1.6 lease_ids", "2 lease expiry")
@pytest.mark.parametrize("op", OPS)
def test_a_stale_token_is_skipped(api, queue, op):
    [old] = api.claim(queue, lease_ms=100)
    api.claim(queue, max=2, lease_ms=60_000)
    [new] = until(lambda: api.claim(queue), "the expired lease")
    assert (new["$seq"], new["deliveries"]) == (1, 2)
    assert new["lease_id"] != old["lease_id"]
    assert done(settle(api, op, queue, 1, lease_ids=[old["lease_id"]]))["skipped"] == [1]
    assert done(settle(api, op, queue, 1, lease_ids=[new["lease_id"]]))["skipped"] == []


@row("1.6 lease_ids")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("token", ["lease_0", "lease_1234", "lease_ABCdef", "lease_" + "f" * 64])
def test_a_token_that_was_never_given_out_is_stale(api, queue, op, token):
    api.claim(queue, max=2)
    assert done(settle(api, op, queue, 1, 2, lease_ids=[token, ""]))["skipped"] == [1]
    assert api.state(queue)["count"] == (2 if op == "ack" else 3)


@row("2 lease expiry")
def test_an_expired_lease_shows_as_ready_again(api, queue):
    api.claim(queue, max=3, lease_ms=100)
    until(
        lambda: api.state(queue)["queue"] == {"ready": 3, "in_flight": 0, "dead_lettered": 0},
        "expiry of the leases",
    )
    assert done(settle(api, "ack", queue, 1))["skipped"] == [1]


@row("2 ready")
def test_ready_is_what_is_live_less_leased_less_delayed(api, topic):
    api.make(topic, type="queue")
    api.write(topic, *range(6))
    api.claim(topic, max=3)
    done(settle(api, "nack", topic, 1, delay_ms=86_400_000))
    done(settle(api, "ack", topic, 2))
    done(api.post(at(topic, "delete"), {"before_seq": 2}))
    assert api.state(topic)["queue"] == {"ready": 3, "in_flight": 1, "dead_lettered": 0}


@row("2 dead letter")
def test_a_job_that_was_delivered_too_often_is_buried(api, topic, name):
    grave = name()
    api.make(topic, type="queue", max_deliveries=1, dead_letter=grave)
    done(api.post(at(topic), {"records": [{"data": {"a": 1}, "tag": "t"}, {"data": "next"}]}))
    api.claim(topic)
    done(settle(api, "nack", topic, 1))
    [job] = api.claim(topic)
    assert job["$seq"] == 2
    [letter] = api.diff(grave, include_tags=True)["records"]
    assert letter["data"] == {"a": 1}
    meta = letter["meta"]
    assert meta["$dead_letter_from"] == topic
    assert meta["$dead_letter_deliveries"] == "1"
    assert meta["$dead_letter_src_seq"] == "1"
    state = api.state(topic)
    assert (state["count"], state["queue"]["dead_lettered"]) == (1, 1)


@row("2 dead letter")
def test_without_a_grave_a_job_is_delivered_for_ever(api, topic):
    api.make(topic, type="queue", max_deliveries=1)
    api.write(topic, 1)
    for delivery in (1, 2, 3):
        [job] = api.claim(topic)
        assert job["deliveries"] == delivery
        done(settle(api, "nack", topic, 1))


@row("2 claim jitter")
def test_claimers_in_the_window_are_served_in_turns(api, topic):
    api.make(topic, type="queue", claim_jitter_ms=700)
    api.write(topic, *range(4))
    first, second = at_once(
        [functools.partial(api.claim, topic, node, max=4) for node in ("n1", "n2")]
    )
    assert (len(first), len(second)) == (2, 2), "one took all"
    assert sorted(claimed_seqs(first + second)) == [1, 2, 3, 4]


@row("1.6 claim")
def test_claimers_at_the_same_time_never_get_the_same_job(api, topic):
    api.make(topic, type="queue")
    api.write(topic, *range(40))
    jobs = at_once([functools.partial(api.claim, topic, f"n{n}", max=5) for n in range(8)])
    assert sorted(seq for each in jobs for seq in claimed_seqs(each)) == list(range(1, 41))


@row("1.6 claim")
def test_a_queue_can_be_read_as_a_log_too(api, queue):
    api.claim(queue)
    assert [record["$seq"] for record in api.diff(queue)["records"]] == [1, 2, 3]


@row("2 dead letter")
def test_a_watcher_of_the_grave_is_told(api, topic, name):
    grave = name()
    api.make(grave)
    api.make(topic, type="queue", max_deliveries=1, dead_letter=grave)
    api.write(topic, "job")
    with EventStream(api.address, api.watch(grave)) as stream:
        stream.next("caught-up")
        api.claim(topic)
        done(settle(api, "nack", topic, 1))
        assert api.claim(topic) == []
        assert stream.next("record").data["records"][0]["data"] == "job"


@row("1.6 ack", "2 cap_records")
def test_a_job_that_a_cap_took_is_held_by_nobody(api, topic):
    api.make(topic, type="queue", cap_records=1)
    api.write(topic, 1)
    api.claim(topic)
    api.write(topic, 2)
    assert api.state(topic)["queue"] == {"ready": 1, "in_flight": 0, "dead_lettered": 0}
    assert done(settle(api, "ack", topic, 1))["skipped"] == [1]


@row("1.6 check order claim", "1.0 wrong type")
@pytest.mark.parametrize("fields", [{"max": "5"}, {"max": -1}, {"lease_ms": "x"}, {"lease_ms": -1}])
def test_a_claim_with_a_field_of_the_wrong_type_is_400_even_without_a_topic(api, topic, fields):
    answer = api.post(at(topic, "claim"), {"node": "n1", **fields})
    expect.refusal(answer, 400, "invalid_request")


@row("1.6 ack")
def test_a_job_is_acknowledged_once_by_callers_at_the_same_time(api, queue):
    api.claim(queue, max=3)
    answers = at_once([lambda: done(settle(api, "ack", queue, 1, 2, 3))] * 6)
    assert sum(answer["acked"] for answer in answers) == 3
    assert sum(len(answer["skipped"]) for answer in answers) == 15
