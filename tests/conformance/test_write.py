"""1.2 POST /v0/topics/{t}: writing records."""

from __future__ import annotations

import functools

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.wire import at, at_once, done, payloads, records, seqs

MIB = 1_048_576


@row("1.2 write")
def test_a_write_that_creates_the_topic_is_201(api, topic):
    body = expect.success(api.post(at(topic), records("a", "b")), expect.WRITE, 201)
    expect.performance(body)
    del body["performance"]
    assert body == {
        "topic": topic,
        "first_seq": 1,
        "last_seq": 2,
        "seqs": [1, 2],
        "head_seq": 2,
        "count": 2,
        "created": True,
        "deduped": False,
    }


@row("1.2 write")
def test_a_write_to_a_known_topic_is_200(api, topic):
    api.write(topic, "a", "b")
    body = expect.success(api.post(at(topic), records("c", "d", "e")), expect.WRITE)
    assert (body["first_seq"], body["last_seq"], body["head_seq"]) == (3, 5, 5)
    assert (body["seqs"], body["count"], body["created"]) == ([3, 4, 5], 3, False)
    assert payloads(api.diff(topic)) == ["a", "b", "c", "d", "e"]


@row("1.2 write return_seqs")
def test_a_write_leaves_out_the_seqs_on_request(api, topic):
    body = done(api.post(at(topic), records(1, 2), return_seqs="false"))
    expect.keys(body, expect.WRITE - {"seqs"})
    assert (body["first_seq"], body["last_seq"]) == (1, 2)


@row("1.2 write records")
@pytest.mark.parametrize("data", [None, 0, False, "", [], {}, "x", 1.5, {"deep": [{"er": None}]}])
def test_data_may_be_any_json(api, topic, data):
    api.write(topic, data)
    assert payloads(api.diff(topic)) == [data]


@row("1.2 write records")
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"records": []},
        {"records": None},
        {"records": [{}]},
        {"records": [{"tag": "t"}]},
        {"records": [{"data": 1}, {"meta": {}}]},
        {"records": [{"data": 1}, None]},
    ],
)
def test_records_that_are_missing_or_have_no_data_are_400_and_create_nothing(api, topic, body):
    expect.refusal(api.post(at(topic), body), 400, "invalid_request")
    expect.refusal(api.get(at(topic)), 404, "topic_not_found")


@row("2 seq", "1.2 write records")
def test_a_batch_with_one_bad_record_appends_nothing(api, topic):
    api.write(topic, "kept")
    body = {"records": [{"data": 1}, {"data": 2, "tag": "t" * 257}, {"data": 3}]}
    expect.refusal(api.post(at(topic), body), 400, "invalid_request")
    assert api.state(topic)["head_seq"] == 1
    assert api.write(topic, "next")["first_seq"] == 2


@row("1.2 write limits")
def test_a_batch_has_at_most_10000_records(api, topic):
    full = b'{"records":[' + b",".join([b'{"data":0}'] * 10_000) + b"]}"
    body = done(api.post(at(topic), full, return_seqs="false"))
    assert (body["first_seq"], body["last_seq"], body["count"]) == (1, 10_000, 10_000)
    over = b'{"records":[' + b",".join([b'{"data":0}'] * 10_001) + b"]}"
    expect.refusal(api.post(at(topic), over), 400, "batch_too_large")
    assert api.state(topic)["head_seq"] == 10_000


@row("1.2 write limits")
def test_a_record_has_at_most_1_mib_of_data_and_meta(api, topic):
    api.write(topic, "x" * (MIB - 2))
    expect.refusal(api.post(at(topic), records("x" * (MIB - 1))), 400, "record_too_large")
    body = b'{"records":[{"data":"%b","meta":{"a":1}}]}'
    done(api.post(at(topic), body % (b"x" * (MIB - 2 - 7))))
    over = body % (b"x" * (MIB - 2 - 6))
    expect.refusal(api.post(at(topic), over), 400, "record_too_large")
    assert api.state(topic)["head_seq"] == 2


@row("1.2 write meta")
def test_meta_has_at_most_64_keys(api, topic):
    api.write(topic, 1, meta={f"k{number}": number for number in range(64)})
    over = {"records": [{"data": 1, "meta": {f"k{number}": 1 for number in range(65)}}]}
    expect.refusal(api.post(at(topic), over), 400, "invalid_request")
    assert api.state(topic)["head_seq"] == 1


