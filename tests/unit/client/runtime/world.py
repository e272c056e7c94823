"""A runtime's core in a world of its own: the server's rules in memory, time in the test's hand.

Messages take time, get lost on the way there or back, and the server can be told to refuse. The
world is one heap of things that happen, so that a seed replays it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

import msgspec

from penstock.client.errors import Disconnected, Unreachable, answer_error
from penstock.client.runtime.core import RuntimeCore
from penstock.client.runtime.driver import Handlers
from penstock.client.runtime.effects import (
    CommitReport,
    Effect,
    Fail,
    Report,
    Run,
    RuntimeFailure,
    Tell,
    Transmit,
)
from penstock.client.runtime.events import Intent, Ticket
from penstock.client.runtime.lanes import Entry
from penstock.client.runtime.replica import Change, EntityVersion
from penstock.client.settings import CommitBackpressure, RuntimeLimits
from penstock.commits.entity import document_of
from penstock.commits.model import encode_commit, parse_commit, payload_hash
from penstock.commits.space import Space
from penstock.kernel.errors import PenstockError
from penstock.protocol.commits import Commit
from penstock.protocol.errors import CallError, CommitConflict

Rule = Callable[[Commit], None]


class ModelServer:
    """A space with its log. `rule` may refuse a commit that passed every check."""

    def __init__(self) -> None:
        self.space = Space()
        self.log: list[Change] = []
        self.commits: list[Commit] = []
        self.rule: Rule | None = None
        self.is_up = True

    @property
    def head(self) -> int:
        return len(self.log)

    def commit(self, body: bytes) -> int:
        """The seq of a commit, or what it is refused with, as a client gets it."""
        try:
            commit = parse_commit(body)
            digest = payload_hash(commit)
            answer = self.space.replayed(commit, digest)
            if answer is not None:
                return answer.seq
            self.space.check(commit, self.head)
            if self.rule is not None:
                self.rule(commit)
            landing = self.space.land(commit, self.head + 1, 0, digest)
        except PenstockError as error:
            raise as_client_error(error) from error
        self.space.stage(landing)
        self.space.apply(landing)
        self.log.append(Change(self.head + 1, commit.session, commit.local_seq, commit.writes))
        self.commits.append(commit)
        return self.head

    def docs(self) -> dict[str, Any]:
        found = self.space.entities.items()
        return {name: document_of(each) for name, each in found if each.document is not None}

    def versions(self) -> dict[str, EntityVersion]:
        return {
            name: EntityVersion(doc, self.space.entities[name].seq)
            for name, doc in self.docs().items()
        }


def as_client_error(error: PenstockError) -> CallError:
    envelope = {"error": {"code": error.code, "message": str(error), "detail": error.detail}}
    return answer_error(getattr(error, "status", 400), msgspec.json.encode(envelope))


def conflict(commit: Commit) -> None:
    """A rule under which every commit conflicts."""
    raise CommitConflict(commit.writes[0].entity, basis=0, current=0)


class World:
    """Time, a server, and what is under way between it and its clients."""

    def __init__(self, seed: int = 1, *, latency_ms: tuple[float, float] = (1.0, 1.0)) -> None:
        self.random = Random(seed)
        self.server = ModelServer()
        self.now_ms = 0.0
        self.latency_ms = latency_ms
        self.lose_request = 0.0
        self.lose_answer = 0.0
        self.stall_ms: Callable[[bytes], float] = lambda body: 0.0
        """How long a commit is left without an answer, and then has lost it."""
        self.clients: list[SimClient] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def client(self, name: str, **options: Any) -> SimClient:
        client = SimClient(self, name, **options)
        self.clients.append(client)
        return client

    def later(self, delay_ms: float, action: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._heap, (self.now_ms + delay_ms, self._count, action))

    def latency(self) -> float:
        return self.random.uniform(*self.latency_ms)

    def step(self) -> bool:
        """Let the next thing happen; False if nothing will."""
        if not self._heap:
            return False
        due_ms, _, action = heappop(self._heap)
        self.now_ms = max(self.now_ms, due_ms)
        action()
        return True

    def run(self, until: Callable[[], bool] | None = None, *, steps_max: int = 200_000) -> None:
        for _ in range(steps_max):
            if until is not None and until():
                return
            if not self.step():
                assert until is None or until(), "nothing more will happen"
                return
        raise AssertionError(f"expected an end within {steps_max} steps")

    def settle(self) -> None:
        self.run(lambda: all(client.core.is_settled for client in self.clients))

    def exchange(self, body: bytes, done: Callable[[int | CallError], None]) -> None:
        """A commit goes to the server, and an answer comes back, or an error instead of it."""

        def arrive() -> None:
            if not self.server.is_up:
                self.later(self.latency(), lambda: done(Unreachable("nobody is there")))
                return
            try:
                outcome: int | CallError = self.server.commit(body)
            except CallError as error:
                outcome = error
            if self.random.random() < self.lose_answer:
                outcome = Disconnected("the answer was lost")
            stalled_ms = self.stall_ms(body)
            if stalled_ms:
                outcome = Disconnected("the answer was lost")
            self.later(self.latency() + stalled_ms, lambda: done(outcome))
            for client in self.clients:
                client.look_later()

        if self.random.random() < self.lose_request:
            self.later(self.latency(), lambda: done(Disconnected("the request was lost")))
        else:
            self.later(self.latency(), arrive)


class SimClient:
    """The shell of one core, with the world in place of a connection."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        policy: CommitBackpressure | None = None,
        limits: RuntimeLimits | None = None,
        follows: bool = True,
    ) -> None:
        self.world = world
        self.handlers = Handlers()
        self.core = RuntimeCore(
            name,
            random=Random(world.random.getrandbits(32)),
            lane_of=self.handlers.lane_of,
            policy=policy or CommitBackpressure(),
            limits=limits,
        )
        self.reports: list[CommitReport] = []
        self.failures: list[RuntimeFailure] = []
        self.transmitted: list[Commit] = []
        self.follows = follows
        self.is_slow = False
        """Whether handlers wait for their turn, in order, while other things happen."""
        self._runs: deque[Entry] = deque()
        self._looking = False
        self._alarm_ms: float | None = None

    def start(self) -> SimClient:
        self.list()
        return self

    def on(self, kind: str, handler: Any, lane: Any = None) -> SimClient:
        self.handlers.add(kind, handler, lane)
        return self

    def send(self, kind: str, data: Any = None, **options: Any) -> Ticket:
        ticket, effects = self.core.send(Intent(type=kind, data=data, **options), self.world.now_ms)
        self.perform(effects)
        return ticket

    def derive(self, name: str, function: Any) -> None:
        self.perform(self.core.derive(name, function, self.world.now_ms))

    def list(self) -> None:
        server = self.world.server
        self.perform(self.core.listed(server.versions(), server.head, 1, self.world.now_ms))

    def look_later(self) -> None:
        if not self._looking and self.follows:
            self._looking = True
            self.world.later(self.world.latency(), self.look)

    def look(self) -> None:
        self._looking = False
        changes = self.world.server.log[self.core.replica.seq :]
        self.perform(self.core.advanced(changes, self.world.now_ms))

    def perform(self, effects: list[Effect]) -> None:
        todo = list(effects)
        while todo:
            match todo.pop(0):
                case Run(entry):
                    if self.is_slow:
                        self._runs.append(entry)
                        self.world.later(self.world.latency(), self._run_next)
                    else:
                        todo += self._run(entry)
                case Transmit(commit):
                    self.transmitted.append(commit)
                    self._transmit(commit)
                case Tell(ticket):
                    ticket.tell()
                case Report(report):
                    self.reports.append(report)
                case Fail(failure):
                    self.failures.append(failure)
        self._set_alarm()

    def _run_next(self) -> None:
        self.perform(self._run(self._runs.popleft()))

    def _run(self, entry: Entry) -> list[Effect]:
        error: Exception | None = None
        try:
            self.handlers.run(entry)
        except Exception as raised:
            error = raised
        return self.core.ran(entry, error, self.world.now_ms)

    def _transmit(self, commit: Commit) -> None:
        def done(outcome: int | CallError) -> None:
            now_ms = self.world.now_ms
            if isinstance(outcome, CallError):
                self.perform(self.core.refused(commit.local_seq, outcome, now_ms))
            else:
                self.perform(self.core.accepted(commit.local_seq, outcome, None, now_ms))

        self.world.exchange(encode_commit(commit), done)

    def _set_alarm(self) -> None:
        due_ms = self.core.next_due_ms
        if due_ms is not None and due_ms != self._alarm_ms:
            self._alarm_ms = due_ms
            self.world.later(max(0.0, due_ms - self.world.now_ms), self._ring)

    def _ring(self) -> None:
        self._alarm_ms = None
        self.perform(self.core.tick(self.world.now_ms))


def append(tx: Any, event: Any) -> None:
    """The shape that loses writes where nobody looks after them: read a list, write it longer."""
    tx.set("list", [*tx.get("list", default=[]), event.data])


def increment(tx: Any, event: Any) -> None:
    tx.set("count", tx.get("count", default=0) + (event.data or 1))
