from __future__ import annotations

from math import inf
from typing import Any

import pytest

from penstock.protocol.decoding import decode, decode_object
from penstock.protocol.errors import InvalidRequest
from penstock.protocol.requests import (
    AckBody,
    DiffBody,
    GateBody,
    RefreshBody,
    RouterBody,
    SourceBody,
    TableBody,
    WatchBody,
)
from penstock.protocol.values import U64_MAX


def test_unknown_fields_are_ignored_whatever_they_hold() -> None:
    found = decode(DiffBody, b'{"from_seq":7,"zz":1e400,"deep":[[[{"a":null}]]]}')
    assert found.from_seq == 7


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        (DiffBody, b'{"from_seq":"1"}', 'from_seq must be a whole number, not "1"'),
        (DiffBody, b'{"from_seq":-1}', "from_seq must be at least 0, not -1"),
        (DiffBody, b'{"limit":4294967296}', "limit must be at most 4294967295, not 4294967296"),
        (DiffBody, b'{"wait_ms":1.5}', "wait_ms must be a whole number, not 1.5"),
        (DiffBody, b'{"node":["a",5]}', "node[1] must be a string, not 5"),
        (DiffBody, b'{"include_tags":1}', "include_tags must be true or false, not 1"),
        (DiffBody, b'{"epoch":1e400}', "epoch is not valid: number out of range"),
        (DiffBody, b"[]", "the body must be an object, not an array"),
        (WatchBody, b'{"topics":{"t":{"from_seq":-1}}}', "topics[...].from_seq must be at least 0"),
        (
            WatchBody,
            b'{"consistency":"now"}',
            'consistency must be one of eventual, strong, not "now"',
        ),
        (RouterBody, b'{"source":"a"}', "dest is missing"),
        (
            RouterBody,
            b'{"source":"a","dest":"b","guarantee":"twice"}',
            'guarantee must be one of at_least_once, exactly_once, not "twice"',
        ),
        (GateBody, b'{"relation":""}', "relation must not be empty"),
        (RefreshBody, b'{"wait_ms":60001}', "wait_ms must be at most 60000, not 60001"),
        (
            TableBody,
            b'{"query":"SELECT 1","scedule":"1s"}',
            "'scedule' is not a field of this request: did you mean 'schedule'?",
        ),
        (
            SourceBody,
            b'{"schema":"a INT","zzz":1}',
            "'zzz' is not a field of this request: use key, schema, url",
        ),
        (WatchBody, b'{"prefixes":["%b"]}' % (b"a" * 256), "prefixes[0] must have at most 255"),
    ],
)
def test_an_error_names_the_field_and_what_it_must_be(kind: Any, body: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode(kind, body)
    assert refused.value.message.startswith(text)
    assert (refused.value.code, refused.value.status) == ("invalid_request", 400)


@pytest.mark.parametrize("body", [b"", b"{", b"nothing", b'{"node":"\xff"}', b'{"z":"\xff"}'])
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        decode(DiffBody, body)


def test_arrays_in_arrays_without_end_are_refused() -> None:
    for body in (b'{"z":%b}' % (b"[" * 100_000), b'{"tag":%b}' % (b"[" * 100_000)):
        with pytest.raises(InvalidRequest):
            decode(DiffBody, body)


def test_an_integer_has_64_bits_wherever_it_stands() -> None:
    assert decode(DiffBody, b'{"from_seq":%d}' % U64_MAX).from_seq == U64_MAX
    for kind, body in (
        (DiffBody, b'{"from_seq":%d}'),
        (AckBody, b'{"node":"n","seqs":[1,%d]}'),
        (WatchBody, b'{"topics":{"t":{"from_seq":%d}}}'),
    ):
        decode(kind, body % U64_MAX)
        with pytest.raises(InvalidRequest, match="must be at most 18446744073709551615"):
            decode(kind, body % (U64_MAX + 1))


def test_a_long_value_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode(DiffBody, b'{"from_seq":"%b"}' % (b"x" * 10_000))
    assert len(refused.value.message) < 200


def test_an_object_keeps_only_what_was_named_and_vast_numbers_are_infinite() -> None:
    assert decode_object(b'{"zz":1e400,"a":-1e400}') == {"zz": inf, "a": -inf}
    for body in (b"[1]", b"{", b"null", b'"x"', b'{"a":"\xff"}'):
        with pytest.raises(InvalidRequest):
            decode_object(body)
