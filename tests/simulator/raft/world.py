"""A group of real cores on a simulated network, disk and clock; one seed decides everything.

    result = run(seed, steps)

Time is an integer, 100 a tick. Each step takes the next event: a message arrives, a sync ends, a
tick passes, a client acts, something breaks. `Violation` says what was broken; the line to repeat
the run is in its notes.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from random import Random
from typing import Any

from penstock.kernel.errors import PenstockError
from penstock.log.store import LogEntry
from penstock.raft.core import Core, Role
from penstock.raft.members import (
    ADD_LEARNER,
    MARK,
    PROMOTE,
    REMOVE,
    Change,
    Members,
    decode_members,
)
from penstock.raft.messages import InstallSnapshot, Message, VoteAnswer
from penstock.raft.ready import Fetch, Ready
from tests.simulator.raft.checker import Checker, Violation
from tests.simulator.raft.disk import Disk
from tests.simulator.raft.faults import PROFILES, TICK, Faults, draw_faults

REQUEST_TICKS = 40
READER = 0
ANSWER_TICKS = 200
"""With a healthy majority every client is answered within this time."""


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    seed: int
    profile: str
    events: int
    """Calls of cores."""
    acked: int
    leaders: int
    ticks: int
    crashes: int

    @property
    def is_vacuous(self) -> bool:
        return self.leaders == 0 or self.acked < 10


class Node:
    """One member: its core, its disk and what is on its way to the disk."""

    def __init__(self, member: int, disk: Disk) -> None:
        self.member, self.disk = member, disk
        self.core: Core
        self.life = 0
        self.is_up = False
        self.commit = self.applied = self.chain = 0
        self.led_term = 0
        self.due = 0  # when the last write on its way is synced
        self.report_due = 0  # and when its core hears of it
        self.writes: deque[Ready] = deque()
        self.waiting: dict[int, tuple[int, int]] = {}  # index: request, term
        self.reads: dict[int, int] = {}  # request: floor
        self.confirmed: list[tuple[int, int]] = []  # index, request

    def log_after(self, index: int) -> list[LogEntry]:
        log = self.core.log
        return log.slice(max(index + 1, log.held_from), log.last_index)

    def members_before(self, index: int) -> Members:
        """The members as of the entry before `index`, read from the log itself."""
        for entry in reversed(self.log_after(self.core.snapshot.index)):
            if entry.index < index and entry.payload.startswith(MARK):
                return decode_members(entry.payload)
        return self.core.members_at(max(index - 1, self.core.snapshot.index))


class World:
    """The members, the network between them, their clients and what goes wrong."""

    def __init__(
        self, seed: int, profile: str, *, core: type[Core] = Core,
        without: frozenset[str] = frozenset(), trace: list[str] | None = None,
    ) -> None:  # fmt: skip
        self.random = Random(f"{profile} {seed}")
        self.chance = self.random.random
        self.seed, self.profile, self.core_type, self.trace = seed, profile, core, trace
        self.faults: Faults = draw_faults(self.random, profile, without)
        self.now = self.sequence = self.events = self.crashes = self.requests = self.acked = 0
        self.queue: list[tuple[int, int, Callable[..., None], Any]] = []
        self.blocked: set[tuple[int, int]] = set()
        self.is_faulty, self.is_quiet = True, False
        self.late = self.faults.late
        self.slow: dict[int, int] = {}
        self.skew: dict[int, int] = {}
        self.owner: dict[int, int] = {}  # request that is not answered: its client
        self.served: dict[int, int] = {}  # client: when it was last answered with success
        self.leader_hint = 0
        voters = tuple(range(1, self.faults.voters + 1))
        everyone = range(1, self.faults.voters + self.faults.spares + 1)
        self.nodes = {
            member: Node(member, Disk(Members(voters if member in voters else ())))
            for member in everyone
        }
        self.checker = Checker(self.nodes)
        for node in self.nodes.values():
            self._start(node)
        for client in range(self.faults.clients):
            self._at(1 + int(self.chance() * 500), self._client, client)
        self._at(self.faults.every, self._fault, None)

    # The loop ----------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Take this many events."""
        queue = self.queue
        for _ in range(steps):
            self.now, _, action, argument = heappop(queue)
            action(argument)

    def run_until(self, end: int) -> None:
        """Take all events up to a time."""
        while self.queue[0][0] <= end:
            self.now, _, action, argument = heappop(self.queue)
            action(argument)
        self.now = end

    def _at(self, delay: int, action: Callable[..., None], argument: Any) -> None:
        self.sequence = sequence = self.sequence + 1
        heappush(self.queue, (self.now + delay, sequence, action, argument))

    # Members -----------------------------------------------------------------------------------

    def _start(self, node: Node) -> None:
        random = self.random
        node.core = self.core_type(
            node.member, node.disk.restored(), draw=random.randint,
            began=lambda term: b"began %d" % term, limits=self.faults.limits,
        )  # fmt: skip
        node.life += 1
        node.is_up = True
        node.commit = node.applied = node.core.applied
        node.chain = self.checker.applied[node.applied][1]
        node.due, node.report_due, node.led_term = self.now, 0, 0
        self._at(1 + int(self.chance() * TICK), self._tick, (node, node.life))

    def _crash(self, node: Node) -> None:
        """Power off: some of the writes on their way are on the disk, the rest is lost."""
        if not node.is_up:
            return
        self.crashes += 1
        node.is_up = False
        node.life += 1
        for _ in range(self.random.randint(0, len(node.writes))):
            node.disk.write(node.writes.popleft())
        node.writes.clear()
        self._lose_clients(node)

    def _tick(self, which: tuple[Node, int]) -> None:
        node, life = which
        if life != node.life:
            return
        self._at(self.skew.get(node.member, TICK), self._tick, which)
        node.core.tick()
        self._settle(node, "tick")

    def _arrive(self, message: Message) -> None:
        node = self.nodes[message.to]
        if node.is_up:
            node.core.step(message)
            self._settle(node, message)

    def _synced(self, which: tuple[Node, int]) -> None:
        node, life = which
        if life != node.life or not node.writes:
            return
        ready = node.writes.popleft()
        node.disk.write(ready)
        if not node.core.halted:
            self._send_all(ready.after)
        if self.late and self.is_faulty and self.chance() < self.late:
            node.report_due = max(node.report_due, self.now + 1 + int(self.chance() * 500))
        if node.report_due > self.now:
            self._at(node.report_due - self.now, self._report, (node, life, ready))
        else:
            self._report((node, life, ready))

    def _report(self, which: tuple[Node, int, Ready]) -> None:
        """The core hears of a sync; a busy loop tells it late."""
        node, life, ready = which
        if life != node.life:
            return
        core = node.core
        core.persisted(ready.written)
        if ready.snapshot is not None and core.applied >= ready.snapshot.index:
            self.checker.installed(node, ready.snapshot.index)
        self.checker.synced(node)
        self._settle(node, "synced")

    def _settle(self, node: Node, cause: object) -> None:
        """Do what a core owes after an event, and check what must hold."""
        self.events += 1
        core, checker = node.core, self.checker
        ready = core.ready()
        if self.trace is not None:
            self.trace.append(f"{self.now} {core.member} {cause} {core.term} {core.commit}")
        if core.role is Role.LEADER:
            if node.led_term != core.term:
                node.led_term = core.term
                checker.elected(node)
        elif node.waiting:
            self._lose_writes(node)
        if ready is not None:
            self._do(node, ready)
        checker.moved(node)
        if node.confirmed:
            self._answer_reads(node)

    def _do(self, node: Node, ready: Ready) -> None:
        if ready.entries:
            self._hand(node, ready)
        self._send_all(ready.now)
        if ready.must_write or (ready.after and node.writes):
            node.writes.append(ready)
            delay = 1 + int(self.chance() * self.slow.get(node.member, self.faults.disk_delay))
            node.due = max(node.due, self.now + delay)
            self._at(node.due - self.now, self._synced, (node, node.life))
            if self.is_faulty and self.faults.torn:
                # Votes are rare, so that a crash is more likely right after one.
                likely = self.faults.torn * (40 if ready.hard is not None else 1)
                if self.chance() < likely:
                    when = int(self.chance() * 2 * (node.due - self.now))
                    self._at(when, self._torn, (node, node.life))
        else:
            self._send_all(ready.after)
        for request in ready.lost_reads:
            self._unknown(node, request)
        for read in ready.reads:
            node.confirmed.append((read.index, read.context))
        for fetch in ready.fetch:
            self._at(1 + int(self.chance() * 30), self._fetched, (node, node.life, fetch))
        if ready.apply:
            self._apply(node, ready)

    def _hand(self, node: Node, ready: Ready) -> None:
        handed = self.checker.handed
        prev_term = node.core.log.term_at(ready.entries[0].index - 1)
        for entry in ready.entries:
            handed(node, entry, prev_term)
            prev_term = entry.term

    def _apply(self, node: Node, ready: Ready) -> None:
        for entry in ready.apply:
            self.checker.apply(node, entry)
            if node.waiting and (waiting := node.waiting.pop(entry.index, None)) is not None:
                request, term = waiting
                if term == entry.term:
                    self._done(node, request, entry)
                else:
                    self._unknown(node, request)
        core = node.core
        core.applied_to(node.applied)
        if core.applied - core.snapshot.index >= self.faults.snapshot_every:
            self._snapshot(node)

    def _snapshot(self, node: Node) -> None:
        """Ask for more than may be; a core refuses what is not applied."""
        core = node.core
        try:
            core.snapshotted(core.log.last_index)
        except ValueError:
            core.snapshotted(core.applied)
        self.checker.snapshotted(node)
        node.disk.snapshot(core.snapshot)
        upto = core.snapshot.index - self.faults.keep
        if upto > core.log.boundary:
            core.compacted(upto)
            node.disk.compact(upto)

    def _fetched(self, which: tuple[Node, int, Fetch]) -> None:
        node, life, fetch = which
        if life == node.life:
            node.core.fetched(fetch, node.disk.read(fetch.first, fetch.last, 8))
            self._settle(node, "fetched")

    # The network -------------------------------------------------------------------------------

    def _send_all(self, messages: Any) -> None:
        faults, chance = self.faults, self.chance
        for message in messages:
            kind = type(message)
            if kind is VoteAnswer:
                self.checker.voted(self.nodes[message.sender], message)
            elif kind is InstallSnapshot:
                self._send_snapshot(message)
                continue
            if self.blocked and (message.sender, message.to) in self.blocked:
                continue
            if self.is_faulty and faults.drop:
                if chance() < faults.drop:
                    continue
                if chance() < faults.repeat:
                    self._at(1 + int(chance() * 400), self._arrive, message)
            self._at(1 + int(chance() * faults.delay), self._arrive, message)

    def _send_snapshot(self, message: InstallSnapshot) -> None:
        is_lost = (message.sender, message.to) in self.blocked or (
            self.is_faulty and self.chance() < self.faults.drop
        )
        delay = 20 + int(self.chance() * 300)
        if not is_lost:
            self._at(delay, self._arrive, message)
        node = self.nodes[message.sender]
        self._at(delay + 100, self._snapshot_sent, (node, node.life, message.to, not is_lost))

    def _snapshot_sent(self, which: tuple[Node, int, int, bool]) -> None:
        node, life, to, arrived = which
        if life == node.life:
            node.core.snapshot_sent(to, arrived)
            self._settle(node, "snapshot sent")

    # Clients -----------------------------------------------------------------------------------

    def _client(self, client: int) -> None:
        """Make one request: writes where a leader was seen, reads anywhere.

        One client does nothing but read: a member that no longer leads must not answer it.
        """
        if self.is_quiet:
            return
        self.requests = request = self.requests + 1
        self.owner[request] = client
        is_read = client == READER or self.chance() < 0.1
        member = self.leader_hint
        if not member or self.chance() < (0.7 if is_read else 0.1):
            member = 1 + int(self.chance() * len(self.nodes))
        # A client that gives up soon meets a new leader while the old one still believes in itself.
        patience = 2 + int(self.chance() ** 3 * REQUEST_TICKS)
        self._at(patience * TICK, self._time_limit, request)
        (self._read if is_read else self._write)(self.nodes[member], request)

    def _write(self, node: Node, request: int) -> None:
        core = node.core
        payload = b"%d" % request + b"." * int(self.chance() * self.faults.payload)
        try:
            if not node.is_up:
                raise PenstockError("connection refused")
            index = core.propose(payload)
        except PenstockError as error:
            self.checker.refused(request, payload)
            self.leader_hint = error.detail.get("leader", 0)
            self._next_request(request, 20)
            return
        node.waiting[index] = (request, core.term)
        self._settle(node, "propose")

    def _read(self, node: Node, request: int) -> None:
        try:
            if not node.is_up:
                raise PenstockError("connection refused")
            node.core.read_index(request)
        except PenstockError as error:
            self.leader_hint = error.detail.get("leader", 0)
            self._unknown(node, request)
            return
        node.reads[request] = self.checker.read_floor
        self._settle(node, "read")

    def _answer_reads(self, node: Node) -> None:
        later = []
        for index, request in node.confirmed:
            if index > node.applied:
                later.append((index, request))
            elif (floor := node.reads.pop(request, None)) is not None and request in self.owner:
                self.checker.read(request, floor, node.applied)
                self.served[self.owner[request]] = self.now
                self._next_request(request, 5)
        node.confirmed = later

    def _done(self, node: Node, request: int, entry: LogEntry) -> None:
        if request in self.owner:
            self.checker.done(node, request, entry.index, entry.term)
            self.acked += 1
            self.served[self.owner[request]] = self.now
            self.leader_hint = node.member
            self._next_request(request, 5)

    def _unknown(self, node: Node, request: int) -> None:
        node.reads.pop(request, None)
        if request in self.owner:
            self.checker.unknown(request)
            self.leader_hint = 0
            self._next_request(request, 20)

    def _time_limit(self, request: int) -> None:
        if request in self.owner:
            self.checker.unknown(request)
            self.leader_hint = 0
            self._next_request(request, 1)

    def _next_request(self, request: int, pause: int) -> None:
        self._at(1 + int(self.chance() * pause), self._client, self.owner.pop(request))

    def _lose_writes(self, node: Node) -> None:
        waiting, node.waiting = node.waiting, {}
        for request, _ in waiting.values():
            self._unknown(node, request)

    def _lose_clients(self, node: Node) -> None:
        self._lose_writes(node)
        for request in list(node.reads):
            self._unknown(node, request)
        node.confirmed = []

    # What goes wrong ---------------------------------------------------------------------------

    def _fault(self, _: None) -> None:
        if not self.is_faulty:
            return
        self._at(1 + int(self.chance() * 2 * self.faults.every), self._fault, None)
        kind = self.random.choice(sorted(self.faults.kinds) or ["calm"])
        getattr(self, "_fault_" + kind.replace("-", "_"))(self._victim())
        if self.chance() < 0.1:
            self._transfer()

    def _victim(self) -> Node:
        leader = self._leader()
        if leader is not None and self.chance() < 0.5:
            return leader
        return self.nodes[1 + int(self.chance() * len(self.nodes))]

    def _leader(self) -> Node | None:
        leading = [n for n in self.nodes.values() if n.is_up and n.core.role is Role.LEADER]
        return max(leading, key=lambda node: node.core.term, default=None)

    def _fault_calm(self, _: Node) -> None:
        pass

    _fault_lossy = _fault_overload = _fault_late_report = _fault_calm

    def _fault_cuts(self, node: Node) -> None:
        """One direction between two members."""
        other = self.random.choice([m for m in self.nodes if m != node.member])
        pair = (node.member, other) if self.chance() < 0.5 else (other, node.member)
        self._block({pair})

    def _fault_isolated(self, node: Node) -> None:
        """From all others, or from all but one."""
        others = [m for m in self.nodes if m != node.member]
        if self.chance() < 0.5:
            others.remove(self.random.choice(others))
        self._block({(node.member, m) for m in others} | {(m, node.member) for m in others})

    def _block(self, pairs: set[tuple[int, int]]) -> None:
        self.blocked |= pairs
        self._at(TICK * self.random.randint(3, 25), self._unblock, pairs)

    def _unblock(self, pairs: set[tuple[int, int]]) -> None:
        if self.is_faulty:
            self.blocked -= pairs

    def _fault_crash(self, node: Node) -> None:
        if node.is_up and self.is_faulty:
            self._crash(node)
            self._at(TICK * self.random.randint(1, 20), self._restart, node)

    def _torn(self, which: tuple[Node, int]) -> None:
        node, life = which
        if life == node.life and node.is_up and self.is_faulty:
            self._crash(node)
            self._at(self.random.choice((2, 20, 100, 1_000)), self._restart, node)

    _fault_torn = _fault_crash

    def _restart(self, node: Node) -> None:
        if self.is_faulty and not node.is_up:
            self._start(node)

    def _fault_slow_disk(self, node: Node) -> None:
        self.slow[node.member] = self.random.choice((30, 100, 400, 1_000))

    def _fault_full_disk(self, node: Node) -> None:
        node.core.full = not node.core.full

    def _fault_sync_error(self, node: Node) -> None:
        """The store is read-only: what was on its way is lost, and the member is started again."""
        if node.is_up:
            node.core.halt()
            self._settle(node, "sync error")
            self._at(TICK * self.random.randint(2, 20), self._fault_crash, node)

    def _fault_skew(self, node: Node) -> None:
        self.skew[node.member] = self.random.choice((60, 80, 100, 130, 200))

    def _fault_churn(self, _: Node) -> None:
        """Two changes in one turn: the second must be refused unless the first is committed."""
        leader = self._leader()
        if leader is None:
            return
        for _ in range(2):
            change = self._some_change(leader.core.members)
            try:
                leader.core.change_members(change)
            except PenstockError:
                continue
        self._settle(leader, "change")

    def _some_change(self, members: Members) -> Change:
        member = 1 + int(self.chance() * len(self.nodes))
        if member in members.learners:
            return Change(PROMOTE if self.chance() < 0.8 else REMOVE, member)
        return Change(REMOVE if member in members.voters else ADD_LEARNER, member)

    def _transfer(self) -> None:
        leader = self._leader()
        if leader is not None:
            try:
                leader.core.transfer(1 + int(self.chance() * len(self.nodes)))
            except PenstockError:
                return
            self._settle(leader, "transfer")

    # The end -----------------------------------------------------------------------------------

    def heal(self, *, frozen: frozenset[int] = frozenset()) -> None:
        """Nothing breaks from now on; frozen members stay as they are."""
        self.is_faulty = False
        self.faults = replace(self.faults, delay=20, disk_delay=30)
        self.blocked = {pair for pair in self.blocked if frozen.intersection(pair)}
        for member, node in self.nodes.items():
            if member not in frozen:
                self.slow.pop(member, None)
                self.skew.pop(member, None)
                self._repair(node)

    def _repair(self, node: Node) -> None:
        if node.is_up and node.core.halted:
            self._crash(node)
        if not node.is_up:
            self._start(node)
        node.core.full = False

    def finish(self) -> None:
        """All heal, and all members are equal soon after."""
        self.heal()
        self.is_quiet = True
        end = self.now + ANSWER_TICKS * TICK
        while self.now < end:
            self.run_until(self.now + 10 * TICK)
            leader = self._leader()
            if leader is not None and self._is_settled(leader):
                break
        leader = self._leader()
        if leader is None:
            raise Violation("no leader although all members are healthy")
        self.checker.equal(self.nodes[m] for m in leader.core.members.everyone())

    def _is_settled(self, leader: Node) -> bool:
        members = [self.nodes[member].core for member in leader.core.members.everyone()]
        last = leader.core.log.last_index
        return all(core.applied == last == core.log.last_index for core in members)

    def not_served(self, since: int) -> list[int]:
        """The clients that were not answered with success since then."""
        return [c for c in range(self.faults.clients) if self.served.get(c, 0) <= since]

    def result(self) -> Result:
        return Result(
            self.seed, self.profile, self.events, self.acked, len(self.checker.leaders),
            self.now // TICK, self.crashes,
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
    return result


def run_liveness(seed: int, steps: int, *, profile: str = "", **options: Any) -> Result:
    """Liveness: from some step on a majority is healthy, and every client is served."""
    world = World(seed, profile or profile_of(seed), without=frozenset({"churn"}), **options)
    with _repeatable(world, f"--steps {steps} --liveness"):
        world.run(steps)
        voters = sorted(world.nodes)
        frozen = world.random.sample(voters, world.random.randint(0, (len(voters) - 1) // 2))
        world.heal(frozen=frozenset(frozen))
        since = world.now
        while waiting := world.not_served(since):
            if world.now > since + ANSWER_TICKS * TICK:
                raise Violation(f"clients {waiting} were not served within {ANSWER_TICKS} ticks")
            world.run_until(world.now + TICK)
    return world.result()


def shortened(seed: int, steps: int, profile: str, **options: Any) -> frozenset[str]:
    """The kinds of faults without which a run that fails does not fail any more."""
    without: set[str] = set()
    for kind in sorted(World(seed, profile, **options).faults.kinds):
        try:
            run(seed, steps, profile=profile, without=frozenset(without | {kind}), **options)
        except Exception:
            without.add(kind)
    return World(seed, profile, without=frozenset(without), **options).faults.kinds


@contextmanager
def _repeatable(world: World, options: str) -> Iterator[None]:
    line = f"--seed {world.seed} --profile {world.profile} {options}"
    was_enabled = gc.isenabled()
    gc.disable()  # a run makes no cycles worth collecting, and is a fifth quicker without looking
    try:
        yield
    except Exception as error:
        error.add_note(f"repeat with: python -m tests.simulator.raft {line}")
        raise
    finally:
        if was_enabled:
            gc.enable()
