"""1.2 POST /v0/topics/{t}/diff: reading records."""

from __future__ import annotations

import time

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.wire import Later, at, done, payloads, seqs, until


@row("1.2 diff")
def test_a_diff_of_an_empty_topic(api, topic):
    api.make(topic)
    body = expect.success(api.post(at(topic, "diff"), {}), expect.DIFF)
    body.pop("performance")
    body.pop("epoch", None)
    assert body == {
        "topic": topic,
        "records": [],
        "next_from_seq": 0,
        "head_seq": 0,
        "earliest_seq": 1,
        "caught_up": True,
        "tombstone": None,
        "lag": 0,
    }


@row("1.2 diff", "1.2 diff includes")
def test_a_record_with_everything(api, topic):
    body = {"records": [{"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"m": 2}}]}
    done(api.post(at(topic), body))
    found = expect.success(api.post(at(topic, "diff"), {"include_tags": True}), expect.DIFF)
    [record] = found["records"]
    assert expect.recent_ms(record.pop("$ts"))
    assert record == {"$seq": 1, "$node": "n", "$tag": "t", "data": {"a": 1}, "meta": {"m": 2}}


@row("1.2 diff", "1.2 diff includes")
def test_a_bare_record_has_three_keys(api, topic):
    api.write(topic, 5)
    [record] = api.diff(topic, include_tags=True, include_meta=True)["records"]
    assert set(record) == {"$seq", "$ts", "data"}


@row("1.2 diff includes")
def test_tags_are_shown_on_request_and_meta_unless_refused(api, topic):
    body = {"records": [{"data": 1, "tag": "t", "node": "n", "meta": {"m": 2}}]}
    done(api.post(at(topic), body))
    [record] = api.diff(topic)["records"]
    assert set(record) == {"$seq", "$ts", "$node", "data", "meta"}
    [record] = api.diff(topic, include_tags=True, include_meta=False)["records"]
    assert set(record) == {"$seq", "$ts", "$node", "$tag", "data"}


@row("1.2 diff")
def test_from_seq_is_exclusive(api, topic):
    api.write(topic, "a", "b", "c")
    assert payloads(api.diff(topic, 0)) == ["a", "b", "c"]
    assert payloads(api.diff(topic, 2)) == ["c"]
    end = api.diff(topic, 3)
    assert (end["records"], end["caught_up"], end["lag"]) == ([], True, 0)


@row("1.2 diff", "2 caught_up")
def test_pages_follow_each_other_without_gap_or_overlap(api, topic):
    api.write(topic, *range(10))
    found, cursor, lags = [], 0, []
    while True:
        page = api.diff(topic, cursor, limit=4)
        found += payloads(page)
        lags.append(page["lag"])
        cursor = page["next_from_seq"]
        assert page["caught_up"] is (cursor == page["head_seq"])
        if page["caught_up"]:
            break
    assert found == list(range(10))
    assert lags == [6, 2, 0]


@row("1.2 diff defaults")
@pytest.mark.parametrize(
    ("limit", "count"), [(None, 256), (0, 256), (1, 1), (1000, 1000), (1001, 1000), (10**6, 1000)]
)
def test_a_page_has_256_records_and_at_most_1000(api, limit, count, topic):
    api.write(topic, *[0] * 1001)
    body = {} if limit is None else {"limit": limit}
    page = done(api.post(at(topic, "diff"), body))
    assert len(page["records"]) == count
    assert (page["next_from_seq"], page["lag"]) == (count, 1001 - count)
    assert page["caught_up"] is False


@row("1.2 diff node", "2 node filter")
def test_a_node_does_not_get_its_own_records_back(api, topic):
    for node in ("a", "b", "A", "aa"):
        api.write(topic, node, node=node)
    api.write(topic, "nobody")
    assert payloads(api.diff(topic, node="a")) == ["b", "A", "aa", "nobody"]
    assert payloads(api.diff(topic, node=["a", "b"])) == ["A", "aa", "nobody"]
    assert payloads(api.diff(topic, node=[])) == ["a", "b", "A", "aa", "nobody"]


@row("2 node filter", "2 caught_up")
def test_filtered_records_move_the_cursor_in_silence(api, topic):
    api.write(topic, 1, 2, 3, node="me")
    page = api.diff(topic, node="me")
    assert (page["records"], page["tombstone"]) == ([], None)
    assert (page["next_from_seq"], page["caught_up"], page["lag"]) == (3, True, 0)


@row("2 node filter")
def test_a_topic_may_switch_the_node_filter_off(api, topic):
    api.make(topic, dedupe_node=False)
    api.write(topic, 1, node="me")
    assert payloads(api.diff(topic, node="me")) == [1]


@row("1.2 diff bytes", "2 caught_up")
def test_a_record_over_the_budget_is_delivered_alone_and_none_is_passed(api, topic):
    api.write(topic, "x" * 100, "y" * 100, "z" * 100)
    first = api.diff(topic, max_batch_bytes=1)
    assert (seqs(first), first["next_from_seq"], first["caught_up"]) == ([1], 1, False)
    second = api.diff(topic, first["next_from_seq"], max_batch_bytes=1)
    assert seqs(second) == [2]


@row("1.2 diff bytes")
@pytest.mark.parametrize("budget", [None, 0])
def test_a_page_has_about_1_mib_by_default(api, topic, budget):
    for _ in range(3):
        api.write(topic, "x" * 600_000)
    body = {} if budget is None else {"max_batch_bytes": budget}
    page = done(api.post(at(topic, "diff"), body))
    assert (seqs(page), page["next_from_seq"]) == ([1], 1)


@row("1.2 diff bytes")
def test_a_page_has_at_most_8_mib(api, topic):
    for _ in range(10):
        api.write(topic, "x" * 1_000_000)
    page = api.diff(topic, max_batch_bytes=2**40)
    assert seqs(page) == list(range(1, 9))


@row("1.2 diff errors")
def test_a_diff_of_an_absent_topic_is_404(api, topic):
    expect.refusal(api.post(at(topic, "diff"), {}), 404, "topic_not_found", {"topic": topic})


@row("1.2 diff errors")
def test_values_out_of_range_are_no_errors(api, topic):
    api.write(topic, 1)
    body = {"limit": 2**32 - 1, "wait_ms": 0, "max_batch_bytes": 2**63, "from_seq": 0}
    assert payloads(done(api.post(at(topic, "diff"), body))) == [1]


@row("1.2 diff wait")
def test_a_long_poll_is_answered_by_the_next_write(api, topic):
    api.write(topic, "old")
    waiting = Later(lambda: api.diff(topic, 1, wait_ms=30_000))
    until(lambda: api.state(topic)["last_read_ts"], "the reader is there")
    api.write(topic, "new")
    found = waiting.result()
    assert (payloads(found), found["next_from_seq"]) == (["new"], 2)
    assert found["caught_up"] is True


@row("1.2 diff wait")
def test_a_long_poll_with_something_to_tell_answers_at_once(api, topic):
    api.make(topic, cap_records=1)
    api.write(topic, 1, 2, 3)
    begin = time.monotonic()
    assert payloads(api.diff(topic, 2, wait_ms=30_000)) == [3]
    assert api.diff(topic, 99, wait_ms=30_000)["tombstone"]["reason"] == "recreated"
    done(api.post(at(topic, "delete"), {"before_seq": 4}))
    assert api.diff(topic, 0, wait_ms=30_000)["tombstone"]["reason"] == "cap"
    assert time.monotonic() - begin < 25, "one of them was parked"


@row("1.2 diff wait deadline")
def test_a_long_poll_ends_empty_at_its_deadline(api, topic):
    api.make(topic)
    begin = time.monotonic()
    found = api.diff(topic, wait_ms=60)
    assert (found["records"], found["caught_up"], found["head_seq"]) == ([], True, 0)
    assert time.monotonic() - begin >= 0.05, "it did not wait"


@row("1.2 diff wait")
def test_a_long_poll_wakes_for_every_reader(api, topic):
    api.make(topic)
    waiting = [Later(lambda: api.diff(topic, wait_ms=30_000)) for _ in range(5)]
    until(lambda: api.state(topic)["last_read_ts"], "a reader is there")
    api.write(topic, "x")
    for reader in waiting:
        assert payloads(reader.result()) == ["x"]


@row("1.2 diff wait")
def test_a_long_poll_on_the_dest_of_a_router_wakes_too(api, topic, name):
    dest = name()
    api.route(name(), topic, dest)
    waiting = Later(lambda: api.diff(dest, wait_ms=30_000))
    until(lambda: api.state(dest)["last_read_ts"], "the reader is there")
    api.write(topic, "through")
    assert payloads(waiting.result()) == ["through"]


@row("1.2 diff wait")
def test_a_client_that_leaves_its_long_poll_harms_nobody(api, topic):
    api.make(topic)
    connection = api.connect()
    connection.request(
        "POST", at(topic, "diff"), b'{"wait_ms":30000}', {"Content-Type": "application/json"}
    )
    until(lambda: api.state(topic)["last_read_ts"], "the reader is there")
    connection.close()
    api.write(topic, "x")
    assert payloads(api.diff(topic)) == ["x"]


@row("1.2 diff wait deadline")
def test_a_long_poll_is_not_woken_by_what_it_has_seen(api, topic):
    for seq in range(1, 16):
        api.write(topic, seq)
        begin = time.monotonic()
        found = api.diff(topic, seq, wait_ms=60)
        assert (found["records"], found["next_from_seq"]) == ([], seq)
        assert time.monotonic() - begin >= 0.05, f"poll {seq} came back empty before its deadline"


@row("1.2 diff errors", "2 recreated")
def test_a_cursor_may_be_any_u64(api, topic):
    api.write(topic, 1)
    assert api.diff(topic, 2**64 - 1)["tombstone"]["reason"] == "recreated"
    expect.refusal(api.post(at(topic, "diff"), {"from_seq": 2**64}), 400, "invalid_request")


@row("1.2 diff wait")
def test_a_long_poll_passes_over_own_records_and_says_so(api, topic):
    api.make(topic)
    waiting = Later(lambda: api.diff(topic, node="me", wait_ms=30_000))
    until(lambda: api.state(topic)["last_read_ts"], "the reader is there")
    api.write(topic, "mine", node="me")
    found = waiting.result()
    assert (found["records"], found["next_from_seq"], found["caught_up"]) == ([], 1, True)
