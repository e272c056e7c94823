"""The body of a write: what is taken, what is refused, what is kept of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from penstock.protocol.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.batch import Batch, parse_write
from penstock.topics.core.record import DEPTH_MAX, RawRecord, Routed, make_record


def body_of(*records: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"records": records, **fields}, separators=(",", ":")).encode()


def one(record: bytes) -> RawRecord:
    return parse_write(b'{"records":[%b]}' % record).batch.records[0]


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def test_a_write_has_its_records_and_what_was_asked_for_with_them() -> None:
    write = parse_write(
        body_of(
            {"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"m": 1}},
            idempotency_key="k",
            create=False,
            config={"ttl_ms": 5},
            disable_backpressure=True,
        )
    )
    record = write.batch.records[0]
    assert (bytes(record.data), record.tag, record.node) == (b'{"a":1}', "t", "n")
    assert bytes(record.meta or b"") == b'{"m":1}'
    assert write[1:] == ("k", False, {"ttl_ms": 5}, True)


def test_what_is_not_said_is_not_there() -> None:
    write = parse_write(b'{"records":[{"data":null}]}')
    assert write.batch.records == [RawRecord(Raw(b"null"))]
    assert write[1:] == (None, None, None, False)


def test_null_is_as_good_as_nothing_but_for_data() -> None:
    record = b'{"data":null,"tag":null,"node":null,"meta":null}'
    body = b'{"records":[%b],"node":null,"idempotency_key":null,"create":null,"config":null}' % (
        record,
    )
    write = parse_write(body)
    assert write.batch.records == [RawRecord(Raw(b"null"))]
    assert list(write.batch.sizes) == [4]
    assert Batch.decoded(write.batch.body) == write.batch


def test_payloads_are_kept_as_they_came_and_counted_without_their_blanks() -> None:
    body = b'{ "records" : [ {"data" : { "a b" : [ 1.50 , 2 ] } , "meta" : { } } ] }'
    batch = parse_write(body).batch
    assert bytes(batch.records[0].data) == b'{ "a b" : [ 1.50 , 2 ] }'
    assert list(batch.sizes) == [len(b'{"a b":[1.50,2]}') + len(b"{}")]
    assert batch.size_bytes == 18


def test_a_body_is_logged_as_it_came() -> None:
    body = body_of({"data": 1, "tag": "ä"}, {"data": [2]}, node="n", idempotency_key="k")
    assert parse_write(body).batch.body is body


def test_the_node_of_the_batch_is_that_of_every_record_without_one() -> None:
    body = body_of({"data": 1}, {"data": 2, "node": "own"}, {"data": 3, "node": ""}, node="all")
    batch = parse_write(body).batch
    assert [record.node for record in batch.records] == ["all", "own", ""]
    again = Batch.decoded(batch.body)
    assert [record.node for record in again.records] == ["all", "own", ""]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"records":{}}',
        b'{"records":[]}',
        b'{"records":[1]}',
        b'{"records":[{}]}',
        b'{"records":[{"tag":"no data"}]}',
        b'{"records":[{"data":1,"tag":5}]}',
        b'{"records":[{"data":1,"node":[]}]}',
        b'{"records":[{"data":1}],"node":5}',
        b'{"records":[{"data":1}],"idempotency_key":5}',
        b'{"records":[{"data":1}],"create":1}',
        b'{"records":[{"data":1}],"config":[]}',
        b'{"records":[{"data":1}],"disable_backpressure":"yes"}',
        b'{"records":[{"data":1}]} {}',
        b'{"records":[{"data":1},]}',
        b'{"records":[{"data":01}]}',
        b'{"records":[{"data":NaN}]}',
        b'{"records":[{"data":"\\q"}]}',
        b'{"records":[{"data":"a\nb"}]}',
        b'{"records":[{"data":"\\ud800"}]}',
        b'{"records":[{"data":1,"tag":"\\ud800"}]}',
        b'{"records":[{"data":1,"unknown":tru}]}',
    ],
)
def test_a_body_that_is_no_write_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_write(body)


@pytest.mark.parametrize("meta", [b"[]", b"1", b'"{}"', b"true", b' [ "{" ]'])
def test_meta_must_be_an_object(meta: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_write(b'{"records":[{"data":1,"meta":%b}]}' % meta)


@pytest.mark.parametrize(
    "template",
    [
        b'{"records":[{"data":"%b"}]}',
        b'{"records":[{"data":1,"tag":"%b"}]}',
        b'{"records":[{"data":1,"meta":{"%b":1}}]}',
        b'{"records":[{"data":1}],"unknown":"%b"}',
        b'{"records":[{"data":1,"%b":1}]}',
    ],
)
@pytest.mark.parametrize("wrong", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
def test_bytes_that_are_no_utf_8_are_refused_wherever_they_stand(
    template: bytes, wrong: bytes
) -> None:
    assert parse_write(template % "ä€😀".encode())
    with pytest.raises(InvalidRequest):
        parse_write(template % wrong)


def test_texts_keep_their_spelling_in_data_and_are_read_in_tags() -> None:
    record = one(b'{"data":"\\u00e4\xc3\xa4\\n","tag":"\\u00e4\\ud83d\\ude00"}')
    assert bytes(record.data) == b'"\\u00e4\xc3\xa4\\n"'
    assert record.tag == "ä😀"


@pytest.mark.parametrize("where", ["data", "meta", "unknown", "config"])
@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 900, 5_000, 200_000])
def test_json_that_is_too_deep_is_refused_as_any_other_bad_request(where: str, depth: int) -> None:
    deep = nested(depth)
    if where in ("data", "meta"):
        deep = deep if where == "data" else b'{"a":%b}' % deep
        body = b'{"records":[{"data":1,"%b":%b}]}' % (where.encode(), deep)
        with pytest.raises(InvalidRequest):
            parse_write(body.replace(b'"data":1,"data"', b'"data"'))
        return
    body = b'{"records":[{"data":1}],"%b":{"ttl_ms":%b}}' % (where.encode(), deep)
    try:
        kept = parse_write(body).batch.body
    except InvalidRequest:
        return
    assert kept == b'{"records":[{"data":1}]}'


def test_json_is_taken_up_to_its_depth_however_many_brackets_it_has() -> None:
    assert bytes(one(b'{"data":%b}' % nested(DEPTH_MAX)).data) == nested(DEPTH_MAX)
    flat = b"[" + b",".join([b"[{}]"] * 1_000) + b"]"
    texts = b"[" + b",".join([b'"[[[{{{\\""'] * 1_000) + b"]"
    for data in (flat, texts):
        assert bytes(one(b'{"data":%b}' % data).data) == data


def test_a_meta_is_taken_up_to_its_depth_and_data_does_not_add_to_it() -> None:
    meta = b'{"a":%b}' % nested(DEPTH_MAX - 1)
    record = one(b'{"data":%b,"meta":%b}' % (nested(DEPTH_MAX), meta))
    assert bytes(record.meta or b"") == meta


@pytest.mark.parametrize(
    ("limits", "fits", "refused"),
    [
        ({"record_bytes_max": 6}, {"data": 1234}, RecordTooLarge),
        ({"meta_bytes_max": 7}, {"data": 1, "meta": {"a": 1}}, InvalidRequest),
        ({"meta_keys_max": 2}, {"data": 1, "meta": {"a": 1, "b": 1}}, InvalidRequest),
        ({"tag_bytes_max": 4}, {"data": 1, "tag": "ää"}, InvalidRequest),
        ({"node_bytes_max": 4}, {"data": 1, "node": "😀"}, InvalidRequest),
    ],
)
def test_every_limit_of_a_record_holds_to_the_byte(
    limits: dict[str, int], fits: dict[str, Any], refused: type[Exception]
) -> None:
    assert parse_write(body_of(fits), TopicLimits(**limits))
    if "record_bytes_max" in limits:
        fits |= {"meta": {}}
        assert parse_write(body_of(fits), TopicLimits(**limits))
    (name, most) = next(iter(limits.items()))
    tighter = TopicLimits(**{name: most - 1})
    with pytest.raises(refused):
        parse_write(body_of(fits), tighter)


def test_limits_count_what_is_left_without_blanks() -> None:
    limits = TopicLimits(record_bytes_max=9, meta_bytes_max=7)
    body = b'{"records":[{"data": [ ] ,"meta":{ "a" : %b 1 } }]}' % (b" " * 100)
    assert list(parse_write(body, limits).batch.sizes) == [9]


def test_a_batch_has_between_one_record_and_its_limit() -> None:
    limits = TopicLimits(batch_records_max=3)
    assert len(parse_write(body_of(*[{"data": 1}] * 3), limits).batch) == 3
    with pytest.raises(BatchTooLarge) as refused:
        parse_write(body_of(*[{"data": 1}] * 4), limits)
    assert (refused.value.code, refused.value.status) == ("batch_too_large", 400)


def test_the_node_of_a_batch_has_the_limit_of_a_node() -> None:
    assert parse_write(body_of({"data": 1}, node="x" * 128))
    with pytest.raises(InvalidRequest):
        parse_write(body_of({"data": 1}, node="x" * 129))


def test_fields_that_nobody_reads_are_ignored_and_not_kept() -> None:
    body = body_of(
        {"data": 1, "tag": "t", "hops": 7, "unknown": {"deep": [1]}},
        {"data": "b"},
        node="n",
        idempotency_key="k",
        unknown="x" * 1_000_000,
    )
    write = parse_write(body)
    assert write.batch.body == (
        b'{"records":[{"data":1,"tag":"t","node":"n"},{"data":"b","node":"n"}]}'
    )
    assert write.key == "k"
    assert [type(record) for record in write.batch.records] == [RawRecord, RawRecord]
    assert (list(write.batch.sizes), write.batch.size_bytes) == ([1, 3], 4)


def test_a_configuration_is_not_logged_with_the_records_it_came_with() -> None:
    write = parse_write(body_of({"data": 1}, config={"ttl_ms": 5, "unknown": "x" * 100}))
    assert write.batch.body == b'{"records":[{"data":1}]}'
    assert write.config == {"ttl_ms": 5, "unknown": "x" * 100}


def test_blanks_around_records_are_not_kept_if_they_are_many() -> None:
    body = b'{"records":[%b{"data":1}]}' % (b" " * 100_000)
    batch = parse_write(body).batch
    assert batch.body == b'{"records":[{"data":1}]}'
    assert batch.size_bytes == 1


def test_records_from_elsewhere_come_back_as_they_were() -> None:
    plain = make_record(b'{ "a" : 1 }', b'{ "m" : 2 }', 'say "ä"', "n")
    routed = Routed(Raw(b"[ 1 ]"), tag="t", hops=3)
    for records in ([plain], [routed], [plain, routed, make_record(b"null"), Routed(Raw(b"2"))]):
        batch = Batch.of(records)
        again = Batch.decoded(batch.body)
        assert again == batch
        assert (again.sizes, again.size_bytes) == (batch.sizes, batch.size_bytes)
        assert [type(record) for record in again.records] == [type(record) for record in records]


def test_batches_of_other_records_differ() -> None:
    assert Batch.of([make_record(b"1")]) != Batch.of([make_record(b"2")])
    assert Batch.of([make_record(b"1")]) != Batch.of([Routed(Raw(b"1"))])
    assert repr(Batch.of([make_record(b"12")])) == "Batch(1 records, 2 bytes)"


def test_the_node_of_a_batch_is_checked_though_every_record_has_its_own() -> None:
    with pytest.raises(InvalidRequest, match="node"):
        parse_write(body_of({"data": 1, "node": "n"}, node="n" * 129))
