"""1.2 POST /v0/topics/{t}/delete and the predicates."""

from __future__ import annotations

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.wire import at, done, payloads, seqs


def _tagged(api, topic, *tags):
    body = {"records": [{"data": tag, **({} if tag is None else {"tag": tag})} for tag in tags]}
    done(api.post(at(topic), body))


def _delete(api, topic, **selector):
    return expect.success(api.post(at(topic, "delete"), selector), expect.DELETE_RECORDS)


@row("1.2 delete records", "2 delete")
def test_a_prefix_is_deleted(api, topic):
    api.write(topic, "a", "bb", "c")
    body = _delete(api, topic, before_seq=3)
    body.pop("performance")
    body.pop("epoch", None)
    assert body == {
        "topic": topic,
        "deleted": 2,
        "earliest_seq": 3,
        "head_seq": 3,
        "count": 1,
        "bytes": 3,
    }
    assert seqs(api.diff(topic)) == [3]


@row("1.2 delete records")
@pytest.mark.parametrize("selector", [{}, {"other": 1}])
def test_a_delete_without_a_selector_is_400_even_if_there_is_no_topic(api, topic, selector):
    expect.refusal(api.post(at(topic, "delete"), selector), 400, "invalid_request")
    api.write(topic, 1)
    expect.refusal(api.post(at(topic, "delete"), selector), 400, "invalid_request")
    assert api.state(topic)["count"] == 1


@row("1.2 delete records", "1.2 predicate")
@pytest.mark.parametrize(
    "match",
    [
        [],
        ["tag"],
        ["tag", "Eq"],
        ["tag", "Eq", 5],
        ["tag", "Eq", "a", "b"],
        ["tag", "Like", "a"],
        ["tag", "eq", "a"],
        ["node", "Eq", "a"],
        ["tag", "Glob", "a"],
        ["tag", "Glob", "*a"],
        ["tag", "Glob", "a*b"],
        ["tag", "Glob", "a**"],
        ["tag", "Glob", "*a*"],
        5,
        {"tag": "a"},
        True,
    ],
)
def test_a_bad_predicate_is_400_even_if_there_is_no_topic(api, topic, match):
    expect.refusal(api.post(at(topic, "delete"), {"match": match}), 400, "invalid_request")


@row("1.2 delete records")
def test_a_delete_in_an_absent_topic_is_404(api, topic):
    answer = api.post(at(topic, "delete"), {"before_seq": 1})
    expect.refusal(answer, 404, "topic_not_found", {"topic": topic})


@row("2 delete", "1.2 predicate")
@pytest.mark.parametrize(
    ("match", "left"),
    [
        (["tag", "Eq", "a"], ["ab", "b", None, "a*"]),
        ("a", ["ab", "b", None, "a*"]),
        (["tag", "Glob", "a*"], ["b", None]),
        ("a*", ["b", None]),
        (["tag", "Eq", "a*"], ["a", "ab", "b", None]),
        (["tag", "Glob", "*"], [None]),
        ("*", [None]),
        (["tag", "Eq", "none"], ["a", "ab", "b", None, "a*"]),
    ],
)
def test_records_are_deleted_by_tag(api, topic, match, left):
    _tagged(api, topic, "a", "ab", "b", None, "a*")
    assert _delete(api, topic, match=match)["deleted"] == 5 - len(left)
    assert payloads(api.diff(topic)) == left


@row("2 delete")
def test_a_prefix_match_is_literal(api, topic):
    _tagged(api, topic, "chat-42:1", "chat-420:1", "chat-42", "chat-42:2")
    assert _delete(api, topic, match="chat-42:*")["deleted"] == 2
    assert payloads(api.diff(topic)) == ["chat-420:1", "chat-42"]


@row("2 delete")
def test_both_selectors_are_joined_with_and(api, topic):
    _tagged(api, topic, "a", "b", "a", "b", "a")
    body = _delete(api, topic, before_seq=4, match="a")
    assert body["deleted"] == 2
    assert seqs(api.diff(topic)) == [2, 4, 5]


@row("2 delete", "2 floors")
def test_both_selectors_move_no_watermark_but_a_deleted_front_run_is_skipped(api, topic):
    _tagged(api, topic, "a", "a", "b", "a")
    body = _delete(api, topic, before_seq=3, match="b")
    assert (body["deleted"], body["earliest_seq"]) == (0, 1)
    assert _delete(api, topic, match="a")["earliest_seq"] == 3


@row("2 delete")
def test_a_delete_beyond_the_head_spares_later_records(api, topic):
    api.write(topic, 1, 2)
    body = _delete(api, topic, before_seq=10**9)
    assert (body["deleted"], body["count"], body["head_seq"]) == (2, 0, 2)
    assert body["earliest_seq"] == 3
    api.write(topic, 3)
    assert payloads(api.diff(topic)) == [3]


@row("2 delete")
def test_a_match_spares_records_that_come_later(api, topic):
    _tagged(api, topic, "a")
    _delete(api, topic, match="a")
    _tagged(api, topic, "a")
    assert seqs(api.diff(topic)) == [2]


@row("2 delete")
def test_deleting_again_deletes_nothing(api, topic):
    api.write(topic, 1, 2, 3)
    assert _delete(api, topic, before_seq=3)["deleted"] == 2
    assert _delete(api, topic, before_seq=3)["deleted"] == 0
    assert _delete(api, topic, before_seq=0)["deleted"] == 0
    assert _delete(api, topic, before_seq=2)["earliest_seq"] == 3


@row("2 delete is silent", "2 caught_up")
def test_a_hole_is_passed_in_silence(api, topic):
    _tagged(api, topic, "a", "x", "x", "b")
    _delete(api, topic, match="x")
    page = api.diff(topic, limit=1)
    assert (seqs(page), page["tombstone"]) == ([1], None)
    page = api.diff(topic, page["next_from_seq"], limit=1)
    assert (seqs(page), page["tombstone"], page["caught_up"]) == ([4], None, True)


@row("2 delete is silent", "2 floors")
def test_a_deleted_prefix_leaves_no_tombstone(api, topic):
    api.write(topic, *range(5))
    _delete(api, topic, before_seq=4)
    page = api.diff(topic)
    assert (seqs(page), page["tombstone"], page["earliest_seq"]) == ([4, 5], None, 4)


@row("2 delete")
def test_a_queue_forgets_deleted_jobs(api, topic):
    api.make(topic, type="queue")
    api.write(topic, 1, 2, 3)
    _delete(api, topic, before_seq=3)
    assert [job["$seq"] for job in api.claim(topic, max=10)] == [3]
