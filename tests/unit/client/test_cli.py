"""`penstock topic` on a terminal: tables and lines for people."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from penstock.cli import main
from tests.unit.client.scripted import (
    CUT,
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


def run(answer, *words, code=0, **options):
    return result_of(answer, *words, code=code, **options)[0]


def result_of(answer, *words, terminal=True, code=0, stdin=None):
    """All that is printed, and what of it goes to standard output."""
    environ = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"} if terminal else {}
    with scripted(answer) as server:
        words = ("topic", "--url", server.url, "--timeout-s", "20", *words)
        result = CliRunner(env=environ).invoke(main, words, input=stdin)
    assert result.exit_code == code, result.output
    return [re.sub(r"\x1b\[[0-9;]*m", "", text) for text in (result.output, result.stdout)]


def test_topics_are_a_table():
    text = run(in_turn(answered(200, {"topics": [ROW]})), "list")
    heads = "topic in/s out/s watchers behind records size head seq"
    assert text.splitlines()[0].split() == heads.split()
    assert text.splitlines()[1].split() == ["meters", *"0000", "1,200", "64", "KiB", "1234"]
    assert run(in_turn(answered(200, {"topics": []})), "list").strip() == "no topics"


def test_a_topic_is_shown_with_its_queue_and_its_options():
    text = run(in_turn(answered(200, STATE)), "show", "meters")
    assert "5 ready, 2 in flight, 1 dead-lettered" in text
    assert re.search(r"last read +never", text)
    assert re.search(r"lease_ms +30000", text)
    assert re.search(r"auto_create +yes", text)
    assert not re.search(r"^durable ", text, re.MULTILINE)
    assert re.search(r"dead_letter +-", text)
    assert re.search(r"seqs +35 to 1234", text)
    none = STATE | {"count": 0, "earliest_seq": 1, "head_seq": 0}
    assert re.search(r"seqs +empty", run(in_turn(answered(200, none)), "show", "meters"))


@pytest.mark.parametrize(
    ("durability", "said"),
    [
        ("ephemeral", "in memory only"),
        ("memory", "without a promise"),
        ("disk", "survives a crash of the server from the answer on, one of the machine within"),
        ("fsync", "survives a crash of the machine from the answer on"),
        ("platinum", "platinum"),  # of a server that is newer than this command
    ],
)
def test_a_topic_is_shown_with_what_it_survives_and_how_soon(durability, said):
    config = STATE["config"] | {"durability": durability, "durable": durability == "fsync"}
    text = run(in_turn(answered(200, STATE | {"config": config})), "show", "meters")
    assert re.search(rf"durability +{durability}", text)
    assert said in " ".join(text.split())


def test_records_are_lines_with_their_gap_before_them():
    first, second, third = run(in_turn(answered(200, PAGE)), "read", "a").splitlines()
    assert first == "a: seqs 1 to 4 are gone (cap)"
    assert re.fullmatch(
        r' +5 \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.123 t \{"a": "\[b\]x\[/b\]"\}', second
    )
    assert third.endswith(" null")


def test_a_pipe_and_the_json_flag_get_lines_of_json_and_nothing_else_among_them():
    lines = [
        '{"$seq":5,"$ts":1700000000123,"$tag":"t","data":{"a": "[b]x[/b]"}}',
        '{"$seq":6,"$ts":1700000000123,"data":null}',
    ]
    for words, terminal in (("read", "a"), False), (("read", "a", "--json"), True):
        both, out = result_of(in_turn(answered(200, PAGE)), *words, terminal=terminal)
        assert out.splitlines() == lines
        assert "a: seqs 1 to 4 are gone (cap)\n" in both


def test_a_seq_beyond_the_head_is_named():
    gap = GAP | {"gap_to": 6, "reason": "recreated", "earliest_seq": 1}
    page = in_turn(answered(200, PAGE | {"tombstone": gap}))
    text = run(page, "read", "a", "--from-seq", "1000000")
    assert text.splitlines()[0] == "a: seq 1000000 is beyond the head 6; beginning again"


def test_a_write_says_what_it_did():
    assert run(in_turn(answered(200, WRITTEN)), "write", "a", "1") == "wrote 1 record as seq 1\n"
    many = WRITTEN | {"count": 3, "first_seq": 7, "last_seq": 9, "deduped": True}
    assert run(in_turn(answered(200, many)), "write", "a", "1", "2", "3") == (
        "wrote 3 records as seqs 7 to 9 (it had landed before)\n"
    )
    text = run(in_turn(answered(200, WRITTEN)), "write", "a", stdin="1\n\n")
    assert text == "wrote 1 record, the last as seq 1\n"
    assert run(in_turn(answered(200, WRITTEN)), "write", "a", stdin="") == "wrote 0 records\n"


@pytest.mark.parametrize("words", [("1",), ("-",)])
def test_an_empty_key_is_refused(words):
    text = run(in_turn([]), "write", "a", *words, "--key", "", stdin="1\n", code=2)
    assert "--key" in text
    assert "an idempotency key cannot be empty" in text


@pytest.mark.parametrize("bad", [b"not json", b'"caf\xe9"'])
def test_a_bad_line_is_named_and_those_before_it_land(bad):
    lines = b"1\n\n" + bad + b"\n2\n"
    text = run(in_turn(answered(200, WRITTEN)), "write", "a", stdin=lines, code=2)
    assert "line 3: bytes must be JSON text" in text
    assert repr(bad) in text
    assert text.endswith("; 1 record before it was written, the last as seq 1\n")
    text = run(in_turn(answered(200, WRITTEN)), "write", "a", stdin=bad + b"\n1\n", code=2)
    assert text.endswith("; nothing before it was written\n")
    text = run(in_turn([]), "write", "a", "--key", "k", stdin=lines, code=2)
    assert text.endswith("; nothing was written\n")


def test_a_refusal_in_the_middle_says_what_had_landed():
    first = WRITTEN | {"count": 1_000, "last_seq": 1_000}
    answers = in_turn(answered(200, first), failed(422, "topic_full"))
    text = run(answers, "write", "a", stdin="1\n" * 1_500, code=1)
    assert text == (
        "Error: it is topic_full; 1,000 records before it were written, the last as seq 1000\n"
    )


def test_deletes_say_what_is_gone():
    gone = {"topic": "a", "deleted": True, "routers_removed": ["r1", "r2"]}
    assert run(in_turn(answered(200, gone)), "delete", "a") == "deleted a, and with it r1, r2\n"
    none = {"topic": "a", "deleted": False, "routers_removed": []}
    text = run(in_turn(answered(200, none)), "delete", "a", code=1)
    assert text == "Error: there is no topic a\n"
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


def test_a_call_that_is_tried_again_says_so_once():
    text = run(in_turn([CUT], [CUT], answered(200, {"topics": []})), "list")
    first, *rest = text.splitlines()
    assert first.endswith("closed the connection before its answer was complete; trying again")
    assert rest == ["the server is back", "no topics"]


def test_following_says_when_the_server_is_away_and_when_it_is_back():
    created = answered(200, {"wid": "w", "topics": {"a": {"from_seq": 0}}})
    streams = [
        [CUT],
        failed(503, "not_ready"),
        [STREAM_HEAD, chunk(frame("topic-deleted", {"topic": "a"})), b"0\r\n\r\n", HANG],
    ]
    text = run(lambda seen: created if seen.method == "POST" else streams.pop(0), "follow", "a")
    first, *rest = text.splitlines()
    assert first.endswith("closed the connection before its answer was complete; trying again")
    assert rest == ["the server is back", "a was deleted"]


def test_where_the_server_is_may_stand_behind_the_command():
    with scripted(in_turn(answered(200, {"topics": []}))) as server:
        words = ["topic", "--url", "http://127.0.0.1:9", "list", "--url", server.url]
        result = CliRunner().invoke(main, [*words, "--api-key", "t", "--timeout-s", "20"])
        assert result.exit_code == 0, result.output
        assert server.seen[0].headers["authorization"] == "Bearer t"


def test_a_topic_is_created_with_its_settings():
    put = {"topic": "jobs", "created": True, "config": CONFIG | {"durability": "fsync"}}
    seen = []

    def answer(request):
        seen.append((request.method, request.path, request.json()))
        return answered(201, put)

    words = ("--type", "queue", "--durability", "fsync", "--cap-bytes", "64 KiB", "--priority", "2")
    text = run(answer, "create", "jobs", *words, "--dead-letter", "jobs.dead")
    assert text == "created jobs (queue, durability fsync)\n"
    body = {"type": "queue", "durability": "fsync", "cap_bytes": 65_536, "priority": 2}
    assert seen == [("PUT", "/v0/topics/jobs", body | {"dead_letter": "jobs.dead"})]
    text = run(answer, "create", "jobs", "--cap-bytes", "much", code=2)
    assert "is not a size: write '64 KiB'" in text


def test_control_characters_of_others_are_spelt_out_on_a_terminal():
    record = {"$seq": 5, "$ts": 1, "$tag": "t\x1b[2J", "data": "x\x9b31m\u202e"}
    page = answered(200, json.dumps(PAGE | {"records": [record]}, ensure_ascii=False).encode())
    text = run(in_turn(page), "read", "a").splitlines()[1]
    assert "t\\u001b[2J" in text
    assert text.endswith('"x\\u009b31m\\u202e"')


def test_a_write_whose_answer_is_lost_is_not_said_to_be_none():
    with scripted(in_turn([CUT])) as server:
        words = ["topic", "write", "a", "--url", server.url, "--timeout-s", "0.2"]
        result = CliRunner().invoke(main, words, input="1\n")
    assert result.exit_code == 3
    assert "Error: the last records may or may not have been written: http" in result.output
    assert result.output.endswith("; nothing before it was written\n")


def test_a_write_whose_answer_is_lost_says_how_to_find_out():
    words = ["write", "a", "1", "--key", "k7", "--timeout-s", "0.2"]
    text = run(in_turn([CUT]), *words, code=3).splitlines()[-1]
    assert text.startswith("Error: this may or may not have been written; the same again with ")
    assert "--key k7 finds out" in text
    assert text.endswith("closed the connection before its answer was complete")


@pytest.mark.parametrize("words", [("create", "a"), ("delete", "a", "--match", "t")])
def test_any_change_whose_answer_is_lost_has_an_exit_code_of_its_own(words):
    text = run(in_turn([CUT]), *words, "--timeout-s", "0.2", code=3)
    assert "may or may not have been done" in text


def test_a_write_that_is_refused_was_not_done():
    refusal = failed(429, "throttled", "Retry-After: 9")
    text = run(in_turn(refusal), "write", "a", "1", "--timeout-s", "0.2", code=1)
    assert text == "Error: it is throttled\n"
