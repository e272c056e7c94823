"""Records on their way out: what JSON does not have is refused, not changed."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan
from typing import Any

import msgspec
import pytest

from penstock.client.records import Record, decode_record, encode_record, encode_records
from penstock.client.space_calls import commit
from penstock.protocol.commits import Commit, CommitWrite
from penstock.protocol.errors import InvalidRequest


@dataclass
class Reading:
    kwh: float


class Typed(msgspec.Struct):
    kwh: float


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (nan, "nan"),
        (-inf, "-inf"),
        ({"a": [1, {"kwh": inf}]}, "inf at ['a'][1]['kwh']"),
        (Reading(nan), "nan at ['kwh']"),
        ([Typed(nan)], "nan at [0]['kwh']"),
        (Record({"kwh": nan}, tag="t"), "nan at ['data']['kwh']"),
        (Record(1, meta={"m": nan}), "nan at ['meta']['m']"),
        (Record(b"null", meta={"m": nan}), "nan at ['meta']['m']"),
        ({"big": 1 << 70, "kwh": nan}, "nan at ['kwh']"),
    ],
)
def test_a_number_that_json_does_not_have_is_refused_with_its_place(record: Any, found: str):
    with pytest.raises(InvalidRequest) as caught:
        encode_record(record)
    assert str(caught.value) == f"JSON has no number {found}: use None"


def test_a_batch_names_the_record():
    with pytest.raises(InvalidRequest, match=r"no number nan at \[1\]\['data'\]\['kwh'\]"):
        encode_records([{"kwh": 1.5}, {"kwh": nan}])


@pytest.mark.parametrize(
    "record",
    [
        None,
        {"a": None, "text": "null \u00cb", "b": [1e308, -0.0, None]},
        {"big": 1 << 70, "none": None},
        {"looks": b"\xcb\x7f\xf8".decode("latin-1"), "none": None, "raw": msgspec.Raw(b"null")},
        Record(b'{"a": null}', tag="t"),
    ],
)
def test_null_itself_is_written(record: Any):
    assert b"null" in encode_record(record)


@pytest.mark.parametrize(
    "write", [CommitWrite("m", set={"k": nan}), CommitWrite("m", patch={"k": nan})]
)
def test_documents_are_held_to_the_same(write: CommitWrite):
    with pytest.raises(InvalidRequest, match="no number nan"):
        commit("home", Commit(session="s", local_seq=1, writes=(write,)))


def test_text_that_is_not_utf_8_is_refused():
    with pytest.raises(InvalidRequest, match=r"must be JSON text: 'utf-8'.*caf.xe9"):
        encode_record(b'"caf\xe9"')
    assert encode_record('"café"'.encode()) == '{"data":"café"}'.encode()


def test_raw_json_is_checked_as_bytes_are():
    slip = msgspec.Raw(b'1},{"data":2')
    for records in ([slip], [Record(slip)], [b'1},{"data":2']):
        with pytest.raises(InvalidRequest, match="JSON text"):
            encode_records(records)
    assert encode_records([msgspec.Raw(b'{"a": 1}')]) == b'[{"data":{"a": 1}}]'


def test_a_record_that_was_encoded_can_be_sent_again():
    for record in (Record({"n": 1.5}, "tag", "node", {"m": None}), Record(None), Record("x")):
        encoded = encode_record(record)
        assert encode_record(decode_record(encoded)) == encoded
