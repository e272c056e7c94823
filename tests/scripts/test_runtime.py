"""A runtime's core as text: scripts beside this file, rewritten with PENSTOCK_REWRITE=1.

A command is something that happens; the answer is what the core wants done, in order. Handlers are
run as soon as the core asks for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.client.errors import Disconnected
from penstock.client.runtime.core import RuntimeCore
from penstock.client.runtime.driver import Handlers
from penstock.client.runtime.effects import Effect, Fail, Report, Run, Tell, Transmit
from penstock.client.runtime.events import Event, Intent
from penstock.client.runtime.replica import Change, EntityVersion
from penstock.client.runtime.status import status_of
from penstock.client.runtime.transaction import Transaction
from penstock.client.settings import CommitBackpressure, RuntimeLimits
from penstock.flow.backoff import Backoff
from penstock.protocol.commits import Commit, CommitWrite
from penstock.protocol.errors import CommitConflict, PreconditionFailed
from penstock.testing import Command, run_script

SCRIPTS = Path(__file__).parent / "runtime"


class RuntimeScript:
    """The verbs of the scripts. `at=` moves the clock, in milliseconds."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.due_ms: float | None = None
        self.sent: dict[int, Commit] = {}
        self.handlers = Handlers()
        for handler in (add, put, fail, then):
            self.handlers.add(handler.__name__, handler, None)
        self.core = RuntimeCore(
            "me",
            random=Random(1),
            lane_of=self.handlers.lane_of,
            policy=CommitBackpressure(base_ms=10, cap_ms=40, jitter=0, window_ms=100),
            limits=RuntimeLimits(
                pending_max=2, coalesced_max=1, ahead_max=4, away=Backoff(50, 100, 0, 200)
            ),
        )

    def __call__(self, command: Command) -> str:
        self.now_ms = float(command.options.pop("at", self.now_ms))
        done = getattr(self, f"do_{command.verb}")(command)
        return done if isinstance(done, str) else self.performed(done)

    def do_listed(self, command: Command) -> list[Effect]:
        """`listed SEQ a=1`: all entities as of a commit."""
        seq = int(command.words[0])
        versions = {
            name: EntityVersion(json.loads(doc), seq) for name, doc in command.options.items()
        }
        return self.core.listed(versions, seq, 1, self.now_ms)

    def do_advanced(self, command: Command) -> list[Effect]:
        """`advanced SEQ a=1`: another client's commit; `advanced SEQ mine N`: one of ours."""
        seq = int(command.words[0])
        if command.words[1:2] == ("mine",):
            number = int(command.words[2])
            writes = self.sent[number].writes
            return self.core.advanced([Change(seq, "me", number, writes)], self.now_ms)
        writes = tuple(
            CommitWrite(name, set=json.loads(doc)) for name, doc in command.options.items()
        )
        return self.core.advanced([Change(seq, "other", seq, writes)], self.now_ms)

    def do_send(self, command: Command) -> list[Effect]:
        """`send TYPE [DATA] [lane=] [id=]`."""
        kind, *data = command.words
        intent = Intent(
            type=kind,
            data=json.loads(data[0]) if data else None,
            lane=command.options.get("lane"),
            id=command.options.get("id"),
            retries=command.options.get("retries") != "no",
        )
        return self.core.send(intent, self.now_ms)[1]

    def do_accepted(self, command: Command) -> list[Effect]:
        """`accepted NUMBER seq=`: the server took a commit."""
        number = int(command.words[0])
        return self.core.accepted(number, command.number("seq"), None, self.now_ms)

    def do_conflict(self, command: Command) -> list[Effect]:
        """`conflict NUMBER current=`: something that it read was at another commit by then."""
        error = CommitConflict("a", basis=0, current=command.number("current"))
        return self.core.refused(int(command.words[0]), error, self.now_ms)

    def do_refused(self, command: Command) -> list[Effect]:
        """`refused NUMBER`: a precondition failed."""
        error = PreconditionFailed("receipt_absent", "the event has had its effect")
        return self.core.refused(int(command.words[0]), error, self.now_ms)

    def do_lost(self, command: Command) -> list[Effect]:
        """`lost NUMBER`: no answer came."""
        return self.core.refused(int(command.words[0]), Disconnected("it broke"), self.now_ms)

    def do_tick(self, _: Command) -> list[Effect]:
        return self.core.tick(self.now_ms)

    def do_derive(self, command: Command) -> list[Effect]:
        """`derive TO of FROM`: an entity that is always twice another."""
        to, _, source = command.words

        def double(tx: Transaction) -> None:
            tx.set(to, 2 * tx.get(source, default=0))

        return self.core.derive(to, double, self.now_ms)

    def do_close(self, _: Command) -> list[Effect]:
        return self.core.close(self.now_ms)

    def do_show(self, command: Command) -> str:
        """`show ENTITY`: as it looks from here, and as it is confirmed."""
        (name,) = command.words
        shown, known = self.core.view.doc(name), self.core.replica.doc(name)
        return f"{name} = {plain(shown)}" + ("" if shown == known else f" (was {plain(known)})")

    def do_status(self, _: Command) -> str:
        return str(status_of(self.core, "space", self.now_ms))

    def performed(self, effects: list[Effect]) -> str:
        """Run handlers as the core asks for it; everything it wants, a line each."""
        lines: list[str] = []
        todo = list(effects)
        while todo:
            effect = todo.pop(0)
            lines.append(self.line(effect))
            if isinstance(effect, Run):
                todo += self.ran(effect)
        if self.core.next_due_ms not in (None, self.due_ms):
            lines.append(f"wakes at {self.core.next_due_ms:g}")
        self.due_ms = self.core.next_due_ms
        return "\n".join(lines) or "nothing"

    def ran(self, effect: Run) -> list[Effect]:
        try:
            self.handlers.run(effect.entry)
        except Exception as error:
            return self.core.ran(effect.entry, error, self.now_ms)
        return self.core.ran(effect.entry, None, self.now_ms)

    def line(self, effect: Effect) -> str:
        match effect:
            case Run(entry):
                again = f", try {entry.conflicts + 1}" if entry.conflicts else ""
                return f"run {entry.event.type} {entry.event.id}".rstrip() + again
            case Transmit(commit):
                self.sent[commit.local_seq] = commit
                return f"transmit {commit.local_seq}: {told(commit)}"
            case Tell(ticket):
                found = ticket.committed
                return f"tell {ticket.event_id}: " + (
                    type(ticket.error).__name__ if found is None else f"committed at {found.seq}"
                )
            case Report(report):
                again = (
                    f", again in {report.backoff_ms:g} ms" if report.backoff_ms is not None else ""
                )
                end = f", ends as {report.terminal}" if report.terminal else ""
                return f"report {report.local_seq}: {report.outcome}{again}{end}"
            case Fail(failure):
                return f"fail {failure.source}: {type(failure.error).__name__}"


def told(commit: Commit) -> str:
    reads = ", ".join(f"{read.entity}@{read.seq}" for read in commit.reads)
    pending = ", ".join(f"{read.entity} of {read.local_seq}" for read in commit.pending_reads)
    writes = ", ".join(f"{write.entity} = {plain(write.set)}" for write in commit.writes)
    parts = (("reads", reads), ("pending", pending), ("writes", writes))
    return "; ".join(f"{name} {text}" for name, text in parts if text)


def plain(doc: Any) -> str:
    return json.dumps(doc) if isinstance(doc, int | str | list | dict) else "absent"


def add(tx: Transaction, event: Event) -> None:
    tx.set("a", tx.get("a", default=0) + event.data)


def put(tx: Transaction, event: Event) -> None:
    for name, doc in event.data.items():
        tx.set(name, doc)


def fail(tx: Transaction, _: Event) -> None:
    raise ValueError(f"a is {tx.get('a')}")


def then(tx: Transaction, event: Event) -> None:
    tx.set("b", event.data)
    tx.send("put", {"c": event.data})


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_runtime_does_what_its_script_says(path: Path) -> None:
    assert run_script(path, RuntimeScript()) > 2
