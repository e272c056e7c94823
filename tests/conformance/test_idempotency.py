"""2 Idempotency: a retry is answered as the first try was."""

from __future__ import annotations

import functools

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.wire import at, at_once, done, payloads, records, until


@row("2 idempotency")
def test_a_retry_gets_the_original_answer(api, topic):
    first = expect.success(
        api.post(at(topic), records("a", "b", idempotency_key="k")), expect.WRITE, 201
    )
    assert (first["created"], first["deduped"]) == (True, False)
    api.write(topic, "between")
    again = expect.success(
        api.post(at(topic), records("other", "payload", "entirely", idempotency_key="k")),
        expect.WRITE,
    )
    again.pop("performance")
    first.pop("performance")
    assert again == {**first, "created": False, "deduped": True}
    assert again["head_seq"] == 2, "the head as it was then"
    assert payloads(api.diff(topic)) == ["a", "b", "between"]


@row("2 idempotency", "1.2 write return_seqs")
def test_a_retry_leaves_out_the_seqs_on_request(api, topic):
    api.write(topic, 1, idempotency_key="k")
    body = done(api.post(at(topic), records(1, idempotency_key="k"), return_seqs="false"))
    expect.keys(body, expect.WRITE - {"seqs"})
    assert (body["deduped"], body["first_seq"], body["last_seq"]) == (True, 1, 1)


@row("2 idempotency scope")
def test_a_key_belongs_to_its_topic(api, topic, name):
    other = name()
    api.write(topic, 1, idempotency_key="k")
    assert api.write(other, 1, idempotency_key="k")["deduped"] is False
    assert api.write(topic, 2, idempotency_key="K")["deduped"] is False


@row("2 idempotency scope")
def test_keys_are_dropped_with_the_topic(api, topic):
    api.write(topic, 1, idempotency_key="k")
    api.delete(at(topic))
    body = api.write(topic, 2, idempotency_key="k")
    assert (body["deduped"], body["created"], body["first_seq"]) == (False, True, 1)


@row("2 idempotency")
def test_a_refused_write_does_not_use_up_its_key(api, topic):
    api.make(topic, cap_records=1, discard="reject")
    api.write(topic, 1)
    expect.refusal(api.post(at(topic), records(2, idempotency_key="k")), 422, "topic_full")
    api.make(topic, cap_records=5)
    assert api.write(topic, 2, idempotency_key="k")["deduped"] is False


@row("2 idempotency window")
def test_after_its_window_a_key_is_free_again(api, topic):
    api.make(topic, idempotency_window_ms=60)
    assert api.write(topic, 1, idempotency_key="k")["seqs"] == [1]
    body = until(
        lambda: (found := api.write(topic, 2, idempotency_key="k"))["deduped"] is False and found,
        "the end of the window",
    )
    assert body["seqs"] == [2]
    assert payloads(api.diff(topic)) == [1, 2]


@row("2 idempotency window")
def test_a_key_within_its_window_is_known(api, topic):
    api.make(topic, idempotency_window_ms=600_000)
    api.write(topic, 1, idempotency_key="k")
    assert api.write(topic, 1, idempotency_key="k")["deduped"] is True


@row("2 idempotency concurrent")
def test_writes_with_one_key_at_the_same_time_become_one(api, topic):
    api.make(topic, durability="fsync")
    call = functools.partial(api.write, topic, "once", idempotency_key="k")
    answers = at_once([call] * 8)
    assert [answer["seqs"] for answer in answers] == [[1]] * 8
    assert sorted(answer["deduped"] for answer in answers) == [False] + [True] * 7
    assert payloads(api.diff(topic)) == ["once"]


@row("2 idempotency concurrent")
def test_creating_writes_with_one_key_at_the_same_time_become_one(api, topic):
    call = functools.partial(api.write, topic, "once", idempotency_key="k")
    answers = at_once([call] * 8)
    assert sum(answer["created"] for answer in answers) == 1
    assert payloads(api.diff(topic)) == ["once"]
