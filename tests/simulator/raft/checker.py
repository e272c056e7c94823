"""What must hold in a simulated group, checked as each thing happens.

Nothing here asks a core what it believes: entries are judged when they are handed to a disk, when
they are applied and when a client is answered, against what the disks of all members hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from zlib import crc32

from penstock.log.store import LogEntry
from penstock.raft.core import Role
from penstock.raft.members import MARK, Members, decode_members
from penstock.raft.messages import VoteAnswer
from penstock.raft.quorum import majority

if TYPE_CHECKING:
    from tests.simulator.raft.world import Node


class Violation(AssertionError):
    """A promise of Raft was broken."""


def chained(chain: int, entry: LogEntry) -> int:
    """The hash of all applied entries, continued by one."""
    return crc32(entry.payload, chain ^ entry.term)


class Checker:
    """The record of one run, over all members."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        self.leaders: dict[int, int] = {}  # by term
        self.votes: dict[tuple[int, int], int] = {}  # by member and term
        self.written: dict[tuple[int, int], tuple[int, bytes]] = {}  # by index and term
        self.applied: dict[int, tuple[int, int]] = {0: (0, 0)}  # by index: term, chain
        self.acked: tuple[int, int] = (0, 0)  # the last entry that a client was told of
        self.definite: set[bytes] = set()
        self.seen: set[bytes] = set()
        self.answered: dict[int, str] = {}
        self.read_floor = 0

    def elected(self, node: Node) -> None:
        """One leader a term, and it has everything that was ever acknowledged or applied."""
        core = node.core
        first = self.leaders.setdefault(core.term, core.member)
        _require(first == core.member, "two leaders in term", core.term, first, core.member)
        for index, term in (self.acked, (last := max(self.applied), self.applied[last][0])):
            found = core.log.term_at(index)
            held = found == term or (found == -1 and index <= core.log.boundary)
            _require(held, "a leader lacks a committed entry", core.member, index, term, found)

    def moved(self, node: Node) -> None:
        """Commit and applied never fall, and only what is applied is compacted."""
        core, log = node.core, node.core.log
        if core.commit < node.commit or core.applied < node.applied:
            raise Violation(f"commit or applied fell on {core.member}: {core.commit}")
        if log.boundary > core.applied and not core.installing:
            raise Violation(f"compacted beyond applied on {core.member}: {log.boundary}")
        if core.commit > log.last_index:
            raise Violation(f"committed beyond the log on {core.member}: {core.commit}")
        if core.commit > node.commit:
            if core.role is Role.LEADER and log.term_at(core.commit) != core.term:
                raise Violation(f"{core.member} committed an older term: {core.commit}")
            node.commit = core.commit

    def voted(self, node: Node, vote: VoteAnswer) -> None:
        """A vote that leaves is on the disk, and there is one a term."""
        if not vote.granted or vote.pre:
            return
        hard = node.disk.hard
        if hard.term <= vote.term and hard != (vote.term, vote.to):
            raise Violation(f"a vote left before its sync: {vote} with {hard}")
        first = self.votes.setdefault((vote.sender, vote.term), vote.to)
        _require(first == vote.to, "two votes in term", vote.term, vote.sender, first, vote.to)

    def synced(self, node: Node) -> None:
        """What a core counts as synced is on its disk."""
        log = node.core.log
        found = node.disk.term_at(log.synced)
        if found not in (0, log.term_at(log.synced)) and not node.core.installing:
            raise Violation(f"{node.core.member} counts {log.synced}, which its disk has not")

    def handed(self, node: Node, entry: LogEntry, prev_term: int) -> None:
        """Log matching: an index and a term name one entry and one entry before it."""
        key = (entry.index, entry.term)
        known = self.written.get(key)
        if known is None:
            self.written[key] = (prev_term, entry.payload)
            self._first_written(node, entry)
        elif known[1] != entry.payload or known[0] != prev_term:
            raise Violation(f"two entries are {key}: {known} and {(prev_term, entry.payload)}")

    def _first_written(self, node: Node, entry: LogEntry) -> None:
        _require(entry.payload not in self.definite, "refused, and in the log", entry.payload)
        self.seen.add(entry.payload)
        if entry.payload.startswith(MARK):
            self._changed(node, entry)

    def _changed(self, node: Node, entry: LogEntry) -> None:
        """One change at a time, and no learner is promoted that is behind."""
        core, members = node.core, decode_members(entry.payload)
        earlier = [e for e in node.log_after(core.commit) if e.index < entry.index]
        open_change = any(e.payload.startswith(MARK) for e in earlier)
        _require(not open_change, "two changes of members at once", core.member, entry.index)
        before = node.members_before(entry.index)
        for promoted in set(members.voters) - set(before.voters):
            behind = self._bytes_behind(node, promoted)
            _require(behind <= core.limits.near_bytes, "promoted and behind", promoted, behind)

    def _bytes_behind(self, node: Node, member: int) -> int:
        last = self.nodes[member].disk.last_index
        return sum(len(e.payload) for e in node.log_after(last)[:-1])  # without the change itself

    def apply(self, node: Node, entry: LogEntry) -> None:
        """Applied prefixes are equal, and what is applied first is synced on a majority."""
        _require(entry.index == node.applied + 1, "applied out of order", entry.index)
        node.chain = chained(node.chain, entry)
        known = self.applied.get(entry.index)
        if known is None:
            self.on_majority(node, entry.index, entry.term)
            self.applied[entry.index] = (entry.term, node.chain)
        elif known != (entry.term, node.chain):
            raise Violation(f"members differ at {entry.index}: {known}, {(entry.term, node.chain)}")
        node.applied = entry.index

    def snapshotted(self, node: Node) -> None:
        """A snapshot has only what is applied."""
        index = node.core.snapshot.index
        _require(index <= node.applied, "a snapshot of what is not applied", node.member, index)

    def installed(self, node: Node, index: int) -> None:
        known = self.applied.get(index)
        _require(known is not None, "a snapshot of what nobody applied", index)
        assert known is not None
        node.chain, node.applied = known[1], max(node.applied, index)

    def on_majority(self, node: Node, index: int, term: int) -> None:
        """An entry is synced on a majority of the voters, as of that entry or of now."""
        if self._synced_on(node.core.members, index, term):
            return
        if not self._synced_on(node.members_before(index + 1), index, term):
            raise Violation(f"entry {index} of term {term} is not synced on a majority")

    def _synced_on(self, members: Members, index: int, term: int) -> bool:
        held = 0
        for voter in members.voters:
            held += self.nodes[voter].disk.term_at(index) in (term, 0)
        return held >= majority(len(members.voters))

    def done(self, node: Node, request: int, index: int, term: int) -> None:
        """A write is acknowledged."""
        self._answer(request, "done")
        self.on_majority(node, index, term)
        if index > self.acked[0]:
            self.acked = (index, term)
        self.read_floor = max(self.read_floor, index)

    def read(self, request: int, floor: int, applied: int) -> None:
        """A read shows everything that was acknowledged or read before it began."""
        self._answer(request, "read")
        _require(applied >= floor, "a stale read", request, floor, applied)
        self.read_floor = max(self.read_floor, applied)

    def refused(self, request: int, payload: bytes) -> None:
        """The client was told that nothing of this request is or will be in the log."""
        self._answer(request, "refused")
        _require(payload not in self.seen, "refused, and in the log", payload)
        self.definite.add(payload)

    def unknown(self, request: int) -> None:
        self._answer(request, "unknown")

    def _answer(self, request: int, answer: str) -> None:
        first = self.answered.get(request)
        _require(first is None, "answered twice", request, first, answer)
        self.answered[request] = answer

    def equal(self, nodes: Iterable[Node]) -> None:
        """At the end all members have committed and applied the same."""
        ends = {(n.core.commit, n.core.applied, n.core.log.last_index, n.chain) for n in nodes}
        _require(len(ends) == 1, "members differ at the end", ends)


def _require(holds: bool, text: str, *facts: object) -> None:
    if not holds:
        raise Violation(f"{text}: {' '.join(map(str, facts))}")
