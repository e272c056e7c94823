"""Spaces in a partition: how they are made, what is decided on them, what comes back."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.commits.sessions import CommitAnswer
from penstock.protocol.commits import Commit, CommitRead, CommitWrite
from penstock.protocol.errors import (
    CommitConflict,
    IsASpace,
    NotASpace,
    RecordTooLarge,
    RefusedByRule,
    TopicFull,
)
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.batch import WriteRequest as PlainWrite
from penstock.topics.core.batch import parse_write
from penstock.topics.core.codec import decode_entries, encode_entries
from penstock.topics.core.entries import Created, SpaceCommitted
from penstock.topics.core.partition import DecidedChange, Partition
from penstock.topics.core.registry import Registry
from penstock.topics.core.router import RouterConfig


def commit(number: int, value: object = 1, session: str = "s", **fields: Any) -> Commit:
    return Commit(session, number, (CommitWrite("e", set=value),), **fields)


def land(partition: Partition, wanted: Commit) -> DecidedChange:
    decided = partition.decide_commit("home", wanted, 5)
    assert isinstance(decided, DecidedChange)
    partition.stage(decided)
    return decided


def plain(*values: object) -> PlainWrite:
    records = ",".join(f'{{"data":{value}}}' for value in values)
    return parse_write(f'{{"records":[{records}]}}'.encode())


def test_the_first_commit_makes_the_space_in_the_same_change() -> None:
    partition = Partition()
    change = land(partition, commit(1))
    assert [type(entry) for entry in change.to_log] == [Created, SpaceCommitted]
    second = land(partition, commit(2))
    assert [type(entry) for entry in second.to_log] == [SpaceCommitted]
    assert "home" not in partition.topics
    answers = [*partition.apply_all(change.entries), *partition.apply_all(second.entries)]
    seqs = [answer.seq for answer in answers if isinstance(answer, CommitAnswer)]
    assert seqs == [1, 2]
    assert partition.topics["home"].config.type == "space"


def test_replay_of_what_was_logged_gives_the_same_partition() -> None:
    partition, log = Partition(), []
    for number in range(1, 9):
        change = land(partition, commit(number, number, event_id=f"ev{number % 3}"))
        log.append(encode_entries(change.to_log))
        partition.apply_all(change.entries)
    again = Partition()
    for payload in log:
        again.apply_all(decode_entries(payload))
    assert again.state() == partition.state()
    assert Partition.restored(partition.state()).state() == partition.state()


def test_a_space_that_was_decided_and_never_staged_leaves_no_trace() -> None:
    partition = Partition()
    assert isinstance(
        partition.decide_commit("home", commit(1), 5), DecidedChange
    )  # and nobody stages it
    change = partition.decide_config("home", {"type": "space", "cap_records": 3}, 5)
    partition.stage(change)
    partition.apply_all(change.entries)
    assert partition.topics["home"].config.cap_records == 3
    assert partition.spaces["home"].topic is partition.topics["home"]
    partition.apply_all(land(partition, commit(1)).entries)
    assert partition.topics["home"].head_seq == 1


def test_abandoned_commits_free_their_seqs_and_their_space() -> None:
    partition = Partition()
    land(partition, commit(1))
    partition.abandon()
    assert not partition.spaces
    change = land(partition, commit(1))
    assert isinstance(change.entries[0], Created)
    partition.apply_all(change.entries)
    land(partition, commit(2))
    land(partition, commit(3))
    partition.abandon()
    last = land(partition, commit(2, "again"))
    assert isinstance(last.entries[-1], SpaceCommitted)
    assert last.entries[-1].seq == 2


def test_plain_records_and_commits_are_kept_apart() -> None:
    partition = Partition()
    partition.apply_all(land(partition, commit(1)).entries)
    with pytest.raises(IsASpace):
        partition.decide_write("home", plain(1), 5)
    change = partition.decide_write("log", plain(1), 5)
    assert isinstance(change, DecidedChange)
    partition.stage(change)
    with pytest.raises(NotASpace, match="is a log, not a space"):
        partition.decide_commit("log", commit(1), 5)
    partition.apply_all(change.entries)
    with pytest.raises(NotASpace, match="is a log, not a space"):
        partition.decide_commit("log", commit(1), 5)
    with pytest.raises(IsASpace):
        partition.decide_router(RouterConfig("r", "log", "home"), 5)
    with pytest.raises(IsASpace):
        partition.decide_dead_letters("home", plain(1).batch, 5)


def test_caps_of_a_topic_hold_for_its_commits() -> None:
    partition = Partition()
    body = {"type": "space", "cap_records": 2, "discard": "reject"}
    change = partition.decide_config("home", body, 5)
    partition.stage(change)
    partition.apply_all(change.entries)
    for number in (1, 2):
        partition.apply_all(land(partition, commit(number)).entries)
    with pytest.raises(TopicFull):
        partition.decide_commit("home", commit(3), 5)


def test_a_commit_that_is_too_large_as_a_record_is_refused() -> None:
    partition = Partition(Registry(TopicLimits(record_bytes_max=200)))
    writes = tuple(CommitWrite(f"e{number}", set="x" * 50) for number in range(3))
    with pytest.raises(RecordTooLarge, match="bytes as a record: at most 200"):
        partition.decide_commit("home", Commit("s", 1, writes), 5)
    assert not partition.topics


def test_a_rule_has_the_last_word() -> None:
    partition = Partition()
    partition.apply_all(land(partition, commit(1)).entries)

    def refuse(space: str, wanted: Commit) -> None:
        raise RefusedByRule(f"expected nobody in {space}, found {wanted.session}")

    with pytest.raises(CommitConflict):
        partition.decide_commit("home", commit(2, reads=(CommitRead("e", 0),)), 5, refuse)
    with pytest.raises(RefusedByRule, match="nobody in home, found s"):
        partition.decide_commit("home", commit(2, reads=(CommitRead("e", 1),)), 5, refuse)
    assert isinstance(partition.decide_commit("home", commit(1), 5, refuse), CommitAnswer)