@row("1.2 write meta")
def test_meta_has_at_most_16_kib(api, topic):
    fits = b'{"records":[{"data":1,"meta":{"k":"%b"}}]}' % (b"x" * (16_384 - 8))
    done(api.post(at(topic), fits))
    over = b'{"records":[{"data":1,"meta":{"k":"%b"}}]}' % (b"x" * (16_384 - 7))
    expect.refusal(api.post(at(topic), over), 400, "invalid_request")
    assert api.state(topic)["head_seq"] == 1


@row("1.2 write meta")
@pytest.mark.parametrize("meta", [[], "x", 7, True])
def test_meta_is_an_object(api, topic, meta):
    body = {"records": [{"data": 1, "meta": meta}]}
    expect.refusal(api.post(at(topic), body), 400, "invalid_request")


@row("1.2 write meta")
def test_meta_comes_back(api, topic):
    api.write(topic, 1, meta={"a": {"b": [1]}})
    api.write(topic, 2, meta={})
    api.write(topic, 3)
    first, _, third = api.diff(topic)["records"]
    assert first["meta"] == {"a": {"b": [1]}}
    assert "meta" not in third


@row("1.2 write limits")
@pytest.mark.parametrize(
    ("field", "longest"), [("tag", "t" * 256), ("node", "n" * 128), ("tag", "é" * 128)]
)
def test_tag_and_node_have_limits_in_bytes(api, topic, field, longest):
    done(api.post(at(topic), {"records": [{"data": 1, field: longest}]}))
    over = {"records": [{"data": 1, field: longest + "é"}]}
    expect.refusal(api.post(at(topic), over), 400, "invalid_request")


@row("1.2 write limits", "1.2 write node")
def test_the_node_of_the_batch_has_the_same_limit(api, topic):
    done(api.post(at(topic), records(1, node="n" * 128)))
    expect.refusal(api.post(at(topic), records(1, node="n" * 129)), 400, "invalid_request")


@row("1.2 write node")
def test_the_node_of_a_record_wins_over_that_of_the_batch(api, topic):
    body = {"node": "batch", "records": [{"data": 1}, {"data": 2, "node": "own"}]}
    done(api.post(at(topic), body))
    assert [record["$node"] for record in api.diff(topic)["records"]] == ["batch", "own"]


@row("1.2 write create")
def test_a_write_may_insist_on_an_existing_topic(api, topic):
    answer = api.post(at(topic), records(1, create=False))
    expect.refusal(answer, 404, "topic_not_found", {"topic": topic})
    expect.refusal(api.get(at(topic)), 404, "topic_not_found")
    assert api.post(at(topic), records(1, create=True)).status == 201
    assert api.post(at(topic), records(1, create=False)).status == 200


@row("1.2 write config")
def test_an_inline_config_shapes_the_topic_that_a_write_creates(api, topic):
    body = records(1, config={"type": "queue", "ttl_ms": 60_000, "durable": True})
    assert api.post(at(topic), body).status == 201
    wanted = {"type": "queue", "ttl_ms": 60_000, "durable": True, "durability": "fsync"}
    assert api.state(topic)["config"] == {**expect.CONFIG_DEFAULTS, **wanted}


@row("1.2 write config")
def test_an_inline_config_is_ignored_when_the_topic_exists(api, topic):
    api.make(topic)
    body = records(1, config={"type": "queue", "ttl_ms": 1})
    assert api.post(at(topic), body).status == 200
    assert api.state(topic)["config"] == expect.CONFIG_DEFAULTS


@row("1.2 write config")
def test_a_bad_inline_config_is_400_and_creates_nothing(api, topic):
    expect.refusal(api.post(at(topic), records(1, config={"ttl_ms": -1})), 400, "invalid_request")
    expect.refusal(api.get(at(topic)), 404, "topic_not_found")


@row("1.2 write idempotency key")
def test_an_idempotency_key_has_at_most_256_bytes(api, topic):
    done(api.post(at(topic), records(1, idempotency_key="k" * 256)))
    for key in ("k" * 257, "é" * 129):
        answer = api.post(at(topic), records(1, idempotency_key=key))
        expect.refusal(answer, 400, "invalid_request")
    assert api.state(topic)["head_seq"] == 1


