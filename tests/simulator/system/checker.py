"""What must hold in the simulated system, checked as each thing happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from penstock.log.store import LogEntry
from penstock.raft.members import Members
from penstock.raft.quorum import majority
from penstock.topics.core.codec import decode_entries
from penstock.topics.core.entries import Appended, JobsAcked
from penstock.topics.engine.writers import PartitionWriter
from penstock.topics.persist.snapshot import SnapshotHeader, encode_snapshot
from tests.simulator.raft.checker import chained

if TYPE_CHECKING:
    from tests.simulator.system.node import Node

STATE_EVERY = 64


class Broken(BaseException):
    """A promise was broken. Not an `Exception`: no part of the system may catch it."""


class Checker:
    """The record of one run, over all nodes and partitions."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        self.leaders: dict[tuple[int, int], int] = {}  # by partition and term
        self.chains: dict[
            tuple[int, int], tuple[int, int]
        ] = {}  # by partition and index: term, chain
        self.last: dict[tuple[int, int], int] = {}  # by node and partition: what it applied
        self.commits: dict[tuple[int, int, int], int] = {}  # by node, life and partition
        self.states: dict[tuple[int, int], int] = {}
        self.ends: dict[tuple[int, int], bytes] = {}
        self.records: dict[
            tuple[str, int], str
        ] = {}  # by topic and seq: the key it was written with
        self.contents: dict[tuple[str, int], bytes] = {}
        self.keys: dict[str, tuple[str, int]] = {}
        self.definite: set[str] = set()
        self.answered: dict[int, str] = {}
        self.acked: dict[int, tuple[int, int]] = {}  # by partition: index and term of the last one
        self.floors: dict[str, int] = {}  # by topic: the last seq that a client was told of
        self.finished: dict[tuple[str, int], int] = {}  # by queue and job: the fence that was taken
        self.compared = 0

    # The log -----------------------------------------------------------------------------------
    def led(self, node: Node, partition: int, leader: int, term: int) -> None:
        """One leader a term, and it has what was ever acknowledged in its term or before.

        One that is cut off may say again that it leads a term which is over.
        """
        if leader != node.member:
            return
        first = self.leaders.setdefault((partition, term), leader)
        _require(first == leader, "two leaders of", partition, "in term", term, first, leader)
        index, found = self.acked.get(partition, (0, 0))
        log = node.journal.groups[partition].core.log
        held = term < found or index <= log.boundary or log.term_at(index) == found
        _require(held, "a leader lacks an acknowledged entry", node.member, partition, index)

    def started(self, node: Node, partition: int, index: int) -> None:
        """A state was read from a snapshot."""
        self.last[node.member, partition] = index
        _require(index == 0 or (partition, index) in self.chains, "an unknown snapshot", index)

    def applies(self, node: Node, writer: PartitionWriter, entry: LogEntry) -> None:
        """In order, the same on all nodes, and at first synced on a majority."""
        partition, index = writer.number, entry.index
        last = self.last[node.member, partition]
        _require(index == last + 1, "applied out of order", node.member, partition, index, last)
        self.last[node.member, partition] = index
        before = self.chains.get((partition, index - 1), (0, 0))[1]
        chain = (entry.term, chained(before, entry))
        known = self.chains.get((partition, index))
        if known is None:
            self.on_majority(node, partition, index, entry.term)
            self.chains[partition, index] = chain
            self._first_applied(entry)
        else:
            _require(known == chain, "nodes differ at", partition, index, known, chain)
        self._commit_grows(node, partition)

    def has_applied(self, writer: PartitionWriter, entry: LogEntry) -> None:
        """Equal states after every 64th entry."""
        if entry.index % STATE_EVERY == 0 and writer.is_idle:
            self.same_state(writer.number, entry.index, writer)

    def _commit_grows(self, node: Node, partition: int) -> None:
        key = (node.member, node.lives, partition)
        commit = node.journal.groups[partition].core.commit
        _require(commit >= self.commits.get(key, 0), "commit fell", node.member, partition)
        self.commits[key] = commit

    def _first_applied(self, entry: LogEntry) -> None:
        for each in decode_entries(entry.payload):
            if isinstance(each, Appended) and each.key is not None:
                _require(each.key not in self.definite, "refused, and in the log", each.key)
                _require(each.key not in self.keys, "written twice", each.key)
                self.keys[each.key] = (each.topic, each.first_seq)
                for seq in range(each.first_seq, each.first_seq + each.batch.count):
                    self.records[each.topic, seq] = each.key
            elif isinstance(each, JobsAcked):
                for seq in each.seqs:
                    self.records[each.topic, seq] = ""

    def same_state(self, partition: int, index: int, writer: PartitionWriter) -> None:
        """Equal states at equal indexes."""
        header = SnapshotHeader(partition, index)
        digest = crc32(b"".join(encode_snapshot(writer.partition, header)))
        first = self.states.setdefault((partition, index), digest)
        self.compared += 1
        _require(first == digest, "states differ at", partition, index)

    def snapshotted(self, node: Node, writer: PartitionWriter, index: int) -> None:
        _require(
            index <= self.last[node.member, writer.number], "a snapshot beyond what is applied"
        )
        self.same_state(writer.number, index, writer)

    def on_majority(self, node: Node, partition: int, index: int, term: int) -> None:
        """An entry is synced on a majority of the voters, as of that entry or of now."""
        core = node.journal.groups[partition].core
        if not self._synced_on(core.members, partition, index, term):
            before = core.members_at(max(index, core.snapshot.index))
            held = self._synced_on(before, partition, index, term)
            _require(held, "not synced on a majority", partition, index, term)

    def _synced_on(self, members: Members, partition: int, index: int, term: int) -> bool:
        count = 0
        for voter in members.voters:
            store = self.nodes[voter].store
            bounds = store.bounds(partition)
            if index <= bounds.boundary_index:
                count += 1
            elif index <= bounds.last_index:
                count += store.term_at(partition, index) == term
        return count >= majority(len(members.voters))

    # Clients -----------------------------------------------------------------------------------
    def written(
        self, node: Node, request: int, topic: str, key: str, seq: int, number: int
    ) -> None:
        """A write is acknowledged."""
        self._answer(request, "done")
        writer = node.writers[number]
        found = self.keys.get(key)
        _require(found == (topic, seq), "acknowledged as another record", key, found, seq)
        index = writer.applied_index
        term = self.chains[number, index][0] if (number, index) in self.chains else 0
        core = node.journal.groups[number].core
        if term and index > core.snapshot.index:
            self.on_majority(node, number, index, term)
            self.acked[number] = max(self.acked.get(number, (0, 0)), (index, term))
        self.floors[topic] = max(self.floors.get(topic, 0), seq)

    def refused(self, request: int, key: str) -> None:
        """The client was told that nothing of this request is or will be in the log."""
        self._answer(request, "refused")
        _require(key not in self.keys, "refused, and in the log", key)
        self.definite.add(key)

    def unknown(self, request: int) -> None:
        self._answer(request, "unknown")

    def read(self, request: int, topic: str, floor: int, head: int) -> None:
        """A linearizable read shows everything that was answered before it began."""
        self._answer(request, "read")
        _require(head >= floor, "a stale read", topic, floor, head)
        self.floors[topic] = max(self.floors.get(topic, 0), head)

    def watched(self, topic: str, cursor: int, found: list[tuple[int, bytes]]) -> None:
        """A watcher sees each seq once, in order, and everywhere the same."""
        for seq, data in found:
            cursor += 1
            _require(
                seq == cursor, "a watcher missed a record or saw one twice", topic, seq, cursor
            )
            first = self.contents.setdefault((topic, seq), data)
            _require(first == data, "two records are", topic, seq)

    def finished_job(self, request: int, queue: str, seq: int, fence: int) -> None:
        """A job is finished once, by one lease."""
        self._answer(request, "acked")
        first = self.finished.setdefault((queue, seq), fence)
        _require(first == fence, "a job was finished by two holders", queue, seq, first, fence)

    def answer(self, request: int, answer: str) -> None:
        self._answer(request, answer)

    def _answer(self, request: int, answer: str) -> None:
        first = self.answered.get(request)
        _require(first is None, "answered twice", request, first, answer)
        self.answered[request] = answer

    def equal(self, nodes: list[Node], partition: int) -> None:
        """At the end all nodes have applied the same and are in the same state."""
        ends = {self.last[node.member, partition] for node in nodes}
        _require(len(ends) == 1, "nodes ended differently", partition, ends)
        for node in nodes:
            self.same_state(partition, ends.copy().pop(), node.writers[partition])
            topics = node.writers[partition].partition.topics
            for name, seq in self.records:
                if name in topics and not name.startswith("q"):
                    held = topics[name].head_seq >= seq and topics[name].has(seq)
                    _require(held, "an acknowledged record is gone", node.member, name, seq)


def _require(holds: bool, text: str, *facts: Any) -> None:
    if not holds:
        raise Broken(f"{text}: {' '.join(map(str, facts))}")
