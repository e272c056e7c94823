"""Which version of entries is written while members of several releases are in a cluster."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.handshake import UNTOLD
from penstock.cluster.upgrade import held_by, next_entries, read_by
from penstock.raft.members import ADD_LEARNER, REMOVE, Change, Entries, Members, Named

A, B, C = (Named(number, name, f"h:{number}") for number, name in ((1, "a"), (2, "b"), (3, "c")))
OLDEST = UNTOLD.read
NEXT = OLDEST + 1


def roster(*reads: int, active: int = OLDEST) -> Members:
    """Three members; 0 where one has not said what it reads."""
    known = tuple((number, version) for number, version in enumerate(reads, 1) if version)
    return Members((1, 2, 3), (), (A, B, C), (), Entries(active, known))


def after(members: Members, told: dict[int, int], active: int = 0) -> Members:
    change = next_entries(members, told, active)
    return members if change is None else members.after(change)


def test_the_newer_version_is_written_once_the_last_member_reads_it() -> None:
    found = roster(OLDEST, OLDEST, OLDEST)
    for number, names in ((1, ("b", "c")), (2, ("c",)), (3, ())):
        assert next_entries(found, dict(found.entries.reads), OLDEST) is None
        found = after(found, {number: NEXT})
        assert held_by(found, found.entries.active) == names
    assert found.entries == Entries(NEXT, ((1, NEXT), (2, NEXT), (3, NEXT)))


def test_a_member_that_is_away_counts_as_it_was_last_known() -> None:
    found = after(roster(OLDEST, OLDEST, NEXT), {1: NEXT})  # b is away
    assert found.entries.active == OLDEST
    assert held_by(found, OLDEST) == ("b",)
    assert after(roster(OLDEST, NEXT, NEXT), {1: NEXT}).entries.active == NEXT  # b and c are


def test_a_member_that_has_not_said_what_it_reads_counts_as_the_oldest() -> None:
    found = after(roster(0, 0, 0, active=0), {1: NEXT, 2: NEXT})
    assert found.entries == Entries(OLDEST, ((1, NEXT), (2, NEXT)))
    assert read_by(found)[3] == OLDEST
    assert held_by(found, OLDEST) == ("c",)


def test_a_node_alone_writes_the_newest_and_a_new_member_does_not_change_that() -> None:
    alone = after(Members((1,), (), (A,)), {1: NEXT})
    assert alone.entries.active == NEXT
    grown = alone.after(Change(ADD_LEARNER, 2, B))
    assert next_entries(grown, {1: NEXT}, NEXT) is None
    assert next_entries(grown, {1: NEXT, 2: NEXT}, NEXT) is not None
    assert held_by(grown, NEXT) == ()


def test_without_the_member_that_held_it_back_the_newer_version_is_written() -> None:
    found = roster(NEXT, NEXT, OLDEST)
    assert next_entries(found, {1: NEXT}, OLDEST) is None
    assert after(found.after(Change(REMOVE, 3)), {1: NEXT}).entries.active == NEXT


def test_a_member_that_goes_back_before_the_switch_holds_it_back_again() -> None:
    found = after(roster(NEXT, NEXT, OLDEST), {2: OLDEST, 3: NEXT})
    assert found.entries == Entries(OLDEST, ((1, NEXT), (2, OLDEST), (3, NEXT)))


def test_strangers_are_not_remembered() -> None:
    assert next_entries(roster(OLDEST, OLDEST, OLDEST), {9: NEXT}, OLDEST) is None


TOLD = st.dictionaries(st.integers(1, 4), st.integers(OLDEST, OLDEST + 3))


@given(steps=st.lists(st.tuples(TOLD, st.integers(0, 3)), max_size=12))
def test_what_is_written_only_goes_up_and_never_beyond_what_all_were_known_to_read(
    steps: list[tuple[dict[int, int], int]],
) -> None:
    found = Members((1,), (), (A,))
    for told, what in steps:
        before = found
        if what == 0 and 2 not in found:
            found = found.after(Change(ADD_LEARNER, 2, B))
        elif what == 1 and 2 in found:
            found = found.after(Change(REMOVE, 2))
        found = after(found, told, before.entries.active)
        active = found.entries.active
        assert active >= before.entries.active
        if active > before.entries.active:
            assert active == min(read_by(found).values())
            assert not any(each < active for each in read_by(found).values())
        assert all(member in found for member, _ in found.entries.reads)
        assert next_entries(found, told, active) is None  # each news is logged once
        newest = max(read_by(found).values())
        assert bool(held_by(found, active)) == (
            newest > active and min(read_by(found).values()) <= active
        )
