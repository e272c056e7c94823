"""The language of the scripted tests: a group whose messages and syncs happen when a line says so.

    members 1 2 3          a group (learners=4, spares=5, and any limit: near_bytes=10)
    tick 1 10              ten ticks of member 1
    deliver 1 2            what is on its way from 1 to 2 arrives (kind=append, count=1)
    drop 1 2               … is lost
    sync 1                 the oldest write of member 1 is synced (count=2; report=0: its core
                           is told later, by `report 1`)
    elect 1 with=2,3       these members have heard of no leader, and 1 wins their votes
    settle                 everything arrives and is synced until nothing happens

Every line answers with what the members owe after it: what they write, send now, hold back until
a sync, apply and answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from penstock.log.store import LogEntry
from penstock.raft import messages as m
from penstock.raft.core import Core, Role
from penstock.raft.members import MARK, Change, Members, decode_members
from penstock.raft.progress import Limits
from penstock.raft.ready import Fetch, Ready
from penstock.testing import Command
from tests.simulator.raft.disk import Disk

TURNS_MAX = 10_000


class Member:
    """A core with a disk whose writes wait for `sync`."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.core: Core
        self.is_up = True
        self.writes: deque[Ready] = deque()
        self.reports: deque[Ready] = deque()
        self.applied: list[LogEntry] = []


