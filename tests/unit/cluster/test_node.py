"""Commands about members, on the node that leads: what a broken one leaves, and how it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.cluster import node as nodes
from penstock.cluster.calls import PassedBack, PassedOn
from penstock.cluster.node import ClusterNode, NodeOptions
from penstock.cluster.roster import ClusterFile
from penstock.kernel.errors import Rejected
from penstock.kernel.system import SystemClock
from penstock.protocol.errors import ChangeInProgress, NoLeader, OutcomeUnknown
from penstock.raft.journal import ReplicatedJournal
from penstock.raft.members import Change, Entries, Members, Named
from penstock.raft.ready import NotLeader
from penstock.topics.core.versions import NEWEST

A, B = Named(1, "a", "127.0.0.1:1"), Named(2, "b", "127.0.0.1:2")
C = Named(3, "c", "127.0.0.1:3")


class Journal:
    """Two groups with members, led here until `leads` says otherwise."""

    def __init__(self) -> None:
        self.roster = Members((1, 2, 3), (), (A, B, C), (), Entries(NEWEST, ((1, NEWEST),)))
        self.other = self.roster
        self.follows = True
        """Whether the other group is brought to the roster."""
        self.leads: Callable[[], bool] = lambda: True
        self.groups: dict[int, Any] = {0: None, 1: None}
        self.changes: list[Change] = []
        self.is_changing = False

    def members(self, partition: int) -> Members:
        return self.other if partition else self.roster

    def serves(self, _partition: int) -> bool:
        return self.leads()

    def leader(self, _partition: int) -> int:
        return 1 if self.leads() else 2

    def transfer(self, partition: int, member: int) -> None:
        """Nothing comes of it."""

    async def change_members(self, partition: int, change: Change) -> None:
        assert partition == 0
        assert not self.is_changing, "a change before the last one was committed"
        self.changes.append(change)
        self.roster = self.roster.after(change)
        if self.follows:
            self.other = self.roster
        self.is_changing = True
        await asyncio.sleep(0)
        self.is_changing = False


def run(test: Callable[[ClusterNode, Journal], Any], tmp_path: Path) -> None:
    async def serve(_request: PassedOn) -> PassedBack:
        raise AssertionError("not asked")

    async def started() -> None:
        file = ClusterFile(cluster="c", member=A, partitions=2, identity=7, known=(B, C))
        options = NodeOptions(directory=tmp_path)
        node, journal = ClusterNode(file, options, clock=SystemClock(), serve=serve), Journal()
        node._journal = cast(ReplicatedJournal, journal)
        node.reached = lambda: {1, 2, 3}  # type: ignore[method-assign]
        await test(node, journal)

    asyncio.run(started())


def test_a_member_is_replaced_by_one_of_its_name_and_address(tmp_path: Path) -> None:
    async def test(node: ClusterNode, journal: Journal) -> None:
        file = await node.replace("b")
        assert (file.member.name, file.member.address) == (B.name, B.address)
        assert [each.verb for each in journal.changes] == ["remove", "add"]

    run(test, tmp_path)


def test_a_replacement_goes_on_after_a_removal_that_was_made_before(tmp_path: Path) -> None:
    async def test(node: ClusterNode, journal: Journal) -> None:
        await node.remove("b")
        with pytest.raises(Rejected, match=r"replace b HOST:PORT"):
            await node.replace("b")
        file = await node.replace("b", B.address)
        assert (file.member.name, file.member.address) == (B.name, B.address)
        assert [each.verb for each in journal.changes] == ["remove", "add"]

    run(test, tmp_path)


def test_a_replacement_at_the_address_of_another_member_takes_nothing_out(tmp_path: Path) -> None:
    async def test(node: ClusterNode, journal: Journal) -> None:
        with pytest.raises(Rejected, match="c is at"):
            await node.replace("b", C.address)
        assert not journal.changes

    run(test, tmp_path)


def test_a_member_is_added_after_the_roster_says_what_is_written_and_is_told_it(
    tmp_path: Path,
) -> None:
    async def test(node: ClusterNode, journal: Journal) -> None:
        journal.roster = journal.other = Members((1,), (), (A,))
        file = await node.add("b", B.address)
        assert [each.verb for each in journal.changes] == ["entries", "add"]
        assert journal.roster.entries == Entries(NEWEST, ((1, NEWEST),))
        assert file.entries == NEWEST

    run(test, tmp_path)


def test_of_two_additions_at_once_the_second_is_refused_and_named_the_first(
    tmp_path: Path,
) -> None:
    async def test(node: ClusterNode, journal: Journal) -> None:
        journal.roster = journal.other = Members((1,), (), (A,))
        first, second = await asyncio.gather(
            node.add("b", B.address), node.add("c", C.address), return_exceptions=True
        )
        assert isinstance(first, ClusterFile)
        assert isinstance(second, ChangeInProgress)
        assert "b is being added" in second.message

    run(test, tmp_path)


@pytest.mark.parametrize("broken", ["slow", "leader lost"])
def test_a_replacement_that_breaks_after_the_removal_says_how_to_go_on(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: ClusterNode, journal: Journal) -> None:
        journal.follows = broken != "slow"
        if broken == "leader lost":
            journal.leads = lambda: not journal.changes
        with pytest.raises(OutcomeUnknown, match=r"replace b 127.0.0.1:2` again"):
            await node.replace("b")
        with pytest.raises((ChangeInProgress, NotLeader)):  # not yet
            await node.replace("b", B.address)
        journal.leads, journal.other = lambda: True, journal.roster
        assert (await node.replace("b", B.address)).member.name == "b"

    monkeypatch.setattr(nodes, "REMOVED_S", 0.01)
    run(test, tmp_path)


def test_a_leader_that_cannot_hand_over_in_time_is_not_removed_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: ClusterNode, journal: Journal) -> None:
        with pytest.raises(NoLeader, match="try again"):
            await node.remove("a")
        assert not journal.changes

    monkeypatch.setattr(nodes, "HAND_OVER_S", 0.01)
    run(test, tmp_path)


def test_a_leader_that_was_not_heard_for_a_while_and_leads_on_was_not_elected(
    tmp_path: Path,
) -> None:
    async def test(node: ClusterNode, _journal: Journal) -> None:
        for leader, term in ((2, 5), (0, 5), (2, 5)):
            node._on_leader(0, leader, term)
        assert node._elections == 1
        for leader, term in ((2, 6), (0, 7), (3, 7)):
            node._on_leader(0, leader, term)
        assert node._elections == 3
        node._on_leader(1, 3, 7)
        assert node._elections == 4

    run(test, tmp_path)