@row("1.2 write idempotency key")
def test_the_header_is_a_key_too(api, topic):
    first = done(api.post(at(topic), records(1), {"Idempotency-Key": "h"}))
    again = done(api.post(at(topic), records(2), {"Idempotency-Key": "h"}))
    assert (again["deduped"], again["seqs"]) == (True, first["seqs"])


@row("1.2 write idempotency key")
def test_the_header_has_the_bytes_of_the_key_in_a_body(api, topic):
    api.write(topic, 1, idempotency_key="é")
    as_sent = {"Idempotency-Key": "é".encode().decode("latin-1")}
    assert done(api.post(at(topic), records(2), as_sent))["deduped"] is True
    longest = {"Idempotency-Key": ("é" * 128).encode().decode("latin-1")}
    assert done(api.post(at(topic), records(3), longest))["deduped"] is False
    longer = {"Idempotency-Key": ("é" * 128 + "x").encode().decode("latin-1")}
    expect.refusal(api.post(at(topic), records(4), longer), 400, "invalid_request")


@row("1.2 write idempotency key")
def test_the_key_in_the_body_wins_over_the_header(api, topic):
    done(api.post(at(topic), records(1, idempotency_key="b"), {"Idempotency-Key": "h"}))
    assert done(api.post(at(topic), records(2), {"Idempotency-Key": "h"}))["deduped"] is False
    assert done(api.post(at(topic), records(3, idempotency_key="b")))["deduped"] is True


@row("1.2 write disable_backpressure")
def test_a_write_may_ask_not_to_be_throttled(api, topic):
    assert api.write(topic, 1, disable_backpressure=True)["count"] == 1
    api.make(topic, cap_records=1, discard="reject")
    answer = api.post(at(topic), records(1, disable_backpressure=True))
    expect.refusal(answer, 422, "topic_full")


@row("1.2 write order")
def test_records_are_checked_before_the_topic_is_looked_up(api, topic):
    body = {"records": [{"data": 1, "meta": 5}], "create": False}
    expect.refusal(api.post(at(topic), body), 400, "invalid_request")
    over = b'{"create":false,"records":[' + b",".join([b'{"data":0}'] * 10_001) + b"]}"
    expect.refusal(api.post(at(topic), over), 400, "batch_too_large")


@row("1.2 write order")
def test_a_retry_is_recognised_before_the_caps_are_asked(api, topic):
    api.make(topic, cap_records=1, discard="reject")
    first = api.write(topic, 1, idempotency_key="k")
    again = done(api.post(at(topic), records(1, 2, 3, idempotency_key="k")))
    assert (again["deduped"], again["seqs"]) == (True, first["seqs"])
    expect.refusal(api.post(at(topic), records(2)), 422, "topic_full")


@row("1.2 write order")
def test_what_can_never_fit_is_told_so_even_when_the_topic_is_full(api, topic):
    api.make(topic, cap_records=2, discard="reject")
    api.write(topic, 1, 2)
    expect.refusal(api.post(at(topic), records(1, 2, 3)), 400, "record_too_large")
    expect.refusal(api.post(at(topic), records(1)), 422, "topic_full")


@row("2 seq")
def test_writers_at_the_same_time_get_blocks_of_their_own(api, topic):
    api.make(topic)
    calls = [
        functools.partial(api.write, topic, *[(writer, n) for n in range(20)])
        for writer in range(8)
    ]
    answers = at_once(calls)
    blocks = sorted(answer["seqs"] for answer in answers)
    assert [seq for block in blocks for seq in block] == list(range(1, 161))
    found = api.diff(topic)
    assert seqs(found) == list(range(1, 161))
    for writer, answer in enumerate(answers):
        block = found["records"][answer["first_seq"] - 1 : answer["last_seq"]]
        assert [record["data"] for record in block] == [[writer, n] for n in range(20)]


@row("2 seq")
def test_a_reader_sees_a_batch_whole_or_not_at_all(api, topic):
    api.make(topic)

    def write() -> None:
        for _ in range(20):
            api.write(topic, *range(10))

    def read() -> list[int]:
        return [api.diff(topic, limit=1000)["head_seq"] for _ in range(40)]

    heads = at_once([write, read])[1]
    assert heads is not None
    assert all(head % 10 == 0 for head in heads), heads
