"""Schedules of commits against the model: nothing is accepted that the model refuses."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest

from penstock.commits import entity as entities
from penstock.commits.entity import document_of
from penstock.commits.model import ABSENT, parse_commit, payload_hash
from penstock.commits.space import Landing, Space
from penstock.protocol.commits import Commit
from penstock.protocol.errors import (
    CommitConflict,
    CommitProtocol,
    InvalidRequest,
    PreconditionFailed,
)
from penstock.testing.seeds import seeded, seeds
from tests.property.commits.naive import MISSING, Json, Naive, Scribe

RUNS = 2_000
COMMITS = 20
FLOORS = {
    "accepted": 12_000,
    "conflict": 6_000,
    "replayed": 500,
    "protocol": 300,
    "receipt-exists": 200,
    "origin-committed": 300,
    "invalid": 300,
}


class Node:
    """A space with commits on their way, and the models of what is decided and what is sure."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.space = Space()
        self.decided, self.sure = Naive(), Naive()
        self.flying: list[tuple[Json, Landing]] = []

    def verdict(self, commit: Commit) -> str:
        """What the space makes of a commit, which it takes if it can."""
        digest = payload_hash(commit)
        try:
            if self.space.replayed(commit, digest) is not None:
                return "replayed"
            self.space.check(commit, self.decided.head)
        except CommitConflict:
            return "conflict"
        except PreconditionFailed as error:
            return str(error.detail["reason"])
        except CommitProtocol:
            return "protocol"
        except InvalidRequest:
            return "invalid"
        landing = self.space.land(commit, self.decided.head + 1, 0, digest)
        self.space.stage(landing)
        self.landing = landing
        return "accepted"

    def settle(self) -> None:
        """Let some of what is on its way arrive, or, rarely, none of it."""
        if self.random.random() < 0.02:
            self.space.abandon()
            self.flying.clear()
            self.decided = self.sure.copy()
            return
        for _ in range(self.random.randrange(len(self.flying) + 1)):
            commit, landing = self.flying.pop(0)
            self.space.apply(landing)
            self.sure.take(commit)


def run(seed: int, counts: Counter[str]) -> None:
    with seeded(seed) as random:
        node, scribe = Node(random), Scribe(random)
        for _ in range(COMMITS):
            wanted = scribe.next(node.decided)
            expected = node.decided.verdict(wanted)
            found = node.verdict(parse_commit(json.dumps(wanted).encode()))
            counts[found] += 1
            if found == "conflict" and expected == "accepted":
                counts["too strict"] += 1
            else:
                assert found == expected, wanted
            if found == "accepted":
                node.flying.append((wanted, node.landing))
                node.decided.take(wanted)
            node.settle()
        for commit, landing in node.flying:
            node.space.apply(landing)
            node.sure.take(commit)
        for name, document in node.sure.docs.items():
            entity = node.space.entities[name]
            found_document = document_of(entity)
            assert (MISSING if found_document is ABSENT else found_document) == document
        living = sum(document is not MISSING for document in node.sure.docs.values())
        assert node.space.counts().entities == living
        assert node.space.counts().deleted == len(node.space.entities) - living


def test_no_schedule_makes_the_space_accept_what_the_model_refuses() -> None:
    counts: Counter[str] = Counter()
    found = seeds(RUNS)
    for seed in found:
        run(seed, counts)
    if len(found) == RUNS:
        for verdict, floor in FLOORS.items():
            assert counts[verdict] >= floor, counts
        assert counts["too strict"] <= counts["accepted"] / 8, counts


def test_a_space_that_remembers_little_refuses_more_and_misses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entities, "TOUCHES_MAX", 2)
    monkeypatch.setattr(entities, "PATHS_MAX", 1)
    counts: Counter[str] = Counter()
    found = seeds(RUNS // 8)
    for seed in found:
        run(seed, counts)
    if len(found) == RUNS // 8:
        assert counts["accepted"] > 1_000
        assert counts["too strict"] > 100
