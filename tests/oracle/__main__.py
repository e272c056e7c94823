"""The same elections, crashes and losses for our core and for etcd's: `python -m tests.oracle`.

Scripts are drawn from seeds: members elect, propose, lose messages, crash and start again. After
every command each member must have the same term, role, commit index, end of log and applied
entries as etcd/raft has. Needs Go and etcd's sources: `apt-get install golang-go
golang-etcd-server-dev`; without them it says so and ends with 2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from random import Random
from typing import Final

from penstock.log.store import HardState, LogEntry
from penstock.raft.core import Core, Role
from penstock.raft.members import Members
from penstock.raft.messages import Mark, Message
from penstock.raft.progress import Limits
from penstock.raft.ready import Restored

SOURCES: Final = Path("/usr/share/gocode")
PACKAGE: Final = SOURCES / "src/go.etcd.io/etcd/raft"
SEEDS: Final = 500
COMMANDS: Final = 60
NEVER: Final = 1_000_000
BEATS: Final = 8


class Member:
    """A core whose disk is never behind."""

    def __init__(self, member: int, voters: tuple[int, ...], applied: list[str]) -> None:
        self.member, self.voters = member, voters
        self.hard, self.log = HardState(), list[LogEntry]()
        self.applied = applied
        self.is_up = False
        self.start()

    def start(self) -> None:
        restored = Restored(hard=self.hard, mark=Mark(0, 0, Members(self.voters)), entries=self.log)
        limits = Limits(election_ticks_min=NEVER, election_ticks_max=NEVER)
        self.core = Core(
            self.member, restored, draw=lambda low, _: low, began=lambda _: b"", limits=limits
        )
        self.applied.clear()
        self.is_up = True

    def settle(self, flight: deque[Message]) -> None:
        core = self.core
        while (ready := core.ready()) is not None:
            flight += ready.now
            if ready.cut_from:
                del self.log[ready.cut_from - 1 :]
            self.log += ready.entries
            self.hard = ready.hard or self.hard
            flight += ready.after
            for entry in ready.apply:
                if entry.payload:
                    self.applied.append(entry.payload.decode())
                core.applied_to(entry.index)
            if ready.must_write:
                core.persisted(ready.written)

    def told(self) -> str:
        if not self.is_up:
            return "down"
        core, leads = self.core, int(self.core.role is Role.LEADER)
        end = f"{core.log.last_index}/{core.log.last_term}"
        return f"{core.term}/{leads}/{core.commit}/{end}/{','.join(self.applied)}"


class Group:
    """Our half: does the commands of a script."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.flight: deque[Message] = deque()

    def do(self, line: str) -> str:
        verb, *words = line.split()
        getattr(self, f"_{verb}")(words)
        return " ".join(self.members[member].told() for member in sorted(self.members))

    def _members(self, words: list[str]) -> None:
        voters = tuple(map(int, words))
        self.members = {member: Member(member, voters, []) for member in voters}

    def _elect(self, words: list[str]) -> None:
        """The members that vote have not heard of a leader for long, and nothing late arrives."""
        self.flight.clear()
        among = set(map(int, words))
        for member in among:
            core = self.members[member].core
            if core.role is not Role.LEADER:
                core.leader = 0
        first = self.members[int(words[0])]
        first.core._pre_campaign()
        first.settle(self.flight)
        self._deliver(among)

    def _propose(self, words: list[str]) -> None:
        member = self.members[int(words[0])]
        member.core.propose(words[1].encode())
        member.settle(self.flight)

    def _run(self, words: list[str]) -> None:
        for _ in range(BEATS):
            for member in self.members.values():
                if member.is_up and member.core.role is Role.LEADER:
                    member.core.tick()
                    member.settle(self.flight)
            self._deliver(set(map(int, words)))

    def _crash(self, words: list[str]) -> None:
        self.members[int(words[0])].is_up = False

    def _start(self, words: list[str]) -> None:
        self.members[int(words[0])].start()

    def _deliver(self, among: set[int]) -> None:
        while self.flight:
            message = self.flight.popleft()
            to = self.members[message.to]
            if {message.sender, message.to} <= among and to.is_up:
                to.core.step(message)
                to.settle(self.flight)


