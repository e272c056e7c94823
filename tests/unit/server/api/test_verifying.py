"""What is said of members whose states were compared."""

from __future__ import annotations

from penstock.protocol.cluster_answers import PartitionDigest
from penstock.server.api.verifying import SHOWN_MAX, Problem, compared


def found(topics: dict[str, str], *not_compared: str) -> PartitionDigest:
    return PartitionDigest(
        partition=1, index=7, records=3, topics={"": "0", **topics}, not_compared=not_compared
    )


def test_equal_members_are_equal() -> None:
    own = found({"a": "1", "b": "2"})
    said = compared(own, {"x": own, "y": found({"a": "1", "b": "2"})})
    assert said.equal
    assert said.complete
    assert said.topics == 2


def test_topics_that_differ_are_named() -> None:
    said = compared(found({"a": "1"}), {"y": found({"": "9", "a": "2", "c": "3"})})
    assert not said.equal
    assert said.complete
    (member,) = said.members
    assert member.differs_in == ("the partition itself", "a", "c")


def test_of_many_topics_some_are_named_and_all_are_counted() -> None:
    own = found({f"t{number}": "1" for number in range(100)})
    (member,) = compared(own, {"y": found({})}).members
    assert member.differing == 100
    assert len(member.differs_in) == SHOWN_MAX


def test_a_topic_that_one_member_cannot_compare_is_left_out_for_all() -> None:
    own = found({"a": "1"}, "e")
    said = compared(own, {"x": own, "y": found({"a": "1", "e": "5"})})
    assert said.equal
    assert said.not_compared == ("e",)


def test_a_member_that_is_away_makes_it_incomplete_and_not_different() -> None:
    own = found({"a": "1"})
    said = compared(own, {"x": own, "y": Problem("no link", is_away=True), "z": Problem("damaged")})
    assert said.equal
    assert not said.complete
    assert [each.state for each in said.members] == ["equal", "away", "failed"]
