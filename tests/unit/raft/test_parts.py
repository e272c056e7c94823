"""Progress, messages, restoring and the size of the package."""

from __future__ import annotations

import ast
from pathlib import Path
from statistics import median

import pytest

import penstock.raft
from penstock.kernel.errors import Corrupt
from penstock.log.store import HardState, LogEntry
from penstock.raft import messages as m
from penstock.raft.core import Core
from penstock.raft.members import FORGOTTEN, MARK, Members, decode_members, encode_members
from penstock.raft.progress import Limits, Progress, Stage
from penstock.raft.ready import Restored
from tests.unit.raft.group import entries, member, synced, told

MESSAGES = [
    m.Append(2, 1, 3, 4, 2, 1, (LogEntry(5, 3, b"x"),)),
    m.AppendAnswer(1, 2, 3, 4, refused=True, hint_index=2, hint_term=1),
    m.Heartbeat(2, 1, 3, 4, 5),
    m.HeartbeatAnswer(1, 2, 3, 5),
    m.Committed(2, 1, 3, 4),
    m.VoteRequest(2, 1, 3, 4, 2, pre=True),
    m.VoteAnswer(1, 2, 3, True),
    m.InstallSnapshot(2, 1, 3, m.Mark(4, 2, Members((1, 2), (3,)))),
    m.TimeoutNow(2, 1, 3),
    m.ReadRequest(2, 1, 3, 9),
    m.ReadAnswer(1, 2, 3, 9, 4),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_its_bytes(message):
    assert m.decode(m.encode(message)) == message


def test_every_kind_of_message_is_tried():
    assert {type(message) for message in MESSAGES} == set(m.Message.__subclasses__())


@pytest.mark.parametrize("letter", [b"", b"\xff", b"\x92\x01", m.encode(MESSAGES[0])[:-1]])
def test_a_malformed_message_says_so(letter):
    with pytest.raises(Corrupt, match="malformed message"):
        m.decode(letter)


def test_a_message_of_another_version_is_refused_with_the_version():
    with pytest.raises(Corrupt, match="version 2"):
        m.decode(b"\x92\x02" + m.encode(MESSAGES[0])[2:])


def test_malformed_members_in_the_log_say_so():
    with pytest.raises(Corrupt, match="malformed members"):
        decode_members(MARK + b"\xff")


def test_a_probe_is_one_message_at_a_time():
    progress = Progress(5, Limits())
    assert progress.may_send(0)
    progress.sent(5, 10, 0)
    assert not progress.may_send(0)
    assert progress.next == 5


def test_a_confirmed_probe_replicates_ahead():
    progress = Progress(5, Limits())
    progress.sent(5, 10, 0)
    assert progress.confirmed(5, 0)
    progress.sent(7, 10, 0)
    assert (progress.stage, progress.match, progress.next) == (Stage.REPLICATE, 5, 8)
    assert progress.in_flight == (1, 10)


def test_an_old_refusal_changes_nothing():
    progress = Progress(5, Limits())
    progress.confirmed(4, 0)
    assert not progress.refused(3, 1)
    assert progress.stage is Stage.REPLICATE
    progress.probe(8)
    assert not progress.refused(3, 1)
    assert progress.next == 8


def replicating(**limits: int) -> Progress:
    progress = Progress(1, Limits(**limits))
    progress.confirmed(0, 0)
    return progress


@pytest.mark.parametrize(("messages", "may"), [(3, True), (4, False)])
def test_the_window_of_messages(messages, may):
    progress = replicating(inflight_messages=4)
    for index in range(1, messages + 1):
        progress.sent(index, 1, 0)
    assert progress.may_send(0) is may


@pytest.mark.parametrize(("size", "may"), [(99, True), (100, False)])
def test_the_window_of_bytes(size, may):
    progress = replicating(inflight_bytes=100)
    progress.sent(1, size, 0)
    assert progress.may_send(0) is may


@pytest.mark.parametrize(("ticks", "window"), [(2, 100), (3, 50)])
def test_an_answer_that_takes_more_than_two_ticks_halves_the_window(ticks, window):
    progress = replicating(inflight_bytes=100, inflight_bytes_min=10)
    progress.sent(1, 10, 0)
    progress.confirmed(1, ticks)
    assert progress.window_bytes == window


def test_the_window_never_falls_below_its_minimum():
    progress = replicating(inflight_bytes=100, inflight_bytes_min=40)
    for index in range(1, 5):
        progress.sent(index, 10, 0)
        progress.confirmed(index, 9)
    assert progress.window_bytes == 40


def test_a_full_window_that_is_answered_in_time_grows_to_its_maximum():
    progress = replicating(inflight_bytes=100, inflight_bytes_min=40, inflight_bytes_max=170)
    for index in range(1, 4):
        progress.sent(index, 200, 0)
        assert not progress.may_send(0)
        progress.confirmed(index, 1)
    assert progress.window_bytes == 170


def test_a_window_that_was_not_full_does_not_grow():
    progress = replicating(inflight_bytes=100)
    progress.sent(1, 50, 0)
    progress.may_send(0)
    progress.confirmed(1, 1)
    assert progress.window_bytes == 100


def test_a_saturated_follower_is_paused_until_its_time_is_over():
    progress = replicating(saturated_ticks=10)
    progress.saturated(3, 5)
    assert progress.match == 3
    assert not progress.may_send(14)
    assert progress.may_send(15)


def test_a_member_starts_with_a_log_that_is_longer_than_memory_holds():
    core = Core(
        1,
        Restored(
            mark=m.Mark(6, 2, Members((1, 2, 3))),
            runs=((2, 1), (5, 2)),
            entries=entries(2, 3, first=6),
        ),
        draw=lambda low, _: low,
        began=lambda term: b"",
    )
    assert [core.log.term_at(i) for i in range(1, 9)] == [-1, 1, 1, 1, 2, 2, 3, -1]
    assert (core.commit, core.applied, core.log.synced) == (6, 6, 7)
    assert [e.index for e in told(core, m.Heartbeat(1, 2, 3, 7)).apply] == [7]


def test_entries_are_applied_when_they_are_synced_here():
    core = member()
    ready = told(core, m.Append(1, 2, 1, 0, 0, 1, tuple(entries(1))))
    assert core.commit == 1
    assert not ready.apply
    core.persisted(ready.written)
    assert [entry.index for entry in core.ready().apply] == [1]


SHELLS = ("group.py", "heartbeats.py", "journal.py")
SOURCES = [
    path
    for path in sorted(Path(penstock.raft.__file__).parent.glob("*.py"))
    if path.name not in SHELLS
]


def test_the_package_is_small_enough_to_be_read():
    assert sum(len(path.read_text().splitlines()) for path in SOURCES) <= 1_600


def test_its_functions_are_short():
    lengths = [
        node.end_lineno - node.lineno + 1
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.end_lineno
    ]
    assert median(lengths) <= 12
    assert max(lengths) <= 60


def test_a_log_whose_members_were_forgotten_has_those_who_found_it() -> None:
    """As in a copy of a cluster's directory: the members of that cluster are in its log."""
    log = [
        LogEntry(1, 1, encode_members(Members((1, 2, 3)))),
        LogEntry(2, 1, b"x"),
        LogEntry(3, 2, encode_members(FORGOTTEN)),
        LogEntry(4, 2, b"y"),
    ]
    founders = Members((77,))
    restored = Restored(hard=HardState(2, 1), entries=log, founders=founders)
    core = Core(77, restored, draw=lambda low, _: low, began=lambda _: b"began")
    assert core.is_alone
    assert core.members_at(2) == Members((1, 2, 3))
    core.stand()
    synced(core)
    assert core.is_serving
    joined = Core(
        78, Restored(hard=HardState(2, 0), entries=log), draw=lambda low, _: low,
        began=lambda _: b"began",
    )  # fmt: skip
    assert joined.members == Members(())
