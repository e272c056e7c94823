"""The rules of the Raft core, one by one, by number and name (docs/internals/raft.md)."""

from __future__ import annotations

import pytest

from penstock.log.store import Damaged, HardState, LogEntry
from penstock.raft.core import Role
from penstock.raft.members import ADD_LEARNER, Change, Members
from penstock.raft.messages import (
    Append,
    AppendAnswer,
    Heartbeat,
    HeartbeatAnswer,
    InstallSnapshot,
    Mark,
    ReadRequest,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from penstock.raft.progress import Stage
from penstock.raft.ready import NotLeader, NotServing, TransferRefused, UncommittedFull
from tests.unit.raft.group import entries, member, more, play, synced, told

LED = ("members 1 2 3", "elect 1", "settle")


# 1: term and vote are synced before any answer that shows them leaves; one vote a term -----------


def test_rule_1_a_vote_waits_for_the_sync_of_term_and_vote():
    core = member()
    ready = told(core, VoteRequest(1, 2, 5, 0, 0))
    assert ready.hard == HardState(5, 2)
    assert ready.after == [VoteAnswer(2, 1, 5, True)]
    assert not ready.now


def test_rule_1_a_heartbeat_of_a_new_term_is_answered_after_the_sync():
    core = member()
    ready = told(core, Heartbeat(1, 2, 5, 0))
    assert ready.hard == HardState(5, 0)
    assert ready.after == [HeartbeatAnswer(2, 1, 5)]


def test_rule_1_a_heartbeat_of_a_synced_term_is_answered_at_once():
    core = member(term=5)
    assert told(core, Heartbeat(1, 2, 5, 0)).now == [HeartbeatAnswer(2, 1, 5)]


def test_rule_1_a_second_candidate_of_a_term_is_refused():
    core = member()
    told(core, VoteRequest(1, 2, 5, 0, 0))
    ready = told(core, VoteRequest(1, 3, 5, 0, 0))
    assert ready.after == [VoteAnswer(3, 1, 5, False)]


def test_rule_1_the_same_candidate_may_ask_again():
    core = member()
    told(core, VoteRequest(1, 2, 5, 0, 0))
    assert told(core, VoteRequest(1, 2, 5, 0, 0)).after == [VoteAnswer(2, 1, 5, True)]


def test_rule_1_a_vote_is_remembered_by_a_member_that_starts():
    core = member(term=5, vote=2)
    assert told(core, VoteRequest(1, 3, 5, 0, 0)).after == [VoteAnswer(3, 1, 5, False)]


def test_rule_1_a_candidate_counts_its_own_vote_when_it_is_synced():
    core = member(voters=(1,))
    for _ in range(10):
        core.tick()
    ready = core.ready()
    assert core.role is Role.CANDIDATE
    core.persisted(ready.written)
    assert core.role is Role.LEADER


# 2: an append names the entry before it; hints; only what differs is cut -------------------------


def test_rule_2_an_append_without_the_entry_before_it_is_refused_with_a_hint():
    core = member([1, 1, 2])
    ready = told(core, Append(1, 2, 4, 7, 4, 0, tuple(entries(4, first=8))))
    assert ready.after == [AppendAnswer(2, 1, 4, 7, refused=True, hint_index=3, hint_term=2)]
    assert not ready.entries


def test_rule_2_the_hint_passes_over_terms_that_the_leader_cannot_have():
    core = member([1, 1, 3, 3, 3])
    ready = told(core, Append(1, 2, 4, 5, 2, 0))
    assert ready.after[0].hint_index == 2


def test_rule_2_a_leader_finds_the_place_in_as_many_rounds_as_there_are_terms():
    script = play(*LED)
    script.members[3].disk.entries += entries(*[1] * 50, first=2)
    more(script, "crash 3", "elect 2 with=1", "settle", "propose 2 a b c", "settle", "start 3")
    more(script, "elect 1 with=2")
    refused = 0
    while script.members[3].core.log.last_term != script.members[1].core.term:
        said = more(script, "deliver 1 3", "sync 3 count=9", "deliver 3 1")
        refused += sum("refused" in line and line.startswith("3→1") for line in said)
    assert refused <= 2


def test_rule_2_entries_that_are_there_are_kept():
    core = member([1, 1, 1])
    ready = told(core, Append(1, 2, 1, 0, 0, 0, tuple(entries(1, 1))))
    assert core.log.last_index == 3
    assert not ready.entries
    assert not ready.cut_from


def test_rule_2_only_from_the_first_entry_that_differs_on_is_cut():
    core = member([1, 1, 1, 1])
    ready = told(core, Append(1, 2, 2, 1, 1, 0, tuple(entries(1, 2, first=2))))
    assert ready.cut_from == 3
    assert [entry.index for entry in ready.entries] == [3]
    assert core.log.last_index == 3


def test_rule_2_a_committed_entry_is_never_cut():
    core = member([1, 1])
    told(core, Heartbeat(1, 2, 1, 2))
    with pytest.raises(Damaged, match="entry 2 is committed"):
        core.step(Append(1, 3, 2, 1, 1, 1, tuple(entries(2, first=2))))
    assert core.halted
    assert core.log.term_at(2) == 1


def test_rule_2_a_commit_index_beyond_the_log_is_damage():
    core = member([1, 1])
    with pytest.raises(Damaged, match="confirmed here"):
        core.step(Heartbeat(1, 2, 1, 3))
    assert told(core, Heartbeat(1, 2, 1, 2)) is None


def test_rule_2_an_append_of_less_than_is_committed_confirms_the_commit_index():
    core = member([1, 1, 1])
    told(core, Heartbeat(1, 2, 1, 3))
    ready = told(core, Append(1, 2, 1, 1, 1, 3, tuple(entries(1, first=2))))
    assert ready.after == [AppendAnswer(2, 1, 1, 3)]


# 3: a leader counts entries of its own term only; nothing before its first entry -----------------


def test_rule_3_an_entry_of_an_older_term_is_not_committed_by_counting():
    script = play("members 1 2 3 message_bytes=1", "elect 1", "settle", "propose 1 a", "sync 1")
    more(script, "deliver 1 2", "sync 2", "drop 0", "crash 1", "elect 2 with=3")
    leader = script.members[2].core
    leader.step(AppendAnswer(2, 3, leader.term, 2))
    assert leader.log.term_at(2) == 1
    assert leader.commit == 1
    leader.step(AppendAnswer(2, 3, leader.term, 3))
    leader.persisted(script.members[2].writes[-1].written)
    assert leader.commit == 3


def test_rule_3_the_first_entry_of_a_term_is_appended_at_once():
    script = play("members 1 2 3", "elect 1")
    assert script.members[1].core.log.slice(1, 1) == [LogEntry(1, 1, b"began1")]


@pytest.mark.parametrize("line", ["propose 1 a", "read 1 1", "change 1 add 4", "transfer 1 2"])
def test_rule_3_nothing_is_taken_before_the_first_entry_is_committed(line):
    script = play("members 1 2 3", "elect 1")
    with pytest.raises(NotServing):
        more(script, line)
    more(script, "settle", line)


def test_rule_3_a_read_request_of_a_follower_waits_for_it_too():
    script = play("members 1 2 3", "elect 1")
    leader = script.members[1].core
    assert told(leader, ReadRequest(1, 2, 1, 7)) is None


# 4: pre-vote and check-quorum always --------------------------------------------------------------


def test_rule_4_a_member_asks_before_it_raises_its_term():
    core = member()
    for _ in range(10):
        core.tick()
    ready = core.ready()
    assert core.term == 0
    assert {(m.pre, m.term) for m in ready.after} == {(True, 0)}


def test_rule_4_without_a_majority_of_pre_votes_the_term_stays():
    core = member(voters=(1, 2, 3, 4, 5))
    for _ in range(10):
        core.tick()
    told(core, VoteAnswer(1, 2, 0, True, pre=True))
    assert (core.role, core.term) == (Role.PRE_CANDIDATE, 0)
    told(core, VoteAnswer(1, 3, 0, True, pre=True))
    assert (core.role, core.term) == (Role.CANDIDATE, 1)


def test_rule_4_a_leader_that_is_not_answered_steps_down():
    script = play(*LED, "tick 1 10")
    assert script.members[1].core.role is Role.LEADER  # it was heard in the first ten
    more(script, "tick 1 10")
    assert script.members[1].core.role is Role.FOLLOWER


def test_rule_4_a_vote_request_is_ignored_while_a_leader_is_heard_of():
    core = member()
    told(core, Heartbeat(1, 2, 1, 0))
    assert told(core, VoteRequest(1, 3, 9, 5, 5)) is None
    assert core.term == 1


def test_rule_4_it_is_heard_when_the_leader_was_silent_for_an_election_timeout():
    core = member(draws=[20])
    told(core, Heartbeat(1, 2, 1, 0))
    for _ in range(9):
        core.tick()
    assert told(core, VoteRequest(1, 3, 9, 5, 5)) is None
    core.tick()
    assert told(core, VoteRequest(1, 3, 9, 5, 5)).after == [VoteAnswer(3, 1, 9, True)]


def test_rule_4_a_vote_request_by_transfer_is_heard_at_once():
    core = member()
    told(core, Heartbeat(1, 2, 1, 0))
    ready = told(core, VoteRequest(1, 3, 2, 5, 5, transfer=True))
    assert ready.after == [VoteAnswer(3, 1, 2, True)]


def test_rule_4_granting_a_pre_vote_resets_no_timer():
    core = member()
    for _ in range(9):
        core.tick()
    told(core, VoteRequest(1, 3, 0, 5, 5, pre=True))
    core.tick()
    assert core.role is Role.PRE_CANDIDATE


def test_rule_4_granting_a_vote_resets_it():
    core = member()
    for _ in range(9):
        core.tick()
    told(core, VoteRequest(1, 3, 1, 5, 5))
    core.tick()
    assert core.role is Role.FOLLOWER


# 5: a refusal carries the term of the member that refuses; old answers change nothing ------------


def test_rule_5_an_append_of_an_older_term_is_refused_with_the_newer_one():
    core = member(term=7)
    ready = told(core, Append(1, 2, 5, 0, 0, 0, tuple(entries(5))))
    assert ready.now == [AppendAnswer(2, 1, 7, 0, refused=True)]
    assert core.log.last_index == 0


def test_rule_5_so_is_a_vote_request():
    core = member(term=7)
    assert told(core, VoteRequest(1, 2, 5, 9, 5)).now == [VoteAnswer(2, 1, 7, False)]


def test_rule_5_a_leader_that_is_refused_with_a_newer_term_follows():
    script = play(*LED)
    leader = script.members[1].core
    leader.step(AppendAnswer(1, 2, 9, 0, refused=True))
    assert (leader.role, leader.term) == (Role.FOLLOWER, 9)


def test_rule_5_an_answer_of_an_older_term_changes_nothing():
    script = play(*LED, "elect 1", "settle", "propose 1 a", "sync 1")
    leader = script.members[1].core
    leader.step(AppendAnswer(1, 2, leader.term - 1, leader.log.last_index))
    assert leader.commit == leader.log.last_index - 1


# 6: a snapshot that the log has drops nothing -----------------------------------------------------


def test_rule_6_a_snapshot_at_an_entry_that_is_there_drops_nothing():
    core = member([1, 1, 1])
    ready = told(core, InstallSnapshot(1, 2, 1, Mark(2, 1, Members((1, 2, 3)))))
    assert ready.snapshot is None
    assert (core.commit, core.log.last_index) == (2, 3)
    assert ready.after == [AppendAnswer(2, 1, 1, 2)]


def test_rule_6_another_one_replaces_the_log():
    core = member([1, 1, 1])
    mark = Mark(2, 2, Members((1, 2, 4)))
    ready = told(core, InstallSnapshot(1, 2, 2, mark))
    assert ready.snapshot == mark
    assert (core.commit, core.log.last_index, core.members) == (2, 2, mark.members)
    assert (core.applied, core.installing) == (0, mark)
    core.persisted(ready.written)
    assert (core.applied, core.installing) == (2, None)


def test_rule_6_one_of_less_than_is_committed_changes_nothing():
    core = member([1, 1, 1])
    told(core, Heartbeat(1, 2, 1, 3))
    ready = told(core, InstallSnapshot(1, 2, 1, Mark(2, 1, Members((1, 2, 3)))))
    assert ready.snapshot is None
    assert ready.after == [AppendAnswer(2, 1, 1, 3)]


# 7: an append that was cut and written again is not confirmed by its first writing ---------------


def test_rule_7_a_report_of_before_a_cut_confirms_nothing():
    core = member([1])
    first = told(core, Append(1, 2, 1, 1, 1, 0, tuple(entries(1, first=2))))
    told(core, Append(1, 3, 2, 1, 1, 0, tuple(entries(2, first=2))))
    again = told(core, Append(1, 2, 3, 1, 1, 0, tuple(entries(1, first=2))))
    assert core.log.term_at(2) == 1
    core.persisted(first.written)
    assert core.log.synced == 1
    core.persisted(again.written)
    assert core.log.synced == 2


def test_rule_7_nor_does_one_of_before_a_snapshot():
    core = member([1])
    first = told(core, Append(1, 2, 1, 1, 1, 0, tuple(entries(1, 1, first=2))))
    told(core, InstallSnapshot(1, 3, 2, Mark(2, 2, Members((1, 2, 3)))))
    told(core, Append(1, 3, 2, 2, 2, 2, tuple(entries(2, first=3))))
    core.persisted(first.written)
    assert core.log.synced == 2


# 8: the election timeout is redrawn ------------------------------------------------------------


def test_rule_8_the_timeout_is_drawn_from_ten_to_twenty_ticks_at_each_start():
    asked = []
    core = member()
    core._draw = lambda low, high: asked.append((low, high)) or 13
    for _ in range(26):
        core.tick()
    assert asked == [(10, 20), (10, 20)]


def test_rule_8_a_heartbeat_starts_the_waiting_anew():
    core = member(draws=[10, 15])
    for _ in range(9):
        core.tick()
    told(core, Heartbeat(1, 2, 1, 0))
    for _ in range(9):
        core.tick()
    assert core.role is Role.FOLLOWER


def test_rule_8_a_leader_sends_a_heartbeat_every_tick():
    script = play(*LED)
    said = more(script, "tick 1 3")
    assert sum("heartbeat" in line for line in said) == 6


# 9: a group of one commits when its own sync is done ---------------------------------------------


def test_rule_9_a_group_of_one_commits_by_its_own_sync_and_never_before():
    core = member(voters=(1,))
    for _ in range(10):
        core.tick()
    synced(core)
    index = core.propose(b"x")
    ready = core.ready()
    assert core.commit == index - 1
    core.persisted(ready.written)
    assert core.commit == index


# 10: handing over ---------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["propose 1 a", "read 1 1", "change 1 add 4", "transfer 1 3"])
def test_rule_10_a_leader_that_hands_over_takes_nothing(line):
    script = play(*LED, "transfer 1 2")
    with pytest.raises(NotServing, match="hands over"):
        more(script, line)


def test_rule_10_reads_that_wait_are_lost():
    assert "1 loses read 5" in more(play(*LED, "read 1 5"), "transfer 1 2")


def test_rule_10_a_read_request_of_a_follower_is_not_confirmed_then():
    script = play(*LED, "transfer 1 2")
    told(script.members[1].core)
    assert told(script.members[1].core, ReadRequest(1, 3, 1, 7)) is None


def test_rule_10_it_is_over_after_an_election_timeout():
    script = play(*LED, "transfer 1 2", "drop 0", "tick 1 9")
    with pytest.raises(NotServing):
        more(script, "propose 1 a")
    more(script, "tick 1", "propose 1 a")


def test_rule_10_the_new_leader_skips_the_pre_vote():
    core = member(term=1)
    told(core, Heartbeat(1, 2, 1, 0))
    ready = told(core, TimeoutNow(1, 2, 1))
    assert (core.role, core.term) == (Role.CANDIDATE, 2)
    assert all(message.transfer and not message.pre for message in ready.after)


def test_rule_10_only_its_own_leader_can_hand_over():
    core = member(term=1)
    told(core, Heartbeat(1, 2, 1, 0), TimeoutNow(1, 3, 1))
    assert core.role is Role.FOLLOWER


@pytest.mark.parametrize("target", [1, 4, 9])
def test_rule_10_a_member_that_is_not_another_voter_is_no_target(target):
    script = play("members 1 2 3 learners=4", "elect 1", "settle")
    with pytest.raises(TransferRefused, match="not another voter"):
        more(script, f"transfer 1 {target}")


def test_rule_10_a_member_that_is_behind_is_no_target():
    script = play("members 1 2 3 near_bytes=10", "elect 1", "settle", "propose 1 a size=11")
    with pytest.raises(TransferRefused, match="behind"):
        more(script, "transfer 1 2")
    script = play("members 1 2 3 near_bytes=10", "elect 1", "settle", "propose 1 a size=10")
    more(script, "transfer 1 2")


# 11: a node that cannot write answers nothing -----------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest(1, 2, 9, 5, 5),
        Append(1, 2, 9, 0, 0, 0, tuple(entries(9))),
        Heartbeat(1, 2, 9, 0),
        InstallSnapshot(1, 2, 9, Mark(5, 5, Members((1, 2)))),
        TimeoutNow(1, 2, 9),
    ],
    ids=lambda message: type(message).__name__,
)
def test_rule_11_a_member_that_is_halted_answers_nothing(message):
    core = member()
    core.halt()
    assert told(core, message) is None
    assert core.term == 0


