from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.tables.core.frontier import (
    BadFrontier,
    Frontier,
    LakePosition,
    Order,
    TopicPosition,
    later,
)

numbers = st.integers(0, 1 << 63)
positions = st.one_of(st.builds(LakePosition, numbers), st.builds(TopicPosition, numbers, numbers))
frontiers = st.dictionaries(st.text(max_size=8), positions, max_size=4).map(Frontier)


@given(frontiers)
def test_a_frontier_comes_back_from_its_text(frontier):
    assert Frontier.from_json(frontier.to_json()) == frontier
    assert hash(Frontier.from_json(frontier.to_json())) == hash(frontier)


@given(frontiers, frontiers)
def test_before_and_after_are_each_others_opposite(one, other):
    opposite = {Order.BEFORE: Order.AFTER, Order.AFTER: Order.BEFORE}
    order = one.compare(other)
    assert other.compare(one) is opposite.get(order, order)
    assert (order is Order.SAME) is (one == other)


def test_frontiers_are_compared_input_by_input():
    old = Frontier({"a": LakePosition(1), "t": TopicPosition(1, 5)})
    new = Frontier({"a": LakePosition(2), "t": TopicPosition(1, 5)})
    assert old.compare(new) is Order.BEFORE
    assert new.compare(old) is Order.AFTER
    assert old.compare(Frontier({"a": LakePosition(2), "t": TopicPosition(1, 4)})) is Order.APART
    assert old.compare(Frontier({"a": LakePosition(1)})) is Order.APART
    assert old.compare(Frontier({"a": LakePosition(1), "t": TopicPosition(2, 9)})) is Order.APART


def test_an_input_has_moved_if_it_is_elsewhere_in_any_direction():
    made_of = Frontier({"a": LakePosition(5), "t": TopicPosition(1, 5)})
    assert made_of.moved({}) == ()
    assert made_of.moved({"a": LakePosition(5), "other": LakePosition(9)}) == ()
    assert made_of.moved({"a": LakePosition(6), "t": TopicPosition(2, 1)}) == ("a", "t")


def test_the_later_of_two_positions():
    assert later(None, LakePosition(1)) == LakePosition(1)
    assert later(LakePosition(1), LakePosition(2)) == LakePosition(2)
    assert later(LakePosition(2), LakePosition(1)) == LakePosition(2)
    assert later(TopicPosition(1, 9), TopicPosition(2, 1)) == TopicPosition(1, 9)


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": [1, 2, 3]}', '{"a": ["1"]}', "{"])
def test_a_damaged_frontier_is_corrupt(text):
    with pytest.raises(BadFrontier, match="not a stored frontier"):
        Frontier.from_json(text)
