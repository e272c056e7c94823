from __future__ import annotations

import json
from base64 import urlsafe_b64encode

import pytest

from penstock.server.push.sse import (
    deleted_data,
    event_id,
    frame,
    parse_event_id,
    record_data,
    tombstone_data,
    work_error,
)
from penstock.topics.core.read import DiffPage, LostSeqs
from penstock.topics.core.record import Found


def test_an_id_is_the_sorted_map_of_all_cursors_and_can_be_read_back():
    cursors = {"b": 7, "a": 12}
    assert event_id(cursors) == event_id({"a": 12, "b": 7})
    assert b"=" not in event_id(cursors)
    assert parse_event_id(event_id(cursors).decode()) == (cursors, {})


NESTED = urlsafe_b64encode(b"[" * 2_000 + b"]" * 2_000).decode()


@pytest.mark.parametrize("text", ["", "!", "bm90IGpzb24", "WzFd", "é", NESTED])
def test_an_id_that_cannot_be_read_says_nothing(text):
    assert parse_event_id(text) == ({}, {})


def test_places_that_are_no_seq_are_left_out():
    text = "eyJhIjotMSwiYiI6dHJ1ZSwiYyI6MX0"  # {"a":-1,"b":true,"c":1}
    assert parse_event_id(text) == ({"c": 1}, {})


def test_a_frame_has_its_fields_in_order_and_ends_with_a_blank_line():
    diff = DiffPage(Found((), (), ()), 2, 2, 1, None, 7, 2)
    data = record_data("jobs", b'{"$seq":1},{"$seq":2}', 0, diff)
    assert frame(b"X", b"record", data) == (
        b"id: X\nevent: record\n"
        b'data: {"topic":"jobs","from_seq":0,"head_seq":2,'
        b'"records":[{"$seq":1},{"$seq":2}],"to_seq":2,"epoch":7}\n\n'
    )


@pytest.mark.parametrize("line_break", [b"\n", b"\r", b"\r\n"])
def test_line_breaks_in_a_payload_do_not_break_the_frame(line_break):
    data = b'{"a":' + line_break + b"1}"
    lines = frame(b"X", b"record", data).split(b"\n")
    read = b"\n".join(line[6:] for line in lines if line.startswith(b"data: "))
    assert json.loads(read) == {"a": 1}
    assert b"\r" not in b"".join(lines)


def test_a_tombstone_event_tells_no_estimate_and_may_tell_another_reason():
    tombstone = LostSeqs(1, 4, "cap", 4, 5, 9)
    told = json.loads(tombstone_data("t", tombstone, 7, "from_seq_too_old"))
    assert told == {
        "topic": "t",
        "reason": "from_seq_too_old",
        "gap_from": 1,
        "gap_to": 4,
        "earliest_seq": 5,
        "head_seq": 9,
        "epoch": 7,
    }
    assert json.loads(tombstone_data("t", tombstone, 7))["reason"] == "cap"


def test_a_deleted_topic_has_no_head():
    assert deleted_data("t") == b'{"topic":"t","head_seq":0,"reason":"deleted"}'


def test_the_end_of_a_worker_has_no_id():
    assert work_error(409, "topic is no longer a queue", "q") == (
        b'event: error\ndata: {"code":409,"error":"topic is no longer a queue","topic":"q"}\n\n'
    )
