"""Handlers that read and write at random: what commits has read what the space had just then.

The chaos next door counts effects of handlers that read all they write. Here they also write blind,
in lanes that overtake each other, and wait for their turn while other things happen.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.client.errors import OriginFailed, Superseded
from penstock.client.settings import CommitBackpressure, RuntimeLimits
from penstock.commits.model import encode_commit
from penstock.flow.backoff import Backoff
from penstock.protocol.commits import Commit, CommitWrite
from penstock.testing import seeded, seeds
from tests.unit.client.runtime.world import World

RUNS = 60


class Readers:
    """One runtime of which every accepted commit is held against what its handler has read."""

    def __init__(self, random: Random, *, is_slow: bool) -> None:
        self.random = random
        self.world = World(random.getrandbits(32), latency_ms=(0.1, random.choice((2.0, 10.0))))
        self.world.server.rule = self.check
        self.entities = [f"e{number}" for number in range(random.choice((1, 2, 4)))]
        self.lanes = [f"l{number}" for number in range(random.choice((1, 2, 3)))]
        self.seen: dict[str | None, dict[str, Any]] = {}
        self.foreign = 0
        self.client = self.world.client(
            "us",
            policy=CommitBackpressure(window_ms=1e9),
            limits=RuntimeLimits(pending_max=10_000, away=Backoff(1, 50, 0.5, window_ms=1e9)),
        )
        self.client.is_slow = is_slow
        self.client.on("any", self.handle, lambda data: data["lane"]).start()
        if random.random() < 0.3:
            self.client.derive("all", self.derive)

    def handle(self, tx: Any, event: Any) -> None:
        self.seen[event.id] = {name: tx.get(name) for name in event.data["reads"]}
        for name in event.data["writes"]:
            match event.data["kind"]:
                case "delete":
                    tx.delete(name)
                case "patch":
                    tx.patch(name, {event.id: 1})
                case _:
                    tx.set(name, {"by": event.id, "attempt": event.attempt})
        if event.data["child"] is not None:
            tx.send("any", event.data["child"])

    def derive(self, tx: Any) -> None:
        self.seen[None] = {name: tx.get(name) for name in self.entities}
        tx.set("all", self.seen[None])

    def check(self, commit: Commit) -> None:
        """Asked for every commit that passed the checks, before it lands."""
        if commit.session == "us":
            docs = self.world.server.docs()
            for name, value in self.seen[commit.event_id].items():
                assert docs.get(name) == value, f"{name}, read by {commit.event_id}"

    def data(self, depth: int = 0) -> dict[str, Any]:
        random, most = self.random, len(self.entities)
        writes = random.sample(self.entities, random.randint(min(depth, 1), min(2, most)))
        return {
            "lane": random.choice(self.lanes),
            "reads": random.sample(self.entities, random.randint(0, most)),
            "writes": writes,
            "kind": random.choice(("set", "set", "patch", "delete")),
            "child": self.data(depth + 1) if depth < 2 and random.random() < 0.2 else None,
        }

    def disturb(self) -> None:
        match self.random.randrange(4):
            case 0:
                self.foreign += 1
                write = CommitWrite(
                    self.random.choice(self.entities), set={"foreign": self.foreign}
                )
                self.world.server.commit(encode_commit(Commit("them", self.foreign, (write,))))
                self.client.look_later()
            case 1:
                self.world.lose_request = self.random.choice((0.0, 0.1))
            case 2:
                self.world.lose_answer = self.random.choice((0.0, 0.1))
            case 3:
                self.client.follows = not self.client.follows
                self.client.look_later()

    def run(self) -> None:
        tickets = []
        for _ in range(self.random.randint(10, 50)):
            tickets.append(self.client.send("any", self.data()))
            for _ in range(self.random.randrange(6)):
                self.world.step()
            if self.random.random() < 0.4:
                self.disturb()
            if self.random.random() < 0.05:
                self.client.list()
        self.world.lose_request = self.world.lose_answer = 0.0
        self.client.follows = True
        self.client.look_later()
        self.world.settle()
        self.world.run()
        for ticket in tickets:
            assert ticket.committed or isinstance(ticket.error, Superseded | OriginFailed)
        docs = self.world.server.docs()
        assert {name: self.client.core.view.doc(name) for name in docs} == docs


@pytest.mark.parametrize("is_slow", [False, True])
def test_every_commit_has_read_what_the_space_had_and_all_settle(is_slow):
    for seed in seeds(RUNS):
        with seeded(seed) as random:
            Readers(random, is_slow=is_slow).run()