class RaftScript:
    """The verbs of the scripts in tests/scripts/raft."""

    def __init__(self, core: type[Core] = Core) -> None:
        self.core_type = core
        self.members: dict[int, Member] = {}
        self.flight: list[m.Message] = []
        self.fetches: list[tuple[int, Fetch]] = []
        self.limits = Limits()
        self.said: list[str] = []
        self.is_silent = False
        self.timeouts: list[int] = []

    def __call__(self, command: Command) -> str:
        try:
            answer = getattr(self, f"do_{command.verb}")(command)
        finally:
            said, self.said = self.said, []
        return "\n".join([*said, *([answer] if answer else [])]) or "-"

    # Verbs -------------------------------------------------------------------------------------

    def do_members(self, command: Command) -> str:
        voters = tuple(map(int, command.words))
        learners = _numbers(command.options.pop("learners", ""))
        spares = _numbers(command.options.pop("spares", ""))
        self.limits = Limits(**{name: int(text) for name, text in command.options.items()})
        for member in (*voters, *learners, *spares):
            known = Members(()) if member in spares else Members(voters, learners)
            self.members[member] = Member(Disk(known))
            self._start(member)
        return f"voters {voters} learners {learners}"

    def do_draw(self, command: Command) -> str:
        """The next election timeouts, in this order; afterwards the shortest."""
        self.timeouts += map(int, command.words)
        return ""

    def do_tick(self, command: Command) -> str:
        member, *count = map(int, command.words)
        for _ in range(count[0] if count else 1):
            self._core(member).tick()
            self._settle(member)
        return ""

    def do_propose(self, command: Command) -> str:
        """`propose 1 a b c`: three entries in one turn. `size=100` pads them."""
        member = int(command.words[0])
        for text in command.words[1:]:
            self._core(member).propose(text.encode().ljust(command.number("size", 0), b"."))
        self._settle(member)
        return ""

    def do_read(self, command: Command) -> str:
        member, *contexts = map(int, command.words)
        for context in contexts:
            self._core(member).read_index(context)
        self._settle(member)
        return ""

    def do_change(self, command: Command) -> str:
        """`change 1 add 4`, `promote 4`, `remove 4`."""
        member, verb, other = int(command.words[0]), command.words[1], int(command.words[2])
        self._core(member).change_members(Change(verb, other))  # type: ignore[arg-type]
        self._settle(member)
        return ""

    def do_transfer(self, command: Command) -> str:
        member, to = map(int, command.words)
        self._core(member).transfer(to)
        self._settle(member)
        return ""

    def do_deliver(self, command: Command) -> str:
        for message in self._matching(command):
            self.flight.remove(message)
            self._deliver(message)
        return "" if self.said else "nothing to deliver"

    def do_again(self, command: Command) -> str:
        """Deliver without taking it off the way: the network repeats it later."""
        for message in self._matching(command):
            self._deliver(message)
        return "" if self.said else "nothing to deliver"

    def do_drop(self, command: Command) -> str:
        for message in self._matching(command):
            self.flight.remove(message)
            self.said.append(f"lost {describe(message)}")
        return "" if self.said else "nothing to drop"

    def do_flight(self, command: Command) -> str:
        return "\n".join(map(describe, self._matching(command))) or "nothing is on its way"

    def do_sync(self, command: Command) -> str:
        member = int(command.words[0])
        for _ in range(command.number("count", 1)):
            self._sync(member, is_told=command.number("report", 1) == 1)
        return ""

    def do_report(self, command: Command) -> str:
        """The core hears of a write that was synced before."""
        member = int(command.words[0])
        self._report(member)
        return "\n".join(self._states([member]))

    def do_elect(self, command: Command) -> str:
        """Time passes for some members; votes and nothing else arrive among them."""
        member = int(command.words[0])
        others = _numbers(command.options.get("with", "")) or tuple(self.members)
        among = {member, *(m for m in others if self.members[m].is_up)}
        self.is_silent = True
        for other in sorted(among):
            self._stop_hearing(other)
        for _ in range(20 * self.limits.election_ticks_max):
            if self._core(member).role is Role.LEADER:
                break
            self._core(member).tick()
            self._settle(member)
            self._vote(among)
        self.is_silent = False
        return "\n".join([*self._states([member]), *map(describe, self.flight)])

    def do_settle(self, _: Command) -> str:
        self.is_silent = True
        turns = 0
        while self._turn():
            turns += 1
            if turns > TURNS_MAX:
                raise RuntimeError("the group does not come to rest")
        self.is_silent = False
        return "\n".join(self._states(self.members))

    def do_crash(self, command: Command) -> str:
        """`crash 1 keep=1`: one of the writes on their way is on the disk."""
        node = self.members[int(command.words[0])]
        for _ in range(command.number("keep", 0)):
            node.disk.write(node.writes.popleft())
        lost = len(node.writes)
        node.is_up = False
        node.writes.clear()
        node.reports.clear()
        return f"{lost} writes are lost"

    def do_start(self, command: Command) -> str:
        member = int(command.words[0])
        self._start(member)
        return "\n".join(self._states([member]))

    def do_snapshot(self, command: Command) -> str:
        member, index = map(int, command.words)
        core = self._core(member)
        core.snapshotted(index)
        self.members[member].disk.snapshot(core.snapshot)
        return f"snapshot at {core.snapshot.index}/{core.snapshot.term}"

    def do_compact(self, command: Command) -> str:
        member, index = map(int, command.words)
        self._core(member).compacted(index)
        self.members[member].disk.compact(index)
        return f"log after {self._core(member).log.boundary}"

    def do_fetch(self, _: Command) -> str:
        """What was asked of the stores is read."""
        fetches, self.fetches = self.fetches, []
        for member, fetch in fetches:
            found = self.members[member].disk.read(fetch.first, fetch.last, 1_000)
            self._core(member).fetched(fetch, found)
            self._settle(member)
        return ""

    def do_sent(self, command: Command) -> str:
        """`sent 1 3 ok` / `failed`: the transfer of a snapshot has ended."""
        member, to = int(command.words[0]), int(command.words[1])
        self._core(member).snapshot_sent(to, command.words[2] == "ok")
        self._settle(member)
        return ""

    def do_offer(self, command: Command) -> str:
        """A leader's newest snapshot comes to a member that did not need it."""
        member, to = map(int, command.words)
        core = self._core(member)
        self._deliver(m.InstallSnapshot(to, member, core.term, core.snapshot))
        return ""

    def do_lose(self, command: Command) -> str:
        """`lose 3 1`: member 3 is off, and its disk keeps one entry."""
        node, count = self.members[int(command.words[0])], int(command.words[1])
        node.is_up = False
        del node.disk.entries[count:]
        return ""

    def do_set(self, command: Command) -> str:
        """`set 1 full=1`, `restoring=1`"""
        core = self._core(int(command.words[0]))
        for name, value in command.options.items():
            setattr(core, name, value == "1")
        return ""

    def do_halt(self, command: Command) -> str:
        member = int(command.words[0])
        self._core(member).halt()
        self._settle(member)
        return ""

    def do_state(self, command: Command) -> str:
        return "\n".join(self._states(list(map(int, command.words)) or self.members))

    def do_log(self, command: Command) -> str:
        log = self._core(int(command.words[0])).log
        shown = [f"{i}/{log.term_at(i)}" for i in range(log.boundary + 1, log.last_index + 1)]
        return f"after {log.boundary}/{log.term_at(log.boundary)}: " + (" ".join(shown) or "empty")

    def do_applied(self, command: Command) -> str:
        applied = self.members[int(command.words[0])].applied
        return " ".join(f"{e.index}:{_text(e.payload)}" for e in applied) or "nothing"

    def do_progress(self, command: Command) -> str:
        core = self._core(int(command.words[0]))
        return "\n".join(
            f"{member}: {p.stage.value} match {p.match} next {p.next} in flight {p.in_flight} "
            f"window {p.window_bytes}"
            for member, p in core.progress.items()
        )

    # The group ---------------------------------------------------------------------------------

    def _core(self, member: int) -> Core:
        return self.members[member].core

    def _start(self, member: int) -> None:
        node = self.members[member]
        node.core = self.core_type(
            member, node.disk.restored(), draw=self._draw,
            began=lambda term: b"began%d" % term, limits=self.limits,
        )  # fmt: skip
        node.is_up, node.applied = True, []

    def _draw(self, low: int, high: int) -> int:
        drawn = self.timeouts.pop(0) if self.timeouts else low
        assert low <= drawn <= high, (low, drawn, high)
        return drawn

    def _turn(self) -> bool:
        """One message, write or fetch, if there is any."""
        if self.flight:
            self._deliver(self.flight.pop(0))
            return True
        for member, node in self.members.items():
            if node.writes:
                self._sync(member)
                return True
        if self.fetches:
            self.do_fetch(Command("fetch", (), {}))
            return True
        return False

    def _stop_hearing(self, member: int) -> None:
        core, before = self._core(member), list(self.flight)
        while core.role is Role.LEADER:
            core.tick()
            self._settle(member)
        self.flight = before
        self.timeouts = [self.limits.election_ticks_max]
        for _ in range(self.limits.election_ticks_min):
            core.tick()
        self._settle(member)
        self.timeouts = []

    def _vote(self, among: set[int]) -> None:
        """Deliver and sync until there is nothing more of an election."""
        votes = (m.VoteRequest, m.VoteAnswer)
        while True:
            found = [x for x in self.flight if isinstance(x, votes)]
            for message in found:
                self.flight.remove(message)
                if message.to in among:
                    self._deliver(message)
            writing = [x for x in among if self.members[x].writes]
            writing = [x for x in writing if self._core(x).role is not Role.LEADER]
            for member in sorted(writing):
                self._sync(member)
            if not found and not writing:
                return

    def _deliver(self, message: m.Message) -> None:
        node = self.members[message.to]
        self._say(f"{describe(message)}{'' if node.is_up else ' finds nobody'}")
        if node.is_up:
            node.core.step(message)
            self._settle(message.to)

    def _sync(self, member: int, *, is_told: bool = True) -> None:
        node = self.members[member]
        if not node.writes:
            self._say(f"{member} has nothing to sync")
            return
        ready = node.writes.popleft()
        node.disk.write(ready)
        node.reports.append(ready)
        self._say(f"{member} synced")
        if not node.core.halted:
            self._send(ready.after)
        if is_told:
            while node.reports:
                self._report(member)

    def _report(self, member: int) -> None:
        node = self.members[member]
        node.core.persisted(node.reports.popleft().written)
        self._settle(member)

    def _settle(self, member: int) -> None:
        node = self.members[member]
        while (ready := node.core.ready()) is not None:
            self._do(member, node, ready)

    def _do(self, member: int, node: Member, ready: Ready) -> None:
        for line in duties(member, ready):
            self._say(line)
        self._send(ready.now)
        if ready.must_write or (ready.after and node.writes):
            node.writes.append(ready)
            for message in ready.after:
                self._say(f"  after: {describe(message)}")
        else:
            self._send(ready.after)
        self.fetches += [(member, fetch) for fetch in ready.fetch]
        if ready.apply:
            node.applied += ready.apply
            node.core.applied_to(ready.apply[-1].index)

    def _send(self, messages: Iterable[m.Message]) -> None:
        for message in messages:
            self._say(f"  sends: {describe(message)}")
            self.flight.append(message)

    def _say(self, line: str) -> None:
        if not self.is_silent:
            self.said.append(line)

    def _matching(self, command: Command) -> list[m.Message]:
        sender, to = [*map(int, command.words), 0, 0][:2]
        kind = command.options.get("kind")
        found = [
            message
            for message in self.flight
            if sender in (0, message.sender)
            and to in (0, message.to)
            and kind in (None, type(message).__name__.lower())
        ]
        return found[: command.number("count", len(found) or 1)]

    def _states(self, members: Iterable[int]) -> Iterator[str]:
        for member in members:
            node, core = self.members[member], self.members[member].core
            leader = f" of {core.leader}" if core.leader and core.role is not Role.LEADER else ""
            role = core.role.value if node.is_up else "down"
            yield (
                f"{member} {role}{leader} term {core.term} vote {core.vote} commit {core.commit} "
                f"applied {core.applied} last {core.log.last_index}/{core.log.last_term} "
                f"synced {core.log.synced}{' halted' if core.halted else ''}"
            )


