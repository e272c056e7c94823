"""Majorities and changes of members against a brute-force model."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.raft.members import (
    ADD_LEARNER,
    MARK,
    PROMOTE,
    REMOVE,
    Change,
    ChangeRefused,
    Members,
    decode_members,
    encode_members,
)
from penstock.raft.quorum import Tally, committed_index, election, majority

MEMBER = st.integers(1, 7)
VOTERS = st.sets(MEMBER, min_size=1, max_size=7)


def majorities(voters: set[int]) -> list[set[int]]:
    """Every set of voters that is more than half of them."""
    return [
        set(some)
        for size in range(len(voters) + 1)
        for some in combinations(sorted(voters), size)
        if 2 * size > len(voters)
    ]


@st.composite
def groups(draw: st.DrawFn) -> Members:
    voters = draw(VOTERS)
    learners = draw(st.sets(MEMBER)) - voters
    return Members(tuple(sorted(voters)), tuple(sorted(learners)))


@given(st.dictionaries(MEMBER, st.integers(0, 20), min_size=1))
def test_the_committed_index_is_the_largest_that_some_majority_has(matches):
    expected = max(
        index
        for index in range(21)
        if any(all(matches[v] >= index for v in some) for some in majorities(set(matches)))
    )
    assert committed_index(list(matches.values())) == expected


@given(VOTERS)
def test_a_majority_is_the_smallest_number_that_is_more_than_half(voters):
    assert majority(len(voters)) == min(len(some) for some in majorities(voters))


@given(VOTERS, st.dictionaries(MEMBER, st.booleans()))
def test_an_election_is_won_by_a_majority_and_lost_when_none_is_left(voters, votes):
    tally = election(voters, votes)
    is_won = any(all(votes.get(v) is True for v in some) for some in majorities(voters))
    may_win = any(all(votes.get(v) is not False for v in some) for some in majorities(voters))
    assert (tally is Tally.WON) == is_won
    assert (tally is Tally.LOST) == (not may_win)


@given(groups(), st.sampled_from([ADD_LEARNER, PROMOTE, REMOVE]), MEMBER)
def test_every_majority_before_a_change_shares_a_voter_with_every_one_after_it(before, verb, who):
    try:
        after = before.after(Change(verb, who))
    except ChangeRefused:
        return
    old, new = set(before.voters), set(after.voters)
    assert len(old ^ new) <= 1
    assert all(a & b for a in majorities(old) for b in majorities(new))


@given(groups(), st.lists(st.tuples(st.sampled_from([ADD_LEARNER, PROMOTE, REMOVE]), MEMBER)))
def test_changes_keep_a_voter_and_never_make_a_member_both(members, changes):
    for verb, who in changes:
        model = (set(members.voters), set(members.learners))
        try:
            members = members.after(Change(verb, who))
        except ChangeRefused:
            assert (set(members.voters), set(members.learners)) == model
            continue
        voters, learners = model
        if verb == ADD_LEARNER:
            learners |= {who}
        elif verb == PROMOTE:
            voters, learners = voters | {who}, learners - {who}
        else:
            voters, learners = voters - {who}, learners - {who}
        assert (set(members.voters), set(members.learners)) == (voters, learners)
        assert voters
        assert not voters & learners


@given(groups())
def test_members_survive_their_bytes(members):
    payload = encode_members(members)
    assert payload.startswith(MARK)
    assert decode_members(payload) == members


def test_the_last_voter_cannot_be_removed():
    with pytest.raises(ChangeRefused, match="last voter"):
        Members((1,), (2,)).after(Change(REMOVE, 1))
