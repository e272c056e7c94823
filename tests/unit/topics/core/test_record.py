"""Names, records and their limits."""

from __future__ import annotations

import pytest

from penstock.protocol.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from penstock.protocol.limits import TopicLimits
from penstock.protocol.values import check_router_name, check_text, check_topic_name
from penstock.topics.core.batch import check_batch
from penstock.topics.core.record import (
    RawRecord,
    Routed,
    depth_of,
    hops_of,
    make_record,
    size_of,
    splice_meta,
    without_members,
)

LIMITS = TopicLimits()


def check(records: list[RawRecord], limits: TopicLimits = LIMITS) -> None:
    check_batch(records, [size_of(record) for record in records], limits)


@pytest.mark.parametrize("name", ["a", "0", "A.b_c:d-e", "x" * 255])
def test_a_topic_name_begins_with_a_letter_or_digit_and_has_up_to_255_characters(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize("name", ["", ".a", "-a", "a b", "a/b", "ä", "a\n", "x" * 256, "a>b", 5])
def test_any_other_name_is_refused_where_something_would_be_created(name: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_topic_name(name)
    assert (refused.value.code, refused.value.status) == ("invalid_request", 400)


def test_a_router_name_may_have_an_arrow() -> None:
    assert check_router_name("a->b") == "a->b"
    with pytest.raises(InvalidRequest):
        check_router_name(">a")


@pytest.mark.parametrize(
    ("data", "size_bytes"),
    [
        (b"null", 4),
        (b'{"a":1}', 7),
        (b'{ "a" : 1 }\n', 7),
        (b'"a b"', 5),
        (b'["\\" x", 1]', 10),
    ],
)
def test_size_counts_compact_json_and_the_payload_stays_as_it_was(
    data: bytes, size_bytes: int
) -> None:
    record = make_record(data, b"{ }")
    assert size_of(record) == size_bytes + 2
    assert bytes(record.data) == data


def test_a_batch_has_between_one_record_and_its_limit() -> None:
    with pytest.raises(InvalidRequest):
        check([])
    record = make_record(b"1")
    check([record] * 10_000)
    with pytest.raises(BatchTooLarge):
        check([record] * 10_001)


def test_data_and_meta_together_have_a_limit() -> None:
    limits = TopicLimits(record_bytes_max=10)
    check([make_record(b"12345678", b"{}")], limits)
    with pytest.raises(RecordTooLarge):
        check([make_record(b"123456789", b"{}")], limits)


def test_tag_and_node_are_limited_in_bytes_of_utf8() -> None:
    check([make_record(b"1", tag="ä" * 128, node="x" * 128)])
    for record in (make_record(b"1", tag="ä" * 129), make_record(b"1", node="x" * 129)):
        with pytest.raises(InvalidRequest):
            check([record])


def test_meta_is_an_object_of_at_most_64_keys_and_16_kib() -> None:
    keys = [b'"k%d":0' % number for number in range(65)]
    check([make_record(b"1", b"{" + b",".join(keys[:64]) + b"}")])
    check([make_record(b"1", b'  {"a":[' + b"0," * 100 + b'{"b":":::"}]}')])
    bad = (b"[1]", b'"{"', b"{" + b",".join(keys) + b"}", b'{"a":"%b"}' % (b"x" * 16_384))
    for meta in bad:
        with pytest.raises(InvalidRequest):
            check([make_record(b"1", meta)])


def test_members_are_added_to_meta_without_touching_the_others() -> None:
    assert splice_meta(None, b'"a":1') == b'{"a":1}'
    assert splice_meta(b" { } ", b'"a":1') == b'{ "a":1}'
    assert splice_meta(b'{"b": [2]}', b'"a":1') == b'{"b": [2],"a":1}'


def test_limits_below_one_are_refused_where_they_do_not_mean_off() -> None:
    assert TopicLimits(total_bytes_max=0, topics_max=0).topics_max == 0
    with pytest.raises(InvalidRequest):
        TopicLimits(read_records=0)


def test_a_key_counts_once_however_long_the_number_behind_it_is() -> None:
    number = b"1" * 10_000  # more digits than Python turns into a number
    check([make_record(b"1", b'{"a":%b,"b":"%b"}' % (number, b":" * 100))])


def test_a_text_that_is_no_whole_characters_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        check_text("tag", "\ud800", 100)


def test_members_are_taken_from_meta_by_the_start_of_their_keys() -> None:
    assert without_members(b'{"a": 1}', "$x") == b'{"a": 1}'
    assert without_members(b'{"$x1":1,"a": [ 2 ],"b$x":3}', "$x") == b'{"a":[ 2 ],"b$x":3}'


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        (b"1", 0),
        (b"[]", 1),
        (b'{"a":[{}],"b":[]}', 3),
        (b'"[[["', 0),
        (b'["\\"[","\\\\",[]]', 2),
        (b"[" * 300 + b"]" * 300, 300),
    ],
)
def test_depth_is_that_of_arrays_and_objects_and_not_of_brackets_in_texts(
    text: bytes, depth: int
) -> None:
    assert depth_of(text) == depth


def test_only_a_record_that_came_through_routers_has_hops() -> None:
    record = make_record(b"1")
    assert hops_of(record) == 0
    assert hops_of(Routed(record.data, hops=3)) == 3