def duties(member: int, ready: Ready) -> Iterator[str]:
    """What a `Ready` asks of the disk and the state, in words."""
    writes = []
    if ready.snapshot is not None:
        writes.append(f"snapshot {ready.snapshot.index}/{ready.snapshot.term}")
    if ready.cut_from:
        writes.append(f"cut from {ready.cut_from}")
    if ready.entries:
        writes.append("entries " + " ".join(_entry(entry) for entry in ready.entries))
    if ready.hard is not None:
        writes.append(f"term {ready.hard.term} vote {ready.hard.vote}")
    if writes:
        yield f"{member} writes {', '.join(writes)}"
    if ready.apply:
        yield f"{member} applies " + " ".join(_entry(entry) for entry in ready.apply)
    for read in ready.reads:
        yield f"{member} may answer read {read.context} at {read.index}"
    for context in ready.lost_reads:
        yield f"{member} loses read {context}"
    for fetch in ready.fetch:
        yield f"{member} fetches {fetch.first}…{fetch.last} for {fetch.to}"


def describe(message: m.Message) -> str:
    """A message in one line."""
    head = f"{message.sender}→{message.to} {type(message).__name__.lower()} term {message.term}"
    return f"{head} {_DETAILS[type(message)](message)}".rstrip()


def _append(message: m.Append) -> str:
    entries = " ".join(map(_entry, message.entries)) or "empty"
    return f"after {message.prev_index}/{message.prev_term} commit {message.commit}: {entries}"


