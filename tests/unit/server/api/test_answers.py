from __future__ import annotations

import json

import msgspec
import pytest

from penstock.kernel.errors import Busy, Corrupt, Rejected, Unknown
from penstock.log.store import DiskFull, Starved, StoreClosed
from penstock.protocol.answers import Written
from penstock.protocol.errors import (
    MethodNotAllowed,
    Replaying,
    ShuttingDown,
    Throttled,
    TopicFull,
    TopicNotFound,
)
from penstock.server.api.answers import (
    Flags,
    Numbers,
    Spent,
    data_body,
    spliced,
    written,
    written_new,
)
from penstock.server.api.errors import error_answer
from penstock.topics.engine.writers import LogFailed, LogFull, LogUncertain


def test_the_answer_to_the_usual_write_is_the_general_one():
    numbers, spent = Numbers(7, 7, 9, 1), Spent(1.25, 1.25, 0.25)
    general = written(b"jobs", numbers, Flags(), spent)
    assert written_new(b"jobs", 7, 7, 9, 1.25, 0.25) == general
    assert json.loads(general) == {
        "topic": "jobs",
        "first_seq": 7,
        "last_seq": 7,
        "seqs": [7],
        "head_seq": 9,
        "count": 1,
        "created": False,
        "deduped": False,
        "performance": {"server_total_ms": 1.25, "wal_append_ms": 1.25, "fsync_ms": 0.25},
    }


@pytest.mark.parametrize(
    ("first_seq", "last_seq"),
    [(1, 2), (998, 1_001), (999, 1_000), (1_000, 1_999), (7_990, 12_345), (999_999, 1_000_000)],
)
def test_the_seqs_of_a_batch_are_listed_across_thousands(first_seq, last_seq):
    numbers = Numbers(first_seq, last_seq, last_seq, last_seq - first_seq + 1)
    told = written_new(b"t", first_seq, last_seq, last_seq, 1.0, 0.0)
    assert json.loads(told)["seqs"] == [*range(first_seq, last_seq + 1)]
    assert told == written(b"t", numbers, Flags(), Spent(1.0, 1.0, 0.0))


def test_a_write_lists_its_seqs_unless_asked_not_to():
    numbers = Numbers(1, 3, 3, 3)
    told = json.loads(written(b"t", numbers, Flags(created=True), Spent(1.0, 1.0, 0.0)))
    assert told["seqs"] == [1, 2, 3]
    assert told["created"] is True
    short = json.loads(written(b"t", numbers, Flags(return_seqs=False), Spent(1.0)))
    assert "seqs" not in short


def test_a_deduped_write_tells_nothing_of_the_log():
    told = json.loads(written(b"t", Numbers(1, 1, 1, 1), Flags(deduped=True), Spent(1.0)))
    assert told["deduped"] is True
    assert list(told["performance"]) == ["server_total_ms"]


def test_ready_json_is_spliced_in_where_its_key_stands():
    body = spliced({"topic": "t", "records": None, "lag": 0}, "records", b'{"a": 1},2')
    assert body == b'{"topic":"t","records":[{"a": 1},2],"lag":0}'


def test_what_the_server_writes_is_compact():
    assert data_body({"a": [1, None]}, 0.5) == (
        b'{"a":[1,null],"performance":{"server_total_ms":0.5}}'
    )


@pytest.mark.parametrize(
    ("error", "status", "code", "detail"),
    [
        (TopicNotFound("t"), 404, "topic_not_found", {"topic": "t"}),
        (TopicFull("full", topic="t"), 422, "topic_full", {"topic": "t"}),
        (Throttled("cap", limit="max_topics"), 429, "throttled", {"limit": "max_topics"}),
        (Throttled("hot", retry_after_ms=1500), 429, "throttled", {"retry_after_ms": 1500}),
        (Busy("line is full"), 429, "throttled", {"retry_after_ms": 1000}),
        (Replaying(0.5), 503, "not_ready", {"replay_progress": 0.5}),
        (ShuttingDown(), 503, "shutting_down", None),
        (StoreClosed("closed"), 503, "shutting_down", None),
        (Rejected("odd"), 400, "invalid_request", None),
        (LogFailed("a sync failed"), 503, "not_ready", None),
        (Starved("no descriptor"), 503, "not_ready", None),
        (LogFull("no space"), 429, "throttled", {"limit": "disk", "retry_after_ms": 1_000}),
        (DiskFull("no space"), 429, "throttled", {"limit": "disk", "retry_after_ms": 1_000}),
        (Unknown("sync failed"), 504, "outcome_unknown", None),
        (LogUncertain("sync failed"), 504, "outcome_unknown", None),
        (Corrupt("bad bytes"), 500, "internal", None),
        (ValueError("secret"), 500, "internal", None),
    ],
)  # fmt: skip
def test_every_error_has_one_envelope(error, status, code, detail):
    answer = error_answer(error)
    told = json.loads(answer.body)["error"]
    assert (answer.status, told["code"], told.get("detail")) == (status, code, detail)
    outcome = {"outcome"} if status in (500, 504) else set()
    assert set(told) - {"detail"} == {"code", "message"} | outcome
    assert "secret" not in told["message"]
    assert (b"retry-after" in dict(answer.headers)) == (status in (429, 503))


def test_retry_after_is_in_whole_seconds_and_at_least_one():
    for wait_ms, seconds in ((None, b"1"), (1, b"1"), (1_000, b"1"), (1_001, b"2")):
        answer = error_answer(Throttled("hot", retry_after_ms=wait_ms))
        assert dict(answer.headers)[b"retry-after"] == seconds


def test_a_wrong_method_is_told_the_right_ones():
    answer = error_answer(MethodNotAllowed("PATCH", ["PUT", "GET"]))
    assert dict(answer.headers)[b"allow"] == b"GET, HEAD, PUT"
    answer = error_answer(MethodNotAllowed("PATCH", ["POST"]))
    assert dict(answer.headers)[b"allow"] == b"POST"


def test_what_is_formatted_for_speed_has_the_fields_of_its_struct():
    told = written_new(b"jobs", 7, 9, 9, 1.25, 0.25)
    assert set(json.loads(told)) == set(Written.__struct_encode_fields__)
    assert msgspec.json.decode(told, type=Written).seqs == [7, 8, 9]
    short = written(b"t", Numbers(1, 3, 3, 3), Flags(return_seqs=False), Spent(1.0))
    assert msgspec.json.decode(short, type=Written).seqs is None
