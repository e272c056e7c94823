"""Commits as they are sent: what is taken, what is refused, what counts as the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.commits.model import encode_commit, parse_commit, payload_hash
from penstock.commits.sessions import CommitAnswer
from penstock.commits.space import Space
from penstock.protocol.commits import Commit, CommitLimits, CommitRead, CommitWrite
from penstock.protocol.errors import InvalidRequest, RecordTooLarge


def parsed(**fields: Any) -> Commit:
    body = {"session": "s", "local_seq": 1, "writes": [{"entity": "e", "set": 1}], **fields}
    return parse_commit(json.dumps(body).encode())


def test_a_commit_comes_back_as_it_was_sent() -> None:
    commit = parsed(
        reads=[{"entity": "e", "seq": 3, "path": "/a", "shallow": True}],
        pending_reads=[],
        preconditions=[
            {"receipt_absent": "r"},
            {"origin_committed": {"session": "t", "local_seq": 4}},
        ],
        event_id="ev",
        writes=[
            {"entity": "e", "set": None},
            {"entity": "f", "patch": {"a": None}},
            {"entity": "g", "delete": True},
        ],
    )
    assert parse_commit(encode_commit(commit)) == commit


def test_the_same_payload_is_the_same_however_it_is_written() -> None:
    one = parse_commit(
        b'{"session":"s","local_seq":1,"writes":[{"entity":"e","set":{"a":1,"b":[2]}}]}'
    )
    other = parse_commit(
        b'{ "writes": [ {"set": {"b": [2], "a": 1}, "entity": "e", "delete": false} ],'
        b' "reads": [], "event_id": null, "local_seq": 1, "session": "s", "more": 0 }'
    )
    assert payload_hash(one) == payload_hash(other)


@pytest.mark.parametrize(
    "fields",
    [
        {"writes": [{"entity": "e", "set": 2}]},
        {"writes": [{"entity": "e", "patch": 1}]},
        {"reads": [{"entity": "e", "seq": 0}]},
        {"event_id": "x"},
        {"writes": [{"entity": "e", "set": 1.0}]},
    ],
)
def test_another_payload_is_another(fields: dict[str, Any]) -> None:
    assert payload_hash(parsed(**fields)) != payload_hash(parsed())


def test_limits_are_told_with_what_was_found() -> None:
    writes = tuple(CommitWrite(f"e{number}", set=1) for number in range(4))
    body = encode_commit(Commit("s", 1, writes, reads=(CommitRead("e", 1), CommitRead("f", 1))))
    parse_commit(body, CommitLimits(writes_max=4, reads_max=2))
    with pytest.raises(InvalidRequest, match="4 writes in a commit: at most 3"):
        parse_commit(body, CommitLimits(writes_max=3))
    with pytest.raises(InvalidRequest, match="2 reads in a commit: at most 1"):
        parse_commit(body, CommitLimits(reads_max=1))


def test_a_text_is_measured_in_its_bytes() -> None:
    with pytest.raises(InvalidRequest, match="session has 130 bytes: 1 to 128"):
        parsed(session="é" * 65)


def test_a_document_that_grows_over_its_limit_is_refused_and_nothing_is_changed() -> None:
    space = Space(document_bytes_max=40)
    first = Commit("s", 1, (CommitWrite("e", patch={"a": "x" * 20}),))
    landing = space.land(first, 1, 0, 0)
    space.stage(landing)
    space.apply(landing)
    with pytest.raises(RecordTooLarge, match="bytes: at most 40"):
        space.land(Commit("s", 2, (CommitWrite("e", patch={"b": "x" * 20}),)), 2, 0, 0)
    assert space.entities["e"].seq == 1
    space.replay(
        Commit("s", 2, (CommitWrite("e", patch={"b": "x" * 20}),)), CommitAnswer(2, 0, 0)
    )  # allowed
    assert space.entities["e"].seq == 2


def test_ids_are_listed_in_order_after_each_change() -> None:
    space = Space()
    for seq, name in enumerate(("m", "b", "z", "ba", "a"), 1):
        space.replay(Commit("s", seq, (CommitWrite(name, set=1),)), CommitAnswer(seq, 0, 0))
        list(space.ids("", ""))
    assert list(space.ids("", "")) == ["a", "b", "ba", "m", "z"]
    assert list(space.ids("b", "")) == ["b", "ba"]
    assert list(space.ids("b", "b")) == ["ba"]
    assert list(space.ids("", "m")) == ["z"]
    assert list(space.ids("b", "zz")) == []
