"""`penstock topic` on a terminal: tables and lines for people."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from penstock.cli import main
from tests.unit.client.scripted import (
    HANG,
    STREAM_HEAD,
    WRITTEN,
    answered,
    chunk,
    failed,
    frame,
    in_turn,
    scripted,
)

ROW = {
    "topic": "meters", "head_seq": 1_234, "earliest_seq": 35, "count": 1_200, "bytes": 65_536,
    "durable": False, "effective_priority": 3,
}  # fmt: skip
CONFIG = {
    "type": "queue", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old",
    "durable": False, "durability": "disk", "priority": None, "auto_priority": True,
    "auto_create": True, "idempotency_window_ms": 120_000, "dedupe_node": True, "lease_ms": 30_000,
    "claim_jitter_ms": 0, "max_deliveries": 0, "dead_letter": None, "leases_durable": False,
}  # fmt: skip
STATE = ROW | {
    "type": "queue", "next_seq": 1_235, "config": CONFIG, "last_write_ts": 1_700_000_000_123,
    "last_read_ts": None, "queue": {"ready": 5, "in_flight": 2, "dead_lettered": 1},
}  # fmt: skip
GAP = {
    "gap_from": 1, "gap_to": 4, "reason": "cap", "missed_estimate": 4, "earliest_seq": 5,
    "head_seq": 6,
}  # fmt: skip
RECORDS = [
    {"$seq": 5, "$ts": 1_700_000_000_123, "$tag": "t", "data": {"a": "[b]x[/b]"}},
    {"$seq": 6, "$ts": 1_700_000_000_123, "data": None},
]
PAGE = {
    "topic": "a", "records": RECORDS, "next_from_seq": 6, "head_seq": 6, "earliest_seq": 5,
    "caught_up": True, "tombstone": GAP, "lag": 0,
}  # fmt: skip


def run(answer, *words, terminal=True, code=0, stdin=None):
    environ = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"} if terminal else {}
    with scripted(answer) as server:
        words = ("topic", "--url", server.url, "--timeout-s", "20", *words)
        result = CliRunner(env=environ).invoke(main, words, input=stdin)
    assert result.exit_code == code, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_topics_are_a_table():
    text = run(in_turn(answered(200, {"topics": [ROW]})), "list")
    assert text.split()[:8] == [
        "topic",
        "records",
        "size",
        "first",
        "seq",
        "head",
        "seq",
        "priority",
    ]
    assert text.splitlines()[1].split() == ["meters", "1,200", "64", "KiB", "35", "1234", "3"]
    assert run(in_turn(answered(200, {"topics": []})), "list").strip() == "no topics"


def test_a_topic_is_shown_with_its_queue_and_its_options():
    text = run(in_turn(answered(200, STATE)), "show", "meters")
    assert "5 ready, 2 in flight, 1 dead-lettered" in text
    assert re.search(r"last read +never", text)
    assert re.search(r"lease_ms +30000", text)


def test_records_are_lines_with_their_gap_before_them():
    first, second, third = run(in_turn(answered(200, PAGE)), "read", "a").splitlines()
    assert first == "a: seqs 1 to 4 are gone (cap)"
    assert re.fullmatch(
        r' +5 \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.123 t \{"a": "\[b\]x\[/b\]"\}', second
    )
    assert third.endswith(" null")


def test_a_pipe_and_the_json_flag_get_lines_of_json():
    lines = [
        '{"tombstone":{"topic":"a","gap_from":1,"gap_to":4,"reason":"cap"}}',
        '{"$seq":5,"$ts":1700000000123,"$tag":"t","data":{"a": "[b]x[/b]"}}',
        '{"$seq":6,"$ts":1700000000123,"data":null}',
    ]
    piped = run(in_turn(answered(200, PAGE)), "read", "a", terminal=False)
    asked = run(in_turn(answered(200, PAGE)), "read", "a", "--json")
    assert piped.splitlines() == asked.splitlines() == lines


def test_a_write_says_what_it_did():
    assert run(in_turn(answered(200, WRITTEN)), "write", "a", "1") == "wrote 1 record as seq 1\n"
    many = WRITTEN | {"count": 3, "first_seq": 7, "last_seq": 9, "deduped": True}
    assert run(in_turn(answered(200, many)), "write", "a", "1", "2", "3") == (
        "wrote 3 records as seqs 7 to 9 (it had landed before)\n"
    )
    text = run(in_turn(answered(200, WRITTEN)), "write", "a", stdin="1\n\n")
    assert text == "wrote 1 record, the last as seq 1\n"
    assert run(in_turn(answered(200, WRITTEN)), "write", "a", stdin="") == "wrote 0 records\n"


def test_a_bad_line_is_named_and_those_before_it_land():
    answers = in_turn(answered(200, WRITTEN))
    text = run(answers, "write", "a", stdin="1\nnot json\n2\n", code=2)
    assert "expected JSON text, found b'not json'" in text


def test_deletes_say_what_is_gone():
    gone = {"topic": "a", "deleted": True, "routers_removed": ["r1", "r2"]}
    assert run(in_turn(answered(200, gone)), "delete", "a") == "deleted a, and with it r1, r2\n"
    none = {"topic": "a", "deleted": False, "routers_removed": []}
    assert run(in_turn(answered(200, none)), "delete", "a") == "there is no topic a\n"
    some = {"topic": "a", "deleted": 2, "earliest_seq": 3, "head_seq": 9, "count": 7, "bytes": 70}
    text = run(in_turn(answered(200, some)), "delete", "a", "--before-seq", "3")
    assert text == "deleted 2 records, 7 left\n"


def test_following_ends_when_every_topic_is_gone():
    created = answered(200, {"wid": "w", "topics": {"a": {"from_seq": 0}, "b": {"from_seq": 0}}})
    batch = {"topic": "a", "from_seq": 4, "to_seq": 6, "head_seq": 6, "records": RECORDS}
    frames = [
        frame("tombstone", GAP | {"topic": "a"}),
        frame("record", batch),
        frame("topic-deleted", {"topic": "a"}),
        frame("topic-deleted", {"topic": "b"}),
    ]
    stream = [STREAM_HEAD, chunk(b"".join(frames)), b"0\r\n\r\n", HANG]
    text = run(lambda seen: created if seen.method == "POST" else stream, "follow", "a", "b")
    lines = text.splitlines()
    assert lines[0] == "a: seqs 1 to 4 are gone (cap)"
    assert " a t {" in lines[1]
    assert lines[3:] == ["a was deleted", "b was deleted"]


@pytest.mark.parametrize("words", [("read", "a"), ("show", "a"), ("follow", "a")])
def test_an_error_is_one_line(words):
    text = run(in_turn(failed(404, "topic_not_found", topic="a")), *words, code=1)
    assert text == "Error: it is topic_not_found\n"
