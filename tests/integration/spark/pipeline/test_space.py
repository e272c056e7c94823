"""A copy of a space against the space itself, on a real server. No Spark."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest

from penstock.client import Client
from penstock.protocol.commits import Commit, CommitWrite
from penstock.spark.pipeline.space import PAGE_ENTITIES, Basis, SpaceCopy
from penstock.spark.topics.http import TopicAddress, TopicMissing
from penstock.testing import seeded, seeds

NUMBERS = count(1)


class Space:
    """A space that is written to, and a copy of it."""

    def __init__(self, client: Client, url: str) -> None:
        self.client, self.name = client, f"copied{next(NUMBERS)}"
        self.copy = SpaceCopy(TopicAddress(url, self.name, timeout_s=5))

    def commit(self, *writes: CommitWrite) -> int:
        commit = Commit(session=f"s{next(NUMBERS)}", local_seq=1, writes=writes)
        return self.client.commit(self.name, commit).seq

    def check(self) -> set[str]:
        """Catch up; it is the space as it is, then."""
        changed = self.copy.catch_up()
        there = {state.entity: state.doc for state in self.client.list_entities(self.name)}
        assert self.copy.documents == there
        state = self.client.get_topic(self.name)
        assert self.copy.basis == Basis(self.name, state.epoch, state.head_seq)
        return changed


@pytest.fixture
def space(client: Client, url: str) -> Any:
    made = Space(client, url)
    yield made
    made.copy.close()


@pytest.mark.parametrize("seed", seeds(2))
def test_a_copy_is_the_space_after_any_commits(seed: int, space: Space) -> None:
    with seeded(seed) as random:
        for _ in range(20):
            for _ in range(random.randrange(1, 6)):
                space.commit(*(any_write(random) for _ in range(random.randrange(1, 4))))
            space.check()
    assert space.check() == set()


def any_write(random: Random) -> CommitWrite:
    entity, value = f"e{random.randrange(6)}", random.randrange(100)
    match random.randrange(4):
        case 0:
            return CommitWrite(entity, delete=True)
        case 1:
            return CommitWrite(entity, patch={"a": {"b": value}, "c": None})
        case 2:
            return CommitWrite(entity, patch={"c": value})
        case _:
            return CommitWrite(entity, set={"a": value})


def test_it_tells_what_has_changed_and_nothing_twice(space: Space) -> None:
    space.commit(CommitWrite("a", set=1), CommitWrite("b", set=2))
    assert space.check() == {"a", "b"}
    space.commit(CommitWrite("b", set=3))
    space.commit(CommitWrite("c", set=4))
    assert space.check() == {"b", "c"}
    assert space.check() == set()


def test_a_space_of_many_pages_comes_whole(space: Space) -> None:
    total = PAGE_ENTITIES + 300
    for begin in range(0, total, 250):
        numbers = range(begin, min(total, begin + 250))
        space.commit(*(CommitWrite(f"e{number:05}", set=number) for number in numbers))
    assert len(space.check()) == total


def test_a_space_that_was_made_again_and_one_whose_commits_have_left_are_loaded_anew(
    space: Space,
) -> None:
    with pytest.raises(TopicMissing):
        space.copy.catch_up()
    space.commit(CommitWrite("a", set=1), CommitWrite("b", set=1))
    space.check()
    space.client.delete_topic(space.name)
    with pytest.raises(TopicMissing):
        space.copy.catch_up()
    space.commit(CommitWrite("b", set=2))
    assert space.check() == {"a", "b"}
    seq = space.commit(CommitWrite("b", patch={"x": 1}))
    space.commit(CommitWrite("c", set=3))
    space.client.delete_records(space.name, before_seq=seq + 1)
    assert space.check() == {"b", "c"}
