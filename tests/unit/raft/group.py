"""Cores for unit tests: one alone, or a group that is driven by the lines of a script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.log.store import HardState, LogEntry
from penstock.raft.core import Core
from penstock.raft.members import Members
from penstock.raft.messages import Mark, Message
from penstock.raft.progress import Limits
from penstock.raft.ready import Ready, Restored
from penstock.testing import Command
from tests.simulator.raft.script import RaftScript


def entries(*terms: int, first: int = 1) -> list[LogEntry]:
    """Entries with these terms."""
    return [LogEntry(first + i, term, b"%d" % (first + i)) for i, term in enumerate(terms)]


def member(
    terms: Sequence[int] = (), *, me: int = 1, voters: tuple[int, ...] = (1, 2, 3),
    learners: tuple[int, ...] = (), term: int | None = None, vote: int = 0,
    draws: list[int] | None = None, **limits: Any,
) -> Core:  # fmt: skip
    """A member that starts with entries of these terms on its disk."""
    drawn = iter(draws or [])
    return Core(
        me,
        Restored(
            hard=HardState(term if term is not None else max(terms, default=0), vote),
            mark=Mark(0, 0, Members(voters, learners)),
            entries=entries(*terms),
        ),
        draw=lambda low, _: next(drawn, low),
        began=lambda number: b"began %d" % number,
        limits=Limits(**limits),
    )


def told(core: Core, *messages: Message) -> Ready | None:
    """What a member owes after these messages."""
    for message in messages:
        core.step(message)
    return core.ready()


def synced(core: Core) -> Ready | None:
    """Sync what is owed, and what that brings, until nothing is written."""
    ready = last = core.ready()
    while ready is not None:
        last = ready
        core.persisted(ready.written)
        if ready.apply:
            core.applied_to(ready.apply[-1].index)
        ready = core.ready()
    return last


def play(*lines: str) -> RaftScript:
    """A group after the lines of a script."""
    script = RaftScript()
    for line in lines:
        script(Command.parse(line))
    return script


def more(script: RaftScript, *lines: str) -> list[str]:
    """What a group answers to further lines."""
    return "\n".join(script(Command.parse(line)) for line in lines).splitlines()