def script(seed: int) -> tuple[list[str], list[str]]:
    """Commands that make sense for the group as it is, and what our members have after each."""
    random, group = Random(seed), Group()
    everyone = tuple(range(1, random.choice((3, 3, 5)) + 1))
    lines = [f"members {' '.join(map(str, everyone))}"]
    told = [group.do(lines[0])]
    for number in range(COMMANDS):
        line = _command(random, group, everyone, number)
        lines.append(line)
        told.append(group.do(line))
    return lines, told


def _command(random: Random, group: Group, everyone: tuple[int, ...], number: int) -> str:
    members = group.members
    up = [member for member in everyone if members[member].is_up]
    leaders = [member for member in up if members[member].core.is_serving]
    among = random.sample(everyone, random.randint(1, len(everyone)))
    kind = random.random()
    if kind < 0.35 and leaders:
        return f"propose {random.choice(leaders)} p{number}"
    if kind < 0.6:
        return f"run {' '.join(map(str, among))}"
    if kind < 0.75 and len(up) > len(everyone) // 2 + 1:
        return f"crash {random.choice(up)}"
    down = [member for member in everyone if member not in up]
    if kind < 0.85 and down:
        return f"start {random.choice(down)}"
    return _election(random, group, up, among)


def _election(random: Random, group: Group, up: list[int], among: list[int]) -> str:
    """Among members of the newest term of which none leads.

    What differs by intention is left out: etcd's leader takes part in a vote unless it checks its
    quorum, ours never does; and members that are behind learn of a newer term at other moments.
    """
    cores = {member: group.members[member].core for member in up}
    newest = max(core.term for core in cores.values())
    able = [
        member
        for member in among
        if member in cores
        and cores[member].term == newest
        and cores[member].role is not Role.LEADER
    ]
    if not able:
        return f"run {' '.join(map(str, up))}"
    return f"elect {' '.join(map(str, able))}"


def build(directory: str) -> Path:
    """The other half, compiled."""
    program = Path(directory) / "oracle"
    source = Path(__file__).with_name("raft.go")
    env = os.environ | {
        "GO111MODULE": "off", "GOPATH": str(SOURCES), "GOCACHE": f"{directory}/cache",
    }  # fmt: skip
    subprocess.run(["go", "build", "-o", program, source], env=env, check=True)
    return program


def main() -> int:
    if shutil.which("go") is None or not PACKAGE.exists():
        print(
            "oracle: not run: it needs Go and etcd's sources: "
            "apt-get install golang-go golang-etcd-server-dev"
        )
        return 2
    scripts = [script(seed) for seed in range(SEEDS)]
    with tempfile.TemporaryDirectory() as directory:
        program = build(directory)
        said = "".join("new\n" + "\n".join(lines) + "\n" for lines, _ in scripts)
        done = subprocess.run([program], input=said, capture_output=True, text=True, check=True)
    answers = iter(done.stdout.splitlines())
    differ = commits = 0
    for seed, (lines, told) in enumerate(scripts):
        theirs = [next(answers) for _ in lines]
        commits += max(int(each.split("/")[2]) for each in told[-1].split() if each != "down")
        place = next(
            (n for n, pair in enumerate(zip(told, theirs, strict=True)) if len(set(pair)) > 1), -1
        )
        if place >= 0:
            differ += 1
            print(f"seed {seed}, command {place}: {lines[place]}")
            print(f"  here: {told[place]}\n  etcd: {theirs[place]}")
    print(
        f"oracle: {SEEDS} scripts of {COMMANDS} commands, {commits:,} entries committed, "
        f"{differ} differ from etcd/raft"
    )
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