def _append_answer(message: m.AppendAnswer) -> str:
    if message.saturated:
        return f"saturated at {message.index}"
    if message.refused:
        return f"refused {message.index} hint {message.hint_index}/{message.hint_term}"
    return f"has {message.index}"


def _vote_request(message: m.VoteRequest) -> str:
    flags = (" pre" if message.pre else "") + (" transfer" if message.transfer else "")
    return f"last {message.last_index}/{message.last_term}{flags}"


def _vote_answer(message: m.VoteAnswer) -> str:
    return ("granted" if message.granted else "refused") + (" pre" if message.pre else "")


_DETAILS = {
    m.Append: _append,
    m.AppendAnswer: _append_answer,
    m.Heartbeat: lambda x: f"commit {x.commit} round {x.read_round}",
    m.HeartbeatAnswer: lambda x: f"round {x.read_round}",
    m.Committed: lambda x: f"commit {x.commit}",
    m.VoteRequest: _vote_request,
    m.VoteAnswer: _vote_answer,
    m.InstallSnapshot: lambda x: f"{x.mark.index}/{x.mark.term}",
    m.TimeoutNow: lambda x: "",
    m.ReadRequest: lambda x: f"{x.context}",
    m.ReadAnswer: lambda x: f"{x.context} at {x.index}",
}


def _entry(entry: LogEntry) -> str:
    return f"{entry.index}/{entry.term}:{_text(entry.payload)}"


def _text(payload: bytes) -> str:
    if payload.startswith(MARK):
        members = decode_members(payload)
        return f"members{list(members.voters)}+{list(members.learners)}"
    return payload.decode().rstrip(".")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)
