"""The whole system under one seed: real cores, journals, executors, WALs, writers, partitions and
stores; only the network, the clocks, the disks and the loop are simulated.

    result = run(seed, steps)

A step is one call of the loop. Time is in nanoseconds, a tick is 100 ms. `Violation` says what was
broken; the line to repeat the run is in its notes.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from penstock.kernel.errors import PenstockError, Unknown
from penstock.raft.members import ADD_LEARNER, PROMOTE, REMOVE, Change, Members
from penstock.raft.messages import InstallSnapshot
from penstock.raft.progress import Limits
from penstock.topics.core.batch import WriteRequest, parse_write
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.read import ReadRequest
from penstock.topics.core.topic import AppendResult
from tests.simulator.raft.checker import Violation
from tests.simulator.system.checker import Broken, Checker
from tests.simulator.system.loop import TICK_NS, SimLoop
from tests.simulator.system.node import MS, Node

PROFILES = (
    "calm", "lossy", "cuts", "isolated", "crash", "torn", "slow-disk", "full-disk", "sync-error",
    "bit-flips", "skew", "overload", "churn",
)  # fmt: skip
ANSWER_TICKS = 200
PATIENCE_TICKS = 40
COMPACT_TICKS = 7


@dataclass(frozen=True)
class Faults:
    """The faults of one run."""

    kinds: frozenset[str]
    voters: int
    spares: int
    clients: int
    limits: Limits = field(compare=False)
    shares: tuple[float, ...] = ()
    drop: float = 0.0
    delay_ms: int = 20
    disk_ms: int = 10
    torn: float = 0.0
    payload: int = 20
    every_ms: int = 700  # mean time between faults
    think_ms: int = 300  # of a client between two requests
    snapshot_every: int = 40

    def tick_share(self, member: int) -> float:
        """How long a tick of a node is, as its clock goes."""
        return self.shares[member - 1]


def draw_faults(random: Random, profile: str, without: frozenset[str]) -> Faults:
    """A swarm: the profile's own fault, and each other one with some chance."""
    kinds = {kind for kind in PROFILES[1:] if random.random() < 0.2} | {profile}
    if profile == "calm":
        kinds = {"calm"}
    kinds -= without
    low, window = random.randint(3, 5), random.choice((2_000, 20_000))
    voters, spares = random.choice((3, 3, 3, 5)), 1 if "churn" in kinds else 0
    return Faults(
        kinds=frozenset(kinds), voters=voters, spares=spares,
        clients=random.randint(6, 12) if "overload" in kinds else random.randint(3, 6),
        limits=Limits(
            election_ticks_min=low, election_ticks_max=low + random.randint(3, 5),
            message_bytes=random.choice((200, 4_000)), inflight_messages=random.choice((2, 16)),
            inflight_bytes=window, inflight_bytes_min=window // 4, inflight_bytes_max=window * 4,
            uncommitted_bytes=random.choice((4_000, 100_000)),
            held_bytes=random.choice((0, 2_000, 50_000)), saturated_ticks=random.randint(1, 5),
            near_bytes=random.choice((500, 5_000)),
        ),
        shares=tuple(
            random.choice((0.7, 1.0, 1.4)) if "skew" in kinds else 1.0
            for _ in range(voters + spares)
        ),
        drop=random.uniform(0.01, 0.15) if "lossy" in kinds else 0.0,
        delay_ms=random.choice((10, 40, 80)) if "lossy" in kinds else 15,
        disk_ms=random.choice((60, 150)) if "slow-disk" in kinds else 8,
        torn=random.uniform(0.003, 0.02) if "torn" in kinds else 0.0,
        payload=random.choice((200, 600)) if "overload" in kinds else 20,
        every_ms=random.choice((250, 700)),
        think_ms=60 if "overload" in kinds else 300,
        snapshot_every=random.choice((10, 40, 120)),
    )  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    seed: int
    profile: str
    events: int
    """Calls of the loop."""
    acked: int
    leaders: int
    crashes: int
    ticks: int
    compared: int
    power_cuts: int
    """Crashes in which a disk lost what it had not synced."""
    minority_cuts: int
    """Those of them that left a majority of the nodes up."""
    dark_max: int
    """The most nodes that were down at a time, one of them for lack of power."""

    @property
    def is_vacuous(self) -> bool:
        return self.leaders == 0 or self.acked < 10