def test_rule_11_a_leader_that_is_halted_leads_nothing():
    script = play(*LED)
    leader = script.members[1].core
    leader.propose(b"x")
    leader.halt()
    assert leader.role is Role.FOLLOWER
    ready = leader.ready()
    assert not ready.now
    with pytest.raises(NotLeader):
        leader.propose(b"y")
    with pytest.raises(NotLeader):
        leader.read_index(1)


def test_rule_11_it_never_stands():
    core = member(voters=(1,))
    core.halt()
    for _ in range(50):
        core.tick()
    assert core.ready() is None


# 12: when a member does not stand -----------------------------------------------------------------


def stands(core) -> bool:
    for _ in range(20):
        core.tick()
    return core.role is not Role.FOLLOWER


def test_rule_12_a_member_does_not_stand_while_it_restores():
    core = member()
    core.restoring = True
    assert not stands(core)
    core.restoring = False
    assert stands(core)


def test_rule_12_nor_while_it_takes_a_snapshot_in():
    core = member()
    ready = told(core, InstallSnapshot(1, 2, 1, Mark(2, 1, Members((1, 2, 3)))))
    assert not stands(core)
    core.persisted(ready.written)
    assert stands(core)


def test_rule_12_nor_while_it_applies_what_it_knows_to_be_committed():
    core = member([1, 1])
    ready = told(core, Heartbeat(1, 2, 1, 2))
    assert [entry.index for entry in ready.apply] == [1, 2]
    assert not stands(core)
    core.applied_to(2)
    assert stands(core)


