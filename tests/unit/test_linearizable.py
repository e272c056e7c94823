"""The checker of histories finds an order where there is one, and none where there is none."""

from __future__ import annotations

from itertools import permutations
from math import inf
from random import Random

import pytest

from penstock.testing import seeded
from tests.linearizable import READ, REFUSED, WRITE, Op, linearizable


def test_a_read_during_a_write_may_see_either() -> None:
    write = Op(0, 10, WRITE, None, 1)
    for seen in (None, 1):
        assert linearizable([write, Op(1, 2, READ, None, seen)])
    assert not linearizable([write, Op(1, 2, READ, None, 2)])


def test_reads_do_not_go_back() -> None:
    write = Op(0, 10, WRITE, None, 1)
    new_then_old = [Op(1, 2, READ, None, 1), Op(3, 4, READ, None, None)]
    assert not linearizable([write, *new_then_old])


def test_of_two_writes_with_one_expectation_one_is_refused() -> None:
    both = [Op(0, 5, WRITE, None, 1), Op(1, 6, WRITE, None, 2)]
    assert not linearizable(both)
    assert linearizable([both[0], Op(1, 6, REFUSED, None, 2)])
    assert not linearizable([Op(0, 5, REFUSED, None, 2)])


def test_a_write_without_an_answer_may_have_happened_at_any_time_or_never() -> None:
    lost = Op(0, inf, WRITE, None, 1)
    assert linearizable([lost])
    assert linearizable([lost, Op(5, 6, READ, None, None), Op(7, 8, READ, None, 1)])
    assert linearizable([lost, Op(5, 6, READ, None, None), Op(7, 8, READ, None, None)])


def orders(ops: list[Op]) -> bool:
    """The same question, by trying every order."""
    for order in permutations(ops):
        value: object = None
        for place, op in enumerate(order):
            late = any(other.answered < op.called for other in order[place + 1 :])
            wrong = (
                op.after != value if op.kind == READ else (op.before == value) != (op.kind == WRITE)
            )
            if late or wrong:
                break
            value = op.after if op.kind == WRITE else value
        else:
            return True
    return not ops


@pytest.mark.parametrize("seed", range(200))
def test_it_agrees_with_trying_every_order(seed: int) -> None:
    with seeded(seed) as random:
        ops = [some(random, number) for number in range(random.randrange(2, 6))]
        assert linearizable(ops) == orders(ops)


def some(random: Random, number: int) -> Op:
    called = random.randrange(12)
    answered = called + random.randrange(1, 8)
    kind = random.choice((READ, WRITE, REFUSED))
    before = random.choice((None, 0, 1))
    after = random.choice((None, 0, 1)) if kind == READ else number
    return Op(called, answered, kind, before, after)
