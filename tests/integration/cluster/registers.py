"""Histories of registers: entities that are read and changed through all nodes while nodes fail.

Every change says which version it has seen, and carries a value of its own. What each caller saw
is checked by `tests.linearizable`, register by register.
"""

from __future__ import annotations

import threading
import time
from random import Random

from penstock.client import Client
from penstock.protocol.commits import Commit, CommitRead, CommitWrite
from penstock.protocol.errors import CallError, CommitConflict, EntityNotFound, TopicNotFound
from tests.integration.cluster.load import PATIENT_S, settings
from tests.linearizable import READ, REFUSED, WRITE, Op, linearizable


class Caller(threading.Thread):
    """Reads and changes registers of a space, through one node after the other."""

    def __init__(self, urls: str, space: str, number: int, registers: int, seed: int) -> None:
        super().__init__(name=f"caller {number}", daemon=True)
        self.history: dict[str, list[Op]] = {}
        self.error: Exception | None = None
        self._urls, self._space, self._number = urls, space, number
        self._registers = [f"r{each}" for each in range(registers)]
        self._random = Random(seed * 1_000 + number)
        self._seen: dict[str, tuple[int, str | None]] = {}
        self._commits = 0
        self._ends = threading.Event()

    def run(self) -> None:
        clients = [Client(settings(self._urls, each)) for each in range(self._urls.count(",") + 1)]
        try:
            while not self._ends.is_set():
                client = self._random.choice(clients)
                register = self._random.choice(self._registers)
                if self._random.random() < 0.4:
                    self._change(client, register)
                else:
                    self._read(client, register)
        except Exception as error:
            self.error = error
        finally:
            for each in clients:
                each.close()

    def _read(self, client: Client, register: str) -> None:
        called, until_s = time.monotonic(), time.monotonic() + PATIENT_S
        while True:
            try:
                state = client.get_entity(self._space, register)
                seq, value = state.seq, state.doc["by"]
            except (EntityNotFound, TopicNotFound):
                seq, value = 0, None
            except CallError:
                if time.monotonic() > until_s:
                    raise
                called = time.monotonic()  # it told nothing
                continue
            break
        self._note(register, Op(called, time.monotonic(), READ, None, value))
        self._seen[register] = (seq, value)

    def _change(self, client: Client, register: str) -> None:
        seq, before = self._seen.get(register, (0, None))
        self._commits += 1
        value = f"{self._number}-{self._commits}"
        commit = Commit(
            session=f"caller-{self._number}",
            local_seq=self._commits,
            reads=(CommitRead(register, seq),),
            writes=(CommitWrite(register, set={"by": value}),),
        )
        called, until_s = time.monotonic(), time.monotonic() + PATIENT_S
        while True:
            try:
                accepted = client.commit(self._space, commit)
            except CommitConflict:
                self._note(register, Op(called, time.monotonic(), REFUSED, before, value))
                self._seen.pop(register, None)
            except CallError:
                if time.monotonic() > until_s:
                    raise
                continue
            else:
                self._note(register, Op(called, time.monotonic(), WRITE, before, value))
                self._seen[register] = (accepted.seq, value)
            return

    def _note(self, register: str, op: Op) -> None:
        self.history.setdefault(register, []).append(op)

    def end(self) -> None:
        self._ends.set()
        self.join(PATIENT_S + 60)
        assert not self.is_alive(), self.name
        if self.error is not None:
            raise self.error


def check_histories(callers: list[Caller]) -> tuple[int, int]:
    """Check all registers; how many there were, and operations on them."""
    histories: dict[str, list[Op]] = {}
    for caller in callers:
        for register, ops in caller.history.items():
            histories.setdefault(register, []).extend(ops)
    for register, ops in histories.items():
        assert linearizable(ops), f"{register}: no order explains its {len(ops)} operations"
    return len(histories), sum(map(len, histories.values()))