def test_rule_12_it_does_not_stand_by_transfer_then_either():
    core = member(term=1)
    told(core, Heartbeat(1, 2, 1, 0))
    core.restoring = True
    told(core, TimeoutNow(1, 2, 1))
    assert core.role is Role.FOLLOWER


@pytest.mark.parametrize(("voters", "learners"), [((2, 3), (1,)), ((2, 3), ()), ((), ())])
def test_rule_12_a_member_that_is_not_a_voter_does_not_stand(voters, learners):
    assert not stands(member(voters=voters, learners=learners))


# The limits ---------------------------------------------------------------------------------------


def test_a_proposal_above_the_limit_is_refused_before_anything_is_appended():
    script = play("members 1 2 3 uncommitted_bytes=20", "elect 1", "settle", "propose 1 a size=15")
    leader = script.members[1].core
    with pytest.raises(UncommittedFull):
        leader.propose(b"123456")
    assert leader.log.last_index == 2
    assert leader.propose(b"12345") == 3


def test_an_entry_above_the_limit_is_taken_when_nothing_waits():
    script = play("members 1 2 3 uncommitted_bytes=20", "elect 1", "settle")
    assert script.members[1].core.propose(b"." * 1_000) == 2


def test_a_message_has_as_many_entries_as_fit_and_at_least_one():
    script = play("members 1 2 3 message_bytes=10", "elect 1", "settle")
    said = more(script, "propose 1 a b c size=5", "propose 1 d size=50")
    to_2 = [line for line in said if "1→2" in line]
    assert [line.partition(": ")[2].partition(": ")[2] for line in to_2] == [
        "2/1:a 3/1:b",
        "4/1:c",
        "5/1:d",
    ]