class World:
    """The nodes, the network between them, their clients and what goes wrong."""

    def __init__(
        self, seed: int, profile: str, *, without: frozenset[str] = frozenset(),
        trace: list[str] | None = None,
    ) -> None:  # fmt: skip
        self.seed, self.profile, self.trace = seed, profile, trace
        self.random = Random(f"system {profile} {seed}")
        self.faults = draw_faults(self.random, profile, without)
        self.loop = SimLoop()
        self.partitions = range(self.random.choice((1, 2)))
        self.blocked: set[tuple[int, int]] = set()
        self.slow: set[int] = set()
        self.is_faulty, self.is_quiet = True, False
        self.acked = self.crashes = self.requests = self.keys = 0
        self.power_cuts = self.minority_cuts = self.dark_max = 0
        self.served: dict[int, int] = {}
        self.owners: dict[int, int] = {}  # request that is not answered: its client
        self.cursors: dict[tuple[int, str], int] = {}
        self.hints: dict[int, int] = {}
        voters = tuple(range(1, self.faults.voters + 1))
        everyone = range(1, self.faults.voters + self.faults.spares + 1)
        self.nodes: dict[int, Node] = {}
        self.checker = Checker(self.nodes)
        for member in everyone:
            founders = Members(voters if member in voters else ())
            self.nodes[member] = Node(self, member, founders)
        for node in self.nodes.values():
            if "skew" in self.faults.kinds:
                node.ahead_ms = self.random.choice((0, 0, 5_000, 60_000))
            node.start()
        for client in range(self.faults.clients):
            self.loop.at(self._ms(500), self._client, client)
        self.loop.at(COMPACT_TICKS * TICK_NS, self._compact)
        self.loop.at(self.faults.every_ms * MS, self._fault)

    def _ms(self, most: int) -> int:
        return int(self.random.random() * most * MS) + MS

    def run(self, steps: int) -> None:
        """Make this many calls."""
        loop = self.loop
        for _ in range(steps):
            loop.step()
            if self.trace is not None:
                self.trace.append(f"{loop.now_ns} {self._ends()}")

    def _ends(self) -> str:
        return " ".join(
            f"{core.term}.{core.log.last_index}.{core.commit}.{core.applied}"
            for node in self.nodes.values() if node.is_up
            for core in [group.core for group in node.journal.groups.values()]
        )  # fmt: skip

    # The network -------------------------------------------------------------------------------
    def send(self, sender: Node, to: int, letter: bytes, *, is_droppable: bool) -> None:
        if (sender.member, to) in self.blocked or to not in self.nodes:
            return
        if self.is_faulty and self.random.random() < self.faults.drop:
            return
        node = self.nodes[to]
        self.loop.at(self._ms(self.faults.delay_ms), self._arrive, node, sender.member, letter)

    def _arrive(self, node: Node, sender: int, letter: bytes) -> None:
        if node.is_up:
            node.receive(sender, letter)

    def send_snapshot(self, sender: Node, partition: int, message: InstallSnapshot) -> None:
        kept = dict(sender.snapshots[partition])
        data = kept.get(message.mark.index)
        is_lost = data is None or (self.is_faulty and self.random.random() < self.faults.drop)
        self.loop.at(
            self._ms(400), self._snapshot_arrives, sender, sender.lives, partition, message,
            None if is_lost else data,
        )  # fmt: skip

    def _snapshot_arrives(
        self, sender: Node, life: int, partition: int, message: InstallSnapshot, data: bytes | None
    ) -> None:
        node = self.nodes[message.to]
        arrives = data is not None and node.is_up
        arrives = arrives and (sender.member, message.to) not in self.blocked
        if arrives:
            node._call(node.install, partition, message, data)
        if sender.is_up and sender.lives == life:
            sent = sender.journal.snapshot_sent
            self.loop.at(self._ms(50), sender._call, sent, partition, message.to, arrives)

    # Disks -------------------------------------------------------------------------------------
    def disk_delay_ms(self, node: Node) -> float:
        slow = self.is_faulty and node.member in self.slow
        return 1 + self.random.random() * self.faults.disk_ms * (10 if slow else 1)

    def handed(self, node: Node) -> None:
        """Something was handed to a disk: the power may go just now."""
        if self.is_faulty and self.faults.torn and self.random.random() < self.faults.torn:
            self.loop.at(self._ms(self.faults.disk_ms), self._crash, node, node.lives, True)

    def may_be_damaged(self, node: Node) -> bool:
        return "bit-flips" in self.faults.kinds and not any(
            other.is_damaged for other in self.nodes.values() if other is not node
        )

    # Clients -----------------------------------------------------------------------------------
    def _client(self, client: int) -> None:
        """One request: mostly a write; also linearizable reads, watchers and workers of a queue."""
        if self.is_quiet:
            return
        self.requests = request = self.requests + 1
        self.owners[request] = client
        number = self.random.choice(self.partitions)
        node = self._pick(number)
        self.loop.at(self._ms(PATIENCE_TICKS * 100), self._time_limit, request)
        if client % 3 == 1:
            self._watch(client, number)
        kind = self.random.random()
        if not node.is_up:
            self.owners.pop(request)
            self._again(client)
        elif kind < 0.15:
            node._call(self._read, request, node, number)
        elif kind < 0.3:
            node._call(self._work, request, node, number)
        else:
            self.keys += 1
            node._call(self._write, request, node, number, f"k{self.keys}", self._topic(number))

    def _topic(self, number: int) -> str:
        return f"t{number}-{self.random.randrange(2)}"

    def _pick(self, number: int) -> Node:
        hint = self.hints.get(number, 0)
        if hint not in self.nodes or self.random.random() < 0.1:
            return self.random.choice(list(self.nodes.values()))
        return self.nodes[hint]

    def _write(self, request: int, node: Node, number: int, key: str, topic: str) -> None:
        data = (
            f'{{"records":[{{"data":"{key}{"." * self.random.randrange(self.faults.payload)}"}}]}}'
        )
        write = WriteRequest(parse_write(data.encode()).batch, key)
        writer = node.writers[number]
        done = partial(self._written, request, node, number, key, topic)
        try:
            if writer.is_held:
                writer.later(_nothing)
            decided = writer.partition.decide_write(topic, write, node.clock.now_ms())
        except PenstockError as error:
            done(error)
            return
        if isinstance(decided, AppendResult):
            if decided.last_seq <= writer.partition.topics[topic].head_seq:
                done([decided])
            else:
                writer.after(lambda got: done(got if isinstance(got, Exception) else [decided]))
        else:
            writer.submit(decided, done, sync=True)

    def _written(
        self, request: int, node: Node, number: int, key: str, topic: str, answer: Any
    ) -> None:
        client = self.owners.pop(request, None)
        if client is None:
            return
        if isinstance(answer, Unknown):
            self.checker.unknown(request)
            self.loop.at(self._ms(100), self._repeat, client, number, key, topic)
        elif isinstance(answer, Exception):
            self._note_hint(number, answer)
            self.checker.refused(request, key)
            self._again(client)
        else:
            self.checker.written(node, request, topic, key, answer[-1].first_seq, number)
            self._done(client, node, number)

    def _repeat(self, client: int, number: int, key: str, topic: str) -> None:
        """The same key again: what is unknown becomes known."""
        node = self._pick(number)
        if self.is_quiet:
            return
        if not node.is_up:
            self.hints.pop(number, None)
            self.loop.at(self._ms(200), self._repeat, client, number, key, topic)
            return
        self.requests = request = self.requests + 1
        self.owners[request] = client
        self.loop.at(self._ms(PATIENCE_TICKS * 100), self._time_limit, request)
        node._call(self._write_again, request, node, number, key, topic)

    def _write_again(self, request: int, node: Node, number: int, key: str, topic: str) -> None:
        """A refusal of a repeated write says nothing about the first one."""
        owner = self.owners[request]
        writer = node.writers[number]
        if writer.is_held:
            self.owners.pop(request)
            self.checker.answer(request, "refused")
            refusal = writer.refusal
            if refusal is not None:
                self._note_hint(number, refusal)
            self.loop.at(self._ms(300), self._repeat, owner, number, key, topic)
            return
        self._write(request, node, number, key, topic)

    def _read(self, request: int, node: Node, number: int) -> None:
        topic = self._topic(number)
        floor = self.checker.floors.get(topic, 0)

        async def read() -> None:
            try:
                await node.journal.confirm_read(number)
            except PenstockError as error:
                self._note_hint(number, error)
                self._give_up(request)
                return
            client = self.owners.pop(request, None)
            if client is not None:
                found = node.writers[number].partition.topics.get(topic)
                self.checker.read(request, topic, floor, found.head_seq if found else 0)
                self._done(client, node, number)

        node.loop.create_task(read())

    def _watch(self, client: int, number: int) -> None:
        """A watcher goes on anywhere with its cursor; a node that is behind lets it wait."""
        node = self.random.choice(list(self.nodes.values()))
        if not node.is_up:
            return
        topic = self._topic(number)
        found = node.writers[number].partition.topics.get(topic)
        cursor = self.cursors.get((client, topic), 0)
        if found is None or found.head_seq < cursor:
            return
        page = node.writers[number].partition.read(topic, ReadRequest(cursor), node.clock.now_ms())
        seen = [(slot.seq, bytes(slot.record.data)) for slot in page.records]
        self.checker.watched(topic, cursor, seen)
        self.cursors[client, topic] = page.next_from_seq

    def _work(self, request: int, node: Node, number: int) -> None:
        """Claim a job and finish it; or make one."""
        queue, writer = f"q{number}", node.writers[number]
        now_ms = node.clock.now_ms()
        done = partial(self._worked, request, node, number)
        try:
            if writer.is_held:
                writer.later(_nothing)
            partition = writer.partition
            if queue not in partition.topics:
                if not writer.is_idle:
                    done(Unknown("it is being made"))
                    return
                config = {"type": "queue", "lease_ms": 1_000}
                change = partition.decide_config(queue, config, now_ms)
            elif self.random.random() < 0.5:
                written = parse_write(b'{"records":[{"data":1}]}').batch
                decided = partition.decide_write(queue, WriteRequest(written), now_ms)
                assert not isinstance(decided, AppendResult)
                change = decided
            else:
                token = self.random.randrange(1 << 40)
                change = partition.decide_claim(queue, [ClaimRequest(f"w{request}")], now_ms, token)
                done = partial(self._claimed, request, node, number, change)
            writer.submit(change, done, sync=True)
        except PenstockError as error:
            done(error)

    def _claimed(self, request: int, node: Node, number: int, change: Any, answer: Any) -> None:
        if isinstance(answer, Exception) or not change.entries or not change.entries[0].leases:
            self._worked(request, node, number, answer)
            return
        lease = change.entries[0].leases[0]
        self.loop.at(self._ms(1_500), self._finish, request, number, f"w{request}", lease)

    def _finish(self, request: int, number: int, worker: str, lease: Any) -> None:
        node = self._pick(number)
        if not node.is_up or request not in self.owners:
            self._give_up(request)
            return
        node._call(self._ack, request, node, number, worker, lease)

    def _ack(self, request: int, node: Node, number: int, worker: str, lease: Any) -> None:
        queue, writer = f"q{number}", node.writers[number]
        try:
            if writer.is_held:
                writer.later(_nothing)
            settle = Settle(worker, (lease.seq,), (lease.fence,))
            held = writer.partition.queue(queue)
            entry, skipped = held.decide_ack(settle, node.clock.now_ms())
        except PenstockError as error:
            self._worked(request, node, number, error)
            return

        def done(answer: Any) -> None:
            client = self.owners.pop(request, None)
            if client is None:
                return
            if isinstance(answer, Exception) or skipped:
                self.checker.answer(request, "not acked")
                self._again(client)
            else:
                self.checker.finished_job(request, queue, lease.seq, lease.fence)
                self._done(client, node, number)

        writer.submit(writer.partition.change_of(entry), done, sync=True)

    def _worked(self, request: int, node: Node, number: int, answer: Any) -> None:
        client = self.owners.pop(request, None)
        if client is None:
            return
        if isinstance(answer, Exception):
            self._note_hint(number, answer)
            self.checker.answer(request, "failed")
            self._again(client)
        else:
            self.checker.answer(request, "worked")
            self._done(client, node, number)

    def _note_hint(self, number: int, error: Exception) -> None:
        detail = error.detail if isinstance(error, PenstockError) else {}
        self.hints[number] = detail.get("leader", 0)

    def _time_limit(self, request: int) -> None:
        if request in self.owners:
            self._give_up(request)

    def _give_up(self, request: int) -> None:
        client = self.owners.pop(request, None)
        if client is not None:
            self.checker.unknown(request)
            self.hints.clear()
            self._again(client)

    def _done(self, client: int, node: Node, number: int) -> None:
        self.acked += 1
        self.served[client] = self.loop.now_ns
        self.hints[number] = (
            node.member if node.journal.serves(number) else self.hints.get(number, 0)
        )
        self._again(client)

    def _again(self, client: int) -> None:
        self.loop.at(self._ms(self.faults.think_ms), self._client, client)

    # Faults ------------------------------------------------------------------------------------
    def _fault(self) -> None:
        if not self.is_faulty:
            return
        self.loop.at(self._ms(2 * self.faults.every_ms), self._fault)
        kind = self.random.choice(sorted(self.faults.kinds | {self.profile}))
        if kind not in self.faults.kinds:
            return
        node = self.random.choice(list(self.nodes.values()))
        made = getattr(self, "_fault_" + kind.replace("-", "_"), None)
        if made is not None:
            made(node)

    def _fault_cuts(self, node: Node) -> None:
        other = self.random.choice(list(self.nodes.values()))
        pairs = {(node.member, other.member)}
        if self.random.random() < 0.5:
            pairs.add((other.member, node.member))
        self.blocked |= pairs
        self.loop.at(self._ms(4_000), self._unblock, pairs)

    def _fault_isolated(self, _: Node) -> None:
        leaders = [n for n in self.nodes.values() if n.is_up and n.journal.serves(0)]
        for node in leaders:
            pairs = {(node.member, to) for to in self.nodes} | {
                (to, node.member) for to in self.nodes
            }
            self.blocked |= pairs
            self.loop.at(self._ms(3_000), self._unblock, pairs)

    def _unblock(self, pairs: set[tuple[int, int]]) -> None:
        if self.is_faulty:
            self.blocked -= pairs

    def _fault_crash(self, node: Node) -> None:
        self._crash(node, node.lives, self.random.random() < 0.6)

    def _crash(self, node: Node, life: int, power: bool) -> None:
        if not node.is_up or node.lives != life or not self.is_faulty:
            return
        self.crashes += 1
        node.crash(power=power)
        if power:
            self._count_power_cut()
        self.loop.at(self._ms(3_000), self._restart, node, node.lives)

    def _count_power_cut(self) -> None:
        dark = sum(not node.is_up for node in self.nodes.values())
        self.power_cuts += 1
        self.minority_cuts += 2 * dark < len(self.nodes)
        self.dark_max = max(self.dark_max, dark)

    def _restart(self, node: Node, life: int) -> None:
        if not node.is_up and not node.is_damaged and node.lives == life:
            node.start()

    def _fault_slow_disk(self, node: Node) -> None:
        self.slow.add(node.member)
        self.loop.at(self._ms(3_000), self.slow.discard, node.member)

    def _fault_full_disk(self, node: Node) -> None:
        if node.is_up:
            node.disk.space_bytes = self.random.choice((0, 3_000))
            self.loop.at(self._ms(3_000), self._room, node, node.disk)

    def _room(self, node: Node, disk: Any) -> None:
        disk.space_bytes = None

    def _fault_sync_error(self, node: Node) -> None:
        """The node leads and votes no more until it is started again."""
        if node.is_up:
            node.disk.sync_error_after = self.random.randrange(3)
            self.loop.at(self._ms(4_000), self._crash, node, node.lives, False)

    def _fault_bit_flips(self, node: Node) -> None:
        """A byte in the middle of a log, found when the node starts again."""
        if not node.is_up or not self.may_be_damaged(node) or node.is_damaged:
            return
        self._crash(node, node.lives, False)
        names = [name for name in node.disk.names() if name.endswith(".seg")]
        if names:
            name = self.random.choice(names)
            used = len(node.disk.content(name).rstrip(b"\0"))
            if used > 200:
                node.disk.flip(
                    name, self.random.randrange(used // 4), 1 << self.random.randrange(8)
                )

    def _fault_churn(self, _: Node) -> None:
        number = self.random.choice(self.partitions)
        leader = self._leader(number)
        if leader is None:
            return
        members = leader.journal.members(number)
        outside = [m for m in self.nodes if m not in members]
        if members.learners:
            change = Change(PROMOTE, members.learners[0])
        elif outside:
            change = Change(ADD_LEARNER, outside[0])
        else:
            gone = [m for m in members.voters if m != leader.member]
            change = Change(REMOVE, self.random.choice(gone))

        async def changed() -> None:
            try:
                await leader.journal.change_members(number, change)
            except PenstockError:
                return

        leader._call(leader.loop.create_task, changed())

    def _fault_skew(self, node: Node) -> None:
        """Leadership is handed over to a node with another clock."""
        number = self.random.choice(self.partitions)
        leader = self._leader(number)
        if leader is not None and node is not leader:
            try:
                leader._call(leader.journal.transfer, number, node.member)
            except PenstockError:
                return

    def _leader(self, number: int) -> Node | None:
        return next((n for n in self.nodes.values() if n.is_up and n.journal.serves(number)), None)

    def _compact(self) -> None:
        self.loop.at(COMPACT_TICKS * TICK_NS, self._compact)
        for node in self.nodes.values():
            if node.is_up:
                node._call(node.compact)

    # The end -----------------------------------------------------------------------------------
    def heal(self, frozen: frozenset[int] = frozenset()) -> None:
        """No faults any more; frozen nodes stay as they are, without a word."""
        self.is_faulty = False
        self.blocked = {(a, b) for a in self.nodes for b in self.nodes if {a, b} & frozen}
        self.faults = replace(self.faults, drop=0.0, torn=0.0)
        for node in self.nodes.values():
            if node.member in frozen or node.is_damaged:
                continue
            node.disk.space_bytes = node.disk.sync_error_after = None
            if node.is_up and node.has_failed:
                node.crash(power=False)
            if not node.is_up:
                node.start()

    def finish(self) -> None:
        """All heal, and all that take part are equal soon after."""
        self.heal()
        self.is_quiet = True
        end = self.loop.now_ns + ANSWER_TICKS * TICK_NS
        while self.loop.now_ns < end and not all(map(self._is_settled, self.partitions)):
            self.loop.run_until(self.loop.now_ns + 10 * TICK_NS)
        for number in self.partitions:
            leader = self._leader(number)
            if leader is None:
                raise Violation(f"partition {number} has no leader although all nodes are healthy")
            self.checker.equal(self._taking_part(leader, number), number)
        for node in self.nodes.values():
            if node.is_up and node.loop.errors:
                raise Violation(f"node {node.member}: {node.loop.errors}")

    def _taking_part(self, leader: Node, number: int) -> list[Node]:
        members = leader.journal.members(number).everyone()
        return [self.nodes[member] for member in members if self.nodes[member].is_up]

    def _is_settled(self, number: int) -> bool:
        leader = self._leader(number)
        if leader is None:
            return False
        last = leader.journal.last_index(number)
        found = self._taking_part(leader, number)
        return all(
            node.journal.applied(number) == last and node.writers[number].is_idle for node in found
        )

    def result(self) -> Result:
        return Result(
            self.seed, self.profile, self.loop.steps, self.acked, len(self.checker.leaders),
            self.crashes, self.loop.now_ns // TICK_NS, self.checker.compared,
            self.power_cuts, self.minority_cuts, self.dark_max,
        )  # fmt: skip


def profile_of(seed: int) -> str:
    return PROFILES[seed % len(PROFILES)]


def run(seed: int, steps: int, *, profile: str = "", **options: Any) -> Result:
    """Safety: faults throughout, then all heal and are equal."""
    world = World(seed, profile or profile_of(seed), **options)
    with _repeatable(world, f"--steps {steps}"):
        world.run(steps)
        result = world.result()
        world.finish()
    return replace(result, compared=world.checker.compared)


def run_liveness(seed: int, steps: int, *, profile: str = "", **options: Any) -> Result:
    """Liveness: from some step on a majority is healthy, and every client is served."""
    without = frozenset({"churn", "bit-flips"})
    world = World(seed, profile or profile_of(seed), without=without, **options)
    with _repeatable(world, f"--steps {steps} --liveness"):
        world.run(steps)
        most = (len(world.nodes) - 1) // 2
        frozen = world.random.sample(sorted(world.nodes), world.random.randint(0, most))
        world.heal(frozenset(frozen))
        since = world.loop.now_ns
        clients = range(world.faults.clients)
        while waiting := [c for c in clients if world.served.get(c, -1) <= since]:
            if world.loop.now_ns > since + ANSWER_TICKS * TICK_NS:
                raise Violation(f"clients {waiting} were not served within {ANSWER_TICKS} ticks")
            world.loop.run_until(world.loop.now_ns + TICK_NS)
    return world.result()


def shortened(seed: int, steps: int, profile: str) -> frozenset[str]:
    """The kinds of faults without which a run that fails does not fail any more."""
    without: set[str] = set()
    for kind in sorted(World(seed, profile).faults.kinds):
        try:
            run(seed, steps, profile=profile, without=frozenset(without | {kind}))
        except Exception:
            without.add(kind)
    return World(seed, profile, without=frozenset(without)).faults.kinds


@contextmanager
def _repeatable(world: World, options: str) -> Iterator[None]:
    line = f"--system --seed {world.seed} --profile {world.profile} {options}"
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    except (Exception, Broken) as error:
        failure = Violation(str(error)) if isinstance(error, Broken) else error
        failure.add_note(f"repeat with: python -m tests.simulator.raft {line}")
        raise failure from None
    finally:
        asyncio._set_running_loop(None)
        for node in world.nodes.values():
            node.loop.end()
        if was_enabled:
            gc.enable()


def _nothing() -> None:
    pass


_Call = Callable[..., Any]
