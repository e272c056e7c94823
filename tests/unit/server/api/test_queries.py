from __future__ import annotations

from base64 import b64encode

import pytest

from penstock.protocol.errors import (
    InvalidRequest,
    NotAcceptable,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from penstock.server.api.queries import (
    OBJECT_BYTES_MAX,
    Query,
    check_accepts_events,
    json_body,
    make_cursor,
    parse_cursor,
    wants_arrow,
)

JSON = {"content-type": "application/json"}
ARROW = "application/vnd.apache.arrow.stream"


@pytest.mark.parametrize(
    ("raw", "value"),
    [("a=true", True), ("a=1", True), ("a=false", False), ("a=0", False), ("a=maybe", None)],
)
def test_a_flag_that_cannot_be_read_is_the_default(raw, value):
    expected = [value, value] if value is not None else [True, False]
    assert [Query(raw).flag("a", True), Query(raw).flag("a", False)] == expected


@pytest.mark.parametrize("raw", ["a=x", "a=-1", "a=1.5", "a=", "", "a=99999999999999999999"])
def test_a_number_that_cannot_be_read_is_the_default(raw):
    assert Query(raw).number("a", 7) == 7


def test_a_number_is_anything_that_fits_64_bits():
    assert Query(f"n={2**64 - 1}").number("n", 7) == 2**64 - 1
    assert Query(f"n={2**64}").number("n", 7) == 7


def test_page_sizes_are_clamped():
    sizes = [Query(raw).page_size() for raw in ("", "page_size=0", "page_size=5000")]
    assert sizes == [100, 1, 1_000]


@pytest.mark.parametrize(
    "kind", ["application/json", " application/json; charset=utf-8", "Application/JSON"]
)
def test_json_is_declared_by_the_beginning_of_the_type(kind):
    assert json_body(b'{"a":1}', {"content-type": kind}) == b'{"a":1}'


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}])
def test_another_type_is_refused_before_the_body_is_read(headers):
    with pytest.raises(UnsupportedMediaType):
        json_body(b"not json", headers)


def test_an_empty_body_is_an_empty_object_only_where_it_may_be():
    assert json_body(b"", {}, may_be_empty=True) == b"{}"
    assert json_body(b"", JSON) == b""
    with pytest.raises(UnsupportedMediaType):
        json_body(b"{}", {}, may_be_empty=True)


def test_a_cursor_is_the_base64_of_the_last_name():
    assert make_cursor("jobs") == b64encode(b'{"after":"jobs"}').decode()
    assert parse_cursor(make_cursor("a:b")) == "a:b"


NESTED = b"[" * 2_000 + b"]" * 2_000


@pytest.mark.parametrize(
    "cursor",
    ["x", "!!", *(b64encode(raw).decode() for raw in (b"[]", b"{}", NESTED))],
)
def test_a_corrupt_cursor_is_refused(cursor):
    with pytest.raises(InvalidRequest):
        parse_cursor(cursor)


def test_a_stream_is_for_those_who_accept_it():
    for accept in ("text/event-stream", "*/*", "text/html, text/event-stream;q=0.5"):
        check_accepts_events({"accept": accept})
    check_accepts_events({})
    with pytest.raises(NotAcceptable):
        check_accepts_events({"accept": "application/json"})


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (ARROW, True),
        (f"{ARROW};compression=lz4", True),
        (f"application/json, {ARROW}", True),
        (f"application/json;q=0.5, {ARROW};compression=lz4;q=0.9", True),
        (f"{ARROW}; q=0.5, application/json; q=0", True),
        (f"{ARROW};q=0.5, */*", True),
        (f"{ARROW};q=often", True),
        (ARROW.title(), True),
        (f"application/json, {ARROW};q=0", False),
        (f"application/json, {ARROW} ; Q=0.000", False),
        (f"application/json, {ARROW};q=0.9", False),
        (f"{ARROW};q=0", False),
        (f"{ARROW}-file", False),
        ("application/json", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_arrow_is_for_those_who_name_it_and_do_not_like_json_better(accept, expected):
    assert wants_arrow({"accept": accept}) is expected


def test_a_body_that_becomes_objects_has_a_limit_of_its_own():
    blank = b" " * (OBJECT_BYTES_MAX - 2)
    assert len(json_body(b"{%b}" % blank, JSON)) == OBJECT_BYTES_MAX
    with pytest.raises(PayloadTooLarge) as refused:
        json_body(b"{ %b}" % blank, JSON)
    assert refused.value.status == 413