def test_a_saturated_follower_gets_no_entries_for_a_second():
    script = play(*LED, "set 2 full=1", "propose 1 a", "deliver 1 2", "deliver 2 1", "drop 0")
    for _ in range(9):
        assert not [line for line in more(script, "tick 1") if "append" in line]
        more(script, "drop 1 2", "deliver 1 3", "deliver 3 1")
    assert [line for line in more(script, "tick 1") if "1→2 append " in line]


def test_what_finishes_accepted_work_is_never_refused():
    script = play("members 1 2 3 uncommitted_bytes=1", "elect 1", "settle", "propose 1 aaaa")
    more(script, "settle")
    assert script.members[3].core.applied == 2


def test_a_change_of_members_is_not_bounded_by_the_limit_of_proposals():
    script = play("members 1 2 3 uncommitted_bytes=1", "elect 1", "settle", "propose 1 aaaa")
    assert script.members[1].core.change_members(Change(ADD_LEARNER, 4)) == 3


def test_a_follower_that_comes_back_is_probed_then_replicated_to():
    script = play(*LED, "crash 3", "propose 1 a b", "settle", "tick 1", "settle", "start 3")
    leader = script.members[1].core
    more(script, "tick 1", "deliver 1 3", "deliver 3 1", "deliver 1 3", "deliver 3 1")
    assert leader.progress[3].stage is Stage.PROBE
    more(script, "settle")
    assert leader.progress[3].stage is Stage.REPLICATE
